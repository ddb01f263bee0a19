"""What each split holds, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scannet_prep.scene import Split

NO_SPLIT = "none"


@dataclass(frozen=True, slots=True)
class SplitTable:
    """What each split holds.

    Attributes:
        rows: Numbers by split and by what was counted, `scenes` first; `none` holds scenes of no split.
        sums: The same of all splits together.
    """

    rows: Mapping[str, Mapping[str, int]] = field(hash=False)
    sums: Mapping[str, int] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values: `splits`, and beside it each sum by its name."""
        return {"splits": {name: dict(row) for name, row in self.rows.items()}, "scenes": 0, **self.sums}


def make_split_table(scenes: Iterable[tuple[str, Mapping[str, int]]]) -> SplitTable:
    """Add up the numbers of scenes.

    Args:
        scenes: Split and numbers of each.
    """
    found: dict[str, Counter[str]] = {}
    for split, numbers in scenes:
        row = found.setdefault(split, Counter())
        row.update({"scenes": 1, **numbers})
    rows = {name: found[name] for name in (*Split, NO_SPLIT) if name in found}
    return SplitTable({str(name): dict(row) for name, row in rows.items()}, _add(rows.values()))


def _add(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row)
    return dict(sums)
