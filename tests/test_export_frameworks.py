"""What Mask3D, mmdetection3d and OneFormer3D find in an export, compared with loops over the raw scenes."""

import functools
import json
import math
import pickle
import pickletools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from test_realdata import HAS_REAL_DATA, REAL_DIR

from scannet_prep.base.errors import FileError, ScanNetPrepError, UsageError
from scannet_prep.export import make_format
from scannet_prep.export.format import ExportOptions, ProcessedFile
from scannet_prep.processed.scene import ProcessedScene, encode_processed
from scannet_prep.raw.layout import RawScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

TRAIN, TRAIN_2, VAL, TEST = "scene0191_00", "scene0191_01", "scene0568_00", "scene0707_00"
SPLITS = {TRAIN: Split.TRAIN, TRAIN_2: Split.TRAIN, VAL: Split.VAL, TEST: Split.TEST}
MODES = {TRAIN: "train", TRAIN_2: "train", VAL: "validation", TEST: "test"}
DRAWN = {scene_id: make_scene(scene_id, vertices=600) for scene_id in SPLITS}
BOXES20 = {
    3: "cabinet", 4: "bed", 5: "chair", 6: "sofa", 7: "table", 8: "door", 9: "window", 10: "bookshelf", 11: "picture",
    12: "counter", 14: "desk", 16: "curtain", 24: "refrigerator", 28: "showercurtrain", 33: "toilet", 34: "sink",
    36: "bathtub", 39: "garbagebin",
}  # fmt: skip
BOXES200 = {
    item.raw_id: item.name for item in SCANNET200.classes if item.name not in ("wall", "floor")
}
Process = Callable[..., list[ProcessedScene]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Process:
    """Processes the drawn scenes with the options that are given."""
    raw_dir = tmp_path_factory.mktemp("raw")
    raw = {
        scene_id: RawScene(SceneId(scene_id), write_scene(scene, raw_dir).parent)
        for scene_id, scene in DRAWN.items()
    }
    return functools.cache(
        lambda **options: [
            tiny.process_written(raw[scene_id], SPLITS[scene_id], **options) for scene_id in raw
        ]
    )


def write_export(name: str, scenes: Iterable[ProcessedScene], folder: Path, **options: Any) -> Path:
    """Write what a format makes of the scenes, as the stage does; records have been JSON in between."""
    made = make_format(name, ExportOptions(**options))
    records = {}
    for scene in scenes:
        if not made.exclusion_reason(scene.meta.split):
            exported = made.encode_scene(scene)
            records[scene.meta.scene_id] = (
                scene.meta.split,
                json.loads(json.dumps(dict(exported.record))),
            )
            for file_name, content in exported.files.items():
                content = encode_processed(scene) if isinstance(content, ProcessedFile) else content
                write_bytes(folder / file_name, b"".join(content))
    for file_name, data in made.encode_shared(records).items():
        write_bytes(folder / file_name, data)
    return folder


def write_bytes(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_test_segments(folder: Path, count: int = 600) -> Path:
    """Segments of the test scene, one a vertex, in falling order."""
    write_bytes(
        folder / f"{TEST}_vh_clean_2.0.010000.segs.json",
        tiny.segments_file(tuple(range(9 * count, 0, -9))),
    )
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def read_matrix(folder: Path, scene_id: str) -> np.ndarray:
    return np.load(folder / MODES[scene_id] / f"{scene_id[5:]}.npy")


def read_infos(path: Path) -> list[dict[str, Any]]:
    return pickle.loads(path.read_bytes())["data_list"]


def truth(
    scene: SyntheticScene, label_set: Any = SCANNET20
) -> tuple[list[int], list[int], list[int]]:
    """Per vertex: contiguous segment, raw id, position of the group, which is its objectId, or -1."""
    groups = [
        {"id": number, "segments": g.segment_ids, "label": g.raw_category}
        for number, g in enumerate(scene.groups)
    ]
    assert [g.object_id for g in scene.groups] == list(range(len(groups)))
    names = sorted(set(scene.segment_ids.tolist()))
    ids = oracles.ids_of_vertices(scene.segment_ids.tolist(), groups)
    return (
        [names.index(item) for item in scene.segment_ids.tolist()],
        ids[label_set is SCANNET200],
        ids[2],
    )


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=["20", "200"])
def test_mask3d_matrices_databases_and_ground_truth_are_those_of_the_raw_scenes(
    process: Process, tmp_path: Path, label_set: Any
) -> None:
    segs = write_test_segments(tmp_path / "segs")
    folder = write_export(
        "mask3d", process(), tmp_path / "out", label_set=label_set, test_segments=segs
    )
    root = "data/processed/scannet" + "200" * (label_set is SCANNET200)
    entries: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for scene, (scene_id, drawn) in zip(process(), DRAWN.items(), strict=True):
        mode, found = MODES[scene_id], read_matrix(folder, scene_id)
        assert (found.dtype, found.shape[0], found.flags.c_contiguous) == (np.float32, 600, True)
        assert (
            found[:, :9].tolist()
            == np.hstack([drawn.positions, drawn.colors, scene.normals]).tolist()
        )
        raw = f"scans{'_test' * (mode == 'test')}/{scene_id}/{scene_id}"
        entry = {
            "filepath": f"{root}/{mode}/{scene_id[5:]}.npy",
            "raw_filepath": f"{raw}_vh_clean_2.ply",
        }
        entry |= {"scene": int(scene_id[5:9]), "sub_scene": int(scene_id[10:]), "file_len": 600}
        entries[mode].append(entry)
        if mode == "test":
            assert found[:, 9:].T.tolist() == [list(range(599, -1, -1))]
            continue
        segments, raw_ids, objects = truth(drawn, label_set)
        instances = [drawn.groups[number].id if number >= 0 else -1 for number in objects]
        assert found[:, 9:].T.tolist() == [segments, raw_ids, instances]
        lines = (folder / f"instance_gt/{mode}/{scene_id}.txt").read_text().splitlines()
        pairs = zip(raw_ids, instances, strict=True)
        assert lines == [str(r * 1000 + i + 1 if i >= 0 else 0) for r, i in pairs]
        channels = [[value / 255 for value in channel] for channel in drawn.colors.T.tolist()]
        entry |= {
            "scene_type": "Bedroom / Hotel", "raw_description_filepath": f"{raw}.txt",
            "raw_instance_filepath": f"{raw}.aggregation.json", "raw_label_filepath": f"{raw}_vh_clean_2.labels.ply",
            "raw_segmentation_filepath": f"{raw}_vh_clean_2.0.010000.segs.json",
            "instance_gt_filepath": f"{root}/instance_gt/{mode}/{scene_id}.txt",
            "color_mean": pytest.approx([math.fsum(c) / 600 for c in channels], rel=1e-12),
            "color_std": pytest.approx([math.fsum(v * v for v in c) / 600 for c in channels], rel=1e-12),
        }  # fmt: skip
    yaml = pytest.importorskip("yaml")
    tables = {
        path.stem.removesuffix("_database"): yaml.safe_load(path.read_text())
        for path in folder.glob("*.yaml")
    }
    labels, statistics = tables.pop("label"), tables.pop("color_mean_std")
    assert tables == entries | {"train_validation": entries["train"] + entries["validation"]}
    mean, square = (
        np.mean([item[key] for item in tables["train"]], axis=0)
        for key in ("color_mean", "color_std")
    )
    assert [*statistics["mean"], *statistics["std"]] == pytest.approx(
        [*mean, *np.sqrt(square - mean**2)], rel=1e-9
    )
    ids = oracles.NYU40_OF_SCANNET20 if label_set is SCANNET20 else oracles.scannet200_ids()
    colors = [tuple(item["color"]) for item in labels.values()]
    assert (list(labels), colors) == (list(ids), list(label_set.colors))
    assert all(item["validation"] is True and item["name"] for item in labels.values())
    assert labels[28]["name"] == ("shower_curtain" if label_set is SCANNET20 else "lamp")


def test_mask3d_statistics_are_numbers_in_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    record = {"file_len": 6, "scene_type": None, "color_mean": [1e-05], "color_std": [1e-05]}
    files = make_format("mask3d", ExportOptions()).encode_shared({TRAIN: (Split.TRAIN, record)})
    assert yaml.safe_load(files["train_validation_database.yaml"])[0].items() >= record.items()
    assert yaml.safe_load(files["color_mean_std.yaml"])["mean"] == [1e-05]


@pytest.mark.parametrize("split", [Split.VAL, Split.TEST])
def test_mask3d_statistics_are_the_defaults_of_its_loader_without_train_scenes(
    split: Split,
) -> None:
    yaml = pytest.importorskip("yaml")
    record = {"file_len": 6, "scene_type": None, "color_mean": [0.5] * 3, "color_std": [0.5] * 3}
    files = make_format("mask3d", ExportOptions()).encode_shared({VAL: (split, record)})
    assert yaml.safe_load(files["color_mean_std.yaml"]) == {
        "mean": [0.47793125906962, 0.4303257521323044, 0.3749598901421883],
        "std": [0.2834475483823543, 0.27566157565723015, 0.27018971370874995],
    }


def test_scenes_that_a_format_cannot_hold_are_refused_by_name(
    process: Process, tmp_path: Path
) -> None:
    for made in (
        make_format("mask3d", ExportOptions()),
        make_format("mmdet3d", ExportOptions(variant="oneformer3d")),
    ):
        assert "as test segments" in made.exclusion_reason(Split.TEST)
    assert not [
        name
        for name in files_in(write_export("mask3d", process(), tmp_path))
        if name.startswith("test")
    ]
    segs, test = "/scene0707_00_vh_clean_2.0.010000.segs.json", process()[-1]
    groups = tiny.aggregation_file([tiny.group(999, [0], "floor")])
    many = tiny.process_tiny(tmp_path / "many", {".aggregation.json": groups})
    files = {"_vh_clean_2.labels.ply": tiny.Ply(labels=(1,) * 6).encode()}
    files |= dict.fromkeys(("_vh_clean_2.0.010000.segs.json", ".aggregation.json"))
    bare = tiny.process_tiny(tmp_path / "bare", files, labels_from="ply")
    for name, scene, options, problem in (
        ("mask3d", test, {"test_segments": tmp_path / "no"}, f"no{segs}: no such file"),
        (
            "mask3d",
            test,
            {"test_segments": write_test_segments(tmp_path, 599)},
            f"{segs}: has 599 .* scene has 600",
        ),
        ("mask3d", many, {}, "scene0000_00 has a group 999, .* 0 to 998"),
        ("mask3d", bare, {}, "scene0000_00 has no segments"),
        ("mmdet3d", bare, {"variant": "oneformer3d"}, "scene0000_00 has no segments"),
    ):
        with pytest.raises((ScanNetPrepError, FileError), match=problem):
            write_export(name, [scene], tmp_path, **options)


def expected_info(
    scene: SyntheticScene, label_set: Any, classes: list[int], variant: str
) -> dict[str, Any]:
    """The entry of a scene in the infos: boxes from float64 points, a loop over groups and vertices."""
    path = f"{scene.scene_id}.bin"
    info: dict[str, Any] = {
        "lidar_points": {"num_pts_feats": 6, "lidar_path": path},
        "instances": [],
    }
    info |= {"super_pts_path": path} if variant else {}
    if scene.axis_alignment is None:
        return info
    points = oracles.aligned_points(scene.positions, scene.axis_alignment)
    _, raw_ids, objects = truth(scene, label_set)
    for number in sorted(set(objects) - {-1}):
        members = [vertex for vertex, owner in enumerate(objects) if owner == number]
        if raw_ids[members[0]] in classes:
            axes = [[points[vertex][axis] for vertex in members] for axis in range(3)]
            box = [(min(axis) + max(axis)) / 2 for axis in axes] + [
                max(axis) - min(axis) for axis in axes
            ]
            info["instances"].append(
                {"bbox_3d": box, "bbox_label_3d": classes.index(raw_ids[members[0]])}
            )
    masks = dict.fromkeys(("pts_semantic_mask_path", "pts_instance_mask_path"), path)
    return info | masks | {"axis_align_matrix": scene.axis_alignment.tolist()}


@pytest.mark.parametrize(
    ("variant", "label_set", "boxes", "prefix"),
    [
        ("", SCANNET20, BOXES20, "scannet"),
        ("oneformer3d", SCANNET20, BOXES20, "scannet_oneformer3d"),
        ("oneformer3d", SCANNET200, BOXES200, "scannet200_oneformer3d"),
    ],
)
def test_mmdet3d_arrays_and_infos_are_those_of_the_raw_scene(
    process: Process,
    tmp_path: Path,
    variant: str,
    label_set: Any,
    boxes: dict[int, str],
    prefix: str,
) -> None:
    segs = {"test_segments": write_test_segments(tmp_path / "segs")} if variant else {}
    folder = write_export(
        "mmdet3d", process(), tmp_path / "out", variant=variant, label_set=label_set, **segs
    )
    for scene_id, drawn in DRAWN.items():
        points = np.fromfile(folder / f"points/{scene_id}.bin", np.float32).reshape(600, 6)
        assert (
            points.tolist() == np.hstack([drawn.positions, drawn.colors], dtype=np.float32).tolist()
        )
        segments, raw_ids, objects = truth(drawn, label_set)
        masks = (
            {"super_points": segments if scene_id != TEST else list(range(599, -1, -1))}
            if variant
            else {}
        )
        masks |= (
            {"semantic_mask": raw_ids, "instance_mask": [i + 1 for i in objects]}
            if scene_id != TEST
            else {}
        )
        found = {
            name.split("/")[0] for name in files_in(folder) if name.endswith(f"/{scene_id}.bin")
        } - {"points"}
        assert {
            name: np.fromfile(folder / name / f"{scene_id}.bin", np.int64).tolist()
            for name in found
        } == masks
    categories = {name: number for number, name in enumerate(boxes.values())}
    metainfo = {
        "categories": categories,
        "dataset": prefix.split("_", maxsplit=1)[0],
        "info_version": "1.1",
    }
    for split in Split:
        drawn_here = [scene for scene_id, scene in DRAWN.items() if SPLITS[scene_id] is split]
        entries = [expected_info(scene, label_set, list(boxes), variant) for scene in drawn_here]
        assert split is Split.TEST or len(entries[0]["instances"]) > 2
        data = (folder / f"{prefix}_infos_{split}.pkl").read_bytes()
        assert pickle.loads(data) == {"metainfo": metainfo, "data_list": entries}
        assert not {code.name for code, *_ in pickletools.genops(data)} & {
            "GLOBAL",
            "STACK_GLOBAL",
            "REDUCE",
            "BUILD",
        }
    assert len(list(folder.glob("seg_info/*"))) == (4 if label_set is SCANNET20 else 0)


def test_mmdet3d_seg_info_samples_scenes_by_size_and_weighs_classes(tmp_path: Path) -> None:
    scenes = []
    for scene_id, vertices in ((TRAIN, 8000), (TRAIN_2, 21_000)):
        path = write_scene(make_scene(scene_id, vertices=vertices), tmp_path / "raw")
        scenes.append(tiny.process_written(RawScene(SceneId(scene_id), path.parent)))
    folder = write_export("mmdet3d", scenes, tmp_path / "out") / "seg_info"
    indices, weights = (
        np.load(folder / f"train_{name}.npy") for name in ("resampled_scene_idxs", "label_weight")
    )
    assert (indices.dtype, indices.tolist()) == (
        np.int32,
        [0, 1, 1],
    )  # 3 samples: 0.83 and 2.17 of them
    labels = [label for scene in scenes for label in oracles.labels20(scene.nyu40_ids.tolist())]
    counts = np.array([labels.count(label) for label in range(1, 21)], np.float32)
    expected = (1.0 / np.log(1.2 + counts / counts.sum())).astype(np.float32)
    assert (weights.dtype, weights.tolist()) == (np.float32, expected.tolist())


@pytest.mark.parametrize(
    ("object_ids", "bed", "chair"),
    [
        ((4, 2), 5, 3),
        ((None, 9), 8, 10),
        ((1, None), 2, 4),
        ((3, None), 8, 4),
        ((-1, 2), 8, 4),
        ((2**62, 2), 8, 4),
    ],
)
def test_mmdet3d_instances_are_object_ids_or_ids_where_these_are_missing_or_not_distinct(
    tmp_path: Path, object_ids: tuple[int | None, int | None], bed: int, chair: int
) -> None:
    groups = [tiny.group(7, [0], "bed"), tiny.group(3, [2, 4], "chair")]
    for group, object_id in zip(groups, object_ids, strict=True):
        group["objectId"] = object_id
    scene = tiny.process_tiny(
        tmp_path / "raw", {".aggregation.json": tiny.aggregation_file(groups)}
    )
    folder = write_export("mmdet3d", [scene], tmp_path / "out")
    found = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64).tolist()
    assert found == [bed, bed, chair, chair, chair, 0]
    (info,) = read_infos(folder / "scannet_infos_train.pkl")
    assert [item["bbox_label_3d"] for item in info["instances"]] == (
        [1, 2] if bed < chair else [2, 1]
    )


