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
from scannet_prep.evaluation.instance import MIN_VERTICES, NO_INSTANCES
from scannet_prep.export.format import encode_lines
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.labels import SCANNET20, LabelSet
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.predictions import Predictions, Task, find_predictions

_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # the same predictions give the same bytes


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """What a run wrote.

    Attributes:
        path: The zip file.
        scenes: How many scenes it has.
        masks: How many predicted instances it has.
        size_bytes: Its size.
        unpacked_bytes: Size of all files in it.
        unknown_ids: Ids in the predictions that are none of the classes, with the number of vertices, or of predicted
            instances, that have them. They are 0 in the file, or left out of it.
        left_out: Predicted instances left out, by reason: `other` (wall, floor, or none of the classes), `small`
            (under 100 vertices), `score` (below the smallest that was asked for).
    """

    path: Path
    scenes: int
    masks: int
    size_bytes: int
    unpacked_bytes: int
    unknown_ids: Mapping[int, int] = field(hash=False)
    left_out: Mapping[str, int] = field(hash=False)


def plan(folder: Path, place: Place, *, task: Task = "semantic", label_set: LabelSet = SCANNET20) -> Predictions:
    """Check that all test scenes are there, predicted and processed; no prediction is read.

    Args:
        folder: Where the predictions are.
        place: A processed folder, or an archive of it, with the test scenes.
        task: `semantic` or `instance`.
        label_set: The classes.

    Raises:
        MissingFileError: Predictions are missing.
        UnknownSceneError: A processed test scene is missing.
        ScanNetPrepError: They cannot be read.
    """
    hint = "make them: the server takes complete submissions only"
    found = find_predictions(folder, place, task=task, label_set=label_set, splits=[Split.TEST], hint=hint)
    return replace(found, datasets=(found.datasets[0].subset(official_scenes(Split.TEST)),))


def run(plan: Predictions, path: Path, *, min_score: float = 0.0, progress: Progress | None = None) -> SubmissionReport:
    """Write a zip file that has the files of all scenes at its root, and masks in a folder, as the server wants them.

    Args:
        plan: From `plan`.
        path: The zip file.
        min_score: Predicted instances of a lower confidence are left out.
        progress: Told of every scene.

    Raises:
        FileError: A prediction cannot be read, or does not fit its scene. Nothing is written.
        OutputError: The zip file cannot be written.
    """
    progress, buffer, left_out = progress or Progress(), io.BytesIO(), Counter[str]()
    (dataset,) = plan.datasets
    make_directory(path.parent)
    with progress.work("submit", len(dataset), "scenes"), zipfile.ZipFile(buffer, "w") as archive:
        for scene_id, vertex_count in zip(dataset.scene_ids, dataset.lengths.tolist(), strict=True):
            for name, data in _encode(plan, scene_id, vertex_count, min_score, left_out):
                info = zipfile.ZipInfo(name, _FIRST_DAY)
                info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(info, data)
            progress.advance()
    write_atomically(path, [buffer.getbuffer()])
    return SubmissionReport(
        path=path,
        scenes=len(dataset),
        masks=len(archive.filelist) - len(dataset),
        size_bytes=len(buffer.getbuffer()),
        unpacked_bytes=sum(info.file_size for info in archive.filelist),
        unknown_ids=dict(plan.unknown_ids.most_common()),
        left_out=dict(left_out),
    )


def _encode(
    plan: Predictions, scene_id: str, vertex_count: int, min_score: float, left_out: Counter[str]
) -> Iterator[tuple[str, bytes]]:
    """Names and texts: of raw ids; or of the masks that count, in the order of the prediction, and the list of them."""
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
        elif score < min_score:
            left_out["score"] += 1
        else:
            name = f"pred_mask/{scene_id}_{len(lines):03d}.txt"
            lines.append(f"{name} {plan.label_set.ids[label]} {score}\n")
            yield name, encode_lines(mask.astype(np.uint8))
    yield f"{scene_id}.txt", "".join(lines).encode()
