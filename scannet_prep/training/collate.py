"""Joins samples to a batch: a few long arrays, and where each scene ends in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base import memory as workers
from scannet_prep.base.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

ArrayT = TypeVar("ArrayT")
ArrayKey: TypeAlias = Literal[
    "points", "normals", "colors", "labels", "instances", "segments", "grid", "annotated", "offset", "batch",
    "axis_alignment", "faces", "faces_offset", "inverse", "inverse_offset",
]  # fmt: skip
# Arrays with one row per point. All others get an offset of their own.
VERTEX_KEYS = frozenset(
    {"points", "normals", "colors", "labels", "instances", "segments", "grid", "annotated"}
)
# Arrays of point indices, which are shifted to count from the beginning of the batch, and the axis
# along which they are joined.
_INDEX_AXES = {"inverse": 0, "faces": 0, "edge_index": 1}


class Batch(dict[str, Any], Generic[ArrayT]):
    """A dict of arrays or tensors: like any dict, except on its way between processes.

    There, the arrays of one batch share one piece of memory. One that is kept keeps all of it: copy what is to
    outlive the batch (`batch["labels"].clone()`, or `.copy()` of an array).
    """

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: ArrayKey) -> ArrayT: ...
        @overload
        def __getitem__(self, key: Literal["scene_ids"]) -> list[str]: ...
        @overload
        def __getitem__(self, key: Literal["label_set"]) -> str: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...  # noqa: ANN401 - of a transform
        def __getitem__(self, key: str) -> Any: ...  # noqa: D105

    def to(self, device: Any, *, non_blocking: bool = False) -> Batch[ArrayT]:  # noqa: ANN401 - as PyTorch takes it
        """Return a batch whose tensors are on a device; everything else is as it was.

        Args:
            device: As `torch.Tensor.to` takes it, such as `"cuda"`.
            non_blocking: Whether to return before the copies are done, which takes effect for pinned memory
                (`DataLoader(pin_memory=True)`).

        Raises:
            UsageError: The batch holds arrays of NumPy.
        """
        moved: Batch[ArrayT] = Batch(self)
        for key, value in self.items():
            if isinstance(value, np.ndarray):
                message = f"{key!r} is an array of NumPy, which cannot be moved to {device}"
                raise UsageError(message, "make tensors: DataLoader(..., collate_fn=collate_torch)")
            if _is_tensor(value):
                moved[key] = value.to(device=device, non_blocking=non_blocking)
        return moved


def collate(samples: Sequence[Mapping[str, Any]]) -> Batch[NDArray[Any]]:
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
        - `label_set`: str, the label set of `labels`, which is the same for all scenes;
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
        UsageError: Samples do not fit together: keys, types, shapes or label sets differ; they are not dicts with
            `points`; or a tensor is on a GPU, has a gradient, or is of a type that NumPy does not know.
    """
    scenes = [_check_sample(sample, number) for number, sample in enumerate(samples)]
    _check_alike(scenes)
    counts = [len(scene["points"]) for scene in scenes]
    offset = np.cumsum(counts, dtype=np.int64)
    starts: list[int] = (offset - counts).tolist()

    batch: Batch[NDArray[Any]] = Batch()
    parts: dict[str, list[NDArray[Any]]] = {}  # the arrays of all scenes that are to be joined
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
            batch[key] = None  # keeps the order of the keys
            parts[key] = values
            if key not in VERTEX_KEYS:
                axis = _INDEX_AXES.get(key, 0)
                ends = np.cumsum([value.shape[axis] for value in values], dtype=np.int64)
                batch[f"{key}_offset"] = ends
        else:
            batch[key] = _collect(values)
    batch["offset"] = offset
    batch["batch"] = None
    parts["batch"] = [np.broadcast_to(number, count) for number, count in enumerate(counts)]

    # The small arrays too, so that all arrays of the batch lie in the same memory.
    for key, value in batch.items():
        if _is_numeric(value):
            parts[key] = [value]
    batch.update(_join(parts))
    return batch


def _collect(values: list[Any]) -> Any:  # noqa: ANN401 - of a transform
    """Make an array of numbers; everything else stays a list."""
    if all(_is_number(value) for value in values):
        return np.array(values)
    return values


def _shift(indices: NDArray[Any], start: int) -> NDArray[Any]:
    """Add the first point of a scene to its point indices; negative ones stay."""
    return np.where(indices < 0, indices, indices + start)


def collate_torch(samples: Sequence[Mapping[str, Any]]) -> Batch[Tensor]:
    """Join samples to tensors, for `DataLoader(..., collate_fn=collate_torch)`.

    What `collate` gives, with a tensor of the same type in place of each array, without copying. In the training
    process, `batch.to(device)` or the loader's `pin_memory=True` go on from there.

    Args:
        samples: As for `collate`.

    Raises:
        UsageError: As `collate`.
    """
    batch = collate(samples)
    arrays = {key: value for key, value in batch.items() if _is_numeric(value)}
    return _restore(arrays, others=batch, tensor_keys=set(arrays))


