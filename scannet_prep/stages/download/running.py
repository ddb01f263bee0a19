"""Runs a download: threads take one scene after the other, and what failed once more at the end."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

from scannet_prep.errors import MissingFileError, OutputError, RefusedError, ServerDownError, TransferError, UsageError
from scannet_prep.files import make_directory, run_lock
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.progress import Progress
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, read_lock, write_lock
from scannet_prep.release import BASE_URL
from scannet_prep.remote.client import Client, find_certificates
from scannet_prep.remote.gate import Gate, TransferPolicy
from scannet_prep.stages.download.bringing import Bringing, Task
from scannet_prep.stages.download.planning import DownloadPlan, DownloadReport, FileOutcome, require_terms

_MAX_JOBS = 8  # the server belongs to a university chair
_LOOK_S = 0.2
_WAIT_S = 0.02  # a thread without work looks so often whether there is some
_STOP_S = 1.5
_STILL_S = 20.0  # so long without a byte, and it is said what is waited for


def check(plan: DownloadPlan, *, jobs: int = 4, certificates: bool | Path = True) -> None:
    """Find out beforehand what would stop `run`, whose arguments these are; touches nothing.

    Raises:
        UsageError: Too many jobs, or the file of certificates cannot be used.
        LockError: `scannet.lock` is damaged.
        DiskFullError: The disk will not hold it.
    """
    if not 1 <= jobs <= _MAX_JOBS:
        raise UsageError(f"{jobs} connections at a time, expected 1 to {_MAX_JOBS}", "the server is shared: be polite")
    find_certificates(plan.base_url, certificates)
    _read_locked(plan)
    plan.check_room()


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
        require_terms(plan.data_dir)
    make_directory(plan.data_dir)
    with run_lock(plan.data_dir):
        client = Client(plan.base_url, policy or TransferPolicy(), certificates)
        return _Run(plan, client, jobs, progress or Progress(), is_strict).run()


class _Run:
    """One run: threads bring files; the main thread alone tells of it."""

    def __init__(self, plan: DownloadPlan, client: Client, jobs: int, progress: Progress, is_strict: bool) -> None:
        self._plan, self._client, self._progress = plan, client, progress
        self._events: queue.SimpleQueue[tuple[str, str] | BaseException | None] = queue.SimpleQueue()
        self._gate = Gate(client.policy, client.stop, lambda text: self._events.put(("", text)))
        self._bringing = Bringing(
            plan, client, self._gate, lambda *event: self._events.put(event), is_strict, _read_locked(plan)
        )
        self._tasks = [Task(file, plan.data_dir / file.local_path, plan.url(file)) for file in plan.files]
        scenes: dict[object, list[Task]] = {}
        for task in self._tasks:
            task.siblings = scenes.setdefault(task.file.scene_id, [])
            task.siblings.append(task)
        # When, in which order, and what: whole scenes at once, what has failed when its pause is over.
        self._due: queue.PriorityQueue[tuple[float, int, list[Task]]] = queue.PriorityQueue()
        self._order = itertools.count()
        for tasks in scenes.values():
            self._due.put((0.0, next(self._order), tasks))
        self._unsettled = list(self._tasks)
        self._told: set[str] = set()
        self._shown_bytes = 0
        self._moved_s = time.monotonic()
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
        self._save()
        results = tuple(task.result for task in self._tasks if task.result is not None)
        fetched = {result.file.local_path for result in results if result.outcome is FileOutcome.FETCHED}
        return DownloadReport(
            data_dir=self._plan.data_dir,
            results=results,
            mended=tuple(sorted(fetched & self._plan.present)),
            opened=tuple(sorted(self._bringing.opened)),
            orphans=self._plan.orphans,
            received_bytes=self._client.received_bytes,
        )

    def _handle(self, event: tuple[str, str] | BaseException | None) -> None:
        match event:
            case (key, text):
                self._tell(key, text)
            case ServerDownError():
                for task in self._unsettled:
                    task.fail(event.message, event.hint, place=self._plan.shown_base_url)
            case RefusedError():
                is_other = self._plan.base_url != BASE_URL
                what = f"{self._plan.shown_base_url}: does not look like the ScanNet server; " if is_other else ""
                raise TransferError(what + event.message, event.hint or f"the base URL looks like {BASE_URL}")
            case BaseException():
                raise event

    def _tell(self, key: str, text: str) -> None:
        """Tell something, once for each key."""
        if not key or key not in self._told:
            self._progress.note(text)
        self._told.add(key)

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
                self._tell(f"{result.outcome} {result.reason}", f"{result.outcome}: {result.message}")
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

    def _save(self) -> None:
        """Record what is whole, and list the scenes that failed; of an earlier list, what is unfinished stays on it."""
        path, is_left = self._plan.data_dir / LOCK_NAME, (self._plan.data_dir / FAILED_NAME).exists()
        failed = {task.file.scene_id for task in self._tasks if (task.result.is_failure if task.result else is_left)}
        try:
            if self._bringing.locked or path.exists():
                write_lock(path, dict(self._bringing.locked))
            write_failed_list(self._plan.data_dir, sorted(scene_id for scene_id in failed if scene_id is not None))
        except OutputError as error:
            if any(task.result is not None and task.result.outcome is FileOutcome.FETCHED for task in self._tasks):
                raise
            self._progress.note(f"not recorded: {error.message}")

    def _work(self) -> None:
        """Bring one scene after the other, in a thread."""
        try:
            while (tasks := self._take()) is not None:
                if tasks is tasks[0].siblings:  # the whole scene, for the first time
                    self._bringing.adopt(tasks)
                for task in tasks:
                    if task.result is None:
                        task.is_active = True
                        self._bringing.attempt(task)
                        task.is_active = False
                for task in tasks:
                    if task.result is None:
                        self._due.put((task.next_s, next(self._order), [task]))
                self._events.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            if not self._client.stop.is_set():
                self._events.put(error)

    def _take(self) -> list[Task] | None:
        """Wait for work: the files of the next scene, else one that failed; None where the run is over."""
        while not self._client.stop.is_set():
            with suppress(queue.Empty):
                item = self._due.get_nowait()
                if item[0] <= time.monotonic():
                    return item[-1]
                self._due.put(item)
            self._client.stop.wait(_WAIT_S)
        return None


def _read_locked(plan: DownloadPlan) -> dict[str, LockEntry]:
    try:
        return read_lock(plan.data_dir / LOCK_NAME)
    except MissingFileError:
        return {}
