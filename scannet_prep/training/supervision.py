"""Class counts, class weights, and limited annotations.

Limited annotations have the format of the data-efficient benchmark. Its files `points20`,
`points50`, `points100` and `points200` (in `limited-annotation-points.zip`) were written by
`torch.save` from a dict of scene ids and indices of vertices, in mesh order. Pointcept reads the
same files as `la_file`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import LabelSet

_HINT_INDICES = "pass {'scene0000_00': [5, 17, ...]}; for a mask, np.flatnonzero(mask)"

Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


def count_classes(scenes: Sequence[Mapping[int, int]], label_set: LabelSet) -> NDArray[np.int64]:
    """Arrange class counts as an array.

    Args:
        scenes: For each scene, the number of vertices by raw id. Raw ids without a class are left
            out.
        label_set: The classes.

    Returns:
        Vertices of each class in each scene, int64 (scenes, classes).
    """
    # `ids` are the raw ids of the classes, in the order of the train ids.
    rows = [[scene.get(raw_id, 0) for raw_id in label_set.ids] for scene in scenes]
    # Without scenes, the array would have only one axis.
    return np.array(rows, np.int64).reshape(len(rows), len(label_set))


def weigh_classes(counts: NDArray[np.int64], formula: Formula) -> NDArray[np.float32]:
    """Compute the weights of the classes; `ClassCounts.class_weights` documents the formulas.

    Args:
        counts: Vertices of each class in each scene, int64 (scenes, classes).
        formula: Name of the formula.

    Returns:
        float32 (classes,), 0 for classes without a vertex.

    Raises:
        UsageError: There is no such formula, or no vertex has a class.
    """
    if formula not in get_args(Formula):
        raise UsageError(
            f"{formula!r} is not a formula for class weights",
            f"there are: {', '.join(get_args(Formula))}",
        )
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError(
            "no vertex has a class, so there is nothing to weigh",
            'take the weights of split="train"',
        )

    # From here on, only the P classes that occur: their shares of all labeled vertices, (P,).
    shares = totals[occurs] / totals.sum()
    if formula == "inverse":
        weights = 1 / shares
    elif formula == "inverse_sqrt":
        weights = 1 / np.sqrt(shares)
    elif formula == "log":
        weights = 1 / np.log(1.02 + shares)
    else:
        # Labeled vertices of each scene, (scenes, 1).
        labeled = counts.sum(axis=1, keepdims=True)
        # For each class, the labeled vertices of all scenes that have it, (P,).
        has_class = counts[:, occurs] > 0
        labeled_by_class = (has_class * labeled).sum(axis=0)
        frequencies = totals[occurs] / labeled_by_class
        weights = np.median(frequencies) / frequencies

    # Of all classes again, (classes,).
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result


class ClassCounts(ABC):
    """Base of datasets that count how often each class occurs, for the weights of a loss."""

    @abstractmethod
    def class_counts_by_scene(self) -> NDArray[np.int64]:
        """Count the vertices of each class in each scene, int64 (scenes, classes)."""

    def class_counts(self) -> NDArray[np.int64]:
        """Count the vertices of each class over all scenes.

        The counts come from the manifest, without opening scenes. If a folder has no manifest,
        every scene is read once.

        Returns:
            int64 (classes,), in the order of the train ids.

        Raises:
            ScanNetPrepError: The manifest, or without one a scene, is damaged.
        """
        return np.asarray(self.class_counts_by_scene().sum(axis=0))

    def class_weights(self, formula: Formula = "inverse_sqrt") -> NDArray[np.float32]:
        """Compute the weights of the classes for a loss, such as `torch.nn.CrossEntropyLoss`.

        Class c has n_c vertices, and the share p_c = n_c / sum(n) of all labeled vertices:

        - `inverse`: 1 / p_c.
        - `inverse_sqrt`: 1 / sqrt(p_c).
        - `log`: 1 / ln(1.02 + p_c), as in ENet (Paszke et al. 2016).
        - `median_frequency`: median(f) / f_c (Eigen and Fergus 2015). f_c is n_c divided by the
          labeled vertices of the scenes that have class c. The median is over the classes that
          occur.

        The weights are then scaled so that the mean over the classes that occur is 1. A class
        without a vertex has weight 0. Vertices without a class, and scenes without annotation, are
        not counted.

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
        points: Indices of vertices by scene id, in mesh order. Other scenes than those of
            `scene_ids` are ignored.
        scene_ids: The scenes of the dataset.
        lengths: Number of vertices of each of them, int64 (scenes,).

    Returns:
        Indices of vertices, int64, by scene id, for the scenes of the dataset.

    Raises:
        UsageError: A scene is missing, or its points are not indices of its vertices.
    """
    if not isinstance(points, Mapping):
        raise UsageError(
            f"points: found {type(points).__name__}, "
            "expected {'scene0000_00': [5, 17, ...], ...}",
            'a file of the data-efficient benchmark is passed by its path: points="points20"',
        )
    missing = [scene_id for scene_id in scene_ids if scene_id not in points]
    if missing:
        raise UsageError(
            f"points: found none for {missing[0]} "
            f"({len(missing):,} of {len(scene_ids):,} scenes are missing)",
            "use the list of this split, or select the scenes of the list with scenes=...",
        )
    return {
        scene_id: _check_indices(points[scene_id], scene_id, vertex_count)
        for scene_id, vertex_count in zip(scene_ids, lengths.tolist(), strict=True)
    }


def _check_indices(points: object, scene_id: str, vertex_count: int) -> NDArray[np.int64]:
    """Check the annotated vertices of one scene, and return them as an array, int64 (n,).

    Raises:
        UsageError: They are not indices of vertices of the scene.
    """
    try:
        indices = np.asarray(points)
    except (TypeError, ValueError, RuntimeError) as error:
        # For example lists of different lengths, or a tensor on a GPU.
        raise UsageError(
            f"points: {scene_id}: is not a list of whole numbers: {error}", _HINT_INDICES
        ) from error
    if indices.shape == (0,):
        # NumPy turns an empty list into an array of float64, which the next check would refuse.
        return np.zeros(0, np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise UsageError(
            f"points: {scene_id}: found {indices.dtype} {indices.shape}, "
            "expected a list of whole numbers",
            _HINT_INDICES,
        )
    if indices.min() < 0 or indices.max() >= vertex_count:
        raise UsageError(
            f"points: {scene_id}: found vertices {indices.min():,} to {indices.max():,}, "
            f"but the scene has {vertex_count:,}",
            "use the list of this release; vertices are counted from 0",
        )
    return indices.astype(np.int64)


def limit_annotation(
    sample: dict[str, Any], annotated_indices: NDArray[np.int64], ignore_index: int
) -> None:
    """Remove the labels and instances of all vertices but the annotated ones, in place.

    Adds `annotated`, bool (V,). Transforms that drop vertices keep the annotated ones.

    Args:
        sample: A sample. One without `labels` and `instances` is not changed.
        annotated_indices: Indices of the annotated vertices, int64 (n,).
        ignore_index: The number that stands for unlabeled in `labels`.
    """
    empty_values = {"labels": ignore_index, "instances": -1}
    keys = [key for key in empty_values if key in sample]
    if not keys:
        return
    annotated = np.zeros(len(sample[keys[0]]), np.bool_)
    annotated[annotated_indices] = True
    for key in keys:
        sample[key][~annotated] = empty_values[key]
    sample["annotated"] = annotated
