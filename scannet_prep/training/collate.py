"""Collation: joins samples to a batch, and sends batches from a worker to the training process.

    samples --collate--> Batch --_send--> pickle --_restore--> Batch
                    (in the worker)           (in the training process)

A batch holds one long array per key, and offsets: the rows at which each scene ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from scannet_prep.errors import UsageError
from scannet_prep.training.batch_memory import hand_over, receive
from scannet_prep.transforms.draft import VERTEX_KEYS

# Arrays of indices of points, which are shifted to count from the beginning of the batch.
_INDEX_KEYS = frozenset({"inverse", "faces"})
_NUMBERS = (int, float, np.generic, np.ndarray)
_ADDED_KEYS = frozenset({"offset", "batch", "scene_ids"})


class Batch(dict[str, Any]):
    """A dict of arrays or tensors, which is sent between processes without `/dev/shm`.

    In the training process, the arrays of a batch share one piece of memory, which stays in use as
    long as one of them exists. Copy arrays that should outlive the batch
    (`batch["labels"].clone()`, or `.copy()` of an array of NumPy).
    """

    def to(
        self,
        device: Any,  # noqa: ANN401 - any type that PyTorch accepts
        *,
        non_blocking: bool = False,
    ) -> Batch:
        """Return a batch with the tensors on a device, and everything else unchanged.

        Args:
            device: A device, as for `torch.Tensor.to`, such as `"cuda"`.
            non_blocking: Whether to return before the copies are done. This only has an effect for
                pinned memory (`DataLoader(pin_memory=True)`).
        """
        moved = Batch(self)
        for key, value in self.items():
            if _is_tensor(value):
                moved[key] = value.to(device=device, non_blocking=non_blocking)
        return moved


def collate(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Join samples, for `DataLoader(..., collate_fn=collate)`.

    Args:
        samples: Dicts with `points` and the same keys, such as the samples of `ScanNet`, with or
            without transforms. Tensors of PyTorch count as arrays.

    Returns:
        A dict, with B scenes and N points in all:

        - `points`, `normals`, `colors`, `labels`, `instances`, `segments` and, after `GridSample`,
          `grid`: (N, ...).
        - `offset`: int64 (B,), the end of each scene in these arrays, cumulative; the last is N.
        - `batch`: int64 (N,), for each point, the number of its scene in the batch.
        - `scene_ids`: list of B str.
        - `label_set`: str, the label set of `labels`, which is the same for all scenes.
        - `axis_alignment`: float64 (B, 4, 4).
        - `faces`: int (F, 3), shifted to index the points of the batch, and `faces_offset`.
        - `inverse`: after `GridSample`, int64, for each vertex before sampling, the index of its
          point in the batch (-1 stays -1), and `inverse_offset`.
        - Every other array of numbers, joined along its first dimension, and `<key>_offset`.
        - Every number becomes an array (B,). Every other value becomes a list of B.

        `<key>_offset` is int64 (B,), the end of each scene in `<key>`. Ids of instances and
        segments are those of their scenes, so they repeat from scene to scene.

    Raises:
        UsageError: Samples do not fit together: keys, types, shapes or label sets differ; or they
            are not dicts with `points`.
    """
    scenes = [_check_sample(sample) for sample in samples]
    for scene in scenes:
        _check_alike(scene, scenes[0])
    counts = [len(scene["points"]) for scene in scenes]
    offset = np.cumsum(counts, dtype=np.int64)
    starts: list[int] = (offset - counts).tolist()

    batch = Batch()
    for key, first in scenes[0].items():
        values = [scene[key] for scene in scenes]
        if key == "scene_id":
            batch["scene_ids"] = values
        elif key == "label_set":
            batch[key] = first
        elif key == "axis_alignment":
            batch[key] = np.stack(values)
        elif _is_numeric(first) and first.ndim:
            if key in _INDEX_KEYS:
                values = [
                    # Negative indices stay.
                    np.where(value < 0, value, value + start)
                    for value, start in zip(values, starts, strict=True)
                ]
            batch[key] = np.concatenate(values)
            if key not in VERTEX_KEYS:
                row_counts = [len(value) for value in values]
                batch[f"{key}_offset"] = np.cumsum(row_counts, dtype=np.int64)
        elif all(isinstance(value, _NUMBERS) for value in values):
            batch[key] = np.array(values)
        else:
            batch[key] = values
    batch["offset"] = offset
    numbers = np.arange(len(counts))
    batch["batch"] = np.repeat(numbers, counts)
    return batch


