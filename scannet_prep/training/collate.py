"""Collation: joins samples to a batch, and sends batches from a worker to the training process.

    samples --collate--> Batch --_send--> pickle --_restore--> Batch
                    (in the worker)           (in the training process)

A batch holds one long array per key, and offsets: the rows at which each scene ends. Its arrays
share one piece of memory, which is handed to the training process without copying.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base import memory
from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import VERTEX_KEYS

if TYPE_CHECKING:
    from torch import Tensor

ArrayT = TypeVar("ArrayT")
ArrayKey: TypeAlias = Literal[
    "points", "normals", "colors", "labels", "instances", "segments", "grid", "annotated",
    "offset", "batch", "axis_alignment", "faces", "faces_offset", "inverse", "inverse_offset",
]  # fmt: skip
# Arrays of point indices, and the axis along which they are joined. Their values are shifted to
# count from the beginning of the batch.
_INDEX_AXES = {"inverse": 0, "faces": 0, "edge_index": 1}


class Batch(dict[str, Any], Generic[ArrayT]):
    """A dict of arrays or tensors, which is sent between processes in shared memory.

    In the training process, the arrays of a batch share one piece of memory, which stays in use as
    long as one of them exists. Copy arrays that should outlive the batch
    (`batch["labels"].clone()`, or `.copy()` of an array of NumPy).
    """

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: ArrayKey) -> ArrayT: ...
        @overload
        def __getitem__(self, key: Literal["scene_ids"]) -> list[str]: ...
        @overload
        def __getitem__(self, key: Literal["label_set"]) -> str: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...  # noqa: ANN401 - made by a transform
        def __getitem__(self, key: str) -> Any: ...  # noqa: D105

    def to(
        self,
        device: Any,  # noqa: ANN401 - any type that PyTorch accepts
        *,
        non_blocking: bool = False,
    ) -> Batch[ArrayT]:
        """Return a batch with the tensors on a device, and everything else unchanged.

        Args:
            device: A device, as for `torch.Tensor.to`, such as `"cuda"`.
            non_blocking: Whether to return before the copies are done. This only has an effect for
                pinned memory (`DataLoader(pin_memory=True)`).

        Raises:
            UsageError: The batch holds arrays of NumPy.
        """
        moved: Batch[ArrayT] = Batch(self)
        for key, value in self.items():
            if isinstance(value, np.ndarray):
                raise UsageError(
                    f"{key!r} is an array of NumPy, which cannot be moved to {device}",
                    "make tensors: DataLoader(..., collate_fn=collate_torch)",
                )
            if _is_tensor(value):
                moved[key] = value.to(device=device, non_blocking=non_blocking)
        return moved


def collate(samples: Sequence[Mapping[str, Any]]) -> Batch[NDArray[Any]]:
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
        - `edge_index`, if a transform of yours makes it as for torch_geometric: int (2, E), pairs
          of points, shifted to index the points of the batch and joined along the second dimension,
          and `edge_index_offset`.
        - Every other array of numbers, joined along its first dimension, and `<key>_offset`.
        - Every number becomes an array (B,). Every other value becomes a list of B.

        `<key>_offset` is int64 (B,), the end of each scene in `<key>`. Ids of instances and
        segments are those of their scenes, so they repeat from scene to scene.

    Raises:
        UsageError: Samples do not fit together: keys, types, shapes or label sets differ; they are
            not dicts with `points`; or a tensor is on a GPU, has a gradient, or has a type that
            NumPy does not have.
    """
    scenes = [_check_sample(sample, number) for number, sample in enumerate(samples)]
    _check_alike(scenes)
    counts = [len(scene["points"]) for scene in scenes]
    offset = np.cumsum(counts, dtype=np.int64)
    starts: list[int] = (offset - counts).tolist()

    batch: Batch[NDArray[Any]] = Batch()
    # The arrays of the scenes, by key, which are joined at the end. Until then, None in the batch
    # keeps the order of the keys.
    parts: dict[str, list[NDArray[Any]]] = {}
    for key, first in scenes[0].items():
        values = [scene[key] for scene in scenes]
        if key == "scene_id":
            batch["scene_ids"] = values
        elif key == "label_set":
            batch[key] = first
        elif key == "axis_alignment":
            batch[key] = np.stack(values)
        elif _is_numeric(first) and first.ndim:
            if key in _INDEX_AXES:
                values = [_shift(value, start) for value, start in zip(values, starts, strict=True)]
            batch[key] = None
            parts[key] = values
            if key not in VERTEX_KEYS:
                axis = _INDEX_AXES.get(key, 0)
                ends = np.cumsum([value.shape[axis] for value in values], dtype=np.int64)
                batch[f"{key}_offset"] = ends
        else:
            batch[key] = _collect(values)
    batch["offset"] = offset
    # The number of each scene, once for each of its points. A broadcast array takes no memory.
    batch["batch"] = None
    parts["batch"] = [np.broadcast_to(number, count) for number, count in enumerate(counts)]

    # Add the arrays that are in the batch already, all of them small, so that all arrays are in the
    # same memory.
    for key, value in batch.items():
        if _is_numeric(value):
            parts[key] = [value]
    batch.update(_join(parts))
    return batch


