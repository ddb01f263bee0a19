"""Extract the frames of one scene into a folder.

    stream                 --> color, depth, pose of a frame; cameras
    zip files of 2D labels --> labels, instances of a frame
    mesh                   --> vertices, correspondences of a frame
    options, stream        --> numbers of the frames --> files --> record

The ending of its name selects the encoding of a file. Images that keep their size are not decoded:
stored JPEG and PNG images are copied.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, make_directory, writing
from scannet_prep.base.images import (
    crop,
    encode_jpeg,
    encode_pgm,
    encode_png,
    resize_color,
    resize_nearest,
)
from scannet_prep.base.json import encode_json
from scannet_prep.errors import FileError
from scannet_prep.frames.correspondences import find_vertices, list_pixels
from scannet_prep.frames.folder import RECORD_NAME, FramesRecord
from scannet_prep.frames.labels import make_label_image, make_label_table
from scannet_prep.frames.layouts import LAYOUTS, Layout
from scannet_prep.frames.options import SOURCE_KINDS, STREAM, FrameOptions
from scannet_prep.frames.scene_files import SCENE_CONTENTS
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.files import MESH
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scenes import Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_PNG_LEVEL = 1
_MILLIMETRES = np.float32(1000)


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
    without_depth = []
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        numbers, lost = options.select(stream.is_tracked, listed)
        across_cameras = {"vertices", "depth"} if layout.aligns_depth else {"vertices"}
        if across_cameras.intersection(contents):
            _check_cameras(stream)
        read_mesh = cache(partial(read_raw_file, MESH, scene.path(MESH)))
        color_camera, depth_camera, makers = _choose_makers(stream, layout, options.size, read_mesh)
        for content, ids in (("labels", options.label_set), ("instances", "raw")):
            if content in contents:
                path = scene.path(SOURCE_KINDS[content])
                archive = stack.enter_context(open_zip(path))
                table = make_label_table(ids, label_map)
                makers[content] = partial(make_label_image, archive, path, table, color_camera.size)
        for position, number in enumerate(numbers):
            frame = stream[number]
            for content in contents:
                value = makers[content](frame)
                if content == "depth" and not value.any():
                    without_depth.append(number)
                _write(out_dir, options.name_of(content, number, position), value, files)

    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        frames=numbers,
        lost=lost,
        without_depth=tuple(without_depth),
        color_camera=color_camera,
        depth_camera=depth_camera,
        sensor=stream.sensor_name,
        poses=stream.poses[list(numbers)].tobytes(),
        files=files,
    )
    for name, scene_content in layout.of_scene.items():
        value = SCENE_CONTENTS[scene_content](record, scene)
        _write(out_dir, name.format(first=options.first, scene=scene.scene_id), value, files)
    _write(out_dir, RECORD_NAME, encode_json(record) + b"\n", files)
    return record


def _choose_makers(
    stream: SensorStream,
    layout: Layout,
    size: tuple[int, int] | None,
    read_mesh: Callable[[], Mesh],
) -> tuple[SensorCamera, SensorCamera, dict[str, Callable[[Frame], Any]]]:
    """Choose what is written of the frames of a stream.

    Returns:
        The cameras for the images of color and depth that are written; and the functions that make
        the content of a file from a frame, by content: its bytes, or a value to encode.

    Raises:
        FileError: The color images are too small for the layout.
    """
    stored = stream.color_camera
    if min(stored.size) < layout.crop:
        width, height = stored.size
        problem = f"has {width} x {height} pixels of color, too few for a square of {layout.crop}"
        raise FileError(stream.path, problem, "choose another layout for this scene")
    cropped = stored.cropped((layout.crop, layout.crop)) if layout.crop else stored
    depth_camera = stream.depth_camera.resized(size or stream.depth_camera.size)
    default_size = depth_camera.size if layout.uses_depth_camera else cropped.size
    color_camera = cropped.resized(size or default_size)
    read_depth: Callable[[Frame], Any] = Frame.depth
    if layout.aligns_depth:
        depth_camera = color_camera
        read_depth = partial(_align_depth, color_camera)
    makers: dict[str, Callable[[Frame], Any]] = {
        "color": lambda frame: resize_color(crop(frame.color(), cropped.size), color_camera.size),
        "depth": lambda frame: resize_nearest(read_depth(frame), depth_camera.size),
        "pose": lambda frame: frame.pose,
        "vertices": lambda frame: find_vertices(
            read_mesh(), frame.pose, depth_camera, makers["depth"](frame)
        ),
        "correspondences": lambda frame: list_pixels(
            find_vertices(read_mesh(), frame.pose, color_camera)
        ),
    }
    if color_camera.size == stored.size and layout.of_frame["color"].endswith(".jpg"):
        makers["color"] = Frame.checked_jpeg
    if layout.of_frame["depth"].endswith(".npy"):
        read_resized = makers["depth"]
        makers["depth"] = lambda frame: read_resized(frame) / _MILLIMETRES
    if layout.uses_depth_camera:
        intrinsics = depth_camera.intrinsic[:3, :3]
        makers["pose"] = lambda frame: {"intrinsics": intrinsics, "pose": frame.pose}
    return color_camera, depth_camera, makers


def _check_cameras(stream: SensorStream) -> None:
    """Check that a pixel of depth and one of color can look along the same ray.

    Raises:
        FileError: The cameras of the stream are at different places.
    """
    if not np.array_equal(stream.depth_camera.extrinsic, stream.color_camera.extrinsic):
        problem = "its color camera and its depth camera are not at the same place"
        raise FileError(stream.path, problem, "leave depth and vertices out of --with")


def _align_depth(color: SensorCamera, frame: Frame) -> NDArray[np.uint16]:
    """Take the nearest pixel of depth for each pixel of color; 0 outside of the depth image."""
    depth = frame.stream.depth_camera
    nearest = []
    for axis in (1, 0):
        scale = depth.intrinsic[axis, axis] / color.intrinsic[axis, axis]
        offsets = np.arange(color.size[axis]) - color.intrinsic[axis, 2]
        found = np.rint(offsets * scale + depth.intrinsic[axis, 2])
        # Around the image, there is a border of 0.
        nearest.append(found.clip(-1, depth.size[axis]).astype(int) + 1)
    aligned: NDArray[np.uint16] = np.pad(frame.depth(), 1)[np.ix_(*nearest)]
    return aligned


def _write(out_dir: Path, name: str, value: Any, files: dict[str, Fingerprint]) -> None:  # noqa: ANN401 - see `_encode`
    """Write a file, and record its fingerprint.

    Args:
        out_dir: The folder of the scene.
        name: The name of the file, whose ending selects its encoding.
        value: The content: bytes, or a value to encode.
        files: The fingerprints of all files, by name.

    Raises:
        OutputError: It cannot be written.
    """
    path = out_dir / name
    data = value if isinstance(value, bytes) else _ENCODERS[path.suffix](value)
    make_directory(path.parent)
    with writing(path):
        path.write_bytes(data)
    files[name] = Fingerprint.from_bytes(data)


def _save(save: Callable[[io.BytesIO, Any], None], value: Any) -> bytes:  # noqa: ANN401 - arrays
    """Encode arrays with a function that writes them into a file."""
    file = io.BytesIO()
    save(file, value)
    return file.getvalue()


# By the ending of a file.
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    ".jpg": encode_jpeg,
    ".png": partial(encode_png, level=_PNG_LEVEL),
    ".pgm": encode_pgm,
    # As the official reader does.
    ".txt": partial(_save, partial(np.savetxt, fmt="%f")),
    ".npy": partial(_save, np.save),
    ".npz": partial(_save, lambda file, arrays: np.savez(file, **arrays)),
    ".json": encode_json,
}
