"""Pages of scenes in a real browser: Chromium without a display, drawing in software.

Opening a page takes longer than most tests, so the tests share the pages of these fixtures.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from commands import SCENES, TEST, TRAIN, VAL, run_main
from extras import find_program

from scannet_prep.processed.scene import read_processed
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.synthetic import write_release
from scannet_prep.view.coloring import ViewedScene, view_scene
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.predicted import Prediction
from scannet_prep.view.renderer import PictureOptions, render_scene

needs_browser = pytest.mark.extra("chromium", "playwright")
# The train id of a chair in ScanNet20.
CHAIR = 4

ARGUMENTS = [
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--no-sandbox",
    "--renderer-process-limit=1",
]
# The size of the picture, in pixels.
WIDTH = 500
HEIGHT = 300
# The size of the window: panel and toolbar take the rest.
SIZE = {"width": WIDTH + 312, "height": HEIGHT + 52}

# Draw the picture and read it at once: later, the browser may have discarded it.
READ_PIXELS = """async () => {
    viewer.invalidate();
    await new Promise(requestAnimationFrame);
    const { width, height } = viewer.canvas;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(viewer.canvas, 0, 0);
    const { data } = context.getImageData(0, 0, width, height);
    let text = "";
    for (let i = 0; i < data.length; i += 8192) {
        text += String.fromCharCode(...data.subarray(i, i + 8192));
    }
    return [width, height, btoa(text)];
}"""


@dataclass
class Shown:
    """A page in the browser."""

    page: Any

    def wait(self) -> None:
        """Wait until the picture is drawn."""
        self.page.wait_for_selector("canvas[aria-busy=false]")

    def pixels(self) -> np.ndarray:
        """Return the picture, uint8 (H, W, 3)."""
        self.wait()
        width, height, text = self.page.evaluate(READ_PIXELS)
        data = np.frombuffer(base64.b64decode(text), np.uint8)
        return data.reshape(height, width, 4)[..., :3]

    def follow(self, link: str) -> Shown:
        """Show the view of a link, independent of the view before."""
        self.page.evaluate("link => viewer.follow(link)", link)
        self.wait()
        return self

    def press(self, *keys: str) -> None:
        """Press keys while the picture has the focus."""
        self.page.locator("#picture").focus()
        for key in keys:
            self.page.keyboard.press(key)

    def tooltip(self, words: str) -> dict[str, str]:
        """Wait until the tooltip contains some words, and return all its rows."""
        self.page.locator("#tooltip", has_text=words).wait_for(state="visible")
        names = self.page.locator("#tooltip dt").all_inner_texts()
        texts = self.page.locator("#tooltip dd").all_inner_texts()
        return dict(zip(names, texts, strict=True))

    def select(self, x: float, y: float) -> dict[str, str]:
        """Click a position of the picture, and return the rows of the selection."""
        self.page.locator("#picture").click(position={"x": x, "y": y})
        self.page.locator("#selection").wait_for(state="visible")
        self.wait()
        names = self.page.locator("#selection dt").all_inner_texts()
        texts = self.page.locator("#selection dd").all_inner_texts()
        return dict(zip(names, texts, strict=True))

    @property
    def link(self) -> str:
        """The link of the current view."""
        self.wait()
        return str(self.page.evaluate("viewer.link"))

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_program("chromium"), args=ARGUMENTS
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def show(browser: Any) -> Iterator[Callable[..., Shown]]:
    """A function that opens a page. At the end, checks that no page had errors or sent requests."""
    problems: list[str] = []
    requests: list[str] = []

    def note_console(message: Any) -> None:
        if message.type == "error":
            problems.append(message.text)

    def note_dialog(dialog: Any) -> None:
        problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def show(path: Path, link: str = "", *, script: str = "", **options: Any) -> Shown:
        defaults = {"viewport": SIZE, "color_scheme": "light"}
        page = browser.new_page(**(defaults | options))
        if script:
            page.add_init_script(script)
        page.set_default_timeout(20_000)
        page.on("console", note_console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", note_dialog)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + link)
        return Shown(page)

    yield show
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="session")
def seen_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    write_release(directory / "raw", SCENES, vertices=8000)
    done = run_main(
        "process", directory / "raw", "-o", directory / "processed", "--faces", "--align-axis"
    )
    assert done.status == 0
    return directory / "processed"


@pytest.fixture(scope="session")
def seen(seen_dir: Path) -> dict[str, ViewedScene]:
    """The scenes of the page, by id.

    The training scene has triangles and a prediction, which is chair on one side of the room. The
    validation scene has points only.
    """
    train = read_processed(seen_dir / "train" / f"{TRAIN}.npz")
    val = read_processed(seen_dir / "val" / f"{VAL}.npz")
    test = read_processed(seen_dir / "test" / f"{TEST}.npz")
    predicted = SCANNET20.train_ids_from_raw_ids(train.nyu40_ids, -1)
    is_on_one_side = train.points[:, 0] > train.points[:, 0].mean()
    predicted[is_on_one_side] = CHAIR
    return {
        TRAIN: view_scene(train, prediction=Prediction(SCANNET20, predicted)),
        VAL: replace(view_scene(val), faces=None),
        TEST: view_scene(test),
    }


@pytest.fixture(scope="session")
def page_path(seen: dict[str, ViewedScene], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "three scenes & more.html"
    path.write_bytes(make_scene_page(seen.values()))
    return path


@pytest.fixture(scope="session")
def shown(show: Callable[..., Shown], page_path: Path) -> Shown:
    """One page for all tests that start by following a link."""
    return show(page_path)


def draw(scene: ViewedScene, color: str) -> np.ndarray:
    """Draw a scene with the software renderer, in the size of the page's picture."""
    return render_scene(scene, color, PictureOptions(WIDTH, HEIGHT, has_legend=False))


def share_alike(first: np.ndarray, second: np.ndarray) -> float:
    """Return the share of similar pixels among those that are drawn in at least one picture."""
    is_drawn = ((first != first[0, 0]) | (second != second[0, 0])).any(axis=2)
    is_alike = np.abs(first.astype(int) - second).max(axis=2) <= 12
    return float(is_alike[is_drawn].mean())


def parse_view(link: str) -> list[float]:
    """Return the numbers of the camera in a link: azimuth, elevation, distance, target."""
    return [float(part) for part in parse_qs(link[1:])["view"][0].split(",")]


def parse_point(text: str) -> np.ndarray:
    """Return the coordinates in a text such as `1.000, 2.000, 3.000 m`."""
    return np.array([float(part) for part in text.removesuffix(" m").split(",")])
