"""Points are projected to the pixels that see them, and to no others."""

import numpy as np
import pytest
from commands import TRAIN, run_main
from streams import LOST, make_intrinsic, make_pose

from scannet_prep import ScanNet, read_processed
from scannet_prep.errors import UsageError
from scannet_prep.frames import camera_in, project
from scannet_prep.synthetic import make_scene, write_release
from scannet_prep.synthetic.frames import make_cameras, render, render_frames
from scannet_prep.transforms import Rotate

INTRINSIC = make_intrinsic(50, 60, 15.5, 11.5)
SIZE = (32, 24)
# Points in front of the camera, and behind it.
POINTS = np.random.default_rng(0).uniform(-2, 2, (3000, 3)).astype(np.float32)
DEPTH = np.random.default_rng(1).integers(200, 3000, SIZE[::-1]).astype(np.uint16)
DEPTH[np.random.default_rng(2).random(DEPTH.shape) < 0.1] = 0


def project_in_loops(points, pose, size, depth, tolerance, margin, relative):
    """Project points one by one, as BPNet does."""
    pixels = []
    world_to_camera = np.linalg.inv(pose.astype(np.float64))
    for point in points:
        x, y, z, _ = world_to_camera @ [*point.astype(np.float64), 1]
        pixel = [-1, -1]
        if z > 0:
            column = round((x * INTRINSIC[0, 0]) / z + INTRINSIC[0, 2])
            row = round((y * INTRINSIC[1, 1]) / z + INTRINSIC[1, 2])
            is_inside = margin <= column < size[0] - margin and margin <= row < size[1] - margin
            if is_inside and depth is not None:
                measured = depth[row, column] / 1000
                limit = tolerance * measured if relative else tolerance
                is_inside = measured > 0 and abs(measured - z) <= limit
            if is_inside:
                pixel = [column, row]
        pixels.append(pixel)
    return pixels


@pytest.mark.parametrize(
    ("tolerance", "margin", "relative", "depth"),
    [
        (0.05, 0, False, None),
        (0.05, 0, False, DEPTH),
        (0.5, 3, False, DEPTH),
        (0.25, 10, True, DEPTH),
        (0.25, 12, True, DEPTH),
    ],
)
def test_pixels_and_visibility_equal_those_of_loops(tolerance, margin, relative, depth):
    rest = (SIZE, depth, tolerance, margin)

    pixels, visible = project(POINTS, make_pose(1), INTRINSIC, *rest, relative=relative)

    expected = project_in_loops(POINTS, make_pose(1), *rest, relative)
    assert (pixels.dtype, visible.dtype) == (np.int32, np.bool_)
    assert pixels.tolist() == expected
    assert visible.tolist() == [pixel != [-1, -1] for pixel in expected]
    small, _ = project(POINTS, make_pose(1), INTRINSIC[:3, :3], *rest, relative=relative)
    assert np.array_equal(small, pixels)


def test_single_points():
    center, _ = project(np.array([[0, 0, 2.0]]), np.eye(4), make_intrinsic(50, 50, 7, 5), SIZE)
    assert center.tolist() == [[7, 5]]
    unseen = [(0, 0, 0), (0, 0, -1), (np.inf, 0, 1), (0, 0, np.inf), (np.nan, 0, 1), (1e308,) * 3]
    _, visible = project(np.array(unseen), np.eye(4) * 2, INTRINSIC, SIZE)
    assert not visible.any()
    pixels, visible = project(np.zeros((0, 3), np.float32), np.eye(4), INTRINSIC, SIZE)
    assert (pixels.shape, visible.shape) == ((0, 2), (0,))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"camera_to_points": np.eye(3)}, r"pose has the shape \(3, 3\)"),
        ({"camera_to_points": LOST}, "tracking was lost"),
        ({"camera_to_points": np.zeros((4, 4))}, "tracking was lost"),
        ({"depth": np.zeros((32, 24), np.uint16)}, r"\(32, 24\), expected \(height, width\) \(24"),
        ({"depth": np.zeros(24 * 32, np.uint16)}, r"depth image has the shape \(768,\)"),
        ({"depth": np.zeros((24, 32))}, "is float64, expected uint16 in millimetres"),
        ({"margin": -1}, "the margin -1, expected at least 0"),
        ({"tolerance": float("nan")}, "the tolerance is nan"),
    ],
)
def test_arguments_of_project_that_cannot_be_used_are_refused(changes, problem):
    arguments = {"points": POINTS, "camera_to_points": np.eye(4), "intrinsics": INTRINSIC}

    with pytest.raises(UsageError, match=problem):
        project(**arguments | {"size": SIZE} | changes)


