"""Tests of predictions on a page in a real browser: panes, explanations, and the legend."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import CHAIR, Shown, needs_browser, parse_view, share_alike
from commands import TEST, TRAIN

from scannet_prep import SCANNET20, read_processed
from scannet_prep.view.categories import Explanation
from scannet_prep.view.coloring import ViewedScene, view_scene
from scannet_prep.view.link import parse_link
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.predicted import Prediction
from scannet_prep.view.renderer import PictureOptions, render_scene

pytestmark = needs_browser

MARKUP = "<script>alert(1)</script>"
SIZE = {"width": 1000, "height": 560}
PANES = "#color=prediction&beside=prediction-2"

# Draw all panes and read one of them at once: later, the browser may have discarded it.
READ_PANE = """async (number) => {
    viewer.invalidate();
    await new Promise(requestAnimationFrame);
    const { canvas } = viewer.panes.shown[number];
    const context = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let text = "";
    for (let i = 0; i < data.length; i += 8192) {
        text += String.fromCharCode(...data.subarray(i, i + 8192));
    }
    return [canvas.width, canvas.height, btoa(text)];
}"""


@pytest.fixture(scope="module")
def scene(seen_dir: Path) -> ViewedScene:
    """A scene with two predictions: chair on one side of the room, and on the other side."""
    processed = read_processed(seen_dir / "train" / f"{TRAIN}.npz")
    truth = SCANNET20.train_ids_from_raw_ids(processed.nyu40_ids, -1)
    is_left = processed.points[:, 0] < processed.points[:, 0].mean()
    return view_scene(
        processed,
        prediction=Prediction(SCANNET20, np.where(is_left, CHAIR, truth), "left"),
        second=Prediction(SCANNET20, np.where(is_left, truth, CHAIR), "right"),
    )


@pytest.fixture(scope="module")
def compared_path(
    scene: ViewedScene, seen: dict[str, ViewedScene], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A page of this scene, and of a test scene without predictions."""
    path = tmp_path_factory.mktemp("compared") / "page.html"
    scenes = [scene, seen[TEST]]
    path.write_bytes(make_scene_page(scenes, color="prediction", beside=["prediction-2"]))
    return path


@pytest.fixture(scope="module")
def compared(show: Callable[..., Shown], compared_path: Path) -> Shown:
    return show(compared_path, viewport=SIZE)


def read_pane(shown: Shown, number: int) -> np.ndarray:
    """Return the picture of a pane, uint8 (H, W, 3)."""
    shown.wait()
    width, height, text = shown.page.evaluate(READ_PANE, number)
    data = np.frombuffer(base64.b64decode(text), np.uint8)
    return data.reshape(height, width, 4)[..., :3]


def read_captions(shown: Shown) -> list[str]:
    texts: list[str] = shown.page.locator(".caption:visible").all_inner_texts()
    return texts


# Panes.


def test_page_opens_with_the_panes_of_both_predictions(compared: Shown) -> None:
    compared.follow("")
    assert read_captions(compared) == [
        "prediction, ScanNet20: left",
        "prediction, ScanNet20: right",
    ]


@pytest.mark.parametrize(("number", "color"), [(0, "prediction"), (1, "prediction-2")])
def test_each_pane_is_like_the_software_renderer(
    compared: Shown, scene: ViewedScene, number: int, color: str
) -> None:
    pixels = read_pane(compared.follow(PANES), number)
    height, width = pixels.shape[:2]
    expected = render_scene(scene, color, PictureOptions(width, height, has_legend=False))

    assert share_alike(pixels, expected) > 0.85


def test_page_of_one_colouring_has_no_captions(compared: Shown) -> None:
    compared.follow("#color=rgb")
    assert read_captions(compared) == []


def test_panes_have_one_camera(compared: Shown) -> None:
    before = read_pane(compared.follow(PANES), 1)

    compared.press("ArrowLeft")

    assert not np.array_equal(read_pane(compared, 1), before)


