"""What instance segmentation learns from: instances and superpoints."""

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
    """Numbers the instances that count from 0, and adds their classes, boxes and centres.

    Put it last. As the benchmark does: an instance is what has the same number and the same label;
    walls, floors and unlabeled vertices have none. Compare `InstanceParser` of Pointcept
    (pointcept/datasets/transform.py), and `filter_out_classes: [0, 1]` of Mask3D
    (conf/data/datasets/scannet.yaml; `[0, 2]` for ScanNet200). It changes

    - `instances`: int64 (V,), 0..K-1, by class and then by number, and -1;

    and adds

    - `instance_labels`: int64 (K,), train ids;
    - `instance_boxes`: float32 (K, 6), centre and size of the axis-aligned box of the vertices,
      metres;
    - `instance_centers`: float32 (K, 3), mean of the vertices, metres.

    `collate` joins these three, with `instance_labels_offset`. Masks differ in width from scene to
    scene: make them of a scene's part of the batch, with `instance_masks`.

    Attributes:
        label_set: That of the labels. A sample with labels of the other one is refused; a dict
            without `label_set` is accepted.

    Raises:
        UsageError: The labels of the sample are of the other label set.
    """

    label_set: LabelSet

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Change `instances`, and add the others."""
        draft.check_label_set(self.label_set)
        labels = draft.columns("labels")
        numbers = draft.columns("instances")

        # The vertices of instances that count, and for each the number of its instance, from 0.
        classes = [one.train_id for one in self.label_set.classes if one.name not in NO_INSTANCES]
        inside = np.flatnonzero(np.isin(labels, classes) & (numbers >= 0))
        base = int(numbers.max(initial=0)) + 1
        keys, ids = _number(labels[inside] * base + numbers[inside])
        instances = np.full(len(labels), -1, np.int64)
        instances[inside] = ids

        # The points of the instances, one instance after the other, float32 (M, 3).
        counts = np.bincount(ids, minlength=len(keys))
        starts = np.cumsum(counts) - counts
        small_ids = ids.astype(np.uint16 if len(keys) < 2**16 else np.int64)
        order = np.argsort(small_ids, kind="stable")
        rows = draft.columns("points").take(inside[order], axis=1).T
        rows = np.ascontiguousarray(rows, np.float32)

        lowest = np.minimum.reduceat(rows, starts)
        highest = np.maximum.reduceat(rows, starts)
        centers = np.add.reduceat(rows, starts, dtype=np.float64) / counts[:, None]
        draft.add("instances", instances)
        draft.sample["instance_labels"] = keys // base
        draft.sample["instance_boxes"] = np.hstack([(lowest + highest) / 2, highest - lowest])
        draft.sample["instance_centers"] = centers.astype(np.float32)
        return {}


def instance_masks(instances: Any, count: int | None = None) -> Any:  # noqa: ANN401 - array or tensor
    """Make masks of instances.

    Args:
        instances: int64 (V,) of one scene, from `InstanceTargets`; array or tensor.
        count: Number of instances, K; None for the largest number and one.

    Returns:
        bool (K, V), of the same kind.

    Raises:
        UsageError: `count` is not a whole number from 0.
    """
    if count is not None:
        hint = "instance_masks(instances)"
        count = arguments.check("instance_masks", "count", count, arguments.whole_number(0), hint)
    else:
        count = int(instances.max()) + 1 if len(instances) else 0
    ids = np.arange(count)[:, None]
    return instances == (ids if isinstance(instances, np.ndarray) else instances.new_tensor(ids))


def unique_segments(segments: Any, batch: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays or tensors
    """Number the superpoints of a batch, each by a number of its own and without gaps.

    `segments` of a batch repeat from scene to scene, and have gaps after crops and voxels. Mask3D closes them in
    `voxelize` (datasets/utils.py).

    Args:
        segments: Integers (N,) of any type, as in a batch (int32); -1 stays -1.
        batch: int64 (N,), the number of the scene, as in a batch.

    Returns:
        `superpoints`: int64 (N,), 0..S-1, scene by scene; and for each of them the number of its scene, int64 (S,).
        Tensors where tensors were given, on the same device.
    """
    is_inside = segments >= 0
    base = int(segments.max()) + 1 if len(segments) else 0
    keys = (batch * base + segments)[is_inside]
    superpoints = batch * 0 - 1  # int64, whatever the type of the segments
    found, superpoints[is_inside] = _number(keys)
    return superpoints, found // max(base, 1)


def pool_segments(values: Any, superpoints: Any, count: int) -> Any:  # noqa: ANN401 - arrays or tensors
    """Mean over each superpoint; gradients pass through that of tensors.

    Mask3D and SPFormer take `scatter_mean` of torch_scatter; this needs PyTorch alone.

    Args:
        values: Floats (N, C).
        superpoints: int64 (N,), from `unique_segments`; rows with -1 do not count.
        count: Number of superpoints, S.

    Returns:
        Floats (S, C); zeros where there is no row. A tensor where tensors were given, of the same type and device.
    """
    is_inside = superpoints >= 0
    ids, rows = superpoints[is_inside], values[is_inside]
    if isinstance(values, np.ndarray):
        times = np.maximum(np.bincount(ids, minlength=count), 1)
        sums = [np.bincount(ids, weights=column, minlength=count) for column in rows.T.copy()]
        return (np.stack(sums, axis=1) / times[:, None]).astype(values.dtype)
    sums = values.new_zeros((count, values.shape[1])).index_add(0, ids, rows)
    times = ids.bincount(minlength=count).clamp(min=1)
    return sums / times.unsqueeze(1).to(values.dtype)


def _number(keys: Any) -> tuple[Any, Any]:  # noqa: ANN401 - array or tensor
    """The keys that occur, ascending, and for each key its place among them; much faster than by sorting."""
    counts: Any = np.bincount(keys) if isinstance(keys, np.ndarray) else keys.bincount()
    is_there = counts > 0
    found = is_there.nonzero() if isinstance(keys, np.ndarray) else is_there.nonzero(as_tuple=True)
    return found[0], (is_there.cumsum(0) - 1)[keys]
