"""Runs a download: threads take one scene after the other, and what failed once more at the end.

Of each scene, what is there and whole is adopted; the rest is fetched, checked and recorded.
"""

from __future__ import annotations

import itertools
import queue
import random
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from scannet_prep.errors import DiskFullError, FileError, OutputError, RefusedError, ServerDownError, TransferError
from scannet_prep.files import make_directory, run_lock
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.progress import Progress
from scannet_prep.raw.lock import LOCK_NAME, digest_file, encode_lock, shards_of, write_lock
from scannet_prep.release import BASE_URL
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import PROGRESS_BYTES, PROOF_BYTES, Gate, Ticket, TransferPolicy
from scannet_prep.remote.transfer import Partial, aria2_path, ask_for_end, receive
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url
from scannet_prep.stages.download.checks import check_file, find_contradictions
from scannet_prep.stages.download.planning import DownloadPlan, DownloadReport, FileOutcome, FileResult, check
from scannet_prep.stages.download.tasks import Task, check_siblings, read_facts

_LOOK_S = 0.2
_WAIT_S = 0.02  # a thread without work looks so often whether there is some
_STOP_S = 1.5
_STILL_S = 20.0  # so long without a byte, and it is said what is waited for


def run(
    plan: DownloadPlan,
    *,
    jobs: int = 4,
    policy: TransferPolicy | None = None,
    certificates: bool | Path = True,
    progress: Progress | None = None,
    needs_terms: bool = True,
    is_strict: bool = False,
) -> DownloadReport:
    """Fetch the files of a plan. What is there and whole is kept; a file that fails never stops the others.

    Args:
        plan: From `scannet_prep.stages.download.plan`.
        jobs: Connections at a time, at most 8.
        policy: How patient to be.
        certificates: True for the system's authorities, a file with others, False to accept any certificate.
        progress: Told of bytes, counted as planned, and of files.
        needs_terms: False for files that are not ScanNet's, such as synthetic scenes.
        is_strict: Look into files too whose digest is the recorded one, and fetch those again that are damaged.

    Raises:
        TermsError: The terms of use have not been accepted, see `accept_terms`.
        UsageError: Too many jobs, or the file of certificates cannot be used.
        LockedError: Another run is working in the folder.
        LockError: `scannet.lock` is damaged.
        OutputError: The disk is full, or will be.
        CertificateError, ProxyError: The server's certificate or the proxy cannot be used.
        TransferError: The address is that of something else.
    """
    check(plan, jobs=jobs, certificates=certificates)
    if needs_terms:
        plan.require_terms()
    make_directory(plan.data_dir)
    if plan.share is not None and not plan.is_merged:
        plan.share.begin()
    with run_lock(plan.data_dir) if plan.share is None else nullcontext():
        client = Client(plan.base_url, policy or TransferPolicy(), certificates)
        return _Run(plan, client, jobs, progress or Progress(), is_strict).run()


