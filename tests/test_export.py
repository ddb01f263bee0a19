"""Exports: every file and value that a program reads, computed with loops over the raw scenes."""

import pickle
import pickletools
from itertools import product

import numpy as np
import oracles
import pytest
import tiny
import yaml
from commands import succeed, write_tree
from plyfile import PlyData

from scannet_prep import SCANNET20, SCANNET200, Split, read_processed
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.export import detection, find_function
from scannet_prep.export.arrays import encode_file, encode_lines, in_frame
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import make_scene

# The official order of the train scenes is not the sorted one.
TRAIN, TRAIN_2, VAL, TEST = "scene0191_00", "scene0000_00", "scene0568_00", "scene0707_00"
SPLITS = {TRAIN_2: "train", TRAIN: "train", VAL: "val", TEST: "test"}
ANNOTATED = [TRAIN_2, TRAIN, VAL]
DRAWN = {name: make_scene(name, vertices=700) for name in SPLITS}
SPELLINGS = {"shower curtain": "showercurtrain", "otherfurniture": "garbagebin"}
BOXES18 = {row.raw_id: SPELLINGS.get(row.name, row.name) for row in SCANNET20.classes[2:]}
BOXES198 = {row.raw_id: row.name for row in SCANNET200.classes if row.name not in ("wall", "floor")}
BOXES37 = {*range(3, 22), *range(23, 41)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The scenes in `scan`; in `aligned`, for ScanNet200, with segments of test."""
    root = tmp_path_factory.mktemp("root")
    for scene in DRAWN.values():
        write_scene(scene, root / "raw")
    words = ("process", root / "raw", "--faces", "-o")
    succeed(*words, root / "scan")
    words += (root / "aligned", "--align-axis", "--scannet200", "--compute-segments")
    succeed(*words)
    return root


class Truth:
    """The content of the raw files of a scene."""

    def __init__(self, name):
        self.scene = DRAWN[name]
        self.split = SPLITS[name]
        groups = [
            {"id": number, "segments": group.segment_ids, "label": group.raw_category}
            for number, group in enumerate(self.scene.groups)
        ]
        segment_ids = self.scene.segment_ids.tolist()
        self.segments = np.unique(segment_ids, return_inverse=True)[1]
        nyu40, scannet, objects = map(np.array, oracles.ids_of_vertices(segment_ids, groups))
        self.raw_ids = {"scannet20": nyu40, "scannet200": scannet}
        self.objects = objects
        self.groups = np.array([*(group.id for group in self.scene.groups), -1])[objects]
        matrix = self.scene.axis_alignment
        self.matrix = np.eye(4) if matrix is None else matrix
        self.aligned = np.array(oracles.aligned_points(self.scene.positions, self.matrix))

    def points(self, frame):
        return self.aligned.astype(np.float32) if frame == "aligned" else self.scene.positions

    def normals(self, frame):
        return np.array(oracles.vertex_normals(self.points(frame), self.scene.faces.tolist()))

    def classes(self, labels):
        find = oracles.labels200 if labels == "scannet200" else oracles.labels20
        return np.array(find(self.raw_ids[labels].tolist()))

    def boxes(self, points, labels, classes):
        """List object id, raw id, centre and size of each object."""
        boxes = []
        for number in np.unique(self.objects[self.objects >= 0]):
            is_member = self.objects == number
            raw_id = self.raw_ids[labels][is_member][0]
            if raw_id in classes:
                low = points[is_member].min(axis=0)
                high = points[is_member].max(axis=0)
                boxes.append((number, raw_id, [*((low + high) / 2), *(high - low)]))
        return boxes


TRUTHS = {name: Truth(name) for name in SPLITS}


def octformer(place, labels):
    frame = "aligned" if labels == "scannet200" else "scan"
    files = {}
    for name, truth in TRUTHS.items():
        folder = "test" if name == TEST else "train"
        files[f"{folder}/{name}.npz"] = {
            "points": truth.points(frame),
            "normals": truth.normals(frame).astype(np.float16),
            "colors": truth.scene.colors,
            "labels": truth.classes(labels).astype(np.uint8),
        }
        if name != TEST:
            kept = truth.classes(labels) > 0 if labels == "scannet200" else True
            files[f"{folder}/{name}.txt"] = np.where(kept, truth.raw_ids[labels], 0)
    for split, names in {"train": [TRAIN, TRAIN_2], "val": [VAL], "test": [TEST]}.items():
        files[f"scannetv2_{split}_npz.txt"] = "".join(f"{name}.npz\n" for name in names)
    return files | {"scannetv2_test.txt": files["scannetv2_test_npz.txt"]}


def pointcept(place, labels):
    files = {}
    for name, truth in TRUTHS.items():
        assets = {
            "coord": truth.points("scan"),
            "color": truth.scene.colors,
            "normal": truth.normals("scan").astype(np.float32),
        }
        if name != TEST:
            assets["segment20"] = truth.classes("scannet20") - 1
            assets["segment200"] = truth.classes("scannet200") - 1
            assets["instance"] = truth.groups
        for asset, array in assets.items():
            files[f"{truth.split}/{name}/{asset}.npy"] = array
    return files


def benchmark_gt(place, labels):
    files = {}
    for name in ANNOTATED:
        raw_ids, groups = TRUTHS[name].raw_ids[labels], TRUTHS[name].groups
        labeled = sorted({*groups[raw_ids > 0].tolist()} - {-1})
        files[f"semantic/{name}.txt"] = raw_ids
        values = [
            raw_id * 1000 + labeled.index(group) + 1 if group in labeled else 0
            for raw_id, group in zip(raw_ids, groups, strict=True)
        ]
        files[f"instance/{name}.txt"] = np.array(values)
    return files


def segments_in(place, name):
    if name == TEST:
        return read_processed(place / f"test/{name}.npz").segments
    return TRUTHS[name].segments


def mask3d(place, labels):
    modes = {"train": "train", "val": "validation", "test": "test"}
    is_200 = labels == "scannet200"
    folder = "data/processed/scannet200" if is_200 else "data/processed/scannet"
    files = {}
    entries = {}
    for name in SPLITS if place.name == "aligned" else ANNOTATED:
        truth = TRUTHS[name]
        mode = modes[truth.split]
        columns = [truth.points("scan"), truth.scene.colors, truth.normals("scan")]
        columns.append(segments_in(place, name)[:, None])
        raw = f"scans_test/{name}/{name}" if name == TEST else f"scans/{name}/{name}"
        entry = {
            "filepath": f"{folder}/{mode}/{name[5:]}.npy",
            "scene": int(name[5:9]),
            "sub_scene": int(name[10:]),
            "raw_filepath": f"{raw}_vh_clean_2.ply",
            "file_len": 700,
        }
        if name != TEST:
            raw_ids, groups = truth.raw_ids[labels], truth.groups
            columns += [raw_ids[:, None], groups[:, None]]
            values = np.where(groups >= 0, raw_ids * 1000 + groups + 1, 0)
            files[f"instance_gt/{mode}/{name}.txt"] = values
            pixels = truth.scene.colors / 255
            entry |= {
                "scene_type": "Bedroom / Hotel",
                "raw_description_filepath": f"{raw}.txt",
                "raw_instance_filepath": f"{raw}.aggregation.json",
                "raw_segmentation_filepath": f"{raw}_vh_clean_2.0.010000.segs.json",
                "raw_label_filepath": f"{raw}_vh_clean_2.labels.ply",
                "instance_gt_filepath": f"{folder}/instance_gt/{mode}/{name}.txt",
                "color_mean": pytest.approx(pixels.mean(axis=0)),
                "color_std": pytest.approx((pixels**2).mean(axis=0)),
            }
            entries.setdefault("train_validation", []).append(entry)
        entries.setdefault(mode, []).append(entry)
        files[f"{mode}/{name[5:]}.npy"] = np.hstack(columns).astype(np.float32)
    files |= {f"{mode}_database.yaml": listed for mode, listed in entries.items()}
    pixels = np.stack([TRUTHS[name].scene.colors / 255 for name in (TRAIN_2, TRAIN)])
    moments = {"mean": pixels.mean(axis=(0, 1)), "std": pixels.std(axis=(0, 1))}
    files["color_mean_std.yaml"] = {key: pytest.approx(value) for key, value in moments.items()}
    label_set = SCANNET200 if is_200 else SCANNET20
    ids = oracles.scannet200_ids() if is_200 else oracles.NYU40_OF_SCANNET20
    files["label_database.yaml"] = {
        raw_id: {
            "color": [*label_set.colors[number]],
            "name": label_set.names[number].replace(" ", " " if is_200 else "_"),
            "validation": True,
        }
        for number, raw_id in enumerate(ids)
    }
    return files


def mmdet3d(place, labels, *, is_oneformer3d=False):
    dataset, names = ("scannet200", BOXES198) if labels == "scannet200" else ("scannet", BOXES18)
    files = {}
    infos = {}
    for name in ANNOTATED if is_oneformer3d and place.name == "scan" else SPLITS:
        truth = TRUTHS[name]
        files[f"points/{name}.bin"] = np.hstack([truth.points("scan"), truth.scene.colors])
        info = {"lidar_points": {"num_pts_feats": 6, "lidar_path": f"{name}.bin"}, "instances": []}
        if is_oneformer3d:
            files[f"super_points/{name}.bin"] = segments_in(place, name).astype(np.int64)
            info["super_pts_path"] = f"{name}.bin"
        if name != TEST:
            files[f"instance_mask/{name}.bin"] = truth.objects + 1
            files[f"semantic_mask/{name}.bin"] = truth.raw_ids[labels]
            for _, raw_id, box in truth.boxes(truth.aligned, labels, names):
                number = [*names].index(raw_id)
                instance = {"bbox_3d": pytest.approx(box, abs=2e-6), "bbox_label_3d": number}
                info["instances"].append(instance)
            info["pts_semantic_mask_path"] = info["pts_instance_mask_path"] = f"{name}.bin"
            info["axis_align_matrix"] = truth.matrix.tolist()
        infos.setdefault(truth.split, []).append(info)
    prefix = f"{dataset}_oneformer3d" if is_oneformer3d else dataset
    categories = {name: number for number, name in enumerate(names.values())}
    metainfo = {"categories": categories, "dataset": dataset, "info_version": "1.1"}
    for split, listed in infos.items():
        files[f"{prefix}_infos_{split}.pkl"] = {"metainfo": metainfo, "data_list": listed}
        if split != "test" and dataset == "scannet":
            scenes = [truth for truth in TRUTHS.values() if truth.split == split]
            counts = sum(np.bincount(truth.classes(labels), minlength=21)[1:] for truth in scenes)
            shares = np.float32(counts) / np.float32(counts.sum())
            files[f"seg_info/{split}_label_weight.npy"] = 1 / np.log(np.float32(1.2) + shares)
            files[f"seg_info/{split}_resampled_scene_idxs.npy"] = np.empty(0, np.int32)
    return files


def oneformer3d(place, labels):
    return mmdet3d(place, labels, is_oneformer3d=True)


def pointgroup(place, labels, *, is_spformer=False):
    is_200 = labels == "scannet200"
    files = {}
    for name in ANNOTATED if is_spformer and place.name == "scan" else SPLITS:
        truth = TRUTHS[name]
        points = truth.points("aligned" if is_200 else "scan")
        colors = np.float32(truth.scene.colors) / np.float32(127.5) - 1
        arrays = [points if is_200 else points - points.mean(axis=0), colors]
        if is_spformer:
            arrays.append(segments_in(place, name).astype(np.int64))
        elif name != TEST or place.name == "aligned":
            files[f"superpoints/{name}.pth"] = segments_in(place, name).astype(np.int64)
        if name != TEST:
            # Walls and floors are the first two classes. In ScanNet200, a chair is between them.
            moved = {0: -100, 2: 3, 3: 2} if is_200 else {0: -100}
            numbers = truth.classes(labels)
            classes = np.array([moved.get(n, n) - (n > 0) for n in numbers.tolist()], float)
            instances = np.full(len(classes), -100.0)
            groups = truth.groups
            kept = [
                group
                for group in np.unique(groups[groups >= 0])
                if group not in groups[(classes == 0) | (classes == 1)]
            ]
            for number, group in enumerate(kept):
                instances[groups == group] = number
            arrays += [classes, instances]
        if name == VAL:
            files[f"val_gt/{name}.txt"] = benchmark_gt(place, labels)[f"instance/{name}.txt"]
        files[f"{truth.split}/{name}_inst_nostuff.pth"] = tuple(arrays)
    return files


def spformer(place, labels):
    return pointgroup(place, labels, is_spformer=True)


def scanrefer(place, labels):
    files = {}
    for name, truth in TRUTHS.items():
        files[f"{name}_sem_label.npy"] = truth.raw_ids["scannet20"].astype(np.uint32)
        files[f"{name}_ins_label.npy"] = (truth.objects + 1).astype(np.uint32)
        for prefix, frame in {"": "scan", "aligned_": "aligned"}.items():
            points = truth.points(frame)
            columns = [points, truth.scene.colors, truth.normals(frame)]
            files[f"{name}_{prefix}vert.npy"] = np.hstack(columns).astype(np.float32)
            boxes = truth.boxes(points, "scannet20", BOXES37)
            rows = [[*box, raw_id, number] for number, raw_id, box in boxes]
            files[f"{name}_{prefix}bbox.npy"] = np.zeros((1, 8)) if name == TEST else np.array(rows)
    return files


def votenet(place, labels):
    files = {}
    for name, value in scanrefer(place, labels).items():
        if name.endswith("label.npy"):
            files[name] = value
        elif "aligned" in name:
            is_box = np.isin(value[:, 6], [*BOXES18])
            columns = value[is_box, :7] if "bbox" in name else value[:, :6]
            files[name.replace("aligned_", "")] = columns
    return {name: value for name, value in files.items() if TEST not in name}


def ply(place, labels):
    return {
        f"{truth.split}/{name}.ply": {
            "points": truth.points(place.name),
            "colors": truth.scene.colors,
            "label": truth.raw_ids[labels].astype(np.uint16),
            "faces": truth.scene.faces,
        }
        for name, truth in TRUTHS.items()
    }


def load(path, expected):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {key: arrays[key] for key in expected}
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".pth":
        torch = pytest.importorskip("torch")
        # NumPy 1 has no such module.
        assert b"numpy._core" not in path.read_bytes()
        return torch.load(path, weights_only=False)
    if path.suffix == ".bin":
        return np.fromfile(path, expected.dtype).reshape(expected.shape)
    if path.suffix == ".yaml":
        return yaml.safe_load(path.read_text())
    if path.suffix == ".pkl":
        names = {operation.name for operation, *_ in pickletools.genops(path.read_bytes())}
        assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
        return pickle.loads(path.read_bytes())
    if path.suffix == ".ply":
        mesh = PlyData.read(str(path))
        vertex = mesh["vertex"]
        return {
            "points": np.stack([vertex[name] for name in "xyz"], 1),
            "colors": np.stack([vertex[name] for name in ("red", "green", "blue")], 1),
            "label": vertex["label"],
            "faces": np.stack(mesh["face"]["vertex_indices"]),
        }
    if isinstance(expected, str):
        return path.read_text()
    return np.array(path.read_text("ascii").split("\n")[:-1], int)


def check_equal(actual, expected, limit):
    if isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        # Normals, which are at most 1, are stored as float16.
        limits = np.where(np.abs(expected) <= 1, 2e-3, limit)
        assert (np.abs(actual - expected.astype(float)) <= limits).all()
    elif isinstance(expected, tuple):
        assert type(actual) is tuple
        for one, other in zip(actual, expected, strict=True):
            # The programs change what they have loaded.
            assert one.flags.writeable
            check_equal(one, other, limit)
    elif isinstance(expected, dict) and "points" in expected:
        assert actual.keys() == expected.keys()
        for key in expected:
            check_equal(actual[key], expected[key], limit)
    else:
        assert actual == expected


WITH_BOTH = (octformer, mask3d, oneformer3d, benchmark_gt, ply)
WITH_ONE = (pointcept, mmdet3d, votenet, scanrefer)
WITH_TORCH = (pointgroup, spformer)
LABELS = ["scannet20", "scannet200"]
CASES = [*product(WITH_BOTH, LABELS), *product(WITH_ONE, LABELS[:1])]
CASES += [
    pytest.param(*case, marks=pytest.mark.extra("torch")) for case in product(WITH_TORCH, LABELS)
]
OWN_FILES = {"export.json", "TERMS.txt", ".scannet-prep.lock"}


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize(("program", "labels"), CASES)
def test_export_has_exactly_the_files_that_the_program_reads(
    root, tmp_path, program, labels, place
):
    place = root / place
    words = ("--format", program.__name__.replace("_", "-"))
    # The labels of the scenes are the default.
    is_stored = (labels == "scannet200") == (place.name == "aligned")
    if program not in WITH_ONE and not is_stored:
        words += ("--label-set", labels)
    succeed("export", place, "-o", tmp_path, *words)

    expected = program(place, labels)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert files - OWN_FILES == expected.keys()
    for name, value in expected.items():
        # The way back from the aligned frame is rounded.
        check_equal(load(tmp_path / name, value), value, 0 if place.name == "scan" else 1e-6)
    if program is octformer and is_stored:
        content = (place / f"val/{VAL}.npz").read_bytes()
        assert (tmp_path / f"train/{VAL}.npz").read_bytes() == content


def export(name, scene, folder, *, is_aligned=False):
    """Write the files of a scene, and return its record."""
    scene = in_frame(scene, is_aligned=is_aligned)
    files, record = find_function("export", name)(scene, SCANNET20)
    write_tree(folder, {name: b"".join(encode_file(name, files[name])) for name in files})
    return record


def test_user_chooses_the_frame(root, tmp_path):
    succeed("export", root / "scan", "--format", "pointcept", "--aligned", "-o", tmp_path)
    points = TRUTHS[VAL].points("aligned")
    assert np.array_equal(np.load(tmp_path / f"val/{VAL}/coord.npy"), points)
    scene = read_processed(root / f"aligned/train/{TRAIN}.npz")
    matrix = export("mmdet3d", scene, tmp_path, is_aligned=True)["axis_align_matrix"]
    assert matrix == np.eye(4).tolist()
    # The boxes that a processed file has are those of its own frame.
    scene = read_processed(root / f"scan/train/{TRAIN}.npz")
    export("octformer", scene, tmp_path, is_aligned=True)
    assert np.load(tmp_path / f"train/{TRAIN}.npz").files == [
        "points",
        "normals",
        "colors",
        "labels",
    ]


def test_drawn_points_are_the_same_in_all_arrays_and_for_ever_and_boxes_are_of_all(
    root, tmp_path, monkeypatch
):
    scene = read_processed(root / f"scan/train/{TRAIN}.npz")
    export("scanrefer", scene, tmp_path / "all")
    chosen = [323, 356, 358, 379, 461, 510, 532, 655]
    monkeypatch.setattr(detection, "_MAX_POINTS", 8)
    export("scanrefer", scene, tmp_path / "few")
    for path in (tmp_path / "few").iterdir():
        whole = np.load(tmp_path / "all" / path.name)
        expected = whole if "bbox" in path.name else whole[chosen]
        assert np.load(path).tobytes() == expected.tobytes()


def export_tiny(folder, files, **options):
    """Export the tiny scene, and return a reader of its files."""
    scene = tiny.process_tiny(folder / "raw", files, "room", **options)
    for name in ("scanrefer", "pointcept", "benchmark-gt", "mask3d", "mmdet3d", "pointgroup"):
        export(name, scene, folder)

    def read(name):
        path = folder / name.format("room")
        if path.suffix == ".pth":
            with path.open("rb") as file:
                return [array.tolist() for array in [pickle.load(file) for _ in range(4)][3][2:]]
        if path.suffix == ".txt":
            return [int(line) for line in path.read_text().split()]
        return (np.load(path) if path.suffix == ".npy" else np.fromfile(path, np.int64)).tolist()

    return read


# An own scene needs no axis alignment.
PLY_LABELS = {".txt": None, "_vh_clean_2.labels.ply": tiny.Ply(labels=(5, 2, 1, 1, 1, 7)).encode()}
FROM_PLY = {
    "semantic/{}.txt": [5, 2, 1, 1, 1, 7],
    "instance/{}.txt": [2001, 2001, 1002, 1002, 1002, 0],
    "instance_gt/train/{}.txt": [2001, 2001, 1002, 1002, 1002, 0],
    # The programs take all points of no object for one more object: it must have no class.
    "semantic_mask/{}.bin": [2, 2, 1, 1, 1, 0],
    "{}_sem_label.npy": [2, 2, 1, 1, 1, 0],
    "{}_bbox.npy": [],
    "train/{}_inst_nostuff.pth": [[1, 1, 0, 0, 0, 6], [-100] * 6],
}
# As in scene0217_00. Later groups replace earlier ones in the programs that describe objects. A
# group without a label is no instance of the benchmark.
REPEATED = [("chair", [0]), ("bed", [2, 4])] * 2 + [("no such", [5])]
REPEATED = [tiny.group(n, segments, name) for n, (name, segments) in enumerate(REPEATED)]
ONCE = {
    "instance_mask/{}.bin": [1, 1, 2, 2, 2, 5],
    "{}_ins_label.npy": [3, 3, 4, 4, 4, 5],
    "train/{}/instance.npy": [0, 0, 1, 1, 1, 4],
    "instance/{}.txt": [5001, 5001, 4002, 4002, 4002, 0],
    "train/{}_inst_nostuff.pth": [[4, 4, 3, 3, 3, -100], [0, 0, 1, 1, 1, 2]],
}


@pytest.mark.parametrize(
    ("files", "labels_from", "expected"),
    [
        (PLY_LABELS, "ply", FROM_PLY),
        ({".aggregation.json": tiny.aggregation_file(REPEATED)}, "aggregation", ONCE),
    ],
)
def test_labels_and_instances_are_those_of_groups_that_count_once(
    tmp_path, files, labels_from, expected
):
    read = export_tiny(tmp_path, files, labels_from=labels_from)
    assert {name: read(name) for name in expected} == expected
    assert read("train/{}.npy")[0][10] == read("semantic_mask/{}.bin")[0]


@pytest.mark.parametrize(
    ("object_ids", "bed", "chair"),
    [
        ((4, 2), 5, 3),
        ((None, 9), 8, 10),
        ((3, None), 8, 4),
        ((-1, 2), 8, 4),
        ((2**32 - 1, 2), 8, 4),
    ],
)
def test_objects_have_their_ids_if_usable_else_those_of_groups(tmp_path, object_ids, bed, chair):
    groups = [tiny.group(7, [0], "bed"), tiny.group(3, [2, 4], "chair"), tiny.group(9, [], "desk")]
    for group, object_id in zip(groups, (*object_ids, 30), strict=True):
        group["objectId"] = object_id

    read = export_tiny(tmp_path, {".aggregation.json": tiny.aggregation_file(groups)})

    assert read("instance_mask/{}.bin") == [bed, bed, chair, chair, chair, 0]
    # Boxes are in the order of the objects; the desk, which has no vertices, has none.
    order = sorted([[bed - 1, 4], [chair - 1, 5]])
    assert [box[:5:-1] for box in read("{}_bbox.npy")] == order


def test_lists_of_single_values():
    # The largest id that a label map may have.
    assert encode_lines(np.array([65_535], np.uint16)) == b"65535\n"

    # Scenes of 0.83 and 2.17 of 3 samples.
    record = {"counts": [7980] + [1] * 20, "boxes": [], "axis_align_matrix": None}
    records = {Split.TRAIN: {TRAIN_2: record, TRAIN: record | {"counts": [20_980] + [1] * 20}}}
    files = find_function("share", "mmdet3d")(records, SCANNET20)
    assert files["seg_info/train_resampled_scene_idxs.npy"].tolist() == [0, 1, 1]

    # Without train scenes, the moments are those of the train split of the release.
    entries = {"plot": {"filepath": "val/plot"}, VAL: {"filepath": "val/0568_00"}}
    records = {Split.TRAIN: {}, Split.VAL: entries, Split.TEST: {}}
    files = find_function("share", "mask3d")(records, SCANNET20)
    released = [0.47793125906962, 0.4303257521323044, 0.3749598901421883]
    assert yaml.safe_load(files["color_mean_std.yaml"])["mean"] == released
    assert yaml.safe_load(files["validation_database.yaml"]) == [*entries.values()]
    assert yaml.safe_load(files["train_validation_database.yaml"]) == [*entries.values()][::-1]
    files = find_function("share", "octformer")(records, None)
    assert b"scene0568_00.npz\nplot.npz\n" in files.values()


MANY = tiny.aggregation_file([tiny.group(2000 + i, [0, i], "floor") for i in range(1000)])
HIGH = tiny.aggregation_file([tiny.group(999, [0], "floor")])
TOO_HIGH = "scene0000_00 has an instance 1,000, .* 1 to 999"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("benchmark-gt", {".aggregation.json": MANY}, TOO_HIGH),
        ("mask3d", {".aggregation.json": HIGH}, TOO_HIGH),
        ("scanrefer", {".txt": None}, "scene0000_00 has no axis alignment"),
        ("mmdet3d", {".txt": None}, "scene0000_00 has no axis alignment"),
        ("scanrefer", {}, "room_aligned could have the names of the aligned files"),
    ],
)
def test_scene_that_a_format_cannot_represent_is_refused(tmp_path, name, files, message):
    scene_id = message.split()[0]
    scene = tiny.process_tiny(tmp_path, PLY_LABELS | files, scene_id, labels_from="ply")

    with pytest.raises(ScanNetPrepError, match=message):
        export(name, scene, tmp_path)
