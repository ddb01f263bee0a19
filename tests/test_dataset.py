"""`ScanNet` gives the same samples wherever the scenes are."""

import math
import pickle
import re
import statistics
import sys
import threading
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import count_descriptors
from training_sources import SIZES, TRAIN, Stored, check_same, draw

from scannet_prep import SCANNET20, SCANNET200, LabelSet, ScanNet, read_processed
from scannet_prep.errors import UnknownSceneError, UsageError


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_sample_is_what_the_file_holds_in_training_types_and_its_own(
    stored: Stored, training_folder: Path, split: str
) -> None:
    paths = sorted((training_folder / split).glob("*.npz"))
    datasets = [ScanNet(stored.place, split=split, labels=one, ignore_id=-100) for one in (SCANNET20, SCANNET200)]
    for dataset, path in product(datasets, paths):
        assert dataset.scene_ids == [path.stem for path in paths]
        label_set, scene = dataset.label_set, read_processed(path)
        raw_ids = scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids
        expected = {
            "points": scene.points,
            "normals": scene.normals.astype(np.float32),
            "colors": scene.colors,
            "labels": np.array([[*label_set.ids, raw_id].index(raw_id) for raw_id in raw_ids.tolist()], np.int64),
            "instances": scene.instances.astype(np.int32),
            "segments": np.full(len(raw_ids), -1, np.int32) if split == "test" else scene.segments.astype(np.int32),
            "axis_alignment": scene.axis_alignment,
            "faces": scene.faces,
            "scene_id": path.stem,
        }
        expected["labels"][expected["labels"] == len(label_set.ids)] = -100
        for _ in range(2):
            sample = dataset[path.stem]
            check_same(sample, expected)
            for key in expected.keys() - {"scene_id"}:
                assert sample[key].flags.c_contiguous, key
                sample[key][:] = 77  # is seen by nobody else
        assert (expected["labels"] == -100).all() == (split == "test")


def test_scenes_are_found_by_index_and_name_and_lengths_are_known_without_opening_any(
    stored: Stored, folder: Path, tmp_path: Path
) -> None:
    dataset = ScanNet(stored.place, split="train")
    for key in (1, -7, np.int64(1), "scene0000_01", (1, 5)):
        assert dataset[key]["scene_id"] == "scene0000_01"
    for key in (8, -9):
        with pytest.raises(IndexError, match="has 8 train scenes"):
            dataset[key]
    dataset.lengths[:] = 0  # of a copy
    assert dataset.lengths.dtype == np.int64
    assert dataset.lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]
    for path in folder.rglob("*.npz"):
        path.write_bytes(b"")
    (tmp_path / "folder.tar.zst").symlink_to(folder)  # named as archives are
    for place in (str(folder), tmp_path / "folder.tar.zst"):
        assert ScanNet(place, split="train").lengths.tolist() == dataset.lengths.tolist()


def test_a_loop_over_a_dataset_ends_with_an_error_of_its_items_and_not_in_silence(training_folder: Path) -> None:
    dataset = ScanNet(training_folder, split="train", keys="points")
    assert isinstance(dataset, Iterable)
    assert [sample["scene_id"] for sample in dataset] == TRAIN
    short = type("Short", (ScanNet,), {"__getitem__": lambda _, key: [0, 1][key]})
    with pytest.raises(IndexError):
        list(short(training_folder, split="train"))


