"""Numbers of things, sizes, durations and lists as text."""

from __future__ import annotations

from collections.abc import Sequence


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


def count_of(number: int, noun: str) -> str:
    """Format a number of things, whose plural ends in `s`: `1 scene`, `1,513 scenes`."""
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"


def format_bytes(size: float) -> str:
    """Format a size in decimal units, as makers of disks do: `3.4 GB`."""
    if size < 1000:
        return f"{size} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        # From 999.95 on, a decimal would give 1000.0.
        if size < 999.95:
            return f"{size:.1f} {unit}"
    size /= 1000
    return f"{size:.2f} TB"


def list_some(names: Sequence[str], shown: int = 3) -> str:
    """Join the first names and count the others, as in `a, b, c and 4 more`."""
    text = ", ".join(names[:shown])
    if len(names) > shown:
        text += f" and {len(names) - shown:,} more"
    return text
