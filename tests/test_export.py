"""Exports for OctFormer, Pointcept, the official evaluators and MeshLab, read as those do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from commands import run_main
from plyfile import PlyData
from test_realdata import HAS_REAL_DATA, REAL_DIR

from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.base.errors import ScanNetPrepError, UsageError
from scannet_prep.export import make_format
from scannet_prep.export.format import ExportOptions, encode_lines, encode_npy
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.synthetic import write_release

TRAIN = "scene0191_00"
ALSO_TRAIN = "scene0000_00"
VAL = "scene0011_00"
TEST = "scene0707_00"
SPLITS = {TRAIN: "train", ALSO_TRAIN: "train", VAL: "val", TEST: "test"}
TRIANGLES = {"face": {"vertex_indices": 3}}
ANNOTATION_ASSETS = {"segment20", "segment200", "instance"}
ASSETS = {"coord", "color", "normal"} | ANNOTATION_ASSETS
REAL = pytest.param(
    "real",
    marks=[pytest.mark.realdata, pytest.mark.skipif(not HAS_REAL_DATA, reason="no real scene")],
)


@pytest.fixture(scope="module", params=["synthetic", REAL])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scenes processed twice: `scan`, and `aligned` for ScanNet200."""
    root = tmp_path_factory.mktemp("root")
    raw_dir = REAL_DIR if request.param == "real" else root / "raw"
    if request.param == "synthetic":
        write_release(raw_dir, list(SPLITS), vertices=700)
    for name, words in {"scan": (), "aligned": ("--align-axis", "--scannet200")}.items():
        assert run_main("process", raw_dir, "-o", root / name, "--faces", *words).status == 0
    return root


def scenes_of(folder: Path) -> dict[str, ProcessedScene]:
    return {path.stem: read_processed(path) for path in folder.glob("*/scene*.npz")}


def export(place: Path, out_dir: Path, *words: str) -> Path:
    outcome = run_main("export", place, "-o", out_dir, "--format", *words)
    assert outcome.status == 0, outcome.stderr
    return out_dir


def check_frame(points: np.ndarray, normals: np.ndarray, scene: ProcessedScene) -> None:
    """Check that points and normals equal those of a scene in the same frame, except for rounding.

    Points may differ by one unit in the last place, normals by the precision of float16.
    """
    assert points.dtype == scene.points.dtype
    assert (np.abs(points - scene.points) <= np.spacing(np.abs(scene.points).max())).all()
    assert np.abs(normals.astype(np.float64) - scene.normals).max() < 2e-3


def numbers_in(path: Path) -> list[int]:
    text = path.read_text(encoding="ascii")
    assert text.endswith("\n")
    return [int(line) for line in text.splitlines()]


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize("labels", ["scannet20", "scannet200"])
def test_octformer_lists_name_files_in_official_order(
    root: Path, tmp_path: Path, place: str, labels: str
) -> None:
    """The lists are those that `configs/seg_scannet.yaml` names."""
    out_dir = export(root / place, tmp_path / "out", "octformer", "--labels", labels)

    stored = scenes_of(root / place)
    lists = {}
    # The official order of the train scenes is not the sorted one.
    for split, names in {"train": [TRAIN, ALSO_TRAIN], "val": [VAL], "test": [TEST]}.items():
        text = "".join(f"{name}.npz\n" for name in names if name in stored)
        lists[f"scannetv2_{split}_npz.txt"] = text
    lists["scannetv2_test.txt"] = lists["scannetv2_test_npz.txt"]
    assert {path.name: path.read_text() for path in out_dir.glob("scannetv2_*.txt")} == lists


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize("labels", ["scannet20", "scannet200"])
def test_octformer_folders_contain_arrays_and_raw_ids_only(
    root: Path, tmp_path: Path, place: str, labels: str
) -> None:
    out_dir = export(root / place, tmp_path / "out", "octformer", "--labels", labels)

    expected = set()
    for name in scenes_of(root / place):
        if name == TEST:
            expected.add(f"test/{name}.npz")
        else:
            expected |= {f"train/{name}.npz", f"train/{name}.txt"}
    paths = [*out_dir.glob("train/*"), *out_dir.glob("test/*")]
    assert {str(path.relative_to(out_dir)) for path in paths} == expected


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize("labels", ["scannet20", "scannet200"])
def test_octformer_arrays_have_the_frame_and_labels_of_its_classes(
    root: Path, tmp_path: Path, place: str, labels: str
) -> None:
    """As `datasets/scannet.py` reads them; the 200 classes are axis-aligned."""
    out_dir = export(root / place, tmp_path / "out", "octformer", "--labels", labels)

    is_200 = labels == "scannet200"
    native_place = "aligned" if is_200 else "scan"
    in_frame = scenes_of(root / native_place)
    for name, scene in scenes_of(root / place).items():
        path = out_dir / ("test" if name == TEST else "train") / f"{name}.npz"
        with np.load(path) as file:
            arrays = {key: file[key] for key in ("points", "normals", "colors", "labels")}
        check_frame(arrays["points"], arrays["normals"], in_frame[name])
        assert arrays["normals"].dtype == np.float16
        assert (arrays["colors"] == scene.colors).all()
        assert arrays["labels"].dtype == np.uint8
        if is_200:
            expected_labels = oracles.labels200(scene.scannet_ids.tolist())
        else:
            expected_labels = oracles.labels20(scene.nyu40_ids.tolist())
        assert arrays["labels"].tolist() == expected_labels
        is_linked = path.samefile(next((root / place).glob(f"*/{name}.npz")))
        assert is_linked == (place == native_place)


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize("labels", ["scannet20", "scannet200"])
def test_octformer_texts_hold_the_raw_ids_of_its_classes(
    root: Path, tmp_path: Path, place: str, labels: str
) -> None:
    out_dir = export(root / place, tmp_path / "out", "octformer", "--labels", labels)

    is_200 = labels == "scannet200"
    kept = set(oracles.scannet200_ids()) if is_200 else set(range(41))
    for name, scene in scenes_of(root / place).items():
        if name == TEST:
            continue
        raw_ids = (scene.scannet_ids if is_200 else scene.nyu40_ids).tolist()
        expected = [raw_id if raw_id in kept else 0 for raw_id in raw_ids]
        assert numbers_in(out_dir / "train" / f"{name}.txt") == expected


