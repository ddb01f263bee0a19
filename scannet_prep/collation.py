"""Joins samples to a batch: a few long arrays, and where each scene ends in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep import workers
from scannet_prep.errors import UsageError
from scannet_prep.sample import Scenes

# Arrays with a row for each point; all others have ends of their own.
VERTEX_KEYS = frozenset({"points", "normals", "colors", "labels", "instances", "segments", "grid"})
# Arrays of numbers of points, which count from the beginning of the batch when they are joined, and along which axis.
_INDEX_AXES = {"inverse": 0, "faces": 0, "edge_index": 1}


class Batch(dict[str, Any]):
    """A dict of arrays or tensors: like any dict, except on its way between processes.

    There, the arrays of one batch share one piece of memory. One that is kept keeps all of it: copy what is to
    outlive the batch (`batch["labels"].clone()`, or `.copy()` of an array).
    """


def collate(samples: Sequence[dict[str, Any]]) -> Batch:
    """Join samples, for `DataLoader(..., collate_fn=collate)`.

    Args:
        samples: Dicts with `points` and the same keys, as `ScanNet` gives them, with or without transforms. Tensors of
            PyTorch count as arrays. Those that a `DataLoader` got without a transform may lie in the memory of the
            batch: what changes it in place changes them, too.

    Returns:
        A dict, with B scenes and N points in all:

        - `points`, `normals`, `colors`, `labels`, `instances`, `segments` and, after `GridSample`, `grid`: (N, ...);
        - `offset`: int64 (B,), where each scene ends in them, cumulative; the last is N;
        - `batch`: int64 (N,), the number of the scene in the batch, for each point;
        - `scene_ids`: list of B str;
        - `axis_alignment`: float64 (B, 4, 4);
        - `faces`: int (F, 3), whose numbers become those of the batch, and `faces_offset`: where each scene ends in it;
        - `inverse`: after `GridSample`, int64, for each vertex from before, its place in the arrays of this batch (-1
          stays -1), and `inverse_offset`: where each scene ends in it;
        - `edge_index`, of a transform of yours, in the convention of torch_geometric: int (2, E), pairs of points,
          joined along the second dimension, and `edge_index_offset`; its numbers become those of the batch;
        - every other array of numbers, joined along its first dimension, and `<key>_offset`: int64 (B,), where each
          scene ends in it;
        - every number: an array (B,); everything else: a list of B.

        Ids of instances and segments are those of their scenes: they repeat from scene to scene.

    Raises:
        UsageError: Samples do not fit together: keys, types or shapes differ; they are not dicts with `points`; or a
            tensor is on a GPU, has a gradient, or is of a type that NumPy does not know.
    """
    joined = samples.take_joined() if isinstance(samples, Scenes) else {}
    samples = [_take_arrays(sample, number) for number, sample in enumerate(samples)]
    _check_alike(samples)
    counts = [len(sample["points"]) for sample in samples]
    offset = np.cumsum(counts, dtype=np.int64)
    starts: list[int] = (offset - counts).tolist()
    batch = Batch()
    parts: dict[str, list[Any]] = {}  # what is to be joined, into memory for the whole batch
    for key, first in samples[0].items():
        values = [sample[key] for sample in samples]
        if key == "scene_id":
            batch["scene_ids"] = values
        elif key == "axis_alignment":
            batch[key] = np.stack(values)
        elif _is_numeric(first) and first.ndim:
            axis = _INDEX_AXES.get(key, 0)
            if key in _INDEX_AXES:
                values = [
                    np.where(value < 0, value, value + start) for value, start in zip(values, starts, strict=True)
                ]
            batch[key] = parts[key] = values
            if key not in VERTEX_KEYS:
                batch[f"{key}_offset"] = np.cumsum([value.shape[axis] for value in values], dtype=np.int64)
        else:
            is_number = all(isinstance(one, int | float | np.number | np.bool_) or _is_numeric(one) for one in values)
            batch[key] = np.array(values) if is_number else values
    batch["offset"] = offset
    batch["batch"] = parts["batch"] = [np.broadcast_to(number, count) for number, count in enumerate(counts)]
    parts |= {key: [value] for key, value in batch.items() if _is_numeric(value)}
    batch.update(_join(parts, joined))
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
    arrays = {key: value for key, value in batch.items() if _is_numeric(value)}
    return _restore(arrays, batch, set(arrays))


def _join(parts: Mapping[str, list[NDArray[Any]]], joined: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Join arrays by key, in the byte order of this machine; those that `joined` is made of already are not copied."""
    shapes = {}
    for key, (first, *others) in parts.items():
        axis = _INDEX_AXES.get(key, 0)
        rows = first.shape[axis] + sum(array.shape[axis] for array in others)
        shapes[key] = first.dtype.newbyteorder("="), (*first.shape[:axis], rows, *first.shape[axis + 1 :])
    is_joined = joined.keys() == shapes.keys()
    arrays = joined if is_joined else workers.allocate(shapes)
    for key, array in arrays.items():
        if not is_joined or key not in VERTEX_KEYS:
            np.concatenate(parts[key], _INDEX_AXES.get(key, 0), out=array)
    return arrays


