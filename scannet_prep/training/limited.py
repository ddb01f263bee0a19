"""Limited annotations: the few vertices of each scene that keep their labels.

The lists are those of the data-efficient benchmark. Its files `points20`, `points50`, `points100`
and `points200` (in `limited-annotation-points.zip`) hold a dict of scene ids and indices of
vertices, in mesh order. Pointcept reads the same files as `la_file`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.errors import FileError, UsageError

_HINT_FORMAT = (
    "write {scene id: [vertex, ...]} by json.dump, or by np.savez as .npz; "
    "for a file of the benchmark, pass points=torch.load(FILE, weights_only=False)"
)


def read_points(path: Path) -> dict[str, Any]:
    """Read a list of annotated vertices: `.npz` with an array for each scene, or JSON.

    Returns:
        Indices of vertices by scene id, not yet checked.

    Raises:
        MissingFileError: There is no such file.
        FileError: The file is damaged, or contains something else.
    """
    data = read_file(path)
    try:
        if path.suffix == ".npz":
            return dict(np.load(BytesIO(data), allow_pickle=False))
        return dict(json.loads(data))
    except Exception as error:  # noqa: BLE001 - both parsers raise several
        problem = f"is not a list of annotated vertices: {error}"
        raise FileError(path, problem, _HINT_FORMAT) from None


def check_points(
    points: Mapping[str, Any],
    scene_ids: Sequence[str],
    lengths: NDArray[np.int64],
) -> dict[str, NDArray[np.int64]]:
    """Check that the annotated vertices fit the scenes.

    Args:
        points: Indices of vertices by scene id, in mesh order. Other scenes than those of
            `scene_ids` are ignored.
        scene_ids: The scenes of the dataset.
        lengths: Number of vertices of each of them, int64 (scenes,).

    Returns:
        Indices of vertices, int64, ascending, by scene id, for the scenes of the dataset.

    Raises:
        UsageError: A scene is missing, or its points are not indices of its vertices.
    """
    missing = [scene_id for scene_id in scene_ids if scene_id not in points]
    if missing:
        raise UsageError(
            f"points: found none for {missing[0]} "
            f"({len(missing):,} of {len(scene_ids):,} scenes are missing)",
            f"use the list of this split, or select its scenes with scenes=...; {_HINT_FORMAT}",
        )
    checked = {}
    for scene_id, vertex_count in zip(scene_ids, lengths.tolist(), strict=True):
        try:
            given = np.asarray(points[scene_id])
            # Sorted, so that the first and the last one decide.
            indices = np.unique(given)
        except (TypeError, ValueError) as error:
            raise UsageError(f"points: {scene_id}: {error}", _HINT_FORMAT) from None
        # A mask has as many numbers as there are vertices, and some of them are equal.
        is_mask = len(indices) < vertex_count == given.size
        if len(indices) and (
            is_mask
            or indices.dtype.kind not in "iu"
            or indices[0] < 0
            or indices[-1] >= vertex_count
        ):
            raise UsageError(
                f"points: {scene_id}: found {indices[0]} to {indices[-1]}, "
                f"expected a list of vertices from 0 to {vertex_count - 1}",
                "use the list of this release; for a mask, pass np.flatnonzero(mask)",
            )
        checked[scene_id] = indices.astype(np.int64)
    return checked


def limit_annotation(
    sample: dict[str, Any],
    is_annotated: NDArray[np.bool_],
    ignore_index: int,
) -> None:
    """Remove the labels and instances of all vertices but the annotated ones, in place.

    Transforms that drop vertices keep those that `annotated` marks.

    Args:
        sample: A sample.
        is_annotated: Becomes `annotated`, bool (V,).
        ignore_index: The number that stands for unlabeled in `labels`.
    """
    for key, empty in (("labels", ignore_index), ("instances", -1)):
        if key in sample:
            sample[key][~is_annotated] = empty
    sample["annotated"] = is_annotated
