"""Compares the manifest in an archive of a processed folder with the scenes beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.group_check import GroupCheck, read_found_member
from scannet_prep.archive.index import GroupEntry, MemberEntry
from scannet_prep.archive.layout import Layout
from scannet_prep.archive.source import ByteSource
from scannet_prep.errors import ManifestError
from scannet_prep.files import Fingerprint
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry, parse_manifest

_MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class ManifestCheck:
    """What the check of the manifest found.

    Attributes:
        problems: What is wrong, with the scene; empty for the manifest itself.
        scene_count: Scenes that it names; None where there is no manifest.
        unheld: Those of them that the index does not have.
    """

    problems: tuple[tuple[str, str], ...] = ()
    scene_count: int | None = None
    unheld: frozenset[str] = frozenset()


def check_manifest(source: ByteSource, layout: Layout, checks: Sequence[GroupCheck]) -> ManifestCheck:
    """Check that the manifest, if there is one, and the index say the same; no scene is decompressed.

    Args:
        source: The archive.
        layout: Its parts.
        checks: What was found about its groups.
    """
    first = next((check for check in checks if check.place.offset == 0), None)
    member = None if first is None else _find(first.members, MANIFEST_NAME)
    if first is None or member is None:
        return ManifestCheck()
    try:
        if member.size_bytes > _MAX_BYTES:
            raise ManifestError(MANIFEST_NAME, f"has {member.size_bytes:,} bytes")  # noqa: TRY301 - told as any other
        manifest = parse_manifest(read_found_member(source, first, member), Path(MANIFEST_NAME))
    except ManifestError as error:
        return ManifestCheck((("", f"{MANIFEST_NAME} {error.problem}"),))
    if layout.index is None:
        return ManifestCheck(scene_count=len(manifest.scenes))
    problems = [
        (scene.scene_id, problem)
        for scene in layout.index.scenes
        if (problem := _compare(scene, manifest.scenes.get(scene.scene_id)))
    ]
    held = {scene.scene_id for scene in layout.index.scenes}
    return ManifestCheck(tuple(problems), len(manifest.scenes), frozenset(set(manifest.scenes) - held))


def _compare(scene: GroupEntry, entry: SceneEntry | None) -> str:
    if entry is None:
        return f"is not in {MANIFEST_NAME}"
    if (scene.split, scene.vertex_count) != (str(entry.split), entry.vertex_count):
        return (
            f"has {scene.vertex_count:,} vertices and the split {scene.split or 'none'} in the index, but "
            f"{entry.vertex_count:,} and {entry.split} in {MANIFEST_NAME}"
        )
    name = f"{entry.split}/{scene.scene_id}.npz"
    member = _find(scene.members, name)
    if member is None:
        return f"holds no {name}, though {MANIFEST_NAME} names it"
    if Fingerprint(member.size_bytes, member.crc32) != entry.fingerprint:
        return f"{name} is not what {MANIFEST_NAME} says: its size or CRC-32 is another one"
    return ""


def _find(members: Sequence[MemberEntry], name: str) -> MemberEntry | None:
    return next((member for member in members if member.name == name), None)
