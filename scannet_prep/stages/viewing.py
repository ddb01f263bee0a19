"""The scenes to show, with their predictions: found by name, and read one at a time.

open_scenes        find scenes and predictions; nothing is read
Viewing.load       read a scene and its predictions, and check them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.archive.sources import SUFFIX
from scannet_prep.errors import (
    FileError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import Task
from scannet_prep.predictions.reader import Predictions, find_predictions
from scannet_prep.processed.npz import DAMAGE_HINT
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.processed.scene_problems import find_problems
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId
from scannet_prep.source.place import open_processed
from scannet_prep.source.scenes import ProcessedScenes
from scannet_prep.stages.selection import Selection, parse_scene_ids
from scannet_prep.view.coloring import ViewedScene, view_scene
from scannet_prep.view.predicted import Prediction

_HINT_SCENES = "name some of the scenes; info lists them"
_HINT_SOURCE = "name the scene; its folder or archive is given by --source"


@dataclass(frozen=True, slots=True)
class Viewing:
    """The scenes to show, which are not read yet, and their colouring.

    Attributes:
        place: The place that holds the scenes.
        scene_ids: The scenes to show.
        predictions: Predictions for all of these; None to show none.
        color: The colouring. If empty, each scene is coloured by its prediction, otherwise by its
            labels, otherwise by the colours of the scan.
        label_set: The label set that the colouring `labels` stands for.
        second: Predictions to compare with `predictions`, for all scenes; None for none.
        beside: The colouring of a second picture. If empty, this is that of the second prediction
            if the first one is shown.
    """

    place: ProcessedScenes
    scene_ids: tuple[str, ...]
    predictions: Predictions | None
    color: str
    label_set: LabelSet
    second: Predictions | None = None
    beside: str = ""

    def read(self, scene_id: str) -> ProcessedScene:
        """Read one of the scenes, and check it.

        Raises:
            FileError: The scene is damaged, or has invalid values.
        """
        scene = self.place.read(scene_id)
        problem = next(find_problems(scene), None)
        if problem is not None:
            path = self.place.file_path(scene_id)
            raise FileError(path, problem, DAMAGE_HINT)
        return scene

    def load(self, scene_id: str) -> ViewedScene:
        """Read one of the scenes and its predictions, and check them.

        Raises:
            FileError: The scene or a prediction is damaged, has invalid values, or they do not
                match.
        """
        scene = self.read(scene_id)
        if self.predictions is None:
            return view_scene(scene)
        prediction = read_prediction(self.predictions, scene)
        if self.second is None:
            return view_scene(scene, prediction=prediction)
        second = read_prediction(self.second, scene)
        name, second_name = _name_folders(self.predictions.folder, self.second.folder)
        return view_scene(
            scene,
            prediction=replace(prediction, name=name),
            second=replace(second, name=second_name),
        )

    def choose_color(self, scene: ViewedScene) -> str:
        """Return the requested colouring, or the default one of the scene."""
        if self.color:
            return self._resolve(self.color)
        labels = self._resolve("labels")
        # Every scene has `rgb`.
        return next(name for name in ("prediction", labels, "rgb") if name in scene.colorings)

    def choose_beside(self, scene: ViewedScene) -> str:
        """Return the colouring of the second picture; empty for none."""
        if self.beside:
            return self._resolve(self.beside)
        second = f"{self.choose_color(scene)}-2"
        return second if second in scene.colorings else ""

    def _resolve(self, color: str) -> str:
        """Return the name of a colouring, which `labels` is not."""
        return self.label_set.name.lower() if color == "labels" else color


def open_scenes(
    words: Sequence[str],
    source: str | Path,
    *,
    takes_all: bool = False,
    pred_dir: Path | None = None,
    second_dir: Path | None = None,
    task: Task = "semantic",
    color: str = "",
    beside: str = "",
    label_set: LabelSet | str | None = None,
) -> Viewing:
    """Find the scenes to show and their predictions, without reading them.

    Args:
        words: Scene ids, and `@FILE` with one id per line; empty for all scenes, or for all that
            have a prediction.
        source: A processed folder or an archive.
        takes_all: Whether several scenes are shown if no words are given.
        pred_dir: Folder with predictions of the scenes, in the forms that `evaluate` reads.
        second_dir: Folder with other predictions of the same scenes, to compare with the first.
        task: The task of the predictions.
        color: One of `COLORINGS`, or `labels`; empty for the default of each scene.
        beside: The colouring of a second picture, like `color`; empty for the default.
        label_set: The label set of labels and prediction; None for the one that the scenes were
            processed with.

    Raises:
        UsageError: Several scenes are possible, a colouring needs a prediction, or both
            predictions are in the same folder.
        UnknownSceneError: The place does not have a scene.
        FileError: The place cannot be used, or predictions are missing.
        TransferError: An archive on a web server cannot be read.
    """
    _check_colors([color, beside], pred_dir, second_dir)
    for word in (source, *words):
        _refuse_scene_file(word)
    place = open_processed(source)
    if not place.entries:
        raise FileError(place.name, "holds no scenes")
    label_set = parse_label_set(label_set or place.options.label_set)

    predictions: list[Predictions | None] = []
    scene_ids: list[str] = list(place.entries)
    for folder in (pred_dir, second_dir):
        if folder is not None:
            found = find_predictions(folder, task, label_set, place.entries)
            predictions.append(found)
            scene_ids = [scene_id for scene_id in scene_ids if scene_id in found.paths]
    if words:
        scene_ids = _choose_scenes(words, place)
    elif len(scene_ids) > 1 and not takes_all:
        raise UsageError(
            f"{place.name}: holds {len(scene_ids):,} scenes; which of them?",
            _HINT_SCENES,
        )

    for found in filter(None, predictions):
        # If no scene of the place has a prediction, all of them are missing.
        found.check_scenes(scene_ids or list(place.entries), "name scenes that have one")
    first, second, *_ = [*predictions, None, None]
    return Viewing(
        place,
        tuple(scene_ids),
        first,
        color,
        label_set,
        second=second,
        beside=beside,
    )


def read_prediction(predictions: Predictions, scene: ProcessedScene) -> Prediction:
    """Read the prediction of a scene, with unknown ids as unlabeled.

    Raises:
        FileError: The prediction is damaged, or its ids look wrong: those of a scene with ground
            truth are compared with it.
    """
    label_set = predictions.label_set
    scene_id = str(scene.meta.scene_id)
    values, ids = predictions.read(scene_id, len(scene.points))
    raw_ids = getattr(scene, label_set.raw_ids_key)
    true_labels = label_set.train_ids_from_raw_ids(raw_ids, ignore_index=-1)
    counts = IdCounts(predictions)
    counts.add(ids, values, true_labels)
    counts.check(predictions.paths[scene_id])
    return Prediction(label_set, values)


def _check_colors(colors: Sequence[str], pred_dir: Path | None, second_dir: Path | None) -> None:
    """Check that the folders of the predictions differ, and suffice for the colourings.

    Raises:
        UsageError: They are the same, or a colouring needs another prediction.
    """
    if second_dir is not None and second_dir == pred_dir:
        raise UsageError(
            f"{pred_dir}: a prediction cannot be compared with itself",
            "name two folders: --pred A --pred B",
        )
    for color in colors:
        needs_second = color == "difference" or color.endswith("-2")
        if pred_dir is None and (needs_second or color in {"prediction", "error"}):
            raise UsageError(
                f"without a prediction, there is no colouring by {color}",
                "name the folder of the predictions: --pred DIR",
            )
        if second_dir is None and needs_second:
            raise UsageError(
                f"without a second prediction, there is no colouring by {color}",
                "name both folders: --pred A --pred B",
            )


def _name_folders(first: Path, second: Path) -> tuple[str, str]:
    """Name two folders after their last parts, or after all if these are the same."""
    if first.name and second.name and first.name != second.name:
        return first.name, second.name
    return str(first), str(second)


def _refuse_scene_file(place: str | Path) -> None:
    """Refuse the `.npz` file of a scene in place of a scene id, a folder or an archive."""
    path = Path(str(place))
    if path.suffix != ".npz" or not SceneId.is_valid(path.stem):
        return
    raise UsageError(
        f"{place} is the file of a scene, expected a scene id",
        _HINT_SOURCE,
    )


def _choose_scenes(words: Sequence[str], place: ProcessedScenes) -> list[str]:
    """Return the ids of the scenes that are named by ids and `@FILE`.

    Raises:
        UnknownSceneError: A word is not a scene id, or the place does not have the scene.
        UsageError: A word is a place that holds scenes.
    """
    for word in words:
        is_id = word.startswith("@") or word in place.entries or SceneId.is_of_release(word)
        if not is_id and _is_place(word):
            raise UsageError(f"{word} is not a scene id, but a place", _HINT_SOURCE)
    selection = Selection(scene_ids=parse_scene_ids(words))
    scene_ids = list(selection.scene_ids or ())
    for scene_id in scene_ids:
        reason = place.failures.get(scene_id)
        if reason is not None:
            raise UnknownSceneError(f"{place.name}: {scene_id} failed in processing: {reason}")
    splits = {scene_id: str(entry.split) for scene_id, entry in place.entries.items()}
    selection.check_found(place.name, splits, _HINT_SCENES)
    return [str(scene_id) for scene_id in scene_ids]


def _is_place(word: str) -> bool:
    """Whether a word names a folder or an archive."""
    return "://" in word or word.endswith(SUFFIX) or Path(word).is_dir()
