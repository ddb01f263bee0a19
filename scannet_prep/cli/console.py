"""What a command says: results on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from scannet_prep.errors import ScanNetPrepError

if TYPE_CHECKING:
    from scannet_prep.progress import Progress

_SECONDS_BETWEEN_LINES = 30.0
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}, {rate_fmt}, {elapsed}, {remaining} left"


class Console:
    """Speaks to a person or, with `--json`, to a program."""

    def __init__(
        self,
        *,
        is_json: bool = False,
        is_quiet: bool = False,
        is_verbose: bool = False,
        has_progress: bool = True,
    ) -> None:
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.is_verbose = is_verbose
        self._has_progress = has_progress and not is_quiet

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Speak as the arguments of `add_output_arguments` say."""
        return cls(
            is_json=arguments.json,
            is_quiet=arguments.quiet,
            is_verbose=arguments.verbose,
            has_progress=not arguments.no_progress,
        )

    def say(self, text: str) -> None:
        """Tell something that is good to know, on standard error."""
        if not self.is_quiet:
            print(text, file=sys.stderr)

    def warn(self, text: str, hint: str = "") -> None:
        """Tell what went wrong, on standard error; also when quiet."""
        print(text, file=sys.stderr)
        if hint:
            print(f"hint: {hint}", file=sys.stderr)

    def result(self, text: str, value: Mapping[str, Any], status: int) -> int:
        """Give the result on standard output, in words or as one JSON object, and hand the exit status back."""
        if self.is_json:
            print(json.dumps({"exit_status": status, **value}))
        elif not self.is_quiet:
            print(text)
        return status

    def fail(self, error: ScanNetPrepError, status: int) -> None:
        """Report the error that ended the command."""
        self.warn(f"error: {error}", error.hint)
        if self.is_json:
            value = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
            print(json.dumps({"exit_status": status, **value}))

    def progress(self) -> Progress:
        """An object to hand to a stage: a bar on a terminal, a line now and then elsewhere."""
        if not self._has_progress:
            return QuietProgress(self)
        return BarProgress() if sys.stderr.isatty() else LineProgress()


class QuietProgress:
    """Shows nothing but notes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, title: str, total: int, unit: str) -> None:
        """Ignore it."""

    def advance(self, count: int = 1) -> None:
        """Ignore it."""

    def note(self, message: str) -> None:
        """Tell it, unless quiet."""
        self._console.say(message)

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
            total=total,
            desc=title,
            unit=f" {unit}",
            file=sys.stderr,
            dynamic_ncols=knows_width,
            ncols=None if knows_width else 80,
            smoothing=0.1,
            bar_format=_BAR,
        )

    def advance(self, count: int = 1) -> None:
        """Move the bar."""
        self._bar.update(count)

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        self._bar.write(message, file=sys.stderr)

    def finish(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class LineProgress:
    """Prints a line every 30 s, for logs."""

    def __init__(self) -> None:
        self._title, self._unit, self._total, self._done = "", "", 0, 0
        self._started_s = self._printed_s = 0.0

    def start(self, title: str, total: int, unit: str) -> None:
        """Begin counting."""
        self._title, self._unit, self._total, self._done = title, unit, total, 0
        self._started_s = self._printed_s = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count, and print a line if the last one is long ago."""
        self._done += count
        now_s = time.monotonic()
        if now_s - self._printed_s < _SECONDS_BETWEEN_LINES:
            return
        self._printed_s = now_s
        rate = self._done / (now_s - self._started_s)
        left_s = (self._total - self._done) / rate
        print(
            f"{self._title}: {self._done}/{self._total} {self._unit}, {rate:.1f}/s, {format_duration(left_s)} left",
            file=sys.stderr,
            flush=True,
        )

    def note(self, message: str) -> None:
        """Print a line."""
        print(message, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Nothing more to say: the command's result follows."""


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Lay out rows under a header; columns are as wide as they need to be.

    Args:
        header: Names of the columns.
        rows: Cells as text.
        right: Columns that are aligned to the right, for numbers.
    """
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_count(number: int, noun: str) -> str:
    """A number of things: `no errors`, `1 error`, `1,513 errors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"no {noun}s"


def format_bytes(count: int) -> str:
    """A size in decimal units, as disks are sold: `3.4 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def format_duration(seconds: float) -> str:
    """A time span: `12 s`, `3:20 min`, `1:05 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
