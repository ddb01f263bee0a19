"""Predictions on disk, in the forms that programs of the field write, and the processed scenes that they are of."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.source import Place
from scannet_prep.base.errors import ContentError, FileError, MissingFileError, UsageError
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import read_file
from scannet_prep.evaluation.instance import InstancePrediction, check_prediction
from scannet_prep.evaluation.scores import check_integers
from scannet_prep.place import open_place
from scannet_prep.predictions.arrays import load_arrays, load_scores, parse_lines
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.training.dataset import ScanNet
from scannet_prep.tree import check_is_no_export

Task: TypeAlias = Literal["semantic", "instance"]

_OCTFORMER_END = ".eval.npz"
_ENDS = {"semantic": (".txt", ".npy", "_pred.npy", _OCTFORMER_END), "instance": (".txt", ".npz")}
_LIST_LINE = re.compile(r"([^ \0]+) (\d{1,9})(?:\.0*)? ([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Predictions:
    """A folder of predictions, unread, and the processed scenes that they are of.

    Attributes:
        task: `semantic`: a class for each vertex; or `instance`: masks with a class and a confidence.
        label_set: The classes.
        datasets: The processed scenes that there are predictions of, a dataset for each split.
        paths: The prediction of each scene, by scene id.
        missing: Processed scenes without a prediction.
        left_out: Scenes with a prediction that are not among the processed ones.
        class_counts: Vertices, or predicted instances, by train id, in all predictions that `read` has read.
        unknown_ids: Ids in these predictions that are none of the classes, with the number of vertices, or of
            predicted instances, that have them.
    """

    task: Task
    label_set: LabelSet
    datasets: tuple[ScanNet, ...]
    paths: dict[str, Path]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    class_counts: Counter[int] = field(default_factory=Counter)
    unknown_ids: Counter[int] = field(default_factory=Counter)

    @property
    def folder(self) -> Path:
        """The folder that holds the predictions."""
        return next(iter(self.paths.values())).parent

    def has_raw_ids(self, scene_id: str) -> bool:
        """Whether the prediction of a scene holds raw ids (`.txt`); all other files hold train ids."""
        return self.paths[scene_id].suffix == ".txt"

    def read(self, scene_id: str, vertex_count: int) -> Any:  # noqa: ANN401 - by the task
        """Read the prediction of a scene, in the form that scores take.

        Semantic: raw ids, one a line, from `.txt`; train ids from `.npy`; from `.eval.npz` the best column of `prob`,
        (V, K + 1), whose first is for unlabeled. Instances: from `.txt` the benchmark's list, lines of a mask's path,
        raw id and confidence; from `.npz` the arrays `masks`, (M, V), `labels`, (M,), train ids, and `scores`, (M,).

        Returns:
            int64 (V,), train ids; or an `InstancePrediction` of arrays, bool, int64 and float64. -1 stands for ids that
            are none of the label set's.

        Raises:
            FileError: A file cannot be read, or does not hold what it should.
        """
        path = self.paths[scene_id]
        try:
            if self.task == "instance":
                masks, ids, scores = self._read_instances(path, vertex_count)
                return InstancePrediction(masks, self._to_train_ids(ids, scene_id), scores)
            ids = check_integers(self._read_vertices(path), "prediction", vertex_count)
            return self._to_train_ids(ids, scene_id)
        except ContentError as error:
            raise FileError(path, error.message, error.hint) from None

    def _read_vertices(self, path: Path) -> NDArray[Any]:
        """Read the id of each vertex, (V,), as the file holds it."""
        if path.name.endswith(_OCTFORMER_END):
            scores = load_scores(path, len(self.label_set))
            return np.asarray(scores.argmax(axis=1) - 1)
        if path.suffix == ".txt":
            return parse_lines(read_file(path))
        return load_arrays(path)[""]

    @staticmethod
    def _read_instances(
        path: Path, vertex_count: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
        """Read masks, ids and confidences, with the ids as the file holds them."""
        if path.suffix == ".txt":
            arrays = _read_list(path, vertex_count)
        else:
            arrays = load_arrays(path, *InstancePrediction._fields)
        return check_prediction(InstancePrediction(**arrays), vertex_count)

    def _to_train_ids(self, ids: NDArray[np.int64], scene_id: str) -> NDArray[np.int64]:
        """Map the ids of a file to train ids, -1 for all others, and count them."""
        class_count = len(self.label_set)
        if self.has_raw_ids(scene_id):
            train_ids = self.label_set.train_ids_from_raw_ids(ids, -1)
        else:
            train_ids = np.where((ids >= 0) & (ids < class_count), ids, -1)
        is_class = train_ids >= 0
        counts = np.bincount(train_ids[is_class], minlength=class_count).tolist()
        self.class_counts.update(
            {train_id: count for train_id, count in enumerate(counts) if count}
        )
        unknown, unknown_counts = np.unique(ids[~is_class], return_counts=True)
        self.unknown_ids.update(dict(zip(unknown.tolist(), unknown_counts.tolist(), strict=True)))
        return train_ids


def find_prediction_files(folder: Path, task: Task) -> dict[str, Path]:
    """Find the predictions in a folder, by scene id; none is read.

    Raises:
        MissingFileError: There is no such folder, or there are none in it.
        UsageError: A scene has several.
    """
    if not folder.is_dir():
        raise MissingFileError(
            folder, "no such folder", "pass the folder that holds the predictions, one file a scene"
        )
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        scene_id = path.name[:12]
        if not SceneId.is_valid(scene_id) or path.name[12:] not in _ENDS[task]:
            continue
        if scene_id in paths:
            problem = f"{folder}: holds {paths[scene_id].name} and {path.name}, expected one prediction of a scene"
            raise UsageError(problem, f"remove one of them: rm {quote(str(path))}")
        paths[scene_id] = path
    if not paths:
        names = " or ".join(f"<scene>{end}" for end in _ENDS[task])
        raise MissingFileError(
            folder, f"holds no {task} predictions", f"expected {names} in this folder"
        )
    return paths


def find_predictions(
    folder: Path,
    place: Place,
    *,
    task: Task,
    label_set: LabelSet | str | None = None,
    splits: Sequence[Split],
    hint: str,
) -> Predictions:
    """Find the prediction of each scene by its file's name, and open the processed scenes; no prediction is read.

    Args:
        folder: Where the predictions are.
        place: A processed folder, or an archive of it.
        task: `semantic` or `instance`.
        label_set: The classes, or the name of the label set; None for the one that the scenes were processed with.
        splits: Which splits of the processed scenes.
        hint: What to do where processed scenes have no prediction; empty where they need none.

    Raises:
        MissingFileError: There is no such folder, or predictions are missing.
        UsageError: A scene has several, or there is no such label set.
        ScanNetPrepError: The processed scenes cannot be read.
    """
    paths = find_prediction_files(folder, task)
    check_is_no_export(place)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of scenes that failed in processing: it is told how many there are
        if label_set is None:
            label_set = open_place([place]).options.label_set
        label_set = parse_label_set(label_set)
        keys = ("labels", "instances")
        datasets = [ScanNet(place, split=split, labels=label_set, keys=keys) for split in splits]
    wanted = {name for dataset in datasets for name in dataset.scene_ids}
    missing = sorted(wanted - paths.keys())
    if missing and (hint or len(missing) == len(wanted)):
        problem = f"has no predictions of {len(missing):,} of {len(wanted):,} scenes: {list_some(missing)}"
        raise MissingFileError(folder, problem, hint)
    predicted = []
    for dataset in datasets:
        names = [name for name in dataset.scene_ids if name in paths]
        if names:
            predicted.append(dataset.subset(names))
    return Predictions(
        task=task,
        label_set=label_set,
        datasets=tuple(predicted),
        paths=paths,
        missing=tuple(missing),
        left_out=tuple(sorted(paths.keys() - wanted)),
    )


def _read_list(path: Path, vertex_count: int) -> dict[str, Any]:
    """Read what the benchmark takes: a line for each mask."""
    masks, labels, scores = dict[Path, NDArray[np.bool_]](), list[int](), list[float]()
    for number, line in enumerate(read_file(path).decode("utf-8", "replace").splitlines(), start=1):
        place, match = f"line {number:,}: found {line!r:.80}", _LIST_LINE.fullmatch(line)
        if match is None:
            raise ContentError(
                f"{place}, expected path, id and confidence, separated by single blanks"
            )
        name = Path(match[1])
        if name.is_absolute() or ".." in name.parts or name in masks:
            raise ContentError(f"{place}, expected the path of another mask, inside this folder")
        mask_path = path.parent / name
        try:
            mask = check_integers(parse_lines(read_file(mask_path)), "mask", vertex_count)
        except ContentError as error:
            raise FileError(mask_path, error.message) from None
        masks[name] = mask != 0
        labels.append(int(match[2]))
        scores.append(float(match[3]))
    stack = np.array(list(masks.values())).reshape(len(masks), vertex_count)
    return {
        "masks": stack,
        "labels": np.array(labels, np.int64),
        "scores": np.array(scores, np.float64),
    }
