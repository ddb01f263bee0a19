"""A sample of a mesh that was not processed into a folder, for inference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scannet_prep.errors import UsageError
from scannet_prep.processed.scene import widen_normals
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId
from scannet_prep.training.sample import Sample


def sample_from_mesh(
    file: str | Path,
    *,
    axis_alignment: ArrayLike | None = None,
    compute_segments: bool = False,
    faces: bool = False,
    labels: LabelSet | str = "ScanNet20",
    transform: Callable[[Sample, np.random.Generator], Any] | None = None,
    seed: int = 0,
) -> Any:  # noqa: ANN401 - a sample, or the result of the transform
    """Make a sample of a triangle mesh: the same dict as that of a dataset.

    The arrays are those that `scannet-prep process` makes of a scene with this mesh alone. Nothing
    is written.

    Args:
        file: A PLY file in metres, with or without colours; `~` is the home folder.
        axis_alignment: The matrix aligned <- file, (4, 4), such as a rotation that makes z point
            up. None to leave the points as they are.
        compute_segments: Whether to compute `segments`; they are -1 otherwise.
        faces: Whether the sample has `faces`.
        labels: The label set that `label_set` names. All labels are -1, as there is no annotation.
        transform: Function of the sample and a random generator. Its result is returned.
        seed: Seed of the random generator.

    Returns:
        A dict with the keys of a sample of `ScanNet`, or the result of the transform.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is not a triangle mesh in metres.
        UsageError: It has the name of a scene of the release, or an argument is invalid.
    """
    # Imported here, so that importing the package for training does not load the parsers.
    from scannet_prep.processed.geometry import points_and_normals
    from scannet_prep.processed.make_scene import compute_segments as compute_mesh_segments
    from scannet_prep.raw.mesh import read_mesh

    label_set = parse_label_set(labels)
    path = Path(file).expanduser()
    if not SceneId.is_own(path.stem):
        raise UsageError(
            f"{path}: {path.stem!r} cannot be the name of a scene of your own",
            "rename the file; process scenes of the release, to keep their labels",
        )
    matrix = None
    if axis_alignment is not None:
        matrix = np.array(axis_alignment, np.float64)
        if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
            raise UsageError(f"axis_alignment is {matrix.tolist()}, expected 4 x 4 finite numbers")
    mesh = read_mesh(path, is_own=True)
    points, stored_normals = points_and_normals(mesh.positions, mesh.faces, matrix)

    sample: Any = Sample()  # type: ignore[typeddict-item]
    sample.is_aligned = matrix is not None
    sample["points"] = points
    sample["normals"] = widen_normals(stored_normals)
    sample["colors"] = mesh.colors
    sample["labels"] = np.full(len(points), -1, np.int64)
    sample["instances"] = np.full(len(points), -1, np.int32)
    sample["segments"] = np.full(len(points), -1, np.int32)
    if compute_segments:
        sample["segments"] = compute_mesh_segments(mesh).astype(np.int32)
    sample["axis_alignment"] = np.eye(4) if matrix is None else matrix
    if faces:
        sample["faces"] = mesh.faces
    sample["label_set"] = label_set.name
    sample["scene_id"] = path.stem
    if transform is None:
        return sample
    # The generator of the first scene of a dataset in the first epoch.
    return transform(sample, np.random.default_rng((seed, 0, 0)))
