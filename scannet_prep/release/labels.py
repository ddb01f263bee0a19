"""Classes of the two benchmarks, and the table from the annotators' words to class ids."""

from __future__ import annotations

import csv
import hashlib
import operator
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scannet_prep.base.errors import RawFileError, UsageError
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import read_file
from scannet_prep.release.files import LABEL_MAP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LABEL_MAP_NAME = LABEL_MAP.suffix
MAX_NYU40_ID = 40
MAX_SCANNET_ID = 65_535

LABEL_MAP_HINT = f"put {LABEL_MAP_NAME} of v2 there, or remove it to use the built-in one"
"""The hint of errors about a label map."""

RELEASE_ROWS = 607
"""Number of rows of the label map of the release."""

Frequency = Literal["head", "common", "tail"]


class LabelClass(NamedTuple):
    """One class of a benchmark.

    Attributes:
        train_id: Index into the label set, from 0.
        raw_id: The benchmark's id: nyu40 id for ScanNet20, ScanNet id for ScanNet200.
        name: English name.
        color: Official colour, red, green, blue, 0..255.
        frequency: ScanNet200's group by number of annotated vertices; None for ScanNet20.
        in_val: Whether the class occurs in the val split; always true for ScanNet20.
    """

    train_id: int
    raw_id: int
    name: str
    color: tuple[int, int, int]
    frequency: Frequency | None
    in_val: bool


