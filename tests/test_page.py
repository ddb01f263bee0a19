"""Pages of scenes in a real browser: Debian's Chromium without a display, drawing in software."""

import base64
import importlib.util
import json
import re
import shutil
import socket
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from commands import SCENES, TEST, TRAIN, VAL, run_main
from test_realdata import HAS_REAL_DATA, REAL_DIR

from scannet_prep.errors import UsageError
from scannet_prep.labels import SCANNET20
from scannet_prep.processed.scene import read_processed
from scannet_prep.synthetic import write_release
from scannet_prep.view.coloring import Prediction, ViewedScene, color_segments, view_scene
from scannet_prep.view.page import make_page
from scannet_prep.view.renderer import BACKGROUNDS, PictureOptions, render_scene

CHROMIUM = shutil.which("chromium")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None
needs_browser = pytest.mark.skipif(not HAS_BROWSER, reason="needs chromium (apt-get) and playwright (pip)")
ARGUMENTS = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox"]
SIZE = {"width": 812, "height": 452}  # 500 x 400 for the picture
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"

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

    def color(self, name: str) -> None:
        self.page.locator(f"#colorings input[value={name}]").check(force=True)
        self.wait()

    def pixels(self) -> np.ndarray:
        self.wait()
        width, height, text = self.page.evaluate(READ_PIXELS)
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[..., :3]

    def follow(self, link: str) -> "Shown":
        """Show what a link says and nothing of before."""
        self.page.evaluate("link => viewer.follow(link)", link)
        self.wait()
        return self

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
    contexts, problems, requests = [], [], []

    def show(path: Path, link: str = "", *, script: str = "", **options: Any) -> Shown:
        context = browser.new_context(**({"viewport": SIZE, "color_scheme": "light"} | options))
        contexts.append(context)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + link)
        return Shown(page)

    yield show
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:,"))] == []


@pytest.fixture(scope="module")
def shown(show: Callable[..., Shown], page_path: Path) -> Shown:
    """One page for all tests that begin with a link: to open one takes longer than most of them."""
    return show(page_path)


@pytest.fixture(scope="module")
def processed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    write_release(directory / "raw", SCENES, vertices=16_000)
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


def draw(scene: ViewedScene, color: str, **options: Any) -> np.ndarray:
    return render_scene(scene, color, PictureOptions(500, 400, has_legend=False, **options))


def share_alike(first: np.ndarray, second: np.ndarray) -> float:
    """Of the pixels that are not background in either."""
    is_drawn = ((first != first[0, 0]) | (second != second[0, 0])).any(axis=2)
    is_alike = np.abs(first.astype(int) - second).max(axis=2) <= 12
    return float(is_alike[is_drawn].mean())


@needs_browser
@pytest.mark.parametrize("scene_id", [TRAIN, VAL])
def test_page_shows_each_colouring_as_the_software_renderer_does(
    shown: Shown, scenes: dict[str, ViewedScene], scene_id: str
) -> None:
    scene = scenes[scene_id]
    shown.follow(f"#scene={scene_id}")
    assert shown.page.evaluate("location.protocol") == "file:"
    for color in scene.colorings:
        shown.color(color)
        assert share_alike(shown.pixels(), draw(scene, color)) > 0.85, color
    assert share_alike(shown.pixels(), draw(scene, "rgb")) < 0.5  # so that the comparison can fail


@needs_browser
def test_page_draws_what_is_behind_a_light_or_a_dark_background(shown: Shown, scenes: dict[str, ViewedScene]) -> None:
    for name, (background, _) in BACKGROUNDS.items():
        pixels = shown.follow(f"#scene={VAL}&light={str(name == 'light').lower()}").pixels()
        assert pixels[0, 0].tolist() == list(background)


