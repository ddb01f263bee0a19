"""Tables of processed scenes for pandas: scenes, classes, instances.

Every function accepts as `place`:

- a processed folder, or the path or address of an archive;
- a `ScanNet` dataset, for a table of its scenes only.

A label set is SCANNET20, SCANNET200, or the name of one of them; None for the label set of the
dataset, or else for the one that the scenes were processed with.

`class_counts` is made from the manifest; the others read every scene. pandas is imported when a
table is made, because it loads slowly.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import write_atomically
from scannet_prep.errors import FileError, UsageError
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.npz import DAMAGE_HINT, NpzReader
from scannet_prep.processed.scene import parse_meta
from scannet_prep.release.label_map import MAX_NYU40_ID, builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source.place import open_processed
from scannet_prep.source.scenes import ProcessedScenes
from scannet_prep.training.dataset import ScanNet
from scannet_prep.training.supervision import Formula, count_classes, weigh_classes

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("scenes", "classes", "instances")

# Columns of `scenes`, needed for a table without rows.
_SCENE_COLUMNS = (
    "split", "space", "vertices", "labeled", "x_m", "y_m", "z_m", "area_m2", "size_bytes",
    "aligned", "warnings",
)  # fmt: skip
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
_BOX_COLUMNS = ("x_min", "y_min", "z_min", "x_max", "y_max", "z_max")

# Names of the nyu40 ids from 0, as in the column nyu40class of the label map, but with the correct
# spelling of refrigerator.
_NYU40_NAMES = (
    "unlabeled", "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window",
    "bookshelf", "picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow",
    "mirror", "floor mat", "clothes", "ceiling", "books", "refrigerator", "television", "paper",
    "towel", "shower curtain", "box", "whiteboard", "person", "night stand", "toilet", "sink",
    "lamp", "bathtub", "bag", "otherstructure", "otherfurniture", "otherprop",
)  # fmt: skip

# `Records` is for the functions of this module, which call each other with selected scenes.
TablePlace: TypeAlias = "str | Path | ScanNet | Records"


def scenes(place: TablePlace) -> pd.DataFrame:
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
    records = _open(place)
    rows = {}
    for scene_id, entry in records.entries.items():
        points = records.open_arrays(scene_id).read("points")
        x_m, y_m, z_m = (round(float(np.ptp(axis)), 4) for axis in points.T)
        rows[scene_id] = {
            "split": str(entry.split),
            "space": SceneId(scene_id).space,
            "vertices": entry.vertex_count,
            # Vertices that are not unlabeled, which is nyu40 id 0.
            "labeled": 1 - entry.nyu40_counts.get(0, 0) / entry.vertex_count,
            "x_m": x_m,
            "y_m": y_m,
            "z_m": z_m,
            "area_m2": _measure_area(points),
            "size_bytes": entry.size_bytes,
            "aligned": records.place.options.align_axis,
            "warnings": "; ".join(warning.text for warning in entry.warnings),
        }
    return _frame(rows, "scene", _SCENE_COLUMNS)


def _measure_area(points: NDArray[np.float32]) -> float:
    """Return the area in m2 of the squares, seen from above, that contain a vertex."""
    # A number for the square of each vertex: x + 2^26 y, in squares. float64 represents it exactly.
    squares = np.floor(points[:, :2].astype(np.float64) / _SQUARE_M) @ (1, 1 << 26)
    return round(len(np.unique(squares)) * _SQUARE_M**2, 2)


def class_counts(place: TablePlace, label_set: LabelSet | str | None = None) -> pd.DataFrame:
    """Count the vertices of each scene and class.

    Args:
        place: Processed scenes; see the module.
        label_set: Label set of the classes; see the module.

    Returns:
        A row per scene, with the index `scene`, and a column per class by its name, in the order of
        the train ids.

    Raises:
        ScanNetPrepError: The place cannot be read.
    """
    import pandas as pd

    records = _open(place)
    label_set = _choose_label_set(place, records, label_set)
    counts_by_scene = [entry.counts(label_set) for entry in records.entries.values()]
    return pd.DataFrame(
        count_classes(counts_by_scene, label_set),
        index=pd.Index(list(records.entries), name="scene"),
        columns=list(label_set.names),
    )


def classes(
    place: TablePlace,
    label_set: LabelSet | str | None = None,
    *,
    split: str | None = None,
    formula: Formula = "inverse_sqrt",
) -> pd.DataFrame:
    """Make a table of the classes.

    Args:
        place: Processed scenes; see the module.
        label_set: Label set of the classes; see the module.
        split: The split whose scenes are counted; None for train and val, because test is not
            annotated.
        formula: Formula of the weights; see `ScanNet.class_weights`.

    Returns:
        A row per class, with the index `train_id` and the columns

        - `raw_id`: nyu40 id or ScanNet id;
        - `name`;
        - `frequency`: head, common or tail, in ScanNet200;
        - `vertices`;
        - `scenes`: number of scenes with at least one vertex of the class;
        - `instances`;
        - `weight`: float32, with the mean 1 over the classes that occur.

    Raises:
        ScanNetPrepError: The place cannot be read.
        UsageError: The split does not exist, or no vertex has a class.
    """
    records = _open(place)
    label_set = _choose_label_set(place, records, label_set)
    selected = _select_split(records, split)
    counts = class_counts(selected, label_set).to_numpy()

    # Number of groups that have vertices, by raw id. Others lost all vertices to other groups.
    groups = _list_groups(selected)
    id_name = "nyu40_id" if label_set.raw_ids_key == "nyu40_ids" else "scannet_id"
    group_counts = groups[groups["vertices"] > 0][id_name].value_counts()

    return _name_classes(label_set).assign(
        vertices=counts.sum(axis=0),
        scenes=(counts > 0).sum(axis=0),
        instances=[int(group_counts.get(raw_id, 0)) for raw_id in label_set.ids],
        weight=weigh_classes(counts, formula),
    )


def cross(place: TablePlace, *, split: str | None = None) -> pd.DataFrame:
    """Count vertices by nyu40 id and class of ScanNet200, which reads every scene.

    Args:
        place: Processed scenes; see the module.
        split: The split whose scenes are counted; None for train and val, because test is not
            annotated.

    Returns:
        int64 (41, 201). The index `nyu40` has the names of the nyu40 ids from 0, so that `iloc[5]`
        is nyu40 id 5; the first name is `unlabeled`. The columns `ScanNet200` are the names of the
        classes in the order of the train ids, and then `unlabeled`, for vertices that are none of
        the 200 classes.

    Raises:
        ScanNetPrepError: The place, or a scene in it, cannot be read.
        UsageError: The split does not exist.
    """
    import pandas as pd

    records = _open(place)
    width = len(SCANNET200) + 1
    counts = np.zeros((MAX_NYU40_ID + 1, width), np.int64)
    for scene_id in _select_split(records, split).entries:
        nyu40_ids, scannet_ids = records.read_raw_ids(scene_id)
        # Train id + 1, and 0 for unlabeled, (V,).
        labels = SCANNET200.labels_from_raw_ids(scannet_ids)
        # Count how often each pair of nyu40 id and label occurs.
        cells = nyu40_ids.astype(np.int64) * width + labels
        counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
    # Unlabeled moves from the first column to the last.
    counts = np.roll(counts, -1, axis=1)
    return pd.DataFrame(
        counts,
        index=pd.Index(_NYU40_NAMES, name="nyu40"),
        columns=pd.Index([*SCANNET200.names, "unlabeled"], name="ScanNet200"),
    )


def instances(place: TablePlace) -> pd.DataFrame:
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
    return _list_groups(_open(place))


def label_map() -> pd.DataFrame:
    """Return the built-in label map: index `raw_category`, columns `scannet_id` and `nyu40_id`."""
    rows = {category: ids._asdict() for category, ids in builtin_label_map().rows.items()}
    return _frame(rows, "raw_category")


def write_table(name: str, place: TablePlace, path: Path | None) -> tuple[int, str]:
    """Write a table to a file, or return it as text.

    Args:
        name: `scenes`, `classes` (of both label sets) or `instances`.
        place: Processed scenes; see the module.
        path: File to write, whose name ends in `.csv`, `.json` or `.parquet`; None to return text.

    Returns:
        The number of rows, and the table as CSV if `path` is None, otherwise an empty text.

    Raises:
        UsageError: The table or the kind of file does not exist, or the package that writes it is
            not installed.
        OutputError: The file cannot be written.
        ScanNetPrepError: The place cannot be read.
    """
    if name not in TABLES:
        raise UsageError(f"{name!r} is not a table", f"--table {', --table '.join(TABLES)}")
    table = _make_table(name, _open(place))
    if path is None:
        return len(table), table.to_csv(index=False)

    # The table is written as a whole at the end, so that an error leaves no part of it.
    buffer = io.BytesIO()
    writers: dict[str, Callable[[], object]] = {
        ".csv": lambda: table.to_csv(buffer, index=False),
        ".json": lambda: table.to_json(buffer, orient="records"),
        ".parquet": lambda: table.to_parquet(buffer, index=False),
    }
    if path.suffix not in writers:
        raise UsageError(
            f"{path}: expected a name that ends in one of {', '.join(writers)}",
        )
    try:
        writers[path.suffix]()
    except ImportError as error:  # of pyarrow
        first_line = f"{path}: {error}".splitlines()[0]
        raise UsageError(first_line, "in a clone: pip install '.[parquet]'") from None
    write_atomically(path, [buffer.getvalue()])
    return len(table), ""


def _make_table(name: str, records: Records) -> pd.DataFrame:
    """Make a table for a file, with columns instead of an index.

    `classes` has both label sets, and their names in a column `label_set`.
    """
    import pandas as pd

    if name == "scenes":
        return scenes(records).reset_index()
    if name == "instances":
        return instances(records)
    parts = {label_set.name: classes(records, label_set) for label_set in (SCANNET20, SCANNET200)}
    return pd.concat(parts, names=["label_set"]).reset_index()


@dataclass(frozen=True, slots=True)
class Records:
    """Selected scenes of a place.

    Attributes:
        place: The place.
        entries: The entries of the selected scenes in the manifest, by scene id.
    """

    place: ProcessedScenes
    entries: Mapping[str, SceneEntry]

    def open_arrays(self, scene_id: str) -> NpzReader:
        """Open the file of a scene."""
        return self.place.open_arrays(scene_id, self.place.read_file(scene_id))

    def read_raw_ids(self, scene_id: str) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Read the nyu40 ids and the ScanNet ids of a scene, (V,) each."""
        arrays = self.open_arrays(scene_id)
        nyu40_ids = arrays.read("nyu40_ids")
        scannet_ids = arrays.read("scannet_ids")
        largest_id = nyu40_ids.max(initial=0)
        if nyu40_ids.shape != scannet_ids.shape or largest_id > MAX_NYU40_ID:
            path = self.place.file_path(scene_id)
            raise FileError(
                path,
                f"nyu40_ids: found {nyu40_ids.shape} up to {largest_id}, "
                f"expected {scannet_ids.shape} up to {MAX_NYU40_ID}",
                DAMAGE_HINT,
            )
        return nyu40_ids, scannet_ids

    def read_groups(self, scene_id: str) -> tuple[AnnotatedGroup, ...]:
        """Read the groups of a scene."""
        return parse_meta(self.open_arrays(scene_id), self.place.file_path(scene_id)).groups


