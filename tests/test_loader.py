"""The dataset in PyTorch's `DataLoader`: batches, memory and errors with any number of workers."""

import multiprocessing
import os
import re
import threading
import time
from pathlib import Path

import pytest
from commands import count_descriptors
from oracles import check_same
from training import TRAIN

from scannet_prep import PointBudgetBatchSampler, ScanNet, collate, collate_torch
from scannet_prep.errors import FileError, MissingFileError, ScanNetPrepError
from scannet_prep.transforms import Compose, CropPoints, Flip, GridSample, Jitter, Rotate


def draw_in_sample(sample, generator):
    """Transform that adds a number of the generator to the sample."""
    return sample | {"drawn": int(generator.integers(0, 1 << 30))}


def fail_on_third_scene(sample, generator):
    if sample["scene_id"] == "scene0000_02":
        raise ZeroDivisionError("no such voxel")
    return sample


def iter_two_epochs(loader):
    for _ in range(2):
        yield from loader


torch_data = pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.extra("torch")

RANDOM = Compose(Rotate(), Flip(), Jitter(), GridSample(0.05), CropPoints(300))


def make_loader(source, workers, transform=RANDOM, join=collate, **options):
    dataset = ScanNet(source, split="train", transform=transform)
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600, rank=0, world_size=1)
    return torch_data.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=join, num_workers=workers, **options
    )


@pytest.fixture(scope="module")
def two_epochs(training_folder):
    """The batches of two epochs, without workers."""
    return list(iter_two_epochs(make_loader(training_folder, 0)))


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
    stored, workers, start_method, persistent, two_epochs
):
    loader = make_loader(
        stored.place,
        workers,
        multiprocessing_context=start_method,
        persistent_workers=persistent,
    )
    # Open the files that the workers open too, or inherit.
    loader.dataset[0]

    # All batches are kept, so that none may be overwritten.
    for batch, expected in zip(list(iter_two_epochs(loader)), two_epochs, strict=True):
        check_same(batch, expected)


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
def test_shuffled_plain_indices_are_augmented_anew_each_epoch(training_folder, options):
    dataset = ScanNet(training_folder, split="train", transform=draw_in_sample)
    loader = torch_data.DataLoader(dataset, shuffle=True, batch_size=None, **options)

    epochs = [{sample["scene_id"]: int(sample["drawn"]) for sample in loader} for _ in range(4)]

    for scene_id in TRAIN:
        assert len({epoch[scene_id] for epoch in epochs}) == 4, scene_id


@pytest.mark.parametrize("workers", [0, 2])
def test_failed_transform_names_scene_file_and_key(folder, workers):
    message = (
        rf"scene0000_02 \({folder}.*\): the transform failed in dataset\[2, 0\]: "
        "ZeroDivisionError: no such voxel"
    )
    cause = check_error(
        make_loader(folder, workers, fail_on_third_scene), ScanNetPrepError, message
    )
    assert workers or cause is ZeroDivisionError


def test_damaged_file_is_an_error_from_the_worker(folder):
    path = folder / "train/scene0001_00.npz"
    os.truncate(path, path.stat().st_size - 100)
    check_error(make_loader(folder, 1, None), FileError, rf"{path}: .*truncated")
    path.unlink()
    check_error(make_loader(folder, 1, None), MissingFileError, rf"{path}: .*no such file")


def check_error(loader, error_type, message):
    """Check the error of iterating over a loader, and return the type of its cause."""
    with pytest.raises(error_type, match=message) as caught:
        list(loader)
    assert type(caught.value) is error_type
    # The traceback is part of reference cycles, which would keep the loader's iterator alive until
    # its queues are deleted. Without those, the iterator waits for its workers.
    caught.value.__traceback__ = None
    return type(caught.value.__cause__)


def list_mapped():
    """List the shared and the anonymous files that are mapped."""
    return re.findall(r" (/dev/shm.*|/mem.*)", Path("/proc/self/maps").read_text())


def wait_for(is_done):
    for _ in range(200):
        if is_done():
            return
        time.sleep(0.1)
    assert is_done()


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_travel_without_dev_shm_and_loaders_leave_nothing_open(training_folder, persistent):
    def make():
        return make_loader(
            training_folder,
            2,
            join=collate_torch,
            multiprocessing_context="fork",
            persistent_workers=persistent,
        )

    def count_workers():
        return threading.active_count() + len(multiprocessing.active_children())

    worker_count = count_workers()
    # The first loader opens files that stay open.
    list(iter_two_epochs(make()))
    wait_for(lambda: count_workers() <= worker_count)
    before = count_descriptors(), list_mapped()

    loader = make()
    batches = []
    for batch in iter_two_epochs(loader):
        batches.append(batch)
        # PyTorch's semaphores are in /dev/shm, but its tensors are not.
        assert not any("torch" in name for name in list_mapped())
    assert sum(len(batch["scene_ids"]) for batch in batches) == 2 * len(TRAIN)
    del loader, batch, batches

    wait_for(lambda: (count_descriptors(), list_mapped()) == before)
