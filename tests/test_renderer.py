"""Tests of pictures: projection and depth test against loops, colours and letters by hand."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiny import process_tiny

from scannet_prep import SCANNET20, ScanNetPrepError
from scannet_prep.view import raster
from scannet_prep.view.camera import FILLED, Camera, Projected
from scannet_prep.view.categories import Coloring
from scannet_prep.view.coloring import ViewedScene, color_instances, color_labels, view_scene
from scannet_prep.view.fonts import BuiltInFont
from scannet_prep.view.png import encode_png, measure_text
from scannet_prep.view.raster import Seen, draw_points, draw_triangles
from scannet_prep.view.renderer import BACKGROUNDS, PictureOptions, render_scene

RED = (200, 0, 0)
GREEN = (0, 200, 0)
BLUE = (0, 0, 200)
WHITE = (255, 255, 255)
TOP = Camera.parse("top")
FROM_BELOW = Camera(azimuth=0, elevation=-90)

Pixel = tuple[int, int, int]


def make_scene(points: Any, colors: Any, faces: Any = None, normals: Any = None) -> ViewedScene:
    """Make a scene with one colouring, `rgb`."""
    return ViewedScene(
        scene_id="scene",
        split="",
        frame="",
        points=np.array(points, np.float32),
        normals=None if normals is None else np.array(normals, np.float32),
        faces=None if faces is None else np.array(faces, np.int32),
        colorings={"rgb": Coloring("rgb", "", np.array(colors, np.uint8))},
    )


def make_colored_scene(points: np.ndarray, coloring: Coloring) -> ViewedScene:
    """Make a scene of points with one colouring by categories."""
    return ViewedScene(
        scene_id="scene0000_00",
        split="",
        frame="",
        points=points.astype(np.float32),
        normals=None,
        faces=None,
        colorings={coloring.name: coloring},
    )


def plain_options(width: int, height: int, camera: Camera = TOP) -> PictureOptions:
    """Return the options of a picture without a legend."""
    return PictureOptions(width, height, camera, has_legend=False)


def draw_rgb(scene: ViewedScene, options: PictureOptions) -> np.ndarray:
    return render_scene(scene, "rgb", options)


def pixel(image: np.ndarray, row: int, column: int) -> Pixel:
    red, green, blue = image[row, column].tolist()
    return (red, green, blue)


def colors_of(image: np.ndarray) -> set[Pixel]:
    return {(red, green, blue) for red, green, blue in image.reshape(-1, 3).tolist()}


# The camera.


class AxesCase(NamedTuple):
    view: str
    right: tuple[int, int, int]
    up: tuple[int, int, int]


AXES = [
    AxesCase("top", right=(1, 0, 0), up=(0, 1, 0)),
    AxesCase("-90,0", right=(1, 0, 0), up=(0, 0, 1)),
    AxesCase("0,0", right=(0, 1, 0), up=(0, 0, 1)),
    AxesCase("90,0", right=(-1, 0, 0), up=(0, 0, 1)),
    AxesCase("180,0", right=(0, -1, 0), up=(0, 0, 1)),
    AxesCase("0,90", right=(0, 1, 0), up=(-1, 0, 0)),
]


@pytest.mark.parametrize("case", AXES, ids=lambda case: case.view)
def test_axes_of_a_view_are_right_up_and_towards_the_camera(case: AxesCase) -> None:
    towards = np.cross(case.right, case.up)

    expected = np.array([case.right, case.up, towards], np.float32)
    assert Camera.parse(case.view).axes == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", AXES, ids=lambda case: case.view)
def test_picture_is_neither_mirrored_nor_upside_down(case: AxesCase) -> None:
    points = np.array([case.right, case.up, (0, 0, 0)], np.float32)
    projected = Camera.parse(case.view).project(points, 80, 60)
    x_right, _, x_origin = projected.x
    _, y_up, y_origin = projected.y

    assert x_right > x_origin
    assert y_up < y_origin


def test_projection_agrees_with_one_point_at_a_time() -> None:
    camera = Camera(azimuth=25, elevation=35)
    points = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32) * [3, 4, 1]

    projected = camera.project(points.astype(np.float32), width=300, height=200)

    right, up, towards = camera.axes.astype(float)
    for index, point in enumerate(points):
        offset = point - projected.position
        distance = np.dot(-offset, towards)
        pixels_per_metre = 100 / np.tan(np.radians(20)) / distance
        x = 149.5 + np.dot(offset, right) * pixels_per_metre
        y = 99.5 - np.dot(offset, up) * pixels_per_metre
        assert projected.x[index] == pytest.approx(x, abs=0.01)
        assert projected.y[index] == pytest.approx(y, abs=0.01)
        assert 1 / projected.nearness[index] == pytest.approx(distance, rel=1e-4)
        assert projected.scale[index] == pytest.approx(pixels_per_metre, rel=1e-4)


@pytest.mark.parametrize(("width", "height"), [(300, 200), (100, 400)])
def test_points_fill_the_picture_in_the_tighter_direction(width: int, height: int) -> None:
    points = np.random.default_rng(2).normal(size=(500, 3)).astype(np.float32) * 5

    projected = Camera(azimuth=10, elevation=50).project(points, width, height)

    filled_width = np.abs(projected.x - width / 2 + 0.5).max() / width * 2
    filled_height = np.abs(projected.y - height / 2 + 0.5).max() / height * 2
    assert max(filled_width, filled_height) == pytest.approx(FILLED, rel=1e-3)


@pytest.mark.parametrize(
    "points",
    [[[1, 2, 3]], [[1, 2, 3]] * 5, [[0, 0, 0], [0, 0, 5]]],
    ids=["one point", "equal points", "points above each other"],
)
def test_scene_without_an_extent_is_drawn_in_the_middle(points: Any) -> None:
    image = draw_rgb(make_scene(points, [RED] * len(points)), plain_options(60, 40))
    assert RED in {pixel(image, 20, 30), pixel(image, 19, 29)}


# The depth test, against loops.


def make_projected(
    generator: np.random.Generator, count: int, width: int, height: int
) -> Projected:
    """Make random points in and around a picture."""
    x = generator.uniform(-5, width + 5, count)
    y = generator.uniform(-5, height + 5, count)
    nearness = generator.uniform(0.1, 2, count)
    scale = generator.uniform(0, 12, count)
    return Projected(
        x=x.astype(np.float32),
        y=y.astype(np.float32),
        nearness=nearness.astype(np.float32),
        scale=scale.astype(np.float32),
        position=np.zeros(3, np.float32),
    )


def to_picture(seen: Seen, values: Any, width: int, height: int) -> np.ndarray:
    """Return the values of visible pixels as a picture, (height, width); -1 for empty pixels."""
    picture = np.full(width * height, -1.0)
    picture[seen.pixels] = values
    return picture.reshape(height, width)


def find_nearest_square(
    points: Projected, shown: np.ndarray, sides: list[int], row: int, column: int
) -> int:
    """Return the nearest vertex whose square covers a pixel; -1 if there is none."""
    nearest = -1
    for vertex in np.flatnonzero(shown).tolist():
        side = sides[vertex]
        left = round(float(points.x[vertex])) - (side - 1) // 2
        top = round(float(points.y[vertex])) - (side - 1) // 2
        covers_pixel = left <= column < left + side and top <= row < top + side
        if not covers_pixel:
            continue
        if nearest < 0 or points.nearness[vertex] > points.nearness[nearest]:
            nearest = vertex
    return nearest


@pytest.fixture(scope="module")
def projected_points() -> tuple[Projected, np.ndarray]:
    """Random points in a picture of 40 x 30 pixels, and the mask of those to draw."""
    points = make_projected(np.random.default_rng(3), count=60, width=40, height=30)
    shown = np.random.default_rng(4).random(60) < 0.8
    return points, shown


def test_points_agree_with_loops_over_pixels(
    projected_points: tuple[Projected, np.ndarray],
) -> None:
    points, shown = projected_points
    sides = []
    for scale in points.scale:
        exact_side = min(64, max(1, np.ceil(scale)))
        sides.append(next(side for side in raster._SIDES.tolist() if side >= exact_side))

    seen = draw_points(points, shown, 1 / raster.SPREAD, width=40, height=30)

    expected = np.array(
        [
            [find_nearest_square(points, shown, sides, row, column) for column in range(40)]
            for row in range(30)
        ]
    )
    assert np.array_equal(to_picture(seen, seen.nearest, 40, 30), expected)


def test_points_have_weight_1(projected_points: tuple[Projected, np.ndarray]) -> None:
    points, shown = projected_points
    seen = draw_points(points, shown, 1 / raster.SPREAD, width=40, height=30)

    assert (seen.weights == 1).all()


class Hit(NamedTuple):
    """A triangle at a pixel.

    Attributes:
        corners: The vertices of the triangle, (3,).
        weights: The weight of each vertex at the pixel, in the picture, (3,).
        nearness: The nearness of the triangle at the pixel.
    """

    corners: np.ndarray
    weights: np.ndarray
    nearness: float


class PixelOracle:
    """The triangles at a pixel, found by solving a linear system for each triangle."""

    def __init__(self, points: Projected, faces: np.ndarray) -> None:
        self._x = points.x.astype(float)
        self._y = points.y.astype(float)
        self.nearness = points.nearness.astype(float)
        self._faces = faces

    def find_hits(self, row: int, column: int) -> Iterator[Hit]:
        """Iterate over the triangles that face the camera, whether or not they cover the pixel."""
        for corners in self._faces:
            matrix = np.array([self._x[corners], self._y[corners], [1, 1, 1]])
            if np.linalg.det(matrix) < 0:
                weights = np.linalg.solve(matrix, [column, row, 1])
                yield Hit(corners, weights, float(weights @ self.nearness[corners]))

    def is_certain(self, hits: list[Hit]) -> bool:
        """Whether rounding cannot change the result: no edge at the pixel, one greatest weight."""
        if any(abs(hit.weights.min()) <= 1e-3 for hit in hits):
            return False
        nearest = find_nearest(hits)
        if nearest is None:
            return True
        sorted_weights = np.sort(nearest.weights * self.nearness[nearest.corners])
        return bool(sorted_weights[2] - sorted_weights[1] > 1e-3)


def find_nearest(hits: list[Hit]) -> Hit | None:
    covering = [hit for hit in hits if hit.weights.min() >= 0]
    return max(covering, key=lambda hit: hit.nearness, default=None)


@pytest.mark.parametrize(
    ("size", "pixels_at_a_time"),
    [(4, 1 << 14), (40, 70)],
    ids=["small triangles", "large triangles in parts"],
)
def test_triangles_agree_with_loops_over_pixels(
    size: int, pixels_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels whose middle is on an edge are left out: either side is right."""
    monkeypatch.setattr(raster, "_MAX_PIXELS", pixels_at_a_time)
    generator = np.random.default_rng(5)
    width = 20
    height = 16
    vertex_count = 3 * 25
    points = make_projected(generator, vertex_count, width, height)
    # The corners of a triangle are near each other.
    for axis in (points.x, points.y):
        axis[:] = np.repeat(axis[::3], 3) + generator.uniform(-size, size, vertex_count)
    faces = np.arange(vertex_count, dtype=np.int32).reshape(-1, 3)

    seen = draw_triangles(points, faces, width, height)

    nearest_vertices = to_picture(seen, seen.nearest, width, height)
    blended_nearness = to_picture(seen, seen.blend(points.nearness), width, height)
    oracle = PixelOracle(points, faces)
    compared_count = 0
    for row, column in np.ndindex(height, width):
        hits = list(oracle.find_hits(row, column))
        if not oracle.is_certain(hits):
            continue
        compared_count += 1
        hit = find_nearest(hits)
        if hit is None:
            assert nearest_vertices[row, column] == -1
            continue
        # With perspective, weights in space are proportional to weight times nearness.
        space_weights = hit.weights * oracle.nearness[hit.corners]
        expected_nearness = space_weights @ oracle.nearness[hit.corners] / space_weights.sum()
        assert nearest_vertices[row, column] == hit.corners[np.argmax(space_weights)]
        assert blended_nearness[row, column] == pytest.approx(expected_nearness, rel=1e-3)
    assert compared_count > width * height // 2


