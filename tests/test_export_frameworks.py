"""Exports for Mask3D, mmdetection3d and OneFormer3D, compared with loops over the raw scenes."""

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

TRAIN = "scene0191_00"
TRAIN_2 = "scene0191_01"
VAL = "scene0568_00"
TEST = "scene0707_00"
SPLITS = {TRAIN: Split.TRAIN, TRAIN_2: Split.TRAIN, VAL: Split.VAL, TEST: Split.TEST}
MODES = {TRAIN: "train", TRAIN_2: "train", VAL: "validation", TEST: "test"}
DRAWN = {scene_id: make_scene(scene_id, vertices=600) for scene_id in SPLITS}
BOXES20 = {
    3: "cabinet",
    4: "bed",
    5: "chair",
    6: "sofa",
    7: "table",
    8: "door",
    9: "window",
    10: "bookshelf",
    11: "picture",
    12: "counter",
    14: "desk",
    16: "curtain",
    24: "refrigerator",
    28: "showercurtrain",
    33: "toilet",
    34: "sink",
    36: "bathtub",
    39: "garbagebin",
}
BOXES200 = {
    label_class.raw_id: label_class.name
    for label_class in SCANNET200.classes
    if label_class.name not in ("wall", "floor")
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
    """Write the export of scenes as the stage does.

    Records are converted to JSON and back, as if a manifest had stored them.
    """
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
    """Write segments of the test scene, one per vertex, in descending order."""
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
    """Return segment, raw id and object id of each vertex.

    Segments are contiguous. The object id is the position of the group, or -1.
    """
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
def test_mask3d_export_equals_loops_over_the_raw_scenes(
    process: Process, tmp_path: Path, label_set: Any
) -> None:
    segs = write_test_segments(tmp_path / "segs")
    folder = write_export(
        "mask3d", process(), tmp_path / "out", label_set=label_set, test_segments=segs
    )
    root = "data/processed/scannet" + "200" * (label_set is SCANNET200)
    entries: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for scene, (scene_id, drawn) in zip(process(), DRAWN.items(), strict=True):
        mode = MODES[scene_id]
        found = read_matrix(folder, scene_id)
        assert found.dtype == np.float32
        assert found.shape[0] == 600
        assert found.flags.c_contiguous
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
        means = [math.fsum(channel) / 600 for channel in channels]
        squares = [math.fsum(value * value for value in channel) / 600 for channel in channels]
        entry |= {
            "scene_type": "Bedroom / Hotel",
            "raw_description_filepath": f"{raw}.txt",
            "raw_instance_filepath": f"{raw}.aggregation.json",
            "raw_label_filepath": f"{raw}_vh_clean_2.labels.ply",
            "raw_segmentation_filepath": f"{raw}_vh_clean_2.0.010000.segs.json",
            "instance_gt_filepath": f"{root}/instance_gt/{mode}/{scene_id}.txt",
            "color_mean": pytest.approx(means, rel=1e-12),
            "color_std": pytest.approx(squares, rel=1e-12),
        }
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
    assert list(labels) == list(ids)
    assert colors == list(label_set.colors)
    assert all(item["validation"] is True and item["name"] for item in labels.values())
    assert labels[28]["name"] == ("shower_curtain" if label_set is SCANNET20 else "lamp")


def test_mask3d_statistics_are_numbers_in_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    record = {"file_len": 6, "scene_type": None, "color_mean": [1e-05], "color_std": [1e-05]}
    files = make_format("mask3d", ExportOptions()).encode_shared({TRAIN: (Split.TRAIN, record)})
    assert yaml.safe_load(files["train_validation_database.yaml"])[0].items() >= record.items()
    assert yaml.safe_load(files["color_mean_std.yaml"])["mean"] == [1e-05]


@pytest.mark.parametrize("split", [Split.VAL, Split.TEST])
def test_mask3d_without_train_scenes_has_default_statistics(
    split: Split,
) -> None:
    yaml = pytest.importorskip("yaml")
    record = {"file_len": 6, "scene_type": None, "color_mean": [0.5] * 3, "color_std": [0.5] * 3}
    files = make_format("mask3d", ExportOptions()).encode_shared({VAL: (split, record)})
    assert yaml.safe_load(files["color_mean_std.yaml"]) == {
        "mean": [0.47793125906962, 0.4303257521323044, 0.3749598901421883],
        "std": [0.2834475483823543, 0.27566157565723015, 0.27018971370874995],
    }


@pytest.mark.parametrize(("name", "variant"), [("mask3d", ""), ("mmdet3d", "oneformer3d")])
def test_test_scenes_without_segments_are_left_out(name: str, variant: str) -> None:
    export_format = make_format(name, ExportOptions(variant=variant))

    assert "as test segments" in export_format.exclusion_reason(Split.TEST)


def test_mask3d_without_test_segments_has_no_test_files(process: Process, tmp_path: Path) -> None:
    names = files_in(write_export("mask3d", process(), tmp_path))

    assert not [name for name in names if name.startswith("test")]


def test_missing_test_segments_are_named(process: Process, tmp_path: Path) -> None:
    problem = f"no/{TEST}_vh_clean_2.0.010000.segs.json: no such file"
    with pytest.raises(FileError, match=problem):
        write_export("mask3d", [process()[-1]], tmp_path, test_segments=tmp_path / "no")


def test_test_segments_of_another_mesh_are_refused(process: Process, tmp_path: Path) -> None:
    folder = write_test_segments(tmp_path, 599)

    problem = rf"/{TEST}_vh_clean_2\.0\.010000\.segs\.json: has 599 .* scene has 600"
    with pytest.raises(FileError, match=problem):
        write_export("mask3d", [process()[-1]], tmp_path, test_segments=folder)


def test_mask3d_refuses_group_ids_beyond_its_ground_truth(tmp_path: Path) -> None:
    groups = tiny.aggregation_file([tiny.group(999, [0], "floor")])
    scene = tiny.process_tiny(tmp_path, {".aggregation.json": groups})

    with pytest.raises(ScanNetPrepError, match=r"scene0000_00 has a group 999, .* 0 to 998"):
        write_export("mask3d", [scene], tmp_path)


@pytest.mark.parametrize(("name", "variant"), [("mask3d", ""), ("mmdet3d", "oneformer3d")])
def test_scene_without_segments_is_refused(tmp_path: Path, name: str, variant: str) -> None:
    files = {
        "_vh_clean_2.labels.ply": tiny.Ply(labels=(1,) * 6).encode(),
        "_vh_clean_2.0.010000.segs.json": None,
        ".aggregation.json": None,
    }
    scene = tiny.process_tiny(tmp_path, files, labels_from="ply")

    with pytest.raises(ScanNetPrepError, match="scene0000_00 has no segments"):
        write_export(name, [scene], tmp_path, variant=variant)


def expected_info(
    scene: SyntheticScene, label_set: Any, classes: list[int], variant: str
) -> dict[str, Any]:
    """Return the entry of a scene in the infos, with boxes from loops over groups and vertices."""
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
def test_mmdet3d_export_equals_loops_over_the_raw_scenes(
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


@pytest.fixture
def two_scenes(tmp_path: Path) -> list[ProcessedScene]:
    """Scenes of 8,000 and 21,000 vertices."""
    scenes = []
    for scene_id, vertices in ((TRAIN, 8000), (TRAIN_2, 21_000)):
        path = write_scene(make_scene(scene_id, vertices=vertices), tmp_path / "raw")
        scenes.append(tiny.process_written(RawScene(SceneId(scene_id), path.parent)))
    return scenes


def test_mmdet3d_samples_scenes_by_size(two_scenes: list[ProcessedScene], tmp_path: Path) -> None:
    folder = write_export("mmdet3d", two_scenes, tmp_path / "out")

    indices = np.load(folder / "seg_info/train_resampled_scene_idxs.npy")
    assert indices.dtype == np.int32
    # Of 3 samples, the scenes have 0.83 and 2.17.
    assert indices.tolist() == [0, 1, 1]


def test_mmdet3d_weighs_classes_by_their_vertices(
    two_scenes: list[ProcessedScene], tmp_path: Path
) -> None:
    folder = write_export("mmdet3d", two_scenes, tmp_path / "out")

    labels = []
    for scene in two_scenes:
        labels += oracles.labels20(scene.nyu40_ids.tolist())
    counts = np.array([labels.count(label) for label in range(1, 21)], np.float32)
    expected = (1.0 / np.log(1.2 + counts / counts.sum())).astype(np.float32)
    weights = np.load(folder / "seg_info/train_label_weight.npy")
    assert weights.dtype == np.float32
    assert weights.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("object_ids", "bed", "chair"),
    [
        ((4, 2), 5, 3),
        ((None, 9), 8, 10),
        ((1, None), 2, 4),
        ((3, None), 8, 4),
        ((-1, 2), 8, 4),
        ((2**32 - 1, 2), 8, 4),
        ((2**62, 2), 8, 4),
    ],
)
def test_mmdet3d_instances_are_object_ids_if_usable_else_group_ids(
    tmp_path: Path, object_ids: tuple[int | None, int | None], bed: int, chair: int
) -> None:
    groups = [tiny.group(7, [0], "bed"), tiny.group(3, [2, 4], "chair")]
    for group, object_id in zip(groups, object_ids, strict=True):
        group["objectId"] = object_id
    files = {".aggregation.json": tiny.aggregation_file(groups)}
    scene = tiny.process_tiny(tmp_path / "raw", files)

    folder = write_export("mmdet3d", [scene], tmp_path / "out")

    mask = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64)
    assert mask.tolist() == [bed, bed, chair, chair, chair, 0]
    (info,) = read_infos(folder / "scannet_infos_train.pkl")
    numbers = [instance["bbox_label_3d"] for instance in info["instances"]]
    assert numbers == ([1, 2] if bed < chair else [2, 1])


