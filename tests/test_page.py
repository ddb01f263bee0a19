"""Pages of scenes, in a real browser."""

import base64
import io
import math
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import unquote

import numpy as np
import pytest
from commands import TRAIN, make_processed
from PIL import Image

from scannet_prep.evaluation.overlaps import InstancePrediction
from scannet_prep.processed.scene import read_processed
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.view.coloring import UNLABELED_COLOR, Coloring, color_segments, view_scene
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.predictions import Prediction, Truth, color_predictions

pytestmark = pytest.mark.extra("chromium", "playwright")

# The train id of a chair in ScanNet20.
CHAIR = 4
MARKUP = '"></script><script>alert(1)</script><IMG src=x onerror=alert(2)>'
# Vertices at a grid of places of a picture: pairs of a place and a vertex.
PICK = """(pane) => {
    const [width, height] = viewer.drawing.paneSize;
    const [right, down] = innerWidth > innerHeight ? [pane * width, 0] : [0, pane * height];
    const found = [];
    for (let x = 10; x < width; x += 30) for (let y = 10; y < height; y += 30) {
        const vertex = viewer.drawing.pick({ offsetX: x + right, offsetY: y + down });
        if (vertex >= 0) found.push([x, y, vertex]);
    }
    return found;
}"""
LINK = "() => viewer.link"
POSITIONS = """(places) => places.map(([offsetX, offsetY]) =>
    viewer.positionOf(viewer.drawing.pick({ offsetX, offsetY })))"""
POSITION = f"(place) => ({POSITIONS})([place])[0]"
VIEW = "() => new URLSearchParams(viewer.link).get('view').split(',').map(Number)"
# What browsers print is drawn at once, and can be read.
READ = """() => {
    dispatchEvent(new Event("beforeprint"));
    return viewer.drawing.canvas.toDataURL();
}"""
BOX = """() => { const { low, high } = viewer.drawing.box;
    return high.map((at, axis) => (at - low[axis]) * viewer.data.step); }"""


@pytest.fixture(scope="module")
def processed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    out_dir = make_processed(folder, [TRAIN], "--faces", "--align-axis", vertices=8000)
    return read_processed(out_dir / f"train/{TRAIN}.npz")


@pytest.fixture(scope="module")
def scene(processed):
    """A scene with triangles and two predictions, each of chairs on one side of the room."""
    truth = SCANNET20.train_ids_from_raw_ids(processed.nyu40_ids, -1)
    is_right = processed.points[:, 0] > processed.points[:, 0].mean()
    predictions = [
        Prediction(SCANNET20, np.where(is_right, CHAIR, truth), "old"),
        Prediction(SCANNET20, np.where(is_right, truth, CHAIR), "new"),
    ]
    scene = view_scene(processed)
    scene.colorings.update(color_predictions(predictions, Truth.of(processed, SCANNET20)))
    return scene


@pytest.fixture(scope="module")
def path(scene, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "a page & more.html"
    path.write_bytes(make_scene_page(scene, color="scannet20"))
    return path


@pytest.fixture
def shown(show, path):
    return show(path).wait()


@pytest.fixture
def show_scene(show, tmp_path):
    """A function that writes the page of a scene, and shows it."""

    def show_scene(scene, link="", **options):
        path = tmp_path / "page.html"
        path.write_bytes(make_scene_page(scene))
        return show(path, link, **options).wait()

    return show_scene


def read_pixels(shown):
    """Return the picture with its opacity, (H, W, 4), a pixel for each of the page."""
    png = base64.b64decode(shown.run(READ).split(",")[1])
    image = Image.open(io.BytesIO(png)).convert("RGBA")
    return np.asarray(image.reduce(2))


def pick(shown, pane=0):
    """Return places of a pane and the vertices there, rows of x, y and vertex."""
    return np.array(shown.run(PICK, pane))


def list_legend(shown):
    return shown.locator("#categories li").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('b, small')].map((e) => e.innerText))"
    )


def view_of(shown):
    return np.array(shown.run(VIEW))


def boxes_of(shown, selector):
    """Return the places of elements, with x, y, right and bottom, width and height."""
    script = "all => all.map((each) => each.getBoundingClientRect().toJSON())"
    found = shown.locator(selector).evaluate_all(script)
    return [SimpleNamespace(**box) for box in found]


