"""Training targets of instance segmentation, and superpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from scannet_prep.evaluation.instance import NO_INSTANCES
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.transforms import arguments
from scannet_prep.transforms.draft import Draft
from scannet_prep.transforms.steps import Parameters, Transform


class InstanceTargets(Transform, label_set=arguments.label_set()):
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
    their width differs between scenes: pass one scene's part of the batch to `instance_masks`.

    Compare Pointcept's `InstanceParser` (pointcept/datasets/transform.py), and Mask3D's
    `filter_out_classes: [0, 1]` (conf/data/datasets/scannet.yaml; `[0, 2]` for ScanNet200).

    Attributes:
        label_set: Label set of the labels. A sample with labels of the other label set is refused.
            A dict without `label_set` is accepted.

    Raises:
        UsageError: The labels of the sample belong to the other label set.
    """

    label_set: LabelSet

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Change `instances`, and add the other arrays."""
        draft.check_label_set(self.label_set)
        labels = draft.columns("labels")
        numbers = draft.columns("instances")

        instance_classes = [
            label_class.train_id
            for label_class in self.label_set.classes
            if label_class.name not in NO_INSTANCES
        ]
        # Indices of the vertices that belong to an instance, (M,).
        inside = np.flatnonzero(np.isin(labels, instance_classes) & (numbers >= 0))

        # The label and the number of each vertex, combined into one key, int64 (M,). Labels of a
        # small type would overflow.
        base = int(numbers.max(initial=0)) + 1
        vertex_keys = labels[inside].astype(np.int64) * base + numbers[inside]

        # The new id of a vertex is the rank of its key, (M,), among the distinct keys, (K,).
        keys, ids = _rank_keys(vertex_keys)
        instances = np.full(len(labels), -1, np.int64)
        instances[inside] = ids

        # Where each instance begins if the vertices are ordered by instance, (K,).
        counts = np.bincount(ids, minlength=len(keys))
        starts = np.cumsum(counts) - counts

        # The order of the vertices by instance, (M,). NumPy sorts 16-bit integers fastest.
        small_ids = ids.astype(np.uint16 if len(keys) < 2**16 else np.int64)
        order = np.argsort(small_ids, kind="stable")

        # The points in this order, float32 (M, 3). A draft holds them as (3, V).
        columns = draft.columns("points").take(inside[order], axis=1)
        rows = np.ascontiguousarray(columns.T, np.float32)

        # Bounding boxes and means of the instances, (K, 3) each.
        lowest = np.minimum.reduceat(rows, starts)
        highest = np.maximum.reduceat(rows, starts)
        centers = np.add.reduceat(rows, starts, dtype=np.float64) / counts[:, None]

        draft.add("instances", instances)
        # These have no row for each vertex, so they are added to the sample itself.
        draft.sample["instance_labels"] = keys // base
        draft.sample["instance_boxes"] = np.hstack([(lowest + highest) / 2, highest - lowest])
        draft.sample["instance_centers"] = centers.astype(np.float32)
        return {}


def instance_masks(instances: Any, count: int | None = None) -> Any:  # noqa: ANN401 - array or tensor
    """Return the mask of each instance of a scene.

    Args:
        instances: `instances` of one scene after `InstanceTargets`, int64 (V,), array or tensor.
        count: Number of instances, K; None for one more than the largest id.

    Returns:
        bool (K, V), an array or a tensor like the argument.

    Raises:
        UsageError: `count` is not a whole number from 0.
    """
    if count is not None:
        hint = "instance_masks(instances)"
        count = arguments.check("instance_masks", "count", count, arguments.whole_number(0), hint)
    else:
        count = int(instances.max()) + 1 if len(instances) else 0
    # Comparing a column of ids, (K, 1), with a row of vertices, (V,), gives (K, V).
    ids: Any = np.arange(count)[:, None]
    if not isinstance(instances, np.ndarray):
        ids = instances.new_tensor(ids)
    return instances == ids


def unique_segments(segments: Any, batch: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays or tensors
    """Number the superpoints of a batch consecutively.

    The `segments` of a batch repeat between scenes, and have gaps after crops and voxels. Mask3D
    closes the gaps in `voxelize` (datasets/utils.py).

    Args:
        segments: `segments` of the batch, integers (N,) of any type; -1 stays -1.
        batch: `batch` of the batch, int64 (N,), the index of the scene of each point.

    Returns:
        The superpoint of each point, int64 (N,), 0..S-1, ordered by scene, and the index of the
        scene of each superpoint, int64 (S,). Tensors on the same device if tensors are passed.
    """
    is_inside = segments >= 0
    # The scene and the segment of each point, combined into one key, (M,). The base is at least 1,
    # because the keys are divided by it.
    base = 1
    if len(segments):
        base = max(base, int(segments.max()) + 1)
    keys = (batch * base + segments)[is_inside]
    distinct_keys, ranks = _rank_keys(keys)

    # -1 for each point, computed from `batch` to be int64 on the same device.
    superpoints = batch * 0 - 1
    superpoints[is_inside] = ranks
    return superpoints, distinct_keys // base


def pool_segments(values: Any, superpoints: Any, count: int) -> Any:  # noqa: ANN401 - arrays or tensors
    """Compute the mean of the values in each superpoint. Gradients pass through tensors.

    Mask3D and SPFormer use `scatter_mean` of torch_scatter. This function needs only PyTorch.

    Args:
        values: Floats (N, C).
        superpoints: int64 (N,), from `unique_segments`; rows with -1 are ignored.
        count: Number of superpoints, S.

    Returns:
        Floats (S, C), zeros for superpoints without rows. A tensor of the same type and device if
        tensors are passed.
    """
    is_inside = superpoints >= 0
    ids = superpoints[is_inside]
    rows = values[is_inside]
    # The sums, (S, C), are divided by the number of points, (S,). An empty superpoint counts as one
    # point, so that its mean is 0 / 1.
    if isinstance(values, np.ndarray):
        counts = np.maximum(np.bincount(ids, minlength=count), 1)
        # `bincount` adds up one column at a time, in double precision.
        sums = [np.bincount(ids, weights=column, minlength=count) for column in rows.T.copy()]
        return (np.stack(sums, axis=1) / counts[:, None]).astype(values.dtype)
    sums = values.new_zeros((count, values.shape[1])).index_add(0, ids, rows)
    counts = ids.bincount(minlength=count).clamp(min=1)
    return sums / counts.unsqueeze(1).to(values.dtype)


def _rank_keys(keys: Any) -> tuple[Any, Any]:  # noqa: ANN401 - array or tensor
    """Return the distinct keys, ascending, and for each key its rank among them, from 0.

    This is `np.unique(keys, return_inverse=True)` for keys from 0, and much faster because it
    counts instead of sorting.
    """
    if isinstance(keys, np.ndarray):
        is_present = np.bincount(keys) > 0
        distinct_keys: Any = np.flatnonzero(is_present)
    else:
        is_present = keys.bincount() > 0
        (distinct_keys,) = is_present.nonzero(as_tuple=True)
    # The rank of a key is the number of smaller keys that occur.
    ranks: Any = is_present.cumsum(0) - 1
    return distinct_keys, ranks[keys]
