"""Runs a download: several threads, each of which brings one scene after the other."""

from __future__ import annotations

import os
import queue
import random
import stat
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import (
    DiskFullError,
    FileError,
    MissingFileError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
    UsageError,
)
from scannet_prep.files import make_directory
from scannet_prep.processed.folder import write_failed_list
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_lock, update_lock
from scannet_prep.remote.catalog import BASE_URL, RemoteFile
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.partial import Partial
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.transfer import Fetcher
from scannet_prep.stages.check_download import check_file
from scannet_prep.stages.download_plan import (
    MAX_JOBS,
    RESERVE_BYTES,
    DownloadPlan,
    DownloadReport,
    FileOutcome,
    FileResult,
    find_free_space,
)
from scannet_prep.stages.terms import require_terms

_LOCK_INTERVAL_S = 10.0
_BUSY_PAUSE_S = 0.5
_STOP_S = 1.5
_FILES_TO_JUDGE_BY = 10


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
        TermsError: The terms of use have not been accepted, see `scannet_prep.stages.terms`.
        UsageError: Too many jobs.
        LockError: `scannet.lock` is damaged.
        OutputError: The disk is full, or will be; the message has the amount that is missing.
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise UsageError(f"{jobs} connections at a time, expected 1 to {MAX_JOBS}", "the server is shared: be polite")
    if needs_terms:
        require_terms(plan.data_dir)
    make_directory(plan.data_dir)
    if plan.lacking_bytes or plan.lacking_inodes:
        raise OutputError(
            f"{plan.data_dir}: the disk lacks {plan.lacking_bytes:,} bytes and room for {plan.lacking_inodes:,} files",
            "free some space, choose another folder with -o, or fetch less with --splits or --limit",
        )
    return _Run(plan, jobs, policy or TransferPolicy(), certificates, progress or NoProgress()).run()


@dataclass(frozen=True, slots=True)
class _Received:
    """Bytes that a thread has received; negative where it had to drop some."""

    count: int


