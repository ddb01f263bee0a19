"""Pixels see the vertices that their rays hit: in images of vertices, and in files of Concerto."""

import numpy as np
import pytest
from commands import TRAIN, raw_file, succeed
from numpy.lib.stride_tricks import sliding_window_view
from tiny import LOST, encode_stream, make_intrinsic, make_pose

from scannet_prep.base.images import encode_jpeg
from scannet_prep.base.ply import encode_ply
from scannet_prep.errors import FileError
from scannet_prep.frames import FrameFolder
from scannet_prep.synthetic import write_release

SIZE = (64, 48)
INTRINSIC = make_intrinsic(120, 124, 30.3, 24.2)
POSES = [make_pose(4), LOST, np.zeros_like(LOST), make_pose(7)]
# Two grids of vertices in the frame of the first camera: a sloping one that fills the image, and a
# small one in front of its middle.
STEPS = [np.mgrid[-20:21, -20:21].reshape(2, -1).T, np.mgrid[-5:6, -5:6].reshape(2, -1).T]
SHEETS = [
    np.column_stack([0.045 * STEPS[0], 2 + 0.02 * STEPS[0][:, 0]]),
    np.column_stack([0.021 * STEPS[1], np.full(121, 1.3)]),
]
# The corners of a face that would hide both, but is partly nearer than sensors measure.
NEAR = np.array([(-0.1, -0.1, 0.05), (0.1, -0.1, 0.05), (0, 0.2, 0.2)])


def make_mesh():
    """Make both sheets, in the frame of the scan."""
    positions = np.concatenate([*SHEETS, NEAR]) @ POSES[0][:3, :3].T + POSES[0][:3, 3]
    faces = [len(positions) - np.array([[3, 2, 1]])]
    for first, count in ((0, 41), (41 * 41, 11)):
        grid = first + np.arange(count * count).reshape(count, count)
        corner = grid[:-1, :-1].ravel()
        others = (corner + 1, corner + count, corner + count + 1)
        faces += [np.stack([corner, *others[:2]], axis=1), np.stack(others, axis=1)]
        # Faces without area, which no pixel shows.
        faces.append(sliding_window_view(grid, 3, axis=1).reshape(-1, 3))
    return positions.astype(np.float32), np.concatenate(faces).astype(np.int32)


def look(shift):
    """Find the depth of each pixel, the nearest vertex there, and its distance, by geometry."""
    rows, columns = np.indices(SIZE[::-1]).reshape(2, -1)
    middles = np.linalg.inv(INTRINSIC[:3, :3]) @ [columns, rows, np.ones_like(rows)]
    rays = middles + np.array([[shift / 120], [shift / 124], [0]])
    x, y, _ = rays
    is_small = np.maximum(abs(x), abs(y)) * 1.3 <= 5 * 0.021
    depths = np.where(is_small, 1.3, 2 / (1 - 0.02 / 0.045 * x))
    # As far away as along the ray, but in the direction of the middle of the pixel.
    scales = np.linalg.norm(rays, axis=0) / np.linalg.norm(middles, axis=0)
    places = (middles * depths * scales).T
    lengths = np.linalg.norm(places[:, np.newaxis] - np.concatenate(SHEETS), axis=2)
    return [values.reshape(SIZE[::-1]) for values in (depths, lengths.argmin(1), lengths.min(1))]


@pytest.fixture
def raw_dir(tmp_path):
    """A scene whose first frame sees both sheets; most of its depth is measured."""
    write_release(tmp_path / "raw", [TRAIN], vertices=600)
    positions, faces = make_mesh()
    mesh = encode_ply("sheets", positions, np.zeros((len(positions), 3), np.uint8), faces)
    raw_file(tmp_path / "raw", "_vh_clean_2.ply").write_bytes(b"".join(mesh))
    depth = np.rint(1000 * look(0)[0]).astype(np.uint16)
    depth[:16] = 0
    depth[16:20] -= 60
    jpeg = encode_jpeg(np.zeros((*depth.shape, 3), np.uint8))
    frames = [(pose, jpeg, depth) for pose in POSES]
    camera = (SIZE, INTRINSIC)
    raw_file(tmp_path / "raw", ".sens").write_bytes(encode_stream(frames, 1000.0, camera, camera))
    return tmp_path / "raw"


def extract(raw_dir, *words):
    succeed("frames", raw_dir, "-o", raw_dir.parent / "out", "--every", "1", *words)
    return FrameFolder(raw_dir.parent / "out")[TRAIN]


def test_pixels_of_depth_see_vertices_where_depth_was_measured(raw_dir):
    frame, *lost, turned = extract(raw_dir, "--with", "color", "vertices", "--keep-lost")
    _, expected, _ = look(0)
    expected[:20] = -1
    vertices = frame.read("vertices")
    assert vertices.dtype == np.int32
    assert (expected >= 41 * 41).sum() > 10
    assert np.array_equal(vertices, expected)
    assert {*np.ravel([other.read("vertices") for other in lost])} == {-1}
    # It sees the sheets elsewhere, at a depth that was not measured.
    assert not np.array_equal(turned.read("vertices"), expected)
    succeed("verify", raw_dir.parent / "out")
    path = frame.scene.path / frame.names["vertices"]
    damaged = path.read_bytes().replace(b"}", b"{", 1)
    for data, problem in ((b"not an array", "the magic string is not correct"), (damaged, "")):
        path.write_bytes(data)
        with pytest.raises(FileError, match=f"vertices/0.npy: {problem}"):
            frame.read("vertices")


def test_concerto_gets_the_pixels_within_a_centimetre_of_a_vertex(raw_dir):
    """Pointcept casts rays half a pixel beside the places that it computes from them."""
    scene = extract(raw_dir, "--layout", "concerto")
    folder = raw_dir.parent / "out/train" / TRAIN
    assert scene.path == folder
    assert [np.load(folder / f"pose/{number}.npy").dtype for number in range(3)] == ["f4"] * 3
    assert np.array_equal(np.load(folder / "intrinsic/intrinsic.npy"), INTRINSIC)
    _, expected, distances = look(0.5)
    correspondences = np.load(folder / "correspondence/0.npy")
    assert correspondences.dtype == np.int32
    image = np.full(SIZE[::-1], -1)
    image[correspondences[:, 1], correspondences[:, 0]] = correspondences[:, 2]
    # Near the borders of the small sheet, the nearest vertex may belong to a face beside the ray.
    expected[distances >= 0.01] = -1
    assert (image != expected).mean() < 0.01
    assert (np.diff(correspondences[:, :2] @ (1, SIZE[0])) > 0).all()
    assert np.load(folder / "correspondence/1.npy").shape == (0, 3)
