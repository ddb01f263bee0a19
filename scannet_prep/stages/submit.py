"""Predictions of the test scenes in, a zip file for the benchmark's server out."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from scannet_prep.archive.source import Place
from scannet_prep.base.errors import FileError
from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.evaluation.instance import MIN_VERTICES, NO_INSTANCES
from scannet_prep.export.format import encode_lines
from scannet_prep.predictions.ids import check_predicted_ids
from scannet_prep.predictions.reader import Predictions, Task, find_predictions
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes

LEFT_OUT_REASONS = {
    "other": "wall, floor, or none of the classes",
    "small": f"under {MIN_VERTICES} vertices",
    "score": "below --min-score",
}
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # the same predictions give the same bytes


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """What a run wrote.

    Attributes:
        path: The zip file.
        task: `semantic` or `instance`.
        label_set: Name of the label set.
        scenes: How many scenes it has.
        masks: How many predicted instances it has.
        size_bytes: Its size.
        unpacked_bytes: Size of all files in it.
        unknown_ids: Ids in the predictions that are none of the classes, with the number of vertices, or of predicted
            instances, that have them. They are 0 in the file, or left out of it.
        left_out: Predicted instances left out, by reason: `other` (wall, floor, or none of the classes), `small`
            (under 100 vertices), `score` (below `min_score`).
        warning: What looks wrong with the predicted ids; empty if nothing does.
    """

    path: Path
    task: Task
    label_set: str
    scenes: int
    masks: int
    size_bytes: int
    unpacked_bytes: int
    unknown_ids: Mapping[int, int] = field(hash=False)
    left_out: Mapping[str, int] = field(hash=False)
    warning: str


def plan(
    folder: Path, place: Place, *, task: Task = "semantic", label_set: LabelSet | str | None = None
) -> Predictions:
    """Check that all test scenes are there, predicted and processed; no prediction is read.

    Args:
        folder: Where the predictions are.
        place: A processed folder, or an archive of it, with the test scenes.
        task: `semantic` or `instance`.
        label_set: The classes, or the name of the label set; None for the one that the scenes were processed with.

    Raises:
        MissingFileError: Predictions are missing.
        UnknownSceneError: A processed test scene is missing.
        ScanNetPrepError: They cannot be read.
    """
    hint = "make them too, because the server takes complete submissions only"
    found = find_predictions(
        folder, place, task=task, label_set=label_set, splits=[Split.TEST], hint=hint
    )
    return replace(found, datasets=(found.datasets[0].subset(official_scenes(Split.TEST)),))


def run(
    plan: Predictions,
    path: Path,
    *,
    min_score: float | None = None,
    is_forced: bool = False,
    progress: Progress | None = None,
) -> SubmissionReport:
    """Write a zip file that has the files of all scenes at its root, and masks in a folder, as the server wants them.

    Args:
        plan: From `plan`.
        path: The zip file.
        min_score: Predicted instances of a lower confidence are left out; None to keep all.
        is_forced: Accept ids that look wrong; see `check_predicted_ids`.
        progress: Told of every scene.

    Raises:
        FileError: A prediction cannot be read, or does not fit its scene; the predicted ids look wrong; or the file
            would hold no mask. Nothing is written.
        OutputError: The zip file cannot be written.
    """
    progress = progress or Progress()
    buffer = io.BytesIO()
    left_out = Counter[str]()
    (dataset,) = plan.datasets
    make_directory(path.parent)
    with progress.work("submit", len(dataset), "scenes"), zipfile.ZipFile(buffer, "w") as archive:
        for scene_id, vertex_count in zip(dataset.scene_ids, dataset.lengths.tolist(), strict=True):
            for name, data in _encode(plan, scene_id, vertex_count, min_score, left_out):
                info = zipfile.ZipInfo(name, _FIRST_DAY)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, data)
            progress.advance()
    mask_count = len(archive.filelist) - len(dataset)
    warning = check_predicted_ids(plan, is_forced=is_forced)
    if plan.task == "instance" and not mask_count:
        raise _no_masks(plan, left_out)
    write_atomically(path, [buffer.getbuffer()])
    return SubmissionReport(
        path=path,
        task=plan.task,
        label_set=plan.label_set.name,
        scenes=len(dataset),
        masks=mask_count,
        size_bytes=len(buffer.getbuffer()),
        unpacked_bytes=sum(info.file_size for info in archive.filelist),
        unknown_ids=dict(plan.unknown_ids.most_common()),
        left_out=dict(left_out),
        warning=warning,
    )


def _no_masks(plan: Predictions, left_out: Counter[str]) -> FileError:
    """Make the error of a zip file that would hold no mask."""
    if not left_out:
        return FileError(
            plan.folder,
            "no instance is predicted in any scene",
            "the lists or arrays of all scenes are empty",
        )
    reasons = ", ".join(
        f"{LEFT_OUT_REASONS[reason]}: {count:,}" for reason, count in left_out.items()
    )
    hint = "masks need 100 vertices of the mesh; labels are train ids from 0 in .npz, and raw ids in .txt"
    if left_out["score"]:
        hint = "lower --min-score, or leave it out"
    return FileError(
        plan.folder,
        f"no predicted instance counts, so the file would hold no mask ({reasons})",
        hint,
    )


def _encode(
    plan: Predictions,
    scene_id: str,
    vertex_count: int,
    min_score: float | None,
    left_out: Counter[str],
) -> Iterator[tuple[str, bytes]]:
    """Yield names and texts: of raw ids; or of the masks that count, in the order of the prediction, and their list."""
    prediction = plan.read(scene_id, vertex_count)
    if plan.task == "semantic":
        yield f"{scene_id}.txt", encode_lines(np.array([*plan.label_set.ids, 0])[prediction])
        return
    masks, labels, scores = prediction
    lines = list[str]()
    for mask, label, score in zip(masks, labels.tolist(), scores.tolist(), strict=True):
        if label < 0 or plan.label_set.names[label] in NO_INSTANCES:
            left_out["other"] += 1
        elif np.count_nonzero(mask) < MIN_VERTICES:
            left_out["small"] += 1
        elif min_score is not None and score < min_score:
            left_out["score"] += 1
        else:
            name = f"pred_mask/{scene_id}_{len(lines):03d}.txt"
            lines.append(f"{name} {plan.label_set.ids[label]} {score}\n")
            yield name, encode_lines(mask.astype(np.uint8))
    yield f"{scene_id}.txt", "".join(lines).encode()
