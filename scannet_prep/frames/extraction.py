"""Extract the frames of one scene into a folder.

    stream                 --> colour, depth, pose of a frame; cameras
    zip files of 2D labels --> labels, instances of a frame
    mesh                   --> vertices, correspondences of a frame
    options, stream        --> numbers of the frames --> files --> record

The ending of its name selects the encoding of a file. Images that keep their size are not decoded:
stored JPEG and PNG images are copied.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, write_atomically
from scannet_prep.base.images import (
    GrayImage,
    check_gray_png,
    decode_gray,
    encode_jpeg,
    encode_pgm,
    encode_png,
    resize_color,
    resize_nearest,
)
from scannet_prep.base.json import encode_json
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError, FileError
from scannet_prep.frames.folder import RECORD_NAME, FramesRecord
from scannet_prep.frames.options import (
    LAYOUTS,
    SOURCE_KINDS,
    STREAM,
    FrameOptions,
    LabelIds,
    Layout,
)
from scannet_prep.frames.projection import find_vertices, list_pixels
from scannet_prep.frames.scene_files import SceneContents
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip, read_member
from scannet_prep.release.files import MESH
from scannet_prep.release.label_map import MAX_SCANNET_ID, LabelMap
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scenes import Split

_HINT_SIZE = "choose another layout for this scene"


def measure_sources(scene: RawScene, split: Split, options: FrameOptions) -> dict[str, int]:
    """Measure the files that a scene is extracted from.

    Returns:
        Their sizes in bytes, by name; those that are missing are omitted.
    """
    paths = map(scene.path, options.find_sources(split))
    return {path.name: path.stat().st_size for path in paths if path.exists()}


def extract_scene(
    scene: RawScene,
    split: Split,
    options: FrameOptions,
    label_map: LabelMap,
    listed: Sequence[int] | None,
    out_dir: Path,
) -> None:
    """Extract the frames of a scene, and write their record, `frames.json`, beside them.

    Args:
        scene: The scene.
        split: Its split.
        options: The options.
        label_map: The label map, for label images.
        listed: The numbers of the frames to extract, if a list names them.
        out_dir: The folder of the scene, which is made.

    Raises:
        FileError: A source is missing or damaged.
        OutputError: The folder cannot be written to.
    """
    # Measured first: if a file is replaced meanwhile, the next run extracts the scene again.
    source_sizes = measure_sources(scene, split, options)
    layout = LAYOUTS[options.layout]
    files: dict[str, Fingerprint] = {}
    without_depth = []

    def write(name: str, value: Any) -> None:  # noqa: ANN401 - see `_ENCODERS`
        path = out_dir / name
        data = value if isinstance(value, bytes) else _ENCODERS[path.suffix](value)
        write_atomically(path, [data])
        files[name] = Fingerprint.from_bytes(data)

    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        # All readers recognize -inf. Some take 0 for a pose, or compute with NaN.
        stream.poses[~stream.is_tracked] = -np.inf
        numbers, lost = options.select(stream.is_tracked, listed)
        color_camera, depth_camera = _choose_cameras(stream, layout, options)
        makers = _choose_makers(scene, stream, layout, color_camera, depth_camera)
        tables = {"labels": _make_table(options.label_set, label_map), "instances": None}
        names = options.name_files(scene.scene_id, split)
        for content in tables.keys() & names:
            path = scene.path(SOURCE_KINDS[content])
            archive = stack.enter_context(open_zip(path))
            makers[content] = partial(
                _make_label_image, archive, path, tables[content], color_camera.size
            )
        for position, number in enumerate(numbers):
            frame = stream[number]
            for content, name in options.name_files(
                scene.scene_id, split, number, position
            ).items():
                if content in makers:
                    value = makers[content](frame)
                    if content == "depth" and not value.any():
                        without_depth.append(number)
                    write(name, value)

    record = FramesRecord(
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
    contents = SceneContents(record, scene)
    for content, name in names.items():
        if content not in makers:
            write(name, attrgetter(content)(contents))
    write(RECORD_NAME, encode_json(record) + b"\n")


def _choose_cameras(
    stream: SensorStream, layout: Layout, options: FrameOptions
) -> tuple[SensorCamera, SensorCamera]:
    """Choose the cameras for the images of colour and depth that are written.

    Raises:
        FileError: The colour images are too small for the layout; or pixels of depth and colour are
            compared, and the cameras of the stream are at different places.
    """
    color = stream.color_camera
    depth = stream.depth_camera
    compares_pixels = "vertices" in options.contents
    compares_pixels |= layout.aligns_depth and "depth" in options.contents
    if compares_pixels and not np.array_equal(color.extrinsic, depth.extrinsic):
        raise FileError(
            stream.path,
            "its colour camera and its depth camera are not at the same place",
            f"leave depth and vertices out of --with, or {_HINT_SIZE}",
        )
    if min(color.size) < layout.crop:
        width, height = color.size
        raise FileError(
            stream.path,
            f"has {width} x {height} pixels of colour, too few for a square of {layout.crop}",
            _HINT_SIZE,
        )
    if layout.crop:
        color = color.cropped(layout.crop)
    if layout.aligns_depth:
        depth = color
    size = depth.size if layout.uses_depth_camera else options.size
    return color.resized(size or color.size), depth.resized(size or depth.size)


def _choose_makers(
    scene: RawScene,
    stream: SensorStream,
    layout: Layout,
    color_camera: SensorCamera,
    depth_camera: SensorCamera,
) -> dict[str, Callable[[Frame], Any]]:
    """Choose the functions that make the content of a file: its bytes, or a value to encode."""
    read_mesh = cache(partial(read_raw_file, MESH, scene.path(MESH)))
    makers: dict[str, Callable[[Frame], Any]] = {
        "color": lambda frame: resize_color(frame.color(), color_camera.size, layout.crop),
        "depth": lambda frame: resize_nearest(frame.depth(), depth_camera.size),
        "pose": lambda frame: frame.pose,
        "vertices": lambda frame: find_vertices(
            read_mesh(), frame.pose, depth_camera, makers["depth"](frame)
        ),
        "correspondences": lambda frame: list_pixels(
            find_vertices(read_mesh(), frame.pose, color_camera)
        ),
    }
    if layout.files["color"].endswith(".jpg") and color_camera.size == stream.color_camera.size:
        makers["color"] = Frame.checked_jpeg
    if layout.aligns_depth:
        makers["depth"] = partial(_align_depth, color_camera)
    if layout.uses_depth_camera:
        makers["pose"] = lambda frame: {
            "intrinsics": depth_camera.intrinsic[:3, :3],
            "pose": frame.pose,
        }
    return makers


def _align_depth(color: SensorCamera, frame: Frame) -> NDArray[np.uint16]:
    """Take the nearest pixel of depth for each pixel of colour; 0 outside of the depth image."""
    depth_intrinsic = frame.stream.depth_camera.intrinsic
    depth_from_color = depth_intrinsic @ np.linalg.inv(color.intrinsic.astype(np.float64))
    # Around the image, there is a border of 0.
    image = np.pad(frame.depth(), 1)
    # Columns, then rows.
    for axis, count in enumerate(color.size):
        found = np.arange(count) * depth_from_color[axis, axis] + depth_from_color[axis, 2]
        image = image.T.take(np.rint(found).astype(int) + 1, axis=0, mode="clip")
    return image


def _make_table(label_set: LabelIds, label_map: LabelMap) -> NDArray[np.int16] | None:
    """Make the conversion of ScanNet ids to those of a label set.

    Returns:
        int16 (MAX_SCANNET_ID + 1,), the other id of each ScanNet id, -1 if the label map lacks it;
        None for `raw`, the ScanNet ids themselves.
    """
    if label_set == "raw":
        return None
    # Three ScanNet ids have rows with two nyu40 ids. As in the official script
    # (convert_scannet_label_image.py), the last row counts.
    scannet_ids, nyu40_ids = np.array([(0, 0), *label_map.rows.values()]).T
    ids = {
        "nyu40": nyu40_ids,
        "scannet20": SCANNET20.labels_from_raw_ids(nyu40_ids),
        "scannet200": SCANNET200.labels_from_raw_ids(scannet_ids),
    }
    table = np.full(MAX_SCANNET_ID + 1, -1, np.int16)
    table[scannet_ids] = ids[label_set]
    return table


def _make_label_image(
    archive: zipfile.ZipFile,
    path: Path,
    table: NDArray[np.int16] | None,
    size: tuple[int, int],
    frame: Frame,
) -> GrayImage | bytes:
    """Make the image of labels, or of objects, of a frame.

    Args:
        archive: The zip file of a scene.
        path: Its path, for messages.
        table: The conversion of its ids; None to leave them as they are.
        size: Width and height of the image to make. Stored images have those of the colour camera.
        frame: The frame.

    Returns:
        uint8 or uint16 (H, W); the stored PNG image if nothing is converted.

    Raises:
        FileError: The image is missing, damaged, of another size, or has an unknown id.
    """
    # scene0000_00_2d-label-filt.zip holds label-filt/0.png.
    folder = path.stem.partition("_2d-")[2]
    name = f"{folder}/{frame.number}.png"
    stored = read_member(archive, path, name)
    stored_size = frame.stream.color_camera.size
    try:
        if size == stored_size and table is None:
            check_gray_png(stored, stored_size)
            return stored
        image = resize_nearest(decode_gray(stored, stored_size), size)
    except ContentError as error:
        raise FileError(path, f"{name!r} in it {error.message}") from None
    if table is None:
        return image
    ids = table[image]
    if ids.min() < 0:
        unknown = list_some([*map(str, np.unique(image[ids < 0]))])
        raise FileError(
            path,
            f"{name!r} in it has ScanNet ids that are not in the label map: {unknown}",
            "to extract the ids as they are stored: --label-set raw",
        )
    return ids.astype(np.uint8)


def _save(
    write: Callable[..., None],
    *values: Any,  # noqa: ANN401 - of NumPy
    **named: Any,  # noqa: ANN401 - of NumPy
) -> bytes:
    """Encode values with a function of NumPy that writes them into a file."""
    file = io.BytesIO()
    write(file, *values, **named)
    return file.getvalue()


# By the ending of a file.
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    ".jpg": encode_jpeg,
    # At most a fifth larger than at level 6, and made in less than a quarter of the time.
    ".png": partial(encode_png, level=1),
    ".pgm": encode_pgm,
    # As the official reader does.
    ".txt": partial(_save, np.savetxt, fmt="%f"),
    # Depth is in metres there.
    ".npy": lambda array: _save(
        np.save, array / np.float32(1000) if array.dtype == np.uint16 else array
    ),
    ".npz": lambda arrays: _save(np.savez, **arrays),
    ".json": encode_json,
}
