"""Brings the files of a download: adopts what is there and whole, fetches the rest, checks and records it."""

from __future__ import annotations

import random
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.errors import DiskFullError, FileError, NotOnServerError, OutputError, TransferError
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import Gate, Ticket
from scannet_prep.remote.transfer import Partial, ask_for_end, find_size, receive
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url
from scannet_prep.stages.download.checks import Facts, check_file, find_contradictions
from scannet_prep.stages.download.planning import DownloadPlan, FileOutcome, FileResult, RemoteFile


@dataclass(slots=True, eq=False)
class Task:
    """One file on its way."""

    file: RemoteFile  # the file
    path: Path  # where it belongs
    url: str  # where it comes from
    siblings: list[Task] = field(default_factory=list)  # the tasks of its scene, this one too
    result: FileResult | None = None  # what became of it in the end
    facts: Facts | None = None  # what it says, once it is there and was looked into
    shown_bytes: int = 0  # how much of it is there
    most_bytes: int = 0  # the most that an attempt has brought
    failures: int = 0  # how often it has failed while the server served others
    error: AttemptError | None = None  # the last failure, as long as it is unknown whose fault it was
    failed_s: float = 0.0  # when that was
    next_s: float = 0.0  # not to be tried before
    is_active: bool = False  # whether a thread is at it

    def fail(
        self, reason: str, hint: str = "", outcome: FileOutcome = FileOutcome.FAILED, place: str | Path = ""
    ) -> None:
        """Settle it: the file is not there."""
        self.result = FileResult(self.file, outcome, 0, reason, str(place or public_url(self.url)), hint)


