"""Compare a scene of one copy of a data set with the same scene of another copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from scannet_prep.processed.scene import ProcessedScene

# Facts about how a scene was made, which do not change what it is.
_NOT_COMPARED = {"program_version", "inputs"}
_UNLABELED = "unlabeled"


def iter_differences(here: ProcessedScene, there: ProcessedScene) -> Iterator[str]:
    """Describe each array that differs, by its first row in both copies, and the description."""
    arrays = here.arrays()
    others = there.arrays()
    del arrays["meta"], others["meta"]
    for key in {**arrays, **others}:
        array = arrays.get(key)
        other = others.get(key)
        if array is None or other is None:
            yield f"{key}: in one of the copies only"
            continue
        if (array.dtype, array.shape) != (other.dtype, other.shape):
            yield f"{key}: {array.dtype} {array.shape}, there {other.dtype} {other.shape}"
            continue
        different = np.nonzero(array != other)
        rows = np.unique(different[0])
        if len(rows):
            first = rows[0]
            counts = f"{len(rows):,} of {len(array):,} rows differ"
            values = f"{array[first]}, there {other[first]}"
            yield f"{key}: {counts}, first row {first}: {values}"
    meta = here.meta.to_json()
    other_meta = there.meta.to_json()
    keys = [key for key in meta.keys() - _NOT_COMPARED if meta[key] != other_meta.get(key)]
    if keys:
        yield f"meta: other {', '.join(sorted(keys))}"


def count_changes(here: ProcessedScene, there: ProcessedScene) -> Counter[str]:
    """Count the vertices whose class differs, by both classes, such as `wall -> floor`."""
    label_set = here.meta.options.label_set
    labels = here.stored_labels
    others = there.stored_labels
    if there.meta.options.label_set != label_set or labels.shape != others.shape:
        return Counter()
    names = np.array([_UNLABELED, *label_set.names])
    is_different = labels != others
    names_here = names[labels[is_different]]
    names_there = names[others[is_different]]
    pairs = zip(names_here, names_there, strict=True)
    return Counter(f"{name} -> {other_name}" for name, other_name in pairs)
