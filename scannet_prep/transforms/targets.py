"""Training targets of instance segmentation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from scannet_prep.release.label_sets import LabelSet
from scannet_prep.transforms.draft import Draft, Ints
from scannet_prep.transforms.steps import Transform


@dataclass(frozen=True)
class InstanceTargets(Transform):
    """Numbers the instances of the benchmark from 0, and adds their classes, boxes and centres.

    Put this transform last. By the rules of the benchmark, an instance is the set of vertices with
    the same number and the same label. Walls, floors and unlabeled vertices belong to no instance.

    The transform changes

    - `instances`: int64 (V,), 0..K-1, ordered by class and then by number; -1 for no instance;

    and adds

    - `instance_labels`: int64 (K,), train ids;
    - `instance_boxes`: float32 (K, 6), centre and size of the axis-aligned bounding box, metres;
    - `instance_centers`: float32 (K, 3), mean of the vertices, metres.

    `collate` joins these three, and adds `instance_labels_offset`. Masks are not added, because
    their width differs between scenes; `instances == torch.arange(K)[:, None]` makes them, (K, V),
    of one scene's part of the batch.

    Compare Pointcept's `InstanceParser` (pointcept/datasets/transform.py), and Mask3D's
    `filter_out_classes: [0, 1]` (conf/data/datasets/scannet.yaml; `[0, 2]` for ScanNet200).

    Attributes:
        label_set: Label set of the labels. A sample with labels of the other label set is refused.
            A dict without `label_set` is accepted.

    Raises:
        UsageError: The labels of the sample belong to the other label set.
    """

    label_set: LabelSet

    def change(self, draft: Draft, generator: Generator) -> None:  # noqa: ARG002
        """Change `instances`, and add the other arrays."""
        draft.check_label_set(self.label_set)
        labels = draft.columns("labels")
        numbers = draft.columns("instances")

        # Indices of the vertices that belong to an instance, (M,).
        is_inside = np.isin(labels, self.label_set.things)
        is_inside &= numbers >= 0
        inside = np.flatnonzero(is_inside)

        # The label and the number of each vertex, combined into one key, int64 (M,). Labels of a
        # small type would overflow.
        base = int(numbers.max(initial=0)) + 1
        vertex_keys = labels[inside].astype(np.int64)
        vertex_keys *= base
        vertex_keys += numbers[inside]

        # The new id of a vertex is the rank of its key, (M,), among the distinct keys, (K,).
        keys, ids = _rank_keys(vertex_keys)
        instances = np.full(len(labels), -1)
        instances[inside] = ids

        # Where each instance begins if the vertices are ordered by instance, (K,).
        counts = np.bincount(ids, minlength=len(keys))
        starts = np.cumsum(counts) - counts

        # The order of the vertices by instance, (M,). NumPy sorts 16-bit integers fastest.
        if len(keys) < 2**16:
            ids = ids.astype(np.uint16)
        order = np.argsort(ids, kind="stable")

        # The points in this order, float32 (M, 3). A draft holds them as (3, V).
        points = draft.columns("points")
        columns = points.take(inside[order], axis=1)
        rows = np.ascontiguousarray(columns.T, np.float32)

        # Bounding boxes and means of the instances, (K, 3) each.
        lowest = np.minimum.reduceat(rows, starts)
        highest = np.maximum.reduceat(rows, starts)
        sums = np.add.reduceat(rows, starts, dtype=np.float64)
        centers = sums / counts[:, None]
        middles = (lowest + highest) / 2
        sizes = highest - lowest

        draft.add("instances", instances)
        # These have no row for each vertex, so they are added to the sample itself.
        draft.sample["instance_labels"] = keys // base
        draft.sample["instance_boxes"] = np.hstack([middles, sizes])
        draft.sample["instance_centers"] = centers.astype(np.float32)


def _rank_keys(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct keys, ascending, and for each key its rank among them, from 0.

    This is `np.unique(keys, return_inverse=True)` for keys from 0, and much faster because it
    counts instead of sorting.
    """
    is_present = np.bincount(keys) > 0
    # The rank of a key is the number of smaller keys that occur.
    ranks = np.cumsum(is_present) - 1
    return np.flatnonzero(is_present), ranks[keys]