# Rendered frames: the renderer and the projection must agree.


@pytest.fixture(scope="module")
def scene():
    return make_scene("scene0000_00", vertices=8_000)


@pytest.fixture(scope="module")
def frames(scene):
    frames = list(render_frames(scene, 4))
    return [frames[number] for number in (0, 2, 3)]


COLOR, CAMERA = make_cameras()


def find_first_surface(scene, pose, target):
    """Find the depth of the first surface on the ray to a point, in metres; infinity without one.

    Surfaces are seen from the front only (Moeller and Trumbore 1997).
    """
    origin = pose[:3, 3].astype(np.float64)
    direction = target - origin
    corners = scene.positions[scene.faces].astype(np.float64)
    edge_1 = corners[:, 1] - corners[:, 0]
    edge_2 = corners[:, 2] - corners[:, 0]
    normal = np.cross(direction, edge_2)
    determinant = (edge_1 * normal).sum(axis=1)
    is_front = determinant > 1e-12
    scale = 1 / np.where(is_front, determinant, 1)
    offset = origin - corners[:, 0]
    u = (offset * normal).sum(axis=1) * scale
    cross = np.cross(offset, edge_1)
    v = (cross * direction).sum(axis=1) * scale
    distance = (edge_2 * cross).sum(axis=1) * scale
    is_hit = is_front & (u >= -1e-6) & (v >= -1e-6) & (u + v <= 1 + 1e-6) & (distance > 0)
    depth = float(pose[:3, 2] @ direction)
    return float((distance[is_hit] * depth).min(initial=np.inf))


@pytest.mark.parametrize("number", range(3))
def test_points_are_visible_exactly_where_rays_reach_them(scene, frames, number):
    """At borders of objects, the middle of a pixel may show another surface than its point."""
    frame = frames[number]
    view = (scene.positions, frame.pose, CAMERA.intrinsic, CAMERA.size)
    in_image, is_inside = project(*view, margin=1)
    _, visible = project(*view, frame.depth, tolerance=0.05)
    candidates = np.flatnonzero(is_inside)
    compared = {True: 0, False: 0}

    for vertex in np.random.default_rng(number).permutation(candidates)[:250]:
        column, row = in_image[vertex]
        around = frame.depth[row - 1 : row + 2, column - 1 : column + 2] / 1000
        depth = float((scene.positions[vertex] - frame.pose[:3, 3]) @ frame.pose[:3, 2])
        distance = abs(find_first_surface(scene, frame.pose, scene.positions[vertex]) - depth)
        is_at_border = np.ptp(around) > 0.1 or around.min() == 0
        if is_at_border or 0.02 < distance < 0.1:
            continue
        assert visible[vertex] == (distance <= 0.05)
        compared[bool(visible[vertex])] += 1

    assert min(compared.values()) > 10


def test_every_vertex_of_a_drawn_triangle_around_its_own_pixel_is_visible(scene, frames):
    frame = frames[0]
    seen, _ = render(scene, frame.pose, CAMERA)
    view = (scene.positions, frame.pose, CAMERA.intrinsic, CAMERA.size)
    _, visible = project(*view, frame.depth, tolerance=0.1)
    in_image, _ = project(*view)

    drawn = set()
    for pixel, corners in zip(seen.pixels, seen.corners.T, strict=True):
        row, column = divmod(int(pixel), CAMERA.size[0])
        drawn |= {vertex for vertex in corners if in_image[vertex].tolist() == [column, row]}

    assert len(drawn) > 100
    assert all(visible[vertex] for vertex in drawn)


