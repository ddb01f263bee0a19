"""Tests of the selection, the tooltip and hidden categories of a page, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from browsers import HEIGHT, WIDTH, Shown, draw, needs_browser, parse_point, parse_view, share_alike
from commands import TRAIN, VAL

from scannet_prep.view.coloring import ViewedScene

pytestmark = needs_browser

TRAIN_LABELS = f"#scene={TRAIN}&color=scannet20"
OUTLINE = (255, 0, 199)
# The left edge of the picture in the window.
LEFT = 312


class Selected(NamedTuple):
    """A point that was clicked.

    Attributes:
        x: Pixels from the left of the picture.
        y: Pixels from its top.
        rows: The rows of the panel.
    """

    x: float
    y: float
    rows: dict[str, str]


def select_instance(shown: Shown, scene: ViewedScene) -> Selected:
    """Click a pixel of an instance."""
    x, y = find_pixel(scene)
    return Selected(x, y, shown.select(x, y))


def find_pixel(scene: ViewedScene) -> tuple[int, int]:
    """Find the middle of an area of one instance with a raw category and an object id."""
    pixels = draw(scene, "instances").astype(int)
    for category in scene.colorings["instances"].categories[3:]:
        # Light makes a colour at most by a tenth darker.
        is_seen = (np.abs(pixels - category.color) <= np.array(category.color) * 0.08).all(axis=2)
        squares = np.lib.stride_tricks.sliding_window_view(is_seen, (15, 15)).all(axis=(2, 3))
        if category.object_id is not None and squares.any():
            y, x = (np.argwhere(squares)[0] + 7).tolist()
            return x, y
    raise AssertionError("no instance is large enough in the picture")


def vertex_of(rows: dict[str, str]) -> int:
    return int(rows["vertex"])


def instance_of(scene: ViewedScene, vertex: int) -> np.ndarray:
    """Return which vertices belong to the instance of a vertex."""
    indices = scene.colorings["instances"].indices
    assert indices is not None
    return indices == indices[vertex]


def count_drawn(pixels: np.ndarray) -> int:
    return int((pixels != 255).any(axis=2).sum())


# The tooltip.


def hover(shown: Shown, x: float, y: float) -> dict[str, str]:
    """Point at a position of the picture, and return the tooltip."""
    shown.page.mouse.move(LEFT + x, y)
    return shown.tooltip("x, y, z")


def hover_again(shown: Shown, x: float, y: float) -> dict[str, str] | None:
    """Leave the picture and point at it again; returns None on the background."""
    shown.page.mouse.move(100, 20)
    shown.page.locator("#tooltip").wait_for(state="hidden")
    shown.page.mouse.move(LEFT + x, y)
    shown.wait()
    shown.page.wait_for_timeout(300)
    if shown.page.locator("#tooltip").is_hidden():
        return None
    return shown.tooltip("x, y, z")


@pytest.mark.parametrize("key", ["Shift+ArrowLeft", "w", "t"])
def test_tooltip_describes_the_point_under_the_mouse_after_a_key(shown: Shown, key: str) -> None:
    shown.follow(TRAIN_LABELS)
    before = hover(shown, 330, 170)
    shown.press(key)
    shown.page.wait_for_function(
        "before => document.getElementById('tooltip').innerText.indexOf(before) < 0",
        arg=before["x, y, z"],
    )
    shown.page.wait_for_timeout(300)
    after = shown.tooltip("x, y, z")

    assert after == hover_again(shown, 330, 170)


def test_tooltip_describes_the_point_under_the_mouse_after_the_wheel(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    hover(shown, 330, 170)
    shown.page.mouse.wheel(0, 400)
    shown.wait()
    shown.page.wait_for_timeout(300)
    after = shown.tooltip("x, y, z")

    assert after == hover_again(shown, 330, 170)


def test_tooltip_hides_when_its_point_leaves_the_picture(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    hover(shown, 330, 170)

    shown.page.evaluate("viewer.camera.target = [90, 90, 90]; viewer.cameraMoved()")

    shown.page.locator("#tooltip").wait_for(state="hidden")


# The selection.


@pytest.fixture
def selected(shown: Shown, seen: dict[str, ViewedScene]) -> Selected:
    shown.follow(TRAIN_LABELS)
    return select_instance(shown, seen[TRAIN])


def test_selection_has_the_index_of_the_vertex_in_the_mesh(
    selected: Selected, seen: dict[str, ViewedScene]
) -> None:
    point = seen[TRAIN].points[vertex_of(selected.rows)]

    assert np.abs(point - parse_point(selected.rows["x, y, z"])).max() < 1e-3


@pytest.mark.parametrize(
    ("row", "name"), [("ScanNet20", "scannet20"), ("ScanNet200", "scannet200")]
)
def test_selection_has_the_class_in_both_label_sets(
    selected: Selected, seen: dict[str, ViewedScene], row: str, name: str
) -> None:
    coloring = seen[TRAIN].colorings[name]
    assert coloring.indices is not None
    category = coloring.categories[coloring.indices[vertex_of(selected.rows)]]

    assert selected.rows[row] == category.name


@pytest.mark.parametrize("row", ["raw category", "object id", "vertices"])
def test_selection_describes_the_group(
    selected: Selected, seen: dict[str, ViewedScene], row: str
) -> None:
    coloring = seen[TRAIN].colorings["instances"]
    assert coloring.indices is not None
    category = coloring.categories[coloring.indices[vertex_of(selected.rows)]]
    expected = {
        "raw category": category.raw_category,
        "object id": str(category.object_id),
        "vertices": str(category.count),
    }

    assert selected.rows[row] == expected[row]


def test_selection_has_the_box_of_the_group(
    selected: Selected, seen: dict[str, ViewedScene]
) -> None:
    scene = seen[TRAIN]
    points = scene.points[instance_of(scene, vertex_of(selected.rows))]
    low, high = map(parse_point, selected.rows["box"].split(" to "))

    assert np.abs(low - points.min(axis=0)).max() < 1e-3
    assert np.abs(high - points.max(axis=0)).max() < 1e-3


def test_selection_has_the_size_of_the_group(
    selected: Selected, seen: dict[str, ViewedScene]
) -> None:
    scene = seen[TRAIN]
    points = scene.points[instance_of(scene, vertex_of(selected.rows))]
    size = [float(part) for part in re.findall(r"[\d.]+", selected.rows["size"])]

    assert size == pytest.approx(np.ptp(points, axis=0), abs=0.006)


def test_selected_instance_has_an_outline(shown: Shown, selected: Selected) -> None:
    is_outline = (shown.pixels() == OUTLINE).all(axis=2)

    rows, columns = np.nonzero(is_outline)
    assert is_outline.sum() > 30
    # The outline surrounds the point.
    assert columns.min() < selected.x < columns.max()
    assert rows.min() < selected.y < rows.max()


def test_segment_is_selected_in_the_colours_of_segments(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={TRAIN}&color=segments")
    selected = select_instance(shown, seen[TRAIN])

    assert selected.rows["outlined"] == selected.rows["segment"]


def test_selection_stays_when_the_camera_moves(shown: Shown, selected: Selected) -> None:
    shown.press("Shift+ArrowLeft", "t")

    vertex = shown.page.locator("#selection dd").first.inner_text()
    assert vertex == selected.rows["vertex"]


@pytest.mark.parametrize("way", ["background", "Escape", "button"])
def test_selection_is_removed(shown: Shown, selected: Selected, way: str) -> None:
    if way == "background":
        shown.page.locator("#picture").click(position={"x": 2, "y": 2})
    elif way == "Escape":
        shown.press("Escape")
    else:
        shown.page.locator("#unselect").click()

    shown.page.locator("#selection").wait_for(state="hidden")
    assert not (shown.pixels() == OUTLINE).all(axis=2).any()


def test_dragging_selects_nothing(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.press("Escape")
    mouse = shown.page.mouse
    mouse.move(LEFT + 250, 150)
    mouse.down()
    mouse.move(LEFT + 290, 150)
    mouse.up()
    shown.wait()

    assert shown.page.locator("#selection").is_hidden()


def test_enter_selects_the_point_in_the_middle(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.press("Escape", "Enter")

    shown.page.locator("#selection").wait_for(state="visible")


def test_show_only_this_hides_the_rest_in_all_colourings(shown: Shown, selected: Selected) -> None:
    everything = count_drawn(shown.pixels())
    shown.page.locator("#show-only").click()
    in_labels = count_drawn(shown.pixels())
    shown.page.locator("#colorings input[value=rgb]").check(force=True)
    in_rgb = count_drawn(shown.pixels())

    assert 0 < in_labels < everything / 3
    assert in_rgb == in_labels


def test_copy_puts_the_rows_on_the_clipboard(
    show: Callable[..., Shown], page_path: Path, seen: dict[str, ViewedScene]
) -> None:
    shown = show(page_path, TRAIN_LABELS, permissions=["clipboard-read", "clipboard-write"])
    shown.wait()
    selected = select_instance(shown, seen[TRAIN])
    shown.page.locator("#copy").click()
    shown.page.locator("#announcement", has_text="copied").wait_for(state="attached")
    text = shown.page.evaluate("navigator.clipboard.readText()")

    assert text == "\n".join(f"{name}: {value}" for name, value in selected.rows.items())


def test_centre_here_turns_about_the_selected_point(shown: Shown, selected: Selected) -> None:
    shown.page.locator("#centre").click()
    target = parse_view(shown.link)[3:]

    assert target == pytest.approx(parse_point(selected.rows["x, y, z"]), abs=1e-3)


def test_next_scene_has_no_selection(shown: Shown, selected: Selected) -> None:
    shown.press("n")
    shown.page.wait_for_function("name => viewer.scene.name === name", arg=VAL)

    assert shown.page.locator("#selection").is_hidden()


# The distance.


@pytest.mark.parametrize("way", ["Shift", "button"])
def test_distance_between_two_points_is_measured(
    shown: Shown, selected: Selected, way: str
) -> None:
    picture = shown.page.locator("#picture")
    other = {"x": WIDTH / 2, "y": HEIGHT / 2}
    if way == "Shift":
        picture.click(position=other, modifiers=["Shift"])
    else:
        shown.page.locator("#measure").click()
        picture.click(position=other)
    row = shown.page.locator("#selection dt", has_text="distance")
    row.wait_for(state="visible")
    distance = float(shown.page.locator("#selection dd").last.inner_text().removesuffix(" m"))

    shown.page.mouse.move(LEFT + WIDTH / 2 + 1, HEIGHT / 2)
    shown.page.mouse.move(LEFT + WIDTH / 2, HEIGHT / 2)
    end = parse_point(shown.tooltip("x, y, z")["x, y, z"])
    start = parse_point(selected.rows["x, y, z"])
    assert distance == pytest.approx(np.linalg.norm(end - start), abs=2e-3)
    assert shown.page.locator("#overlay text.distance").text_content() == f"{distance:.3f} m"


# Hidden categories.


def hide(shown: Shown, name: str) -> None:
    shown.page.get_by_label(re.compile(f"^{name}")).first.click()


def test_hidden_class_stays_hidden_in_other_colourings(shown: Shown) -> None:
    everything = count_drawn(shown.follow(f"#scene={TRAIN}&color=rgb").pixels())
    shown.follow(TRAIN_LABELS)
    hide(shown, "wall")
    shown.page.locator("#colorings input[value=rgb]").check(force=True)

    assert count_drawn(shown.pixels()) < 0.9 * everything


def test_hidden_class_stays_hidden_in_the_next_scene(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    hide(shown, "wall")
    shown.press("n")
    shown.page.wait_for_function("name => viewer.scene.name === name", arg=VAL)

    assert "hide=wall" in shown.link


def test_hidden_instance_is_not_hidden_in_the_next_scene(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}&color=instances")
    shown.page.locator("#none").click()
    shown.press("n")
    shown.page.wait_for_function("name => viewer.scene.name === name", arg=VAL)

    assert re.search("hide|only", shown.link) is None


def test_page_mentions_what_other_colourings_hide(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    hide(shown, "wall")
    shown.page.locator("#colorings input[value=rgb]").check(force=True)
    shown.wait()

    assert shown.text("#hidden-list") == "Also hidden: 1 of ScanNet20"


def test_show_all_shows_what_other_colourings_hide(shown: Shown) -> None:
    before = shown.follow(f"#scene={TRAIN}&color=rgb").pixels()
    shown.follow(f"#scene={TRAIN}&color=rgb&hide.scannet20=wall")
    shown.page.locator("#show-all").click()

    assert np.array_equal(shown.pixels(), before)


def test_link_contains_what_other_colourings_hide(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    hide(shown, "wall")
    shown.page.locator("#colorings input[value=rgb]").check(force=True)

    assert "hide.scannet20=wall" in shown.link


def test_link_restores_what_other_colourings_hide(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    hide(shown, "wall")
    shown.page.locator("#colorings input[value=rgb]").check(force=True)
    before = shown.pixels()
    link = shown.link
    shown.follow(f"#scene={TRAIN}&color=rgb")

    # Numbers in the link are rounded.
    assert share_alike(shown.follow(link).pixels(), before) > 0.98


def test_reset_shows_everything_again(shown: Shown) -> None:
    before = shown.follow(TRAIN_LABELS).pixels()
    hide(shown, "wall")
    shown.page.locator("#colorings input[value=segments]").check(force=True)
    shown.page.locator("#none").click()
    shown.page.locator("#colorings input[value=scannet20]").check(force=True)
    shown.wait()
    shown.press("r")

    assert np.array_equal(shown.pixels(), before)
