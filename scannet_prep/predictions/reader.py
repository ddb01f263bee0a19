"""Prediction files of the programs of this field: found by the names of scenes, and read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.base.text import count_of, list_some
from scannet_prep.errors import ContentError, FileError, MissingFileError, UsageError
from scannet_prep.evaluation.instance import InstancePrediction, check_prediction
from scannet_prep.evaluation.scores import BoolArray, IntArray, check_integers
from scannet_prep.predictions.arrays import load_arrays, load_scores, parse_lines
from scannet_prep.predictions.numberings import Numbering, Task, declared_numbering
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene import SceneId

_OCTFORMER_ENDING = ".eval.npz"
# The rest of a file's name after the scene id.
_ENDINGS: Mapping[Task, tuple[str, ...]] = {
    "semantic": (".txt", ".npy", "_pred.npy", _OCTFORMER_ENDING),
    "instance": (".txt", ".npz"),
}
# A line of the benchmark's list has three values, separated by single blanks.
_LIST_LINE = re.compile(
    r"([^ \0]+) "  # path of the mask
    r"(\d{1,9})(?:\.0*)? "  # raw id, as 3 or 3.0
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"  # confidence, as 1, 0.5, .5 or 5e-1
)


@dataclass(frozen=True, slots=True)
class Predictions:
    """A folder of predictions, which are read one by one.

    Attributes:
        task: `semantic` (a class for each vertex) or `instance` (masks with class and confidence).
        label_set: The label set of the predicted classes.
        paths: The file with the prediction of each scene, by scene id.
    """

    task: Task
    label_set: LabelSet
    paths: dict[str, Path]

    @property
    def folder(self) -> Path:
        """The folder of the predictions."""
        path, *_ = self.paths.values()
        return path.parent

    @property
    def has_raw_ids(self) -> bool:
        """Whether the predictions have raw ids (`.txt`) instead of train ids."""
        path, *_ = self.paths.values()
        return path.suffix == ".txt"

    @property
    def numbering(self) -> Numbering:
        """The numbering that the ids should have."""
        return declared_numbering(self.label_set, is_raw=self.has_raw_ids)

    def check_scenes(self, scene_ids: Collection[str], hint: str) -> None:
        """Check that scenes have a prediction.

        Raises:
            MissingFileError: Some scenes have none; its hint is `hint`.
        """
        missing = sorted(set(scene_ids) - self.paths.keys())
        if missing:
            count = len(missing)
            names = list_some(missing)
            scenes = count_of(len(scene_ids), "scene")
            problem = f"has no predictions of {count:,} of {scenes}: {names}"
            raise MissingFileError(self.folder, problem, hint)

    def read(self, scene_id: str, vertex_count: int) -> tuple[Any, IntArray]:
        """Read the prediction of a scene, for `SemanticScores.add` or `InstanceScores.add`.

        | task | file | content |
        | --- | --- | --- |
        | semantic | `.txt` | raw ids, one per line |
        | semantic | `.npy` | train ids (V,) |
        | semantic | `.eval.npz` | scores `prob` (V, K + 1); the first column is for unlabeled |
        | instance | `.txt` | lines of a mask's path, raw id and confidence |
        | instance | `.npz` | `masks` (M, V), train ids `labels` (M,), confidences `scores` (M,) |

        Args:
            scene_id: A scene with a prediction.
            vertex_count: Number of vertices of the scene.

        Returns:
            The prediction, and its ids as in the file, (V,) or (M,). The prediction is train ids,
            int64 (V,), or an `InstancePrediction` of arrays, bool, int64 and float64. Ids that are
            none of the classes become -1 in it.

        Raises:
            FileError: A file cannot be read, or its content is not as described above.
        """
        path = self.paths[scene_id]
        try:
            if self.task == "semantic":
                ids = self._read_vertex_ids(path)
                ids = check_integers(ids, "prediction", vertex_count)
                return self.numbering.find_classes(ids), ids
            if self.has_raw_ids:
                instances = _read_list(path, vertex_count)
            else:
                # The arrays in the file have the names of the fields: masks, labels, scores.
                arrays = load_arrays(path, *InstancePrediction._fields)
                instances = InstancePrediction(**arrays)
            masks, ids, scores = check_prediction(instances, vertex_count)
        except ContentError as error:
            raise FileError(path, error.message, error.hint) from None
        classes = self.numbering.find_classes(ids)
        return InstancePrediction(masks, classes, scores), ids

    def _read_vertex_ids(self, path: Path) -> NDArray[Any]:
        """Read the id of each vertex, (V,), without mapping it to a train id."""
        if path.name.endswith(_OCTFORMER_ENDING):
            class_count = len(self.label_set)
            scores = load_scores(path, class_count)
            columns = scores.argmax(axis=1)
            # The first column, for unlabeled, becomes -1.
            return np.asarray(columns - 1)
        if self.has_raw_ids:
            return parse_lines(read_file(path))
        return load_arrays(path)[""]  # the name of the only array of an `.npy` file


def find_predictions(
    folder: Path, task: Task, label_set: LabelSet, processed_ids: Collection[str]
) -> Predictions:
    """Find the prediction files in a folder, without reading them.

    Args:
        folder: The folder.
        task: `semantic` or `instance`.
        label_set: The label set of the predictions.
        processed_ids: The processed scenes. Files of other scenes are found, too, if they are named
            like scenes of the release.

    Raises:
        MissingFileError: The folder does not exist, or has no predictions for this task.
        UsageError: A scene has several predictions, or the folder has both texts and arrays.
    """
    if not folder.is_dir():
        hint = "pass the folder of the predictions, one file per scene"
        raise MissingFileError(folder, "no such folder", hint)
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        for ending in _ENDINGS[task]:
            scene_id = path.name.removesuffix(ending)
            has_ending = scene_id != path.name
            is_of_release = SceneId.is_of_release(scene_id)
            is_scene = is_of_release or scene_id in processed_ids
            if not (has_ending and is_scene):
                continue
            if scene_id in paths:
                other_name = paths[scene_id].name
                raise UsageError(
                    f"{folder}: has {other_name} and {path.name}, expected one prediction per "
                    "scene",
                    "remove one of them",
                )
            paths[scene_id] = path
    if not paths:
        endings = ", ".join(_ENDINGS[task])
        hint = f"expected a file in this folder for each scene: its id and one of {endings}"
        raise MissingFileError(folder, f"has no {task} predictions", hint)
    kinds = {path.suffix == ".txt" for path in paths.values()}
    if len(kinds) > 1:
        problem = "has .txt files, which hold raw ids, and arrays, which hold train ids"
        raise UsageError(f"{folder}: {problem}, expected one of the two", "use two folders")
    return Predictions(task, label_set, paths)


def _read_list(path: Path, vertex_count: int) -> InstancePrediction:
    """Read the benchmark's list of instances, with a line per mask, and the masks themselves.

    Returns:
        Masks, bool (M, V), raw ids, int64 (M,), and confidences, float64 (M,).

    Raises:
        ContentError: A line is not as expected.
        FileError: A mask cannot be read, or is not as expected.
    """
    masks: dict[Path, BoolArray] = {}
    labels: list[int] = []
    scores: list[float] = []
    data = read_file(path)
    text = data.decode("utf-8", "replace")
    lines = text.splitlines()
    for line_number, line in enumerate(lines, start=1):
        problem = f"line {line_number:,}: found {line!r:.80}"
        match = _LIST_LINE.fullmatch(line)
        if match is None:
            expected = "expected path, id and confidence, separated by single blanks"
            raise ContentError(f"{problem}, {expected}")
        name = Path(match[1])
        is_outside = name.is_absolute() or ".." in name.parts
        if is_outside or name in masks:
            expected = "expected the path of another mask, inside this folder"
            raise ContentError(f"{problem}, {expected}")
        masks[name] = _read_mask(path.parent / name, vertex_count)
        labels.append(int(match[2]))
        scores.append(float(match[3]))
    rows = np.array(list(masks.values()), np.bool_)
    # An array of an empty list has no columns.
    shape = (len(masks), vertex_count)
    return InstancePrediction(
        masks=rows.reshape(shape),
        labels=np.array(labels, np.int64),
        scores=np.array(scores, np.float64),
    )


def _read_mask(path: Path, vertex_count: int) -> BoolArray:
    """Read a mask, bool (V,), from a file of one number per vertex.

    Raises:
        FileError: The mask cannot be read, or is not as expected.
    """
    # A ContentError names no file: `Predictions.read` would add the name of the list, not the mask.
    try:
        numbers = parse_lines(read_file(path))
        numbers = check_integers(numbers, "mask", vertex_count)
    except ContentError as error:
        raise FileError(path, error.message) from None
    return np.asarray(numbers != 0)
