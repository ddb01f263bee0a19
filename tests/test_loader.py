"""The training source in PyTorch's `DataLoader`: the same batches whatever the workers, and errors that arrive."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import count_descriptors
from training_sources import TRAIN, Stored, check_same, draw_in_sample, fail_on_third_scene

from scannet_prep import Batch, PointBudgetBatchSampler, ScanNet, collate, collate_torch
from scannet_prep.base.errors import MissingFileError, ProcessedFileError, TransformError
from scannet_prep.transforms import Compose, CropPoints, Flip, GridSample, Jitter, RotateZ

torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.torch
FORKED = {"multiprocessing_context": "fork", "persistent_workers": True}
RANDOM = Compose(RotateZ(), Flip(), Jitter(), GridSample(0.05), CropPoints(300))


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
    for epoch in epochs:
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def check_batches(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        check_same(one, other)


@pytest.mark.parametrize(
    ("stored", "workers", "start_method", "persistent"),
    [
        ("folder", 1, "forkserver", True),
        ("archive", 2, "fork", False),
        ("shards", 2, "fork", True),
        ("url", 1, "spawn", True),
    ],
    indirect=["stored"],
)
def test_batches_are_the_same_whatever_workers_there_are(
    stored: Stored, workers: int, start_method: str, persistent: bool
) -> None:
    expected = list(epochs_of(make_loader(stored.place, 0), range(2)))
    assert not np.array_equal(expected[0]["points"], expected[len(expected) // 2]["points"])
    for epoch in (expected[: len(expected) // 2], expected[len(expected) // 2 :]):
        assert sorted(scene_id for batch in epoch for scene_id in batch["scene_ids"]) == TRAIN
        assert all(batch["inverse_offset"][-1] <= 1600 for batch in epoch)
    options = {"multiprocessing_context": start_method, "persistent_workers": persistent}
    loader = make_loader(stored.place, workers, **options)
    loader.dataset[0]  # opens what its workers open too, or have by inheritance
    check_batches(list(epochs_of(loader, range(2))), expected)


def test_loader_without_a_collate_function_of_ours_gets_the_samples(training_folder: Path) -> None:
    dataset = ScanNet(training_folder, split="train")
    expected = [dataset[0], dataset[1]]
    for options in ({"num_workers": 0}, {"num_workers": 1}):
        loader = torch_data.DataLoader(dataset, batch_size=2, collate_fn=list, **options)
        check_batches(next(iter(loader)), expected)


def brighten(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"colors": sample["colors"] // 2 + 128}


class Brighter(ScanNet):
    def __getitem__(self, key: Any) -> Any:
        return brighten(super().__getitem__(key))


class Passing:
    """Has all attributes of a dataset, and items of its own."""

    def __init__(self, dataset: Any) -> None:
        self.inner = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: Any) -> Any:
        return brighten(self.inner[key])


def test_a_dataset_that_changes_or_wraps_another_is_asked_for_each_scene(
    training_folder: Path,
) -> None:
    train = ScanNet(training_folder, split="train")
    for dataset, times in (
        (Brighter(training_folder, split="train"), 1),
        (Passing(train), 1),
        (Passing(Passing(train)), 2),
        (torch_data.Subset(Passing(train), [*range(3)]), 1),
    ):
        (batch, *_) = torch_data.DataLoader(dataset, batch_size=3, collate_fn=collate)
        expected = [brighten(train[index]) for index in range(3)]
        check_same(batch, collate(expected if times == 1 else list(map(brighten, expected))))


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}]
)
def test_shuffled_plain_indices_are_augmented_anew_in_every_epoch(
    training_folder: Path, options: Any
) -> None:
    dataset = ScanNet(training_folder, split="train", transform=draw_in_sample)
    loader = torch_data.DataLoader(dataset, shuffle=True, batch_size=None, **options)
    epochs = [{sample["scene_id"]: int(sample["drawn"]) for sample in loader} for _ in range(4)]
    for scene_id in TRAIN:
        assert len({epoch[scene_id] for epoch in epochs}) == 4, scene_id


def collate_twice(samples: list[Any]) -> list[Any]:
    """A batch, the same again, and with an array more: all on the same memory as long as they are in the worker."""
    batch = collate_torch(samples)
    return [batch, Batch(batch), Batch(batch, half=batch["points"] / 2)]


def test_memory_is_used_again_but_never_while_somebody_has_an_array_on_it(
    training_folder: Path,
) -> None:
    expected = list(epochs_of(make_loader(training_folder, 0), range(6)))
    loader = make_loader(training_folder, 1, join=collate_twice, **FORKED)
    kept, memories = [], set()
    for number, same in enumerate(epochs_of(loader, range(6))):
        maps = Path("/proc/self/maps").read_text().splitlines()
        memories |= {line.split()[4] for line in maps if "/memfd:batch" in line}
        kept.append((number, same[number % 3]))
    assert len(kept) < len(memories) < 2 * len(kept), "three came each time, and one was kept"
    for number, batch in kept:
        if "half" in batch:
            assert np.array_equal(batch.pop("half"), expected[number]["points"] / 2)
        check_same(batch, expected[number])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_process_that_was_forked_keeps_the_batch_that_its_parent_lets_go(
    training_folder: Path,
) -> None:
    loader = make_loader(training_folder, 1, None, **FORKED)
    batches = epochs_of(loader, range(5))
    batch = next(
        batch for batch in batches if len(batch["points"]) > 1400
    )  # memory that is large enough for any
    before = {key: value.copy() for key, value in batch.items() if isinstance(value, np.ndarray)}
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent has gone on
        os._exit(
            0 if all(np.array_equal(batch[key], value) for key, value in before.items()) else 1
        )
    for batch in batches:  # noqa: B007 - it lives while the process forks
        if (other := os.fork()) == 0:
            os._exit(0)
        os.waitpid(other, 0)
    del batch
    list(epochs_of(loader, range(5, 7)))
    (worker,) = loader._iterator._workers
    assert Path(f"/proc/{worker.pid}/maps").read_text().count("/memfd:batch") < 12, (
        "what is lost is not kept"
    )
    os.close(write_end)
    os.close(read_end)
    assert os.waitpid(child, 0)[1] == 0


def test_an_error_names_scene_and_file_in_whole_sentences_also_in_a_worker(folder: Path) -> None:
    path = folder / "train/scene0001_00.npz"
    told = rf"scene0000_02 \({folder}.*\): the transform failed: ZeroDivisionError: no such voxel\n.*dataset\[2, 0\]"
    for change, workers, transform, kind, words in (
        (lambda: None, 0, fail_on_third_scene, TransformError, told),
        (lambda: None, 2, fail_on_third_scene, TransformError, told),
        (
            lambda: os.truncate(path, path.stat().st_size - 100),
            1,
            None,
            ProcessedFileError,
            rf"{path}: .*truncated",
        ),
        (path.unlink, 1, None, MissingFileError, rf"{path}: .*no such file"),
    ):
        change()
        with pytest.raises(kind, match=words) as caught:
            list(make_loader(folder, workers, transform))
        assert type(caught.value) is kind
        assert workers or isinstance(caught.value.__cause__, ZeroDivisionError)
        assert not str(caught.value).endswith(": ")
        # Its traceback is in a cycle, which would keep the loader's iterator until its queues are gone, and without
        # those it waits for its workers.
        caught.value.__traceback__ = None
        del caught


def test_loaders_leave_no_descriptor_and_no_shared_memory_behind(training_folder: Path) -> None:
    def list_open() -> tuple[
        int, list[str]
    ]:  # what is mapped from /dev/shm and from memory without a name, too
        return count_descriptors(), re.findall(
            r" (/dev/shm.*|/mem.*)", Path("/proc/self/maps").read_text()
        )

    found = []
    for persistent in (False, True, True):
        loader = make_loader(
            training_folder, 2, join=collate_torch, **FORKED | {"persistent_workers": persistent}
        )
        *_, batch = epochs_of(loader, range(2))
        _, mapped = list_open()
        # A batch is in memory without a name; of /dev/shm, PyTorch's own semaphores take some.
        assert batch["points"].sum() != 0
        assert any(name.startswith("/memfd:batch") for name in mapped)
        assert not any("torch" in name for name in mapped)
        del loader, batch
        found.append(list_open())
        for _ in range(50):  # the threads of a loader end a little later
            if found[-1] != found[0]:
                time.sleep(0.1)
                found[-1] = list_open()
    assert found == found[:1] * 3
