"""What training needs of a dataset, from every kind of source: random numbers, errors, class weights, loaders."""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_transforms import draw, fail_on_third_scene
from training_sources import SIZES, TRAIN

from scannet_prep import SCANNET20, SCANNET200, LabelSet, PointBudgetBatchSampler, ScanNet, collate, read_processed
from scannet_prep.errors import ManifestError, ProcessedFileError, TransformError, UsageError
from scannet_prep.transforms import Compose, CropPoints, Flip, GridSample, Jitter, RotateZ

RANDOM = Compose(GridSample(0.05), CropPoints(300), RotateZ(), Flip(), Jitter())


def check_batches_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for key, value in other.items():
            assert np.array_equal(np.asarray(one[key]), np.asarray(value)), key


def test_random_numbers_come_from_seed_epoch_and_index_alone(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=draw)
    assert dataset[1, 5] == dataset[1, 5] == dataset["scene0000_01", 5] == dataset[1 - len(dataset), np.int64(5)]
    assert dataset[1, 5] == np.random.default_rng(np.random.SeedSequence((0, 5, 1))).integers(0, 1 << 30, 3).tolist()
    assert dataset[1] == dataset[1, 0] == dataset["scene0000_01"]
    other = ScanNet(source, split="train", transform=draw, seed=1)
    assert len({str(item) for item in (dataset[0, 0], dataset[1, 0], dataset[0, 1], dataset[2, 0], other[0, 0])}) == 5


def test_an_epoch_or_seed_below_zero_is_refused(source: Path) -> None:
    with pytest.raises(UsageError, match="epoch is -1"):
        ScanNet(source, split="train", transform=draw)[0, -1]
    with pytest.raises(UsageError, match="seed is -3"):
        ScanNet(source, split="train", seed=-3)


def test_a_transform_that_fails_is_named_with_scene_file_and_how_to_see_it_again(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=fail_on_third_scene)
    assert dataset[0, 7]["scene_id"] == "scene0000_00"
    with pytest.raises(TransformError) as caught:
        dataset[2, 7]
    message = str(caught.value)
    assert message.startswith("scene0000_02 (")
    assert str(source) in message
    assert message.endswith("the transform failed: ZeroDivisionError: no such voxel")
    assert caught.value.hint == "see it again with dataset[2, 7]"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_dataset_closes_and_opens_again(source: Path) -> None:
    with ScanNet(source, split="train") as dataset:
        first = dataset[0]
    assert np.array_equal(dataset[0]["points"], first["points"])
    dataset.close()
    assert dataset["scene0000_00"]["scene_id"] == "scene0000_00"
    dataset.close()


def test_the_sampler_reads_every_scene_once_an_epoch(source: Path) -> None:
    dataset = ScanNet(source, split="train", transform=RANDOM)
    samplers = [PointBudgetBatchSampler(dataset.lengths, max_points=1600, rank=r, world_size=2) for r in range(2)]
    batches = [collate([dataset[key] for key in batch]) for sampler in samplers for batch in sampler]
    assert sorted(scene_id for batch in batches for scene_id in batch["scene_ids"]) == TRAIN
    for batch in batches:
        assert batch["inverse_offset"][-1] <= 1600
        assert batch["inverse"].max() < len(batch["points"]) == batch["offset"][-1]


def count_classes_in_a_loop(folder: Path, split: str, label_set: LabelSet) -> tuple[list[int], list[list[int]]]:
    """Vertices by class in all scenes, and in each."""
    rows = []
    for path in sorted((folder / split).glob("*.npz")):
        scene = read_processed(path)
        raw_ids = (scene.nyu40_ids if label_set is SCANNET20 else scene.scannet_ids).tolist()
        rows.append([raw_ids.count(raw_id) for raw_id in label_set.ids])
    return [sum(column) for column in zip(*rows, strict=True)], rows


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_class_weights_follow_their_formulas(source: Path, training_folder: Path, label_set: LabelSet) -> None:
    dataset = ScanNet(source, split="train", labels=label_set)
    counts, rows = count_classes_in_a_loop(training_folder, "train", label_set)
    assert dataset.class_counts().tolist() == counts
    assert dataset.class_counts().dtype == np.int64
    assert 0 in counts
    labeled = sum(counts)
    present = [c for c, count in enumerate(counts) if count]
    frequency = {c: counts[c] / sum(sum(row) for row in rows if row[c]) for c in present}
    ordered = sorted(frequency.values())
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    formulas = {
        "inverse": lambda c: labeled / counts[c],
        "inverse_sqrt": lambda c: math.sqrt(labeled / counts[c]),
        "log": lambda c: 1 / math.log(1.02 + counts[c] / labeled),
        "median_frequency": lambda c: median / frequency[c],
    }
    for name, formula in formulas.items():
        raw = [formula(c) if counts[c] else 0.0 for c in range(len(counts))]
        expected = [weight * len(present) / sum(raw) for weight in raw]
        found = dataset.class_weights(name)
        assert found.dtype == np.float32
        assert found.tolist() == pytest.approx(expected, rel=1e-5), name
    assert np.array_equal(dataset.class_weights(), dataset.class_weights("inverse_sqrt"))


def test_without_a_manifest_classes_are_counted_in_the_scenes(training_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(training_folder, tmp_path / "processed"))
    expected = {
        labels: ScanNet(folder, split="val", labels=labels).class_counts() for labels in (SCANNET20, SCANNET200)
    }
    (folder / "manifest.json").unlink()
    for labels, counts in expected.items():
        assert np.array_equal(ScanNet(folder, split="val", labels=labels).class_counts(), counts)


