"""Joins samples to a batch, of NumPy arrays or of PyTorch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.collation.batch import Batch, array_from_tensor, is_numeric, tensor_from_array
from scannet_prep.errors import UsageError

# Arrays with a row for each point; all others have ends of their own.
VERTEX_KEYS = frozenset({"points", "normals", "colors", "labels", "instances", "segments", "grid"})
# Arrays of numbers of points, which count from the beginning of the batch when they are joined, and along which axis.
_INDEX_AXES = {"inverse": 0, "edge_index": 1}


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """Join samples, for `DataLoader(..., collate_fn=collate)`.

    Args:
        samples: Dicts with `points` and the same keys, as `ScanNet` gives them, with or without transforms. Tensors of
            PyTorch count as arrays.

    Returns:
        A dict, with B scenes and N points in all:

        - `points`, `normals`, `colors`, `labels`, `instances`, `segments` and, after `GridSample`, `grid`: (N, ...);
        - `offset`: int64 (B,), where each scene ends in them, cumulative; the last is N;
        - `batch`: int64 (N,), the number of the scene in the batch, for each point;
        - `scene_ids`: list of B str;
        - `inverse`: after `GridSample`, int64, for each vertex from before, its place in the arrays of this batch (-1
          stays -1), and `inverse_offset`: where each scene ends in it;
        - `edge_index`, of a transform of yours, in the convention of torch_geometric: int (2, E), pairs of points,
          joined along the second dimension, and `edge_index_offset`; its numbers become those of the batch;
        - every other array, joined along its first dimension, and `<key>_offset`: int64 (B,), where each scene ends in
          it;
        - every number: an array (B,); everything else: a list of B.

        Ids of instances and segments are those of their scenes: they repeat from scene to scene.

    Raises:
        UsageError: Samples do not fit together: keys, types or shapes differ; or they are not dicts with `points`.
    """
    samples = [_take_arrays(sample, number) for number, sample in enumerate(samples)]
    keys = _check_keys(samples)
    counts = [len(sample["points"]) for sample in samples]
    offset = np.cumsum(counts, dtype=np.int64)
    batch = Batch()
    for key in keys:
        values = [sample[key] for sample in samples]
        if key == "scene_id":
            batch["scene_ids"] = values
        elif any(isinstance(value, np.ndarray) and value.ndim for value in values):
            axis = _INDEX_AXES.get(key, 0)
            _check_arrays(key, axis, samples)
            if key in _INDEX_AXES:
                values = [_shift(*pair) for pair in zip(values, (offset - counts).tolist(), strict=True)]
            batch[key] = np.concatenate(values, axis)
            if key not in VERTEX_KEYS:
                batch[f"{key}_offset"] = np.cumsum([value.shape[axis] for value in values], dtype=np.int64)
        elif all(isinstance(value, int | float | np.number | np.bool_ | np.ndarray) for value in values):
            batch[key] = np.array(values)
        else:
            batch[key] = values
    batch["offset"] = offset
    batch["batch"] = np.repeat(np.arange(len(samples)), counts)
    return batch


def collate_torch(samples: Sequence[dict[str, Any]]) -> Batch:
    """Join samples to tensors, for `DataLoader(..., collate_fn=collate_torch)`.

    What `collate` gives, with a tensor of the same type in place of each array, without copying. In the training
    process, `{key: value.to(device) for ...}` or the loader's `pin_memory=True` go on from there.

    Args:
        samples: As for `collate`.

    Raises:
        UsageError: As `collate`.
    """
    batch = collate(samples)
    for key, value in batch.items():
        if is_numeric(value):
            batch[key] = tensor_from_array(value)
    return batch


def _take_arrays(sample: dict[str, Any], number: int) -> dict[str, Any]:
    """Check that a sample is one, and turn its tensors into arrays."""
    is_dict = isinstance(sample, dict)
    if is_dict:
        sample = {key: array_from_tensor(value) for key, value in sample.items()}
    if not is_dict or not isinstance(sample.get("points"), np.ndarray) or not sample["points"].ndim:
        keys = f" with {', '.join(map(str, sample))}" if is_dict else ""
        raise UsageError(
            f"sample {number} is a {type(sample).__name__}{keys:.200}, expected a dict with an array points",
            "a transform must return such a dict; or give the loader a collate_fn of your own",
        )
    return sample


def _check_keys(samples: Sequence[dict[str, Any]]) -> list[str]:
    """Check that all samples have the same keys, and return them."""
    if not samples:
        raise UsageError("there are no samples to join")
    for sample in samples:
        if set(sample) != set(samples[0]):
            raise UsageError(
                f"samples have different keys: {_name(sample)} has {', '.join(sorted(sample))}; "
                f"{_name(samples[0])} has {', '.join(sorted(samples[0]))}",
                "a transform must return the same keys for every scene",
            )
    if clash := {"offset", "batch", "scene_ids", *(f"{key}_offset" for key in samples[0])} & set(samples[0]):
        raise UsageError(f"{_name(samples[0])} has a key {min(clash)!r}, which the batch needs", "give it another name")
    return list(samples[0])


def _check_arrays(key: str, axis: int, samples: Sequence[dict[str, Any]]) -> None:
    """Check that arrays can be joined without changing them."""
    first = samples[0]
    for sample in samples:
        kind = _describe(sample[key], axis)
        if kind != _describe(first[key], axis) or np.ndim(sample[key]) <= axis:
            raise UsageError(
                f"{key!r} cannot be joined: {_name(sample)} has {kind}, "
                f"{_name(first)} has {_describe(first[key], axis)}",
                "a transform must return the same types for every scene",
            )
        if key in VERTEX_KEYS and len(sample[key]) != len(sample["points"]):
            raise UsageError(
                f"{_name(sample)}: {key!r} has {len(sample[key])} rows, but there are {len(sample['points'])} points"
            )


def _shift(indices: NDArray[Any], start: int) -> NDArray[Any]:
    """Numbers of points that count from where the batch begins; -1 stays."""
    return np.where(indices < 0, indices, indices + indices.dtype.type(start))


def _name(sample: dict[str, Any]) -> str:
    return str(sample.get("scene_id", "a sample"))


def _describe(value: object, axis: int) -> str:
    """Type and shape, with n for the dimension along which values are joined."""
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    sizes = ["n" if number == axis else str(size) for number, size in enumerate(value.shape)]
    return f"{value.dtype} ({', '.join(sizes)})"
