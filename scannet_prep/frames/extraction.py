"""Extract the frames of one scene into a folder.

    stream --select--> numbers --> color, depth, pose of each frame
    zip files of 2D labels     --> labels, instances of each frame
    cameras                    --> matrices
                                                         --> record

Images that keep their size are not decoded: stored JPEG images are copied.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import FileError
from scannet_prep.base.files import Fingerprint, make_directory, output_error
from scannet_prep.base.images import encode_jpeg, encode_png, resize_color, resize_nearest
from scannet_prep.frames.labels import LabelTable, read_label_image
from scannet_prep.frames.options import (
    LABEL_KINDS,
    LAYOUTS,
    STREAM,
    FrameContent,
    FrameOptions,
)
from scannet_prep.frames.record import RECORD_NAME, CameraRecord, FramesRecord, encode_record
from scannet_prep.raw.layout import RawScene
from scannet_prep.raw.sensor_header import SensorCamera
from scannet_prep.raw.sensor_stream import Frame, SensorStream
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_DEPTH_LEVEL = 1
_JPEG_QUALITY = 95


@dataclass(frozen=True, slots=True)
class FrameSources:
    """The files of a scene that its frames come from.

    Attributes:
        stream: The sensor stream.
        zips: The zip files of 2D labels, by content.
    """

    stream: Path
    zips: Mapping[FrameContent, Path] = field(hash=False)

    @classmethod
    def from_scene(cls, scene: RawScene, split: Split, options: FrameOptions) -> FrameSources:
        """Return the files that the options need, whether they exist or not."""
        zips = {}
        for content in options.contents_of(split):
            if content in LABEL_KINDS:
                zips[content] = scene.path(LABEL_KINDS[content])
        return cls(scene.path(STREAM), zips)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return (self.stream, *self.zips.values())


class Estimate(NamedTuple):
    """What an extraction would write, approximately.

    Attributes:
        frames: The number of frames.
        lost: The number of frames without tracking.
        size_bytes: The size of their files.
    """

    frames: int
    lost: int
    size_bytes: int


def estimate(sources: FrameSources, split: Split, options: FrameOptions) -> Estimate:
    """Estimate the result of an extraction, from the index of the stream.

    The sizes of resized images are assumed to be in proportion to their pixels.

    Raises:
        FileError: The stream is damaged, or a file is missing.
    """
    contents = options.contents_of(split)
    with SensorStream(sources.stream) as stream:
        numbers, lost = options.select(stream.is_tracked)
        color_share = _pixel_share(stream.color_camera, options)
        depth_share = _pixel_share(stream.depth_camera, options)
        size_bytes = 0.0
        for number in numbers:
            if "color" in contents:
                size_bytes += stream[number].color_bytes * color_share
            if "depth" in contents:
                size_bytes += stream[number].depth_bytes * depth_share
    for path in sources.zips.values():
        with open_zip(path) as archive:
            stored_bytes = sum(member.compress_size for member in archive.infolist())
        size_bytes += stored_bytes * color_share * len(numbers) / len(stream)
    return Estimate(len(numbers), len(lost), round(size_bytes))


def extract_scene(
    scene: RawScene,
    split: Split,
    options: FrameOptions,
    label_map: LabelMap,
    out_dir: Path,
) -> FramesRecord:
    """Extract the frames of a scene.

    Args:
        scene: The scene.
        split: Its split.
        options: The options.
        label_map: The label map, for label images.
        out_dir: The folder of the scene, which is made.

    Returns:
        The record, which is also in the folder.

    Raises:
        FileError: A source is missing or damaged.
        OutputError: The folder cannot be written to.
        UsageError: Pillow is not installed, and the options need it.
    """
    sources = FrameSources.from_scene(scene, split, options)
    # Measured first: if a file is replaced meanwhile, the next run extracts the scene again.
    source_sizes = measure_sources(sources.paths)
    contents = options.contents_of(split)
    layout = LAYOUTS[options.layout]
    files = _Files(out_dir)

    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(sources.stream))
        archives = {}
        for content, path in sources.zips.items():
            archives[content] = (path, stack.enter_context(open_zip(path)))
        encoder = _Encoder(stream, archives, options, label_map)
        numbers, lost = options.select(stream.is_tracked)
        for position, number in enumerate(numbers):
            for content in contents:
                data = encoder.encode(content, stream[number])
                files.write(layout.path(content, position, number), data)
        for name, path_name in layout.matrices.items():
            files.write(path_name, encode_matrix(encoder.matrices[name]))

    depends_on_map = "labels" in contents and options.label_set != "raw"
    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        stream_frames=len(stream),
        frames=tuple(numbers),
        lost=tuple(lost),
        color_camera=CameraRecord.from_camera(encoder.color_camera),
        depth_camera=CameraRecord.from_camera(encoder.depth_camera),
        label_map=label_map.digest if depends_on_map else "",
        files=dict(sorted(files.fingerprints.items())),
    )
    files.write(RECORD_NAME, encode_record(record))
    return record


def measure_sources(paths: Iterable[Path]) -> dict[str, int]:
    """Return the sizes of files in bytes, by name; -1 for a file that cannot be found."""
    sizes = {}
    for path in paths:
        try:
            sizes[path.name] = path.stat().st_size
        except OSError:
            sizes[path.name] = -1
    return sizes


def encode_matrix(matrix: NDArray[np.floating[Any]]) -> bytes:
    """Encode a matrix as the official reader does: a line per row, six decimals."""
    return "".join(" ".join(f"{value:f}" for value in row) + "\n" for row in matrix).encode()


class _Files:
    """The files of a folder that are written, and their fingerprints.

    Args:
        folder: The folder. No other program uses it, so files are written in place.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made_folders: set[Path] = set()
        self.fingerprints: dict[str, Fingerprint] = {}

    def write(self, name: str, data: bytes) -> None:
        """Write a file.

        Raises:
            OutputError: It cannot be written.
        """
        path = self._folder / name
        if path.parent not in self._made_folders:
            make_directory(path.parent)
            self._made_folders.add(path.parent)
        try:
            path.write_bytes(data)
        except OSError as error:
            raise output_error(path, error) from error
        self.fingerprints[name] = Fingerprint.from_bytes(data)


