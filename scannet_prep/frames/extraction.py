"""Extract the frames of one scene into a folder.

    stream                 --> color, depth, pose of a frame; cameras
    zip files of 2D labels --> labels, instances of a frame
    options, stream        --> numbers of the frames --> files --> record

Images that keep their size are not decoded: stored JPEG and PNG images are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, make_directory, writing
from scannet_prep.base.images import encode_jpeg, encode_png, resize_color, resize_nearest
from scannet_prep.base.json import encode_json
from scannet_prep.frames.labels import LabelImages, make_label_table
from scannet_prep.frames.layouts import LAYOUTS, FrameContent
from scannet_prep.frames.options import LABEL_KINDS, STREAM, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, CameraRecord, FramesRecord
from scannet_prep.raw.sensor_stream import Frame, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_DEPTH_LEVEL = 1


def measure_sources(scene: RawScene, split: Split, options: FrameOptions) -> dict[str, int]:
    """Measure the files that a scene is extracted from.

    Returns:
        Their sizes in bytes, by name; those that are missing are omitted.
    """
    contents = options.contents_of(split)
    kinds = [STREAM, *(kind for content, kind in LABEL_KINDS.items() if content in contents)]
    paths = [scene.path(kind) for kind in kinds]
    return {path.name: path.stat().st_size for path in paths if path.exists()}


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
        out_dir: The folder of the scene, which is made. No other program uses it, so files are
            written in place.

    Returns:
        The record, which is also in the folder.

    Raises:
        FileError: A source is missing or damaged.
        OutputError: The folder cannot be written to.
    """
    # Measured first: if a file is replaced meanwhile, the next run extracts the scene again.
    source_sizes = measure_sources(scene, split, options)
    contents = options.contents_of(split)
    layout = LAYOUTS[options.layout]
    files: dict[str, Fingerprint] = {}
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        stored_size = stream.color_camera.size
        color_camera = stream.color_camera.resized(options.size or stored_size)
        depth_camera = stream.depth_camera.resized(options.size or stream.depth_camera.size)

        def encode_color(frame: Frame) -> bytes:
            if color_camera.size == stored_size:
                return frame.checked_jpeg()
            return encode_jpeg(resize_color(frame.color(), color_camera.size))

        def encode_depth(frame: Frame) -> bytes:
            return encode_png(resize_nearest(frame.depth(), depth_camera.size), _DEPTH_LEVEL)

        encoders: dict[FrameContent, Callable[[Frame], bytes]] = {
            "color": encode_color,
            "depth": encode_depth,
            "pose": lambda frame: _encode_matrix(frame.pose),
        }
        for content, kind in LABEL_KINDS.items():
            if content in contents:
                path = scene.path(kind)
                table = make_label_table(options.label_set, label_map)
                encoders[content] = LabelImages(
                    archive=stack.enter_context(open_zip(path)),
                    path=path,
                    folder=kind.suffix.removeprefix("_2d-").removesuffix(".zip"),
                    stored_size=stored_size,
                    size=color_camera.size,
                    table=table if content == "labels" else None,
                ).encode

        numbers, lost = options.select(stream.is_tracked)
        for position, number in enumerate(numbers):
            frame = stream[number]
            for content in contents:
                name = layout.of_frame[content].format(number=number, position=position)
                _write(out_dir, name, encoders[content](frame), files)
    cameras = {"color": color_camera, "depth": depth_camera}
    for name, scene_content in layout.of_scene.items():
        matrix, camera = scene_content.split("_")
        _write(out_dir, name, _encode_matrix(getattr(cameras[camera], matrix)), files)

    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        stream_frames=len(stream),
        frames=numbers,
        lost=lost,
        color_camera=CameraRecord.from_camera(color_camera),
        depth_camera=CameraRecord.from_camera(depth_camera),
        poses=stream.poses[list(numbers)].tobytes(),
        files=dict(sorted(files.items())),
    )
    _write(out_dir, RECORD_NAME, encode_json(record) + b"\n", files)
    return record


def _encode_matrix(matrix: NDArray[np.floating[Any]]) -> bytes:
    """Encode a matrix as the official reader does: a line per row, six decimals."""
    return "".join(" ".join(f"{value:f}" for value in row) + "\n" for row in matrix).encode()


def _write(out_dir: Path, name: str, data: bytes, files: dict[str, Fingerprint]) -> None:
    """Write a file, and record its fingerprint.

    Raises:
        OutputError: It cannot be written.
    """
    path = out_dir / name
    make_directory(path.parent)
    with writing(path):
        path.write_bytes(data)
    files[name] = Fingerprint.from_bytes(data)
