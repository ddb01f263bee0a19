"""Shows progress: a bar on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from scannet_prep.cli.console import format_duration
from scannet_prep.space import format_bytes

_SECONDS_BETWEEN_LINES = 30.0
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}{postfix}, {rate_fmt}, {elapsed}, {remaining} left"
_COUNT = "{desc}: {n_fmt}{unit}{postfix}, {rate_fmt}, {elapsed}"


class QuietProgress:
    """Shows nothing but notes.

    Args:
        say: Where notes go.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def start(self, title: str, total: int, unit: str) -> None:
        """Ignore it."""

    def advance(self, count: int = 1) -> None:
        """Ignore it."""

    def resize(self, change: int) -> None:
        """Ignore it."""

    def status(self, text: str) -> None:
        """Ignore it."""

    def note(self, message: str) -> None:
        """Tell it, unless quiet."""
        self._say(message)

    def finish(self) -> None:
        """Ignore it."""


class BarProgress:
    """Draws a bar with count, rate and time left."""

    def __init__(self) -> None:
        self._bar: Any = None

    def start(self, title: str, total: int, unit: str) -> None:
        """Draw an empty bar."""
        from tqdm import tqdm

        knows_width = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some containers' terminals do not
        self._bar = tqdm(
            total=total or None,  # None: nobody knows
            desc=title,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            file=sys.stderr,
            dynamic_ncols=knows_width,
            ncols=None if knows_width else 80,
            smoothing=0.1,
            bar_format=_BAR if total else _COUNT,
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
        self._bar.write(message, file=sys.stderr)

    def finish(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class LineProgress:
    """Prints a line every 30 s, for logs."""

    def __init__(self) -> None:
        self._title, self._unit, self._status, self._total, self._done = "", "", "", 0, 0
        self._started_s = self._printed_s = 0.0

    def start(self, title: str, total: int, unit: str) -> None:
        """Begin counting."""
        self._title, self._unit, self._status, self._total, self._done = title, unit, "", total, 0
        self._started_s = self._printed_s = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count, and print a line if the last one is long ago."""
        self._done += count
        now_s = time.monotonic()
        if now_s - self._printed_s < _SECONDS_BETWEEN_LINES:
            return
        self._printed_s = now_s
        rate = self._done / (now_s - self._started_s)
        if not self._total:
            size = format_bytes(self._done) if self._unit == "B" else f"{self._done} {self._unit}"
            print(f"{self._title}: {size}", file=sys.stderr, flush=True)
            return
        left = f"{format_duration(max(0, self._total - self._done) / rate)} left" if rate > 0 else "no end in sight"
        if self._unit == "B":
            counts = f"{format_bytes(self._done)} of {format_bytes(self._total)}, {format_bytes(int(max(0.0, rate)))}/s"
        else:
            counts = f"{self._done}/{self._total} {self._unit}, {rate:.1f}/s"
        status = f", {self._status}" if self._status else ""
        print(f"{self._title}: {counts}{status}, {left}", file=sys.stderr, flush=True)

    def resize(self, change: int) -> None:
        """Change the total."""
        self._total += change

    def status(self, text: str) -> None:
        """Remember a text for the next line."""
        self._status = text

    def note(self, message: str) -> None:
        """Print a line."""
        print(message, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Nothing more to say: the command's result follows."""
