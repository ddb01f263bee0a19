"""Limited annotations: the vertices of each scene whose labels may be used, as the data-efficient benchmark has them.

Its files `points20`, `points50`, `points100` and `points200` (in `limited-annotation-points.zip`) are what
`torch.save` makes of a dict from scene id to indices of vertices, in mesh order. Pointcept reads the same as `la_file`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import FileError, UsageError
from scannet_prep.files import read_file

_MAX_FILE_BYTES = 1 << 28
_EXPECTED = 'expected {"scene0000_00": [5, 17, ...], ...}'


def read_points(
    points: str | Path | Mapping[str, Any], scene_ids: Sequence[str], lengths: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Read which vertices are annotated, and check that they fit the scenes.

    Args:
        points: Indices of vertices by scene id, in mesh order; or a file of them, from `torch.save`. A file cannot run
            code when it is read. Scenes beyond those that are needed are passed over.
        scene_ids: The scenes that are needed.
        lengths: Number of vertices of each, int64 (scenes,).

    Raises:
        FileError: The file is not there, or holds something else.
        UsageError: A scene is missing, or its points are not indices of its vertices.
    """
    where, known = "points", points
    if isinstance(points, str | Path):
        where, known = str(points), _read_file(Path(points).expanduser())
    if not isinstance(known, Mapping):
        raise UsageError(f"{where}: found {type(known).__name__}, {_EXPECTED}")
    if missing := [name for name in scene_ids if name not in known]:
        count = f"{len(missing):,} of {len(scene_ids):,} scenes are not there"
        hint = "use the list of this split; or with scenes=..., only the scenes that it has"
        raise UsageError(f"{where}: has no points of {missing[0]} ({count})", hint)
    return {name: _check(where, name, known[name], int(size)) for name, size in zip(scene_ids, lengths, strict=True)}


def limit_annotation(sample: dict[str, Any], chosen: NDArray[np.int64] | None, ignore_id: int) -> None:
    """Ignore `labels` and `instances` of all vertices of a sample but the chosen ones; None for all. In place."""
    for key, empty in (("labels", ignore_id), ("instances", -1)):
        if key in sample and chosen is not None:
            kept = sample[key][chosen]
            sample[key][...] = empty
            sample[key][chosen] = kept


def _check(where: str, scene_id: str, points: Any, vertex_count: int) -> NDArray[np.int64]:  # noqa: ANN401 - not checked yet
    array = np.asarray(points if not hasattr(points, "numpy") else points.numpy())
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        message = f"{where}: {scene_id}: found {array.dtype} {array.shape}, expected a list of whole numbers"
        raise UsageError(message, "of a mask, np.flatnonzero(mask)" if array.dtype == np.bool_ else "")
    if len(array) and not 0 <= array.min() <= array.max() < vertex_count:
        found = f"points to vertices {array.min():,} to {array.max():,}, where there are {vertex_count:,}"
        raise UsageError(f"{where}: {scene_id}: {found}", "use the list of this release; they count from 0")
    return array.astype(np.int64)


def _read_file(path: Path) -> Any:  # noqa: ANN401 - not checked yet
    data = read_file(path, _MAX_FILE_BYTES)
    try:
        import torch
    except ImportError:
        hint = "pip install torch, or give the points as a dict"
        raise FileError(path, "files of torch.save need PyTorch, which is not installed", hint) from None
    # Beside lists and tensors, what arrays and numbers of NumPy are made by, as either version of it names that.
    # PyTorch takes the names since 2.6; before, such files are refused.
    makers: tuple[Any, ...] = np.zeros(1).__reduce__()[0], np.int64(1).__reduce__()[0]
    names = [f"numpy.{core}.multiarray" for core in ("core", "_core")]
    allowed: list[Any] = [(maker, f"{name}.{maker.__name__}") for maker in makers for name in names]
    allowed += [np.ndarray, np.dtype, *(type(np.dtype(code)) for code in np.typecodes["AllInteger"])]
    try:
        with torch.serialization.safe_globals(allowed) if torch.__version__ >= (2, 6) else nullcontext():
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises differs by version
        problem = f"cannot be read by torch.load ({type(error).__name__}); {_EXPECTED}"
        hint = "name one of the lists in the zip file; one that you trust: points=torch.load(..., weights_only=False)"
        raise FileError(path, problem, hint) from error
