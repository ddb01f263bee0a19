"""One real scene, all the way: raw files, arrays against the oracles, the processed folder, the Dataset.

Nothing of the scene stands here but counts.
"""

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import oracles
import pytest

from scannet_prep import geometry, read_processed
from scannet_prep.geometry import points_and_normals
from scannet_prep.processed.scene import ProcessOptions, find_problems
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.release import AGGREGATION, MESH, SEGMENTS
from scannet_prep.scene import SceneId
from scannet_prep.scene_warnings import SceneWarning, WarningKind
from scannet_prep.stages.process import plan, run

SCENE_ID = "scene0000_00"
REAL_DIR = Path(os.environ.get("SCANNET_PREP_REAL_DATA") or "unset")
HAS_REAL_DATA = (REAL_DIR / "scans" / SCENE_ID).is_dir()

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not HAS_REAL_DATA, reason="SCANNET_PREP_REAL_DATA holds no scans/scene0000_00"),
]


@pytest.fixture(scope="module")
def raw() -> RawScene:
    return find_raw_scenes(REAL_DIR)[SceneId(SCENE_ID)]


@pytest.fixture(scope="module", params=["scannet20", "scannet200 aligned"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Processed folder, options and report."""
    is_200 = request.param != "scannet20"
    options = ProcessOptions(scannet200=is_200, align_axis=is_200)
    out_dir = tmp_path_factory.mktemp("processed")
    return out_dir, options, run(plan(REAL_DIR, out_dir, options))


def normals_by_adding(points: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """What `oracles.vertex_normals` says, for many vertices."""
    first, second, third = (points[faces[:, corner]] for corner in range(3))
    sums = np.zeros_like(points)
    for corner in range(3):
        np.add.at(sums, faces[:, corner], np.cross(second - first, third - first))
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)


def test_normals_agree_with_the_oracles_before_the_cast(raw: RawScene, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = read_mesh(raw.path(MESH))
    points = mesh.positions.astype(np.float64)
    geometry.compile_geometry()
    _, found = points_and_normals(mesh.positions, mesh.faces, None)
    assert np.abs(found - normals_by_adding(points, mesh.faces)).max() < 1e-6
    monkeypatch.setattr(geometry, "compile_geometry", cache(lambda: None))
    assert found.tobytes() == points_and_normals(mesh.positions, mesh.faces, None)[1].tobytes()


def test_the_processed_scene_agrees_with_the_oracles(made, raw: RawScene) -> None:
    out_dir, options, report = made
    assert (report.made, report.kept, report.failures) == ((SCENE_ID,), (), ())
    unknown = (("'trashcan' (did you mean 'trash can'?)", 3), ("'dishrack' (did you mean 'dish rack'?)", 1))
    expected = [SceneWarning(WarningKind.UNKNOWN_CATEGORY, name, count) for name, count in unknown]
    assert [(item.text, item.scenes) for item in report.warnings] == [(item.text, (SCENE_ID,)) for item in expected]
    path = out_dir / "train" / f"{SCENE_ID}.npz"
    assert report.size_bytes == path.stat().st_size <= 23 * 81_369  # bytes for each vertex
    scene = read_processed(path)
    assert list(find_problems(scene)) == []
    # Found for each segment by the loops, then handed to its vertices.
    segment_ids = json.loads(raw.path(SEGMENTS).read_bytes())["segIndices"]
    names, place = np.unique(segment_ids, return_inverse=True)
    groups = json.loads(raw.path(AGGREGATION).read_bytes())["segGroups"]
    nyu40_ids, scannet_ids, instances = (
        np.array(ids)[place] for ids in oracles.ids_of_vertices(names.tolist(), groups)
    )
    assert (scene.nyu40_ids == nyu40_ids).all()
    assert (scene.scannet_ids == scannet_ids).all()
    assert (scene.instances == instances).all()
    labels = oracles.labels200(scannet_ids.tolist()) if options.scannet200 else oracles.labels20(nyu40_ids.tolist())
    assert scene.labels.tolist() == labels
    mesh = read_mesh(raw.path(MESH))
    assert (scene.colors == mesh.colors).all()
    matrix = scene.axis_alignment if options.align_axis else np.eye(4)
    exact = np.array(oracles.aligned_points(mesh.positions.tolist(), matrix))
    assert scene.points.tobytes() == exact.astype(np.float32).tobytes()
    assert np.abs(scene.normals.astype(np.float64) - normals_by_adding(exact, mesh.faces)).max() < 2**-11
    assert len(scene.meta.groups) == 55
    assert len(scene.meta.segment_ids) == 668