# Surfaces.


def make_grid_faces(rows: int, columns: int) -> np.ndarray:
    """Return two triangles for each cell of a grid of vertices."""
    cell_corners = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    right = cell_corners + 1
    above = cell_corners + columns
    above_right = above + 1
    lower = np.stack([cell_corners, right, above_right], axis=1)
    upper = np.stack([cell_corners, above_right, above], axis=1)
    return np.concatenate([lower, upper])


def test_adjacent_triangles_leave_no_gap() -> None:
    across, along = np.meshgrid(np.linspace(0, 3, 40), np.linspace(0, 2, 30))
    height = np.sin(5 * across + along) / 50
    points = np.stack([across.ravel(), along.ravel(), height.ravel()], axis=1)
    scene = make_scene(points, [RED] * len(points), make_grid_faces(30, 40))

    image = draw_rgb(scene, plain_options(300, 200))

    is_filled = (image == RED).all(axis=2)
    assert is_filled[10:-10, 12:-12].all()
    assert not is_filled[0].any()


@pytest.mark.parametrize("size", [80, 200, 600])
def test_points_of_a_surface_leave_no_hole_at_any_size(size: int) -> None:
    points = np.random.default_rng(7).uniform(0, 1, (6000, 3)) * [3, 2, 0]
    scene = make_scene(points, [GREEN] * 6000)

    image = draw_rgb(scene, plain_options(size * 3 // 2, size))

    edge = size // 10
    is_filled = (image[edge:-edge, edge:-edge] == GREEN).all(axis=2)
    assert is_filled.mean() > 0.995


# A red square of 3 x 3 m at z = 0, and a smaller blue one above its middle at z = 1.
_CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
_SQUARE_POINTS = np.concatenate([np.c_[_CORNERS * 3, [0] * 4], np.c_[_CORNERS + 1, [1] * 4]])
_SQUARE_COLORS = [RED] * 4 + [BLUE] * 4
_SQUARE_FACES = np.array([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]])


def test_nearer_triangles_hide_farther_ones() -> None:
    scene = make_scene(_SQUARE_POINTS, _SQUARE_COLORS, _SQUARE_FACES)
    image = draw_rgb(scene, plain_options(90, 90))

    assert pixel(image, 45, 45) == BLUE
    assert pixel(image, 80, 45) == RED
    assert pixel(image, 45, 80) == RED


def test_triangles_are_not_drawn_from_behind() -> None:
    turned_over = _SQUARE_FACES[:, ::-1]
    scene = make_scene(_SQUARE_POINTS, _SQUARE_COLORS, turned_over)
    image = draw_rgb(scene, PictureOptions(90, 90, TOP))

    # The title is above.
    assert (image[20:] == 255).all()


def test_nearer_points_hide_farther_ones() -> None:
    scene = make_scene(_SQUARE_POINTS, _SQUARE_COLORS)
    image = draw_rgb(scene, plain_options(90, 90, FROM_BELOW))

    assert pixel(image, 45, 45) != BLUE


def test_points_are_not_drawn_from_behind() -> None:
    points = [[0, 0, 0], [2, 0, 0], [1, 1, 0]]
    normals = [[0, 0, 1], [0, 0, -1], [0, 0, 0]]
    scene = make_scene(points, [RED, GREEN, BLUE], normals=normals)
    image = draw_rgb(scene, plain_options(90, 60))

    assert colors_of(image) == {RED, BLUE, WHITE}


# Colours and light.


@pytest.fixture
def smooth_triangle() -> ViewedScene:
    """A triangle with a red, a green and a blue corner."""
    points = [[0, 0, 0], [4, 0, 0], [0, 4, 0]]
    return make_scene(points, [RED, GREEN, BLUE], faces=[[0, 1, 2]])


def test_colours_of_the_scan_are_blended(smooth_triangle: ViewedScene) -> None:
    assert len(colors_of(draw_rgb(smooth_triangle, plain_options(100, 100)))) > 100


def test_colours_of_classes_are_not_blended(smooth_triangle: ViewedScene) -> None:
    coloring = color_labels(np.array([0, 1, -1]), SCANNET20)
    scene = replace(smooth_triangle, colorings={"scannet20": coloring})

    image = render_scene(scene, "scannet20", plain_options(100, 100))

    assert colors_of(image) == {*(category.color for category in coloring.categories), WHITE}


@pytest.fixture(scope="module")
def tiny_scene(tmp_path_factory: pytest.TempPathFactory) -> ViewedScene:
    return view_scene(process_tiny(tmp_path_factory.mktemp("tiny")))


def draw_without_and_with_light(scene: ViewedScene, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw a scene without its normals, and with them."""
    options = PictureOptions(80, 60, has_legend=False)
    without_normals = replace(scene, normals=None)
    return render_scene(without_normals, name, options), render_scene(scene, name, options)


@pytest.mark.parametrize("name", ["scannet20", "instances"])
def test_light_makes_categories_darker(tiny_scene: ViewedScene, name: str) -> None:
    exact, lit = draw_without_and_with_light(tiny_scene, name)

    assert not np.array_equal(exact[lit != 255], lit[lit != 255])
    assert (lit <= exact).all()


@pytest.mark.parametrize("name", ["rgb", "normals"])
def test_light_does_not_change_colours_of_scan_and_normals(
    tiny_scene: ViewedScene, name: str
) -> None:
    exact, lit = draw_without_and_with_light(tiny_scene, name)
    assert np.array_equal(exact[lit != 255], lit[lit != 255])


# The legend.

LEGEND_MARGIN = 8
LINE_HEIGHT = 11


def draw_line(text: str) -> np.ndarray:
    """Draw a text in the colours of a legend."""
    _, ink = BACKGROUNDS["light"]
    picture = np.full((8, measure_text(text), 3), 255, np.uint8)
    BuiltInFont(1).draw(picture, 0, 0, text, ink)
    return picture


def find_columns(image: np.ndarray, line: int, text: str) -> list[int]:
    """Return the columns at which a text begins in a line of the legend."""
    top = LEGEND_MARGIN + LINE_HEIGHT * line
    expected = draw_line(text)
    width = measure_text(text)
    windows = range(image.shape[1] // 2, image.shape[1] - width)
    lines = image[top : top + 8]
    return [x for x in windows if np.array_equal(lines[:, x : x + width], expected)]


@pytest.fixture(scope="module")
def labeled_scene() -> ViewedScene:
    """A scene of 60 vertices of cabinet, 30 of wall, and 10 that are unlabeled."""
    labels = np.repeat([2, 0, -1], [60, 30, 10])
    points = np.random.default_rng(0).normal(size=(100, 3))
    return make_colored_scene(points, color_labels(labels, SCANNET20))


@pytest.fixture(scope="module")
def labeled_image(labeled_scene: ViewedScene) -> np.ndarray:
    return render_scene(labeled_scene, "scannet20", PictureOptions(400, 300))


@pytest.mark.parametrize(("line", "name"), [(0, "cabinet"), (1, "wall"), (2, "unlabeled")])
def test_legend_has_a_name_and_a_square_for_each_category(
    labeled_scene: ViewedScene, labeled_image: np.ndarray, line: int, name: str
) -> None:
    (left,) = find_columns(labeled_image, line, name)
    square = pixel(labeled_image, LEGEND_MARGIN + LINE_HEIGHT * line, left - LINE_HEIGHT)

    assert square == labeled_scene.colorings["scannet20"].categories[line].color


def test_legend_has_the_share_of_a_category_at_the_right(labeled_image: np.ndarray) -> None:
    right = 400 - LEGEND_MARGIN
    assert find_columns(labeled_image, 0, "60.0%") == [right - measure_text("60.0%")]


@pytest.fixture(scope="module")
def scene_of_100_instances() -> ViewedScene:
    points = np.zeros((100, 3))
    return make_colored_scene(points, color_instances(points, np.arange(100)))


def test_legend_counts_the_categories_that_do_not_fit(
    scene_of_100_instances: ViewedScene,
) -> None:
    image = render_scene(scene_of_100_instances, "instances", PictureOptions(400, 300))
    assert len(find_columns(image, 24, "and 76 more")) == 1


def test_narrow_picture_has_no_legend(scene_of_100_instances: ViewedScene) -> None:
    image = render_scene(scene_of_100_instances, "instances", PictureOptions(100, 300))
    assert (image[8:, 60:] == 255).all(axis=2).mean() > 0.9


# Text.


def test_letter_has_the_pixels_of_the_font() -> None:
    image = np.zeros((8, 5, 3), np.uint8)
    BuiltInFont(1).draw(image, 0, 0, "L", WHITE)
    rows = ["".join("#" if value else "." for value in row) for row in image[..., 0]]

    assert rows == ["#....", "#....", "#....", "#....", "#....", "#....", "#####", "....."]


def test_characters_outside_ascii_are_question_marks() -> None:
    image = np.zeros((20, 60, 3), np.uint8)
    expected = image.copy()
    BuiltInFont(2).draw(image, 1, 2, "é\x00木", RED)
    BuiltInFont(2).draw(expected, 1, 2, "???", RED)

    assert image.any()
    assert np.array_equal(image, expected)


def test_text_that_crosses_the_border_is_cut_off() -> None:
    image = np.zeros((8, 5, 3), np.uint8)
    BuiltInFont(1).draw(image, 3, 6, "L is cut off at the border", GREEN)

    assert pixel(image, 6, 3) == GREEN
    assert not image[:6].any()


def test_text_outside_the_picture_is_not_drawn() -> None:
    image = np.zeros((8, 5, 3), np.uint8)
    BuiltInFont(1).draw(image, 50, 60, "outside", GREEN)

    assert not image.any()


# PNG.


def decode_png(data: bytes) -> np.ndarray:
    """Decode a PNG row by row, in another way than the package would."""
    chunks = dict(_iter_chunks(data))
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    channels = {2: 3, 6: 4}[rest[1]]
    assert rest == [8, rest[1], 0, 0, 0]
    raw = zlib.decompress(chunks[b"IDAT"])
    line_bytes = 1 + channels * width
    above = [0] * (channels * width)
    rows = []
    for row in range(height):
        line = raw[row * line_bytes : (row + 1) * line_bytes]
        assert line[0] == 2
        above = [(value + before) % 256 for value, before in zip(line[1:], above, strict=True)]
        rows.append(above)
    return np.array(rows, np.uint8).reshape(height, width, channels)


def _iter_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the types and contents of the chunks of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    offset = 8
    while offset < len(data):
        (size,) = struct.unpack_from(">I", data, offset)
        kind = data[offset + 4 : offset + 8]
        body = data[offset + 8 : offset + 8 + size]
        (checksum,) = struct.unpack_from(">I", data, offset + 8 + size)
        assert checksum == zlib.crc32(kind + body)
        yield kind, body
        offset += size + 12


@pytest.fixture
def random_image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (17, 23, 3), np.uint8)


def test_png_contains_the_picture(random_image: np.ndarray) -> None:
    assert np.array_equal(decode_png(encode_png(random_image)), random_image)


def test_png_contains_the_opacity_of_a_picture() -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 7, 4), np.uint8)
    assert np.array_equal(decode_png(encode_png(image)), image)


def test_equal_pictures_have_equal_png_bytes(random_image: np.ndarray) -> None:
    assert encode_png(random_image) == encode_png(random_image.copy())


# Invalid options.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PictureOptions(0, 600), "0 x 600 pixels"),
        (lambda: PictureOptions(100_000, 100_000), "100000 x 100000 pixels"),
        (lambda: Camera.parse("sideways"), "'sideways' is not a view"),
        (lambda: Camera.parse("10,91"), "'10,91' is not a view"),
        (lambda: Camera.parse("nan,0"), "'nan,0' is not a view"),
        (lambda: make_scene([[0, 0, 0]], [RED]).coloring("hue"), "cannot be coloured by 'hue'"),
    ],
    ids=["no width", "large picture", "name of a view", "elevation", "azimuth", "colouring"],
)
def test_invalid_options_of_a_picture_are_refused_with_a_hint(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ScanNetPrepError, match=message) as caught:
        make()
    assert caught.value.hint
