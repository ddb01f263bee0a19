"""What a command says: results on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from scannet_prep.errors import ScanNetPrepError

if TYPE_CHECKING:
    from scannet_prep.progress import Progress
    from scannet_prep.stages.finding import Finding

_MAX_HINTS = 5


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
            with suppress(OSError):  # standard output may be what is broken
                print(json.dumps({"exit_status": status, **value}), flush=True)

    def progress(self) -> Progress:
        """An object to hand to a stage: a bar on a terminal, a line now and then elsewhere."""
        from scannet_prep.cli.progress_display import BarProgress, LineProgress, QuietProgress

        if not self._has_progress:
            return QuietProgress(self.say)
        return BarProgress() if sys.stderr.isatty() else LineProgress()


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


def format_duration(seconds: float) -> str:
    """A time span: `12 s`, `3:20 min`, `1:05 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def describe_hints(findings: Sequence[Finding], *, has_all: bool) -> list[str]:
    """Each hint once."""
    hints = list(dict.fromkeys(finding.hint for finding in findings if finding.hint))
    lines = [f"hint: {hint}" for hint in (hints if has_all else hints[:_MAX_HINTS])]
    return [*lines, ""] if lines else []
