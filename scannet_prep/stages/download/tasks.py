"""The files of a scene on their way: what a thread of a download does with them. One thread at a time is at a scene."""

from __future__ import annotations

import stat
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import DiskFullError, FileError, NotOnServerError, OutputError, TransferError
from scannet_prep.raw.lock import LOCK_NAME, digest_file, read_locks
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import PROGRESS_BYTES
from scannet_prep.remote.transfer import Partial, aria2_path, receive
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url
from scannet_prep.stages.download.checks import Facts, check_file, find_contradictions
from scannet_prep.stages.download.planning import DownloadPlan, FileOutcome, FileResult


@dataclass(slots=True, eq=False)
class Task(FileResult):
    """One file on its way."""

    path: Path = Path()  # where it belongs
    facts: Facts | None = None  # what it says, once it is there and was looked into
    partial: Partial | None = None  # what has arrived of it
    most_bytes: int = 0  # the most that has been there
    failures: int = 0  # how often it has failed while the server served others
    next_s: float = 0.0  # not to be tried before

    @property
    def shown_bytes(self) -> int:
        """How much of it is there."""
        return self.partial.size_bytes if self.partial and not self.outcome else self.size_bytes

    def fail(
        self, reason: str, hint: str = "", outcome: FileOutcome = FileOutcome.FAILED, place: str | Path = ""
    ) -> None:
        """Settle it: the file is not there."""
        self.place, self.reason, self.hint = str(place or public_url(self.file.url)), reason, hint
        self.size_bytes, self.outcome = 0, outcome

    def blame(self, error: AttemptError, tries: int, size_bytes: int) -> None:
        """Count a failure that was the file's own, and settle the file if it was one too many.

        Where more is there than the bytes that were there when it failed, it is the file that showed that the server
        is up, and may be coming now.
        """
        if self.outcome is not None or self.shown_bytes > size_bytes:
            return
        self.failures += 1
        if self.failures >= (error.tries or tries):
            is_missing = error.error_type is NotOnServerError
            outcome = FileOutcome.MISSING if is_missing else FileOutcome.FAILED
            self.fail(error.describe(self.failures), error.hint, outcome)


def choose_task(tasks: Sequence[Task]) -> Task | None:
    """Choose the file of a scene that is to be tried first; None where there is no more to do."""
    return min((task for task in tasks if task.outcome is None), key=lambda task: task.next_s, default=None)


