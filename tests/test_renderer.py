"""Pictures: projection and depth test against loops, pixels and letters by hand, PNG by another reader."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny import process_tiny

from scannet_prep import SCANNET20, ScanNetPrepError
from scannet_prep.view import raster
from scannet_prep.view.camera import FILLED, Camera, Projected
from scannet_prep.view.coloring import (
    Coloring,
    ViewedScene,
    color_instances,
    color_labels,
    view_scene,
)
from scannet_prep.view.png import draw_text, encode_png, measure_text
from scannet_prep.view.raster import Seen, draw_points, draw_triangles
from scannet_prep.view.renderer import BACKGROUNDS, PictureOptions, render_scene

RED, GREEN, BLUE = (200, 0, 0), (0, 200, 0), (0, 0, 200)
PLAIN = {"has_legend": False}
TOP = Camera.parse("top")


def make_scene(points: Any, colors: Any, faces: Any = None, normals: Any = None) -> ViewedScene:
    points, colors = np.array(points, np.float32), np.array(colors, np.uint8)
    faces = None if faces is None else np.array(faces, np.int32)
    normals = None if normals is None else np.array(normals, np.float32)
    return ViewedScene(
        "scene", "", "", points, normals, faces, {"rgb": Coloring("rgb", "", colors)}
    )


def make_projected(
    generator: np.random.Generator, count: int, width: int, height: int
) -> Projected:
    """Points in and around a picture."""
    x, y = generator.uniform(-5, width + 5, count), generator.uniform(-5, height + 5, count)
    nearness, scale = generator.uniform(0.1, 2, count), generator.uniform(0, 12, count)
    return Projected(
        *(array.astype(np.float32) for array in (x, y, nearness, scale)), np.zeros(3, np.float32)
    )


def spread(seen: Seen, values: Any, width: int, height: int) -> np.ndarray:
    """A picture of values, -1 where nothing is."""
    picture = np.full(width * height, -1.0)
    picture[seen.pixels] = values
    return picture.reshape(height, width)


@pytest.mark.parametrize(
    ("view", "right", "up"),
    [
        ("top", (1, 0, 0), (0, 1, 0)),
        ("-90,0", (1, 0, 0), (0, 0, 1)),
        ("0,0", (0, 1, 0), (0, 0, 1)),
        ("90,0", (-1, 0, 0), (0, 0, 1)),
        ("180,0", (0, -1, 0), (0, 0, 1)),
        ("0,90", (0, 1, 0), (-1, 0, 0)),
    ],
)
def test_views_are_neither_mirrored_nor_upside_down(view: str, right: Any, up: Any) -> None:
    axes = Camera.parse(view).axes
    assert axes == pytest.approx(np.array([right, up, np.cross(right, up)], np.float32), abs=1e-6)
    points = np.array([right, up, (0, 0, 0)], np.float32)
    found = Camera.parse(view).project(points, 80, 60)
    assert (found.x[0] > found.x[2], found.y[1] < found.y[2]) == (True, True)


def test_projection_agrees_with_one_point_at_a_time() -> None:
    generator, camera = np.random.default_rng(1), Camera(25, 35)
    points = generator.normal(size=(50, 3)).astype(np.float32) * [3, 4, 1]
    found = camera.project(points.astype(np.float32), 300, 200)
    right, up, back = (axis.astype(float) for axis in camera.axes)
    for index, point in enumerate(points):
        distance = np.dot(found.position - point, back)
        pixels = 100 / np.tan(np.radians(20)) / distance
        x, y = (
            149.5 + np.dot(point - found.position, right) * pixels,
            99.5 - np.dot(point - found.position, up) * pixels,
        )
        assert (found.x[index], found.y[index]) == pytest.approx((x, y), abs=0.01)
        assert (1 / found.nearness[index], found.scale[index]) == pytest.approx(
            (distance, pixels), rel=1e-4
        )


@pytest.mark.parametrize(("width", "height"), [(300, 200), (100, 400)])
def test_what_is_shown_fills_the_picture_and_stays_inside(width: int, height: int) -> None:
    points = np.random.default_rng(2).normal(size=(500, 3)).astype(np.float32) * 5
    found = Camera(10, 50).project(points, width, height)
    reach = [
        np.abs(axis - size / 2 + 0.5).max() / size * 2
        for axis, size in ((found.x, width), (found.y, height))
    ]
    assert max(reach) == pytest.approx(FILLED, rel=1e-3)


@pytest.mark.parametrize("points", [[[1, 2, 3]], [[1, 2, 3]] * 5, [[0, 0, 0], [0, 0, 5]]])
def test_scenes_without_an_extent_are_drawn(points: Any) -> None:
    image = render_scene(
        make_scene(points, [RED] * len(points)), "rgb", PictureOptions(60, 40, TOP, **PLAIN)
    )
    assert tuple(image[20, 30]) == RED or tuple(image[19, 29]) == RED


def test_squares_agree_with_loops_over_pixels() -> None:
    width, height, count = 40, 30, 60
    points = make_projected(np.random.default_rng(3), count, width, height)
    shown = np.random.default_rng(4).random(count) < 0.8
    seen = draw_points(points, shown, 1 / raster.SPREAD, width, height)
    sides = [
        next(side for side in raster._SIDES if side >= min(64, max(1, np.ceil(scale))))
        for scale in points.scale
    ]
    expected = np.full((height, width), -1.0)
    for row in range(height):
        for column in range(width):
            best = 0.0
            for item in np.flatnonzero(shown):
                left = round(float(points.x[item])) - (sides[item] - 1) // 2
                top = round(float(points.y[item])) - (sides[item] - 1) // 2
                is_hit = left <= column < left + sides[item] and top <= row < top + sides[item]
                if is_hit and points.nearness[item] > best:
                    best, expected[row, column] = float(points.nearness[item]), item
    assert np.array_equal(spread(seen, seen.nearest, width, height), expected)
    assert (seen.weights == 1).all()


@pytest.mark.parametrize(("size", "at_a_time"), [(4, 1 << 14), (40, 70)])
def test_triangles_agree_with_loops_over_pixels(
    size: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels whose middle is on an edge are left out: they may go to either side."""
    monkeypatch.setattr(raster, "_MAX_TESTS", at_a_time)
    generator, width, height, count = np.random.default_rng(5), 20, 16, 25
    points = make_projected(generator, 3 * count, width, height)
    for axis in (points.x, points.y):
        axis[:] = np.repeat(axis[::3], 3) + generator.uniform(-size, size, 3 * count)
    faces = np.arange(3 * count, dtype=np.int32).reshape(-1, 3)
    seen = draw_triangles(points, faces, width, height)
    found, weights = spread(seen, seen.nearest, width, height), seen.blend(points.nearness)
    depth = spread(seen, weights, width, height)
    x, y, nearness = (array.astype(float) for array in (points.x, points.y, points.nearness))
    compared = 0
    for row in range(height):
        for column in range(width):
            best, expected, is_certain = 0.0, -1, True
            for face in faces:
                matrix = np.array([x[face], y[face], [1, 1, 1]])
                is_front = np.linalg.det(matrix) < 0
                inner = np.linalg.solve(matrix, [column, row, 1])
                is_certain &= not is_front or abs(inner.min()) > 1e-3
                if is_front and inner.min() >= 0 and inner @ nearness[face] > best:
                    best, expected = inner @ nearness[face], face[np.argmax(inner * nearness[face])]
                    is_certain &= np.diff(np.sort(inner * nearness[face]))[1] > 1e-3
            if is_certain:
                assert found[row, column] == expected
                compared += 1
                if expected >= 0:  # as perspective has it: 1 / nearness is linear in space
                    face = faces[expected // 3]
                    inner = (
                        np.linalg.solve(np.array([x[face], y[face], [1, 1, 1]]), [column, row, 1])
                        * nearness[face]
                    )
                    assert depth[row, column] == pytest.approx(
                        inner @ nearness[face] / inner.sum(), rel=1e-3
                    )
    assert compared > width * height // 2


def test_triangles_side_by_side_leave_no_gap() -> None:
    across, along = np.meshgrid(np.linspace(0, 3, 40), np.linspace(0, 2, 30))
    points = np.stack(
        [across.ravel(), along.ravel(), np.sin(5 * across + along).ravel() / 50], axis=1
    )
    corner = (np.arange(29)[:, None] * 40 + np.arange(39)).ravel()
    faces = np.concatenate(
        [
            np.stack([corner, corner + 1, corner + 41], 1),
            np.stack([corner, corner + 41, corner + 40], 1),
        ]
    )
    scene = make_scene(points, np.tile(RED, (len(points), 1)), faces)
    image = render_scene(scene, "rgb", PictureOptions(300, 200, TOP, **PLAIN))
    filled = (image == RED).all(axis=2)
    assert filled[10:-10, 12:-12].all()
    assert not filled[0].any()


def test_points_of_a_surface_leave_no_hole_however_near() -> None:
    points = np.random.default_rng(7).uniform(0, 1, (6000, 3)) * [3, 2, 0]
    scene = make_scene(points, np.tile(GREEN, (6000, 1)))
    for size in (80, 200, 600):
        image = render_scene(scene, "rgb", PictureOptions(size * 3 // 2, size, TOP, **PLAIN))
        edge = size // 10
        assert (image[edge:-edge, edge:-edge] == GREEN).all(axis=2).mean() > 0.995


def test_nearer_surfaces_hide_farther_ones_in_points_and_in_meshes() -> None:
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    points = np.concatenate([np.c_[square * 3, [0] * 4], np.c_[square + 1, [1] * 4]])
    faces = [[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]]
    colors = [RED] * 4 + [BLUE] * 4
    image = render_scene(
        make_scene(points, colors, faces), "rgb", PictureOptions(90, 90, TOP, **PLAIN)
    )
    assert (tuple(image[45, 45]), tuple(image[80, 45]), tuple(image[45, 80])) == (BLUE, RED, RED)
    below = render_scene(
        make_scene(points, colors, np.array(faces)[:, ::-1]), "rgb", PictureOptions(90, 90, TOP)
    )
    assert (below[20:] == 255).all()  # from behind
    image = render_scene(
        make_scene(points, colors), "rgb", PictureOptions(90, 90, Camera(0, -90), **PLAIN)
    )
    assert tuple(image[45, 45]) != BLUE  # from below, the lower one is the nearer


def test_points_are_not_drawn_from_behind() -> None:
    points = [[0, 0, 0], [2, 0, 0], [1, 1, 0]]
    scene = make_scene(points, [RED, GREEN, BLUE], normals=[[0, 0, 1], [0, 0, -1], [0, 0, 0]])
    image = render_scene(scene, "rgb", PictureOptions(90, 60, TOP, **PLAIN))
    found = {tuple(color) for color in image.reshape(-1, 3).tolist()}
    assert found == {RED, BLUE, (255, 255, 255)}


def test_colours_of_the_scan_are_blended_and_those_of_classes_are_not() -> None:
    points, faces = [[0, 0, 0], [4, 0, 0], [0, 4, 0]], [[0, 1, 2]]
    smooth = make_scene(points, [RED, GREEN, BLUE], faces)
    options = PictureOptions(100, 100, TOP, **PLAIN)
    assert len(np.unique(render_scene(smooth, "rgb", options).reshape(-1, 3), axis=0)) > 100
    coloring = color_labels(np.array([0, 1, -1]), SCANNET20)
    scene = ViewedScene("s", "", "", smooth.points, None, smooth.faces, {"scannet20": coloring})
    found = {
        tuple(color) for color in render_scene(scene, "scannet20", options).reshape(-1, 3).tolist()
    }
    assert found == {*(item.color for item in coloring.categories), (255, 255, 255)}


def test_light_changes_classes_and_leaves_the_colours_of_the_scan(tmp_path: Any) -> None:
    scene, options = view_scene(process_tiny(tmp_path)), PictureOptions(80, 60, **PLAIN)
    for name, changes in (
        ("scannet20", True),
        ("instances", True),
        ("rgb", False),
        ("normals", False),
    ):
        exact, lit = (
            render_scene(item, name, options) for item in (replace(scene, normals=None), scene)
        )
        assert np.array_equal(exact[lit != 255], lit[lit != 255]) is not changes
        assert (lit <= exact).all() or not changes


def write(text: str) -> np.ndarray:
    picture = np.full((8, measure_text(text), 3), 255, np.uint8)
    draw_text(picture, 0, 0, text, BACKGROUNDS["light"][1])
    return picture


def find_places(image: np.ndarray, top: int, text: str) -> list[int]:
    """Where a text begins in the right half of a line."""
    wanted, width = write(text), measure_text(text)
    places = range(image.shape[1] // 2, image.shape[1] - width)
    return [x for x in places if np.array_equal(image[top : top + 8, x : x + width], wanted)]


def test_legend_has_a_square_a_name_and_a_share_for_each_category() -> None:
    labels = np.repeat([2, 0, -1], [60, 30, 10])
    points = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    scene = ViewedScene(
        "scene0000_00", "", "", points, None, None, {"scannet20": color_labels(labels, SCANNET20)}
    )
    image = render_scene(scene, "scannet20", PictureOptions(400, 300))
    for row, text in enumerate(("cabinet", "wall", "unlabeled")):
        (left,) = find_places(image, 8 + 11 * row, text)
        assert (
            tuple(image[8 + 11 * row, left - 11])
            == scene.colorings["scannet20"].categories[row].color
        )
    assert find_places(image, 8, "60.0%") == [392 - measure_text("60.0%")]


def test_legend_says_how_many_more_there_are_and_narrow_pictures_have_none() -> None:
    coloring = color_instances(np.arange(100))
    scene = ViewedScene(
        "s", "", "", np.zeros((100, 3), np.float32), None, None, {"instances": coloring}
    )
    image = render_scene(scene, "instances", PictureOptions(400, 300))
    assert len(find_places(image, 8 + 11 * 24, "and 76 more")) == 1
    narrow = render_scene(scene, "instances", PictureOptions(100, 300))
    assert (narrow[8:, 60:] == 255).all(axis=2).mean() > 0.9


def test_letters_are_those_of_the_font_and_others_are_question_marks() -> None:
    image = np.zeros((8, 5, 3), np.uint8)
    draw_text(image, 0, 0, "L", (255, 255, 255))
    assert ["".join("#" if item else "." for item in row) for row in image[..., 0]] == [
        "#...."
    ] * 6 + [
        "#####",
        ".....",
    ]
    pictures = [np.zeros((20, 60, 3), np.uint8) for _ in range(2)]
    for picture, text in zip(pictures, ("é\x00木", "???"), strict=True):
        draw_text(picture, 1, 2, text, RED, 2)
    assert np.array_equal(*pictures)
    assert pictures[0].any()
    draw_text(image, 3, 6, "cut off at the border", GREEN)
    draw_text(image, 50, 60, "outside", GREEN)


def decode_png(data: bytes) -> np.ndarray:
    """Another way to read a PNG: row by row."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", data, place + 8 + size)[0] == zlib.crc32(kind + body)
        chunks[kind], place = body, place + size + 12
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    raw, above, rows = zlib.decompress(chunks[b"IDAT"]), [0] * (3 * width), []
    for row in range(height):
        line = raw[row * (3 * width + 1) : (row + 1) * (3 * width + 1)]
        assert line[0] == 2
        above = [(value + before) % 256 for value, before in zip(line[1:], above, strict=True)]
        rows.append(above)
    return np.array(rows, np.uint8).reshape(height, width, 3)


def test_png_holds_the_picture() -> None:
    image = np.random.default_rng(0).integers(0, 256, (17, 23, 3), np.uint8)
    assert np.array_equal(decode_png(encode_png(image)), image)
    assert encode_png(image) == encode_png(image.copy())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PictureOptions(0, 600), "0 x 600 pixels"),
        (lambda: PictureOptions(100_000, 100_000), "100000 x 100000 pixels"),
        (lambda: Camera.parse("sideways"), "'sideways' is not a view"),
        (lambda: Camera.parse("10,91"), "'10,91' is not a view"),
        (lambda: Camera.parse("nan,0"), "'nan,0' is not a view"),
        (lambda: make_scene([[0, 0, 0]], [RED]).coloring("hue"), "cannot be coloured by 'hue'"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(make: Any, words: str) -> None:
    with pytest.raises(ScanNetPrepError, match=words) as caught:
        make()
    assert caught.value.hint
