"""Computed segments of scenes that have none in the release: the option, the marks, and exports."""

import json

import numpy as np
import plyfile
import pytest
from commands import TEST, TRAIN, VAL, digests, run_main

from scannet_prep import ScanNet, read_processed
from scannet_prep.release.files import MESH
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import write_release


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "ScanNet"
    write_release(path, [TRAIN, VAL, TEST], vertices=700)
    return path


@pytest.fixture(scope="module")
def plain(raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "processed"
    assert run_main("process", raw, "-o", path, "--align-axis").status == 0
    return path


@pytest.fixture(scope="module")
def computed(raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("computed") / "processed"
    words = ("--align-axis", "--compute-segments")
    assert run_main("process", raw, "-o", path, *words).status == 0
    return path


def read_test_scene(folder):
    return read_processed(folder / f"test/{TEST}.npz")


def test_only_scenes_without_segments_get_those_of_their_mesh_and_a_mark(raw, plain, computed):
    mesh = read_mesh(raw)
    scene = read_test_scene(computed)
    meta = json.loads(scene.arrays()["meta"].item())
    entries = json.loads((computed / "manifest.json").read_text())["scenes"]
    (sample,) = ScanNet(computed, split="test")

    np.testing.assert_array_equal(scene.segments, segment_mesh(*mesh))
    np.testing.assert_array_equal(sample["segments"], scene.segments)
    assert sample["segments"].dtype == np.int32
    assert meta["segments_source"] == "computed"
    marks = {name: entry["segments_source"] for name, entry in entries.items()}
    assert marks == {TRAIN: "release", VAL: "release", TEST: "computed"}
    for name in (f"train/{TRAIN}.npz", f"val/{VAL}.npz"):
        annotated = read_processed(computed / name)
        assert annotated.meta.segments_source == "release"
        np.testing.assert_array_equal(annotated.segments, read_processed(plain / name).segments)


def read_mesh(raw):
    """Read the positions and faces of the test scene with another reader."""
    ply = plyfile.PlyData.read(raw / f"scans_test/{TEST}/{TEST}{MESH.suffix}")
    positions = np.stack([ply["vertex"][axis] for axis in "xyz"], axis=1)
    return positions, np.stack(ply["face"]["vertex_indices"])


def test_option_belongs_to_the_folder(raw, plain, computed):
    before = digests(plain)
    refused = run_main("process", raw, "-o", plain, "--compute-segments")
    again = run_main("process", raw, "-o", computed, "--json")

    assert refused.status == 2
    assert "--compute-segments" in refused.stderr
    assert digests(plain) == before
    assert "--compute-segments" in again.json["options"]
    assert not again.json["made"]
    stored = read_test_scene(plain).arrays()["meta"].item()
    assert "compute" not in stored
    assert "segments_source" not in stored


def test_info_and_view_say_which_segments_are_computed(plain, computed, tmp_path):
    archive = tmp_path / "a.tar.zst"
    assert run_main("pack", computed, "-o", archive).status == 0

    for place, count in ((computed, 1), (archive, 1), (plain, 0)):
        facts = run_main("info", place, "--json").json["facts"]
        assert facts["scenes_with_computed_segments"] == count
    for scene_id, is_computed in ((TEST, True), (TRAIN, False)):
        page = tmp_path / f"{scene_id}.html"
        run_main("view", scene_id, "--source", computed, "-o", page)
        assert ("computed segments" in page.read_text()) is is_computed


def test_exports_take_computed_segments_of_test_scenes(computed, tmp_path):
    segments = read_test_scene(computed).segments

    def export(name, *words):
        out_dir = tmp_path / name
        outcome = run_main("export", computed, "-o", out_dir, "--format", *words)
        assert outcome.status == 0, outcome.stderr
        return out_dir

    matrix = np.load(export("mask3d", "mask3d") / f"test/{TEST[5:]}.npy")
    np.testing.assert_array_equal(matrix[:, 9], segments)
    superpoints = export("oneformer3d", "oneformer3d") / "super_points"
    numbers = np.fromfile(superpoints / f"{TEST}.bin", np.int64)
    np.testing.assert_array_equal(numbers, segments)