@needs_browser
def test_legend_lists_names_shares_and_colours_with_the_largest_first(
    shown: Shown, scenes: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    rows = shown.page.locator("#categories li").all()
    categories = scenes[TRAIN].colorings["scannet20"].categories
    assert [row.locator(".name").inner_text() for row in rows] == [item.name for item in categories]
    total = sum(item.count for item in categories)
    for row, item in zip(rows, categories, strict=True):
        share = row.locator(".share").inner_text()
        assert share == (f"{item.count / total:.1%}".replace("%", " %") if item.count >= total / 1000 else "< 0.1 %")
        color = row.locator(".swatch").evaluate("element => getComputedStyle(element).backgroundColor")
        assert color == f"rgb{item.color}"


@needs_browser
def test_only_one_class_stays_and_all_come_back(shown: Shown, scenes: dict[str, ViewedScene]) -> None:
    before = shown.follow(f"#scene={TRAIN}&color=scannet20").pixels()
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


@needs_browser
def test_click_switches_a_class_off_and_on(shown: Shown) -> None:
    before = shown.follow(f"#scene={TRAIN}&color=scannet20").pixels()
    wall = shown.page.get_by_label(re.compile("^wall"))
    wall.click()
    without = shown.pixels()
    assert (without != before).any(axis=2).mean() > 0.05
    assert "1 hidden" in shown.text("#summary")
    wall.click()
    assert np.array_equal(shown.pixels(), before)


@needs_browser
def test_search_leaves_names_and_none_hides_only_those(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    shown.page.locator("#search").fill("WALL")
    assert shown.page.locator("#categories li:visible .name").all_inner_texts() == ["wall"]
    shown.page.locator("#none").click()
    shown.page.locator("#search").fill("")
    off = shown.page.locator("#categories li:has(input:not(:checked)) .name").all_inner_texts()
    assert off == ["wall"]
    assert "hide=wall" in shown.link


@needs_browser
def test_legend_of_thousands_makes_its_lines_when_they_are_wanted_and_finds_all_by_name(
    show: Callable[..., Shown], scenes: dict[str, ViewedScene], tmp_path: Path
) -> None:
    scene = replace(scenes[VAL], colorings={"segments": color_segments(np.arange(len(scenes[VAL].points)))})
    path = tmp_path / "many.html"
    path.write_bytes(make_page([scene]))
    many = show(path)
    many.wait()
    lines = many.page.locator("#categories li")
    assert (lines.count(), many.text("#summary")) == (200, "16000 listed")
    many.page.locator("#more").click()
    assert lines.count() == 400
    many.page.locator("#search").fill("segment 15999")
    assert (lines.locator(".name").all_inner_texts(), many.page.locator("#more").is_visible()) == (
        ["segment 15999"],
        False,
    )
    many.page.locator("#search").fill("")
    many.page.locator("#none").click()
    assert many.text("#summary") == "16000 listed, 16000 hidden"
    assert (many.pixels() == many.pixels()[0, 0]).all()


@needs_browser
def test_hovering_tells_class_raw_category_instance_segment_and_coordinates(
    shown: Shown, scenes: dict[str, ViewedScene]
) -> None:
    scene = scenes[TRAIN]
    shown.follow(f"#scene={TRAIN}&color=instances")
    exact = draw(scene, "instances", has_light=False)
    told = 0
    for number, category in enumerate(scene.colorings["instances"].categories):
        is_seen = (exact == category.color).all(axis=2)
        inner = np.lib.stride_tricks.sliding_window_view(is_seen, (13, 13)).all(axis=(2, 3))
        if not inner.any() or category.name == "unlabeled":
            continue
        y, x = (np.argwhere(inner)[0] + 6).tolist()
        left = shown.page.locator("#picture").bounding_box()["x"]
        shown.page.mouse.move(left + x, y)
        rows = shown.tooltip(category.name)
        vertices = scene.colorings["instances"].indices == number
        assert rows["raw category"] == category.raw_category != ""
        at = [float(part) for part in rows["x, y, z"].removesuffix(" m").split(",")]
        vertex = np.abs(scene.points - at).max(axis=1).argmin()
        assert np.abs(scene.points[vertex] - at).max() < 1e-3
        assert vertices[vertex]
        for key, name in (("ScanNet20", "scannet20"), ("ScanNet200", "scannet200"), ("segment", "segments")):
            coloring = scene.colorings[name]
            assert rows[key] == coloring.categories[coloring.indices[vertex]].name
        told += 1
        if told == 5:
            break
    assert told == 5
    shown.page.mouse.move(left + 1, 1)
    shown.page.locator("#tooltip").wait_for(state="hidden")


@needs_browser
def test_keys_turn_move_zoom_and_come_back(shown: Shown) -> None:
    before = shown.follow(f"#scene={TRAIN}").pixels()
    shown.page.locator("#picture").focus()
    views = {shown.link}
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "Shift+ArrowDown", "+", "t"):
        shown.page.keyboard.press(key)
        views.add(shown.link)
    assert len(views) == 7
    shown.page.keyboard.press("r")
    assert np.array_equal(shown.pixels(), before)
    shown.page.keyboard.press("2")
    shown.wait()
    assert "color=scannet20" in shown.link
    shown.page.keyboard.press("n")
    shown.page.wait_for_function("name => viewer.scene.name === name", arg=VAL)
    assert f"scene={VAL}" in shown.link


@needs_browser
def test_all_that_the_mouse_can_do_the_keyboard_can(shown: Shown) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    page = shown.page
    page.locator("#picture").focus()
    page.keyboard.press("i")  # what is in the middle
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


@needs_browser
def test_link_restores_scene_colours_camera_ceiling_and_what_is_hidden(
    show: Callable[..., Shown], shown: Shown, page_path: Path
) -> None:
    first = shown.follow(f"#scene={VAL}&color=scannet200")
    first.page.get_by_label(re.compile("^floor")).click()
    first.page.locator("#picture").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "+", "Shift+ArrowUp", "g", "]", "b"):
        first.page.keyboard.press(key)
    first.page.locator("#ceiling").fill("1.5")
    first.page.wait_for_function("() => location.hash === viewer.link")
    link, pixels = first.page.evaluate("location.hash"), first.pixels()
    second = show(page_path, link)
    assert share_alike(second.pixels(), pixels) > 0.98  # numbers in the link are rounded
    assert second.link == link
    assert second.page.locator("#ceiling-told").text_content() == "1.5 m"