@pytest.mark.parametrize(
    ("format_name", "file", "expected"),
    [
        ("pointcept", "train/scene0000_00/instance.npy", [0, 0, 1, 1, 1, -1]),
        ("mmdet3d", "instance_mask/scene0000_00.bin", [1, 1, 2, 2, 2, 0]),
        ("benchmark-gt", "instance/scene0000_00.txt", [2001, 2001, 1002, 1002, 1002, 0]),
    ],
)
def test_repeated_groups_have_the_instances_of_the_first(
    tmp_path: Path, format_name: str, file: str, expected: list[int]
) -> None:
    # As in scene0217_00.
    categories = [("floor", [0, 2]), ("wall", [2, 4])] * 2
    groups = [
        tiny.group(number, segments, name) for number, (name, segments) in enumerate(categories)
    ]
    files = {".aggregation.json": tiny.aggregation_file(groups)}
    scene = tiny.process_tiny(tmp_path / "raw", files)

    path = write_export(format_name, [scene], tmp_path) / file

    readers = {
        ".npy": np.load,
        ".bin": lambda path: np.fromfile(path, np.int64),
        ".txt": np.loadtxt,
    }
    assert readers[path.suffix](path).tolist() == expected


@pytest.fixture
def scene_from_ply(tmp_path: Path) -> ProcessedScene:
    """A scene with labels from `labels.ply`; they differ from those of its groups."""
    labels = tiny.Ply(labels=(5, 2, 1, 1, 50, 7)).encode()
    files = {"_vh_clean_2.labels.ply": labels}
    return tiny.process_tiny(tmp_path / "raw", files, labels_from="ply")


