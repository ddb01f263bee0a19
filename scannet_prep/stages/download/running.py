"""Runs a download: threads take one scene after the other, and what failed once more at the end."""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

from scannet_prep.errors import (
    DiskFullError,
    MissingFileError,
    OutputError,
    RefusedError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.files import make_directory, output_error, run_lock
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.raw.lock import LOCK_NAME, write_lock
from scannet_prep.release import BASE_URL
from scannet_prep.remote.client import Client, find_certificates
from scannet_prep.remote.gate import Gate
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.scene import SceneId
from scannet_prep.stages.download.bringing import Bringing, Task, read_locked
from scannet_prep.stages.download.planning import MAX_JOBS, DownloadPlan, DownloadReport, FileOutcome, FileResult
from scannet_prep.stages.download.terms import require_terms
from scannet_prep.stages.selection import parse_scene_ids

_LOOK_S = 0.2
_WAIT_S = 0.02  # a thread without work looks so often whether there is some
_LOCK_INTERVAL_S = 10.0
_STILL_S = 20.0  # so long without a byte, and it is said what is waited for
_STOP_S = 1.5
_FEW_FILES = 5


def check(plan: DownloadPlan, *, jobs: int = 4, certificates: bool | Path = True) -> None:
    """Find out beforehand what would stop `run`, whose arguments these are; touches nothing.

    Raises:
        UsageError: Too many jobs, or the file of certificates cannot be used.
        LockError: `scannet.lock` is damaged.
        OutputError: The folder is read-only, or the disk will not hold it.
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise UsageError(f"{jobs} connections at a time, expected 1 to {MAX_JOBS}", "the server is shared: be polite")
    find_certificates(plan.base_url, certificates)
    read_locked(plan)
    plan.check_room()
    if plan.missing and plan.data_dir.exists() and not os.access(plan.data_dir, os.W_OK | os.X_OK):
        raise output_error(plan.data_dir, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


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
        TermsError: The terms of use have not been accepted, see `scannet_prep.stages.download.terms`.
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
        return _Run(plan, jobs, policy or TransferPolicy(), certificates, progress or NoProgress(), is_strict).run()


class _Run:
    """One run: threads bring files; the main thread alone tells of it."""

    def __init__(
        self,
        plan: DownloadPlan,
        jobs: int,
        policy: TransferPolicy,
        certificates: bool | Path,
        progress: Progress,
        is_strict: bool,
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._events: queue.SimpleQueue[tuple[str, str] | BaseException | None] = queue.SimpleQueue()
        self._client = Client(plan.base_url, policy, certificates)
        self._stop = self._client.stop
        self._gate = Gate(jobs, policy, self._stop, lambda text: self._events.put(("", text)))
        self._bringing = Bringing(plan, self._client, self._gate, lambda *event: self._events.put(event), is_strict)
        self._tasks = [Task(file) for file in plan.files]
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
        self._moved_s = self._saved_s = time.monotonic()
        self._threads = [threading.Thread(target=self._work, name="download", daemon=True) for _ in range(jobs)]

    def run(self) -> DownloadReport:
        self._progress.start("download", sum(file.kind.typical_bytes or 0 for file in self._plan.files), "B")
        try:
            for thread in self._threads:
                thread.start()
            while self._unsettled:
                try:
                    self._handle(self._events.get(timeout=_LOOK_S))
                except queue.Empty:
                    self._show()
            self._show()
        except BaseException:
            self._end()
            with suppress(ScanNetPrepError, OSError):  # what ended the run is what has to be told
                self._save()
            raise
        self._end()
        self._save()
        return DownloadReport(
            data_dir=self._plan.data_dir,
            results=tuple(task.result for task in self._tasks if task.result is not None),
            mended=tuple(sorted(self._bringing.mended)),
            opened=tuple(sorted(self._bringing.opened)),
            orphans=self._plan.orphans,
            received_bytes=self._client.limit.received_bytes,
        )

    def _handle(self, event: tuple[str, str] | BaseException | None) -> None:
        match event:
            case (key, text):
                self._tell(key, text)
            case ServerDownError():
                for task in self._unsettled:
                    reason, place = event.message, self._plan.shown_base_url
                    task.result = FileResult(task.file, FileOutcome.FAILED, 0, reason, place, event.hint)
            case RefusedError() if len(self._unsettled) <= _FEW_FILES:
                for task in self._unsettled:
                    self._bringing.give_up(task)
            case RefusedError():
                is_other = self._plan.base_url != BASE_URL
                what = f"{self._plan.shown_base_url}: does not look like the ScanNet server; " if is_other else ""
                raise TransferError(what + event.message, event.hint or f"the base URL looks like {BASE_URL}")
            case DiskFullError():
                left = sum(task.file.kind.typical_bytes or 0 for task in self._unsettled)
                more = f"about {left:,} bytes in {len(self._unsettled):,} files are still to come"
                raise DiskFullError(f"{event.message}; {more}", event.hint)
            case BaseException():
                raise event
        self._show()

    def _tell(self, key: str, text: str) -> None:
        """Tell something, once for each key."""
        if not key or key not in self._told:
            self._progress.note(text)
        self._told.add(key)

    def _show(self) -> None:
        """Tell how far it is; what is settled is looked at no more."""
        now_s = time.monotonic()
        tasks, self._unsettled = self._unsettled, []
        for task in tasks:
            result = task.result
            if result is None:
                self._unsettled.append(task)
                continue
            if result.is_failure:
                task.shown_bytes = 0
                self._tell(f"{result.outcome} {result.reason}", f"{result.outcome}: {result.message}")
            # The total was an estimate; now this file's part of it is known.
            self._progress.resize(result.size_bytes - (result.file.kind.typical_bytes or 0))
        shown_bytes = sum(task.shown_bytes for task in self._tasks)
        if shown_bytes != self._shown_bytes:
            self._moved_s = now_s
        self._progress.status(self._describe_state(now_s))
        self._progress.advance(shown_bytes - self._shown_bytes)
        self._shown_bytes = shown_bytes
        if now_s - self._saved_s > _LOCK_INTERVAL_S:
            self._saved_s = now_s
            self._save_lock()

    def _describe_state(self, now_s: float) -> str:
        count, total = len(self._tasks) - len(self._unsettled), len(self._tasks)
        state = f"{count:,}/{total:,} files"
        if self._gate.state:
            return f"{state}, {self._gate.state}"
        active = [task.file.local_path for task in self._unsettled if task.is_active]
        if now_s - self._moved_s < _STILL_S or not active:
            return state
        more = f" and {len(active) - 1} more" if len(active) > 1 else ""
        return f"{state}, nothing has come for {now_s - self._moved_s:.0f} s, waiting for {active[0]}{more}"

    def _end(self) -> None:
        self._stop.set()
        deadline_s = time.monotonic() + _STOP_S
        for thread in [thread for thread in self._threads if thread.ident is not None]:  # interrupted at once
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._client.close()
        for task in self._tasks:  # folders that were made for a file of which nothing has come
            for folder in list((self._plan.data_dir / task.file.local_path).parents)[: task.file.local_path.count("/")]:
                with suppress(OSError):  # not empty, mostly
                    folder.rmdir()
        self._progress.finish()

    def _save_lock(self) -> None:
        path = self._plan.data_dir / LOCK_NAME
        if self._bringing.locked or path.exists():
            write_lock(path, dict(self._bringing.locked))

    def _save(self) -> None:
        """Record what is whole, and list the scenes that failed, with those of an earlier list that are left to do.

        Raises:
            OutputError: The folder cannot be written to, and something was fetched.
        """
        results = [task.result for task in self._tasks if task.result is not None]
        failed = {item.file.scene_id for item in results if item.is_failure and item.file.scene_id is not None}
        unfinished = {task.file.scene_id for task in self._tasks if task.result is None}
        settled = {task.file.scene_id for task in self._tasks} - unfinished
        try:
            self._save_lock()
            write_failed_list(self._plan.data_dir, sorted(failed | (_read_failed_list(self._plan.data_dir) - settled)))
        except OutputError as error:
            if any(item.outcome is FileOutcome.FETCHED for item in results):
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
            if not self._stop.is_set():
                self._events.put(error)

    def _take(self) -> list[Task] | None:
        """Wait for work: the files of the next scene, else one that failed; None where the run is over."""
        while not self._stop.is_set():
            with suppress(queue.Empty):
                item = self._due.get_nowait()
                if item[0] <= time.monotonic():
                    return item[-1]
                self._due.put(item)
            self._stop.wait(_WAIT_S)
        return None


def _read_failed_list(data_dir: Path) -> set[SceneId]:
    """What an earlier run has listed; nothing where that is not a list of scenes."""
    try:
        return set(parse_scene_ids([f"@{data_dir / FAILED_NAME}"]))
    except (MissingFileError, UnknownSceneError):
        return set()
