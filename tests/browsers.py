"""Pages of scenes in a real browser: Debian's Chromium without a display, drawing in software.

To open a page takes longer than most tests, so that they share what is here.
"""

import base64
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from commands import SCENES, TEST, TRAIN, VAL, run_main

from scannet_prep.processed.scene import read_processed
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.synthetic import write_release
from scannet_prep.view.coloring import Prediction, ViewedScene, view_scene
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.renderer import PictureOptions, render_scene

CHROMIUM = shutil.which("chromium")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None
needs_browser = pytest.mark.skipif(
    not HAS_BROWSER, reason="needs chromium (apt-get) and playwright (pip)"
)
ARGUMENTS = [
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--no-sandbox",
    "--renderer-process-limit=1",
]
WIDTH, HEIGHT = 500, 300  # of the picture
SIZE = {"width": WIDTH + 312, "height": HEIGHT + 52}

# The picture as it was just drawn: later, the browser may have thrown it away.
READ_PIXELS = """async () => {
    viewer.invalidate();
    await new Promise(requestAnimationFrame);
    const { width, height } = viewer.canvas;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(viewer.canvas, 0, 0);
    const { data } = context.getImageData(0, 0, width, height);
    let text = "";
    for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
    return [width, height, btoa(text)];
}"""


@dataclass
class Shown:
    """A page in the browser."""

    page: Any

    def wait(self) -> None:
        self.page.wait_for_selector("canvas[aria-busy=false]")

    def pixels(self) -> np.ndarray:
        self.wait()
        width, height, text = self.page.evaluate(READ_PIXELS)
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[..., :3]

    def follow(self, link: str) -> "Shown":
        """Show what a link says and nothing of before."""
        self.page.evaluate("link => viewer.follow(link)", link)
        self.wait()
        return self

    def press(self, *keys: str) -> None:
        self.page.locator("#picture").focus()
        for key in keys:
            self.page.keyboard.press(key)

    def tooltip(self, words: str) -> dict[str, str]:
        """Wait until it says something, and give all that it says."""
        self.page.locator("#tooltip", has_text=words).wait_for(state="visible")
        names, texts = (
            self.page.locator(f"#tooltip {kind}").all_inner_texts() for kind in ("dt", "dd")
        )
        return dict(zip(names, texts, strict=True))

    @property
    def link(self) -> str:
        self.wait()
        return str(self.page.evaluate("viewer.link"))

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def show(browser: Any) -> Iterator[Callable[..., Shown]]:
    """Opens a page; afterwards, nothing has gone wrong in it, and no request has left it."""
    problems, requests = [], []

    def show(path: Path, link: str = "", *, script: str = "", **options: Any) -> Shown:
        page = browser.new_page(**({"viewport": SIZE, "color_scheme": "light"} | options))
        if script:
            page.add_init_script(script)
        page.set_default_timeout(20_000)
        page.on(
            "console",
            lambda message: problems.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "dialog",
            lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss(),
        )
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
    """Of train: triangles and a prediction that says chair on one side of the room; of val: points."""
    train, val, test = (
        read_processed(seen_dir / split / f"{name}.npz")
        for split, name in (("train", TRAIN), ("val", VAL), ("test", TEST))
    )
    found = SCANNET20.train_ids_from_raw_ids(train.nyu40_ids, -1)
    found[train.points[:, 0] > train.points[:, 0].mean()] = 4
    return {
        TRAIN: view_scene(train, prediction=Prediction(SCANNET20, found)),
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
    """One page for all tests that begin with a link."""
    return show(page_path)


def draw(scene: ViewedScene, color: str) -> np.ndarray:
    return render_scene(scene, color, PictureOptions(WIDTH, HEIGHT, has_legend=False))


def share_alike(first: np.ndarray, second: np.ndarray) -> float:
    """Of the pixels that are not background in either."""
    is_drawn = ((first != first[0, 0]) | (second != second[0, 0])).any(axis=2)
    is_alike = np.abs(first.astype(int) - second).max(axis=2) <= 12
    return float(is_alike[is_drawn].mean())


def parse_view(link: str) -> list[float]:
    return [float(part) for part in parse_qs(link[1:])["view"][0].split(",")]
