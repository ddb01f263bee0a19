"""Part `page`: size of the page of a scene, and time from opening it to its picture.

The browser is Chromium without a graphics card, so everything is drawn on the CPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from usage import run_ours

from benchmark.scenes import make_processed

_ARGUMENTS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
# The page of a scene this small shows what everything but the vertices takes.
_SMALL_VERTEX_COUNT = 500


def measure(
    folder: Path, _scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure pages with triangles, with points, and of a small scene."""
    pages = {}
    for title, count, options in (
        ("triangles", vertex_count, ["--faces"]),
        ("points", vertex_count, []),
        ("small", _SMALL_VERTEX_COUNT, []),
    ):
        (scene_id,) = make_processed(folder / title, 1, count, *options)
        pages[title] = folder / f"{title}.html"
        place = folder / title / "processed"
        run_ours("view", scene_id, "--source", place, "-o", pages[title])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=_ARGUMENTS
        )
        for title, path in pages.items():
            # The first one starts the processes of the browser, and does not count.
            seconds = [_open_page(browser, path) for _ in range(repeat + 1)][1:]
            yield title, f"{path.stat().st_size / 1e6:.2f} MB, {min(seconds):.1f} s"
        browser.close()


def _open_page(browser: Browser, path: Path) -> float:
    """Open a page, and return after how many seconds its picture is complete."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri())
    page.wait_for_selector("canvas[aria-busy=false]")
    milliseconds: float = page.evaluate("performance.now()")
    page.close()
    return milliseconds / 1e3
