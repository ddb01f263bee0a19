"""Exports for Mask3D, mmdetection3d and OneFormer3D, compared with loops over the raw scenes."""

import functools
import json
import math
import pickle
import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
import yaml
from extras import REAL_DIR

from scannet_prep.errors import FileError, ScanNetPrepError, UsageError
from scannet_prep.export import make_format
from scannet_prep.export.format import ExportOptions, ProcessedFile
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions, encode_processed
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

TRAIN = "scene0191_00"
TRAIN_2 = "scene0191_01"
VAL = "scene0568_00"
TEST = "scene0707_00"
SPLITS = {TRAIN: Split.TRAIN, TRAIN_2: Split.TRAIN, VAL: Split.VAL, TEST: Split.TEST}
MODES = {TRAIN: "train", TRAIN_2: "train", VAL: "validation", TEST: "test"}
ANNOTATED = [TRAIN, TRAIN_2, VAL]
# The scenes in each database of Mask3D.
DATABASES = {
    "train": [TRAIN, TRAIN_2],
    "validation": [VAL],
    "train_validation": [TRAIN, TRAIN_2, VAL],
    "test": [TEST],
}
SMALL_NUMBERS = {"file_len": 6, "scene_type": None, "color_mean": [1e-05], "color_std": [1e-05]}
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
        scene_id: RawScene(SceneId(scene_id), write_scene(scene, raw_dir))
        for scene_id, scene in DRAWN.items()
    }

    @functools.cache
    def process_all(**options: Any) -> list[ProcessedScene]:
        return [
            tiny.process_written(raw[scene_id], SPLITS[scene_id], **options) for scene_id in raw
        ]

    return process_all


def write_export(name: str, scenes: Iterable[ProcessedScene], folder: Path, **options: Any) -> Path:
    """Write the export of scenes as the stage does.

    Records are converted to JSON and back, as if a manifest had stored them.
    """
    made = make_format(name, ExportOptions(**options))
    records = {}
    for scene in scenes:
        if made.exclusion_reason(scene.meta.split, scene.meta.options):
            continue
        exported = made.encode_scene(scene)
        record = json.loads(json.dumps(dict(exported.record)))
        records[scene.meta.scene_id] = (scene.meta.split, record)
        for file_name, content in exported.files.items():
            # A file that is the processed one has no content of its own.
            if isinstance(content, ProcessedFile):
                content = encode_processed(scene)
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
    segment_ids = scene.segment_ids.tolist()
    distinct_ids = sorted(set(segment_ids))
    segments = [distinct_ids.index(segment_id) for segment_id in segment_ids]
    nyu40_ids, scannet_ids, object_ids = oracles.ids_of_vertices(segment_ids, groups)
    raw_ids = scannet_ids if label_set is SCANNET200 else nyu40_ids
    return segments, raw_ids, object_ids


@dataclass(frozen=True)
class Mask3DExport:
    """An export for Mask3D of all drawn scenes; not to be changed."""

    folder: Path
    label_set: LabelSet
    scenes: dict[str, ProcessedScene]

    def read_yaml(self, name: str) -> Any:
        return yaml.safe_load((self.folder / name).read_text())

    def group_ids(self, scene_id: str) -> list[int]:
        """Return the group id of each vertex, or -1."""
        drawn = DRAWN[scene_id]
        _, _, objects = truth(drawn, self.label_set)
        return [drawn.groups[number].id if number >= 0 else -1 for number in objects]


@pytest.fixture(scope="module", params=[SCANNET20, SCANNET200], ids=["20", "200"])
def mask3d(
    request: pytest.FixtureRequest, process: Process, tmp_path_factory: pytest.TempPathFactory
) -> Mask3DExport:
    """The export for either label set."""
    directory = tmp_path_factory.mktemp("mask3d")
    segs = write_test_segments(directory / "segs")
    folder = write_export(
        "mask3d",
        process(),
        directory / "out",
        label_set=request.param,
        test_segments=segs,
    )
    return Mask3DExport(folder, request.param, dict(zip(DRAWN, process(), strict=True)))


@pytest.mark.parametrize("scene_id", DRAWN)
def test_mask3d_matrix_is_contiguous_float32(mask3d: Mask3DExport, scene_id: str) -> None:
    matrix = read_matrix(mask3d.folder, scene_id)

    assert matrix.dtype == np.float32
    assert matrix.flags.c_contiguous


