"""Part `page`: time from opening the page of a scene to its picture, and the size of the page.

The browser is Chromium without a graphics card, so everything is drawn on the CPU.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmark.scenes import make_scenes
from scannet_prep.processed.scene import ProcessOptions, read_processed
from scannet_prep.stages import process
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.page import make_scene_page

if TYPE_CHECKING:
    from pathlib import Path

    from benchmark.settings import Result, Settings

_ARGUMENTS = (
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--no-sandbox",
)
_WINDOW = {"width": 1280, "height": 800}
# The page of so few vertices shows what everything but the scene takes.
_SMALL_VERTEX_COUNT = 500

# Note when each picture on the canvas is complete, in ms since the page was opened. A picture ends
# with one triangle that covers the canvas; reading a pixel waits until everything is drawn.
_NOTE_PICTURES = """
window.pictures = [];
const { prototype } = WebGL2RenderingContext;
const { drawArrays } = prototype;
prototype.drawArrays = function (mode, first, count) {
    drawArrays.call(this, mode, first, count);
    if (count !== 3 || this.getParameter(this.FRAMEBUFFER_BINDING)) return;
    this.readPixels(0, 0, 1, 1, this.RGBA, this.UNSIGNED_BYTE, new Uint8Array(4));
    window.pictures.push(performance.now());
};
"""


def measure(settings: Settings) -> Result:
    """Measure pages with triangles, with points, and of a small scene."""
    chromium = shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        raise SystemExit(
            "error: part page needs chromium and playwright\n"
            "hint: apt-get install chromium && pip install playwright"
        )
    paths = _write_pages(settings)
    times = _time_pages(chromium, paths, settings.repeat)
    pages = {}
    for name, path in paths.items():
        pages[name] = {
            "bytes": path.stat().st_size,
            "first_ms": min(first_ms for first_ms, _ in times[name]),
            "full_ms": min(full_ms for _, full_ms in times[name]),
        }
    return {"vertices": settings.vertex_count, "pages": pages}


def _write_pages(settings: Settings) -> dict[str, Path]:
    """Write the pages, and return their paths by name."""
    folder = settings.folder / "page"
    scenes = {}
    for name, count in (("large", settings.vertex_count), ("small", _SMALL_VERTEX_COUNT)):
        raw_dir = folder / name / "raw"
        out_dir = folder / name / "processed"
        (scene_id,) = make_scenes(raw_dir, 1, count, settings.seed)
        process.run(process.plan(raw_dir, out_dir, ProcessOptions(faces=True)))
        scenes[name] = view_scene(read_processed(out_dir / "train" / f"{scene_id}.npz"))
    contents = {
        "triangles": scenes["large"],
        "points": replace(scenes["large"], faces=None),
        "small scene": scenes["small"],
    }
    paths = {}
    for name, scene in contents.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_bytes(make_scene_page([scene], color="scannet20"))
    return paths


def _time_pages(
    chromium: str, paths: dict[str, Path], repeat: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the times of the first and the full picture of each page, in ms."""
    from playwright.sync_api import sync_playwright

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in paths}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        # Interleaved, because the load of a shared machine changes. The first round starts the
        # processes of the browser, and does not count.
        for turn in range(repeat + 1):
            for name, path in paths.items():
                pictures = _open_page(browser, path)
                if turn:
                    times[name].append((pictures[0], pictures[-1]))
        browser.close()
    return times


def _open_page(browser: Any, path: Path) -> list[float]:  # noqa: ANN401 - playwright's
    """Open a page, and return when each picture was complete, in ms."""
    page = browser.new_page(viewport=_WINDOW)
    page.add_init_script(_NOTE_PICTURES)
    page.goto(path.as_uri())
    page.wait_for_selector("canvas[aria-busy=false]")
    pictures: list[float] = page.evaluate("window.pictures")
    page.close()
    return pictures


def describe(result: Result) -> str:
    """Format the results as a table."""
    lines = [
        f"page: a scene of {result['vertices']:,} vertices, Chromium without a graphics card",
        "                    MB   first picture   full picture",
    ]
    for name, page in result["pages"].items():
        lines.append(
            f"  {name:14}{page['bytes'] / 1e6:8.2f}{page['first_ms']:13.0f} ms"
            f"{page['full_ms']:12.0f} ms"
        )
    return "\n".join(lines)
