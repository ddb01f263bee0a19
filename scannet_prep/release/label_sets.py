"""Label sets: the classes of the two benchmarks, ScanNet20 and ScanNet200."""

from __future__ import annotations

import csv
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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

    Iterating over a label set gives its classes (`LabelClass`). It is indexed by train id or by
    name: `SCANNET20[0]`, `SCANNET20["wall"]`.

    Attributes:
        name: `ScanNet20` or `ScanNet200`.
        raw_ids_key: The array of a processed scene that holds this benchmark's raw ids.
    """

    name: str
    raw_ids_key: Literal["nyu40_ids", "scannet_ids"]

    def __len__(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    def __iter__(self) -> Iterator[LabelClass]:
        """Iterate over the classes in the order of their train ids."""
        return iter(self.classes)

    def __contains__(self, key: object) -> bool:
        """Whether the set has a class of this name or train id, or this class."""
        return key in self.names or key in range(len(self)) or key in self.classes

    def __getitem__(self, key: int | str) -> LabelClass:
        """Return a class by its train id or by its English name.

        A negative train id does not count from the end: -1 stands for unlabeled.

        Raises:
            UsageError: The set has no such class.
        """
        if isinstance(key, str):
            if key not in self.names:
                raise UsageError(
                    f"{self.name} has no class {key!r:.80}", "its names are in label_set.names"
                )
            return self.classes[self.names.index(key)]
        train_id = operator.index(key)
        if not 0 <= train_id < len(self):
            raise UsageError(
                f"{train_id} is not a train id of {self.name}, expected 0 to {len(self) - 1}",
                "the array 'labels' of an .npz file holds train id + 1: subtract 1; "
                "raw ids are in label_set.ids",
            )
        return self.classes[train_id]

    @property
    def num_classes(self) -> int:
        """Number of classes: 20 or 200."""
        return len(self)

    @cached_property
    def classes(self) -> tuple[LabelClass, ...]:
        """All classes, in the order of their train ids."""
        asset = resources.files("scannet_prep").joinpath(f"assets/{self.name.lower()}.csv")
        with asset.open(encoding="ascii") as file:
            return tuple(map(_parse_class, csv.DictReader(file)))

    @property
    def ids(self) -> tuple[int, ...]:
        """Raw ids (nyu40 ids or ScanNet ids) by train id."""
        return tuple(label_class.raw_id for label_class in self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """English names by train id."""
        return tuple(label_class.name for label_class in self.classes)

    @property
    def colors(self) -> tuple[tuple[int, int, int], ...]:
        """Official colours by train id: red, green, blue, 0..255."""
        return tuple(label_class.color for label_class in self.classes)

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

    @cached_property
    def things(self) -> tuple[int, ...]:
        """Train ids of the classes that have instances: all but wall and floor."""
        return tuple(one.train_id for one in self.classes if one.name not in {"wall", "floor"})

    def labels_from_raw_ids(self, raw_ids: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Map raw ids to labels as an `.npz` file stores them, which are train ids + 1.

        Args:
            raw_ids: Any shape, non-negative; nyu40 ids for ScanNet20, ScanNet ids for ScanNet200.

        Returns:
            uint8, same shape: train id + 1; 0 if no class of this set has the raw id.
        """
        train_ids = self.train_ids_from_raw_ids(raw_ids, -1)
        return (train_ids + 1).astype("uint8")

    def train_ids_from_raw_ids(
        self, raw_ids: NDArray[np.integer], ignore_index: int
    ) -> NDArray[np.int64]:
        """Map raw ids to train ids.

        Args:
            raw_ids: Any shape, non-negative; nyu40 ids for ScanNet20, ScanNet ids for ScanNet200.
            ignore_index: The number that stands for unlabeled.

        Returns:
            int64, same shape: train id, or `ignore_index` if no class of this set has the raw id.
        """
        return _lookup_table(self, ignore_index).take(raw_ids, mode="clip")

    def name_of(self, train_id: int) -> str:
        """Return the English name of a class; `unlabeled` for -1, the default `ignore_index`.

        Raises:
            UsageError: It is neither a train id of this set nor -1.
        """
        return "unlabeled" if train_id == -1 else self[train_id].name

    def _train_ids_of(self, frequency: Frequency) -> tuple[int, ...]:
        return tuple(one.train_id for one in self.classes if one.frequency == frequency)


SCANNET20 = LabelSet("ScanNet20", "nyu40_ids")
SCANNET200 = LabelSet("ScanNet200", "scannet_ids")


def parse_label_set(value: LabelSet | str) -> LabelSet:
    """Return the label set of a name (`scannet20` or `scannet200`, in any case).

    A label set is returned as it is.

    Raises:
        UsageError: It is neither a label set nor the name of one.
    """
    for label_set in (SCANNET20, SCANNET200):
        if value == label_set or str(value).lower() == label_set.name.lower():
            return label_set
    raise UsageError(
        f"{value!r:.80} is not a label set, expected ScanNet20 or ScanNet200",
        'labels="scannet20" or labels="scannet200" (on the command line: --label-set scannet200)',
    )


def _parse_class(row: dict[str, str]) -> LabelClass:
    """Parse a row of `scannet20.csv` or `scannet200.csv`."""
    # The columns `frequency` and `in_val` exist only in the table of ScanNet200.
    return LabelClass(
        train_id=int(row["train_id"]),
        raw_id=int(row.get("nyu40_id") or row["scannet_id"]),
        name=row["name"],
        color=(int(row["red"]), int(row["green"]), int(row["blue"])),
        frequency=row.get("frequency"),  # type: ignore[arg-type]  # one of the three words
        in_val=row.get("in_val", "1") == "1",
    )


@cache
def _lookup_table(label_set: LabelSet, other: int) -> NDArray[np.int64]:
    """Make a table that maps each raw id to its train id.

    Raw ids that are not a class are mapped to `other`. The last entry is one of them, so that a
    lookup with mode="clip" returns `other` for all larger raw ids.
    """
    import numpy as np

    table = np.full(max(label_set.ids) + 2, other, np.int64)
    table[list(label_set.ids)] = np.arange(len(label_set))
    return table