@pytest.mark.parametrize("scene_id", DRAWN)
def test_mask3d_matrix_begins_with_position_color_and_normal(
    mask3d: Mask3DExport, scene_id: str
) -> None:
    drawn = DRAWN[scene_id]

    matrix = read_matrix(mask3d.folder, scene_id)

    columns = [drawn.positions, drawn.colors, mask3d.scenes[scene_id].normals]
    assert matrix[:, :9].tolist() == np.hstack(columns).tolist()


@pytest.mark.parametrize("scene_id", ANNOTATED)
def test_mask3d_matrix_ends_with_segment_raw_id_and_group_id(
    mask3d: Mask3DExport, scene_id: str
) -> None:
    segments, raw_ids, _ = truth(DRAWN[scene_id], mask3d.label_set)

    matrix = read_matrix(mask3d.folder, scene_id)

    assert matrix[:, 9:].T.tolist() == [segments, raw_ids, mask3d.group_ids(scene_id)]


def test_mask3d_matrix_of_a_test_scene_ends_with_the_given_segments(mask3d: Mask3DExport) -> None:
    matrix = read_matrix(mask3d.folder, TEST)

    assert matrix[:, 9:].T.tolist() == [list(range(599, -1, -1))]


@pytest.mark.parametrize("scene_id", ANNOTATED)
def test_mask3d_ground_truth_is_raw_id_and_group_number(
    mask3d: Mask3DExport, scene_id: str
) -> None:
    _, raw_ids, _ = truth(DRAWN[scene_id], mask3d.label_set)

    path = mask3d.folder / f"instance_gt/{MODES[scene_id]}/{scene_id}.txt"

    pairs = zip(raw_ids, mask3d.group_ids(scene_id), strict=True)
    expected = [raw_id * 1000 + group_id + 1 if group_id >= 0 else 0 for raw_id, group_id in pairs]
    assert path.read_text().splitlines() == [str(number) for number in expected]


def expected_entry(scene_id: str, label_set: LabelSet) -> dict[str, Any]:
    """Return the entry of a scene in a database of Mask3D."""
    root = "data/processed/scannet200" if label_set is SCANNET200 else "data/processed/scannet"
    mode = MODES[scene_id]
    raw_folder = "scans_test" if mode == "test" else "scans"
    raw = f"{raw_folder}/{scene_id}/{scene_id}"
    entry = {
        "filepath": f"{root}/{mode}/{scene_id[5:]}.npy",
        "raw_filepath": f"{raw}_vh_clean_2.ply",
        "scene": int(scene_id[5:9]),
        "sub_scene": int(scene_id[10:]),
        "file_len": 600,
    }
    if mode == "test":
        return entry
    channels = [[value / 255 for value in channel] for channel in DRAWN[scene_id].colors.T.tolist()]
    means = [math.fsum(channel) / 600 for channel in channels]
    squares = [math.fsum(value * value for value in channel) / 600 for channel in channels]
    return entry | {
        "scene_type": "Bedroom / Hotel",
        "raw_description_filepath": f"{raw}.txt",
        "raw_instance_filepath": f"{raw}.aggregation.json",
        "raw_label_filepath": f"{raw}_vh_clean_2.labels.ply",
        "raw_segmentation_filepath": f"{raw}_vh_clean_2.0.010000.segs.json",
        "instance_gt_filepath": f"{root}/instance_gt/{mode}/{scene_id}.txt",
        "color_mean": pytest.approx(means, rel=1e-12),
        "color_std": pytest.approx(squares, rel=1e-12),
    }


def test_mask3d_yaml_files_are_databases_and_statistics(mask3d: Mask3DExport) -> None:
    names = {path.name for path in mask3d.folder.glob("*.yaml")}

    databases = {f"{name}_database.yaml" for name in [*DATABASES, "label"]}
    assert names == databases | {"color_mean_std.yaml"}


@pytest.mark.parametrize("name", DATABASES)
def test_mask3d_database_describes_its_scenes(mask3d: Mask3DExport, name: str) -> None:
    database = mask3d.read_yaml(f"{name}_database.yaml")

    expected = [expected_entry(scene_id, mask3d.label_set) for scene_id in DATABASES[name]]
    assert database == expected


def test_mask3d_statistics_are_those_of_the_train_scenes(mask3d: Mask3DExport) -> None:
    train = mask3d.read_yaml("train_database.yaml")

    statistics = mask3d.read_yaml("color_mean_std.yaml")

    mean = np.mean([entry["color_mean"] for entry in train], axis=0)
    square = np.mean([entry["color_std"] for entry in train], axis=0)
    assert [*statistics["mean"], *statistics["std"]] == pytest.approx(
        [*mean, *np.sqrt(square - mean**2)], rel=1e-9
    )


