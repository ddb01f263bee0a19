"""Numbers of things, sizes, durations and lists as text, and sizes from text."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,3})?"
_PLAIN_NUMBER = re.compile(_NUMBER)
_SIZE = re.compile(rf"({_NUMBER})\s*(?:([kKMGT])(i?B)?|B)")
# The power of 1000 or 1024 that a prefix stands for.
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE_EXAMPLES = "for example 500kB, 2MB or 4GiB"


def parse_size(text: str) -> int:
    """Parse a size into bytes. A number without a unit is refused.

    `4GB` is 4 * 1000**3 bytes; `4G` and `4GiB` are 4 * 1024**3, as for `split` and other tools.

    Raises:
        ValueError: The text has no unit, is not a size, or is less than one byte.
    """
    text = text.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} has no unit, {_SIZE_EXAMPLES}")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is not a size, {_SIZE_EXAMPLES}")
    number, prefix, ending = match.groups()
    # Without a prefix, the unit is B.
    unit_bytes = 1
    if prefix is not None:
        base = 1000 if ending == "B" else 1024
        unit_bytes = base ** _POWERS[prefix]
    size_bytes = int(float(number) * unit_bytes)
    if size_bytes < 1:
        raise ValueError(f"{text!r} is less than one byte, {_SIZE_EXAMPLES}")
    return size_bytes


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units: `0.3 s`, `12 s`, `3 min 20 s`, `30 h 5 min`."""
    # From 9.95 on, a decimal would give 10.0 s; whole seconds are precise enough.
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {rest_minutes} min"
    if minutes:
        return f"{minutes} min {rest_s} s"
    return f"{rest_s} s"


def count_of(number: int, singular: str, plural: str = "") -> str:
    """Format a number of things: `1 scene`, `1,513 scenes`, `0 vertices`.

    Args:
        number: The number.
        singular: The noun.
        plural: Its plural, if that does not end in `s`.
    """
    noun = singular if number == 1 else plural or f"{singular}s"
    return f"{number:,} {noun}"


def format_bytes(count: int) -> str:
    """Format a size in decimal units, as makers of disks do: `3.4 GB`."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    size /= 1000
    return f"{size:.2f} TB"


def list_some(names: Sequence[str], shown: int = 3) -> str:
    """Join the first names and count the others, as in `a, b, c and 4 more`."""
    text = ", ".join(names[:shown])
    if len(names) > shown:
        text += f" and {len(names) - shown:,} more"
    return text
