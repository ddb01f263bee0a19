"""Extract the frames of one scene into a folder.

    stream                 --> color, depth, pose of a frame; cameras
    zip files of 2D labels --> labels, instances of a frame
    options, stream        --> numbers of the frames --> files --> record

Images that keep their size are not decoded: stored JPEG and PNG images are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.base.files import Fingerprint, make_directory, writing
from scannet_prep.base.images import (
    GrayImage,
    encode_jpeg,
    encode_pgm,
    encode_png,
    resize_color,
    resize_nearest,
)
from scannet_prep.base.json import encode_json
from scannet_prep.errors import FileError
from scannet_prep.frames.labels import encode_label_image, make_label_table
from scannet_prep.frames.layouts import LAYOUTS, FrameContent
from scannet_prep.frames.options import LABEL_KINDS, STREAM, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, CameraRecord, FramesRecord
from scannet_prep.frames.scene_files import SCENE_ENCODERS, encode_matrix, encode_npz
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scenes import SceneId, Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_PNG_LEVEL = 1
# By the ending of a file.
_IMAGE_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    ".jpg": encode_jpeg,
    ".png": partial(encode_png, level=_PNG_LEVEL),
    ".pgm": encode_pgm,
}


def measure_sources(scene: RawScene, split: Split, options: FrameOptions) -> dict[str, int]:
    """Measure the files that a scene is extracted from.

    Returns:
        Their sizes in bytes, by name; those that are missing are omitted.
    """
    paths = [scene.path(kind) for kind in options.find_sources(split)]
    return {path.name: path.stat().st_size for path in paths if path.exists()}


def extract_scene(
    scene: RawScene,
    split: Split,
    options: FrameOptions,
    label_map: LabelMap,
    listed: Sequence[int] | None,
    out_dir: Path,
) -> FramesRecord:
    """Extract the frames of a scene.

    Args:
        scene: The scene.
        split: Its split.
        options: The options.
        label_map: The label map, for label images.
        listed: The numbers of the frames to extract, if a list names them.
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
    layout = LAYOUTS[options.layout]
    contents = options.contents_of(split)
    files: dict[str, Fingerprint] = {}
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        stored = stream.color_camera
        depth_camera = stream.depth_camera.resized(options.size or stream.depth_camera.size)
        default_size = depth_camera.size if layout.shrinks_color else stored.size
        color_camera = stored.resized(options.size or default_size)
        if layout.aligns_depth:
            depth_camera = color_camera
        labels = {}
        for content, kind in LABEL_KINDS.items():
            if content in contents:
                path = scene.path(kind)
                archive = stack.enter_context(open_zip(path))
                ids = options.label_set if content == "labels" else "raw"
                table = make_label_table(ids, label_map)
                labels[content] = partial(
                    encode_label_image, archive, path, stored.size, color_camera.size, table
                )
        numbers, lost = options.select(stream.is_tracked, listed)
        without_depth = []
        for position, number in enumerate(numbers):
            for content in contents:
                name = options.name_of(content, number, position)
                frame = stream[number]
                if content in labels:
                    data = labels[content](number)
                elif content == "depth":
                    image = _align_depth(frame) if layout.aligns_depth else frame.depth()
                    if not image.any():
                        without_depth.append(number)
                    image = resize_nearest(image, depth_camera.size)
                    data = _IMAGE_ENCODERS[Path(name).suffix](image)
                else:
                    data = _encode(frame, content, name, color_camera, depth_camera)
                _write(out_dir, name, data, files)

    record = FramesRecord(
        scene_id=SceneId(scene.scene_id),
        split=split,
        options=options,
        sources=source_sizes,
        frames=numbers,
        lost=lost,
        without_depth=tuple(without_depth),
        color_camera=CameraRecord.from_camera(color_camera),
        depth_camera=CameraRecord.from_camera(depth_camera),
        sensor=stream.sensor_name,
        poses=stream.poses[list(numbers)].tobytes(),
        files=files,
    )
    for name, scene_content in layout.of_scene.items():
        data = SCENE_ENCODERS[scene_content](record, scene)
        name = name.format(first=options.first, scene=scene.scene_id)
        _write(out_dir, name, data, files)
    _write(out_dir, RECORD_NAME, encode_json(record) + b"\n", files)
    return record


def _encode(
    frame: Frame,
    content: FrameContent,
    name: str,
    color_camera: SensorCamera,
    depth_camera: SensorCamera,
) -> bytes:
    """Encode the color or the pose of a frame for a file of some name."""
    ending = Path(name).suffix
    if content == "color":
        if ending == ".jpg" and color_camera.size == frame.stream.color_camera.size:
            return frame.checked_jpeg()
        return _IMAGE_ENCODERS[ending](resize_color(frame.color(), color_camera.size))
    if ending == ".npz":
        return encode_npz(intrinsics=depth_camera.intrinsic[:3, :3], pose=frame.pose)
    return encode_matrix(frame.pose)


def _align_depth(frame: Frame) -> GrayImage:
    """Take the nearest pixel of depth for each pixel of color; 0 outside of the depth image.

    Raises:
        FileError: The cameras of the stream are at different places.
    """
    stream = frame.stream
    color = stream.color_camera
    depth = stream.depth_camera
    if not np.array_equal(depth.extrinsic, color.extrinsic):
        problem = "its color camera and its depth camera are not at the same place"
        raise FileError(stream.path, problem, "leave depth out of --with")
    nearest = []
    for axis, size in enumerate(color.size):
        scale = depth.intrinsic[axis, axis] / color.intrinsic[axis, axis]
        offsets = np.arange(size) - color.intrinsic[axis, 2]
        found = np.rint(offsets * scale + depth.intrinsic[axis, 2])
        # Around the image, there is a border of 0.
        nearest.append(found.clip(-1, depth.size[axis]).astype(int) + 1)
    columns, rows = nearest
    aligned: GrayImage = np.pad(frame.depth(), 1)[rows[:, np.newaxis], columns]
    return aligned


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
