"""Tests of how pages draw points and edges, in a real browser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import Shown, draw, needs_browser
from commands import TRAIN, VAL

from scannet_prep.release.label_sets import SCANNET200
from scannet_prep.view.coloring import Coloring, ViewedScene, color_labels, color_normals
from scannet_prep.view.page import make_scene_page

pytestmark = needs_browser

# More vertices than a software renderer draws while the camera moves.
MANY_VERTICES = 60_000


def make_plane(columns: int, spacing: float, *, has_faces: bool = False) -> ViewedScene:
    """Make a level square of red vertices in rows and columns, seen from above."""
    x, y = np.meshgrid(np.arange(columns), np.arange(columns))
    flat = np.zeros(columns**2)
    points = np.stack([spacing * x.ravel(), spacing * y.ravel(), flat], axis=1).astype(np.float32)
    faces = None
    if has_faces:
        first = (columns * y[:-1, :-1] + x[:-1, :-1]).ravel()
        lower = np.stack([first, first + 1, first + columns], axis=1)
        upper = np.stack([first + 1, first + columns + 1, first + columns], axis=1)
        faces = np.concatenate([lower, upper]).astype(np.int32)
    red = np.tile(np.array([200, 0, 0], np.uint8), (len(points), 1))
    normals = np.tile(np.array([0, 0, 1], np.float32), (len(points), 1))
    return ViewedScene(
        scene_id=f"{columns} columns",
        split="",
        frame="",
        points=points,
        normals=normals,
        faces=faces,
        colorings={
            "rgb": Coloring("rgb", "colours", red),
            # The page reads the normals from these colours.
            "normals": color_normals(normals),
        },
    )


@pytest.fixture(scope="module")
def show_plane(
    show: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Shown]:
    def show_plane(link: str, *args: Any, **options: Any) -> Shown:
        path = tmp_path_factory.mktemp("plane") / "plane.html"
        path.write_bytes(make_scene_page([make_plane(*args, **options)]))
        return show(path, link)

    return show_plane


def measure(is_drawn: np.ndarray) -> tuple[int, int, float]:
    """Return width and height of the box around the drawn pixels, and their share of it."""
    rows = np.flatnonzero(is_drawn.any(axis=1))
    columns = np.flatnonzero(is_drawn.any(axis=0))
    width = int(columns[-1] - columns[0] + 1)
    height = int(rows[-1] - rows[0] + 1)
    return width, height, is_drawn.sum() / (width * height)


def see_middle(shown: Shown) -> np.ndarray:
    """Return which pixels in the middle of the picture are not background."""
    pixels = shown.pixels()
    rows, columns = np.array(pixels.shape[:2]) // 2
    return (pixels[rows - 26 : rows + 26, columns - 40 : columns + 40] != 255).any(axis=2)


# The camera is near a vertex: small discs are apart.
APART = "#color=rgb&points=0.25&edges=false"


def test_point_seen_from_above_is_a_round_disc(show_plane: Callable[..., Shown]) -> None:
    shown = show_plane(f"{APART}&view=-1.5708,1.5708,0.125,1,1,0", 81, 0.025)
    width, height, share = measure(see_middle(shown))

    assert abs(width - height) <= 2
    assert share == pytest.approx(math.pi / 4, abs=0.04)


def test_point_seen_from_the_side_is_flat_like_its_surface(
    show_plane: Callable[..., Shown],
) -> None:
    # The camera looks down by 30 degrees.
    shown = show_plane(f"{APART}&view=-1.5708,0.5236,0.125,1,1,0", 81, 0.025)
    width, height, _ = measure(see_middle(shown))

    assert height / width == pytest.approx(0.5, abs=0.08)


def test_points_of_sparse_surfaces_are_larger(show: Callable[..., Shown], tmp_path: Path) -> None:
    dense = make_plane(81, 0.025)
    sparse = make_plane(81, 0.035)
    assert dense.normals is not None
    both = replace(
        dense,
        points=np.concatenate([dense.points, sparse.points + np.float32(5)]),
        normals=np.concatenate([dense.normals, dense.normals]),
        colorings={
            name: replace(each, colors=np.concatenate([each.colors, each.colors]))
            for name, each in dense.colorings.items()
        },
    )
    path = tmp_path / "both.html"
    path.write_bytes(make_scene_page([both]))

    shown = show(path)
    widths = []
    for x, z in [(1, 0), (6.4, 5)]:
        shown.follow(f"{APART}&view=-1.5708,1.5708,0.125,{x},{x},{z}")
        widths.append(measure(see_middle(shown))[0])
    assert widths[1] / widths[0] == pytest.approx(1.4, abs=0.1)


def test_points_of_a_plane_leave_no_hole(show_plane: Callable[..., Shown]) -> None:
    shown = show_plane("#color=rgb&view=-1.5708,1.2,4,1,1,0", 41, 0.05)
    height, width = shown.pixels().shape[:2]
    middle = shown.pixels()[height // 3 : -height // 3, width // 3 : -width // 3]

    assert (middle != 255).any(axis=2).all()


# Eye-dome lighting.


@pytest.mark.parametrize("scene_id", [TRAIN, VAL], ids=["triangles", "points"])
@pytest.mark.parametrize("color", ["rgb", "scannet20", "normals"])
def test_edges_are_darker_and_nothing_is_lighter(shown: Shown, scene_id: str, color: str) -> None:
    plain = shown.follow(f"#scene={scene_id}&color={color}&edges=false").pixels().astype(int)
    shaded = shown.follow(f"#scene={scene_id}&color={color}").pixels()

    darker_share = (plain - shaded > 30).any(axis=2).mean()
    assert (shaded <= plain).all()
    assert 0.005 < darker_share < 0.25


@pytest.mark.parametrize("ortho", ["false", "true"])
def test_inclined_plane_has_no_shadow(show_plane: Callable[..., Shown], ortho: str) -> None:
    shown = show_plane(f"#color=rgb&ortho={ortho}&view=-1.2,0.4,4,1,1,0", 21, 0.1, has_faces=True)
    pixels = shown.pixels()
    drawn = pixels[(pixels != 255).any(axis=2)]

    # Pixels at the rim are blended with the background, and so lighter.
    assert drawn[:, 0].min() >= 197


def add_slivers(plane: ViewedScene, count: int, size: float) -> ViewedScene:
    """Add small triangles half a metre above a plane of red vertices."""
    assert plane.faces is not None
    assert plane.normals is not None
    corners = np.random.default_rng(0).uniform(0.2, 1.8, (count, 1, 3))
    corners[..., 2] = 0.5
    slivers = corners + size * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    faces = len(plane.points) + np.arange(3 * count).reshape(count, 3)
    red = np.tile(np.array([200, 0, 0], np.uint8), (3 * count, 1))
    return replace(
        plane,
        points=np.concatenate([plane.points, slivers.reshape(-1, 3)]).astype(np.float32),
        normals=None,
        faces=np.concatenate([plane.faces, faces]).astype(np.int32),
        colorings={
            "rgb": Coloring("rgb", "colours", np.concatenate([plane.colorings["rgb"].colors, red]))
        },
    )


def test_sliver_of_a_pixel_casts_no_shadow(show: Callable[..., Shown], tmp_path: Path) -> None:
    path = tmp_path / "slivers.html"
    plane = make_plane(21, 0.1, has_faces=True)
    path.write_bytes(make_scene_page([add_slivers(plane, count=50, size=0.006)]))

    shown = show(path, "#color=rgb&ortho=true&view=-1.5708,1.5708,4,1,1,0")
    pixels = shown.pixels()

    drawn = pixels[(pixels != 255).any(axis=2)]
    assert drawn[:, 0].min() >= 197


def test_key_h_switches_the_edges(shown: Shown) -> None:
    shown.follow(f"#scene={VAL}")
    shown.press("h")

    assert "edges=false" in shown.link


# Light.


CLASS_COUNT = len(SCANNET200)
# Patches of the classes in a square, and the vertices along each side of a patch.
PATCHES = 15
PATCH_SIDE = 6


def make_patches(normal_z: int) -> ViewedScene:
    """Make a level square patch of each class of ScanNet200, with normals up, down or undefined."""
    classes = np.arange(CLASS_COUNT)
    corners = np.stack([classes % PATCHES, classes // PATCHES, 0 * classes], axis=1)
    x, y = np.divmod(np.arange(PATCH_SIDE**2), PATCH_SIDE)
    patch = np.stack([0.14 * x, 0.14 * y, 0 * x], axis=1)
    points = (corners[:, np.newaxis] + patch).reshape(-1, 3).astype(np.float32)

    first = np.arange(PATCH_SIDE**2).reshape(PATCH_SIDE, PATCH_SIDE)[:-1, :-1].ravel()
    lower = np.stack([first, first + PATCH_SIDE, first + 1], axis=1)
    upper = np.stack([first + 1, first + PATCH_SIDE, first + PATCH_SIDE + 1], axis=1)
    starts = PATCH_SIDE**2 * classes[:, np.newaxis, np.newaxis]
    faces = (np.concatenate([lower, upper]) + starts).reshape(-1, 3).astype(np.int32)

    normals = np.tile(np.array([0, 0, normal_z], np.float32), (len(points), 1))
    labels = np.repeat(classes, PATCH_SIDE**2)
    return ViewedScene(
        scene_id=f"normals {normal_z}",
        split="",
        frame="",
        points=points,
        normals=normals,
        faces=faces,
        colorings={
            "scannet200": color_labels(labels, SCANNET200),
            "normals": color_normals(normals),
        },
    )


@pytest.fixture(scope="module")
def patches(show: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Two scenes: without normals, so without light, and turned away from the light."""
    path = tmp_path_factory.mktemp("patches") / "patches.html"
    path.write_bytes(make_scene_page([make_patches(0), make_patches(-1)]))
    return show(path)


