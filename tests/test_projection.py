"""Points are projected to the pixels that see them, and to no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TRAIN, run_main
from numpy.typing import NDArray
from streams import LOST, make_intrinsic, make_pose

from scannet_prep import ScanNet, read_processed
from scannet_prep.errors import UsageError
from scannet_prep.frames import SensorCamera, camera_in, project
from scannet_prep.synthetic import SyntheticScene, make_scene, write_release
from scannet_prep.synthetic.frames import RenderedFrame, make_cameras, render, render_frames
from scannet_prep.transforms import Rotate

INTRINSIC = make_intrinsic(50, 60, 15.5, 11.5)
SIZE = (32, 24)


def project_in_loops(
    points: NDArray[Any],
    pose: NDArray[Any],
    intrinsic: NDArray[Any],
    size: tuple[int, int],
    depth: NDArray[np.uint16] | None,
    tolerance: float,
    margin: int,
    relative: bool,
) -> tuple[list[list[int]], list[bool]]:
    """Project points one by one, as BPNet does."""
    pixels = []
    visible = []
    world_to_camera = np.linalg.inv(pose.astype(np.float64))
    for point in points:
        x, y, z, _ = world_to_camera @ [*point.astype(np.float64), 1]
        pixel = [-1, -1]
        if z > 0:
            column = round((x * intrinsic[0, 0]) / z + intrinsic[0, 2])
            row = round((y * intrinsic[1, 1]) / z + intrinsic[1, 2])
            is_inside = margin <= column < size[0] - margin and margin <= row < size[1] - margin
            if is_inside and depth is not None:
                measured = depth[row, column] / 1000
                limit = tolerance * measured if relative else tolerance
                is_inside = measured > 0 and abs(measured - z) <= limit
            if is_inside:
                pixel = [column, row]
        pixels.append(pixel)
        visible.append(pixel != [-1, -1])
    return pixels, visible


@pytest.fixture(scope="module")
def points() -> NDArray[np.float32]:
    """Points in front of the camera, and behind it."""
    rng = np.random.default_rng(0)
    return rng.uniform(-2, 2, (3000, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def depth() -> NDArray[np.uint16]:
    rng = np.random.default_rng(1)
    image = rng.integers(200, 3000, (SIZE[1], SIZE[0])).astype(np.uint16)
    image[rng.random(image.shape) < 0.1] = 0
    return image


@pytest.mark.parametrize(
    ("tolerance", "margin", "relative", "has_depth"),
    [
        (0.05, 0, False, False),
        (0.05, 0, False, True),
        (0.5, 3, False, True),
        (0.25, 10, True, True),
        (0.25, 12, True, True),
    ],
)
def test_pixels_and_visibility_equal_those_of_loops(
    points: NDArray[np.float32],
    depth: NDArray[np.uint16],
    tolerance: float,
    margin: int,
    relative: bool,
    has_depth: bool,
) -> None:
    image = depth if has_depth else None
    pose = make_pose(1)

    pixels, visible = project(
        points, pose, INTRINSIC, SIZE, image, tolerance, margin, relative=relative
    )

    expected = project_in_loops(points, pose, INTRINSIC, SIZE, image, tolerance, margin, relative)
    assert pixels.tolist() == expected[0]
    assert visible.tolist() == expected[1]


def test_pixels_are_int32_and_visibility_is_bool(points: NDArray[np.float32]) -> None:
    pixels, visible = project(points, np.eye(4), INTRINSIC, SIZE)

    assert pixels.dtype == np.int32
    assert visible.dtype == np.bool_


def test_intrinsics_may_be_three_by_three(points: NDArray[np.float32]) -> None:
    pixels, _ = project(points, np.eye(4), INTRINSIC[:3, :3], SIZE)

    assert np.array_equal(pixels, project(points, np.eye(4), INTRINSIC, SIZE)[0])


def test_point_on_the_axis_has_the_pixel_of_the_principal_point() -> None:
    intrinsic = make_intrinsic(50, 50, 7, 5)

    pixels, visible = project(np.array([[0, 0, 2.0]]), np.eye(4), intrinsic, SIZE)

    assert pixels.tolist() == [[7, 5]]
    assert visible.tolist() == [True]


@pytest.mark.parametrize("z", [0.0, -1.0])
def test_point_that_is_not_in_front_of_the_camera_is_not_visible(z: float) -> None:
    _, visible = project(np.array([[0, 0, z]]), np.eye(4), INTRINSIC, SIZE)

    assert visible.tolist() == [False]


@pytest.mark.parametrize("point", [(np.inf, 0, 1), (0, 0, np.inf), (np.nan, 0, 1), (1e308,) * 3])
def test_point_that_is_not_finite_or_far_too_large_is_not_visible(
    point: tuple[float, float, float],
) -> None:
    _, visible = project(np.array([point]), np.eye(4) * 2, INTRINSIC, SIZE)

    assert not visible.any()


@pytest.mark.parametrize("is_aligned", [False, True])
def test_camera_in_a_sample_refuses_a_lost_pose(is_aligned: bool) -> None:
    sample = {"axis_alignment": np.eye(4)}

    with pytest.raises(UsageError, match="tracking was lost"):
        camera_in(sample, LOST, is_aligned=is_aligned)


def test_no_points_have_no_pixels() -> None:
    pixels, visible = project(np.zeros((0, 3), np.float32), np.eye(4), INTRINSIC, SIZE)

    assert pixels.shape == (0, 2)
    assert visible.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"points": np.zeros((3, 2))}, r"points have the shape \(3, 2\), expected \(V, 3\)"),
        ({"camera_to_points": np.eye(3)}, r"pose has the shape \(3, 3\)"),
        ({"camera_to_points": LOST}, "tracking was lost"),
        ({"intrinsics": np.eye(5)}, r"intrinsics have the shape \(5, 5\)"),
        (
            {"depth": np.zeros((32, 24), np.uint16)},
            r"shape \(32, 24\), expected \(height, width\) \(24",
        ),
        ({"camera_to_points": np.zeros((4, 4))}, "tracking was lost"),
        ({"intrinsics": np.full((3, 3), np.nan)}, "intrinsics are not finite"),
        ({"depth": np.zeros(24 * 32, np.uint16)}, r"depth image has the shape \(768,\)"),
        ({"margin": -1}, "the margin -1, expected at least 0"),
        ({"tolerance": float("nan")}, "the tolerance is nan"),
        ({"depth": np.zeros((24, 32))}, "is float64, expected uint16 in millimetres"),
    ],
)
def test_arguments_of_project_that_cannot_be_used_are_refused(
    changes: dict[str, Any], problem: str
) -> None:
    arguments: dict[str, Any] = {
        "points": np.zeros((1, 3)),
        "camera_to_points": np.eye(4),
        "intrinsics": INTRINSIC,
        "size": SIZE,
    }

    with pytest.raises(UsageError, match=problem):
        project(**arguments | changes)


# Rendered frames: the renderer and the projection must agree.


@pytest.fixture(scope="module")
def scene() -> SyntheticScene:
    return make_scene("scene0000_00", vertices=8_000)


@pytest.fixture(scope="module")
def frames(scene: SyntheticScene) -> list[RenderedFrame]:
    frames = list(render_frames(scene, 4))
    return [frames[number] for number in (0, 2, 3)]


@pytest.fixture(scope="module")
def camera() -> SensorCamera:
    _, depth_camera = make_cameras()
    return depth_camera


def find_first_surface(
    scene: SyntheticScene, pose: NDArray[np.float32], target: NDArray[np.float32]
) -> float:
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
def test_points_are_visible_exactly_where_rays_reach_them(
    scene: SyntheticScene, frames: list[RenderedFrame], camera: SensorCamera, number: int
) -> None:
    """At borders of objects, the middle of a pixel may show another surface than its point."""
    frame = frames[number]
    in_image, is_inside = project(
        scene.positions, frame.pose, camera.intrinsic, camera.size, margin=1
    )
    _, visible = project(
        scene.positions, frame.pose, camera.intrinsic, camera.size, frame.depth, tolerance=0.05
    )
    rng = np.random.default_rng(number)
    candidates = np.flatnonzero(is_inside)
    compared = {True: 0, False: 0}

    for vertex in rng.permutation(candidates)[:250]:
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


def test_every_vertex_of_a_drawn_triangle_around_its_own_pixel_is_visible(
    scene: SyntheticScene, frames: list[RenderedFrame], camera: SensorCamera
) -> None:
    frame = frames[0]
    seen, _ = render(scene, frame.pose, camera)
    pixels, visible = project(
        scene.positions, frame.pose, camera.intrinsic, camera.size, frame.depth, tolerance=0.1
    )
    in_image, _ = project(scene.positions, frame.pose, camera.intrinsic, camera.size)
    width, _ = camera.size

    drawn = set()
    for pixel, corners in zip(seen.pixels, seen.corners.T, strict=True):
        row, column = divmod(int(pixel), width)
        drawn |= {vertex for vertex in corners if in_image[vertex].tolist() == [column, row]}

    hidden = [vertex for vertex in drawn if not visible[vertex]]
    assert len(drawn) > 100
    assert hidden == []
    assert all(pixels[vertex].tolist() == in_image[vertex].tolist() for vertex in drawn)


def test_colors_of_visible_points_are_those_of_the_image(
    scene: SyntheticScene, frames: list[RenderedFrame], camera: SensorCamera
) -> None:
    """The color camera and the depth camera are at the same place, and differ in size."""
    color_camera, depth_camera = make_cameras()
    frame = frames[1]
    _, is_seen = project(
        scene.positions, frame.pose, depth_camera.intrinsic, depth_camera.size, frame.depth
    )
    pixels, is_inside = project(
        scene.positions, frame.pose, color_camera.intrinsic, color_camera.size
    )
    chosen = np.flatnonzero(is_seen & is_inside)
    columns, rows = pixels[chosen].T

    differences = frame.color[rows, columns].astype(int) - scene.colors[chosen]

    assert len(chosen) > 200
    assert np.abs(differences).mean() < 12


def test_labels_of_visible_points_are_those_of_the_label_image(
    scene: SyntheticScene, frames: list[RenderedFrame]
) -> None:
    """The tolerance is less than the thickness of the rug, which hides a part of the floor."""
    color_camera, depth_camera = make_cameras()
    owners = np.zeros(len(scene.segment_ids), int)
    for group in scene.groups:
        owners[np.array(group.segment_ids)] = group.object_id + 1
    object_ids = owners[scene.segment_ids]
    frame = frames[0]
    _, is_seen = project(
        scene.positions,
        frame.pose,
        depth_camera.intrinsic,
        depth_camera.size,
        frame.depth,
        tolerance=0.01,
    )
    pixels, is_inside = project(
        scene.positions, frame.pose, color_camera.intrinsic, color_camera.size
    )
    chosen = np.flatnonzero(is_seen & is_inside)

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


@pytest.mark.parametrize("is_aligned", [True, False])
def test_camera_in_a_sample_is_aligned_if_its_points_are(is_aligned: bool) -> None:
    alignment = make_pose(3).astype(np.float64)
    sample = {"axis_alignment": alignment, "points": np.zeros((1, 3))}

    camera = camera_in(sample, make_pose(1), is_aligned=is_aligned)

    expected = alignment @ make_pose(1) if is_aligned else make_pose(1)
    assert camera == pytest.approx(expected)


def test_camera_in_a_sample_needs_to_know_the_frame_of_its_points() -> None:
    with pytest.raises(UsageError, match=r"is_aligned=dataset\.is_aligned"):
        camera_in({"axis_alignment": np.eye(4)}, np.eye(4))


def test_camera_in_a_sample_without_alignment_is_refused() -> None:
    with pytest.raises(UsageError, match="has no axis_alignment"):
        camera_in({"points": np.zeros((1, 3))}, np.eye(4), is_aligned=True)


def test_camera_in_processed_scene_follows_its_options(whole_dir: Any) -> None:
    scene = read_processed(whole_dir / "processed/train/scene0000_00.npz")
    assert not scene.meta.options.align_axis

    assert np.array_equal(camera_in(scene, make_pose(2)), make_pose(2).astype(np.float64))


def test_points_stay_visible_if_points_and_pose_are_aligned() -> None:
    alignment = make_pose(4).astype(np.float64)
    rng = np.random.default_rng(2)
    points = rng.uniform((0, -1.5, 3), (2, 0.5, 5), (1000, 3))
    aligned = points @ alignment[:3, :3].T + alignment[:3, 3]
    camera = camera_in({"axis_alignment": alignment}, make_pose(1), is_aligned=True)

    pixels, visible = project(points, make_pose(1), INTRINSIC, SIZE)
    aligned_pixels, _ = project(aligned, camera, INTRINSIC, SIZE)

    # A coordinate in the middle between two pixels may be rounded to either.
    assert (pixels != aligned_pixels).any(axis=1).mean() < 0.005
    assert visible.sum() > 200


@pytest.mark.parametrize("words", [[], ["--align-axis"]])
def test_camera_in_a_sample_of_a_dataset_agrees_with_the_processed_scene(
    tmp_path: Path, words: list[str]
) -> None:
    write_release(tmp_path / "raw", [TRAIN], vertices=600)
    run_main("process", tmp_path / "raw", "-o", tmp_path / "out", *words)
    (sample,) = ScanNet(tmp_path / "out", split="train")
    scene = read_processed(tmp_path / f"out/train/{TRAIN}.npz")

    camera = camera_in(sample, make_pose(2))

    np.testing.assert_array_equal(camera, camera_in(scene, make_pose(2)))


def test_camera_in_a_sample_whose_points_were_moved_is_refused(whole_dir: Path) -> None:
    (sample,) = ScanNet(whole_dir / "processed", split="train", transform=Rotate())

    with pytest.raises(UsageError):
        camera_in(sample, make_pose(2))
