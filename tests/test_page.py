"""Tests of the file of a page: its size, its arrays, and the absence of addresses."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from commands import TEST, TRAIN, VAL
from extras import REAL_DIR

from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import make_scene
from scannet_prep.view.coloring import COLORINGS, ViewedScene, view_scene
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.predicted import Prediction

# The size of a page with points is at most 3 MB for an average scene.
MAX_PAGE_BYTES = 3_000_000
AVERAGE_VERTICES = 124_000
CHAIR = 4


def load(
    raw_dir: Path, scene_id: str = TRAIN, split: Split = Split.TRAIN, **options: Any
) -> ProcessedScene:
    return tiny.process_written(RawScene(SceneId(scene_id), raw_dir / scene_id), split, **options)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ViewedScene]:
    """Scenes by id: train has triangles and two predictions, val only points, test triangles."""
    root = tmp_path_factory.mktemp("page")
    splits = {TRAIN: Split.TRAIN, VAL: Split.VAL, TEST: Split.TEST}
    scenes = {}
    for scene_id, split in splits.items():
        path = write_scene(make_scene(scene_id, vertices=1500), root)
        scene = load(path.parent, scene_id, split, faces=split is not Split.VAL)
        prediction = second = None
        if split is Split.TRAIN:
            values = np.full(len(scene.points), CHAIR)
            prediction = Prediction(SCANNET20, values, "one")
            second = Prediction(SCANNET20, np.zeros_like(values), "two")
        scenes[scene_id] = view_scene(scene, prediction=prediction, second=second)
    return scenes


# The size.


def test_page_of_an_average_scene_takes_at_most_3_mb(tmp_path: Path) -> None:
    write_scene(make_scene(TRAIN, vertices=AVERAGE_VERTICES), tmp_path)
    page = make_scene_page([view_scene(load(tmp_path / "scans"))])

    assert len(page) <= MAX_PAGE_BYTES


def test_page_with_triangles_and_a_prediction_takes_at_most_3_mb(tmp_path: Path) -> None:
    write_scene(make_scene(TRAIN, vertices=AVERAGE_VERTICES), tmp_path)
    scene = load(tmp_path / "scans", faces=True)
    values = SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids, -1)
    # Every third segment is wrong.
    values[scene.segments % 3 == 0] = CHAIR
    page = make_scene_page([view_scene(scene, prediction=Prediction(SCANNET20, values))])

    assert len(page) <= MAX_PAGE_BYTES


@pytest.mark.extra("real data")
def test_page_of_the_real_scene_with_triangles_takes_no_more_per_vertex() -> None:
    scene = view_scene(load(REAL_DIR / "scans", faces=True))
    page = make_scene_page([scene])

    assert len(page) / len(scene.points) <= MAX_PAGE_BYTES / AVERAGE_VERTICES


# The whole file.


def test_same_scenes_give_the_same_bytes(scenes: dict[str, ViewedScene]) -> None:
    assert make_scene_page(scenes.values()) == make_scene_page(scenes.values())


def without_arrays(page: bytes) -> bytes:
    return re.sub(rb'<script type="application/octet-stream".*?</script>', b"", page)


def test_page_has_no_address_that_a_browser_would_load(scenes: dict[str, ViewedScene]) -> None:
    text = without_arrays(make_scene_page(scenes.values()))

    pattern = rb"(?:src|href|action)=(?![\"']?data:,)|url\(|@import|\bimport\b"
    assert re.findall(pattern, text) == []


def test_page_without_a_server_requests_nothing(scenes: dict[str, ViewedScene]) -> None:
    assert b"fetch(" not in make_scene_page(scenes.values())


def test_only_address_in_a_page_is_the_name_of_svg(scenes: dict[str, ViewedScene]) -> None:
    text = without_arrays(make_scene_page(scenes.values()))
    assert set(re.findall(rb"https?://[^\s\"'<]+", text)) == {b"http://www.w3.org/2000/svg"}


# The arrays.


@dataclass(frozen=True)
class DecodedPage:
    """The page of one scene, decoded.

    Attributes:
        scene: The scene.
        text: The page.
        description: The description of the scene in the page.
        order: The vertex of the scene for each vertex of the page.
    """

    scene: ViewedScene
    text: str
    description: dict[str, Any]
    order: np.ndarray

    def decode(self, array: dict[str, Any]) -> np.ndarray:
        return decode_array(self.text, array)


def decode_array(page: str, array: dict[str, Any]) -> np.ndarray:
    """Decode an array of a page, (rows, columns), in another way than the page's script."""
    match = re.search(rf'id="{array["block"]}">(.*?)</script>', page)
    assert match is not None
    planes = np.frombuffer(zlib.decompress(base64.b64decode(match[1]), -15), np.uint8)
    planes = planes.reshape(array["columns"], array["bytes"], array["rows"])
    rows = np.ascontiguousarray(planes.transpose(0, 2, 1))
    differences = rows.view(f"<u{array['bytes']}")[..., 0]
    return np.cumsum(differences, axis=1, dtype=differences.dtype).T.copy()


