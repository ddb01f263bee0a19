"""Tests of figures for papers: the view of a link, smooth edges, hidden classes, and text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TRAIN, VAL, run_main
from test_renderer import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    colors_of,
    decode_png,
    make_colored_scene,
    make_grid_faces,
    make_scene,
    pixel,
)

from scannet_prep import SCANNET20
from scannet_prep.errors import UsageError
from scannet_prep.synthetic import write_release
from scannet_prep.view.camera import FIELD_OF_VIEW, Camera, PlacedCamera
from scannet_prep.view.categories import Category
from scannet_prep.view.coloring import ViewedScene, color_labels
from scannet_prep.view.fonts import BuiltInFont, Font, PillowFont
from scannet_prep.view.legend import Legend
from scannet_prep.view.renderer import PictureOptions, render_scene
from scannet_prep.view.splats import estimate_radii
from scannet_prep.view.visibility import Visibility

TOP = Camera.parse("top")
# In the middle of a room, 1 m above the floor, looking level towards smaller x.
INSIDE = PlacedCamera(azimuth=0, elevation=0, target=(0, 0, 1), distance=1)


def plain(width: int = 80, height: int = 60, **options: Any) -> PictureOptions:
    """Return the options of a picture without a legend."""
    return PictureOptions(width, height, has_legend=False, **options)


def make_square(color: Any, *, is_mesh: bool = True) -> ViewedScene:
    """Make a square of 2 x 2 m that faces upwards: a grid of vertices of one colour."""
    across, along = np.meshgrid(np.linspace(0, 2, 70), np.linspace(0, 2, 70))
    points = np.stack([across.ravel(), along.ravel(), np.zeros(4900)], axis=1)
    faces = make_grid_faces(70, 70) if is_mesh else None
    return make_scene(points, [color] * 4900, faces, normals=[[0, 0, 1]] * 4900)


# The camera of a page.


def test_placed_camera_shows_its_target_in_the_middle() -> None:
    camera = PlacedCamera(azimuth=25, elevation=35, target=(1, 2, 3), distance=4)
    projected = camera.project(np.array([[1, 2, 3]], np.float32), width=300, height=200)

    assert projected.x[0] == pytest.approx(149.5, abs=1e-3)
    assert projected.y[0] == pytest.approx(99.5, abs=1e-3)
    assert 1 / projected.nearness[0] == pytest.approx(4, rel=1e-5)


def test_field_of_view_of_a_placed_camera_is_that_of_the_shorter_side() -> None:
    camera = PlacedCamera(azimuth=0, elevation=0, target=(0, 0, 0), distance=5)
    height_m = 5 * math.tan(FIELD_OF_VIEW / 2)

    projected = camera.project(np.array([[0, 0, height_m]], np.float32), width=300, height=200)

    assert projected.y[0] == pytest.approx(-0.5, abs=1e-3)


@pytest.mark.parametrize(("width", "height"), [(400, 200), (300, 300), (100, 400)])
def test_picture_of_any_shape_contains_the_whole_view_of_a_placed_camera(
    width: int, height: int
) -> None:
    camera = PlacedCamera(azimuth=0, elevation=0, target=(0, 0, 0), distance=5, aspect=1.5)
    half_height = 5 * math.tan(FIELD_OF_VIEW / 2)
    corner = np.array([[0, 1.5 * half_height, half_height]], np.float32)

    projected = camera.project(corner, width, height)

    margins = (width - 0.5 - projected.x[0], projected.y[0] + 0.5)
    assert min(margins) == pytest.approx(0, abs=1e-2)


# Surfaces that reach behind the camera.


def test_triangle_that_reaches_behind_the_camera_is_cut_off() -> None:
    floor = [[-9, -9, 0], [9, -9, 0], [9, 9, 0], [-9, 9, 0]]
    scene = make_scene(floor, [GREEN] * 4, faces=[[0, 1, 2], [0, 2, 3]])

    image = render_scene(scene, "rgb", plain(camera=INSIDE))

    assert (image[45:] == GREEN).all()
    assert (image[:30] == 255).all()


def test_points_behind_the_camera_are_not_drawn() -> None:
    scene = make_scene([[-3, 0, 1], [3, 0, 1], [4, 0.1, 1]], [RED, BLUE, BLUE])
    image = render_scene(scene, "rgb", plain(camera=INSIDE, samples=1))

    assert colors_of(image) == {RED, WHITE}


# Smooth edges, and points as discs.


@pytest.mark.parametrize("is_mesh", [True, False])
def test_edges_are_mixed_with_the_background(is_mesh: bool) -> None:
    camera = Camera(azimuth=-70, elevation=60)
    scene = make_square(RED, is_mesh=is_mesh)

    image = render_scene(scene, "rgb", plain(camera=camera, samples=3))

    reds = np.unique(image[..., 1])
    assert {0, 255} < set(reds.tolist())
    assert len(reds) > 4


def test_discs_of_a_surface_leave_no_hole() -> None:
    scene = make_square(GREEN, is_mesh=False)
    camera = Camera(azimuth=-90, elevation=30)

    image = render_scene(scene, "rgb", plain(300, 300, camera=camera, samples=2))

    is_filled = (image == GREEN).all(axis=2)
    # The rim of the surface consists of arcs.
    rows = np.flatnonzero(is_filled.any(axis=1))
    inner = is_filled[rows[20] : rows[-20], 120:180]
    assert inner.all()


def test_discs_near_the_camera_leave_no_hole() -> None:
    scene = make_square(GREEN, is_mesh=False)
    camera = PlacedCamera(azimuth=-90, elevation=90, target=(1, 1, 0), distance=0.2)

    image = render_scene(scene, "rgb", plain(300, 300, camera=camera, samples=2))

    assert (image == GREEN).all()


def test_discs_are_larger_where_vertices_are_sparse() -> None:
    across, along = np.meshgrid(np.linspace(0, 1, 60), np.linspace(0, 1, 60))
    dense = np.stack([across, along, np.zeros_like(across)], axis=-1).reshape(-1, 3)
    sparse = np.add(dense[::4], [2, 0, 0])
    points = np.concatenate([dense, sparse]).astype(np.float32)

    radii = estimate_radii(points)

    assert np.median(radii[len(dense) :]) > 1.5 * np.median(radii[: len(dense)])


def test_vertices_at_one_point_have_discs_without_size() -> None:
    assert (estimate_radii(np.ones((3, 3), np.float32)) == 0).all()


def test_discs_of_a_surface_cover_the_pixels_of_its_triangles() -> None:
    camera = Camera(azimuth=-90, elevation=20)
    options = plain(300, 300, camera=camera, samples=2)
    triangles = render_scene(make_square(GREEN), "rgb", options) != 255
    discs = render_scene(make_square(GREEN, is_mesh=False), "rgb", options) != 255

    assert (discs & triangles).sum() > 0.99 * triangles.sum()
    assert discs.sum() < 1.3 * triangles.sum()


@pytest.mark.parametrize("samples", [1, 3])
def test_smaller_points_cover_less(samples: int) -> None:
    scene = make_square(GREEN, is_mesh=False)
    whole = render_scene(scene, "rgb", plain(300, 300, camera=TOP, samples=samples))
    options = plain(300, 300, camera=TOP, samples=samples, point_scale=0.25)
    drawn = render_scene(scene, "rgb", options)

    assert 0.02 < (drawn == GREEN).all(axis=2).mean() / (whole == GREEN).all(axis=2).mean() < 0.8


def test_picture_in_bands_is_that_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_square(RED, is_mesh=False)
    options = plain(camera=Camera(azimuth=-70, elevation=50), samples=2)
    whole = render_scene(scene, "rgb", options)
    monkeypatch.setattr("scannet_prep.view.renderer._MAX_SAMPLES", 7 * 80 * 4)

    assert np.array_equal(render_scene(scene, "rgb", options), whole)


# Backgrounds.


def test_transparent_background_has_no_opacity() -> None:
    options = plain(camera=TOP, samples=3, background=None)
    image = render_scene(make_square(RED), "rgb", options)

    assert image[0, 0].tolist() == [0, 0, 0, 0]
    assert image[30, 40].tolist() == [*RED, 255]


def test_edge_on_a_transparent_background_keeps_its_colour() -> None:
    options = plain(camera=Camera(-70, 60), samples=3, background=None)
    image = render_scene(make_square(RED), "rgb", options)
    is_edge = (image[..., 3] > 0) & (image[..., 3] < 255)

    assert is_edge.any()
    assert (image[is_edge][:, :3] == RED).all()


def test_background_has_the_given_colour() -> None:
    options = plain(camera=TOP, samples=2, background=(10, 20, 30))
    assert pixel(render_scene(make_square(RED), "rgb", options), 0, 0) == (10, 20, 30)


# What is hidden.


@pytest.fixture
def halves() -> ViewedScene:
    """A square whose vertices are a wall on the left, and unlabeled on the right; the floor is
    missing."""
    square = make_square(RED)
    labels = np.where(square.points[:, 0] < 1, SCANNET20.names.index("wall"), -1)
    colorings = {**square.colorings, "scannet20": color_labels(labels, SCANNET20)}
    return replace(square, colorings=colorings)


def render_with(scene: ViewedScene, color: str, **hidden: Any) -> np.ndarray:
    """Draw a scene from above, with a part of it hidden."""
    return render_scene(scene, color, plain(camera=TOP, visibility=Visibility(**hidden)))


def drawn_sides(image: np.ndarray) -> tuple[bool, bool]:
    """Return whether something is drawn on the left, and on the right."""
    is_drawn = (image != 255).any(axis=2)
    return bool(is_drawn[:, 15:37].any()), bool(is_drawn[:, 43:].any())


@pytest.mark.parametrize("color", ["scannet20", "rgb"])
def test_hidden_class_is_hidden_in_every_colouring(halves: ViewedScene, color: str) -> None:
    assert drawn_sides(render_with(halves, color, hidden=["wall"])) == (False, True)


def test_class_that_the_scene_does_not_have_hides_nothing(halves: ViewedScene) -> None:
    image = render_with(halves, "rgb", hidden=["floor"])
    assert np.array_equal(image, render_with(halves, "rgb"))


def test_unknown_class_is_refused_with_similar_names(halves: ViewedScene) -> None:
    with pytest.raises(UsageError, match="'wal' cannot be hidden") as caught:
        render_with(halves, "rgb", hidden=["wal"])
    assert caught.value.hint == "similar names: wall"


def test_only_hides_all_other_categories(halves: ViewedScene) -> None:
    assert drawn_sides(render_with(halves, "scannet20", only={"unlabeled"})) == (False, True)


def test_hidden_numbers_hide_their_categories(halves: ViewedScene) -> None:
    names = [category.name for category in halves.colorings["scannet20"].categories]
    numbers = {names.index("unlabeled")}

    assert drawn_sides(render_with(halves, "scannet20", hidden_numbers=numbers)) == (True, False)


def test_category_of_another_colouring_is_hidden(halves: ViewedScene) -> None:
    others = {"scannet20": Visibility(only={"unlabeled"})}
    assert drawn_sides(render_with(halves, "rgb", others=others)) == (False, True)


def test_hiding_by_a_missing_colouring_is_refused(halves: ViewedScene) -> None:
    with pytest.raises(UsageError, match="the scene has no such colouring"):
        render_with(halves, "rgb", others={"error": Visibility(hidden=["wrong"])})


def test_ceiling_hides_triangles_above_it(halves: ViewedScene) -> None:
    points = halves.points.copy()
    points[:, 2] = np.where(points[:, 0] < 1, 2, 0)
    image = render_with(replace(halves, points=points), "rgb", ceiling=1)

    assert drawn_sides(image) == (False, True)


# The legend and its text.

FONTS = [BuiltInFont, PillowFont]


def make_font(kind: Any, scale: int) -> Font:
    font: Font = kind(scale)
    return font


@pytest.mark.parametrize("kind", FONTS)
def test_text_is_as_wide_as_measured(kind: Any) -> None:
    font = make_font(kind, 2)
    image = np.full((30, 200, 3), 255, np.uint8)

    font.draw(image, 10, 0, "wall H", (0, 0, 0))

    columns = np.flatnonzero((image < 128).any(axis=(0, 2)))
    assert 10 <= columns[0] <= 12
    assert 10 + font.measure("wall") < columns[-1] < 10 + font.measure("wall H")


@pytest.mark.parametrize("kind", FONTS)
def test_text_on_a_transparent_picture_is_opaque(kind: Any) -> None:
    image = np.zeros((30, 60, 4), np.uint8)
    make_font(kind, 2).draw(image, 0, 0, "H", (9, 9, 9))

    assert image[..., 3].max() == 255


@pytest.mark.parametrize("kind", FONTS)
def test_text_at_the_border_is_cut_off(kind: Any) -> None:
    image = np.full((10, 20, 3), 255, np.uint8)
    font = make_font(kind, 1)

    font.draw(image, 15, 5, "wall", (0, 0, 0))
    font.draw(image, 50, 50, "wall", (0, 0, 0))

    assert (image[:5] == 255).all()
    assert (image[5:, 15:] < 255).any()


def test_font_of_pillow_has_smooth_edges() -> None:
    image = np.full((30, 60, 3), 255, np.uint8)
    make_font(PillowFont, 2).draw(image, 0, 0, "o", (0, 0, 0))

    assert len(np.unique(image)) > 8


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts in pictures with smooth edges."""
    texts: list[str] = []

    class ListingFont(BuiltInFont):
        def draw(self, *arguments: Any) -> None:
            texts.append(arguments[3])

    monkeypatch.setattr("scannet_prep.view.renderer.PillowFont", ListingFont)
    return texts


