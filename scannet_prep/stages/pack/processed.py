"""What of a processed folder goes into an archive: its scenes, and a manifest and lists that name just those."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scannet_prep.archive.contents import SourceFile, SourceGroup
from scannet_prep.archive.reader import ArchivedGroup
from scannet_prep.errors import ManifestError, MissingFileError, UsageError
from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.folder import (
    FAILED_NAME,
    UNFINISHED_NAME,
    encode_lists,
    find_processed_scenes,
    is_unfinished,
)
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    encode_manifest,
    read_manifest,
)
from scannet_prep.processed.scene import parse_processed
from scannet_prep.processed.state import check_mixture
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pack.files import FoundFiles
from scannet_prep.stages.selection import Selection
from scannet_prep.version import VERSION

_INCOMPLETE_HINT = (
    "make what is missing with the same scannet-prep process command, or pack what is there with --allow-incomplete"
)


@dataclass(frozen=True, slots=True)
class ProcessedContents:
    """What of a processed folder is packed.

    Attributes:
        files: The files that belong to no scene.
        scenes: The scenes.
        manifest: Names just these scenes.
    """

    files: tuple[SourceFile, ...]
    scenes: tuple[SourceGroup, ...]
    manifest: Manifest

    @property
    def options(self) -> dict[str, Any]:
        """How the scenes were made; only what holds for all of them."""
        made = [entry.options.to_json() for entry in self.manifest.scenes.values()]
        return (
            {key: value for key, value in made[0].items() if all(item[key] == value for item in made)} if made else {}
        )


def choose_processed(
    source: Path, found: FoundFiles, selection: Selection, *, allows_incomplete: bool
) -> ProcessedContents:
    """Choose the scenes of a processed folder.

    Args:
        source: The folder.
        found: Its files.
        selection: Which scenes.
        allows_incomplete: Whether scenes may be missing that failed, or that the manifest names.

    Raises:
        ManifestError: Processing has not finished, scenes failed, or they were made in different ways.
        MissingFileError: A scene is not there that the manifest names.
        UsageError: A scene that was asked for is not there.
    """
    whole = _read_manifest(source)
    if not allows_incomplete and (not whole.is_complete or is_unfinished(source)):
        raise ManifestError(source / MANIFEST_NAME, "says that processing has not finished", _INCOMPLETE_HINT)
    paths = {f"{split}/{scene_id}.npz" for scene_id, (split, _) in find_processed_scenes(source).items()}
    scenes = {name: entry for name, entry in whole.scenes.items() if _is_chosen(name, entry.split, selection)}
    failures = {
        name: failure
        for name, failure in whole.failures.items()
        if name not in scenes and _is_chosen(name, find_official_split(name), selection)
    }
    if selection.scene_ids is not None:
        _check_asked_for(source, selection, scenes.keys() | failures.keys())
    if failures and not allows_incomplete:
        raise ManifestError(
            source / MANIFEST_NAME,
            f"names {len(failures):,} scenes that failed, for example {min(failures)}",
            _INCOMPLETE_HINT,
        )
    missing = sorted(name for name, entry in scenes.items() if f"{entry.split}/{name}.npz" not in paths)
    if missing and not allows_incomplete:
        path = source / scenes[missing[0]].split / f"{missing[0]}.npz"
        raise MissingFileError(
            path, f"no such file, though the manifest names it ({len(missing):,} are missing)", _INCOMPLETE_HINT
        )
    if selection.limit is not None:
        kept = sorted(scenes.keys() - set(missing))[: selection.limit]
        scenes = {name: scenes[name] for name in kept}
    scenes = {name: entry for name, entry in scenes.items() if name not in missing}
    manifest = replace(whole, scenes=scenes, failures=failures)
    check_mixture(source, manifest)
    groups = tuple(_scene_group(name, entry, found) for name, entry in sorted(scenes.items()))
    has_manifest = any(file.name == MANIFEST_NAME for file in found.files)
    is_whole = has_manifest and scenes.keys() == whole.scenes.keys() and failures.keys() == whole.failures.keys()
    files = found.files if is_whole else replace_lists(found.files, manifest)
    return ProcessedContents(files, groups, manifest)


def merge_manifests(old: Manifest, new: Manifest) -> Manifest:
    """Join what two archives or folders hold; scenes that are in both are the new ones."""
    scenes = {**old.scenes, **new.scenes}
    failures = {name: item for name, item in {**old.failures, **new.failures}.items() if name not in scenes}
    return Manifest(scenes, failures, old.is_complete and new.is_complete, VERSION)


def replace_lists(files: Collection[SourceFile], manifest: Manifest) -> tuple[SourceFile, ...]:
    """Put a manifest and the lists that follow from it in the place of those that are there."""
    made: Mapping[str, bytes] = {MANIFEST_NAME: encode_manifest(manifest), **encode_lists(manifest)}
    kept = [file for file in files if file.name not in made and file.name != FAILED_NAME]
    if manifest.is_complete:
        kept = [file for file in kept if file.name != UNFINISHED_NAME]
    added = [SourceFile.from_content(name, data) for name, data in made.items()]
    return tuple(sorted([*kept, *added], key=lambda file: file.name))


def is_same(scene: SourceGroup, kept: ArchivedGroup) -> bool:
    """Whether an archive holds a scene as the manifest describes it."""
    described = [(file.name, file.fingerprint) for file in scene.files]
    return described == [(member.name, Fingerprint(member.size_bytes, member.crc32)) for member in kept.entry.members]


def _read_manifest(source: Path) -> Manifest:
    """Read the manifest; where there is none, make it from the scenes."""
    manifest = read_manifest(source)
    if manifest is not None:
        return manifest
    entries = {}
    for scene_id, (_, path) in find_processed_scenes(source).items():
        data = read_file(path)
        entries[str(scene_id)] = SceneEntry.from_scene(parse_processed(data, path), Fingerprint.from_bytes(data))
    return Manifest(entries, program_version=VERSION)


def _is_chosen(scene_id: str, split: Split | None, selection: Selection) -> bool:
    if selection.scene_ids is not None and scene_id not in selection.scene_ids:
        return False
    return not selection.splits or split is None or split in selection.splits


def _check_asked_for(source: Path, selection: Selection, known: Collection[str]) -> None:
    unknown = sorted(set(selection.scene_ids or ()) - set(known))
    if unknown:
        raise UsageError(
            f"{source}: has no scene {unknown[0]}, which was asked for ({len(unknown):,} are not there)",
            f"scannet-prep process --scenes {unknown[0]} -o {source}, or leave it out",
        )


def _scene_group(scene_id: str, entry: SceneEntry, found: FoundFiles) -> SourceGroup:
    name = f"{entry.split}/{scene_id}.npz"
    files = tuple(
        replace(file, fingerprint=entry.fingerprint) if file.name == name else file for file in found.scenes[scene_id]
    )
    return SourceGroup(scene_id, str(entry.split), entry.vertex_count, files)