@dataclass(frozen=True)
class LabelSet:
    """The classes of one benchmark, ordered by raw id; the position is the train id.

    A label set is iterated class by class (`LabelClass`), and indexed by train id or by name: `SCANNET20[0]`,
    `SCANNET20["wall"]`.

    Attributes:
        name: `ScanNet20` or `ScanNet200`.
        raw_ids_key: The array of a processed scene that holds this benchmark's raw ids.
    """

    name: str
    raw_ids_key: Literal["nyu40_ids", "scannet_ids"]

    def __len__(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def __iter__(self) -> Iterator[LabelClass]:
        """All classes, in the order of their train ids."""
        return iter(self.classes)

    def __contains__(self, key: object) -> bool:
        """Whether the set has a class of this name or train id, or this class."""
        if isinstance(key, str):
            return key in self.names
        if isinstance(key, LabelClass):
            return key in self.classes
        return key in range(len(self))

    def __getitem__(self, key: int | str) -> LabelClass:
        """Return a class by its train id or by its English name.

        A negative train id does not count from the end: -1 stands for unlabeled.

        Raises:
            UsageError: The set has no such class.
        """
        if isinstance(key, str):
            if key in self.names:
                return self.classes[self.names.index(key)]
            raise UsageError(
                f"{self.name} has no class {key!r:.80}",
                f"all names are in {self.name.upper()}.names",
            )
        train_id = operator.index(key)
        if not 0 <= train_id < len(self):
            raise UsageError(
                f"{train_id} is not a train id of {self.name}, expected 0 to {len(self) - 1}",
                "the array 'labels' of an .npz file holds train id + 1: subtract 1; raw ids are in label_set.ids",
            )
        return self.classes[train_id]

    @property
    def num_classes(self) -> int:
        """Number of classes: 20 or 200."""
        return len(self)

    @cached_property
    def classes(self) -> tuple[LabelClass, ...]:
        """All classes, in the order of their train ids."""
        with (
            resources.files("scannet_prep")
            .joinpath(f"assets/{self.name.lower()}.csv")
            .open(encoding="ascii") as file
        ):
            return tuple(
                LabelClass(
                    train_id=int(row["train_id"]),
                    raw_id=int(row["nyu40_id"] if "nyu40_id" in row else row["scannet_id"]),
                    name=row["name"],
                    color=(int(row["red"]), int(row["green"]), int(row["blue"])),
                    frequency=row.get("frequency"),  # type: ignore[arg-type]  # the asset holds only the three words
                    in_val=row.get("in_val", "1") == "1",
                )
                for row in csv.DictReader(file)
            )

    @property
    def ids(self) -> tuple[int, ...]:
        """Raw ids (nyu40 ids or ScanNet ids) by train id."""
        return tuple(item.raw_id for item in self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """English names by train id."""
        return tuple(item.name for item in self.classes)

    @property
    def colors(self) -> tuple[tuple[int, int, int], ...]:
        """Official colours by train id: red, green, blue, 0..255."""
        return tuple(item.color for item in self.classes)

    @property
    def head(self) -> tuple[int, ...]:
        """Train ids of the frequent classes (ScanNet200; empty for ScanNet20)."""
        return self._train_ids_of("head")

    @property
    def common(self) -> tuple[int, ...]:
        """Train ids of the classes of medium frequency (ScanNet200; empty for ScanNet20)."""
        return self._train_ids_of("common")

    @property
    def tail(self) -> tuple[int, ...]:
        """Train ids of the rare classes (ScanNet200; empty for ScanNet20)."""
        return self._train_ids_of("tail")

    def labels_from_raw_ids(self, raw_ids: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Map raw ids to labels as an `.npz` file stores them, which are train ids + 1.

        Args:
            raw_ids: Any shape, non-negative; nyu40 ids for ScanNet20, ScanNet ids for ScanNet200.

        Returns:
            uint8, same shape: train id + 1; 0 where the raw id is none of this set's.
        """
        return _table(self, 1, 0, "uint8").take(raw_ids, mode="clip")

    def train_ids_from_raw_ids(
        self, raw_ids: NDArray[np.integer], ignore_index: int, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Map raw ids to train ids.

        Args:
            raw_ids: Any shape, non-negative; nyu40 ids for ScanNet20, ScanNet ids for ScanNet200.
            ignore_index: What stands for unlabeled.
            out: Where to write the result, int64, same shape; None for a new array.

        Returns:
            int64, same shape: train id, or `ignore_index` where the raw id is none of this set's.
        """
        return _table(self, 0, ignore_index, "int64").take(raw_ids, out=out, mode="clip")

    def name_of(self, train_id: int) -> str:
        """Return the English name of a class; `unlabeled` for -1, which is the default of `ignore_index`.

        Raises:
            UsageError: It is neither a train id of this set nor -1.
        """
        return "unlabeled" if train_id == -1 else self[train_id].name

    def colorize(self, train_ids: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Give each vertex the official colour of its class.

        Args:
            train_ids: Any shape, as in the samples of `ScanNet`; what is not a train id is unlabeled.

        Returns:
            uint8, same shape and 3: red, green, blue, 0..255; black where unlabeled, as in the benchmark's pictures.
        """
        import numpy as np

        table = np.array([*self.colors, (0, 0, 0)], np.uint8)
        is_class = (train_ids >= 0) & (train_ids < len(self))
        return table[np.where(is_class, train_ids, len(self))]

    def _train_ids_of(self, frequency: Frequency) -> tuple[int, ...]:
        return tuple(item.train_id for item in self.classes if item.frequency == frequency)


SCANNET20 = LabelSet("ScanNet20", "nyu40_ids")
SCANNET200 = LabelSet("ScanNet200", "scannet_ids")


def parse_label_set(value: LabelSet | str) -> LabelSet:
    """Return a label set, or the one that has this name: `scannet20` or `scannet200`, in upper or lower case.

    Raises:
        UsageError: It is neither a label set nor the name of one.
    """
    if isinstance(value, LabelSet):
        return value
    for label_set in (SCANNET20, SCANNET200):
        if isinstance(value, str) and value.lower() == label_set.name.lower():
            return label_set
    raise UsageError(
        f"{value!r:.80} is not a label set, expected ScanNet20 or ScanNet200",
        'labels="scannet20" or labels="scannet200" (on the command line: --labels scannet200)',
    )


class RawIds(NamedTuple):
    """What the label map says of one raw category; both ids are from the same row."""

    scannet_id: int
    nyu40_id: int

    def __str__(self) -> str:
        """Both ids, for messages."""
        return f"ScanNet id {self.scannet_id}, nyu40 id {self.nyu40_id}"


@dataclass(frozen=True)
class LabelMap:
    """The table from raw category (the annotator's text) to ids.

    Neither id can be derived from the other: ScanNet ids 107, 188 and 385 each belong to two nyu40 ids.

    Attributes:
        source: Where it was read from, for messages.
        rows: Ids by raw category, matched to the letter.
    """

    source: str
    rows: Mapping[str, RawIds]

    @cached_property
    def digest(self) -> str:
        """Digest of what the map says, not of the file's bytes: copies with other line ends or columns are equal."""
        lines = (
            f"{name}\t{ids.scannet_id}\t{ids.nyu40_id}\n" for name, ids in sorted(self.rows.items())
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def describe_differences(label_map: LabelMap) -> str:
    """Describe the raw categories of the release that a label map lacks or gives other ids.

    Rows that it has beyond those of the release are no difference: people add them for their own annotations.

    Returns:
        A phrase for messages, without the name of the file; empty where there is no difference.
    """
    differing = []
    for name, expected in builtin_label_map().rows.items():
        actual = label_map.rows.get(name)
        if actual != expected:
            differing.append((name, actual, expected))
    if not differing:
        return ""
    name, actual, expected = differing[0]
    return (
        f"differs from the label map of the release in {len(differing):,} raw categories: "
        f"{list_some([name for name, *_ in differing])} "
        f"(for example, {name!r} is {actual or 'missing'}, expected {expected})"
    )


@cache
def builtin_label_map() -> LabelMap:
    """The label map that the ScanNet server hands out (as of 2026), reduced to the three columns that count."""
    text = (
        resources.files("scannet_prep").joinpath("assets/label_map.tsv").read_text(encoding="utf-8")
    )
    return _parse_label_map(text, Path("the built-in label map"))


def read_label_map(path: Path) -> LabelMap:
    """Read a copy of `scannetv2-labels.combined.tsv`.

    Only the columns `raw_category`, `id` and `nyu40id` are used, found by name; the others differ between copies. Lines
    may end in LF, CRLF or CR CR LF.

    Raises:
        MissingFileError: There is no such file.
        RawFileError: It is not such a table, has no rows, contradicts itself, or is the one of ScanNet v1.
    """
    try:
        text = read_file(path, LABEL_MAP.max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RawFileError(
            path, f"is not UTF-8 text: byte {error.start} is 0x{byte:02x}", LABEL_MAP_HINT
        ) from None
    return _parse_label_map(text, path)


def label_map_for(raw_dir: Path) -> LabelMap:
    """The label map beside the raw scenes, else the built-in one.

    Raises:
        RawFileError: The one beside them is damaged.
    """
    path = find_label_map(raw_dir)
    return builtin_label_map() if path is None else read_label_map(path)


def find_label_map(raw_dir: Path) -> Path | None:
    """The label map beside the raw scenes; None where there is none."""
    # `.` and links to the folder scans are that folder too.
    parents = [
        item.parent
        for item in (raw_dir.absolute(), raw_dir.resolve())
        if item.name in {"scans", "scans_test"}
    ]
    # The official script's layout has it in the root, that of OctFormer in tasks.
    candidates = [
        root / name / LABEL_MAP_NAME for root in (raw_dir, *parents) for name in ("", "tasks")
    ]
    return next((path for path in candidates if os.path.lexists(path)), None)


def _parse_label_map(text: str, path: Path) -> LabelMap:
    """Parse the text of a label map; `path` is its name in messages.

    Raises:
        RawFileError: It is not such a table, has no rows, or contradicts itself.
    """
    lines = [line.split("\t") for line in re.split(r"[\r\n]+", text) if line] or [[""]]
    header = lines[0]
    missing = [name for name in ("raw_category", "id", "nyu40id") if name not in header]
    if missing:
        problem = f"has no column {' or '.join(missing)}; its first line reads {', '.join(header)[:120]!r}"
        raise RawFileError(path, problem, LABEL_MAP_HINT)
    name_column, id_column, nyu40_column = (
        header.index(name) for name in ("raw_category", "id", "nyu40id")
    )
    rows: dict[str, RawIds] = {}
    is_cut = not text.endswith(("\n", "\r"))
    for number, cells in enumerate(lines[1:], start=2):
        needed = (
            len(header)
            if is_cut and number == len(lines)
            else 1 + max(name_column, id_column, nyu40_column)
        )
        if len(cells) < needed:
            raise RawFileError(
                path,
                f"row {number} has {len(cells)} columns, expected {len(header)}",
                LABEL_MAP_HINT,
            )
        name = cells[name_column]
        ids = RawIds(
            _parse_id(cells[id_column], MAX_SCANNET_ID, f"row {number}, column id", path),
            _parse_id(cells[nyu40_column], MAX_NYU40_ID, f"row {number}, column nyu40id", path),
        )
        if rows.setdefault(name, ids) != ids:
            problem = f"row {number}: {name!r:.80} has {ids}, but an earlier row has {rows[name]}"
            raise RawFileError(path, problem, LABEL_MAP_HINT)
    if not rows:
        raise RawFileError(
            path, f"has a header and 0 rows, expected about {RELEASE_ROWS}", LABEL_MAP_HINT
        )
    return LabelMap(str(path), rows)


def _parse_id(text: str, largest: int, place: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) > largest:
        problem = f"{place}: found {text[:40]!r}, expected a whole number from 0 to {largest}"
        raise RawFileError(path, problem, LABEL_MAP_HINT)
    return int(text)


@cache
def _table(label_set: LabelSet, first: int, other: int, dtype: str) -> NDArray[Any]:
    """Numbers of the classes, from `first` on, by raw id; the last entry is `other` and catches every larger raw id."""
    import numpy as np

    table = np.full(max(label_set.ids) + 2, other, dtype)
    table[list(label_set.ids)] = np.arange(first, first + len(label_set))
    return table