def share_of_own_class(patches: Shown, has_mesh: str, has_edges: str) -> float:
    """Return the share of pixels of the darkest shade that are nearest to their own swatch."""
    view = f"color=scannet200&backs=true&mesh={has_mesh}&ortho=true&view=-1.5708,1.5708,18,7,7,0"
    plain = patches.follow(f"#scene=normals 0&{view}&edges=false").pixels().astype(int)
    dark = patches.follow(f"#scene=normals -1&{view}&edges={has_edges}").pixels().astype(int)

    # Pixels of the same two colours count together. There are few such pairs.
    pairs = np.concatenate([plain, dark], axis=2).reshape(-1, 6)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    plain, dark = pairs[:, :3], pairs[:, 3:]
    swatches = np.array(SCANNET200.colors)
    distances = np.abs(plain[:, np.newaxis] - swatches).sum(axis=2)
    classes = distances.argmin(axis=1)
    # Not the rims of triangles, which are blended with the background.
    is_pure = distances.min(axis=1) == 0
    assert len(np.unique(classes[is_pure])) == CLASS_COUNT
    assert (dark[is_pure] < plain[is_pure]).any()
    nearest = ((dark[:, np.newaxis] - swatches) ** 2).sum(axis=2).argmin(axis=1)
    return float(np.average(nearest[is_pure] == classes[is_pure], weights=counts[is_pure]))


