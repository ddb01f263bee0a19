"""Joining samples to batches, and sending batches between processes."""

from __future__ import annotations

import copy
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from commands import count_descriptors
from hypothesis import given
from hypothesis import strategies as st
from training_sources import check_same

from scannet_prep import Batch, collate, collate_torch
from scannet_prep.errors import UsageError
from scannet_prep.transforms import CropPoints


def make_sample(count: int, number: int = 0) -> dict[str, Any]:
    whole = samples.make_sample(count, number)
    sample = {key: whole[key] for key in ("points", "colors", "labels")}
    return sample | {"scene_id": f"scene{number:04}_00"}


# Values of samples.


COUNTS = given(st.lists(st.integers(0, 9), min_size=1, max_size=6))


def make_samples(counts: list[int]) -> list[dict[str, Any]]:
    return [make_sample(count, number) for number, count in enumerate(counts)]


@COUNTS
def test_arrays_of_points_are_joined_as_in_a_loop(counts: list[int]) -> None:
    samples = make_samples(counts)
    batch = collate(samples)

    for key in ("points", "colors", "labels"):
        rows = [row for sample in samples for row in sample[key].tolist()]
        assert batch[key].tolist() == rows, key
        assert batch[key].dtype == samples[0][key].dtype


@COUNTS
def test_batch_has_the_keys_of_a_sample_and_three_more(counts: list[int]) -> None:
    batch = collate(make_samples(counts))
    assert list(batch) == ["points", "colors", "labels", "scene_ids", "offset", "batch"]


@COUNTS
def test_batch_lists_the_scene_ids(counts: list[int]) -> None:
    samples = make_samples(counts)
    assert collate(samples)["scene_ids"] == [sample["scene_id"] for sample in samples]


@COUNTS
def test_offset_is_the_end_of_each_scene(counts: list[int]) -> None:
    offset = collate(make_samples(counts))["offset"]

    assert offset.tolist() == [sum(counts[: number + 1]) for number in range(len(counts))]
    assert offset.dtype == np.int64


@COUNTS
def test_batch_numbers_are_those_of_the_scenes(counts: list[int]) -> None:
    numbers = collate(make_samples(counts))["batch"]

    expected = [number for number, count in enumerate(counts) for _ in range(count)]
    assert numbers.tolist() == expected
    assert numbers.dtype == np.int64


@pytest.fixture
def indexed_batch() -> Batch[Any]:
    """Three scenes of 3, 5 and 2 points with arrays of point indices."""
    edges = [np.array([[0, 1], [1, 2]]), np.array([[4, 0], [3, 4]]), np.zeros((2, 0), np.int64)]
    samples = []
    for count, edge_index in zip((3, 5, 2), edges, strict=True):
        indices = {
            "edge_index": edge_index,
            "faces": np.array([[0, 1, 1]]),
            "axis_alignment": np.eye(4),
            "grid": np.full((count, 3), count),
            "inverse": np.array([1, -1, 0, 1]),
        }
        samples.append(make_sample(count, count) | indices)
    return collate(samples)


def test_edges_are_joined_along_the_second_axis_and_shifted(indexed_batch: Any) -> None:
    assert indexed_batch["edge_index"].tolist() == [[0, 1, 7, 3], [1, 2, 6, 7]]
    assert indexed_batch["edge_index_offset"].tolist() == [2, 4, 4]


def test_faces_are_shifted(indexed_batch: Any) -> None:
    assert indexed_batch["faces"].tolist() == [[0, 1, 1], [3, 4, 4], [8, 9, 9]]
    assert indexed_batch["faces_offset"].tolist() == [1, 2, 3]


def test_inverse_indices_are_shifted_except_for_minus_one(indexed_batch: Any) -> None:
    assert indexed_batch["inverse"].tolist() == [1, -1, 0, 1, 4, -1, 3, 4, 9, -1, 8, 9]
    assert indexed_batch["inverse_offset"].tolist() == [4, 8, 12]


def test_grid_is_joined_without_a_shift(indexed_batch: Any) -> None:
    assert indexed_batch["grid"][:, 0].tolist() == [3] * 3 + [5] * 5 + [2] * 2


def test_axis_alignments_are_stacked(indexed_batch: Any) -> None:
    assert np.array_equal(indexed_batch["axis_alignment"], [np.eye(4)] * 3)


def test_crop_does_not_take_the_axis_alignment_for_an_array_of_points() -> None:
    # As many points and faces as the matrix has rows.
    sample = {
        "points": np.zeros((4, 3), np.float32),
        "axis_alignment": np.eye(4),
        "faces": np.zeros((4, 3), int),
    }
    cropped = CropPoints(2)(sample, np.random.default_rng(0))

    assert list(cropped) == ["points", "axis_alignment"]
    assert cropped["axis_alignment"].shape == (4, 4)