def rows_of(array: np.ndarray) -> Iterator[tuple[int, ...]]:
    return map(tuple, array.tolist())


@pytest.fixture(scope="module")
def decoded(scenes: dict[str, ViewedScene]) -> DecodedPage:
    scene = scenes[TRAIN]
    text = make_scene_page([scene]).decode()
    match = re.search(r'id="data">(.*?)</script>', text)
    assert match is not None
    description = json.loads(match[1])["scenes"][0]

    # Each vertex has a position of its own, in steps.
    steps = (scene.points.astype(np.float64) - description["origin"]) / description["step"]
    vertices = {position: vertex for vertex, position in enumerate(rows_of(np.rint(steps)))}
    positions = decode_array(text, description["arrays"]["positions"])
    order = np.array([vertices[position] for position in rows_of(positions)])
    return DecodedPage(scene, text, description, order)


def test_page_has_each_vertex_once(decoded: DecodedPage) -> None:
    assert sorted(decoded.order) == list(range(len(decoded.scene.points)))


def test_positions_of_a_page_are_exact_to_0_2_mm(decoded: DecodedPage) -> None:
    assert decoded.description["step"] < 0.0002


@pytest.mark.parametrize("name", COLORINGS)
def test_colouring_of_a_page_is_that_of_the_scene(decoded: DecodedPage, name: str) -> None:
    descriptions = {each["name"]: each for each in decoded.description["colorings"]}
    coloring = decoded.scene.colorings[name]
    expected = coloring.colors
    if coloring.indices is not None:
        expected = coloring.indices[:, np.newaxis]
    values = decoded.decode(descriptions[name]["values"])

    assert np.array_equal(values, expected[decoded.order])


def test_numbers_of_vertices_of_a_page_are_those_of_the_scene(decoded: DecodedPage) -> None:
    numbers = decoded.decode(decoded.description["arrays"]["order"])
    assert np.array_equal(numbers[:, 0], decoded.order)


def sort_triangles(faces: np.ndarray) -> list[tuple[int, ...]]:
    """Rotate triangles to their lowest corner, which does not turn them over, and sort them."""
    lowest = faces.argmin(axis=1)[:, np.newaxis]
    corners = np.take_along_axis(faces, (lowest + np.arange(3)) % 3, axis=1)
    return sorted(rows_of(corners))


def test_triangles_of_a_page_are_those_of_the_scene(decoded: DecodedPage) -> None:
    corners = decoded.decode(decoded.description["arrays"]["faces"])
    # The second and third corner are differences from the first, added up over the rows.
    corners[:, 1:] = np.diff(corners[:, 1:], axis=0, prepend=np.uint32(0)) + corners[:, :1]

    assert decoded.scene.faces is not None
    assert sort_triangles(decoded.order[corners]) == sort_triangles(decoded.scene.faces)