def test_mask3d_label_database_has_the_raw_ids_in_order(mask3d: Mask3DExport) -> None:
    labels = mask3d.read_yaml("label_database.yaml")

    is_20 = mask3d.label_set is SCANNET20
    assert list(labels) == list(oracles.NYU40_OF_SCANNET20 if is_20 else oracles.scannet200_ids())


def test_mask3d_label_database_has_the_colors_of_the_label_set(mask3d: Mask3DExport) -> None:
    labels = mask3d.read_yaml("label_database.yaml")

    colors = [tuple(entry["color"]) for entry in labels.values()]
    assert colors == list(mask3d.label_set.colors)


def test_mask3d_validates_every_class(mask3d: Mask3DExport) -> None:
    labels = mask3d.read_yaml("label_database.yaml")

    assert all(entry["validation"] is True for entry in labels.values())


def test_mask3d_names_every_class(mask3d: Mask3DExport) -> None:
    labels = mask3d.read_yaml("label_database.yaml")

    assert all(entry["name"] for entry in labels.values())


def test_mask3d_names_label_28_as_the_program_does(mask3d: Mask3DExport) -> None:
    labels = mask3d.read_yaml("label_database.yaml")

    assert labels[28]["name"] == ("shower_curtain" if mask3d.label_set is SCANNET20 else "lamp")


def read_small_numbers(name: str) -> Any:
    """Read a YAML file of the export of a scene whose numbers Python writes as `1e-05`."""
    files = make_format("mask3d", ExportOptions()).encode_shared(
        {TRAIN: (Split.TRAIN, SMALL_NUMBERS)}
    )
    return yaml.safe_load(files[name])


def test_mask3d_numbers_of_a_scene_are_numbers_in_yaml() -> None:
    (entry,) = read_small_numbers("train_validation_database.yaml")

    assert entry.items() >= SMALL_NUMBERS.items()


def test_mask3d_statistics_are_numbers_in_yaml() -> None:
    assert read_small_numbers("color_mean_std.yaml")["mean"] == [1e-05]


@pytest.mark.parametrize("split", [Split.VAL, Split.TEST])
def test_mask3d_without_train_scenes_has_default_statistics(split: Split) -> None:
    record = {"file_len": 6, "scene_type": None, "color_mean": [0.5] * 3, "color_std": [0.5] * 3}

    files = make_format("mask3d", ExportOptions()).encode_shared({VAL: (split, record)})

    assert yaml.safe_load(files["color_mean_std.yaml"]) == {
        "mean": [0.47793125906962, 0.4303257521323044, 0.3749598901421883],
        "std": [0.2834475483823543, 0.27566157565723015, 0.27018971370874995],
    }


@pytest.mark.parametrize(("name", "variant"), [("mask3d", ""), ("mmdet3d", "oneformer3d")])
def test_test_scenes_without_segments_are_left_out(name: str, variant: str) -> None:
    export_format = make_format(name, ExportOptions(variant=variant))

    assert "--test-segments DIR" in export_format.exclusion_reason(Split.TEST, ProcessOptions())


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


@dataclass(frozen=True)
class Mmdet3dExport:
    """An export for mmdetection3d of all drawn scenes; not to be changed.

    Attributes:
        boxes: Names of the classes that have boxes, by raw id.
        prefix: First part of the names of the infos.
    """

    folder: Path
    variant: str
    label_set: LabelSet
    boxes: dict[int, str]
    prefix: str

    def read_info_bytes(self, split: Split) -> bytes:
        return (self.folder / f"{self.prefix}_infos_{split}.pkl").read_bytes()


@pytest.fixture(
    scope="module",
    params=[
        ("", SCANNET20, BOXES20, "scannet"),
        ("oneformer3d", SCANNET20, BOXES20, "scannet_oneformer3d"),
        ("oneformer3d", SCANNET200, BOXES200, "scannet200_oneformer3d"),
    ],
    ids=["mmdet3d", "oneformer3d 20", "oneformer3d 200"],
)
def mmdet3d(
    request: pytest.FixtureRequest, process: Process, tmp_path_factory: pytest.TempPathFactory
) -> Mmdet3dExport:
    """The export for each program and label set."""
    variant, label_set, boxes, prefix = request.param
    directory = tmp_path_factory.mktemp("mmdet3d")
    segs = {"test_segments": write_test_segments(directory / "segs")} if variant else {}
    folder = write_export(
        "mmdet3d", process(), directory / "out", variant=variant, label_set=label_set, **segs
    )
    return Mmdet3dExport(folder, variant, label_set, boxes, prefix)


