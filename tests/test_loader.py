"""The dataset in PyTorch's `DataLoader`: batches, memory and errors with any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import count_descriptors
from training_sources import TRAIN, Stored, check_same, draw_in_sample, fail_on_third_scene

from scannet_prep import Batch, PointBudgetBatchSampler, ScanNet, collate, collate_torch
from scannet_prep.errors import FileError, MissingFileError, ScanNetPrepError
from scannet_prep.transforms import Compose, CropPoints, Flip, GridSample, Jitter, Rotate

torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.extra("torch")

FORKED = {"multiprocessing_context": "fork", "persistent_workers": True}
RANDOM = Compose(Rotate(), Flip(), Jitter(), GridSample(0.05), CropPoints(300))


def make_loader(
    source: Any,
    workers: int,
    transform: Any = RANDOM,
    cache: bool = False,
    join: Any = collate,
    **options: Any,
) -> Any:
    dataset = ScanNet(source, split="train", transform=transform, cache=cache)
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600, rank=0, world_size=1)
    return torch_data.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=join, num_workers=workers, **options
    )


def epochs_of(loader: Any, epochs: range) -> Iterator[Any]:
    """Iterate over the batches of several epochs."""
    for epoch in epochs:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def check_batches(actual: list[Any], expected: list[Any]) -> None:
    for batch, expected_batch in zip(actual, expected, strict=True):
        check_same(batch, expected_batch)


# Batches.


@pytest.fixture(scope="module")
def two_epochs(training_folder: Path) -> list[Any]:
    """The batches of two epochs, without workers."""
    return list(epochs_of(make_loader(training_folder, 0), range(2)))


def test_epochs_have_different_batches(two_epochs: list[Any]) -> None:
    second_epoch = two_epochs[len(two_epochs) // 2]
    assert not np.array_equal(two_epochs[0]["points"], second_epoch["points"])


def test_each_epoch_has_every_scene_once(two_epochs: list[Any]) -> None:
    half = len(two_epochs) // 2
    for epoch in (two_epochs[:half], two_epochs[half:]):
        assert sorted(scene_id for batch in epoch for scene_id in batch["scene_ids"]) == TRAIN


def test_batches_are_within_the_budget(two_epochs: list[Any]) -> None:
    assert max(batch["inverse_offset"][-1] for batch in two_epochs) <= 1600


@pytest.mark.parametrize(
    ("stored", "workers", "start_method", "persistent"),
    [
        ("folder", 1, "forkserver", True),
        ("archive", 2, "fork", False),
        ("archive", 2, "fork", True),
        ("url", 1, "spawn", True),
    ],
    indirect=["stored"],
)
def test_batches_are_the_same_with_any_workers(
    stored: Stored, workers: int, start_method: str, persistent: bool, two_epochs: list[Any]
) -> None:
    options = {"multiprocessing_context": start_method, "persistent_workers": persistent}
    loader = make_loader(stored.place, workers, **options)
    # Open the files that the workers open too, or inherit.
    loader.dataset[0]

    check_batches(list(epochs_of(loader, range(2))), two_epochs)


@pytest.mark.parametrize("workers", [0, 1])
def test_other_collate_function_receives_the_samples(training_folder: Path, workers: int) -> None:
    dataset = ScanNet(training_folder, split="train")
    loader = torch_data.DataLoader(dataset, batch_size=2, collate_fn=list, num_workers=workers)

    check_batches(next(iter(loader)), [dataset[0], dataset[1]])


def brighten(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"colors": sample["colors"] // 2 + 128}


class Brighter(ScanNet):
    """A subclass that changes samples."""

    def __getitem__(self, key: Any) -> Any:
        return brighten(super().__getitem__(key))


class Wrapper:
    """A wrapper that has all attributes of a dataset, and changes samples."""

    def __init__(self, dataset: Any) -> None:
        self.inner = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: Any) -> Any:
        return brighten(self.inner[key])


@pytest.mark.parametrize(
    ("kind", "times"), [("subclass", 1), ("wrapper", 1), ("two wrappers", 2), ("subset", 1)]
)
def test_loader_reads_scenes_through_subclasses_and_wrappers(
    training_folder: Path, kind: str, times: int
) -> None:
    train = ScanNet(training_folder, split="train")
    dataset = {
        "subclass": Brighter(training_folder, split="train"),
        "wrapper": Wrapper(train),
        "two wrappers": Wrapper(Wrapper(train)),
        "subset": torch_data.Subset(Wrapper(train), [0, 1, 2]),
    }[kind]

    batch = next(iter(torch_data.DataLoader(dataset, batch_size=3, collate_fn=collate)))

    samples: list[Any] = [train[index] for index in range(3)]
    for _ in range(times):
        samples = [brighten(sample) for sample in samples]
    check_same(batch, collate(samples))


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
def test_shuffled_plain_indices_are_augmented_anew_each_epoch(
    training_folder: Path, options: Any
) -> None:
    dataset = ScanNet(training_folder, split="train", transform=draw_in_sample)
    loader = torch_data.DataLoader(dataset, shuffle=True, batch_size=None, **options)

    epochs = [{sample["scene_id"]: int(sample["drawn"]) for sample in loader} for _ in range(4)]

    for scene_id in TRAIN:
        assert len({epoch[scene_id] for epoch in epochs}) == 4, scene_id


# Memory of batches.


def collate_three_times(samples: list[Any]) -> list[Any]:
    """Make a batch, a copy of it, and one with another array. In the worker, they share memory."""
    batch = collate_torch(samples)
    return [batch, Batch(batch), Batch(batch, half=batch["points"] / 2)]


def list_batch_memories() -> set[str]:
    """Inodes of the memories of batches that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:batch" in line}


