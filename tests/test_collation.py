"""Joining samples to batches, and sending batches between processes."""

import copy
import ctypes
import multiprocessing
import os
import pickle
import resource
from collections import Counter
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import training
from commands import count_descriptors, limited
from hypothesis import given
from hypothesis import strategies as st
from oracles import check_same

from scannet_prep import Batch, collate, collate_torch
from scannet_prep.errors import UsageError
from scannet_prep.training import batch_memory


def make_sample(count, number=0):
    whole = training.make_sample(count, number)
    sample = {key: whole[key] for key in ("points", "colors", "labels")}
    return sample | {"scene_id": f"scene{number:04}_00"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_arrays_of_points_are_joined_as_in_a_loop(counts):
    scenes = [make_sample(count, number) for number, count in enumerate(counts)]
    batch = collate(scenes)

    assert set(batch) == {"points", "colors", "labels", "scene_ids", "offset", "batch"}
    assert batch["scene_ids"] == [scene["scene_id"] for scene in scenes]
    for key in ("points", "colors", "labels"):
        assert batch[key].tolist() == [row for scene in scenes for row in scene[key].tolist()]
        assert batch[key].dtype == scenes[0][key].dtype
        assert batch[key].flags.aligned
    assert batch["offset"].tolist() == [sum(counts[: end + 1]) for end in range(len(counts))]
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]
    assert batch["batch"].tolist() == numbers
    assert batch["offset"].dtype == batch["batch"].dtype == np.int64


def test_indices_are_shifted_and_other_values_become_lists(tmp_path):
    np.save(tmp_path / "boxes.npy", np.ones((2, 6)))
    first = make_sample(3) | {
        "faces": np.array([[0, 1, 2]], np.int32),
        "inverse": np.array([0, -1, 2, 1]),
        "annotated": np.ones(3, bool),
        "axis_alignment": np.eye(4),
        "label_set": "ScanNet20",
        "boxes": np.load(tmp_path / "boxes.npy", mmap_mode="r"),
        "scale": np.array(0.5),
        "note": "a",
    }
    second = (
        first
        | make_sample(2, 1)
        | {
            "faces": np.zeros((0, 3), np.int32),
            "inverse": np.array([1, -1]),
            "annotated": np.zeros(2, bool),
            "axis_alignment": 2 * np.eye(4),
            "boxes": np.zeros((1, 6)),
            "scale": 2,
            "note": None,
        }
    )

    batch = collate([first, second, first])

    expected = {
        "faces": [[0, 1, 2], [5, 6, 7]],
        "faces_offset": [1, 1, 2],
        "inverse": [0, -1, 2, 1, 4, -1, 5, -1, 7, 6],
        "inverse_offset": [4, 6, 10],
        "boxes": [[1] * 6] * 2 + [[0] * 6] + [[1] * 6] * 2,
        "boxes_offset": [2, 3, 5],
    }
    assert {key: batch[key].tolist() for key in expected} == expected
    assert batch["faces"].dtype == np.int32
    assert batch["annotated"].dtype == bool
    assert "annotated_offset" not in batch
    assert batch["axis_alignment"][:, 0, 0].tolist() == [1, 2, 1]
    others = {"label_set": "ScanNet20", "scale": [0.5, 2, 0.5], "note": ["a", None, "a"]}
    assert {key: batch[key] for key in others} == others


