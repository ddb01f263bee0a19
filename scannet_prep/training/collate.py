"""Collation: joins samples into a batch, and sends batches from a worker to the training process.

    samples --collate--> Batch --_send--> pickle --_restore--> Batch
                    (in the worker)           (in the training process)

A batch holds one long array per key, and offsets: the rows at which each scene ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.training.batch_memory import allocate, hand_over, receive
from scannet_prep.transforms.draft import VERTEX_KEYS

# Arrays of indices of points, which are shifted to count from the beginning of the batch.
_INDEX_KEYS = {"inverse", "faces"}
_ALIGNMENT_BYTES = 64
_ADDED_KEYS = {"offset", "batch", "scene_ids"}


class Batch(dict[str, Any]):
    """A dict of arrays or tensors, which is sent between processes without `/dev/shm`.

    In the training process, the arrays of a batch share one piece of memory, which stays in use as
    long as one of them exists. Copy arrays that should outlive the batch
    (`batch["labels"].clone()`, or `.copy()` of an array of NumPy).
    """

    def to(self, *arguments: Any, **options: Any) -> Batch:  # noqa: ANN401 - of PyTorch
        """Return a batch with the tensors on a device, and everything else unchanged.

        Args:
            arguments: Those of `torch.Tensor.to`, such as `"cuda"`.
            options: Those of `torch.Tensor.to`, such as `non_blocking=True`, which returns before
                the copies are done. It only has an effect for pinned memory
                (`DataLoader(pin_memory=True)`).
        """
        moved = Batch(self)
        for key, value in self.items():
            if hasattr(value, "detach"):
                moved[key] = value.to(*arguments, **options)
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
        - Every other value becomes a list of B.

        `<key>_offset` is int64 (B,), the end of each scene in `<key>`. Ids of instances and
        segments are those of their scenes, so they repeat from scene to scene.

    Raises:
        UsageError: Samples do not fit together: keys, types, shapes or label sets differ. Or one of
            them is not a dict, or has no points.
    """
    scenes = []
    for sample in samples:
        if not isinstance(sample, Mapping) or "points" not in sample:
            raise UsageError(
                f"a sample is {sample!r:.80}, expected a dict with points",
                "a transform must return the sample, and keys=... must contain points",
            )
        scene = {key: _as_array(value) for key, value in sample.items()}
        scenes.append(scene)
        _check_alike(scene, scenes[0])
    counts = [len(scene["points"]) for scene in scenes]
    starts = np.cumsum(counts) - counts

    batch = Batch()
    # The arrays to be joined, by key.
    parts: dict[str, list[NDArray[Any]]] = {}
    for key, first in scenes[0].items():
        values = [scene[key] for scene in scenes]
        if key == "scene_id":
            batch["scene_ids"] = values
        elif key == "label_set":
            batch[key] = first
        elif key == "axis_alignment":
            parts[key] = [np.stack(values)]
        elif not _is_numeric(first):
            batch[key] = values
        else:
            if key in _INDEX_KEYS:
                values = [
                    # Negative indices stay.
                    np.where(value < 0, value, value + start)
                    for value, start in zip(values, starts.tolist(), strict=True)
                ]
            parts[key] = values
            if key not in VERTEX_KEYS:
                parts[f"{key}_offset"] = [np.cumsum([len(value) for value in values])]
    parts["offset"] = [np.cumsum(counts)]
    parts["batch"] = [np.broadcast_to(number, count) for number, count in enumerate(counts)]
    batch.update(_join(parts))
    return batch


def collate_torch(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Join samples into tensors, for `DataLoader(..., collate_fn=collate_torch)`.

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


def _join(parts: dict[str, list[NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join arrays by key, in one piece of memory."""
    size = 0
    for arrays in parts.values():
        size += sum(array.nbytes for array in arrays) + _ALIGNMENT_BYTES
    memory = allocate(size)
    joined = {}
    start = 0
    for key, arrays in parts.items():
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        target = np.ndarray(shape, arrays[0].dtype, memory, start)
        joined[key] = np.concatenate(arrays, out=target)
        start += target.nbytes
        start += -start % _ALIGNMENT_BYTES
    return joined


def _as_array(value: Any) -> Any:  # noqa: ANN401 - any value of a sample
    """Return a tensor, or an array of a subclass such as a mapped file, as a plain array.

    Other values are returned as they are, and arrays without dimensions as numbers.
    """
    return np.asarray(value)[()] if hasattr(value, "__array__") else value


def _check_alike(sample: dict[str, Any], first: dict[str, Any]) -> None:
    """Check that a sample can be joined with the first one without changing it.

    Raises:
        UsageError: Keys, label sets, types or shapes differ, or a key is one that the batch adds.
    """
    name = sample.get("scene_id", "a sample")
    for key in sample | first:
        found = _describe_rows(key, sample)
        expected = _describe_rows(key, first)
        if found != expected or key in _ADDED_KEYS:
            raise UsageError(
                f"{key!r} cannot be joined: {name} has {found}, "
                f"{first.get('scene_id', 'the first sample')} has {expected}",
                "read all scenes with the same keys and label set; a transform must return the "
                "same keys and types for every scene, and none of the keys that the batch adds",
            )
        point_count = len(sample["points"])
        if key in VERTEX_KEYS and len(sample[key]) != point_count:
            raise UsageError(
                f"{name}: {key!r} has {len(sample[key])} rows, but there are {point_count} points"
            )


def _describe_rows(key: str, sample: dict[str, Any]) -> str:
    """Describe what all samples of a batch must share: label set, or type and shape of a row."""
    if key not in sample:
        return "nothing"
    value = sample[key]
    if key == "label_set":
        return str(value)
    if _is_numeric(value):
        return f"rows of {value.dtype} {value.shape[1:]}"
    return "a value"


def _is_numeric(value: Any) -> bool:  # noqa: ANN401 - any value of a sample
    """Whether a value is an array of numbers, which can become a tensor."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def _send(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    """Prepare a batch for sending. Multiprocessing calls this function in the worker.

    Returns:
        `_restore`, and the arguments with which multiprocessing calls it in the training process.
    """
    values: dict[str, Any] = dict(batch)
    tensor_keys = set()
    for key, value in batch.items():
        # Other tensors are sparse, on a GPU, or of a type that NumPy does not have.
        with suppress(RuntimeError, TypeError):
            # Only tensors of PyTorch, which need not be imported, have this method.
            if hasattr(value, "detach"):
                values[key] = value.detach().numpy()
                tensor_keys.add(key)
    return _restore, (tensor_keys, *hand_over(values))


def _restore(tensor_keys: set[str], *handed_over: Any) -> Batch:  # noqa: ANN401 - of `hand_over`
    """Make the batch in the training process; the values of some keys become tensors."""
    batch = Batch(receive(*handed_over))
    if tensor_keys:
        import torch

        for key in tensor_keys:
            batch[key] = torch.from_numpy(batch[key])
    return batch


ForkingPickler.register(Batch, _send)
