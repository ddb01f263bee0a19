"""Options of `ScanNet`: limited annotations, scenes that come several times an epoch, files kept in shared memory."""

import copy
import itertools
import pickle
import shutil
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
from scannet_prep.base.errors import MissingFileError, TransformError, UsageError
from scannet_prep.processed.reader import SceneCache
from scannet_prep.transforms import Compose, Drop, GridSample, InstanceTargets, RotateZ

torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.torch
POINTS = {scene_id: [0, 7 + index, SIZES[scene_id] - 1] for index, scene_id in enumerate(TRAIN)}


def test_a_loop_gives_each_scene_so_often_and_each_time_other_random_numbers(source: Path) -> None:
    once, thrice = (ScanNet(source, split="train", transform=draw, loop=loop) for loop in (1, 3))
    assert thrice.scene_ids == [scene_id for scene_id in TRAIN for _ in range(3)]
    assert thrice.lengths.tolist() == [SIZES[scene_id] for scene_id in thrice.scene_ids]
    assert len({tuple(thrice[index, 0]) for index in range(len(thrice))}) == len(thrice)
    assert thrice["scene0001_00", 0] == thrice[3 * TRAIN.index("scene0001_00"), 0]
    assert thrice.class_counts().tolist() == (3 * once.class_counts()).tolist()
    assert thrice.class_weights() == pytest.approx(once.class_weights())
    indices = [
        index for batch in PointBudgetBatchSampler(thrice, max_points=1600) for index, _ in batch
    ]
    assert sorted(indices) == list(range(3 * len(TRAIN)))
    assert (
        ScanNet(source, split="train", scenes=["scene0001_00"], loop=2).scene_ids
        == ["scene0001_00"] * 2
    )
    # Arrays and tensors have `__index__`, whether they are one whole number or not.
    for loop in (0, 1.5, "2", None, np.array([1, 2]), np.array(2.0)):
        with pytest.raises(UsageError, match=r"loop is .*, expected a whole number from 1"):
            ScanNet(source, split="train", loop=loop)


def test_several_datasets_are_one_for_the_samplers_with_the_epoch(source: Path) -> None:
    parts = [
        ScanNet(source, split="train", transform=draw_in_sample),
        ScanNet(source, split="val", seed=1),
    ]
    parts[1].transform = draw_in_sample
    both = ConcatDataset(parts)
    ids = [scene_id for part in parts for scene_id in part.scene_ids]
    assert both.lengths.tolist() == [SIZES[scene_id] for scene_id in ids]
    for key in (0, len(TRAIN) - 1, len(TRAIN), -1):
        number, inner = divmod(key % len(both), len(TRAIN))
        assert both[key, 3]["scene_id"] == ids[key]
        assert both[key, 3]["drawn"] == parts[number][inner, 3]["drawn"] != both[key, 4]["drawn"]
    assert both[len(TRAIN)]["drawn"] == parts[1][0]["drawn"]
    for key in (len(both), -len(both) - 1):
        with pytest.raises(
            IndexError, match=f"index {key} is out of range: the datasets have {len(both)} scenes"
        ):
            both[key]
    sampler = PointBudgetBatchSampler(both, max_points=1600)
    batches = list(
        torch_data.DataLoader(both, batch_sampler=sampler, collate_fn=collate, num_workers=1)
    )
    assert sorted(scene_id for batch in batches for scene_id in batch["scene_ids"]) == ids
    assert sorted(EvalSampler(both)) == [*range(len(both))]
    with pytest.raises(UsageError, match="no datasets"):
        ConcatDataset([])