def _collect(values: list[Any]) -> Any:  # noqa: ANN401 - an array or a list
    """Make an array (B,) of the values if all are numbers; otherwise return the list.

    Arrays among the values have no dimension, so they count as numbers.
    """
    if all(_is_number(value) for value in values):
        return np.array(values)
    return values


def _shift(indices: NDArray[Any], start: int) -> NDArray[Any]:
    """Shift indices of a scene's points to indices of the batch's points. Negative ones stay.

    Args:
        indices: Indices, counted from the first point of the scene.
        start: The row of that point in the batch.
    """
    return np.where(indices < 0, indices, indices + start)


def collate_torch(samples: Sequence[Mapping[str, Any]]) -> Batch[Tensor]:
    """Join samples to tensors, for `DataLoader(..., collate_fn=collate_torch)`.

    The batch is that of `collate`, with a tensor of the same type in place of each array, without
    copying. In the training process, continue with `batch.to(device)`, or with the loader's
    `pin_memory=True`.

    Args:
        samples: As for `collate`.

    Raises:
        UsageError: As for `collate`.
    """
    batch = collate(samples)
    arrays = {key: value for key, value in batch.items() if _is_numeric(value)}
    # Nothing was sent, but a received batch is made in the same way.
    return _restore(arrays, others=batch, tensor_keys=set(arrays))