@needs_browser
@pytest.mark.parametrize(
    "link",
    ["#%E0%A4", "#view=0,1e308,1e308,1e308,0,0", "#view=0,0.5,NaN,0,0,0", "#scene=constructor&color=__proto__",
     "#points=-5&ceiling=1e308", "#view=0,99,1e-300,2,2,1&points=1e308"],
)  # fmt: skip
def test_damaged_link_shows_the_scene_all_the_same(shown: Shown, link: str) -> None:
    shown.follow(link)
    words = parse_qs(shown.link[1:])
    _, elevation, distance, *target = parse_view(shown.link)
    assert abs(elevation) < 1.571
    assert 0.01 < distance < 1000
    assert max(map(abs, target)) < 1000
    assert 0.25 <= float(words.get("points", ["1"])[0]) <= 4
    assert (shown.pixels() != 255).any()


@needs_browser
def test_ceiling_cuts_what_is_above(shown: Shown, scenes: dict[str, ViewedScene]) -> None:
    shown.follow(f"#scene={VAL}&color=normals&ceiling=1")
    everything = draw(scenes[VAL], "normals")
    pixels = shown.pixels()
    assert share_alike(pixels, everything) < 0.8
    assert 0.1 < (pixels != 255).any(axis=2).mean() < (everything != 255).any(axis=2).mean()


@needs_browser
def test_mouse_turns_moves_and_zooms(shown: Shown) -> None:
    shown.follow(f"#scene={VAL}")
    page, views = shown.page, [shown.link]
    for button, key in (("left", None), ("right", None), ("left", "Shift")):
        page.mouse.move(500, 200)
        if key:
            page.keyboard.down(key)
        page.mouse.down(button=button)
        page.mouse.move(560, 240)
        page.mouse.up(button=button)
        if key:
            page.keyboard.up(key)
        views.append(shown.link)
    page.mouse.wheel(0, -300)
    views.append(shown.link)
    page.mouse.dblclick(560, 240)
    views.append(shown.link)
    assert len(set(views)) == 6


