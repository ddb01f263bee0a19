"""What a loss learns from: how often classes occur, their weights, and the vertices whose labels may be used.

Limited annotations are as the data-efficient benchmark has them: its files `points20`, `points50`, `points100` and
`points200` (in `limited-annotation-points.zip`) are what `torch.save` makes of a dict from scene id to indices of
vertices, in mesh order. Pointcept reads the same as `la_file`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.release.label_sets import LabelSet

Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


def count_classes(scenes: Sequence[Mapping[int, int]], label_set: LabelSet) -> NDArray[np.int64]:
    """Vertices by scene and class, int64 (scenes, classes), from vertices by raw id of each scene."""
    rows = [[scene.get(raw_id, 0) for raw_id in label_set.ids] for scene in scenes]
    return np.array(rows, np.int64).reshape(len(rows), len(label_set))


def weigh_classes(counts: NDArray[np.int64], formula: Formula) -> NDArray[np.float32]:
    """Weights, float32 (classes,), from vertices by scene and class, (scenes, classes)."""
    if formula not in get_args(Formula):
        message = f"{formula!r} is not a formula for class weights"
        raise UsageError(message, f"there are: {', '.join(get_args(Formula))}")
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError(
            "no vertex has a class, so there is nothing to weigh",
            'take the weights of split="train"',
        )
    shares = totals[occurs] / totals.sum()
    labeled = counts.sum(axis=1, keepdims=True)  # of each scene
    frequencies = totals[occurs] / ((counts[:, occurs] > 0) * labeled).sum(axis=0)
    weights = {
        "inverse": 1 / shares,
        "inverse_sqrt": 1 / np.sqrt(shares),
        "log": 1 / np.log(1.02 + shares),
        "median_frequency": np.median(frequencies) / frequencies,
    }[formula]
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result


class ClassCounts(ABC):
    """Base of datasets that count how often each class occurs, for weights of a loss."""

    @abstractmethod
    def class_counts_by_scene(self) -> NDArray[np.int64]:
        """Vertices of each class in each scene, int64 (scenes, classes)."""

    def class_counts(self) -> NDArray[np.int64]:
        """Vertices of each class over all scenes, int64 (classes,), in the order of the train ids.

        From the manifest, without opening scenes; where a folder has none, every scene is read once.

        Raises:
            ScanNetPrepError: The manifest, or without one a scene, is damaged.
        """
        return np.asarray(self.class_counts_by_scene().sum(axis=0))

    def class_weights(self, formula: Formula = "inverse_sqrt") -> NDArray[np.float32]:
        """Weights of the classes for a loss, for example `torch.nn.CrossEntropyLoss(weight=...)`.

        With n_c vertices of class c, and p_c = n_c / sum(n), its share of the labeled vertices of the split:

        - `inverse`: 1 / p_c.
        - `inverse_sqrt`: 1 / sqrt(p_c).
        - `log`: 1 / ln(1.02 + p_c), as in ENet (Paszke et al. 2016).
        - `median_frequency`: median(f) / f_c, where f_c is n_c divided by the labeled vertices of the scenes that have
          class c (Eigen and Fergus 2015); the median is over the classes that occur.

        Then all are scaled so that the mean over the classes that occur is 1. A class without a vertex has weight 0.
        Vertices without a class, and scenes without annotation, do not count.

        Returns:
            float32 (classes,), in the order of the train ids.

        Raises:
            UsageError: There is no such formula, or no vertex has a class (test scenes).
            ScanNetPrepError: The manifest, or without one a scene, is damaged.
        """
        return weigh_classes(self.class_counts_by_scene(), formula)


def check_points(
    points: Mapping[str, Any], scene_ids: Sequence[str], lengths: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Check that the annotated vertices fit the scenes.

    Args:
        points: Indices of vertices by scene id, in mesh order. Scenes beyond those that are needed are passed over.
        scene_ids: The scenes that are needed.
        lengths: Number of vertices of each, int64 (scenes,).

    Raises:
        UsageError: A scene is missing, or its points are not indices of its vertices.
    """
    if not isinstance(points, Mapping):
        message = (
            f"points: found {type(points).__name__}, expected {{'scene0000_00': [5, 17, ...], ...}}"
        )
        raise UsageError(
            message,
            'a file of the data-efficient benchmark is passed by its path: points="points20"',
        )
    if missing := [name for name in scene_ids if name not in points]:
        message = f"there are none of {missing[0]} ({len(missing):,} of {len(scene_ids):,} scenes are not there)"
        hint = "use the list of this split; or with scenes=..., only the scenes that it has"
        raise UsageError(f"points: {message}", hint)
    hint = "as {'scene0000_00': [5, 17, ...]}; of a mask, np.flatnonzero(mask)"
    try:
        found = {name: np.asarray(points[name]) for name in scene_ids}
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # lists of several lengths, tensors on a GPU
        raise UsageError(f"points: not all are arrays of whole numbers: {error}", hint) from error
    for (name, array), count in zip(found.items(), lengths.tolist(), strict=True):
        if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
            message = f"points: {name}: found {array.dtype} {array.shape}, expected a list of whole numbers"
            raise UsageError(message, hint)
        if len(array) and not 0 <= array.min() <= array.max() < count:
            problem = f"vertices {array.min():,} to {array.max():,}, where there are {count:,}"
            raise UsageError(
                f"points: {name}: found {problem}",
                "use the list of this release; they count from 0",
            )
    return {name: array.astype(np.int64) for name, array in found.items()}


def limit_annotation(
    sample: dict[str, Any], chosen: NDArray[np.int64] | None, ignore_index: int
) -> None:
    """Ignore `labels` and `instances` of all vertices but the chosen ones, in place.

    Adds `annotated`, bool (V,), by which transforms keep the chosen vertices.

    Args:
        sample: A sample; one without `labels` and `instances` is not changed.
        chosen: Indices of vertices; None for all, which changes nothing.
        ignore_index: Stands for unlabeled in `labels`.
    """
    empty_values = {"labels": ignore_index, "instances": -1}
    keys = [key for key in empty_values if key in sample]
    if chosen is None or not keys:
        return
    annotated = np.zeros(len(sample[keys[0]]), np.bool_)
    annotated[chosen] = True
    for key in keys:
        sample[key][~annotated] = empty_values[key]
    sample["annotated"] = annotated
