"""Tests of pictures: what is visible, from which side, and what is written beside it."""

from dataclasses import replace

import numpy as np
import pytest
from commands import VAL

from scannet_prep import SCANNET20, read_processed
from scannet_prep.frames.projection import draw_faces
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.synthetic.scene import make_scene
from scannet_prep.view import picture
from scannet_prep.view.coloring import Coloring, ViewedScene, color_labels, view_scene
from scannet_prep.view.picture import PictureOptions, View, draw_scene

WHITE = (255, 255, 255)
RED = (250, 0, 0)
BLUE = (0, 0, 250)


@pytest.fixture(autouse=True)
def has_no_smooth_edges(monkeypatch):
    """Draw each pixel in one colour."""
    monkeypatch.setattr(picture, "_SAMPLES", 1)


def make_viewed(points, colors, faces=None, normals=None):
    rgb = Coloring("colours", np.array(colors, np.uint8))
    return ViewedScene("room", np.array(points, np.float32), normals, faces, {"rgb": rgb})


def squares(*heights):
    """Return the corners and triangles of horizontal squares that face up."""
    points = [(x, y, height) for height in heights for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]
    faces = [(at, at + 1 + i, at + 2 + i) for at in range(0, len(points), 4) for i in (0, 1)]
    return points, np.array(faces)


def colors_of(image):
    return set(map(tuple, image.reshape(-1, 3).tolist()))


def count(image, color):
    return (image == color).all(axis=2).sum()


def draw(scene, view="top", color="rgb", **options):
    options = PictureOptions(View.parse(view), (60, 40), has_legend=False, **options)
    return draw_scene(scene, color, options)


def test_nearer_square_hides_the_other_and_backs_are_not_drawn():
    points, faces = squares(0, 1)
    scene = make_viewed(points, [RED] * 4 + [BLUE] * 4, faces)

    turned = replace(scene, faces=scene.faces[:, ::-1])
    assert colors_of(draw(scene)) == {WHITE, BLUE}
    assert colors_of(draw(turned)) == {WHITE}
    assert colors_of(draw(turned, "0,-90")) == {WHITE, RED}
    # The farther one comes last among the faces.
    points, faces = squares(1, 0)
    assert colors_of(draw(replace(scene, points=np.array(points)))) == {WHITE, RED}


def test_scene_fills_the_picture_with_the_right_side_up():
    """From above, x is to the right and y is up; from the side of greater x, y is to the right."""
    points = [[0, 0, 0], [4, 0, 0], [0, 3, 0], [4, 3, 0], [4, 3, 2]]
    colors = [RED, BLUE, (0, 200, 0), (9, 9, 9), (200, 200, 0)]
    scene = make_viewed(points, colors)
    rows, columns = np.nonzero((draw(scene) == RED).all(axis=2))
    assert rows.min() > 30
    assert columns.max() < 15
    rows, columns = np.nonzero((draw(scene, "0,0") == colors[-1]).all(axis=2))
    assert rows.max() < 10
    assert columns.min() > 50


def test_nearer_points_hide_others_and_from_above_there_is_no_perspective():
    corners = [[0, 0, 0], [9, 9, 0]]
    for heights, seen in (((0, 3), BLUE), ((3, 0), RED)):
        points = [*corners, *([2, 5, height] for height in heights)]
        assert colors_of(draw(make_viewed(points, [WHITE, WHITE, RED, BLUE]))) == {WHITE, seen}
    assert RED in colors_of(draw(make_viewed([[5, 5, 5]], [RED], np.zeros((0, 3)))))


def test_points_that_face_away_are_not_drawn():
    normals = np.array([[0, 0, 1], [0, 0, -1], [0, 0, 0]], np.float32)
    scene = make_viewed(np.outer(range(3), [1, 0, 0]), [RED, BLUE, (9, 9, 9)], normals=normals)

    assert colors_of(draw(scene)) == {WHITE, RED, (9, 9, 9)}
    assert BLUE in colors_of(draw(scene, "0,-90"))