def test_dragging_in_the_second_pane_turns_all(compared: Shown) -> None:
    before = parse_view(compared.follow(PANES).link)
    box = compared.page.locator(".pane canvas").nth(1).bounding_box()
    x = box["x"] + box["width"] / 2

    compared.page.mouse.move(x, 200)
    compared.page.mouse.down()
    compared.page.mouse.move(x + 50, 200)
    compared.page.mouse.up()

    assert parse_view(compared.link)[0] != before[0]


def find_rings(shown: Shown) -> list[tuple[float, float]]:
    """Return the middle of the ring in each pane, relative to the pane."""
    places = []
    for pane in shown.page.locator(".pane:visible").all():
        box = pane.bounding_box()
        ring = pane.locator(".ring").bounding_box()
        x = ring["x"] + ring["width"] / 2 - box["x"]
        places.append((x, ring["y"] + ring["height"] / 2 - box["y"]))
    return places


@pytest.mark.parametrize("number", [0, 1])
def test_hovering_marks_the_vertex_in_both_panes(compared: Shown, number: int) -> None:
    compared.follow(PANES)
    box = compared.page.locator(".pane canvas").nth(number).bounding_box()
    x = box["width"] / 2
    y = box["height"] / 2

    compared.page.mouse.move(box["x"] + x, box["y"] + y)
    compared.page.locator(".ring:visible").nth(1).wait_for()

    for ring_x, ring_y in find_rings(compared):
        assert abs(ring_x - x) < 15
        assert abs(ring_y - y) < 15


def test_hidden_class_is_hidden_in_both_panes(compared: Shown) -> None:
    compared.follow(PANES)
    before = [read_pane(compared, number) for number in (0, 1)]

    compared.page.locator("#categories li:has-text('chair') input").first.click()

    for number in (0, 1):
        changed = (read_pane(compared, number) != before[number]).any(axis=2)
        assert changed.mean() > 0.05, number


def test_each_pane_shows_its_own_vertices_of_a_class(compared: Shown) -> None:
    compared.follow(f"{PANES}&only=chair")

    # One prediction has chairs on the left, and the other one on the right.
    differing = (read_pane(compared, 0) != read_pane(compared, 1)).any(axis=2)
    assert differing.mean() > 0.1


def test_class_that_other_colours_hide_is_hidden_in_both_panes(compared: Shown) -> None:
    compared.follow(PANES)
    before = [read_pane(compared, number) for number in (0, 1)]

    compared.follow(f"{PANES}&hide.scannet20=wall")

    for number in (0, 1):
        changed = (read_pane(compared, number) != before[number]).any(axis=2)
        assert changed.mean() > 0.05, number


def test_class_stays_hidden_without_its_pane(compared: Shown) -> None:
    compared.follow(f"{PANES}&hide=chair")
    compared.page.locator("#beside-1").select_option("")
    compared.page.wait_for_function("() => viewer.panes.shown.length === 1")

    assert "hide.prediction-2=chair" in compared.link
    assert "Also hidden: 1 of" in compared.text("#hidden-elsewhere")


def test_link_of_the_command_shows_the_first_pane(compared: Shown) -> None:
    compared.follow(f"{PANES}&hide=chair")

    link = parse_link(compared.page.evaluate("viewer.firstLink"))

    assert link.color == "prediction"
    assert link.visibility.hidden == ("chair",)


def test_click_in_the_second_pane_outlines_the_instance_in_both(compared: Shown) -> None:
    compared.follow(PANES)
    before = [read_pane(compared, number) for number in (0, 1)]
    pane = compared.page.locator(".pane canvas").nth(1)
    box = pane.bounding_box()

    pane.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    compared.page.locator("#selection").wait_for(state="visible")

    for number in (0, 1):
        changed = (read_pane(compared, number) != before[number]).any(axis=2)
        assert changed.any(), number


def test_legend_shows_the_shares_of_both_panes(compared: Shown, scene: ViewedScene) -> None:
    compared.follow(PANES)
    shares = []
    for color in ("prediction", "prediction-2"):
        (chair,) = [each for each in scene.colorings[color].categories if each.name == "chair"]
        shares.append(f"{chair.count / len(scene.points) * 100:.1f} %")

    line = compared.page.locator("#categories li:has-text('chair') .share").first

    assert line.inner_text() == " · ".join(shares)


