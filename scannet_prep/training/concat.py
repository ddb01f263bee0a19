"""Several datasets as one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.training.sample import Dataset, refuse_wrapper
from scannet_prep.training.supervision import ClassCounts

_JOIN = "ConcatDataset([train, val]), or train + val"


class ConcatDataset(ClassCounts, Dataset[Any]):  # type: ignore[misc]  # where PyTorch is not installed
    """Several datasets as one, the scenes of the first before those of the next; `train + val` makes one, too.

    PyTorch's own `ConcatDataset` does not take `(index, epoch)`, which `PointBudgetBatchSampler` gives; this one does.
    The datasets must take it too, as `ScanNet` does. Give each its own `seed`; samples of one batch need the same keys
    and types.

    Args:
        datasets: With a length, `lengths` (points of each scene), and scenes by `index` and by `(index, epoch)`.

    Attributes:
        datasets: As given.
        label_set, is_aligned, ignore_index: Those of the datasets that have them, which are equal; else None.

    Raises:
        UsageError: There are none, one is not a dataset or is a wrapper of PyTorch, or two of them differ in label set,
            frame or ignore index.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = _check_datasets(datasets)
        if not self.datasets:
            raise UsageError(
                "there are no datasets to join",
                'ConcatDataset([ScanNet(path, split="train"), ...])',
            )
        self.label_set: LabelSet | None = self._common_value(
            "label_set", "pass the same labels=... to both"
        )
        hint = "process both folders alike: scannet-prep process --align-axis --force -o FOLDER"
        self.is_aligned: bool | None = self._common_value("is_aligned", hint)
        self.ignore_index: int | None = self._common_value(
            "ignore_index", "pass the same ignore_index=... to both"
        )
        self._items = [
            (dataset, index) for dataset in self.datasets for index in range(len(dataset))
        ]

    def _common_value(self, name: str, hint: str) -> Any:  # noqa: ANN401 - of any attribute
        """Return the value of an attribute that all datasets that have it share; None where none has it."""
        owners = [dataset for dataset in self.datasets if getattr(dataset, name, None) is not None]
        for dataset in owners:
            mine, theirs = getattr(owners[0], name), getattr(dataset, name)
            if mine != theirs:
                message = f"{owners[0]!r} has {name}={_show(mine)}, {dataset!r} has {name}={_show(theirs)}"
                raise UsageError(f"these datasets do not go together: {message}", hint)
        return getattr(owners[0], name) if owners else None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of points of each scene, int64 (len,)."""
        return np.concatenate([np.asarray(dataset.lengths, np.int64) for dataset in self.datasets])

    @property
    def digest(self) -> str:
        """Digests of the datasets, in order; `?` for one that has none."""
        return " ".join(getattr(dataset, "digest", "?") for dataset in self.datasets)

    def class_counts_by_scene(self) -> NDArray[np.int64]:
        """Vertices of each class in each scene, int64 (scenes, classes).

        Raises:
            UsageError: A dataset does not count its classes.
        """
        for dataset in self.datasets:
            if not hasattr(dataset, "class_counts_by_scene"):
                raise UsageError(
                    f"{dataset!r:.80} has no method class_counts_by_scene, so its classes cannot be counted",
                    "add one that returns int64 (scenes, classes)",
                )
        return np.concatenate([dataset.class_counts_by_scene() for dataset in self.datasets])

    def subset(self, indices: Iterable[int]) -> ConcatDataset:
        """Return the same datasets with only some scenes, by index, in any order.

        Raises:
            IndexError: An index is out of range.
            UsageError: There are no indices, or a dataset has no method `subset`.
        """
        chosen: list[list[int]] = [[] for _ in self.datasets]
        starts = np.cumsum([0, *map(len, self.datasets)])
        indices = list(indices)
        if np.asarray(indices).dtype == np.bool_:  # True would be the index 1
            raise UsageError(
                "indices are a mask of booleans", "dataset.subset(numpy.flatnonzero(mask))"
            )
        for index in {self._find(index) for index in indices}:
            number = int(np.searchsorted(starts, index, side="right")) - 1
            chosen[number].append(index - int(starts[number]))
        parts = []
        for dataset, inner_indices in zip(self.datasets, chosen, strict=True):
            if not inner_indices:
                continue
            if not hasattr(dataset, "subset"):
                raise UsageError(
                    f"{dataset!r:.80} has no method subset", "add one that takes indices"
                )
            parts.append(dataset.subset(inner_indices))
        if not parts:
            raise UsageError(
                "the list of scenes is empty, expected at least one scene", "dataset.subset([0])"
            )
        return ConcatDataset(parts)

    def _find(self, index: Any) -> int:  # noqa: ANN401 - whatever was asked for
        """Return the index of a scene, counted from 0, from an index from either end."""
        try:
            number = operator.index(index)
        except TypeError:
            raise UsageError(
                f"{index!r:.80} is not an index; joined datasets are indexed by number, or by (index, epoch)",
                'by scene id, index one of the datasets: train["scene0191_00"]',
            ) from None
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"index {number} is out of range: the datasets have {len(self)} scenes together"
            )
        return number % len(self)

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._items)

    def __repr__(self) -> str:
        """Datasets that it joins."""
        return f"ConcatDataset([{', '.join(map(repr, self.datasets))}])"

    def __add__(self, other: Any) -> ConcatDataset:  # noqa: ANN401 - any dataset
        """Join another dataset to these."""
        return ConcatDataset([self, other])

    def __getitem__(self, key: int | tuple[int, int]) -> Any:  # noqa: ANN401 - whatever they give
        """Return one scene, by its index from either end, or by `(index, epoch)`.

        Raises:
            IndexError: The index is out of range.
            UsageError: It is not an index.
        """
        index, *epoch = key if isinstance(key, tuple) else (key,)
        dataset, inner = self._items[self._find(index)]
        return dataset[(inner, *epoch) if epoch else inner]


def _check_datasets(datasets: Any) -> tuple[Any, ...]:  # noqa: ANN401 - whatever was passed
    """Check what was passed to be joined, before any scene is read.

    Raises:
        UsageError: It is a single dataset, or one of several is not a dataset or is a wrapper of PyTorch.
    """
    if hasattr(datasets, "lengths") or not isinstance(datasets, Iterable):
        # Iterating over a single dataset would read all of its scenes.
        raise UsageError(f"datasets is {datasets!r:.80}, expected a list of datasets", _JOIN)
    checked = tuple(datasets)
    for dataset in checked:
        refuse_wrapper(dataset)
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise UsageError(f"{dataset!r:.80} is not a dataset, so it cannot be joined", _JOIN)
    return checked


def _show(value: object) -> object:
    return value.name if isinstance(value, LabelSet) else value
