"""Tests of the list of `view --serve` in a real browser, and of the way through its scenes."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from browsers import needs_browser
from commands import SCENES, TEST, TRAIN, VAL, run_main

from scannet_prep import SCANNET20, read_processed
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.scene import Split
from scannet_prep.stages.scene_scores import SceneScores
from scannet_prep.stages.serve import SceneServer
from scannet_prep.stages.viewing import Viewing, open_scenes
from scannet_prep.synthetic import write_release
from scannet_prep.view.list_page import encode_scenes, make_list_page
from scannet_prep.view.png import encode_png

# A train id of ScanNet20.
CHAIR = 4
SIZES = {TRAIN: 6000, VAL: 4000, TEST: 600}
# A PNG of one pixel.
PIXEL = encode_png(np.zeros((1, 1, 3), np.uint8))
HOSTILE_NAME = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def processed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a large, a middle and a small scene."""
    root = tmp_path_factory.mktemp("list")
    for scene_id, vertices in SIZES.items():
        write_release(root / "raw", [scene_id], vertices=vertices)
    assert run_main("process", root / "raw", "-o", root / "processed").status == 0
    return root / "processed"


@pytest.fixture(scope="module")
def pred_dir(processed_dir: Path) -> Path:
    """Predictions of both annotated scenes: half of the first one is wrong, the second is right."""
    folder = processed_dir.with_name("predictions")
    folder.mkdir()
    for scene_id, split in ((TRAIN, "train"), (VAL, "val"), (TEST, "test")):
        labels = read_processed(processed_dir / split / f"{scene_id}.npz").labels
        if scene_id == TRAIN:
            labels[::2] = CHAIR
        np.save(folder / f"{scene_id}.npy", labels)
    return folder


