"""Extract the frames of one scene into a folder.

    stream                 --> color, depth, pose of a frame; cameras
    zip files of 2D labels --> labels, instances of a frame
    options, stream        --> numbers of the frames --> files --> record

Images that keep their size are not decoded: stored JPEG and PNG images are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, make_directory, writing
from scannet_prep.base.images import encode_jpeg, encode_png, resize_color, resize_nearest
from scannet_prep.frames.labels import LabelImages, make_label_table
from scannet_prep.frames.options import LABEL_KINDS, LAYOUTS, STREAM, FrameContent, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, CameraRecord, FramesRecord, encode_record
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import open_zip
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split

# At most a fifth larger than at level 6, and made in less than a quarter of the time.
_DEPTH_LEVEL = 1
_JPEG_QUALITY = 95


def measure_sources(scene: RawScene, split: Split, options: FrameOptions) -> dict[str, int]:
    """Measure the files that a scene is extracted from.

    Returns:
        Their sizes in bytes, by name; those that are missing are omitted.
    """
    kinds = [STREAM, *_label_kinds(split, options).values()]
    sizes = {}
    for path in map(scene.path, kinds):
        with suppress(OSError):
            sizes[path.name] = path.stat().st_size
    return sizes


def _label_kinds(split: Split, options: FrameOptions) -> dict[FrameContent, Any]:
    """Return the kinds of the zip files that the options need, by content."""
    contents = options.contents_of(split)
    return {content: kind for content, kind in LABEL_KINDS.items() if content in contents}


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
    names = [layout.paths[content] for content in contents]
    for folder in {(out_dir / name).parent for name in (*names, *layout.matrices.values())}:
        make_directory(folder)
    files: dict[str, Fingerprint] = {}

    with ExitStack() as stack:
        stream = stack.enter_context(SensorStream(scene.path(STREAM)))
        color_camera = stream.color_camera.resized(options.size or stream.color_camera.size)
        depth_camera = stream.depth_camera.resized(options.size or stream.depth_camera.size)
        labels = {}
        for content, kind in _label_kinds(split, options).items():
            path = scene.path(kind)
            archive = stack.enter_context(open_zip(path))
            table = None
            if content == "labels":
                table = make_label_table(options.label_set, label_map)
            labels[content] = LabelImages(archive, path, content, table)

        numbers, lost = options.select(stream.is_tracked)
        for position, number in enumerate(numbers):
            frame = stream[number]
            for content in contents:
                if content == "color":
                    data = _encode_color(frame, stream.color_camera.size, color_camera.size)
                elif content == "depth":
                    depth = resize_nearest(frame.depth(), depth_camera.size)
                    data = encode_png(depth, _DEPTH_LEVEL)
                elif content == "pose":
                    data = _encode_matrix(frame.pose)
                else:
                    stored_size = stream.color_camera.size
                    data = labels[content].encode(number, stored_size, color_camera.size)
                _write(out_dir, layout.path(content, position, number), data, files)
        matrices = _find_matrices(color_camera, depth_camera)
        for name, path_name in layout.matrices.items():
            _write(out_dir, path_name, _encode_matrix(matrices[name]), files)

    depends_on_map = "labels" in contents and options.label_set != "raw"
    record = FramesRecord(
        scene_id=scene.scene_id,
        split=split,
        options=options,
        sources=source_sizes,
        stream_frames=len(stream),
        frames=tuple(numbers),
        lost=tuple(lost),
        color_camera=CameraRecord.from_camera(color_camera),
        depth_camera=CameraRecord.from_camera(depth_camera),
        label_map=label_map.digest if depends_on_map else "",
        files=dict(sorted(files.items())),
    )
    _write(out_dir, RECORD_NAME, encode_record(record), files)
    return record


def _find_matrices(
    color_camera: SensorCamera, depth_camera: SensorCamera
) -> Mapping[str, NDArray[np.float32]]:
    return {
        "intrinsic_color": color_camera.intrinsic,
        "extrinsic_color": color_camera.extrinsic,
        "intrinsic_depth": depth_camera.intrinsic,
        "extrinsic_depth": depth_camera.extrinsic,
    }


def _encode_color(frame: Frame, stored_size: tuple[int, int], size: tuple[int, int]) -> bytes:
    if size == stored_size:
        return frame.checked_jpeg()
    return encode_jpeg(resize_color(frame.color(), size), _JPEG_QUALITY)


def _encode_matrix(matrix: NDArray[np.floating[Any]]) -> bytes:
    """Encode a matrix as the official reader does: a line per row, six decimals."""
    return "".join(" ".join(f"{value:f}" for value in row) + "\n" for row in matrix).encode()


def _write(out_dir: Path, name: str, data: bytes, files: dict[str, Fingerprint]) -> None:
    """Write a file, and record its fingerprint.

    Raises:
        OutputError: It cannot be written.
    """
    path = out_dir / name
    with writing(path):
        path.write_bytes(data)
    files[name] = Fingerprint.from_bytes(data)