def test_colors_and_labels_of_visible_points_are_those_of_the_images(scene, frames):
    """The color camera and the depth camera are at the same place, and differ in size."""
    owners = np.zeros(len(scene.segment_ids), int)
    for group in scene.groups:
        owners[np.array(group.segment_ids)] = group.object_id + 1
    object_ids = owners[scene.segment_ids]
    frame = frames[0]
    view = (scene.positions, frame.pose)
    # The tolerance is less than the thickness of the rug, which hides a part of the floor.
    rest = (CAMERA.intrinsic, CAMERA.size, frame.depth)
    _, is_seen = project(*view, *rest, tolerance=0.01)
    pixels, is_inside = project(*view, COLOR.intrinsic, COLOR.size)
    chosen = np.flatnonzero(is_seen & is_inside)
    columns, rows = pixels[chosen].T

    differences = frame.color[rows, columns].astype(int) - scene.colors[chosen]
    assert np.abs(differences).mean() < 12
    is_equal = []
    for vertex in chosen:
        column, row = pixels[vertex]
        around = frame.object_ids[row - 1 : row + 2, column - 1 : column + 2]
        # At the border between two objects, either may be nearest to the middle of a pixel.
        if around.size == 9 and np.ptp(around) == 0:
            is_equal.append(object_ids[vertex] == around[1, 1])
    assert len(is_equal) > 200
    assert all(is_equal)


# Poses in the frame of the points.


def test_camera_in_a_sample_is_aligned_if_its_points_are():
    alignment = make_pose(3).astype(np.float64)
    sample = {"axis_alignment": alignment, "points": np.zeros((1, 3))}
    aligned = camera_in(sample, make_pose(1), is_aligned=True)
    assert aligned == pytest.approx(alignment @ make_pose(1))
    assert camera_in(sample, make_pose(1), is_aligned=False) == pytest.approx(make_pose(1))

    points = np.random.default_rng(2).uniform((0, -1.5, 3), (2, 0.5, 5), (1000, 3))
    pixels, visible = project(points, make_pose(1), INTRINSIC, SIZE)
    moved = points @ alignment[:3, :3].T + alignment[:3, 3]
    moved_pixels, _ = project(moved, aligned, INTRINSIC, SIZE)
    # A coordinate in the middle between two pixels may be rounded to either.
    assert (pixels != moved_pixels).any(axis=1).mean() < 0.005
    assert visible.sum() > 200

    for is_aligned in (False, True):
        with pytest.raises(UsageError, match="tracking was lost"):
            camera_in(sample, LOST, is_aligned=is_aligned)
    with pytest.raises(UsageError, match=r"is_aligned=dataset\.is_aligned"):
        camera_in(sample, np.eye(4))
    with pytest.raises(UsageError, match="has no axis_alignment"):
        camera_in({"points": np.zeros((1, 3))}, np.eye(4), is_aligned=True)


@pytest.mark.parametrize("words", [[], ["--align-axis"]])
def test_camera_in_a_sample_of_a_dataset_agrees_with_the_processed_scene(tmp_path, words):
    write_release(tmp_path / "raw", [TRAIN], vertices=600)
    run_main("process", tmp_path / "raw", "-o", tmp_path / "out", *words)
    scene = read_processed(tmp_path / f"out/train/{TRAIN}.npz")
    expected = scene.axis_alignment @ make_pose(2) if words else make_pose(2)

    (sample,) = ScanNet(tmp_path / "out", split="train")

    assert camera_in(sample, make_pose(2)) == pytest.approx(expected)
    assert np.array_equal(camera_in(scene, make_pose(2)), camera_in(sample, make_pose(2)))
    (moved,) = ScanNet(tmp_path / "out", split="train", transform=Rotate())
    with pytest.raises(UsageError):
        camera_in(moved, make_pose(2))
