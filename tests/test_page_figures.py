"""Tests of figures of a page in a real browser: saved pictures, links, and the command."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import CHAIR, HEIGHT, WIDTH, Shown, needs_browser, share_alike
from commands import TRAIN, VAL, run_main
from test_renderer import decode_png

from scannet_prep.processed.scene import read_processed
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.view.coloring import ViewedScene, color_segments
from scannet_prep.view.link import parse_link
from scannet_prep.view.markup import read_asset
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.renderer import PictureOptions, render_scene
from scannet_prep.view.splats import estimate_radii

pytestmark = needs_browser

# From inside the room, at an angle.
VIEW = "view=0.6,0.3,2.5,1.5,1.2,0.8"
ABOVE = "view=-1.5708,1.5708,7,2,2,1"
LINK = f"#scene={TRAIN}&color=scannet20&{VIEW}"

PROJECT = """points => points.map(([x, y, z]) => {
    const m = viewer.camera.clipFromScene;
    const [right, up, , depth] = [0, 1, 2, 3].map(
        (row) => m[row] * x + m[4 + row] * y + m[8 + row] * z + m[12 + row]);
    const { width, height } = viewer.canvas;
    return [(right / depth + 1) / 2 * width, (1 - up / depth) / 2 * height, depth];
})"""
READ_PICTURE = """async (options) => {
    const figure = viewer.makeFigure(options);
    const { width, height } = figure;
    const { data } = figure.getContext("2d").getImageData(0, 0, width, height);
    let text = "";
    for (let i = 0; i < data.length; i += 8192) {
        text += String.fromCharCode(...data.subarray(i, i + 8192));
    }
    return [width, height, btoa(text)];
}"""


def read_figure(shown: Shown, *, scale: int = 1, legend: bool = False, clear: bool = False) -> Any:
    """Return the picture that the page would save, uint8 (H, W, 4)."""
    options = {"scale": scale, "hasLegend": legend, "isTransparent": clear}
    width, height, text = shown.page.evaluate(READ_PICTURE, options)
    data = np.frombuffer(base64.b64decode(text), np.uint8)
    return data.reshape(height, width, 4)


# The same view in the browser and by the command.


@pytest.mark.parametrize("scene_id", [TRAIN, VAL])
def test_command_projects_points_to_the_pixels_of_the_browser(
    shown: Shown, seen: dict[str, ViewedScene], scene_id: str
) -> None:
    shown.follow(f"#scene={scene_id}&{VIEW}").pixels()
    points = seen[scene_id].points[::20]

    in_browser = np.array(shown.page.evaluate(PROJECT, points.tolist()))

    camera = parse_link(shown.link).camera
    assert camera is not None
    projected = camera.project(points, WIDTH, HEIGHT)
    is_in_front = in_browser[:, 2] > 0.1
    # Whole numbers are the middles of pixels in Python, and their rims in the browser.
    errors = np.hypot(projected.x + 0.5 - in_browser[:, 0], projected.y + 0.5 - in_browser[:, 1])
    assert is_in_front.sum() > 50
    assert errors[is_in_front].max() < 2


def options_of(link: str, samples: int) -> PictureOptions:
    """Return the options of the command for a link, without a legend."""
    view = parse_link(link)
    assert view.camera is not None
    return PictureOptions(
        WIDTH,
        HEIGHT,
        view.camera,
        has_legend=False,
        samples=samples,
        visibility=view.visibility,
        has_mesh=view.has_mesh,
        has_backs=view.has_backs,
        point_scale=view.point_scale,
        has_boxes=view.has_boxes,
        has_grid=view.has_grid,
        has_edges=view.has_edges,
    )


@pytest.mark.parametrize(
    ("link", "samples"),
    [
        (LINK, 2),
        (f"{LINK}&hide=wall&ceiling=1.5", 2),
        (f"#scene={TRAIN}&color=rgb&{VIEW}&backs=true", 2),
        (f"{LINK}&clip=0.5,3,1,3.5,-1,1.5", 2),
        (f"{LINK}&ortho=true", 2),
        (f"#scene={TRAIN}&color=scannet20&{ABOVE}&ortho=true&grid=true", 2),
        (f"{LINK}&edges=true", 2),
        (f"#scene={TRAIN}&color=instances&mesh=false", 2),
        (f"#scene={VAL}&color=scannet20", 2),
        (f"#scene={VAL}&color=scannet20&view=0.6,0.3,1,1.5,1.2,0.8", 2),
    ],
    ids=[
        "mesh",
        "hidden class and ceiling",
        "backs",
        "clip box",
        "orthographic",
        "from above",
        "edges",
        "points of a mesh",
        "points",
        "near points",
    ],
)
def test_picture_of_the_command_is_that_of_the_browser(
    shown: Shown, seen: dict[str, ViewedScene], link: str, samples: int
) -> None:
    edges = "" if "edges" in link else "&edges=false"
    in_browser = shown.follow(f"{link}{edges}").pixels()
    view = parse_link(shown.link)

    drawn = render_scene(seen[view.scene_id], view.color, options_of(shown.link, samples))

    assert share_alike(in_browser, drawn) > 0.8
    # The comparison can fail.
    assert share_alike(in_browser, drawn[:, ::-1]) < 0.7


def test_points_of_the_command_are_as_large_as_those_of_the_browser(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.follow(f"#scene={VAL}")
    script = read_asset("page/splats.js")
    pairs = shown.page.evaluate(
        f"""async () => {{
            {script}
            const {{ scene, positions }} = viewer;
            const radii = estimateRadii(positions, scene.pointSize / 2 / scene.step);
            const pairs = [];
            for (let number = 0; number < radii.length; number += 50) {{
                const rows = new Map(await scene.describe(number));
                pairs.push([Number(rows.get("vertex")), radii[number] * scene.step]);
            }}
            return pairs;
        }}"""
    )

    vertices, in_browser = np.array(pairs).T
    radii = estimate_radii(seen[VAL].points)[vertices.astype(int)]
    assert len(np.unique(radii)) > 10
    assert radii == pytest.approx(in_browser, abs=2e-4)


@pytest.mark.parametrize("color", ["scannet20", "instances"])
def test_boxes_of_the_command_are_those_of_the_browser(
    shown: Shown, seen: dict[str, ViewedScene], color: str
) -> None:
    shown.follow(f"#scene={TRAIN}&color={color}&{VIEW}&boxes=true&edges=false")
    in_browser = read_figure(shown)[..., :3]
    options = options_of(shown.link, samples=3)

    drawn = render_scene(seen[TRAIN], color, options)
    without = render_scene(seen[TRAIN], color, replace(options, has_boxes=False))

    # Names have another font.
    is_of_boxes = (drawn != without).any(axis=2)
    is_alike = np.abs(in_browser.astype(int) - drawn).max(axis=2) <= 40
    assert is_of_boxes.mean() > 0.01
    assert is_alike[is_of_boxes].mean() > 0.6
    # The comparison can fail.
    assert (np.abs(in_browser.astype(int) - without).max(axis=2) <= 40)[is_of_boxes].mean() < 0.5


def test_link_contains_the_aspect_of_the_picture(shown: Shown) -> None:
    camera = parse_link(shown.follow(LINK).link).camera

    assert camera is not None
    assert camera.aspect == pytest.approx(WIDTH / HEIGHT, abs=1e-3)


# Long links.


@pytest.fixture(scope="module")
def segments_page(
    show: Callable[..., Shown],
    seen: dict[str, ViewedScene],
    tmp_path_factory: pytest.TempPathFactory,
) -> Shown:
    """A page of a scene with 4,000 segments of two vertices."""
    scene = seen[VAL]
    segments = color_segments(np.arange(len(scene.points)) // 2)
    path = tmp_path_factory.mktemp("segments") / "segments.html"
    path.write_bytes(make_scene_page([replace(scene, colorings={"segments": segments})]))
    return show(path)


def test_link_of_many_hidden_segments_is_short(segments_page: Shown) -> None:
    segments_page.follow("")
    segments_page.page.locator("#search").fill("7")
    segments_page.page.locator("#none").click()

    assert len(segments_page.link) < 2000


def test_link_of_many_hidden_segments_hides_them_again(segments_page: Shown) -> None:
    segments_page.follow("")
    segments_page.page.locator("#search").fill("7")
    segments_page.page.locator("#none").click()
    hidden = segments_page.page.evaluate("[...viewer.hidden].sort()")
    link = segments_page.link

    segments_page.follow("").follow(link)

    assert len(hidden) > 1000
    assert segments_page.page.evaluate("[...viewer.hidden].sort()") == hidden


def test_command_hides_the_segments_of_a_long_link(segments_page: Shown) -> None:
    segments_page.follow("")
    segments_page.page.locator("#search").fill("7")
    segments_page.page.locator("#none").click()
    hidden = segments_page.page.evaluate("[...viewer.hidden]")

    assert parse_link(segments_page.link).visibility.hidden_numbers == set(hidden)


# Saved pictures.


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_saved_picture_is_larger_by_the_scale(shown: Shown, scale: int) -> None:
    shown.follow(LINK)
    assert read_figure(shown, scale=scale).shape == (scale * HEIGHT, scale * WIDTH, 4)


def test_saved_picture_shows_the_view(shown: Shown) -> None:
    pixels = shown.follow(LINK).pixels()
    figure = read_figure(shown, scale=2)

    assert share_alike(figure[::2, ::2, :3], pixels) > 0.95


def test_picture_on_the_screen_is_the_same_after_saving(shown: Shown) -> None:
    before = shown.follow(LINK).pixels()
    read_figure(shown, scale=3, legend=True, clear=True)

    assert np.array_equal(shown.pixels(), before)


def test_transparent_picture_has_opacity_only_where_something_is_drawn(shown: Shown) -> None:
    pixels = shown.follow(f"#scene={TRAIN}&color=scannet20").pixels()
    opacity = read_figure(shown, clear=True)[..., 3]

    is_background = (pixels == 255).all(axis=2)
    assert (opacity[is_background] == 0).all()
    assert (opacity[~is_background] > 0).all()
    assert (opacity == 255).mean() > 0.2


def test_transparent_picture_has_the_colours_of_the_opaque_one(shown: Shown) -> None:
    pixels = shown.follow(f"#scene={TRAIN}&color=scannet20").pixels()
    figure = read_figure(shown, clear=True)
    is_opaque = figure[..., 3] == 255

    assert np.array_equal(figure[is_opaque][:, :3], pixels[is_opaque])


def test_legend_of_a_saved_picture_is_beside_the_view(shown: Shown) -> None:
    shown.follow(LINK)
    plain = read_figure(shown)
    figure = read_figure(shown, legend=True)

    assert figure.shape[1] > plain.shape[1] + 50
    assert np.array_equal(figure[:, :WIDTH], plain)


def test_legend_of_a_saved_picture_lists_the_classes_in_the_picture(
    shown: Shown, seen: dict[str, ViewedScene]
) -> None:
    shown.follow(f"{LINK}&hide=wall")
    legend = read_figure(shown, legend=True)[:, WIDTH:, :3].reshape(-1, 3)
    listed = {tuple(color) for color in np.unique(legend, axis=0).tolist()}

    coloring = seen[TRAIN].colorings["scannet20"]
    options = replace(options_of(shown.link, samples=1), has_legend=False)
    drawn = render_scene(replace(seen[TRAIN], normals=None), "scannet20", options)
    in_picture = {tuple(color) for color in np.unique(drawn.reshape(-1, 3), axis=0).tolist()}
    colors = {category.color for category in coloring.categories}
    assert listed & colors == in_picture & colors
    assert len(listed & colors) < len(colors) - 1


# The dialog.


@pytest.fixture
def dialog(shown: Shown) -> Shown:
    shown.follow(LINK)
    shown.press("f")
    shown.page.locator("#saving").wait_for(state="visible")
    yield shown
    shown.page.locator("#saving").get_by_role("button", name="Close").click()


def test_dialog_lists_the_sizes_of_the_picture(dialog: Shown) -> None:
    sizes = dialog.page.locator("#save-scale option").all_inner_texts()
    assert re.findall(r"\d+", sizes[1]) == ["2", str(2 * WIDTH), str(2 * HEIGHT)]


def test_save_downloads_a_png(dialog: Shown, tmp_path: Path) -> None:
    dialog.page.locator("#save-scale").select_option("3")
    dialog.page.locator("#save-legend").uncheck()
    with dialog.page.expect_download() as download:
        dialog.page.locator("#save-picture").click()
    download.value.save_as(tmp_path / "saved.png")
    dialog.page.locator("#save-legend").check()

    header = (tmp_path / "saved.png").read_bytes()[:24]
    assert download.value.suggested_filename == f"{TRAIN}_scannet20.png"
    assert header[16:] == (3 * WIDTH).to_bytes(4, "big") + (3 * HEIGHT).to_bytes(4, "big")


def read_copied(dialog: Shown) -> str:
    """Return the text that was copied, by pasting it."""
    dialog.page.evaluate(
        "document.getElementById('saving').append(document.createElement('textarea'))"
    )
    box = dialog.page.locator("#saving textarea")
    box.focus()
    dialog.page.keyboard.press("Control+V")
    text = str(box.input_value())
    box.evaluate("box => box.remove()")
    return text


def test_copied_link_is_the_address_of_the_view(dialog: Shown) -> None:
    dialog.page.locator("#copy-link").click()
    dialog.page.locator("#save-status", has_text="Link copied").wait_for()

    address = re.sub("#.*", "", dialog.page.url)
    assert read_copied(dialog) == address + dialog.link


def test_copied_command_draws_the_picture_of_the_browser_as_it_stands(show, seen_dir, tmp_path):
    scene = read_processed(seen_dir / f"train/{TRAIN}.npz")
    predicted = SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids, -1)
    predicted[scene.points[:, 0] > scene.points[:, 0].mean()] = CHAIR
    (tmp_path / "my predictions").mkdir()
    np.save(tmp_path / f"my predictions/{TRAIN}.npy", predicted)
    words = ("--source", seen_dir, "--pred", "my predictions", "--color", "error")
    assert run_main("view", TRAIN, *words, "-o", "page.html", cwd=tmp_path).status == 0
    page = show(tmp_path / "page.html")
    page.wait()
    pixels = page.pixels()
    page.press("f")
    page.page.locator("#save-scale").select_option("1")
    page.page.locator("#save-legend").uncheck()
    page.page.locator("#copy-command").click()
    page.page.locator("#save-status", has_text="Command copied").wait_for()
    program, *words = shlex.split(read_copied(page))
    page.page.close()

    outcome = run_main(*words, cwd=tmp_path)

    assert program == "scannet-prep"
    assert outcome.status == 0, outcome.stderr
    image = decode_png((tmp_path / f"{TRAIN}_error.png").read_bytes())
    assert image.shape == pixels.shape
    assert share_alike(image, pixels) > 0.8


def test_copied_command_of_a_dark_page_draws_a_dark_background(
    show: Callable[..., Shown], page_path: Path
) -> None:
    dark = show(page_path, LINK, color_scheme="dark")
    dark.wait()

    link = parse_link(dark.page.evaluate("viewer.firstLink"))

    assert link.is_light is False
    dark.page.close()
