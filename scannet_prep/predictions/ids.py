"""Check that predicted ids have the numbering that their files should have.

If ids of one numbering are read as another one, most of them are still valid classes, and the
result is silently wrong. The evidence:

    ids that are none of the classes            always an error, with their number
    with ground truth                           another numbering agrees far better
    all predictions of a split, without it      what no network of the task predicts: walls or
                                                floors among instances; no more walls than vertices
                                                of no class; no more floors than chairs; only ids
                                                that the other label set has
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.predictions.numberings import UNLABELED_IDS, Numbering, list_numberings
from scannet_prep.predictions.reader import Predictions
from scannet_prep.processed.scene import ProcessedScene, read_train_ids

# Another numbering agrees far better with the ground truth if many more vertices agree, and the
# number above chance is larger by more than this share of the annotated vertices.
_MIN_GAIN = 0.02
# One of this many vertices is compared with the ground truth.
_VERTEX_STEP = 16


class IdCounts:
    """Counts of the ids in prediction files, and how well they agree with the ground truth.

    Args:
        predictions: The predictions, which are read by this object.
    """

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions
        self._declared = predictions.numbering
        # Vertices or predicted instances by their id in the files.
        self._counts: Counter[int] = Counter()
        # The scores of vertices, if their ids are read in each numbering.
        self._readings = [
            (numbering, SemanticScores(numbering.label_set))
            for numbering in list_numberings(self._declared.label_set, predictions.task)
        ]

    def read(
        self,
        scene_id: str,
        vertex_count: int,
        scene: ProcessedScene | None = None,
    ) -> Any:  # noqa: ANN401 - by task
        """Read the prediction of a scene, and count its ids.

        Args:
            scene_id: The scene.
            vertex_count: Number of its vertices.
            scene: The scene with its ground truth; None if there is none.

        Returns:
            As from `Predictions.read`, with train ids, or -1 for none, instead of ids.

        Raises:
            FileError: See `Predictions.read`.
        """
        prediction = self._predictions.read(scene_id, vertex_count)
        is_instance = self._predictions.task == "instance"
        ids = prediction.labels if is_instance else prediction
        self._counts.update(dict(zip(*np.unique(ids, return_counts=True), strict=True)))

        numbers = vertices = np.arange(0, vertex_count, _VERTEX_STEP)
        result = self._declared.find_classes(ids)
        if is_instance:
            numbers, steps = np.nonzero(prediction.masks[:, ::_VERTEX_STEP])
            vertices = steps * _VERTEX_STEP
            result = prediction._replace(labels=result)
        if scene is not None:
            for numbering, scores in self._readings:
                truth = read_train_ids(scene, numbering.label_set, vertices)
                scores.add(numbering.find_classes(ids[numbers]), truth)
        return result

    def check(self, place: Path, *, is_submission: bool = False, is_forced: bool = False) -> str:
        """Check the ids of all predictions after the files have been read.

        Args:
            place: The folder or file of the predictions, for messages.
            is_submission: Whether these are all predictions of a split, without ground truth.
            is_forced: Whether to return a warning instead of raising an error.

        Returns:
            What looks wrong, if it is accepted; empty if nothing does.

        Raises:
            FileError: Ids are none of the classes, or have another numbering or label set.
        """
        declared = self._declared
        problems = []
        ids = set(self._counts)
        strays = ids - declared.train_ids.keys() - UNLABELED_IDS
        if strays:
            count = sum(self._counts[number] for number in strays)
            problems.append(
                f"{count:,} of {self._counts.total():,} predicted ids are not classes "
                f"({declared.name}): {list_some([*map(str, sorted(strays))])}"
            )
        find = self._judge if is_submission else self._find_best
        best = find(problems, ids)
        problem = "; ".join(problems)
        if is_forced or not problem:
            return problem
        hint = "check which ids the predictions contain"
        # A conversion of other ids would fail, or hide that they are not classes.
        if best != declared and ids <= best.train_ids.keys() | UNLABELED_IDS:
            hint = f"the ids are probably {best.name}: {best.conversion}"
        if is_submission:
            hint += "; `scannet-prep evaluate`, with predictions of val, finds the numbering"
        raise FileError(place, problem, hint)

    def _judge(self, problems: list[str], ids: set[int]) -> Numbering:
        """Find what no network predicts for all scenes of a split.

        Args:
            problems: The problems that are found are appended.
            ids: The ids that occur.

        Returns:
            The numbering whose ids, of classes that a network predicts, are most similar to those
            that occur.
        """
        label_set = self._declared.label_set
        # By train id.
        counts = [self._counts[number] for number in self._declared.train_ids]
        walls, floors, chairs = (
            counts[label_set[name].train_id] for name in ("wall", "floor", "chair")
        )
        unlabeled = self._counts.total() - sum(counts)
        if self._predictions.task == "instance":
            if walls + floors:
                problems.append(
                    f"{walls + floors:,} of {self._counts.total():,} instances are wall or floor"
                )
        elif walls <= unlabeled or floors <= chairs:
            problems.append(
                f"{walls:,} vertices are wall, and {unlabeled:,} of no class; "
                f"{floors:,} are floor, and {chairs:,} chair; expected more walls, and more floors"
            )
        best, _ = min(self._readings, key=lambda reading: len(reading[0].predicted ^ ids))
        if best.label_set != label_set and ids <= best.train_ids.keys() | UNLABELED_IDS:
            problems.append(f"all ids are also {best.name}, or unlabeled")
        return best

    def _find_best(self, problems: list[str], ids: set[int]) -> Numbering:
        """Find the numbering that agrees best with the ground truth.

        Args:
            problems: A comparison is appended if another numbering agrees better.
            ids: The ids that occur.

        Returns:
            The numbering; the declared one if no other one is clearly better.
        """
        best = self._declared
        [scores] = [scores for numbering, scores in self._readings if numbering == best]
        agreeing_declared, above_declared = scores.compare_with_chance()
        total = scores.confusion.sum()
        # The fewer masks or vertices there are, the larger is the share that may agree by chance.
        # The share of two masks is enough if some ids are never predicted, such as walls and floors
        # among instances.
        count = min(total, self._counts.total()) + 1
        share = 2 / count
        if ids <= best.predicted | UNLABELED_IDS:
            share = count**-0.5
        highest = (agreeing_declared + int(total * share), True)
        for numbering, scores in self._readings:
            agreeing, above = scores.compare_with_chance()
            # Of two that agree equally well, the one in which a network predicts all ids counts.
            rank = (agreeing, ids <= numbering.predicted | UNLABELED_IDS)
            # A single class is not evidence: the few masks of a scene may agree by chance.
            class_count = np.count_nonzero(scores.confusion.diagonal())
            if rank > highest and above > above_declared + _MIN_GAIN * total and class_count > 1:
                best = numbering
                highest = rank
        if best != self._declared:
            problems.append(
                f"read as {self._declared.name}, {agreeing_declared:,} of the compared vertices "
                f"agree, but {highest[0]:,} as {best.name}"
            )
        return best