def test_the_digest_differs_where_a_scene_of_the_same_length_has_other_bytes(
    source: Path, folder: Path
) -> None:
    train = ScanNet(folder, split="train")
    digest = train.digest
    assert ConcatDataset([train, train]).digest == f"{digest} {digest}"
    assert digest != ScanNet(folder, split="train", labels="scannet20").digest
    assert digest != ScanNet(folder, split="train", points=POINTS).digest
    assert digest == ScanNet(source, split="train").digest != train.subset(TRAIN[1:]).digest
    edit_json(
        folder / "manifest.json",
        lambda value: value["scenes"]["scene0000_00"].update(crc32="00000000"),
    )
    assert ScanNet(folder, split="train").digest != digest


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_what_a_worker_has_read_is_kept_for_all_of_them(folder: Path, start_method: str) -> None:
    options: dict[str, Any] = {"batch_size": None, "multiprocessing_context": start_method}
    # With workers, so that what Python keeps open for a start method is there before the count.
    expected = list(torch_data.DataLoader(ScanNet(folder, split="val"), num_workers=1, **options))
    before = count_descriptors()
    dataset = ScanNet(folder, split="val", cache=True)
    check_batches(list(torch_data.DataLoader(dataset, num_workers=1, **options)), expected)
    shutil.rmtree(folder / "val")
    check_batches(list(torch_data.DataLoader(dataset, num_workers=1, **options)), expected)
    sample = dataset.subset([0])[0]
    sample["points"][:] = 0  # its own memory
    check_same(dataset[0], expected[0])
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        with pytest.raises(MissingFileError):
            other[0]
    del dataset, other
    assert count_descriptors() <= before + (start_method != "fork")  # the server of descriptors


def test_a_cache_gives_the_same_batches_and_leaves_out_files_without_room(source: Path) -> None:
    expected, found = (
        epochs_of(make_loader(source, 2 * cache, cache=bool(cache)), range(2)) for cache in (0, 1)
    )
    check_batches(list(found), list(expected))
    cache, large = SceneCache(["scene0000_00"], np.array([0])), bytes(2 << 20)
    assert all(
        cache.read("scene0000_00", lambda data=data: data) == data for data in (large, b"1", b"1")
    )
    assert cache.read("scene0000_00", lambda: b"2") == b"1", (
        "what has no room is not kept, and what has is"
    )


def expect(whole: dict[str, Any], ignore_index: int) -> dict[str, Any]:
    """A scene with labels and instances at its listed points only."""
    is_chosen = np.isin(np.arange(len(whole["points"])), POINTS[whole["scene_id"]])
    labels, instances = np.where(
        is_chosen, [whole["labels"], whole["instances"]], [[ignore_index], [-1]]
    )
    arrays = {"labels": labels, "instances": instances.astype(np.int32), "annotated": is_chosen}
    return whole | arrays


@pytest.mark.parametrize(("ignore_index", "is_zip"), [(-1, True), (255, False)])
def test_only_points_of_lists_of_torch_save_keep_label_and_instance_and_all_else_is_as_before(
    source: Path, tmp_path: Path, ignore_index: int, is_zip: bool
) -> None:
    import torch

    makers = itertools.cycle([list, np.array, torch.tensor, lambda some: list(map(np.int32, some))])
    made = {name: make(some) for make, (name, some) in zip(makers, POINTS.items(), strict=False)}
    torch.save(
        made | {"scene9999_00": [1]}, tmp_path / "points20", _use_new_zipfile_serialization=is_zip
    )
    points = torch.load(tmp_path / "points20", weights_only=False)
    options: dict[str, Any] = {"split": "train", "labels": SCANNET200, "ignore_index": ignore_index}
    limited = ScanNet(source, **options, points=points)
    for whole, found in zip(ScanNet(source, **options), limited, strict=True):
        check_same(found, expect(whole, ignore_index))
        assert found["labels"].flags.writeable
    labels = np.concatenate([sample["labels"] for sample in limited])
    assert (
        limited.class_counts().tolist()
        == np.bincount(labels[labels != ignore_index], minlength=200).tolist()
    )
    assert 0 < limited.class_counts().sum() <= 3 * len(TRAIN)


