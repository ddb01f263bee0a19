"""Tests of pages in a real browser: pictures, legend, markup in names, and the policy."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import Shown, draw, needs_browser, share_alike
from commands import TEST, TRAIN, VAL

from scannet_prep.view.categories import Category
from scannet_prep.view.coloring import ViewedScene, color_segments
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.renderer import BACKGROUNDS

pytestmark = needs_browser

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"

# Scenes with thousands of categories, with one vertex, and with a vertex very far away.
MANY = "scene0001_00"
ONE = "scene0002_00"
FAR = "scene0003_00"


# The picture.


@pytest.fixture
def reloaded(shown: Shown) -> Shown:
    """The page as it opens: other tests hide categories."""
    shown.page.reload()
    shown.wait()
    return shown


def test_page_is_opened_from_a_file(reloaded: Shown) -> None:
    assert reloaded.page.evaluate("location.protocol") == "file:"


@pytest.mark.parametrize("scene_id", [TRAIN, VAL])
def test_page_shows_each_colouring_like_the_software_renderer(
    reloaded: Shown, seen: dict[str, ViewedScene], scene_id: str
) -> None:
    scene = seen[scene_id]
    names = scene.colorings if scene_id == TRAIN else ("rgb", "instances", "normals")
    # Pictures have no shaded edges, and their points are squares.
    limit = 0.85 if scene_id == TRAIN else 0.75
    reloaded.follow(f"#scene={scene_id}&edges=false")
    for name in names:
        reloaded.page.locator(f"#colorings input[value={name}]").check(force=True)
        pixels = reloaded.pixels()
        assert share_alike(pixels, draw(scene, name)) > limit, name

    # The comparison can fail: the last colouring is not rgb.
    assert share_alike(pixels, draw(scene, "rgb")) < 0.5


@pytest.mark.parametrize("name", ["light", "dark"])
def test_page_draws_the_background_of_the_renderer(shown: Shown, name: str) -> None:
    is_light = "true" if name == "light" else "false"
    pixels = shown.follow(f"#scene={VAL}&light={is_light}").pixels()
    background, _ = BACKGROUNDS[name]

    assert pixels[0, 0].tolist() == list(background)


def test_ceiling_hides_what_is_above(shown: Shown, seen: dict[str, ViewedScene]) -> None:
    everything = draw(seen[VAL], "normals")

    pixels = shown.follow(f"#scene={VAL}&color=normals&ceiling=1").pixels()

    drawn_share = (pixels != 255).any(axis=2).mean()
    assert share_alike(pixels, everything) < 0.8
    assert 0.1 < drawn_share < (everything != 255).any(axis=2).mean()


# The legend.

READ_LEGEND = """rows => rows.map((row) => [
    row.querySelector(".name").innerText,
    row.querySelector(".share").innerText,
    getComputedStyle(row.querySelector(".swatch")).backgroundColor,
])"""


def describe_row(category: Category, vertex_count: int) -> list[str]:
    """Return the expected name, share and colour of a category in the legend."""
    share = "< 0.1 %"
    if category.count >= vertex_count / 1000:
        share = f"{category.count / vertex_count * 100:.1f} %"
    return [category.name, share, f"rgb{category.color}"]


def test_legend_lists_names_shares_and_colours_the_largest_first(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    rows = shown.page.locator("#categories li").evaluate_all(READ_LEGEND)
    scene = seen[TRAIN]
    categories = scene.colorings["scannet20"].categories

    assert rows == [describe_row(category, len(scene.points)) for category in categories]


# A page of odd scenes.


@pytest.fixture(scope="module")
def odd_path(seen: dict[str, ViewedScene], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of names that are markup, thousands of categories, one vertex, and a far vertex."""
    train = seen[TRAIN]
    val = seen[VAL]
    test = seen[TEST]

    instances = train.colorings["instances"]
    categories = []
    for number, category in enumerate(instances.categories):
        categories.append(replace(category, name=f"{MARKUP} {number}"))
    markup = replace(instances, categories=tuple(categories))

    segments = color_segments(np.arange(len(val.points)))
    first_vertex = {}
    for name, coloring in test.colorings.items():
        first_vertex[name] = replace(coloring, colors=coloring.colors[:1])
    assert test.normals is not None
    far_points = val.points.copy()
    far_points[0] = 1e30

    scenes = (
        replace(train, scene_id=MARKUP, colorings={"instances": markup}),
        replace(val, scene_id=MANY, colorings={"segments": segments}),
        replace(
            test,
            scene_id=ONE,
            points=test.points[:1],
            normals=test.normals[:1],
            faces=None,
            colorings=first_vertex,
        ),
        replace(val, scene_id=FAR, points=far_points),
    )
    path = tmp_path_factory.mktemp("odd") / "odd.html"
    path.write_bytes(make_scene_page(scenes))
    return path


@pytest.fixture(scope="module")
def odd(show: Callable[..., Shown], odd_path: Path) -> Shown:
    return show(odd_path, "#color=instances")


def test_markup_in_the_name_of_a_scene_is_shown_as_text(odd: Shown) -> None:
    odd.follow("")

    assert odd.text("h1") == MARKUP
    assert odd.page.title() == MARKUP


def test_title_of_the_page_is_the_shown_scene(odd: Shown) -> None:
    odd.follow(f"#scene={ONE}")
    assert odd.page.title() == ONE


