"""A draft of a sample, in which transforms change arrays and choose vertices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import LabelSet

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]
# An array of the vertices by axis, (3, N).
Columns: TypeAlias = NDArray[Any]
AnySample: TypeAlias = dict[str, Any]
# A function that changes columns in place, or returns others.
Change: TypeAlias = Callable[[Columns], Columns]

# The arrays of a sample with one row per vertex.
VERTEX_KEYS = frozenset(
    {
        "points",
        "normals",
        "colors",
        "labels",
        "instances",
        "segments",
        "grid",
        "annotated",
        "index",
    }
)
# Other arrays that this package makes, which may happen to have as many rows.
_OTHER_KEYS = frozenset(
    {"inverse", "axis_alignment", "faces", "instance_labels", "instance_boxes", "instance_centers"}
)
# The key with the names of further arrays of the vertices, which your own code adds to a sample.
OWN_KEYS = "vertex_keys"


class Draft:
    """A sample while transforms change it.

    Arrays are changed by axis, (3, N), because NumPy is several times faster along long rows than
    on three numbers at a time. Work is postponed as long as possible: arrays that no step has asked
    for are copied once, by `finish`, which also applies the functions passed to `later`. Both then
    handle only the vertices that are left after all selections.

    Vertices are taken with `mode="clip"` because their indices are valid, and NumPy takes longer if
    it checks them.

    Attributes:
        sample: The original sample, with the added keys and without the removed ones. Its arrays
            have the original vertices, V.
        count: Current number of vertices, N.
        step_name: Name of the current transform, for messages.
    """

    def __init__(self, sample: AnySample, step_name: str) -> None:
        self.sample = dict(sample)
        self.step_name = step_name
        # The selected vertices, as indices into the original ones, (N,); None for all.
        self._kept: Ints | None = None
        # The arrays that a step has asked for, restricted to the selected vertices.
        self._columns: dict[str, Columns] = {}
        # The functions passed to `later` that have not been applied yet.
        self._later: dict[str, list[Change]] = {}
        # 0 without points, which a transform of the user may have renamed.
        self.count = len(sample.get("points", ()))

    def columns(self, key: str) -> Columns:
        """Return an array of the selected vertices by axis, contiguous, (3, N) or (N,).

        Applies the functions that are registered for the array. The result may be changed in place.

        Raises:
            UsageError: The sample has no such key.
        """
        if key not in self._columns:
            self._check_key(key)
            # Tensors of PyTorch and lists become arrays.
            array = np.asarray(self.sample[key]).T
            if self._kept is None:
                self._columns[key] = array.copy()
            else:
                self._columns[key] = take_columns(array, self._kept)
        columns = self._columns[key]
        for function in self._later.pop(key, ()):
            columns = function(columns)
        self._columns[key] = columns
        return columns

    def move(self) -> Columns:
        """Return the points as floats, (3, N), metres, to be changed in place."""
        points = as_floats(self.columns("points"))
        self._columns["points"] = points
        return points

    def turn(self, function: Change) -> None:
        """Apply a function to the points, and to the normals after the last selection.

        Args:
            function: Changes its argument, (3, N), in place, and returns it.
        """
        function(self.move())
        if "normals" in self.sample:
            self.later("normals", function)

    def later(self, key: str, function: Change) -> None:
        """Register a function to be applied to an array's columns after the last selection.

        Raises:
            UsageError: The sample has no such key.
        """
        self._check_key(key)
        self._later.setdefault(key, []).append(function)

    def add(self, key: str, columns: Columns) -> None:
        """Add an array of the selected vertices, by axis."""
        # A new key gets its place in the order of the keys. `finish` puts the array there.
        self.sample.setdefault(key, None)
        self._columns[key] = columns

    def leave_out(self, keys: Collection[str]) -> None:
        """Remove keys, if the sample has them."""
        for key in keys:
            self.sample.pop(key, None)
            self._columns.pop(key, None)

    def select(self, kept: Ints) -> None:
        """Keep the vertices at some indices, in the order of these indices.

        The `inverse` of an earlier `GridSample` is renumbered; it becomes -1 for vertices whose
        representative is removed.

        Raises:
            UsageError: The sample has no points, an array of the vertices with another number of
                rows, or an array of unknown name with as many.
        """
        self._check_key("points")
        self._check_rows()
        if "inverse" in self.sample:
            # The new index of each vertex, -1 if removed. There is one more entry at the end, which
            # is -1: the index -1 finds it, and so stays -1.
            new_indices = np.full(self.count + 1, -1)
            new_indices[kept] = np.arange(len(kept))
            old_indices = self.sample["inverse"]
            self.sample["inverse"] = new_indices[old_indices]

        for key, array in self._columns.items():
            self._columns[key] = take_columns(array, kept)
        self.count = len(kept)
        if self._kept is not None:
            kept = take_columns(self._kept, kept)
        self._kept = kept

    def find_annotated(self) -> Bools | None:
        """Return whether each vertex is annotated, bool (N,); None without limited annotations."""
        if "annotated" not in self.sample:
            return None
        self._check_rows()
        annotated = self.columns("annotated")
        return annotated.astype(np.bool_, copy=False)

    def check_label_set(self, expected: LabelSet) -> None:
        """Check that `labels` belong to a label set. A sample without `label_set` passes.

        Raises:
            UsageError: The labels belong to the other label set.
        """
        name = self.sample.get("label_set", expected.name)
        if name != expected.name:
            raise UsageError(
                f"{self.step_name}: the classes are of {expected.name}, "
                f"but the labels of the sample are of {name}",
                f"ScanNet(..., labels={expected.name.upper()}), "
                f"or {self.step_name}(...) with classes of {name}",
            )

    def finish(self) -> dict[str, Any]:
        """Return the new sample, which shares unchanged arrays with the original."""
        # Apply the functions that are left. `columns` removes them from the dict meanwhile.
        for key in list(self._later):
            self.columns(key)

        result = dict(self.sample)
        for key, array in self._columns.items():
            result[key] = as_rows(array)
        if self._kept is not None:
            # The arrays that no step has asked for.
            for key in vertex_keys(self.sample):
                if key not in self._columns:
                    array = np.asarray(self.sample[key])
                    result[key] = array.take(self._kept, axis=0, mode="clip")
        return result

    def _check_rows(self) -> None:
        """Check that exactly the arrays of the vertices have a row for each of them.

        Raises:
            UsageError: An array would no longer fit the selected vertices.
        """
        vertex_count = len(self.sample["points"])
        of_vertices = vertex_keys(self.sample)
        for key, value in self.sample.items():
            # Tensors of PyTorch count as arrays.
            if key in _OTHER_KEYS or not hasattr(value, "__array__"):
                continue
            # The shape alone: some tensors cannot be converted. A number has one row.
            row_count = (*np.shape(value), 1)[0]
            if key in of_vertices and row_count != vertex_count:
                raise UsageError(
                    f"{self.step_name}: {key!r} has {row_count:,} rows, "
                    f"but there are {vertex_count:,} points",
                    "a step that selects vertices must select the same rows of all their arrays",
                )
            if key not in of_vertices and row_count == vertex_count:
                raise UsageError(
                    f"{self.step_name}: the array {key!r} has a row for each vertex, "
                    "but is not known to belong to them",
                    f'name it in the sample: sample["{OWN_KEYS}"] = ["{key}"]',
                )

    def _check_key(self, key: str) -> None:
        """Raise UsageError if the sample has no such key."""
        if key not in self.sample:
            keys = ", ".join(map(str, self.sample))
            raise UsageError(
                f"{self.step_name}: the sample has no {key!r}, only {keys}",
                f"ScanNet(..., keys=[..., {key!r}])",
            )


def as_floats(columns: Columns) -> Columns:
    """Return columns as floats; integers become float64 if float32 cannot hold them."""
    float_type = np.result_type(columns, np.float32)
    return columns.astype(float_type, copy=False)


def take_columns(columns: Columns, kept: Ints) -> Columns:
    """Take the vertices at some valid indices."""
    return columns.take(kept, axis=-1, mode="clip")


def as_rows(columns: Columns) -> NDArray[Any]:
    """Transpose (3, N) to a contiguous (N, 3)."""
    if columns.ndim == 1:
        return columns
    # `ascontiguousarray` copies row by row, which takes four times as long.
    return np.column_stack([*columns])


def vertex_keys(sample: AnySample) -> list[str]:
    """List the keys of the arrays that have a row for each vertex, by name."""
    names = VERTEX_KEYS.union(sample.get(OWN_KEYS, ()))
    return [key for key in sample if key in names]
