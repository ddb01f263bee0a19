"""Joins samples to a batch of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.collation.batch import Batch
from scannet_prep.errors import UsageError

# Arrays with a row for each point; all others have ends of their own.
VERTEX_KEYS = frozenset({"points", "normals", "colors", "labels", "instances", "segments", "grid"})


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """Join samples, for `DataLoader(..., collate_fn=collate)`.

    Args:
        samples: Dicts with `points` and the same keys, as `ScanNet` gives them, with or without transforms.

    Returns:
        A dict, with B scenes and N points in all:

        - `points`, `normals`, `colors`, `labels`, `instances`, `segments` and, after `GridSample`, `grid`: (N, ...);
        - `offset`: int64 (B,), where each scene ends in them, cumulative; the last is N;
        - `batch`: int64 (N,), the number of the scene in the batch, for each point;
        - `scene_ids`: list of B str;
        - `inverse`: after `GridSample`, int64, for each vertex from before, its place in the arrays of this batch (-1
          stays -1), and `inverse_offset`: where each scene ends in it;
        - every other array, joined along its first dimension, and `<key>_offset`: int64 (B,), where each scene ends in
          it;
        - every number: an array (B,); everything else: a list of B.

        Ids of instances and segments are those of their scenes: they repeat from scene to scene.

    Raises:
        UsageError: Samples do not fit together: keys, types or shapes differ; or they are no dicts with `points`.
    """
    keys = _check_samples(samples)
    counts = [len(sample["points"]) for sample in samples]
    offset = np.cumsum(counts, dtype=np.int64)
    batch = Batch()
    for key in keys:
        values = [sample[key] for sample in samples]
        if key == "scene_id":
            batch["scene_ids"] = values
        elif any(isinstance(value, np.ndarray) and value.ndim for value in values):
            _check_arrays(key, values, samples)
            batch[key] = np.concatenate(values)
            if key not in VERTEX_KEYS:
                batch[f"{key}_offset"] = np.cumsum([len(value) for value in values], dtype=np.int64)
        elif all(isinstance(value, int | float | np.number | np.bool_ | np.ndarray) for value in values):
            batch[key] = np.array(values)
        else:
            batch[key] = values
    if "inverse" in batch:
        batch["inverse"] = _shift(samples, offset - counts)
    batch["offset"] = offset
    batch["batch"] = np.repeat(np.arange(len(samples)), counts)
    return batch


def _shift(samples: Sequence[dict[str, Any]], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Inverse maps that count from where the batch begins."""
    return np.concatenate(
        [
            np.where(sample["inverse"] < 0, -1, sample["inverse"] + start)
            for sample, start in zip(samples, starts, strict=True)
        ]
    )


def _check_samples(samples: Sequence[dict[str, Any]]) -> list[str]:
    """Check that all samples have the same keys, and return them."""
    if not samples:
        raise UsageError("there are no samples to join")
    for number, sample in enumerate(samples):
        points = sample.get("points") if isinstance(sample, dict) else None
        if not isinstance(points, np.ndarray) or not points.ndim:
            keys = f" with {', '.join(map(str, sample))}" if isinstance(sample, dict) else ""
            raise UsageError(
                f"sample {number} is a {type(sample).__name__}{keys:.200}, expected a dict with an array points",
                "a transform must return such a dict, or give the loader a collate_fn of yours",
            )
        if set(sample) != set(samples[0]):
            raise UsageError(
                f"samples have different keys: {_name(sample)} has {', '.join(sorted(sample))}; "
                f"{_name(samples[0])} has {', '.join(sorted(samples[0]))}",
                "a transform must return the same keys for every scene",
            )
        if clash := {"offset", "batch", "scene_ids", *(f"{key}_offset" for key in sample)} & set(sample):
            raise UsageError(f"{_name(sample)} has a key {min(clash)!r}, which the batch needs", "give it another name")
    return list(samples[0])


def _check_arrays(key: str, values: Sequence[Any], samples: Sequence[dict[str, Any]]) -> None:
    """Check that arrays can be joined without changing them."""
    first = values[0]
    for value, sample in zip(values, samples, strict=True):
        if not isinstance(value, np.ndarray) or (value.dtype, value.shape[1:]) != (first.dtype, first.shape[1:]):
            raise UsageError(
                f"{key!r} cannot be joined: {_name(sample)} has {_describe(value)}, "
                f"{_name(samples[0])} has {_describe(first)}",
                "a transform must return the same types for every scene",
            )
        if key in VERTEX_KEYS and len(value) != len(sample["points"]):
            raise UsageError(
                f"{_name(sample)}: {key!r} has {len(value)} rows, but there are {len(sample['points'])} points"
            )


def _name(sample: dict[str, Any]) -> str:
    return str(sample.get("scene_id", "a sample"))


def _describe(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    return f"{value.dtype} ({', '.join(['n', *map(str, value.shape[1:])])})" if value.ndim else f"{value.dtype} ()"
