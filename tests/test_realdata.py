"""One real scene: raw files, processed arrays against the oracles, and the processed folder.

Only counts of the scene are written here.
"""

import json

import numpy as np
import oracles
import pytest
from commands import REAL_DIR
from oracles import find_problems

from scannet_prep import read_processed
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.tree import list_raw
from scannet_prep.release.files import AGGREGATION, MESH, SEGMENTS
from scannet_prep.stages.process import plan, run
from scannet_prep.superpoints import segment_mesh

SCENE_ID = "scene0000_00"
VERTICES = 81_369

pytestmark = pytest.mark.extra("real data")


def read(kind):
    return read_raw_file(kind, list_raw(REAL_DIR).scenes[SCENE_ID].path(kind))


def test_computed_segments_of_real_mesh_are_those_of_the_oracle():
    mesh = read(MESH)

    segments = segment_mesh(mesh.positions, mesh.faces)

    # The official Segmentator, compiled, gives 667 segments too, and the same partition.
    assert segments.max() + 1 == 667
    assert segments.tolist() == oracles.mesh_segments(mesh.positions, mesh.faces.tolist(), 0.01, 20)


@pytest.mark.parametrize("is_200", [False, True], ids=["ScanNet20", "ScanNet200-aligned"])
def test_real_scene_has_the_arrays_of_the_oracles(is_200, tmp_path):
    report = run(plan(REAL_DIR, tmp_path, ProcessOptions(scannet200=is_200, align_axis=is_200)))

    path = tmp_path / f"train/{SCENE_ID}.npz"
    scene = read_processed(path)
    assert [*report.made] == [SCENE_ID]
    counts = {warning.subject: warning.count for warning in scene.meta.warnings}
    trashcan = "'trashcan' (did you mean 'trash can'?)"
    dishrack = "'dishrack' (did you mean 'dish rack'?)"
    assert counts == {trashcan: 3, dishrack: 1}
    assert path.stat().st_size <= 23 * VERTICES
    assert not list(find_problems(scene))
    assert len(scene.meta.groups) == 55
    assert len(scene.meta.segment_ids) == 668

    mesh = read(MESH)
    matrix = scene.axis_alignment if is_200 else np.eye(4)
    points = oracles.aligned_points(mesh.positions.tolist(), matrix)
    assert scene.points.tobytes() == np.float32(points).tobytes()
    normals = np.array(oracles.vertex_normals(points, mesh.faces.tolist()))
    assert np.abs(scene.normals.astype(float) - normals).max() < 2**-11
    assert (scene.colors == mesh.colors).all()

    raw = list_raw(REAL_DIR).scenes[SCENE_ID]
    segment_ids = json.loads(raw.path(SEGMENTS).read_bytes())["segIndices"]
    groups = json.loads(raw.path(AGGREGATION).read_bytes())["segGroups"]
    # The loops run over the segments; `segment_of_vertex` (V,) hands their results to the vertices.
    unique_ids, segment_of_vertex = np.unique(segment_ids, return_inverse=True)
    nyu40_ids, scannet_ids, instances = oracles.ids_of_vertices(unique_ids.tolist(), groups)
    labels = oracles.labels200(scannet_ids) if is_200 else oracles.labels20(nyu40_ids)
    for array, expected in (
        (scene.nyu40_ids, nyu40_ids),
        (scene.scannet_ids, scannet_ids),
        (scene.instances, instances),
        (scene.stored_labels, labels),
    ):
        assert (array == np.array(expected)[segment_of_vertex]).all()