def test_mmdet3d_labels_are_those_of_groups(scene_from_ply: ProcessedScene, tmp_path: Path) -> None:
    folder = write_export("mmdet3d", [scene_from_ply], tmp_path)

    mask = np.fromfile(folder / "semantic_mask/scene0000_00.bin", np.int64)
    assert mask.tolist() == [2, 2, 1, 1, 1, 7]


def test_mask3d_labels_are_those_of_groups(scene_from_ply: ProcessedScene, tmp_path: Path) -> None:
    folder = write_export("mask3d", [scene_from_ply], tmp_path)

    assert np.load(folder / "train/0000_00.npy")[:, 10].tolist() == [2, 2, 1, 1, 1, 7]
    lines = (folder / "instance_gt/train/scene0000_00.txt").read_text().split()
    assert lines == ["2001", "2001", "1002", "1002", "1002", "0"]


@pytest.mark.parametrize("options", [{"label_set": SCANNET200}, {"test_segments": Path()}])
def test_mmdet3d_refuses_what_only_oneformer3d_reads(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="mmdetection3d") as raised:
        make_format("mmdet3d", ExportOptions(**options))
    assert raised.value.hint == "--for oneformer3d"


def boxes_in(folder: Path) -> np.ndarray:
    """Return the boxes of the first scene of the train split."""
    info = read_infos(folder / "scannet_infos_train.pkl")[0]
    return np.array([instance["bbox_3d"] for instance in info["instances"]])


def test_mask3d_undoes_the_alignment_up_to_rounding(process: Process, tmp_path: Path) -> None:
    as_scanned = read_matrix(write_export("mask3d", process(), tmp_path / "a"), TRAIN)
    back = read_matrix(write_export("mask3d", process(align_axis=True), tmp_path / "b"), TRAIN)

    # One unit in the last place of float32 from 4 to 8 m.
    assert np.abs(as_scanned[:, :3] - back[:, :3]).max() < 5e-7
    assert np.abs(as_scanned - back)[:, 6:9].max() < 6e-4


def test_mask3d_aligns_points_exactly(process: Process, tmp_path: Path) -> None:
    aligned = process(align_axis=True)[0]

    matrix = read_matrix(write_export("mask3d", process(), tmp_path, is_aligned=True), TRAIN)

    assert matrix[:, :3].tobytes() == aligned.points.tobytes()
    assert np.abs(matrix[:, 6:9] - aligned.normals).max() < 6e-4


def test_mmdet3d_boxes_are_aligned_in_any_frame_of_points(process: Process, tmp_path: Path) -> None:
    as_scanned = write_export("mmdet3d", process(), tmp_path / "a")
    back = write_export("mmdet3d", process(align_axis=True), tmp_path / "b")
    aligned = write_export("mmdet3d", process(), tmp_path / "c", is_aligned=True)

    assert np.abs(boxes_in(as_scanned) - boxes_in(back)).max() < 1e-6
    assert np.abs(boxes_in(as_scanned) - boxes_in(aligned)).max() < 1e-6
    info = read_infos(aligned / "scannet_infos_train.pkl")[0]
    assert info["axis_align_matrix"] == np.eye(4).tolist()


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
