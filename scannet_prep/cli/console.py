"""Output of a command: its result on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

from scannet_prep.base.progress import Progress
from scannet_prep.base.text import format_bytes, format_duration, list_some
from scannet_prep.errors import OutputError

if TYPE_CHECKING:
    from scannet_prep.base.findings import Finding
    from scannet_prep.cli.outcome import Outcome
    from scannet_prep.stages.export import ExportReport
    from scannet_prep.stages.frames import FramesReport
    from scannet_prep.stages.process import ProcessReport

_MAX_WIDTH = 100
_MIN_COLUMN_WIDTH = 11
# Number of entries of a list, and of findings, that are shown without -v.
_MAX_LISTED = 10
_MAX_FINDINGS = 100
# Pause between lines of progress where there is no terminal.
_PROGRESS_INTERVAL_S = 30.0
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
        _bar: The tqdm bar of the current piece of work; None before the first one.
        _status_drawn_s: When `status` last drew the bar, in seconds of `time.time`, which is the
            clock of tqdm.
    """

    command: str = ""
    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    has_progress: bool = True
    _started_s: float = field(default_factory=time.monotonic)
    _bar: Any = None
    _status_drawn_s: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the command has run, in seconds."""
        return round(time.monotonic() - self._started_s, 3)

    def say(self, text: str) -> None:
        """Write a message on standard error, unless the command is quiet."""
        if not self.is_quiet:
            self.warn(text)

    def warn(self, text: str, hint: str = "") -> None:
        """Write a problem, and what to do about it, on standard error."""
        if hint:
            text = f"{text}\nhint: {hint}"
        _print(text, sys.stderr)

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer: at a terminal, without `--json`."""
        # Python has no standard input if its descriptor was closed (`<&-`).
        has_input = sys.stdin is not None and sys.stdin.isatty()
        return has_input and sys.stderr.isatty() and not self.is_json

    def explain(self, text: str) -> None:
        """Write a paragraph on standard error, broken into lines of the terminal's width."""
        lines = textwrap.fill(
            text, _terminal_width(), break_long_words=False, break_on_hyphens=False
        )
        self.warn(lines)

    def ask(self, question: str) -> bool:
        """Ask a question on standard error.

        Returns:
            True for `y` or `yes`. Any other answer is a no, and so is the end of the input.
        """
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            # At the end of the input (Ctrl-D), the terminal does not begin a new line.
            self.warn("")
        return answer.strip().lower() in {"y", "yes"}

    def tell_errors(self, findings: Iterable[Finding]) -> None:
        """Write findings on standard error, also if the command is quiet."""
        for finding in findings:
            trace = f"\n{finding.trace}" if finding.trace else ""
            self.warn(f"error: {finding.place}: {finding.message}{trace}", finding.hint)

    def show(self, outcome: Outcome) -> int:
        """Write the outcome of a command, and return its exit status."""
        self.tell_errors(finding for finding in outcome.findings if finding.is_error)
        status = outcome.status
        if status is None:
            status = 3 if any(finding.is_error for finding in outcome.findings) else 0
        text = "\n".join(outcome.lines)
        return self.result(text, outcome.report, status, **outcome.more)

    def result(self, text: str, value: object, status: int, **more: object) -> int:
        """Write the result on standard output, as text or as one JSON object.

        Args:
            text: For people.
            value: For programs: a dataclass, or a mapping.
            status: The exit status.
            more: Further values for the JSON object, by key.

        Returns:
            The exit status.

        Raises:
            OutputError: Standard output cannot be written, for example because the disk is full.
        """
        if self.is_json:
            from scannet_prep.base.json import to_plain

            fields: dict[str, object] = {"exit_status": status}
            if self.command:
                fields["command"] = self.command
            text = json.dumps(fields | to_plain(value) | to_plain(more))
        if self.is_json or not self.is_quiet:
            print_out(text)
        return status

    def fail(self, error: str, message: str, hint: str, status: int) -> int:
        """Report the error that ended the command. An interrupt is reported in one line.

        Args:
            error: Class of the exception, or `Interrupted`.
            message: What was found.
            hint: What to do about it; may be empty.
            status: The exit status.

        Returns:
            The exit status.
        """
        if error == "Interrupted":
            self.warn(f"{message}: {hint}")
        else:
            self.warn(f"error: {message}", hint)
        if self.is_json:
            with suppress(OSError):  # standard output itself may be broken
                self.result("", {"error": error, "message": message, "hint": hint}, status)
        return status

    def interrupted(self) -> int:
        """Report that the command was interrupted, and return the exit status."""
        return self.fail("Interrupted", "interrupted", "run the same command again", 130)

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Show the progress of a piece of work. On a terminal, the last state of the bar stays."""
        from tqdm import tqdm

        if sys.stderr.isatty():
            options: dict[str, Any] = {"dynamic_ncols": True}
        else:
            # A line at most every 30 s, with numbers only (ncols=0) instead of a bar. tqdm writes
            # to anything that looks like a file.
            lines = SimpleNamespace(write=self._write_line, flush=sys.stderr.flush)
            options = {
                "file": lines,
                "ncols": 0,
                "leave": False,
                "delay": _PROGRESS_INTERVAL_S,
                "mininterval": _PROGRESS_INTERVAL_S,
                "maxinterval": _PROGRESS_INTERVAL_S,
            }
        if unit == "B":
            options |= {"unit": "B", "unit_scale": True}
        else:
            options["unit"] = f" {unit}"  # tqdm puts no blank between number and unit
        self._bar = tqdm(
            # Let any count redraw the bar. By default, tqdm waits until the count has grown by as
            # much as it did between earlier redraws.
            miniters=1,
            total=total or None,  # tqdm takes None for an unknown total
            desc=title,
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
        bar = self._bar
        bar.set_postfix_str(text, refresh=False)
        if bar.disable:
            return
        # tqdm redraws the bar when something is counted. Redraw it here only if that has not
        # happened for one and a half intervals. `last_print_t` must stay as it is, because tqdm
        # computes the rate from it.
        now_s = time.time()
        silent_s = now_s - max(bar.last_print_t, self._status_drawn_s)
        if silent_s >= 1.5 * bar.mininterval:
            bar.refresh()
            self._status_drawn_s = now_s

    def note(self, message: str) -> None:
        """Write a line above the bar, unless the command is quiet."""
        if not sys.stderr.isatty():
            self.say(message)
            return
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
    except OSError as error:
        # Python flushes standard output at exit, and would report the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def _print(text: str, stream: TextIO) -> None:
    """Write a text, in which control characters are visible; on a terminal, errors are red.

    Names and contents of files may contain control characters, which must not control a terminal.
    """
    text = _CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    wants_color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if wants_color and stream.isatty():
        text = re.sub(r"^(error|failed):", "\x1b[1;31m\\1:\x1b[0m", text)
    print(text, file=stream, flush=True)


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> str:
    """Lay out rows under a header.

    If the table is too wide for the terminal, its widest column of text is broken into lines.

    Args:
        header: Names of the columns.
        rows: Cells as text.
        right: Indices of the columns that are aligned to the right, for numbers.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    gaps = 2 * (len(widths) - 1)
    excess = sum(widths) + gaps - _terminal_width()
    # Columns of numbers keep their width.
    text_columns = [index for index in range(len(widths)) if index not in right]
    if excess > 0 and text_columns:
        widest = max(text_columns, key=lambda index: widths[index])
        least = min(_MIN_COLUMN_WIDTH, widths[widest])
        widths[widest] = max(least, widths[widest] - excess)

    rule = ["-" * width for width in widths]
    lines = []
    for row in (header, rule, *rows):
        # Lines of each cell. A column of empty texts has the width 0, which `wrap` refuses.
        wrapped = [textwrap.wrap(cell, width or 1) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*wrapped, fillvalue=""):
            aligned = []
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
                aligned.append(cell.rjust(width) if index in right else cell.ljust(width))
            lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _terminal_width() -> int:
    """Return the width of the terminal, at most 100; some terminals report 0."""
    columns = shutil.get_terminal_size((_MAX_WIDTH, 24)).columns or _MAX_WIDTH
    return min(_MAX_WIDTH, columns)


