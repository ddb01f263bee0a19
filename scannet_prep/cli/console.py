"""The outcome of a command: its result on standard output, all else on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

from scannet_prep.base.progress import Progress
from scannet_prep.errors import OutputError, UsageError

if TYPE_CHECKING:
    from scannet_prep.base.findings import Finding

# Number of findings that are shown without -v.
_MAX_FINDINGS = 100
# Pause between lines of progress where there is no terminal.
_PROGRESS_INTERVAL_S = 30.0
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command, for people, for programs, and as an exit status.

    Attributes:
        report: For programs: a dataclass or a mapping, which `--json` prints.
        lines: For people, on standard output.
        findings: For people: what failed, on standard error. Errors among them make the exit
            status 3. Programs find them in the report.
        status: The exit status, if it is not that of the findings.
    """

    report: object
    lines: Iterable[str] = ()
    findings: Sequence[Finding] = ()
    status: int | None = None


@dataclass(slots=True)
class Console(Progress):
    """Writes for a person or, with `--json`, for a program.

    It also shows the progress of a stage, drawn by tqdm: count, rate and time left, as a bar on a
    terminal, elsewhere as a line every 30 s.

    Attributes:
        command: The command that runs; empty if none was chosen.
        is_json: Whether the result is one JSON object.
        is_quiet: Whether only problems are shown.
        is_verbose: Whether long lists are shown completely.
        has_progress: Whether progress is shown.
    """

    command: str = ""
    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    has_progress: bool = True
    _started_s: float = field(default_factory=time.monotonic)
    _bar: Any = None

    @property
    def seconds(self) -> float:
        """How long the command has run, in seconds."""
        return round(time.monotonic() - self._started_s, 3)

    def say(self, text: str) -> None:
        """Write a message on standard error, unless the command is quiet."""
        if not self.is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Write a problem on standard error. If that fails, the work goes on without it."""
        with suppress(OSError):
            _print(text, sys.stderr)

    def show(self, outcome: Outcome) -> int:
        """Write the outcome of a command, and return its exit status."""
        self._tell(outcome.findings)
        status = outcome.status
        if status is None:
            has_errors = any(finding.is_error for finding in outcome.findings)
            status = 3 if has_errors else 0
        if self.is_json:
            from scannet_prep.base.json import to_plain

            head = {
                "exit_status": status,
                "command": self.command,
                "seconds": self.seconds,
            }
            print_out(json.dumps(head | to_plain(outcome.report)))
        elif not self.is_quiet:
            text = "\n".join(outcome.lines)
            if text:
                print_out(text)
        return status

    def stop(self, error: Exception) -> int:
        """Report the error that ended the command, and return the exit status.

        The traceback of a bug is shown, too.
        """
        from scannet_prep.base.findings import Finding

        finding = Finding.from_error(error)
        status = 2 if isinstance(error, UsageError) else 1
        outcome = Outcome(finding, findings=[finding], status=status)
        with suppress(OSError):  # standard output itself may be broken
            self.show(outcome)
        return status

    def _tell(self, findings: Sequence[Finding]) -> None:
        """Write findings on standard error, then each of their hints once."""
        if self.is_quiet:
            findings = [finding for finding in findings if finding.is_error]
        shown = findings if self.is_verbose else findings[:_MAX_FINDINGS]
        # Without doubles, in order.
        hints = {}
        for finding in shown:
            line = f"{finding.severity}: {finding}"
            # A name with a line feed must not look like another finding.
            self.warn(line.replace("\n", "\\x0a"))
            if finding.trace:
                self.warn(finding.trace)
            if finding.hint:
                hints[finding.hint] = f"hint: {finding.hint}"
        left_out = len(findings) - len(shown)
        if left_out:
            self.warn(f"... and {left_out:,} more; all of them with -v or --json")
        for hint in hints.values():
            self.warn(hint)

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Show the progress of a piece of work. On a terminal, the last state of the bar stays."""
        from threading import RLock

        from tqdm import tqdm

        # tqdm's own lock can be shared by processes. Python 3.14 warns about that after Ctrl-C.
        tqdm.set_lock(RLock())
        options: dict[str, Any] = {"dynamic_ncols": True}
        if not sys.stderr.isatty():
            # A line at most every 30 s, with numbers only (ncols=0) instead of a bar. tqdm writes
            # to anything that looks like a file.
            options = {
                "file": SimpleNamespace(write=self._write_line, flush=sys.stderr.flush),
                "ncols": 0,
                "leave": False,
                "delay": _PROGRESS_INTERVAL_S,
                "mininterval": _PROGRESS_INTERVAL_S,
                "maxinterval": _PROGRESS_INTERVAL_S,
            }
        is_bytes = unit == "B"
        self._bar = tqdm(
            # Let any call of `update` redraw the bar, even if nothing was counted.
            miniters=0,
            total=total or None,  # tqdm takes None for an unknown total
            desc=title,
            unit=unit if is_bytes else f" {unit}",  # tqdm puts no blank before it
            unit_scale=is_bytes,
            smoothing=0.1,
            disable=not self.has_progress,
            **options,
        )
        with self._bar:
            yield

    def advance(self, count: int = 1) -> None:
        """Add to the count."""
        self._bar.update(count)

    def status(self, text: str) -> None:
        """Show a text beside the count, also while the count does not change."""
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(0)

    def note(self, message: str) -> None:
        """Write a line above the bar, unless the command is quiet."""
        from tqdm import tqdm

        # This removes the bar, if there is one, and draws it again below the line.
        with tqdm.external_write_mode(file=sys.stderr):
            self.say(message)

    def _write_line(self, text: str) -> None:
        """Write a line of tqdm, without the blanks and carriage returns for a terminal.

        To clear its line, tqdm writes only blanks and carriage returns. Such a text is dropped.
        """
        line = text.strip()
        if line:
            self.say(line)


def print_out(text: str) -> None:
    """Write a text on standard output.

    Raises:
        BrokenPipeError: The program reading the pipe has stopped.
        OutputError: Standard output cannot be written, for example because the disk is full.
    """
    try:
        _print(text, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def _print(text: str, stream: TextIO) -> None:
    """Write a text, in which control characters are visible.

    Names and contents of files may contain control characters, which must not control a terminal.

    Raises:
        OSError: The stream cannot be written. Later texts are dropped.
    """
    text = _CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    try:
        print(text, file=stream, flush=True)
    except OSError:
        # Python flushes the streams at exit, and would end with another status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out rows under a header.

    Args:
        header: Names of the columns.
        rows: Cells as text. Those of the first column are aligned to the left, all others, which
            are numbers, to the right.
    """
    table = [header, *rows]
    columns = zip(*table, strict=True)
    widths = [max(map(len, column)) for column in columns]
    dashes = ["-" * width for width in widths]
    table.insert(1, dashes)
    lines = []
    for first, *numbers in table:
        cells = [first.ljust(widths[0])]
        cells += map(str.rjust, numbers, widths[1:])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