def _join(parts: Mapping[str, list[NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join arrays by key, in one piece of memory and in the byte order of this machine."""
    # Type and shape of each array of the batch.
    shapes = {}
    for key, arrays in parts.items():
        axis = _INDEX_AXES.get(key, 0)
        first = arrays[0]
        row_count = sum(array.shape[axis] for array in arrays)
        shape = (*first.shape[:axis], row_count, *first.shape[axis + 1 :])
        shapes[key] = (first.dtype.newbyteorder("="), shape)
    joined = memory.allocate(shapes)
    for key, array in joined.items():
        np.concatenate(parts[key], axis=_INDEX_AXES.get(key, 0), out=array)
    return joined


def _check_sample(
    sample: Any,  # noqa: ANN401 - a transform can return anything
    number: int,
) -> dict[str, Any]:
    """Check that a sample is a dict with points, and return it with arrays in place of tensors.

    Args:
        sample: The sample.
        number: Its number in the batch, for messages.

    Raises:
        UsageError: It is another object, or has a tensor that cannot become an array.
    """
    arrays: dict[str, Any] = {}
    if isinstance(sample, dict):
        arrays = {key: _as_array(value) for key, value in sample.items()}
    points = arrays.get("points")
    if not isinstance(points, np.ndarray) or points.ndim == 0:
        raise UsageError(
            f"sample {number} is a {type(sample).__name__} of {list(arrays)}, "
            "expected a dict with points",
            "a transform must return such a dict; or give the loader another collate_fn",
        )
    for key, value in arrays.items():
        # A tensor that `_as_array` could not convert.
        if _is_tensor(value):
            raise UsageError(
                f"{key!r} cannot be joined: tensors of {value.dtype} on {value.device}",
                "a transform must return arrays, or tensors on the CPU, without a gradient, "
                "of a type that NumPy has",
            )
    return arrays


def _check_alike(samples: Sequence[dict[str, Any]]) -> None:
    """Check that samples can be joined without changing them."""
    if not samples:
        raise UsageError("there are no samples to join")
    first = samples[0]
    for sample in samples:
        _check_label_set(sample, first)
        for key in sample | first:
            _check_key(key, sample, first)
    added_keys = {"offset", "batch", "scene_ids", *(f"{key}_offset" for key in first)}
    reserved = added_keys & set(first)
    if reserved:
        raise UsageError(
            f"{_name(first)} has a key {min(reserved)!r}, which the batch needs",
            "give it another name",
        )


def _check_label_set(sample: dict[str, Any], first: dict[str, Any]) -> None:
    """Check that the label sets of two samples are equal.

    If only one sample has a label set, `_check_key` refuses the two.
    """
    label_set = sample.get("label_set")
    first_label_set = first.get("label_set")
    if None in (label_set, first_label_set) or label_set == first_label_set:
        return
    raise UsageError(
        f"labels cannot be joined: {_name(sample)} has labels of {label_set}, "
        f"{_name(first)} of {first_label_set}",
        'make all datasets with the same labels="scannet200"',
    )


def _check_key(key: str, sample: dict[str, Any], first: dict[str, Any]) -> None:
    """Check that a value has the kind that it has in the first sample, and a valid shape.

    Args:
        key: A key of one of the two samples, or of both.
        sample: The sample to check.
        first: The first sample of the batch.
    """
    is_in_both = key in sample and key in first
    if not is_in_both or _kind(key, sample[key]) != _kind(key, first[key]):
        raise UsageError(
            f"{key!r} cannot be joined: {_name(sample)} has {_describe(sample, key)}, "
            f"{_name(first)} has {_describe(first, key)}",
            "a transform must return the same keys and types for every scene",
        )

    # Everything but arrays of numbers becomes a list, and may differ.
    value = sample[key]
    if _kind(key, value) is None:
        return
    if key == "edge_index" and (value.ndim != 2 or len(value) != 2):
        raise UsageError(
            f"{_name(sample)}: {key!r} is {_describe(sample, key)}, expected (2, E)",
            "make it as for torch_geometric: np.stack([sources, targets])",
        )
    point_count = len(sample["points"])
    if key in VERTEX_KEYS and len(value) != point_count:
        raise UsageError(
            f"{_name(sample)}: {key!r} has {len(value)} rows, but there are {point_count} points"
        )


def _name(sample: dict[str, Any]) -> str:
    """Return the scene id of a sample, for messages."""
    return str(sample.get("scene_id", "a sample"))


def _kind(key: str, value: Any) -> object:  # noqa: ANN401 - any value of a sample
    """Return the type and shape of an array, without the dimension along which it is joined.

    Arrays of the same kind can be joined. The kind of everything but arrays of numbers is None.
    """
    if not _is_numeric(value) or not value.ndim:
        return None
    axis = _INDEX_AXES.get(key, 0)
    return value.dtype, value.shape[:axis], value.shape[axis + 1 :]


def _describe(sample: dict[str, Any], key: str) -> str:
    """Describe a value of a sample by its type and shape, for messages."""
    if key not in sample:
        return "nothing"
    value = sample[key]
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return type(value).__name__


def _as_array(value: object) -> Any:  # noqa: ANN401 - any value of a sample
    """Return a tensor, or an array of a subclass such as a mapped file, as a plain array.

    The array shares its memory. Everything else is returned unchanged, and so is a tensor that
    NumPy cannot hold.
    """
    if not _is_tensor(value):
        return np.asarray(value) if isinstance(value, np.ndarray) else value
    try:
        return value.numpy()  # type: ignore[attr-defined]
    except (RuntimeError, TypeError):
        # The tensor is on a GPU, has a gradient, is sparse, or has a type that NumPy does not have.
        return value


def _is_tensor(value: object) -> bool:
    """Whether a value is a tensor of PyTorch. Does not import PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Tensor


def _is_numeric(value: object) -> bool:
    """Whether a value is an array of numbers, which can become a tensor and be sent as bytes."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def _is_number(value: object) -> bool:
    """Whether a value is a number or an array of numbers."""
    return isinstance(value, int | float | np.number | np.bool_) or _is_numeric(value)


def _send(batch: Batch[Any]) -> tuple[Callable[..., Batch[Any]], tuple[Any, ...]]:
    """Prepare a batch for sending. Multiprocessing calls this function in the worker.

    Returns:
        `_restore`, and the arguments with which multiprocessing calls it in the training process.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tensor_keys = set()
    # The other values. None in place of each array keeps the order of the keys.
    others: dict[str, Any] = {}
    for key, value in batch.items():
        array = _as_array(value)
        if not _is_numeric(array):
            others[key] = value
            continue
        others[key] = None
        arrays[key] = array
        if _is_tensor(value):
            tensor_keys.add(key)

    sent: Any = arrays
    # If this is not Linux, or there are no descriptors or memory left, multiprocessing sends the
    # arrays themselves. An error here must not escape: it would be raised in a thread of
    # multiprocessing, and the training process would wait forever.
    with suppress(AttributeError, OSError):
        sent = memory.hand_over(arrays)
    return _restore, (sent, others, tensor_keys)


def _restore(
    sent: Any,  # noqa: ANN401 - arrays by key, or the result of `memory.hand_over`
    others: dict[str, Any],
    tensor_keys: set[str],
) -> Batch[Any]:
    """Make a batch of arrays, of which some become tensors, and of other values.

    Args:
        sent: Arrays by key, or the result of `memory.hand_over`.
        others: All other values, and None in place of each array, in the order of the keys.
        tensor_keys: The keys of the arrays that become tensors.
    """
    arrays = sent if isinstance(sent, dict) else memory.receive(*sent)
    batch: Batch[Any] = Batch(others)
    batch.update(arrays)
    if tensor_keys:
        import torch

        for key in tensor_keys:
            batch[key] = torch.from_numpy(arrays[key])
    return batch


ForkingPickler.register(Batch, _send)
