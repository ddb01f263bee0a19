"""Computed segments of scenes that have none in the release: the option, the marks, and exports."""

import json
import shutil

import numpy as np
import plyfile
import pytest
from commands import TEST, TRAIN, VAL, run_main, succeed

from scannet_prep import ScanNet, read_processed
from scannet_prep.errors import ContentError
from scannet_prep.processed.make_scene import compute_segments
from scannet_prep.raw.mesh import Mesh
from scannet_prep.release.files import MESH, SEGMENTS
from scannet_prep.superpoints import segment_mesh


@pytest.fixture(scope="module")
def raw(whole_dir):
    return whole_dir / "raw"


@pytest.fixture(scope="module")
def computed(raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("computed") / "processed"
    succeed("process", raw, "-o", path, "--compute-segments")
    return path


def read_test_scene(folder):
    return read_processed(folder / f"test/{TEST}.npz")


def test_only_scenes_without_segments_get_those_of_their_mesh_and_a_mark(raw, computed):
    plain = raw.with_name("processed")
    mesh = read_mesh(raw)
    scene = read_test_scene(computed)
    meta = json.loads(scene.arrays()["meta"].item())
    entries = json.loads((computed / "manifest.json").read_text())["scenes"]
    (sample,) = ScanNet(computed, split="test")

    np.testing.assert_array_equal(scene.segments, segment_mesh(*mesh))
    np.testing.assert_array_equal(sample["segments"], scene.segments)
    assert sample["segments"].dtype == np.int32
    assert meta["segments_source"] == "computed"
    assert scene.meta.options.flags.endswith(" --compute-segments")
    stored = read_test_scene(plain).arrays()["meta"].item()
    assert "compute" not in stored
    assert "segments_source" not in stored
    marks = {name: entry["segments_source"] for name, entry in entries.items()}
    assert marks == {TRAIN: "release", VAL: "release", TEST: "computed"}
    for name in (f"train/{TRAIN}.npz", f"val/{VAL}.npz"):
        segments = read_processed(computed / name).segments
        np.testing.assert_array_equal(segments, read_processed(plain / name).segments)


def read_mesh(raw):
    """Read the positions and faces of the test scene with another reader."""
    ply = plyfile.PlyData.read(raw / f"scans_test/{TEST}/{TEST}{MESH.suffix}")
    positions = np.stack([ply["vertex"][axis] for axis in "xyz"], axis=1)
    return positions, np.stack(ply["face"]["vertex_indices"])


def test_view_says_which_segments_are_computed(computed, tmp_path):
    for scene_id, is_computed in ((TEST, True), (TRAIN, False)):
        page = tmp_path / f"{scene_id}.html"
        run_main("view", scene_id, "--source", computed, "-o", page)
        assert ("computed segments" in page.read_text()) is is_computed


@pytest.mark.parametrize("words", [[], ["--compute-segments"]])
def test_segments_beside_the_mesh_of_a_test_scene_are_used_and_marked(raw, tmp_path, words):
    copy = shutil.copytree(raw, tmp_path / "raw")
    numbers = segment_mesh(*read_mesh(raw), threshold=0.1)
    # As the Segmentator writes them.
    document = {
        "params": {"kThresh": 0.1, "segMinVerts": 20},
        "sceneId": f"/{TEST}_vh_clean_2",
        "segIndices": (numbers * 7).tolist(),
    }
    (copy / f"scans_test/{TEST}/{TEST}{SEGMENTS.suffix}").write_text(json.dumps(document))

    succeed("process", copy, "-o", tmp_path / "out", "--strict", *words)
    scene = read_test_scene(tmp_path / "out")
    np.testing.assert_array_equal(scene.segments, numbers)
    assert scene.meta.segment_ids == tuple(range(0, 7 * numbers.max() + 1, 7))
    assert scene.meta.segments_source == "beside the mesh"
    assert scene.meta.warnings == ()
    succeed("verify", copy)
    succeed("verify", tmp_path / "out")


def compute(positions, faces):
    """Compute the segments of a mesh that has no more than positions and faces."""
    colors = np.zeros((len(positions), 3), np.uint8)
    return compute_segments(Mesh(positions, colors, faces, None, np.empty(0, np.uint16)))


def test_segments_of_a_mesh_far_from_its_origin_are_those_of_one_that_is_near(raw):
    positions, faces = read_mesh(raw)
    # At 900 m, float32 has steps of 60 micrometres, which are longer than the edges of this mesh.
    # Its walls are aslant, because rounding would keep upright ones plane.
    small = np.cumsum(positions, axis=1, dtype=float) / 5000

    np.testing.assert_array_equal(compute(small + 900, faces), compute(small, faces))


def test_mesh_whose_faces_repeat_their_vertices_has_the_segments_of_its_surface(raw):
    positions, faces = read_mesh(raw)
    corners = faces.ravel()
    soup = positions[corners]

    numbers = compute(soup, np.arange(len(soup), dtype=np.int32).reshape(-1, 3))

    whole = compute(positions, faces)[corners]
    # The order of the vertices is another one: the partitions are equal, and so are their orders.
    assert len(set(zip(whole.tolist(), numbers.tolist(), strict=True))) == len(set(whole.tolist()))
    firsts = np.unique(numbers, return_index=True)[1]
    assert numbers[sorted(firsts)].tolist() == [*range(len(firsts))]
    # Strips of 12 vertices. A tenth of the vertices may be a segment.
    starts = np.arange(600).reshape(50, 12)[:, :10].reshape(500, 1)
    for triangles in (np.empty((0, 3), np.int32), faces[:100], starts + np.arange(3)):
        with pytest.raises(ContentError, match=f"its {len(triangles)} faces join few of its 600"):
            compute(positions, triangles)