def drag(shown, x, y, button="left"):
    shown.mouse.move(x, y)
    shown.mouse.down(button=button)
    shown.mouse.move(x + 80, y + 10, steps=4)
    shown.mouse.up(button=button)


def test_arrays_in_the_browser_are_those_of_the_scene(shown, scene):
    steps, corners, step = shown.run(
        "() => { const { steps, corners, step } = viewer.drawing.scene;"
        "return [[...steps], [...corners], step]; }"
    )
    points = scene.points.min(axis=0) + step * np.reshape(steps, (-1, 3))
    rotated = [tuple(np.roll(face, -face.argmin())) for face in scene.faces]

    assert np.abs(points - scene.points).max() < 1e-4
    assert sorted(map(tuple, np.reshape(corners, (-1, 3)))) == sorted(rotated)


@pytest.mark.parametrize("form", ["triangles", "points"])
def test_each_colouring_shows_the_colours_of_its_vertices(show_scene, scene, form):
    faces = scene.faces if form == "triangles" else None
    shown = show_scene(replace(scene, faces=faces))

    x, y, vertices = pick(shown).T
    # Surfaces are seen from the side that was scanned: floors, and no ceilings.
    assert scene.normals[vertices, 2].mean() > 0.1
    for name, coloring in scene.colorings.items():
        shown.click(f"#colorings label:has([value={name}])")
        pixels = read_pixels(shown)
        # A surface is as bright as its colour, or up to a quarter darker.
        brightness = pixels[y, x, :3] / np.maximum(coloring.colors[vertices], 1)
        is_bright = coloring.colors[vertices] > 60
        share = ((brightness > 0.7) & (brightness < 1.05))[is_bright].mean()
        assert share > 0.85, name


def test_legend_lists_hides_searches_and_shows_only(shown, scene):
    labels = scene.colorings["scannet20"]
    names = [category.name for category in labels.categories]

    def seen():
        return {names[index] for index in labels.indices[pick(shown)[:, 2]]}

    rows = list_legend(shown)
    assert [row[0] for row in rows] == names
    assert rows[0][2] == f"{labels.categories[0].count / len(labels.colors) * 100:.1f} %"
    # The colours of the system, with a high contrast, leave those of the classes.
    shown.emulate_media(forced_colors="active")
    swatch = Image.open(io.BytesIO(shown.locator("li i").first.screenshot()))
    assert swatch.getpixel((7, 7))[:3] == labels.categories[0].color

    shown.click("li:has-text('floor') input")
    assert "floor" not in seen()
    # What is hidden stays hidden in other colours.
    shown.click("#colorings label:has([value=rgb])")
    assert "floor" not in seen()
    shown.click("#all")
    shown.click("#colorings label:has([value=scannet20])")
    assert "floor" in seen()
    assert shown.locator("li :checked").count() == len(names)

    shown.fill("#search", "WALL")
    assert [row[0] for row in list_legend(shown)] == ["wall"]
    shown.hover("li")
    shown.click("li button")
    assert seen() == {"wall"}
    link = shown.run(LINK)
    assert "only.scannet20=wall" in link
    assert "hide" not in link


def test_line_under_the_mouse_or_with_the_focus_stands_out(shown, scene):
    labels = scene.colorings["scannet20"]
    x, y, vertices = pick(shown).T
    is_wall = (labels.colors == SCANNET20.colors[0]).all(axis=1)[vertices]
    before = read_pixels(shown)
    shown.hover("li:has-text('wall')")
    is_changed = (read_pixels(shown) != before)[y, x].any(axis=1)
    assert is_changed[is_wall].mean() < 0.2 < 0.8 < is_changed[~is_wall].mean()
    shown.hover("#picture")
    assert (read_pixels(shown) == before).all()

    shown.focus("#search")
    shown.keyboard.press("Tab")
    assert (read_pixels(shown) != before).any()


