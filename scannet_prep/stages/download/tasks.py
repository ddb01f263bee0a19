"""One file of a download on its way: how often it has failed, what it says, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import FileError, NotOnServerError
from scannet_prep.remote.gate import Gate
from scannet_prep.remote.trouble import AttemptError, public_url
from scannet_prep.stages.download.checks import Facts, check_file, find_contradictions
from scannet_prep.stages.download.planning import FileOutcome, FileResult, RemoteFile


@dataclass(slots=True, eq=False)
class Task:
    """One file on its way."""

    file: RemoteFile  # the file
    path: Path  # where it belongs
    siblings: list[Task]  # the tasks of its scene, this one too
    result: FileResult | None = None  # what became of it in the end
    facts: Facts | None = None  # what it says, once it is there and was looked into
    shown_bytes: int = 0  # how much of it is there
    most_bytes: int = 0  # the most that an attempt has brought
    failures: int = 0  # how often it has failed while the server served others
    error: AttemptError | None = None  # the last failure, as long as it is unknown whose fault it was
    next_s: float = 0.0  # not to be tried before
    is_active: bool = False  # whether a thread is at it

    def fail(
        self, reason: str, hint: str = "", outcome: FileOutcome = FileOutcome.FAILED, place: str | Path = ""
    ) -> None:
        """Settle it: the file is not there."""
        self.result = FileResult(self.file, outcome, 0, reason, str(place or public_url(self.file.url)), hint)

    def is_given_up(self, gate: Gate, tries: int) -> bool:
        """Count the last failure, if it was the file's own, and settle the file if it was one too many."""
        error = self.error
        if error is None:
            return False
        if gate.down_s > error.failed_s:
            self.error = None  # in an outage, no file is to blame
        elif gate.served_s > error.failed_s:
            self.error, self.failures = None, self.failures + 1
            if self.failures >= (error.tries or tries):
                is_missing = error.error_type is NotOnServerError
                outcome = FileOutcome.MISSING if is_missing else FileOutcome.FAILED
                self.fail(error.describe(self.failures), error.hint, outcome)
        return self.result is not None


def check_siblings(task: Task) -> None:
    """Check that a file fits those of its scene that are there and whole."""
    there = [item for item in task.siblings if item is task or (item.result and not item.result.is_failure)]
    if problem := find_contradictions(read_facts(there)).get(task.file.kind.suffix):
        raise FileError(task.path, problem)


def read_facts(tasks: Sequence[Task]) -> dict[str, Facts]:
    """What files of a scene say that are there, by suffix."""
    for task in tasks:
        if task.facts is None:
            with suppress(FileError):  # its digest is the recorded one: a matter for `verify`
                task.facts = check_file(task.file, task.path)
    return {task.file.kind.suffix: task.facts for task in tasks if task.facts}