def test_legend_lists_only_the_classes_in_the_picture(listed: list[str]) -> None:
    """The second half of 200 classes is behind the camera."""
    labels = np.arange(20)
    points = np.stack([np.where(labels < 10, -3, 3), labels % 10 / 10 - 0.5, np.ones(20)], axis=1)
    scene = make_colored_scene(points, color_labels(labels, SCANNET20))

    render_scene(scene, "scannet20", PictureOptions(400, 300, INSIDE, samples=2))

    names = [text for text in listed if text in SCANNET20.names]
    assert names == list(SCANNET20.names[:10])


def test_legend_has_room_for_the_longest_name_in_the_picture() -> None:
    names = ["wall"] * 99 + ["a category of a longer name"]
    categories = [Category(name, RED, 1) for name in names]
    legend = Legend(categories, 100, BuiltInFont(1), 300)
    image = np.full((300, 400, 3), 255, np.uint8)

    legend.draw(image, categories[-1:], (0, 0, 0))

    share_left = 400 - 8 - 4 * 6
    assert (image[:, share_left - 8 : share_left] == 255).all()
    assert (image[:, :share_left] == 0).any()


def test_legend_does_not_list_hidden_classes(halves: ViewedScene, listed: list[str]) -> None:
    visibility = Visibility(hidden=["wall"])
    options = PictureOptions(400, 300, TOP, samples=2, visibility=visibility)

    render_scene(halves, "scannet20", options)

    assert "unlabeled" in listed
    assert "wall" not in listed


