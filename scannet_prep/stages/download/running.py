"""Runs a download: threads make one request each at a time; one thread alone decides which, and tells of it.

Of each scene, what is there and whole is adopted; the rest is fetched, checked and recorded.
"""

from __future__ import annotations

import datetime as dt
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scannet_prep import release
from scannet_prep.errors import OutputError, ServerDownError, TermsError, UsageError
from scannet_prep.files import make_directory, run_lock, write_atomically, write_if_changed
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.progress import Progress
from scannet_prep.raw.lock import LOCK_NAME, encode_lock, read_locks, shards_of
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import PROOF_BYTES, Gate, TransferPolicy
from scannet_prep.remote.transfer import Partial, ask_for_end
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url
from scannet_prep.scene import SceneId, Split
from scannet_prep.space import check_space, format_bytes
from scannet_prep.splits import read_scene_list
from scannet_prep.stages.download.planning import DownloadPlan
from scannet_prep.stages.download.tasks import FileOutcome, FileTask, Worker

_MAX_JOBS = 8  # the server belongs to a university chair
_LOOK_S = 0.02
_MOST_UNTRIED = 64  # files of scenes that were looked at, before others are looked at
_STOP_S = 1.5
_STILL_S = 20.0  # so long without a byte, and it is said what is waited for


@dataclass(frozen=True, slots=True)
class DownloadReport:
    """What `run` did."""

    plan: DownloadPlan  # what was to be done
    results: tuple[FileTask, ...]  # one for each file that was asked for
    received_bytes: int  # bytes that came over the network

    @property
    def failures(self) -> tuple[FileTask, ...]:
        """Files that are not there in the end."""
        return tuple(item for item in self.results if item.outcome is FileOutcome.FAILED)

    def describe_failures(self) -> list[tuple[str, str]]:
        """A line and a hint for all files that failed for the same reason."""
        groups: dict[str, list[FileTask]] = {}
        for item in self.failures:
            groups.setdefault(item.reason, []).append(item)
        lines = []
        for first, *others in groups.values():
            text = f"{len(others) + 1:,} files: {first.reason}; for example {first.place}" if others else first.message
            lines.append((f"failed: {text}", first.hint))
        return lines

    def counts(self) -> dict[FileOutcome, int]:
        """Number of files by outcome."""
        outcomes = [item.outcome or FileOutcome.FAILED for item in self.results]
        return {outcome: outcomes.count(outcome) for outcome in FileOutcome}

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "data_dir": str(self.plan.data_dir),
            "files": self.counts(),
            "failures": [
                {"path": item.file.local_path, "scene_id": item.file.scene_id, "message": item.message}
                | ({"hint": item.hint} if item.hint else {})
                for item in self.failures
            ],
            "received_bytes": self.received_bytes,
            "size_bytes": sum(item.size_bytes for item in self.results),
        }


