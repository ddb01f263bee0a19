"""What a command says: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

from scannet_prep.errors import OutputError
from scannet_prep.failures import list_some
from scannet_prep.progress import Progress
from scannet_prep.space import format_bytes
from scannet_prep.units import format_duration

if TYPE_CHECKING:
    from scannet_prep.stages.export import ExportReport
    from scannet_prep.stages.finding import Finding
    from scannet_prep.stages.process import ProcessReport

_MAX_WIDTH = 100
_MAX_LISTED = 10
_MAX_FINDINGS = 100
_MIN_COLUMN_WIDTH = 11
_SECONDS_BETWEEN_LINES = 30.0
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(slots=True)
class Console(Progress):
    """Speaks to a person or, with `--json`, to a program.

    Shows count, rate and time left of the work of a stage by tqdm: as a bar on a terminal, else as a line every 30 s.

    Attributes:
        command: The command that runs; empty where none was chosen.
        is_json: Whether the result is one JSON object.
        is_quiet: Whether only what went wrong is told.
        is_verbose: Whether lists are shown whole.
        has_progress: Whether progress is shown.
    """

    command: str = ""
    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    has_progress: bool = True
    _started_s: float = field(default_factory=time.monotonic)
    _bar: Any = None
    _status_drawn_s: float = 0.0  # on the clock of `time.time`, as tqdm's

    @property
    def seconds(self) -> float:
        """How long the command has run."""
        return round(time.monotonic() - self._started_s, 3)

    def say(self, text: str) -> None:
        """Tell something that is good to know, on standard error."""
        if not self.is_quiet:
            self.warn(text)

    def warn(self, text: str, hint: str = "") -> None:
        """Tell what went wrong, on standard error; also when quiet."""
        _print(f"{text}\nhint: {hint}" if hint else text, sys.stderr)

    @property
    def can_ask(self) -> bool:
        """Whether a person is there to answer: at a terminal, without `--json`."""
        has_input = sys.stdin is not None and sys.stdin.isatty()
        return has_input and sys.stderr.isatty() and not self.is_json

    def explain(self, text: str) -> None:
        """Write a paragraph on standard error, broken into lines of the terminal's width."""
        columns = shutil.get_terminal_size((_MAX_WIDTH, 24)).columns or _MAX_WIDTH
        width = min(_MAX_WIDTH, columns)
        self.warn(textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False))

    def ask(self, question: str) -> bool:
        """Ask a question on standard error; any answer but `y` or `yes` means no, and so does the end of the input."""
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:  # at the end of the input, the terminal has begun no new line
            self.warn("")
        return answer.strip().lower() in {"y", "yes"}

    def tell_errors(self, findings: Iterable[Finding]) -> None:
        """Tell findings on standard error; also when quiet."""
        for finding in findings:
            trace = f"\n{finding.trace}" if finding.trace else ""
            self.warn(f"error: {finding.place}: {finding.message}{trace}", finding.hint)

    def result(self, text: str, value: object, status: int, **more: object) -> int:
        """Give the result on standard output, in words or as one JSON object, and hand the exit status back.

        Args:
            text: For people.
            value: For programs: a dataclass, or a mapping.
            status: The exit status.
            more: Values that go beside it.

        Raises:
            OutputError: Standard output cannot be written, for example because the disk is full.
        """
        if self.is_json:
            from scannet_prep.typed_json import to_plain

            frame = {"exit_status": status, **({"command": self.command} if self.command else {})}
            text = json.dumps({**frame, **to_plain(value), **to_plain(more)})
        if self.is_json or not self.is_quiet:
            print_out(text)
        return status

    def fail(self, error: str, message: str, hint: str, status: int) -> int:
        """Report the error that ended the command, and hand the exit status back; of an interrupt, in one line."""
        if error == "Interrupted":
            self.warn(f"{message}: {hint}")
        else:
            self.warn(f"error: {message}", hint)
        if self.is_json:
            with suppress(OSError):  # standard output may be what is broken
                self.result("", {"error": error, "message": message, "hint": hint}, status)
        return status

    def interrupted(self) -> int:
        """Report that the command was interrupted, and hand the exit status back."""
        return self.fail("Interrupted", "interrupted", "run the same command again", 130)

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Count; a bar stays as it is in the end."""
        from tqdm import tqdm

        # With miniters, every count may draw. Else, tqdm waits for as many as came together before.
        options: dict[str, Any] = {"dynamic_ncols": True, "miniters": 1}
        if not sys.stderr.isatty():
            lines = SimpleNamespace(write=self._write_line, flush=sys.stderr.flush)  # a file, for tqdm
            options |= {"file": lines, "dynamic_ncols": False, "ncols": 0, "leave": False}
            options |= dict.fromkeys(("delay", "mininterval", "maxinterval"), _SECONDS_BETWEEN_LINES)
        options |= {"unit": "B", "unit_scale": True} if unit == "B" else {"unit": f" {unit}"}
        # Of a total of 0, nobody knows what it is.
        self._bar = tqdm(total=total or None, desc=title, smoothing=0.1, disable=not self.has_progress, **options)
        with self._bar:
            yield

    def advance(self, count: int = 1) -> None:
        """Count."""
        self._bar.update(count)

    def status(self, text: str) -> None:
        """Put a text beside the count, and draw it even if nothing is counted meanwhile."""
        bar = self._bar
        bar.set_postfix_str(text, refresh=False)
        if bar.disable:
            return
        # tqdm draws what is counted. Its `last_print_t` stays as it is: the rate is computed from it.
        silent_s = time.time() - max(bar.last_print_t, self._status_drawn_s)
        if silent_s >= 1.5 * bar.mininterval:
            bar.refresh()
            self._status_drawn_s = time.time()

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        with self._bar.external_write_mode(file=sys.stderr) if sys.stderr.isatty() else nullcontext():
            self.say(message)

    def _write_line(self, text: str) -> None:
        """Say what tqdm writes for a terminal, with blanks before and after it."""
        if text.strip():
            self.say(text.strip())


def print_out(text: str) -> None:
    """Write a text on standard output.

    Raises:
        BrokenPipeError: The program reading the pipe has stopped.
        OutputError: Standard output cannot be written, for example because the disk is full.
    """
    try:
        _print(text, sys.stdout)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains again at exit
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def _print(text: str, stream: TextIO) -> None:
    """Write a text. What names and files may hold never controls a terminal; on one, errors are red."""
    text = _CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    if stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        text = re.sub(r"^(error|failed):", "\x1b[1;31m\\1:\x1b[0m", text)
    print(text, file=stream, flush=True)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Lay out rows under a header. Where they are too wide for the terminal, the widest text is broken.

    Args:
        header: Names of the columns.
        rows: Cells as text.
        right: Columns that are aligned to the right, for numbers.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    columns = shutil.get_terminal_size((_MAX_WIDTH, 24)).columns or _MAX_WIDTH  # 0 where a terminal does not know it
    excess = sum(widths) + 2 * (len(widths) - 1) - min(_MAX_WIDTH, columns)
    texts = [index for index in range(len(widths)) if index not in right]
    if excess > 0 and texts:
        widest = max(texts, key=lambda index: widths[index])
        widths[widest] = max(min(_MIN_COLUMN_WIDTH, widths[widest]), widths[widest] - excess)
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        broken = [textwrap.wrap(cell, width or 1) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*broken, fillvalue=""):
            aligned = [
                cell.rjust(width) if index in right else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def format_count(number: int, noun: str) -> str:
    """A number of things: `no errors`, `1 error`, `1,513 errors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"no {noun}s"


def describe_list(title: str, items: Sequence[str], *, has_all: bool) -> Iterator[str]:
    """Lines with a title and items, the first ten of them or all; nothing where there are none."""
    if not items:
        return
    yield f"\n{title}: {len(items):,}"
    shown = items if has_all else items[:_MAX_LISTED]
    for item in shown:
        yield f"  {item}"
    if len(shown) < len(items):
        yield f"  ... and {len(items) - len(shown):,} more; all of them with -v"


def describe_findings(findings: Sequence[Finding], root: str, *, has_all: bool) -> Iterator[str]:
    """Lines with findings, the first hundred of them or all, with paths below `root`; and each hint once."""
    shown = findings if has_all else findings[:_MAX_FINDINGS]
    for finding in shown:
        yield f"{finding.severity}: {finding.place.removeprefix(f'{root}/')}: {finding.message}"
    if len(shown) < len(findings):
        yield f"... and {len(findings) - len(shown):,} more; all of them with -v or --json"
    yield from dict.fromkeys(f"hint: {finding.hint}" for finding in shown if finding.hint)


def describe_made(report: ProcessReport | ExportReport, size: str, seconds: float) -> list[str]:
    """Summarize a run that makes scenes, with the command to type if something is left to do."""
    counts = f"{len(report.made):,} made, {len(report.kept):,} already there, {len(report.failures):,} failed"
    lines = [f"{counts}, in {format_duration(seconds)}: {size} in {report.out_dir}"]
    if report.failures:
        lines.append("to try the failed ones again, run the same command again")
    if report.unfinished:
        scenes = f"{format_count(len(report.unfinished), 'scene')} ({list_some(report.unfinished)})"
        lines.append(f"not finished: an earlier run had still to make {scenes}: run the command for these, too")
    return lines


def format_splits(splits: Mapping[str, Mapping[str, int]]) -> str:
    """A table of numbers by split and by what was counted; those that end in `_bytes` are sizes."""
    rows = [
        [split, *(format_bytes(value) if name.endswith("_bytes") else f"{value:,}" for name, value in row.items())]
        for split, row in splits.items()
    ]
    header = ["split", *(name.removesuffix("_bytes") for name in next(iter(splits.values()), {}))]
    return format_table(header, rows, right=frozenset(range(1, len(header))))
