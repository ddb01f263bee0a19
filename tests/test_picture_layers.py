"""Tests of pictures with boxes, a grid, shaded edges or a clip box, and without perspective."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_figures import TOP, make_square, plain
from test_renderer import GREEN, RED, WHITE, colors_of, make_grid_faces, make_scene

from scannet_prep.view.boxes import WITHOUT_BOX, Box, find_boxes
from scannet_prep.view.camera import FIELD_OF_VIEW, Camera, OrthographicCamera, PlacedCamera
from scannet_prep.view.coloring import ViewedScene, color_instances
from scannet_prep.view.lines import draw_line, find_pixels, project_lines
from scannet_prep.view.metre_grid import make_grid
from scannet_prep.view.renderer import render_scene
from scannet_prep.view.visibility import Visibility

# Looking level towards smaller x, from x = 4.
LEVEL = PlacedCamera(azimuth=0, elevation=0, target=(0, 0, 0), distance=4)
FLAT = OrthographicCamera(azimuth=0, elevation=0, target=(0, 0, 0), distance=4)
GREY = (128, 128, 128)


# Without perspective.


def test_things_look_equally_large_at_any_distance_without_perspective() -> None:
    points = np.array([[-9, 0, 1], [0, 0, 1], [30, 0, 1]], np.float32)
    assert np.ptp(FLAT.project(points, 300, 200).y) < 1e-3


def test_both_kinds_of_cameras_show_the_target_in_the_same_size() -> None:
    point = np.array([[0, 0.3, 0.7]], np.float32)
    flat = FLAT.project(point, 300, 200)
    level = LEVEL.project(point, 300, 200)

    assert flat.x == pytest.approx(level.x, abs=1e-3)
    assert flat.y == pytest.approx(level.y, abs=1e-3)


@pytest.mark.parametrize("is_mesh", [True, False])
def test_camera_without_perspective_sees_what_is_behind_it(is_mesh: bool) -> None:
    scene = make_square(GREEN, is_mesh=is_mesh)
    camera = OrthographicCamera(azimuth=-90, elevation=90, target=(1, 1, -9), distance=4)

    image = render_scene(scene, "rgb", plain(camera=camera, samples=2))

    assert (image == GREEN).all(axis=2).mean() > 0.3


def test_nearer_surface_hides_the_other_one_without_perspective() -> None:
    wall = [[0, -1, -1], [0, 1, -1], [0, 1, 1], [0, -1, 1]]
    points = np.concatenate([wall, np.add(wall, [0.01, 0, 0])])
    faces = [[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]]
    scene = make_scene(points, [RED] * 4 + [GREEN] * 4, faces)

    image = render_scene(scene, "rgb", plain(camera=FLAT))

    assert colors_of(image) == {GREEN, WHITE}


# The clip box.


def test_only_vertices_inside_of_the_clip_box_are_shown() -> None:
    points = np.linspace(0, 3, 31)[:, np.newaxis] * np.ones(3)
    scene = make_scene(points, [RED] * 31)
    visibility = Visibility(clip=(0, 2, 0.5, 3, 0, 1.5))

    is_shown = visibility.find_shown(scene, scene.colorings["rgb"])

    assert np.flatnonzero(is_shown).tolist() == list(range(5, 16))


def test_rounded_ends_of_a_clip_box_cut_nothing_off() -> None:
    points = np.array([[1.00004, 2, 3], [4.12345, 5, 6]])
    scene = make_scene(points, [RED] * 2)
    # As a link has them: rounded, and with the upper end at the next centimetre.
    visibility = Visibility(clip=(1, 4.12, 2, 5, 3, 6))

    assert visibility.find_shown(scene, scene.colorings["rgb"]).tolist() == [True, False]
    visibility = replace(visibility, clip=(1, 4.13, 2, 5, 3, 6))
    assert visibility.find_shown(scene, scene.colorings["rgb"]).all()


# Lines.


def test_line_covers_as_many_pixels_as_it_is_wide() -> None:
    ends = np.array([[10, 20.3], [90, 20.3]], np.float32)
    line = find_pixels(ends, 3, 200, 200)

    for column in (20, 50, 80):
        assert line.coverage[line.columns == column].sum() == pytest.approx(3, abs=1e-4)


@pytest.mark.parametrize("degrees", [0, 30, 45, 77, 90, 135, 200])
def test_line_in_any_direction_covers_its_area(degrees: float) -> None:
    angle = math.radians(degrees)
    end = np.array([math.cos(angle), math.sin(angle)]) * 60
    ends = np.array([[100, 100], end + 100], np.float32)

    line = find_pixels(ends, 2, 200, 200)

    assert line.coverage.sum() == pytest.approx(2 * 60, rel=0.05)


def test_line_beyond_the_picture_is_cut_off() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    draw_line(image, np.array([[-1e5, 10], [1e5, 10]], np.float32), 1, RED)

    assert (image[10] == RED).all()


def test_line_of_no_length_is_drawn_as_a_dot() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    draw_line(image, np.array([[15, 10], [15, 10]], np.float32), 2, RED)

    assert 0 < image.any(axis=2).sum() < 10


def test_line_that_reaches_behind_the_camera_ends_in_front_of_it() -> None:
    line = np.array([[[-1.0, 1, 0], [9.0, 1, 0]]])
    lines = project_lines(line, LEVEL, 300, 200)

    # 1 m to the right, 5 cm in front of the camera.
    focal = 100 / math.tan(FIELD_OF_VIEW / 2)
    assert lines.ends[0, 1, 0] == pytest.approx(149.5 + focal / 0.05, rel=1e-3)


def test_line_behind_the_camera_has_no_visible_part() -> None:
    lines = project_lines(np.array([[[5.0, 0, 0], [9.0, 1, 0]]]), LEVEL, 300, 200)
    assert len(lines.numbers) == 0


# The grid.


def test_cells_of_the_grid_are_one_metre_wide() -> None:
    points = np.array([[-0.5, 0.2, 0], [2.5, 1.7, 2]], np.float32)
    lines, colors = make_grid(points)
    is_grid = (colors == GREY).all(axis=1)

    # Those of x are -1 to 3, those of y are 0 to 2; the others are the axes.
    along_y = lines[is_grid & (lines[:, 0, 0] == lines[:, 1, 0])]
    along_x = lines[is_grid & (lines[:, 0, 1] == lines[:, 1, 1])]
    assert along_y[:, 0, 0].tolist() == [-1, 0, 1, 2, 3]
    assert along_x[:, 0, 1].tolist() == [0, 1, 2]
    assert np.count_nonzero(~is_grid) == 3


def test_scene_with_a_stray_vertex_has_no_grid_but_axes() -> None:
    lines, _ = make_grid(np.array([[0, 0, 0], [1e6, 0, 0]], np.float32))
    assert len(lines) == 3


def make_raised_square() -> ViewedScene:
    """Make a square of 2 x 2 m that faces upwards, 1 m above a vertex on the floor."""
    square = make_square(GREEN)
    points = np.concatenate([square.points + np.float32([0, 0, 1]), [[2.5, 1, 0]] * 100])
    colors = [GREEN] * len(points)
    return make_scene(points, colors, square.faces, normals=[[0, 0, 1]] * len(points))


def test_grid_is_hidden_behind_surfaces() -> None:
    image = render_scene(make_raised_square(), "rgb", plain(300, 300, camera=TOP, has_grid=True))
    is_green = (image == GREEN).all(axis=2)
    is_grey = (image == GREY).all(axis=2)

    rows, columns = np.nonzero(is_green)
    assert is_green[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert is_grey.any()


def test_picture_without_the_grid_has_no_grey() -> None:
    image = render_scene(make_raised_square(), "rgb", plain(300, 300, camera=TOP))
    assert colors_of(image) == {GREEN, WHITE}


# Shaded edges.


def make_step() -> ViewedScene:
    """Make two halves of a square that face upwards, the right one 0.5 m higher."""
    across, along = np.meshgrid(np.linspace(0, 2, 40), np.linspace(0, 2, 40))
    points = np.stack([across, along, np.where(across > 1, 0.5, 0)], axis=-1).reshape(-1, 3)
    return make_scene(points, [GREEN] * 1600, make_grid_faces(40, 40))


def brightness(scene: ViewedScene, **options: Any) -> np.ndarray:
    """Draw a green scene on black, and return the brightness of its pixels, at most 1."""
    image = render_scene(scene, "rgb", plain(200, 200, background=(0, 0, 0), **options))
    return image[..., 1] / GREEN[1]


@pytest.mark.parametrize("camera", [TOP, OrthographicCamera(-90, 90, target=(1, 1, 0), distance=4)])
def test_edges_darken_the_lower_side_of_a_step(camera: Camera) -> None:
    image = brightness(make_step(), camera=camera, has_edges=True)
    middle = image[100]

    assert 0 < middle[60:99].min() < 0.9
    assert (middle[110:160] == 1).all()


def test_tilted_plane_has_no_edges() -> None:
    square = make_square(GREEN)
    camera = Camera(azimuth=-90, elevation=15)
    image = brightness(square, camera=camera, has_edges=True)

    is_drawn = image > 0
    assert is_drawn.any()
    assert (image[is_drawn] == 1).all()


def test_picture_without_edges_is_even() -> None:
    image = brightness(make_step(), camera=TOP)
    assert set(np.unique(image).tolist()) == {0, 1}


@pytest.mark.parametrize("camera", [LEVEL, FLAT])
@pytest.mark.parametrize("samples", [1, 2])
def test_picture_of_many_layers_in_bands_is_that_in_one_piece(
    monkeypatch: pytest.MonkeyPatch, camera: Camera, samples: int
) -> None:
    camera = replace(camera, azimuth=-70, elevation=50)
    options = plain(camera=camera, samples=samples, has_grid=True, has_edges=True)
    whole = render_scene(make_step(), "rgb", options)
    monkeypatch.setattr("scannet_prep.view.renderer._MAX_SAMPLES", 7 * 80 * samples**2)

    assert np.array_equal(render_scene(make_step(), "rgb", options), whole)


# Boxes.


@pytest.fixture
def instances() -> ViewedScene:
    """Two instances of 8 vertices each, with the corners of a cube; one vertex has none."""
    corners = np.indices((2, 2, 2)).reshape(3, -1).T
    points = np.concatenate([corners, np.add(corners, [3, 0, 0]), [[9, 9, 9]]])
    numbers = np.array([0] * 8 + [1] * 8 + [-1])
    coloring = color_instances(points, numbers)
    scene = make_scene(points, [RED] * 17)
    return replace(scene, colorings={**scene.colorings, "instances": coloring})


def boxes_of(scene: ViewedScene, color: str, is_shown: Any = True) -> list[Box]:
    """Return the boxes of a picture of a scene."""
    return find_boxes(scene, scene.colorings[color], np.full(len(scene.points), is_shown))


def test_instances_have_boxes_in_other_colours(instances: ViewedScene) -> None:
    boxes = boxes_of(instances, "rgb")
    assert sorted(box.low.tolist() for box in boxes) == [[0, 0, 0], [3, 0, 0]]
    assert sorted(box.high.tolist() for box in boxes) == [[1, 1, 1], [4, 1, 1]]


def test_instance_without_a_shown_vertex_has_no_box(instances: ViewedScene) -> None:
    is_shown = instances.points[:, 0] < 2
    assert [box.low.tolist() for box in boxes_of(instances, "rgb", is_shown)] == [[0, 0, 0]]


def test_box_of_a_partly_hidden_instance_is_that_of_the_whole(instances: ViewedScene) -> None:
    is_shown = (instances.points == [0, 0, 0]).all(axis=1)
    assert [box.high.tolist() for box in boxes_of(instances, "rgb", is_shown)] == [[1, 1, 1]]


def test_scene_without_instances_has_no_boxes() -> None:
    assert boxes_of(make_square(RED), "rgb") == []


def test_box_has_twelve_edges_of_its_lengths() -> None:
    box = Box("box", RED, np.zeros(3), np.array([1.0, 2.0, 3.0]))
    lengths = np.linalg.norm(box.edges[:, 1] - box.edges[:, 0], axis=1)

    assert sorted(lengths.tolist()) == [1] * 4 + [2] * 4 + [3] * 4


def test_picture_with_boxes_has_their_colours(instances: ViewedScene) -> None:
    options = plain(300, 200, camera=FLAT)
    without = colors_of(render_scene(instances, "rgb", options))
    image = render_scene(instances, "rgb", replace(options, has_boxes=True))

    # The two boxes are behind each other.
    colors = {box.color for box in boxes_of(instances, "rgb")}
    assert not colors & without
    assert colors & colors_of(image)


def test_boxes_on_a_transparent_background_are_opaque(instances: ViewedScene) -> None:
    options = plain(300, 200, camera=FLAT, background=None)
    without = render_scene(instances, "rgb", options)[..., 3]
    opacity = render_scene(instances, "rgb", replace(options, has_boxes=True))[..., 3]

    assert (opacity >= without).all()
    assert (opacity == 255).sum() > (without == 255).sum() + 200


def test_boxes_do_not_extend_into_the_legend(instances: ViewedScene) -> None:
    camera = PlacedCamera(azimuth=0, elevation=0, target=(0, 0, 0), distance=1)
    options = replace(plain(600, 300, camera=camera), has_legend=True)
    without = render_scene(instances, "instances", options)
    image = render_scene(instances, "instances", replace(options, has_boxes=True))

    changed = np.flatnonzero((image != without).any(axis=(0, 2)))
    legend_left = np.flatnonzero((without != 255).any(axis=(0, 2)))[-1] - 60
    assert len(changed)
    assert changed.max() < legend_left


@pytest.mark.parametrize(
    ("name", "is_without"),
    [("wall 3", True), ("floor 0", True), ("unlabeled", True), ("wall cabinet 3", False)],
)
def test_instances_as_large_as_the_room_have_no_box(name: str, is_without: bool) -> None:
    assert bool(re.match(WITHOUT_BOX, name)) is is_without
