"""What Python 3.10 lacks and later versions have."""

from __future__ import annotations

from enum import Enum


class StrEnum(str, Enum):
    """`enum.StrEnum`: a member is its text, also in f-strings."""

    __str__ = str.__str__