def _take_arrays(sample: Any, number: int) -> dict[str, Any]:  # noqa: ANN401 - whatever a transform returned
    """Check that a sample is one, and turn its tensors into arrays."""
    arrays = {key: _as_array(value) for key, value in sample.items()} if isinstance(sample, dict) else {}
    if not isinstance(arrays.get("points"), np.ndarray) or not arrays["points"].ndim:
        message = f"sample {number} is a {type(sample).__name__} of {list(arrays)}, expected a dict with points"
        raise UsageError(message, "a transform must return such a dict; or give the loader another collate_fn")
    for key, value in arrays.items():
        if _is_tensor(value):
            hint = "a transform returns arrays, or tensors on the CPU, without a gradient, of a type that NumPy has"
            raise UsageError(f"{key!r} cannot be joined: tensors of {value.dtype} on {value.device}", hint)
    return arrays


def _check_alike(samples: Sequence[dict[str, Any]]) -> None:
    """Check that samples can be joined without changing them."""
    if not samples:
        raise UsageError("there are no samples to join")
    first = samples[0]
    for sample in samples:
        for key in sample | first:
            if key not in sample or key not in first or _kind(key, sample[key]) != _kind(key, first[key]):
                found, expected = (f"{_name(one)} has {_describe(one, key)}" for one in (sample, first))
                hint = "a transform must return the same keys and types for every scene"
                raise UsageError(f"{key!r} cannot be joined: {found}, {expected}", hint)
            if key == "edge_index" and _kind(key, sample[key]) and (sample[key].ndim, len(sample[key])) != (2, 2):
                message = f"{_name(sample)}: {key!r} is {_describe(sample, key)}, expected (2, E)"
                raise UsageError(message, "as torch_geometric has it: np.stack([sources, targets])")
            if key in VERTEX_KEYS and _kind(key, sample[key]) and len(sample[key]) != len(sample["points"]):
                message = f"{key!r} has {len(sample[key])} rows, but there are {len(sample['points'])} points"
                raise UsageError(f"{_name(sample)}: {message}")
    if clash := {"offset", "batch", "scene_ids", *(f"{key}_offset" for key in first)} & set(first):
        raise UsageError(f"{_name(first)} has a key {min(clash)!r}, which the batch needs", "give it another name")


def _name(sample: dict[str, Any]) -> str:
    return str(sample.get("scene_id", "a sample"))


def _kind(key: str, value: Any) -> object:  # noqa: ANN401 - whatever it is
    """What must be the same to be joined: type and shape, but for the dimension along which values are joined."""
    if not _is_numeric(value) or not value.ndim:
        return None
    axis = _INDEX_AXES.get(key, 0)
    return value.dtype, value.shape[:axis], value.shape[axis + 1 :]


def _describe(sample: dict[str, Any], key: str) -> str:
    value = sample.get(key)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__ if key in sample else "nothing"


def _as_array(value: object) -> Any:  # noqa: ANN401 - whatever it is
    """An array on the memory of a tensor of PyTorch, or of another kind of array, such as a file that is mapped.

    Everything else as it is, and tensors that NumPy cannot hold.
    """
    if not _is_tensor(value):
        return np.asarray(value) if isinstance(value, np.ndarray) else value
    try:
        return value.numpy()  # type: ignore[attr-defined]
    except (RuntimeError, TypeError):  # on a GPU, with a gradient, sparse, or of a type that NumPy does not know
        return value


def _is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")  # where it is not loaded, nothing is a tensor
    return torch is not None and type(value) is torch.Tensor


def _is_numeric(value: object) -> bool:
    """Whether it is an array of numbers, which can be a tensor, and sent as bytes."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def _send(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    """Tell multiprocessing how to send a batch; called in the worker."""
    found = {key: _as_array(value) for key, value in batch.items()}
    arrays = {key: array for key, array in found.items() if _is_numeric(array)}
    tensors = {key for key in arrays if _is_tensor(batch[key])}
    others = {key: None if key in arrays else value for key, value in batch.items()}  # keeps the order
    sent: Any = arrays
    # Not Linux, or no descriptors or memory left. An error here, in a thread of multiprocessing's, would not reach the
    # training process: it would wait for ever.
    with suppress(AttributeError, OSError):
        sent = workers.hand_over(arrays)
    return _restore, (sent, others, tensors)


def _restore(sent: Any, others: dict[str, Any], tensors: set[str]) -> Batch:  # noqa: ANN401 - arrays, or handed over
    """A batch of arrays and of tensors, which are on the memory of arrays, in the order of the others."""
    arrays = sent if isinstance(sent, dict) else workers.receive(*sent)
    if tensors:
        import torch
    return Batch(others | {key: torch.from_numpy(array) if key in tensors else array for key, array in arrays.items()})


ForkingPickler.register(Batch, _send)