@pytest.fixture
def mixed_batch() -> Batch[Any]:
    """Two scenes with values of many types."""
    samples = [make_sample(3, 0), make_sample(5, 1)]
    for number, sample in enumerate(samples):
        sample |= {
            "boxes": np.full((number + 1, 6), number),
            "scale": 1.5 + number,
            "flag": np.bool_(number),
            "height": np.float32(number),
            "center": np.array(number),
            "note": {"a": number},
            # Names of arrays of points, with other values.
            "normals": None,
            "segments": 7,
        }
    return collate(samples)


def test_other_arrays_are_joined_and_get_offsets(mixed_batch: Any) -> None:
    assert mixed_batch["boxes"].tolist() == [[0] * 6, [1] * 6, [1] * 6]
    assert mixed_batch["boxes_offset"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("scale", [1.5, 2.5]),
        ("flag", [False, True]),
        ("height", [0.0, 1.0]),
        ("center", [0, 1]),
        ("segments", [7, 7]),
    ],
)
def test_numbers_become_an_array(mixed_batch: Any, key: str, expected: list[Any]) -> None:
    assert isinstance(mixed_batch[key], np.ndarray)
    assert mixed_batch[key].tolist() == expected


def test_numbers_of_numpy_keep_their_type(mixed_batch: Any) -> None:
    assert mixed_batch["height"].dtype == np.float32


@pytest.mark.parametrize(
    ("key", "expected"), [("normals", [None, None]), ("note", [{"a": 0}, {"a": 1}])]
)
def test_other_values_become_a_list(mixed_batch: Any, key: str, expected: list[Any]) -> None:
    assert mixed_batch[key] == expected


def test_mapped_files_are_joined_as_arrays(tmp_path: Path) -> None:
    samples = [make_sample(3, 0), make_sample(5, 1)]
    expected = collate(samples)["points"]
    for number, sample in enumerate(samples):
        np.save(tmp_path / f"{number}.npy", sample["points"])
        sample["points"] = np.load(tmp_path / f"{number}.npy", mmap_mode="r")

    points = collate(samples)["points"]

    assert type(points) is np.ndarray
    assert points.tolist() == expected.tolist()


# Samples that cannot be joined.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "'extra' cannot be joined: scene0001_00 has int, scene0000_00 has nothing"),
        (
            {"colors": np.zeros((5, 3), np.float32)},
            r"'colors' cannot be joined: scene0001_00 has float32 \(5, 3\)",
        ),
        (
            {"labels": np.zeros((5, 1), np.int64)},
            r"'labels' cannot be joined: scene0001_00 has int64 \(5, 1\)",
        ),
        ({"labels": None}, "'labels' cannot be joined: scene0001_00 has NoneType"),
        (
            {"labels": np.zeros(4, np.int64)},
            "scene0001_00: 'labels' has 4 rows, but there are 5 points",
        ),
        ({"points": None}, "sample 1 is a dict of .*points"),
    ],
    ids=["extra key", "type", "shape", "None", "rows", "no points"],
)
def test_sample_unlike_the_first_one_is_refused(change: dict[str, Any], message: str) -> None:
    samples = [make_sample(4), make_sample(5, 1) | change]
    with pytest.raises(UsageError, match=message):
        collate(samples)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        ([3], "sample 0 is a int"),
        ([{"a": 1}], r"a dict of \['a'\], expected"),
    ],
)
def test_collation_of_other_values_than_samples_is_refused(samples: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collate(samples)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": np.arange(4)}, r"'edge_index' is int64 \(4,\), expected \(2, E\)"),
        ({"edge_index": np.ones((3, 2), int)}, r"'edge_index' is int64 \(3, 2\), expected"),
        ({"batch": 1}, "'batch', which the batch needs"),
        ({"boxes": 1, "boxes_offset": 2}, "'boxes_offset', which the batch needs"),
    ],
    ids=["one axis", "three rows", "batch", "offset"],
)
def test_sample_with_an_invalid_key_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collate([make_sample(3) | change])


# Sending batches.


def check_equal(actual: Any, expected: Any) -> None:
    """Check two batches, and that their values have the same types."""
    check_same(actual, expected)
    assert type(actual) is Batch
    assert list(map(type, actual.values())) == list(map(type, expected.values()))


def send(batch: Any) -> Any:
    """Return the batch that would arrive in another process. It arrives in this one."""
    return pickle.loads(ForkingPickler.dumps(batch))


def count_batch_memories() -> int:
    """Count the memories of batches that this process maps."""
    return Path("/proc/self/maps").read_text().count("memfd:batch")


@pytest.fixture
def large_batch() -> Batch[Any]:
    batch = collate([make_sample(7, 1), make_sample(100_000, 2), make_sample(0, 3)])
    batch |= {
        "objects": np.array([None, "text"], object),
        "empty": np.zeros((0, 3)),
        "none": None,
        "scalar": np.array(2.5),
        "columns": np.arange(6).reshape(2, 3).T,
        "words": np.array(["a", "bc"]),
    }
    return batch


def test_sent_batch_equals_the_batch(large_batch: Batch[Any]) -> None:
    check_equal(send(large_batch), large_batch)


