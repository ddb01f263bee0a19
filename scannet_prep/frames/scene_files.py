"""The files of a layout that concern all frames of a scene: cameras, poses, start points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.frames.folder import FramesRecord
from scannet_prep.frames.layouts import LAYOUTS
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.scene import read_processed
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.files import INFO, MESH

# Whole numbers are the middles of pixels in ScanNet, and their corners in COLMAP and nerfstudio.
_HALF_PIXEL = 0.5
# In metres, around the cameras of MonoSDF.
_FREE_SPACE = 1.5
_POINT = np.dtype([("position", "<f4", 3), ("normal", "<f4", 3), ("color", "u1", 3)])
_PLY_HEADER = """\
ply
format binary_little_endian 1.0
element vertex {count}
property float x
property float y
property float z
property float nx
property float ny
property float nz
property uchar red
property uchar green
property uchar blue
end_header
"""

_STREAM_INFO = """\
m_versionNumber = 4
m_sensorName = {record.sensor}
m_colorWidth = {record.color_camera.size[0]}
m_colorHeight = {record.color_camera.size[1]}
m_depthWidth = {record.depth_camera.size[0]}
m_depthHeight = {record.depth_camera.size[1]}
m_depthShift = 1000
m_calibrationColorIntrinsic = {matrices[0]}
m_calibrationColorExtrinsic = {matrices[1]}
m_calibrationDepthIntrinsic = {matrices[2]}
m_calibrationDepthExtrinsic = {matrices[3]}
m_frames.size = {count}
"""


def _join_lines(rows: Iterable[Iterable[object]]) -> bytes:
    """Join the words of lines."""
    return "".join(" ".join(map(str, row)) + "\n" for row in rows).encode()


def _find_pinhole(record: FramesRecord) -> dict[str, float]:
    """Return size and intrinsics of the color camera, for pixels that begin at whole numbers."""
    width, height = record.color_camera.size
    (fx, _, cx, _), (_, fy, cy, _), *_ = record.color_camera.intrinsic.tolist()
    return {
        "w": width,
        "h": height,
        "fl_x": fx,
        "fl_y": fy,
        "cx": cx + _HALF_PIXEL,
        "cy": cy + _HALF_PIXEL,
    }


def _encode_colmap_camera(record: FramesRecord, _: RawScene) -> bytes:
    return _join_lines([[1, "PINHOLE", *_find_pinhole(record).values()]])


def _encode_colmap_images(record: FramesRecord, _: RawScene) -> bytes:
    """Encode the pose of each image; the line of its points stays empty."""
    lines: list[list[object]] = []
    poses = record.read_poses().astype(np.float64)
    for number, camera_from_scan in zip(record.frames, np.linalg.inv(poses), strict=True):
        name = f"{number:06}.jpg"
        quaternion = _find_quaternion(camera_from_scan[:3, :3])
        position = camera_from_scan[:3, 3]
        lines += [[len(lines) // 2 + 1, *quaternion, *position, 1, name], []]
    return _join_lines(lines)


def _find_quaternion(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find the unit quaternion of a rotation: w, x, y, z."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    # Four times the products of its numbers with each other: each row is a multiple of it.
    products = np.array(
        [
            [1 + xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, 1 + xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, 1 - xx + yy - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, 1 - xx - yy + zz],
        ]
    )
    row = products[products.diagonal().argmax()]
    return np.asarray(row / np.linalg.norm(row))


def _read_vertices(scene: RawScene) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read vertices in the frame of the scan, as poses are, and their colors."""
    if scene.processed is None:
        mesh = read_raw_file(MESH, scene.path(MESH))
        return mesh.positions, mesh.colors
    processed = read_processed(scene.processed)
    if not processed.meta.options.align_axis:
        return processed.points, processed.colors
    scan_from_aligned = np.linalg.inv(processed.axis_alignment.astype(np.float64))
    columns = processed.points.T.astype(np.float64)
    return move_columns(columns, scan_from_aligned[:3]).T, processed.colors


