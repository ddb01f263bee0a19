"""Check the content of downloaded files: each file by itself, and the files of a scene together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import open_file, read_file
from scannet_prep.errors import FileError
from scannet_prep.raw.check import read_raw_file
from scannet_prep.raw.large_files import LARGE_FILE_CHECKS
from scannet_prep.raw.lock import LockEntry, digest_bytes, digest_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.scan_info import ScanInfo
from scannet_prep.raw.segments import Aggregation, Segmentation
from scannet_prep.release.files import (
    AGGREGATION,
    INPUT_KINDS,
    LABEL_MAP,
    LABELS_MESH,
    MESH,
    SEGMENTS,
    FileKind,
)
from scannet_prep.release.label_map import read_label_map
from scannet_prep.release.scene import Split
from scannet_prep.stages.download.planning import RemoteFile

COMPARED_KINDS = frozenset({MESH, LABELS_MESH, SEGMENTS, AGGREGATION})
"""Kinds of files that must agree with the other files of their scene."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a file with which other files of its scene must agree.

    Attributes:
        vertex_count: Number of vertices of its mesh; None if the file does not contain it.
        segment_ids: Raw ids of the segments that it contains or names.
    """

    vertex_count: int | None
    segment_ids: frozenset[int] = frozenset()


def _ignore_progress(_size_bytes: int) -> None:
    """Ignore the number of bytes that were checked."""


def read_and_digest(remote: RemoteFile, path: Path) -> tuple[bytes | None, LockEntry]:
    """Read a file once, for its digest and for its check.

    Returns:
        The bytes of the file, and its digest. Files of kinds outside `INPUT_KINDS` may be large.
        They are read piece by piece, and None is returned in place of their bytes.

    Raises:
        FileError: It cannot be read, or is too large.
    """
    if remote.kind not in INPUT_KINDS:
        return None, digest_file(path)
    data = read_file(path, remote.kind.max_bytes)
    return data, digest_bytes(data)


def check_file(
    remote: RemoteFile,
    path: Path,
    data: bytes | None = None,
    advance: Callable[[int], None] = _ignore_progress,
) -> Facts | None:
    """Check that a file is complete, of its kind, and of its scene.

    Args:
        remote: The file of the release.
        path: The local file, which may have a temporary name.
        data: Its bytes, from `read_and_digest`; None to read them.
        advance: Called with the number of bytes that were checked, for large files.

    Returns:
        The facts to compare, for the kinds in `COMPARED_KINDS`.

    Raises:
        FileError: The file is damaged, or is another file.
    """
    if data is not None:
        content = read_raw_file(remote.kind, path)
    else:
        # Opening refuses anything but a regular file, and a file that is too large.
        with open_file(path, remote.kind.max_bytes):
            pass
        if remote.kind.content in LARGE_FILE_CHECKS:
            LARGE_FILE_CHECKS[remote.kind.content](path, advance)
            return None
        if remote.kind is LABEL_MAP:
            read_label_map(path)
            return None
        content = read_raw_file(remote.kind, path)

    # Many files of the release contain no scene id.
    scene_id = getattr(content, "scene_id", "")
    if scene_id and scene_id != remote.scene_id:
        raise FileError(path, f"sceneId is {scene_id!r:.60}, expected {remote.scene_id}")
    is_annotated = remote.split is not Split.TEST
    if isinstance(content, ScanInfo) and content.axis_alignment is None and is_annotated:
        raise FileError(path, "has no axisAlignment, which every train and val scene has")
    # Files of the high-resolution mesh have the same types of content, but other vertices.
    if remote.kind not in COMPARED_KINDS:
        return None
    return _collect_facts(content)


def _collect_facts(content: object) -> Facts | None:
    if isinstance(content, Segmentation):
        return Facts(len(content.indices), frozenset(content.raw_ids.tolist()))
    if isinstance(content, Mesh):
        return Facts(content.vertex_count)
    if isinstance(content, Aggregation):
        segment_ids: set[int] = set()
        # An id that is null in the file is None.
        for group in content.groups:
            segment_ids.update(number for number in group.segment_ids if number is not None)
        return Facts(vertex_count=None, segment_ids=frozenset(segment_ids))
    return None


def find_contradiction(facts: Mapping[FileKind, Facts]) -> str:
    """Describe how the files of one scene contradict each other; empty if they agree."""
    counts = {}
    for kind, file_facts in facts.items():
        if file_facts.vertex_count is not None:
            counts[kind.suffix] = file_facts.vertex_count
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{suffix} has {count:,}" for suffix, count in counts.items())
        return f"the numbers of vertices differ: {listed}"

    if SEGMENTS not in facts or AGGREGATION not in facts:
        return ""
    existing = facts[SEGMENTS].segment_ids
    named = facts[AGGREGATION].segment_ids
    # Single unknown segments are left to `verify`. If all are unknown, the file belongs to another
    # scene.
    if existing and named and existing.isdisjoint(named):
        return (
            f"{AGGREGATION.suffix} names {len(named):,} segments, "
            f"none of which is in {SEGMENTS.suffix}"
        )
    return ""
