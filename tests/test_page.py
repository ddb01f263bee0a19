"""What is in the file of a page: the scene's own arrays, nothing that a browser would load, and few bytes."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from commands import TEST, TRAIN, VAL
from test_realdata import HAS_REAL_DATA, REAL_DIR

from scannet_prep.raw.layout import RawScene
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import make_scene
from scannet_prep.view.coloring import Prediction, ViewedScene, view_scene
from scannet_prep.view.page import make_scene_page


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ViewedScene]:
    """Of train: triangles and a prediction; of val: points."""
    raw_dir, found = tmp_path_factory.mktemp("page"), {}
    for scene_id, split in ((TRAIN, Split.TRAIN), (VAL, Split.VAL), (TEST, Split.TEST)):
        path = write_scene(make_scene(scene_id, vertices=1500), raw_dir)
        scene = load(path.parent, scene_id, split, faces=split is not Split.VAL)
        chairs = Prediction(SCANNET20, np.full(len(scene.points), 4))
        found[scene_id] = view_scene(scene, prediction=chairs if split is Split.TRAIN else None)
    return found


def load(raw_dir: Path, scene_id: str = TRAIN, split: Split = Split.TRAIN, **options: Any) -> Any:
    return tiny.process_written(RawScene(SceneId(scene_id), raw_dir), split, **options)


def test_page_of_124_000_points_takes_at_most_3_mb(tmp_path: Path) -> None:
    write_scene(make_scene(TRAIN, vertices=124_000), tmp_path)
    assert len(make_scene_page([view_scene(load(tmp_path / "scans"))])) <= 3_000_000


@pytest.mark.realdata
@pytest.mark.skipif(not HAS_REAL_DATA, reason="SCANNET_PREP_REAL_DATA has no scans/scene0000_00")
def test_page_of_the_real_scene_with_triangles_takes_at_most_as_much_per_vertex() -> None:
    scene = view_scene(load(REAL_DIR / "scans", faces=True))
    assert len(make_scene_page([scene])) <= 3_000_000 / 124_000 * len(scene.points)


def test_page_has_no_address_in_it_that_a_browser_would_load(
    scenes: dict[str, ViewedScene],
) -> None:
    page = make_scene_page(scenes.values())
    text = re.sub(rb'<script type="application/octet-stream".*?</script>', b"", page)
    assert re.findall(rb"(?:src|href|action)=(?![\"']?data:,)|url\(|@import|\bimport\b", text) == []
    assert set(re.findall(rb"https?://[^\s\"'<]+", text)) == {b"http://www.w3.org/2000/svg"}
    assert make_scene_page(scenes.values()) == page  # the same scenes give the same bytes


def test_positions_colours_and_triangles_of_a_page_are_those_of_the_scene(
    scenes: dict[str, ViewedScene],
) -> None:
    scene, page = scenes[TRAIN], make_scene_page([scenes[TRAIN]]).decode()
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


def decode(page: str, array: dict[str, Any]) -> np.ndarray:
    text = re.search(rf'id="{array["block"]}">(.*?)</script>', page)[1]
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text), -15), np.uint8)
    shape = array["columns"], array["bytes"], array["rows"]
    numbers = np.ascontiguousarray(planes.reshape(shape).transpose(0, 2, 1)).view(
        f"<u{array['bytes']}"
    )[..., 0]
    return np.cumsum(numbers, axis=1, dtype=numbers.dtype).T.copy()


def turn(faces: np.ndarray) -> list[tuple[int, ...]]:
    """Triangles in any order, each from its lowest corner on: which side is seen stays the same."""
    lowest = faces.argmin(axis=1)[:, np.newaxis]
    return sorted(
        map(tuple, np.take_along_axis(faces, (lowest + np.arange(3)) % 3, axis=1).tolist())
    )
