"""Write the predictions of the test scenes into a zip file for the benchmark's server."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannet_prep.base.files import write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, UsageError
from scannet_prep.evaluation.overlaps import MIN_VERTICES, InstancePrediction
from scannet_prep.export.arrays import encode_lines
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import Task
from scannet_prep.predictions.reader import Predictions, find_predictions
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scenes import Split, official_scenes
from scannet_prep.source.place import open_processed
from scannet_prep.stages.selection import Selection

# Training configurations of the data-efficient benchmark, which are submitted together.
_PART_COUNT = 4
_HINT_SCENES = "a submission needs all test scenes: process them with scannet-prep process"
_HINT_MISSING = (
    "the server accepts only predictions of all test scenes: in this folder, or, for the "
    "data-efficient benchmark, in each of four folders in it"
)


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """Result of a run.

    Attributes:
        path: The zip file.
        task: `semantic` or `instance`.
        label_set: Name of the label set.
        folders: Folders in the zip file, one for each training configuration of the data-efficient
            benchmark; empty for the other benchmarks.
        scenes: Number of scenes, in the zip file or in each of its folders.
        masks: Number of predicted instances in the zip file.
        size_bytes: Size of the zip file.
        unpacked_bytes: Size of all files in the zip file.
        left_out: Number of predicted `scenes` that are not in test; of vertices that are 0 in the
            zip file because their id is not a class (`unlabeled`); and of omitted instances by
            reason: `other` (wall, floor, or none of the classes), `small` (under 100 vertices),
            `score` (below `min_score`).
        warning: A warning about the predicted ids; may be empty.
    """

    path: Path
    task: Task
    label_set: str
    folders: tuple[str, ...]
    scenes: int
    masks: int
    size_bytes: int
    unpacked_bytes: int
    left_out: Mapping[str, int]
    warning: str


def run(
    folder: Path,
    place: str | Path,
    path: Path,
    *,
    task: Task = "semantic",
    label_set: LabelSet | str | None = None,
    min_score: float | None = None,
    is_forced: bool = False,
    progress: Progress = Progress(),
) -> SubmissionReport:
    """Write the zip file, with the files of the scenes at its root and masks in `pred_mask/`.

    For the data-efficient benchmark, it has a folder with these files for each of the four folders.

    Args:
        folder: Folder of the predictions, or of four folders of predictions.
        place: A processed folder, or an archive of it, with the test scenes.
        path: The zip file.
        task: `semantic` or `instance`.
        label_set: Label set of the predictions, or its name; None for the label set that the scenes
            were processed with.
        min_score: Smallest confidence of an instance; None to keep all instances.
        is_forced: Accept ids that look wrong; see `IdCounts.check`.
        progress: Progress display, advanced by each scene.

    Raises:
        UsageError: There is a smallest confidence, and the predictions are semantic.
        MissingFileError: Predictions are missing.
        UnknownSceneError: A processed test scene is missing.
        FileError: A prediction cannot be read or does not fit its scene, the predicted ids look
            wrong, or the zip file would have no mask. Nothing is written.
        OutputError: The zip file cannot be written.
    """
    if task == "semantic" and min_score is not None:
        raise UsageError("only instances have a score", "pass --task instance, or no --min-score")
    scenes = open_processed(place)
    label_set = parse_label_set(label_set or scenes.options.label_set)
    scene_ids = official_scenes(Split.TEST)
    Selection((Split.TEST,), scene_ids).find(scenes.name, scenes.scenes, _HINT_SCENES)
    parts = _find_parts(folder, task, label_set)

    buffer = io.BytesIO()
    left_out: Counter[str] = Counter()
    warnings = []
    file_count = len(parts) * len(scene_ids)
    with progress.work("submit", file_count, "scenes"), zipfile.ZipFile(buffer, "w") as archive:
        for name, predictions in parts.items():
            id_counts = IdCounts(predictions)
            left_out["scenes"] += len(predictions.paths.keys() - scene_ids)
            for scene_id in sorted(scene_ids):
                vertex_count = scenes.scenes[scene_id].vertex_count
                prediction = id_counts.read(scene_id, vertex_count)
                if task == "semantic":
                    # The last entry is for -1.
                    raw_ids = np.array([*label_set.ids, 0])
                    files = {f"{scene_id}.txt": encode_lines(prediction, raw_ids)}
                    left_out["unlabeled"] += int(np.count_nonzero(prediction < 0))
                else:
                    files = _encode_instances(prediction, scene_id, label_set, min_score, left_out)
                for file_name, data in files.items():
                    archive.writestr(name + file_name, data, zipfile.ZIP_DEFLATED)
                progress.advance()
            warning = id_counts.check(predictions.folder, is_submission=True, is_forced=is_forced)
            warnings.append(warning)
    # Each scene has one file with its labels or its list of masks; all other files are masks.
    mask_count = len(archive.filelist) - file_count

    left_out = +left_out
    if task == "instance" and not mask_count:
        problem = f"the zip file would have no mask (left out: {dict(left_out)})"
        raise FileError(folder, problem, "labels are train ids from 0 in .npz, raw ids in .txt")
    content = buffer.getbuffer()
    write_atomically(path, [content])
    return SubmissionReport(
        path=path,
        task=task,
        label_set=label_set.name,
        folders=tuple(name for name in parts if name),
        scenes=len(scene_ids),
        masks=mask_count,
        size_bytes=len(content),
        unpacked_bytes=sum(info.file_size for info in archive.filelist),
        left_out=left_out,
        warning="; ".join(filter(None, warnings)),
    )


def _find_parts(folder: Path, task: Task, label_set: LabelSet) -> dict[str, Predictions]:
    """Find the predictions of all test scenes, by their folder in the zip file, such as `20/`.

    Raises:
        MissingFileError: Predictions are missing.
        FileError: There are predictions in another number of folders than one or four.
    """
    scene_ids = official_scenes(Split.TEST)
    whole = find_predictions(folder, task, label_set, scene_ids)
    parts = {"": whole}
    if set(scene_ids) <= whole.paths.keys():
        # Folders in it do not matter: Pointcept writes its predictions once more into `submit/`.
        return parts
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            parts[f"{path.name}/"] = find_predictions(path, task, label_set, scene_ids)
    parts = {name: part for name, part in parts.items() if part.paths} or {"": whole}
    if [*parts] != [""] and ("" in parts or len(parts) != _PART_COUNT):
        found = list_some([str(part.folder) for part in parts.values()])
        raise FileError(folder, f"has predictions in {found}", _HINT_MISSING)
    for predictions in parts.values():
        predictions.check_scenes(scene_ids, _HINT_MISSING)
    return parts


def _encode_instances(
    prediction: InstancePrediction,
    scene_id: str,
    label_set: LabelSet,
    min_score: float | None,
    left_out: Counter[str],
) -> dict[str, bytes]:
    """Encode the predicted instances of a scene, except those that the server does not count.

    Args:
        prediction: Arrays, as from `Predictions.read`.
        scene_id: The scene.
        label_set: Label set of the prediction.
        min_score: Smallest confidence; None to keep all instances.
        left_out: Incremented for each omitted instance, by reason; see `SubmissionReport`.

    Returns:
        The content of each file by its name: first the masks, in the order of the prediction, then
        the list of their names, raw ids and confidences.
    """
    files: dict[str, bytes] = {}
    lines = ""
    for mask, label, score in zip(*map(np.asarray, prediction), strict=True):
        if label not in label_set.things:
            left_out["other"] += 1
        elif np.count_nonzero(mask) < MIN_VERTICES:
            left_out["small"] += 1
        elif min_score is not None and float(score) < min_score:
            left_out["score"] += 1
        else:
            name = f"pred_mask/{scene_id}_{len(files):03d}.txt"
            files[name] = np.where(mask, b"1\n", b"0\n").tobytes()
            lines += f"{name} {label_set.ids[label]} {score}\n"
    return files | {f"{scene_id}.txt": lines.encode()}