def test_pane_without_categories_has_no_share_in_the_legend(compared: Shown) -> None:
    compared.follow("#color=rgb&beside=prediction")

    shares = compared.page.locator("#categories .share").all_inner_texts()
    assert all(share.count("%") == 1 and "·" not in share for share in shares)


def test_third_pane_is_chosen_in_a_list(compared: Shown) -> None:
    compared.follow(PANES)
    compared.page.locator("#beside-2").select_option("difference")
    compared.page.locator(".pane:visible").nth(2).wait_for()

    assert read_captions(compared)[2] == "difference of left and right"
    assert "beside=prediction-2&beside=difference" in compared.link


def test_second_pane_can_be_closed(compared: Shown) -> None:
    compared.follow(PANES)
    compared.page.locator("#beside-1").select_option("")
    compared.page.wait_for_function("() => viewer.panes.shown.length === 1")

    assert compared.page.locator(".pane:visible").count() == 1


def test_new_pane_keeps_what_is_visible_from_left_to_right(compared: Shown) -> None:
    distance = parse_view(compared.follow("#color=prediction").link)[2]
    compared.page.locator("#beside-1").select_option("scannet20")
    compared.page.wait_for_function("() => viewer.panes.shown.length === 2")

    assert parse_view(compared.link)[2] > distance


def test_link_restores_the_panes(compared: Shown) -> None:
    link = compared.follow("#color=error&beside=scannet20&beside=error-2").link
    compared.follow("#color=rgb")

    compared.follow(link)

    assert len(read_captions(compared)) == 3
    assert compared.link == link


def test_scene_without_the_colouring_has_one_pane(compared: Shown) -> None:
    compared.follow(f"#scene={TEST}&color=rgb&beside=prediction-2")
    assert compared.page.locator(".pane:visible").count() == 1


# Explanations.


def open_error(shown: Shown) -> Any:
    """Show the errors, and return the line of the wrong vertices."""
    shown.follow("#color=error")
    return shown.page.locator("#categories li:has-text('wrong')")


def read_rows(table: Any) -> list[tuple[str, ...]]:
    rows = table.locator("tbody tr").all()
    return [tuple(row.locator("td").all_inner_texts()) for row in rows]


def test_click_on_wrong_lists_what_was_confused(compared: Shown, scene: ViewedScene) -> None:
    line = open_error(compared)

    line.locator(".explain").click()

    (expected,) = [t for t in scene.colorings["error"].tables if t.category == "wrong"]
    assert tuple(read_rows(line.locator("table"))) == expected.rows


def test_short_words_of_a_list_are_not_broken(compared: Shown) -> None:
    long_name = "bathroom vanity cabinet 12 (bathroom vanity)"
    rows = [[long_name, "matched", "wrong class"]]
    heights = compared.page.evaluate(MEASURE_TABLE, rows)

    assert heights[1] < 1.5 * heights[0]


# The heights of the cell `matched` in a narrow and in a wide panel.
MEASURE_TABLE = """(rows) => [800, 260].map((width) => {
    const box = document.createElement("div");
    box.style.width = `${width}px`;
    box.innerHTML = "<table class=explanation><tr><td></td><td></td><td></td></tr></table>";
    const cells = box.querySelectorAll("td");
    rows[0].forEach((text, column) => (cells[column].innerHTML = `<span>${text}</span>`));
    document.body.append(box);
    const { height } = cells[1].firstChild.getBoundingClientRect();
    box.remove();
    return height;
})"""


def test_second_click_on_wrong_closes_the_list(compared: Shown) -> None:
    line = open_error(compared)
    line.locator(".explain").click()
    line.locator(".explain").click()

    assert line.locator("table").count() == 0


def test_enter_on_a_line_lists_what_was_confused(compared: Shown) -> None:
    line = open_error(compared)
    line.locator("input").focus()

    compared.page.keyboard.press("Enter")

    assert line.locator("table").is_visible()


def test_click_on_the_box_of_wrong_hides_it(compared: Shown) -> None:
    line = open_error(compared)

    line.locator("input").click()

    assert "hide=wrong" in compared.link


