"""Read a folder that `scannet-prep frames` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.base.images import GrayImage, decode_color, decode_gray
from scannet_prep.base.text import list_some
from scannet_prep.errors import (
    ContentError,
    FileError,
    MissingFileError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.frames.options import LAYOUTS, FrameContent
from scannet_prep.frames.record import FramesRecord, find_records, read_record
from scannet_prep.raw.sensor_stream import SensorCamera, find_tracked
from scannet_prep.release.scene import SceneId

# A raw image of 1296 x 968 has 3.8 MB.
_MAX_IMAGE_BYTES = 1 << 26
_MAX_POSE_BYTES = 1 << 12
_HINT_EXTRACT = "extract the frames again, with this content, too"
_HINT_VERIFY = "verify checks all files"


class FrameFolder:
    """The extracted frames of several scenes: `FrameFolder("data/frames")["scene0000_00"]`.

    Args:
        path: The folder.

    Attributes:
        path: As given.
        scene_ids: The scenes, sorted.

    Raises:
        MissingFileError: The folder holds no extracted frames.
        FileError: It cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._record_paths = find_records(self.path)
        self.scene_ids = tuple(self._record_paths)
        if not self.scene_ids:
            raise MissingFileError(
                self.path,
                "holds no extracted frames: expected scene*/frames.json",
                "the command frames extracts them",
            )

    def __len__(self) -> int:
        """Return the number of scenes."""
        return len(self.scene_ids)

    def __contains__(self, scene_id: object) -> bool:
        """Whether the folder holds a scene."""
        return scene_id in self._record_paths

    def __iter__(self) -> Iterator[SceneFrames]:
        """Iterate over the scenes."""
        return (self[scene_id] for scene_id in self.scene_ids)

    def __getitem__(self, scene_id: str) -> SceneFrames:
        """Return the frames of a scene.

        Raises:
            UnknownSceneError: The folder does not hold the scene.
            FileError: Its record is damaged.
        """
        record_path = self._record_paths.get(SceneId(scene_id))
        if record_path is None:
            raise UnknownSceneError(
                f"{self.path}: has no scene {scene_id}; it has {list_some(self.scene_ids)}"
            )
        return SceneFrames(record_path.parent, read_record(record_path))


class SceneFrames:
    """The extracted frames of one scene, a sequence.

    Args:
        path: The folder of the scene.
        record: Its record.

    Attributes:
        path: As given.
        record: As given.
        scene_id: The scene.
        color_camera: The color camera, for images of the size that was written.
        depth_camera: The same for depth images.
    """

    def __init__(self, path: Path, record: FramesRecord) -> None:
        self.path = path
        self.record = record
        self.scene_id = record.scene_id
        self.color_camera = record.color_camera.to_camera()
        self.depth_camera = record.depth_camera.to_camera()

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.record.frames)

    def __getitem__(self, position: int) -> ExtractedFrame:
        """Return a frame by its position among the extracted ones.

        Raises:
            IndexError: There are fewer frames.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path}: has no frame {position}, only {len(self)} frames")
        return ExtractedFrame(self, position, self.record.frames[position])

    def __iter__(self) -> Iterator[ExtractedFrame]:
        """Iterate over the frames."""
        return (self[position] for position in range(len(self)))

    @cached_property
    def poses(self) -> NDArray[np.float64]:
        """The poses of all frames, float64 (N, 4, 4), scan <- camera, metres, six decimals.

        Raises:
            UsageError: Poses were not extracted.
            FileError: A file is missing or damaged.
        """
        poses = [frame.pose for frame in self]
        return np.array(poses, np.float64).reshape(-1, 4, 4)

    @property
    def is_tracked(self) -> NDArray[np.bool_]:
        """Whether each frame has a usable pose, bool (N,). False only with `--keep-lost`."""
        return find_tracked(self.poses)


@dataclass(frozen=True, slots=True)
class ExtractedFrame:
    """One extracted frame. Its files are read when they are used.

    Attributes:
        scene: The frames of its scene.
        position: Its position among them.
        number: Its number in the stream.
    """

    scene: SceneFrames
    position: int
    number: int

    def find(self, content: FrameContent) -> Path:
        """Return the path of a file.

        Args:
            content: `color`, `depth`, `pose`, `labels` or `instances`.

        Raises:
            UsageError: It was not extracted.
        """
        record = self.scene.record
        contents = record.options.contents_of(record.split)
        if content not in contents:
            # 2D labels may be among the options, but scenes of test have none.
            is_in_options = content in record.options.contents
            raise UsageError(
                f"{self.scene.path}: has no {content}, only {', '.join(contents) or 'cameras'}",
                "test scenes have no 2D labels" if is_in_options else _HINT_EXTRACT,
            )
        layout = LAYOUTS[record.options.layout]
        return self.scene.path / layout.path(content, self.position, self.number)

    @property
    def pose(self) -> NDArray[np.float64]:
        """The pose, float64 (4, 4), scan <- camera, metres, six decimals.

        Raises:
            UsageError: Poses were not extracted.
            FileError: The file is missing or damaged.
        """
        path = self.find("pose")
        try:
            numbers = [float(word) for word in read_file(path, _MAX_POSE_BYTES).split()]
            return np.array(numbers, np.float64).reshape(4, 4)
        except ValueError as error:
            raise FileError(path, f"is not a matrix of 4 x 4: {error}", _HINT_VERIFY) from None

    def color(self) -> NDArray[np.uint8]:
        """Read the color image, uint8 (H, W, 3).

        Raises:
            UsageError: It was not extracted.
            FileError: The file is missing or damaged.
        """
        path = self.find("color")
        try:
            return decode_color(read_file(path, _MAX_IMAGE_BYTES), self.scene.color_camera.size)
        except ContentError as error:
            raise FileError(path, error.message, _HINT_VERIFY) from None

    def depth(self) -> NDArray[np.uint16]:
        """Read the depth image, uint16 (H, W), millimetres; 0 where nothing was measured.

        Raises:
            UsageError, FileError: As for `color`.
        """
        image = self._read_gray("depth", self.scene.depth_camera)
        return image.astype(np.uint16)

    def labels(self) -> GrayImage:
        """Read the labels, uint8 or uint16 (H, W), in pixels of the color image.

        They are ids of the label set that was chosen for the folder; 0 is unlabeled.

        Raises:
            UsageError, FileError: As for `color`.
        """
        return self._read_gray("labels", self.scene.color_camera)

    def instances(self) -> GrayImage:
        """Read the objects, uint8 or uint16 (H, W), in pixels of the color image.

        They are object id + 1, and 0 outside all objects.

        Raises:
            UsageError, FileError: As for `color`.
        """
        return self._read_gray("instances", self.scene.color_camera)

    def _read_gray(self, content: FrameContent, camera: SensorCamera) -> GrayImage:
        path = self.find(content)
        try:
            return decode_gray(read_file(path, _MAX_IMAGE_BYTES), camera.size)
        except ContentError as error:
            raise FileError(path, error.message, _HINT_VERIFY) from None