def test_a_traceback_shows_the_hint_in_every_python(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ScanNet(tmp_path / "it's new", split="train")
    hint = f"""make it: scannet-prep process -o '{tmp_path}/it'"'"'s new'"""
    assert "".join(traceback.format_exception(caught.value)).endswith(f"no such folder\nhint: {hint}\n")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("scene0011_00", "has no train scene 'scene0011_00'", 'split="val"'),
        ("scene0191_00", "has no train scene 'scene0191_00'", "process --scenes scene0191_00"),
        ("chair", "has no train scene 'chair'", ""),
        ([(0, 1)], r"\[\(0, 1\)\] is not a scene", "batch_sampler="),
        ((0, 1, 2), "is not a scene", "batch_sampler="),
        (slice(3), r"slice\(None, 3, None\) is not a scene", "dataset[i] for i in range(3)"),
    ],
)
def test_what_is_not_a_scene_is_refused_with_what_to_type(stored: Stored, key: Any, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ScanNet(stored.place, split="train")[key]
    assert hint.replace('"', "'") in caught.value.hint.replace('"', "'")
    if "split" in hint:
        assert eval(caught.value.hint.partition(": ")[2]).scene_ids == ["scene0011_00"]


def test_it_pickles_small_and_without_what_is_open_and_its_repr_makes_it_again(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train", labels=SCANNET200)
    expected = dataset[2]
    data = pickle.dumps(dataset)
    assert len(data) < 20_000 + 400 * len(TRAIN)  # the label set makes the most of it
    text, _, count = repr(dataset).rpartition(": ")
    assert count == "8 scenes"
    for copy in (pickle.loads(data), eval(text, {"ScanNet": ScanNet, "ScanNet200": SCANNET200})):
        assert (copy.scene_ids, repr(copy)) == (TRAIN, repr(dataset))
        check_same(copy[2], expected)


def test_only_the_scenes_that_were_asked_for_are_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    whole = ScanNet(f"~/{source.name}", split="train")
    names = tmp_path / "names.txt"
    names.write_text(f"{TRAIN[2]}  # the last\n\n{TRAIN[0]}\n")
    parts = [ScanNet(source, split="train", scenes=some) for some in ([TRAIN[2], TRAIN[0]] * 2, names, str(names))]
    parts += [whole.subset(some) for some in (names, [2, -8], [TRAIN[2], 0])]
    for part in (*parts, pickle.loads(pickle.dumps(parts[-1]))):
        assert part.scene_ids == [TRAIN[0], TRAIN[2]]
        assert part.lengths.tolist() == whole.lengths[[0, 2]].tolist()
        check_same(part[1], whole[2])
        assert (TRAIN[0] in part, TRAIN[1] in part, TRAIN[1] in whole, 1 in part) == (True, False, True, False)
        assert part.class_counts().sum() < whole.class_counts().sum()
    for single in (whole.subset(TRAIN[1]), ScanNet(source, split="train", scenes=TRAIN[1])):
        assert single.scene_ids == [TRAIN[1]]
    assert len(whole) == 8
    with pytest.raises(UnknownSceneError, match="has no train scene 'scene0011_00'") as caught:
        ScanNet(source, split="train", scenes=["scene0011_00"])
    assert 'split="val"' in caught.value.hint.replace("'", '"')
    with pytest.raises(IndexError):
        whole.subset([8])


def test_a_sample_holds_what_was_asked_for_and_shows_it_in_short(source: Path) -> None:
    sample = ScanNet(source, split="train")[0]
    assert repr(sample).startswith("{'points': float32 (900, 3),\n 'normals': float32")
    assert repr(sample).endswith("'scene_id': 'scene0000_00'}")
    for keys, expected in ((["labels", "points"], ["labels", "points"]), ("labels", ["labels"])):
        part = ScanNet(source, split="train", keys=keys)[0]
        assert list(part) == [*expected, "scene_id"]
        assert np.array_equal(part["labels"], sample["labels"])
    with pytest.raises(UsageError, match="'color' is not a key of a sample"):
        ScanNet(source, split="train", keys=["color"])


def test_groups_of_a_scene_are_those_of_its_file(source: Path, training_folder: Path) -> None:
    dataset = ScanNet(source, split="val")
    groups = dataset.groups("scene0011_00")
    assert groups == dataset.groups(0) == read_processed(training_folder / "val/scene0011_00.npz").meta.groups
    counts = np.bincount(dataset[0]["instances"] + 1)[1:]
    assert {group.id: group.vertex_count for group in groups} == {i: counts[i] for i in np.flatnonzero(counts)}
    assert dataset.path == str(source)


# Shards are archives, several of them.
several_kinds = pytest.mark.parametrize("stored", ["folder", "shards", "url"], indirect=True)


@several_kinds
def test_threads_read_at_the_same_time_while_others_close(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    expected = [dataset[index] for index in range(3)]
    copy = pickle.loads(pickle.dumps(dataset))  # opened by all threads at once
    is_done = threading.Event()

    def close_again_and_again() -> None:
        while not is_done.wait(0.05 if stored.kind == "url" else 0):  # opening it again asks the server
            copy.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(9) as pool:
            order = [index % 3 for index in range(60 if stored.kind == "url" else 300)]
            found = pool.map(copy.__getitem__, order)
            pool.submit(close_again_and_again)
            try:
                for index, sample in zip(order, found, strict=True):
                    check_same(sample, expected[index])
            finally:
                is_done.set()
    finally:
        sys.setswitchinterval(interval)


@several_kinds
def test_nothing_grows_over_epochs_and_closing_gives_back_descriptors_until_it_is_read_again(stored: Stored) -> None:
    def read_private_bytes() -> int:
        return 1024 * int(re.search(r"Private_Dirty: +(\d+)", Path("/proc/self/smaps_rollup").read_text())[1])

    def list_shared() -> set[str]:
        return set(re.findall(r"/dev/shm/.*", Path("/proc/self/maps").read_text()))

    def are_back() -> bool:  # the web server, which is in this process too, needs a moment
        return any(count_descriptors() <= before or threading.Event().wait(0.01) for _ in range(1_000))

    before, shared = count_descriptors(), list_shared()
    epochs = 8 if stored.kind == "url" else 40  # a scene has 30 kB: all of them would be 2 or 10 MB
    with ScanNet(stored.place, split="train") as dataset:
        for epoch in range(epochs):
            expected = list(dataset)
            if epoch == epochs // 4:
                files, size = count_descriptors(), read_private_bytes()
        assert count_descriptors() <= files
        assert stored.kind in {"folder", "url"} or files > before
        assert list_shared() == shared
        assert stored.kind == "url" or read_private_bytes() - size < 5_000_000  # the server in this process takes notes
    assert are_back()
    check_same(dataset[0], expected[0])
    for _ in range(2):
        dataset.close()
    assert are_back()


def test_random_numbers_come_from_seed_epoch_and_index_alone(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw)
    assert dataset[1, 5] == dataset[1, 5] == dataset["scene0000_01", 5] == dataset[1 - len(dataset), np.int64(5)]
    assert dataset[1, 5] == np.random.default_rng(np.random.SeedSequence((0, 5, 1))).integers(0, 1 << 30, 3).tolist()
    other = ScanNet(source, split="train", transform=draw, seed=1)
    assert len({str(item) for item in (dataset[0, 0], dataset[1, 0], dataset[0, 1], dataset[2, 0], other[0, 0])}) == 5
    with pytest.raises(UsageError, match="epoch is -1"):
        dataset[0, -1]
    for seed in (-3, 1.5, "1"):
        with pytest.raises(UsageError, match=f"seed is {seed!r}, expected a whole number from 0"):
            ScanNet(source, split="train", seed=seed)  # type: ignore[arg-type]
    # A plain index means the next epoch in train, and epoch 0 in val.
    assert [other[1], other["scene0000_01"], other[1]] == [other[1, 0], other[1, 1], other[1, 2]]
    assert list(other) == [other[index, 3 if index == 1 else 0] for index in range(8)]
    part = other.subset([1])
    assert [part[0], part[0]] == [part[0, 0], part[0, 1]], "its scenes have not been read before"
    val = ScanNet(source, split="val", transform=draw)
    assert val[0] == val[0] == val[0, 0]


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_class_weights_follow_their_formulas(source: Path, folder: Path, label_set: LabelSet) -> None:
    dataset = ScanNet(source, split="train", labels=label_set)
    scenes = [read_processed(path) for path in sorted((folder / "train").glob("*.npz"))]
    raw_ids = [getattr(scene, label_set.raw_ids_key).tolist() for scene in scenes]
    rows = [[ids.count(raw_id) for raw_id in label_set.ids] for ids in raw_ids]
    counts = [sum(column) for column in zip(*rows, strict=True)]
    assert (dataset.class_counts().tolist(), dataset.class_counts().dtype) == (counts, np.int64)
    present = [c for c, count in enumerate(counts) if count]
    assert 0 < len(present) < len(counts)
    frequency = {c: counts[c] / sum(sum(row) for row in rows if row[c]) for c in present}
    formulas = {
        "inverse": lambda c: sum(counts) / counts[c],
        "inverse_sqrt": lambda c: math.sqrt(sum(counts) / counts[c]),
        "log": lambda c: 1 / math.log(1.02 + counts[c] / sum(counts)),
        "median_frequency": lambda c: statistics.median(frequency.values()) / frequency[c],
    }
    for name, formula in formulas.items():
        raw = [formula(c) if counts[c] else 0.0 for c in range(len(counts))]
        found = dataset.class_weights(name)
        assert found.dtype == np.float32
        assert found.tolist() == pytest.approx([weight * len(present) / sum(raw) for weight in raw], rel=1e-5), name
    assert np.array_equal(dataset.class_weights(), dataset.class_weights("inverse_sqrt"))
    (folder / "manifest.json").unlink()
    from_scenes = ScanNet(folder, split="train", labels=label_set)
    assert from_scenes.class_counts().tolist() == counts
    assert from_scenes.lengths.tolist() == dataset.lengths.tolist()


def test_class_weights_of_nothing_and_label_sets_that_are_none_are_errors(source: Path) -> None:
    with pytest.raises(UsageError, match="expected a label set"):
        ScanNet(source, split="train", labels="20")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no vertex has a class"):
        ScanNet(source, split="test").class_weights()
    assert ScanNet(source, split="test").class_counts().sum() == 0
    with pytest.raises(UsageError, match="'cubic' is not a formula") as caught:
        ScanNet(source, split="train").class_weights("cubic")  # type: ignore[arg-type]
    assert "median_frequency" in caught.value.hint