@pytest.mark.parametrize(
    ("format_name", "file", "expected"),
    [
        ("pointcept", "train/scene0000_00/instance.npy", [0, 0, 1, 1, 1, -1]),
        ("mmdet3d", "instance_mask/scene0000_00.bin", [1, 1, 2, 2, 2, 0]),
        ("benchmark-gt", "instance/scene0000_00.txt", [2001, 2001, 1002, 1002, 1002, 0]),
    ],
)
def test_instances_of_groups_listed_twice_are_those_of_the_first(
    tmp_path: Path, format_name: str, file: str, expected: list[int]
) -> None:
    categories = [("floor", [0, 2]), ("wall", [2, 4])] * 2  # as scene0217_00 has it
    groups = [
        tiny.group(number, segments, name) for number, (name, segments) in enumerate(categories)
    ]
    scene = tiny.process_tiny(
        tmp_path / "raw", {".aggregation.json": tiny.aggregation_file(groups)}
    )
    path = write_export(format_name, [scene], tmp_path) / file
    readers = {
        ".npy": np.load,
        ".bin": lambda path: np.fromfile(path, np.int64),
        ".txt": np.loadtxt,
    }
    assert readers[path.suffix](path).tolist() == expected


def test_instances_have_one_label_each_where_labels_come_from_ply(tmp_path: Path) -> None:
    labels = tiny.Ply(labels=(5, 2, 1, 1, 50, 7)).encode()
    scene = tiny.process_tiny(
        tmp_path / "raw", {"_vh_clean_2.labels.ply": labels}, labels_from="ply"
    )
    folder = write_export("mmdet3d", [scene], write_export("mask3d", [scene], tmp_path))
    assert np.fromfile(folder / "semantic_mask/scene0000_00.bin", np.int64).tolist() == [
        2,
        2,
        1,
        1,
        1,
        7,
    ]
    assert np.load(folder / "train/0000_00.npy")[:, 10].tolist() == [2, 2, 1, 1, 1, 7]
    assert (folder / "instance_gt/train/scene0000_00.txt").read_text().split() == ["2001"] * 2 + [
        "1002"
    ] * 3 + ["0"]


