"""A sample of a mesh that was not processed into a folder, for inference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scannet_prep.processed.scene import ProcessedScene, ProcessOptions, widen_normals
from scannet_prep.release.label_sets import SCANNET200, LabelSet, parse_label_set
from scannet_prep.release.scene import Split
from scannet_prep.training.sample import Sample

if TYPE_CHECKING:
    from scannet_prep.raw.own_scan import UpAxis


def sample_from_mesh(
    file: str | Path,
    *,
    up: UpAxis | None = None,
    matrix: str | Path | None = None,
    scale: float = 1.0,
    compute_segments: bool = False,
    faces: bool = False,
    labels: LabelSet | str = "ScanNet20",
    transform: Callable[[Sample, np.random.Generator], Any] | None = None,
    seed: int = 0,
) -> Any:  # noqa: ANN401 - a sample, or the result of the transform
    """Make a sample of a triangle mesh: the same dict as that of a dataset.

    The mesh is processed as by `scannet-prep process FILE`, but nothing is written.

    Args:
        file: A PLY file, with or without colours; `~` is the home folder.
        up: The axis of the file that points up: `x`, `y`, `z`, `-x`, `-y` or `-z`. The points are
            turned until it is z.
        matrix: A text file with the 16 numbers of the matrix aligned <- scan, row by row, metres,
            in place of `up`.
        scale: Metres per unit of the file, 0.001 for millimetres.
        compute_segments: Whether to compute `segments`; they are -1 otherwise.
        faces: Whether the sample has `faces`.
        labels: The label set that `label_set` names. All labels are -1, as there is no annotation.
        transform: Function of the sample and a random generator. Its result is returned.
        seed: Seed of the random generator.

    Returns:
        A dict with the keys of a sample of `ScanNet`, or the result of the transform.

    Raises:
        MissingFileError: There is no such file.
        RawFileError: It is not a triangle mesh, or is larger than 100 m.
        UsageError: Its name cannot be that of a scan, or an argument is invalid.
    """
    # Imported here, so that importing the package for training does not load the parsers.
    from scannet_prep.processed.make_scene import process_scene
    from scannet_prep.raw.own_scan import find_own_scans
    from scannet_prep.release.label_map import builtin_label_map

    label_set = parse_label_set(labels)
    scans = find_own_scans(
        [Path(file).expanduser()],
        up=up,
        matrix=None if matrix is None else Path(matrix).expanduser(),
        scale=scale,
    )
    (scan,) = scans.values()
    options = ProcessOptions(
        scannet200=label_set == SCANNET200,
        align_axis=scan.alignment is not None,
        faces=faces,
        compute_segments=compute_segments,
    )
    scene = process_scene(scan, Split.TEST, options, builtin_label_map())
    sample = _make_sample(scene, label_set)
    if transform is None:
        return sample
    # The generator of the first scene of a dataset in the first epoch.
    return transform(sample, np.random.default_rng((seed, 0, 0)))


def _make_sample(scene: ProcessedScene, label_set: LabelSet) -> Sample:
    """Make the sample of a scene, with the types that `ScanNet` documents."""
    vertex_count = len(scene.points)
    segments = np.full(vertex_count, -1, np.int32)
    if scene.segments is not None:
        segments = scene.segments.astype(np.int32)
    sample: Any = Sample()  # type: ignore[typeddict-item]
    sample.is_aligned = scene.meta.options.align_axis
    sample["points"] = scene.points
    sample["normals"] = widen_normals(scene.normals)
    sample["colors"] = scene.colors
    sample["labels"] = scene.labels
    sample["instances"] = scene.instances.astype(np.int32)
    sample["segments"] = segments
    sample["axis_alignment"] = scene.axis_alignment
    if scene.faces is not None:
        sample["faces"] = scene.faces
    sample["label_set"] = label_set.name
    sample["scene_id"] = str(scene.meta.scene_id)
    return sample  # type: ignore[no-any-return]
