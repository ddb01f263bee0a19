"""Parts of the standard library that Python 3.10 lacks."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform  # noqa: PLC0414
else:

    def dataclass_transform(**_options: object) -> object:
        """Return a decorator that does nothing; only type checkers need `dataclass_transform`."""

        def decorate(base: object) -> object:
            return base

        return decorate


class StrEnum(str, Enum):
    """Enumeration of strings, as `enum.StrEnum`: a member is its text, also in f-strings."""

    __str__ = str.__str__
