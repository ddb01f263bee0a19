"""Is a raw file what its name says? Cheap enough to ask of every file of a download."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from scannet_prep.errors import FileError, SegmentsError
from scannet_prep.labels import read_label_map
from scannet_prep.raw.aggregation import read_aggregation
from scannet_prep.raw.info import read_scan_info
from scannet_prep.raw.layout import AGGREGATION_SUFFIX, MESH_SUFFIX, SEGMENTS_SUFFIX
from scannet_prep.raw.mesh import check_mesh_file
from scannet_prep.raw.segments import read_segments
from scannet_prep.release import Content
from scannet_prep.remote.catalog import RemoteFile

_HINT = "download it again"


def check_file(remote: RemoteFile, path: Path, data_dir: Path) -> None:
    """Check that a file is whole and of its kind, and that it fits those of its scene that are there already.

    Args:
        remote: Which file it is.
        path: Where its bytes are; perhaps under a temporary name.
        data_dir: The raw tree.

    Raises:
        FileError: It is not; the message names the file by its final name.
    """
    try:
        _check(remote, path, data_dir)
    except FileError as error:
        raise type(error)(data_dir / remote.local_path, error.problem, error.hint) from None


def _check(remote: RemoteFile, path: Path, data_dir: Path) -> None:
    match remote.kind.content:
        case Content.MESH | Content.LABELS_MESH:
            check_mesh_file(path, needs_labels=remote.kind.content is Content.LABELS_MESH)
        case Content.SEGMENTS:
            _check_segments(remote, path, data_dir)
        case Content.AGGREGATION:
            _check_aggregation(remote, path, data_dir)
        case Content.INFO:
            read_scan_info(path)
        case Content.LABEL_MAP:
            read_label_map(path)
        case Content.ZIP:
            if not zipfile.is_zipfile(path):
                raise FileError(path, "is no zip file, or truncated", _HINT)
        case Content.SENSOR_STREAM:
            _check_sensor_stream(path)


def _sibling(remote: RemoteFile, suffix: str, data_dir: Path) -> Path:
    return (data_dir / remote.local_path).with_name(f"{remote.scene_id}{suffix}")


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of a file, which keeps its identity when it gets its final name."""

    path: Path = field(compare=False)
    identity: tuple[int, int, int, int]


# Asked for twice, by the segments' own check and soon after by that of the aggregation.
@lru_cache(maxsize=16)
def _read_segment_ids(version: _Version) -> tuple[int, frozenset[int]]:
    """The number of vertices, and the ids of the segments."""
    segmentation = read_segments(version.path)
    return len(segmentation.indices), frozenset(segmentation.raw_ids.tolist())


def _find_segment_ids(path: Path) -> tuple[int, frozenset[int]]:
    status = path.stat()
    return _read_segment_ids(_Version(path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)))


def _check_segments(remote: RemoteFile, path: Path, data_dir: Path) -> None:
    count, _ = _find_segment_ids(path)
    mesh_path = _sibling(remote, MESH_SUFFIX, data_dir)
    if remote.kind.suffix != SEGMENTS_SUFFIX or not mesh_path.exists():
        return
    vertex_count = check_mesh_file(mesh_path)
    if count != vertex_count:
        raise SegmentsError(path, f"is for {count:,} vertices, but {mesh_path.name} has {vertex_count:,}", _HINT)


def _check_aggregation(remote: RemoteFile, path: Path, data_dir: Path) -> None:
    aggregation = read_aggregation(path)
    segments_path = _sibling(remote, SEGMENTS_SUFFIX, data_dir)
    if remote.kind.suffix != AGGREGATION_SUFFIX or not segments_path.exists():
        return
    _, known = _find_segment_ids(segments_path)
    named = [number for group in aggregation.groups for number in group.segment_ids]
    # Single strangers are for `verify` to report; a file in which none is known belongs to something else.
    if named and not any(number in known for number in named):
        raise FileError(path, f"names {len(named):,} segments, none of which is in {segments_path.name}", _HINT)


def _check_sensor_stream(path: Path) -> None:
    with path.open("rb") as file:
        version = file.read(4)
    if version != (4).to_bytes(4, "little"):
        raise FileError(path, f"begins with {version!r}, expected version 4 of the sensor stream", _HINT)
