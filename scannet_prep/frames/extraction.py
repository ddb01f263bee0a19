"""Extract the frames of one scene into a folder.

    stream                 --> color, depth, pose of a frame; cameras
    zip files of 2D labels --> labels, instances of a frame
    options, stream        --> numbers of the frames --> files --> record

Images that keep their size are not decoded: stored JPEG and PNG images are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
from scannet_prep.frames.labels import LabelImages, make_label_table
from scannet_prep.frames.layouts import LAYOUTS
from scannet_prep.frames.options import LABEL_KINDS, STREAM, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, CameraRecord, FramesRecord
from scannet_prep.frames.scene_files import SCENE_ENCODERS, encode_matrix, encode_npz
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_PNG_LEVEL = 1


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
    layout = LAYOUTS[options.layout]
    files: dict[str, Fingerprint] = {}
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        color = stream.depth_camera if layout.shrinks_color else stream.color_camera
        color_camera = stream.color_camera.resized(options.size or color.size)
        depth_camera = stream.depth_camera.resized(options.size or stream.depth_camera.size)
        if layout.aligns_depth:
            depth_camera = color_camera
        intrinsic = depth_camera.intrinsic[:3, :3]
        find_depth = partial(_find_depth, stream, depth_camera, is_aligned=layout.aligns_depth)
        find_color = partial(_find_color, color_camera)
        # By content, and the ending of the name of the file.
        encoders: dict[str, Callable[[Frame], bytes]] = {
            "color.jpg": partial(_encode_jpeg, stream.color_camera, color_camera),
            "color.png": lambda frame: encode_png(find_color(frame), _PNG_LEVEL),
            "depth.png": lambda frame: encode_png(find_depth(frame), _PNG_LEVEL),
            "depth.pgm": lambda frame: encode_pgm(find_depth(frame)),
            "pose.txt": lambda frame: encode_matrix(frame.pose),
            "pose.npz": lambda frame: encode_npz({"intrinsics": intrinsic, "pose": frame.pose}),
        }
        contents = options.contents_of(split)
        for content, kind in LABEL_KINDS.items():
            if content in contents:
                path = scene.path(kind)
                table = make_label_table(options.label_set, label_map)
                encoders[f"{content}.png"] = LabelImages(
                    archive=stack.enter_context(open_zip(path)),
                    path=path,
                    folder=kind.suffix.removeprefix("_2d-").removesuffix(".zip"),
                    stored_size=stream.color_camera.size,
                    size=color_camera.size,
                    table=table if content == "labels" else None,
                ).encode

        numbers, lost = options.select(stream.is_tracked)
        for position, number in enumerate(numbers):
            frame = stream[number]
            for content in contents:
                name = options.name_of(content, number, position)
                data = encoders[content + Path(name).suffix](frame)
                _write(out_dir, name, data, files)

    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        frames=numbers,
        lost=lost,
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


def _encode_jpeg(stored: SensorCamera, camera: SensorCamera, frame: Frame) -> bytes:
    if camera.size == stored.size:
        return frame.checked_jpeg()
    return encode_jpeg(_find_color(camera, frame))


def _find_color(camera: SensorCamera, frame: Frame) -> NDArray[np.uint8]:
    return resize_color(frame.color(), camera.size)


def _find_depth(
    stream: SensorStream, camera: SensorCamera, frame: Frame, *, is_aligned: bool
) -> GrayImage:
    depth: GrayImage = frame.depth()
    if is_aligned:
        depth = _align_depth(depth, stream, camera)
    return resize_nearest(depth, camera.size)


def _align_depth(depth: GrayImage, stream: SensorStream, camera: SensorCamera) -> GrayImage:
    """Take the nearest pixel of the depth camera for each pixel of another one; 0 outside.

    Raises:
        FileError: The cameras of the stream are at different places.
    """
    stored = stream.depth_camera
    if not np.array_equal(stored.extrinsic, stream.color_camera.extrinsic):
        problem = "its color camera and its depth camera are not at the same place"
        raise FileError(stream.path, problem, "leave depth out of --with")
    nearest = []
    for axis in (0, 1):
        pixels = np.arange(camera.size[axis])
        tangents = (pixels - camera.intrinsic[axis, 2]) / camera.intrinsic[axis, axis]
        found = np.rint(tangents * stored.intrinsic[axis, axis] + stored.intrinsic[axis, 2])
        # Around the image, there is a border of 0.
        nearest.append(found.clip(-1, stored.size[axis]).astype(int) + 1)
    columns, rows = nearest
    aligned: GrayImage = np.pad(depth, 1)[rows[:, np.newaxis], columns]
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
