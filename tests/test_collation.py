"""Joining samples to batches, and sending batches between processes."""

import copy
import os
import pickle
import resource
from collections import Counter
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import samples
from commands import count_descriptors
from hypothesis import given
from hypothesis import strategies as st
from training_sources import check_same

from scannet_prep import Batch, collate, collate_torch
from scannet_prep.errors import UsageError
from scannet_prep.training import batch_memory


def make_sample(count, number=0):
    whole = samples.make_sample(count, number)
    sample = {key: whole[key] for key in ("points", "colors", "labels")}
    return sample | {"scene_id": f"scene{number:04}_00"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_arrays_of_points_are_joined_as_in_a_loop(counts):
    scenes = [make_sample(count, number) for number, count in enumerate(counts)]
    batch = collate(scenes)

    assert list(batch) == ["points", "colors", "labels", "scene_ids", "offset", "batch"]
    assert batch["scene_ids"] == [scene["scene_id"] for scene in scenes]
    for key in ("points", "colors", "labels"):
        assert batch[key].tolist() == [row for scene in scenes for row in scene[key].tolist()]
        assert batch[key].dtype == scenes[0][key].dtype
    assert batch["offset"].tolist() == [sum(counts[: end + 1]) for end in range(len(counts))]
    numbers = [number for number, count in enumerate(counts) for _ in range(count)]
    assert batch["batch"].tolist() == numbers
    assert batch["offset"].dtype == batch["batch"].dtype == np.int64


def test_indices_are_shifted_and_other_values_become_arrays_or_lists(tmp_path):
    np.save(tmp_path / "boxes.npy", np.ones((2, 6)))
    first = make_sample(3) | {
        "faces": np.array([[0, 1, 2]], np.int32),
        "inverse": np.array([0, -1, 2, 1]),
        "grid": np.zeros((3, 3), np.int32),
        "axis_alignment": np.eye(4),
        "label_set": "ScanNet20",
        "boxes": np.load(tmp_path / "boxes.npy", mmap_mode="r"),
        "scale": np.float32(0.5),
        "flag": True,
        "note": "a",
        "names": ["x"],
    }
    second = make_sample(2, 1) | {
        "faces": np.zeros((0, 3), np.int32),
        "inverse": np.array([1, -1]),
        "grid": np.ones((2, 3), np.int32),
        "axis_alignment": 2 * np.eye(4),
        "label_set": "ScanNet20",
        "boxes": np.zeros((1, 6)),
        "scale": np.float32(2),
        "flag": False,
        "note": None,
        "names": [],
    }

    batch = collate([first, second, first])

    assert batch["faces"].tolist() == [[0, 1, 2], [5, 6, 7]]
    assert batch["faces"].dtype == np.int32
    assert batch["faces_offset"].tolist() == [1, 1, 2]
    assert batch["inverse"].tolist() == [0, -1, 2, 1, 4, -1, 5, -1, 7, 6]
    assert batch["inverse_offset"].tolist() == [4, 6, 10]
    assert batch["grid"].tolist() == [[0] * 3] * 3 + [[1] * 3] * 2 + [[0] * 3] * 3
    assert "grid_offset" not in batch
    assert batch["axis_alignment"][:, 0, 0].tolist() == [1, 2, 1]
    assert batch["label_set"] == "ScanNet20"
    assert batch["boxes"].sum(axis=1).tolist() == [6, 6, 0, 6, 6]
    assert batch["boxes_offset"].tolist() == [2, 3, 5]
    assert batch["scale"].dtype == np.float32
    assert batch["scale"].tolist() == [0.5, 2, 0.5]
    assert batch["flag"].tolist() == [True, False, True]
    assert batch["note"] == ["a", None, "a"]
    assert batch["names"] == [["x"], [], ["x"]]


SAMPLE = make_sample(4, 7)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (SAMPLE | {"more": 1}, "'more' cannot be joined: scene0007_00 has a value, .* has nothing"),
        ({"points": SAMPLE["points"]}, "'colors' cannot be joined: a sample has nothing"),
        (SAMPLE | {"labels": SAMPLE["labels"].astype("i4")}, "rows of int32 .*rows of int64"),
        (SAMPLE | {"colors": np.zeros((4, 4), np.uint8)}, r"rows of uint8 \(4,\), scene0000_00"),
        (SAMPLE | {"labels": None}, "'labels' cannot be joined: scene0007_00 has a value"),
        (SAMPLE | {"labels": np.arange(3)}, "scene0007_00: 'labels' has 3 rows, but there are 4"),
        (SAMPLE | {"offset": 1}, "has a key 'offset', which the batch needs"),
        ({"colors": SAMPLE["colors"]}, "a sample is a dict, expected a dict with points"),
        (5, "a sample is a int, expected a dict with points"),
    ],
)
def test_samples_that_do_not_fit_together_are_refused(second, message):
    with pytest.raises(UsageError, match=message):
        collate([make_sample(4), second])


