"""The files of a layout that concern all frames of a scene: cameras, poses, start points."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.frames.folder import FramesRecord
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.scene import read_processed
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.files import INFO, MESH

# Whole numbers are the middles of pixels in ScanNet, and their corners in COLMAP and nerfstudio.
_HALF_PIXEL = 0.5
# In metres, around the cameras of MonoSDF.
_FREE_SPACE = 1.5
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
_COLMAP_CAMERA = "1 PINHOLE {w} {h} {fl_x} {fl_y} {cx} {cy}\n"
# Index, quaternion, position, camera, name; and the points of the image: none.
_COLMAP_IMAGE = "%d %s %s %s %s %s %s %s 1 %06d.jpg\n"
# Index, position, color, error; no image has matched it.
_COLMAP_POINT = "%d %s %s %s %d %d %d 0"


def save(
    write: Callable[..., None],
    *values: Any,  # noqa: ANN401 - of NumPy
    **named: Any,  # noqa: ANN401 - of NumPy
) -> bytes:
    """Encode values with a function of NumPy that writes them into a file."""
    file = io.BytesIO()
    write(file, *values, **named)
    return file.getvalue()


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


def _encode_colmap_images(record: FramesRecord, _: RawScene) -> bytes:
    """Encode the pose of each image."""
    poses = np.linalg.inv(record.read_poses().astype(np.float64))
    rows = [
        [index, *_find_quaternion(pose[:3, :3]), *pose[:3, 3], number]
        for index, (number, pose) in enumerate(zip(record.frames, poses, strict=True), start=1)
    ]
    return save(np.savetxt, rows, _COLMAP_IMAGE)


def _find_quaternion(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find the unit quaternion of a rotation: w, x, y, z."""
    # It is the eigenvector of the largest eigenvalue of this matrix, whose lower half is read.
    matrix = np.eye(4) * np.trace(rotation)
    # The sum of the cross products is twice the axis, times the sine of the angle.
    matrix[1:, 0] = np.cross(np.eye(3), rotation.T).sum(axis=0)
    matrix[1:, 1:] = rotation + rotation.T - matrix[1:, 1:]
    _, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors[:, -1])


def _read_vertices(scene: RawScene) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read vertices in the frame of the scan, as poses are, and their colors."""
    if scene.processed is None or not scene.processed.exists():
        mesh = read_raw_file(MESH, scene.path(MESH))
        return mesh.positions, mesh.colors
    processed = read_processed(scene.processed)
    if not processed.meta.options.align_axis:
        return processed.points, processed.colors
    scan_from_aligned = np.linalg.inv(processed.axis_alignment.astype(np.float64))[:3]
    columns = processed.points.T.astype(np.float64)
    return move_columns(columns, scan_from_aligned).T, processed.colors


def _encode_colmap_points(_: FramesRecord, scene: RawScene) -> bytes:
    """Encode the vertices of the scan."""
    positions, colors = _read_vertices(scene)
    indices = np.arange(1, len(positions) + 1)
    return save(np.savetxt, np.column_stack([indices, positions, colors]), _COLMAP_POINT)


def _encode_points(_: FramesRecord, scene: RawScene) -> bytes:
    """Encode the vertices of the scan as PLY, with normals of 0, which readers expect."""
    positions, colors = _read_vertices(scene)
    rows = np.zeros(len(positions), "3<f4, 3<f4, 3u1")
    rows["f0"] = positions
    rows["f2"] = colors
    return _PLY_HEADER.format(count=len(rows)).encode() + rows.tobytes()


def _make_transforms(record: FramesRecord, _: RawScene) -> dict[str, Any]:
    """Collect cameras and poses for nerfstudio, whose cameras look along -z, with y up."""
    poses = record.read_poses().copy()
    poses[:, :3, 1:3] *= -1
    keys = {"color": "file_path", "depth": "depth_file_path"}
    options = record.options
    frames = []
    for number, pose in zip(record.frames, poses.tolist(), strict=True):
        names = options.name_files(record.scene_id, record.split, number)
        paths = {keys[content]: names[content] for content in options.contents}
        frames.append({**paths, "transform_matrix": pose})
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
    text = _STREAM_INFO.format(record=record, matrices=texts, count=len(record.frames))
    return text.encode()


def _make_projections(record: FramesRecord, _: RawScene) -> dict[str, NDArray[Any]]:
    """Collect projections for MonoSDF, and the matrix from its unit box, which holds cameras."""
    poses = record.read_poses().astype(np.float64)
    centers = poses[:, :3, 3]
    low = centers.min(axis=0)
    high = centers.max(axis=0)
    scan_from_unit = np.eye(4)
    scan_from_unit[:3] *= (high - low).max() / 2 + _FREE_SPACE
    scan_from_unit[:3, 3] = (low + high) / 2
    matrices = {}
    for position, camera_from_scan in enumerate(np.linalg.inv(poses)):
        matrices[f"scale_mat_{position}"] = scan_from_unit.astype(np.float32)
        matrices[f"world_mat_{position}"] = record.color_camera.intrinsic @ camera_from_scan
    return matrices


SCENE_CONTENTS: Mapping[str, Callable[[FramesRecord, RawScene], Any]] = {
    "intrinsic_color": lambda record, _: record.color_camera.intrinsic,
    "extrinsic_color": lambda record, _: record.color_camera.extrinsic,
    "intrinsic_depth": lambda record, _: record.depth_camera.intrinsic,
    "extrinsic_depth": lambda record, _: record.depth_camera.extrinsic,
    # A line each.
    "poses": lambda record, _: record.read_poses().reshape(-1, 16),
    "colmap_camera": lambda record, _: _COLMAP_CAMERA.format(**_find_pinhole(record)).encode(),
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
