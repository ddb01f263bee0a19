"""The label map: the table from the annotators' words (raw categories) to ids of classes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from scannet_prep.base.files import read_text
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError, FileError
from scannet_prep.release.files import LABEL_MAP

# The hint of every error about a label map.
HINT_LABEL_MAP = "correct it, or replace it with that of v2; without one, the built-in one is used"

MAX_NYU40_ID = 40
# The largest number that the array `scannet_ids` of a processed scene can hold.
MAX_SCANNET_ID = 65_535

_NEEDED_COLUMNS = ("raw_category", "id", "nyu40id")
_ID = re.compile(r"\d{1,9}", re.ASCII)


class RawIds(NamedTuple):
    """Ids of one raw category; both are from the same row of the label map."""

    scannet_id: int
    nyu40_id: int


@dataclass(frozen=True)
class LabelMap:
    """The table from raw category (the annotator's text) to ids.

    Neither id can be derived from the other: ScanNet ids 107, 188 and 385 each belong to two nyu40
    ids.

    Attributes:
        source: The file it was read from, for messages.
        rows: Ids by raw category, which must match letter by letter.
    """

    source: str
    rows: Mapping[str, RawIds]

    @cached_property
    def digest(self) -> str:
        """Digest of the rows: 16 hexadecimal digits, the first of a SHA-256.

        Copies of a label map that differ only in line ends or in other columns have the same one.
        """
        lines = [
            f"{name}\t{ids.scannet_id}\t{ids.nyu40_id}\n" for name, ids in sorted(self.rows.items())
        ]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@cache
def builtin_label_map() -> LabelMap:
    """Return the label map that the ScanNet server serves (as of 2026).

    The copy in this package has only the three columns that are needed.
    """
    asset = resources.files("scannet_prep").joinpath("assets/label_map.tsv")
    return LabelMap("the built-in label map", _parse_rows(asset.read_text(encoding="utf-8")))


def read_label_map(path: Path) -> LabelMap:
    """Read a copy of `scannetv2-labels.combined.tsv`.

    Only the columns `raw_category`, `id` and `nyu40id` are used. They are found by name, because
    the other columns differ between copies.

    Raises:
        MissingFileError: There is no such file.
        FileError: The file is not such a table, has no rows, or contradicts itself.
    """
    text = read_text(path, LABEL_MAP.max_bytes)
    try:
        return LabelMap(str(path), _parse_rows(text))
    except ContentError as error:
        raise FileError(path, error.message, HINT_LABEL_MAP) from None


def label_map_at(path: Path | None) -> LabelMap:
    """Return the label map of a tree; the built-in one for None.

    Raises:
        FileError: It is damaged.
    """
    return builtin_label_map() if path is None else read_label_map(path)


def describe_differences(label_map: LabelMap) -> str:
    """Describe the raw categories of the release that a label map lacks, or maps to other ids.

    Rows beyond those of the release are not a difference: people add rows for their own
    annotations.

    Returns:
        A phrase for messages, without the name of the file; empty if there is no difference.
    """
    release_rows = builtin_label_map().rows
    differing = [name for name, ids in release_rows.items() if label_map.rows.get(name) != ids]
    if not differing:
        return ""
    return f"differs from the label map of the release: {list_some(differing)}"


def _parse_rows(text: str) -> dict[str, RawIds]:
    """Parse the text of a label map into the ids of each raw category.

    Raises:
        ContentError: It is not such a table, has no rows, or contradicts itself.
    """
    # Blanks around cells are not part of them. A quotation mark is part of a name.
    lines = [line.split("\t") for line in text.split("\n") if line.strip(" ")]
    header, *table = [[cell.strip(" ") for cell in line] for line in lines] or [[""]]
    missing = [name for name in _NEEDED_COLUMNS if header.count(name) != 1]
    if missing:
        names = ", ".join(header)
        expected = f"one column {' and one '.join(missing)}"
        raise ContentError(f"its columns are {names[:120]!r}, expected {expected}")

    rows: dict[str, RawIds] = {}
    for number, values in enumerate(table, start=2):
        # Rows may be shorter or longer than the header.
        cells = dict(zip(header, values, strict=False))
        name, id_text, nyu40_text = map(cells.get, _NEEDED_COLUMNS)
        scannet_id = _parse_id(id_text, MAX_SCANNET_ID)
        nyu40_id = _parse_id(nyu40_text, MAX_NYU40_ID)
        ids = RawIds(scannet_id, nyu40_id)
        if name is None or min(ids) < 0 or rows.setdefault(name, ids) != ids:
            raise ContentError(
                f"row {number} has {name!r:.80}, id {id_text!r:.40}, "
                f"nyu40id {nyu40_text!r:.40}; expected whole numbers up to {MAX_SCANNET_ID} "
                f"and {MAX_NYU40_ID}, which no other row contradicts"
            )
    if not rows:
        raise ContentError("has a header and 0 rows, expected about 607 as in the release")
    # The last row of a file that was cut off.
    if len(values) < len(header) and not text.endswith("\n"):
        raise ContentError(f"ends within row {number}, expected {len(header)} columns")
    return rows


def _parse_id(text: str | None, largest: int) -> int:
    """Parse an id from 0 to `largest`; -1 if the text is not such a number."""
    match = _ID.fullmatch(text or "")
    number = int(match[0]) if match else -1
    return number if number <= largest else -1
