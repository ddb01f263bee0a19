"""`frames.json`, the record of the frames of one scene: where they come from, and every file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.json import Count, encode_json, make_decoder, parse_record
from scannet_prep.frames.options import FrameOptions
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.release.scenes import SceneId, Split

RECORD_NAME = "frames.json"
_FORMAT = "scannet_prep frames"
_MAX_BYTES = 1 << 28
_HINT = "remove the folder of this scene, then run the same scannet-prep frames command again"


class FramesRecord(  # noqa: PLW1641 - nobody needs a set of records
    msgspec.Struct, frozen=True, eq=False, tag_field="kind", tag=_FORMAT
):
    """The frames of one scene.

    Attributes:
        scene_id: The scene.
        split: Its split.
        options: The options of the folder.
        sources: The sizes in bytes of the stream and of the zip files of 2D labels, by name.
        frames: The numbers of the extracted frames in the stream.
        lost: The numbers of the frames without tracking: those that were omitted or, if the options
            keep them, those that were extracted.
        without_depth: The numbers of the extracted frames whose depth image is 0 everywhere.
        color_camera: The color camera, for images as they were written.
        depth_camera: The depth camera, likewise.
        sensor: The name of the sensor.
        poses: The poses of the extracted frames; see `read_poses`.
        files: The fingerprints of all files, by their path in the folder of the scene.
        format_version: Version of this format.
    """

    scene_id: SceneId
    split: Split
    options: FrameOptions
    sources: Mapping[str, Count]
    frames: tuple[Count, ...]
    lost: tuple[Count, ...]
    without_depth: tuple[Count, ...]
    color_camera: SensorCamera
    depth_camera: SensorCamera
    sensor: str
    poses: bytes
    files: Mapping[str, Fingerprint]
    format_version: Literal[1] = 1

    def __eq__(self, other: object) -> bool:
        """Whether their files have the same content."""
        return encode_json(self) == encode_json(other)

    def read_poses(self) -> NDArray[np.float32]:
        """Return the poses of the extracted frames, float32 (N, 4, 4), scan <- camera, metres."""
        return np.frombuffer(self.poses, "<f4").reshape(-1, 4, 4)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(fingerprint.size_bytes for fingerprint in self.files.values())


_DECODER = make_decoder(FramesRecord)


def find_records(path: Path) -> dict[str, Path]:
    """Find the records of the scenes of a folder, by scene, sorted; none is opened."""
    # Folders that are not finished are hidden. A layout may have a folder above those of scenes.
    paths = {*path.glob(f"[!.]*/{RECORD_NAME}"), *path.glob(f"[!.]*/*/{RECORD_NAME}")}
    return {path.parent.name: path for path in sorted(paths)}


def read_record(path: Path) -> FramesRecord:
    """Read the record of a scene.

    Args:
        path: The file `<scene>/frames.json`.

    Raises:
        FileError: It cannot be read, or is damaged.
    """
    return parse(read_file(path, _MAX_BYTES), path)


def parse(data: bytes, path: Path) -> FramesRecord:
    """Parse the record of a scene.

    Args:
        data: The bytes of the file.
        path: Its name, for messages.

    Raises:
        FileError: It is damaged.
    """
    return parse_record(data, path, _DECODER, _HINT)
