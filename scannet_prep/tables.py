"""Tables of processed scenes for pandas: scenes, classes, instances.

pandas is imported when a table is made, so that nothing else waits for it. A place is a processed folder, an archive
(path, address, or an object that reads its bytes), a list of shards, or a dataset of a path or address, which stands
for its scenes. A label set is SCANNET20, SCANNET200 or its name; None stands for the one that the scenes were processed
with, or that of the dataset. Only `instances`, `classes` and `cross` open scenes, and only `cross` reads arrays.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.source import ByteSource
from scannet_prep.base.errors import FileError, ProcessedFileError, UsageError
from scannet_prep.base.files import write_atomically
from scannet_prep.place import ProcessedPlace, open_place
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.npz import NpzReader, again_hint
from scannet_prep.processed.scene import (
    SceneMeta,
    check_identity,
    check_meta,
    parse_meta,
    read_meta,
)
from scannet_prep.release.label_map import MAX_NYU40_ID, builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.training.dataset import ScanNet
from scannet_prep.training.supervision import Formula, count_classes, weigh_classes

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("scenes", "classes", "instances")

_SCENE_COLUMNS = ("split", "space", "vertices", "labeled", "size_bytes", "aligned", "warnings")
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

# Names of the nyu40 ids from 0, as in the column nyu40class of the label map, which has refridgerator.
_NYU40_NAMES = (
    "unlabeled", "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf", "picture",
    "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror", "floor mat", "clothes", "ceiling",
    "books", "refrigerator", "television", "paper", "towel", "shower curtain", "box", "whiteboard", "person",
    "night stand", "toilet", "sink", "lamp", "bathtub", "bag", "otherstructure", "otherfurniture", "otherprop",
)  # fmt: skip

TablePlace: TypeAlias = (
    "str | Path | ByteSource | ScanNet | Records | Sequence[str | Path | ByteSource]"
)


def scenes(place: TablePlace) -> pd.DataFrame:
    """One row a scene.

    Args:
        place: See above.

    Returns:
        Index `scene`; columns: `split`; `space`, the number of the place that was scanned; `vertices`; `labeled`, the
        share of vertices with a nyu40 id, 0..1; `size_bytes` of the file; `aligned`, whether points are in the
        axis-aligned frame; `warnings`, a sentence each, separated by `; `.

    Raises:
        ScanNetPrepError: The place cannot be read.
    """
    opened = _open(place)
    rows = {
        name: {
            "split": str(entry.split),
            "space": SceneId(name).space,
            "vertices": entry.vertex_count,
            "labeled": 1 - entry.nyu40_counts.get(0, 0) / entry.vertex_count,
            "size_bytes": entry.size_bytes,
            "aligned": opened.place.options.align_axis,
            "warnings": "; ".join(warning.text for warning in entry.warnings),
        }
        for name, entry in opened.entries.items()
    }
    return _frame(rows, "scene", _SCENE_COLUMNS)


def class_counts(place: TablePlace, label_set: LabelSet | str | None = None) -> pd.DataFrame:
    """Vertices by scene and class.

    Args:
        place: See above.
        label_set: See above.

    Returns:
        Index `scene`; a column for each class by its name, in the order of the train ids.

    Raises:
        ScanNetPrepError: The place cannot be read.
    """
    import pandas as pd

    opened = _open(place)
    entries = opened.entries
    label_set = _choose_label_set(place, opened, label_set)
    counts = count_classes([entry.counts(label_set) for entry in entries.values()], label_set)
    return pd.DataFrame(
        counts, index=pd.Index(list(entries), name="scene"), columns=list(label_set.names)
    )


def classes(
    place: TablePlace,
    label_set: LabelSet | str | None = None,
    *,
    split: str | None = None,
    formula: Formula = "inverse_sqrt",
) -> pd.DataFrame:
    """One row a class.

    Args:
        place: See above.
        label_set: See above.
        split: Only the scenes of this split; those of train and val by default, as test is not annotated.
        formula: Of the weights; see `ScanNet.class_weights`.

    Returns:
        Index `train_id`; columns `raw_id` (nyu40 id or ScanNet id), `name`, `frequency` (head, common or tail of
        ScanNet200), `vertices`, `scenes` with at least one of them, `instances`, and `weight`, float32, with the mean 1
        over the classes that occur.

    Raises:
        ScanNetPrepError: The place cannot be read.
        UsageError: There is no such split, or no vertex has a class.
    """
    opened = _open(place)
    label_set = _choose_label_set(place, opened, label_set)
    entries = _entries_of(opened, split)
    counts = class_counts(Records(opened.place, entries), label_set).to_numpy()
    groups = _instances(opened, list(entries))
    id_name = "nyu40_id" if label_set.raw_ids_key == "nyu40_ids" else "scannet_id"
    numbers = groups[groups["vertices"] > 0][id_name].value_counts()
    return _name_classes(label_set).assign(
        vertices=counts.sum(axis=0),
        scenes=(counts > 0).sum(axis=0),
        instances=[int(numbers.get(raw_id, 0)) for raw_id in label_set.ids],
        weight=weigh_classes(counts, formula),
    )


def distribution(place: TablePlace, label_set: LabelSet | str | None = None) -> pd.DataFrame:
    """How often each class occurs in the annotated scenes, those of train and val; no scene is opened.

    Args:
        place: See above.
        label_set: See above.

    Returns:
        Index `train_id`; columns `raw_id`, `name` and `frequency` as `classes` has them; `train` and `val`, the
        vertices in each split; `scenes` with at least one of them; and `share` of all vertices, 0..1.

    Raises:
        ScanNetPrepError: The place cannot be read.
    """
    opened = _open(place)
    label_set = _choose_label_set(place, opened, label_set)
    entries = _entries_of(opened)
    counts = class_counts(Records(opened.place, entries), label_set).to_numpy()
    splits = np.array([str(entry.split) for entry in entries.values()])
    return _name_classes(label_set).assign(
        train=counts[splits == "train"].sum(axis=0),
        val=counts[splits == "val"].sum(axis=0),
        scenes=(counts > 0).sum(axis=0),
        share=counts.sum(axis=0) / max(1, sum(entry.vertex_count for entry in entries.values())),
    )


def cross(place: TablePlace, *, split: str | None = None) -> pd.DataFrame:
    """Count vertices by nyu40 id and by class of ScanNet200; every scene is read.

    Args:
        place: See above.
        split: Only the scenes of this split; those of train and val by default, as test is not annotated.

    Returns:
        int64 (41, 201). Index `nyu40`: the names of the nyu40 ids from 0, so that `iloc[5]` is nyu40 id 5; `unlabeled`
        comes first. Columns `ScanNet200`: the names of the classes in the order of the train ids; `unlabeled`, for
        vertices that are none of the 200 classes, comes last.

    Raises:
        ScanNetPrepError: The place, or a scene in it, cannot be read.
        UsageError: There is no such split.
    """
    import pandas as pd

    opened = _open(place)
    width = len(SCANNET200) + 1
    counts = np.zeros((MAX_NYU40_ID + 1, width), np.int64)
    for name in _entries_of(opened, split):
        nyu40_ids, scannet_ids = opened.read_raw_ids(name)
        labels = SCANNET200.labels_from_raw_ids(
            scannet_ids
        )  # (V,), train id + 1, 0 where unlabeled
        cells = np.bincount(nyu40_ids.astype(np.int64) * width + labels, minlength=counts.size)
        counts += cells.reshape(counts.shape)
    return pd.DataFrame(
        np.roll(counts, -1, axis=1),  # the unlabeled from the first column to the last
        index=pd.Index(_NYU40_NAMES, name="nyu40"),
        columns=pd.Index([*SCANNET200.names, "unlabeled"], name="ScanNet200"),
    )


def instances(place: TablePlace) -> pd.DataFrame:
    """One row an annotated group.

    Args:
        place: See above.

    Returns:
        Columns `scene`; `group`, what stands in `instances`; `object_id` and `aliases`, by which other data sets join;
        `raw_category`; `scannet_id`, `nyu40_id`; `vertices`, `segments`; and the axis-aligned box `x_min` to `z_max` in
        metres, in the frame of `points` (NaN for a group whose vertices all belong to others).

    Raises:
        ScanNetPrepError: The place, or a scene in it, cannot be read.
    """
    opened = _open(place)
    return _instances(opened, list(opened.entries))


def label_map() -> pd.DataFrame:
    """The built-in label map: index `raw_category`, columns `scannet_id` and `nyu40_id`."""
    return _frame(
        {name: ids._asdict() for name, ids in builtin_label_map().rows.items()}, "raw_category"
    )


def write_table(
    name: str, place: TablePlace, path: Path | None, *, certificates: bool | Path = True
) -> tuple[int, str]:
    """Write a table to a file, or make the text of it.

    Args:
        name: `scenes`, `classes` (of both label sets) or `instances`.
        place: See above.
        path: Where to write it; its name ends in `.csv`, `.json` or `.parquet`. None for a text.
        certificates: Of addresses, whom to trust: a file or folder of authorities, True for the usual ones, False
            to accept any certificate.

    Returns:
        The number of rows; and the table as CSV where there is no file, else an empty text.

    Raises:
        UsageError: There is no such table, or no such kind of file; or the package that writes it is missing.
        OutputError: The file cannot be written.
        ScanNetPrepError: The place cannot be read.
    """
    import pandas as pd

    if name not in TABLES:
        raise UsageError(f"{name!r} is not a table", f"--table {', --table '.join(TABLES)}")
    opened = _open(place, certificates)
    if name == "classes":
        parts = {
            label_set.name: classes(opened, label_set) for label_set in (SCANNET20, SCANNET200)
        }
        table = pd.concat(parts, names=["label_set"]).reset_index()
    else:
        table = scenes(opened).reset_index() if name == "scenes" else instances(opened)
    if path is None:
        return len(table), table.to_csv(index=False)
    buffer = io.BytesIO()
    writers: dict[str, Callable[[], object]] = {
        ".csv": lambda: table.to_csv(buffer, index=False),
        ".json": lambda: table.to_json(buffer, orient="records"),
        ".parquet": lambda: table.to_parquet(buffer, index=False),
    }
    if path.suffix not in writers:
        raise UsageError(
            f"{path}: a table is a file of {', '.join(writers)}",
            f"-o {quote(str(path.with_suffix('.csv')))}",
        )
    try:
        writers[path.suffix]()
    except ImportError as error:
        raise UsageError(
            f"{path}: {error}".splitlines()[0], "pip install 'scannet-prep[parquet]'"
        ) from None
    write_atomically(path, [buffer.getvalue()])
    return len(table), ""


@dataclass(frozen=True, slots=True)
class Records:
    """A place, and the entries of the manifest that were asked for, by scene id."""

    place: ProcessedPlace
    entries: Mapping[str, SceneEntry]

    def read_meta(self, name: str) -> SceneMeta:
        """Read the description of a scene."""
        path = self.place.file_path(name)
        split = self.entries[name].split
        if isinstance(path, Path):
            return read_meta(path, name, split, self.place.options)
        meta = parse_meta(NpzReader(self.place.read(name), path), path)
        check_meta(meta, path, name, split, self.place.options)
        return meta

    def read_raw_ids(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
        """Read the nyu40 ids and the ScanNet ids of a scene, each (V,)."""
        path = self.place.file_path(name)
        reader = NpzReader(self.place.read(name), path)
        check_identity(reader, path, name, self.entries[name].vertex_count, self.place.options)
        nyu40_ids = reader.read("nyu40_ids")
        scannet_ids = reader.read("scannet_ids")
        if nyu40_ids.shape != scannet_ids.shape or nyu40_ids.max(initial=0) > MAX_NYU40_ID:
            problem = f"nyu40_ids: found {nyu40_ids.shape} up to {nyu40_ids.max(initial=0)}"
            expected = f"expected {scannet_ids.shape} up to {MAX_NYU40_ID}"
            raise ProcessedFileError(path, f"{problem}, {expected}", again_hint(path))
        return nyu40_ids, scannet_ids


def _open(place: TablePlace, certificates: bool | Path = True) -> Records:
    if isinstance(place, Records):
        return place
    if isinstance(place, ScanNet):
        opened = _open(place.path, certificates)
        if lost := set(place.scene_ids) - opened.entries.keys():
            raise FileError(
                str(place.path), f"names {min(lost)} no longer", "open it again: ScanNet(...)"
            )
        return Records(opened.place, {name: opened.entries[name] for name in place.scene_ids})
    places: Any = place if isinstance(place, Sequence) and not isinstance(place, str) else [place]
    found = open_place(places, certificates=certificates)
    return Records(found, found.entries)


def _entries_of(opened: Records, split: str | None = None) -> dict[str, SceneEntry]:
    """The entries of one split, or of the annotated ones, train and val, by scene id."""
    chosen = {Split.TRAIN, Split.VAL} if split is None else {Split.parse(split)}
    return {name: entry for name, entry in opened.entries.items() if entry.split in chosen}


def _choose_label_set(
    place: TablePlace, opened: Records, label_set: LabelSet | str | None
) -> LabelSet:
    """Return the label set that was passed, else that of the dataset, else that of the place."""
    if label_set is not None:
        return parse_label_set(label_set)
    if isinstance(place, ScanNet):
        return place.label_set
    return opened.place.options.label_set


def _instances(opened: Records, names: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        (name, *(getattr(group, field) for field in _GROUP_COLUMNS), *(group.box or (None,) * 6))
        for name in names
        for group in opened.read_meta(name).groups
    ]
    return pd.DataFrame(rows, columns=["scene", *_GROUP_COLUMNS.values(), *_BOX_COLUMNS])


def _name_classes(label_set: LabelSet) -> pd.DataFrame:
    rows = {item.train_id: item._asdict() for item in label_set.classes}
    return _frame(rows, "train_id", ("raw_id", "name", "frequency"))


def _frame(
    rows: Mapping[Any, Mapping[str, object]], index: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """A table of rows by what stands in the index; `columns` are needed where there may be no rows."""
    import pandas as pd

    return pd.DataFrame(list(rows.values()), pd.Index(list(rows), name=index), columns)
