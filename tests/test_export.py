"""Exports: every file and value that a program reads, computed with loops over the raw scenes."""

import math
import pickle
import pickletools
from dataclasses import replace

import numpy as np
import oracles
import pytest
import tiny
import yaml
from commands import digests, run_main
from extras import REAL_DIR
from plyfile import PlyData

from scannet_prep import SCANNET20, SCANNET200, SceneId, Split, read_processed
from scannet_prep.errors import ScanNetPrepError, UsageError
from scannet_prep.export import find_format
from scannet_prep.export.detection import choose_vertices
from scannet_prep.export.format import ExportSettings, encode_lines, encode_npy
from scannet_prep.raw.tree import RawScene
from scannet_prep.stages import export
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import make_scene

# The official order of the train scenes is not the sorted one.
TRAIN, TRAIN_2, VAL, TEST = "scene0191_00", "scene0000_00", "scene0568_00", "scene0707_00"
SPLITS = {TRAIN_2: "train", TRAIN: "train", VAL: "val", TEST: "test"}
ANNOTATED = [TRAIN_2, TRAIN, VAL]
DRAWN = {name: make_scene(name, vertices=700) for name in SPLITS}
IDENTITY = np.eye(4)
NAMES18 = [
    *("cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf", "picture"),
    *("counter", "desk", "curtain", "refrigerator", "showercurtrain", "toilet", "sink"),
    *("bathtub", "garbagebin"),
]
BOXES18 = dict(zip(oracles.NYU40_OF_SCANNET20[2:], NAMES18, strict=True))
BOXES198 = {row.raw_id: row.name for row in SCANNET200.classes if row.name not in ("wall", "floor")}
BOXES37 = {*range(3, 22), *range(23, 41)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The scenes in `scan`; in `aligned`, for ScanNet200, with segments of test; an archive."""
    root = tmp_path_factory.mktemp("root")
    for scene in DRAWN.values():
        write_scene(scene, root / "raw")
    aligned = ("--align-axis", "--scannet200", "--compute-segments")
    for name, words in {"scan": (), "aligned": aligned}.items():
        assert run_main("process", root / "raw", "-o", root / name, "--faces", *words).status == 0
    assert run_main("pack", root / "aligned", "-o", root / "aligned.tar.zst").status == 0
    return root


class Truth:
    """What the raw files say of a scene."""

    def __init__(self, name):
        self.scene = DRAWN[name]
        self.name = name
        self.split = SPLITS[name]
        groups = [
            {"id": number, "segments": group.segment_ids, "label": group.raw_category}
            for number, group in enumerate(self.scene.groups)
        ]
        segment_ids = self.scene.segment_ids.tolist()
        self.segments = np.unique(segment_ids, return_inverse=True)[1]
        self.nyu40, self.scannet, self.objects = oracles.ids_of_vertices(segment_ids, groups)
        ids = [*(group.id for group in self.scene.groups), -1]
        self.groups = [ids[number] for number in self.objects]
        matrix = self.scene.axis_alignment
        self.matrix = IDENTITY if matrix is None else matrix
        self.aligned = np.array(oracles.aligned_points(self.scene.positions, self.matrix))

    def points(self, frame):
        return self.aligned.astype(np.float32) if frame == "aligned" else self.scene.positions

    def normals(self, frame):
        return np.array(oracles.vertex_normals(self.points(frame), self.scene.faces.tolist()))

    def raw_ids(self, labels):
        return np.array(self.scannet if labels == "scannet200" else self.nyu40)

    def classes(self, labels):
        find = oracles.labels200 if labels == "scannet200" else oracles.labels20
        return np.array(find(self.raw_ids(labels).tolist()))

    def boxes(self, points, labels, classes):
        """Object id, raw id, centre and size of each object."""
        boxes = []
        for number in sorted(set(self.objects) - {-1}):
            members = [vertex for vertex, owner in enumerate(self.objects) if owner == number]
            raw_id = self.raw_ids(labels)[members[0]]
            if raw_id in classes:
                low = [min(points[vertex][axis] for vertex in members) for axis in range(3)]
                high = [max(points[vertex][axis] for vertex in members) for axis in range(3)]
                center = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
                size = [b - a for a, b in zip(low, high, strict=True)]
                boxes.append((number, raw_id, [*map(float, center), *map(float, size)]))
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
            files[f"{folder}/{name}.txt"] = np.where(kept, truth.raw_ids(labels), 0)
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
            assets["instance"] = np.array(truth.groups)
        for asset, array in assets.items():
            files[f"{truth.split}/{name}/{asset}.npy"] = array
    return files


def benchmark_gt(place, labels):
    files = {}
    for name in ANNOTATED:
        truth = TRUTHS[name]
        raw_ids = truth.raw_ids(labels)
        groups = sorted(
            {g for g, raw_id in zip(truth.groups, raw_ids, strict=True) if raw_id} - {-1}
        )
        numbers = [groups.index(group) + 1 if group in groups else 0 for group in truth.groups]
        files[f"semantic/{name}.txt"] = raw_ids
        files[f"instance/{name}.txt"] = np.where(numbers, raw_ids * 1000 + numbers, 0)
    return files


def segments_in(place, name):
    if name == TEST:
        return read_processed(place / f"test/{name}.npz").segments
    return TRUTHS[name].segments


def mask3d(place, labels):
    modes = {"train": "train", "val": "validation", "test": "test"}
    folder = "data/processed/scannet200" if labels == "scannet200" else "data/processed/scannet"
    files = {}
    entries = {}
    for name in SPLITS if place.name == "aligned" else ANNOTATED:
        truth = TRUTHS[name]
        mode = modes[truth.split]
        columns = [
            *(truth.points("scan"), truth.scene.colors, truth.normals("scan")),
            segments_in(place, name)[:, None],
        ]
        raw = f"scans_test/{name}/{name}" if name == TEST else f"scans/{name}/{name}"
        entry = {
            "filepath": f"{folder}/{mode}/{name[5:]}.npy",
            "scene": int(name[5:9]),
            "sub_scene": int(name[10:]),
            "raw_filepath": f"{raw}_vh_clean_2.ply",
            "file_len": 700,
        }
        if name != TEST:
            raw_ids = truth.raw_ids(labels)
            groups = np.array(truth.groups)
            columns += [raw_ids[:, None], groups[:, None]]
            values = np.where(groups >= 0, raw_ids * 1000 + groups + 1, 0)
            files[f"instance_gt/{mode}/{name}.txt"] = values
            channels = [[value / 255 for value in row] for row in truth.scene.colors.T.tolist()]
            squares = [[value * value for value in row] for row in channels]
            entry |= {
                "scene_type": "Bedroom / Hotel",
                "raw_description_filepath": f"{raw}.txt",
                "raw_instance_filepath": f"{raw}.aggregation.json",
                "raw_segmentation_filepath": f"{raw}_vh_clean_2.0.010000.segs.json",
                "raw_label_filepath": f"{raw}_vh_clean_2.labels.ply",
                "instance_gt_filepath": f"{folder}/instance_gt/{mode}/{name}.txt",
                "color_mean": [pytest.approx(math.fsum(row) / 700) for row in channels],
                "color_std": [pytest.approx(math.fsum(row) / 700) for row in squares],
            }
            entries.setdefault("train_validation", []).append(entry)
        entries.setdefault(mode, []).append(entry)
        files[f"{mode}/{name[5:]}.npy"] = np.hstack(columns).astype(np.float32)
    files |= {f"{mode}_database.yaml": listed for mode, listed in entries.items()}
    pixels = [TRUTHS[name].scene.colors / 255 for name in (TRAIN_2, TRAIN)]
    mean = np.mean([array.mean(axis=0) for array in pixels], axis=0)
    square = np.mean([(array**2).mean(axis=0) for array in pixels], axis=0)
    moments = {"mean": [*mean], "std": [*np.sqrt(square - mean**2)]}
    files["color_mean_std.yaml"] = {key: pytest.approx(value) for key, value in moments.items()}
    label_set = SCANNET200 if labels == "scannet200" else SCANNET20
    ids = oracles.scannet200_ids() if labels == "scannet200" else oracles.NYU40_OF_SCANNET20
    blank = " " if labels == "scannet200" else "_"
    files["label_database.yaml"] = {
        raw_id: {
            "color": [*label_set.colors[number]],
            "name": label_set.names[number].replace(" ", blank),
            "validation": True,
        }
        for number, raw_id in enumerate(ids)
    }
    return files


def mmdet3d(place, labels, *, is_oneformer3d=False):
    dataset = "scannet200" if labels == "scannet200" else "scannet"
    names = BOXES198 if labels == "scannet200" else BOXES18
    files = {}
    infos = {}
    for name in ANNOTATED if is_oneformer3d and place.name == "scan" else SPLITS:
        truth = TRUTHS[name]
        arrays = {"points": np.hstack([truth.points("scan"), truth.scene.colors])}
        info = {"lidar_points": {"num_pts_feats": 6, "lidar_path": f"{name}.bin"}, "instances": []}
        if is_oneformer3d:
            arrays["super_points"] = segments_in(place, name).astype(np.int64)
            info["super_pts_path"] = f"{name}.bin"
        if name != TEST:
            arrays["instance_mask"] = np.array(truth.objects) + 1
            arrays["semantic_mask"] = truth.raw_ids(labels)
            for _, raw_id, box in truth.boxes(truth.aligned, labels, names):
                number = [*names].index(raw_id)
                instance = {"bbox_3d": pytest.approx(box, abs=2e-6), "bbox_label_3d": number}
                info["instances"].append(instance)
            assert len(info["instances"]) > 2
            info["pts_semantic_mask_path"] = info["pts_instance_mask_path"] = f"{name}.bin"
            info["axis_align_matrix"] = truth.matrix.tolist()
        files |= {f"{folder}/{name}.bin": array for folder, array in arrays.items()}
        infos.setdefault(truth.split, []).append(info)
    prefix = f"{dataset}_oneformer3d" if is_oneformer3d else dataset
    categories = {name: number for number, name in enumerate(names.values())}
    metainfo = {"categories": categories, "dataset": dataset, "info_version": "1.1"}
    for split, listed in infos.items():
        files[f"{prefix}_infos_{split}.pkl"] = {"metainfo": metainfo, "data_list": listed}
        if split != "test" and dataset == "scannet":
            scenes = [truth for truth in TRUTHS.values() if truth.split == split]
            counts = sum(np.bincount(truth.classes(labels), minlength=21)[1:] for truth in scenes)
            counts = counts.astype(np.float32)
            weights = 1 / np.log(1.2 + counts / counts.sum())
            files[f"seg_info/{split}_label_weight.npy"] = weights.astype(np.float32)
            files[f"seg_info/{split}_resampled_scene_idxs.npy"] = np.empty(0, np.int32)
    return files


def oneformer3d(place, labels):
    return mmdet3d(place, labels, is_oneformer3d=True)


def detection(frame, name, truth, classes, *, has_normals):
    columns = [truth.points(frame), truth.scene.colors]
    columns += [truth.normals(frame)] if has_normals else []
    points = truth.points(frame)
    boxes = [
        [*box, raw_id, number] for number, raw_id, box in truth.boxes(points, "scannet20", classes)
    ]
    boxes = np.array(boxes) if name != TEST else np.zeros((1, 8))
    return np.hstack(columns).astype(np.float32), boxes[:, : 8 if has_normals else 7]


def votenet(place, labels, names=ANNOTATED, classes=BOXES18, *, has_normals=False):
    files = {}
    for name in names:
        truth = TRUTHS[name]
        files[f"{name}_sem_label.npy"] = np.array(truth.nyu40, np.uint32)
        files[f"{name}_ins_label.npy"] = np.array(truth.objects, np.int64) + 1
        files[f"{name}_ins_label.npy"] = files[f"{name}_ins_label.npy"].astype(np.uint32)
        frames = {"": "scan", "aligned_": "aligned"} if has_normals else {"": "aligned"}
        for prefix, frame in frames.items():
            points, boxes = detection(frame, name, truth, classes, has_normals=has_normals)
            files[f"{name}_{prefix}vert.npy"] = points
            files[f"{name}_{prefix}bbox.npy"] = boxes
    return files


def scanrefer(place, labels):
    return votenet(place, labels, SPLITS, BOXES37, has_normals=True)


def ply(place, labels):
    return {
        f"{truth.split}/{name}.ply": {
            "points": truth.points(place.name),
            "colors": truth.scene.colors,
            "label": truth.raw_ids(labels).astype(np.uint16),
            "faces": truth.scene.faces,
        }
        for name, truth in TRUTHS.items()
    }


def load(path, expected):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {key: arrays[key] for key in expected}
    if path.suffix == ".npy":
        array = np.load(path)
        assert array.flags.c_contiguous
        return array
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
        columns = {"points": ["x", "y", "z"], "colors": ["red", "green", "blue"]}
        return {key: np.stack([vertex[name] for name in columns[key]], 1) for key in columns} | {
            "label": vertex["label"],
            "faces": np.stack(mesh["face"]["vertex_indices"]),
        }
    if isinstance(expected, str):
        return path.read_text()
    return np.array(path.read_text("ascii").split("\n")[:-1], int)


def check_equal(actual, expected, place, file):
    """Check a value; floats may differ by rounding, but not if no frame has changed."""
    if isinstance(expected, dict) and any(isinstance(x, np.ndarray) for x in expected.values()):
        assert actual.keys() == expected.keys()
        for key in expected:
            check_equal(actual[key], expected[key], place, key)
    elif not isinstance(expected, np.ndarray):
        assert actual == expected, file
    else:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), file
        if actual.dtype.kind != "f":
            assert np.array_equal(actual, expected), file
            return
        difference = np.abs(actual.astype(float) - expected)
        # Positions and boxes: one unit in the last place of the largest coordinate, for the way
        # back from the aligned frame. Normals are stored as float16, and perhaps rotated.
        limit = 0 if place.name == "scan" else 2e-6
        has_normals = {"mask3d": 6, "normals": 0, "normal.npy": 0, "vert.npy": 6}
        start = [number for name, number in has_normals.items() if file.endswith(name)]
        if "/0" in file:
            start = [6]
        if actual.ndim == 2 and start:
            normals = slice(start[0], start[0] + 3)
            assert difference[:, normals].max(initial=0) < 2e-3, file
            difference[:, normals] = 0
        assert difference.max(initial=0) <= limit, file


LABEL_SETS = ("scannet20", "scannet200")
CASES = [
    *((program, labels) for program in (octformer, mask3d, oneformer3d) for labels in LABEL_SETS),
    *((program, labels) for program in (benchmark_gt, ply) for labels in LABEL_SETS),
    *((program, "") for program in (pointcept, mmdet3d, votenet, scanrefer)),
]


@pytest.mark.parametrize("place", ["scan", "aligned"])
@pytest.mark.parametrize(("program", "labels"), CASES)
def test_export_has_exactly_the_files_that_the_program_reads(
    root, tmp_path, program, labels, place
):
    place = root / place
    words = ("--format", program.__name__.replace("_", "-"))
    words += ("--label-set", labels) if labels else ()
    outcome = run_main("export", place, "-o", tmp_path / "a", *words)

    assert outcome.status == 0, outcome.stderr
    expected = program(place, labels)
    files = {path.relative_to(tmp_path / "a").as_posix(): path for path in tmp_path.rglob("*.*")}
    files = {name: path for name, path in files.items() if path.is_file()}
    del files["export.json"], files["TERMS.txt"]
    files = {name: path for name, path in files.items() if not path.name.startswith(".")}
    assert files.keys() == expected.keys()
    for name, value in expected.items():
        check_equal(load(files[name], value), value, place, name)
    if place.name == "aligned":
        archive = place.with_name("aligned.tar.zst")
        words += ("--jobs", "2") if program is octformer else ()
        assert run_main("export", archive, "-o", tmp_path / "b", *words).status == 0
        assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.fixture(scope="module")
def scene(root):
    return read_processed(root / f"scan/train/{TRAIN}.npz")


def encode(name, scene, folder, **settings):
    """Write the files of a scene, and return its record."""
    files, record = find_format(name).encode(scene, ExportSettings(**settings))
    for file, chunks in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(chunks))
    return record


def test_frame_of_the_user_is_exact_forward_and_rounded_back(root, tmp_path):
    for place in ("scan", "aligned"):
        for word in ("aligned", "unaligned"):
            words = ("--format", "pointcept", f"--{word}", "-o", tmp_path / place / word)
            assert run_main("export", root / place, *words).status == 0
    for name, truth in TRUTHS.items():
        for place, word in (("scan", "aligned"), ("aligned", "aligned"), ("scan", "unaligned")):
            points = np.load(tmp_path / place / word / truth.split / name / "coord.npy")
            assert np.array_equal(points, truth.points("aligned" if word == "aligned" else "scan"))
        back = np.load(tmp_path / "aligned/unaligned" / truth.split / name / "coord.npy")
        assert np.abs(back - truth.scene.positions).max() <= np.spacing(np.float32(8))

    words = ("--format", "mmdet3d", "--aligned", "-o", tmp_path / "mmdet3d")
    assert run_main("export", root / "scan", *words).status == 0
    infos = pickle.loads((tmp_path / "mmdet3d/scannet_infos_train.pkl").read_bytes())["data_list"]
    for info, name in zip(infos, (TRAIN_2, TRAIN), strict=True):
        assert info["axis_align_matrix"] == IDENTITY.tolist()
        boxes = TRUTHS[name].boxes(TRUTHS[name].aligned, "scannet20", BOXES18)
        expected = [pytest.approx(box, abs=2e-6) for _, _, box in boxes]
        assert [instance["bbox_3d"] for instance in info["instances"]] == expected


def test_octformer_reads_the_processed_file_if_it_has_the_frame_and_the_labels(root, tmp_path):
    for place in ("scan", "aligned"):
        words = ("export", root / place, "--format", "octformer", "-o", tmp_path / place)
        assert run_main(*words).status == 0
        for name, split in SPLITS.items():
            folder = "test" if name == TEST else "train"
            content = (tmp_path / place / folder / f"{name}.npz").read_bytes()
            assert content == (root / place / split / f"{name}.npz").read_bytes()


def test_drawn_points_are_the_same_vertices_in_all_arrays_and_boxes_are_of_all(scene, tmp_path):
    chosen = choose_vertices(scene, 200)
    assert len(set(chosen)) == 200
    assert chosen.tolist() == sorted(chosen)
    for name in ("votenet", "scanrefer"):
        encode(name, scene, tmp_path / name / "all", points=None, is_aligned=True)
        encode(name, scene, tmp_path / name / "few", points=200, is_aligned=True)
        for path in (tmp_path / name / "few").iterdir():
            whole = np.load(tmp_path / name / "all" / path.name)
            expected = whole if "bbox" in path.name else whole[chosen]
            assert np.load(path).tobytes() == expected.tobytes()

    large = tiny.process_written(
        RawScene(SceneId(TRAIN), write_scene(make_scene(TRAIN, vertices=50_001), tmp_path / "raw"))
    )
    encode("votenet", large, tmp_path / "large")
    assert np.load(tmp_path / f"large/{TRAIN}_vert.npy").shape == (50_000, 6)


def test_draw_is_uniform_the_same_for_ever_and_another_for_each_scene(root, scene):
    assert choose_vertices(scene, 8).tolist() == [323, 356, 358, 379, 461, 510, 532, 655]
    other = read_processed(root / f"scan/train/{TRAIN_2}.npz")
    assert choose_vertices(other, 8).tolist() != choose_vertices(scene, 8).tolist()
    # Of 300 scenes, a vertex is drawn in 75, with a standard deviation of 7.5.
    counts = np.zeros(700, int)
    for number in range(300):
        meta = replace(scene.meta, scene_id=SceneId(f"scene0{number:03}_00"))
        counts[choose_vertices(replace(scene, meta=meta), 175)] += 1
    assert 75 - 45 < counts.min() <= counts.max() < 75 + 45


def test_labels_and_instances_are_those_of_groups_also_with_labels_from_ply(tmp_path):
    labels = {"_vh_clean_2.labels.ply": tiny.Ply(labels=(5, 2, 1, 1, 1, 7)).encode()}
    scene = tiny.process_tiny(tmp_path / "raw", labels, labels_from="ply")
    for name in ("benchmark-gt", "mask3d", "mmdet3d", "votenet"):
        encode(name, scene, tmp_path)

    def read(name):
        return [int(line) for line in (tmp_path / name / "scene0000_00.txt").read_text().split()]

    assert read("semantic") == [5, 2, 1, 1, 1, 7]
    assert read("instance") == [2001, 2001, 1002, 1002, 1002, 0]
    assert read("instance_gt/train") == [2001, 2001, 1002, 1002, 1002, 0]
    assert np.load(tmp_path / "train/0000_00.npy")[:, 10].tolist() == [2, 2, 1, 1, 1, 7]
    mask = np.fromfile(tmp_path / "semantic_mask/scene0000_00.bin", np.int64)
    assert mask.tolist() == [2, 2, 1, 1, 1, 7]
    # The programs take all points of no object for one more object: it must have no votes.
    assert np.load(tmp_path / "scene0000_00_sem_label.npy").tolist() == [2, 2, 1, 1, 1, 0]
    assert np.load(tmp_path / "scene0000_00_bbox.npy").shape == (0, 7)


def export_groups(folder, *groups, names=("mmdet3d", "scanrefer", "pointcept", "benchmark-gt")):
    """Export the tiny scene with these groups: instances of mmdet3d, labels and ids of boxes."""
    files = {".aggregation.json": tiny.aggregation_file(groups)}
    scene = tiny.process_tiny(folder / "raw", files)
    record, *_ = [encode(name, scene, folder) for name in names]
    mask = np.fromfile(folder / "instance_mask/scene0000_00.bin", np.int64).tolist()
    numbers = [number for number, _ in record["boxes"]]
    return mask, numbers, np.load(folder / "scene0000_00_bbox.npy")[:, 6:].tolist()


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

    mask, numbers, boxes = export_groups(tmp_path, *groups)

    assert mask == [bed, bed, chair, chair, chair, 0]
    # Boxes are in the order of the objects; the desk, which has no vertices, has none.
    order = sorted([(bed - 1, 4, 1), (chair - 1, 5, 2)])
    assert numbers == [number for _, _, number in order]
    assert boxes == [[nyu40_id, object_id] for object_id, nyu40_id, _ in order]


def test_groups_that_the_release_repeats_count_once(tmp_path):
    # As in scene0217_00. Later groups replace earlier ones in the programs that describe objects.
    groups = [("chair", [0]), ("bed", [2, 4])] * 2
    groups = [tiny.group(n, segments, name) for n, (name, segments) in enumerate(groups)]

    mask, _, boxes = export_groups(tmp_path, *groups)

    assert mask == [1, 1, 2, 2, 2, 0]
    assert boxes == [[5, 2], [4, 3]]
    assert np.load(tmp_path / "scene0000_00_ins_label.npy").tolist() == [3, 3, 4, 4, 4, 0]
    assert np.load(tmp_path / "train/scene0000_00/instance.npy").tolist() == [0, 0, 1, 1, 1, -1]
    lines = (tmp_path / "instance/scene0000_00.txt").read_text().split()
    assert lines == ["5001", "5001", "4002", "4002", "4002", "0"]


def test_group_without_a_label_is_no_instance_of_the_benchmark(tmp_path):
    groups = [*tiny.GROUPS, tiny.group(2, [5], "no such")]
    scene = tiny.process_tiny(tmp_path, {".aggregation.json": tiny.aggregation_file(groups)})
    encode("benchmark-gt", scene, tmp_path)
    lines = (tmp_path / "instance/scene0000_00.txt").read_text().split()
    assert lines == ["2001", "2001", "1002", "1002", "1002", "0"]


def test_lists_of_single_values(tmp_path):
    # Scenes of 0.83 and 2.17 of 3 samples.
    record = {"vertices": 8000, "counts": [1] * 20, "boxes": [], "axis_align_matrix": None}
    records = {Split.TRAIN: {TRAIN_2: record, TRAIN: record | {"vertices": 21_000}}}
    files = find_format("mmdet3d").share(records, ExportSettings())
    (tmp_path / "a.npy").write_bytes(files["seg_info/train_resampled_scene_idxs.npy"])
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 1]

    # Python writes this number as 1e-05, which is a text in YAML 1.1.
    record = {"file_len": 6, "scene_type": None, "color_mean": [1e-05] * 3, "color_std": [0.5] * 3}
    files = find_format("mask3d").share({Split.TRAIN: {TRAIN: record}}, ExportSettings())
    (entry,) = yaml.safe_load(files["train_validation_database.yaml"])
    assert entry.items() >= record.items()
    assert yaml.safe_load(files["color_mean_std.yaml"])["mean"] == [1e-05] * 3

    # Without train scenes, the moments are those of the train split of the release.
    files = find_format("mask3d").share({Split.VAL: {VAL: record}}, ExportSettings())
    means = yaml.safe_load(files["color_mean_std.yaml"])["mean"]
    assert means == [0.47793125906962, 0.4303257521323044, 0.3749598901421883]


NO_SEGMENTS = {
    "_vh_clean_2.labels.ply": tiny.Ply(labels=(1,) * 6).encode(),
    "_vh_clean_2.0.010000.segs.json": None,
    ".aggregation.json": None,
}
MANY = tiny.aggregation_file([tiny.group(2000 + i, [0, i], "floor") for i in range(1000)])
HIGH = tiny.aggregation_file([tiny.group(999, [0], "floor")])


@pytest.mark.parametrize(
    ("name", "files", "options", "message"),
    [
        ("benchmark-gt", {".aggregation.json": MANY}, {}, "1,000 labeled .* can distinguish 999"),
        ("mask3d", {".aggregation.json": HIGH}, {}, "scene0000_00 has a group 999, .* 0 to 998"),
        ("mask3d", NO_SEGMENTS, {"labels_from": "ply"}, "scene0000_00 has no segments"),
        ("oneformer3d", NO_SEGMENTS, {"labels_from": "ply"}, "scene0000_00 has no segments"),
        ("votenet", {".txt": None}, {}, "scene0000_00 has no axis alignment"),
        ("scanrefer", {".txt": None}, {}, "scene0000_00 has no axis alignment"),
    ],
)
def test_scene_that_a_format_cannot_represent_is_refused(tmp_path, name, files, options, message):
    scene = tiny.process_tiny(tmp_path, files, **options)

    with pytest.raises(ScanNetPrepError, match=message):
        find_format(name).encode(scene, ExportSettings(is_aligned=name == "votenet"))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("walls", {}, "'walls' is not a format"),
        ("pointcept", {"label_set": SCANNET200}, "pointcept has no choice of --label-set"),
        ("votenet", {"is_aligned": False}, "votenet has no choice of --aligned or --unaligned"),
        ("mmdet3d", {"label_set": SCANNET200}, "mmdet3d has no choice of --label-set"),
        ("octformer", {"points": 5}, "octformer has no choice of --points"),
    ],
)
def test_settings_that_a_format_does_not_use_are_refused(root, tmp_path, name, settings, message):
    with pytest.raises(UsageError, match=message):
        export.plan(root / "scan", tmp_path / "out", name, settings)


@pytest.mark.parametrize("largest", [1, 41, 1358, 10**6])
def test_encoded_arrays_and_lines_are_those_of_numpy(tmp_path, largest):
    numbers = np.random.default_rng(0).integers(0, largest, 300)
    for array in (numbers, numbers[:0], numbers.astype(np.float32).reshape(-1, 3).T):
        np.save(tmp_path / "a.npy", np.ascontiguousarray(array))
        assert b"".join(encode_npy(array)) == (tmp_path / "a.npy").read_bytes()
    np.savetxt(tmp_path / "a.txt", numbers, fmt="%d")
    assert encode_lines(numbers) == (tmp_path / "a.txt").read_bytes()
    assert encode_lines(numbers[:0]) == b""


@pytest.mark.extra("real data")
def test_real_scene_has_the_boxes_of_a_loop_over_its_vertices(tmp_path):
    raw = RawScene(SceneId("scene0000_00"), REAL_DIR / "scans/scene0000_00")
    scene = tiny.process_written(raw, align_axis=True)
    encode("votenet", scene, tmp_path, is_aligned=True)

    boxes = np.load(tmp_path / "scene0000_00_bbox.npy")
    expected = []
    for group in sorted(scene.meta.groups, key=lambda group: group.object_id):
        points = scene.points[scene.instances == group.id]
        if group.nyu40_id in BOXES18:
            low, high = points.min(axis=0), points.max(axis=0)
            expected.append([*((low + high) / 2), *(high - low), group.nyu40_id])
    assert boxes.tolist() == np.array(expected).tolist()
    assert np.load(tmp_path / "scene0000_00_vert.npy").shape == (50_000, 6)
