"""The dataset: the same samples from a folder, an archive and a web server, and clear errors."""

import json
import math
import os
import pickle
import re
import shutil
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from archives import flip
from commands import count_descriptors, edit_json
from training_sources import KINDS, SIZES, TRAIN, check_same, draw, process_into, store

from scannet_prep import (
    SCANNET20,
    SCANNET200,
    ScanNet,
    read_processed,
)
from scannet_prep.errors import (
    FileError,
    MissingFileError,
    ScanNetPrepError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import process

BOTH_SETS = pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=lambda one: one.name)
SEVERAL_KINDS = pytest.mark.parametrize("stored", ["folder", "archive", "url"], indirect=True)


def find_train_ids(scene, label_set):
    """Train ids of the vertices, computed in a loop; -100 for unlabeled."""
    raw_ids = scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids
    ids = list(label_set.ids)
    return np.array(
        [ids.index(raw_id) if raw_id in ids else -100 for raw_id in raw_ids.tolist()], np.int64
    )


@BOTH_SETS
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_sample_is_the_file_in_training_types(stored, training_folder, split, label_set):
    dataset = ScanNet(stored.place, split=split, labels=label_set, ignore_index=-100)
    paths = sorted((training_folder / split).glob("*.npz"))

    assert len(dataset) == len(paths)
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
            assert (sample["labels"] == -100).all() == (split == "test")
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
    for key in ("scene0011_00", "x"):
        assert key not in dataset
        with pytest.raises(UnknownSceneError, match=f"has no train scene '{key}'"):
            dataset[key]
    assert TRAIN[0] in dataset
    assert "'points': float32 (900, 3)" in repr(dataset[0])
    call, _, facts = repr(dataset).rpartition(": ")
    assert facts == "8 scenes, is_aligned=False"
    for copy in (eval(call, {"ScanNet": ScanNet}), pickle.loads(pickle.dumps(dataset))):
        assert repr(copy) == repr(dataset)
        check_same(copy[2], dataset[2])
        assert copy.digest == dataset.digest
    few = ScanNet(stored.place, split="train", keys=["labels", "points"])[0]
    assert list(few) == ["labels", "points", "label_set", "scene_id"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["label"]}, "'label' is not an array of a sample, expected some of points, nor"),
        ({"split": ["train", "all"]}, "'all' is not a split"),
        ({"labels": "20"}, "expected ScanNet20 or ScanNet200"),
        ({"ignore_index": 19}, "ignore_index is 19, expected .* not a train id of ScanNet200"),
        ({"ignore_index": 1.5}, "ignore_index is 1.5, expected a whole number"),
        ({"scenes": ["scene0011_00"]}, "has no train scene 'scene0011_00'"),
        ({"points": {TRAIN[0]: [1]}}, "points: found none for scene0000_01 .7 of 8 scenes"),
        ({"points": [-1]}, r"found -1 to -1, expected .* vertices from 0 to 899"),
        ({"points": [3, 900]}, "found 3 to 900, expected"),
        ({"points": [0.5]}, "points: scene0000_00: found 0.5 to"),
        ({"points": np.ones(900, bool)}, "found True to True"),
    ],
)
def test_invalid_argument_of_a_dataset_is_refused(training_folder, options, message):
    points = options.get("points", {})
    if not isinstance(points, dict):
        options = {"points": dict.fromkeys(TRAIN, (0,)) | {TRAIN[0]: points}}
    with pytest.raises(UsageError, match=message):
        ScanNet(training_folder, **{"split": "train", **options})


def test_several_splits_are_one_dataset(stored):
    train, val = (ScanNet(stored.place, split=split) for split in ("train", "val"))
    both = ScanNet(stored.place, split=["val", "train"])

    assert both.scene_ids == sorted(train.scene_ids + val.scene_ids)
    assert both.lengths.sum() == train.lengths.sum() + val.lengths.sum()
    assert both.class_counts().tolist() == (train.class_counts() + val.class_counts()).tolist()
    for part in (train, val):
        check_same(both[part.scene_ids[0]], part[0])


