"""Joining samples to batches, and sending them between processes."""

import copy
import os
import pickle
import resource
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_transforms
from commands import count_descriptors
from hypothesis import given
from hypothesis import strategies as st
from training_sources import check_same

from scannet_prep import Batch, collate, collate_torch
from scannet_prep.base.errors import UsageError
from scannet_prep.transforms import CropPoints


def make_sample(count: int, number: int = 0) -> dict[str, Any]:
    whole = test_transforms.make_sample(count, number)
    return {key: whole[key] for key in ("points", "colors", "labels")} | {
        "scene_id": f"scene{number:04}_00"
    }


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_a_batch_is_what_a_loop_joins(counts: list[int]) -> None:
    samples = [make_sample(count, number) for number, count in enumerate(counts)]
    batch = collate(samples)
    assert list(batch) == ["points", "colors", "labels", "scene_ids", "offset", "batch"]
    for key in ("points", "colors", "labels"):
        assert batch[key].tolist() == [row for sample in samples for row in sample[key].tolist()], (
            key
        )
        assert batch[key].dtype == samples[0][key].dtype
    assert batch["scene_ids"] == [sample["scene_id"] for sample in samples]
    assert batch["offset"].tolist() == [sum(counts[: number + 1]) for number in range(len(counts))]
    assert batch["batch"].tolist() == [
        number for number, count in enumerate(counts) for _ in range(count)
    ]
    assert batch["offset"].dtype == batch["batch"].dtype == np.int64


def test_edges_faces_and_the_way_back_from_a_grid_count_from_the_beginning_of_the_batch() -> None:
    edges = [np.array([[0, 1], [1, 2]]), np.array([[4, 0], [3, 4]]), np.zeros((2, 0), np.int64)]
    samples = [
        make_sample(count, count)
        | {"edge_index": edge, "faces": np.array([[0, 1, 1]]), "axis_alignment": np.eye(4)}
        | {"grid": np.full((count, 3), count), "inverse": np.array([1, -1, 0, 1])}
        for count, edge in zip((3, 5, 2), edges, strict=True)
    ]
    batch = collate(samples)
    assert batch["edge_index"].tolist() == [[0, 1, 7, 3], [1, 2, 6, 7]]
    assert batch["edge_index_offset"].tolist() == [2, 4, 4]
    assert (batch["faces"].tolist(), batch["faces_offset"].tolist()) == (
        [[0, 1, 1], [3, 4, 4], [8, 9, 9]],
        [1, 2, 3],
    )
    assert np.array_equal(batch["axis_alignment"], [np.eye(4)] * 3)
    assert batch["inverse"].tolist() == [1, -1, 0, 1, 4, -1, 3, 4, 9, -1, 8, 9]
    assert (batch["inverse_offset"].tolist(), batch["grid"][:, 0].tolist()) == (
        [4, 8, 12],
        [3] * 3 + [5] * 5 + [2] * 2,
    )
    four = {
        "points": np.zeros((4, 3), np.float32),
        "axis_alignment": np.eye(4),
        "faces": np.zeros((4, 3), int),
    }
    cropped = CropPoints(2)(four, np.random.default_rng(0))
    assert (list(cropped), cropped["axis_alignment"].shape) == (
        ["points", "axis_alignment"],
        (4, 4),
    )


def test_other_keys_are_joined_by_what_they_are_under_every_name(tmp_path: Path) -> None:
    samples = [make_sample(3, 0), make_sample(5, 1)]
    points = collate(samples)["points"]
    for number, sample in enumerate(samples):
        sample |= {
            "boxes": np.full((number + 1, 6), number),
            "scale": 1.5 + number,
            "flag": np.bool_(number),
        }
        sample |= {"height": np.float32(number), "center": np.array(number), "note": {"a": number}}
        np.save(tmp_path / f"{number}.npy", sample["points"])
        sample |= {
            "points": np.load(tmp_path / f"{number}.npy", mmap_mode="r"),
            "normals": None,
            "segments": 7,
        }
    batch = collate(samples)
    assert batch["boxes"].tolist() == [[0] * 6, [1] * 6, [1] * 6]
    assert batch["boxes_offset"].tolist() == [1, 3]
    assert batch["scale"].tolist() == [1.5, 2.5]
    assert batch["flag"].tolist() == [False, True]
    assert (batch["height"].dtype, batch["center"].tolist()) == (np.float32, [0, 1])
    assert (batch["normals"], batch["segments"].tolist()) == ([None, None], [7, 7])
    assert batch["note"] == [{"a": 0}, {"a": 1}]
    assert (type(batch["points"]), batch["points"].tolist()) == (np.ndarray, points.tolist()), (
        "files that are mapped"
    )


