"""The dataset: the same samples from a folder, an archive and a web server, and clear errors."""

import json
import math
import pickle
import re
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import count_descriptors, edit_json, flip
from oracles import check_same
from training import KINDS, SIZES, TRAIN, store

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed
from scannet_prep.errors import FileError, UnknownSceneError, UsageError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import process
from scannet_prep.transforms import Drop

# Unlike that of NumPy's arrays, its size is a function.
TENSOR = SimpleNamespace(size=len, __array__=lambda *_, **__: np.arange(900) % 2)


def draw(sample, generator):
    """Transform that returns three numbers of the generator."""
    return generator.integers(0, 1 << 30, 3).tolist()


BOTH_SETS = pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=str)


def find_train_ids(scene, label_set):
    """Train ids of the vertices, computed in a loop; -100 for unlabeled."""
    raw_ids = scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids
    train_ids = {raw_id: number for number, raw_id in enumerate(label_set.ids)}
    return np.array([train_ids.get(raw_id, -100) for raw_id in raw_ids.tolist()])


@BOTH_SETS
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_sample_is_the_file_in_training_types(stored, training_folder, split, label_set):
    dataset = ScanNet(stored.place, split=split, labels=label_set, ignore_index=-100)
    paths = sorted((training_folder / split).glob("*.npz"))

    # Twice, because changing a sample must not change the next.
    for _ in range(2):
        for path, sample in zip(paths, dataset, strict=True):
            scene = read_processed(path)
            segments = np.full(len(scene.points), -1)
            if split != "test":
                segments = scene.segments
            expected = {
                "points": scene.points,
                "normals": scene.normals.astype(np.float32),
                "colors": scene.colors,
                "labels": find_train_ids(scene, label_set),
                "instances": scene.instances.astype(np.int32),
                "segments": segments.astype(np.int32),
                "axis_alignment": scene.axis_alignment,
                "faces": scene.faces,
                "label_set": label_set.name,
                "scene_id": path.stem,
            }
            check_same(sample, expected)
            assert sample.is_aligned is dataset.is_aligned is False
            for key in expected.keys() - {"label_set", "scene_id"}:
                assert sample[key].flags.c_contiguous
                sample[key][...] = 1


def test_scenes_are_found_by_index_and_id(stored):
    dataset = ScanNet(stored.place, split="train")

    # The folder was processed with this label set.
    assert dataset.label_set == SCANNET200
    assert dataset.scene_ids == TRAIN
    assert dataset.lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]
    with pytest.raises(ValueError, match="read-only"):
        dataset.lengths[:] = 0
    for key in (1, -7, np.int64(1), "scene0000_01", (1, 5)):
        assert dataset[key]["scene_id"] == "scene0000_01"
    for key in (8, -9):
        with pytest.raises(IndexError):
            dataset[key]
    with pytest.raises(TypeError, match="'slice' object cannot"):
        dataset[:2]
    for key in ("scene0011_00", "x"):
        assert key not in dataset
        with pytest.raises(UnknownSceneError, match=f"has no train scene '{key}'"):
            dataset[key]
    call, _, facts = repr(dataset).rpartition(": ")
    assert facts == "8 scenes, is_aligned=False"
    for copy in (eval(call, {"ScanNet": ScanNet}), pickle.loads(pickle.dumps(dataset))):
        assert repr(copy) == repr(dataset)
        check_same(copy[2], dataset[2])
    few = ScanNet(stored.place, split="train", keys=["labels", "points"], transform=Drop(0))[0]
    assert list(few) == ["labels", "points", "label_set", "scene_id"]
    assert "'points': float32 (900, 3)" in repr(few)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["label"]}, "'label' is not an array of a sample, expected some of points, nor"),
        ({"split": ["train", "all"]}, "'all' is not a split"),
        ({"scenes": []}, "no scene was chosen"),
        ({"scenes": np.ones(8, bool)}, "found True, expected the index or the id"),
        ({"labels": "20"}, "expected ScanNet20 or ScanNet200"),
        ({"ignore_index": 19}, "ignore_index is 19, expected .* not a train id of ScanNet200"),
        ({"ignore_index": 1.5}, "ignore_index is 1.5, expected a whole number"),
        ({"scenes": ["scene0011_00"]}, "has no train scene 'scene0011_00'"),
        ({"points": {TRAIN[0]: [1]}}, "points: found none for scene0000_01 .7 of 8 scenes"),
        ({"points": [-1]}, r"found -1 to -1, expected .* vertices from 0 to 899"),
        ({"points": [3, 900]}, "found 3 to 900, expected"),
        ({"points": [0.5]}, "points: scene0000_00: found 0.5 to"),
        ({"points": [[1], [2, 3]]}, "(?s)points: scene0000_00: .*json.dump"),
        ({"points": np.ones(899, bool)}, "found True to True"),
        ({"points": TENSOR}, "found 0 to 1, expected"),
    ],
)
def test_invalid_argument_of_a_dataset_is_refused(training_folder, options, message):
    points = options.get("points", {})
    if not isinstance(points, dict):
        options = {"points": dict.fromkeys(TRAIN, (0,)) | {TRAIN[0]: points}}
    with pytest.raises(UsageError, match=message):
        ScanNet(training_folder, **{"split": "train", **options})