@pytest.mark.parametrize("kind", ["ids", "file", "name of a file", "indices"])
def test_selection_holds_the_selected_scenes(source, tmp_path, kind):
    path = tmp_path / "names.txt"
    path.write_text(f"{TRAIN[2]}  # the last\n\n{TRAIN[0]}\n")
    selection = {
        "ids": [TRAIN[2], TRAIN[0]] * 2,
        "file": path,
        "name of a file": str(path),
        "indices": np.array([2, -8]),
    }[kind]
    whole = ScanNet(source, split="train")
    part = ScanNet(source, split="train", scenes=selection)

    assert part.scene_ids == [TRAIN[0], TRAIN[2]]
    assert part.lengths.tolist() == whole.lengths[[0, 2]].tolist()
    check_same(pickle.loads(pickle.dumps(part))[1], whole[2])
    assert TRAIN[1] not in part
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

    def change(manifest):
        manifest["scenes"][TRAIN[0]]["crc32"] = "00000000"

    edit_json(folder / "manifest.json", change)
    assert len(digests | {digest(folder)}) == 6


def test_aligned_folder_is_aligned_by_the_matrix_of_its_samples(training_folder, tmp_path):
    options = ProcessOptions(scannet200=True, align_axis=True)
    process.run(process.plan(training_folder.parent / "ScanNet", tmp_path, options), jobs=1)
    dataset = ScanNet(tmp_path, split="train")
    assert dataset.is_aligned
    for sample, scan in zip(dataset, ScanNet(training_folder, split="train"), strict=True):
        matrix = scan["axis_alignment"]
        assert sample.is_aligned
        assert np.array_equal(sample["axis_alignment"], matrix)
        aligned = scan["points"] @ matrix[:3, :3].T + matrix[:3, 3]
        assert sample["points"] == pytest.approx(aligned, abs=1e-4)


# Threads, memory and open files.


@SEVERAL_KINDS
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


@SEVERAL_KINDS
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
    # Of the web server, the list of all requests would be counted, too.
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


@pytest.mark.parametrize("kind", ["dict", "json", "npz"])
def test_only_listed_points_keep_label_and_instance(source, tmp_path, kind):
    points = dict.fromkeys(TRAIN, (5, 7, 5, 11)) | {TRAIN[1]: ()}
    argument = points
    if kind == "json":
        argument = tmp_path / "points20"
        argument.write_text(json.dumps(points))
    if kind == "npz":
        argument = str(tmp_path / "points.npz")
        np.savez(argument, **{name: np.array(indices, int) for name, indices in points.items()})
    limited = ScanNet(source, split="train", points=argument, ignore_index=255)

    expected_counts = np.zeros(200, int)
    copy = pickle.loads(pickle.dumps(limited))
    for sample, before in zip(copy, ScanNet(source, split="train", ignore_index=255), strict=True):
        kept = np.isin(np.arange(len(before["labels"])), points[before["scene_id"]])
        before["labels"][~kept] = 255
        before["instances"][~kept] = -1
        check_same(sample, {**before, "annotated": kept})
        labels = before["labels"]
        expected_counts += np.bincount(labels[labels < 255], minlength=200)
    assert limited.class_counts().tolist() == expected_counts.tolist()
    few = ScanNet(source, split="train", points={TRAIN[2]: [1]}, scenes=[TRAIN[2]], keys=["points"])
    assert np.flatnonzero(few[0]["annotated"]).tolist() == [1]


def test_other_files_of_points_are_refused_without_executing_them(training_folder, tmp_path):
    marker = tmp_path / "marker"

    class Attack:
        def __reduce__(self):
            return (Path.touch, (marker,))

    np.savez(tmp_path / "pickled.npz", x=np.array([Attack()], object))
    (tmp_path / "points20").write_bytes(pickle.dumps({TRAIN[0]: Attack()}))
    (tmp_path / "torn.json").write_bytes(b'{"scene0000_00": [1')
    (tmp_path / "not.npz").write_bytes(b"PK\3\4 not a zip file")
    for name in ("pickled.npz", "points20", "torn.json", "not.npz"):
        with pytest.raises(FileError, match=f"{name}: is not a list of") as caught:
            ScanNet(training_folder, split="train", points=tmp_path / name)
        assert "torch.load" in caught.value.hint
    assert not marker.exists()
    with pytest.raises(MissingFileError):
        ScanNet(training_folder, split="train", points=tmp_path / "none")
    (tmp_path / "list").write_bytes(b'["scene0000_00"]')
    with pytest.raises(UsageError, match="points: found none for scene0000_01"):
        ScanNet(training_folder, split="train", points=tmp_path / "list")