UNFIT = (
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
)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        *(([make_sample(4), make_sample(5, 1) | change], message) for change, message in UNFIT),
        ([], "no samples"),
        ([3], "sample 0 is a int"),
        ([{"a": 1}], r"a dict of \['a'\], expected"),
        (
            [make_sample(3) | {"edge_index": np.arange(4)}],
            r"'edge_index' is int64 \(4,\), expected \(2, E\)",
        ),
        (
            [make_sample(3) | {"edge_index": np.ones((3, 2), int)}],
            r"'edge_index' is int64 \(3, 2\), expected",
        ),
        ([make_sample(3) | {"batch": 1}], "'batch', which the batch needs"),
        (
            [make_sample(3) | {"boxes": 1, "boxes_offset": 2}],
            "'boxes_offset', which the batch needs",
        ),
    ],
)
def test_what_is_not_a_sample_or_does_not_fit_to_the_others_is_named(
    samples: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        collate(samples)


def check_equal(found: Any, expected: Any) -> None:
    check_same(found, expected)
    assert type(found) is Batch
    assert list(map(type, found.values())) == list(map(type, expected.values()))


def send(batch: Any) -> Any:
    """What arrives in another process, here in this one."""
    return pickle.loads(ForkingPickler.dumps(batch))


def test_a_batch_is_sent_whole_writable_and_without_a_trace() -> None:
    batch = collate([make_sample(7, 1), make_sample(100_000, 2), make_sample(0, 3)])
    batch |= {"objects": np.array([None, "text"], object), "empty": np.zeros((0, 3)), "none": None}
    batch |= {
        "scalar": np.array(2.5),
        "columns": np.arange(6).reshape(2, 3).T,
        "words": np.array(["a", "bc"]),
    }
    send(batch)  # starts the server of descriptors
    before = count_descriptors()
    kept = [send(batch) for _ in range(3)]
    assert count_descriptors() <= before, "who keeps many batches would run out of descriptors"
    for found in kept:
        check_equal(found, batch)
        found["points"][:] = 5
        assert found["labels"].flags.writeable
    assert "memfd:batch" in Path("/proc/self/maps").read_text()
    del kept, found
    assert "memfd:batch" not in Path("/proc/self/maps").read_text()


def test_without_anonymous_memory_or_descriptors_and_in_files_and_copies_batches_are_as_other_dicts() -> (
    None
):
    batch = collate([make_sample(7, 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "memfd_create")
        check_equal(send(batch), batch)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        sent = ForkingPickler.dumps(batch)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check_equal(pickle.loads(sent), batch)
    for copied in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        check_equal(copied, batch)


@pytest.mark.torch
def test_tensors_are_joined_as_arrays_are_and_refused_where_numpy_cannot_hold_them() -> None:
    torch = pytest.importorskip("torch")
    samples = [make_sample(3, 1) | {"name": ["a", "b"]}, make_sample(5, 2) | {"name": ["c"]}]
    for sample in samples:
        sample["height"] = np.arange(2, dtype=">f8")  # a byte order that PyTorch does not know
    expected = collate(samples)
    as_tensors = [sample | {"points": torch.from_numpy(sample["points"])} for sample in samples]
    check_equal(collate(as_tensors), expected)
    assert expected["name"] == [["a", "b"], ["c"]]
    expected["height"] = expected["height"].astype(float)
    for found in (collate_torch(samples), collate_torch(as_tensors)):
        check_same(found, expected)
        assert {key for key, value in found.items() if not torch.is_tensor(value)} == {
            "scene_ids",
            "name",
        }
        sent = send(found)
        check_equal(sent, found)
        sent["points"] += 1
    for tensor in (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, requires_grad=True)):
        with pytest.raises(
            UsageError, match=f"'height' cannot be joined: tensors of {tensor.dtype} on cpu"
        ):
            collate([make_sample(3) | {"height": tensor}])


@pytest.mark.torch
def test_tensors_of_every_kind_arrive() -> None:
    torch = pytest.importorskip("torch")
    batch = Batch(
        half=torch.ones(3, dtype=torch.bfloat16), leaf=torch.ones(3, requires_grad=True), scalar=torch.tensor(3),
        strided=torch.arange(6).reshape(2, 3).T, parameter=torch.nn.Buffer(torch.ones(1)),
    )  # fmt: skip
    found = send(batch)
    for key, value in batch.items():
        assert type(found[key]) is type(value), key
        assert (found[key].dtype, found[key].shape) == (value.dtype, value.shape)
        assert torch.equal(found[key], value)