@needs_browser
def test_fingers_turn_pinch_and_tap(show: Callable[..., Shown], page_path: Path) -> None:
    shown = show(page_path, viewport={"width": 390, "height": 700}, has_touch=True)
    shown.wait()
    assert shown.page.locator("#fold").get_attribute("aria-expanded") == "false"
    box = shown.page.locator("#picture").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    shown.page.touchscreen.tap(x, y)
    shown.page.locator("#tooltip").wait_for(state="visible")
    fingers = shown.page.context.new_cdp_session(shown.page)

    def move(*steps: list[tuple[float, float]]) -> str:
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


@needs_browser
def test_names_of_files_are_text_and_never_markup(
    show: Callable[..., Shown], scenes: dict[str, ViewedScene], tmp_path: Path
) -> None:
    scene = scenes[TRAIN]
    instances = scene.colorings["instances"]
    evil = tuple(replace(item, name=f"{EVIL} {number}") for number, item in enumerate(instances.categories))
    colorings = scene.colorings | {"instances": replace(instances, categories=evil)}
    path = tmp_path / "evil.html"
    path.write_bytes(make_page([replace(scene, scene_id=EVIL, colorings=colorings)], title=EVIL))
    shown = show(path, "#color=instances")
    shown.wait()
    assert shown.text("h1") == EVIL
    assert shown.page.title() == EVIL
    assert shown.page.locator("#categories .name").first.inner_text() == f"{EVIL} 0"
    assert shown.page.locator("img").count() == 0


@needs_browser
def test_policy_of_the_page_stops_scripts_and_requests(browser: Any, page_path: Path) -> None:
    context = browser.new_context()
    page, listener = context.new_page(), socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    page.goto(page_path.as_uri())
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
    context.close()
    assert {"script-src-elem", "style-src-elem", "script-src-attr", "img-src", "connect-src"} == set(violations)
    with listener, pytest.raises(BlockingIOError):
        listener.accept()  # nobody has come


@needs_browser
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("HTMLCanvasElement.prototype.getContext = () => null;", "WebGL2 is missing"),
        ("delete window.DecompressionStream;", "too old"),
    ],
)
def test_browser_that_cannot_show_the_page_is_told_so(
    show: Callable[..., Shown], page_path: Path, script: str, words: str
) -> None:
    trouble = show(page_path, script=script).page.locator("#trouble")
    trouble.wait_for(state="visible")
    assert words in trouble.inner_text()


@needs_browser
def test_lost_graphics_are_told_and_the_page_goes_on_with_the_same_view(
    show: Callable[..., Shown], page_path: Path
) -> None:
    shown = show(page_path, f"#scene={VAL}&color=scannet200&hide=wall")
    pixels = shown.pixels()
    shown.page.wait_for_function("() => location.hash === viewer.link")
    shown.page.evaluate("lost = viewer.drawing.gl.getExtension('WEBGL_lose_context'), lost.loseContext()")
    shown.page.locator("#trouble").wait_for(state="visible")
    assert "graphics memory" in shown.text("#trouble")
    with shown.page.expect_navigation():
        shown.page.evaluate("lost.restoreContext()")
    assert share_alike(shown.pixels(), pixels) > 0.98


def test_page_of_124_000_points_takes_at_most_3_mb(tmp_path: Path) -> None:
    write_release(tmp_path / "raw", [TRAIN], vertices=124_000)
    assert run_main("process", tmp_path / "raw", "-o", tmp_path / "out", "--scannet200").status == 0
    page = make_page([view_scene(read_processed(tmp_path / "out/train" / f"{TRAIN}.npz"))])
    assert len(page) <= 3_000_000


@pytest.mark.realdata
@pytest.mark.skipif(not HAS_REAL_DATA, reason="SCANNET_PREP_REAL_DATA has no scans/scene0000_00")
def test_page_of_the_real_scene_with_triangles_takes_at_most_as_much_per_vertex(
    tmp_path: Path,
) -> None:
    assert run_main("process", REAL_DIR, "-o", tmp_path, "--scannet200", "--faces").status == 0
    scene = view_scene(read_processed(tmp_path / "train" / f"{TRAIN}.npz"))
    assert len(make_page([scene])) <= 3_000_000 / 124_000 * len(scene.points)