def test_mouse_and_keys_move_the_camera(shown):
    start = view_of(shown)
    x, y = 250, 170
    (box,) = boxes_of(shown, "#picture")
    place = box.x + x, box.y + y
    shown.mouse.move(*place)
    point = shown.run(POSITION, [x, y])

    shown.mouse.wheel(0, -300)
    shown.wait()
    near = view_of(shown)
    assert near[3] < start[3]
    # What is under the mouse stays there.
    assert math.dist(point, shown.run(POSITION, [x, y])) < 0.4

    drag(shown, *place)
    turned = view_of(shown)
    assert (turned[:3] == near[:3]).all()
    # The side that is seen moves with the mouse.
    assert turned[4] < near[4]
    assert turned[5] > near[5]
    # A drag selects nothing.
    assert not shown.is_visible("#selection")

    shown.press("ArrowLeft", "ArrowUp", "+")
    assert ((view_of(shown) > turned)[3:6] == [False, True, False]).all()
    shown.press("Shift+ArrowLeft")
    moved = view_of(shown)
    assert (moved[:3] != turned[:3]).any()
    # The browser has its own use for these keys, and nothing is in this corner.
    shown.press("Control++", "Alt+ArrowUp")
    shown.mouse.dblclick(box.x + 1, box.y + 1)
    assert (view_of(shown) == moved).all()

    point = shown.run(POSITION, [x, y])
    shown.mouse.dblclick(*place)
    shown.wait()
    assert np.allclose(view_of(shown)[:3], point, atol=1e-3)

    # The target moves ahead, so that the camera passes through walls.
    shown.press(*["+"] * 60)
    assert math.dist(view_of(shown)[:3], point) > 1

    shown.click("#top-view")
    assert view_of(shown)[5] == 1.571
    # Without perspective, all points move with the mouse, whatever their height.
    places = pick(shown)[:9, :2]
    points = shown.run(POSITIONS, places.tolist())
    drag(shown, *place, "right")
    moved = shown.run(POSITIONS, np.add(places, [80, 10]).tolist())
    assert np.allclose(np.mean(moved, axis=0), np.mean(points, axis=0), atol=0.05)
    shown.click("#top-view")
    assert np.allclose(view_of(shown), start)


def test_point_is_described_and_its_object_has_a_box(shown, scene):
    instances = scene.colorings["instances"]
    places = pick(shown)
    before = read_pixels(shown)
    is_unlabeled = (instances.colors == UNLABELED_COLOR).all(axis=1)[places[:, 2]]
    x, y, vertex = places[~is_unlabeled][0].tolist()
    place = {"x": x, "y": y}
    picture = shown.locator("#picture")

    picture.hover(position=place)
    hovered = shown.rows("#tooltip")
    # Segments have a box, too.
    for name, coloring in (("segments", scene.colorings["segments"]), ("scannet20", instances)):
        shown.click(f"#colorings label:has([value={name}])")
        picture.click(position=place)
        is_same = coloring.indices == coloring.indices[vertex]
        assert np.allclose(shown.run(BOX), np.ptp(scene.points[is_same], axis=0), atol=1e-3)
    rows = shown.rows("#selection")
    assert int(rows["vertex"]) == vertex
    for coloring in (scene.colorings["scannet20"], instances):
        name = coloring.categories[coloring.indices[vertex]].name
        assert hovered.pop(coloring.title) == rows[coloring.title] == name
    assert len(hovered) == 2  # the predictions
    # The box is around what is seen of the object.
    rows, columns = np.nonzero((read_pixels(shown) != before).any(axis=2))
    seen = places[is_same[places[:, 2]], :2]
    assert (seen >= [columns.min(), rows.min()]).all()
    assert (seen <= [columns.max(), rows.max()]).all()

    x, y, _ = places[is_unlabeled][0].tolist()
    picture.click(position={"x": x, "y": y})
    assert not shown.run("() => viewer.drawing.box")
    shown.rows("#tooltip")
    shown.press("Escape", "ArrowLeft")
    assert not shown.is_visible("#tooltip, #selection")
    shown.press("Enter")
    shown.click("#unselect")
    assert not shown.is_visible("#selection")


def test_two_predictions_are_side_by_side_with_one_camera_and_one_legend(show, scene, path):
    shown = show(path, "#color=prediction&color=prediction-2").wait()
    assert shown.locator("#captions p").all_inner_texts() == [
        "prediction, ScanNet20: old",
        "prediction, ScanNet20: new",
    ]
    # A class has one line, with the IoU of both.
    (chair,) = (row for row in list_legend(shown) if row[0] == "chair")
    assert all(text.startswith("IoU ") for text in chair[1:])

    assert list_legend(shown)[-1][0] == "unlabeled"
    shown.click("li:has-text('chair') input")
    assert shown.run(LINK).count("=chair") == 2

    # Each picture shows its own chairs.
    shown.click("li:has-text('chair') button")
    middle = scene.points[:, 0].mean()
    assert (scene.points[pick(shown, 0)[:, 2], 0] > middle - 0.2).all()
    assert (scene.points[pick(shown, 1)[:, 2], 0] < middle + 0.2).mean() > 0.5

    # A drag in the second picture turns both.
    before = view_of(shown)
    (box,) = boxes_of(shown, "#picture")
    drag(shown, box.x + 0.75 * box.width, box.y + 200)
    assert view_of(shown)[4] != before[4]
    shown.select_option("#beside", "")
    assert shown.run("() => viewer.shown.length") == 1
    # What the closed picture hides stays hidden.
    assert "only.prediction-2=chair" in shown.run(LINK)