@pytest.mark.parametrize("options", [{"label_set": SCANNET200}, {"test_segments": Path()}])
def test_mmdet3d_refuses_what_only_oneformer3d_reads(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="mmdetection3d") as raised:
        make_format("mmdet3d", ExportOptions(**options))
    assert raised.value.hint == "--for oneformer3d"


def test_aligned_scenes_are_exported_in_the_frame_of_the_scan_and_the_other_way_round(
    process: Process, tmp_path: Path
) -> None:
    stored, aligned = process(), process(align_axis=True)
    there, back, forward = (
        write_export(
            "mmdet3d", scenes, write_export("mask3d", scenes, tmp_path / name, **options), **options
        )
        for name, scenes, options in (
            ("a", stored, {}),
            ("b", aligned, {}),
            ("c", stored, {"is_aligned": True}),
        )
    )
    first, second, third = (read_matrix(folder, TRAIN) for folder in (there, back, forward))
    assert (
        np.abs(first[:, :3] - second[:, :3]).max() < 5e-7
    )  # the last place of float32 from 4 to 8 m
    assert third[:, :3].tobytes() == aligned[0].points.tobytes()
    assert (
        max(np.abs(first - second)[:, 6:9].max(), np.abs(third[:, 6:9] - aligned[0].normals).max())
        < 6e-4
    )
    infos = [read_infos(folder / "scannet_infos_train.pkl")[0] for folder in (there, back, forward)]
    assert infos[2]["axis_align_matrix"] == np.eye(4).tolist()
    first, second, third = (
        np.array([item["bbox_3d"] for item in info["instances"]]) for info in infos
    )
    assert max(np.abs(first - second).max(), np.abs(first - third).max()) < 1e-6


