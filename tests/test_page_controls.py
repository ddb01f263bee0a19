"""Pages in a real browser: mouse, fingers, keys, legend and link do what they are for."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
from browsers import Shown, draw, needs_browser, parse_view, share_alike
from commands import TRAIN, VAL

from scannet_prep.view.coloring import ViewedScene

pytestmark = needs_browser


def test_classes_are_switched_off_and_on_by_a_click_alone_or_all_at_once(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    before = shown.follow(f"#scene={TRAIN}&color=scannet20").pixels()
    wall = shown.page.get_by_label(re.compile("^wall"))
    wall.click()
    assert (shown.pixels() != before).any(axis=2).mean() > 0.05
    assert "1 hidden" in shown.text("#summary")
    wall.click()
    assert np.array_equal(shown.pixels(), before)
    shown.page.get_by_label("Show only floor").click()
    pixels = shown.pixels()
    floor = next(
        item for item in seen[TRAIN].colorings["scannet20"].categories if item.name == "floor"
    )
    drawn = pixels[(pixels != 255).any(axis=2)]
    brightness = drawn / np.array(
        floor.color
    )  # light makes it darker, by the same in red, green and blue
    assert len(drawn) > 1000
    assert (
        np.ptp(brightness, axis=1) < 0.03
    ).mean() > 0.9  # but for the rims, which are blended with what is behind
    assert re.search(r"\d+ hidden", shown.text("#summary"))
    shown.page.locator("#all").click()
    assert np.array_equal(shown.pixels(), before)


def test_search_leaves_names_and_none_hides_only_those(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    shown.page.locator("#search").fill("WALL")
    assert shown.page.locator("#categories li:visible .name").all_inner_texts() == ["wall"]
    shown.page.locator("#none").click()
    shown.page.locator("#search").fill("")
    off = shown.page.locator("#categories li:has(input:not(:checked)) .name").all_inner_texts()
    assert off == ["wall"]
    assert "hide=wall" in shown.link


def test_hovering_tells_class_raw_category_instance_segment_and_coordinates(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    scene = seen[TRAIN]
    shown.follow(f"#scene={TRAIN}&color=instances")
    exact = draw(replace(scene, normals=None), "instances")  # without light
    left, told = shown.page.locator("#picture").bounding_box()["x"], 0
    for number, category in enumerate(scene.colorings["instances"].categories):
        is_seen = (exact == category.color).all(axis=2)
        inner = np.lib.stride_tricks.sliding_window_view(is_seen, (13, 13)).all(axis=(2, 3))
        if not inner.any() or category.name == "unlabeled":
            continue
        y, x = (np.argwhere(inner)[0] + 6).tolist()
        shown.page.mouse.move(left + x, y)
        rows = shown.tooltip(category.name)
        assert rows["raw category"] == category.raw_category != ""
        at = [float(part) for part in rows["x, y, z"].removesuffix(" m").split(",")]
        vertex = np.abs(scene.points - at).max(axis=1).argmin()
        assert np.abs(scene.points[vertex] - at).max() < 1e-3
        assert scene.colorings["instances"].indices[vertex] == number
        for key, name in (
            ("ScanNet20", "scannet20"),
            ("ScanNet200", "scannet200"),
            ("segment", "segments"),
        ):
            coloring = scene.colorings[name]
            assert rows[key] == coloring.categories[coloring.indices[vertex]].name
        told += 1
        if told == 4:
            break
    assert told == 4
    shown.page.mouse.move(left + 1, 1)
    shown.page.locator("#tooltip").wait_for(state="hidden")


def test_keys_turn_move_zoom_and_come_back(shown: Shown) -> None:
    before, views = shown.follow(f"#scene={TRAIN}").pixels(), {shown.link}
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "Shift+ArrowDown", "+", "t"):
        shown.press(key)
        views.add(shown.link)
    assert len(views) == 7
    shown.press("r")
    assert np.array_equal(shown.pixels(), before)
    shown.press("2")
    shown.wait()
    assert "color=scannet20" in shown.link
    shown.press("n")
    shown.page.wait_for_function("name => viewer.scene.name === name", arg=VAL)
    assert f"scene={VAL}" in shown.link


def test_all_that_the_mouse_can_do_the_keyboard_can(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    page = shown.page
    shown.press("i")  # what is in the middle
    page.locator("#announcement", has_text="ScanNet20: ").wait_for(state="attached")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    page.keyboard.press("/")
    page.keyboard.type("floor")
    page.keyboard.press("Tab")  # all
    page.keyboard.press("Tab")  # none
    page.keyboard.press("Enter")
    assert "hide=floor" in shown.link
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.type"))
    assert {
        "picture",
        "fold",
        "scenes",
        "radio",
        "search",
        "checkbox",
        "top",
        "ceiling",
        "keys",
    } <= reached
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, canvas")].filter((element) => !(
            element.ariaLabel || element.textContent.trim() || element.labels?.[0]?.textContent.trim()
        )).length"""
    )
    assert unnamed == 0