def collate_torch(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Join samples to tensors, for `DataLoader(..., collate_fn=collate_torch)`.

    The batch is that of `collate`, with a tensor of the same type instead of each array, without
    copying. In the training process, continue with `batch.to(device)`, or with the loader's
    `pin_memory=True`.

    Args:
        samples: As for `collate`.

    Raises:
        UsageError: As for `collate`.
    """
    import torch

    batch = collate(samples)
    for key, value in batch.items():
        if _is_numeric(value):
            batch[key] = torch.from_numpy(value)
    return batch


def _check_sample(sample: Any) -> dict[str, Any]:  # noqa: ANN401 - a transform can return anything
    """Return a sample with arrays instead of tensors.

    Raises:
        UsageError: It is not a dict with points, or has a key that the batch needs.
    """
    points = sample.get("points", 0) if isinstance(sample, dict) else 0
    if np.ndim(points) == 0:
        raise UsageError(
            f"a sample is a {type(sample).__name__}, expected a dict with points",
            "a transform must return such a dict; or give the loader another collate_fn",
        )
    added = _ADDED_KEYS & sample.keys()
    if added:
        raise UsageError(f"a sample has a key {min(added)!r}, which the batch needs")
    scene = dict(sample)
    for key, value in sample.items():
        if _is_tensor(value) or isinstance(value, np.ndarray):
            # This also makes plain arrays of subclasses, such as mapped files.
            scene[key] = np.asarray(value)
    return scene


def _check_alike(sample: dict[str, Any], first: dict[str, Any]) -> None:
    """Check that a sample can be joined with the first one without changing it."""
    name = sample.get("scene_id", "a sample")
    for key in sample | first:
        found = _describe_rows(key, sample)
        expected = _describe_rows(key, first)
        if found != expected:
            raise UsageError(
                f"{key!r} cannot be joined: {name} has {found}, "
                f"{first.get('scene_id', 'the first sample')} has {expected}",
                "read all scenes with the same keys and label set; a transform must return the "
                "same keys and types for every scene",
            )
        point_count = len(sample["points"])
        if key in VERTEX_KEYS and len(sample[key]) != point_count:
            row_count = len(sample[key])
            raise UsageError(
                f"{name}: {key!r} has {row_count} rows, but there are {point_count} points"
            )


def _describe_rows(key: str, sample: dict[str, Any]) -> str:
    """Describe what all samples of a batch must share: label set, or type and shape of a row."""
    if key not in sample:
        return "nothing"
    value = sample[key]
    if key == "label_set":
        return str(value)
    if not _is_numeric(value) or not value.ndim:
        return "a value"
    return f"rows of {value.dtype} {value.shape[1:]}"


def _is_tensor(value: object) -> bool:
    """Whether a value is a tensor of PyTorch. Does not import PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_numeric(value: object) -> bool:
    """Whether a value is an array of numbers, which can become a tensor and be sent as bytes."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def _send(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    """Prepare a batch for sending. Multiprocessing calls this function in the worker.

    Returns:
        `_restore`, and the arguments with which multiprocessing calls it in the training process.
    """
    values: dict[str, Any] = dict(batch)
    tensor_keys = set()
    arrays = {}
    for key, value in batch.items():
        # Other tensors are sparse, on a GPU, or of a type that NumPy does not have.
        with suppress(RuntimeError, TypeError):
            if _is_tensor(value):
                values[key] = value.detach().numpy()
                tensor_keys.add(key)
        if _is_numeric(values[key]):
            arrays[key] = values[key]
    # Not everywhere, and not if there are no descriptors or memory left: then the arrays themselves
    # are sent. An error must not escape, because this runs in a thread of multiprocessing, and
    # training would wait forever.
    with suppress(OSError):
        if hasattr(os, "memfd_create"):
            # None keeps the order of the keys.
            handed_over = hand_over(arrays)
            values |= dict.fromkeys(arrays)
            return _restore, (values, tensor_keys, handed_over)
    return _restore, (values, tensor_keys, None)


def _restore(
    values: dict[str, Any], tensor_keys: set[str], handed_over: tuple[Any, ...] | None
) -> Batch:
    """Make the batch in the training process.

    Args:
        values: The values, and None instead of each array that was handed over.
        tensor_keys: The keys of the arrays that become tensors.
        handed_over: The arguments of `receive`; None if the values are complete.
    """
    batch = Batch(values)
    if handed_over is not None:
        batch.update(receive(*handed_over))
    if tensor_keys:
        import torch

        for key in tensor_keys:
            batch[key] = torch.from_numpy(batch[key])
    return batch


ForkingPickler.register(Batch, _send)
