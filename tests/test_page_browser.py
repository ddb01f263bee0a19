"""Pages in a real browser: Debian's Chromium without a display, drawing in software. To open one takes the longest."""

import base64
import importlib.util
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from commands import SCENES, TEST, TRAIN, VAL, run_main

from scannet_prep.labels import SCANNET20
from scannet_prep.processed.scene import read_processed
from scannet_prep.synthetic import write_release
from scannet_prep.view.coloring import Prediction, ViewedScene, color_segments, view_scene
from scannet_prep.view.page import make_page
from scannet_prep.view.renderer import BACKGROUNDS, PictureOptions, render_scene

CHROMIUM = shutil.which("chromium")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None
pytestmark = pytest.mark.skipif(not HAS_BROWSER, reason="needs chromium (apt-get) and playwright (pip)")
ARGUMENTS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
WIDTH, HEIGHT = 500, 300  # of the picture
SIZE = {"width": WIDTH + 312, "height": HEIGHT + 52}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
MANY, ONE, FAR = "scene0001_00", "scene0002_00", "scene0003_00"

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
        names, texts = (self.page.locator(f"#tooltip {kind}").all_inner_texts() for kind in ("dt", "dd"))
        return dict(zip(names, texts, strict=True))

    @property
    def link(self) -> str:
        return str(self.page.evaluate("viewer.link"))

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def show(browser: Any) -> Iterator[Callable[..., Shown]]:
    """Opens a page; afterwards, nothing has gone wrong in it, and no request has left it."""
    problems, requests = [], []

    def show(path: Path, link: str = "", *, script: str = "", **options: Any) -> Shown:
        page = browser.new_page(**({"viewport": SIZE, "color_scheme": "light"} | options))
        if script:
            page.add_init_script(script)
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + link)
        return Shown(page)

    yield show
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.fixture(scope="module")
def processed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    write_release(directory / "raw", SCENES, vertices=8000)
    done = run_main("process", directory / "raw", "-o", directory / "processed", "--faces", "--align-axis")
    assert done.status == 0
    return directory / "processed"


@pytest.fixture(scope="module")
def scenes(processed_dir: Path) -> dict[str, ViewedScene]:
    """Of train: triangles and a prediction that says chair on one side of the room; of val: points."""
    train, val, test = (
        read_processed(processed_dir / split / f"{name}.npz")
        for split, name in (("train", TRAIN), ("val", VAL), ("test", TEST))
    )
    found = SCANNET20.train_ids_from_raw_ids(train.nyu40_ids, -1)
    found[train.points[:, 0] > train.points[:, 0].mean()] = 4
    return {
        TRAIN: view_scene(train, prediction=Prediction(SCANNET20, found)),
        VAL: replace(view_scene(val), faces=None),
        TEST: view_scene(test),
    }


