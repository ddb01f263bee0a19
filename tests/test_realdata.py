"""One real scene, all the way: raw files, arrays against the oracles, the processed folder, the Dataset.

Nothing of the scene stands here but counts.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import oracles
import pytest

from scannet_prep import read_processed
from scannet_prep.export.ply import encode_ply
from scannet_prep.processed.annotate import annotate
from scannet_prep.processed.geometry import points_and_normals
from scannet_prep.processed.scene import ProcessOptions, find_problems
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.release.files import AGGREGATION, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scene import SceneId
from scannet_prep.release.scene_warnings import SceneWarning, WarningKind
from scannet_prep.stages.process import plan, run

SCENE_ID = "scene0000_00"
REAL_DIR = Path(os.environ.get("SCANNET_PREP_REAL_DATA") or "unset")
HAS_REAL_DATA = (REAL_DIR / "scans" / SCENE_ID).is_dir()

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(
        not HAS_REAL_DATA, reason="SCANNET_PREP_REAL_DATA holds no scans/scene0000_00"
    ),
]


def test_labels_ply_with_scannet_ids_as_in_v1_fails_the_scene(tmp_path: Path) -> None:
    raw = RawScene(SceneId(SCENE_ID), tmp_path / "raw/scans")
    shutil.copytree(REAL_DIR / "scans" / SCENE_ID, raw.directory)
    mesh = read_mesh(raw.path(MESH))
    groups = annotate(
        read_segments(raw.path(SEGMENTS)),
        read_aggregation(raw.path(AGGREGATION)),
        builtin_label_map(),
    )
    v1_labels = np.where(
        groups.scannet_ids > 40, 0, groups.scannet_ids
    )  # the ids that could be nyu40 ids
    ply = b"".join(encode_ply("v1", mesh.positions, mesh.colors, mesh.faces, v1_labels))
    raw.path(LABELS_MESH).write_bytes(ply)
    report = run(plan(tmp_path / "raw", tmp_path / "out", ProcessOptions(labels_from="ply")))
    (failure,) = report.failures
    assert "the groups contradict 44,010 of 81,369 labels" in failure.message
    assert "ScanNet v1" in failure.message


@pytest.mark.parametrize("is_200", [False, True])
def test_the_processed_scene_agrees_with_the_oracles(is_200: bool, tmp_path: Path) -> None:
    report = run(plan(REAL_DIR, tmp_path, ProcessOptions(scannet200=is_200, align_axis=is_200)))
    assert (report.made, report.kept, report.failures) == ((SCENE_ID,), (), ())
    unknown = (
        ("'trashcan' (did you mean 'trash can'?)", 3),
        ("'dishrack' (did you mean 'dish rack'?)", 1),
    )
    expected = [SceneWarning(WarningKind.UNKNOWN_CATEGORY, name, count) for name, count in unknown]
    assert [(item.text, item.scenes) for item in report.warnings] == [
        (item.text, (SCENE_ID,)) for item in expected
    ]
    path = tmp_path / "train" / f"{SCENE_ID}.npz"
    assert report.size_bytes == path.stat().st_size <= 23 * 81_369  # bytes for each vertex
    scene, raw = read_processed(path), find_raw_scenes(REAL_DIR)[SceneId(SCENE_ID)]
    assert list(find_problems(scene)) == []
    assert (len(scene.meta.groups), len(scene.meta.segment_ids)) == (55, 668)
    # Found for each segment by the loops, then handed to its vertices.
    segment_ids = json.loads(raw.path(SEGMENTS).read_bytes())["segIndices"]
    names, place = np.unique(segment_ids, return_inverse=True)
    groups = json.loads(raw.path(AGGREGATION).read_bytes())["segGroups"]
    nyu40_ids, scannet_ids, instances = oracles.ids_of_vertices(names.tolist(), groups)
    assert (scene.nyu40_ids == np.array(nyu40_ids)[place]).all()
    assert (scene.scannet_ids == np.array(scannet_ids)[place]).all()
    assert (scene.instances == np.array(instances)[place]).all()
    labels = oracles.labels200(scannet_ids) if is_200 else oracles.labels20(nyu40_ids)
    assert (scene.stored_labels == np.array(labels)[place]).all()
    mesh = read_mesh(raw.path(MESH))
    assert (scene.colors == mesh.colors).all()
    exact = np.array(
        oracles.aligned_points(
            mesh.positions.tolist(), scene.axis_alignment if is_200 else np.eye(4)
        )
    )
    assert scene.points.tobytes() == exact.astype(np.float32).tobytes()
    normals = np.array(oracles.vertex_normals(exact.tolist(), mesh.faces.tolist()))
    assert np.abs(scene.normals.astype(np.float64) - normals).max() < 2**-11
    _, found = points_and_normals(mesh.positions, mesh.faces, None)
    assert is_200 or np.abs(found - normals).max() < 1e-6  # before the cast
