"""Sample: one scene as a dict of arrays, from a dataset or from a mesh."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import UsageError
from scannet_prep.processed.npz import widen_normals
from scannet_prep.release.label_sets import LabelSet, parse_label_set


class Sample(dict[str, Any]):
    """A dict whose repr shows types and shapes of arrays; notebooks also show a picture.

    `ScanNet` documents the keys.

    Attributes:
        is_aligned: Whether the points are axis-aligned; None if a transform has made the sample.
    """

    is_aligned: bool | None = None

    def __repr__(self) -> str:
        """Show one line per key."""
        lines = []
        for key, value in self.items():
            if isinstance(value, np.ndarray):
                lines.append(f"{key!r}: {value.dtype} {value.shape}")
            else:
                lines.append(f"{key!r}: {value!r}")
        return "{" + ",\n ".join(lines) + "}"

    def _repr_html_(self) -> str:
        """Return the repr and a picture, for notebooks."""
        from scannet_prep.view.notebook import describe_sample

        return describe_sample(self)


def sample_from_mesh(
    file: str | Path,
    *,
    axis_alignment: ArrayLike | None = None,
    compute_segments: bool = False,
    labels: LabelSet | str = "ScanNet20",
) -> Sample:
    """Make a sample of a triangle mesh: the same dict as that of a dataset.

    The arrays are those that `scannet-prep process` makes of a scene with this mesh alone. The
    notes of `process` about the mesh become warnings. Nothing is written.

    Args:
        file: A PLY file in metres, with or without colours; `~` is the home folder.
        axis_alignment: The matrix aligned <- file, (4, 4), such as a rotation that makes z point
            up. None to leave the points as they are.
        compute_segments: Whether to compute `segments`; they are -1 otherwise.
        labels: The label set that `label_set` names. All labels are -1, as there is no annotation.

    Returns:
        A dict with the keys of a sample of `ScanNet`.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is not a triangle mesh in metres, or its faces join too few of its vertices to
            compute segments.
        UsageError: There is no such label set, or `axis_alignment` is not such a matrix.
    """
    # Imported here, so that importing the package for training does not load the parsers.
    from scannet_prep.processed.geometry import points_and_normals
    from scannet_prep.processed.make_scene import compute_segments as compute_mesh_segments
    from scannet_prep.raw.files import naming_file, read_raw_file
    from scannet_prep.release.files import MESH

    label_set = parse_label_set(labels)
    matrix = None if axis_alignment is None else np.array(axis_alignment, np.float64)
    if matrix is not None and (matrix.shape != (4, 4) or not np.isfinite(matrix).all()):
        raise UsageError(f"axis_alignment is {matrix}, expected 4 rows of 4 finite numbers")
    path = Path(os.path.expanduser(file))
    mesh = read_raw_file(MESH, path)
    for note in mesh.notes:
        warnings.warn(f"{path}: {note.text}", stacklevel=2)
    points, normals = points_and_normals(mesh.positions, mesh.faces, matrix, mesh.normals)
    unknown = np.full(len(points), -1, np.int32)
    segments: NDArray[Any] = unknown
    if compute_segments:
        with naming_file(path):
            segments = compute_mesh_segments(mesh)
    sample = Sample(
        points=points,
        normals=widen_normals(normals),
        colors=mesh.colors,
        labels=unknown.astype(np.int64),
        instances=unknown,
        segments=segments.astype(np.int32),
        axis_alignment=np.eye(4) if matrix is None else matrix,
        faces=mesh.faces.copy(),
        label_set=label_set.name,
        scene_id=path.stem,
    )
    sample.is_aligned = matrix is not None
    return sample
