"""The label map: the table from the annotators' words (raw categories) to ids of classes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from scannet_prep.base.files import read_file
from scannet_prep.base.findings import Findings
from scannet_prep.base.text import list_some
from scannet_prep.errors import RawFileError
from scannet_prep.release.files import LABEL_MAP, SPLIT_DIRS, TASKS_DIR

LABEL_MAP_NAME = LABEL_MAP.suffix
# The hint of every error about a label map.
LABEL_MAP_HINT = f"put {LABEL_MAP_NAME} of v2 there, or remove it to use the built-in one"
# Number of rows of the label map of the release.
RELEASE_ROWS = 607

MAX_NYU40_ID = 40
# The largest number that the array `scannet_ids` of a processed scene can hold.
MAX_SCANNET_ID = 65_535

_NEEDED_COLUMNS = ("raw_category", "id", "nyu40id")
# More digits are refused before they are converted: Python converts at most 4,300.
_MAX_ID_DIGITS = 9


class RawIds(NamedTuple):
    """Ids of one raw category; both are from the same row of the label map."""

    scannet_id: int
    nyu40_id: int

    def __str__(self) -> str:
        """Return both ids as text, for messages."""
        return f"ScanNet id {self.scannet_id}, nyu40 id {self.nyu40_id}"


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
    return _parse_label_map(asset.read_text(encoding="utf-8"), Path("the built-in label map"))


def read_label_map(path: Path) -> LabelMap:
    """Read a copy of `scannetv2-labels.combined.tsv`.

    Only the columns `raw_category`, `id` and `nyu40id` are used. They are found by name, because
    the other columns differ between copies. Lines may end in LF, CRLF or CR CR LF.

    Raises:
        MissingFileError: There is no such file.
        RawFileError: The file is not such a table, has no rows, or contradicts itself.
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
    """Return the label map beside the raw scenes, or the built-in one if there is none.

    Raises:
        RawFileError: The label map beside them is damaged.
    """
    path = find_label_map(raw_dir)
    if path is None:
        return builtin_label_map()
    return read_label_map(path)


def check_label_map(raw_dir: Path, findings: Findings, *, must_match: bool) -> LabelMap:
    """Read the label map beside the raw scenes, and compare it with that of the release.

    Args:
        raw_dir: The raw tree.
        findings: Receives a note if there is no label map, and an error if it is damaged.
        must_match: Whether a difference from the label map of the release is an error or a note.

    Returns:
        The label map; the built-in one if there is none, or if it is damaged.
    """
    path = find_label_map(raw_dir)
    if path is None:
        message = "no such file: the built-in label map is used"
        findings.note(raw_dir / LABEL_MAP_NAME, message)
        return builtin_label_map()
    label_map = findings.attempt(path, read_label_map, path)
    if label_map is None:
        return builtin_label_map()
    difference = describe_differences(label_map)
    if difference and must_match:
        findings.error(path, difference, LABEL_MAP_HINT)
    elif difference:
        findings.note(path, difference)
    return label_map


def find_label_map(raw_dir: Path) -> Path | None:
    """Find the label map beside the raw scenes; None if there is none."""
    roots = [raw_dir]
    # A raw folder may be given as `scans` itself, also by way of `.` or a link.
    spellings = [raw_dir.absolute(), raw_dir.resolve()]
    roots += [folder.parent for folder in spellings if folder.name in SPLIT_DIRS.values()]
    for root in roots:
        # The layout of the official script has the label map in the root, OctFormer's in tasks.
        for candidate in (root / LABEL_MAP_NAME, root / TASKS_DIR / LABEL_MAP_NAME):
            # Also a link that leads nowhere: reading it is an error that names it.
            if os.path.lexists(candidate):
                return candidate
    return None


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
    example = differing[0]
    actual = label_map.rows.get(example, "missing")
    expected = release_rows[example]
    return (
        f"differs from the label map of the release in {len(differing):,} raw categories: "
        f"{list_some(differing)} (for example, {example!r} is {actual}, expected {expected})"
    )


def _parse_label_map(text: str, path: Path) -> LabelMap:
    """Parse the text of a label map; `path` names it in messages.

    Raises:
        RawFileError: It is not such a table, has no rows, or contradicts itself.
    """
    # Splitting at runs of line ends drops empty lines, and the second CR of CR CR LF.
    lines = [line.split("\t") for line in re.split(r"[\r\n]+", text) if line]
    header = lines[0] if lines else [""]
    missing = [name for name in _NEEDED_COLUMNS if name not in header]
    if missing:
        raise RawFileError(
            path,
            f"has no column {' or '.join(missing)}; "
            f"its first line reads {', '.join(header)[:120]!r}",
            LABEL_MAP_HINT,
        )
    name_column, id_column, nyu40_column = [header.index(name) for name in _NEEDED_COLUMNS]

    # Rows may be shorter than the header, but the last row of a file that was cut off may not.
    needed_count = 1 + max(name_column, id_column, nyu40_column)
    is_cut_off = not text.endswith(("\n", "\r"))
    rows: dict[str, RawIds] = {}
    for number, cells in enumerate(lines[1:], start=2):
        is_last = number == len(lines)
        if is_cut_off and is_last:
            needed_count = len(header)
        if len(cells) < needed_count:
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
        if name in rows and rows[name] != ids:
            raise RawFileError(
                path,
                f"row {number}: {name!r:.80} has {ids}, but an earlier row has {rows[name]}",
                LABEL_MAP_HINT,
            )
        rows[name] = ids
    if not rows:
        raise RawFileError(
            path, f"has a header and 0 rows, expected about {RELEASE_ROWS}", LABEL_MAP_HINT
        )
    return LabelMap(str(path), rows)


def _parse_id(text: str, largest: int, cell: str, path: Path) -> int:
    """Parse an id from 0 to `largest`.

    Args:
        text: The content of the cell.
        largest: The largest id that is allowed.
        cell: Row and column of the cell, for messages.
        path: Name of the file, for messages.

    Raises:
        RawFileError: The text is not such a number.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_ID_DIGITS
    if not is_number or int(text) > largest:
        raise RawFileError(
            path,
            f"{cell}: found {text[:40]!r}, expected a whole number from 0 to {largest}",
            LABEL_MAP_HINT,
        )
    return int(text)
