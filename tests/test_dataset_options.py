"""Options of `ScanNet`: limited annotations, loops, joined datasets, and the cache."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import count_descriptors, edit_json
from test_loader import check_batches, epochs_of, make_loader
from training_sources import SIZES, TRAIN, check_same, draw, draw_in_sample

from scannet_prep import (
    SCANNET20,
    SCANNET200,
    ConcatDataset,
    EvalSampler,
    PointBudgetBatchSampler,
    ScanNet,
    collate,
)
from scannet_prep.errors import FileError, MissingFileError, ScanNetPrepError, UsageError
from scannet_prep.training.annotated_points import read_points
from scannet_prep.training.scene_cache import SceneCache
from scannet_prep.transforms import Compose, Drop, GridSample, InstanceTargets, Rotate

torch = pytest.importorskip("torch")
torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.extra("torch")

# Annotated vertices of each scene: the first, the last, and one in between.
POINTS = {scene_id: [0, 7 + index, SIZES[scene_id] - 1] for index, scene_id in enumerate(TRAIN)}


# Loops.


@pytest.fixture
def looped(source: Path) -> Any:
    return ScanNet(source, split="train", transform=draw, loop=3)


def test_loop_repeats_each_scene(looped: Any) -> None:
    assert looped.scene_ids == [scene_id for scene_id in TRAIN for _ in range(3)]
    assert looped.lengths.tolist() == [SIZES[scene_id] for scene_id in looped.scene_ids]


def test_repeated_scenes_have_different_random_numbers(looped: Any) -> None:
    assert len({tuple(looped[index, 0]) for index in range(len(looped))}) == len(looped)


def test_scene_id_means_the_first_repetition(looped: Any) -> None:
    assert looped["scene0001_00", 0] == looped[3 * TRAIN.index("scene0001_00"), 0]


def test_loop_multiplies_class_counts(looped: Any, source: Path) -> None:
    once = ScanNet(source, split="train")
    assert looped.class_counts().tolist() == (3 * once.class_counts()).tolist()


def test_loop_does_not_change_class_weights(looped: Any, source: Path) -> None:
    once = ScanNet(source, split="train")
    assert looped.class_weights() == pytest.approx(once.class_weights())


def test_sampler_hands_out_all_repetitions(looped: Any) -> None:
    sampler = PointBudgetBatchSampler(looped, max_points=1600)
    indices = sorted(index for batch in sampler for index, _ in batch)

    assert indices == list(range(3 * len(TRAIN)))


def test_selected_scene_is_looped(source: Path) -> None:
    dataset = ScanNet(source, split="train", scenes=["scene0001_00"], loop=2)
    assert dataset.scene_ids == ["scene0001_00"] * 2


# Arrays and tensors have `__index__`, also if they are not a single whole number.
@pytest.mark.parametrize("loop", [0, 1.5, "2", None, np.array([1, 2]), np.array(2.0)], ids=repr)
def test_loop_that_is_not_a_whole_number_from_1_is_an_error(source: Path, loop: Any) -> None:
    with pytest.raises(UsageError, match=r"loop is .*, expected a whole number from 1"):
        ScanNet(source, split="train", loop=loop)


# Joined datasets.


@pytest.fixture
def train_and_val(source: Path) -> list[Any]:
    return [
        ScanNet(source, split="train", transform=draw_in_sample),
        ScanNet(source, split="val", transform=draw_in_sample, seed=1),
    ]


def test_lengths_of_joined_datasets_are_in_order(train_and_val: list[Any]) -> None:
    train, val = train_and_val
    scene_ids = [*train.scene_ids, *val.scene_ids]

    assert ConcatDataset(train_and_val).lengths.tolist() == [SIZES[name] for name in scene_ids]


@pytest.mark.parametrize("key", [0, len(TRAIN) - 1, len(TRAIN), -1])
def test_joined_datasets_pass_the_epoch_on(train_and_val: list[Any], key: int) -> None:
    both = ConcatDataset(train_and_val)
    number, inner_index = divmod(key % len(both), len(TRAIN))

    sample = both[key, 3]

    expected = train_and_val[number][inner_index, 3]
    assert sample["scene_id"] == expected["scene_id"]
    assert sample["drawn"] == expected["drawn"]
    assert sample["drawn"] != both[key, 4]["drawn"]


def test_joined_datasets_are_indexed_without_an_epoch(train_and_val: list[Any]) -> None:
    both = ConcatDataset(train_and_val)
    assert both[len(TRAIN)]["drawn"] == train_and_val[1][0]["drawn"]


@pytest.mark.parametrize("is_negative", [False, True])
def test_joined_datasets_refuse_an_index_out_of_range(
    train_and_val: list[Any], is_negative: bool
) -> None:
    both = ConcatDataset(train_and_val)
    key = -len(both) - 1 if is_negative else len(both)

    message = f"index {key} is out of range: the datasets have {len(both)} scenes"
    with pytest.raises(IndexError, match=message):
        both[key]


def test_joined_datasets_are_loaded_in_batches(train_and_val: list[Any]) -> None:
    both = ConcatDataset(train_and_val)
    sampler = PointBudgetBatchSampler(both, max_points=1600)
    loader = torch_data.DataLoader(both, batch_sampler=sampler, collate_fn=collate, num_workers=1)

    scene_ids = sorted(scene_id for batch in loader for scene_id in batch["scene_ids"])

    train, val = train_and_val
    assert scene_ids == [*train.scene_ids, *val.scene_ids]


def test_joined_datasets_are_evaluated_whole(train_and_val: list[Any]) -> None:
    both = ConcatDataset(train_and_val)
    assert sorted(EvalSampler(both)) == list(range(len(both)))


def test_joining_no_datasets_is_an_error() -> None:
    with pytest.raises(UsageError, match="no datasets"):
        ConcatDataset([])


# The digest.


def test_digest_is_the_same_for_folder_and_archive(source: Path, folder: Path) -> None:
    digest = ScanNet(folder, split="train").digest
    assert ScanNet(source, split="train").digest == digest


def test_digest_of_joined_datasets_is_that_of_each(folder: Path) -> None:
    train = ScanNet(folder, split="train")
    assert ConcatDataset([train, train]).digest == f"{train.digest} {train.digest}"


@pytest.mark.parametrize(
    "options", [{"labels": "scannet20"}, {"points": POINTS}, {"scenes": TRAIN[1:]}], ids=list
)
def test_digest_differs_with_other_options(folder: Path, options: dict[str, Any]) -> None:
    digest = ScanNet(folder, split="train").digest
    assert ScanNet(folder, split="train", **options).digest != digest


def test_digest_of_a_subset_differs(folder: Path) -> None:
    train = ScanNet(folder, split="train")
    assert train.subset(TRAIN[1:]).digest != train.digest


def test_digest_differs_for_other_bytes_of_the_same_length(folder: Path) -> None:
    digest = ScanNet(folder, split="train").digest
    edit_json(
        folder / "manifest.json",
        lambda value: value["scenes"]["scene0000_00"].update(crc32="00000000"),
    )

    assert ScanNet(folder, split="train").digest != digest


# The cache.

START_METHODS = pytest.mark.parametrize("start_method", ["fork", "forkserver"])


def load_in_worker(dataset: Any, start_method: str) -> list[Any]:
    loader = torch_data.DataLoader(
        dataset, num_workers=1, batch_size=None, multiprocessing_context=start_method
    )
    return list(loader)


@START_METHODS
def test_cache_keeps_files_for_later_workers(folder: Path, start_method: str) -> None:
    dataset = ScanNet(folder, split="val", cache=True)
    expected = list(ScanNet(folder, split="val"))

    check_batches(load_in_worker(dataset, start_method), expected)
    shutil.rmtree(folder / "val")

    check_batches(load_in_worker(dataset, start_method), expected)


@START_METHODS
def test_changing_a_sample_does_not_change_the_cache(folder: Path, start_method: str) -> None:
    dataset = ScanNet(folder, split="val", cache=True)
    expected = load_in_worker(dataset, start_method)
    shutil.rmtree(folder / "val")

    sample = dataset.subset([0])[0]
    sample["points"][:] = 0

    check_same(dataset[0], expected[0])


@START_METHODS
@pytest.mark.parametrize("is_pickled", [False, True])
def test_copy_of_a_dataset_does_not_share_the_cache(
    folder: Path, start_method: str, is_pickled: bool
) -> None:
    dataset = ScanNet(folder, split="val", cache=True)
    load_in_worker(dataset, start_method)
    shutil.rmtree(folder / "val")

    other = pickle.loads(pickle.dumps(dataset)) if is_pickled else copy.deepcopy(dataset)

    with pytest.raises(MissingFileError):
        other[0]


@START_METHODS
def test_deleted_dataset_leaves_no_descriptors(folder: Path, start_method: str) -> None:
    # Open the files that Python keeps open for a start method.
    load_in_worker(ScanNet(folder, split="val"), start_method)
    before = count_descriptors()
    dataset = ScanNet(folder, split="val", cache=True)
    load_in_worker(dataset, start_method)
    load_in_worker(dataset, start_method)
    other = copy.deepcopy(dataset)

    del dataset, other

    # With forkserver, the server of descriptors stays open.
    server_count = 0 if start_method == "fork" else 1
    assert count_descriptors() <= before + server_count


def test_cache_does_not_change_the_batches(source: Path) -> None:
    expected = list(epochs_of(make_loader(source, 0, cache=False), range(2)))
    loader = make_loader(source, 2, cache=True)

    check_batches(list(epochs_of(loader, range(2))), expected)


def test_cache_does_not_keep_a_file_without_room() -> None:
    cache = SceneCache(["scene0000_00"], np.array([0]))
    large = bytes(2 << 20)

    assert cache.read("scene0000_00", lambda: large) == large
    assert cache.read("scene0000_00", lambda: b"1") == b"1"


def test_cache_keeps_a_file_with_room() -> None:
    cache = SceneCache(["scene0000_00"], np.array([0]))

    assert cache.read("scene0000_00", lambda: b"1") == b"1"
    assert cache.read("scene0000_00", lambda: b"2") == b"1"


# Limited annotations.


def limit_in_sample(whole: Mapping[str, Any], ignore_index: int) -> dict[str, Any]:
    """Keep labels and instances of a sample at its listed points only."""
    is_listed = np.isin(np.arange(len(whole["points"])), POINTS[whole["scene_id"]])
    instances = np.where(is_listed, whole["instances"], -1)
    limited = {
        "labels": np.where(is_listed, whole["labels"], ignore_index),
        "instances": instances.astype(np.int32),
        "annotated": is_listed,
    }
    return {**whole, **limited}


def make_int32_numbers(indices: list[int]) -> list[Any]:
    return [np.int32(index) for index in indices]


def save_points(path: Path, *, is_zip: bool) -> None:
    """Save the points, and those of another scene, with indices of several types."""
    makers = itertools.cycle([list, np.array, torch.tensor, make_int32_numbers])
    content: dict[str, Any] = {"scene9999_00": [1]}
    for scene_id, indices in POINTS.items():
        content[scene_id] = next(makers)(indices)
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)


@pytest.fixture(params=[(-1, True), (255, False)], ids=["zip", "old format"])
def whole_and_limited(
    request: pytest.FixtureRequest, source: Path, tmp_path: Path
) -> tuple[Any, Any]:
    """The dataset with all labels, and that with the points of a file of `torch.save`."""
    ignore_index, is_zip = request.param
    save_points(tmp_path / "points20", is_zip=is_zip)
    points = torch.load(tmp_path / "points20", weights_only=False)
    options: dict[str, Any] = {"split": "train", "labels": SCANNET200, "ignore_index": ignore_index}
    return ScanNet(source, **options), ScanNet(source, **options, points=points)


def test_only_listed_points_keep_label_and_instance(whole_and_limited: tuple[Any, Any]) -> None:
    whole, limited = whole_and_limited
    for whole_sample, sample in zip(whole, limited, strict=True):
        check_same(sample, limit_in_sample(whole_sample, whole.ignore_index))
        assert sample["labels"].flags.writeable


def test_class_counts_are_those_of_listed_points(whole_and_limited: tuple[Any, Any]) -> None:
    _, limited = whole_and_limited
    labels = np.concatenate([sample["labels"] for sample in limited])
    labeled = labels[labels != limited.ignore_index]

    counts = limited.class_counts()

    assert counts.tolist() == np.bincount(labeled, minlength=200).tolist()
    assert 0 < counts.sum() <= 3 * len(TRAIN)


FEW_POINTS = {scene_id: POINTS[scene_id] for scene_id in (TRAIN[0], TRAIN[2])}


@pytest.fixture
def few(training_folder: Path) -> Any:
    """Two scenes, twice each, with a few annotated points."""
    return ScanNet(
        training_folder,
        split="train",
        scenes=list(FEW_POINTS),
        points=FEW_POINTS,
        loop=2,
        transform=Rotate(),
    )


def test_points_are_combined_with_scenes_and_loop(few: Any) -> None:
    assert few.scene_ids == sorted([TRAIN[0], TRAIN[2]] * 2)


@pytest.mark.parametrize("prefix", ["", "\n  ", "\ufeff"], ids=["plain", "blanks", "mark"])
def test_points_are_read_from_json_text(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "points.json"
    path.write_text(prefix + json.dumps(POINTS), encoding="utf-8")

    assert read_points(path) == POINTS


def test_json_list_of_points_is_refused_with_its_type(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text("[5, 17]")

    with pytest.raises(FileError, match="holds a list, expected a dict by scene id"):
        read_points(path)


@pytest.mark.parametrize("kind", ["dataset", "pickled", "subset"])
@pytest.mark.parametrize("key", ["labels", "instances"])
def test_copies_of_a_dataset_keep_the_points(few: Any, kind: str, key: str) -> None:
    dataset = {
        "dataset": few,
        "pickled": pickle.loads(pickle.dumps(few)),
        "subset": few.subset([TRAIN[2]]),
    }[kind]
    for sample in dataset:
        labeled = set(np.flatnonzero(sample[key] != -1).tolist())
        assert labeled <= set(FEW_POINTS[sample["scene_id"]])


def test_batch_has_the_labels_of_listed_points_only(few: Any) -> None:
    batch = collate([few[0], few[3]])
    assert np.count_nonzero(batch["labels"] != -1) <= 6


def test_points_do_not_add_keys_to_a_sample_without_labels(training_folder: Path) -> None:
    sample = ScanNet(training_folder, split="train", points=POINTS, keys="points")[0]
    assert list(sample) == ["points", "scene_id"]


def test_scene_with_an_empty_list_of_points_has_no_label(training_folder: Path) -> None:
    dataset = ScanNet(training_folder, split="train", points=POINTS | {TRAIN[0]: []})
    assert (dataset[TRAIN[0]]["labels"] == -1).all()


@pytest.fixture
def many_points() -> dict[str, Any]:
    """One hundred random annotated points of each scene."""
    generator = np.random.default_rng(0)
    return {name: generator.choice(SIZES[name], 100, replace=False) for name in TRAIN}


@pytest.mark.parametrize(("key", "empty"), [("labels", -1), ("instances", -1), ("annotated", 0)])
def test_sampling_transforms_keep_all_annotated_points(
    source: Path, many_points: dict[str, Any], key: str, empty: int
) -> None:
    transform = Compose(Rotate(), Drop(0.9), GridSample(0.5))
    options: dict[str, Any] = {"split": "train", "labels": SCANNET200, "points": many_points}
    dataset = ScanNet(source, **options)
    sampled_dataset = ScanNet(source, **options, transform=transform)

    for whole, sampled in zip(dataset, sampled_dataset, strict=True):
        count = np.count_nonzero(whole[key] != empty)
        assert count > 0
        assert np.count_nonzero(sampled[key] != empty) == count
        assert len(sampled["points"]) < len(whole["points"])


def test_batch_marks_the_annotated_points(source: Path, many_points: dict[str, Any]) -> None:
    dataset = ScanNet(source, split="train", labels=SCANNET200, points=many_points)
    batch = collate(list(dataset))

    assert len(batch["annotated"]) == len(batch["points"])
    assert np.count_nonzero(batch["annotated"]) == 100 * len(TRAIN)


@pytest.mark.parametrize(("labels", "other"), [(SCANNET20, SCANNET200), (SCANNET200, SCANNET20)])
def test_class_aware_transform_refuses_the_other_label_set(
    training_folder: Path, labels: Any, other: Any
) -> None:
    transform = Compose(Rotate(), GridSample(0.1), InstanceTargets(other))
    dataset = ScanNet(training_folder, split="train", labels=labels, transform=transform)

    message = f"the classes are of {other.name}, but the labels of the sample are of {labels.name}"
    with pytest.raises(ScanNetPrepError, match=message):
        dataset[0]


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        pytest.param(["scene0000_00"], "points: found list, expected", id="list"),
        pytest.param(
            {name: POINTS[name] for name in TRAIN[1:]},
            rf"points: found none for {TRAIN[0]} \(1 of 8 scenes are missing",
            id="missing scene",
        ),
        pytest.param(
            POINTS | {TRAIN[1]: [SIZES[TRAIN[1]]]},
            rf"points: {TRAIN[1]}: found vertices .* the scene has {SIZES[TRAIN[1]]:,}",
            id="large index",
        ),
        pytest.param(POINTS | {TRAIN[0]: [4, -1]}, "vertices -1 to 4", id="negative index"),
        pytest.param(
            POINTS | {TRAIN[0]: [0.5]},
            r"found float64 \(1,\), expected a list of whole numbers",
            id="float",
        ),
        pytest.param(POINTS | {TRAIN[0]: [[1, 2]]}, r"found int64 \(1, 2\)", id="two axes"),
        pytest.param(POINTS | {TRAIN[0]: np.ones(3, bool)}, r"found bool \(3,\)", id="mask"),
        pytest.param(POINTS | {TRAIN[0]: "12"}, "expected a list of whole numbers", id="text"),
        pytest.param(POINTS | {TRAIN[0]: None}, "expected a list of whole numbers", id="None"),
        pytest.param(
            POINTS | {TRAIN[0]: [[1], [2, 3]]}, "is not a list of whole numbers", id="ragged"
        ),
    ],
)
def test_points_that_do_not_fit_a_scene_are_refused(
    training_folder: Path, points: Any, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        ScanNet(training_folder, split="train", points=points)