def test_page_has_no_address_in_it_that_a_browser_would_load(page_path: Path) -> None:
    text = re.sub(rb'<script type="application/octet-stream".*?</script>', b"", page_path.read_bytes())
    assert re.findall(rb"(?:src|href|action)=(?![\"']?data:,)|url\(|@import|\bimport\b", text) == []
    assert set(re.findall(rb"https?://[^\s\"'<]+", text)) == {b"http://www.w3.org/2000/svg"}


def test_same_scenes_give_the_same_bytes(scenes: dict[str, ViewedScene], page_path: Path) -> None:
    assert make_page(scenes.values()) == page_path.read_bytes()


def test_positions_colours_and_triangles_of_a_page_are_those_of_the_scene(scenes: dict[str, ViewedScene]) -> None:
    scene, page = scenes[TRAIN], make_page([scenes[TRAIN]]).decode()
    described = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["scenes"][0]
    origin, step = described["origin"], described["step"]
    grid = np.rint((scene.points.astype(np.float64) - origin) / step).astype(int)
    places = {tuple(at): vertex for vertex, at in enumerate(grid.tolist())}
    order = [places[tuple(at)] for at in decode(page, described["arrays"]["positions"]).tolist()]
    assert sorted(order) == list(range(len(scene.points)))
    assert step < 0.0002
    for item in described["colorings"]:
        coloring = scene.colorings[item["name"]]
        expected = coloring.colors if coloring.indices is None else coloring.indices[:, np.newaxis]
        assert np.array_equal(decode(page, item["values"]), expected[order]), item["name"]
    corners = decode(page, described["arrays"]["faces"])
    corners[:, 1:] += corners[:, :1]
    assert turn(np.array(order)[corners]) == turn(scene.faces)


def test_nothing_to_show_is_an_error(scenes: dict[str, ViewedScene]) -> None:
    with pytest.raises(UsageError, match="no scene to show"):
        make_page([])
    empty = replace(scenes[TEST], points=np.empty((0, 3), np.float32))
    with pytest.raises(UsageError, match=f"{TEST}: has no points"):
        make_page([empty])


def scene_of_one_vertex(scene: ViewedScene) -> ViewedScene:
    colorings = {
        name: replace(item, colors=item.colors[:1]) for name, item in scene.colorings.items() if item.indices is None
    }
    return replace(scene, points=scene.points[:1], normals=scene.normals[:1], faces=None, colorings=colorings)


@needs_browser
def test_scenes_of_one_vertex_and_of_absurd_size_are_shown(
    show: Callable[..., Shown], scenes: dict[str, ViewedScene], tmp_path: Path
) -> None:
    path, stray = tmp_path / "scene.html", scenes[VAL].points.copy()
    stray[0] = 1e30
    for scene, facts in (
        (scene_of_one_vertex(scenes[TEST]), "1 vertex ·"),
        (replace(scenes[VAL], points=stray, faces=None), "vertices ·"),
    ):
        path.write_bytes(make_page([scene]))
        shown = show(path)
        shown.wait()
        assert facts in shown.text("#facts")


def decode(page: str, array: dict[str, Any]) -> np.ndarray:
    text = re.search(rf'id="{array["block"]}">(.*?)</script>', page)[1]
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text), -15), np.uint8)
    shape = array["columns"], array["bytes"], array["rows"]
    numbers = np.ascontiguousarray(planes.reshape(shape).transpose(0, 2, 1)).view(f"<u{array['bytes']}")[..., 0]
    return np.cumsum(numbers, axis=1, dtype=numbers.dtype).T.copy()


def turn(faces: np.ndarray) -> list[tuple[int, ...]]:
    """Triangles in any order, each from its lowest corner on: which side is seen stays the same."""
    lowest = faces.argmin(axis=1)[:, np.newaxis]
    return sorted(map(tuple, np.take_along_axis(faces, (lowest + np.arange(3)) % 3, axis=1).tolist()))


def parse_view(link: str) -> list[float]:
    return [float(part) for part in parse_qs(link[1:])["view"][0].split(",")]
