"""Takes values out of parsed JSON and checks their types, so that a damaged file never passes as a good one."""

from __future__ import annotations

from typing import Any

from scannet_prep.errors import ContentError

_LARGEST_COUNT = 1 << 48


def take(value: object, key: str, *types: type) -> Any:  # noqa: ANN401 - one of `types`
    """Take one value of a JSON object, which has exactly one of some types; `bool` is not `int` here.

    Raises:
        ContentError: It is not there, or of another type.
    """
    if not isinstance(value, dict) or key not in value:
        raise ContentError(f"{value!r:.60} has no {key!r}")
    if type(value[key]) not in types:
        expected = " or ".join(item.__name__ for item in types)
        raise ContentError(f"{key!r} is {value[key]!r:.40}, expected {expected}")
    return value[key]


def take_count(value: object, key: str, smallest: int = 0) -> int:
    """Take a number of things or bytes.

    Raises:
        ContentError: It is not there, not a whole number, too small, or absurdly large.
    """
    found: int = take(value, key, int)
    if not smallest <= found < _LARGEST_COUNT:
        raise ContentError(f"{key!r} is {found!r:.40}, expected a number from {smallest} on")
    return found
