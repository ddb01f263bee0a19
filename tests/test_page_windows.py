"""Tests of the page in windows of all sizes, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import SIZE, Shown, needs_browser
from commands import TRAIN

pytestmark = needs_browser

WINDOWS = {
    "full HD": (1920, 1080),
    "laptop": (1280, 800),
    "tablet": (1024, 768),
    "full HD at 200 %": (960, 540),
    "laptop at 200 %": (640, 400),
    "phone": (390, 844),
}
ZOOMED = ["full HD at 200 %", "laptop at 200 %"]


@pytest.fixture(scope="module")
def page(show: Callable[..., Shown], page_path: Path) -> Any:
    """The page, whose legend is not folded, with the button for cameras that most scenes lack."""
    shown = show(page_path, f"#scene={TRAIN}")
    shown.wait()
    shown.page.evaluate("viewer.unfold(true); document.getElementById('cameras').hidden = false")
    return shown.page


@pytest.fixture
def open_window(page: Any) -> Iterator[Callable[[str], Any]]:
    """A function that gives the window one of the sizes, and returns the page."""

    def resize(name: str) -> Any:
        width, height = WINDOWS[name]
        page.set_viewport_size({"width": width, "height": height})
        return page

    yield resize
    page.set_viewport_size(SIZE)


def is_apart(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two boxes have no pixel in common."""
    is_beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
    is_above = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
    return is_beside or is_above


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("selector", ["#tools", "#panel"])
def test_controls_cover_no_part_of_the_picture(
    open_window: Callable[[str], Any], name: str, selector: str
) -> None:
    page = open_window(name)
    picture = page.locator("#picture").bounding_box()

    assert is_apart(picture, page.locator(selector).bounding_box())


@pytest.mark.parametrize("name", WINDOWS)
def test_all_buttons_are_inside_the_window(open_window: Callable[[str], Any], name: str) -> None:
    page = open_window(name)
    width, height = WINDOWS[name]
    for button in page.locator("#tools button:visible").all():
        box = button.bounding_box()

        assert 0 <= box["x"] <= width - box["width"]
        assert 0 <= box["y"] <= height - box["height"]


@pytest.mark.parametrize("name", ["laptop", *ZOOMED])
def test_picture_gets_half_of_the_window(open_window: Callable[[str], Any], name: str) -> None:
    picture = open_window(name).locator("#picture").bounding_box()
    width, height = WINDOWS[name]

    assert picture["width"] * picture["height"] > width * height / 2


@pytest.mark.parametrize("name", ZOOMED)
def test_help_opens_at_its_beginning(open_window: Callable[[str], Any], name: str) -> None:
    page = open_window(name)
    page.locator("#keys").click()
    top = page.locator("#help-title").bounding_box()["y"]
    page.keyboard.press("Escape")

    assert top > 0


@pytest.mark.parametrize("name", ZOOMED)
def test_handles_of_the_clip_box_are_as_far_apart_as_their_track(
    open_window: Callable[[str], Any], name: str
) -> None:
    page = open_window(name)
    page.locator("#clip").click()
    track = page.locator(".track").first.bounding_box()
    slider = page.locator(".track input").first.bounding_box()
    page.locator("#clip").click()

    assert slider["width"] == track["width"]
