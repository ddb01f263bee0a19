"""The contents of the files of a scene: of each frame, and of all frames together.

    stream                 --> colour, depth, pose of a frame
    zip files of 2D labels --> labels, instances of a frame
    mesh                   --> vertices, correspondences of a frame; start points
    record                 --> cameras and poses of all frames, in the form of a program

The ending of its name selects the encoding of a file. Images that keep their size are not decoded:
stored JPEG and PNG images are copied.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.base.images import (
    check_gray_png,
    decode_gray,
    encode_jpeg,
    encode_pgm,
    encode_png,
    resize_color,
    resize_nearest,
)
from scannet_prep.base.json import encode_json
from scannet_prep.base.ply import encode_ply
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError, FileError
from scannet_prep.export.arrays import in_frame
from scannet_prep.frames.folder import FramesRecord
from scannet_prep.frames.options import SOURCE_KINDS, FrameContent
from scannet_prep.frames.projection import draw_faces
from scannet_prep.processed.scene import read_processed
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.sensor_stream import Frame
from scannet_prep.raw.tree import RawScene
from scannet_prep.raw.zip_file import read_member
from scannet_prep.release.files import INFO, MESH
from scannet_prep.release.label_map import MAX_SCANNET_ID, LabelMap
from scannet_prep.release.label_sets import SCANNET20, SCANNET200

Content: TypeAlias = Any
"""The content of a file: its bytes, or a value to encode."""

# In metres, as for `project`.
_DEPTH_TOLERANCE = 0.05
# In metres, as for Pointcept, whose rays are so many pixels to the right and below.
_MAX_DISTANCE = 0.01
_RAY_OFFSET = 0.5
_MILLIMETRES = 1000.0
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


def encode_content(name: str, value: Content) -> bytes:
    """Encode the content of a file by the ending of its name."""
    if isinstance(value, bytes):
        return value
    file = io.BytesIO()
    match Path(name).suffix:
        case ".jpg":
            return encode_jpeg(value)
        case ".png":
            # At most a fifth larger than at level 6, and made in less than a quarter of the time.
            return encode_png(value, level=1)
        case ".pgm":
            return encode_pgm(value)
        case ".json":
            return encode_json(value)
        case ".txt":
            # As the official reader does.
            np.savetxt(file, value, fmt="%f")
        case ".npz":
            np.savez(file, **value)
        case ".npy":
            # Depth is in metres there.
            is_depth = value.dtype == np.uint16
            np.save(file, value / np.float32(1000) if is_depth else value)
        case _:
            raise NotImplementedError(name)
    return file.getvalue()


@dataclass(eq=False)
class SceneContents:
    """The contents of the files of a scene, each an attribute with the name that layouts use.

    Attributes:
        record: The record of the scene.
        scene: The scene.
        label_map: The label map, for label images.
        open_archive: Opens a zip file of 2D labels, once.
        frame: The frame whose files are made.
    """

    record: FramesRecord
    scene: RawScene
    label_map: LabelMap
    open_archive: Callable[[Path], ZipFile]
    frame: Frame

    @property
    def color(self) -> Content:
        """The colour image, uint8 (H, W, 3); the stored JPEG image if it stays as it is."""
        size = self.record.color_camera.size
        layout = self.record.options.form
        if layout.files["color"].endswith(".jpg") and size == self.frame.stream.color_camera.size:
            return self.frame.checked_jpeg()
        return resize_color(self.frame.color(), size, layout.crop)

    @property
    def depth(self) -> Content:
        """The depth image, uint16 (H, W), millimetres; 0 where nothing was measured."""
        if not self.record.options.form.aligns_depth:
            return resize_nearest(self.frame.depth(), self.record.depth_camera.size)
        # The nearest pixel of depth for each pixel of colour.
        color = self.record.color_camera
        depth_intrinsic = self.frame.stream.depth_camera.intrinsic
        depth_from_color = depth_intrinsic @ np.linalg.inv(color.intrinsic.astype(np.float64))
        # Around the image, there is a border of 0.
        image = np.pad(self.frame.depth(), 1)
        # Columns, then rows.
        for axis, count in enumerate(color.size):
            found = np.arange(count) * depth_from_color[axis, axis] + depth_from_color[axis, 2]
            image = image.T.take(np.rint(found).astype(int) + 1, axis=0, mode="clip")
        return image

    @property
    def pose(self) -> Content:
        """The pose, float32 (4, 4), scan <- camera, metres; in some layouts with the intrinsics."""
        pose = self.frame.pose
        if not self.record.options.form.uses_depth_camera:
            return pose
        return {"intrinsics": self.record.depth_camera.intrinsic[:3, :3], "pose": pose}

    @property
    def labels(self) -> Content:
        """The labels of the pixels of colour."""
        return self._read_labels("labels")

    @property
    def instances(self) -> Content:
        """The objects of the pixels of colour."""
        return self._read_labels("instances")

    def _read_labels(self, content: FrameContent) -> Content:
        """Read the image of labels, whose ids become those of the label set, or of objects.

        Args:
            content: Which of them.

        Returns:
            uint8 or uint16 (H, W); the stored PNG image if nothing is changed.

        Raises:
            FileError: The image is missing, damaged, of another size, or has an unknown id.
        """
        # scene0000_00_2d-label-filt.zip holds label-filt/0.png.
        path = self.scene.path(SOURCE_KINDS[content])
        folder = path.stem.partition("_2d-")[2]
        name = f"{folder}/{self.frame.number}.png"
        stored = read_member(self.open_archive(path), path, name)
        converts = content == "labels" and self.record.options.label_set != "raw"
        # Stored images have the size of the colour camera.
        stored_size = self.frame.stream.color_camera.size
        size = self.record.color_camera.size
        try:
            if size == stored_size and not converts:
                check_gray_png(stored, size)
                return stored
            image = resize_nearest(decode_gray(stored, stored_size), size)
        except ContentError as error:
            raise FileError(path, f"{name!r} in it {error.message}") from None
        if not converts:
            return image
        ids = self._table[image]
        if ids.min() < 0:
            unknown = list_some([*map(str, np.unique(image[ids < 0]))])
            raise FileError(
                path,
                f"{name!r} in it has ScanNet ids that are not in the label map: {unknown}",
                "to extract the ids as they are stored: --label-set raw",
            )
        return ids.astype(np.uint8)

    @cached_property
    def _table(self) -> NDArray[np.int16]:
        """The id of each ScanNet id in the label set, -1 if the label map lacks it."""
        # Three ScanNet ids have rows with two nyu40 ids. As in the official script
        # (convert_scannet_label_image.py), the last row counts.
        scannet_ids, nyu40_ids = np.array([(0, 0), *self.label_map.rows.values()]).T
        ids = {
            "nyu40": nyu40_ids,
            "scannet20": SCANNET20.labels_from_raw_ids(nyu40_ids),
            "scannet200": SCANNET200.labels_from_raw_ids(scannet_ids),
        }
        table = np.full(MAX_SCANNET_ID + 1, -1, np.int16)
        table[scannet_ids] = ids[self.record.options.label_set]
        return table

    @property
    def vertices(self) -> Content:
        """The vertex that each pixel of depth sees, int32 (H, W).

        It is -1 where no depth was measured, and where the mesh is not within 5 cm of it.
        """
        vertices, _, depths = draw_faces(
            self._mesh.positions, self._mesh.faces, self.frame.pose, self.record.depth_camera
        )
        is_seen = np.abs(depths - self.depth / _MILLIMETRES) < _DEPTH_TOLERANCE
        return np.where(is_seen, vertices, -1)

    @property
    def correspondences(self) -> Content:
        """Column, row and vertex, int32 (N, 3), of the pixels of colour within 1 cm of a vertex."""
        vertices, distances, _ = draw_faces(
            self._mesh.positions,
            self._mesh.faces,
            self.frame.pose,
            self.record.color_camera,
            _RAY_OFFSET,
        )
        rows, columns = np.nonzero(distances < _MAX_DISTANCE)
        return np.column_stack([columns, rows, vertices[rows, columns]]).astype(np.int32)

    @cached_property
    def _mesh(self) -> Mesh:
        mesh: Mesh = read_raw_file(MESH, self.scene.path(MESH))
        return mesh

    @property
    def poses(self) -> Content:
        """The poses of all frames, float32 (N, 16), one per line."""
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
        quaternions = []
        for rotation in poses[:, :3, :3]:
            # The unit quaternion w, x, y, z is the eigenvector of the largest eigenvalue of this
            # matrix, whose lower half is read.
            matrix = np.eye(4) * np.trace(rotation)
            # The sum of the cross products is twice the axis, times the sine of the angle.
            matrix[1:, 0] = np.cross(np.eye(3), rotation.T).sum(axis=0)
            matrix[1:, 1:] = rotation + rotation.T - matrix[1:, 1:]
            quaternions.append(np.linalg.eigh(matrix).eigenvectors[:, -1])
        return _encode_rows(
            _COLMAP_IMAGE,
            quaternions,
            poses[:, :3, 3],
            1,  # the camera of all images
            [f"{number:06}.jpg" for number in self.record.frames],
        )

    @property
    def colmap_points(self) -> bytes:
        """The vertices of the scan."""
        return _encode_rows(_COLMAP_POINT, *self._start_points)

    @property
    def points(self) -> bytes:
        """The vertices of the scan as PLY, with normals of 0, which readers expect."""
        positions, colors = self._start_points
        zeros = np.zeros(len(positions), np.float32)
        return b"".join(encode_ply("start points", positions, colors, nx=zeros, ny=zeros, nz=zeros))

    @property
    def _start_points(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Vertices in the frame of the scan, as poses are, and their colours."""
        processed = self.scene.processed
        # The mesh comes first, because processed scenes may be of another tree, such as the demo.
        if processed and processed.exists() and not self.scene.path(MESH).exists():
            scene = in_frame(read_processed(processed), is_aligned=False)
            return scene.points, scene.colors
        return self._mesh.positions, self._mesh.colors

    @property
    def transforms(self) -> Content:
        """Cameras and poses for nerfstudio, whose cameras look along -z, with y up."""
        record = self.record
        poses = record.read_poses().copy()
        poses[:, :3, 1:3] *= -1
        keys = {"color": "file_path", "depth": "depth_file_path"}
        frames = []
        for position, pose in enumerate(poses.tolist()):
            names = record.name_files("", position)
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
    def projections(self) -> Content:
        """Projections for MonoSDF, and the matrix from its unit box, which contains the cameras."""
        poses = self.record.read_poses().astype(np.float64)
        centers = poses[:, :3, 3]
        low = centers.min(axis=0)
        high = centers.max(axis=0)
        scan_from_unit = np.eye(4, dtype=np.float32)
        scan_from_unit[:3] *= (high - low).max() / 2 + _FREE_SPACE
        scan_from_unit[:3, 3] = (low + high) / 2
        matrices = {}
        for position, camera_from_scan in enumerate(np.linalg.inv(poses)):
            matrices[f"scale_mat_{position}"] = scan_from_unit
            matrices[f"world_mat_{position}"] = (
                self.record.color_camera.intrinsic @ camera_from_scan
            )
        return matrices

    @property
    def names(self) -> Content:
        """The names of the images, without the ending."""
        return {"images": [f"{number:05}" for number in self.record.frames]}

    @property
    def scan_info(self) -> bytes:
        """The metadata of the scan."""
        return read_file(self.scene.path(INFO))


def _encode_rows(form: str, *columns: Any) -> bytes:  # noqa: ANN401 - arrays, or one value
    """Encode the count of rows; then rows, each with its number in front, from 1.

    Columns at the end that are not given are 0.
    """
    rows = np.zeros(len(columns[0]), form)
    rows["f0"] = np.arange(len(rows)) + 1
    for index, column in enumerate(columns, start=1):
        rows[f"f{index}"] = column
    return len(rows).to_bytes(8, "little") + rows.tobytes()