def test_two_predictions_of_instances_list_each_object_once(show_scene, processed, scene):
    truth = Truth.of(processed, SCANNET20)
    # Walls and floors do not count, nor do small instances.
    masks = truth.instances == np.unique(truth.instances[truth.instance_labels > 1])[:, np.newaxis]
    masks = masks[masks.sum(axis=1) >= 100]
    labels = truth.instance_labels[masks.argmax(axis=1)]
    # Each has another mask, which matches nothing.
    is_right = scene.points[:, 0] > scene.points[:, 0].mean()
    scores = np.ones(len(masks) + 1)
    predictions = [
        Prediction(SCANNET20, InstancePrediction([*masks, side], [*labels, CHAIR], scores))
        for side in (~is_right, is_right)
    ]
    compared = replace(scene, colorings=color_predictions(predictions, truth))
    shown = show_scene(compared, "#color=prediction&color=prediction-2")

    rows = list_legend(shown)[:-1]
    matched = [row for row in rows if row[0] in truth.names.values()]
    assert len(matched) == len(masks) > 3
    assert all(row[1:] == ["matched", "matched"] for row in matched)
    first, second = (row[0] for row in rows if row not in matched)
    assert second == f"{first}, prediction-2"
    shown.fill("#search", matched[0][0])
    assert list_legend(shown) == matched[:1]
    # Masks are found by their own names, too.
    shown.fill("#search", "(1.00)")
    assert list_legend(shown) == rows

    # The box is around what the clicked picture shows.
    is_other = is_right & ~masks.any(axis=0)
    places = pick(shown, 1)
    x, y, _ = places[is_other[places[:, 2]]][0].tolist()
    x += shown.run("() => viewer.drawing.paneSize[0]")
    shown.locator("#picture").click(position={"x": x, "y": y})
    assert np.allclose(shown.run(BOX), np.ptp(scene.points[is_other], axis=0), atol=1e-3)


def test_link_restores_the_view(show, path):
    link = (
        "#color=error&color=error-2&view=1,2,1,4,0.5,0.3,0"
        "&hide.scannet20=floor&only.error=&only.error-2=right&ceiling=1.5&mesh=false"
    )
    shown = show(path, link).wait()
    first = read_pixels(shown)
    shown.click("#first-view")
    assert shown.run(LINK).count("&") == 1
    shown.wait_for_function("() => location.hash === viewer.link")
    shown.evaluate("link => { location.hash = link; }", link)
    shown.wait_for_function("() => viewer.shown.length > 1")
    assert unquote(shown.run(LINK)) == link
    assert (read_pixels(shown) == first).all()

    for nonsense in (
        "#view=1,2",
        "#view=0,0,0,-1,0,0,0",
        "#color=fog&hide.fog=a&ceiling=high",
        "#color=rgb&color=error&color=rgb",
    ):
        assert len(pick(show(path, nonsense).wait())) > 20


def test_whole_scene_stays_visible_in_panes_of_another_size(shown, show, path):
    shown.select_option("#beside", "rgb")
    link = "#color=scannet20&color=rgb"
    assert (view_of(shown) == view_of(show(path, link).wait())).all()
    opacity = read_pixels(shown)[..., 3]
    assert opacity[[0, -1]].max() == opacity[:, [0, -1]].max() == 0
    upright = {"width": 390, "height": 844}
    shown.set_viewport_size(upright)
    fitted = view_of(show(path, link, viewport=upright).wait())
    assert (view_of(shown) == fitted).all()
    # The second picture is below the first one.
    assert pick(shown, 1).tolist() == pick(shown).tolist() != []
    # A view that was chosen is kept.
    shown.press("ArrowLeft")
    shown.click("#backs")
    shown.select_option("#beside", "")
    assert view_of(shown)[3] == fitted[3]


