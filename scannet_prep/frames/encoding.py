"""The files of the frames of one scene, as bytes.

    stream                 --> color, depth, pose of a frame
    zip files of 2D labels --> labels, instances of a frame
    cameras                --> matrices

Images that keep their size are not decoded: stored JPEG and PNG images are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import encode_jpeg, encode_png, resize_color, resize_nearest
from scannet_prep.errors import FileError
from scannet_prep.frames.labels import LabelImages, make_label_table
from scannet_prep.frames.options import LABEL_KINDS, STREAM, FrameContent, FrameOptions
from scannet_prep.raw.sensor_stream import SensorStream
from scannet_prep.raw.tree import RawScene
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

    def measure(self) -> dict[str, int]:
        """Return the sizes of the files in bytes, by name; those that are missing are omitted."""
        sizes = {}
        for path in (self.stream, *self.zips.values()):
            with suppress(OSError):
                sizes[path.name] = path.stat().st_size
        return sizes


class FrameEncoder:
    """Makes the files of the frames of a scene; see `open_encoder`.

    Args:
        stream: The sensor stream.
        labels: The images of labels and objects, by content.
        options: The options.

    Attributes:
        stream: As given.
        color_camera: The color camera of the images that are written.
        depth_camera: The depth camera of the images that are written.

    Raises:
        FileError: A matrix in the header of the stream is not finite.
    """

    def __init__(
        self,
        stream: SensorStream,
        labels: Mapping[FrameContent, LabelImages],
        options: FrameOptions,
    ) -> None:
        for camera in (stream.color_camera, stream.depth_camera):
            if not camera.is_finite:
                raise FileError(stream.path, "its header has a matrix that is not finite")
        self.stream = stream
        self.color_camera = stream.color_camera.resized(options.size or stream.color_camera.size)
        self.depth_camera = stream.depth_camera.resized(options.size or stream.depth_camera.size)
        self._labels = labels

    def encode(self, content: FrameContent, number: int) -> bytes:
        """Make the file with one content of a frame.

        Args:
            content: The content.
            number: The number of the frame in the stream.

        Raises:
            FileError: The frame, or the image of its labels, is missing or damaged.
        """
        if content == "color":
            return self._encode_color(number)
        if content == "depth":
            depth = resize_nearest(self.stream[number].depth(), self.depth_camera.size)
            return encode_png(depth, _DEPTH_LEVEL)
        if content == "pose":
            return _encode_matrix(self.stream[number].pose)
        images = self._labels[content]
        return images.encode(number, self.stream.color_camera.size, self.color_camera.size)

    def encode_matrix(self, name: str) -> bytes:
        """Make the file with a matrix of a camera.

        Args:
            name: `intrinsic_color`, `extrinsic_color`, `intrinsic_depth` or `extrinsic_depth`.
        """
        matrices = {
            "intrinsic_color": self.color_camera.intrinsic,
            "extrinsic_color": self.color_camera.extrinsic,
            "intrinsic_depth": self.depth_camera.intrinsic,
            "extrinsic_depth": self.depth_camera.extrinsic,
        }
        return _encode_matrix(matrices[name])

    def weigh(self, content: FrameContent, number: int) -> int:
        """Return a number to which the size of a file is in proportion, approximately."""
        frame = self.stream[number]
        if content == "color":
            return frame.color_bytes
        if content == "depth":
            return frame.depth_bytes
        return 1

    def _encode_color(self, number: int) -> bytes:
        frame = self.stream[number]
        if self.color_camera.size == self.stream.color_camera.size:
            return frame.checked_jpeg()
        return encode_jpeg(resize_color(frame.color(), self.color_camera.size), _JPEG_QUALITY)


@contextmanager
def open_encoder(
    sources: FrameSources, options: FrameOptions, label_map: LabelMap
) -> Iterator[FrameEncoder]:
    """Open the files of a scene, and make an encoder of its frames.

    Args:
        sources: The files.
        options: The options.
        label_map: The label map, for label images.

    Raises:
        FileError: A file is missing or damaged.
    """
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(sources.stream))
        labels = {}
        for content, path in sources.zips.items():
            archive = stack.enter_context(open_zip(path))
            table = None
            if content == "labels":
                table = make_label_table(options.label_set, label_map)
            labels[content] = LabelImages(archive, path, content, table)
        yield FrameEncoder(stream, labels, options)


def _encode_matrix(matrix: NDArray[np.floating[Any]]) -> bytes:
    """Encode a matrix as the official reader does: a line per row, six decimals."""
    return "".join(" ".join(f"{value:f}" for value in row) + "\n" for row in matrix).encode()