def _open(place: TablePlace) -> Records:
    """Open a place, and select its scenes: those of a dataset, or else all; see the module."""
    if isinstance(place, Records):
        return place
    if isinstance(place, ScanNet):
        all_records = _open(place.path)
        lost_ids = set(place.scene_ids) - all_records.entries.keys()
        if lost_ids:
            raise FileError(
                str(place.path),
                f"no longer contains {min(lost_ids)}",
                "open the dataset again: ScanNet(...)",
            )
        entries = {scene_id: all_records.entries[scene_id] for scene_id in place.scene_ids}
        return Records(all_records.place, entries)
    opened = open_processed(place)
    return Records(opened, opened.entries)


def _select_split(records: Records, split: str | None) -> Records:
    """Select the scenes of a split; None for the annotated splits, train and val."""
    splits = {Split.TRAIN, Split.VAL} if split is None else {Split.parse(split)}
    entries = {
        scene_id: entry for scene_id, entry in records.entries.items() if entry.split in splits
    }
    return Records(records.place, entries)


def _choose_label_set(
    place: TablePlace, records: Records, label_set: LabelSet | str | None
) -> LabelSet:
    """Return the label set that was passed, else that of the dataset, else that of the place."""
    if label_set is not None:
        return parse_label_set(label_set)
    if isinstance(place, ScanNet):
        return place.label_set
    return records.place.options.label_set


def _list_groups(records: Records) -> pd.DataFrame:
    """Make the table of `instances`."""
    import pandas as pd

    rows = []
    for scene_id in records.entries:
        for group in records.read_groups(scene_id):
            values = [getattr(group, field) for field in _GROUP_COLUMNS]
            box = group.box or (None,) * len(_BOX_COLUMNS)  # pandas shows None as NaN
            rows.append((scene_id, *values, *box))
    return pd.DataFrame(rows, columns=["scene", *_GROUP_COLUMNS.values(), *_BOX_COLUMNS])


def _name_classes(label_set: LabelSet) -> pd.DataFrame:
    """Make a table of ids, names and frequencies, with a row per class."""
    rows = {one_class.train_id: one_class._asdict() for one_class in label_set.classes}
    return _frame(rows, "train_id", ("raw_id", "name", "frequency"))


def _frame(
    rows: Mapping[Any, Mapping[str, object]], index: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Make a table of rows.

    Args:
        rows: The rows, by their value in the index.
        index: Name of the index.
        columns: Names of the columns, required if there may be no rows.
    """
    import pandas as pd

    return pd.DataFrame(list(rows.values()), pd.Index(list(rows), name=index), columns)
