"""Prediction files of the programs of this field: found by the names of scenes, and read."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import decode_text, open_file, read_file, read_text
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError, FileError, MissingFileError, UsageError
from scannet_prep.evaluation.overlaps import InstancePrediction, check_prediction
from scannet_prep.evaluation.scores import BoolArray, IntArray, check_integers, describe_array
from scannet_prep.predictions.numberings import Numbering, Task, list_numberings
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scenes import RELEASE_ID

# The rest of a file's name after the scene id.
_ENDINGS = {
    "semantic": (".txt", ".npy", "_pred.npy", ".eval.npz"),
    "instance": (".txt", ".npz"),
}
_NO_NUMBER = re.compile(r"\S*[^-+\d\s]\S*", re.ASCII)
_HINT_ARRAYS = "docs/evaluation.md lists the files of predictions and their arrays"
_HINT_NUMBERS = "np.savetxt writes whole numbers with fmt='%d'; lists of masks need --task instance"


class Predictions(NamedTuple):
    """A folder of predictions, which are read one by one.

    Attributes:
        task: `semantic` (a class for each vertex) or `instance` (masks with class and confidence).
        numbering: The numbering that the ids should have: raw ids in texts, train ids in arrays.
        folder: The folder.
        paths: The file with the prediction of each scene, by scene id.
    """

    task: Task
    numbering: Numbering
    folder: Path
    paths: dict[str, Path]

    def check_scenes(self, scene_ids: Collection[str], hint: str) -> None:
        """Check that scenes have a prediction.

        Raises:
            MissingFileError: Some have none; `hint` says what to do.
        """
        missing = sorted(set(scene_ids) - self.paths.keys())
        if missing:
            raise MissingFileError(
                self.folder,
                f"has no {self.task} predictions of {list_some(missing)} "
                f"({len(missing):,} of {len(scene_ids):,})",
                f"{hint}; a file name is a scene id, then {' or '.join(_ENDINGS[self.task])}",
            )

    def read(self, scene_id: str, vertex_count: int) -> Any:  # noqa: ANN401 - by task
        """Read the prediction of a scene.

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
            The ids in the file: int64 (V,), or the labels of an `InstancePrediction` of arrays,
            bool, int64 and float64.

        Raises:
            FileError: A file cannot be read, or its content is not as described above.
        """
        path = self.paths[scene_id]
        try:
            if self.task == "semantic":
                return check_integers(self._read_vertex_ids(path), "prediction", vertex_count)
            if path.suffix == ".txt":
                instances = _read_list(path, vertex_count)
            else:
                # The arrays in the file have the names of the fields: masks, labels, scores.
                instances = InstancePrediction(*load_arrays(path, *InstancePrediction._fields))
            return InstancePrediction(*check_prediction(instances, vertex_count))
        except ContentError as error:
            raise FileError(path, error.message, error.hint) from None

    def _read_vertex_ids(self, path: Path) -> NDArray[Any]:
        """Read the id of each vertex, (V,), without mapping it to a train id."""
        if path.suffix == ".txt":
            return read_numbers(path)
        if path.suffix == ".npy":
            [ids] = load_arrays(path, "")
            return ids
        [scores] = load_arrays(path, "prob")
        column_count = len(self.numbering.label_set) + 1
        is_number = scores.dtype.kind in "iuf"
        if scores.shape[1:] != (column_count,) or not is_number or np.isnan(scores).any():
            raise ContentError(
                f"prob: found {describe_array(scores)}, expected numbers (vertices, classes + 1), "
                f"of {column_count} columns",
                "for predictions of another label set, add --label-set",
            )
        # The first column, for unlabeled, becomes -1.
        return np.asarray(scores.argmax(axis=1) - 1)


def find_predictions(
    folder: Path,
    task: Task,
    label_set: LabelSet,
    processed_ids: Collection[str],
) -> Predictions:
    """Find the prediction files in a folder, without reading them.

    Args:
        folder: The folder.
        task: `semantic` or `instance`.
        label_set: The label set of the predictions.
        processed_ids: The processed scenes. Files of other scenes are found, too, if they are named
            like scenes of the release.

    Raises:
        MissingFileError: The folder does not exist.
        UsageError: A scene has several predictions, or the folder has both texts and arrays.
    """
    if not folder.is_dir():
        raise MissingFileError(
            folder,
            "is not an existing folder",
            "pass the folder of the predictions, one file per scene",
        )
    paths: dict[str, Path] = {}
    for ending in _ENDINGS[task]:
        for path in folder.glob(f"*{ending}"):
            scene_id = path.name.removesuffix(ending)
            if not (RELEASE_ID.fullmatch(scene_id) or scene_id in processed_ids):
                continue
            if scene_id in paths:
                raise UsageError(
                    f"{folder}: has {paths[scene_id].name} and {path.name}, "
                    "expected one prediction per scene",
                    "remove one of them",
                )
            paths[scene_id] = path
    is_raw = {path.suffix == ".txt" for path in paths.values()}
    if len(is_raw) > 1:
        raise UsageError(
            f"{folder}: has .txt files, which hold raw ids, and arrays, which hold train ids, "
            "expected one of the two",
            "use two folders",
        )
    raw_ids, _, train_ids, *_ = list_numberings(label_set, task)
    return Predictions(task, raw_ids if True in is_raw else train_ids, folder, paths)


def load_arrays(path: Path, *keys: str) -> list[NDArray[Any]]:
    """Read arrays of an `.npz` file by their keys; the array of an `.npy` file has an empty one.

    Raises:
        FileError: The file cannot be read, or does not contain one of the arrays.
    """
    with open_file(path) as file:
        try:
            # An `.npy` file is read as an array, an `.npz` file as a mapping, whatever its name.
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                loaded = {"": loaded}
            return [loaded[key] for key in keys]
        except Exception as error:  # noqa: BLE001 - NumPy raises any kind for damaged files
            raise FileError(
                path, f"cannot be read as {path.suffix}: {error}", _HINT_ARRAYS
            ) from None


def read_numbers(path: Path) -> IntArray:
    """Read a text of whole numbers, one per line; lines that begin with `#` are comments.

    Returns:
        int64 (N,).

    Raises:
        FileError: The file cannot be read, or contains something else.
    """
    data = read_file(path)
    # A shortcut for numbers of one digit each, as in masks: digits and ends of lines alternate.
    lines = data.rstrip(b"\n")
    digits = lines[::2]
    if digits.isdigit() and lines[1::2] == b"\n" * (len(lines) // 2):
        return np.frombuffer(digits, np.uint8) - np.int64(ord("0"))
    text = decode_text(data, path)
    numbers = None
    # Before NumPy 2.4, `fromstring` warns, and returns the numbers before the fault.
    with suppress(ValueError, DeprecationWarning), warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        numbers = np.fromstring(text, np.int64, sep=" ")
    # `fromstring` takes a sign at the end for 0.
    if numbers is None or text.rstrip().endswith(("-", "+")):
        found = [*_NO_NUMBER.findall(text), text]
        problem = f"found {found[0]!r:.40}, expected whole numbers, one per line"
        raise FileError(path, problem, _HINT_NUMBERS)
    return numbers


def _read_list(path: Path, vertex_count: int) -> InstancePrediction:
    """Read the benchmark's list of instances, with a line per mask, and the masks themselves.

    Returns:
        Masks, bool (M, V), raw ids, int64 (M,), and confidences, float64 (M,).

    Raises:
        ContentError: A line is not as expected.
        FileError: A mask cannot be read, or is not as expected.
    """
    masks: dict[Path, BoolArray] = {}
    labels = []
    scores = []
    for line in filter(str.strip, read_text(path).splitlines()):
        problem = f"found {line!r:.80}, expected a path, id and confidence"
        try:
            name, *texts = line.split()
            label, score = map(float, texts)
        except ValueError:
            raise ContentError(problem) from None
        # 3 or 3.0
        if not label.is_integer():
            raise ContentError(problem)
        labels.append(int(label))
        scores.append(score)
        mask_path = path.parent / name
        if mask_path in masks:
            raise ContentError(f"{problem} of another mask")
        mask = check_integers(read_numbers(mask_path), f"mask {name}", vertex_count)
        masks[mask_path] = mask != 0
    return InstancePrediction(list(masks.values()), labels, scores)