def test_markup_in_the_name_of_an_instance_is_shown_as_text(odd: Shown) -> None:
    odd.follow("")

    assert odd.page.locator("#categories .name").first.inner_text() == f"{MARKUP} 0"
    assert odd.page.locator("img[src=x]").count() == 0


def test_legend_of_thousands_shows_more_lines_on_request(odd: Shown) -> None:
    odd.follow(f"#scene={MANY}")
    lines = odd.page.locator("#categories li")
    assert lines.count() == 200
    assert odd.text("#summary") == "8000 listed"

    odd.page.locator("#more").click()

    assert lines.count() == 400


def test_search_finds_names_without_a_line_in_the_legend(odd: Shown) -> None:
    odd.follow(f"#scene={MANY}")
    odd.page.locator("#search").fill("segment 7999")
    names = odd.page.locator("#categories li .name").all_inner_texts()

    assert names == ["segment 7999"]
    assert not odd.page.locator("#more").is_visible()


def test_none_hides_all_categories_of_thousands(odd: Shown) -> None:
    odd.follow(f"#scene={MANY}")

    odd.page.locator("#none").click()

    pixels = odd.pixels()
    assert odd.text("#summary") == "8000 listed, 8000 hidden"
    assert (pixels == pixels[0, 0]).all()


@pytest.mark.parametrize(
    ("scene_id", "facts"), [(ONE, "1 vertex ·"), (FAR, "vertices ·")], ids=["one", "far"]
)
def test_scene_of_an_odd_size_is_shown(odd: Shown, scene_id: str, facts: str) -> None:
    odd.follow(f"#scene={scene_id}")
    assert facts in odd.text("#facts")


def test_page_has_one_main_landmark(odd: Shown) -> None:
    assert odd.page.get_by_role("main").count() == 1


@pytest.mark.parametrize("selector", ["#scene-name", "#categories .name"])
def test_names_do_not_change_the_direction_of_what_is_beside_them(
    odd: Shown, selector: str
) -> None:
    odd.follow("")
    element = odd.page.locator(selector).first

    assert element.evaluate("element => getComputedStyle(element).unicodeBidi") == "plaintext"


# The page on paper.


@pytest.fixture
def printed(odd: Shown) -> Iterator[Any]:
    """The page with dark background, as it is printed."""
    odd.follow("#light=false")
    odd.page.emulate_media(media="print")
    yield odd.page
    odd.page.emulate_media(media="screen")


@pytest.mark.parametrize("selector", ["#tools", "#filter", "#fold", "#categories input"])
def test_printed_page_has_no_controls(printed: Any, selector: str) -> None:
    assert not printed.locator(selector).first.is_visible()


def test_printed_page_has_picture_name_and_legend(printed: Any) -> None:
    for selector in ("#picture", "#scene-name", "#categories .name"):
        assert printed.locator(selector).first.is_visible()


def test_printed_page_contains_the_whole_legend(printed: Any) -> None:
    last_line = printed.locator("#categories li").last.bounding_box()
    page_height = printed.evaluate("document.documentElement.scrollHeight")

    assert last_line["y"] + last_line["height"] <= page_height


def test_printed_text_is_black(printed: Any) -> None:
    assert printed.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


def test_printed_swatches_keep_their_colours(printed: Any) -> None:
    style = "getComputedStyle(document.querySelector('.swatch')).printColorAdjust"
    assert printed.evaluate(style) == "exact"


# The policy, and browsers that cannot show the page.

TRY_TO_LOAD = """async (url) => {
    const violations = [];
    document.addEventListener("securitypolicyviolation", (event) => {
        violations.push(event.effectiveDirective);
    });
    const append = (name, textContent) => {
        document.head.append(Object.assign(document.createElement(name), { textContent }));
    };
    append("script", "window.pwned = true");
    append("style", "* { display: none }");
    document.body.setAttribute("onclick", "window.pwned = true");
    document.body.click();
    document.body.append(Object.assign(new Image(), { src: `${url}/picture.png` }));
    await fetch(url).catch(() => {});
    await fetch("data:,text").catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 200));
    return violations.concat(window.pwned ? ["pwned"] : []);
}"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that accepts a connection only if there is one already."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def test_policy_of_the_page_stops_scripts_styles_and_requests(
    browser: Any, odd_path: Path, listener: socket.socket
) -> None:
    page = browser.new_page()
    page.goto(f"{odd_path.as_uri()}#scene={ONE}")

    violations = page.evaluate(TRY_TO_LOAD, f"http://127.0.0.1:{listener.getsockname()[1]}")

    page.close()
    assert set(violations) == {
        "script-src-elem",
        "style-src-elem",
        "script-src-attr",
        "img-src",
        "connect-src",
    }
    # No request has arrived.
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("HTMLCanvasElement.prototype.getContext = () => null;", "WebGL2 is missing"),
        ("HTMLCanvasElement.prototype.getContext = () => null;", "view SCENE -o scene.png"),
        ("delete window.DecompressionStream;", "too old"),
    ],
    ids=["no WebGL2", "no WebGL2, way out", "no DecompressionStream"],
)
def test_browser_that_cannot_show_the_page_gets_the_reason(
    show: Callable[..., Shown], odd_path: Path, script: str, message: str
) -> None:
    page = show(odd_path, script=script).page
    page.locator("#trouble", has_text=message).wait_for(state="visible")