@pytest.fixture
def kept_batches(training_folder: Path) -> tuple[list[Any], set[str]]:
    """One of three batches of each step of six epochs, and the memories of all."""
    loader = make_loader(training_folder, 1, join=collate_three_times, **FORKED)
    kept = []
    memories: set[str] = set()
    for number, batches in enumerate(epochs_of(loader, range(6))):
        memories |= list_batch_memories()
        kept.append(batches[number % 3])
    return kept, memories


def test_memory_is_reused_if_no_array_is_kept(kept_batches: tuple[list[Any], set[str]]) -> None:
    kept, memories = kept_batches
    # Three batches arrived in each step, and one was kept.
    assert len(kept) < len(memories) < 2 * len(kept)


def test_kept_batches_are_not_overwritten(
    training_folder: Path, kept_batches: tuple[list[Any], set[str]]
) -> None:
    kept, _ = kept_batches
    expected = list(epochs_of(make_loader(training_folder, 0), range(6)))
    for batch, expected_batch in zip(kept, expected, strict=True):
        others = Batch(batch)
        if "half" in others:
            assert np.array_equal(others.pop("half"), expected_batch["points"] / 2)
        check_same(others, expected_batch)


def fork_and_exit() -> None:
    """Fork a process that ends at once."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def are_equal(batch: Any, arrays: dict[str, Any]) -> bool:
    return all(np.array_equal(batch[key], array) for key, array in arrays.items())


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_process_keeps_the_batch_that_its_parent_deletes(training_folder: Path) -> None:
    loader = make_loader(training_folder, 1, None, **FORKED)
    batches = epochs_of(loader, range(5))
    # A batch whose memory is large enough for any other one.
    batch = next(batch for batch in batches if len(batch["points"]) > 1400)
    before = {key: value.copy() for key, value in batch.items() if isinstance(value, np.ndarray)}
    read_end, write_end = os.pipe()

    child = os.fork()
    if child == 0:
        os.close(write_end)
        # Wait until the parent has received other batches.
        os.read(read_end, 1)
        os._exit(0 if are_equal(batch, before) else 1)
    for batch in batches:  # noqa: B007 - it exists while the process forks
        fork_and_exit()
    del batch
    list(epochs_of(loader, range(5, 7)))

    # The worker does not keep the memories that were lost to other processes.
    (worker,) = loader._iterator._workers
    assert Path(f"/proc/{worker.pid}/maps").read_text().count("/memfd:batch") < 12
    os.close(write_end)
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    assert status == 0


# Errors.


@pytest.mark.parametrize("workers", [0, 2])
def test_failed_transform_names_scene_file_and_key(folder: Path, workers: int) -> None:
    message = (
        rf"scene0000_02 \({folder}.*\): the transform failed: ZeroDivisionError: no such voxel"
        r"\n.*dataset\[2, 0\]"
    )
    check_error(make_loader(folder, workers, fail_on_third_scene), ScanNetPrepError, message)


def test_failed_transform_has_its_cause_without_workers(folder: Path) -> None:
    with pytest.raises(ScanNetPrepError) as caught:
        list(make_loader(folder, 0, fail_on_third_scene))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_truncated_file_is_an_error_from_the_worker(folder: Path) -> None:
    path = folder / "train/scene0001_00.npz"
    os.truncate(path, path.stat().st_size - 100)

    check_error(make_loader(folder, 1, None), FileError, rf"{path}: .*truncated")


def test_missing_file_is_an_error_from_the_worker(folder: Path) -> None:
    path = folder / "train/scene0001_00.npz"
    path.unlink()

    check_error(make_loader(folder, 1, None), MissingFileError, rf"{path}: .*no such file")


def check_error(loader: Any, error_type: type[Exception], message: str) -> None:
    """Check the error of iterating over a loader."""
    with pytest.raises(error_type, match=message) as caught:
        list(loader)
    assert type(caught.value) is error_type
    assert not str(caught.value).endswith(": ")
    # The traceback is part of reference cycles, which would keep the loader's iterator alive until
    # its queues are deleted. Without those, the iterator waits for its workers.
    caught.value.__traceback__ = None
    del caught


# Resources.


def list_open() -> tuple[int, list[str]]:
    """Count the open descriptors, and list the shared and the anonymous memory that is mapped."""
    mapped = re.findall(r" (/dev/shm.*|/mem.*)", Path("/proc/self/maps").read_text())
    return count_descriptors(), mapped


def wait_until_open(expected: tuple[int, list[str]]) -> None:
    """Wait until the threads of a loader have ended, and check that the rest is as expected."""
    for _ in range(200):
        if list_open() == expected:
            return
        time.sleep(0.1)
    assert list_open() == expected


def count_workers() -> int:
    """Count the threads and the child processes of this process."""
    return threading.active_count() + len(multiprocessing.active_children())


def wait_until_ended(expected_count: int) -> None:
    """Wait until the threads and the processes of a loader have ended."""
    for _ in range(200):
        if count_workers() <= expected_count:
            return
        time.sleep(0.1)
    assert count_workers() <= expected_count


def make_torch_loader(folder: Path, *, persistent: bool) -> Any:
    options = FORKED | {"persistent_workers": persistent}
    return make_loader(folder, 2, join=collate_torch, **options)


@pytest.mark.parametrize("persistent", [False, True])
def test_loaders_leave_no_descriptors_and_no_memory(
    training_folder: Path, persistent: bool
) -> None:
    # The first loader opens files that stay open.
    worker_count = count_workers()
    list(epochs_of(make_torch_loader(training_folder, persistent=False), range(2)))
    wait_until_ended(worker_count)
    before = list_open()

    for _ in range(2):
        list(epochs_of(make_torch_loader(training_folder, persistent=persistent), range(2)))

    wait_until_open(before)


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_in_anonymous_memory_not_in_dev_shm(
    training_folder: Path, persistent: bool
) -> None:
    loader = make_torch_loader(training_folder, persistent=persistent)

    *_, batch = epochs_of(loader, range(2))

    _, mapped = list_open()
    assert batch["points"].sum() != 0
    assert any(name.startswith("/memfd:batch") for name in mapped)
    # PyTorch's own semaphores are in /dev/shm, but its tensors are not.
    assert not any("torch" in name for name in mapped)
