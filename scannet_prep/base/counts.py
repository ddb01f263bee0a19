"""Numbers of things, for messages and pages."""

from __future__ import annotations


def count_of(number: int, singular: str, plural: str = "") -> str:
    """Format a number of things: `1 scene`, `1,513 scenes`, `0 vertices`.

    Args:
        number: The number.
        singular: The noun.
        plural: Its plural, if that does not end in `s`.
    """
    noun = singular if number == 1 else plural or f"{singular}s"
    return f"{number:,} {noun}"
