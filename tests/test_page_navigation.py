"""Tests of how the camera of a page moves, of the clip box and of boxes, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browsers import HEIGHT, WIDTH, Shown, needs_browser, parse_point, parse_view, share_alike
from commands import TRAIN, VAL

from scannet_prep.view.coloring import ViewedScene

pytestmark = needs_browser

TRAIN_LABELS = f"#scene={TRAIN}&color=scannet20"
# The left edge of the picture in the window.
LEFT = 312


def parse_eye(link: str) -> np.ndarray:
    """Return the position of the camera in a link."""
    azimuth, elevation, distance, *target = parse_view(link)
    back = [
        np.cos(elevation) * np.cos(azimuth),
        np.cos(elevation) * np.sin(azimuth),
        np.sin(elevation),
    ]
    return np.array(target) + distance * np.array(back)


# The camera computes its matrix when a picture is drawn, before the next frame.
READ_CAMERA = """async () => {
    await new Promise(requestAnimationFrame);
    return [...viewer.camera.clipFromScene];
}"""


def project(shown: Shown, points: np.ndarray) -> np.ndarray:
    """Return where the camera of the page sees points, (V, 2): -1 to 1 to the right and up."""
    numbers = shown.page.evaluate(READ_CAMERA)
    matrix = np.reshape(numbers, (4, 4))
    clip = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ matrix
    return clip[:, :2] / clip[:, 3:]


def count_drawn(pixels: np.ndarray) -> int:
    return int((pixels != 255).any(axis=2).sum())


# The wheel.


def test_wheel_keeps_the_point_under_the_cursor(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.page.mouse.move(LEFT + 330, 170)
    point = parse_point(shown.tooltip("x, y, z")["x, y, z"])
    before = project(shown, point[np.newaxis])
    shown.page.mouse.wheel(0, -300)
    shown.wait()
    after = project(shown, point[np.newaxis])

    # A vertex within a few pixels is the point.
    assert np.abs(after - before).max() < 0.05


def test_wheel_moves_the_camera_through_a_wall(shown: Shown) -> None:
    start = parse_eye(shown.follow(TRAIN_LABELS).link)
    shown.page.mouse.move(LEFT + WIDTH / 2, HEIGHT / 2)
    point = parse_point(shown.tooltip("x, y, z")["x, y, z"])
    for _ in range(40):
        shown.page.mouse.wheel(0, -300)
    shown.wait()
    end = parse_eye(shown.link)

    assert (end - point) @ (point - start) > 0


def test_wheel_zooms_out_again(shown: Shown) -> None:
    before = parse_view(shown.follow(TRAIN_LABELS).link)
    shown.page.mouse.move(LEFT + WIDTH / 2, HEIGHT / 2)
    shown.page.mouse.wheel(0, 300)
    shown.wait()

    assert parse_view(shown.link)[2] > before[2]


# Flying.


@pytest.mark.parametrize(
    ("key", "direction"),
    [
        ("w", (0, 1, 0)),
        ("s", (0, -1, 0)),
        ("a", (-1, 0, 0)),
        ("d", (1, 0, 0)),
        ("e", (0, 0, 1)),
        ("q", (0, 0, -1)),
        ("ArrowUp", (0, 1, 0)),
        ("ArrowDown", (0, -1, 0)),
        ("ArrowLeft", (-1, 0, 0)),
        ("ArrowRight", (1, 0, 0)),
    ],
)
def test_key_flies_in_its_direction(
    shown: Shown, key: str, direction: tuple[int, int, int]
) -> None:
    # The camera looks towards greater y.
    start = parse_eye(shown.follow(f"{TRAIN_LABELS}&view=-1.5708,0.5,3,2,2,1").link)
    shown.press(key)
    shift = parse_eye(shown.link) - start

    assert shift @ direction >= 0.099
    assert shift == pytest.approx(np.linalg.norm(shift) * np.array(direction), abs=1e-3)


def test_held_key_keeps_flying(shown: Shown) -> None:
    shown.follow(f"{TRAIN_LABELS}&view=-1.5708,0.5,3,2,2,1")
    shown.page.locator("#picture").focus()
    shown.page.keyboard.down("w")
    shown.page.wait_for_function("() => viewer.camera.target[1] > 2.5")
    shown.page.keyboard.up("w")


def test_letter_released_as_a_capital_ends_the_flight(shown: Shown) -> None:
    shown.follow(f"{TRAIN_LABELS}&view=-1.5708,0.5,3,2,2,1")
    shown.page.locator("#picture").focus()
    shown.page.keyboard.down("w")
    # After the first step.
    shown.page.wait_for_function("() => viewer.camera.target[1] > 2.15")

    # Shift was pressed meanwhile.
    moved = shown.page.evaluate(
        """async () => {
            document.dispatchEvent(new KeyboardEvent("keyup", { key: "W" }));
            const start = viewer.camera.target[1];
            for (let frame = 0; frame < 4; frame++) await new Promise(requestAnimationFrame);
            return viewer.camera.target[1] - start;
        }"""
    )

    shown.page.keyboard.up("w")
    assert moved == 0


@pytest.mark.parametrize(("key", "word"), [("W", "view"), ("G", "grid=true")])
def test_caps_lock_does_not_change_the_keys(shown: Shown, key: str, word: str) -> None:
    before = shown.follow(TRAIN_LABELS).link
    shown.page.evaluate(
        """key => {
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
            document.body.dispatchEvent(new KeyboardEvent("keyup", { key, bubbles: true }));
        }""",
        key,
    )

    assert shown.link != before
    assert word in shown.link


def test_shift_and_arrows_turn_without_moving_the_target(shown: Shown) -> None:
    before = parse_view(shown.follow(TRAIN_LABELS).link)
    shown.press("Shift+ArrowRight")
    after = parse_view(shown.link)

    assert after[0] != before[0]
    assert after[1:] == before[1:]


def test_double_click_moves_the_point_to_the_middle(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.page.mouse.move(LEFT + 330, 170)
    point = parse_point(shown.tooltip("x, y, z")["x, y, z"])
    shown.page.mouse.dblclick(LEFT + 330, 170)
    shown.wait()

    assert project(shown, point[np.newaxis]) == pytest.approx(0, abs=0.01)


# The orthographic view.


@pytest.fixture
def from_above(shown: Shown) -> Shown:
    shown.follow(TRAIN_LABELS)
    shown.press("t")
    shown.wait()
    return shown


def test_vertical_lines_are_points_from_above(from_above: Shown) -> None:
    low, high = project(from_above, np.array([[0.5, 1, 0], [0.5, 1, 2]]))

    assert high == pytest.approx(low, abs=1e-6)


def test_view_from_above_fits_the_scene(from_above: Shown, seen: dict[str, ViewedScene]) -> None:
    extent = np.abs(project(from_above, seen[TRAIN].points)).max()

    assert 0.9 < extent <= 1


def test_link_restores_the_view_from_above(from_above: Shown) -> None:
    before = from_above.pixels()
    link = from_above.link
    from_above.follow(TRAIN_LABELS)

    assert share_alike(from_above.follow(link).pixels(), before) > 0.98


def test_tooltip_describes_points_from_above(from_above: Shown) -> None:
    from_above.page.mouse.move(LEFT + 230, 140)
    point = parse_point(from_above.tooltip("x, y, z")["x, y, z"])
    x, y = project(from_above, point[np.newaxis])[0]

    assert (x + 1) / 2 * WIDTH == pytest.approx(230.5, abs=8)
    assert (1 - y) / 2 * HEIGHT == pytest.approx(140.5, abs=8)


def test_reset_returns_to_perspective(from_above: Shown) -> None:
    from_above.press("r")

    assert "ortho" not in from_above.link


def test_wheel_keeps_the_point_under_the_cursor_from_above(from_above: Shown) -> None:
    from_above.page.mouse.move(LEFT + 230, 140)
    point = parse_point(from_above.tooltip("x, y, z")["x, y, z"])
    before = project(from_above, point[np.newaxis])
    from_above.page.mouse.wheel(0, -300)
    from_above.wait()

    assert project(from_above, point[np.newaxis]) == pytest.approx(before, abs=0.05)


# The clip box.


def set_handle(shown: Shown, name: str, value: float) -> None:
    shown.page.locator(f"#clip-{name}").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }",
        value,
    )
    shown.wait()


@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("scene_id", [TRAIN, VAL], ids=["triangles", "points"])
def test_clip_box_hides_what_is_outside(
    shown: Shown, seen: dict[str, ViewedScene], scene_id: str, axis: str
) -> None:
    points = seen[scene_id].points
    number = "xyz".index(axis)
    size = float(np.ptp(points, axis=0)[number])
    shown.follow(f"#scene={scene_id}&color=rgb&edges=false&backs=true&points=0.25")
    set_handle(shown, f"{axis}-from", 0.4 * size)
    set_handle(shown, f"{axis}-to", 0.6 * size)
    start = points.min(axis=0)[number]
    heights = points[:, number] - start
    inside = points[(heights > 0.4 * size) & (heights < 0.6 * size)]

    rows, columns = np.nonzero((shown.pixels() != 255).any(axis=2))
    x, y = project(shown, inside).T
    # Discs reach beyond the centres of the points.
    assert columns.min() >= (x.min() + 1) / 2 * WIDTH - 6
    assert columns.max() <= (x.max() + 1) / 2 * WIDTH + 6
    assert rows.min() >= (1 - y.max()) / 2 * HEIGHT - 6
    assert rows.max() <= (1 - y.min()) / 2 * HEIGHT + 6


def test_handle_of_the_clip_box_stops_at_the_other_one(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    set_handle(shown, "x-to", 2)
    set_handle(shown, "x-from", 3)

    assert float(shown.page.locator("#clip-x-from").input_value()) == 2


def test_link_restores_the_clip_box(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    set_handle(shown, "x-to", 2)
    before = shown.pixels()
    link = shown.link
    shown.follow(TRAIN_LABELS)

    assert share_alike(shown.follow(link).pixels(), before) > 0.98


def test_whole_scene_and_reset_open_the_clip_box(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    for selector in ("#clip-reset", "#reset"):
        set_handle(shown, "x-to", 2)
        shown.page.locator(selector).evaluate("button => button.click()")

        assert "clip" not in shown.link


def test_key_v_shows_the_clip_box(shown: Shown) -> None:
    shown.follow(TRAIN_LABELS)
    shown.press("v")
    assert shown.page.locator("#clip-panel").is_visible()

    shown.press("v")
    assert shown.page.locator("#clip-panel").is_hidden()


# The boxes of instances.


@pytest.fixture
def with_boxes(shown: Shown) -> Shown:
    shown.follow(TRAIN_LABELS)
    shown.press("b")
    shown.page.locator("#overlay .boxes path[d]").first.wait_for(state="attached")
    shown.wait()
    return shown


def test_instances_have_boxes_with_their_names(
    with_boxes: Shown, seen: dict[str, ViewedScene]
) -> None:
    names = {category.name for category in seen[TRAIN].colorings["instances"].categories}
    labels = with_boxes.page.locator("#overlay .boxes text").all_text_contents()

    rooms = {name for name in names if name.split()[0] in ("wall", "floor", "ceiling", "unlabeled")}
    assert set(labels) == names - rooms


READ_BOX = """name => {
    const texts = [...document.querySelectorAll("#overlay .boxes text")];
    const text = texts.find((each) => each.textContent === name);
    const { x, y, width, height } = text.previousSibling.getBBox();
    return [x, y, x + width, y + height];
}"""


def test_box_surrounds_its_instance(with_boxes: Shown, seen: dict[str, ViewedScene]) -> None:
    scene = seen[TRAIN]
    coloring = scene.colorings["instances"]
    number, category = next(
        (number, each)
        for number, each in enumerate(coloring.categories)
        if each.name.split()[0] not in ("wall", "floor", "ceiling", "unlabeled")
    )
    points = scene.points[coloring.indices == number]
    low = points.min(axis=0)
    high = points.max(axis=0)
    corners = np.stack(np.meshgrid(*zip(low, high, strict=True)), axis=-1).reshape(-1, 3)
    x, y = project(with_boxes, corners).T
    expected = [
        (x.min() + 1) / 2 * WIDTH,
        (1 - y.max()) / 2 * HEIGHT,
        (x.max() + 1) / 2 * WIDTH,
        (1 - y.min()) / 2 * HEIGHT,
    ]

    assert with_boxes.page.evaluate(READ_BOX, category.name) == pytest.approx(expected, abs=1)


def test_hidden_class_has_no_boxes(with_boxes: Shown) -> None:
    before = with_boxes.page.locator("#overlay .boxes text").count()
    with_boxes.page.locator("#none").click()
    with_boxes.wait()

    assert before > 3
    assert with_boxes.page.locator("#overlay .boxes text").count() == 0


@pytest.mark.parametrize("limit", ["ceiling=0.01", "clip=0,0.1,0,0.1,0,0.1"])
def test_instances_that_are_cut_off_have_no_boxes(with_boxes: Shown, limit: str) -> None:
    before = with_boxes.page.locator("#overlay .boxes text").count()
    with_boxes.follow(f"{TRAIN_LABELS}&boxes=true&{limit}")

    assert with_boxes.page.locator("#overlay .boxes text").count() < before


def test_page_opened_by_a_link_has_boxes(show: Callable[..., Shown], page_path: Path) -> None:
    shown = show(page_path, f"{TRAIN_LABELS}&boxes=true")

    shown.page.locator("#overlay .boxes path").first.wait_for(state="attached")
