"""One real scene: raw files, processed arrays against the oracles, and the processed folder.

Only counts of the scene are written here.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from extras import REAL_DIR
from numpy.typing import NDArray

from scannet_prep import read_processed
from scannet_prep.export.ply import encode_ply
from scannet_prep.processed.annotate import annotate
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.processed.scene_problems import find_problems
from scannet_prep.raw.check import read_raw_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.tree import RawScene, find_raw_scenes
from scannet_prep.release.files import AGGREGATION, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.process import ProcessReport, plan, run
from scannet_prep.superpoints import segment_mesh

SCENE_ID = "scene0000_00"
VERTICES = 81_369

pytestmark = pytest.mark.extra("real data")


def test_labels_ply_with_scannet_ids_as_in_v1_fails_the_scene(tmp_path: Path) -> None:
    raw = RawScene(SceneId(SCENE_ID), tmp_path / "raw/scans" / SCENE_ID)
    shutil.copytree(REAL_DIR / "scans" / SCENE_ID, raw.directory)
    mesh = read_raw_file(MESH, raw.path(MESH))
    segmentation = read_raw_file(SEGMENTS, raw.path(SEGMENTS))
    aggregation = read_raw_file(AGGREGATION, raw.path(AGGREGATION))
    annotation = annotate(segmentation, aggregation, builtin_label_map())
    # Only the ids that could be nyu40 ids.
    v1_labels = np.where(annotation.scannet_ids > 40, 0, annotation.scannet_ids)
    ply = b"".join(encode_ply("v1", mesh.positions, mesh.colors, mesh.faces, v1_labels))
    raw.path(LABELS_MESH).write_bytes(ply)

    report = run(plan(tmp_path / "raw", tmp_path / "out", ProcessOptions(labels_from="ply")))

    (failure,) = report.failures
    assert "the groups contradict 44,010 of 81,369 labels" in failure.message
    assert "ScanNet v1" in failure.message


def test_computed_segments_of_real_mesh_are_those_of_the_oracle() -> None:
    mesh = read_raw_file(
        MESH, RawScene(SceneId(SCENE_ID), REAL_DIR / "scans" / SCENE_ID).path(MESH)
    )

    segments = segment_mesh(mesh.positions, mesh.faces)

    # The official Segmentator, compiled, gives 667 segments too, and the same partition.
    assert segments.max() + 1 == 667
    expected = oracles.mesh_segments(mesh.positions, mesh.faces.tolist(), 0.01, 20)
    assert segments.tolist() == expected


@dataclass(frozen=True)
class Processed:
    """The scene, processed for ScanNet200 and aligned, or for ScanNet20 in the scan frame.

    Attributes:
        points: Expected points, float64 (V, 3), from the oracles.
        normals: Expected normals, float64 (V, 3), from the oracles.
    """

    is_200: bool
    report: ProcessReport
    size_bytes: int
    scene: ProcessedScene
    raw: RawScene
    mesh: Mesh
    points: NDArray[np.float64]
    normals: NDArray[np.float64]


@pytest.fixture(scope="module", params=[False, True], ids=["ScanNet20", "ScanNet200-aligned"])
def processed(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Processed:
    is_200 = request.param
    out_dir = tmp_path_factory.mktemp("real")
    report = run(plan(REAL_DIR, out_dir, ProcessOptions(scannet200=is_200, align_axis=is_200)))
    path = out_dir / "train" / f"{SCENE_ID}.npz"
    scene = read_processed(path)
    raw = find_raw_scenes(REAL_DIR)[SceneId(SCENE_ID)]
    mesh = read_raw_file(MESH, raw.path(MESH))
    matrix = scene.axis_alignment if is_200 else np.eye(4)
    points = oracles.aligned_points(mesh.positions.tolist(), matrix)
    normals = oracles.vertex_normals(points, mesh.faces.tolist())
    return Processed(
        is_200=is_200,
        report=report,
        size_bytes=path.stat().st_size,
        scene=scene,
        raw=raw,
        mesh=mesh,
        points=np.array(points),
        normals=np.array(normals),
    )


def test_real_scene_is_made_without_failures(processed: Processed) -> None:
    assert processed.report.made == (SCENE_ID,)
    assert processed.report.kept == ()
    assert processed.report.failures == ()


def test_real_scene_has_warnings_of_its_unknown_categories(processed: Processed) -> None:
    trashcan = "'trashcan' (did you mean 'trash can'?)"
    dishrack = "'dishrack' (did you mean 'dish rack'?)"
    expected = [
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, trashcan, 3),
        SceneWarning(WarningKind.UNKNOWN_CATEGORY, dishrack, 1),
    ]

    assert [warning.text for warning in processed.report.warnings] == [
        warning.text for warning in expected
    ]
    assert {warning.scenes for warning in processed.report.warnings} == {(SCENE_ID,)}


def test_real_scene_takes_at_most_23_bytes_per_vertex(processed: Processed) -> None:
    assert processed.report.size_bytes == processed.size_bytes
    assert processed.size_bytes <= 23 * VERTICES


def test_real_scene_has_its_groups_and_segments(processed: Processed) -> None:
    assert list(find_problems(processed.scene)) == []
    assert len(processed.scene.meta.groups) == 55
    assert len(processed.scene.meta.segment_ids) == 668


def test_real_scene_has_ids_and_labels_of_the_oracles(processed: Processed) -> None:
    scene = processed.scene
    segment_ids = json.loads(processed.raw.path(SEGMENTS).read_bytes())["segIndices"]
    groups = json.loads(processed.raw.path(AGGREGATION).read_bytes())["segGroups"]
    # The loops run over the segments; `segment_of_vertex` (V,) hands their results to the vertices.
    unique_ids, segment_of_vertex = np.unique(segment_ids, return_inverse=True)
    nyu40_ids, scannet_ids, instances = oracles.ids_of_vertices(unique_ids.tolist(), groups)
    if processed.is_200:
        labels = oracles.labels200(scannet_ids)
    else:
        labels = oracles.labels20(nyu40_ids)

    assert (scene.nyu40_ids == np.array(nyu40_ids)[segment_of_vertex]).all()
    assert (scene.scannet_ids == np.array(scannet_ids)[segment_of_vertex]).all()
    assert (scene.instances == np.array(instances)[segment_of_vertex]).all()
    assert (scene.stored_labels == np.array(labels)[segment_of_vertex]).all()


def test_real_scene_has_points_and_colors_of_the_mesh(processed: Processed) -> None:
    points = processed.points.astype(np.float32)

    assert processed.scene.points.tobytes() == points.tobytes()
    assert (processed.scene.colors == processed.mesh.colors).all()


def test_real_scene_has_normals_of_the_oracles_in_half_precision(processed: Processed) -> None:
    differences = processed.scene.normals.astype(np.float64) - processed.normals

    assert np.abs(differences).max() < 2**-11
