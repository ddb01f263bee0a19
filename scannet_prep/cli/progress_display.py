"""Shows progress by tqdm: a bar on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from scannet_prep.progress import Progress

_SECONDS_BETWEEN_LINES = 30.0


class ShownProgress(Progress):
    """Shows count, rate and time left: as a bar on a terminal, else as a line every 30 s.

    Args:
        say: Where notes and lines go.
        has_count: Whether more than notes is shown.
    """

    def __init__(self, say: Callable[[str], None], *, has_count: bool = True) -> None:
        self._say, self._has_count = say, has_count
        self._bar: Any = None

    def start(self, title: str, total: int, unit: str) -> None:
        """Begin to count."""
        from tqdm import tqdm

        options: dict[str, Any] = {"dynamic_ncols": True}
        if not sys.stderr.isatty():
            options = {"file": _Lines(self._say), "ncols": 0, "leave": False}
            options |= dict.fromkeys(("delay", "mininterval", "maxinterval"), _SECONDS_BETWEEN_LINES)
        options |= {"unit": "B", "unit_scale": True} if unit == "B" else {"unit": f" {unit}"}
        # Of a total of 0, nobody knows what it is.
        self._bar = tqdm(total=total or None, desc=title, smoothing=0.1, disable=not self._has_count, **options)

    def advance(self, count: int = 1) -> None:
        """Count."""
        self._bar.update(count)

    def status(self, text: str) -> None:
        """Put a text beside the count."""
        self._bar.set_postfix_str(text, refresh=False)

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        with self._bar.external_write_mode(file=sys.stderr) if sys.stderr.isatty() else nullcontext():
            self._say(message)

    def finish(self) -> None:
        """Leave a bar as it is."""
        self._bar.close()


class _Lines:
    """A file that takes what tqdm writes for a terminal, and says it line by line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> None:
        if text.strip():
            self._say(text.strip())

    def flush(self) -> None:
        """Nothing is held back."""