class Worker:
    """Adopts and fetches; shared by all threads of a run.

    Attributes:
        locked: What is recorded of whole files; threads change single entries, which needs no lock.
        notes: What is worth telling, in words.
    """

    def __init__(self, plan: DownloadPlan, client: Client, *, is_strict: bool) -> None:
        self.locked, self.notes = read_locks(plan.data_dir), list[str]()
        self._plan, self._client, self._is_strict = plan, client, is_strict
        self._may_ask_sizes = True

    def adopt(self, tasks: Sequence[Task]) -> None:
        """Give those files of a scene their result that are there and whole, or that cannot be replaced."""
        faults: dict[Task, str] = {}
        present = [task for task in tasks if task.file.local_path in self._plan.present]
        for task in present:
            try:
                self._look(task)
            except FileError as error:
                faults[task] = error.problem
        whole = [task for task in present if task not in faults]
        contradictions = find_contradictions(_read_facts(whole)) if any(task.facts for task in whole) else {}
        for task in whole:
            name, fault = task.file.local_path, contradictions.get(task.file.kind.suffix)
            if fault is None:
                task.size_bytes, task.outcome = self.locked[name].size_bytes, FileOutcome.PRESENT
            else:
                faults[task] = fault
                del self.locked[name]
        for task, fault in faults.items():
            task.facts = None
            if task.path.is_file():
                self.notes.append(f"{task.path}: {fault}; fetching it again")
            else:  # a pipe, a folder, or a link that leads nowhere
                task.fail(fault, "mend the link, or move it away", place=task.path)

    def _look(self, task: Task) -> None:
        """Check a file that is there, and record it; raises FileError where it is not whole."""
        name, path, entry = task.file.local_path, task.path, self.locked.get(task.file.local_path)
        if entry is None and aria2_path(path).exists():
            raise FileError(path, f"is unfinished: {aria2_path(path).name} is beside it")
        found = digest_file(path)
        if entry is not None and found != entry:
            sizes = f"{found.size_bytes:,} bytes, expected {entry.size_bytes:,}"
            raise FileError(path, f"is not the file recorded in {LOCK_NAME}: {sizes}")
        if entry is None or self._is_strict:
            try:
                task.facts = check_file(task.file, path)
            except FileError:
                self.locked.pop(name, None)
                raise
        server_bytes = self._ask_size(task) if entry is None else None
        if server_bytes not in (None, found.size_bytes):
            raise FileError(path, f"has {found.size_bytes:,} bytes, but the server's has {server_bytes:,}")
        self.locked[name] = found
        with suppress(OSError):  # somebody else's file: nothing to be done
            mode = path.parent.stat().st_mode & 0o666
            if stat.S_IMODE(path.stat().st_mode) == 0o600 != mode:  # as the official script leaves it
                path.chmod(mode)

    def _ask_size(self, task: Task) -> int | None:
        """How large the server's file is, if it tells; after a failure, it is never asked again."""
        if self._may_ask_sizes:
            with suppress(AttemptError, TransferError), self._client.open(task.file.url, {}, "HEAD") as answer:
                return answer.size_bytes
            self._may_ask_sizes = False
        return None

    def fetch(self, task: Task, siblings: Sequence[Task]) -> None:
        """Make one request for a file. If it is complete then, it gets its final name and a result.

        Raises:
            AttemptError: The request has brought nothing, or not enough.
            DiskFullError: There is no room for it, nor for others.
            CertificateError, ProxyError, ServerDownError: Nothing can be fetched at all.
        """
        try:
            with closing(Partial(task.path)) as partial:
                task.partial, task.most_bytes = partial, max(task.most_bytes, partial.size_bytes)
                try:
                    receive(self._client, task.file.url, partial, task.file.kind.max_bytes)
                    self._accept(task, partial, siblings)
                except AttemptError as error:
                    if partial.size_bytes < task.most_bytes + PROGRESS_BYTES:
                        pause_s = self._client.policy.pause_s(task.failures + 1, error.retry_after_s)
                        task.next_s = time.monotonic() + pause_s
                        raise
                    task.most_bytes, task.failures = partial.size_bytes, 0
        except DiskFullError:
            raise
        except OutputError as error:
            task.fail(error.message.removeprefix(f"{task.path}: "), error.hint, place=task.path)

    def _accept(self, task: Task, partial: Partial, siblings: Sequence[Task]) -> None:
        """Check what has arrived, and give it its final name."""
        name, entry = task.file.local_path, self.locked.get(task.file.local_path)
        try:
            found, task.facts = digest_file(partial.path), check_file(task.file, partial.path)
            there = [item for item in siblings if item is task or (item.outcome and not item.is_failure)]
            problem = find_contradictions(_read_facts(there)).get(task.file.kind.suffix)
        except FileError as error:
            problem = error.problem
        if problem:
            task.facts = None
            partial.drop()
            hint = "if it stays so, the server's file is damaged"
            raise AttemptError(f"is not what it should be: {problem}", hint, tries=FEW_TRIES, is_answer=True)
        if entry is not None and found != entry:
            partial.drop()
            what = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            reason = f"{what}, expected {entry.size_bytes:,}, {entry.sha256[:12]}"
            hint = f"to accept the server's new version, remove its line from {self._plan.data_dir / LOCK_NAME}"
            task.fail(f"is not what {LOCK_NAME} records: {reason}", hint)
            return
        partial.publish()
        self.locked[name] = found
        task.size_bytes, task.outcome = found.size_bytes, FileOutcome.FETCHED


def _read_facts(tasks: Sequence[Task]) -> dict[str, Facts]:
    """What files of a scene say that are there, by suffix."""
    for task in tasks:
        if task.facts is None:
            with suppress(FileError):  # its digest is the recorded one: a matter for `verify`
                task.facts = check_file(task.file, task.path)
    return {task.file.kind.suffix: task.facts for task in tasks if task.facts}