# Damaged and missing scenes.


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_scene_fails_alone_and_names_its_file(folder, tmp_path, kind):
    with store(kind, folder, tmp_path / "stored") as stored:
        path = stored.paths[0]
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


def test_file_with_other_content_is_an_error_that_names_it(folder):
    dataset = ScanNet(folder, split="train")
    path = folder / "train/scene0001_00.npz"
    content = path.read_bytes()
    renamed = bytearray(content)
    renamed[content.rindex(b"segments.npy")] ^= 1
    other = (folder / "train/scene0000_00.npz").read_bytes()
    for changed, message in [
        (content[:-1], "is truncated"),
        (other, "holds 'scene0000_00' of train, expected scene0001_00"),
        (bytes(renamed), "regments|directory"),
    ]:
        path.write_bytes(changed)
        with pytest.raises(FileError, match=rf"scene0001_00\.npz: .*{message}"):
            dataset["scene0001_00"]
        assert dataset["scene0002_00"]["scene_id"] == "scene0002_00"
    path.unlink()
    with pytest.raises(MissingFileError, match=r"scene0001_00\.npz: no such file"):
        dataset["scene0001_00"]
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"scene0001_00\.npz"):
        dataset["scene0001_00"]


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_scenes_that_failed_are_a_warning(folder, training_folder, tmp_path, kind):
    raw_dir = Path(shutil.copytree(training_folder.parent / "ScanNet", tmp_path / "ScanNet"))
    (raw_dir / "scans/scene0001_00/scene0001_00_vh_clean_2.ply").write_bytes(b"")
    assert len(process_into(raw_dir, folder).failures) == 1
    shutil.rmtree(folder / "val")
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0011_00"))
    with store(kind, folder, tmp_path / kind) as stored:
        with pytest.warns(UserWarning, match="processing are missing: scene0001_00") as caught:
            dataset = ScanNet(stored.place, split="train")
        assert [warning.filename for warning in caught] == [__file__]
        assert len(dataset) == len(TRAIN) - 1
        with pytest.raises(UnknownSceneError, match="no train scene 'scene0001_00'") as raised:
            dataset["scene0001_00"]
        assert "scannet-prep info lists those that failed" in raised.value.hint
        with (
            pytest.warns(UserWarning, match="failed"),
            pytest.raises(UsageError, match="holds no val scenes"),
        ):
            ScanNet(stored.place, split=["train", "val"])


def test_path_of_something_else_is_an_error_that_names_it(training_folder, tmp_path, monkeypatch):
    (tmp_path / "empty.tar.zst").touch()
    (tmp_path / "text").write_text("not an archive\n" * 1_000)
    os.mkfifo(tmp_path / "pipe.tar.zst")
    for name in ("nothing", "nothing.tar.zst", "empty.tar.zst", "text", "pipe.tar.zst", 300 * "n"):
        with pytest.raises(FileError, match=name):
            ScanNet(tmp_path / name, split="train")

    monkeypatch.setenv("HOME", str(training_folder.parent))
    assert len(ScanNet("~/processed", split="train")) == len(TRAIN)


def test_error_of_a_transform_keeps_message_and_hint(training_folder):
    def refuse(sample, generator):
        raise UsageError("no such voxel", "take a larger one")

    dataset = ScanNet(training_folder, split="train", transform=refuse)
    message = r"scene0000_00 .*failed in dataset\[0, 4\]: UsageError: no such voxel\nhint: take a"
    with pytest.raises(ScanNetPrepError, match=message):
        dataset[0, 4]
