"""What Python 3.10 lacks and later versions have."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform  # noqa: PLC0414
else:

    def dataclass_transform(**_options: object) -> object:
        """`typing.dataclass_transform`: tells type checkers that subclasses are dataclasses."""
        return lambda base: base


class StrEnum(str, Enum):
    """`enum.StrEnum`: a member is its text, also in f-strings."""

    __str__ = str.__str__
