"""Computed segments of test scenes: the option, the marks, exports, and the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL, Outcome, digests, run_main

from scannet_prep import ScanNet, read_processed
from scannet_prep.processed.scene import ProcessedScene, encode_processed
from scannet_prep.raw.check import read_raw_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.release.files import MESH
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import write_release


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "ScanNet"
    write_release(path, [TRAIN, VAL, TEST], vertices=700)
    return path


@pytest.fixture(scope="module")
def plain(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "processed"
    assert run_main("process", raw, "-o", path, "--align-axis").status == 0
    return path


@pytest.fixture
def computed(raw: Path, tmp_path: Path) -> Path:
    path = tmp_path / "processed"
    words = ("--align-axis", "--compute-segments")
    assert run_main("process", raw, "-o", path, *words).status == 0
    return path


def mesh_path(raw: Path) -> Path:
    return raw / f"scans_test/{TEST}/{TEST}{MESH.suffix}"


def read_mesh(raw: Path) -> Any:
    mesh = read_raw_file(MESH, mesh_path(raw))
    assert isinstance(mesh, Mesh)
    return mesh


def read_test_scene(folder: Path) -> ProcessedScene:
    return read_processed(folder / f"test/{TEST}.npz")


def info(place: Path) -> Outcome:
    return run_main("info", place)


# The option.


def test_test_scenes_get_the_segments_of_their_mesh(computed: Path, raw: Path) -> None:
    mesh = read_mesh(raw)

    segments = read_test_scene(computed).segments

    np.testing.assert_array_equal(segments, segment_mesh(mesh.positions, mesh.faces))


@pytest.mark.parametrize("name", [f"train/{TRAIN}.npz", f"val/{VAL}.npz"])
def test_train_and_val_keep_the_segments_of_the_release(
    computed: Path, plain: Path, name: str
) -> None:
    scene = read_processed(computed / name)

    np.testing.assert_array_equal(scene.segments, read_processed(plain / name).segments)
    assert scene.meta.segments_source == "release"


def test_without_the_option_nothing_mentions_it(plain: Path) -> None:
    stored = read_test_scene(plain).arrays()["meta"].item()

    assert "compute" not in stored
    assert "segments_source" not in stored


def test_dataset_returns_computed_segments(computed: Path) -> None:
    (sample,) = ScanNet(computed, split="test")

    np.testing.assert_array_equal(sample["segments"], read_test_scene(computed).segments)
    assert sample["segments"].dtype == np.int32


def test_folder_without_the_option_is_refused(raw: Path, plain: Path) -> None:
    before = digests(plain)

    outcome = run_main("process", raw, "-o", plain, "--compute-segments")

    assert outcome.status == 2
    assert "--compute-segments" in outcome.stderr
    assert digests(plain) == before


def test_later_command_keeps_the_option(raw: Path, computed: Path) -> None:
    outcome = run_main("process", raw, "-o", computed, "--json")

    assert outcome.json["options"]["compute_segments"] is True
    assert len(outcome.json["kept"]) == 3


def test_two_runs_give_equal_bytes(raw: Path, computed: Path, tmp_path: Path) -> None:
    words = ("--align-axis", "--compute-segments", "--jobs", "2")
    run_main("process", raw, "-o", tmp_path / "again", *words)

    scenes = {name: digest for name, digest in digests(computed).items() if name.endswith(".npz")}
    assert scenes.items() <= digests(tmp_path / "again").items()


# The marks.


def test_meta_says_computed(computed: Path) -> None:
    meta = json.loads(read_test_scene(computed).arrays()["meta"].item())

    assert meta["segments_source"] == "computed"


def test_manifest_says_computed_for_the_test_scene_only(computed: Path) -> None:
    scenes = json.loads((computed / "manifest.json").read_text())["scenes"]

    marked = [name for name, entry in scenes.items() if entry["segments_source"] == "computed"]
    assert marked == [TEST]


def test_info_counts_computed_scenes(computed: Path) -> None:
    assert "segments: computed for 1 scene\n" in info(computed).stdout


def test_info_of_an_archive_names_the_option(computed: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.zst"
    assert run_main("pack", computed, "-o", archive).status == 0

    assert "segments: computed for scenes that have none in the release" in info(archive).stdout


def test_info_without_computed_segments_has_no_such_line(plain: Path) -> None:
    assert "segments:" not in info(plain).stdout


def test_view_calls_the_coloring_computed(computed: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run_main("view", TEST, "--source", computed, "-o", page)

    assert "computed segments" in page.read_text()


def test_view_does_not_call_segments_of_the_release_computed(
    computed: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    run_main("view", TRAIN, "--source", computed, "-o", page)

    assert "computed segments" not in page.read_text()


# The check.


def change_segments(path: Path) -> None:
    """Move one vertex to another segment, and record the file in the manifest."""
    scene = read_processed(path)
    assert scene.segments is not None
    scene.segments[-1] = 1 - min(scene.segments[-1], 1)
    path.write_bytes(b"".join(encode_processed(scene)))


def test_verify_finds_segments_that_are_not_contiguous(computed: Path) -> None:
    path = computed / f"test/{TEST}.npz"
    scene = read_processed(path)
    assert scene.segments is not None
    scene.segments[scene.segments == 1] = scene.segments.max() + 1
    path.write_bytes(b"".join(encode_processed(scene)))

    outcome = run_main("verify", computed)

    assert outcome.status == 3
    assert "segments hold" in outcome.stdout


# Exports.


def test_mask3d_takes_computed_segments_of_test_scenes(computed: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "mask3d"
    assert run_main("export", computed, "--format", "mask3d", "-o", out_dir).status == 0

    matrix = np.load(out_dir / f"test/{TEST[5:]}.npy")
    np.testing.assert_array_equal(matrix[:, 9], read_test_scene(computed).segments)


def test_oneformer3d_takes_computed_segments_of_test_scenes(computed: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "oneformer3d"
    words = ("--format", "mmdet3d", "--for", "oneformer3d", "-o", out_dir)
    assert run_main("export", computed, *words).status == 0

    segments = np.fromfile(out_dir / f"super_points/{TEST}.bin", np.int64)
    np.testing.assert_array_equal(segments, read_test_scene(computed).segments)


def test_segments_from_elsewhere_replace_computed_ones(computed: Path, tmp_path: Path) -> None:
    count = len(read_test_scene(computed).points)
    folder = tmp_path / "segments"
    folder.mkdir()
    numbers = list(range(count))
    (folder / f"{TEST}_vh_clean_2.0.010000.segs.json").write_text(
        json.dumps({"sceneId": TEST, "segIndices": numbers})
    )
    out_dir = tmp_path / "mask3d"
    words = ("--format", "mask3d", "-o", out_dir, "--test-segments", folder)

    outcome = run_main("export", computed, *words)

    assert outcome.status == 0, outcome.stderr
    assert np.load(out_dir / f"test/{TEST[5:]}.npy")[:, 9].tolist() == numbers


def test_ply_is_coloured_by_computed_segments(computed: Path, tmp_path: Path) -> None:
    words = ("--format", "ply", "--color", "segment", "-o", tmp_path / "ply")

    assert run_main("export", computed, *words).status == 0

    assert list((tmp_path / "ply").rglob(f"{TEST}*.ply"))