def test_at_most_1_percent_of_the_pixels_show_another_class_than_a_z_buffer():
    """The painter's algorithm errs where triangles interlock, and Pillow at their edges."""
    mesh = make_scene("scene0015_00", vertices=12_000)
    classes = np.zeros(mesh.segment_ids.max() + 1, int)
    for number, group in enumerate(mesh.groups, start=1):
        classes[list(group.segment_ids)] = 5 * number
    colors = classes[mesh.segment_ids, np.newaxis] + [0, 1, 2]
    scene = make_viewed(mesh.positions, colors, mesh.faces)
    size = (1600, 1200)
    camera = SensorCamera(size, np.eye(4), np.eye(4))
    for text in ("orbit", "top"):
        view = View.parse(text)
        image = draw_scene(scene, "rgb", PictureOptions(view, size, has_legend=False))

        positions, depths = view.project(scene.points)
        positions -= positions.min(axis=0)
        extent = positions.max(axis=0)
        scale = (0.96 * np.array(size) / extent).min()
        positions = (positions - extent / 2) * scale + np.array(size) / 2 - 0.5
        if text == "top":
            # With these depths, a camera with perspective sees the same.
            depths = 1 / (1 + depths.max() - depths)
        points = np.column_stack([positions * depths[:, np.newaxis], depths])
        sides = np.diff(positions[scene.faces], axis=1)
        # y points down.
        faces = scene.faces[np.linalg.det(sides) < 0]
        corners = np.arange(faces.size).reshape(-1, 3)
        nearest, _, _ = draw_faces(points[faces].reshape(-1, 3), corners, np.eye(4), camera)
        is_drawn = nearest >= 0
        first_colors = colors[faces[nearest[is_drawn] // 3, 0]]
        differs = (image[is_drawn] != first_colors).any(axis=1)
        assert len(differs) > 5e5
        assert differs.mean() < 0.008, text


def test_classes_keep_their_colour_apart_from_the_light():
    points, faces = squares(0)
    scene = make_viewed(points, [RED] * 4, faces, np.tile([0, 0, 1.0], (4, 1)))
    scene.colorings["labels"] = color_labels(np.full(4, 2), SCANNET20)

    (color,) = colors_of(draw(scene, "0,60", "labels")) - {WHITE}

    share = np.array(color) / SCANNET20.colors[2]
    assert 0.85 < share.min() <= share.max() <= 1


@pytest.fixture
def viewed(whole_dir):
    return view_scene(read_processed(whole_dir / f"processed/val/{VAL}.npz"))


def test_hidden_classes_are_left_out_of_every_colouring_and_of_the_legend(viewed):
    categories = viewed.colorings["scannet20"].categories
    for width in (900, 320):
        options = PictureOptions(size=(width, 400))
        image = draw_scene(viewed, "scannet20", options)
        # The scene is beside the legend, the title above it, and no name is cut.
        blank = np.flatnonzero((image == WHITE).all(axis=(0, 2)))
        legend = image[:, blank[blank > width / 4][0] :]
        assert {each.color for each in categories} <= colors_of(legend)
        assert colors_of(legend[:20]) == colors_of(legend[:, -1:]) == {WHITE}

    small = draw_scene(viewed, "scannet20", replace(options, size=(100, 100)))
    # Names are cut before the scene is, and the last line has the number of others.
    assert np.ptp(small[20:, 5:40], axis=2).any()
    assert colors_of(small[-3:, 50:]) == {WHITE}
    options = replace(options, hidden=tuple(each.name for each in categories))
    assert colors_of(draw_scene(viewed, "scannet20", options)[20:]) == {WHITE}
    assert colors_of(draw_scene(viewed, "rgb", replace(options, has_legend=False))) == {WHITE}


def test_triangle_is_left_out_with_each_of_its_corners():
    points, faces = squares(0)
    scene = make_viewed(points, [RED, RED, RED, BLUE], faces)
    scene.colorings["labels"] = color_labels(np.array([0, 5, 0, 0]), SCANNET20)

    assert 0.4 < count(draw(scene, hidden=("sofa",)), RED) / count(draw(scene), RED) < 0.6


def test_points_cover_their_surface_also_if_only_some_are_drawn():
    points = np.mgrid[:15, :15, :1].reshape(3, -1).T / 20
    scene = make_viewed(points, np.arange(225)[:, np.newaxis] % 4 * [9, 0, 0])
    image = draw(scene, step=4)

    assert colors_of(image) == {WHITE, (0, 0, 0)}
    assert count(image, 0) > 1500
