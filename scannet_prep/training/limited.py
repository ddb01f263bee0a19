"""Limited annotations: the few vertices of each scene that keep their labels.

The lists are those of the data-efficient benchmark. Its files `points20`, `points50`, `points100`
and `points200` (in `limited-annotation-points.zip`) hold a dict of scene ids and indices of
vertices, in mesh order. Pointcept reads the same files as `la_file`.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_file
from scannet_prep.errors import FileError, UsageError

_HINT_FORMAT = (
    "write {scene id: [vertex, ...]} by json.dump or np.savez; "
    "for a file of the benchmark, pass points=torch.load(FILE, weights_only=False)"
)


def read_points(path: Path) -> dict[str, Any]:
    """Read a list of annotated vertices: JSON, or `.npz` with an array for each scene.

    Returns:
        Indices of vertices by scene id.

    Raises:
        MissingFileError: There is no such file.
        FileError: The file is damaged, or contains something else.
    """
    data = read_file(path)
    try:
        if data.startswith(b"PK"):
            with np.load(BytesIO(data), allow_pickle=False) as arrays:
                content = dict(arrays)
        else:
            content = json.loads(data)
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"is not a list of annotated vertices: {error}"
        raise FileError(path, problem, _HINT_FORMAT) from None
    # NumPy reads the members of other zip files, such as those of `torch.save`, as bytes.
    if not isinstance(content, dict) or bytes in map(type, content.values()):
        raise FileError(path, "is not a list of vertices for each scene id", _HINT_FORMAT)
    return content


def check_points(
    points: Mapping[str, Any], scene_ids: Sequence[str], lengths: NDArray[np.int64]
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
            "use the list of this split, or select the scenes of the list with scenes=...",
        )
    checked = {}
    for scene_id, vertex_count in zip(scene_ids, lengths.tolist(), strict=True):
        indices = np.asarray(points[scene_id])
        if indices.shape == (0,):
            # NumPy turns an empty list into an array of float64.
            indices = np.zeros(0, np.int64)
        is_list = indices.ndim == 1 and indices.dtype.kind in "iu"
        lowest = indices.min(initial=0)
        highest = indices.max(initial=0)
        if not is_list or lowest < 0 or highest >= vertex_count:
            raise UsageError(
                f"points: {scene_id}: found {indices.dtype} {indices.shape} from {lowest} to "
                f"{highest}, expected a list of vertices from 0 to {vertex_count - 1}",
                "use the list of this release; for a mask, pass np.flatnonzero(mask)",
            )
        checked[scene_id] = np.unique(indices).astype(np.int64)
    return checked


def limit_annotation(
    sample: dict[str, Any], annotated_indices: NDArray[np.int64], ignore_index: int
) -> None:
    """Remove the labels and instances of all vertices but the annotated ones, in place.

    Adds `annotated`, bool (V,). Transforms that drop vertices keep the annotated ones.

    Args:
        sample: A sample. One without `labels` and `instances` is not changed.
        annotated_indices: Indices of the annotated vertices, int64 (n,).
        ignore_index: The number that stands for unlabeled in `labels`.
    """
    empty_values = {"labels": ignore_index, "instances": -1}
    keys = [key for key in empty_values if key in sample]
    if not keys:
        return
    annotated = np.zeros(len(sample[keys[0]]), np.bool_)
    annotated[annotated_indices] = True
    for key in keys:
        sample[key][~annotated] = empty_values[key]
    sample["annotated"] = annotated