def test_legend_without_categories_has_no_width() -> None:
    assert Legend((), 100, BuiltInFont(1), 300).width == 0


# The command.


@pytest.fixture(scope="module")
def processed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("figures")
    write_release(root / "raw", (TRAIN, VAL), vertices=2000)
    words = ("process", root / "raw", "-o", root / "processed", "--faces")
    assert run_main(*words).status == 0
    return root / "processed"


def make_figure(processed: Path, folder: Path, *words: str) -> np.ndarray:
    """Run the command, and return the picture."""
    outcome = run_main(
        "view", *words, "--source", processed, "-o", folder / "figure.png", "--legend", "none"
    )
    assert outcome.status == 0, outcome.stderr
    return decode_png((folder / "figure.png").read_bytes())


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        (("--width", "200"), (150, 200, 3)),
        (("--size", "90x70", "--background", "transparent"), (70, 90, 4)),
    ],
    ids=["width", "transparent"],
)
def test_options_determine_the_shape_of_the_picture(
    processed: Path, tmp_path: Path, words: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    assert make_figure(processed, tmp_path, VAL, *words).shape == shape


@pytest.mark.parametrize(
    ("words", "corner"),
    [
        ((), [255, 255, 255]),
        (("--background", "#102030"), [16, 32, 48]),
        (("--background", "black"), [0, 0, 0]),
    ],
    ids=["default", "number", "name"],
)
def test_background_is_that_of_the_option(
    processed: Path, tmp_path: Path, words: tuple[str, ...], corner: list[int]
) -> None:
    image = make_figure(processed, tmp_path, VAL, "--size", "80x60", *words)
    assert image[0, 0].tolist() == corner


def test_hidden_classes_are_hidden(processed: Path, tmp_path: Path) -> None:
    by_option = make_figure(processed, tmp_path, VAL, "--hide", "wall", "floor")

    assert not np.array_equal(by_option, make_figure(processed, tmp_path, VAL))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "0"], "'0' is not a width in pixels"),
        (["--background", "red"], "'red' is not a background"),
        (["--hide", "wal"], "'wal' cannot be hidden"),
        (["--width", "90000"], "90000 x 67500 pixels"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_of_a_figure_are_refused(
    processed: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    path = tmp_path / "figure.png"

    outcome = run_main("view", VAL, "--source", processed, "-o", path, *words)

    assert outcome.status == 2
    assert message in outcome.stderr
    assert not path.exists()
