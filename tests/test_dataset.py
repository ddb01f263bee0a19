"""`ScanNet` returns the same samples from every form of the scenes, or names the damaged file."""

from __future__ import annotations

import math
import os
import pickle
import re
import shutil
import statistics
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import flip
from commands import count_descriptors, edit_json
from numpy.typing import NDArray
from training_sources import KINDS, SIZES, TRAIN, Stored, check_same, draw, process_into, store

from scannet_prep import SCANNET20, SCANNET200, LabelSet, ScanNet, read_processed
from scannet_prep.errors import (
    FileError,
    MissingFileError,
    TransferError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.synthetic import write_release

BOTH_SETS = pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=lambda one: one.name)
# Shards stand for archives, too.
SEVERAL_KINDS = pytest.mark.parametrize("stored", ["folder", "archive", "url"], indirect=True)


# Samples.


def read_train_scenes(folder: Path) -> list[ProcessedScene]:
    return [read_processed(path) for path in sorted((folder / "train").glob("*.npz"))]


def test_read_processed_gives_the_train_ids_of_the_dataset(training_folder: Path) -> None:
    # The folder was processed with this label set.
    dataset = ScanNet(training_folder, split="train", labels=SCANNET200)
    for sample, scene in zip(dataset, read_train_scenes(training_folder), strict=True):
        assert scene.labels.dtype == np.int64
        assert scene.labels.tolist() == sample["labels"].tolist()


def test_labels_in_the_file_are_train_ids_plus_one(training_folder: Path) -> None:
    dataset = ScanNet(training_folder, split="train", labels=SCANNET200)
    for sample in dataset:
        path = training_folder / "train" / f"{sample['scene_id']}.npz"
        expected = (sample["labels"] + 1).tolist()
        assert read_processed(path).stored_labels.tolist() == expected
        with np.load(path) as stored:
            assert stored["labels"].tolist() == expected


def find_train_ids(scene: ProcessedScene, label_set: LabelSet) -> NDArray[np.int64]:
    """Train ids of the vertices, computed in a loop; -100 for unlabeled."""
    raw_ids = scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids
    ids = list(label_set.ids)
    train_ids = [ids.index(raw_id) if raw_id in ids else -100 for raw_id in raw_ids.tolist()]
    return np.array(train_ids, np.int64)


def expected_sample(path: Path, label_set: LabelSet, split: str) -> dict[str, Any]:
    """The content of a scene's file, in the types of a sample."""
    scene = read_processed(path)
    if split == "test":
        segments = np.full(len(scene.points), -1, np.int32)
    else:
        segments = scene.segments.astype(np.int32)
    return {
        "points": scene.points,
        "normals": scene.normals.astype(np.float32),
        "colors": scene.colors,
        "labels": find_train_ids(scene, label_set),
        "instances": scene.instances.astype(np.int32),
        "segments": segments,
        "axis_alignment": scene.axis_alignment,
        "faces": scene.faces,
        "label_set": label_set.name,
        "scene_id": path.stem,
    }


@BOTH_SETS
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_sample_is_the_file_in_training_types(
    stored: Stored, training_folder: Path, split: Any, label_set: LabelSet
) -> None:
    paths = sorted((training_folder / split).glob("*.npz"))
    dataset = ScanNet(stored.place, split=split, labels=label_set, ignore_index=-100)

    assert dataset.scene_ids == [path.stem for path in paths]
    for path in paths:
        check_same(dataset[path.stem], expected_sample(path, label_set, split))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_changing_a_sample_does_not_change_the_next(
    stored: Stored, training_folder: Path, split: Any
) -> None:
    dataset = ScanNet(stored.place, split=split, labels=SCANNET20, ignore_index=-100)
    for path in sorted((training_folder / split).glob("*.npz")):
        sample = dataset[path.stem]
        for key in sample.keys() - {"label_set", "scene_id"}:
            assert sample[key].flags.c_contiguous, key
            sample[key][:] = 77

        check_same(dataset[path.stem], expected_sample(path, SCANNET20, split))


