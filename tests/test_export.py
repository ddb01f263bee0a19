"""Exports for OctFormer, Pointcept, the official evaluators and MeshLab, read back as those programs read them."""

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
from scannet_prep.release.scene import Split
from scannet_prep.synthetic import write_release

TRAIN, ALSO_TRAIN, VAL, TEST = "scene0191_00", "scene0000_00", "scene0011_00", "scene0707_00"
SPLITS = {TRAIN: "train", ALSO_TRAIN: "train", VAL: "val", TEST: "test"}
TRIANGLES = {"face": {"vertex_indices": 3}}
ASSETS = {"coord", "color", "normal", "segment20", "segment200", "instance"}
REAL = pytest.param(
    "real",
    marks=[pytest.mark.realdata, pytest.mark.skipif(not HAS_REAL_DATA, reason="no real scene")],
)


@pytest.fixture(scope="module", params=["synthetic", REAL])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scenes processed as scanned and, for ScanNet200, axis-aligned; with their triangles."""
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
    """As in a scene that was processed in the same frame: within one unit of the last place, and of float16."""
    assert points.dtype == scene.points.dtype
    assert (np.abs(points - scene.points) <= np.spacing(np.abs(scene.points).max())).all()
    assert np.abs(normals.astype(np.float64) - scene.normals).max() < 2e-3


def numbers_in(path: Path) -> list[int]:
    text = path.read_text(encoding="ascii")
    assert text.endswith("\n")
    return [int(line) for line in text.splitlines()]


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize("words", [("--labels", "scannet20"), ("--labels", "scannet200")])
def test_octformer_trains_and_tests_from_the_export(
    root: Path, tmp_path: Path, place: str, words: tuple[str, ...]
) -> None:
    """As `configs/seg_scannet.yaml` and `datasets/scannet.py` read it; the 200 classes are axis-aligned."""
    out_dir = export(root / place, tmp_path / "out", "octformer", *words)
    is_200 = "scannet200" in words
    wanted, stored = scenes_of(root / ("aligned" if is_200 else "scan")), scenes_of(root / place)
    train = [
        name for name in (TRAIN, ALSO_TRAIN) if name in stored
    ]  # the official order, not the sorted one
    lines = {"train": train, "val": [VAL], "test": [TEST]}
    lists = {
        f"scannetv2_{split}_npz.txt": "".join(f"{name}.npz\n" for name in names if name in stored)
        for split, names in lines.items()
    }
    lists["scannetv2_test.txt"] = lists["scannetv2_test_npz.txt"]
    assert {path.name: path.read_text() for path in out_dir.glob("scannetv2_*.txt")} == lists
    expected_names = set()
    for name, scene in stored.items():
        folder = "test" if name == TEST else "train"
        expected_names |= {f"{folder}/{name}.npz"} | (
            {f"train/{name}.txt"} if name != TEST else set()
        )
        path = out_dir / folder / f"{name}.npz"
        with np.load(path) as file:
            points, normals, colors, labels = (
                file[key] for key in ("points", "normals", "colors", "labels")
            )
        check_frame(points, normals, wanted[name])
        assert normals.dtype == np.float16
        assert (colors == scene.colors).all()
        raw_ids = (scene.scannet_ids if is_200 else scene.nyu40_ids).tolist()
        assert labels.dtype == np.uint8
        assert labels.tolist() == (
            oracles.labels200(raw_ids) if is_200 else oracles.labels20(raw_ids)
        )
        if name != TEST:
            kept = set(oracles.scannet200_ids()) if is_200 else set(range(41))
            found = numbers_in(out_dir / "train" / f"{name}.txt")
            assert found == [number if number in kept else 0 for number in raw_ids]
        is_linked = path.samefile(next((root / place).glob(f"*/{name}.npz")))
        assert is_linked == (is_200 == (place == "aligned"))
    inside = {
        str(path.relative_to(out_dir))
        for folder in ("train", "test")
        for path in out_dir.glob(f"{folder}/*")
    }
    assert inside == expected_names


@pytest.mark.parametrize(
    ("place", "words", "name"),
    [
        ("scan", ["octformer"], "ScanNet20"),
        ("aligned", ["octformer"], "ScanNet200"),
        ("aligned", ["octformer", "--labels", "scannet20"], "ScanNet20"),
        ("aligned", ["mmdet3d"], "ScanNet20"),
        ("aligned", ["mmdet3d", "--for", "oneformer3d"], "ScanNet200"),
        ("aligned", ["pointcept"], "both label sets"),
    ],
)
def test_label_set_is_that_of_the_folder_by_default_and_in_the_first_line(
    root: Path, tmp_path: Path, place: str, words: list[str], name: str
) -> None:
    outcome = run_main("export", root / place, "-o", tmp_path / "out", "--format", *words)
    assert outcome.status == 0, outcome.stderr
    assert re.match(
        rf"export: .*: {words[0]}, \d+ scenes?, {name}(,|$)", outcome.stderr.splitlines()[0]
    )
    settings = json.loads((tmp_path / "out/export.json").read_text())["settings"]
    assert settings["label_set"] == ("" if words[0] == "pointcept" else name)


@pytest.mark.parametrize("place", ["scan", "aligned"])
def test_pointcept_finds_its_assets_and_nothing_else(
    root: Path, tmp_path: Path, place: str
) -> None:
    """As `ScanNetDataset` and `ScanNet200Dataset` read them: one root for both."""
    out_dir = export(root / place, tmp_path / "out", "pointcept")
    stored, wanted = scenes_of(root / place), scenes_of(root / "scan")
    folders = {
        path
        for split in Split
        if (out_dir / split).exists()
        for path in (out_dir / split).iterdir()
    }
    assert {(path.parent.name, path.name) for path in folders} == {
        (SPLITS[name], name) for name in stored
    }
    for folder in folders:
        found = {path.stem: np.load(path) for path in folder.iterdir() if path.suffix == ".npy"}
        scene = stored[folder.name]
        is_test = folder.name == TEST
        assert found.keys() == (
            ASSETS - {"segment20", "segment200", "instance"} if is_test else ASSETS
        )
        check_frame(found["coord"], found["normal"], wanted[folder.name])
        types = {"coord": "<f4", "color": "|u1", "normal": "<f4"}
        assert all(array.dtype.str == types.get(key, "<i8") for key, array in found.items())
        assert (found["color"] == scene.colors).all()
        if not is_test:
            assert (found["segment20"] + 1).tolist() == oracles.labels20(scene.nyu40_ids.tolist())
            assert (found["segment200"] + 1).tolist() == oracles.labels200(
                scene.scannet_ids.tolist()
            )
            assert (found["instance"] == scene.instances).all()


def test_alignment_is_exact_and_its_inverse_within_one_unit_of_the_last_place(
    root: Path, tmp_path: Path
) -> None:
    there = export(root / "scan", tmp_path / "aligned", "pointcept", "--aligned")
    as_stored = export(root / "aligned", tmp_path / "as_stored", "pointcept", "--aligned")
    back = export(root / "aligned", tmp_path / "back", "pointcept", "--unaligned")
    for name, scene in scenes_of(root / "aligned").items():
        parts = [
            np.load(folder / scene.meta.split / name / "coord.npy")
            for folder in (there, as_stored, back)
        ]
        assert parts[0].tobytes() == parts[1].tobytes() == scene.points.tobytes()
        check_frame(
            parts[2],
            np.load(back / scene.meta.split / name / "normal.npy"),
            scenes_of(root / "scan")[name],
        )


@pytest.mark.parametrize("words", [("--labels", "scannet20"), ("--labels", "scannet200")])
def test_official_evaluators_get_raw_ids_and_instances_numbered_from_1(
    root: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out_dir = export(root / "aligned", tmp_path / "out", "benchmark-gt", *words)
    stored = {name: scene for name, scene in scenes_of(root / "aligned").items() if name != TEST}
    for kind in ("semantic", "instance"):
        assert {path.name for path in (out_dir / kind).iterdir()} == {
            f"{name}.txt" for name in stored
        }
    for name, scene in stored.items():
        raw_ids = scene.scannet_ids if "scannet200" in words else scene.nyu40_ids
        assert numbers_in(out_dir / "semantic" / f"{name}.txt") == raw_ids.tolist()
        found = np.array(numbers_in(out_dir / "instance" / f"{name}.txt"))
        is_instance = (scene.instances >= 0) & (raw_ids > 0)
        assert (found[~is_instance] == 0).all()
        assert (found[is_instance] // 1000 == raw_ids[is_instance]).all()
        numbers, groups = found[is_instance] % 1000, scene.instances[is_instance]
        assert set(zip(numbers.tolist(), groups.tolist(), strict=True)) == set(
            enumerate(np.unique(groups).tolist(), start=1)
        )


def test_group_has_one_raw_id_in_the_instances_also_where_its_vertices_have_several(
    tmp_path: Path,
) -> None:
    labels = {"_vh_clean_2.labels.ply": tiny.Ply(labels=(2, 5, 1, 1, 1, 0)).encode()}
    scene = tiny.process_tiny(tmp_path, labels, labels_from="ply")
    files = make_format("benchmark-gt", ExportOptions()).encode_scene(scene).files
    texts = {name: b"".join(content).split() for name, content in files.items()}
    assert texts[f"semantic/{tiny.SCENE_ID}.txt"] == [b"2", b"5", b"1", b"1", b"1", b"0"]
    assert texts[f"instance/{tiny.SCENE_ID}.txt"] == [
        b"2001",
        b"2001",
        b"1002",
        b"1002",
        b"1002",
        b"0",
    ]


def test_more_instances_than_the_benchmark_can_tell_apart_are_refused(tmp_path: Path) -> None:
    groups = [tiny.group(number, [0], "floor") for number in range(2000, 3000)]
    groups = [item | {"segments": [0, number]} for number, item in enumerate(groups)]
    segments = tiny.segments_file((0, 0, 2, 2, 4, 5))
    files = {
        ".aggregation.json": tiny.aggregation_file(groups),
        "_vh_clean_2.0.010000.segs.json": segments,
    }
    scene = tiny.process_tiny(tmp_path, files)
    with pytest.raises(
        ScanNetPrepError, match=r"1,000 labeled instances, and the format can distinguish 999"
    ):
        make_format("benchmark-gt", ExportOptions()).encode_scene(scene)


@pytest.mark.parametrize("color", ["rgb", "label", "instance", "segment"])
def test_ply_opens_as_a_coloured_mesh_with_the_raw_id_as_label(
    root: Path, tmp_path: Path, color: str
) -> None:
    out_dir = export(
        root / "aligned", tmp_path / "out", "ply", "--color", color, "--labels", "scannet200"
    )
    stored = {
        name: scene
        for name, scene in scenes_of(root / "aligned").items()
        if name != TEST or color == "rgb"
    }
    assert {path.stem for path in out_dir.rglob("*.ply")} == stored.keys()
    for name, scene in stored.items():
        mesh = PlyData.read(
            str(out_dir / scene.meta.split / f"{name}.ply"), known_list_len=TRIANGLES
        )
        vertices, colors = (
            mesh["vertex"],
            np.stack([mesh["vertex"][key] for key in ("red", "green", "blue")], 1),
        )
        assert (np.stack([vertices[key] for key in "xyz"], 1) == scene.points).all()
        assert vertices["label"].dtype == np.uint16
        assert (vertices["label"] == scene.scannet_ids).all()
        assert scene.faces is not None
        assert (mesh["face"]["vertex_indices"] == scene.faces).all()
        keys: Any = {
            "rgb": None,
            "label": scene.stored_labels,
            "instance": scene.instances,
            "segment": scene.segments,
        }[color]
        if color == "rgb":
            assert (colors == scene.colors).all()
        elif color == "label":
            assert (colors == np.array([(0, 0, 0), *SCANNET200.colors])[keys]).all()
        else:
            pairs = np.unique(np.column_stack([keys.astype(int), colors]), axis=0)
            assert len(pairs) == len(np.unique(keys))
            assert not pairs[pairs[:, 0] == -1, 1:].any()


def test_segments_as_colours_need_segments(tmp_path: Path) -> None:
    scene = tiny.process_tiny(tmp_path, {"_vh_clean_2.0.010000.segs.json": None}, split=Split.TEST)
    with pytest.raises(ScanNetPrepError, match="has no segments to colour it by"):
        make_format("ply", ExportOptions(variant="segment")).encode_scene(scene)


def test_arrays_and_texts_are_the_bytes_that_numpy_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, array in enumerate(
        (rng.random((7, 3), np.float32), np.arange(5), np.empty(0, np.uint8), np.ones((2, 3)).T)
    ):
        np.save(tmp_path / f"{number}.npy", array)
        assert np.array_equal(np.load(tmp_path / f"{number}.npy"), array)
        if array.flags.c_contiguous:
            assert b"".join(encode_npy(array)) == (tmp_path / f"{number}.npy").read_bytes()
    for largest, kind in ((41, np.uint8), (1358, np.uint16), (10**6, np.int64)):
        numbers = rng.integers(0, largest, 300).astype(kind)
        np.savetxt(tmp_path / "numbers.txt", numbers, fmt="%d")
        assert encode_lines(numbers) == (tmp_path / "numbers.txt").read_bytes()
    assert encode_lines(np.empty(0, np.uint8)) == b""


@pytest.mark.parametrize("root", ["synthetic"], indirect=True)
def test_equal_scenes_give_equal_bytes_from_a_folder_and_from_an_archive(
    root: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "scannet.tar.zst"
    assert run_main("pack", root / "aligned", "-o", archive).status == 0
    for name in ("octformer", "pointcept", "benchmark-gt", "ply"):
        folders = [
            export(place, tmp_path / f"{number}{name}", name)
            for number, place in enumerate((root / "aligned", archive))
        ]
        contents = [
            {
                str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file()
            }
            for folder in folders
        ]
        manifests = [json.loads(content.pop("export.json")) for content in contents]
        assert contents[0] == contents[1]
        assert [manifest.pop("place") for manifest in manifests] == [
            str(root / "aligned"),
            str(archive),
        ]
        assert manifests[0] == manifests[1]


def test_formats_say_what_they_cannot_do() -> None:
    for name, options, message in (
        ("walls", ExportOptions(), "'walls' is not a format"),
        (
            "pointcept",
            ExportOptions(variant="oneformer3d"),
            "the format pointcept has no dialect for 'oneformer3d'",
        ),
        ("ply", ExportOptions(variant="walls"), "the format ply has no dialect for 'walls'"),
        (
            "octformer",
            ExportOptions(test_segments=Path("x")),
            "the format octformer takes no segments of test scenes",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            make_format(name, options)
    assert make_format("octformer", ExportOptions(SCANNET20)).options.is_aligned is False
    assert make_format("octformer", ExportOptions(SCANNET200)).options.is_aligned is True