def test_ceiling_cuts_what_is_above(shown, scene):
    low = math.floor(scene.points[:, 2].min())
    shown.fill("#ceiling", str(low + 1))
    # The vertex of a triangle may be above, if its seen part is not.
    assert scene.points[pick(shown)[:, 2], 2].max() < low + 1.3


def test_surface_at_the_greatest_height_is_whole(show_scene, scene):
    flat = replace(scene, points=scene.points * [1, 1, 0] + [0, 0, 3])
    shown = show_scene(flat, "#view=2,2,2.913,9,0,1.2,0")
    pixels = read_pixels(shown)
    shown.evaluate("() => { viewer.drawing.view.ceiling = 9; }")
    assert (read_pixels(shown) == pixels).all()


def test_button_saves_the_picture_with_a_transparent_background(shown):
    with shown.expect_download() as download:
        shown.click("#save")
    assert download.value.suggested_filename == f"{TRAIN}_scannet20.png"
    opacity = np.asarray(Image.open(download.value.path()))[..., 3]
    assert opacity[0, 0] == 0
    assert 0.1 < (opacity == 255).mean() < 0.9


def test_fewer_points_are_drawn_while_the_camera_turns(show_scene, scene):
    count = 100_000
    rgb = Coloring("rgb", np.zeros((count, 3), np.uint8))
    points = np.resize(scene.points, rgb.colors.shape)
    many = replace(scene, points=points, faces=None, colorings={"rgb": rgb})
    spy = """window.counts = [];
        const { drawArrays } = WebGL2RenderingContext.prototype;
        WebGL2RenderingContext.prototype.drawArrays = function (...words) {
            counts.push(words[2]);
            drawArrays.apply(this, words);
        };"""
    shown = show_scene(many, script=spy)
    # So is the first picture.
    shown.press("ArrowLeft")
    counts = shown.evaluate("counts")
    assert set(counts) == {33_333, count}
    assert [counts[0], counts[-1]] == [33_333, count]


def test_lost_graphics_are_explained_and_return(shown):
    before = read_pixels(shown)
    lose = "window.lost = viewer.drawing.gl.getExtension('WEBGL_lose_context')"
    shown.evaluate(f"() => ({lose}).loseContext()")
    shown.locator("#trouble", has_text="graphics card was reset").wait_for()
    shown.evaluate("() => lost.restoreContext()")
    shown.locator("#trouble").wait_for(state="hidden")
    assert (read_pixels(shown) == before).mean() > 0.999


def test_browser_that_cannot_draw_gets_a_message(show, path):
    script = "HTMLCanvasElement.prototype.getContext = () => null;"
    trouble = show(path, script=script).locator("#trouble")
    trouble.wait_for()
    assert "cannot show the scene: it has no WebGL2" in trouble.inner_text()
    assert "needs JavaScript" in show(path, java_script_enabled=False).inner_text("main")


def test_names_are_text_and_the_policy_stops_scripts_and_requests(show_scene, browser, scene):
    instances = scene.colorings["instances"]
    named = tuple(replace(each, name=MARKUP) for each in instances.categories)
    markup = replace(instances, title=MARKUP, categories=named)
    changed = replace(scene, scene_id=MARKUP, colorings={"instances": markup})
    shown = show_scene(changed)
    assert shown.title() == shown.inner_text("h1") == MARKUP
    assert list_legend(shown)[0][0] == MARKUP

    # Not by `show`, which refuses errors in the console.
    tab = browser.new_page()
    tab.goto(shown.url)
    stopped = tab.evaluate(
        """async () => {
        const stopped = [];
        addEventListener("securitypolicyviolation", ({ effectiveDirective }) => {
            stopped.push(effectiveDirective);
        });
        for (const [tag, textContent] of [["script", "window.ran = 1"], ["style", "*{}"]]) {
            document.body.append(Object.assign(document.createElement(tag), { textContent }));
        }
        await fetch("https://example.com").catch(() => {});
        await new Promise((resolve) => setTimeout(resolve, 100));
        return [window.ran ?? 0, stopped.map((word) => word.split("-")[0]).sort()];
        }"""
    )
    tab.close()
    assert stopped == [0, ["connect", "script", "style"]]


