"""Tables of processed scenes for pandas: scenes, classes, instances.

Every function takes a processed folder, or the path or address of an archive. Vertex counts of
scenes and classes come from the manifest; extents and groups are read from the scenes.
"""

from __future__ import annotations

import io
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from scannet_prep.base.files import write_atomically
from scannet_prep.errors import UsageError
from scannet_prep.processed.scene import parse_meta
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.release.scenes import SceneId, Split
from scannet_prep.source.place import open_processed

# Width of the squares that measure the area of a scene.
_SQUARE_M = 0.1
# Columns of `instances`, by the attribute of an `AnnotatedGroup`.
_GROUP_COLUMNS = {
    "id": "group",
    "object_id": "object_id",
    "aliases": "aliases",
    "raw_category": "raw_category",
    "scannet_id": "scannet_id",
    "nyu40_id": "nyu40_id",
    "vertex_count": "vertices",
    "segment_count": "segments",
}
# By the ending of the file's name.
_WRITERS = {
    ".csv": pd.DataFrame.to_csv,
    ".json": partial(pd.DataFrame.to_json, orient="records"),
    ".parquet": pd.DataFrame.to_parquet,
}
_BOX_COLUMNS = ("x_min", "y_min", "z_min", "x_max", "y_max", "z_max")


def scenes(place: str | Path) -> pd.DataFrame:
    """Make a table of the scenes.

    Args:
        place: Processed scenes; see the module.

    Returns:
        A row per scene, with the index `scene` and the columns

        - `split`;
        - `space`: the number of the space, which the scans of the same rooms share;
        - `vertices`;
        - `labeled`: share of the vertices with a nyu40 id, 0..1;
        - `x_m`, `y_m`, `z_m`: extents of the points, metres;
        - `area_m2`: area of the squares of 10 cm, seen from above, that contain a vertex;
        - `size_bytes`: size of the scene's file;
        - `aligned`: whether points are in the axis-aligned frame;
        - `warnings`: sentences, separated by `; `.

    Raises:
        ScanNetPrepError: The place, or a scene in it, cannot be read.
    """
    opened = open_processed(place)
    rows = []
    for scene_id, entry in opened.manifest.scenes.items():
        points = opened.open_arrays(scene_id).read("points")
        # Column by column, NumPy is many times as fast.
        extents = [np.ptp(column) for column in points.T]
        x_m, y_m, z_m = np.array(extents, np.float64).round(4).tolist()
        # A number for the square of each vertex: x + 2^26 y, in squares, which float64 represents
        # exactly.
        ground = points[:, :2].astype(np.float64)
        squares = np.floor(ground / _SQUARE_M) @ (1, 1 << 26)
        labeled_count = entry.vertex_count - entry.nyu40_counts.get(0, 0)
        rows.append(
            {
                "split": str(entry.split),
                "space": SceneId(scene_id).space,
                "vertices": entry.vertex_count,
                "labeled": labeled_count / entry.vertex_count,
                "x_m": x_m,
                "y_m": y_m,
                "z_m": z_m,
                "area_m2": round(len(np.unique(squares)) * _SQUARE_M**2, 2),
                "size_bytes": entry.size_bytes,
                "aligned": opened.options.align_axis,
                "warnings": "; ".join(warning.text for warning in entry.warnings),
            }
        )
    return pd.DataFrame(rows, pd.Index(list(opened.manifest.scenes), name="scene"))