def test_samples_of_two_label_sets_are_refused():
    with pytest.raises(UsageError, match=r"'label_set' .* has ScanNet200, .* has ScanNet20"):
        collate([SAMPLE | {"label_set": "ScanNet20"}, SAMPLE | {"label_set": "ScanNet200"}])


def send(batch):
    """Send a batch as a worker does."""
    return pickle.loads(ForkingPickler.dumps(batch))


def make_large_batch():
    note = {"kind": [1, 2], "empty": np.zeros((0, 2)), "objects": np.array([None, "x"])}
    return collate([make_sample(30_000 + number, number) | note for number in range(2)])


def test_sent_batches_are_equal_and_their_own():
    batch = make_large_batch()
    sent = [send(batch) for _ in range(3)]
    sent[0]["points"][:] = 0
    sent[1]["labels"] += 1

    assert type(sent[2]) is Batch
    check_same(sent[2], batch)
    check_same(
        send(Batch(batch, half=batch["points"][::2])), {**batch, "half": batch["points"][::2]}
    )
    # A smaller batch after a large one.
    small = collate([make_sample(0), make_sample(5)])
    check_same(send(small), small)


def test_sent_batches_keep_no_descriptors_and_use_one_file_in_turn():
    send(make_large_batch())
    file_count = len(batch_memory._files)
    before = count_descriptors()
    kept = [send(make_large_batch()) for _ in range(5)]

    assert count_descriptors() == before
    assert len(batch_memory._files) == file_count
    assert all(np.array_equal(batch["points"], kept[0]["points"]) for batch in kept)


def test_batch_that_has_not_been_received_is_not_overwritten():
    first, second = make_large_batch(), collate([make_sample(40_000, 5)])
    pickles = [ForkingPickler.dumps(batch) for batch in (first, second, first)]
    received = [pickle.loads(data) for data in pickles]

    for batch, expected in zip(received, (first, second, first), strict=True):
        check_same(batch, expected)


@pytest.mark.parametrize("fault", ["no memfd", "no descriptors"])
def test_batch_is_sent_in_the_pipe_where_there_is_no_anonymous_memory(monkeypatch, fault):
    batch = make_large_batch()
    monkeypatch.setattr(batch_memory, "_files", [])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if fault == "no memfd":
        monkeypatch.delattr(os, "memfd_create")
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        data = ForkingPickler.dumps(batch)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    check_same(pickle.loads(data), batch)


@pytest.mark.parametrize(
    "make_copy", [lambda batch: pickle.loads(pickle.dumps(batch)), copy.copy, copy.deepcopy]
)
def test_copied_batch_equals_the_batch(make_copy):
    batch = make_large_batch()
    check_same(make_copy(batch), batch)


@pytest.mark.extra("torch")
def test_tensors_are_joined_sent_and_moved():
    torch = pytest.importorskip("torch")
    arrays = [make_sample(count, count) for count in (3, 5)]
    tensors = [
        {
            key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for key, value in sample.items()
        }
        for sample in arrays
    ]
    expected = collate(arrays)
    check_same(collate(tensors), expected)

    batch = collate_torch(tensors)
    # Tensors that NumPy does not have are sent, too.
    batch["half"] = torch.ones(3, dtype=torch.bfloat16)
    sent = send(batch)
    kinds = Counter(type(value).__name__ for value in sent.values())
    assert kinds == {"Tensor": 6, "list": 1}
    assert torch.equal(sent.pop("half"), batch.pop("half"))
    check_same(sent, expected)
    sent["points"] += 1

    moved = batch.to("meta", non_blocking=True)
    assert type(moved) is Batch
    assert list(moved) == list(batch)
    assert moved["points"].device.type == "meta"
    assert moved["scene_ids"] == batch["scene_ids"]
    assert batch["points"].device.type == "cpu"