@pytest.mark.parametrize("has_mesh", ["true", "false"], ids=["triangles", "points"])
def test_darkest_pixels_of_200_classes_are_nearest_to_their_own_colour(
    patches: Shown, has_mesh: str
) -> None:
    assert share_of_own_class(patches, has_mesh, "false") == 1


@pytest.mark.parametrize("has_mesh", ["true", "false"], ids=["triangles", "points"])
def test_edges_leave_most_pixels_of_200_classes_nearest_to_their_own_colour(
    patches: Shown, has_mesh: str
) -> None:
    assert share_of_own_class(patches, has_mesh, "true") > 0.95


def test_pixels_of_classes_are_nearest_to_the_colour_of_their_class(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    pixels = shown.follow(f"#scene={TRAIN}&color=scannet20&edges=false").pixels()
    categories = seen[TRAIN].colorings["scannet20"].categories
    swatches = np.array([category.color for category in categories], float)

    expected = draw(seen[TRAIN], "scannet20")
    distances = ((pixels[:, :, np.newaxis] - swatches) ** 2).sum(axis=3)
    expected_distances = ((expected[:, :, np.newaxis] - swatches) ** 2).sum(axis=3)
    is_drawn = (expected != 255).any(axis=2)
    is_alike = distances.argmin(axis=2) == expected_distances.argmin(axis=2)
    assert is_alike[is_drawn].mean() > 0.93


# Drafts while the camera moves.

RECORD_COUNTS = """() => {
    window.counts = [];
    const { gl } = viewer.drawing;
    const draw = gl.drawArrays;
    gl.drawArrays = (kind, first, count) => {
        if (kind === gl.POINTS) counts.push(count);
        draw.call(gl, kind, first, count);
    };
}"""


@pytest.fixture(scope="module")
def many_points(show: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    path = tmp_path_factory.mktemp("many") / "many.html"
    plane = make_plane(math.isqrt(MANY_VERTICES), 0.02)
    path.write_bytes(make_scene_page([plane]))
    shown = show(path)
    shown.wait()
    shown.page.evaluate(RECORD_COUNTS)
    return shown


def test_moving_camera_draws_fewer_points_without_a_graphics_card(many_points: Shown) -> None:
    many_points.page.evaluate("counts.length = 0")
    many_points.press("Shift+ArrowLeft")

    # Looking for the vertex under the mouse draws all of them once, at any time.
    most = MANY_VERTICES / 2
    many_points.page.wait_for_function(f"() => counts.some((count) => count < {most})")


def test_camera_that_stands_still_draws_all_points(many_points: Shown) -> None:
    many_points.press("Shift+ArrowLeft")
    many_points.wait()

    assert many_points.page.evaluate("counts.at(-1)") == math.isqrt(MANY_VERTICES) ** 2


def test_opened_view_is_drawn_first_with_fewer_points(many_points: Shown) -> None:
    many_points.page.evaluate("counts.length = 0")
    many_points.follow("#color=rgb")

    assert many_points.page.evaluate("counts[0]") < MANY_VERTICES / 2


def test_opened_view_is_drawn_in_full_at_last(many_points: Shown) -> None:
    many_points.follow("#color=rgb")

    assert many_points.page.evaluate("counts.at(-1)") == math.isqrt(MANY_VERTICES) ** 2


def test_draft_covers_the_same_surface(many_points: Shown) -> None:
    many_points.follow("#color=rgb&edges=false")
    full = (many_points.pixels() != 255).any(axis=2)
    many_points.page.evaluate("viewer.cameraMoved()")
    many_points.page.wait_for_function("() => viewer.view.isDraft")
    # Read the picture before the camera has stood still for long enough.
    width, height, drawn = many_points.page.evaluate(COUNT_DRAWN)

    assert drawn / (width * height) == pytest.approx(full.mean(), rel=0.1)


COUNT_DRAWN = """async () => {
    viewer.cameraMoved();
    await new Promise(requestAnimationFrame);
    const { width, height } = viewer.canvas;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(viewer.canvas, 0, 0);
    const { data } = context.getImageData(0, 0, width, height);
    let drawn = 0;
    for (let i = 0; i < data.length; i += 4) drawn += data[i + 1] < 255 ? 1 : 0;
    return [width, height, drawn];
}"""


@pytest.fixture
def small_page(tmp_path: Path) -> Path:
    path = tmp_path / "small.html"
    path.write_bytes(make_scene_page([make_plane(20, 0.1)]))
    return path


def test_small_scenes_are_always_drawn_in_full(
    show: Callable[..., Shown], small_page: Path
) -> None:
    shown = show(small_page)
    shown.wait()
    shown.page.evaluate(RECORD_COUNTS)
    shown.press("Shift+ArrowLeft")
    shown.page.wait_for_function("() => counts.length > 0")

    assert shown.page.evaluate("counts[0]") == 400