SAMPLE = make_sample(4, 7) | {"label_set": "ScanNet20"}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SAMPLE | {"more": 1}, "'more' cannot be joined: scene0007_00 has a value, .* has nothing"),
        ({"points": SAMPLE["points"]}, "'colors' cannot be joined: a sample has nothing"),
        (SAMPLE | {"labels": SAMPLE["labels"].astype("i4")}, "rows of int32 .*rows of int64"),
        (SAMPLE | {"colors": np.zeros((4, 4), np.uint8)}, r"rows of uint8 \(4,\), scene0000_00"),
        (SAMPLE | {"labels": None}, "'labels' cannot be joined: scene0007_00 has a value"),
        (SAMPLE | {"labels": np.arange(3)}, "scene0007_00: 'labels' has 3 rows, but there are 4"),
        (SAMPLE | {"label_set": "ScanNet200"}, "'label_set' .* has ScanNet200, .* has ScanNet20"),
        (None, "a sample is None, expected a dict with points"),
        ({"labels": 1}, "a sample is {'labels': 1}, expected a dict with points"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(second, message):
    with pytest.raises(UsageError, match=message):
        collate([make_sample(4) | {"label_set": "ScanNet20"}, second])
    for key in ("offset", "batch", "scene_ids"):
        with pytest.raises(UsageError, match=f"'{key}' cannot be joined"):
            collate([SAMPLE | {key: np.arange(4)}])


# Sending.


@pytest.fixture
def worker(monkeypatch):
    """Let this process allocate and send as a worker of a loader does."""
    # As in builds of Python for old C libraries.
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(multiprocessing.current_process(), "daemon", True)
    monkeypatch.setattr(batch_memory, "_blocks", batch_memory._blocks.copy())
    batch_memory._blocks.clear()
    return batch_memory._blocks


def send(batch):
    return pickle.loads(ForkingPickler.dumps(batch))


def make_large_batch(number=0):
    note = {"kind": [1, 2], "empty": np.zeros((0, 2))}
    return collate([make_sample(30_000 + one, number + one) | note for one in range(2)])


def test_received_batches_are_equal_and_nobody_else_writes_to_them(worker):
    plain = [copy.deepcopy(make_large_batch(number)) for number in range(5)]
    before = count_descriptors()
    # Two batches wait for the pickler, then for their receiver, while the worker makes others.
    pickles = list(map(ForkingPickler.dumps, [make_large_batch(0), make_large_batch(1)]))
    received = [send(make_large_batch(number)) for number in range(2, 5)]
    received[:0] = [pickle.loads(data) for data in pickles]

    for batch, one in zip(received, plain, strict=True):
        assert type(batch) is Batch
        check_same(batch, one)
        batch["points"][:] = 0
    # An array keeps its batch, and all other blocks are used again.
    kept = received[0]["labels"][::2]
    del received, batch
    for number in range(6):
        check_same(send(make_large_batch(number % 5)), plain[number % 5])
    assert np.array_equal(kept, plain[0]["labels"][::2])
    assert len(worker) == 5
    del kept
    worker.clear()
    assert count_descriptors() <= before


def test_block_stays_in_use_as_long_as_a_forked_process_has_it(worker):
    batch = send(make_large_batch())
    (block,) = worker
    # A process that can have others does not share its own batches with them.
    multiprocessing.current_process().daemon = False
    make_large_batch(1)
    assert len(worker) == 1
    context = multiprocessing.get_context("fork")
    is_done = context.Event()
    child = context.Process(target=is_done.wait)
    child.start()
    del batch
    assert not block.is_free()
    is_done.set()
    child.join()
    assert block.is_free()


def test_worker_keeps_few_blocks_whatever_the_training_process_keeps(worker):
    before = count_descriptors()
    kept = [send(make_large_batch(number)) for number in range(12)]
    assert len(worker) == 8
    # Two for each block of the worker, one for each batch in the training process, and a socket.
    assert count_descriptors() - before <= 2 * 8 + 12 + 1
    for number, batch in enumerate(kept):
        check_same(batch, make_large_batch(number))


def test_changed_and_copied_batches_are_sent_as_they_are(worker):
    send(collate([make_sample(5)]))  # in a block that is too small for the next batch
    batch = make_large_batch()
    changed = Batch(batch, half=batch["points"][::2], labels=batch["labels"] + 1, more=[1])
    check_same(send(changed), changed)
    del changed["offset"]
    check_same(send(changed), changed)
    for made in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        check_same(made, batch)


def test_batch_is_sent_in_the_pipe_where_there_is_no_anonymous_memory(monkeypatch, worker):
    batch = make_large_batch()
    # Starts the server that hands descriptors over.
    expected = copy.deepcopy(send(batch))
    before = count_descriptors()
    # However few descriptors are left to make another batch and to send both, or no file memory.
    faults = [(resource.RLIMIT_NOFILE, limit) for limit in range(before + 6)]
    for kind, limit in [*faults, (resource.RLIMIT_FSIZE, 0)]:
        with limited(kind, limit):
            pickles = [ForkingPickler.dumps(one) for one in (batch, make_large_batch())]
        for data in pickles:
            check_same(pickle.loads(data), expected)
        while len(worker) > 1:
            worker.pop()
        assert count_descriptors() <= before, limit
    monkeypatch.delattr(ctypes, "pythonapi")
    check_same(send(make_large_batch()), expected)


@pytest.mark.extra("torch")
def test_tensors_are_joined_sent_and_moved(worker):
    torch = pytest.importorskip("torch")
    arrays = [make_sample(count, count) for count in (3, 5)]
    tensors = []
    for sample in arrays:
        colors = torch.from_numpy(sample["colors"])
        tensors.append(sample | {"colors": colors, "points": torch.from_numpy(sample["points"])})
    expected = collate(arrays)
    check_same(collate(tensors), expected)

    batch = collate_torch(tensors)
    assert len(ForkingPickler.dumps(collate_torch([make_sample(30_000)]))) < 5_000
    # Tensors that NumPy does not have are sent, too.
    batch["half"] = torch.ones(3, dtype=torch.bfloat16)
    sent = send(batch)
    assert Counter(type(value).__name__ for value in sent.values()) == {"Tensor": 6, "list": 1}
    assert torch.equal(sent.pop("half"), batch.pop("half"))
    check_same(sent, expected)
    sent["points"] += 1

    moved = batch.to("meta", non_blocking=True)
    assert type(moved) is Batch
    assert list(moved) == list(batch)
    assert moved["points"].device.type == "meta"
    assert moved is not batch
    assert moved["scene_ids"] == batch["scene_ids"]