@pytest.mark.parametrize(
    ("place", "words", "name"),
    [
        ("scan", ["octformer"], "ScanNet20"),
        ("aligned", ["octformer"], "ScanNet200"),
        ("aligned", ["octformer", "--labels", "scannet20"], "ScanNet20"),
        ("aligned", ["mmdet3d"], "ScanNet20"),
        ("aligned", ["mmdet3d", "--for", "oneformer3d"], "ScanNet200"),
        ("aligned", ["votenet"], "ScanNet20"),
        ("aligned", ["scanrefer"], "ScanNet20"),
        ("aligned", ["pointcept"], "both label sets"),
    ],
)
def test_default_label_set_is_that_of_the_processed_scenes(
    root: Path, tmp_path: Path, place: str, words: list[str], name: str
) -> None:
    outcome = run_main("export", root / place, "-o", tmp_path / "out", "--format", *words)

    assert outcome.status == 0, outcome.stderr
    first_line = outcome.stderr.splitlines()[0]
    assert re.match(rf"export: .*: {words[0]}, \d+ scenes?, {name}(,|$)", first_line)
    settings = json.loads((tmp_path / "out/export.json").read_text())["settings"]
    assert settings["label_set"] == ("" if words[0] == "pointcept" else name)


@pytest.mark.parametrize("place", ["scan", "aligned"])
def test_pointcept_finds_one_folder_per_scene(root: Path, tmp_path: Path, place: str) -> None:
    out_dir = export(root / place, tmp_path / "out", "pointcept")

    folders = {path.relative_to(out_dir) for split in Split for path in out_dir.glob(f"{split}/*")}
    assert folders == {Path(SPLITS[name], name) for name in scenes_of(root / place)}


@pytest.mark.parametrize("place", ["scan", "aligned"])
def test_pointcept_assets_hold_points_classes_and_instances(
    root: Path, tmp_path: Path, place: str
) -> None:
    """As `ScanNetDataset` and `ScanNet200Dataset` read them: one root for both."""
    out_dir = export(root / place, tmp_path / "out", "pointcept")

    as_scanned = scenes_of(root / "scan")
    types = {"coord": "<f4", "color": "|u1", "normal": "<f4"}
    for name, scene in scenes_of(root / place).items():
        paths = (out_dir / SPLITS[name] / name).glob("*.npy")
        assets = {path.stem: np.load(path) for path in paths}
        is_test = name == TEST
        assert assets.keys() == (ASSETS - ANNOTATION_ASSETS if is_test else ASSETS)
        for key, array in assets.items():
            assert array.dtype.str == types.get(key, "<i8")
        check_frame(assets["coord"], assets["normal"], as_scanned[name])
        assert (assets["color"] == scene.colors).all()
        if not is_test:
            labels20 = oracles.labels20(scene.nyu40_ids.tolist())
            labels200 = oracles.labels200(scene.scannet_ids.tolist())
            assert (assets["segment20"] + 1).tolist() == labels20
            assert (assets["segment200"] + 1).tolist() == labels200
            assert (assets["instance"] == scene.instances).all()