def test_scores_are_listed_below_the_legend(compared: Shown, scene: ViewedScene) -> None:
    open_error(compared)
    expected = scene.colorings["error"].tables[0]

    assert tuple(read_rows(compared.page.locator("#tables table"))) == expected.rows


def test_markup_in_a_table_is_shown_as_text(
    show: Callable[..., Shown], scene: ViewedScene, tmp_path: Path
) -> None:
    table = Explanation(MARKUP, (MARKUP,), ((MARKUP,),))
    error = replace(scene.colorings["error"], tables=(table,))
    path = tmp_path / "page.html"
    path.write_bytes(make_scene_page([replace(scene, colorings={"error": error})]))
    shown = show(path)
    shown.wait()

    assert shown.page.locator("#tables caption").text_content() == MARKUP
    assert read_rows(shown.page.locator("#tables table")) == [(MARKUP,)]


# Keys and mouse in the legend.

FOCUSED_LINE = "document.activeElement.closest('li')?.querySelector('.name').textContent"


def focus_first_line(shown: Shown) -> list[str]:
    """Put the focus on the first line of the legend, and return the names of all lines."""
    shown.follow("#color=scannet20")
    shown.page.locator("#categories input").first.focus()
    names: list[str] = shown.page.locator("#categories .name").all_text_contents()
    return names


def test_legend_is_one_tab_stop(compared: Shown) -> None:
    focus_first_line(compared)
    compared.page.keyboard.press("Tab")

    assert compared.page.evaluate(FOCUSED_LINE) is None


@pytest.mark.parametrize(
    ("keys", "line"), [("ArrowDown", 1), ("End", -1), ("End Home", 0), ("ArrowDown ArrowUp", 0)]
)
def test_keys_move_between_the_lines_of_the_legend(compared: Shown, keys: str, line: int) -> None:
    names = focus_first_line(compared)
    for key in keys.split():
        compared.page.keyboard.press(key)

    assert compared.page.evaluate(FOCUSED_LINE) == names[line]


def test_tab_returns_to_the_last_line_of_the_legend(compared: Shown) -> None:
    names = focus_first_line(compared)
    for key in ("ArrowDown", "Tab", "Shift+Tab"):
        compared.page.keyboard.press(key)

    assert compared.page.evaluate(FOCUSED_LINE) == names[1]


def test_arrow_to_the_right_leads_to_the_button_only(compared: Shown) -> None:
    names = focus_first_line(compared)
    for key in ("ArrowRight", "Enter"):
        compared.page.keyboard.press(key)

    assert f"only={names[0]}" in compared.link


def hover_line(shown: Shown, number: int) -> None:
    shown.page.locator("#categories li").nth(number).hover()


def test_hovering_over_a_line_makes_the_others_faint(compared: Shown) -> None:
    compared.follow("#color=scannet20")
    compared.page.mouse.move(600, 5)
    before = compared.pixels()

    hover_line(compared, 0)

    # On white, faint colours are bright.
    after = compared.pixels()
    is_drawn = (before != 255).any(axis=2)
    is_same = (after == before).all(axis=2)
    is_brighter = after.astype(int).sum(axis=2) > before.astype(int).sum(axis=2) + 30
    assert (is_same & is_drawn).mean() > 0.05
    assert is_brighter.mean() > 0.05


def test_colours_return_when_the_mouse_leaves_the_legend(compared: Shown) -> None:
    compared.follow("#color=scannet20")
    compared.page.mouse.move(600, 5)
    before = compared.pixels()

    hover_line(compared, 0)
    compared.page.mouse.move(600, 5)

    assert np.array_equal(compared.pixels(), before)


def test_line_with_the_focus_is_highlighted(compared: Shown) -> None:
    compared.follow("#color=scannet20")
    compared.page.mouse.move(600, 5)
    before = compared.pixels()

    compared.page.locator("#search").focus()
    for key in ("Tab", "Tab", "Tab"):
        compared.page.keyboard.press(key)

    assert not np.array_equal(compared.pixels(), before)