class _Encoder:
    """Makes the files of the frames of a stream.

    Args:
        stream: The stream.
        archives: The zip files of 2D labels, and their paths for messages, by content.
        options: The options.
        label_map: The label map, for label images.

    Attributes:
        color_camera: The color camera of the images that are written.
        depth_camera: The depth camera of the images that are written.

    Raises:
        FileError: A matrix in the header of the stream is not finite.
    """

    def __init__(
        self,
        stream: SensorStream,
        archives: Mapping[FrameContent, tuple[Path, zipfile.ZipFile]],
        options: FrameOptions,
        label_map: LabelMap,
    ) -> None:
        stored_cameras = (stream.color_camera, stream.depth_camera)
        if not all(camera.is_finite for camera in stored_cameras):
            raise FileError(stream.path, "its header has a matrix that is not finite")
        self._stored_camera = stream.color_camera
        self._archives = archives
        self._table = LabelTable(options.label_set, label_map)
        self.color_camera = _resize(stream.color_camera, options)
        self.depth_camera = _resize(stream.depth_camera, options)

    @property
    def matrices(self) -> dict[str, NDArray[np.float32]]:
        """The matrices of both cameras, by name."""
        return {
            "intrinsic_color": self.color_camera.intrinsic,
            "extrinsic_color": self.color_camera.extrinsic,
            "intrinsic_depth": self.depth_camera.intrinsic,
            "extrinsic_depth": self.depth_camera.extrinsic,
        }

    def encode(self, content: FrameContent, frame: Frame) -> bytes:
        """Make the file with one content of a frame.

        Raises:
            FileError: The frame, or the image of its labels, is missing or damaged.
            UsageError: Pillow is not installed, and is needed.
        """
        if content == "color":
            if self.color_camera.size == self._stored_camera.size:
                return frame.checked_jpeg()
            return encode_jpeg(resize_color(frame.color(), self.color_camera.size), _JPEG_QUALITY)
        if content == "depth":
            return encode_png(resize_nearest(frame.depth(), self.depth_camera.size), _DEPTH_LEVEL)
        if content == "pose":
            return encode_matrix(frame.pose)
        path, archive = self._archives[content]
        folder = "label-filt" if content == "labels" else "instance-filt"
        return read_label_image(
            archive,
            path,
            name=f"{folder}/{frame.number}.png",
            color_size=self._stored_camera.size,
            size=self.color_camera.size,
            table=self._table if content == "labels" else None,
        )


def _resize(camera: SensorCamera, options: FrameOptions) -> SensorCamera:
    """Return the camera of the images that are written."""
    return camera.resized(options.size or camera.size)


def _pixel_share(camera: SensorCamera, options: FrameOptions) -> float:
    """Return the number of pixels that are written for each one of a camera."""
    width, height = _resize(camera, options).size
    return width * height / (camera.size[0] * camera.size[1])
