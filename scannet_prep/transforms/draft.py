"""A draft of a sample, in which transforms change arrays and choose vertices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.release.label_sets import LabelSet

Ints: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = NDArray[Any]  # an array of the vertices by axis, (3, N)
AnySample: TypeAlias = dict[str, Any]

# These have no row for each vertex, even where the numbers are equal.
_OTHER_KEYS = {
    "inverse",
    "axis_alignment",
    "faces",
    "instance_labels",
    "instance_boxes",
    "instance_centers",
}


class Draft:
    """A sample while transforms change it.

    Coordinates are held by axis: NumPy works several times as fast along long rows as on three
    numbers at a time. Selections of vertices add up, and arrays that no step has asked for are
    copied once, by `finish`. Functions that are passed to `later` run at the same time, on the
    vertices that are left.

    Attributes:
        sample: The sample it was made of, with added keys, and without those that were left out.
        count: Number of vertices now, N.
        step_name: Name of the transform that works on it, for messages.
    """

    def __init__(self, sample: AnySample, step_name: str) -> None:
        if not isinstance(sample, dict):
            raise UsageError(
                f"{step_name}: the sample is a {type(sample).__name__}, expected a dict of arrays",
                'pass a sample of ScanNet(...), or {"points": points, "labels": labels}',
            )
        self.sample = dict(sample)
        self.step_name = step_name
        self._kept: Ints | None = None  # of the vertices of the sample
        self._columns: dict[str, Columns] = {}  # of the vertices that are left
        self._later: dict[str, list[Callable[[Columns], Columns]]] = {}
        # A transform of the user's may have renamed the points.
        self.count = len(sample.get("points", ()))

    def columns(self, key: str) -> Columns:
        """Return an array of the vertices by axis, (3, N) or (N,), contiguous.

        It may be changed in place.

        Raises:
            UsageError: The sample has no such key.
        """
        if key not in self._columns:
            self._check_key(key)
            array = self.sample[key].T
            if self._kept is None:
                self._columns[key] = array.copy()
            else:
                self._columns[key] = array.take(self._kept, axis=-1, mode="clip")
        for function in self._later.pop(key, ()):
            self._columns[key] = function(self._columns[key])
        return self._columns[key]

    def move(self) -> Columns:
        """The points as floats, (3, N), metres, to be changed in place."""
        points = self.columns("points")
        self._columns["points"] = points.astype(np.result_type(points, np.float32), copy=False)
        return self._columns["points"]

    def turn(self, function: Callable[[Columns], Columns]) -> None:
        """Change points, and later normals, by a function that changes columns in place."""
        function(self.move())
        if "normals" in self.sample:
            self.later("normals", function)

    def later(self, key: str, function: Callable[[Columns], Columns]) -> None:
        """Replace the columns of an array by a function of them, after the last selection.

        Raises:
            UsageError: The sample has no such key.
        """
        self._check_key(key)
        self._later.setdefault(key, []).append(function)

    def add(self, key: str, columns: Columns) -> None:
        """Add an array of the vertices that are left, by axis."""
        self.sample.setdefault(key, None)  # so that keys are in the order in which they were added
        self._columns[key] = columns

    def leave_out(self, keys: Collection[str]) -> None:
        """Leave out keys, where they are there."""
        for key in keys:
            for arrays in (self.sample, self._columns, self._later):
                arrays.pop(key, None)

    def select(self, kept: Ints) -> None:
        """Keep some vertices, by index.

        Where `GridSample` has left an `inverse`, it points to the new places, and is -1 where the representative is
        gone.
        """
        if "edge_index" in self.sample:
            raise UsageError(
                f"{self.step_name}: the sample has an edge_index, whose numbers would no longer hold",
                "Compose(GridSample(0.02), add_edges): edges are added after the last selection",
            )
        if "inverse" in self.sample:
            places = np.full(self.count + 1, -1, np.int64)  # the last for -1
            places[kept] = np.arange(len(kept))
            self.sample["inverse"] = places[self.sample["inverse"]]
        self._columns = {
            key: array.take(kept, axis=-1, mode="clip") for key, array in self._columns.items()
        }
        self._kept = kept if self._kept is None else self._kept.take(kept, mode="clip")
        self.count = len(kept)

    def find_annotated(self) -> NDArray[np.bool_] | None:
        """Return which vertices are annotated, bool (N,); None if the annotation is not limited.

        Raises:
            UsageError: `annotated` is not such an array.
        """
        if "annotated" not in self.sample:
            return None
        annotated = self.columns("annotated")
        if annotated.dtype != np.bool_ or annotated.shape != (self.count,):
            raise UsageError(
                f"{self.step_name}: 'annotated' is {annotated.dtype} {annotated.shape}, expected bool ({self.count},)",
                'sample["annotated"] = sample["annotated"][kept]',
            )
        return annotated

    def check_label_set(self, expected: LabelSet) -> None:
        """Check that `labels` are of a label set. A sample without `label_set` passes.

        Raises:
            UsageError: They are of the other label set.
        """
        name = self.sample.get("label_set", expected.name)
        if name == expected.name:
            return
        raise UsageError(
            f"{self.step_name}: the classes are of {expected.name}, but the labels of the sample are of {name}",
            f"ScanNet(..., labels={expected.name.upper()}), or {self.step_name}(...) with classes of {name}",
        )

    def finish(self) -> dict[str, Any]:
        """Make the sample. Arrays that no step has changed are those from before."""
        for key in list(self._later):
            self.columns(key)
        result = self.sample | {key: as_rows(array) for key, array in self._columns.items()}
        if self._kept is not None:
            for key in set(vertex_keys(self.sample)) - self._columns.keys():
                result[key] = self.sample[key].take(self._kept, axis=0, mode="clip")
        return result

    def _check_key(self, key: str) -> None:
        if key not in self.sample and key not in self._columns:
            raise UsageError(
                f"{self.step_name}: the sample has no {key!r}, only {', '.join(map(str, self.sample))}",
                f"ScanNet(..., keys=[..., {key!r}])",
            )


def as_rows(columns: Columns) -> NDArray[Any]:
    """(N, 3) of (3, N), contiguous; NumPy would copy three numbers at a time."""
    if columns.ndim == 1:
        return columns
    rows = np.empty(columns.shape[::-1], columns.dtype)
    for axis, column in enumerate(columns):
        rows[:, axis] = column
    return rows


def vertex_keys(sample: AnySample) -> list[str]:
    """Names of the arrays that have a row for each vertex."""
    count = len(sample["points"])
    return [
        key
        for key, value in sample.items()
        if isinstance(value, np.ndarray)
        and value.ndim
        and len(value) == count
        and key not in _OTHER_KEYS
    ]