def _encode_colmap_points(_: FramesRecord, scene: RawScene) -> bytes:
    """Encode the vertices of the scan, which no image has matched."""
    points = zip(*(values.tolist() for values in _read_vertices(scene)), strict=True)
    return _join_lines(
        [index, *position, *color, 0] for index, (position, color) in enumerate(points, start=1)
    )


def _encode_points(_: FramesRecord, scene: RawScene) -> bytes:
    """Encode the vertices of the scan as PLY, with normals of 0, which readers expect."""
    positions, colors = _read_vertices(scene)
    points = np.zeros(len(positions), _POINT)
    points["position"] = positions
    points["color"] = colors
    return _PLY_HEADER.format(count=len(points)).encode() + points.tobytes()


def _make_transforms(record: FramesRecord, _: RawScene) -> dict[str, Any]:
    """Collect cameras and poses for nerfstudio, whose cameras look along -z, with y up."""
    poses = record.read_poses().copy()
    poses[:, :3, 1:3] *= -1
    names = LAYOUTS[record.options.layout].of_frame
    frames = []
    for number, pose in zip(record.frames, poses, strict=True):
        frame = {"file_path": names["color"].format(number=number)}
        if "depth" in record.options.contents:
            frame["depth_file_path"] = names["depth"].format(number=number)
        frames.append(frame | {"transform_matrix": pose.tolist()})
    return {
        "camera_model": "PINHOLE",
        **_find_pinhole(record),
        "orientation_override": "none",
        "ply_file_path": "points3D.ply",
        "frames": frames,
    }


def _encode_stream_info(record: FramesRecord, _: RawScene) -> bytes:
    """Encode the header of the stream of the frames, of which depth is in millimetres."""
    cameras = (record.color_camera, record.depth_camera)
    matrices = [matrix for camera in cameras for matrix in (camera.intrinsic, camera.extrinsic)]
    texts = [" ".join(map(str, matrix.ravel().tolist())) for matrix in matrices]
    count = len(record.frames)
    return _STREAM_INFO.format(record=record, matrices=texts, count=count).encode()


def _make_projections(record: FramesRecord, _: RawScene) -> dict[str, NDArray[Any]]:
    """Collect projections for MonoSDF, and the matrix from its unit box, which holds cameras."""
    poses = record.read_poses().astype(np.float64)
    centers = poses[:, :3, 3]
    low = centers.min(axis=0, initial=np.inf)
    high = centers.max(axis=0, initial=-np.inf)
    # scan <- unit
    scale = np.diag([*[(high - low).max() / 2 + _FREE_SPACE] * 3, 1])
    scale[:3, 3] = (low + high) / 2
    matrices = {}
    for position, camera_from_scan in enumerate(np.linalg.inv(poses)):
        matrices[f"scale_mat_{position}"] = scale.astype(np.float32)
        matrices[f"world_mat_{position}"] = record.color_camera.intrinsic @ camera_from_scan
    return matrices


SCENE_CONTENTS: Mapping[str, Callable[[FramesRecord, RawScene], Any]] = {
    "intrinsic_color": lambda record, _: record.color_camera.intrinsic,
    "extrinsic_color": lambda record, _: record.color_camera.extrinsic,
    "intrinsic_depth": lambda record, _: record.depth_camera.intrinsic,
    "extrinsic_depth": lambda record, _: record.depth_camera.extrinsic,
    # A line each.
    "poses": lambda record, _: record.read_poses().reshape(-1, 16),
    "colmap_camera": _encode_colmap_camera,
    "colmap_images": _encode_colmap_images,
    "colmap_points": _encode_colmap_points,
    "points": _encode_points,
    "transforms": _make_transforms,
    "projections": _make_projections,
    # Without the ending.
    "names": lambda record, _: {"images": [f"{number:05}" for number in record.frames]},
    "stream_info": _encode_stream_info,
    "scan_info": lambda _, scene: read_file(scene.path(INFO)),
}
"""What a file holds: its bytes, or a value to encode."""
