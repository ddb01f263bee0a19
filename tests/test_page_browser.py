"""Pages in a real browser: what they show, what stands in their legend, and what they keep out."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import Shown, draw, needs_browser, share_alike
from commands import TEST, TRAIN, VAL, run_main

from scannet_prep.view.coloring import ViewedScene, color_segments
from scannet_prep.view.page import make_page
from scannet_prep.view.renderer import BACKGROUNDS

pytestmark = needs_browser
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
MANY, ONE, FAR = "scene0001_00", "scene0002_00", "scene0003_00"


@pytest.fixture(scope="module")
def odd_path(seen: dict[str, ViewedScene], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of names that are markup, thousands of categories, a scene of one vertex, and one of absurd size."""
    val, train, test = seen[VAL], seen[TRAIN], seen[TEST]
    instances, stray = train.colorings["instances"], val.points.copy()
    evil = tuple(
        replace(item, name=f"{EVIL} {number}") for number, item in enumerate(instances.categories)
    )
    stray[0] = 1e30
    one = {name: replace(item, colors=item.colors[:1]) for name, item in test.colorings.items()}
    odd = (
        replace(train, scene_id=EVIL, colorings={"instances": replace(instances, categories=evil)}),
        replace(
            val, scene_id=MANY, colorings={"segments": color_segments(np.arange(len(val.points)))}
        ),
        replace(
            test,
            scene_id=ONE,
            points=test.points[:1],
            normals=test.normals[:1],
            faces=None,
            colorings=one,
        ),
        replace(val, scene_id=FAR, points=stray),
    )
    path = tmp_path_factory.mktemp("odd") / "odd.html"
    path.write_bytes(make_page(odd))
    return path


@pytest.fixture(scope="module")
def odd(show: Callable[..., Shown], odd_path: Path) -> Shown:
    return show(odd_path, "#color=instances")


def test_page_shows_each_colouring_as_the_software_renderer_does(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.page.reload()  # other tests leave classes unchecked
    shown.wait()
    assert shown.page.evaluate("location.protocol") == "file:"
    for scene_id, colors in (
        (TRAIN, seen[TRAIN].colorings),
        (VAL, ("rgb", "instances", "normals")),
    ):
        shown.follow(f"#scene={scene_id}")
        for color in colors:
            shown.page.locator(f"#colorings input[value={color}]").check(force=True)
            pixels = shown.pixels()
            assert share_alike(pixels, draw(seen[scene_id], color)) > 0.85, (scene_id, color)
        assert (
            share_alike(pixels, draw(seen[scene_id], "rgb")) < 0.5
        )  # so that the comparison can fail


def test_page_draws_what_is_behind_a_light_or_a_dark_background(shown: Shown) -> None:
    for name, (background, _) in BACKGROUNDS.items():
        pixels = shown.follow(f"#scene={VAL}&light={str(name == 'light').lower()}").pixels()
        assert pixels[0, 0].tolist() == list(background)


def test_legend_lists_names_shares_and_colours_with_the_largest_first(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={TRAIN}&color=scannet20")
    found = shown.page.locator("#categories li").evaluate_all(
        """rows => rows.map((row) => [
            row.querySelector(".name").innerText, row.querySelector(".share").innerText,
            getComputedStyle(row.querySelector(".swatch")).backgroundColor,
        ])"""
    )
    categories = seen[TRAIN].colorings["scannet20"].categories
    total = sum(item.count for item in categories)
    shares = [
        f"{item.count / total * 100:.1f} %" if item.count >= total / 1000 else "< 0.1 %"
        for item in categories
    ]
    assert found == [
        [item.name, share, f"rgb{item.color}"]
        for item, share in zip(categories, shares, strict=True)
    ]


def test_ceiling_cuts_what_is_above(shown: Shown, seen: dict[str, ViewedScene]) -> None:
    shown.follow(f"#scene={VAL}&color=normals&ceiling=1")
    everything, pixels = draw(seen[VAL], "normals"), shown.pixels()
    assert share_alike(pixels, everything) < 0.8
    assert 0.1 < (pixels != 255).any(axis=2).mean() < (everything != 255).any(axis=2).mean()


def test_names_of_files_are_text_and_never_markup(odd: Shown) -> None:
    odd.follow("")
    assert (odd.text("h1"), odd.page.title()) == (EVIL, f"{EVIL} and 3 more")
    assert odd.page.locator("#categories .name").first.inner_text() == f"{EVIL} 0"
    assert odd.page.locator("img").count() == 0


def test_legend_of_thousands_makes_its_lines_when_they_are_wanted_and_finds_all_by_name(
    odd: Shown,
) -> None:
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


def test_scenes_of_one_vertex_and_of_absurd_size_are_shown(odd: Shown) -> None:
    for scene_id, facts in ((ONE, "1 vertex ·"), (FAR, "vertices ·")):
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
    assert {
        "script-src-elem",
        "style-src-elem",
        "script-src-attr",
        "img-src",
        "connect-src",
    } == set(violations)
    with listener, pytest.raises(BlockingIOError):
        listener.accept()  # nobody has come
    page.close()


def test_browser_that_cannot_show_the_page_is_told_so(
    show: Callable[..., Shown], odd_path: Path
) -> None:
    page = show(odd_path, script="HTMLCanvasElement.prototype.getContext = () => null;").page
    page.locator("#trouble", has_text="WebGL2 is missing").wait_for(state="visible")
    page.add_init_script("delete window.DecompressionStream;")
    page.reload()
    page.locator("#trouble", has_text="too old").wait_for(state="visible")


def test_report_opens_in_light_dark_and_print_without_a_complaint(
    show: Callable[..., Shown], seen_dir: Path, tmp_path: Path
) -> None:
    assert run_main("report", seen_dir, "-o", tmp_path / "report.html").status == 0
    page = show(tmp_path / "report.html").page
    white, dark = "rgb(255, 255, 255)", "rgb(20, 24, 31)"
    for scheme, media, paper in (
        ("light", "screen", white),
        ("dark", "screen", dark),
        ("dark", "print", white),
    ):
        page.emulate_media(color_scheme=scheme, media=media)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
