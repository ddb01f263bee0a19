"""Tables of texts, for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A table of texts.

    Attributes:
        title: The title.
        header: The names of the columns.
        rows: The cells of each row.
        number_columns: The indices of the columns that hold numbers, which are aligned right.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    number_columns: frozenset[int] = frozenset()
