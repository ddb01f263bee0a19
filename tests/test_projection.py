"""Points are projected to the pixels that see them, and to no others."""

import numpy as np
import pytest
from commands import TRAIN, run_main
from streams import LOST, make_intrinsic, make_pose

from scannet_prep import ScanNet, read_processed
from scannet_prep.errors import UsageError
from scannet_prep.frames import camera_in, project
from scannet_prep.synthetic import make_scene, write_release
from scannet_prep.synthetic.frames import COLOR_CAMERA, DEPTH_CAMERA, render_frames
from scannet_prep.transforms import Rotate

INTRINSIC = make_intrinsic(50, 60, 15.5, 11.5)
SIZE = (32, 24)
# Points in front of the camera, and behind it.
POINTS = np.random.default_rng(0).uniform((-1, -2, -1), (3, 1, 5), (3000, 3)).astype(np.float32)
DEPTH = np.random.default_rng(1).integers(-300, 3000, SIZE[::-1]).clip(0).astype(np.uint16)


def project_in_loops(pose, depth, tolerance, margin, relative):
    """Project points one by one, as BPNet does."""
    pixels = []
    world_to_camera = np.linalg.inv(pose.astype(np.float64))
    for point in POINTS.astype(np.float64):
        x, y, z, _ = world_to_camera @ [*point, 1]
        pixel = [-1, -1]
        if z > 0:
            column = round((x * INTRINSIC[0, 0]) / z + INTRINSIC[0, 2])
            row = round((y * INTRINSIC[1, 1]) / z + INTRINSIC[1, 2])
            is_inside = margin <= column < SIZE[0] - margin and margin <= row < SIZE[1] - margin
            if is_inside and depth is not None:
                measured = depth[row, column] / 1000
                limit = tolerance * measured if relative else tolerance
                is_inside = measured > 0 and abs(measured - z) <= limit
            if is_inside:
                pixel = [column, row]
        pixels.append(pixel)
    return pixels


@pytest.mark.parametrize(
    ("depth", "tolerance", "margin", "relative"),
    [
        (None, 0.05, 0, False),
        (DEPTH, 0.05, 0, False),
        (DEPTH, 0.5, 3, False),
        (DEPTH, 0.25, 10, True),
    ],
)
def test_pixels_and_visibility_equal_those_of_loops(depth, tolerance, margin, relative):
    rest = (depth, tolerance, margin)
    expected = project_in_loops(make_pose(1), *rest, relative)
    for intrinsic in (INTRINSIC, INTRINSIC[:3, :3]):
        view = (POINTS, make_pose(1), intrinsic, SIZE)
        pixels, visible = project(*view, *rest, relative=relative)
        assert (pixels.dtype, visible.dtype) == (np.int32, np.bool_)
        assert pixels.tolist() == expected
        assert visible.tolist() == [pixel != [-1, -1] for pixel in expected]


def test_points_that_are_not_in_front_of_the_camera_have_no_pixel():
    unseen = [(0, 0, 0), (0, 0, -1), (np.inf, 0, 1), (0, 0, np.inf), (np.nan, 0, 1), (1e308,) * 3]
    points = np.array([*unseen, (0, 0, 2)])
    pixels, _ = project(points, np.eye(4) * 2, make_intrinsic(50, 50, 7, 5), SIZE)
    assert pixels.tolist() == [[-1, -1]] * 6 + [[7, 5]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"camera_to_points": LOST}, "tracking was lost"),
        ({"camera_to_points": np.zeros((4, 4))}, "tracking was lost"),
        ({"depth": DEPTH.T}, r"\(32, 24\), expected .* \(24, 32\)"),
        ({"depth": DEPTH / 1000}, "is float64 .*, expected uint16 in millimetres"),
    ],
)
def test_arguments_of_project_that_cannot_be_used_are_refused(changes, problem):
    arguments = {"camera_to_points": np.eye(4), "intrinsics": INTRINSIC, "size": SIZE}
    with pytest.raises(UsageError, match=problem):
        project(POINTS, **arguments | changes)


# Rendered frames: the renderer and the projection must agree.

SCENE = make_scene("scene0000_00", vertices=8_000)


@pytest.fixture(scope="module")
def frames():
    return list(render_frames(SCENE, 4))


def test_colors_and_labels_of_visible_points_are_those_of_the_images(frames):
    """The color camera and the depth camera are at the same place, and differ in size."""
    owners = np.zeros(len(SCENE.segment_ids), int)
    for group in SCENE.groups:
        owners[np.array(group.segment_ids)] = group.object_id + 1
    object_ids = owners[SCENE.segment_ids]
    frame = frames[0]
    view = (SCENE.positions, frame.pose)
    # The tolerance is less than the thickness of the rug, which hides a part of the floor.
    camera = DEPTH_CAMERA
    _, is_seen = project(*view, camera.intrinsic, camera.size, frame.depth, tolerance=0.01)
    pixels, is_inside = project(*view, COLOR_CAMERA.intrinsic, COLOR_CAMERA.size)
    chosen = np.flatnonzero(is_seen & is_inside)
    columns, rows = pixels[chosen].T

    differences = frame.color[rows, columns].astype(int) - SCENE.colors[chosen]
    assert np.abs(differences).mean() < 12
    compared = 0
    for vertex, row, column in zip(chosen, rows, columns, strict=True):
        around = frame.object_ids[row - 1 : row + 2, column - 1 : column + 2]
        # At the border between two objects, either may be nearest to the middle of a pixel.
        if around.size == 9 and np.ptp(around) == 0:
            assert object_ids[vertex] == around[1, 1]
            compared += 1
    assert compared > 200


# Poses in the frame of the points.


@pytest.mark.parametrize("words", [[], ["--align-axis"]])
def test_camera_in_a_scene_is_aligned_if_its_points_are(tmp_path, words):
    write_release(tmp_path / "raw", [TRAIN], vertices=600)
    run_main("process", tmp_path / "raw", "-o", tmp_path / "out", *words)
    scene = read_processed(tmp_path / f"out/train/{TRAIN}.npz")
    (sample,) = ScanNet(tmp_path / "out", split="train")
    (moved,) = ScanNet(tmp_path / "out", split="train", transform=Rotate())
    expected = scene.axis_alignment @ make_pose(2) if words else make_pose(2)

    assert camera_in(sample, make_pose(2)) == pytest.approx(expected)
    assert camera_in(scene, make_pose(2)) == pytest.approx(expected)
    for place, pose, problem in (
        (dict(sample), np.eye(4), "does not record is_aligned and axis_alignment"),
        (sample, LOST, "tracking was lost"),
        (moved, np.eye(4), "does not record is_aligned and axis_alignment"),
    ):
        with pytest.raises(UsageError, match=problem):
            camera_in(place, pose)
