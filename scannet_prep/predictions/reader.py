"""Prediction files of the programs of this field, and the processed scenes that they belong to."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.base.text import count_of, list_some
from scannet_prep.errors import ContentError, FileError, MissingFileError, UsageError
from scannet_prep.evaluation.instance import InstancePrediction, check_prediction
from scannet_prep.evaluation.scores import check_integers
from scannet_prep.predictions.arrays import load_arrays, load_scores, parse_lines
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source.place import open_processed
from scannet_prep.training.dataset import ScanNet

Task: TypeAlias = Literal["semantic", "instance"]

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
    """A folder of predictions, and the processed scenes that they belong to.

    Predictions are read one by one, by `read`, which also counts their ids.

    Attributes:
        task: `semantic` (a class for each vertex) or `instance` (masks with class and confidence).
        label_set: The label set of the predicted classes.
        datasets: The processed scenes that have a prediction, one dataset per split.
        paths: The file with the prediction of each scene, by scene id; also of scenes in
            `left_out`.
        missing: Processed scenes without a prediction.
        left_out: Scenes with a prediction that are not among the processed ones.
    """

    task: Task
    label_set: LabelSet
    datasets: tuple[ScanNet, ...]
    paths: dict[str, Path]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder of the predictions."""
        return next(iter(self.paths.values())).parent

    @property
    def has_raw_ids(self) -> bool:
        """Whether the predictions have raw ids (`.txt`) instead of train ids."""
        return next(iter(self.paths.values())).suffix == ".txt"

    def read(self, scene_id: str, vertex_count: int) -> tuple[Any, NDArray[np.int64]]:
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
            if self.task == "instance":
                masks, ids, scores = self._read_instances(path, vertex_count)
                return InstancePrediction(masks, self._to_train_ids(ids), scores), ids
            ids = check_integers(self._read_vertex_ids(path), "prediction", vertex_count)
            return self._to_train_ids(ids), ids
        except ContentError as error:
            raise FileError(path, error.message, error.hint) from None

    def _read_vertex_ids(self, path: Path) -> NDArray[Any]:
        """Read the id of each vertex, (V,), without mapping it to a train id."""
        if path.name.endswith(_OCTFORMER_ENDING):
            scores = load_scores(path, len(self.label_set))
            # The first column, for unlabeled, becomes -1.
            return np.asarray(scores.argmax(axis=1) - 1)
        if path.suffix == ".txt":
            return parse_lines(read_file(path))
        return load_arrays(path)[""]  # the name of the only array of an `.npy` file

    @staticmethod
    def _read_instances(
        path: Path, vertex_count: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
        """Read masks, ids and confidences, without mapping the ids to train ids."""
        if path.suffix == ".txt":
            arrays = _read_list(path, vertex_count)
        else:
            # The arrays in the file have the names of the fields: masks, labels, scores.
            arrays = load_arrays(path, *InstancePrediction._fields)
        return check_prediction(InstancePrediction(**arrays), vertex_count)

    def _to_train_ids(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map the ids of a file to train ids, or -1 for unknown ids, (V,) or (M,)."""
        if self.has_raw_ids:
            # The lookup clips negative ids to 0. As 0 is not the raw id of a class, they become -1.
            return self.label_set.train_ids_from_raw_ids(ids, ignore_index=-1)
        return np.where((ids >= 0) & (ids < len(self.label_set)), ids, -1)


def find_prediction_files(
    folder: Path, task: Task, processed_ids: Collection[str]
) -> dict[str, Path]:
    """List the prediction files in a folder by scene id, without reading them.

    Args:
        folder: The folder.
        task: `semantic` or `instance`.
        processed_ids: The processed scenes. Files of other scenes are listed, too, if they are
            named like scenes of the release.

    Raises:
        MissingFileError: The folder does not exist, or has no predictions for this task.
        UsageError: A scene has several predictions, or the folder has both texts and arrays.
    """
    if not folder.is_dir():
        raise MissingFileError(
            folder, "no such folder", "pass the folder of the predictions, one file per scene"
        )
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        scene_id = _find_scene_id(path.name, task, processed_ids)
        if scene_id is None:
            continue
        if scene_id in paths:
            raise UsageError(
                f"{folder}: has {paths[scene_id].name} and {path.name}, "
                "expected one prediction per scene",
                "remove one of them",
            )
        paths[scene_id] = path
    if not paths:
        names = " or ".join(f"<scene>{ending}" for ending in _ENDINGS[task])
        raise MissingFileError(
            folder, f"has no {task} predictions", f"expected {names} in this folder"
        )
    if len({path.suffix == ".txt" for path in paths.values()}) > 1:
        raise UsageError(
            f"{folder}: has .txt files, which hold raw ids, and arrays, which hold train ids, "
            "expected one of the two",
            "put them into two folders",
        )
    return paths


def _find_scene_id(name: str, task: Task, processed_ids: Collection[str]) -> str | None:
    """Find the scene whose prediction has this file name; None if there is none."""
    for ending in _ENDINGS[task]:
        scene_id = name.removesuffix(ending)
        is_scene = scene_id in processed_ids or SceneId.is_of_release(scene_id)
        if scene_id != name and is_scene:
            return scene_id
    return None


def find_predictions(
    folder: Path,
    place: str | Path,
    *,
    task: Task,
    label_set: LabelSet | str | None = None,
    splits: Sequence[Split],
    hint: str,
) -> Predictions:
    """Match prediction files with processed scenes, without reading any prediction.

    Args:
        folder: Folder of the predictions.
        place: A processed folder, or an archive of it.
        task: `semantic` or `instance`.
        label_set: Label set of the predictions, or its name; None for the label set that the scenes
            were processed with.
        splits: Splits of the processed scenes.
        hint: Hint of the error if scenes have no prediction; empty to allow missing predictions, as
            long as there is at least one.

    Raises:
        MissingFileError: The folder does not exist, or predictions are missing.
        UsageError: A scene has several predictions, or the label set does not exist.
        ScanNetPrepError: The processed scenes cannot be read.
    """
    with warnings.catch_warnings():
        # Ignore warnings about scenes that failed in processing: the output shows their number.
        warnings.simplefilter("ignore")
        if label_set is None:
            label_set = open_processed(place).options.label_set
        label_set = parse_label_set(label_set)
        keys = ("labels", "instances")
        datasets = [ScanNet(place, split=split, labels=label_set, keys=keys) for split in splits]

    processed_ids = {scene_id for dataset in datasets for scene_id in dataset.scene_ids}
    paths = find_prediction_files(folder, task, processed_ids)
    missing = sorted(processed_ids - paths.keys())
    # Without a hint, the caller allows missing predictions, but not that all are missing.
    has_any = len(missing) < len(processed_ids)
    allows_missing = has_any and not hint
    if missing and not allows_missing:
        raise MissingFileError(
            folder,
            f"has no predictions of {len(missing):,} of {count_of(len(processed_ids), 'scene')}: "
            f"{list_some(missing)}",
            hint,
        )

    # Reduce each dataset to its scenes with a prediction.
    predicted = []
    for dataset in datasets:
        predicted_ids = [scene_id for scene_id in dataset.scene_ids if scene_id in paths]
        if predicted_ids:
            predicted.append(dataset.subset(predicted_ids))
    return Predictions(
        task=task,
        label_set=label_set,
        datasets=tuple(predicted),
        paths=paths,
        missing=tuple(missing),
        left_out=tuple(sorted(paths.keys() - processed_ids)),
    )


def _read_list(path: Path, vertex_count: int) -> dict[str, Any]:
    """Read the benchmark's list of instances, with a line per mask, and the masks themselves.

    Returns:
        `masks`, bool (M, V), `labels`, raw ids, int64 (M,), and `scores`, float64 (M,).

    Raises:
        ContentError: A line is not as expected.
        FileError: A mask cannot be read, or is not as expected.
    """
    masks: dict[Path, NDArray[np.bool_]] = {}
    labels: list[int] = []
    scores: list[float] = []
    text = read_file(path).decode("utf-8", "replace")
    for line_number, line in enumerate(text.splitlines(), start=1):
        problem = f"line {line_number:,}: found {line!r:.80}"
        match = _LIST_LINE.fullmatch(line)
        if match is None:
            expected = "expected path, id and confidence, separated by single blanks"
            raise ContentError(f"{problem}, {expected}")
        name = Path(match[1])
        is_inside = not name.is_absolute() and ".." not in name.parts
        if not is_inside or name in masks:
            expected = "expected the path of another mask, inside this folder"
            raise ContentError(f"{problem}, {expected}")
        masks[name] = _read_mask(path.parent / name, vertex_count)
        labels.append(int(match[2]))
        scores.append(float(match[3]))
    return {
        # An array of an empty list would have no columns.
        "masks": np.array(list(masks.values())).reshape(len(masks), vertex_count),
        "labels": np.array(labels, np.int64),
        "scores": np.array(scores, np.float64),
    }


def _read_mask(path: Path, vertex_count: int) -> NDArray[np.bool_]:
    """Read a mask, bool (V,), from a file of one number per vertex.

    Raises:
        FileError: The mask cannot be read, or is not as expected.
    """
    # A ContentError names no file: `Predictions.read` would add the name of the list, not the mask.
    try:
        numbers = check_integers(parse_lines(read_file(path)), "mask", vertex_count)
    except ContentError as error:
        raise FileError(path, error.message) from None
    return np.asarray(numbers != 0)
