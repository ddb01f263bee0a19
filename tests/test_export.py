"""Exports for OctFormer, Pointcept, the official evaluators and MeshLab, read as those do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from commands import run_main
from extras import REAL_DIR
from plyfile import PlyData

from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.errors import ScanNetPrepError, UsageError
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
REAL = pytest.param("real", marks=pytest.mark.extra("real data"))


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


@dataclass(frozen=True)
class OctFormerExport:
    """An export for OctFormer; not to be changed.

    Attributes:
        place: Name of the processed folder.
        is_200: Whether it is for the 200 classes, which are axis-aligned, or the 20 classes.
    """

    root: Path
    folder: Path
    place: str
    is_200: bool

    @property
    def native_place(self) -> str:
        """Name of the processed folder that has the frame of the classes."""
        return "aligned" if self.is_200 else "scan"

    def path(self, name: str) -> Path:
        return self.folder / ("test" if name == TEST else "train") / f"{name}.npz"

    def read(self, key: str) -> dict[str, np.ndarray]:
        """Read an array of each scene, as `datasets/scannet.py` does, by scene id."""
        return {name: np.load(self.path(name))[key] for name in scenes_of(self.root / self.place)}


@pytest.fixture(scope="module", params=["scannet20", "scannet200"])
def labels(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["scan", "aligned"])
def octformer(
    request: pytest.FixtureRequest,
    root: Path,
    labels: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> OctFormerExport:
    out_dir = tmp_path_factory.mktemp("octformer") / "out"
    folder = export(root / request.param, out_dir, "octformer", "--label-set", labels)
    return OctFormerExport(root, folder, request.param, labels == "scannet200")


def test_octformer_lists_name_files_in_official_order(octformer: OctFormerExport) -> None:
    stored = scenes_of(octformer.root / octformer.place)
    # The lists are those that `configs/seg_scannet.yaml` names.
    lists = {}
    # The official order of the train scenes is not the sorted one.
    for split, names in {"train": [TRAIN, ALSO_TRAIN], "val": [VAL], "test": [TEST]}.items():
        text = "".join(f"{name}.npz\n" for name in names if name in stored)
        lists[f"scannetv2_{split}_npz.txt"] = text
    lists["scannetv2_test.txt"] = lists["scannetv2_test_npz.txt"]

    paths = octformer.folder.glob("scannetv2_*.txt")

    assert {path.name: path.read_text() for path in paths} == lists


def test_octformer_folders_contain_arrays_and_raw_ids_only(octformer: OctFormerExport) -> None:
    expected = set()
    for name in scenes_of(octformer.root / octformer.place):
        if name == TEST:
            expected.add(f"test/{name}.npz")
        else:
            expected |= {f"train/{name}.npz", f"train/{name}.txt"}

    paths = [*octformer.folder.glob("train/*"), *octformer.folder.glob("test/*")]

    assert {str(path.relative_to(octformer.folder)) for path in paths} == expected


def test_octformer_points_and_normals_have_the_frame_of_its_classes(
    octformer: OctFormerExport,
) -> None:
    points = octformer.read("points")
    normals = octformer.read("normals")

    in_frame = scenes_of(octformer.root / octformer.native_place)
    for name, array in points.items():
        check_frame(array, normals[name], in_frame[name])


def test_octformer_normals_are_float16(octformer: OctFormerExport) -> None:
    normals = octformer.read("normals")

    assert {array.dtype for array in normals.values()} == {np.dtype(np.float16)}


def test_octformer_colors_are_those_of_the_scenes(octformer: OctFormerExport) -> None:
    scenes = scenes_of(octformer.root / octformer.place)

    for name, colors in octformer.read("colors").items():
        assert (colors == scenes[name].colors).all()


def test_octformer_labels_are_those_of_its_classes(octformer: OctFormerExport) -> None:
    scenes = scenes_of(octformer.root / octformer.place)

    for name, array in octformer.read("labels").items():
        if octformer.is_200:
            expected = oracles.labels200(scenes[name].scannet_ids.tolist())
        else:
            expected = oracles.labels20(scenes[name].nyu40_ids.tolist())
        assert array.dtype == np.uint8
        assert array.tolist() == expected


def test_octformer_files_are_links_if_they_are_the_processed_ones(
    octformer: OctFormerExport,
) -> None:
    place = octformer.root / octformer.place
    is_linked = {octformer.path(path.stem).samefile(path) for path in place.glob("*/scene*.npz")}

    assert is_linked == {octformer.place == octformer.native_place}


def test_octformer_texts_hold_the_raw_ids_of_its_classes(octformer: OctFormerExport) -> None:
    is_200 = octformer.is_200
    kept = set(oracles.scannet200_ids()) if is_200 else set(range(41))
    for name, scene in scenes_of(octformer.root / octformer.place).items():
        if name == TEST:
            continue
        raw_ids = (scene.scannet_ids if is_200 else scene.nyu40_ids).tolist()
        expected = [raw_id if raw_id in kept else 0 for raw_id in raw_ids]
        assert numbers_in(octformer.folder / "train" / f"{name}.txt") == expected


@pytest.mark.parametrize(
    ("place", "words", "name"),
    [
        ("scan", ["octformer"], "ScanNet20"),
        ("aligned", ["octformer"], "ScanNet200"),
        ("aligned", ["octformer", "--label-set", "scannet20"], "ScanNet20"),
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


@dataclass(frozen=True)
class PointceptExport:
    """An export for Pointcept, one root for both of its datasets; not to be changed.

    Attributes:
        folder: The export.
        scenes: The scenes that were exported, by id.
        as_scanned: The same scenes in the frame of the scan.
    """

    folder: Path
    scenes: dict[str, ProcessedScene]
    as_scanned: dict[str, ProcessedScene]

    @property
    def annotated_ids(self) -> list[str]:
        return [name for name in self.scenes if name != TEST]

    def read(self, name: str) -> dict[str, np.ndarray]:
        """Read the assets of a scene as `ScanNetDataset` and `ScanNet200Dataset` do."""
        paths = (self.folder / SPLITS[name] / name).glob("*.npy")
        return {path.stem: np.load(path) for path in paths}


@pytest.fixture(scope="module", params=["scan", "aligned"])
def pointcept(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> PointceptExport:
    out_dir = tmp_path_factory.mktemp("pointcept") / "out"
    folder = export(root / request.param, out_dir, "pointcept")
    return PointceptExport(folder, scenes_of(root / request.param), scenes_of(root / "scan"))


def test_pointcept_finds_one_folder_per_scene(pointcept: PointceptExport) -> None:
    paths = [path for split in Split for path in pointcept.folder.glob(f"{split}/*")]

    folders = {path.relative_to(pointcept.folder) for path in paths}
    assert folders == {Path(SPLITS[name], name) for name in pointcept.scenes}


def test_pointcept_assets_of_annotated_scenes_are_complete(pointcept: PointceptExport) -> None:
    for name in pointcept.scenes:
        expected = ASSETS - ANNOTATION_ASSETS if name == TEST else ASSETS
        assert pointcept.read(name).keys() == expected


def test_pointcept_assets_have_the_types_that_its_datasets_expect(
    pointcept: PointceptExport,
) -> None:
    types = {"coord": "<f4", "color": "|u1", "normal": "<f4"}

    for name in pointcept.scenes:
        for key, array in pointcept.read(name).items():
            assert array.dtype.str == types.get(key, "<i8")


def test_pointcept_points_and_normals_are_in_the_frame_of_the_scan(
    pointcept: PointceptExport,
) -> None:
    for name in pointcept.scenes:
        assets = pointcept.read(name)
        check_frame(assets["coord"], assets["normal"], pointcept.as_scanned[name])


def test_pointcept_colors_are_those_of_the_scenes(pointcept: PointceptExport) -> None:
    for name, scene in pointcept.scenes.items():
        assert (pointcept.read(name)["color"] == scene.colors).all()


def test_pointcept_segment20_has_the_train_ids_of_20_classes(pointcept: PointceptExport) -> None:
    for name in pointcept.annotated_ids:
        expected = oracles.labels20(pointcept.scenes[name].nyu40_ids.tolist())
        assert (pointcept.read(name)["segment20"] + 1).tolist() == expected


def test_pointcept_segment200_has_the_train_ids_of_200_classes(pointcept: PointceptExport) -> None:
    for name in pointcept.annotated_ids:
        expected = oracles.labels200(pointcept.scenes[name].scannet_ids.tolist())
        assert (pointcept.read(name)["segment200"] + 1).tolist() == expected


def test_pointcept_instances_are_those_of_the_scenes(pointcept: PointceptExport) -> None:
    for name in pointcept.annotated_ids:
        assert (pointcept.read(name)["instance"] == pointcept.scenes[name].instances).all()


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


@dataclass(frozen=True)
class BenchmarkScene:
    """A scene with its lines in an export for the benchmark.

    Attributes:
        raw_ids: The raw id of each vertex in the label set.
        semantic: The number of each vertex in `semantic`.
        instance: The number of each vertex in `instance`.
    """

    scene: ProcessedScene
    raw_ids: np.ndarray
    semantic: np.ndarray
    instance: np.ndarray

    @property
    def is_instance(self) -> np.ndarray:
        return (self.scene.instances >= 0) & (self.raw_ids > 0)


@pytest.fixture(scope="module")
def benchmark_gt(root: Path, labels: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("benchmark") / "out"
    return export(root / "aligned", out_dir, "benchmark-gt", "--label-set", labels)


@pytest.fixture(scope="module")
def benchmark_scenes(root: Path, labels: str, benchmark_gt: Path) -> list[BenchmarkScene]:
    scenes = []
    for name, scene in scenes_of(root / "aligned").items():
        if name == TEST:
            continue
        raw_ids = scene.scannet_ids if labels == "scannet200" else scene.nyu40_ids
        semantic, instance = (
            np.array(numbers_in(benchmark_gt / kind / f"{name}.txt"))
            for kind in ("semantic", "instance")
        )
        scenes.append(BenchmarkScene(scene, raw_ids, semantic, instance))
    return scenes


@pytest.mark.parametrize("kind", ["semantic", "instance"])
def test_benchmark_gt_has_a_file_for_each_annotated_scene(
    root: Path, benchmark_gt: Path, kind: str
) -> None:
    names = {path.name for path in (benchmark_gt / kind).iterdir()}

    assert names == {f"{name}.txt" for name in scenes_of(root / "aligned") if name != TEST}


def test_benchmark_gt_semantic_files_hold_raw_ids(benchmark_scenes: list[BenchmarkScene]) -> None:
    for benchmark in benchmark_scenes:
        assert benchmark.semantic.tolist() == benchmark.raw_ids.tolist()


def test_benchmark_gt_is_0_where_no_labeled_instance_is(
    benchmark_scenes: list[BenchmarkScene],
) -> None:
    for benchmark in benchmark_scenes:
        assert (benchmark.instance[~benchmark.is_instance] == 0).all()


def test_benchmark_gt_thousands_of_an_instance_are_its_raw_id(
    benchmark_scenes: list[BenchmarkScene],
) -> None:
    for benchmark in benchmark_scenes:
        is_instance = benchmark.is_instance
        thousands = benchmark.instance[is_instance] // 1000
        assert (thousands == benchmark.raw_ids[is_instance]).all()


def test_benchmark_gt_numbers_instances_of_a_scene_from_1(
    benchmark_scenes: list[BenchmarkScene],
) -> None:
    for benchmark in benchmark_scenes:
        groups = benchmark.scene.instances[benchmark.is_instance].tolist()
        numbers = (benchmark.instance[benchmark.is_instance] % 1000).tolist()
        expected = set(enumerate(sorted(set(groups)), start=1))
        assert set(zip(numbers, groups, strict=True)) == expected


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


@dataclass(frozen=True)
class PlyExport:
    """An export of coloured meshes; not to be changed.

    Attributes:
        color: By what it is coloured.
        scenes: The scenes that it must have, by id.
    """

    folder: Path
    color: str
    scenes: dict[str, ProcessedScene]

    def read(self) -> Iterator[tuple[ProcessedScene, PlyData]]:
        """Read each mesh, and return it with its scene."""
        for name, scene in self.scenes.items():
            path = self.folder / scene.meta.split / f"{name}.ply"
            yield scene, PlyData.read(str(path), known_list_len=TRIANGLES)


@pytest.fixture(scope="module", params=["rgb", "label", "instance", "segment"])
def ply(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> PlyExport:
    words = ("ply", "--color", request.param, "--label-set", "scannet200")
    folder = export(root / "aligned", tmp_path_factory.mktemp("ply") / "out", *words)
    scenes = scenes_of(root / "aligned")
    if request.param != "rgb":
        scenes.pop(TEST, None)
    return PlyExport(folder, request.param, scenes)


def test_ply_has_a_mesh_of_each_scene_that_has_its_colors(ply: PlyExport) -> None:
    assert {path.stem for path in ply.folder.rglob("*.ply")} == ply.scenes.keys()


def test_ply_has_the_points_of_the_scene(ply: PlyExport) -> None:
    for scene, mesh in ply.read():
        points = np.stack([mesh["vertex"][key] for key in "xyz"], axis=1)
        assert (points == scene.points).all()


def test_ply_has_the_triangles_of_the_scene(ply: PlyExport) -> None:
    for scene, mesh in ply.read():
        assert scene.faces is not None
        assert (mesh["face"]["vertex_indices"] == scene.faces).all()


def test_ply_has_raw_ids_as_labels(ply: PlyExport) -> None:
    for scene, mesh in ply.read():
        assert mesh["vertex"]["label"].dtype == np.uint16
        assert (mesh["vertex"]["label"] == scene.scannet_ids).all()


def test_ply_has_the_chosen_colors(ply: PlyExport) -> None:
    for scene, mesh in ply.read():
        colors = np.stack([mesh["vertex"][key] for key in ("red", "green", "blue")], axis=1)
        check_colors(colors, ply.color, scene)


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
