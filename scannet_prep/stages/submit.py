"""Write the predictions of the test scenes into a zip file for the benchmark's server."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.evaluation.instance import MIN_VERTICES, NO_INSTANCES, InstancePrediction
from scannet_prep.export.format import encode_lines
from scannet_prep.predictions.ids import IdCounts, check_predicted_ids
from scannet_prep.predictions.numberings import declared_numbering
from scannet_prep.predictions.reader import Task, find_predictions
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes

LEFT_OUT_REASONS = {
    "other": "wall, floor, or none of the classes",
    "small": f"under {MIN_VERTICES} vertices",
    "score": "below --min-score",
}
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
        unknown_ids: Number of vertices or predicted instances by id, for ids that are none of the
            classes. In the zip file, these vertices are 0 and these instances are omitted.
        left_out: Number of omitted instances by reason: `other` (wall, floor, or none of the
            classes), `small` (under 100 vertices), `score` (below `min_score`).
        warning: A warning about the predicted ids; empty if there is none.
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
        is_forced: Accept ids that look wrong; see `check_predicted_ids`.
        progress: Progress display, advanced by each scene.

    Raises:
        MissingFileError: Predictions are missing.
        UnknownSceneError: A processed test scene is missing.
        FileError: A prediction cannot be read or does not fit its scene, the predicted ids look
            wrong, or the zip file would have no mask. Nothing is written.
        OutputError: The zip file cannot be written.
    """
    progress = progress or Progress()
    predictions = find_predictions(
        folder, place, task=task, label_set=label_set, splits=[Split.TEST], hint=_HINT_MISSING
    )
    label_set = predictions.label_set
    (dataset,) = predictions.datasets
    dataset = dataset.subset(official_scenes(Split.TEST))

    buffer = io.BytesIO()
    left_out: Counter[str] = Counter()
    id_counts = IdCounts(label_set)
    with progress.work("submit", len(dataset), "scenes"), zipfile.ZipFile(buffer, "w") as archive:
        for scene_id, vertex_count in zip(dataset.scene_ids, dataset.lengths.tolist(), strict=True):
            prediction, ids = predictions.read(scene_id, vertex_count)
            id_counts.add(ids)
            if task == "semantic":
                _add_file(archive, f"{scene_id}.txt", _encode_labels(prediction, label_set))
            else:
                files = _encode_instances(
                    prediction, scene_id, label_set, min_score=min_score, left_out=left_out
                )
                for name, data in files:
                    _add_file(archive, name, data)
            progress.advance()
    # Each scene has one file with its labels or its list of masks; all other files are masks.
    mask_count = len(archive.filelist) - len(dataset)

    is_raw = predictions.has_raw_ids
    warning = check_predicted_ids(
        id_counts,
        folder,
        task,
        is_raw=is_raw,
        has_truth=False,
        is_submission=True,
        is_forced=is_forced,
    )
    known_ids = declared_numbering(label_set, is_raw=is_raw).ids
    if task == "instance" and not mask_count:
        raise _no_masks_error(folder, left_out)
    write_atomically(path, [buffer.getbuffer()])
    return SubmissionReport(
        path=path,
        task=task,
        label_set=label_set.name,
        scenes=len(dataset),
        masks=mask_count,
        size_bytes=len(buffer.getbuffer()),
        unpacked_bytes=sum(info.file_size for info in archive.filelist),
        unknown_ids={
            number: count for number, count in id_counts.by_id().items() if number not in known_ids
        },
        left_out=dict(left_out),
        warning=warning,
    )


def _no_masks_error(folder: Path, left_out: Counter[str]) -> FileError:
    """Make the error for a zip file without masks.

    Args:
        folder: The predictions.
        left_out: Number of omitted instances, by reason; empty if no instance is predicted.
    """
    if not left_out:
        return FileError(folder, "no instance is predicted in any scene")
    reasons = "; ".join(f"{LEFT_OUT_REASONS[name]}: {count:,}" for name, count in left_out.items())
    return FileError(
        folder,
        f"every predicted instance is left out; the zip file would have no mask ({reasons})",
        "labels are train ids from 0 in .npz, and raw ids in .txt",
    )


def _add_file(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _FILE_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, data)


def _encode_labels(labels: NDArray[np.int64], label_set: LabelSet) -> bytes:
    """Encode train ids (V,) as a text of raw ids, 0 for unlabeled."""
    # The last entry is for -1.
    raw_ids = np.array([*label_set.ids, 0])
    return encode_lines(raw_ids[labels])


def _encode_instances(
    prediction: InstancePrediction,
    scene_id: str,
    label_set: LabelSet,
    *,
    min_score: float | None,
    left_out: Counter[str],
) -> Iterator[tuple[str, bytes]]:
    """Encode the predicted instances of a scene, except those for one of `LEFT_OUT_REASONS`.

    Yields the name and content of each file: first the masks, in the order of the prediction, then
    the list of their names, raw ids and confidences.

    Args:
        prediction: Arrays, as from `Predictions.read`.
        scene_id: The scene.
        label_set: Label set of the prediction.
        min_score: Smallest confidence; None to keep all instances.
        left_out: Incremented for each omitted instance, by reason.
    """
    masks, labels, scores = (np.asarray(array) for array in prediction)
    lines: list[str] = []
    for mask, label, score in zip(masks, labels.tolist(), scores.tolist(), strict=True):
        if label < 0 or label_set.names[label] in NO_INSTANCES:
            left_out["other"] += 1
        elif np.count_nonzero(mask) < MIN_VERTICES:
            left_out["small"] += 1
        elif min_score is not None and score < min_score:
            left_out["score"] += 1
        else:
            name = f"pred_mask/{scene_id}_{len(lines):03d}.txt"
            lines.append(f"{name} {label_set.ids[label]} {score}\n")
            yield name, encode_lines(mask.astype(np.uint8))
    yield f"{scene_id}.txt", "".join(lines).encode()
