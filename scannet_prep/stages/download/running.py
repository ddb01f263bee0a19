"""Runs a download: several threads, each of which brings one scene after the other."""

from __future__ import annotations

import errno
import os
import queue
import random
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from pathlib import Path

from scannet_prep.errors import (
    DiskFullError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
    TransferError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.files import make_directory, output_error
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.raw.lock import LOCK_NAME, update_lock
from scannet_prep.release import BASE_URL
from scannet_prep.remote.catalog import RemoteFile
from scannet_prep.remote.client import check_certificates
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.transfer import Fetcher
from scannet_prep.scene import SceneId
from scannet_prep.stages.download.file import Event, FileDownload, Held, Moved, Received, read_locked
from scannet_prep.stages.download.planning import MAX_JOBS, DownloadPlan, DownloadReport, FileOutcome, FileResult
from scannet_prep.stages.download.space import Room, describe_lack, estimate_bytes, estimate_left, find_free_room
from scannet_prep.stages.download.terms import require_terms
from scannet_prep.stages.selection import parse_scene_ids

_CHORES_INTERVAL_S = 2.0
_LOCK_INTERVAL_S = 10.0
_KEEP_INTERVAL_S = 60.0
_BUSY_PAUSE_S = 0.5
_STOP_S = 1.5
_FILES_TO_JUDGE_BY = 10
_SPACE_HINT = "free some space, choose another folder with -o, or fetch less with --splits or --limit"
_CONTINUE_HINT = "free some space, then run the same command again: it goes on where it stopped"


def check(plan: DownloadPlan, *, jobs: int = 4, certificates: bool | Path = True) -> None:
    """Find out beforehand what would stop `run`, whose arguments these are; touches nothing.

    Raises:
        UsageError: Too many jobs; a file of certificates is missing, or is none.
        LockError: `scannet.lock` is damaged.
        OutputError: The disk will not hold it; the message has the amount that is missing. Or the folder is read-only.
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise UsageError(f"{jobs} connections at a time, expected 1 to {MAX_JOBS}", "the server is shared: be polite")
    check_certificates(plan.base_url, certificates)
    read_locked(plan.data_dir)
    if plan.lack:
        raise OutputError(f"{plan.data_dir}: the disk lacks {describe_lack(plan.lack)}", _SPACE_HINT)
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
) -> DownloadReport:
    """Fetch the files of a plan. What is there and whole is kept; a file that fails never stops the others.

    Args:
        plan: From `scannet_prep.stages.download.plan`.
        jobs: Connections at a time, at most 8.
        policy: How patient to be.
        certificates: True for the system's authorities, a file with others, False to accept any certificate.
        progress: Told of bytes, counted as planned, and of files.
        needs_terms: False for files that are not ScanNet's, such as synthetic scenes.

    Raises:
        TermsError: The terms of use have not been accepted, see `scannet_prep.stages.download.terms`.
        UsageError: Too many jobs; a file of certificates is missing, or is none.
        LockError: `scannet.lock` is damaged.
        OutputError: The disk is full, or will be; the message has the amount that is missing.
        CertificateError: The server's certificate cannot be verified.
        TransferError: The address is that of something else.
    """
    check(plan, jobs=jobs, certificates=certificates)
    if needs_terms:
        require_terms(plan.data_dir)
    make_directory(plan.data_dir)
    return _Run(plan, jobs, policy or TransferPolicy(), certificates, progress or NoProgress()).run()


class _Run:
    """One run: threads bring files and put what happens into a queue; the main thread alone tells it."""

    def __init__(
        self, plan: DownloadPlan, jobs: int, policy: TransferPolicy, certificates: bool | Path, progress: Progress
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        tell = self._events.put
        health = ServerHealth(
            failures_before_outage=min(2 * jobs, policy.attempts),  # before any file is given up for it
            first_delay_s=policy.first_delay_s,
            longest_delay_s=policy.longest_delay_s,
            patience_s=policy.outage_patience_s,
            first_patience_s=policy.first_answer_patience_s,
            untold_s=policy.untold_outage_s,
            on_change=tell,
        )
        self._fetcher = Fetcher(
            plan.base_url,
            policy,
            health,
            certificates,
            on_bytes=lambda count: tell(Received(count)),
            on_drop=lambda count: tell(Moved(-count)),
            on_pause=tell,
        )
        self._download = FileDownload(plan, self._fetcher, tell)
        self._waiting = deque(_group_by_scene(plan.files))
        self._is_stopped = threading.Event()
        self._results: dict[str, FileResult] = {}
        self._held: set[str] = set()
        self._received_bytes = 0
        self._has_told_held = self._has_told_outage = False
        self._told_hints: set[str] = set()
        self._chores_s = self._saved_s = self._kept_s = time.monotonic()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(jobs)]

    def run(self) -> DownloadReport:
        self._progress.start("download", estimate_bytes(self._plan.files), "B")
        is_ended = False
        try:
            for thread in self._threads:
                thread.start()
            while len(self._results) < len(self._plan.files):
                try:
                    self._handle(self._events.get(timeout=0.2))
                except queue.Empty:
                    self._progress.advance(0)  # time passes: somebody may be reading along
                if time.monotonic() - self._chores_s > _CHORES_INTERVAL_S:
                    self._do_chores()
            is_ended = True
        finally:
            self._stop()
            self._progress.finish()
            # Where something else has ended the run, that is what has to be told.
            with nullcontext() if is_ended else suppress(ScanNetPrepError, OSError):
                self._save_lock()
            with nullcontext() if is_ended else suppress(ScanNetPrepError, OSError):
                self._save_failed_list()
        return DownloadReport(
            data_dir=self._plan.data_dir,
            results=tuple(self._results[file.local_path] for file in self._plan.files),
            mended=tuple(sorted(self._download.mended)),
            opened=tuple(sorted(self._download.opened)),
            orphans=self._plan.orphans,
            received_bytes=self._received_bytes,
        )

    def _handle(self, event: Event) -> None:
        match event:
            case Received(count):
                self._received_bytes += count
                self._progress.advance(count)
            case Moved(count):
                self._progress.advance(count)
            case Held(local_path, is_held):
                self._held = self._held | {local_path} if is_held else self._held - {local_path}
                self._tell_held()
            case FileResult():
                self._results[event.file.local_path] = event
                self._held.discard(event.file.local_path)
                self._tell(event)
                self._tell_held()
                self._check_server()
            case DiskFullError():
                raise self._with_amount(event)
            case BaseException():
                raise event
            case str():
                self._progress.note(event)

    def _tell(self, result: FileResult) -> None:
        if result.outcome is FileOutcome.PRESENT:
            self._progress.advance(result.size_bytes)
        is_failure = result.outcome in (FileOutcome.FAILED, FileOutcome.MISSING)
        if is_failure and not (result.is_outage and self._has_told_outage):
            self._has_told_outage |= result.is_outage
            is_new_hint = result.hint and result.hint not in self._told_hints
            self._told_hints.add(result.hint)
            what = "giving up" if result.is_outage else result.outcome
            self._progress.note(f"{what}: {result.message}" + (f"\nhint: {result.hint}" if is_new_hint else ""))
        # The total was an estimate; now this file's part of it is known.
        self._progress.resize(result.size_bytes - (result.file.kind.typical_bytes or 0))

    def _tell_held(self) -> None:
        """Say so where nothing is left to do but to wait for another process."""
        count, left = len(self._results), len(self._plan.files) - len(self._results)
        is_waiting = 0 < left == len(self._held)
        status = f"{count:,}/{len(self._plan.files):,} files"
        self._progress.status(f"{status}, waiting for another process" if is_waiting else status)
        if is_waiting and not self._has_told_held:
            self._has_told_held = True
            self._progress.note(
                f"another process is at the last {'file' if left == 1 else f'{left:,} files'}: waiting for it "
                "(if that one has died on another machine, it is noticed after 10 minutes)"
            )

    def _with_amount(self, error: DiskFullError) -> DiskFullError:
        """Say how much is still to come, which is how much room is needed."""
        left = estimate_left(self._plan.data_dir, self._unfinished())
        return DiskFullError(
            f"{error.message}; about {left.size_bytes:,} bytes in {left.files:,} files are still to come", error.hint
        )

    def _unfinished(self) -> list[RemoteFile]:
        return [file for file in self._plan.files if file.local_path not in self._results]

    def _do_chores(self) -> None:
        """What has to be done now and then, whatever the threads wait for."""
        self._check_room()
        now_s = time.monotonic()
        if now_s - self._saved_s > _LOCK_INTERVAL_S:
            self._save_lock()
            self._saved_s = now_s
        if now_s - self._kept_s > _KEEP_INTERVAL_S:
            self._download.keep_partials()
            self._kept_s = now_s
        self._chores_s = time.monotonic()

    def _check_room(self) -> None:
        """Stop while there is still some space for everybody else, once it is clear that the rest has no room."""
        unfinished, free = self._unfinished(), find_free_room(self._plan.data_dir)
        if not free.find_lack(Room(estimate_bytes(unfinished), len(unfinished))):
            return
        # Closer now: other processes may have brought some of it, and some of it has arrived in part.
        lack = free.find_lack(estimate_left(self._plan.data_dir, unfinished))
        if lack:
            message = f"{self._plan.data_dir}: the disk lacks {describe_lack(lack)} for what is left"
            raise self._with_amount(DiskFullError(message, _CONTINUE_HINT))

    def _check_server(self) -> None:
        """Stop early where the server gives nothing at all: each file would fail, and take its time."""
        results = list(self._results.values())
        if len(results) != _FILES_TO_JUDGE_BY or not all(item.is_something_else for item in results):
            return
        if self._plan.base_url != BASE_URL:
            self._results.clear()  # what something else says is nothing to list scenes by
            raise TransferError(
                f"{self._plan.shown_base_url}: does not look like the ScanNet server; for example {results[0].message}",
                results[0].hint or f"--base-url looks like {BASE_URL}",
            )
        if all(item.outcome is FileOutcome.FAILED for item in results):
            raise TransferError(
                f"the server gives none of the first {len(results)} files; for example {results[0].message}",
                results[0].hint or "run the same command again later: it goes on where it stopped",
            )

    def _stop(self) -> None:
        self._is_stopped.set()
        self._fetcher.stop()
        deadline_s = time.monotonic() + _STOP_S
        for thread in [thread for thread in self._threads if thread.ident is not None]:  # interrupted at once
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _save_lock(self) -> None:
        update_lock(self._plan.data_dir / LOCK_NAME, self._download.take_new_entries())

    def _save_failed_list(self) -> None:
        """List the scenes that failed, and those of an earlier list that this run has not come to."""
        failures = [
            item for item in self._results.values() if item.outcome in (FileOutcome.FAILED, FileOutcome.MISSING)
        ]
        seen = {file.scene_id for file in self._plan.files} - {file.scene_id for file in self._unfinished()}
        failed = {item.file.scene_id for item in failures if item.file.scene_id is not None}
        write_failed_list(self._plan.data_dir, sorted(failed | (_read_failed_list(self._plan.data_dir) - seen)))

    def _work(self) -> None:
        """Bring one scene after the other, in a thread."""
        try:
            while not self._is_stopped.is_set():
                try:
                    group = self._waiting.popleft()
                except IndexError:
                    return
                busy = [file for file in group if not self._bring_and_tell(file)]
                if busy:  # another process is at them
                    self._waiting.append(busy)
                    self._is_stopped.wait(_BUSY_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - not in step with others
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._events.put(error)

    def _bring_and_tell(self, file: RemoteFile) -> bool:
        """Bring one file; gives False where another process is at it."""
        if self._is_stopped.is_set():
            return True
        result = self._download.bring(file)
        if result is not None and not (result.is_outage and self._is_stopped.is_set()):
            self._events.put(result)
        return result is not None


def _group_by_scene(files: tuple[RemoteFile, ...]) -> list[list[RemoteFile]]:
    """Files of one scene together and in order, so that each can be checked against those before it."""
    groups: dict[object, list[RemoteFile]] = {}
    for file in files:
        groups.setdefault(file.scene_id, []).append(file)
    return list(groups.values())


def _read_failed_list(data_dir: Path) -> set[SceneId]:
    """What an earlier run has listed; nothing where that is no list of scenes."""
    try:
        return set(parse_scene_ids([f"@{data_dir / FAILED_NAME}"]))
    except (MissingFileError, UnknownSceneError):
        return set()