@pytest.mark.parametrize("scene_id", DRAWN)
def test_mmdet3d_points_are_positions_and_colors(mmdet3d: Mmdet3dExport, scene_id: str) -> None:
    drawn = DRAWN[scene_id]

    points = np.fromfile(mmdet3d.folder / f"points/{scene_id}.bin", np.float32)

    expected = np.hstack([drawn.positions, drawn.colors], dtype=np.float32)
    assert points.reshape(600, 6).tolist() == expected.tolist()


@pytest.mark.parametrize("scene_id", DRAWN)
def test_mmdet3d_masks_equal_loops_over_the_raw_scene(
    mmdet3d: Mmdet3dExport, scene_id: str
) -> None:
    segments, raw_ids, objects = truth(DRAWN[scene_id], mmdet3d.label_set)
    expected = {}
    if mmdet3d.variant:
        expected["super_points"] = segments if scene_id != TEST else list(range(599, -1, -1))
    if scene_id != TEST:
        expected["semantic_mask"] = raw_ids
        expected["instance_mask"] = [number + 1 for number in objects]

    masks = {
        path.parent.name: np.fromfile(path, np.int64).tolist()
        for path in mmdet3d.folder.glob(f"*/{scene_id}.bin")
        if path.parent.name != "points"
    }

    assert masks == expected


@pytest.mark.parametrize("split", Split)
def test_mmdet3d_infos_equal_loops_over_the_raw_scenes(
    mmdet3d: Mmdet3dExport, split: Split
) -> None:
    infos = pickle.loads(mmdet3d.read_info_bytes(split))

    metainfo = {
        "categories": {name: number for number, name in enumerate(mmdet3d.boxes.values())},
        "dataset": mmdet3d.prefix.split("_", maxsplit=1)[0],
        "info_version": "1.1",
    }
    entries = [
        expected_info(drawn, mmdet3d.label_set, list(mmdet3d.boxes), mmdet3d.variant)
        for scene_id, drawn in DRAWN.items()
        if SPLITS[scene_id] is split
    ]
    assert infos == {"metainfo": metainfo, "data_list": entries}


@pytest.mark.parametrize("split", [Split.TRAIN, Split.VAL])
def test_mmdet3d_infos_of_annotated_scenes_have_boxes(mmdet3d: Mmdet3dExport, split: Split) -> None:
    info, *_ = pickle.loads(mmdet3d.read_info_bytes(split))["data_list"]

    assert len(info["instances"]) > 2


@pytest.mark.parametrize("split", Split)
def test_mmdet3d_infos_are_read_without_running_code(mmdet3d: Mmdet3dExport, split: Split) -> None:
    data = mmdet3d.read_info_bytes(split)

    operations = {operation.name for operation, *_ in pickletools.genops(data)}
    assert not operations & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}


def test_mmdet3d_has_seg_info_for_the_20_classes_only(mmdet3d: Mmdet3dExport) -> None:
    count = len(list(mmdet3d.folder.glob("seg_info/*")))

    assert count == (4 if mmdet3d.label_set is SCANNET20 else 0)


@pytest.fixture
def two_scenes(tmp_path: Path) -> list[ProcessedScene]:
    """Scenes of 8,000 and 21,000 vertices."""
    scenes = []
    for scene_id, vertices in ((TRAIN, 8000), (TRAIN_2, 21_000)):
        path = write_scene(make_scene(scene_id, vertices=vertices), tmp_path / "raw")
        scenes.append(tiny.process_written(RawScene(SceneId(scene_id), path)))
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


# Object ids of a bed of group 7 and a chair of group 3, and the instances that they get.
OBJECT_IDS = [
    ((4, 2), 5, 3),
    ((None, 9), 8, 10),
    ((1, None), 2, 4),
    ((3, None), 8, 4),
    ((-1, 2), 8, 4),
    ((2**32 - 1, 2), 8, 4),
    ((2**62, 2), 8, 4),
]


def export_bed_and_chair(tmp_path: Path, object_ids: tuple[int | None, int | None]) -> Path:
    """Export a scene whose bed and chair have these object ids for mmdetection3d."""
    groups = [tiny.group(7, [0], "bed"), tiny.group(3, [2, 4], "chair")]
    for group, object_id in zip(groups, object_ids, strict=True):
        group["objectId"] = object_id
    files = {".aggregation.json": tiny.aggregation_file(groups)}
    scene = tiny.process_tiny(tmp_path / "raw", files)
    return write_export("mmdet3d", [scene], tmp_path / "out")


