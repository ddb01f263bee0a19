"""Several datasets joined to one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.training.sample import Dataset, refuse_wrapper
from scannet_prep.training.supervision import ClassCounts

_HINT_JOIN = "ConcatDataset([train, val]), or train + val"


class ConcatDataset(ClassCounts, Dataset[Any]):  # type: ignore[misc]  # where PyTorch is not installed
    """Several datasets as one, with their scenes in order; `train + val` makes one, too.

    `PointBudgetBatchSampler` indexes a dataset by `(index, epoch)`. PyTorch's own `ConcatDataset`
    does not accept such a key; this one does. The joined datasets must accept it too, as `ScanNet`
    does. Give each dataset its own `seed`. Samples of one batch need the same keys and types.

    Args:
        datasets: Datasets that have a length and `lengths` (points of each scene), and are indexed
            by `index` and by `(index, epoch)`.

    Attributes:
        datasets: As given.
        label_set, is_aligned, ignore_index: The common value of the datasets that have one; None if
            none has.

    Raises:
        UsageError: There are no datasets, one of them is not a dataset or is a wrapper of PyTorch,
            or two of them differ in label set, frame or ignore index.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = _check_datasets(datasets)
        self.label_set: LabelSet | None = self._common_value(
            "label_set", "pass the same labels=... to both"
        )
        self.is_aligned: bool | None = self._common_value(
            "is_aligned",
            "process both folders with the same options",
        )
        self.ignore_index: int | None = self._common_value(
            "ignore_index", "pass the same ignore_index=... to both"
        )
        # The dataset of each scene, and the index in it.
        self._scenes = [
            (dataset, index) for dataset in self.datasets for index in range(len(dataset))
        ]

    def _common_value(self, name: str, hint: str) -> Any:  # noqa: ANN401 - of any attribute
        """Return the common value of an attribute of the datasets; None if none has it.

        A dataset without the attribute, or with None, can be joined with every other dataset.

        Raises:
            UsageError: Two datasets have different values.
        """
        owners = [dataset for dataset in self.datasets if getattr(dataset, name, None) is not None]
        if not owners:
            return None
        expected = getattr(owners[0], name)
        for dataset in owners:
            value = getattr(dataset, name)
            if value != expected:
                raise UsageError(
                    f"these datasets cannot be joined: {owners[0]!r} has "
                    f"{name}={_show(expected)}, {dataset!r} has {name}={_show(value)}",
                    hint,
                )
        return expected

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of points of each scene, int64 (len,)."""
        return np.concatenate([np.asarray(dataset.lengths, np.int64) for dataset in self.datasets])

    @property
    def digest(self) -> str:
        """Digests of the datasets, in order; `?` for a dataset without one."""
        return " ".join(getattr(dataset, "digest", "?") for dataset in self.datasets)

    def class_counts_by_scene(self) -> NDArray[np.int64]:
        """Count the vertices of each class in each scene, int64 (scenes, classes).

        Raises:
            UsageError: A dataset cannot count its classes.
        """
        for dataset in self.datasets:
            if not hasattr(dataset, "class_counts_by_scene"):
                raise UsageError(
                    f"{dataset!r:.80} has no method class_counts_by_scene, "
                    "so its classes cannot be counted",
                    "add one that returns int64 (scenes, classes)",
                )
        return np.concatenate([dataset.class_counts_by_scene() for dataset in self.datasets])

    def subset(self, indices: Iterable[int]) -> ConcatDataset:
        """Return the same datasets with only some scenes, by index, in any order.

        Raises:
            IndexError: An index is out of range.
            UsageError: There are no indices, or a dataset has no method `subset`.
        """
        indices = list(indices)
        if np.asarray(indices).dtype == np.bool_:
            # As an index, True would be 1.
            raise UsageError(
                "indices are a mask of booleans", "dataset.subset(numpy.flatnonzero(mask))"
            )

        # The chosen indices within each dataset, ascending. `starts` has one more entry, the end.
        starts = np.cumsum([0, *map(len, self.datasets)]).tolist()
        inner_indices: list[list[int]] = [[] for _ in self.datasets]
        for index in sorted({self._find(index) for index in indices}):
            dataset_number = int(np.searchsorted(starts, index, side="right")) - 1
            inner_indices[dataset_number].append(index - starts[dataset_number])

        parts = []
        for dataset, chosen in zip(self.datasets, inner_indices, strict=True):
            if not chosen:
                continue
            if not hasattr(dataset, "subset"):
                raise UsageError(
                    f"{dataset!r:.80} has no method subset", "add one that takes indices"
                )
            parts.append(dataset.subset(chosen))
        if not parts:
            raise UsageError(
                "the list of scenes is empty, expected at least one scene", "dataset.subset([0])"
            )
        return ConcatDataset(parts)

    def _find(self, index: Any) -> int:  # noqa: ANN401 - anything can be passed as an index
        """Return the index of a scene, counted from 0, given an index from either end."""
        try:
            number = operator.index(index)
        except TypeError:
            raise UsageError(
                f"{index!r:.80} is not an index; "
                "joined datasets are indexed by number, or by (index, epoch)",
                'by scene id, index one of the datasets: train["scene0191_00"]',
            ) from None
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"index {number} is out of range: the datasets have {len(self)} scenes together"
            )
        return number % len(self)

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._scenes)

    def __repr__(self) -> str:
        """Show the datasets."""
        return f"ConcatDataset([{', '.join(map(repr, self.datasets))}])"

    def __add__(self, other: Any) -> ConcatDataset:  # noqa: ANN401 - any dataset
        """Join another dataset to these."""
        return ConcatDataset([self, other])

    def __getitem__(self, key: int | tuple[int, int]) -> Any:  # noqa: ANN401 - any kind of sample
        """Return one scene, by its index from either end, or by `(index, epoch)`.

        Raises:
            IndexError: The index is out of range.
            UsageError: The key is not an index.
        """
        if isinstance(key, tuple) and len(key) == 2:
            index, epoch = key
            dataset, inner_index = self._scenes[self._find(index)]
            return dataset[inner_index, epoch]
        dataset, inner_index = self._scenes[self._find(key)]
        return dataset[inner_index]


def _check_datasets(datasets: Any) -> tuple[Any, ...]:  # noqa: ANN401 - anything can be passed
    """Check the argument of `ConcatDataset` before any scene is read.

    Raises:
        UsageError: The argument is empty or a single dataset, or one of its elements is not a
            dataset or is a wrapper of PyTorch.
    """
    if hasattr(datasets, "lengths") or not isinstance(datasets, Iterable):
        # Iterating over a single dataset would read all of its scenes.
        raise UsageError(f"datasets is {datasets!r:.80}, expected a list of datasets", _HINT_JOIN)
    checked = tuple(datasets)
    if not checked:
        raise UsageError(
            "there are no datasets to join", 'ConcatDataset([ScanNet(path, split="train"), ...])'
        )
    for dataset in checked:
        refuse_wrapper(dataset)
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise UsageError(
                f"{dataset!r:.80} is not a dataset, so it cannot be joined", _HINT_JOIN
            )
    return checked


def _show(value: object) -> object:
    """Shorten a label set to its name, for messages."""
    return value.name if isinstance(value, LabelSet) else value