def test_link_restores_what_was_seen_also_where_graphics_were_lost(
    show: Callable[..., Shown], shown: Shown, page_path: Path
) -> None:
    shown.follow(f"#scene={VAL}&color=scannet200")
    shown.page.get_by_label(re.compile("^floor")).click()
    shown.press("ArrowLeft", "ArrowLeft", "ArrowUp", "+", "Shift+ArrowUp", "g", "]", "b")
    shown.page.locator("#ceiling").fill("1.5")
    shown.page.wait_for_function("() => location.hash === viewer.link")
    link, pixels = shown.page.evaluate("location.hash"), shown.pixels()
    second = show(page_path, link)
    assert share_alike(second.pixels(), pixels) > 0.98  # numbers in the link are rounded
    assert second.link == link
    assert second.page.locator("#ceiling-value").text_content() == "1.5 m"
    second.page.evaluate(
        "lost = viewer.drawing.gl.getExtension('WEBGL_lose_context'), lost.loseContext()"
    )
    second.page.locator("#trouble").wait_for(state="visible")
    assert "graphics memory" in second.text("#trouble")
    with second.page.expect_navigation():
        second.page.evaluate("lost.restoreContext()")
    assert share_alike(second.pixels(), pixels) > 0.98
    second.page.close()


def test_scene_that_is_slow_to_read_leaves_the_link_alone(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}&color=rgb")
    shown.page.evaluate(
        """async () => {
            const slow = viewer.scenes[1], read = slow.values;
            slow.values = async (coloring) => {
                if (coloring.name === "rgb") await new Promise((resolve) => setTimeout(resolve, 500));
                return read.call(slow, coloring);
            };
            viewer.moved(); // the link is due in 300 ms
            await viewer.open(slow);
            slow.values = read;
        }"""
    )
    assert f"scene={VAL}" in shown.link  # the fixture looks for errors in the page


def test_damaged_link_shows_the_scene_all_the_same(shown: Shown) -> None:
    for link in (
        "#%E0%A4", "#view=0,1e308,1e308,1e308,0,0", "#view=0,0.5,NaN,0,0,0", "#scene=constructor&color=__proto__",
        "#points=-5&ceiling=1e308", "#view=0,99,1e-300,2,2,1&points=1e308",
    ):  # fmt: skip
        shown.follow(link)
        words = parse_qs(shown.link[1:])
        _, elevation, distance, *target = parse_view(shown.link)
        assert abs(elevation) < 1.571, link
        assert 0.01 < distance < 1000, link
        assert max(map(abs, target)) < 1000, link
        assert 0.25 <= float(words.get("points", ["1"])[0]) <= 4, link
        assert (shown.pixels() != 255).any(), link


def test_mouse_turns_moves_and_zooms(shown: Shown) -> None:
    shown.follow(f"#scene={VAL}")
    page, views = shown.page, {shown.link}
    for button, key in (("left", "a"), ("right", "a"), ("left", "Shift")):
        page.mouse.move(500, 200)
        page.keyboard.down(key)
        page.mouse.down(button=button)
        page.mouse.move(560, 240)
        page.mouse.up(button=button)
        page.keyboard.up(key)
        views.add(shown.link)
    page.mouse.wheel(0, -300)
    views.add(shown.link)
    page.mouse.dblclick(560, 240)
    assert len({*views, shown.link}) == 6


def test_fingers_turn_pinch_and_tap(show: Callable[..., Shown], page_path: Path) -> None:
    shown = show(page_path, viewport={"width": 390, "height": 500}, has_touch=True)
    shown.wait()
    assert shown.page.locator("#fold").get_attribute("aria-expanded") == "false"
    box = shown.page.locator("#picture").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    shown.page.touchscreen.tap(x, y)
    shown.page.locator("#tooltip").wait_for(state="visible")
    fingers = shown.page.context.new_cdp_session(shown.page)

    def move(*steps: list[tuple[float, float]]) -> list[float]:
        for number, points in enumerate(steps):
            kind = "touchStart" if number == 0 else "touchMove"
            places = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(points)]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})
        fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        return parse_view(shown.link)

    start = parse_view(shown.link)
    turned = move([(x, y)], [(x + 40, y)])
    assert turned[0] != start[0]
    assert turned[2] == start[2]
    pinched = move([(x - 20, y), (x + 20, y)], [(x - 60, y), (x + 60, y)])
    assert pinched[2] < turned[2] / 2
    assert pinched[0] == turned[0]
