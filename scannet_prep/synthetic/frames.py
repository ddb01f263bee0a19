"""Sensor streams and 2D labels of synthetic scenes, rendered from their meshes.

A camera turns around near the middle of the room, and looks outwards and down. Tracking is lost in
one frame, as happens in the release. Color and depth images are small, and have their own sizes.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import encode_jpeg, encode_png
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.synthetic.raster import Float32s, ImagePoints, Visible, draw_triangles
from scannet_prep.synthetic.scene import SyntheticScene, spread_over_vertices

# The focal lengths of the metadata of a synthetic scene (1150 for 1296 columns, 575 for 640), at a
# quarter of the size.
_COLOR_SIZE = (324, 242)
_COLOR_FOCAL = 287.5
_DEPTH_SIZE = (160, 120)
_DEPTH_FOCAL = 143.75
_LOST_FRAME = 1
_LOST_POSE = np.full((4, 4), -np.inf, np.float32)
# Metres above the floor: above most furniture.
_CAMERA_HEIGHT = 2.2
# Metres between the camera and the middle of the room.
_ORBIT_RADIUS = 0.5
_LOOK_DOWN = math.radians(30)
# Metres. Triangles that come nearer to the camera are not drawn.
_NEAR = 0.1
_MICROSECONDS = 33_333
_STREAM_VERSION = 4
_SENSOR_NAME = b"StructureSensor"
_JPEG_COLOR = 2
_ZLIB_DEPTH = 1
_DEPTH_SHIFT = 1000.0
# A fixed time, so that the same scene gives the same bytes.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


class RenderedFrame(NamedTuple):
    """One frame, as the scanner would record it, and its 2D labels.

    Attributes:
        pose: float32 (4, 4), scan <- camera, metres; all -inf if tracking is lost.
        color: uint8 (H, W, 3).
        depth: uint16 (H, W) of the depth camera, millimetres; 0 where there is no surface.
        scannet_ids: uint16 (H, W) of the color camera, the ScanNet id at each pixel; 0 where there
            is none.
        object_ids: uint8 (H, W), the object id + 1; 0 outside all objects.
    """

    pose: Float32s
    color: NDArray[np.uint8]
    depth: NDArray[np.uint16]
    scannet_ids: NDArray[np.uint16]
    object_ids: NDArray[np.uint8]


def make_cameras() -> tuple[SensorCamera, SensorCamera]:
    """Return the color camera and the depth camera of all synthetic scenes."""
    color = _make_camera(_COLOR_FOCAL, _COLOR_SIZE)
    depth = _make_camera(_DEPTH_FOCAL, _DEPTH_SIZE)
    return color, depth


def render_frames(scene: SyntheticScene, count: int) -> Iterator[RenderedFrame]:
    """Render the frames of a scene, one by one.

    Args:
        scene: The scene.
        count: The number of frames. Tracking is lost in the second one.
    """
    rows = builtin_label_map().rows
    raw_ids = [rows[group.raw_category].scannet_id for group in scene.groups]
    scannet_ids = spread_over_vertices(scene, raw_ids).astype(np.uint16)
    # All groups of synthetic scenes have an object id.
    numbers = [(group.object_id or 0) + 1 for group in scene.groups]
    object_ids = spread_over_vertices(scene, numbers).astype(np.uint8)
    color_camera, depth_camera = make_cameras()
    for number, pose in enumerate(_make_poses(scene, count)):
        seen, _ = render(scene, pose, color_camera)
        nearest = seen.nearest
        colors = np.rint(seen.blend(scene.colors))
        depth_seen, depths = render(scene, pose, depth_camera)
        metres = depth_seen.blend(depths)
        millimetres = np.rint(metres * np.float32(_DEPTH_SHIFT))
        yield RenderedFrame(
            pose=_LOST_POSE if number == _LOST_FRAME else pose,
            color=_fill(seen, colors.astype(np.uint8), color_camera),
            depth=_fill(depth_seen, millimetres.astype(np.uint16), depth_camera),
            scannet_ids=_fill(seen, scannet_ids[nearest], color_camera),
            object_ids=_fill(seen, object_ids[nearest], color_camera),
        )


def render(
    scene: SyntheticScene,
    pose: Float32s,
    camera: SensorCamera,
) -> tuple[Visible, Float32s]:
    """Render the mesh of a scene.

    Args:
        scene: The scene.
        pose: float32 (4, 4), scan <- camera.
        camera: The camera.

    Returns:
        The visible surface; and the depth of each vertex, float32 (V,), metres.
    """
    # Row vectors: this is the inverse of the rotation.
    rotation = pose[:3, :3]
    position = pose[:3, 3]
    points = (scene.positions - position) @ rotation
    right, down, forward = points.T
    depths = np.asarray(forward, np.float32)
    # Vertices behind the camera get any depth in front of it: their triangles are not drawn.
    is_before = depths[scene.faces] > _NEAR
    is_drawn = is_before.all(axis=1)
    clipped = np.maximum(depths, np.float32(_NEAR))
    nearness: Float32s = np.reciprocal(clipped)
    columns, rows = camera.intrinsic[:2]
    fx, _, cx, _ = columns
    _, fy, cy, _ = rows
    projected = ImagePoints(
        x=right * nearness * fx + cx,
        y=down * nearness * fy + cy,
        nearness=nearness,
    )
    faces = scene.faces[is_drawn]
    seen = draw_triangles(projected, faces, *camera.size)
    return seen, depths


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


def _make_camera(focal: float, size: tuple[int, int]) -> SensorCamera:
    intrinsic = np.eye(4, dtype=np.float32)
    intrinsic[0, 0] = focal
    intrinsic[1, 1] = focal
    width, height = size
    intrinsic[0, 2] = width / 2 - 0.5
    intrinsic[1, 2] = height / 2 - 0.5
    extrinsic = np.eye(4, dtype=np.float32)
    return SensorCamera(intrinsic, extrinsic, size)


def _make_poses(scene: SyntheticScene, count: int) -> Iterator[Float32s]:
    """Yield poses, float32 (4, 4), of a camera that turns once around the z axis."""
    lowest = scene.positions.min(axis=0)
    highest = scene.positions.max(axis=0)
    middle = (lowest + highest) / 2
    middle[2] = lowest[2] + _CAMERA_HEIGHT
    for number in range(count):
        angle = 2 * math.pi * number / count
        cosine = math.cos(angle)
        sine = math.sin(angle)
        outwards = np.array([cosine, sine, 0])
        right = np.array([sine, -cosine, 0])
        forward = math.cos(_LOOK_DOWN) * outwards
        forward[2] = -math.sin(_LOOK_DOWN)
        pose = np.eye(4, dtype=np.float32)
        # The axes of a camera point to the right, down, and forward.
        pose[:3, 0] = right
        down = np.cross(forward, right)
        pose[:3, 1] = down
        pose[:3, 2] = forward
        position = middle + _ORBIT_RADIUS * outwards
        pose[:3, 3] = position
        yield pose


def _fill(
    seen: Visible,
    values: NDArray[Any],
    camera: SensorCamera,
) -> NDArray[Any]:
    """Make an image, (H, W, ...), from the values of its pixels that are not empty."""
    width, height = camera.size
    _, *channels = values.shape
    pixel_count = height * width
    image = np.zeros((pixel_count, *channels), values.dtype)
    image[seen.pixels] = values
    return image.reshape(height, width, *channels)


def _encode_header(count: int) -> bytes:
    """Encode the header of a sensor stream; `raw/sensor_stream.py` describes it."""
    cameras = make_cameras()
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