def format_count(number: int, noun: str) -> str:
    """Format a number of things: `no errors`, `1 error`, `1,513 errors`."""
    if number == 0:
        return f"no {noun}s"
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def describe_list(title: str, entries: Sequence[str], *, has_all: bool) -> Iterator[str]:
    """Yield a title and a list of entries, one per line; nothing if there are no entries.

    Args:
        title: The title.
        entries: The entries.
        has_all: Whether to show all entries, or only the first ten.
    """
    if not entries:
        return
    yield f"\n{title}: {len(entries):,}"
    shown = entries if has_all else entries[:_MAX_LISTED]
    for entry in shown:
        yield f"  {entry}"
    if len(shown) < len(entries):
        yield f"  ... and {len(entries) - len(shown):,} more; all of them with -v"


def describe_findings(findings: Sequence[Finding], root: str, *, has_all: bool) -> Iterator[str]:
    """Yield lines with findings, then each of their hints once.

    Args:
        findings: The findings.
        root: A folder; paths in it are shown relative to it.
        has_all: Whether to show all findings, or only the first hundred.
    """
    shown = findings if has_all else findings[:_MAX_FINDINGS]
    for finding in shown:
        place = finding.place.removeprefix(f"{root}/")
        yield f"{finding.severity}: {place}: {finding.message}"
    if len(shown) < len(findings):
        yield f"... and {len(findings) - len(shown):,} more; all of them with -v or --json"
    hints = dict.fromkeys(finding.hint for finding in shown if finding.hint)
    for hint in hints:
        yield f"hint: {hint}"


def summarize_run(
    report: ProcessReport | ExportReport | FramesReport, size: str, seconds: float
) -> list[str]:
    """Summarize a run that makes scenes, and describe how to make those that are missing.

    Args:
        report: The report of the run.
        size: Amount of data in the output folder, for example `12 files, 3.4 GB`.
        seconds: Duration of the run.
    """
    counts = (
        f"{len(report.made):,} made, {len(report.kept):,} already there, "
        f"{len(report.failures):,} failed"
    )
    lines = [f"{counts}, in {format_duration(seconds)}: {size} in {report.out_dir}"]
    if report.failures:
        lines.append("to try the failed ones again, run the same command again")
    if report.unfinished:
        scenes = format_count(len(report.unfinished), "scene")
        lines.append(
            f"not finished: an earlier run was stopped before it made {scenes} "
            f"({list_some(report.unfinished)}); run the command for these, too"
        )
    return lines


def format_splits(splits: Mapping[str, Mapping[str, int]]) -> str:
    """Lay out a table with a row per split.

    Args:
        splits: By split, numbers by name, the same names for each. Those named `*_bytes` are sizes.
    """
    header = ["split"]
    first_row = next(iter(splits.values()), {})
    header += [name.removesuffix("_bytes") for name in first_row]

    rows = []
    for split, numbers in splits.items():
        row = [split]
        for name, value in numbers.items():
            row.append(format_bytes(value) if name.endswith("_bytes") else f"{value:,}")
        rows.append(row)
    return format_table(header, rows, right=frozenset(range(1, len(header))))
