"""Folders of extracted frames: the record of each scene, `frames.json`, and reading its files.

<scene>/frames.json --> FramesRecord: where the frames come from, their cameras, and every file
folder, or archive  --> FrameFolder --> SceneFrames --> ExtractedFrame --> image
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.format import Archive, find_owner, open_archive
from scannet_prep.base.files import Fingerprint, have_sizes, read_file
from scannet_prep.base.images import decode_color, decode_gray
from scannet_prep.base.json import Count, parse_record
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, MissingFileError, UnknownSceneError, UsageError
from scannet_prep.frames.options import FrameContent, FrameOptions
from scannet_prep.raw.sensor_stream import SensorCamera, find_tracked
from scannet_prep.release.scenes import Split

RECORD_NAME = "frames.json"
_HINT_DAMAGED = "remove the folder of this scene, then run the same frames command again"


class FramesRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="scannet_prep frames"):
    """The frames of one scene.

    Attributes:
        split: The split of the scene.
        options: The options of the folder.
        sources: The sizes in bytes of the stream and of the zip files of 2D labels, by name.
        frames: The numbers of the extracted frames in the stream.
        lost: The numbers of the frames without tracking: those that were omitted or, if the options
            keep them, those that were extracted.
        without_depth: The numbers of the extracted frames whose depth image is 0 everywhere.
        color_camera: The colour camera, for images as they were written.
        depth_camera: The depth camera, likewise.
        sensor: The name of the sensor.
        poses: The poses of the extracted frames; see `read_poses`.
        files: The fingerprints of all files, by their path in the folder of the scene. Like
            `without_depth`, this grows while the scene is extracted.
        format_version: Version of this format.

    Raises:
        ValueError: The number of poses is not that of the frames.
    """

    split: Split
    options: FrameOptions
    sources: dict[str, Count]
    frames: tuple[Count, ...]
    lost: tuple[Count, ...]
    without_depth: list[Count]
    color_camera: SensorCamera
    depth_camera: SensorCamera
    sensor: str
    poses: bytes
    files: dict[str, Fingerprint]
    format_version: Literal[1] = 1

    def __post_init__(self) -> None:
        """Check that each frame has a pose."""
        self.read_poses()

    def read_poses(self) -> NDArray[np.float32]:
        """Return the poses of the extracted frames, float32 (N, 4, 4), scan <- camera, metres."""
        return np.frombuffer(self.poses, "<f4").reshape(len(self.frames), 4, 4)

    def name_files(self, scene_id: str, position: int) -> dict[str, str]:
        """Return the names of the files of a frame, by content.

        Args:
            scene_id: The scene.
            position: The position of the frame among those that are extracted.
        """
        return {
            content: name.format(
                scene=scene_id,
                first=self.options.first,
                number=self.frames[position],
                position=position,
            )
            for content, name in self.options.find_names(self.split).items()
        }


_DECODER = msgspec.json.Decoder(
    FramesRecord, dec_hook=lambda _, rows: np.array(rows, np.float32).reshape(4, 4)
)


def find_scenes(path: Path) -> dict[str, Path]:
    """Find the folders of the scenes of a folder, by scene, sorted; no record is opened."""
    folders = {}
    for folder in path.glob("*"):
        # A layout may have a folder above those of scenes, which are not listed: they may have
        # thousands of files.
        for found in [*folder.glob(RECORD_NAME)] or folder.glob(f"*/{RECORD_NAME}"):
            scene_id = find_owner("frames", found.relative_to(path).as_posix())
            if scene_id == found.parent.name:
                folders[scene_id] = found.parent
    return dict(sorted(folders.items()))


class FrameFolder:
    """The extracted frames of several scenes: `FrameFolder("data/frames")["scene0000_00"]`.

    Args:
        path: The folder; or the path or address of an archive of it.

    Attributes:
        path: The folder; or the path or address of the archive, without the secrets in it.
        scene_ids: The scenes, sorted.

    Raises:
        MissingFileError: The place holds no extracted frames.
        ArchiveError: The archive is damaged.
        TransferError: A server does not send it.
    """

    def __init__(self, path: Path | str) -> None:
        self._archive: Archive | None = None
        place = os.path.expanduser(path)
        if "://" in place or Path(place).is_file():
            self._archive = open_archive(place)
            path = self._archive.name
            index = self._archive.index
            self._folders = {
                scene.scene_id: Path(path, scene.scene_id)
                for scene in index.scenes
                if index.kind == "frames"
            }
        else:
            self._folders = find_scenes(Path(place))
        self.path = path
        if not self._folders:
            raise MissingFileError(
                self.path,
                "holds no extracted frames: expected scene*/frames.json",
                "extract them: scannet-prep frames",
            )
        self.scene_ids = tuple(self._folders)

    def __iter__(self) -> Iterator[SceneFrames]:
        """Iterate over the scenes."""
        return map(self.__getitem__, self.scene_ids)

    def __getitem__(self, scene_id: str) -> SceneFrames:
        """Return the frames of a scene.

        Raises:
            UnknownSceneError: The folder does not hold the scene.
            FileError: Its record is damaged.
        """
        if scene_id not in self._folders:
            raise UnknownSceneError(
                f"{self.path}: has no scene {scene_id}; it has {list_some(self.scene_ids)}"
            )
        return SceneFrames(self._folders[scene_id], self._archive)


@dataclass(frozen=True, slots=True, eq=False)
class ExtractedFrame:
    """One extracted frame. Its images are read when they are used.

    Attributes:
        scene: The frames of its scene.
        number: Its number in the stream.
        pose: The pose, float32 (4, 4), scan <- camera, metres.
        names: The names of its files in the folder of the scene, by content, such as `color`; also
            of those that concern all frames.
    """

    scene: SceneFrames
    number: int
    pose: NDArray[np.float32]
    names: Mapping[str, str]

    def read(self, content: FrameContent) -> NDArray[Any]:
        """Read an image.

        Args:
            content: `color`: uint8 (H, W, 3). `depth`: uint16 (H, W), millimetres; 0 where nothing
                was measured. `labels`: uint8 or uint16 (H, W), in pixels of colour: ids of the
                label set of the folder; 0 is unlabeled. `instances`: the same with object id + 1; 0
                is outside all objects. `vertices`: int32 (H, W), in pixels of depth: indices of
                vertices, -1 for none. `correspondences`: int32 (N, 3): column and row of a pixel of
                colour, and index of a vertex.

        Raises:
            UsageError: It was not extracted.
            FileError: The file is missing or damaged, or the layout stores depth in another way.
        """
        name = self.names.get(content)
        if name is None:
            raise UsageError(
                f"{self.scene.path}: has no {content}",
                "test scenes have no 2D labels; extract other content with --with",
            )
        data = self.scene.read_file(name)
        camera = self.scene.depth_camera if content == "depth" else self.scene.color_camera
        try:
            if content == "color":
                return decode_color(data, camera.size, "JPEG", "PNG")
            if not name.endswith(".npy"):
                return decode_gray(data, camera.size)
            values = np.lib.format.read_array(io.BytesIO(data))
            # Layouts that store depth as an array have metres.
            return np.rint(1000 * values).astype(np.uint16) if content == "depth" else values
        except Exception as error:  # noqa: BLE001 - damaged arrays make NumPy raise any error
            problem = getattr(error, "message", str(error))
            raise FileError(self.scene.path / name, problem, "verify checks all files") from None


class SceneFrames(Sequence[ExtractedFrame]):
    """The extracted frames of one scene, a sequence.

    Args:
        path: The folder of the scene; in an archive, a name for messages.
        archive: The archive that holds it; None if it is a folder.

    Attributes:
        path: As given.
        scene_id: The scene.
        record: Its record.
        color_camera: The colour camera, for images of the size that was written.
        depth_camera: The same for depth images.
        poses: The poses of all frames, float32 (N, 4, 4), scan <- camera, metres.
        is_tracked: Whether each frame has a usable pose, bool (N,). False only with `--keep-lost`.

    Raises:
        FileError: The record is missing or damaged.
    """

    def __init__(self, path: Path, archive: Archive | None = None) -> None:
        self.path = path
        self.scene_id = path.name
        self._archive = archive
        # In the order of an archive.
        self._names = [RECORD_NAME]
        data = self.read_file(RECORD_NAME)
        record = parse_record(data, path / RECORD_NAME, _DECODER, _HINT_DAMAGED)
        self._names += record.files
        self.record = record
        self.color_camera = record.color_camera
        self.depth_camera = record.depth_camera
        self.poses = record.read_poses()
        self.is_tracked = find_tracked(self.poses)

    def read_file(self, name: str) -> bytes:
        """Read a file of the scene.

        Args:
            name: Its path in the folder of the scene.

        Raises:
            FileError: It is missing or damaged.
        """
        if self._archive is None:
            return read_file(self.path / name)
        position = self._names.index(name)
        [(_, data)] = self._archive.iter_files(self.scene_id, slice(position, position + 1))
        return bytes(data)

    def has_files(self) -> bool:
        """Whether all files of the scene exist, and have the sizes in the record."""
        files = self.record.files.items()
        return have_sizes(self.path, {name: found.size_bytes for name, found in files})

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.record.frames)

    def __getitem__(self, position: int) -> ExtractedFrame:  # type: ignore[override]
        """Return a frame by its position among the extracted ones.

        Raises:
            IndexError: There are fewer frames.
        """
        position = range(len(self))[position]
        names = self.record.name_files(self.scene_id, position)
        return ExtractedFrame(self, self.record.frames[position], self.poses[position], names)