def test_points_go_with_chosen_scenes_subsets_loops_keys_workers_and_transforms(
    training_folder: Path,
) -> None:
    few = {name: POINTS[name] for name in (TRAIN[0], TRAIN[2])}
    dataset = ScanNet(
        training_folder, split="train", scenes=[*few], points=few, loop=2, transform=RotateZ()
    )
    assert dataset.scene_ids == sorted([TRAIN[0], TRAIN[2]] * 2)
    for one in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.subset([TRAIN[2]])):
        for sample, key in itertools.product(one, ("labels", "instances")):
            assert set(np.flatnonzero(sample[key] != -1)) <= set(few[sample["scene_id"]])
    batch = collate([dataset[0], dataset[3]])
    assert np.count_nonzero(batch["labels"] != -1) <= 6
    positions_only = ScanNet(training_folder, split="train", points=POINTS, keys="points")[0]
    assert list(positions_only) == ["points", "scene_id"]
    dataset = ScanNet(training_folder, split="train", points=POINTS | {TRAIN[0]: []})
    assert (dataset[TRAIN[0]]["labels"] == -1).all()


def test_sampling_transforms_keep_all_points_of_a_list(source: Path) -> None:
    generator = np.random.default_rng(0)
    points = {name: generator.choice(SIZES[name], 100, replace=False) for name in TRAIN}
    transform = Compose(RotateZ(), Drop(0.9), GridSample(0.5))
    options: dict[str, Any] = {"split": "train", "labels": SCANNET200, "points": points}
    every = ScanNet(source, **options)
    for whole, sampled in zip(every, ScanNet(source, **options, transform=transform), strict=True):
        assert len(sampled["points"]) < len(whole["points"])
        for key, empty in (("labels", -1), ("instances", -1), ("annotated", 0)):
            before = np.count_nonzero(whole[key] != empty)
            assert np.count_nonzero(sampled[key] != empty) == before > 0, key
    batch = collate(list(every))
    assert len(batch["annotated"]) == len(batch["points"])
    assert np.count_nonzero(batch["annotated"]) == 100 * len(TRAIN)


@pytest.mark.parametrize(("labels", "other"), [(SCANNET20, SCANNET200), (SCANNET200, SCANNET20)])
def test_class_aware_transforms_refuse_a_dataset_of_the_other_label_set(
    training_folder: Path, labels: Any, other: Any
) -> None:
    transform = Compose(RotateZ(), GridSample(0.1), InstanceTargets(other))
    dataset = ScanNet(training_folder, split="train", labels=labels, transform=transform)
    message = f"the classes are of {other.name}, but the labels of the sample are of {labels.name}"
    with pytest.raises(TransformError, match=message):
        dataset[0]


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        (["scene0000_00"], "points: found list, expected"),
        (
            {name: POINTS[name] for name in TRAIN[1:]},
            rf"points: found none for {TRAIN[0]} \(1 of 8 scenes are missing",
        ),
        (
            POINTS | {TRAIN[1]: [SIZES[TRAIN[1]]]},
            rf"points: {TRAIN[1]}: found vertices .* the scene has {SIZES[TRAIN[1]]:,}",
        ),
        (POINTS | {TRAIN[0]: [4, -1]}, "vertices -1 to 4"),
        (POINTS | {TRAIN[0]: [0.5]}, r"found float64 \(1,\), expected a list of whole numbers"),
        (POINTS | {TRAIN[0]: [[1, 2]]}, r"found int64 \(1, 2\)"),
        (POINTS | {TRAIN[0]: np.ones(3, bool)}, r"found bool \(3,\)"),
        (POINTS | {TRAIN[0]: "12"}, "expected a list of whole numbers"),
        (POINTS | {TRAIN[0]: None}, "expected a list of whole numbers"),
        (POINTS | {TRAIN[0]: [[1], [2, 3]]}, "is not a list of whole numbers"),
    ],
)
def test_points_that_do_not_fit_a_scene_are_refused_by_name(
    training_folder: Path, points: Any, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        ScanNet(training_folder, split="train", points=points)