def test_aligning_in_export_equals_aligning_in_process(root: Path, tmp_path: Path) -> None:
    aligned = export(root / "scan", tmp_path / "aligned", "pointcept", "--aligned")
    as_stored = export(root / "aligned", tmp_path / "as_stored", "pointcept", "--aligned")

    for name, scene in scenes_of(root / "aligned").items():
        for folder in (aligned, as_stored):
            points = np.load(folder / scene.meta.split / name / "coord.npy")
            assert points.tobytes() == scene.points.tobytes()


def test_undoing_the_alignment_is_exact_up_to_rounding(root: Path, tmp_path: Path) -> None:
    out_dir = export(root / "aligned", tmp_path / "out", "pointcept", "--unaligned")

    for name, scene in scenes_of(root / "scan").items():
        folder = out_dir / scene.meta.split / name
        check_frame(np.load(folder / "coord.npy"), np.load(folder / "normal.npy"), scene)


@pytest.mark.parametrize("labels", ["scannet20", "scannet200"])
def test_benchmark_gt_holds_raw_ids_and_instances_from_1(
    root: Path, tmp_path: Path, labels: str
) -> None:
    out_dir = export(root / "aligned", tmp_path / "out", "benchmark-gt", "--labels", labels)

    stored = scenes_of(root / "aligned")
    stored.pop(TEST, None)
    for kind in ("semantic", "instance"):
        names = {path.name for path in (out_dir / kind).iterdir()}
        assert names == {f"{name}.txt" for name in stored}
    for name, scene in stored.items():
        raw_ids = scene.scannet_ids if labels == "scannet200" else scene.nyu40_ids
        assert numbers_in(out_dir / "semantic" / f"{name}.txt") == raw_ids.tolist()
        numbers = np.array(numbers_in(out_dir / "instance" / f"{name}.txt"))
        is_instance = (scene.instances >= 0) & (raw_ids > 0)
        assert (numbers[~is_instance] == 0).all()
        assert (numbers[is_instance] // 1000 == raw_ids[is_instance]).all()
        groups = scene.instances[is_instance].tolist()
        pairs = set(zip((numbers[is_instance] % 1000).tolist(), groups, strict=True))
        assert pairs == set(enumerate(sorted(set(groups)), start=1))


def test_benchmark_gt_gives_a_group_one_raw_id_in_instances(tmp_path: Path) -> None:
    labels = {"_vh_clean_2.labels.ply": tiny.Ply(labels=(2, 5, 1, 1, 1, 0)).encode()}
    scene = tiny.process_tiny(tmp_path, labels, labels_from="ply")

    files = make_format("benchmark-gt", ExportOptions()).encode_scene(scene).files

    texts = {name: b"".join(content).decode().split() for name, content in files.items()}
    instance_lines = ["2001", "2001", "1002", "1002", "1002", "0"]
    assert texts[f"semantic/{tiny.SCENE_ID}.txt"] == ["2", "5", "1", "1", "1", "0"]
    assert texts[f"instance/{tiny.SCENE_ID}.txt"] == instance_lines


def test_benchmark_gt_refuses_1000_instances(tmp_path: Path) -> None:
    groups = [tiny.group(2000 + index, [0, index], "floor") for index in range(1000)]
    files = {
        ".aggregation.json": tiny.aggregation_file(groups),
        "_vh_clean_2.0.010000.segs.json": tiny.segments_file((0, 0, 2, 2, 4, 5)),
    }
    scene = tiny.process_tiny(tmp_path, files)

    problem = r"1,000 labeled instances, and the format can distinguish 999"
    with pytest.raises(ScanNetPrepError, match=problem):
        make_format("benchmark-gt", ExportOptions()).encode_scene(scene)


@pytest.mark.parametrize("color", ["rgb", "label", "instance", "segment"])
def test_ply_is_a_coloured_mesh_with_raw_ids_as_labels(
    root: Path, tmp_path: Path, color: str
) -> None:
    words = ("ply", "--color", color, "--labels", "scannet200")
    out_dir = export(root / "aligned", tmp_path / "out", *words)

    stored = scenes_of(root / "aligned")
    if color != "rgb":
        stored.pop(TEST, None)
    assert {path.stem for path in out_dir.rglob("*.ply")} == stored.keys()
    for name, scene in stored.items():
        path = out_dir / scene.meta.split / f"{name}.ply"
        mesh = PlyData.read(str(path), known_list_len=TRIANGLES)
        vertices = mesh["vertex"]
        assert (np.stack([vertices[key] for key in "xyz"], axis=1) == scene.points).all()
        assert vertices["label"].dtype == np.uint16
        assert (vertices["label"] == scene.scannet_ids).all()
        assert scene.faces is not None
        assert (mesh["face"]["vertex_indices"] == scene.faces).all()
        colors = np.stack([vertices[key] for key in ("red", "green", "blue")], axis=1)
        check_colors(colors, color, scene)


def check_colors(colors: np.ndarray, variant: str, scene: ProcessedScene) -> None:
    """Check the colours of a mesh: given by the scan or the classes, or one for each number."""
    if variant == "rgb":
        assert (colors == scene.colors).all()
    elif variant == "label":
        assert (colors == np.array([(0, 0, 0), *SCANNET200.colors])[scene.stored_labels]).all()
    else:
        numbers = scene.instances if variant == "instance" else scene.segments
        assert numbers is not None
        pairs = np.unique(np.column_stack([numbers.astype(int), colors]), axis=0)
        assert len(pairs) == len(np.unique(numbers))
        is_none = pairs[:, 0] == -1
        assert not pairs[is_none, 1:].any()


def test_ply_coloured_by_segment_needs_segments(tmp_path: Path) -> None:
    scene = tiny.process_tiny(tmp_path, {"_vh_clean_2.0.010000.segs.json": None}, split=Split.TEST)

    with pytest.raises(ScanNetPrepError, match="has no segments to colour it by"):
        make_format("ply", ExportOptions(variant="segment")).encode_scene(scene)


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(0).random((7, 3), np.float32),
        np.arange(5),
        np.empty(0, np.uint8),
    ],
    ids=["float32", "int64", "empty"],
)
def test_encoded_array_has_the_bytes_of_np_save(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "array.npy", array)

    assert b"".join(encode_npy(array)) == (tmp_path / "array.npy").read_bytes()


