"""Shows progress: a bar on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from scannet_prep.progress import NoProgress

_SECONDS_BETWEEN_LINES = 30.0
# Short enough for 60 columns.
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}{postfix}, {rate_fmt}, {remaining}"
_LINE = "{desc}: {n_fmt}/{total_fmt}{unit}{postfix}, {rate_fmt}, {remaining} left"
_COUNT = "{desc}: {n_fmt}{unit}{postfix}, {rate_fmt}, {elapsed}"


class NotesOnly(NoProgress):
    """Shows nothing but notes.

    Args:
        say: Where notes go.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def note(self, message: str) -> None:
        """Tell it, unless quiet."""
        self._say(message)


class BarProgress(NotesOnly):
    """Draws a bar with count, rate and time left."""

    _bar: Any = None

    def start(self, title: str, total: int, unit: str) -> None:
        """Draw an empty bar."""
        from tqdm import tqdm

        knows_width = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some containers' terminals do not
        self._bar = tqdm(
            file=sys.stderr,
            dynamic_ncols=knows_width,
            ncols=None if knows_width else 80,
            smoothing=0.1,
            **_describe(title, total, unit),
        )

    def advance(self, count: int = 1) -> None:
        """Move the bar."""
        self._bar.update(count)

    def resize(self, change: int) -> None:
        """Change the length that stands for everything."""
        if change and self._bar.total is not None:
            self._bar.total = max(0, self._bar.total + change)

    def status(self, text: str) -> None:
        """Put a text beside the count."""
        self._bar.set_postfix_str(text, refresh=False)

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        with self._bar.external_write_mode(file=sys.stderr):
            self._say(message)

    def finish(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class LineProgress(NotesOnly):
    """Prints a line every 30 s, for logs."""

    _options: dict[str, Any]
    _done = 0
    _started_s = _printed_s = 0.0

    def start(self, title: str, total: int, unit: str) -> None:
        """Begin counting."""
        self._options, self._done = _describe(title, total, unit), 0
        self._started_s = self._printed_s = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count, and print a line if the last one is long ago."""
        self._done += count
        now_s = time.monotonic()
        if now_s - self._printed_s >= _SECONDS_BETWEEN_LINES:
            from tqdm import tqdm

            self._printed_s = now_s
            elapsed_s = now_s - self._started_s
            options = self._options | {"bar_format": _LINE if self._options["total"] else _COUNT}
            self._say(tqdm.format_meter(self._done, elapsed=elapsed_s, prefix=options.pop("desc"), **options))

    def resize(self, change: int) -> None:
        """Change the total."""
        self._options["total"] += change

    def status(self, text: str) -> None:
        """Remember a text for the next line."""
        self._options["postfix"] = text


def _describe(title: str, total: int, unit: str) -> dict[str, Any]:
    """What tqdm has to know of a piece of work."""
    return {
        "total": total or None,  # None: nobody knows
        "desc": title,
        "unit": unit if unit == "B" else f" {unit}",
        "unit_scale": unit == "B",
        "bar_format": _BAR if total else _COUNT,
    }
