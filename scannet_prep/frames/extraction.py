"""Extract the frames of one scene into a folder.

    stream --select--> numbers --> color, depth, pose of each frame
    zip files of 2D labels     --> labels, instances of each frame
    cameras                    --> matrices
                                                         --> record

Images that keep their size are not decoded: stored JPEG images are copied.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from scannet_prep.raw.sensor_stream import SensorStream
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_DEPTH_LEVEL = 1
_JPEG_QUALITY = 95
# Enough for an estimate, and done in a fraction of a second.
_SAMPLE_FRAMES = 8


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


def estimate_scene(
    scene: RawScene, split: Split, options: FrameOptions, label_map: LabelMap
) -> Estimate:
    """Estimate the result of an extraction, from a few frames.

    All files of these frames are encoded as in an extraction. Those of the other frames are assumed
    to be in the same proportion to their stored images.

    Raises:
        FileError: A source is missing or damaged.
        UsageError: Pillow is not installed, and the options need it.
    """
    sources = FrameSources.from_scene(scene, split, options)
    with _open_encoder(sources, options, label_map) as encoder:
        numbers, lost = options.select(encoder.stream.is_tracked)
        sample = _choose_sample(numbers)
        size_bytes = 0.0
        for name in LAYOUTS[options.layout].matrices:
            size_bytes += len(encode_matrix(encoder.matrices[name]))
        if sample:
            for content in options.contents_of(split):
                written_bytes = sum(len(encoder.encode(content, number)) for number in sample)
                weights = [encoder.weigh(content, number) for number in numbers]
                sample_weights = [encoder.weigh(content, number) for number in sample]
                size_bytes += written_bytes * sum(weights) / sum(sample_weights)
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

    with _open_encoder(sources, options, label_map) as encoder:
        stream_frames = len(encoder.stream)
        numbers, lost = options.select(encoder.stream.is_tracked)
        for position, number in enumerate(numbers):
            for content in contents:
                data = encoder.encode(content, number)
                files.write(layout.path(content, position, number), data)
        for name, path_name in layout.matrices.items():
            files.write(path_name, encode_matrix(encoder.matrices[name]))

    depends_on_map = "labels" in contents and options.label_set != "raw"
    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        stream_frames=stream_frames,
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
    """Return the sizes of files in bytes, by name; files that cannot be found are omitted."""
    sizes = {}
    for path in paths:
        with suppress(OSError):
            sizes[path.name] = path.stat().st_size
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


def _choose_sample(numbers: Sequence[int]) -> list[int]:
    """Choose some frames, evenly spaced; all if there are few."""
    count = min(len(numbers), _SAMPLE_FRAMES)
    return [numbers[position * len(numbers) // count] for position in range(count)]


@contextmanager
def _open_encoder(
    sources: FrameSources, options: FrameOptions, label_map: LabelMap
) -> Iterator[_Encoder]:
    """Open the files of a scene.

    Raises:
        FileError: A file is missing or damaged.
    """
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(sources.stream))
        archives = {}
        for content, path in sources.zips.items():
            archives[content] = (path, stack.enter_context(open_zip(path)))
        yield _Encoder(stream, archives, options, label_map)


class _Encoder:
    """Makes the files of the frames of a stream.

    Args:
        stream: The stream.
        archives: The zip files of 2D labels, and their paths for messages, by content.
        options: The options.
        label_map: The label map, for label images.

    Attributes:
        stream: The stream.
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
        self.stream = stream
        self._archives = archives
        self._table = LabelTable(options.label_set, label_map)
        self.color_camera = stream.color_camera.resized(options.size or stream.color_camera.size)
        self.depth_camera = stream.depth_camera.resized(options.size or stream.depth_camera.size)

    @property
    def matrices(self) -> dict[str, NDArray[np.float32]]:
        """The matrices of both cameras, by name."""
        return {
            "intrinsic_color": self.color_camera.intrinsic,
            "extrinsic_color": self.color_camera.extrinsic,
            "intrinsic_depth": self.depth_camera.intrinsic,
            "extrinsic_depth": self.depth_camera.extrinsic,
        }

    def encode(self, content: FrameContent, number: int) -> bytes:
        """Make the file with one content of a frame.

        Raises:
            FileError: The frame, or the image of its labels, is missing or damaged.
            UsageError: Pillow is not installed, and is needed.
        """
        frame = self.stream[number]
        if content == "color":
            if self.color_camera.size == self.stream.color_camera.size:
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
            name=f"{folder}/{number}.png",
            color_size=self.stream.color_camera.size,
            size=self.color_camera.size,
            table=self._table if content == "labels" else None,
        )

    def weigh(self, content: FrameContent, number: int) -> int:
        """Return a number to which the size of a file is in proportion."""
        frame = self.stream[number]
        if content == "color":
            return frame.color_bytes
        if content == "depth":
            return frame.depth_bytes
        return 1