def test_selection_holds_the_selected_scenes(source, tmp_path):
    path = tmp_path / "names.txt"
    path.write_text(f"{TRAIN[2]}  # the last\n\n{TRAIN[0]}\n")
    whole = ScanNet(source, split="train")
    for selection in ([TRAIN[2], TRAIN[0]] * 2, path, str(path), np.array([2, -8])):
        part = ScanNet(source, split="train", scenes=selection)

        assert part.scene_ids == [TRAIN[0], TRAIN[2]]
        assert part.lengths.tolist() == whole.lengths[[0, 2]].tolist()
        check_same(pickle.loads(pickle.dumps(part))[1], whole[2])
        assert part.class_counts().sum() < whole.class_counts().sum()


def test_digest_covers_scenes_bytes_label_set_and_points(source, folder):
    def digest(place, **options):
        return ScanNet(place, split="train", **options).digest

    points = dict.fromkeys(TRAIN, (1, 2))
    digests = {
        digest(folder),
        digest(folder, labels="scannet20"),
        digest(folder, scenes=TRAIN[:-1]),
        digest(folder, points=points),
        digest(folder, points=points | {TRAIN[0]: [1, 3]}),
    }
    assert digest(source) == digest(folder)

    path = folder / "manifest.json"
    edit_json(path, lambda value: value["scenes"][TRAIN[0]].update(crc32="00000000"))
    assert len(digests | {digest(folder)}) == 6


def test_aligned_folder_is_aligned_by_the_matrix_of_its_samples(
    training_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(training_folder.parent))
    options = ProcessOptions(scannet200=True, align_axis=True)
    process.run(process.plan(training_folder.parent / "ScanNet", tmp_path, options), jobs=1)
    dataset = ScanNet(tmp_path, split="train")
    for sample, scan in zip(dataset, ScanNet("~/processed", split="train"), strict=True):
        matrix = scan["axis_alignment"]
        assert sample.is_aligned
        assert np.array_equal(sample["axis_alignment"], matrix)
        aligned = scan["points"] @ matrix[:3, :3].T + matrix[:3, 3]
        assert sample["points"] == pytest.approx(aligned, abs=1e-4)
    # Faces were not kept.
    with pytest.raises(UsageError, match="'faces' is not an array of a sample, expected"):
        ScanNet(tmp_path, split="train", keys=["faces"])


# Threads, memory and open files.


def test_threads_read_at_once(stored):
    dataset = pickle.loads(pickle.dumps(ScanNet(stored.place, split="train")))
    order = [index % 3 for index in range(60 if stored.kind == "url" else 300)]
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        pool = stack.enter_context(ThreadPoolExecutor(9))
        samples = list(pool.map(dataset.__getitem__, order))
    for index, sample in zip(order, samples, strict=True):
        check_same(sample, dataset[index])


