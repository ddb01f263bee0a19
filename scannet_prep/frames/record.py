"""`frames.json`, the record of the frames of one scene: where they come from, and every file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.json import Count, make_decoder, parse_json, to_plain
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ContentError, FileError
from scannet_prep.frames.options import FrameOptions
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.release.scene import SceneId, Split

RECORD_NAME = "frames.json"
_KIND = "scannet_prep frames"
_FORMAT_VERSION = 1
_MAX_BYTES = 1 << 28
_HINT = "remove the folder of this scene, then run the same scannet-prep frames command again"


@dataclass(frozen=True, slots=True)
class CameraRecord:
    """A camera, for images as they were written.

    Attributes:
        size: Width and height.
        intrinsic: 4 rows of 4 numbers; see `SensorCamera`.
        extrinsic: The same.
    """

    size: tuple[Count, Count]
    intrinsic: tuple[tuple[float, float, float, float], ...]
    extrinsic: tuple[tuple[float, float, float, float], ...]

    @classmethod
    def from_camera(cls, camera: SensorCamera) -> CameraRecord:
        """Record a camera."""
        return cls(camera.size, _to_rows(camera.intrinsic), _to_rows(camera.extrinsic))

    def to_camera(self) -> SensorCamera:
        """Return the camera."""
        intrinsic = np.array(self.intrinsic, np.float32)
        extrinsic = np.array(self.extrinsic, np.float32)
        if intrinsic.shape != (4, 4) or extrinsic.shape != (4, 4):
            raise ContentError("a matrix of a camera is not 4 x 4")
        return SensorCamera(intrinsic, extrinsic, self.size)


@dataclass(frozen=True, slots=True)
class FramesRecord:
    """The frames of one scene.

    Attributes:
        scene_id: The scene.
        split: Its split.
        options: The options of the folder.
        sources: The sizes in bytes of the stream and of the zip files of 2D labels, by name.
        stream_frames: The number of frames of the stream.
        frames: The numbers of the extracted frames in the stream.
        lost: The numbers of the frames without tracking: those that were omitted or, if the options
            keep them, those that were extracted.
        color_camera: The color camera.
        depth_camera: The depth camera.
        label_map: The digest of the label map, if label images depend on it; otherwise empty.
        files: The fingerprints of all files, by their path in the folder of the scene.
        program_version: The version of this program that extracted them.
    """

    scene_id: SceneId
    split: Split
    options: FrameOptions
    sources: Mapping[str, Count] = field(hash=False)
    stream_frames: Count
    frames: tuple[Count, ...]
    lost: tuple[Count, ...]
    color_camera: CameraRecord
    depth_camera: CameraRecord
    label_map: str
    files: Mapping[str, Fingerprint] = field(hash=False)
    kind: str = _KIND
    format_version: int = _FORMAT_VERSION
    program_version: str = VERSION

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(fingerprint.size_bytes for fingerprint in self.files.values())


_RECORD = make_decoder(FramesRecord)


def is_frame_folder(path: Path) -> bool:
    """Whether `scannet-prep frames` made a folder."""
    return next(iter_records(path), None) is not None


def iter_records(path: Path) -> Iterator[tuple[SceneId, Path]]:
    """Iterate over the scenes of a folder and the paths of their records, sorted; none is opened.

    Raises:
        FileError: The folder cannot be read.
    """
    for scene_id, scene_path in iter_scene_folders(path):
        record_path = scene_path / RECORD_NAME
        if os.path.lexists(record_path):
            yield scene_id, record_path


def iter_scene_folders(path: Path) -> Iterator[tuple[SceneId, Path]]:
    """Iterate over what has the name of a scene in a folder, sorted, with or without a record.

    Raises:
        FileError: The folder cannot be read.
    """
    try:
        names = sorted(os.listdir(path)) if os.path.isdir(path) else []  # noqa: PTH112, PTH208
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error
    for name in names:
        if SceneId.is_valid(name):
            yield SceneId(name), path / name


def read_record(path: Path) -> FramesRecord:
    """Read the record of a scene.

    Args:
        path: The file `<scene>/frames.json`.

    Raises:
        FileError: It cannot be read, is damaged, or belongs to another scene.
    """
    try:
        record = parse_json(read_file(path, _MAX_BYTES), _RECORD)
        record.color_camera.to_camera()
        record.depth_camera.to_camera()
    except ContentError as error:
        raise FileError(path, f"is damaged: {error.message}", _HINT) from None
    if (record.kind, record.format_version) != (_KIND, _FORMAT_VERSION):
        actual = f"{record.kind[:40]!a}, version {record.format_version}"
        raise FileError(path, f"is {actual}, expected {_KIND!r}, version {_FORMAT_VERSION}", _HINT)
    if record.scene_id != path.parent.name:
        raise FileError(path, f"is the record of {record.scene_id}", _HINT)
    for name in record.files:
        has_odd_part = any(part in {"", ".", ".."} for part in name.split("/"))
        if has_odd_part or "\0" in name:
            raise FileError(path, f"is damaged: it names the file {name[:80]!a}", _HINT)
    return record


def encode_record(record: FramesRecord) -> bytes:
    """Encode a record. Equal records give equal bytes."""
    return json.dumps(to_plain(record), sort_keys=True).encode() + b"\n"


def _to_rows(
    matrix: NDArray[np.float32],
) -> tuple[tuple[float, float, float, float], ...]:
    return tuple((row[0], row[1], row[2], row[3]) for row in matrix.tolist())