class _Run:
    """One run: threads bring files and put what happens into a queue; the main thread alone tells it."""

    def __init__(
        self, plan: DownloadPlan, jobs: int, policy: TransferPolicy, certificates: bool | Path, progress: Progress
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._lock_path = plan.data_dir / LOCK_NAME
        self._locked = _read_lock(self._lock_path)
        self._umask = _read_umask()
        self._events: queue.SimpleQueue[FileResult | _Received | str | BaseException] = queue.SimpleQueue()
        health = ServerHealth(
            failures_before_outage=2 * jobs,
            first_delay_s=policy.first_delay_s,
            longest_delay_s=policy.longest_delay_s,
            patience_s=policy.outage_patience_s,
            first_patience_s=policy.first_answer_patience_s,
            on_change=self._events.put,
        )
        self._fetcher = Fetcher(plan.base_url, policy, health, certificates, lambda n: self._events.put(_Received(n)))
        self._waiting = deque(_group_by_scene(plan.files))
        self._guard = threading.Lock()
        self._is_stopped = threading.Event()
        self._new_entries: dict[str, LockEntry] = {}
        self._mended: list[str] = []
        self._opened: list[str] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(jobs)]

    def run(self) -> DownloadReport:
        results: dict[str, FileResult] = {}
        received_bytes = 0
        self._progress.start("download", sum(file.kind.typical_bytes or 0 for file in self._plan.files), "B")
        for thread in self._threads:
            thread.start()
        saved_s = time.monotonic()
        is_ended = False
        try:
            while len(results) < len(self._plan.files):
                try:
                    event = self._events.get(timeout=0.2)
                except queue.Empty:
                    event = ""
                    self._progress.advance(0)  # time passes: somebody may be reading along
                match event:
                    case _Received(count):
                        received_bytes += count
                        self._progress.advance(count)
                    case FileResult():
                        results[event.file.local_path] = event
                        self._tell(event, len(results))
                        self._check_server(results)
                    case DiskFullError():
                        raise self._with_amount(event, results)
                    case BaseException():
                        raise event
                    case str() if event:
                        self._progress.note(event)
                if time.monotonic() - saved_s > _LOCK_INTERVAL_S:
                    self._save_lock()
                    saved_s = time.monotonic()
            is_ended = True
        finally:
            self._stop()
            self._progress.finish()
            # Where something else has ended the run, that is what has to be told.
            with nullcontext() if is_ended else suppress(ScanNetPrepError, OSError):
                self._save_lock()
        report = DownloadReport(
            data_dir=self._plan.data_dir,
            results=tuple(results[file.local_path] for file in self._plan.files),
            mended=tuple(sorted(self._mended)),
            opened=tuple(sorted(self._opened)),
            orphans=self._plan.orphans,
            received_bytes=received_bytes,
        )
        write_failed_list(self._plan.data_dir, [failure.scene_id for failure in report.failed_scenes])
        return report

    def _tell(self, result: FileResult, count: int) -> None:
        self._progress.status(f"{count:,}/{len(self._plan.files):,} files")
        if result.outcome is FileOutcome.PRESENT:
            self._progress.advance(result.size_bytes)
        if result.outcome in (FileOutcome.FAILED, FileOutcome.MISSING):
            self._progress.note(f"{result.outcome}: {result.message}")
        # The total was an estimate; now this file's part of it is known.
        self._progress.resize(result.size_bytes - (result.file.kind.typical_bytes or 0))

    def _with_amount(self, error: DiskFullError, results: dict[str, FileResult]) -> DiskFullError:
        """Say how much is still to come, which is how much room is needed."""
        missing = [file for file in self._plan.missing if file.local_path not in results]
        size_bytes = sum(file.kind.typical_bytes or 0 for file in missing)
        return DiskFullError(
            f"{error.message}; about {size_bytes:,} bytes in {len(missing):,} files are still to come", error.hint
        )

    def _check_server(self, results: dict[str, FileResult]) -> None:
        """Stop early where the address is that of something else: each file would fail, and take its time."""
        is_other = all(item.is_something_else for item in results.values())
        if is_other and self._plan.base_url != BASE_URL and len(results) == _FILES_TO_JUDGE_BY:
            example = next(iter(results.values())).message
            raise TransferError(
                f"{self._plan.base_url}: does not look like the ScanNet server; for example {example}",
                f"--base-url looks like {BASE_URL}",
            )

    def _stop(self) -> None:
        self._is_stopped.set()
        self._fetcher.stop()
        deadline_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _save_lock(self) -> None:
        with self._guard:
            entries, self._new_entries = self._new_entries, {}
        update_lock(self._lock_path, entries)

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
        try:
            result = self._bring(file)
        except DiskFullError:
            raise
        except NotOnServerError as error:
            result = FileResult(file, FileOutcome.MISSING, 0, str(error), error.hint, is_something_else=True)
        except ScanNetPrepError as error:
            if isinstance(error, ServerDownError) and self._is_stopped.is_set():
                return True
            result = FileResult(file, FileOutcome.FAILED, 0, str(error), error.hint, isinstance(error, FileError))
        except OSError as error:
            message = f"{self._plan.data_dir / file.local_path}: {error.strerror or error}"
            result = FileResult(file, FileOutcome.FAILED, 0, message)
        if result is not None:
            self._events.put(result)
        return result is not None

    def _bring(self, file: RemoteFile) -> FileResult | None:
        path = self._plan.data_dir / file.local_path
        entry = self._locked.get(file.local_path)
        is_damaged = False
        if path.exists():
            fault = self._find_fault(file, path, entry)
            if not fault:
                return FileResult(file, FileOutcome.PRESENT, path.stat().st_size)
            self._events.put(f"{path}: {fault}; fetching it again")
            is_damaged = True
        self._check_space(file)
        partial = Partial.claim(path)
        if partial is None:
            return None
        try:
            if path.exists() and not is_damaged:  # another process has just finished it
                return None
            self._fetcher.fetch(file.remote_path, partial, lambda: check_file(file, partial.path, self._plan.data_dir))
            self._accept(file, partial, entry)
        finally:
            partial.close()
            with suppress(OSError):
                path.parent.rmdir()  # only where nothing has come of it, so that no empty folder stays
        if is_damaged:
            self._mended.append(file.local_path)
        return FileResult(file, FileOutcome.FETCHED, path.stat().st_size)

    def _find_fault(self, file: RemoteFile, path: Path, entry: LockEntry | None) -> str:
        """What is wrong with a file that is there; empty where it is whole. New ones are recorded."""
        self._repair_mode(file, path)
        try:
            found = digest_file(path)
            if entry is None:
                check_file(file, path, self._plan.data_dir)
        except FileError as error:
            return error.problem
        if entry is not None and found != entry:
            return f"is not the file recorded in {LOCK_NAME}: {found.size_bytes:,} bytes, expected {entry.size_bytes:,}"
        if entry is None:
            self._record(file, found)
        return ""

    def _accept(self, file: RemoteFile, partial: Partial, entry: LockEntry | None) -> None:
        """Compare what has arrived with what is recorded of it, and give it its final name."""
        found = digest_file(partial.path)
        if entry is not None and found != entry:
            self._events.put(_Received(-partial.size_bytes))
            partial.discard()
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            expected = f"{entry.size_bytes:,}, {entry.sha256[:12]}"
            raise TransferError(
                f"{self._plan.url(file)}: is not what {self._lock_path} records: {sizes}, expected {expected}",
                f"to accept the server's new version, remove its line from {self._lock_path}",
            )
        partial.publish()
        self._record(file, found)

    def _record(self, file: RemoteFile, entry: LockEntry) -> None:
        with self._guard:
            self._new_entries[file.local_path] = entry

    def _repair_mode(self, file: RemoteFile, path: Path) -> None:
        """Give a file the permissions that the umask allows, where the official script left it for its owner only."""
        with suppress(OSError):  # somebody else's file: nothing to be done, and readable or not
            if stat.S_IMODE(path.stat().st_mode) == 0o600 and self._umask != 0o077:
                path.chmod(0o666 & ~self._umask)
                self._opened.append(file.local_path)

    def _check_space(self, file: RemoteFile) -> None:
        free_bytes, _ = find_free_space(self._plan.data_dir)
        lacking = (file.kind.typical_bytes or 0) + RESERVE_BYTES - free_bytes
        if lacking > 0:
            raise DiskFullError(
                f"{self._plan.data_dir}: the disk is nearly full: {free_bytes:,} bytes left, {lacking:,} too few",
                "free some space, then run the same command again: it goes on where it stopped",
            )


def _group_by_scene(files: tuple[RemoteFile, ...]) -> list[list[RemoteFile]]:
    """Files of one scene together and in order, so that each can be checked against those before it."""
    groups: dict[object, list[RemoteFile]] = {}
    for file in files:
        groups.setdefault(file.scene_id, []).append(file)
    return list(groups.values())


def _read_lock(path: Path) -> dict[str, LockEntry]:
    try:
        return read_lock(path)
    except MissingFileError:
        return {}


def _read_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
