"""`frames.json`, the record of the frames of one scene: where they come from, and every file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.json import Count, encode_json, make_decoder, parse_json
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ContentError, FileError
from scannet_prep.frames.options import FrameOptions
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.release.scene import SceneId, Split

RECORD_NAME = "frames.json"
_FORMAT = "scannet_prep frames"
_MAX_BYTES = 1 << 28
_HINT = "remove the folder of this scene, then run the same scannet-prep frames command again"

_Row: TypeAlias = tuple[float, float, float, float]
_Matrix: TypeAlias = tuple[_Row, _Row, _Row, _Row]


class CameraRecord(msgspec.Struct, frozen=True):
    """A camera, for images as they were written.

    Attributes:
        size: Width and height.
        intrinsic: 4 rows of 4 numbers; see `SensorCamera`.
        extrinsic: The same.
    """

    size: tuple[Count, Count]
    intrinsic: _Matrix
    extrinsic: _Matrix

    @classmethod
    def from_camera(cls, camera: SensorCamera) -> CameraRecord:
        """Record a camera."""
        matrices = [camera.intrinsic.tolist(), camera.extrinsic.tolist()]
        return cls(camera.size, *matrices)

    def to_camera(self) -> SensorCamera:
        """Return the camera."""
        intrinsic = np.array(self.intrinsic, np.float32)
        extrinsic = np.array(self.extrinsic, np.float32)
        return SensorCamera(intrinsic, extrinsic, self.size)


class FramesRecord(msgspec.Struct, frozen=True, tag_field="kind", tag=_FORMAT):
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
        format_version: Version of this format.
    """

    scene_id: SceneId
    split: Split
    options: FrameOptions
    sources: Mapping[str, Count]
    stream_frames: Count
    frames: tuple[Count, ...]
    lost: tuple[Count, ...]
    color_camera: CameraRecord
    depth_camera: CameraRecord
    label_map: str
    files: Mapping[str, Fingerprint]
    program_version: str = VERSION
    format_version: Literal[1] = 1

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(fingerprint.size_bytes for fingerprint in self.files.values())


_RECORD = make_decoder(FramesRecord)


def find_records(path: Path) -> dict[SceneId, Path]:
    """Find the records of the scenes of a folder, sorted; none is opened."""
    paths = sorted(path.glob(f"*/{RECORD_NAME}"))
    return {SceneId(path.parent.name): path for path in paths if SceneId.is_valid(path.parent.name)}


def is_frame_folder(path: Path) -> bool:
    """Whether `scannet-prep frames` made a folder."""
    return bool(find_records(path))


def read_record(path: Path) -> FramesRecord:
    """Read the record of a scene.

    Args:
        path: The file `<scene>/frames.json`.

    Raises:
        FileError: It cannot be read, is damaged, or belongs to another scene.
    """
    try:
        record = parse_json(read_file(path, _MAX_BYTES), _RECORD)
    except ContentError as error:
        raise FileError(path, f"is damaged: {error.message}", _HINT) from None
    if record.scene_id != path.parent.name:
        raise FileError(path, f"is the record of {record.scene_id}", _HINT)
    return record


def encode_record(record: FramesRecord) -> bytes:
    """Encode a record. Equal records give equal bytes."""
    return encode_json(record) + b"\n"