def classes(
    place: str | Path,
    label_set: LabelSet | str | None = None,
    *,
    split: str | None = None,
) -> pd.DataFrame:
    """Make a table of the classes.

    Args:
        place: Processed scenes; see the module.
        label_set: SCANNET20, SCANNET200, or the name of one of them; None for the label set that
            the scenes were processed with.
        split: The split whose scenes are counted; None for train and val, because test is not
            annotated.

    Returns:
        A row per class, with the index `train_id` and the columns

        - `raw_id`: nyu40 id or ScanNet id;
        - `name`;
        - `frequency`: head, common or tail, in ScanNet200;
        - `vertices`;
        - `scenes`: number of scenes with at least one vertex of the class;
        - `instances`: number of groups with at least one vertex.

    Raises:
        ScanNetPrepError: The place, or a scene in it, cannot be read.
        UsageError: The split or the label set does not exist.
    """
    opened = open_processed(place)
    chosen = parse_label_set(label_set or opened.options.label_set)
    splits = [Split.TRAIN, Split.VAL] if split is None else [Split(split)]
    by_scene = {}
    for scene_id, entry in opened.manifest.scenes.items():
        if entry.split in splits:
            by_scene[scene_id] = entry.counts(chosen)
    # A row for each class, a column for each scene.
    counts = pd.DataFrame(by_scene, chosen.ids)
    groups = instances(place)
    # Groups whose vertices all belong to other groups are not instances.
    groups = groups[groups.scene.isin(by_scene) & (groups.vertices > 0)]
    # The column has the name of the array, in the singular.
    raw_ids = groups[chosen.raw_ids_key.removesuffix("s")]
    table = pd.DataFrame(
        {
            "raw_id": chosen.ids,
            "name": chosen.names,
            "frequency": [each.frequency for each in chosen.classes],
            "vertices": counts.sum(axis=1).astype(int).array,
            "scenes": counts.count(axis=1).array,
            "instances": raw_ids.value_counts().reindex(chosen.ids, fill_value=0).array,
        }
    )
    return table.rename_axis("train_id")


def instances(place: str | Path) -> pd.DataFrame:
    """Make a table of the annotated groups.

    Args:
        place: Processed scenes; see the module.

    Returns:
        A row per group, with the columns

        - `scene`;
        - `group`: its number in the array `instances`;
        - `object_id` and `aliases`: its numbers in other data sets;
        - `raw_category`, `scannet_id` and `nyu40_id`;
        - `vertices` and `segments`;
        - `x_min` to `z_max`: axis-aligned box in metres, in the frame of `points`; NaN for a group
          whose vertices all belong to other groups.

    Raises:
        ScanNetPrepError: The place, or a scene in it, cannot be read.
    """
    opened = open_processed(place)
    rows = []
    for scene_id in opened.manifest.scenes:
        arrays = opened.open_arrays(scene_id)
        for group in parse_meta(arrays).groups:
            values = attrgetter(*_GROUP_COLUMNS)(group)
            box = group.box or (None,) * len(_BOX_COLUMNS)  # pandas shows None as NaN
            rows.append([scene_id, *values, *box])
    return pd.DataFrame(rows, columns=["scene", *_GROUP_COLUMNS.values(), *_BOX_COLUMNS])


def write_table(name: str, place: str | Path, path: Path | None) -> tuple[int, str]:
    """Write a table to a file, or return it as text.

    Args:
        name: `scenes`, `classes` (of both label sets, with a column `label_set`) or `instances`.
        place: Processed scenes; see the module.
        path: File to write, whose name ends in `.csv`, `.json` or `.parquet`; None to return text.

    Returns:
        The number of rows, and the table as CSV if `path` is None, otherwise an empty text.

    Raises:
        UsageError: The name of the file has another ending, or the package that writes it is not
            installed.
        OutputError: The file cannot be written.
        ScanNetPrepError: The place cannot be read.
    """
    suffix = path.suffix if path else ".csv"
    if suffix not in _WRITERS:
        raise UsageError(f"{path}: expected a name that ends in one of {', '.join(_WRITERS)}")
    if name == "scenes":
        table = scenes(place).reset_index()
    elif name == "instances":
        table = instances(place)
    else:
        parts = {each.name: classes(place, each) for each in (SCANNET20, SCANNET200)}
        table = pd.concat(parts, names=["label_set"]).reset_index()
    buffer = io.BytesIO()
    try:
        _WRITERS[suffix](table, buffer, index=False)
    except ImportError as error:  # of pyarrow
        first_line = f"{path}: {error}".splitlines()[0]
        raise UsageError(first_line, "in a clone: pip install '.[parquet]'") from None
    if path is None:
        return len(table), buffer.getvalue().decode()
    # A file is written as a whole, so that an error leaves no part of it.
    write_atomically(path, [buffer.getvalue()])
    return len(table), ""
