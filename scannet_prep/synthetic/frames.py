"""Sensor streams and 2D labels of synthetic scenes, drawn from the faces of their meshes.

A camera turns around near the middle of the room, and looks outwards and down. Tracking is lost in
one frame, as happens in the release. Colour and depth images are small, and have their own sizes.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import encode_jpeg, encode_png
from scannet_prep.frames.projection import draw_faces
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.synthetic.room import turn_around_z
from scannet_prep.synthetic.scene import SyntheticScene, spread_over_vertices

_LOST_FRAME = 1
_LOST_POSE = np.full((4, 4), -np.inf, np.float32)
# Metres above the floor: above most furniture.
_CAMERA_HEIGHT = 2.2
_LOOK_DOWN = math.radians(30)
_FORWARD = math.cos(_LOOK_DOWN)
_DOWN = math.sin(_LOOK_DOWN)
# The first pose but for its position: the axes of the camera to the right, down, and forward; and
# its place, half a metre from the middle of the room.
_FIRST_CAMERA = np.array(
    [
        (0, -1, 0),
        (-_DOWN, 0, -_FORWARD),
        (_FORWARD, 0, -_DOWN),
        (0.5, 0, 0),
    ]
)
_MICROSECONDS = 33_333
_STREAM_VERSION = 4
_SENSOR_NAME = b"StructureSensor"
_JPEG_COLOR = 2
_ZLIB_DEPTH = 1
_DEPTH_SHIFT = 1000.0
# A fixed time, so that the same scene gives the same bytes.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def _make_camera(focal: float, width: int, height: int) -> SensorCamera:
    intrinsic = np.eye(4, dtype=np.float32)
    intrinsic[:2, :2] *= focal
    intrinsic[:2, 2] = (width - 1) / 2, (height - 1) / 2
    extrinsic = np.eye(4, dtype=np.float32)
    return SensorCamera((width, height), intrinsic, extrinsic)


# The focal lengths of the metadata of a synthetic scene (1150 for 1296 columns, 575 for 640), at a
# quarter of the size.
COLOR_CAMERA = _make_camera(287.5, 324, 242)
DEPTH_CAMERA = _make_camera(143.75, 160, 120)


class RenderedFrame(NamedTuple):
    """One frame, as the scanner would record it, and its 2D labels.

    Attributes:
        pose: float32 (4, 4), scan <- camera, metres; all -inf if tracking is lost.
        color: uint8 (H, W, 3).
        depth: uint16 (H, W) of the depth camera, millimetres; 0 where there is no surface.
        scannet_ids: uint16 (H, W) of the colour camera, the ScanNet id at each pixel; 0 for no
            object.
        object_ids: uint8 (H, W), the object id + 1; 0 outside all objects.
    """

    pose: NDArray[np.float32]
    color: NDArray[np.uint8]
    depth: NDArray[np.uint16]
    scannet_ids: NDArray[np.uint16]
    object_ids: NDArray[np.uint8]


def render_frames(scene: SyntheticScene, count: int) -> Iterator[RenderedFrame]:
    """Render the frames of a scene, one by one.

    A pixel has the colour and the labels of the nearest corner of the face that it shows.

    Args:
        scene: The scene.
        count: The number of frames. Tracking is lost in the second one.
    """
    rows = builtin_label_map().rows
    raw_ids = [rows[group.raw_category].scannet_id for group in scene.groups]
    # All groups of synthetic scenes have an object id.
    numbers = [(group.object_id or 0) + 1 for group in scene.groups]
    # The last row is that of vertex -1, for pixels that show no vertex.
    black = np.zeros((1, 3), np.uint8)
    colors = np.concatenate([scene.colors, black])
    scannet_ids = spread_over_vertices(scene, raw_ids)
    scannet_ids = np.append(scannet_ids, 0)
    object_ids = spread_over_vertices(scene, numbers)
    object_ids = np.append(object_ids, 0)
    for number, pose in enumerate(_make_poses(scene, count)):
        vertices, _, _ = draw_faces(scene.positions, scene.faces, pose, COLOR_CAMERA)
        corners, _, depths = draw_faces(scene.positions, scene.faces, pose, DEPTH_CAMERA)
        millimetres = np.where(corners < 0, 0, np.rint(depths * _DEPTH_SHIFT))
        yield RenderedFrame(
            pose=_LOST_POSE if number == _LOST_FRAME else pose,
            color=colors[vertices],
            depth=millimetres.astype(np.uint16),
            scannet_ids=scannet_ids[vertices].astype(np.uint16),
            object_ids=object_ids[vertices].astype(np.uint8),
        )


def encode_files(scene: SyntheticScene, count: int) -> dict[str, bytes]:
    """Render a scene, and encode its files.

    Args:
        scene: The scene.
        count: The number of frames.

    Returns:
        The sensor stream, and the zip files of 2D labels unless the scene has no annotation; by the
        suffix of the name.
    """
    stream = [_encode_header(count)]
    labels: dict[str, bytes] = {}
    instances: dict[str, bytes] = {}
    for number, frame in enumerate(render_frames(scene, count)):
        stream.append(_encode_frame(number, frame))
        name = f"{number}.png"
        labels[f"label-filt/{name}"] = encode_png(frame.scannet_ids)
        instances[f"instance-filt/{name}"] = encode_png(frame.object_ids)
    # The number of inertial records.
    stream.append(struct.pack("<Q", 0))
    files = {".sens": b"".join(stream)}
    if scene.groups:
        files["_2d-label-filt.zip"] = _encode_zip(labels)
        files["_2d-instance-filt.zip"] = _encode_zip(instances)
    return files


def _make_poses(scene: SyntheticScene, count: int) -> Iterator[NDArray[np.float32]]:
    """Yield poses, float32 (4, 4), of a camera that turns once around the z axis."""
    lowest = scene.positions.min(axis=0)
    highest = scene.positions.max(axis=0)
    middle = (lowest + highest) / 2
    middle[2] = lowest[2] + _CAMERA_HEIGHT
    for number in range(count):
        degrees = 360 * number / count
        turned = turn_around_z(_FIRST_CAMERA, degrees)
        pose = np.eye(4, dtype=np.float32)
        pose[:3] = turned.T
        pose[:3, 3] += middle
        yield pose


def _encode_header(count: int) -> bytes:
    """Encode the header of a sensor stream; `raw/sensor_stream.py` describes it."""
    cameras = (COLOR_CAMERA, DEPTH_CAMERA)
    name_length = len(_SENSOR_NAME)
    parts = [struct.pack("<IQ", _STREAM_VERSION, name_length), _SENSOR_NAME]
    for camera in cameras:
        parts.append(camera.intrinsic.tobytes())
        parts.append(camera.extrinsic.tobytes())
    parts.append(struct.pack("<2i", _JPEG_COLOR, _ZLIB_DEPTH))
    parts += [struct.pack("<2I", *camera.size) for camera in cameras]
    parts.append(struct.pack("<fQ", _DEPTH_SHIFT, count))
    return b"".join(parts)


def _encode_frame(number: int, frame: RenderedFrame) -> bytes:
    color = encode_jpeg(frame.color)
    depth = bytes(deflate.zlib_compress(frame.depth.tobytes()))
    time = number * _MICROSECONDS
    sizes = (len(color), len(depth))
    head = struct.pack("<4Q", time, time, *sizes)
    pose = frame.pose.tobytes()
    return b"".join([pose, head, color, depth])


def _encode_zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), data)
    return file.getvalue()
