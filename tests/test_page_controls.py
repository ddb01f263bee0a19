"""Tests of the controls of a page in a real browser: mouse, fingers, keys, legend and link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import numpy as np
import pytest
from browsers import Shown, draw, needs_browser, parse_view, share_alike
from commands import TRAIN, VAL

from scannet_prep.view.categories import Category, Coloring
from scannet_prep.view.coloring import ViewedScene

pytestmark = needs_browser

TRAIN_LABELS = f"#scene={TRAIN}&color=scannet20"


def is_drawn(pixels: np.ndarray) -> np.ndarray:
    """Return which pixels are not background, bool (H, W)."""
    return (pixels != 255).any(axis=2)


# The legend.


def test_click_on_a_category_hides_it(shown: Shown) -> None:
    before = shown.follow(TRAIN_LABELS).pixels()

    shown.page.get_by_label(re.compile("^wall")).click()

    changed_share = (shown.pixels() != before).any(axis=2).mean()
    assert changed_share > 0.05


def test_summary_counts_hidden_categories(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)

    shown.page.get_by_label(re.compile("^wall")).click()

    assert "1 hidden" in shown.text("#summary")


def test_another_click_on_a_category_shows_it_again(shown: Shown) -> None:
    before = shown.follow(TRAIN_LABELS).pixels()
    wall = shown.page.get_by_label(re.compile("^wall"))

    wall.click()
    wall.click()

    assert np.array_equal(shown.pixels(), before)


def test_only_shows_a_single_category(shown: Shown, seen: dict[str, ViewedScene]) -> None:
    shown.follow(TRAIN_LABELS)
    categories = {each.name: each for each in seen[TRAIN].colorings["scannet20"].categories}

    shown.page.get_by_label("Show only floor").click()

    pixels = shown.pixels()
    drawn = pixels[is_drawn(pixels)]
    # Light makes a colour darker by the same factor in red, green and blue. Pixels at the rims are
    # blended with the background.
    brightness = drawn / np.array(categories["floor"].color)
    is_floor = np.ptp(brightness, axis=1) < 0.03
    assert len(drawn) > 1000
    assert is_floor.mean() > 0.9
    assert re.search(r"\d+ hidden", shown.text("#summary"))


def test_all_shows_all_categories_again(shown: Shown) -> None:
    before = shown.follow(TRAIN_LABELS).pixels()
    shown.page.get_by_label("Show only floor").click()
    shown.page.locator("#all").click()

    assert np.array_equal(shown.pixels(), before)


def test_search_lists_matching_names_in_any_case(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.page.locator("#search").fill("WALL")
    names = shown.page.locator("#categories li:visible .name").all_inner_texts()

    assert names == ["wall"]


def test_none_hides_only_the_listed_categories(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.page.locator("#search").fill("WALL")

    shown.page.locator("#none").click()

    shown.page.locator("#search").fill("")
    hidden = shown.page.locator("#categories li:has(input:not(:checked)) .name")
    assert hidden.all_inner_texts() == ["wall"]
    assert "hide=wall" in shown.link


# The tooltip.


class Hovered(NamedTuple):
    """A point of an instance under the mouse.

    Attributes:
        number: Number of the category of the instance.
        category: The category.
        rows: The rows of the tooltip.
    """

    number: int
    category: Category
    rows: dict[str, str]

    @property
    def coordinates(self) -> list[float]:
        """x, y and z, in metres."""
        return [float(part) for part in self.rows["x, y, z"].removesuffix(" m").split(",")]


def find_inner_pixel(is_seen: np.ndarray) -> tuple[int, int] | None:
    """Find the middle of a square of 13 x 13 pixels in a mask; returns x and y."""
    squares = np.lib.stride_tricks.sliding_window_view(is_seen, (13, 13)).all(axis=(2, 3))
    if not squares.any():
        return None
    y, x = (np.argwhere(squares)[0] + 6).tolist()
    return x, y


def iter_hovered(shown: Shown, scene: ViewedScene) -> Iterator[Hovered]:
    """Move the mouse to a point of each instance that is large enough in the picture."""
    # Without normals, there is no light: colours are exact.
    exact = draw(replace(scene, normals=None), "instances")
    left = shown.page.locator("#picture").bounding_box()["x"]
    for number, category in enumerate(scene.colorings["instances"].categories):
        point = find_inner_pixel((exact == category.color).all(axis=2))
        if point is None or category.name == "unlabeled":
            continue
        x, y = point
        shown.page.mouse.move(left + x, y)
        yield Hovered(number, category, shown.tooltip(category.name))


@pytest.fixture(scope="module")
def hovered(shown: Shown, seen: dict[str, ViewedScene]) -> list[Hovered]:
    """Points of four instances of the training scene."""
    shown.follow(f"#scene={TRAIN}&color=instances")
    points = []
    for point in iter_hovered(shown, seen[TRAIN]):
        points.append(point)
        if len(points) == 4:
            break
    assert len(points) == 4
    return points


def find_vertex(scene: ViewedScene, point: Hovered) -> int:
    """Return the vertex at the coordinates in a tooltip."""
    return int(np.abs(scene.points - point.coordinates).max(axis=1).argmin())


def name_at(coloring: Coloring, vertex: int) -> str:
    assert coloring.indices is not None
    return coloring.categories[coloring.indices[vertex]].name


def test_tooltip_has_the_raw_category(hovered: list[Hovered]) -> None:
    for point in hovered:
        assert point.category.raw_category
        assert point.rows["raw category"] == point.category.raw_category


def test_tooltip_has_the_coordinates_of_a_vertex_of_the_instance(
    hovered: list[Hovered], seen: dict[str, ViewedScene]
) -> None:
    scene = seen[TRAIN]
    indices = scene.colorings["instances"].indices

    assert indices is not None
    for point in hovered:
        vertex = find_vertex(scene, point)
        assert np.abs(scene.points[vertex] - point.coordinates).max() < 1e-3
        assert indices[vertex] == point.number


@pytest.mark.parametrize(
    ("row", "coloring"),
    [("ScanNet20", "scannet20"), ("ScanNet200", "scannet200"), ("segment", "segments")],
)
def test_tooltip_has_classes_and_segment_of_the_vertex(
    hovered: list[Hovered], seen: dict[str, ViewedScene], row: str, coloring: str
) -> None:
    scene = seen[TRAIN]
    for point in hovered:
        name = name_at(scene.colorings[coloring], find_vertex(scene, point))
        assert point.rows[row] == name


def test_tooltip_hides_when_the_mouse_points_at_the_background(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={TRAIN}&color=instances")
    next(iter_hovered(shown, seen[TRAIN]))
    left = shown.page.locator("#picture").bounding_box()["x"]

    shown.page.mouse.move(left + 1, 1)

    shown.page.locator("#tooltip").wait_for(state="hidden")


# Keys.


def test_keys_turn_move_and_zoom(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}")
    links = {shown.link}
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "Shift+ArrowDown", "+", "t"):
        shown.press(key)
        links.add(shown.link)

    assert len(links) == 7


def test_key_r_returns_to_the_first_view(shown: Shown) -> None:
    before = shown.follow(f"#scene={TRAIN}").pixels()
    shown.press("ArrowLeft", "Shift+ArrowDown", "+", "r")

    assert np.array_equal(shown.pixels(), before)


def test_number_key_chooses_a_colouring(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}")
    shown.press("2")
    shown.wait()

    assert "color=scannet20" in shown.link


def test_key_n_shows_the_next_scene(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}")
    shown.press("n")
    shown.page.wait_for_function("name => viewer.scene.name === name", arg=VAL)

    assert f"scene={VAL}" in shown.link


def test_key_i_announces_the_point_in_the_middle(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.press("i")
    announcement = shown.page.locator("#announcement", has_text="ScanNet20: ")
    announcement.wait_for(state="attached")


def test_question_mark_opens_the_help(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)

    shown.press("?")

    assert shown.page.locator("#help").is_visible()


def test_escape_closes_the_help(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.press("?")

    shown.page.keyboard.press("Escape")

    assert shown.page.locator("#help").is_hidden()


def test_slash_searches_the_legend_and_tab_leads_to_its_buttons(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.press("/")
    shown.page.keyboard.type("floor")
    # The first Tab leads to "All", the second one to "None".
    for key in ("Tab", "Tab", "Enter"):
        shown.page.keyboard.press(key)

    assert "hide=floor" in shown.link


def test_tab_reaches_all_controls(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    reached = set()
    for _ in range(60):
        shown.page.keyboard.press("Tab")
        active = shown.page.evaluate("document.activeElement.id || document.activeElement.type")
        reached.add(active)
    controls = {
        "picture",
        "fold",
        "scenes",
        "radio",
        "search",
        "checkbox",
        "top",
        "ceiling",
        "keys",
    }

    assert controls <= reached


COUNT_UNNAMED = """
[...document.querySelectorAll("button, input, select, canvas")].filter((element) => !(
    element.ariaLabel || element.textContent.trim() || element.labels?.[0]?.textContent.trim()
)).length"""


def test_all_controls_have_a_name(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    assert shown.page.evaluate(COUNT_UNNAMED) == 0


# Links.


class Restored(NamedTuple):
    """A page that was opened by the link of another one.

    Attributes:
        page: The page.
        link: The link.
        pixels: The picture of the other page.
    """

    page: Shown
    link: str
    pixels: np.ndarray


@pytest.fixture(scope="module")
def restored(show: Callable[..., Shown], shown: Shown, page_path: Path) -> Iterator[Restored]:
    shown.follow(f"#scene={VAL}&color=scannet200")
    shown.page.get_by_label(re.compile("^floor")).click()
    shown.press("ArrowLeft", "ArrowLeft", "ArrowUp", "+", "Shift+ArrowUp", "g", "]", "k")
    shown.page.locator("#ceiling").fill("1.5")
    shown.page.wait_for_function("() => location.hash === viewer.link")
    link = shown.page.evaluate("location.hash")
    pixels = shown.pixels()

    page = show(page_path, link)
    yield Restored(page, link, pixels)
    page.page.close()


def test_link_restores_the_picture(restored: Restored) -> None:
    # Numbers in the link are rounded.
    assert share_alike(restored.page.pixels(), restored.pixels) > 0.98


def test_page_opened_by_a_link_has_the_same_link(restored: Restored) -> None:
    assert restored.page.link == restored.link


def test_link_restores_the_ceiling(restored: Restored) -> None:
    assert restored.page.page.locator("#ceiling-value").text_content() == "1.5 m"


def test_page_explains_lost_graphics_memory_and_restores_the_view(restored: Restored) -> None:
    page = restored.page.page
    page.evaluate("lost = viewer.drawing.gl.getExtension('WEBGL_lose_context'), lost.loseContext()")
    page.locator("#trouble").wait_for(state="visible")
    assert "graphics memory" in restored.page.text("#trouble")

    with page.expect_navigation():
        page.evaluate("lost.restoreContext()")

    assert share_alike(restored.page.pixels(), restored.pixels) > 0.98


OPEN_SLOW_SCENE = """async () => {
    const slow = viewer.scenes[1];
    const read = slow.values;
    slow.values = async (coloring) => {
        if (coloring.name === "rgb") await new Promise((resolve) => setTimeout(resolve, 500));
        return read.call(slow, coloring);
    };
    // This writes the link after 300 ms.
    viewer.moved();
    await viewer.open(slow);
    slow.values = read;
}"""


def test_scene_that_loads_slowly_does_not_break_the_link(shown: Shown) -> None:
    """The fixture `show` checks that there were no errors in the page."""
    shown.follow(f"#scene={TRAIN}&color=rgb")
    shown.page.evaluate(OPEN_SLOW_SCENE)

    assert f"scene={VAL}" in shown.link


@pytest.mark.parametrize(
    "link",
    [
        "#%E0%A4",
        "#view=0,1e308,1e308,1e308,0,0",
        "#view=0,0.5,NaN,0,0,0",
        "#scene=constructor&color=__proto__",
        "#points=-5&ceiling=1e308",
        "#view=0,99,1e-300,2,2,1&points=1e308",
    ],
)
def test_invalid_link_shows_a_scene_within_the_limits_of_the_view(shown: Shown, link: str) -> None:
    shown.follow(link)

    _, elevation, distance, *target = parse_view(shown.link)
    (point_size,) = parse_qs(shown.link[1:]).get("points", ["1"])
    assert abs(elevation) < 1.571
    assert 0.01 < distance < 1000
    assert max(map(abs, target)) < 1000
    assert 0.25 <= float(point_size) <= 4
    assert is_drawn(shown.pixels()).any()


# Mouse and fingers.


@pytest.mark.parametrize(
    ("button", "key"),
    [("left", None), ("right", None), ("left", "Shift")],
    ids=["turn", "move", "move with Shift"],
)
def test_dragging_the_mouse_changes_the_view(shown: Shown, button: str, key: str | None) -> None:
    before = shown.follow(f"#scene={VAL}").link
    mouse = shown.page.mouse
    mouse.move(500, 200)
    if key is not None:
        shown.page.keyboard.down(key)
    mouse.down(button=button)
    mouse.move(560, 240)
    mouse.up(button=button)
    if key is not None:
        shown.page.keyboard.up(key)

    assert shown.link != before


def test_mouse_wheel_zooms(shown: Shown) -> None:
    before = parse_view(shown.follow(f"#scene={VAL}").link)
    shown.page.mouse.move(500, 200)
    shown.page.mouse.wheel(0, -300)
    after = parse_view(shown.link)

    assert after[2] < before[2]


def test_double_click_turns_about_the_point(shown: Shown) -> None:
    before = parse_view(shown.follow(f"#scene={VAL}").link)
    shown.page.mouse.dblclick(560, 160)
    after = parse_view(shown.link)

    assert after[3:] != before[3:]


class Fingers:
    """A page on a small touch screen.

    Attributes:
        shown: The page.
        x: The middle of the picture, in pixels of the window.
        y: The middle of the picture, in pixels of the window.
    """

    def __init__(self, shown: Shown) -> None:
        box = shown.page.locator("#picture").bounding_box()
        self.shown = shown
        self.x = box["x"] + box["width"] / 2
        self.y = box["y"] + box["height"] / 2
        self._session: Any = shown.page.context.new_cdp_session(shown.page)

    def move(self, *steps: list[tuple[float, float]]) -> list[float]:
        """Put fingers down, move them, lift them, and return the view.

        Args:
            steps: The positions of all fingers, first those at which they are put down.
        """
        for number, positions in enumerate(steps):
            kind = "touchStart" if number == 0 else "touchMove"
            points = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(positions)]
            self._send(kind, points)
        self._send("touchEnd", [])
        return parse_view(self.shown.link)

    def _send(self, kind: str, points: list[dict[str, float]]) -> None:
        self._session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


@pytest.fixture(scope="module")
def fingers(show: Callable[..., Shown], page_path: Path) -> Fingers:
    shown = show(page_path, viewport={"width": 390, "height": 500}, has_touch=True)
    shown.wait()
    return Fingers(shown)


def test_legend_is_folded_on_a_small_screen(fingers: Fingers) -> None:
    fold = fingers.shown.page.locator("#fold")
    assert fold.get_attribute("aria-expanded") == "false"


def test_tap_selects_the_point(fingers: Fingers) -> None:
    fingers.shown.follow(f"#scene={TRAIN}")
    fingers.shown.page.touchscreen.tap(fingers.x, fingers.y)
    fingers.shown.page.locator("#selection").wait_for(state="visible")


def test_one_finger_turns_the_view(fingers: Fingers) -> None:
    x = fingers.x
    y = fingers.y
    azimuth, _, distance, *_ = parse_view(fingers.shown.follow(f"#scene={TRAIN}").link)
    new_azimuth, _, new_distance, *_ = fingers.move([(x, y)], [(x + 40, y)])

    assert new_azimuth != azimuth
    assert new_distance == distance


def test_two_fingers_zoom_without_turning(fingers: Fingers) -> None:
    x = fingers.x
    y = fingers.y
    azimuth, _, distance, *_ = parse_view(fingers.shown.follow(f"#scene={TRAIN}").link)
    start = [(x - 20, y), (x + 20, y)]
    end = [(x - 60, y), (x + 60, y)]
    new_azimuth, _, new_distance, *_ = fingers.move(start, end)

    assert new_distance < distance / 2
    assert new_azimuth == azimuth