def run(
    plan: DownloadPlan,
    *,
    jobs: int = 4,
    policy: TransferPolicy | None = None,
    certificates: bool | Path = True,
    progress: Progress | None = None,
    needs_terms: bool = True,
    accepts_terms: bool = False,
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
        accepts_terms: Whether the terms of use are accepted, unless the folder records it already.
        is_strict: Look into files too whose digest is the recorded one, and fetch those again that are damaged.

    Raises:
        TermsError: The terms of use have not been accepted.
        UsageError: Too many jobs, or the file of certificates cannot be used.
        LockedError: Another run is working in the folder.
        LockError: `scannet.lock` is damaged.
        OutputError: The folder cannot be written to, or the disk is full, or will be.
        CertificateError, ProxyError: The server's certificate or the proxy cannot be used.
        RefusedError: The server gives none of the first files.
    """
    is_shared = plan.base_url == release.BASE_URL  # a mirror may be your own
    count = plan.share.shard.count if plan.share and is_shared else 1
    if not 1 <= jobs * count <= _MAX_JOBS:
        found = f"{jobs} connections at a time" + (f" in each of {count} shards" if count > 1 else "")
        raise UsageError(f"{found}, expected 1 to {_MAX_JOBS} in all", "the server is shared: be polite")
    read_locks(plan.data_dir)  # before anything is touched
    folder = plan.data_dir / release.SPLIT_DIRS[Split.TRAIN]  # that of nearly all files, which may be a link
    check_space(folder.resolve(), plan.needed_bytes, len(plan.missing))
    client = Client(plan.base_url, policy or TransferPolicy(), certificates)
    terms_path = plan.data_dir / "terms_accepted.txt"
    has_accepted = terms_path.is_file() or not needs_terms
    if not (has_accepted or accepts_terms):
        problem = f"the ScanNet Terms of Use have not been accepted: {release.TERMS_URL}"
        hint = "read them, sign them, then: scannet-prep download --accept-terms, or SCANNET_PREP_ACCEPT_TERMS=1"
        raise TermsError(problem, hint)
    make_directory(plan.data_dir)
    if not has_accepted:
        now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        write_atomically(terms_path, [f"ScanNet Terms of Use accepted at {now}\n{release.TERMS_URL}\n".encode()])
    with run_lock(plan.data_dir) if plan.share is None else nullcontext():
        progress = progress or Progress()
        worker = Worker(plan, client, progress.note, is_strict=is_strict)
        if plan.share is not None and not plan.is_merged:
            plan.share.begin()
        return _Run(plan, client, worker, jobs, progress).run()


@dataclass(slots=True, eq=False)
class _Job:
    """What a thread is at: one of the files of a scene, or where none is named, those that are there."""

    scene: Sequence[FileTask] = ()
    task: FileTask | None = None
    known: FileTask | None = None  # instead, to find out whether the server serves anything: a byte of this file
    thread: threading.Thread = field(init=False)  # does it, and ends


class _Run:
    """One run; all of this but `_work` is for the main thread."""

    def __init__(self, plan: DownloadPlan, client: Client, worker: Worker, jobs: int, progress: Progress) -> None:
        self._plan, self._client, self._worker, self._jobs, self._progress = plan, client, worker, jobs, progress
        self._gate = Gate(client.policy, plan.shown_base_url, progress.note)
        self._scenes: dict[SceneId | None, list[FileTask]] = {}
        for file in plan.files:
            self._scenes.setdefault(file.scene_id, []).append(FileTask(file, plan.data_dir / file.local_path))
        self._tasks = [task for scene in self._scenes.values() for task in scene]
        self._fresh = deque(self._scenes.values())  # not looked at yet
        self._missing: list[FileTask] = []  # of scenes that were looked at; no thread is at them
        self._active: set[_Job] = set()
        self._done: queue.SimpleQueue[tuple[_Job, BaseException | None]] = queue.SimpleQueue()
        self._told: set[str] = set()
        self._settled = self._received_bytes = 0
        self._moved_s = time.monotonic()

    def run(self) -> DownloadReport:
        total_bytes = sum(file.kind.typical_bytes or 0 for file in self._plan.files)
        try:
            with self._progress.work("download", total_bytes, "B"):
                self._bring_all()
        except ServerDownError as error:
            for task in self._tasks:
                if task.outcome is None:  # a thread may have ended its job since
                    task.fail(error.message, error.hint, self._plan.shown_base_url)
        except BaseException:
            with suppress(OutputError):  # what ended the run is what has to be told
                self._save()
            raise
        self._save(is_end=True)
        return DownloadReport(self._plan, tuple(self._tasks), self._client.received_bytes)

    def _bring_all(self) -> None:
        try:
            while self._settled < len(self._tasks):
                while len(self._active) < self._jobs and (job := self._choose_job()):
                    job.thread = threading.Thread(target=self._work, args=[job], name="download", daemon=True)
                    job.thread.start()
                    self._active.add(job)
                with suppress(queue.Empty):
                    self._settle(*self._done.get(timeout=_LOOK_S))
                self._show()
        finally:
            self._client.close()
            deadline_s = time.monotonic() + _STOP_S
            for job in self._active:
                job.thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self, job: _Job) -> None:
        try:
            if job.task:
                self._worker.fetch(job.task, job.scene)
            elif job.known:
                ask_for_end(self._client, job.known.file.url, job.known.size_bytes)
            else:
                self._worker.adopt(job.scene)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._done.put((job, error))
        else:
            self._done.put((job, None))

    def _choose_job(self) -> _Job | None:
        """Choose what is done next: what is missing of scenes that were looked at, or the next scene."""
        busy = [job.scene for job in self._active]
        ready = [task for task in self._missing if self._scenes[task.file.scene_id] not in busy]
        task = min(ready, key=lambda task: task.next_s, default=None)
        job = None
        if task and self._gate.admits():
            if self._gate.state and (known := self._choose_known()):
                job = _Job(known=known)
            elif task.next_s <= (0.0 if self._fresh else time.monotonic()):  # what has failed comes after all others
                self._missing.remove(task)
                task.partial = Partial(task.path)
                job = _Job(self._scenes[task.file.scene_id], task)
        if job:
            self._gate.enter(job)
        elif self._fresh and sum(not task.next_s for task in self._missing) < _MOST_UNTRIED:
            job = _Job(self._fresh.popleft())
        return job

    def _choose_known(self) -> FileTask | None:
        """Choose a file that was served before. This server may lack those of earlier runs: every other time, none.

        The first trial asks for one: only that shows that the server is up, and the file that has just failed to blame.
        """
        known = [task for task in self._tasks if task.outcome is FileOutcome.FETCHED]
        if not known and self._gate.failure_count % 2:
            known = [task for task in self._tasks if task.outcome is FileOutcome.PRESENT]
        return random.choice(known) if known else None  # noqa: S311 - any will do

    def _settle(self, job: _Job, error: BaseException | None) -> None:
        """Take note of what a thread has done."""
        job.thread.join()
        self._active.remove(job)
        if isinstance(error, AttemptError):
            blame = None
            if task := job.task:
                blame = partial(task.blame, error, self._client.policy.tries, task.partial.size_bytes)
                if error.tries == FEW_TRIES and error.reason not in self._told:  # once only of all that fail alike
                    self._told.add(error.reason)
                    url = public_url(task.file.url)
                    self._progress.note(f"{url}: {error.reason}; it is tried again after the others")
            self._gate.failed(job, error, blame)
        elif error is not None:
            raise error
        elif job.task or job.known:
            self._gate.served(job)
        self._missing += [job.task] if job.task else job.scene
        for task in [task for task in self._missing if task.outcome]:
            self._missing.remove(task)
            self._settled += 1
            scene = self._scenes[task.file.scene_id]
            for item in scene if all(item.outcome for item in scene) else ():
                item.facts = None  # which nothing is compared with any more
            self._progress.advance(task.file.kind.typical_bytes or 0)

    def _show(self) -> None:
        """Tell how far it is, and what is waited for."""
        for job in self._active:
            if job.task and job.task.partial.received_bytes >= PROOF_BYTES:
                self._gate.served(job)
        if self._received_bytes != self._client.received_bytes:
            self._received_bytes, self._moved_s = self._client.received_bytes, time.monotonic()
        state = self._gate.state
        still_s, waiting = time.monotonic() - self._moved_s, [job.task for job in self._active if job.task]
        if not state and still_s >= _STILL_S and waiting:
            state = f"nothing has come for {still_s:.0f} s, waiting for {waiting[0].file.local_path}"
        shown = [f"{self._settled:,}/{len(self._tasks):,} files, {format_bytes(self._received_bytes)} received", state]
        self._progress.status(", ".join(filter(None, shown)))

    def _save(self, *, is_end: bool = False) -> None:
        """Record what is whole, and list the scenes that failed."""
        share, path, failed_path = self._plan.share, self._plan.data_dir / LOCK_NAME, self._plan.data_dir / FAILED_NAME
        locked = dict(self._worker.locked)
        if share is not None and self._plan.is_merged:
            if locked.items() <= read_locks(self._plan.data_dir).items():
                return  # there is nothing to say
            share.begin()
        if share is not None:
            path, failed_path = share.path(), share.path(f".{FAILED_NAME}")
            own = {file.local_path for file in self._plan.files}
            locked = {name: entry for name, entry in locked.items() if name in own}
        try:
            if locked or path.exists():
                write_if_changed(path, encode_lock(locked), is_durable=True)
            self._list_failures(failed_path)
            if is_end and share is not None:
                share.finish(encode_lock(locked))
            elif is_end:
                shards_of(self._plan.data_dir).remove()
        except OutputError as error:
            if any(task.outcome is FileOutcome.FETCHED for task in self._tasks):
                raise
            self._progress.note(f"not recorded: {error.message}")

    def _list_failures(self, path: Path) -> None:
        """List the scenes that failed. Those of an earlier list stay on it until they are whole."""
        failed = set[str](read_scene_list(path) if path.exists() else ())
        for scene_id, scene in self._scenes.items():
            outcomes = {task.outcome for task in scene}
            if scene_id is not None and None not in outcomes:
                failed.discard(scene_id)
            if scene_id is not None and FileOutcome.FAILED in outcomes:
                failed.add(scene_id)
        write_failed_list(path, failed)