@dataclass(eq=False)
class Bringing:
    """Brings files; shared by all threads of a run."""

    plan: DownloadPlan
    client: Client
    gate: Gate
    tell: Callable[[str, str], None]  # what happens, in words after a key: what has the same key is told once only
    is_strict: bool  # whether to look into files too whose digest is the recorded one
    locked: dict[str, LockEntry]  # recorded of whole files; threads change single entries, which needs no lock
    opened: list[str] = field(default_factory=list, init=False)  # permissions were repaired
    _known: list[tuple[int, str]] = field(default_factory=list, init=False)  # served before: sizes and addresses
    _may_ask_sizes: bool = field(default=True, init=False)

    def adopt(self, tasks: Sequence[Task]) -> None:
        """Give those files of a scene their result that are there and whole, or that cannot be replaced."""
        faults: dict[Task, str] = {}
        present = [task for task in tasks if task.file.local_path in self.plan.present]
        for task in present:
            try:
                self._look(task)
            except FileError as error:
                faults[task] = error.problem
            except OSError as error:
                lost = "is a link that leads nowhere" if isinstance(error, FileNotFoundError) else ""
                task.fail(lost or error.strerror or str(error), "mend the link, or move it away", place=task.path)
        whole = [task for task in present if task not in faults and task.result is None]
        for task in whole if any(task.facts for task in whole) else ():
            with suppress(FileError):  # its digest is the recorded one: a matter for `verify`
                task.facts = task.facts or check_file(task.file, task.path)
        contradictions = _contradictions(whole)
        for task in present:
            fault = faults.get(task) or contradictions.get(task.file.kind.suffix)
            if task.result is None and fault is None:
                self._settle(task, FileOutcome.PRESENT, task.path.stat().st_size)
            elif task.result is None:
                self.tell("", f"{task.path}: {fault}; fetching it again")
                task.facts = None
                if task not in faults:
                    self.locked.pop(task.file.local_path, None)

    def attempt(self, task: Task) -> None:
        """Make at most one request for a file, or for one that was served before; gives it a result if it is settled.

        Raises:
            DiskFullError: There is no room for it, nor for others.
            CertificateError, ProxyError, RefusedError, ServerDownError: Nothing can be fetched at all.
        """
        if task.error is not None:
            is_own = self.gate.is_file_to_blame(task.failed_s)
            if is_own:
                task.failures += 1
                if task.failures >= (task.error.tries or self.client.policy.tries):
                    what = f"{task.failures} attempts failed, the last one: " if task.failures > 1 else ""
                    is_missing = task.error.error_type is NotOnServerError
                    outcome = FileOutcome.MISSING if is_missing else FileOutcome.FAILED
                    task.fail(what + task.error.reason, task.error.hint, outcome)
                    return
            if is_own is not None:
                task.error = None
        is_asked = False
        try:
            with self.gate.request() as ticket:
                if (ticket.is_trial or task.error) and self._known:
                    self._ask_for_known()
                    return
                is_asked, task.error = True, None
                self._fetch(task, ticket)
        except AttemptError as error:
            if is_asked:
                self._put_off(task, error)
        except DiskFullError:
            raise
        except OutputError as error:
            task.fail(error.message.removeprefix(f"{task.path}: "), error.hint, place=task.path)

    def _put_off(self, task: Task, error: AttemptError) -> None:
        task.error = error
        task.next_s = task.failed_s + self.client.policy.pause_s(task.failures + 1, error.retry_after_s)
        if error.tries == FEW_TRIES:
            self.tell(error.reason, f"{public_url(task.url)}: {error.reason}; it is tried again after the others")

    def _settle(self, task: Task, outcome: FileOutcome, size_bytes: int) -> None:
        task.result, task.shown_bytes = FileResult(task.file, outcome, size_bytes), size_bytes
        self._known.append((size_bytes, task.url))

    def _look(self, task: Task) -> None:
        """Check a file that is there, and record it."""
        name = task.file.local_path
        path, entry = task.path, self.locked.get(name)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            raise OSError("is not a file")
        with suppress(OSError):  # somebody else's file: nothing to be done
            mode = path.parent.stat().st_mode & 0o666
            if stat.S_IMODE(status.st_mode) == 0o600 != mode:  # as the official script leaves it, in an open folder
                path.chmod(mode)
                self.opened.append(name)
        if entry is None and path.with_name(f"{path.name}.aria2").exists():
            raise FileError(path, f"is unfinished: {path.name}.aria2 is beside it")
        found = digest_file(path)
        if entry is not None and found != entry:
            sizes = f"{found.size_bytes:,} bytes, expected {entry.size_bytes:,}"
            raise FileError(path, f"is not the file recorded in {LOCK_NAME}: {sizes}")
        if entry is None or self.is_strict:
            try:
                task.facts = check_file(task.file, path)
            except FileError:
                self.locked.pop(name, None)
                raise
        if entry is None:
            server_bytes = self._ask_size(task)
            if server_bytes not in (None, status.st_size):
                raise FileError(path, f"has {status.st_size:,} bytes, but the server's has {server_bytes:,}")
        self.locked[name] = found

    def _ask_size(self, task: Task) -> int | None:
        """How large the server's file is, if it tells; after a failure, it is never asked again."""
        if self._may_ask_sizes:
            with suppress(AttemptError, TransferError):
                return find_size(self.client, task.url)
            self._may_ask_sizes = False
        return None

    def _ask_for_known(self) -> None:
        """Ask for the end of a file that was served before, now or in an earlier run."""
        size_bytes, url = random.choice(self._known)  # noqa: S311 - any will do
        try:
            ask_for_end(self.client, url, size_bytes)
        except AttemptError:
            self.gate.failed_again()
            raise

    def _fetch(self, task: Task, ticket: Ticket) -> None:
        """Make one request for a file. If it is complete then, it gets its final name and a result."""
        with closing(Partial(task.path)) as partial:

            def on_piece(is_content: bool) -> None:
                task.shown_bytes = partial.size_bytes
                if is_content:
                    self.gate.served(ticket)

            try:
                receive(self.client, task.url, partial, task.file.kind.max_bytes, on_piece)
                self._accept(task, partial)
            except AttemptError:
                task.failed_s = time.monotonic()
                if partial.size_bytes <= task.most_bytes:
                    raise
                task.most_bytes, task.failures = partial.size_bytes, 0
            finally:
                task.shown_bytes = partial.size_bytes

    def _accept(self, task: Task, partial: Partial) -> None:
        """Check what has arrived, and give it its final name."""
        name = task.file.local_path
        try:
            facts = check_file(task.file, partial.path)
            self._check_siblings(task, facts)
            found = digest_file(partial.path)
        except FileError as error:
            partial.restart()
            hint = "if it stays so, the server's file is damaged"
            reason = f"is not what it should be: {error.problem}"
            raise AttemptError(reason, hint, tries=FEW_TRIES, is_answer=True) from None
        entry = self.locked.get(name)
        if entry is not None and found != entry:
            partial.restart()
            what = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            reason = f"{what}, expected {entry.size_bytes:,}, {entry.sha256[:12]}"
            hint = f"to accept the server's new version, remove its line from {self.plan.data_dir / LOCK_NAME}"
            task.fail(f"is not what {LOCK_NAME} records: {reason}", hint)
            return
        partial.publish()
        self.locked[name] = found
        task.facts = facts
        self._settle(task, FileOutcome.FETCHED, found.size_bytes)

    def _check_siblings(self, task: Task, facts: Facts) -> None:
        """Compare a file with those of its scene that are there and whole."""
        for sibling in task.siblings:
            is_there = sibling.result is not None and not sibling.result.is_failure
            if is_there and sibling.facts is None:
                with suppress(FileError):  # its digest is the recorded one: a matter for `verify`
                    sibling.facts = check_file(sibling.file, sibling.path)
        problem = _contradictions(task.siblings, {task.file.kind.suffix: facts}).get(task.file.kind.suffix)
        if problem:
            raise FileError(task.path, problem)


def _contradictions(tasks: Iterable[Task], more: dict[str, Facts] | None = None) -> dict[str, str]:
    """What does not fit together, by suffix, of files that were looked into."""
    return find_contradictions({task.file.kind.suffix: task.facts for task in tasks if task.facts} | (more or {}))