@pytest.mark.realdata
@pytest.mark.skipif(not HAS_REAL_DATA, reason="SCANNET_PREP_REAL_DATA has no scans/scene0000_00")
def test_real_scene_goes_through_the_formats_of_frameworks(tmp_path: Path) -> None:
    raw = RawScene(SceneId("scene0000_00"), REAL_DIR / "scans")
    scene = tiny.process_written(raw)
    matrix = np.load(write_export("mask3d", [scene], tmp_path / "mask3d") / "train/0000_00.npy")
    raw_ids = json.loads(
        (raw.directory / "scene0000_00_vh_clean_2.0.010000.segs.json").read_bytes()
    )["segIndices"]
    columns = [
        *scene.points.T,
        *scene.colors.T,
        *scene.normals.T,
        np.unique(raw_ids, return_inverse=True)[1],
    ]
    assert (
        matrix == np.stack([*columns, scene.nyu40_ids, scene.instances], axis=1).astype(np.float32)
    ).all()
    folder = write_export("mmdet3d", [scene], tmp_path / "mmdet3d", variant="oneformer3d")
    objects = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64)
    points = (
        np.hstack([scene.points, np.ones((len(objects), 1))]).astype(np.float64)
        @ scene.axis_alignment.T
    )
    members = [objects == number for number in range(1, objects.max() + 1)]
    parts = [points[is_in, :3] for is_in in members if scene.nyu40_ids[is_in][0] in BOXES20]
    boxes = [
        np.concatenate([(a.max(axis=0) + a.min(axis=0)) / 2, np.ptp(a, axis=0)]) for a in parts
    ]
    (info,) = read_infos(folder / "scannet_oneformer3d_infos_train.pkl")
    np.testing.assert_allclose(
        [item["bbox_3d"] for item in info["instances"]], boxes, rtol=0, atol=1e-12
    )
