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
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream
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
        size_bytes = 0.0
        for frame in map(stream.__getitem__, numbers):
            if "color" in contents:
                size_bytes += frame.color_bytes * color_share
            if "depth" in contents:
                size_bytes += frame.depth_bytes * _pixel_share(stream.depth_camera, options)
        frame_count = len(stream)
    for path in sources.zips.values():
        with open_zip(path) as archive:
            stored_bytes = sum(member.compress_size for member in archive.infolist())
        size_bytes += stored_bytes * color_share * len(numbers) / frame_count
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
    for content in contents:
        make_directory((out_dir / layout.path(content, 0, 0)).parent)
    for name in layout.matrices.values():
        make_directory((out_dir / name).parent)

    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(sources.stream))
        converter = _Converter.from_stream(stream, options, label_map)
        archives = {}
        for content, path in sources.zips.items():
            archives[content] = stack.enter_context(open_zip(path))
        numbers, lost = options.select(stream.is_tracked)
        for position, number in enumerate(numbers):
            frame = stream[number]
            for content in contents:
                if content in archives:
                    path = sources.zips[content]
                    data = converter.encode_labels(content, archives[content], path, number)
                else:
                    data = converter.encode(content, frame)
                files.write(layout.path(content, position, number), data)
        frame_count = len(stream)

    for name, path_name in layout.matrices.items():
        files.write(path_name, encode_matrix(converter.matrices[name]))
    depends_on_map = "labels" in contents and options.label_set != "raw"
    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        stream_frames=frame_count,
        frames=tuple(numbers),
        lost=tuple(lost),
        color_camera=CameraRecord.from_camera(converter.color_camera),
        depth_camera=CameraRecord.from_camera(converter.depth_camera),
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
        self.fingerprints: dict[str, Fingerprint] = {}

    def write(self, name: str, data: bytes) -> None:
        """Write a file.

        Raises:
            OutputError: It cannot be written.
        """
        path = self._folder / name
        try:
            path.write_bytes(data)
        except OSError as error:
            raise output_error(path, error) from error
        self.fingerprints[name] = Fingerprint.from_bytes(data)


@dataclass(frozen=True, slots=True, eq=False)
class _Converter:
    """Makes the files of frames.

    Attributes:
        options: The options.
        stored_camera: The color camera of the stream.
        color_camera: The color camera of the images that are written.
        depth_camera: The depth camera of the images that are written.
        table: The conversion of label images.
    """

    options: FrameOptions
    stored_camera: SensorCamera
    color_camera: SensorCamera
    depth_camera: SensorCamera
    table: LabelTable

    @classmethod
    def from_stream(
        cls, stream: SensorStream, options: FrameOptions, label_map: LabelMap
    ) -> _Converter:
        """Make a converter for the frames of a stream.

        Raises:
            FileError: A matrix in the header of the stream is not finite.
        """
        color = stream.color_camera
        depth = stream.depth_camera
        matrices = [color.intrinsic, color.extrinsic, depth.intrinsic, depth.extrinsic]
        if not np.isfinite(matrices).all():
            raise FileError(stream.path, "its header has a matrix that is not finite")
        return cls(
            options=options,
            stored_camera=color,
            color_camera=color.resized(options.size or color.size),
            depth_camera=depth.resized(options.size or depth.size),
            table=LabelTable(options.label_set, label_map),
        )

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
        """Make the file with the color, depth or pose of a frame."""
        size = self.options.size
        if content == "color":
            if size is None or size == self.stored_camera.size:
                return frame.checked_jpeg()
            return encode_jpeg(resize_color(frame.color(), size), _JPEG_QUALITY)
        if content == "depth":
            return encode_png(resize_nearest(frame.depth(), self.depth_camera.size), _DEPTH_LEVEL)
        return encode_matrix(frame.pose)

    def encode_labels(
        self, content: FrameContent, archive: zipfile.ZipFile, path: Path, number: int
    ) -> bytes:
        """Make the image with the labels or the objects of a frame."""
        folder = "label-filt" if content == "labels" else "instance-filt"
        return read_label_image(
            archive,
            path,
            name=f"{folder}/{number}.png",
            color_size=self.stored_camera.size,
            size=self.color_camera.size,
            table=self.table if content == "labels" else None,
        )


def _pixel_share(camera: SensorCamera, options: FrameOptions) -> float:
    """Return the number of pixels that are written for each one of a camera."""
    size = options.size or camera.size
    return size[0] * size[1] / (camera.size[0] * camera.size[1])