def test_odd_scenes_are_shown(show_scene, scene):
    one = Coloring("rgb", np.zeros((1, 3), np.uint8))
    one_point = replace(scene, points=scene.points[:1], faces=None, colorings={"rgb": one})
    # A page that is zoomed out may have more pixels than browsers draw.
    far = {"width": 8000, "height": 5000}
    shown = show_scene(one_point, viewport=far, device_scale_factor=0.25)
    assert shown.run("() => viewer.drawing.gl.drawingBufferWidth === viewer.drawing.canvas.width")

    segments = color_segments(np.arange(len(scene.points)))
    shown = show_scene(replace(scene, colorings={"segments": segments}))
    lines = shown.locator("#categories li")
    assert lines.count() == 401
    assert "and 7,600 more" in lines.last.inner_text()
    shown.fill("#search", "segment 7999")
    assert list_legend(shown) == [["segment 7999", "", "< 0.1 %"]]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (640, 400), (390, 844)])
def test_controls_and_legend_fit_into_the_window(show, path, width, height):
    viewport = {"width": width, "height": height}
    shown = show(path, "#color=prediction&color=error", viewport=viewport).wait()
    (picture,) = boxes_of(shown, "#picture")
    assert picture.width * picture.height > 0.35 * width * height
    for box in boxes_of(shown, "#tools > *"):
        assert 0 <= box.x <= box.right <= width
        assert box.bottom <= height
    # Pictures are above each other where the window is upright.
    caption, _ = boxes_of(shown, "#captions p")
    pane = shown.run("() => viewer.drawing.paneSize")
    assert np.allclose([caption.width, caption.height], pane, atol=2)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width

    assert len({box.height for box in boxes_of(shown, "li b")}) == 1

    # A selection leaves room for the legend, and covers no picture.
    shown.press("Enter")
    if width == 1280:
        legend, selection = boxes_of(shown, "#legend, #selection")
        assert legend.height > 200
        assert selection.right <= picture.x + 1


def test_fingers_select_turn_and_zoom(show, path):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    tablet = phone | {"viewport": {"width": 1200, "height": 760}}
    shown = show(path, **phone).wait()
    (box,) = boxes_of(shown, "#picture")
    x, y = box.x + 190, box.y + 150
    shown.touchscreen.tap(x, y)
    assert shown.is_visible("#selection")

    before = view_of(shown)
    client = shown.context.new_cdp_session(shown.page)

    def touch(kind, *points):
        touches = [{"x": px, "y": py} for px, py in points]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    touch("touchStart", (x, y))
    touch("touchMove", (x + 40, y))
    touch("touchEnd")
    turned = view_of(shown)
    assert turned[4] != before[4]
    touch("touchStart", (x - 20, y), (x + 20, y))
    touch("touchMove", (x - 60, y), (x + 60, y))
    touch("touchEnd")
    assert view_of(shown)[3] < turned[3]

    # A gesture that the system takes away is over.
    touch("touchStart", (x, y))
    touch("touchCancel")
    point = shown.run(POSITION, [110, 150])
    touch("touchStart", (x - 100, y), (x - 60, y))
    touch("touchMove", (x, y), (x + 40, y))
    touch("touchEnd")
    # What is below the fingers moves with them.
    assert math.dist(point, shown.run(POSITION, [210, 150])) < 0.2

    # Two notes and a button leave the names whole.
    names = boxes_of(show(path, "#color=prediction&color=prediction-2", **tablet).wait(), "li b")
    assert len({box.height for box in names}) == 1


def test_all_controls_have_names_and_are_reached_by_tab(shown):
    reached = []
    for _ in range(60):
        shown.keyboard.press("Tab")
        reached.append(shown.evaluate("document.activeElement.id || document.activeElement.value"))
    controls = "scannet20 beside search picture top-view ceiling mesh save"
    assert {*controls.split()} <= {*reached}
    # The legend may have hundreds of lines.
    assert reached[0] == "picture"
    assert not shown.locator("button, input, select, canvas").evaluate_all(
        "all => all.filter((e) => !(e.innerText || e.ariaLabel || e.labels?.[0]?.innerText)).length"
    )


def test_tables_of_scores_are_shown_and_tell_of_two_pictures_whose_they_are(shown, scene):
    shown.click("#colorings label:has([value=error])")
    table = scene.colorings["error"].tables[0]
    cells = shown.locator("#tables details:first-child tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert cells == [list(table.columns), *map(list, table.rows)]
    # Of two pictures, the tables tell whose they are.
    shown.select_option("#beside", "error-2")
    titles = shown.locator("summary").all_inner_texts()
    assert len(titles) == len(set(titles))
