"""Output of a command: its result on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

from scannet_prep.base.progress import Progress
from scannet_prep.base.text import count_of, format_bytes, format_duration, list_some
from scannet_prep.errors import OutputError, UsageError

if TYPE_CHECKING:
    from scannet_prep.base.findings import Finding
    from scannet_prep.cli.outcome import Outcome

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
        """Seconds since the command began."""
        return round(time.monotonic() - self._started_s, 3)

    def say(self, text: str) -> None:
        """Write a message on standard error, unless the command is quiet."""
        if not self.is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Write a problem on standard error."""
        _print(text, sys.stderr)

    def show(self, outcome: Outcome) -> int:
        """Write the outcome of a command, and return its exit status."""
        self._tell(outcome.findings)
        status = outcome.status
        if status is None:
            status = 3 if any(finding.is_error for finding in outcome.findings) else 0
        if self.is_json:
            from scannet_prep.base.json import to_plain

            self._print_json(status, to_plain(outcome.report) | to_plain(outcome.more))
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
        from scannet_prep.cli.outcome import Outcome

        finding = Finding.from_error(error)
        status = 2 if isinstance(error, UsageError) else 1
        with suppress(OSError):  # standard output itself may be broken
            self.show(Outcome(finding, findings=[finding], status=status))
        return status

    def interrupted(self) -> int:
        """Report that the command was interrupted, and return the exit status."""
        # Nothing is imported here: an interrupted import may have left a module unusable.
        message = "interrupted: run the same command again"
        self.warn(message)
        if self.is_json:
            with suppress(OSError):
                self._print_json(130, {"error": "Interrupted", "message": message})
        return 130

    def _tell(self, findings: Sequence[Finding]) -> None:
        """Write findings on standard error, then each of their hints once."""
        if self.is_quiet:
            findings = [finding for finding in findings if finding.is_error]
        shown = findings if self.is_verbose else findings[:_MAX_FINDINGS]
        for finding in shown:
            self.warn(f"{finding.severity}: {finding}")
            if finding.trace:
                self.warn(finding.trace)
        if len(shown) < len(findings):
            self.warn(f"... and {len(findings) - len(shown):,} more; all of them with -v or --json")
        for hint in dict.fromkeys(finding.hint for finding in shown if finding.hint):
            self.warn(f"hint: {hint}")

    def _print_json(self, status: int, values: dict[str, Any]) -> None:
        head = {"exit_status": status, "command": self.command, "seconds": self.seconds}
        print_out(json.dumps(head | values))

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer: at a terminal, without `--json`."""
        # Python has no standard input if its descriptor was closed (`<&-`).
        has_input = sys.stdin is not None and sys.stdin.isatty()
        return has_input and sys.stderr.isatty() and not self.is_json

    def ask(self, question: str) -> bool:
        """Ask a question on standard error.

        Returns:
            True for `y` or `yes`. Any other answer is a no, and so is the end of the input.
        """
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Show the progress of a piece of work. On a terminal, the last state of the bar stays."""
        from tqdm import tqdm

        options: dict[str, Any] = {"dynamic_ncols": True}
        if not sys.stderr.isatty():
            # A line at most every 30 s, with numbers only (ncols=0) instead of a bar. tqdm writes
            # to anything that looks like a file.
            lines = SimpleNamespace(write=self._write_line, flush=sys.stderr.flush)
            options = {"file": lines, "ncols": 0, "leave": False}
            options |= dict.fromkeys(("delay", "mininterval", "maxinterval"), _PROGRESS_INTERVAL_S)
        self._bar = tqdm(
            # Let any call of `update` redraw the bar, even if nothing was counted.
            miniters=0,
            total=total or None,  # tqdm takes None for an unknown total
            desc=title,
            unit=unit if unit == "B" else f" {unit}",  # tqdm puts no blank before it
            unit_scale=unit == "B",
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
        text = re.sub(r"^error:", "\x1b[1;31merror:\x1b[0m", text)
    print(text, file=stream, flush=True)


def format_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1
) -> str:
    """Lay out rows under a header.

    Args:
        header: Names of the columns.
        rows: Cells as text.
        text_columns: Number of columns on the left that are text; the others are numbers, which
            are aligned to the right.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.ljust(width) if index < text_columns else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_splits(splits: Mapping[str, Mapping[str, int]]) -> str:
    """Lay out a table with a row per split.

    Args:
        splits: By split, numbers by name, the same names for each. Those named `*_bytes` are sizes.
    """
    rows = []
    names: Sequence[str] = ()
    for split, numbers in splits.items():
        names = [name.removesuffix("_bytes") for name in numbers]
        row = [split]
        for name, value in numbers.items():
            row.append(format_bytes(value) if name.endswith("_bytes") else f"{value:,}")
        rows.append(row)
    return format_table(["split", *names], rows)


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


def describe_tasks(tasks: Iterable[Any]) -> tuple[dict[str, list[str]], list[str]]:
    """Describe for a dry run which scenes would be made and why.

    Args:
        tasks: The tasks of a plan, each with `scene_id` and `reason`.

    Returns:
        The scenes by reason, and the same as lines for people.
    """
    reasons: dict[str, list[str]] = {}
    for task in tasks:
        reasons.setdefault(task.reason, []).append(str(task.scene_id))
    count = sum(map(len, reasons.values()))
    lines = [f"dry run: {count_of(count, 'scene')} would be made; nothing was written"]
    for reason, scene_ids in reasons.items():
        lines.append(f"  {len(scene_ids):,}: {reason} ({list_some(scene_ids)})")
    return reasons, lines


def summarize_run(report: Any, size: str, seconds: float) -> list[str]:  # noqa: ANN401 - of any stage
    """Summarize a run that makes scenes.

    Args:
        report: The report of the run, with `made`, `kept`, `failures` and `out_dir`.
        size: Amount of data in the output folder, for example `12 files, 3.4 GB`; may be empty.
        seconds: Duration of the run.
    """
    counts = (
        f"{len(report.made):,} made, {len(report.kept):,} kept, {len(report.failures):,} failed"
    )
    size = f"{size} in " if size else ""
    return [f"{counts}, in {format_duration(seconds)}: {size}{report.out_dir}"]