def _join(parts: Mapping[str, list[NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join arrays by key, in the byte order of this machine, in memory for the whole batch."""
    shapes = {}
    for key, arrays in parts.items():
        axis = _INDEX_AXES.get(key, 0)
        first = arrays[0]
        row_count = sum(array.shape[axis] for array in arrays)
        shape = (*first.shape[:axis], row_count, *first.shape[axis + 1 :])
        shapes[key] = (first.dtype.newbyteorder("="), shape)
    joined = workers.allocate(shapes)
    for key, out in joined.items():
        np.concatenate(parts[key], axis=_INDEX_AXES.get(key, 0), out=out)
    return joined


def _check_sample(sample: Any, number: int) -> dict[str, Any]:  # noqa: ANN401 - whatever a transform returned
    """Check that a sample is a dict with points, and turn its tensors into arrays."""
    arrays: dict[str, Any] = {}
    if isinstance(sample, dict):
        arrays = {key: _as_array(value) for key, value in sample.items()}
    points = arrays.get("points")
    if not isinstance(points, np.ndarray) or points.ndim == 0:
        raise UsageError(
            f"sample {number} is a {type(sample).__name__} of {list(arrays)}, expected a dict with points",
            "a transform must return such a dict; or give the loader another collate_fn",
        )
    for key, value in arrays.items():
        if _is_tensor(value):
            raise UsageError(
                f"{key!r} cannot be joined: tensors of {value.dtype} on {value.device}",
                "a transform returns arrays, or tensors on the CPU, without a gradient, of a type that NumPy has",
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
    added = {"offset", "batch", "scene_ids", *(f"{key}_offset" for key in first)}
    clash = added & set(first)
    if clash:
        problem = f"{_name(first)} has a key {min(clash)!r}, which the batch needs"
        raise UsageError(problem, "give it another name")


def _check_label_set(sample: dict[str, Any], first: dict[str, Any]) -> None:
    """Check that two samples, if both have a label set, have the same."""
    label_set = sample.get("label_set")
    first_label_set = first.get("label_set")
    if None in (label_set, first_label_set) or label_set == first_label_set:
        return
    names = f"{_name(sample)} has labels of {label_set}, {_name(first)} of {first_label_set}"
    hint = 'make all datasets with the same labels="scannet200"'
    raise UsageError(f"labels cannot be joined: {names}", hint)


def _check_key(key: str, sample: dict[str, Any], first: dict[str, Any]) -> None:
    """Check that a sample has an array of the same kind as the first one, and of the right shape."""
    is_in_both = key in sample and key in first
    if not is_in_both or _kind(key, sample[key]) != _kind(key, first[key]):
        raise UsageError(
            f"{key!r} cannot be joined: {_name(sample)} has {_describe(sample, key)}, "
            f"{_name(first)} has {_describe(first, key)}",
            "a transform must return the same keys and types for every scene",
        )
    value = sample[key]
    if _kind(key, value) is None:
        return
    if key == "edge_index" and (value.ndim != 2 or len(value) != 2):
        raise UsageError(
            f"{_name(sample)}: {key!r} is {_describe(sample, key)}, expected (2, E)",
            "as torch_geometric has it: np.stack([sources, targets])",
        )
    point_count = len(sample["points"])
    if key in VERTEX_KEYS and len(value) != point_count:
        raise UsageError(
            f"{_name(sample)}: {key!r} has {len(value)} rows, but there are {point_count} points"
        )


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
    except (
        RuntimeError,
        TypeError,
    ):  # on a GPU, with a gradient, sparse, or of a type that NumPy does not know
        return value


def _is_tensor(value: object) -> bool:
    torch: Any = sys.modules.get("torch")  # where it is not loaded, nothing is a tensor
    return torch is not None and type(value) is torch.Tensor


def _is_numeric(value: object) -> bool:
    """Whether it is an array of numbers, which can become a tensor and be sent as bytes."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def _is_number(value: object) -> bool:
    """Whether it is a number, or an array of numbers."""
    return isinstance(value, int | float | np.number | np.bool_) or _is_numeric(value)


def _send(batch: Batch[Any]) -> tuple[Callable[..., Batch[Any]], tuple[Any, ...]]:
    """Describe to multiprocessing how to send a batch; called in the worker."""
    arrays: dict[str, NDArray[Any]] = {}
    tensor_keys = set()
    others: dict[str, Any] = {}  # None stands for an array, which keeps the order of the keys
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
    # Not Linux, or no descriptors or memory left: multiprocessing sends the arrays themselves. An
    # error in its thread would not reach the training process, which would wait for ever.
    with suppress(AttributeError, OSError):
        sent = workers.hand_over(arrays)
    return _restore, (sent, others, tensor_keys)


def _restore(sent: Any, others: dict[str, Any], tensor_keys: set[str]) -> Batch[Any]:  # noqa: ANN401 - arrays, or handed over
    """Put a batch of arrays and tensors together again, in the order of `others`."""
    arrays = sent if isinstance(sent, dict) else workers.receive(*sent)
    batch: Batch[Any] = Batch(others)
    batch.update(arrays)
    if tensor_keys:
        import torch

        for key in tensor_keys:
            batch[key] = torch.from_numpy(arrays[key])
    return batch


ForkingPickler.register(Batch, _send)
