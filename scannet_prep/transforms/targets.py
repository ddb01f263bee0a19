"""What instance segmentation learns from: instances and superpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from scannet_prep.evaluation.instance import NO_INSTANCES
from scannet_prep.labels import LabelSet
from scannet_prep.transforms.steps import AnySample


@dataclass(frozen=True)
class InstanceTargets:
    """Numbers the instances that count from 0, and adds their classes, boxes and centres. To be put last.

    As the benchmark does: an instance is what has the same number and the same label; walls, floors and unlabeled
    vertices have none. Compare `InstanceParser` of Pointcept (pointcept/datasets/transform.py), and
    `filter_out_classes: [0, 1]` of Mask3D (conf/data/datasets/scannet.yaml; `[0, 2]` for ScanNet200). It changes

    - `instances`: int64 (V,), 0..K-1, by class and then by number, and -1;

    and adds

    - `instance_labels`: int64 (K,), train ids;
    - `instance_boxes`: float32 (K, 6), centre and size of the axis-aligned box of the vertices, metres;
    - `instance_centers`: float32 (K, 3), mean of the vertices, metres.

    `collate` joins these three, with `instance_labels_offset`. Masks differ in width from scene to scene: make them of
    a scene's part of the batch, with `instance_masks`.

    Attributes:
        label_set: That of the labels.
    """

    label_set: LabelSet

    def __call__(self, sample: AnySample, generator: Generator) -> AnySample:  # noqa: ARG002
        """Change and add."""
        points, labels, numbers = sample["points"], sample["labels"], sample["instances"]
        classes = [item.train_id for item in self.label_set.classes if item.name not in NO_INSTANCES]
        inside = np.flatnonzero(np.isin(labels, classes) & (numbers >= 0))
        base = int(numbers.max(initial=0)) + 1
        keys, ids = _number(labels[inside] * base + numbers[inside])
        instances = np.full(len(labels), -1, np.int64)
        instances[inside] = ids
        counts = np.bincount(ids, minlength=len(keys))
        starts = np.cumsum(counts) - counts
        places = np.argsort(ids.astype(np.uint16 if len(keys) < 2**16 else np.int64), kind="stable")
        rows = points.take(inside[places], axis=0).astype(np.float32)
        lowest, highest = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
        boxes = np.concatenate([(lowest + highest) / 2, highest - lowest], axis=1)
        centers = np.add.reduceat(rows, starts, dtype=np.float64) / counts[:, None]
        changed = {"instances": instances, "instance_labels": keys // base}
        return {**sample, **changed, "instance_boxes": boxes, "instance_centers": centers.astype(np.float32)}


def instance_masks(instances: Any, count: int | None = None) -> Any:  # noqa: ANN401 - array or tensor
    """Masks of instances.

    Args:
        instances: int64 (V,) of one scene, from `InstanceTargets`; array or tensor.
        count: Number of instances, K; None for the largest number and one.

    Returns:
        bool (K, V), of the same kind.
    """
    if count is None:
        count = int(instances.max()) + 1 if len(instances) else 0
    ids = np.arange(count)[:, None]
    return instances == (ids if isinstance(instances, np.ndarray) else instances.new_tensor(ids))


def unique_segments(segments: Any, batch: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays or tensors
    """Number the superpoints of a batch, each by a number of its own and without gaps.

    `segments` of a batch repeat from scene to scene, and have gaps after crops and voxels. Mask3D closes them in
    `voxelize` (datasets/utils.py).

    Args:
        segments: int64 (N,), as in a batch; -1 stays -1.
        batch: int64 (N,), the number of the scene, as in a batch.

    Returns:
        `superpoints`: int64 (N,), 0..S-1, scene by scene; and for each of them the number of its scene, int64 (S,).
        Tensors where tensors were given, on the same device.
    """
    is_inside = segments >= 0
    base = int(segments.max()) + 1 if len(segments) else 0
    keys = (batch * base + segments)[is_inside]
    superpoints = segments * 0 - 1
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