def read_private_bytes():
    """Memory of this process that it shares with no other one."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"Private_Dirty: +(\d+)", rollup)[1])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this machine has no /proc")
def test_epochs_accumulate_nothing_and_leave_no_file_open(stored):
    # A scene has 30 kB: keeping all of them would take 2 or 10 MB.
    epochs = 8 if stored.kind == "url" else 40
    before = count_descriptors()
    dataset = ScanNet(stored.place, split="train")
    for epoch in range(epochs):
        assert len(list(dataset)) == len(dataset)
        if epoch == epochs // 4:
            early = count_descriptors(), read_private_bytes()
    late = count_descriptors(), read_private_bytes()
    # The connection to the web server, which is in this process, stays.
    assert late[0] <= (early[0] if stored.kind == "url" else before)
    # With the web server, the list of all its requests would be counted, too.
    assert stored.kind == "url" or late[1] - early[1] < 5_000_000


# Random numbers of transforms.


def test_random_numbers_depend_on_seed_epoch_and_index_alone(source):
    generator = np.random.default_rng(np.random.SeedSequence((0, 5, 1)))
    dataset = ScanNet(source, split="train", transform=draw)
    other = ScanNet(source, split="train", transform=draw, seed=1)

    expected = generator.integers(0, 1 << 30, 3).tolist()
    for key in (1, "scene0000_01", 1 - len(dataset)):
        assert dataset[key, np.int64(5)] == expected
    draws = [dataset[0, 0], dataset[1, 0], dataset[0, 1], dataset[2, 0], other[0, 0]]
    # A plain index means a random epoch if there are scenes for training, and otherwise epoch 0.
    both = ScanNet(source, split=["val", "train"], transform=draw)
    draws += [other[0], other[0], both["scene0011_00"], both["scene0011_00"]]
    assert both.scene_ids == [*TRAIN, "scene0011_00"]
    assert len({str(numbers) for numbers in draws}) == 9
    val = ScanNet(source, split="val", transform=draw)
    assert val[0] == val[0, 0]


# Class counts and weights.


def weigh_in_loop(rows, formula):
    """Weights of the classes, written as in the documentation of `class_weights`."""
    counts = [sum(column) for column in zip(*rows, strict=True)]
    present = [c for c, count in enumerate(counts) if count]
    assert 0 < len(present) < len(counts)
    frequency = {c: counts[c] / sum(sum(row) for row in rows if row[c]) for c in present}
    weights = [0.0] * len(counts)
    for c in present:
        weights[c] = {
            "inverse": sum(counts) / counts[c],
            "inverse_sqrt": math.sqrt(sum(counts) / counts[c]),
            "log": 1 / math.log(1.02 + counts[c] / sum(counts)),
            "median_frequency": statistics.median(frequency.values()) / frequency[c],
        }[formula]
    mean = sum(weights) / len(present)
    return [weight / mean for weight in weights]


@BOTH_SETS
def test_class_counts_and_weights_equal_a_loop(source, training_folder, label_set):
    rows = []
    for path in sorted((training_folder / "train").glob("*.npz")):
        raw_ids = getattr(read_processed(path), label_set.raw_ids_key).tolist()
        rows.append([raw_ids.count(raw_id) for raw_id in label_set.ids])
    dataset = ScanNet(source, split="train", labels=label_set)

    assert dataset.class_counts().tolist() == [sum(column) for column in zip(*rows, strict=True)]
    for formula in ("inverse", "inverse_sqrt", "log", "median_frequency"):
        weights = dataset.class_weights(formula)
        assert weights.dtype == np.float32
        assert weights.tolist() == pytest.approx(weigh_in_loop(rows, formula), rel=1e-5)
    assert np.array_equal(dataset.class_weights(), dataset.class_weights("inverse_sqrt"))
    with pytest.raises(UsageError, match=r"'cubic' is not a formula .*median_frequency"):
        dataset.class_weights("cubic")
    with pytest.raises(UsageError, match="no vertex has a class"):
        ScanNet(source, split="test", labels=label_set).class_weights()


# Limited annotations.


def test_only_listed_points_keep_label_and_instance(source, tmp_path):
    points = dict.fromkeys(TRAIN, (5, 7, 5, 11)) | {TRAIN[1]: (), TRAIN[2]: [*range(500)]}
    json_path = tmp_path / "points20"
    json_path.write_text(json.dumps(points))
    npz_path = tmp_path / "points.npz"
    np.savez(npz_path, **{name: np.array(indices, int) for name, indices in points.items()})
    whole = ScanNet(source, split="train", ignore_index=255)

    for argument in (points, json_path, str(npz_path)):
        limited = ScanNet(source, split="train", points=argument, ignore_index=255)
        copy = pickle.loads(pickle.dumps(limited))
        counts = np.zeros(256, int)
        for sample, before in zip(copy, whole, strict=True):
            kept = np.isin(np.arange(len(before["labels"])), points[before["scene_id"]])
            before["labels"][~kept] = 255
            before["instances"][~kept] = -1
            check_same(sample, {**before, "annotated": kept})
            counts += np.bincount(before["labels"], minlength=256)
        assert limited.class_counts().tolist() == counts[:200].tolist()
    few = ScanNet(source, split="train", points={TRAIN[2]: [1]}, scenes=[TRAIN[2]], keys=["points"])
    assert np.flatnonzero(few[0]["annotated"]).tolist() == [1]


def test_other_files_of_points_are_refused_without_executing_them(training_folder, tmp_path):
    marker = tmp_path / "marker"

    class Attack:
        def __reduce__(self):
            return (Path.touch, (marker,))

    np.savez(tmp_path / "pickled.npz", x=np.array([Attack()], object))
    (tmp_path / "points20").write_bytes(pickle.dumps({TRAIN[0]: Attack()}))
    (tmp_path / "not.npz").write_bytes(b"PK\3\4 not a zip file")
    (tmp_path / "torn.json").write_bytes(b'{"scene0000_00": [1')
    (tmp_path / "null.json").write_bytes(b"null")
    for name in ("pickled.npz", "points20", "torn.json", "null.json", "not.npz"):
        with pytest.raises(FileError, match=f"(?s){name}: is not a list of .*torch.load"):
            ScanNet(training_folder, split="train", points=tmp_path / name)
    assert not marker.exists()


# Damaged scenes.


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_scene_fails_alone_and_names_its_file(folder, tmp_path, kind):
    with store(kind, folder, tmp_path / "stored") as stored:
        path = stored.path
        if kind == "folder":
            path = path / "train/scene0001_00.npz"
        flip(path, path.stat().st_size // 3)
        dataset = ScanNet(stored.place, split="train")
        # Twice, because the first error must not hide the second.
        for _ in range(2):
            errors = {}
            for scene_id in TRAIN:
                try:
                    assert dataset[scene_id]["scene_id"] == scene_id
                except FileError as error:
                    errors[scene_id] = error
            ((scene_id, error),) = errors.items()
            assert re.search(rf"{scene_id}.*is damaged", str(error))
            assert kind == "folder" or "scannet.tar.zst" in str(error)
            assert error.hint
