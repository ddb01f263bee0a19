"""What Python 3.10 lacks and later versions have."""

from __future__ import annotations

import sys
from enum import Enum


class StrEnum(str, Enum):
    """`enum.StrEnum`: a member is its text, also in f-strings."""

    __str__ = str.__str__


def add_note(error: BaseException, note: str) -> None:
    """`error.add_note(note)`; Python 3.10 shows the note as the end of the message."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