@pytest.fixture(scope="module")
def page_path(scenes: dict[str, ViewedScene], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "three scenes & more.html"
    path.write_bytes(make_page(scenes.values()))
    return path


@pytest.fixture(scope="module")
def shown(show: Callable[..., Shown], page_path: Path) -> Shown:
    """One page for all tests that begin with a link."""
    return show(page_path)


@pytest.fixture(scope="module")
def odd_path(scenes: dict[str, ViewedScene], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of names that are markup, thousands of categories, a scene of one vertex, and one of absurd size."""
    val, train, test = scenes[VAL], scenes[TRAIN], scenes[TEST]
    instances, stray = train.colorings["instances"], val.points.copy()
    evil = tuple(replace(item, name=f"{EVIL} {number}") for number, item in enumerate(instances.categories))
    stray[0] = 1e30
    one = {name: replace(item, colors=item.colors[:1]) for name, item in test.colorings.items()}
    odd = (
        replace(train, scene_id=EVIL, colorings={"instances": replace(instances, categories=evil)}),
        replace(val, scene_id=MANY, colorings={"segments": color_segments(np.arange(len(val.points)))}),
        replace(test, scene_id=ONE, points=test.points[:1], normals=test.normals[:1], faces=None, colorings=one),
        replace(val, scene_id=FAR, points=stray),
    )
    path = tmp_path_factory.mktemp("odd") / "odd.html"
    path.write_bytes(make_page(odd, title=EVIL))
    return path


@pytest.fixture(scope="module")
def odd(show: Callable[..., Shown], odd_path: Path) -> Shown:
    return show(odd_path, "#color=instances")


def draw(scene: ViewedScene, color: str) -> np.ndarray:
    return render_scene(scene, color, PictureOptions(WIDTH, HEIGHT, has_legend=False))


def share_alike(first: np.ndarray, second: np.ndarray) -> float:
    """Of the pixels that are not background in either."""
    is_drawn = ((first != first[0, 0]) | (second != second[0, 0])).any(axis=2)
    is_alike = np.abs(first.astype(int) - second).max(axis=2) <= 12
    return float(is_alike[is_drawn].mean())


def parse_view(link: str) -> list[float]:
    return [float(part) for part in parse_qs(link[1:])["view"][0].split(",")]


@pytest.mark.parametrize("scene_id", [TRAIN, VAL])
def test_page_shows_each_colouring_as_the_software_renderer_does(
    shown: Shown, scenes: dict[str, ViewedScene], scene_id: str
) -> None:
    scene = scenes[scene_id]
    shown.follow(f"#scene={scene_id}")
    assert shown.page.evaluate("location.protocol") == "file:"
    for color in scene.colorings:
        shown.page.locator(f"#colorings input[value={color}]").check(force=True)
        pixels = shown.pixels()
        assert share_alike(pixels, draw(scene, color)) > 0.85, color
    assert share_alike(pixels, draw(scene, "rgb")) < 0.5  # so that the comparison can fail


def test_page_draws_what_is_behind_a_light_or_a_dark_background(shown: Shown) -> None:
    for name, (background, _) in BACKGROUNDS.items():
        pixels = shown.follow(f"#scene={VAL}&light={str(name == 'light').lower()}").pixels()
        assert pixels[0, 0].tolist() == list(background)


def test_legend_lists_names_shares_and_colours_with_the_largest_first(
    shown: Shown, scenes: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    found = shown.page.locator("#categories li").evaluate_all(
        """rows => rows.map((row) => [
            row.querySelector(".name").innerText, row.querySelector(".share").innerText,
            getComputedStyle(row.querySelector(".swatch")).backgroundColor,
        ])"""
    )
    categories = scenes[TRAIN].colorings["scannet20"].categories
    total = sum(item.count for item in categories)
    shares = [f"{item.count / total * 100:.1f} %" if item.count >= total / 1000 else "< 0.1 %" for item in categories]
    assert found == [[item.name, share, f"rgb{item.color}"] for item, share in zip(categories, shares, strict=True)]


def test_classes_are_switched_off_and_on_by_a_click_alone_or_all_at_once(
    shown: Shown, scenes: dict[str, ViewedScene]
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
    floor = next(item for item in scenes[TRAIN].colorings["scannet20"].categories if item.name == "floor")
    drawn = pixels[(pixels != 255).any(axis=2)]
    brightness = drawn / np.array(floor.color)  # light makes it darker, by the same in red, green and blue
    assert len(drawn) > 1000
    assert (np.ptp(brightness, axis=1) < 0.03).mean() > 0.9  # but for the rims, which are blended with what is behind
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
    shown: Shown, scenes: dict[str, ViewedScene]
) -> None:
    scene = scenes[TRAIN]
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
        for key, name in (("ScanNet20", "scannet20"), ("ScanNet200", "scannet200"), ("segment", "segments")):
            coloring = scene.colorings[name]
            assert rows[key] == coloring.categories[coloring.indices[vertex]].name
        told += 1
    assert told > 3
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
    page.locator("#told", has_text="ScanNet20: ").wait_for(state="attached")
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
    assert {"picture", "fold", "scenes", "radio", "search", "checkbox", "top", "ceiling", "keys"} <= reached
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
    assert second.page.locator("#ceiling-told").text_content() == "1.5 m"
    second.page.evaluate("lost = viewer.drawing.gl.getExtension('WEBGL_lose_context'), lost.loseContext()")
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


def test_ceiling_cuts_what_is_above(shown: Shown, scenes: dict[str, ViewedScene]) -> None:
    shown.follow(f"#scene={VAL}&color=normals&ceiling=1")
    everything, pixels = draw(scenes[VAL], "normals"), shown.pixels()
    assert share_alike(pixels, everything) < 0.8
    assert 0.1 < (pixels != 255).any(axis=2).mean() < (everything != 255).any(axis=2).mean()


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


def test_names_of_files_are_text_and_never_markup(odd: Shown) -> None:
    odd.wait()
    assert (odd.text("h1"), odd.page.title()) == (EVIL, EVIL)
    assert odd.page.locator("#categories .name").first.inner_text() == f"{EVIL} 0"
    assert odd.page.locator("img").count() == 0


def test_legend_of_thousands_makes_its_lines_when_they_are_wanted_and_finds_all_by_name(odd: Shown) -> None:
    odd.follow(f"#scene={MANY}")
    lines = odd.page.locator("#categories li")
    assert (lines.count(), odd.text("#summary")) == (200, "8000 listed")
    odd.page.locator("#more").click()
    assert lines.count() == 400
    odd.page.locator("#search").fill("segment 7999")
    assert lines.locator(".name").all_inner_texts() == ["segment 7999"]
    assert not odd.page.locator("#more").is_visible()
    odd.page.locator("#search").fill("")
    odd.page.locator("#none").click()
    assert odd.text("#summary") == "8000 listed, 8000 hidden"
    assert (odd.pixels() == odd.pixels()[0, 0]).all()


@pytest.mark.parametrize(("scene_id", "facts"), [(ONE, "1 vertex ·"), (FAR, "vertices ·")])
def test_scenes_of_one_vertex_and_of_absurd_size_are_shown(odd: Shown, scene_id: str, facts: str) -> None:
    odd.follow(f"#scene={scene_id}")
    assert facts in odd.text("#facts")


def test_policy_of_the_page_stops_scripts_and_requests(browser: Any, odd_path: Path) -> None:
    page, listener = browser.new_page(), socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    page.goto(odd_path.as_uri() + f"#scene={ONE}")
    violations = page.evaluate(
        """async (url) => {
            const violations = [];
            document.addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
            for (const [name, content] of [["script", "window.pwned = true"], ["style", "* { display: none }"]]) {
                document.head.append(Object.assign(document.createElement(name), { textContent: content }));
            }
            document.body.setAttribute("onclick", "window.pwned = true");
            document.body.click();
            document.body.append(Object.assign(new Image(), { src: `${url}/picture.png` }));
            await fetch(url).catch(() => {});
            await fetch("data:,text").catch(() => {});
            await new Promise((resolve) => setTimeout(resolve, 200));
            return violations.concat(window.pwned ? ["pwned"] : []);
        }""",
        f"http://127.0.0.1:{listener.getsockname()[1]}",
    )
    assert {"script-src-elem", "style-src-elem", "script-src-attr", "img-src", "connect-src"} == set(violations)
    with listener, pytest.raises(BlockingIOError):
        listener.accept()  # nobody has come
    page.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("HTMLCanvasElement.prototype.getContext = () => null;", "WebGL2 is missing"),
        ("delete window.DecompressionStream;", "too old"),
    ],
)
def test_browser_that_cannot_show_the_page_is_told_so(
    show: Callable[..., Shown], odd_path: Path, script: str, words: str
) -> None:
    trouble = show(odd_path, script=script).page.locator("#trouble")
    trouble.wait_for(state="visible")
    assert words in trouble.inner_text()


def test_report_opens_in_light_dark_and_print_without_a_complaint(
    show: Callable[..., Shown], processed_dir: Path, tmp_path: Path
) -> None:
    assert run_main("report", processed_dir, "-o", tmp_path / "report.html").status == 0
    page = show(tmp_path / "report.html").page
    white, dark = "rgb(255, 255, 255)", "rgb(20, 24, 31)"
    for scheme, media, paper in (("light", "screen", white), ("dark", "screen", dark), ("dark", "print", white)):
        page.emulate_media(color_scheme=scheme, media=media)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