def test_encoded_transposed_array_is_read_back_by_numpy(tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).T

    (tmp_path / "array.npy").write_bytes(b"".join(encode_npy(array)))

    assert np.array_equal(np.load(tmp_path / "array.npy"), array)


@pytest.mark.parametrize(
    ("largest", "kind"), [(41, np.uint8), (1358, np.uint16), (10**6, np.int64)]
)
def test_encoded_lines_are_the_text_of_np_savetxt(
    tmp_path: Path, largest: int, kind: type[np.integer]
) -> None:
    numbers = np.random.default_rng(0).integers(0, largest, 300).astype(kind)
    np.savetxt(tmp_path / "numbers.txt", numbers, fmt="%d")

    assert encode_lines(numbers) == (tmp_path / "numbers.txt").read_bytes()


def test_no_numbers_are_encoded_as_no_lines() -> None:
    assert encode_lines(np.empty(0, np.uint8)) == b""


@pytest.mark.parametrize("root", ["synthetic"], indirect=True)
@pytest.mark.parametrize(
    "name", ["octformer", "pointcept", "votenet", "scanrefer", "benchmark-gt", "ply"]
)
def test_folder_and_archive_give_the_same_export(root: Path, tmp_path: Path, name: str) -> None:
    archive = tmp_path / "scannet.tar.zst"
    assert run_main("pack", root / "aligned", "-o", archive).status == 0

    contents = []
    manifests = []
    for index, place in enumerate((root / "aligned", archive)):
        folder = export(place, tmp_path / str(index), name)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        manifests.append(json.loads(files.pop("export.json")))
        contents.append(files)

    assert contents[0] == contents[1]
    places = [manifest.pop("place") for manifest in manifests]
    assert places == [str(root / "aligned"), str(archive)]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("walls", {}, "'walls' is not a format"),
        (
            "pointcept",
            {"variant": "oneformer3d"},
            "the format pointcept has no dialect for 'oneformer3d'",
        ),
        ("ply", {"variant": "walls"}, "the format ply has no dialect for 'walls'"),
        (
            "octformer",
            {"test_segments": Path("x")},
            "the format octformer takes no segments of test scenes",
        ),
    ],
)
def test_unknown_format_or_unsupported_option_is_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_format(name, ExportOptions(**options))


@pytest.mark.parametrize(("label_set", "is_aligned"), [(SCANNET20, False), (SCANNET200, True)])
def test_octformer_aligns_for_scannet200_only(label_set: LabelSet, is_aligned: bool) -> None:
    assert make_format("octformer", ExportOptions(label_set)).options.is_aligned is is_aligned