@contextmanager
def serve(viewing: Viewing) -> Iterator[str]:
    """Run a server in a thread, and return its address."""
    with SceneServer(viewing, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(processed_dir: Path, pred_dir: Path) -> Iterator[str]:
    """The address of a server of scenes with predictions."""
    viewing = open_scenes([], processed_dir, takes_all=True, pred_dir=pred_dir)
    with serve(viewing) as url:
        yield url


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    """A tab, which must have no errors and send no request to another machine."""
    problems: list[str] = []
    hosts: set[str | None] = set()
    page = browser.new_page(viewport={"width": 1000, "height": 600})
    page.set_default_timeout(20_000)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    yield page
    page.close()
    assert problems == []
    assert hosts - {"127.0.0.1", None} == set()


def open_list(tab: Any, url: str, query: str = "") -> Any:
    """Open the list."""
    tab.goto("about:blank")
    tab.goto(url + query)
    tab.wait_for_selector("body[aria-busy=false]")
    return tab


def open_scored(tab: Any, url: str, query: str = "") -> Any:
    """Open the list, and wait until it shows all scores."""
    open_list(tab, url, query)
    tab.wait_for_function("() => document.querySelectorAll('.score:not(:empty)').length >= 2")
    return tab


def listed(tab: Any) -> list[str]:
    """Return the ids of the listed scenes, from the first to the last."""
    items = tab.locator("#scenes li")
    return list(items.evaluate_all("items => items.map((item) => item.dataset.key)"))


# Scores.


@pytest.mark.parametrize("task", ["semantic", "instance"])
def test_scores_of_scenes_are_those_of_evaluate(
    processed_dir: Path, pred_dir: Path, tmp_path: Path, task: Any
) -> None:
    folder = pred_dir if task == "semantic" else write_instances(processed_dir, tmp_path / "masks")
    table_path = tmp_path / "scores.csv"
    words = ("--gt", processed_dir, "--splits", "train", "val", "--task", task, "-o", table_path)
    assert run_main("evaluate", folder, *words).status == 0
    table = pd.read_csv(table_path, index_col="scene")
    column = "over_ground_truth" if task == "semantic" else "ap"

    scores = score_all(open_scenes([], processed_dir, takes_all=True, pred_dir=folder, task=task))

    assert table[column].min() > 0
    assert scores["scores"] == pytest.approx(table[column].to_dict())
    assert scores["total"] == 2


def test_damaged_prediction_has_a_reason_and_no_score(
    processed_dir: Path, pred_dir: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(pred_dir, tmp_path / "damaged"))
    (folder / f"{VAL}.npy").write_bytes(b"nothing")

    scores = score_all(open_scenes([], processed_dir, takes_all=True, pred_dir=folder))

    assert list(scores["scores"]) == [TRAIN]
    assert f"{VAL}.npy" in scores["failures"][VAL]


def write_instances(processed_dir: Path, folder: Path) -> Path:
    """Write the largest piece of furniture of each annotated scene as its only prediction."""
    folder.mkdir()
    for split in ("train", "val"):
        for path in (processed_dir / split).glob("*.npz"):
            scene = read_processed(path)
            # Train ids 0 and 1 are wall and floor, whose instances do not count.
            furniture = scene.instances[(scene.labels > 1) & (scene.instances >= 0)]
            masks = scene.instances[np.newaxis] == np.bincount(furniture).argmax()
            labels = np.array([np.bincount(scene.labels[masks[0]]).argmax()])
            np.savez(folder / path.name, masks=masks, labels=labels, scores=np.array([0.9]))
    return folder


def score_all(viewing: Viewing) -> Any:
    """Compute all scores, and return them as a browser gets them."""
    assert viewing.predictions is not None
    scores = SceneScores(viewing, viewing.predictions)
    scores.start()
    while True:
        value = json.loads(scores.encode())
        if len(value["scores"]) + len(value["failures"]) == value["total"]:
            return value
        time.sleep(0.01)


# The list.


@needs_browser
def test_list_shows_all_scenes_by_id(tab: Any, url: str) -> None:
    open_list(tab, url)

    assert listed(tab) == list(SCENES)
    assert "3 scenes" in tab.inner_text("#summary")


@needs_browser
@pytest.mark.parametrize(
    ("order", "scenes"),
    [
        ("largest", [TRAIN, VAL, TEST]),
        ("smallest", [TEST, VAL, TRAIN]),
        ("worst", [TRAIN, VAL, TEST]),
        ("best", [VAL, TRAIN, TEST]),
    ],
)
def test_list_is_sorted_with_scenes_without_a_number_last(
    tab: Any, url: str, order: str, scenes: list[str]
) -> None:
    open_scored(tab, url)
    tab.select_option("#sort", order)

    assert listed(tab) == scenes


@needs_browser
@pytest.mark.parametrize("order", ["most-labeled", "least-labeled"])
def test_test_scenes_are_last_among_labeled_shares(tab: Any, url: str, order: str) -> None:
    open_list(tab, url, f"?sort={order}")
    assert listed(tab)[-1] == TEST


@needs_browser
def test_fewest_classes_are_first(tab: Any, url: str) -> None:
    open_list(tab, url, "?sort=fewest-classes")
    assert listed(tab)[0] == TEST


@needs_browser
@pytest.mark.parametrize(
    ("query", "scenes"),
    [
        ("?search=0011", [VAL]),
        ("?split=val", [VAL]),
        ("?class=ScanNet20:+wall", [TRAIN, VAL]),
        ("?class=ScanNet200:+wall&split=train", [TRAIN]),
        ("?split=&class=", list(SCENES)),
        ("?sort=unicorn", list(SCENES)),
    ],
    ids=["search", "split", "class", "class and split", "empty", "unknown order"],
)
def test_query_of_the_address_filters_the_list(
    tab: Any, url: str, query: str, scenes: list[str]
) -> None:
    open_list(tab, url, query)
    assert listed(tab) == scenes


@needs_browser
def test_list_without_a_matching_scene_says_so(tab: Any, url: str) -> None:
    open_list(tab, url)
    tab.fill("#search", "unicorn")

    assert listed(tab) == []
    assert tab.locator("#nothing").is_visible()


@needs_browser
def test_show_all_removes_the_filters_and_keeps_the_order(tab: Any, url: str) -> None:
    open_list(tab, url, "?split=val&sort=smallest")
    tab.click("#all")

    assert listed(tab) == [TEST, VAL, TRAIN]


@needs_browser
def test_list_has_one_main_landmark(tab: Any, url: str) -> None:
    assert open_list(tab, url).get_by_role("main").count() == 1


@needs_browser
def test_reason_of_a_missing_score_is_shown_on_hover(
    browser: Any, processed_dir: Path, pred_dir: Path, tmp_path: Path
) -> None:
    # Not the tab of the other tests: there is no picture of this scene either, which is an error.
    page = browser.new_page()
    folder = Path(shutil.copytree(pred_dir, tmp_path / "damaged"))
    (folder / f"{VAL}.npy").write_bytes(b"nothing")
    viewing = open_scenes([], processed_dir, takes_all=True, pred_dir=folder)

    with serve(viewing) as url:
        open_scored(page, url)
        title = page.locator(".failed").get_attribute("title")

    page.close()
    assert f"{VAL}.npy" in title


# A list of the whole release.


@pytest.fixture
def whole_list(tab: Any, url: str) -> Iterator[Any]:
    """The list of 1,613 scenes."""
    entry = SceneEntry(Split.VAL, 10, 10, "00000000", 10, {1: 10}, {1: 10})
    entries = {f"scene{number:04d}_00": entry for number in range(1613)}
    content = encode_scenes(entries, SCANNET20, "")
    tab.route("**/scenes", lambda route: route.fulfill(body=content))
    tab.route("**/thumbnail/*", lambda route: route.fulfill(body=PIXEL, content_type="image/png"))
    yield open_list(tab, url)
    # The server does not have the pictures of these scenes.
    tab.goto("about:blank")
    tab.unroute("**/scenes")
    tab.unroute("**/thumbnail/*")


@needs_browser
def test_only_visible_rows_exist_in_the_page(whole_list: Any) -> None:
    assert "1,613 scenes" in whole_list.inner_text("#summary")
    assert 0 < len(listed(whole_list)) < 30


@needs_browser
def test_scrolling_to_the_end_shows_the_last_scene(whole_list: Any) -> None:
    whole_list.evaluate("scrollTo(0, document.body.scrollHeight)")

    whole_list.locator("li", has_text="scene1612_00").wait_for()
    assert len(listed(whole_list)) < 30


@needs_browser
def test_pictures_are_requested_of_visible_scenes_only(tab: Any, whole_list: Any) -> None:
    requested = []
    tab.on("request", lambda request: requested.append(request.url))

    whole_list.evaluate("scrollTo(0, document.body.scrollHeight)")
    whole_list.locator("li", has_text="scene1612_00").locator("img[src]").wait_for()

    thumbnails = [url for url in requested if "/thumbnail/" in url]
    assert 0 < len(thumbnails) < 30


@needs_browser
def test_list_shows_the_scene_in_the_address(tab: Any, whole_list: Any, url: str) -> None:
    open_list(tab, url, "#scene0800_00")

    focused = tab.evaluate("document.activeElement.closest('li').dataset.key")
    assert focused == "scene0800_00"


@needs_browser
def test_position_in_the_list_is_announced(tab: Any, whole_list: Any, url: str) -> None:
    open_list(tab, url, "#scene0800_00")
    item = tab.locator("li[data-key=scene0800_00]")

    assert item.get_attribute("aria-posinset") == "801"
    assert item.get_attribute("aria-setsize") == "1613"


# Scenes that cannot be shown.


@pytest.fixture
def damaged_url(processed_dir: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server whose second scene is damaged."""
    folder = tmp_path / "processed"
    shutil.copytree(processed_dir, folder)
    (folder / "val" / f"{VAL}.npz").write_bytes(b"damaged")
    with serve(open_scenes([], folder, takes_all=True)) as url:
        yield url


@pytest.fixture
def damaged_tab(browser: Any) -> Iterator[Any]:
    """A tab in which requests may fail."""
    page = browser.new_page(viewport={"width": 1000, "height": 600})
    page.set_default_timeout(20_000)
    yield page
    page.close()


@needs_browser
def test_list_describes_the_missing_picture_of_a_damaged_scene(
    damaged_tab: Any, damaged_url: str
) -> None:
    open_list(damaged_tab, damaged_url, f"?search={VAL}")
    damaged_tab.locator("img[alt*='cannot be shown']").wait_for()


@needs_browser
def test_page_of_a_damaged_scene_names_its_file(damaged_tab: Any, damaged_url: str) -> None:
    damaged_tab.goto(f"{damaged_url}scene/{VAL}")

    assert damaged_tab.title() == VAL
    assert f"{VAL}.npz" in damaged_tab.inner_text("main")
    assert "process again" in damaged_tab.inner_text("main")


# Hostile names, and servers that have ended.


def test_title_of_the_list_cannot_end_its_element() -> None:
    page = make_list_page(HOSTILE_NAME).decode()
    assert "<img" not in page


@needs_browser
def test_markup_in_the_name_of_a_folder_is_shown_as_text(
    tab: Any, processed_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.symlink_to(processed_dir)
    with serve(open_scenes([], folder, takes_all=True)) as url:
        open_list(tab, url)

        assert tab.inner_text("h1") == str(folder)
        assert tab.locator("h1 img").count() == 0

        # Otherwise pictures that are still on their way are errors when the server ends.
        tab.goto("about:blank")


@needs_browser
def test_list_without_a_server_says_so(browser: Any, processed_dir: Path) -> None:
    page = browser.new_page()
    page.route("**/scenes", lambda route: route.abort())

    with serve(open_scenes([], processed_dir, takes_all=True)) as url:
        page.goto(url)
        page.locator("#summary", has_text="The server does not answer").wait_for()

    page.close()
