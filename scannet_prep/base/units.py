"""Sizes and durations as text, such as `500kB`, `4GiB`, `30m` and `12h30m`.

A number without a unit is refused: a shard size of `2`, meant as 2 GB, would be two bytes, and
every scene would get its own archive.
"""

from __future__ import annotations

import re

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,3})?"
_PLAIN_NUMBER = re.compile(_NUMBER)
_SIZE = re.compile(rf"({_NUMBER})\s*(?:([kKMGT])(i?B)?|B)")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE_EXAMPLES = "for example 500kB, 2MB or 4GiB"

_DURATION = re.compile(
    rf"(?:({_NUMBER})\s*d)?\s*"
    rf"(?:({_NUMBER})\s*h)?\s*"
    rf"(?:({_NUMBER})\s*m(?:in)?)?\s*"
    rf"(?:({_NUMBER})\s*s)?"
)
# In the order of the groups of `_DURATION`.
_SECONDS_PER_UNIT = (86_400, 3_600, 60, 1)
_DURATION_EXAMPLES = "for example 90s, 30m or 12h30m"


def parse_size(text: str) -> int:
    """Parse a size into bytes.

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
    base = 1000 if ending == "B" else 1024
    size_bytes = int(float(number) * base ** _POWERS.get(prefix, 0))
    if size_bytes < 1:
        raise ValueError(f"{text!r} is less than one byte, {_SIZE_EXAMPLES}")
    return size_bytes


def parse_duration(text: str) -> float:
    """Parse a duration in days, hours, minutes and seconds, such as `12h30m`, into seconds.

    Raises:
        ValueError: The text has no unit, is not a duration, or is zero.
    """
    text = text.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} has no unit, {_DURATION_EXAMPLES}")
    match = _DURATION.fullmatch(text.lower())
    if match is None or not text:
        raise ValueError(f"{text!r:.80} is not a duration, {_DURATION_EXAMPLES}")
    numbers = [float(number or 0) for number in match.groups()]
    seconds = sum(
        number * unit_s for number, unit_s in zip(numbers, _SECONDS_PER_UNIT, strict=True)
    )
    if not seconds:
        raise ValueError(f"{text!r} is zero, {_DURATION_EXAMPLES}")
    return seconds


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units.

    Returns:
        For example `0.3 s`, `12 s`, `3 min 20 s`, `1 h 5 min` or `2 d`.
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    rest = round(seconds)
    parts = []
    for unit_s, unit in zip(_SECONDS_PER_UNIT, ("d", "h", "min", "s"), strict=True):
        number, rest = divmod(rest, unit_s)
        parts.append((number, unit))
    first_index = next(index for index, (number, _) in enumerate(parts) if number)
    largest = parts[first_index : first_index + 2]
    return " ".join(f"{number} {unit}" for number, unit in largest if number)
