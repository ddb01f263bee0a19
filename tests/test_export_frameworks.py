"""What Mask3D, mmdetection3d, OneFormer3D, h5py and tar find in an export, compared with loops over the raw scenes."""

import io
import json
import math
import pickle
import pickletools
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from test_realdata import HAS_REAL_DATA, REAL_DIR

from scannet_prep.errors import ExportError, MissingFileError, SegmentsError, UsageError
from scannet_prep.export import make_format, webdataset
from scannet_prep.export.format import ExportOptions, JoinedFormat
from scannet_prep.labels import SCANNET20, SCANNET200
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.layout import RawScene
from scannet_prep.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

TRAIN, TRAIN_2, VAL, TEST = "scene0191_00", "scene0191_01", "scene0568_00", "scene0707_00"
SPLITS = {TRAIN: Split.TRAIN, TRAIN_2: Split.TRAIN, VAL: Split.VAL, TEST: Split.TEST}
BOXES20 = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24, 28, 33, 34, 36, 39)
NAMES18 = (
    "cabinet bed chair sofa table door window bookshelf picture counter desk curtain refrigerator showercurtrain "
    "toilet sink bathtub garbagebin"
).split()
DRAWN = {scene_id: make_scene(scene_id, vertices=600) for scene_id in SPLITS}
Process = Callable[..., list[ProcessedScene]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Process:
    """Processes the drawn scenes with the options that are given."""
    raw_dir = tmp_path_factory.mktemp("raw")
    raw = {scene_id: RawScene(SceneId(scene_id), write_scene(scene, raw_dir)) for scene_id, scene in DRAWN.items()}
    return lambda **options: [tiny.process_written(raw[scene_id], SPLITS[scene_id], **options) for scene_id in raw]


def write_export(name: str, scenes: Iterable[ProcessedScene], folder: Path, **options: Any) -> Path:
    """Write what a format makes of the scenes, as the stage does; records have been JSON in between."""
    made = make_format(name, ExportOptions(**options))
    records, parts = {}, {}
    for scene in scenes:
        if not made.why_left_out(scene.meta.split):
            exported = made.encode_scene(scene)
            records[str(scene.meta.scene_id)] = scene.meta.split, json.loads(json.dumps(dict(exported.record)))
            for file_name, content in exported.files.items():
                parts[str(scene.meta.scene_id)] = write_bytes(folder / file_name, b"".join(content))
    for file_name, data in made.encode_shared(records).items():
        write_bytes(folder / file_name, data)
    if isinstance(made, JoinedFormat):
        sizes = {scene_id: (SPLITS[scene_id], path.stat().st_size) for scene_id, path in parts.items()}
        for file_name, scene_ids in made.plan_files(sizes).items():
            made.join(folder / file_name, {scene_id: parts[scene_id] for scene_id in scene_ids})
        for path in parts.values():
            path.unlink()
    return folder


def write_bytes(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_test_segments(folder: Path, count: int = 600) -> Path:
    write_bytes(folder / f"{TEST}_vh_clean_2.0.010000.segs.json", tiny.segments_file(tuple(range(9 * count, 0, -9))))
    return folder


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def groups_of(scene: SyntheticScene) -> list[dict[str, Any]]:
    return [{"id": g.id, "segments": g.segments, "label": g.raw_category} for g in scene.groups]


def truth(scene: SyntheticScene) -> tuple[list[int], list[int], list[int], list[int]]:
    """Per vertex: nyu40 id, ScanNet id, group id, contiguous segment."""
    names = sorted(set(scene.segment_ids.tolist()))
    ids = oracles.ids_of_vertices(scene.segment_ids.tolist(), groups_of(scene))
    return *ids, [names.index(item) for item in scene.segment_ids.tolist()]


def is_close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether points are those of another frame, moved back: float32 has units of 4.8e-7 from 4 to 8 m."""
    return bool(np.abs(found - expected).max() < 5e-7)


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_mask3d_matrix_and_ground_truth_are_those_of_the_raw_scene(process: Process, tmp_path: Path, label_set) -> None:
    folder = write_export("mask3d", process(), tmp_path, label_set=label_set)
    for scene, scene_id, mode in zip(process(), DRAWN, ("train", "train", "validation"), strict=False):
        nyu40_ids, scannet_ids, instances, segments = truth(DRAWN[scene_id])
        raw_ids = nyu40_ids if label_set is SCANNET20 else scannet_ids
        found = np.load(folder / mode / f"{scene_id[5:]}.npy")
        assert (found.dtype, found.shape, found.flags.c_contiguous) == (np.float32, (600, 12), True)
        assert found[:, :3].tobytes() == DRAWN[scene_id].positions.tobytes()
        assert found[:, 3:6].tolist() == DRAWN[scene_id].colors.tolist()
        assert found[:, 6:9].tolist() == scene.normals.tolist()
        assert found[:, 9:].T.tolist() == [segments, raw_ids, instances]
        lines = (folder / f"instance_gt/{mode}/{scene_id}.txt").read_text().splitlines()
        expected = [r * 1000 + i + 1 if i >= 0 else 0 for r, i in zip(raw_ids, instances, strict=True)]
        assert [int(line) for line in lines] == expected


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_mask3d_databases_are_those_that_its_loader_reads(process: Process, tmp_path: Path, label_set) -> None:
    yaml = pytest.importorskip("yaml")
    segments = write_test_segments(tmp_path / "segs")
    folder = write_export("mask3d", process(), tmp_path / "out", label_set=label_set, test_segments=segments)
    root = "data/processed/scannet" + ("200" if label_set is SCANNET200 else "")
    entries: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for (scene_id, drawn), mode in zip(DRAWN.items(), ("train", "train", "validation", "test"), strict=True):
        raw = f"scans{'_test' * (mode == 'test')}/{scene_id}/{scene_id}"
        entry: dict[str, Any] = {
            "filepath": f"{root}/{mode}/{scene_id[5:]}.npy", "raw_filepath": f"{raw}_vh_clean_2.ply",
            "scene": int(scene_id[5:9]), "sub_scene": int(scene_id[10:]), "file_len": 600,
        }  # fmt: skip
        assert entry["raw_filepath"].split("/")[-2] == scene_id
        if mode != "test":
            channels = [[value / 255 for value in channel] for channel in drawn.colors.T.tolist()]
            entry |= {
                "scene_type": "Bedroom / Hotel", "raw_description_filepath": f"{raw}.txt",
                "raw_instance_filepath": f"{raw}.aggregation.json", "raw_label_filepath": f"{raw}_vh_clean_2.labels.ply",
                "raw_segmentation_filepath": f"{raw}_vh_clean_2.0.010000.segs.json",
                "instance_gt_filepath": f"{root}/instance_gt/{mode}/{scene_id}.txt",
                "color_mean": pytest.approx([math.fsum(c) / 600 for c in channels], rel=1e-12),
                "color_std": pytest.approx([math.fsum(v * v for v in c) / 600 for c in channels], rel=1e-12),
            }  # fmt: skip
        entries[mode].append(entry)
    found = {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")}
    labels, statistics = found.pop("label_database"), found.pop("color_mean_std")
    joint = entries["train"] + entries["validation"]
    assert found == {f"{mode}_database": rows for mode, rows in entries.items()} | {"train_validation_database": joint}
    means = [[entry[key] for entry in found["train_database"]] for key in ("color_mean", "color_std")]
    first, second = (np.array(rows).mean(axis=0) for rows in means)
    assert statistics["mean"] == pytest.approx(first, rel=1e-12)
    assert statistics["std"] == pytest.approx(np.sqrt(second - first**2), rel=1e-9)
    assert list(labels) == (list(oracles.NYU40_OF_SCANNET20) if label_set is SCANNET20 else oracles.scannet200_ids())
    assert [tuple(item["color"]) for item in labels.values()] == list(label_set.colors)
    assert all(item["validation"] is True and item["name"] for item in labels.values())
    assert [labels[i]["name"] for i in (1, 28)] == ["wall", "shower_curtain" if label_set is SCANNET20 else "lamp"]


def test_mask3d_test_scenes_need_segments_of_the_same_mesh(process: Process, tmp_path: Path) -> None:
    scenes = process()
    folder = write_export("mask3d", scenes, tmp_path / "without")
    assert not {name for name in files_in(folder) if name.startswith("test")}
    assert "--test-segments DIR" in make_format("mask3d", ExportOptions()).why_left_out(Split.TEST)
    segments = write_test_segments(tmp_path / "segs")
    folder = write_export("mask3d", scenes, tmp_path / "with", test_segments=segments)
    found = np.load(folder / "test/0707_00.npy")
    assert (found.dtype, found.shape) == (np.float32, (600, 10))
    assert found[:, 9].tolist() == list(range(599, -1, -1))
    write_test_segments(tmp_path / "segs", 599)
    made = make_format("mask3d", ExportOptions(test_segments=tmp_path / "segs"))
    with pytest.raises(SegmentsError, match=r"scene0707_00_vh.*has 599 vertices, but the scene has 600"):
        made.encode_scene(scenes[-1])
    made = make_format("mask3d", ExportOptions(test_segments=tmp_path / "elsewhere"))
    with pytest.raises(MissingFileError, match="scene0707_00_vh_clean_2"):
        made.encode_scene(scenes[-1])


def test_mask3d_export_of_val_only_has_the_published_statistics_and_floats_are_floats(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    dark = tiny.Ply(colors=((0, 0, 0),) * 5 + ((0, 1, 0),)).encode()
    scene = tiny.process_tiny(tmp_path / "raw", {"_vh_clean_2.ply": dark}, split=Split.VAL)
    folder = write_export("mask3d", [scene], tmp_path / "out")
    assert {path.name for path in folder.glob("*_database.yaml")} == {
        "validation_database.yaml", "train_validation_database.yaml", "label_database.yaml"
    }  # fmt: skip
    assert yaml.safe_load((folder / "color_mean_std.yaml").read_text())["mean"][0] == pytest.approx(0.47793, abs=1e-5)
    (entry,) = yaml.safe_load((folder / "validation_database.yaml").read_text())
    assert entry["color_std"] == [0.0, pytest.approx(1 / 255**2 / 6), 0.0]
    assert all(type(value) is float for value in entry["color_mean"] + entry["color_std"])


def test_mask3d_refuses_group_ids_that_would_read_as_another_class(tmp_path: Path) -> None:
    for number in (998, 999):
        groups = [tiny.group(number, [0], "floor"), tiny.group(5, [2], "wall")]
        scene = tiny.process_tiny(tmp_path / str(number), {".aggregation.json": tiny.aggregation_file(groups)})
        made = make_format("mask3d", ExportOptions())
        if number == 998:
            (text,) = made.encode_scene(scene).files["instance_gt/train/scene0000_00.txt"]
            assert bytes(text).split() == [b"2999", b"2999", b"1006", b"1006", b"0", b"0"]
        else:
            with pytest.raises(ExportError, match=r"scene0000_00 has a group 999, .* 0 to 998"):
                made.encode_scene(scene)


def expected_info(scene: SyntheticScene, raw_ids: list[int], classes: list[int], superpoints: bool) -> dict[str, Any]:
    """The entry of a scene in the infos: boxes from float64 points, a loop over groups and vertices."""
    path = {"super_pts_path": f"{scene.scene_id}.bin"} if superpoints else {}
    info: dict[str, Any] = {"lidar_points": {"num_pts_feats": 6, "lidar_path": f"{scene.scene_id}.bin"}, **path}
    if scene.axis_alignment is None:
        return info | {"instances": []}
    points = oracles.aligned_points(scene.positions, scene.axis_alignment)
    owners, instances = oracles.group_of_vertices(scene.segment_ids.tolist(), groups_of(scene)), []
    for position, _ in sorted(enumerate(scene.groups), key=lambda item: item[1].object_id):
        members = [vertex for vertex, owner in enumerate(owners) if owner == position]
        if members and raw_ids[members[0]] in classes:
            axes = [[points[vertex][axis] for vertex in members] for axis in range(3)]
            box = [(min(axis) + max(axis)) / 2 for axis in axes] + [max(axis) - min(axis) for axis in axes]
            instances.append({"bbox_3d": box, "bbox_label_3d": classes.index(raw_ids[members[0]])})
    masks = dict.fromkeys(("pts_semantic_mask_path", "pts_instance_mask_path"), f"{scene.scene_id}.bin")
    return info | masks | {"instances": instances, "axis_align_matrix": scene.axis_alignment.tolist()}


@pytest.mark.parametrize(
    ("variant", "label_set"), [("", SCANNET20), ("oneformer3d", SCANNET20), ("oneformer3d", SCANNET200)]
)
def test_mmdet3d_arrays_and_infos_are_those_of_the_raw_scene(
    process: Process, tmp_path: Path, variant: str, label_set
) -> None:
    segs = {"test_segments": write_test_segments(tmp_path / "segs")} if variant else {}
    folder = write_export("mmdet3d", process(), tmp_path / "out", variant=variant, label_set=label_set, **segs)
    names18, ids = NAMES18, list(BOXES20)
    dataset = "scannet"
    if label_set is SCANNET200:
        ids = [number for number in oracles.scannet200_ids() if number not in (1, 3)]
        names18, dataset = [SCANNET200.names[SCANNET200.ids.index(number)] for number in ids], "scannet200"
        assert len(ids) == 198
    prefix = dataset + "_oneformer3d" * bool(variant)
    entries: dict[Split, list[dict[str, Any]]] = {split: [] for split in Split}
    for scene_id, drawn in DRAWN.items():
        points = np.fromfile(folder / f"points/{scene_id}.bin", np.float32).reshape(600, 6)
        assert points[:, :3].tobytes() == drawn.positions.tobytes()
        assert points[:, 3:].tolist() == drawn.colors.tolist()
        nyu40_ids, scannet_ids, instances, segments = truth(drawn)
        raw_ids = nyu40_ids if label_set is SCANNET20 else scannet_ids
        entries[SPLITS[scene_id]].append(expected_info(drawn, raw_ids, ids, bool(variant)))
        masks = {"super_points": segments} if variant else {}
        if scene_id == TEST:
            masks = {name: list(range(599, -1, -1)) for name in masks}
        else:
            object_of = {group.id: group.object_id for group in drawn.groups}
            masks |= {"semantic_mask": raw_ids, "instance_mask": [object_of[i] + 1 if i >= 0 else 0 for i in instances]}
        for name in ("super_points", "semantic_mask", "instance_mask"):
            path = folder / name / f"{scene_id}.bin"
            assert path.exists() == (name in masks)
            assert not path.exists() or np.fromfile(path, np.int64).tolist() == masks[name]
    assert len(entries[Split.TRAIN][0]["instances"]) > 2
    for split in Split:
        data = (folder / f"{prefix}_infos_{split}.pkl").read_bytes()
        metainfo = {"categories": {name: number for number, name in enumerate(names18)}, "dataset": dataset}
        assert pickle.loads(data) == {"metainfo": metainfo | {"info_version": "1.1"}, "data_list": entries[split]}
        assert not {code.name for code, *_ in pickletools.genops(data)} & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
    seg_info = {name for name in files_in(folder) if name.startswith("seg_info")}
    assert len(seg_info) == (4 if label_set is SCANNET20 else 0)


def test_mmdet3d_seg_info_samples_scenes_by_size_and_weighs_classes(tmp_path: Path) -> None:
    sizes, scenes = (8000, 21_000), []
    for scene_id, vertices in zip((TRAIN, TRAIN_2), sizes, strict=True):
        path = write_scene(make_scene(scene_id, vertices=vertices), tmp_path / "raw")
        scenes.append(tiny.process_written(RawScene(SceneId(scene_id), path)))
    folder = write_export("mmdet3d", scenes, tmp_path / "out") / "seg_info"
    indices = np.load(folder / "train_resampled_scene_idxs.npy")
    assert (indices.dtype, indices.tolist()) == (np.int32, [0, 1, 1])  # 3 samples: 0.83 and 2.17 of them
    labels = [oracles.labels20(scene.nyu40_ids.tolist()) for scene in scenes]
    counts = np.array([sum(found.count(label) for found in labels) for label in range(1, 21)], np.float32)
    expected = (1.0 / np.log(1.2 + counts / counts.sum())).astype(np.float32)
    weights = np.load(folder / "train_label_weight.npy")
    assert (weights.dtype, weights.tolist()) == (np.float32, expected.tolist())


@pytest.mark.parametrize(
    ("object_ids", "expected"),
    [((4, 2), [5, 5, 3, 3, 3, 0]), ((None, 9), [8, 8, 10, 10, 10, 0]), ((1, None), [2, 2, 4, 4, 4, 0]),
     ((3, None), [8, 8, 4, 4, 4, 0]), ((-1, 2), [8, 8, 4, 4, 4, 0]), ((2**62, 2), [8, 8, 4, 4, 4, 0])],
)  # fmt: skip
def test_mmdet3d_instances_are_object_ids_or_ids_where_these_are_missing_or_not_distinct(
    tmp_path: Path, object_ids: tuple[int | None, int | None], expected: list[int]
) -> None:
    groups = [tiny.group(7, [0], "bed"), tiny.group(3, [2, 4], "chair")]
    for group, object_id in zip(groups, object_ids, strict=True):
        group["objectId"] = object_id
    scene = tiny.process_tiny(tmp_path / "raw", {".aggregation.json": tiny.aggregation_file(groups)})
    folder = write_export("mmdet3d", [scene], tmp_path / "out")
    assert np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64).tolist() == expected
    (info,) = pickle.loads((folder / "scannet_infos_train.pkl").read_bytes())["data_list"]
    by_number = sorted([(expected[0], 1), (expected[2], 2)])  # bed and chair, by object
    assert [item["bbox_label_3d"] for item in info["instances"]] == [label for _, label in by_number]


def test_instances_have_one_label_each_where_labels_come_from_ply(tmp_path: Path) -> None:
    labels = tiny.Ply(labels=(5, 2, 1, 1, 9, 7)).encode()
    scene = tiny.process_tiny(tmp_path / "raw", {"_vh_clean_2.labels.ply": labels}, labels_from="ply")
    assert scene.nyu40_ids.tolist() == [5, 2, 1, 1, 9, 7]
    folder = write_export("mmdet3d", [scene], tmp_path / "mmdet3d")
    assert np.fromfile(folder / "semantic_mask/scene0000_00.bin", np.int64).tolist() == [2, 2, 1, 1, 1, 7]
    folder = write_export("mask3d", [scene], tmp_path / "mask3d")
    assert np.load(folder / "train/0000_00.npy")[:, 10].tolist() == [2, 2, 1, 1, 1, 7]
    assert (folder / "instance_gt/train/scene0000_00.txt").read_text().split() == ["2001"] * 2 + ["1002"] * 3 + ["0"]


def test_scenes_without_segments_and_options_without_meaning_are_refused(tmp_path: Path) -> None:
    files = {"_vh_clean_2.labels.ply": tiny.Ply(labels=(1,) * 6).encode()}
    files |= dict.fromkeys(("_vh_clean_2.0.010000.segs.json", ".aggregation.json"))
    scene = tiny.process_tiny(tmp_path, files, labels_from="ply")
    for name, variant in (("mask3d", ""), ("mmdet3d", "oneformer3d")):
        with pytest.raises(ExportError, match="scene0000_00 has no segments") as raised:
            make_format(name, ExportOptions(variant=variant)).encode_scene(scene)
        assert "segs.json" in raised.value.hint
    for options in ({"label_set": SCANNET200}, {"test_segments": tmp_path}):
        with pytest.raises(UsageError, match="mmdetection3d") as raised:
            make_format("mmdet3d", ExportOptions(**options))
        assert raised.value.hint == "--for oneformer3d"
    with pytest.raises(UsageError, match="octformer"):
        make_format("mmdet3d", ExportOptions(variant="octformer"))


def test_aligned_scenes_are_exported_in_the_frame_of_the_scan_and_the_other_way_round(
    process: Process, tmp_path: Path
) -> None:
    stored, aligned = process(), process(align_axis=True)
    a, b = (write_export("mask3d", scenes, tmp_path / str(i)) for i, scenes in enumerate((stored, aligned)))
    c, d = (write_export("mmdet3d", scenes, tmp_path / f"m{i}") for i, scenes in enumerate((stored, aligned)))
    forward = write_export("mask3d", stored, tmp_path / "forward", is_aligned=True)
    for before, after, scene_id in zip(stored, aligned, (TRAIN, TRAIN_2, VAL), strict=False):
        first, second, third = (
            np.load(root / ("validation" if scene_id == VAL else "train") / f"{scene_id[5:]}.npy")
            for root in (a, b, forward)
        )
        assert is_close(first[:, :3], second[:, :3])
        assert np.abs(first[:, 6:9] - second[:, 6:9]).max() < 6e-4
        assert third[:, :3].tobytes() == after.points.tobytes()
        assert np.abs(third[:, 6:9] - after.normals).max() < 6e-4
        assert (first[:, 3:6] == second[:, 3:6]).all()
        assert (first[:, 9:] == second[:, 9:]).all()
        points = [np.fromfile(root / f"points/{scene_id}.bin", np.float32).reshape(-1, 6) for root in (c, d)]
        assert is_close(*points)
        assert before.points.tobytes() == np.ascontiguousarray(points[0][:, :3]).tobytes()
    infos = [pickle.loads((root / "scannet_infos_train.pkl").read_bytes())["data_list"][0] for root in (c, d)]
    for one, other in zip(*(info["instances"] for info in infos), strict=True):
        assert one["bbox_3d"] == pytest.approx(other["bbox_3d"], abs=2e-6)
    turned = write_export("mmdet3d", stored, tmp_path / "turned", is_aligned=True)
    (info, _) = pickle.loads((turned / "scannet_infos_train.pkl").read_bytes())["data_list"]
    assert info["axis_align_matrix"] == np.eye(4).tolist()
    assert [box["bbox_3d"] for box in info["instances"]] == [
        pytest.approx(box["bbox_3d"], abs=2e-6) for box in infos[0]["instances"]
    ]
    assert np.fromfile(turned / f"points/{TRAIN}.bin", np.float32)[:3].tolist() == aligned[0].points[0].tolist()


@pytest.mark.parametrize("options", [{}, {"label_set": SCANNET200, "is_aligned": True}])
def test_hdf5_and_webdataset_hold_the_arrays_as_processing_with_these_options_makes_them(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    h5py = pytest.importorskip("h5py")
    expected = process(scannet200=True, align_axis=True) if options else process()
    monkeypatch.setattr(webdataset, "SHARD_BYTES", 50_000)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        for name in ("hdf5", "webdataset"):
            write_export(name, process(), folder, **options)
    assert {
        name: (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in files_in(folder)
    } == (
        dict.fromkeys(("scannet.h5", "train-000000.tar", "train-000001.tar", "val-000000.tar", "test-000000.tar"), True)
    )
    found: dict[str, dict[str, Any]] = {}
    with h5py.File(folder / "scannet.h5") as file:
        assert "ScanNet" in file.attrs["terms"]
        for split in Split:
            for scene_id, group in file[split].items():
                found[scene_id] = {key: array[()] for key, array in group.items()} | {"meta": group.attrs["meta"]}
                words = {key: value for key, value in group.attrs.items() if key != "meta"}
                assert words == {key: json.loads(group.attrs["meta"])[key] for key in words}
                assert list(words) == ["aligned", "label_set", "scene_id", "split"]
    streamed: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.tar")):
        assert (path.stat().st_size % 10_240, path.stat().st_size <= 50_000) == (0, True)
        with tarfile.open(path) as shard:
            for member in shard:
                assert (member.mtime, member.uid, member.uname, member.mode) == (0, 0, "", 0o644)
                scene_id, key = member.name.split(".", 1)
                data = shard.extractfile(member).read()
                assert SPLITS[scene_id] == path.name.split("-")[0]
                is_array = key.endswith(".npy")
                streamed.setdefault(scene_id, {})[key.split(".")[0]] = (
                    np.load(io.BytesIO(data)) if is_array else data.decode()
                )
    for scene in expected:
        for source in (found, streamed):
            arrays = source[scene.meta.scene_id]
            assert json.loads(arrays.pop("meta")) == json.loads(str(scene.arrays()["meta"]))
            normals = arrays.pop("normals")
            assert normals.dtype == np.float16
            assert np.abs(normals.astype(np.float64) - scene.normals).max() <= (1e-3 if options else 0)
            rest = {key: array for key, array in scene.arrays().items() if key not in ("meta", "normals")}
            assert {key: (a.dtype, a.shape, a.tobytes()) for key, a in arrays.items()} == {
                key: (a.dtype, a.shape, a.tobytes()) for key, a in rest.items()
            }


def test_webdataset_deals_every_scene_to_one_shard_of_at_most_the_stated_size() -> None:
    made = make_format("webdataset", ExportOptions())
    sizes = [30_000_000, 100_000_000, 300_000_000] * 20
    splits = dict(enumerate(Split))
    parts = {f"scene{i:04d}_00": (splits[i % 3] if i % 7 else Split.TRAIN, size) for i, size in enumerate(sizes)}
    shards = made.plan_files(parts)
    assert sorted(name for names in shards.values() for name in names) == sorted(parts)
    for file_name, names in shards.items():
        assert {parts[name][0] for name in names} == {Split(file_name.split("-")[0])}
        assert sum(parts[name][1] for name in names) <= 256_000_000 - 10_240 or len(names) == 1
    numbers = sorted(name for name in shards if name.startswith("train"))
    assert numbers == [f"train-{number:06d}.tar" for number in range(len(numbers))]
    assert any(names != sorted(names) for names in shards.values())


@pytest.mark.realdata
@pytest.mark.skipif(not HAS_REAL_DATA, reason="SCANNET_PREP_REAL_DATA has no scans/scene0000_00")
def test_real_scene_goes_through_every_format(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    scene_id = "scene0000_00"
    raw = RawScene(SceneId(scene_id), REAL_DIR / "scans" / scene_id)
    scene, aligned = (tiny.process_written(raw, align_axis=value) for value in (False, True))
    SPLITS[scene_id] = Split.TRAIN
    matrix = np.load(write_export("mask3d", [scene], tmp_path / "mask3d") / "train/0000_00.npy")
    back = np.load(write_export("mask3d", [aligned], tmp_path / "back") / "train/0000_00.npy")
    share = (matrix[:, :3] == back[:, :3]).all(axis=1).mean()
    assert is_close(matrix[:, :3], back[:, :3])
    assert share > 0.5
    raw_ids = json.loads((raw.directory / f"{scene_id}_vh_clean_2.0.010000.segs.json").read_bytes())["segIndices"]
    assert (matrix[:, 9] == np.unique(raw_ids, return_inverse=True)[1]).all()
    columns = [scene.points, scene.colors, scene.normals, scene.segments[:, None], scene.nyu40_ids[:, None]]
    assert (matrix == np.hstack([*columns, scene.instances[:, None]]).astype(np.float32)).all()
    text = np.loadtxt(tmp_path / "mask3d/instance_gt/train/scene0000_00.txt", np.int64)
    assert (text == np.where(scene.instances < 0, 0, scene.nyu40_ids.astype(int) * 1000 + scene.instances + 1)).all()
    folder = write_export("mmdet3d", [scene], tmp_path / "mmdet3d", variant="oneformer3d")
    (info,) = pickle.loads((folder / "scannet_oneformer3d_infos_train.pkl").read_bytes())["data_list"]
    instances = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64)
    points = np.hstack([scene.points, np.ones((len(instances), 1))]).astype(np.float64) @ scene.axis_alignment.T
    expected = []
    for number in range(1, instances.max() + 1):
        nyu40_id = scene.nyu40_ids[instances == number][0]
        if nyu40_id in BOXES20:
            part = points[instances == number, :3]
            low, high = part.min(axis=0), part.max(axis=0)
            box = pytest.approx([*(low + high) / 2, *high - low], abs=1e-12)
            expected.append({"bbox_3d": box, "bbox_label_3d": BOXES20.index(nyu40_id)})
    assert info["instances"] == expected
    for name in ("hdf5", "webdataset"):
        assert len(files_in(write_export(name, [aligned], tmp_path / name))) == 1
