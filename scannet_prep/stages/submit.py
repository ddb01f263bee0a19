"""Write the predictions of the test scenes into a zip file for the benchmark's server."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scannet_prep.base.files import write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.evaluation.overlaps import MIN_VERTICES, InstancePrediction, counted_classes
from scannet_prep.export.format import encode_lines
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import Task
from scannet_prep.predictions.reader import find_predictions
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.source.place import open_processed
from scannet_prep.stages.selection import Selection

LEFT_OUT_REASONS = {
    "unlabeled": "vertices without a class",
    "other": "wall, floor, or none of the classes",
    "small": f"under {MIN_VERTICES} vertices",
    "score": "below --min-score",
}
_HINT_SCENES = "a submission needs all test scenes: process them with scannet-prep process"
_HINT_MISSING = "predict these scenes, too: the server accepts only complete submissions"
# A constant time, so that the same predictions give the same bytes.
_FILE_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """Result of a run.

    Attributes:
        path: The zip file.
        task: `semantic` or `instance`.
        label_set: Name of the label set.
        scenes: Number of scenes in the zip file.
        masks: Number of predicted instances in the zip file.
        size_bytes: Size of the zip file.
        unpacked_bytes: Size of all files in the zip file.
        left_out: Number of vertices that are 0 in the zip file because their id is not a class
            (`unlabeled`); and of omitted instances by reason: `other` (wall, floor, or none of the
            classes), `small` (under 100 vertices), `score` (below `min_score`).
        warning: A warning about the predicted ids; may be empty.
    """

    path: Path
    task: Task
    label_set: str
    scenes: int
    masks: int
    size_bytes: int
    unpacked_bytes: int
    left_out: Mapping[str, int] = field(hash=False)
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
    progress: Progress | None = None,
) -> SubmissionReport:
    """Write the zip file, with the files of the scenes at its root and masks in `pred_mask/`.

    Args:
        folder: Folder of the predictions.
        place: A processed folder, or an archive of it, with the test scenes.
        path: The zip file.
        task: `semantic` or `instance`.
        label_set: Label set of the predictions, or its name; None for the label set that the scenes
            were processed with.
        min_score: Smallest confidence of an instance; None to keep all instances.
        is_forced: Accept ids that look wrong; see `IdCounts.check`.
        progress: Progress display, advanced by each scene.

    Raises:
        MissingFileError: Predictions are missing.
        UnknownSceneError: A processed test scene is missing.
        FileError: A prediction cannot be read or does not fit its scene, the predicted ids look
            wrong, or the zip file would have no mask. Nothing is written.
        OutputError: The zip file cannot be written.
    """
    progress = progress or Progress()
    scenes = open_processed(place)
    label_set = parse_label_set(label_set or scenes.options.label_set)
    scene_ids = official_scenes(Split.TEST)
    splits = {scene_id: scene.split for scene_id, scene in scenes.scenes.items()}
    Selection((Split.TEST,), scene_ids).check_found(scenes.name, splits, _HINT_SCENES)
    predictions = find_predictions(folder, task, label_set, scene_ids)
    predictions.check_scenes(scene_ids, _HINT_MISSING)

    buffer = io.BytesIO()
    left_out: Counter[str] = Counter()
    id_counts = IdCounts(predictions)
    with progress.work("submit", len(scene_ids), "scenes"), zipfile.ZipFile(buffer, "w") as archive:
        for scene_id in sorted(scene_ids):
            vertex_count = scenes.scenes[scene_id].vertex_count
            prediction, ids = predictions.read(scene_id, vertex_count)
            id_counts.add(ids, prediction)
            if task == "semantic":
                # The last entry is for -1.
                raw_ids = np.array([*label_set.ids, 0])
                files = {f"{scene_id}.txt": encode_lines(raw_ids[prediction])}
                left_out["unlabeled"] += int(np.count_nonzero(prediction < 0))
            else:
                files = _encode_instances(prediction, scene_id, label_set, min_score, left_out)
            for name, data in files.items():
                info = zipfile.ZipInfo(name, _FILE_TIME)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, data)
            progress.advance()
    # Each scene has one file with its labels or its list of masks; all other files are masks.
    mask_count = len(archive.filelist) - len(scene_ids)

    warning = id_counts.check(folder, is_submission=True, is_forced=is_forced)
    if task == "instance" and not mask_count:
        reasons = [f"{LEFT_OUT_REASONS[name]}: {count:,}" for name, count in left_out.items()]
        problem = f"the zip file would have no mask (left out: {'; '.join(reasons) or 'none'})"
        raise FileError(folder, problem, "labels are train ids from 0 in .npz, raw ids in .txt")
    write_atomically(path, [buffer.getbuffer()])
    return SubmissionReport(
        path=path,
        task=task,
        label_set=label_set.name,
        scenes=len(scene_ids),
        masks=mask_count,
        size_bytes=len(buffer.getbuffer()),
        unpacked_bytes=sum(info.file_size for info in archive.filelist),
        left_out=dict(+left_out),  # without those that are 0
        warning=warning,
    )


def _encode_instances(
    prediction: InstancePrediction,
    scene_id: str,
    label_set: LabelSet,
    min_score: float | None,
    left_out: Counter[str],
) -> dict[str, bytes]:
    """Encode the predicted instances of a scene, except those for one of `LEFT_OUT_REASONS`.

    Args:
        prediction: Arrays, as from `Predictions.read`.
        scene_id: The scene.
        label_set: Label set of the prediction.
        min_score: Smallest confidence; None to keep all instances.
        left_out: Incremented for each omitted instance, by reason.

    Returns:
        The content of each file by its name: first the masks, in the order of the prediction, then
        the list of their names, raw ids and confidences.
    """
    masks, labels, scores = (np.asarray(array) for array in prediction)
    counted = counted_classes(label_set)
    files: dict[str, bytes] = {}
    lines = ""
    for mask, label, score in zip(masks, labels.tolist(), scores.tolist(), strict=True):
        if label not in counted:
            left_out["other"] += 1
        elif np.count_nonzero(mask) < MIN_VERTICES:
            left_out["small"] += 1
        elif min_score is not None and score < min_score:
            left_out["score"] += 1
        else:
            name = f"pred_mask/{scene_id}_{len(files):03d}.txt"
            files[name] = encode_lines(mask.astype(np.uint8))
            lines += f"{name} {label_set.ids[label]} {score}\n"
    return files | {f"{scene_id}.txt": lines.encode()}
