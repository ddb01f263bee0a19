"""Points are projected to the pixels that see them, and to no others."""

import tracemalloc

import numpy as np
import pytest
from commands import TRAIN, make_processed
from numpy.lib.stride_tricks import sliding_window_view
from tiny import LOST, make_intrinsic, make_pose

from scannet_prep import ScanNet
from scannet_prep.errors import UsageError
from scannet_prep.frames import camera_in, project
from scannet_prep.synthetic import make_scene
from scannet_prep.synthetic.frames import COLOR_CAMERA, DEPTH_CAMERA, render_frames
from scannet_prep.transforms import Rotate

INTRINSIC = make_intrinsic(50, 60, 15.5, 11.5)
SIZE = (32, 24)
# Points in front of the camera, and behind it.
POINTS = np.random.default_rng(0).uniform((-1, -2, -1), (3, 1, 5), (3000, 3)).astype(np.float32)
DEPTH = np.random.default_rng(1).integers(-300, 3000, SIZE[::-1]).clip(0).astype(np.uint16)


def project_point(world_to_camera, point, depth, tolerance, margin, relative):
    """Find the pixel of one point, as BPNet does."""
    x, y, z, _ = world_to_camera @ [*point, 1]
    if z <= 0:
        return [-1, -1]
    column = round((x * INTRINSIC[0, 0]) / z + INTRINSIC[0, 2])
    row = round((y * INTRINSIC[1, 1]) / z + INTRINSIC[1, 2])
    is_seen = margin <= column < SIZE[0] - margin and margin <= row < SIZE[1] - margin
    if is_seen and depth is not None:
        measured = depth[row, column] / 1000
        limit = tolerance * measured if relative else tolerance
        is_seen = measured > 0 and abs(measured - z) <= limit
    return [column, row] if is_seen else [-1, -1]


@pytest.mark.parametrize(
    ("depth", "tolerance", "margin", "relative"),
    [(None, 0.05, 0, False), (DEPTH, 2, 3, False), (DEPTH, 0.5, 1, True)],
)
def test_pixels_and_visibility_equal_those_of_loops(depth, tolerance, margin, relative):
    world_to_camera = np.linalg.inv(make_pose(5).astype(np.float64))
    rest = (depth, tolerance, margin)
    expected = [project_point(world_to_camera, point, *rest, relative) for point in POINTS]
    view = (make_pose(5), INTRINSIC[:3, :3] if relative else INTRINSIC, SIZE)
    pixels, visible = project(POINTS, *view, *rest, relative=relative)
    assert pixels.dtype == np.int32
    assert visible.dtype == np.bool_
    assert pixels.tolist() == expected
    assert visible.tolist() == [pixel != [-1, -1] for pixel in expected]


def test_points_that_are_not_in_front_of_the_camera_have_no_pixel():
    unseen = [(0, 0, 0), (0, 0, -1), (np.inf, 0, 1), (0, 0, np.inf), (np.nan, 0, 1), (1e308,) * 3]
    points = np.array([*unseen, (0, 0, 2)])
    pixels, _ = project(points, np.eye(4) * 2, make_intrinsic(50, 50, 7, 5), SIZE)
    assert pixels.tolist() == [[-1, -1]] * 6 + [[7, 5]]


@pytest.mark.parametrize(
    ("pose", "depth", "problem"),
    [
        (LOST, None, "tracking was lost"),
        (np.zeros((4, 4)), None, "tracking was lost"),
        (np.eye(4), DEPTH.T, r"\(32, 24\), expected .* \(24, 32\)"),
        (np.eye(4), DEPTH / 1000, "is float64 .*, expected uint16 in millimetres"),
    ],
)
def test_arguments_of_project_that_cannot_be_used_are_refused(pose, depth, problem):
    with pytest.raises(UsageError, match=problem):
        project(POINTS, pose, INTRINSIC, SIZE, depth)


def test_visible_points_have_the_colors_and_objects_of_rendered_images():
    """The colour camera and the depth camera are at the same place, and differ in size."""
    scene = make_scene(TRAIN, vertices=8_000)
    object_ids = np.zeros(len(scene.segment_ids), int)
    for group in scene.groups:
        object_ids[np.isin(scene.segment_ids, group.segment_ids)] = group.object_id + 1
    frame, *_ = render_frames(scene, 4)
    view = (scene.positions, frame.pose)
    # The tolerance is less than the thickness of the rug, which hides a part of the floor.
    depth_view = (DEPTH_CAMERA.intrinsic, DEPTH_CAMERA.size, frame.depth)
    _, is_seen = project(*view, *depth_view, tolerance=0.01)
    pixels, is_inside = project(*view, COLOR_CAMERA.intrinsic, COLOR_CAMERA.size)
    chosen = is_seen & is_inside
    columns, rows = pixels[chosen].T

    differences = frame.color[rows, columns].astype(int) - scene.colors[chosen]
    assert np.abs(differences).mean() < 12
    # At the border between two objects, either may be nearest to the middle of a pixel.
    around = sliding_window_view(np.pad(frame.object_ids, 1), (3, 3))[rows, columns]
    is_within = np.ptp(around, axis=(1, 2)) == 0
    assert is_within.sum() > 200
    assert np.array_equal(around[is_within, 1, 1], object_ids[chosen][is_within])


def test_large_faces_are_drawn_with_little_memory():
    tracemalloc.start()
    next(render_frames(make_scene(TRAIN, vertices=500), 1))
    assert tracemalloc.get_traced_memory()[1] < 3e7
    tracemalloc.stop()


@pytest.mark.parametrize("words", [[], ["--align-axis"]])
def test_camera_in_a_scene_is_aligned_if_its_points_are(tmp_path, words):
    place = make_processed(tmp_path, [TRAIN], *words, vertices=600)
    (sample,) = ScanNet(place, split="train")
    (moved,) = ScanNet(place, split="train", transform=Rotate())
    expected = sample["axis_alignment"] @ make_pose(2) if words else make_pose(2)

    assert camera_in(sample, make_pose(2)) == pytest.approx(expected)
    with pytest.raises(UsageError, match="tracking was lost"):
        camera_in(sample, LOST)
    for other in (dict(sample), moved):
        with pytest.raises(UsageError, match="does not record is_aligned and axis_alignment"):
            camera_in(other, np.eye(4))