def test_sent_batch_is_writable(large_batch: Batch[Any]) -> None:
    sent = send(large_batch)
    sent["points"][:] = 5

    assert (sent["points"] == 5).all()
    assert sent["labels"].flags.writeable


def test_changing_a_sent_batch_does_not_change_others(large_batch: Batch[Any]) -> None:
    kept = [send(large_batch) for _ in range(3)]
    kept[0]["points"][:] = 5

    check_equal(kept[1], large_batch)
    check_equal(kept[2], large_batch)


def test_kept_batches_keep_no_descriptors(large_batch: Batch[Any]) -> None:
    # Start the server of descriptors.
    send(large_batch)
    before = count_descriptors()

    kept = [send(large_batch) for _ in range(3)]

    assert count_descriptors() <= before
    assert len(kept) == 3


def test_deleted_batches_free_their_memory(large_batch: Batch[Any]) -> None:
    kept = [send(large_batch) for _ in range(3)]
    assert count_batch_memories() > 0
    del kept
    assert count_batch_memories() == 0


def test_batch_is_sent_without_anonymous_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = collate([make_sample(7, 1)])
    monkeypatch.delattr(os, "memfd_create")

    check_equal(send(batch), batch)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Prevent this process from opening files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_batch_is_sent_without_free_descriptors() -> None:
    batch = collate([make_sample(7, 1)])
    with no_descriptors():
        sent = ForkingPickler.dumps(batch)

    check_equal(pickle.loads(sent), batch)


def pickle_and_load(batch: Any) -> Any:
    return pickle.loads(pickle.dumps(batch))


@pytest.mark.parametrize("make_copy", [pickle_and_load, copy.copy, copy.deepcopy])
def test_copied_batch_equals_the_batch(make_copy: Any) -> None:
    batch = collate([make_sample(7, 1)])
    check_equal(make_copy(batch), batch)


# Tensors.


@pytest.fixture
def torch() -> Any:
    import torch

    return torch


def make_big_endian_samples() -> list[dict[str, Any]]:
    """Two samples with an array in a byte order that PyTorch does not have."""
    samples = [make_sample(3, 1) | {"name": ["a", "b"]}, make_sample(5, 2) | {"name": ["c"]}]
    for sample in samples:
        sample["height"] = np.arange(2, dtype=">f8")
    return samples


def with_tensors(samples: list[dict[str, Any]], torch: Any) -> list[dict[str, Any]]:
    return [sample | {"points": torch.from_numpy(sample["points"])} for sample in samples]


@pytest.mark.extra("torch")
def test_tensors_are_joined_as_arrays(torch: Any) -> None:
    samples = make_big_endian_samples()

    expected = collate(samples)
    check_equal(collate(with_tensors(samples, torch)), expected)
    assert expected["name"] == [["a", "b"], ["c"]]


@pytest.mark.extra("torch")
@pytest.mark.parametrize("has_tensors", [False, True])
def test_collate_torch_makes_tensors_of_all_arrays(torch: Any, has_tensors: bool) -> None:
    samples = make_big_endian_samples()
    expected = collate(samples)
    expected["height"] = expected["height"].astype(float)

    batch = collate_torch(with_tensors(samples, torch) if has_tensors else samples)

    check_same(batch, expected)
    others = {key for key, value in batch.items() if not torch.is_tensor(value)}
    assert others == {"scene_ids", "name"}


@pytest.mark.extra("torch")
@pytest.mark.parametrize("has_tensors", [False, True])
def test_sent_tensors_are_equal_and_writable(torch: Any, has_tensors: bool) -> None:
    samples = make_big_endian_samples()
    batch = collate_torch(with_tensors(samples, torch) if has_tensors else samples)

    sent = send(batch)

    check_equal(sent, batch)
    sent["points"] += 1


@pytest.mark.extra("torch")
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"requires_grad": True}], ids=str)
def test_tensor_that_numpy_cannot_hold_is_refused(torch: Any, options: dict[str, Any]) -> None:
    if "dtype" in options:
        options = {"dtype": getattr(torch, options["dtype"])}
    tensor = torch.ones(3, **options)

    message = f"'height' cannot be joined: tensors of {tensor.dtype} on cpu"
    with pytest.raises(UsageError, match=message):
        collate([make_sample(3) | {"height": tensor}])


@pytest.mark.extra("torch")
def test_tensors_of_every_kind_are_sent(torch: Any) -> None:
    batch: Any = Batch(
        half=torch.ones(3, dtype=torch.bfloat16),
        leaf=torch.ones(3, requires_grad=True),
        scalar=torch.tensor(3),
        strided=torch.arange(6).reshape(2, 3).T,
        parameter=torch.nn.Buffer(torch.ones(1)),
    )

    sent = send(batch)

    for key, value in batch.items():
        assert type(sent[key]) is type(value), key
        assert sent[key].dtype == value.dtype, key
        assert sent[key].shape == value.shape, key
        assert torch.equal(sent[key], value), key