@BOTH_SETS
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_only_test_scenes_are_entirely_unlabeled(
    training_folder: Path, split: Any, label_set: LabelSet
) -> None:
    for sample in ScanNet(training_folder, split=split, labels=label_set):
        assert (sample["labels"] == -1).all() == (split == "test")


def test_sample_shows_types_and_shapes_in_short(source: Path) -> None:
    shown = repr(ScanNet(source, split="train")[0])

    assert shown.startswith("{'points': float32 (900, 3),\n 'normals': float32")
    assert shown.endswith("'scene_id': 'scene0000_00'}")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["labels", "points"], ["labels", "points", "label_set", "scene_id"]),
        ("labels", ["labels", "label_set", "scene_id"]),
    ],
)
def test_sample_holds_the_selected_keys_only(source: Path, keys: Any, expected: list[str]) -> None:
    sample = ScanNet(source, split="train", keys=keys)[0]

    assert list(sample) == expected
    assert np.array_equal(sample["labels"], ScanNet(source, split="train")[0]["labels"])


def test_unknown_key_of_a_sample_is_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="'color' is not a key of a sample"):
        ScanNet(source, split="train", keys=["color"])


# Finding scenes.


@pytest.mark.parametrize("key", [1, -7, np.int64(1), "scene0000_01", (1, 5)], ids=repr)
def test_scene_is_found_by_index_and_id(stored: Stored, key: Any) -> None:
    assert ScanNet(stored.place, split="train")[key]["scene_id"] == "scene0000_01"


@pytest.mark.parametrize("key", [8, -9])
def test_index_out_of_range_is_an_index_error(stored: Stored, key: int) -> None:
    with pytest.raises(IndexError, match="has 8 train scenes"):
        ScanNet(stored.place, split="train")[key]


def test_lengths_are_a_copy_of_the_vertex_counts(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    dataset.lengths[:] = 0

    assert dataset.lengths.dtype == np.int64
    assert dataset.lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]


def test_lengths_are_known_without_opening_a_scene(folder: Path) -> None:
    for path in folder.rglob("*.npz"):
        path.write_bytes(b"")
    lengths = ScanNet(str(folder), split="train").lengths

    assert lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]


def test_folder_may_be_named_like_an_archive(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.tar.zst").symlink_to(folder)
    dataset = ScanNet(tmp_path / "folder.tar.zst", split="train")

    assert dataset.lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]


def test_loop_over_a_dataset_gives_all_scenes(training_folder: Path) -> None:
    dataset = ScanNet(training_folder, split="train", keys="points")

    assert isinstance(dataset, Iterable)
    assert [sample["scene_id"] for sample in dataset] == TRAIN


class TwoItems(ScanNet):
    """A dataset whose items end earlier than its length."""

    def __getitem__(self, key: Any) -> Any:
        return [0, 1][key]


def test_loop_over_a_dataset_does_not_hide_an_index_error(training_folder: Path) -> None:
    dataset = TwoItems(training_folder, split="train")
    with pytest.raises(IndexError):
        list(dataset)


