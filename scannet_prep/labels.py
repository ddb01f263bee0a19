"""Classes of the two benchmarks, and the table from the annotators' words to class ids."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scannet_prep.errors import LabelMapError, UsageError
from scannet_prep.files import read_file
from scannet_prep.release import LABEL_MAP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LABEL_MAP_NAME = LABEL_MAP.suffix
MAX_NYU40_ID = 40
MAX_SCANNET_ID = 65_535

_HINT = f"put {LABEL_MAP_NAME} of v2 there, or remove it to use the built-in one"

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

    Attributes:
        name: `ScanNet20` or `ScanNet200`.
        raw_ids_key: The array of a processed scene that holds this benchmark's raw ids.
    """

    name: str
    raw_ids_key: Literal["nyu40_ids", "scannet_ids"]

    def __len__(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @cached_property
    def classes(self) -> tuple[LabelClass, ...]:
        """All classes, in the order of their train ids."""
        with resources.files("scannet_prep").joinpath(f"assets/{self.name.lower()}.csv").open(encoding="ascii") as file:
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
        """Map raw ids to labels.

        Args:
            raw_ids: Any shape, non-negative; nyu40 ids for ScanNet20, ScanNet ids for ScanNet200.

        Returns:
            uint8, same shape: train id + 1; 0 where the raw id is none of this set's.
        """
        return _table(self, 1, 0, "uint8").take(raw_ids, mode="clip")

    def train_ids_from_raw_ids(
        self, raw_ids: NDArray[np.integer], ignore_id: int, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Map raw ids to train ids.

        Args:
            raw_ids: Any shape, non-negative; nyu40 ids for ScanNet20, ScanNet ids for ScanNet200.
            ignore_id: What stands for unlabeled.
            out: Where to write the result, int64, same shape; None for a new array.

        Returns:
            int64, same shape: train id, or `ignore_id` where the raw id is none of this set's.
        """
        return _table(self, 0, ignore_id, "int64").take(raw_ids, out=out, mode="clip")

    def name_of(self, train_id: int) -> str:
        """English name of a class; `unlabeled` for what is not a train id, such as -1 or 255.

        `names[-1]` would be the last class.
        """
        return self.classes[train_id].name if 0 <= train_id < len(self) else "unlabeled"

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


def check_label_set(value: object) -> None:
    """Refuse what is not a label set, such as its name, with a `UsageError`."""
    if not isinstance(value, LabelSet):
        raise UsageError(f"labels is {value!r}, expected a label set", "labels=SCANNET20, or labels=SCANNET200")


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
        lines = (f"{name}\t{ids.scannet_id}\t{ids.nyu40_id}\n" for name, ids in sorted(self.rows.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@cache
def builtin_label_map() -> LabelMap:
    """The label map that the ScanNet server hands out (as of 2026), reduced to the three columns that count."""
    text = resources.files("scannet_prep").joinpath("assets/label_map.tsv").read_text(encoding="utf-8")
    return _parse_label_map(text, Path("the built-in label map"))


def read_label_map(path: Path) -> LabelMap:
    """Read a copy of `scannetv2-labels.combined.tsv`.

    Only the columns `raw_category`, `id` and `nyu40id` are used, found by name; the others differ between copies. Lines
    may end in LF, CRLF or CR CR LF.

    Raises:
        MissingFileError: There is no such file.
        LabelMapError: It is not such a table, or contradicts itself, or it is the one of ScanNet v1.
    """
    try:
        text = read_file(path, LABEL_MAP.max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise LabelMapError(path, f"is not UTF-8 text: byte {error.start} is 0x{byte:02x}") from None
    return _parse_label_map(text, path)


def label_map_for(raw_dir: Path) -> LabelMap:
    """The label map beside the raw scenes, else the built-in one.

    Raises:
        LabelMapError: The one beside them is damaged.
    """
    path = find_label_map(raw_dir)
    return builtin_label_map() if path is None else read_label_map(path)


def find_label_map(raw_dir: Path) -> Path | None:
    """The label map beside the raw scenes; None where there is none."""
    # `.` and links to the folder scans are that folder too.
    parents = [item.parent for item in (raw_dir.absolute(), raw_dir.resolve()) if item.name in {"scans", "scans_test"}]
    # The official script's layout has it in the root, that of OctFormer in tasks.
    candidates = [root / name / LABEL_MAP_NAME for root in (raw_dir, *parents) for name in ("", "tasks")]
    return next((path for path in candidates if os.path.lexists(path)), None)


def _parse_label_map(text: str, path: Path) -> LabelMap:
    lines = [line.split("\t") for line in re.split(r"[\r\n]+", text) if line] or [[""]]
    header = lines[0]
    missing = [name for name in ("raw_category", "id", "nyu40id") if name not in header]
    if missing:
        problem = f"has no column {' or '.join(missing)}; its first line reads {', '.join(header)[:120]!r}"
        raise LabelMapError(path, problem, _HINT)
    name_column, id_column, nyu40_column = (header.index(name) for name in ("raw_category", "id", "nyu40id"))
    rows: dict[str, RawIds] = {}
    is_cut = not text.endswith(("\n", "\r"))
    for number, cells in enumerate(lines[1:], start=2):
        needed = len(header) if is_cut and number == len(lines) else 1 + max(name_column, id_column, nyu40_column)
        if len(cells) < needed:
            raise LabelMapError(path, f"row {number} has {len(cells)} columns, expected {len(header)}")
        name = cells[name_column]
        ids = RawIds(
            _parse_id(cells[id_column], MAX_SCANNET_ID, f"row {number}, column id", path),
            _parse_id(cells[nyu40_column], MAX_NYU40_ID, f"row {number}, column nyu40id", path),
        )
        if rows.setdefault(name, ids) != ids:
            problem = f"row {number}: {name!r:.80} has {ids}, but an earlier row has {rows[name]}"
            raise LabelMapError(path, problem, _HINT)
    return LabelMap(str(path), rows)


def _parse_id(text: str, largest: int, place: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) > largest:
        raise LabelMapError(path, f"{place}: found {text[:40]!r}, expected a whole number from 0 to {largest}")
    return int(text)


@cache
def _table(label_set: LabelSet, first: int, other: int, dtype: str) -> NDArray[Any]:
    """Numbers of the classes, from `first` on, by raw id; the last entry is `other` and catches every larger raw id."""
    import numpy as np

    table = np.full(max(label_set.ids) + 2, other, dtype)
    table[list(label_set.ids)] = np.arange(first, first + len(label_set))
    return table
