"""Extract the frames of one scene into a folder.

options, stream --> numbers of the frames, cameras --> record
record, sources --> contents of the files, encoded --> folder
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from operator import attrgetter
from pathlib import Path

import numpy as np

from scannet_prep.base.files import Fingerprint, write_atomically
from scannet_prep.base.json import encode_json
from scannet_prep.errors import FileError
from scannet_prep.frames.contents import SceneContents, encode_content
from scannet_prep.frames.folder import RECORD_NAME, FramesRecord
from scannet_prep.frames.options import FRAME_CONTENTS, STREAM, FrameOptions
from scannet_prep.raw.sensor_stream import SensorCamera, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
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
    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        # All readers recognize -inf. Some take 0 for a pose, or compute with NaN.
        stream.poses[~stream.is_tracked] = -np.inf
        numbers, lost = options.select(stream.is_tracked, listed)
        color_camera, depth_camera = _choose_cameras(stream, options)
        record = FramesRecord(
            split=split,
            options=options,
            sources=source_sizes,
            frames=numbers,
            lost=lost,
            without_depth=[],
            color_camera=color_camera,
            depth_camera=depth_camera,
            sensor=stream.sensor_name,
            poses=stream.poses[list(numbers)].tobytes(),
            files={},
        )
        open_archive = cache(lambda path: stack.enter_context(open_zip(path)))
        contents = SceneContents(record, scene, label_map, open_archive, stream[0])
        for position, number in enumerate(numbers):
            contents.frame = stream[number]
            for content, name in record.name_files(scene.scene_id, position).items():
                # What concerns all frames is written once.
                if content in FRAME_CONTENTS or number == numbers[-1]:
                    # Matrices are attributes of attributes: `record.color_camera.intrinsic`.
                    value = attrgetter(content)(contents)
                    if content == "depth" and not value.any():
                        record.without_depth.append(number)
                    data = encode_content(name, value)
                    write_atomically(out_dir / name, [data])
                    record.files[name] = Fingerprint.from_bytes(data)
    write_atomically(out_dir / RECORD_NAME, [encode_json(record), b"\n"])


def _choose_cameras(
    stream: SensorStream, options: FrameOptions
) -> tuple[SensorCamera, SensorCamera]:
    """Choose the cameras for the images of colour and depth that are written.

    Raises:
        FileError: The colour images are too small for the layout; or pixels of depth and colour are
            compared, and the cameras of the stream are at different places.
    """
    color = stream.color_camera
    depth = stream.depth_camera
    layout = options.form
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
