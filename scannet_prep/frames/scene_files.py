"""The files of a layout that concern all frames of a scene: cameras, poses, start points."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.base.ply import encode_ply
from scannet_prep.export.arrays import in_frame
from scannet_prep.frames.folder import FramesRecord
from scannet_prep.processed.scene import read_processed
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.files import INFO, MESH

# Whole numbers are the middles of pixels in ScanNet, and their corners in COLMAP and nerfstudio.
_HALF_PIXEL = 0.5
# In metres, around the cameras of MonoSDF.
_FREE_SPACE = 1.5
_STREAM_INFO = """\
m_versionNumber = 4
m_sensorName = {0.record.sensor}
m_colorWidth = {0.record.color_camera.size[0]}
m_colorHeight = {0.record.color_camera.size[1]}
m_depthWidth = {0.record.depth_camera.size[0]}
m_depthHeight = {0.record.depth_camera.size[1]}
m_depthShift = 1000
m_calibrationColorIntrinsic = {matrices[0]}
m_calibrationColorExtrinsic = {matrices[1]}
m_calibrationDepthIntrinsic = {matrices[2]}
m_calibrationDepthExtrinsic = {matrices[3]}
m_frames.size = {count}
"""
# Index, model (1 is PINHOLE), size and parameters.
_COLMAP_CAMERA = "<i4, <i4, <u8, <u8, <f8, <f8, <f8, <f8"
# Index, quaternion, position, camera, name; and the number of the points of the image.
_COLMAP_IMAGE = "<u4, 4<f8, 3<f8, <u4, S11, <u8"
# Index, position, colour, error; and the number of the images that have matched it.
_COLMAP_POINT = "<u8, 3<f8, 3u1, <f8, <u8"


class SceneContents(NamedTuple):
    """The files that concern all frames of a scene.

    An attribute has the content of one file: its bytes, or a value to encode.

    Attributes:
        record: The record of the scene.
        scene: The scene.
    """

    record: FramesRecord
    scene: RawScene

    @property
    def poses(self) -> NDArray[np.float32]:
        """The poses, one per line."""
        return self.record.read_poses().reshape(-1, 16)

    @property
    def _pinhole(self) -> dict[str, float]:
        """Size and intrinsics of the colour camera, for pixels that begin at whole numbers."""
        camera = self.record.color_camera
        width, height = camera.size
        fx, _, cx, _, _, fy, cy, *_ = camera.intrinsic.ravel().tolist()
        return {
            "w": width,
            "h": height,
            "fl_x": fx,
            "fl_y": fy,
            "cx": cx + _HALF_PIXEL,
            "cy": cy + _HALF_PIXEL,
        }

    @property
    def colmap_camera(self) -> bytes:
        """The colour camera."""
        return _encode_rows(_COLMAP_CAMERA, [1], *self._pinhole.values())

    @property
    def colmap_images(self) -> bytes:
        """The pose of each image."""
        poses = np.linalg.inv(self.record.read_poses().astype(np.float64))
        return _encode_rows(
            _COLMAP_IMAGE,
            [*map(_find_quaternion, poses[:, :3, :3])],
            poses[:, :3, 3],
            1,  # the camera of all images
            [f"{number:06}.jpg" for number in self.record.frames],
        )

    @property
    def colmap_points(self) -> bytes:
        """The vertices of the scan."""
        return _encode_rows(_COLMAP_POINT, *_read_vertices(self.scene))

    @property
    def points(self) -> bytes:
        """The vertices of the scan as PLY, with normals of 0, which readers expect."""
        positions, colors = _read_vertices(self.scene)
        zeros = np.zeros(len(positions), np.float32)
        return b"".join(encode_ply("start points", positions, colors, nx=zeros, ny=zeros, nz=zeros))

    @property
    def transforms(self) -> dict[str, Any]:
        """Cameras and poses for nerfstudio, whose cameras look along -z, with y up."""
        record = self.record
        poses = record.read_poses().copy()
        poses[:, :3, 1:3] *= -1
        keys = {"color": "file_path", "depth": "depth_file_path"}
        frames = []
        for number, pose in zip(record.frames, poses.tolist(), strict=True):
            names = record.options.name_files("", record.split, number)
            paths = {keys[content]: names[content] for content in record.options.contents}
            frames.append({**paths, "transform_matrix": pose})
        return {
            "camera_model": "PINHOLE",
            **self._pinhole,
            "orientation_override": "none",
            "ply_file_path": "points3D.ply",
            "frames": frames,
        }

    @property
    def stream_info(self) -> bytes:
        """The header of a stream of these frames, whose depth is in millimetres."""
        texts = [
            " ".join(map(str, matrix.ravel().tolist()))
            for camera in (self.record.color_camera, self.record.depth_camera)
            for matrix in (camera.intrinsic, camera.extrinsic)
        ]
        return _STREAM_INFO.format(self, matrices=texts, count=len(self.record.frames)).encode()

    @property
    def projections(self) -> dict[str, NDArray[Any]]:
        """Projections for MonoSDF, and the matrix from its unit box, which contains the cameras."""
        poses = self.record.read_poses().astype(np.float64)
        centers = poses[:, :3, 3]
        low = centers.min(axis=0)
        high = centers.max(axis=0)
        scan_from_unit = np.eye(4)
        scan_from_unit[:3] *= (high - low).max() / 2 + _FREE_SPACE
        scan_from_unit[:3, 3] = (low + high) / 2
        matrices = {}
        for position, camera_from_scan in enumerate(np.linalg.inv(poses)):
            matrices[f"scale_mat_{position}"] = scan_from_unit.astype(np.float32)
            matrices[f"world_mat_{position}"] = (
                self.record.color_camera.intrinsic @ camera_from_scan
            )
        return matrices

    @property
    def names(self) -> dict[str, list[str]]:
        """The names of the images, without the ending."""
        return {"images": [f"{number:05}" for number in self.record.frames]}

    @property
    def scan_info(self) -> bytes:
        """The metadata of the scan."""
        return read_file(self.scene.path(INFO))


def _find_quaternion(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Find the unit quaternion of a rotation: w, x, y, z."""
    # It is the eigenvector of the largest eigenvalue of this matrix, whose lower half is read.
    matrix = np.eye(4) * np.trace(rotation)
    # The sum of the cross products is twice the axis, times the sine of the angle.
    matrix[1:, 0] = np.cross(np.eye(3), rotation.T).sum(axis=0)
    matrix[1:, 1:] = rotation + rotation.T - matrix[1:, 1:]
    return np.asarray(np.linalg.eigh(matrix).eigenvectors[:, -1])


def _read_vertices(scene: RawScene) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Read vertices in the frame of the scan, as poses are, and their colours."""
    path = scene.path(MESH)
    # The mesh comes first, because processed scenes may be of another tree, such as the demo.
    if scene.processed and scene.processed.exists() and not path.exists():
        processed = in_frame(read_processed(scene.processed), is_aligned=False)
        return processed.points, processed.colors
    mesh = read_raw_file(MESH, path)
    return mesh.positions, mesh.colors


def _encode_rows(form: str, *columns: Any) -> bytes:  # noqa: ANN401 - arrays, or one value
    """Encode the count of rows; then rows, each with its number in front, from 1.

    Columns at the end that are not given are 0.
    """
    rows = np.zeros(len(columns[0]), form)
    rows["f0"] = np.arange(len(rows)) + 1
    for index, column in enumerate(columns, start=1):
        rows[f"f{index}"] = column
    return len(rows).to_bytes(8, "little") + rows.tobytes()
