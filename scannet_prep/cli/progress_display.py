"""Shows progress by tqdm: a bar on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from scannet_prep.progress import Progress

_SECONDS_BETWEEN_LINES = 30.0
# What does not fit is cut off at the end; on narrow terminals, the title is left out first.
_NARROW = 80
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}UNIT, {remaining}, {rate_noinv_fmt}{postfix}"
_LINE = "{desc}: {n_fmt}/{total_fmt}UNIT, {remaining} left, {rate_noinv_fmt}{postfix}"
_COUNT = "{desc}: {n_fmt}UNIT, {elapsed}, {rate_noinv_fmt}{postfix}"


class NotesOnly(Progress):
    """Shows nothing but notes.

    Args:
        say: Where notes go.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def note(self, message: str) -> None:
        """Tell it, unless quiet."""
        self._say(message)


class ShownProgress(NotesOnly):
    """Shows count, rate and time left: as a bar on a terminal, else as a line every 30 s."""

    _bar: Any = None

    def start(self, title: str, total: int, unit: str) -> None:
        """Begin to count."""
        from tqdm import tqdm

        options: dict[str, Any] = {"file": _Lines(self._say), "delay": _SECONDS_BETWEEN_LINES}
        options |= {"mininterval": _SECONDS_BETWEEN_LINES, "maxinterval": _SECONDS_BETWEEN_LINES, "leave": False}
        shape = _LINE if total else _COUNT
        if sys.stderr.isatty():
            columns = os.get_terminal_size(sys.stderr.fileno()).columns  # 0 where a container's terminal does not know
            options = {"file": sys.stderr, "dynamic_ncols": columns > 0, "ncols": None if columns else 80}
            shape = (_BAR if total else _COUNT).removeprefix("{desc}: " if 0 < columns < _NARROW else "")
        self._bar = tqdm(
            total=total or None,  # None: nobody knows
            desc=title,
            unit="B" if unit == "B" else "",
            unit_scale=unit == "B",
            smoothing=0.1,
            bar_format=shape.replace("UNIT", "B" if unit == "B" else f" {unit}"),
            **options,
        )

    def advance(self, count: int = 1) -> None:
        """Count."""
        self._bar.update(count)

    def resize(self, change: int) -> None:
        """Change what stands for everything."""
        if change and self._bar.total is not None:
            self._bar.total = max(0, self._bar.total + change)

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