def test_a_folder_that_has_lost_a_scene_meanwhile_is_an_error(training_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(training_folder, tmp_path / "processed"))
    dataset = ScanNet(folder, split="train")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["scenes"]["scene0001_00"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match="no longer names scene0001_00"):
        dataset.class_counts()


def test_class_weights_of_nothing_are_an_error(source: Path) -> None:
    with pytest.raises(UsageError, match="no vertex has a class"):
        ScanNet(source, split="test").class_weights()
    assert ScanNet(source, split="test").class_counts().sum() == 0
    with pytest.raises(UsageError, match="'cubic' is no formula") as caught:
        ScanNet(source, split="train").class_weights("cubic")  # type: ignore[arg-type]
    assert "median_frequency" in caught.value.hint


def test_training_imports_nothing_heavy(source: Path) -> None:
    script = (
        "import sys\n"
        "from scannet_prep import ScanNet, PointBudgetBatchSampler, EvalSampler, collate\n"
        "from scannet_prep.transforms import Normalize\n"
        f"dataset = ScanNet({str(source)!r}, split='train', transform=Normalize())\n"
        "for batch in PointBudgetBatchSampler(dataset.lengths, max_points=2000):\n"
        "    collate([dataset[key] for key in batch])\n"
        "dataset.class_weights()\n"
        "print([name for name in ('torch', 'requests', 'pandas', 'plyfile', 'numba', 'tqdm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def make_loader(source: Path, workers: int, start_method: str | None, transform: Any = RANDOM, **options: Any) -> Any:
    data = pytest.importorskip("torch.utils.data")
    dataset = ScanNet(source, split="train", transform=transform)
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600, rank=0, world_size=1)
    return data.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=collate, num_workers=workers,
        multiprocessing_context=start_method, **options,
    )  # fmt: skip


def epochs_of(loader: Any, epochs: range) -> Iterator[Any]:
    for epoch in epochs:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


@pytest.mark.torch
@pytest.mark.parametrize(
    ("workers", "start_method", "persistent"),
    [
        (1, "fork", False), (2, "fork", False), (2, "fork", True), (1, "forkserver", True), (2, "forkserver", True),
        (1, "spawn", True), (2, "spawn", True),
    ],
)  # fmt: skip
def test_batches_are_the_same_whatever_workers_there_are(
    source: Path, workers: int, start_method: str, persistent: bool
) -> None:
    expected = list(epochs_of(make_loader(source, 0, None), range(2)))
    assert not np.array_equal(expected[0]["points"], expected[len(expected) // 2]["points"])
    loader = make_loader(source, workers, start_method, persistent_workers=persistent)
    check_batches_equal(list(epochs_of(loader, range(2))), expected)


@pytest.mark.torch
def test_batches_are_the_same_after_resuming(source: Path) -> None:
    expected = list(epochs_of(make_loader(source, 0, None), range(1, 2)))
    loader = make_loader(source, 2, "fork")
    loader.batch_sampler.set_epoch(1)
    running = iter(loader)
    found = [next(running)]
    # Workers have run ahead of the one step that was done.
    state = pickle.loads(pickle.dumps(loader.batch_sampler.state_dict(steps_done=1)))
    del running
    loader = make_loader(source, 1, "fork")
    loader.batch_sampler.load_state_dict(state)
    check_batches_equal(found + list(loader), expected)


def error_of(loader: Any) -> tuple[type[Exception], str]:
    """How a loader fails.

    The traceback is cut off: it is in a cycle, which would keep the loader's iterator until its queues are gone, and
    without those it waits for its workers.
    """
    try:
        list(loader)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return type(error), str(error.with_traceback(None))
    pytest.fail("the loader does not fail")


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_names_scene_and_file(source: Path, workers: int) -> None:
    kind, message = error_of(make_loader(source, workers, "fork" if workers else None, fail_on_third_scene))
    assert kind is TransformError
    assert re.search(rf"scene0000_02 \({source}.*\): the transform failed: ZeroDivisionError: no such voxel", message)
    assert workers == 0 or "hint: see it again with dataset[2, 0]" in message


@pytest.mark.torch
def test_a_broken_file_is_named_by_the_loader(training_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(training_folder, tmp_path / "processed"))
    path = folder / "train/scene0001_00.npz"
    path.write_bytes(path.read_bytes()[:-100])
    kind, message = error_of(make_loader(folder, 1, "fork"))
    assert kind is ProcessedFileError
    assert f"{path}: is truncated" in message


@pytest.mark.torch
@pytest.mark.parametrize("key", ["sampler", "batch_sampler"])
def test_evaluation_sees_every_scene_once(source: Path, key: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    from scannet_prep import EvalSampler

    dataset = ScanNet(source, split="train")
    seen: list[str] = []
    for rank in range(3):
        sampler: Any = EvalSampler(dataset.lengths, rank=rank, world_size=3)
        if key == "batch_sampler":
            sampler = data.BatchSampler(sampler, 2, drop_last=False)
        for batch in data.DataLoader(dataset, collate_fn=collate, **{key: sampler}):
            seen += batch["scene_ids"]
    assert sorted(seen) == TRAIN
    assert dataset.lengths.tolist() == [SIZES[scene_id] for scene_id in TRAIN]