class _Run:
    """One run: threads bring files; the main thread alone tells of it."""

    def __init__(self, plan: DownloadPlan, client: Client, jobs: int, progress: Progress, is_strict: bool) -> None:
        self._plan, self._client, self._progress, self._is_strict = plan, client, progress, is_strict
        # What ends the run, or what happens, in words after a key: what has the same key is told once only.
        self._events: queue.SimpleQueue[tuple[str, str] | BaseException | None] = queue.SimpleQueue()
        self._gate = Gate(client.policy, client.stop, lambda text: self._events.put(("", text)))
        self._locked = plan.read_locked()  # of whole files; threads change single entries, which needs no lock
        self._opened: list[str] = []  # permissions were repaired
        self._served: list[tuple[int, str]] = []  # in this run: sizes and addresses
        self._adopted: list[tuple[int, str]] = []  # served in an earlier run, perhaps by another server
        self._is_turn_of_adopted = self._may_ask_sizes = True
        scenes: dict[object, list[Task]] = {}
        for file in plan.files:
            siblings = scenes.setdefault(file.scene_id, [])
            siblings.append(Task(file, plan.data_dir / file.local_path, siblings))
        self._tasks = [task for tasks in scenes.values() for task in tasks]
        # When, in which order, and what: whole scenes at once, what has failed when its pause is over.
        self._due: queue.PriorityQueue[tuple[float, int, list[Task]]] = queue.PriorityQueue()
        self._order = itertools.count()
        for tasks in scenes.values():
            self._due.put((0.0, next(self._order), tasks))
        self._unsettled = list(self._tasks)
        self._told: set[str] = set()
        self._shown_bytes, self._moved_s = 0, time.monotonic()
        self._threads = [threading.Thread(target=self._work, name="download", daemon=True) for _ in range(jobs)]

    def run(self) -> DownloadReport:
        self._progress.start("download", sum(file.kind.typical_bytes or 0 for file in self._plan.files), "B")
        try:
            for thread in self._threads:
                thread.start()
            while self._unsettled:
                with suppress(queue.Empty):
                    self._handle(self._events.get(timeout=_LOOK_S))
                self._show()
        except BaseException:
            self._end()
            with suppress(OutputError):  # what ended the run is what has to be told
                self._save()
            raise
        self._end()
        self._save(is_end=True)
        results = tuple(task.result for task in self._tasks if task.result is not None)
        fetched = {result.file.local_path for result in results if result.outcome is FileOutcome.FETCHED}
        return DownloadReport(
            data_dir=self._plan.data_dir,
            results=results,
            mended=tuple(sorted(fetched & self._plan.present)),
            opened=tuple(sorted(self._opened)),
            orphans=self._plan.orphans,
            received_bytes=self._client.received_bytes,
        )

    def _handle(self, event: tuple[str, str] | BaseException | None) -> None:
        match event:
            case (key, text):
                if not key or key not in self._told:
                    self._progress.note(text)
                self._told.add(key)
            case ServerDownError():
                for task in self._unsettled:
                    task.fail(event.message, event.hint, place=self._plan.shown_base_url)
            case RefusedError():
                is_other = self._plan.base_url != BASE_URL
                what = f"{self._plan.shown_base_url}: does not look like the ScanNet server; " if is_other else ""
                raise TransferError(what + event.message, event.hint or f"the base URL looks like {BASE_URL}")
            case BaseException():
                raise event

    def _show(self) -> None:
        """Tell how far it is; what is settled is looked at no more."""
        tasks, self._unsettled = self._unsettled, []
        for task in tasks:
            result = task.result
            if result is None:
                self._unsettled.append(task)
                continue
            task.shown_bytes = result.size_bytes
            if result.is_failure:
                self._handle((f"{result.outcome} {result.reason}", f"{result.outcome}: {result.message}"))
            # The total was an estimate; now this file's part of it is known.
            self._progress.resize(result.size_bytes - (result.file.kind.typical_bytes or 0))
        shown_bytes = sum(task.shown_bytes for task in self._tasks)
        if shown_bytes != self._shown_bytes:
            self._moved_s = time.monotonic()
        self._progress.status(self._describe_state())
        self._progress.advance(shown_bytes - self._shown_bytes)
        self._shown_bytes = shown_bytes

    def _describe_state(self) -> str:
        state = f"{len(self._tasks) - len(self._unsettled):,}/{len(self._tasks):,} files"
        if self._gate.state:
            return f"{state}, {self._gate.state}"
        still_s = time.monotonic() - self._moved_s
        active = [task.file.local_path for task in self._unsettled if task.is_active]
        if still_s < _STILL_S or not active:
            return state
        more = f" and {len(active) - 1} more" if len(active) > 1 else ""
        return f"{state}, nothing has come for {still_s:.0f} s, waiting for {active[0]}{more}"

    def _end(self) -> None:
        self._client.stop.set()
        deadline_s = time.monotonic() + _STOP_S
        for thread in [thread for thread in self._threads if thread.ident is not None]:  # interrupted at once
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._client.close()
        for task in self._tasks:  # folders that were made for a file of which nothing has come
            for folder in list(task.path.parents)[: task.file.local_path.count("/")]:
                with suppress(OSError):  # not empty, mostly
                    folder.rmdir()
        self._progress.finish()

    def _save(self, *, is_end: bool = False) -> None:
        """Record what is whole, and list the scenes that failed; of an earlier list, what is unfinished stays on it."""
        share, path, failed_path = self._plan.share, self._plan.data_dir / LOCK_NAME, self._plan.data_dir / FAILED_NAME
        locked = dict(self._locked)
        if self._plan.is_merged and locked.items() <= self._plan.read_locked().items():
            return  # there is nothing to say
        if share is not None:
            path, failed_path = share.path(), share.path(f".{FAILED_NAME}")
            own = {file.local_path for file in self._plan.files}
            locked = {name: entry for name, entry in locked.items() if name in own}
        is_left = failed_path.exists()
        failed = {task.file.scene_id for task in self._tasks if (task.result.is_failure if task.result else is_left)}
        try:
            if locked or path.exists():
                write_lock(path, locked)
            write_failed_list(failed_path, sorted(scene_id for scene_id in failed if scene_id is not None))
            if is_end and share is not None:
                share.finish(encode_lock(locked))
            elif is_end:
                shards_of(self._plan.data_dir).remove()
        except OutputError as error:
            if any(task.result is not None and task.result.outcome is FileOutcome.FETCHED for task in self._tasks):
                raise
            self._progress.note(f"not recorded: {error.message}")

    def _work(self) -> None:
        """Bring the files of one scene after the other, in a thread, and those that failed when their pause is over."""
        try:
            while not self._client.stop.is_set():
                with suppress(queue.Empty):
                    due_s, order, tasks = self._due.get(timeout=_WAIT_S)
                    if due_s <= time.monotonic():
                        self._bring(tasks)
                    else:
                        self._due.put((due_s, order, tasks))
                        self._client.stop.wait(_WAIT_S)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            if not self._client.stop.is_set():
                self._events.put(error)

    def _bring(self, tasks: list[Task]) -> None:
        """Bring all files of a scene, or one that is left of it."""
        if tasks is tasks[0].siblings:  # the whole scene, for the first time
            self._adopt(tasks)
        for task in tasks:
            if task.result is None:
                task.is_active = True
                self._attempt(task)
                task.is_active = False
            if self._gate.is_closed:
                break  # other scenes first: the server may lack all of this one
        for task in tasks:
            if task.result is None:
                self._due.put((task.next_s, next(self._order), [task]))
        self._events.put(None)

    def _adopt(self, tasks: Sequence[Task]) -> None:
        """Give those files of a scene their result that are there and whole, or that cannot be replaced."""
        faults: dict[Task, str] = {}
        present = [task for task in tasks if task.file.local_path in self._plan.present]
        for task in present:
            try:
                self._look(task)
            except FileError as error:
                faults[task] = error.problem
        whole = [task for task in present if task not in faults]
        contradictions = find_contradictions(read_facts(whole)) if any(task.facts for task in whole) else {}
        for task in whole:
            name, fault = task.file.local_path, contradictions.get(task.file.kind.suffix)
            if fault is None:
                size_bytes = self._locked[name].size_bytes
                task.result = FileResult(task.file, FileOutcome.PRESENT, size_bytes)
                self._adopted.append((size_bytes, task.file.url))
            else:
                faults[task] = fault
                del self._locked[name]
        for task, fault in faults.items():
            task.facts = None
            if task.path.is_file():
                self._events.put(("", f"{task.path}: {fault}; fetching it again"))
            else:  # a pipe, a folder, or a link that leads nowhere
                task.fail(fault, "mend the link, or move it away", place=task.path)

    def _look(self, task: Task) -> None:
        """Check a file that is there, and record it; raises FileError where it is not whole."""
        name, path, entry = task.file.local_path, task.path, self._locked.get(task.file.local_path)
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
                self._locked.pop(name, None)
                raise
        server_bytes = self._ask_size(task) if entry is None else None
        if server_bytes not in (None, found.size_bytes):
            raise FileError(path, f"has {found.size_bytes:,} bytes, but the server's has {server_bytes:,}")
        self._locked[name] = found
        with suppress(OSError):  # somebody else's file: nothing to be done
            mode = path.parent.stat().st_mode & 0o666
            if stat.S_IMODE(path.stat().st_mode) == 0o600 != mode:  # as the official script leaves it
                path.chmod(mode)
                self._opened.append(name)

    def _ask_size(self, task: Task) -> int | None:
        """How large the server's file is, if it tells; after a failure, it is never asked again."""
        if self._may_ask_sizes:
            with suppress(AttemptError, TransferError), self._client.open(task.file.url, {}, "HEAD") as answer:
                return answer.size_bytes
            self._may_ask_sizes = False
        return None

    def _attempt(self, task: Task) -> None:
        """Make at most one request for a file, or for one that was served before; gives it a result if it is settled.

        Raises:
            DiskFullError: There is no room for it, nor for others.
            CertificateError, ProxyError, RefusedError, ServerDownError: Nothing can be fetched at all.
        """
        known = None
        try:
            if task.is_given_up(self._gate, self._client.policy.tries):
                return
            with self._gate.request() as ticket:
                if (ticket.is_trial or task.error) and (known := self._choose_known()):
                    ask_for_end(self._client, known[1], known[0])
                    self._served.append(known)
                else:
                    task.error = None
                    self._fetch(task, ticket)
        except AttemptError as error:
            if known is not None:
                return
            task.error = error
            task.next_s = error.failed_s + self._client.policy.pause_s(task.failures + 1, error.retry_after_s)
            if error.tries == FEW_TRIES:
                text = f"{public_url(task.file.url)}: {error.reason}; it is tried again after the others"
                self._events.put((error.reason, text))
        except DiskFullError:
            raise
        except OutputError as error:
            task.fail(error.message.removeprefix(f"{task.path}: "), error.hint, place=task.path)

    def _choose_known(self) -> tuple[int, str] | None:
        """Choose a file that was served before. This server may lack those of earlier runs: every other time, none."""
        if not self._served:
            self._is_turn_of_adopted = not self._is_turn_of_adopted
        known = self._served or (self._adopted if not self._is_turn_of_adopted else [])
        return random.choice(known) if known else None  # noqa: S311 - any will do

    def _fetch(self, task: Task, ticket: Ticket) -> None:
        """Make one request for a file. If it is complete then, it gets its final name and a result."""
        with closing(Partial(task.path)) as partial:
            task.most_bytes = max(task.most_bytes, partial.size_bytes)
            try:
                for received_bytes in receive(self._client, task.file.url, partial, task.file.kind.max_bytes):
                    task.shown_bytes = partial.size_bytes
                    if received_bytes >= PROOF_BYTES:
                        self._gate.served(ticket)
                self._accept(task, partial)
            except AttemptError:
                if partial.size_bytes < task.most_bytes + PROGRESS_BYTES:
                    raise
                task.most_bytes, task.failures = partial.size_bytes, 0
            finally:
                task.shown_bytes = partial.size_bytes

    def _accept(self, task: Task, partial: Partial) -> None:
        """Check what has arrived, and give it its final name."""
        name = task.file.local_path
        try:
            task.facts = check_file(task.file, partial.path)
            check_siblings(task)
            found = digest_file(partial.path)
        except FileError as error:
            task.facts = None
            partial.restart()
            hint = "if it stays so, the server's file is damaged"
            reason = f"is not what it should be: {error.problem}"
            raise AttemptError(reason, hint, tries=FEW_TRIES, is_answer=True) from None
        entry = self._locked.get(name)
        if entry is not None and found != entry:
            partial.restart()
            what = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            reason = f"{what}, expected {entry.size_bytes:,}, {entry.sha256[:12]}"
            hint = f"to accept the server's new version, remove its line from {self._plan.data_dir / LOCK_NAME}"
            task.fail(f"is not what {LOCK_NAME} records: {reason}", hint)
            return
        partial.publish()
        self._locked[name] = found
        task.result = FileResult(task.file, FileOutcome.FETCHED, found.size_bytes)
        self._served.append((found.size_bytes, task.file.url))