@pytest.mark.parametrize(("object_ids", "bed", "chair"), OBJECT_IDS)
def test_mmdet3d_instances_are_object_ids_if_usable_else_group_ids(
    tmp_path: Path, object_ids: tuple[int | None, int | None], bed: int, chair: int
) -> None:
    folder = export_bed_and_chair(tmp_path, object_ids)

    mask = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64)
    assert mask.tolist() == [bed, bed, chair, chair, chair, 0]


@pytest.mark.parametrize(("object_ids", "bed", "chair"), OBJECT_IDS)
def test_mmdet3d_boxes_are_in_the_order_of_their_instances(
    tmp_path: Path, object_ids: tuple[int | None, int | None], bed: int, chair: int
) -> None:
    folder = export_bed_and_chair(tmp_path, object_ids)

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


def test_mask3d_ground_truth_has_the_labels_of_groups(
    scene_from_ply: ProcessedScene, tmp_path: Path
) -> None:
    folder = write_export("mask3d", [scene_from_ply], tmp_path)

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


def test_mask3d_aligns_normals_up_to_rounding(process: Process, tmp_path: Path) -> None:
    aligned = process(align_axis=True)[0]

    matrix = read_matrix(write_export("mask3d", process(), tmp_path, is_aligned=True), TRAIN)

    assert np.abs(matrix[:, 6:9] - aligned.normals).max() < 6e-4


def test_mmdet3d_boxes_are_aligned_in_any_frame_of_points(process: Process, tmp_path: Path) -> None:
    as_scanned = write_export("mmdet3d", process(), tmp_path / "a")
    back = write_export("mmdet3d", process(align_axis=True), tmp_path / "b")
    aligned = write_export("mmdet3d", process(), tmp_path / "c", is_aligned=True)

    assert np.abs(boxes_in(as_scanned) - boxes_in(back)).max() < 1e-6
    assert np.abs(boxes_in(as_scanned) - boxes_in(aligned)).max() < 1e-6


def test_mmdet3d_aligned_points_need_no_alignment(process: Process, tmp_path: Path) -> None:
    aligned = write_export("mmdet3d", process(), tmp_path, is_aligned=True)

    info = read_infos(aligned / "scannet_infos_train.pkl")[0]
    assert info["axis_align_matrix"] == np.eye(4).tolist()


@pytest.fixture(scope="module")
def real_scene() -> ProcessedScene:
    return tiny.process_written(RawScene(SceneId("scene0000_00"), REAL_DIR / "scans/scene0000_00"))


@pytest.mark.extra("real data")
def test_mask3d_matrix_of_the_real_scene_has_its_arrays(
    real_scene: ProcessedScene, tmp_path: Path
) -> None:
    raw = RawScene(SceneId("scene0000_00"), REAL_DIR / "scans/scene0000_00")
    segments_path = raw.directory / "scene0000_00_vh_clean_2.0.010000.segs.json"
    segment_ids = json.loads(segments_path.read_bytes())["segIndices"]

    matrix = np.load(write_export("mask3d", [real_scene], tmp_path) / "train/0000_00.npy")

    columns = [
        *real_scene.points.T,
        *real_scene.colors.T,
        *real_scene.normals.T,
        np.unique(segment_ids, return_inverse=True)[1],
        real_scene.nyu40_ids,
        real_scene.instances,
    ]
    assert (matrix == np.stack(columns, axis=1).astype(np.float32)).all()


@pytest.mark.extra("real data")
def test_mmdet3d_boxes_of_the_real_scene_enclose_its_objects(
    real_scene: ProcessedScene, tmp_path: Path
) -> None:
    folder = write_export("mmdet3d", [real_scene], tmp_path, variant="oneformer3d")

    (info,) = read_infos(folder / "scannet_oneformer3d_infos_train.pkl")
    objects = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64)
    homogeneous = np.hstack([real_scene.points, np.ones((len(objects), 1))]).astype(np.float64)
    points = (homogeneous @ real_scene.axis_alignment.T)[:, :3]
    boxes = []
    for number in range(1, objects.max() + 1):
        is_inside = objects == number
        if real_scene.nyu40_ids[is_inside][0] in BOXES20:
            low = points[is_inside].min(axis=0)
            high = points[is_inside].max(axis=0)
            boxes.append(np.concatenate([(high + low) / 2, high - low]))
    made = [instance["bbox_3d"] for instance in info["instances"]]
    np.testing.assert_allclose(made, boxes, rtol=0, atol=1e-12)