@pytest.mark.parametrize(
    ("key", "message", "hint"),
    [
        ("scene0011_00", "has no train scene 'scene0011_00'", "split='val'"),
        ("scene0191_00", "has no train scene 'scene0191_00'", "process it"),
        ("chair", "has no train scene 'chair'", ""),
        ([(0, 1)], r"\[\(0, 1\)\] is not a scene", "batch_sampler="),
        ((0, 1, 2), "is not a scene", "batch_sampler="),
        (slice(3), r"slice\(None, 3, None\) is not a scene", "dataset[i] for i in range(3)"),
    ],
    ids=str,
)
def test_key_of_no_scene_is_refused_with_a_hint(
    stored: Stored, key: Any, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ScanNet(stored.place, split="train")[key]
    assert hint in caught.value.hint


def test_hint_for_a_scene_of_another_split_can_be_typed(stored: Stored) -> None:
    with pytest.raises(UsageError) as caught:
        ScanNet(stored.place, split="train")["scene0011_00"]
    call = caught.value.hint.partition(": ")[2]

    assert eval(call).scene_ids == ["scene0011_00"]


# Pickles and the repr.


def test_pickle_of_a_dataset_is_small(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train", labels=SCANNET200)
    dataset[2]

    # Most of it is the label set.
    assert len(pickle.dumps(dataset)) < 20_000 + 400 * len(TRAIN)


def test_pickled_dataset_is_the_same(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train", labels=SCANNET200)
    expected = dataset[2]

    copy = pickle.loads(pickle.dumps(dataset))

    assert copy.scene_ids == TRAIN
    assert repr(copy) == repr(dataset)
    check_same(copy[2], expected)


def test_repr_is_a_call_that_makes_the_same_dataset(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train", labels=SCANNET200)
    call, _, facts = repr(dataset).rpartition(": ")

    copy = eval(call, {"ScanNet": ScanNet})

    assert facts == "8 scenes, is_aligned=False"
    assert copy.scene_ids == TRAIN
    assert repr(copy) == repr(dataset)
    check_same(copy[2], dataset[2])


# Some of the scenes.


@pytest.fixture(params=["list", "file", "name of a file", "subset file", "indices", "mixed"])
def two_scenes(
    request: pytest.FixtureRequest, source: Path, tmp_path: Path
) -> ScanNet[dict[str, Any]]:
    """A dataset of the first and the third train scene, selected in one of several ways."""
    names_path = tmp_path / "names.txt"
    names_path.write_text(f"{TRAIN[2]}  # the last\n\n{TRAIN[0]}\n")
    selections: dict[str, Any] = {
        "list": [TRAIN[2], TRAIN[0]] * 2,
        "file": names_path,
        "name of a file": str(names_path),
        "subset file": names_path,
        "indices": [2, -8],
        "mixed": [TRAIN[2], 0],
    }
    selection = selections[request.param]
    if request.param in {"list", "file", "name of a file"}:
        return ScanNet(source, split="train", scenes=selection)
    return ScanNet(source, split="train").subset(selection)


def test_selection_holds_the_selected_scenes(two_scenes: Any, source: Path) -> None:
    whole = ScanNet(source, split="train")

    assert two_scenes.scene_ids == [TRAIN[0], TRAIN[2]]
    assert two_scenes.lengths.tolist() == whole.lengths[[0, 2]].tolist()
    check_same(two_scenes[1], whole[2])


def test_pickled_selection_holds_the_selected_scenes(two_scenes: Any, source: Path) -> None:
    copy = pickle.loads(pickle.dumps(two_scenes))

    assert copy.scene_ids == [TRAIN[0], TRAIN[2]]
    check_same(copy[1], ScanNet(source, split="train")[2])


def test_selection_contains_the_ids_of_its_scenes_only(two_scenes: Any) -> None:
    assert TRAIN[0] in two_scenes
    assert TRAIN[1] not in two_scenes
    assert 1 not in two_scenes


def test_selection_counts_the_classes_of_its_scenes_only(two_scenes: Any, source: Path) -> None:
    whole = ScanNet(source, split="train")
    assert two_scenes.class_counts().sum() < whole.class_counts().sum()


def test_single_scene_is_selected_by_its_id(source: Path) -> None:
    whole = ScanNet(source, split="train")

    assert whole.subset(TRAIN[1]).scene_ids == [TRAIN[1]]
    assert ScanNet(source, split="train", scenes=TRAIN[1]).scene_ids == [TRAIN[1]]


def test_subset_leaves_the_dataset_unchanged(source: Path) -> None:
    whole = ScanNet(source, split="train")
    whole.subset([0])

    assert len(whole) == 8
    assert TRAIN[1] in whole


def test_selected_scene_of_another_split_is_an_error(source: Path) -> None:
    with pytest.raises(UnknownSceneError, match="has no train scene 'scene0011_00'") as caught:
        ScanNet(source, split="train", scenes=["scene0011_00"])
    assert "split='val'" in caught.value.hint


def test_subset_of_an_index_out_of_range_is_an_error(source: Path) -> None:
    with pytest.raises(IndexError):
        ScanNet(source, split="train").subset([8])


def test_home_directory_in_a_path_is_expanded(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(source.parent))
    assert ScanNet(f"~/{source.name}", split="train").scene_ids == TRAIN


# Groups.


def test_groups_of_a_scene_are_those_of_its_file(source: Path, training_folder: Path) -> None:
    dataset = ScanNet(source, split="val")

    expected = read_processed(training_folder / "val/scene0011_00.npz").meta.groups
    assert dataset.groups("scene0011_00") == expected
    assert dataset.groups(0) == expected


def test_sizes_of_groups_are_the_counts_of_their_instances(source: Path) -> None:
    dataset = ScanNet(source, split="val")
    ids, counts = np.unique(dataset[0]["instances"], return_counts=True)
    expected = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    expected.pop(-1, None)

    assert {group.id: group.vertex_count for group in dataset.groups(0)} == expected


def test_path_of_a_dataset_is_a_text(source: Path) -> None:
    assert ScanNet(source, split="val").path == str(source)


# Threads, memory and open files.


@SEVERAL_KINDS
def test_threads_read_while_others_close(stored: Stored) -> None:
    dataset = ScanNet(stored.place, split="train")
    expected = [dataset[index] for index in range(3)]
    is_url = stored.kind == "url"
    # All threads open this copy at once.
    copy = pickle.loads(pickle.dumps(dataset))
    is_done = threading.Event()

    def close_again_and_again() -> None:
        # Opening an archive on the web asks the server.
        pause_s = 0.05 if is_url else 0
        while not is_done.wait(pause_s):
            copy.close()

    def read(index: int) -> Any:
        try:
            return copy[index]
        except TransferError:
            # Closing a connection interrupts other threads that read from it.
            if not is_url:
                raise
            return None

    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        pool = stack.enter_context(ThreadPoolExecutor(9))
        stack.callback(is_done.set)
        order = [index % 3 for index in range(60 if is_url else 300)]
        samples = pool.map(read, order)
        pool.submit(close_again_and_again)
        for index, sample in zip(order, samples, strict=True):
            if sample is not None:
                check_same(sample, expected[index])


def read_private_bytes() -> int:
    """Memory of this process that it shares with no other one."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    match = re.search(r"Private_Dirty: +(\d+)", rollup)
    assert match is not None
    return 1024 * int(match[1])


def list_shared_memory() -> set[str]:
    return set(re.findall(r"/dev/shm/.*", Path("/proc/self/maps").read_text()))


def wait_for_descriptors(most: int) -> bool:
    """Whether no more descriptors are open, after a while: the web server needs a moment."""
    for _ in range(1_000):
        if count_descriptors() <= most:
            return True
        threading.Event().wait(0.01)
    return False


@dataclass(frozen=True)
class Usage:
    """Resources of this process.

    Attributes:
        private_bytes: Memory that no other process shares.
    """

    descriptors: int
    shared_memory: Any
    private_bytes: int

    @classmethod
    def now(cls) -> Usage:
        return cls(count_descriptors(), list_shared_memory(), read_private_bytes())


@pytest.fixture(scope="module")
def usage(stored: Stored) -> tuple[Usage, Usage, Usage]:
    """The resources before, after a quarter of, and after all epochs of an open dataset."""
    # A scene has 30 kB: keeping all of them would take 2 or 10 MB.
    epochs = 8 if stored.kind == "url" else 40
    before = Usage.now()
    with ScanNet(stored.place, split="train") as dataset:
        for epoch in range(epochs):
            list(dataset)
            if epoch == epochs // 4:
                early = Usage.now()
        return before, early, Usage.now()


@SEVERAL_KINDS
def test_epochs_do_not_accumulate_descriptors(usage: tuple[Usage, Usage, Usage]) -> None:
    _, early, late = usage

    assert late.descriptors <= early.descriptors


@pytest.mark.parametrize("stored", ["archive"], indirect=True)
def test_archive_stays_open_between_epochs(stored: Stored) -> None:
    before = count_descriptors()

    with ScanNet(stored.place, split="train") as dataset:
        list(dataset)

        assert count_descriptors() > before


@SEVERAL_KINDS
def test_epochs_leave_no_shared_memory(usage: tuple[Usage, Usage, Usage]) -> None:
    before, _, late = usage

    assert late.shared_memory == before.shared_memory


# Of the web server in this process, the list of all requests would be counted, too.
@pytest.mark.parametrize("stored", ["folder", "archive"], indirect=True)
def test_epochs_do_not_accumulate_memory(usage: tuple[Usage, Usage, Usage]) -> None:
    _, early, late = usage

    assert late.private_bytes - early.private_bytes < 5_000_000


@SEVERAL_KINDS
def test_closed_dataset_has_no_open_files_and_opens_them_again(stored: Stored) -> None:
    before = count_descriptors()
    with ScanNet(stored.place, split="train") as dataset:
        expected = dataset[0]
    assert wait_for_descriptors(before)

    check_same(dataset[0], expected)
    dataset.close()
    dataset.close()

    assert wait_for_descriptors(before)


# Random numbers of transforms.


def test_sample_with_an_epoch_is_the_same_for_every_key_of_its_scene(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw)

    expected = dataset[1, 5]
    assert dataset[1, 5] == expected
    assert dataset["scene0000_01", 5] == expected
    assert dataset[1 - len(dataset), np.int64(5)] == expected


def test_random_numbers_are_seeded_by_seed_epoch_and_index(source: Path) -> None:
    generator = np.random.default_rng(np.random.SeedSequence((0, 5, 1)))
    dataset = ScanNet(source, split="train", transform=draw)

    assert dataset[1, 5] == generator.integers(0, 1 << 30, 3).tolist()


def test_seeds_epochs_and_indices_give_different_numbers(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw)
    other = ScanNet(source, split="train", transform=draw, seed=1)
    draws = [dataset[0, 0], dataset[1, 0], dataset[0, 1], dataset[2, 0], other[0, 0]]

    assert len({str(numbers) for numbers in draws}) == 5


def test_negative_epoch_is_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="epoch is -1"):
        ScanNet(source, split="train", transform=draw)[0, -1]


@pytest.mark.parametrize("seed", [-3, 1.5, "1"])
def test_seed_that_is_not_a_whole_number_from_0_is_an_error(source: Path, seed: Any) -> None:
    with pytest.raises(UsageError, match=f"seed is {seed!r}, expected a whole number from 0"):
        ScanNet(source, split="train", seed=seed)


def test_plain_index_means_the_next_epoch_in_train(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw, seed=1)

    assert dataset[1] == dataset[1, 0]
    assert dataset["scene0000_01"] == dataset[1, 1]
    assert dataset[1] == dataset[1, 2]
    assert list(dataset) == [dataset[index, 3 if index == 1 else 0] for index in range(8)]


def test_subset_counts_its_own_reads(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw, seed=1)
    dataset[1]
    part = dataset.subset([1])

    assert part[0] == part[0, 0]
    assert part[0] == part[0, 1]


def test_plain_index_means_epoch_0_in_val(source: Path) -> None:
    dataset = ScanNet(source, split="val", transform=draw)

    assert dataset[0] == dataset[0, 0]
    assert dataset[0] == dataset[0, 0]


# Class counts and weights.


def count_in_loop(folder: Path, label_set: LabelSet) -> list[list[int]]:
    """Vertices of each class, scene by scene."""
    rows = []
    for scene in read_train_scenes(folder):
        raw_ids = getattr(scene, label_set.raw_ids_key).tolist()
        rows.append([raw_ids.count(raw_id) for raw_id in label_set.ids])
    return rows


def weigh_in_loop(rows: list[list[int]], formula: str) -> list[float]:
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
def test_class_counts_equal_a_loop(
    source: Path, training_folder: Path, label_set: LabelSet
) -> None:
    rows = count_in_loop(training_folder, label_set)

    counts = ScanNet(source, split="train", labels=label_set).class_counts()

    assert counts.dtype == np.int64
    assert counts.tolist() == [sum(column) for column in zip(*rows, strict=True)]


@BOTH_SETS
@pytest.mark.parametrize("formula", ["inverse", "inverse_sqrt", "log", "median_frequency"])
def test_class_weights_equal_a_loop(
    source: Path, training_folder: Path, label_set: LabelSet, formula: Any
) -> None:
    expected = weigh_in_loop(count_in_loop(training_folder, label_set), formula)

    weights = ScanNet(source, split="train", labels=label_set).class_weights(formula)

    assert weights.dtype == np.float32
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)


@BOTH_SETS
def test_default_class_weights_are_inverse_sqrt(source: Path, label_set: LabelSet) -> None:
    dataset = ScanNet(source, split="train", labels=label_set)
    assert np.array_equal(dataset.class_weights(), dataset.class_weights("inverse_sqrt"))


def test_unknown_label_set_is_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="expected ScanNet20 or ScanNet200"):
        ScanNet(source, split="train", labels="20")


def test_class_counts_of_test_scenes_are_zero(source: Path) -> None:
    assert ScanNet(source, split="test").class_counts().sum() == 0


def test_class_weights_of_test_scenes_are_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="no vertex has a class"):
        ScanNet(source, split="test").class_weights()


def test_unknown_formula_of_class_weights_is_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="'cubic' is not a formula") as caught:
        ScanNet(source, split="train").class_weights("cubic")  # type: ignore[arg-type]
    assert "median_frequency" in caught.value.hint


def test_scene_missing_in_the_manifest_is_counted_by_its_file(folder: Path) -> None:
    dataset = ScanNet(folder, split="train")
    expected = dataset.class_counts().tolist()
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0001_00"))

    assert dataset.class_counts().tolist() == expected


# Damaged and missing scenes.


@pytest.fixture(params=KINDS)
def damaged(
    request: pytest.FixtureRequest, folder: Path, tmp_path: Path
) -> Iterator[tuple[Stored, str, FileError]]:
    """Scenes of which one is damaged, its id, and the error of reading it."""
    with store(request.param, folder, tmp_path / "stored") as stored:
        path = stored.paths[0]
        if stored.kind == "folder":
            path = path / "train/scene0001_00.npz"
        flip(path, path.stat().st_size // 3)
        dataset = ScanNet(stored.place, split="train")
        errors = {}
        # Twice, because the first error must not hide the second.
        for _ in range(2):
            count = 0
            for scene_id in TRAIN:
                try:
                    assert dataset[scene_id]["scene_id"] == scene_id
                except FileError as error:
                    errors[scene_id] = error
                    count += 1
            assert count == 1
        ((scene_id, error),) = errors.items()
        yield stored, scene_id, error


def test_error_of_a_damaged_scene_names_it_and_its_file(
    damaged: tuple[Stored, str, FileError],
) -> None:
    stored, scene_id, error = damaged

    assert re.search(rf"{scene_id}.*is damaged", str(error))
    assert stored.kind == "folder" or re.search(r"scannet(-\d+-of-\d+)?\.tar\.zst", str(error))


def test_error_of_a_damaged_scene_is_a_value_error_with_a_hint(
    damaged: tuple[Stored, str, FileError],
) -> None:
    _, _, error = damaged

    assert isinstance(error, ValueError)
    assert error.hint


def rename_array(data: bytes) -> bytes:
    """Change the name of an array in the directory of the file."""
    renamed = bytearray(data)
    renamed[data.rindex(b"segments.npy")] ^= 1
    return bytes(renamed)


def truncate(folder: Path) -> bytes:
    return (folder / "train/scene0001_00.npz").read_bytes()[:-1]


def read_other_scene(folder: Path) -> bytes:
    return (folder / "train/scene0000_00.npz").read_bytes()


def process_larger_scene(folder: Path) -> bytes:
    root = folder.parent / "other"
    write_release(root / "ScanNet", ["scene0001_00"], vertices=950)
    process_into(root / "ScanNet", root / "processed")
    return (root / "processed/train/scene0001_00.npz").read_bytes()


def damage_directory(folder: Path) -> bytes:
    return rename_array((folder / "train/scene0001_00.npz").read_bytes())


@pytest.mark.parametrize(
    ("make_content", "message"),
    [
        (truncate, "is truncated"),
        (read_other_scene, "holds 'scene0000_00' of train, expected scene0001_00"),
        (process_larger_scene, r"\'points\' has the shape \(950, 3\), expected"),
        (damage_directory, "regments|directory"),
    ],
)
def test_file_with_other_content_is_an_error_that_names_it(
    folder: Path, make_content: Any, message: str
) -> None:
    dataset = ScanNet(folder, split="train")
    (folder / "train/scene0001_00.npz").write_bytes(make_content(folder))

    with pytest.raises(FileError, match=rf"scene0001_00\.npz: .*{message}"):
        dataset["scene0001_00"]
    assert dataset["scene0002_00"]["scene_id"] == "scene0002_00"


def test_deleted_file_is_an_error_that_names_it(folder: Path) -> None:
    dataset = ScanNet(folder, split="train")
    (folder / "train/scene0001_00.npz").unlink()

    with pytest.raises(MissingFileError, match=r"scene0001_00\.npz: no such file"):
        dataset["scene0001_00"]


def test_named_pipe_in_place_of_a_file_is_an_error(folder: Path) -> None:
    dataset = ScanNet(folder, split="train")
    path = folder / "train/scene0001_00.npz"
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(FileError, match=r"scene0001_00\.npz"):
        dataset["scene0001_00"]


@pytest.fixture(params=["folder", "archive"])
def incomplete(
    request: pytest.FixtureRequest, folder: Path, training_folder: Path, tmp_path: Path
) -> Iterator[Stored]:
    """Scenes of which one failed in processing, without the val split."""
    raw_dir = Path(shutil.copytree(training_folder.parent / "ScanNet", tmp_path / "ScanNet"))
    (raw_dir / "scans/scene0001_00/scene0001_00_vh_clean_2.ply").write_bytes(b"")
    assert len(process_into(raw_dir, folder).failures) == 1
    shutil.rmtree(folder / "val")
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0011_00"))
    with store(request.param, folder, tmp_path / request.param) as stored:
        yield stored


def test_scenes_that_failed_are_a_warning_at_the_call(incomplete: Stored) -> None:
    message = "failed in processing are missing: scene0001_00"
    with pytest.warns(UserWarning, match=message) as caught:
        dataset = ScanNet(incomplete.place, split="train")

    assert [warning.filename for warning in caught] == [__file__]
    assert len(dataset) == len(TRAIN) - 1


@pytest.mark.filterwarnings("ignore:.*failed in processing:UserWarning")
def test_reading_a_scene_that_failed_shows_the_reason(incomplete: Stored) -> None:
    dataset = ScanNet(incomplete.place, split="train")
    reason = r"failed in processing: .*scene0001_00_vh_clean_2\.ply: is empty"

    with pytest.raises(UnknownSceneError, match=reason):
        dataset["scene0001_00"]


def test_split_without_scenes_is_an_error_that_names_the_others(incomplete: Stored) -> None:
    with pytest.raises(UsageError, match="holds no val scenes, but test, train"):
        ScanNet(incomplete.place, split="val")


def test_unknown_split_is_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="'training' is not a split"):
        ScanNet(source, split="training")  # type: ignore[arg-type]


# Wrong paths.


def test_traceback_of_an_error_ends_with_its_hint(training_folder: Path) -> None:
    with pytest.raises(MissingFileError) as caught:
        ScanNet(training_folder / "none", split="train")
    text = "".join(traceback.format_exception(caught.value))

    assert text.endswith(f"\nhint: {caught.value.hint}\n")


def test_named_pipe_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="is a named pipe"):
        ScanNet(tmp_path / "pipe", split="train")


LONG_NAME = 300 * "n"


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "nothing.tar.zst",
        "empty.tar.zst",
        "text",
        "pipe.tar.zst",
        LONG_NAME,
        f"{LONG_NAME}.zst",
    ],
    ids=lambda name: name[-20:],
)
def test_path_of_something_else_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.tar.zst").touch()
    (tmp_path / "text").write_text("not an archive\n" * 1_000)
    os.mkfifo(tmp_path / "pipe.tar.zst")

    for place in (tmp_path / name, str(tmp_path / name)):
        with pytest.raises(FileError, match=name):
            ScanNet(place, split="train")
