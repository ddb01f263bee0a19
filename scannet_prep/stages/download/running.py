"""Runs a download: one scheduler decides, and connection threads each do one job.

    plan -> scenes -> adopt -> queue of files -> fetch -> settled -> scene compared
                                 ^                |
                                 |                v  failed
                                 |--------------- held

The scheduler (`_Scheduler`, in the main thread) starts a thread for each job, and receives the results:

- adopt: check those files of a scene that are there already; the missing ones join the queue;
- fetch: make one request for a file of the queue;
- probe: ask for a byte of a file that was served before, to find out whether the server is up.

A failed file is held until it is known whether the failure was its own or the server's. If something that was requested
later is served, it was the file's own: it is counted, and a file that has tries left returns to the queue. If too many
are held, or nothing else is left, one request probes the server. If it fails as well, that is an outage: the held files
return to the queue, nothing is counted, and there are only probes until one is served (`remote.gate`).
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.base.disk import check_space, format_bytes
from scannet_prep.base.errors import OutputError, ServerDownError, UsageError
from scannet_prep.base.files import make_directory, write_if_changed
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.base.units import format_duration
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.raw.lock import LOCK_NAME, encode_lock, read_locks
from scannet_prep.release import files as release
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import read_scene_list
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import PROOF_BYTES, Gate, TransferPolicy
from scannet_prep.remote.transfer import Partial, ask_for_end
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url
from scannet_prep.stages.download.planning import DownloadPlan
from scannet_prep.stages.download.tasks import FileOutcome, FileTask, Worker
from scannet_prep.stages.download.terms import HOW_TO_SIGN, has_accepted_terms, record_acceptance

_MAX_JOBS = 8  # the server belongs to a university chair
_POLL_INTERVAL_S = 0.02  # the longest time between two looks at the clock
_MAX_HELD = 5  # so many files that have failed with no success between them are an outage, or refusals of everything
_STOP_S = 1.5  # how long to wait for threads at the end
_STALL_AFTER_S = 20.0  # after so long without a byte, the status names a file that is waited for


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
            text = (
                f"{len(others) + 1:,} files: {first.reason}; for example {first.place}"
                if others
                else first.message
            )
            lines.append((f"failed: {text}", first.hint))
        return lines

    def counts(self) -> dict[FileOutcome, int]:
        """Number of files by outcome."""
        outcomes = [item.outcome for item in self.results]
        return {outcome: outcomes.count(outcome) for outcome in FileOutcome}

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "data_dir": str(self.plan.data_dir),
            "files": self.counts(),
            "failures": [
                {
                    "path": item.file.local_path,
                    "scene_id": item.file.scene_id,
                    "message": item.message,
                }
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
        certificates: A file or folder of authorities, True for those that the environment names or
            else those of certifi, False to accept any certificate.
        progress: Told of bytes, counted as planned, and of files.
        needs_terms: False for files that are not ScanNet's, such as synthetic scenes.
        accepts_terms: Whether the terms of use are accepted, unless the folder records it already.
        is_strict: Look into files too whose digest is the recorded one, and fetch those again that are damaged.

    Raises:
        UsageError: The terms of use have not been accepted, there are too many jobs, or the
            certificate authorities cannot be used.
        LockedError: Another run is working in the folder.
        RawFileError: `scannet.lock` is damaged.
        OutputError: The folder cannot be written to, or the disk is full, or will be.
        CertificateError, ProxyError: The server's certificate or the proxy cannot be used.
        TransferError: The server gives none of the first files.
    """
    if not 1 <= jobs <= _MAX_JOBS:
        problem = f"{jobs} connections at a time, expected 1 to {_MAX_JOBS}"
        raise UsageError(problem, f"the server is shared: --jobs {_MAX_JOBS}, or leave it out")
    read_locks(plan.data_dir)  # before anything is touched
    folder = (
        plan.data_dir / release.SPLIT_DIRS[Split.TRAIN]
    )  # that of nearly all files, which may be a link
    check_space(folder.resolve(), plan.needed_bytes, len(plan.missing))
    client = Client(plan.base_url, policy or TransferPolicy(), certificates)
    if needs_terms and not (accepts_terms or has_accepted_terms(plan.data_dir)):
        problem = f"the ScanNet Terms of Use have not been accepted. {HOW_TO_SIGN}"
        raise UsageError(problem, "once you have signed them, pass --accept-terms")
    make_directory(plan.data_dir)
    if needs_terms:
        record_acceptance(plan.data_dir)
    with run_lock(plan.data_dir):
        progress = progress or Progress()
        worker = Worker(plan, client, progress.note, is_strict=is_strict)
        return _Scheduler(plan, client, worker, jobs, progress).run()


@dataclass(slots=True, eq=False)
class _Job:
    """Work for a connection thread: one of the first three.

    Attributes:
        scene: Files to adopt, as far as they are there.
        task: A file to fetch.
        known: A file that was served before, to ask for a byte of it.
        is_probe: Whether the outcome decides if the server is down.
        requested_s: When it began, on the monotonic clock.
        error: What went wrong.
        thread: The thread, which ends with the job.
    """

    scene: Sequence[FileTask] = ()
    task: FileTask | None = None
    known: FileTask | None = None
    is_probe: bool = False
    requested_s: float = 0.0
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed request for a file, which may be the server's fault or the file's own."""

    task: FileTask
    error: AttemptError
    failed_s: float


class _Scheduler:
    """One run. All of it but `_work` runs in the main thread.

    A file that is not settled is in one place at a time: its scene has not been adopted, it is in the queue, requested
    by a thread, or held.
    """

    def __init__(
        self, plan: DownloadPlan, client: Client, worker: Worker, jobs: int, progress: Progress
    ) -> None:
        self._plan = plan
        self._client = client
        self._worker = worker
        self._max_active = jobs
        self._progress = progress
        self._gate = Gate(client.policy, plan.shown_base_url, progress.note)
        self._tasks = [FileTask(file, plan.data_dir / file.local_path) for file in plan.files]
        self._scenes: dict[SceneId | None, list[FileTask]] = {}
        for task in self._tasks:
            self._scenes.setdefault(task.file.scene_id, []).append(task)
        self._not_adopted = deque(self._scenes.values())
        self._queue: list[FileTask] = []
        self._held: list[_Failure] = []  # with no success since
        self._active: set[_Job] = set()
        self._ended: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._noted_reasons: set[str] = set()
        self._settled = 0
        self._received_bytes = 0
        self._received_s = time.monotonic()

    def run(self) -> DownloadReport:
        """Bring all files, or say why not."""
        total_bytes = sum(file.kind.typical_bytes or 0 for file in self._plan.files)
        try:
            with self._progress.work("download", total_bytes, "B"):
                self._bring_all()
        except ServerDownError as error:
            for task in self._tasks:
                if task.outcome is None:
                    task.fail(error.message, error.hint, self._plan.shown_base_url)
        except BaseException:
            with suppress(OutputError):  # what ended the run is what has to be told
                self._save()
            raise
        self._save()
        return DownloadReport(self._plan, tuple(self._tasks), self._client.received_bytes)

    def _bring_all(self) -> None:
        """Start jobs and receive their results until all files are settled and nothing is under way."""
        try:
            while self._active or self._settled < len(self._tasks):
                while len(self._active) < self._max_active:
                    job = self._choose_job()
                    if job is None:
                        break
                    self._start(job)
                self._receive()
                self._show()
        finally:
            self._client.close()
            deadline_s = time.monotonic() + _STOP_S
            for job in self._active:
                job.thread.join(max(0.0, deadline_s - time.monotonic()))
            self._client.close()  # what a thread has opened meanwhile

    def _start(self, job: _Job) -> None:
        """Give a job a thread: a daemon, for which an interrupted run does not wait."""
        job.requested_s = time.monotonic()
        if not job.scene:
            self._gate.pace.requested(job.requested_s)
        if job.task is not None:
            job.task.partial = Partial(job.task.path)
        job.thread = threading.Thread(target=self._work, args=[job], name="download", daemon=True)
        job.thread.start()
        self._active.add(job)

    def _work(self, job: _Job) -> None:
        """Do a job: this is a connection thread."""
        try:
            if job.task is not None:
                self._worker.fetch(job.task)
            elif job.known is not None:
                ask_for_end(self._client, job.known.file.url, job.known.size_bytes)
            else:
                self._worker.adopt(job.scene)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            job.error = error
        self._ended.put(job)

    def _choose_job(self) -> _Job | None:
        """Choose what is done next; None if there is nothing to do at the moment."""
        is_suspect = self._gate.failed_probes > 0 or len(self._held) >= _MAX_HELD
        job = self._choose_probe() if is_suspect else self._choose_fetch()
        if job is not None:
            return job
        if self._not_adopted:
            return _Job(self._not_adopted.popleft())
        # At the end, no other file shows whether those that have failed did so by themselves.
        return None if self._active else self._choose_probe()

    def _choose_fetch(self) -> _Job | None:
        """Choose a file to request, and take it from the queue; None if none may be requested now."""
        if not (self._queue and self._gate.may_request()):
            return None
        now_s = time.monotonic()
        ready = [task for task in self._queue if task.next_s <= now_s]
        task = min(ready, key=lambda task: task.is_late, default=None)
        if task is None or (task.is_late and self._not_adopted):
            return None
        self._queue.remove(task)
        return _Job(task=task)

    def _choose_probe(self) -> _Job | None:
        """Choose a file that was served before, to ask for a byte of it; or another file.

        Only a file that was served before shows for certain whether the server is up. A mirror may lack files of
        earlier runs: until something was served in this run, they take turns with files that are missing.
        """
        is_probing = any(job.is_probe for job in self._active)
        is_needed = self._held or (self._queue and self._gate.failed_probes)
        if is_probing or not is_needed or not self._gate.may_request():
            return None
        known = [task for task in self._tasks if task.outcome is FileOutcome.FETCHED]
        if not known and self._gate.failed_probes % 2 == 0:
            known = [task for task in self._tasks if task.outcome is FileOutcome.PRESENT]
        if known:
            return _Job(known=random.choice(known), is_probe=True)  # noqa: S311 - any will do
        task = self._queue.pop(0) if self._queue else self._held.pop(0).task
        return _Job(task=task, is_probe=True)

    def _receive(self) -> None:
        """Wait for a result, or until another request may be made; and act on it."""
        pause_s = self._gate.pace.next_s - time.monotonic()
        wait_s = pause_s if 0 < pause_s < _POLL_INTERVAL_S else _POLL_INTERVAL_S
        try:
            job = self._ended.get(timeout=wait_s)
        except queue.Empty:
            return
        job.thread.join()
        self._active.remove(job)
        if isinstance(job.error, AttemptError):
            self._hold(job, job.error)
        elif job.error is not None:
            raise job.error
        elif job.scene:
            self._sort(job.scene)
        else:
            self._gate.pace.served()
            self._note_content(job)
            if job.task is not None:
                self._sort([job.task])

    def _hold(self, job: _Job, error: AttemptError) -> None:
        """Hold a failure until it is judged. In an outage, none counts: the files return to the queue."""
        if job.task is not None:
            self._held.append(_Failure(job.task, error, time.monotonic()))
        if self._gate.failed(error, job.requested_s, is_probe=job.is_probe):
            self._sort([failure.task for failure in self._held])
            self._held.clear()

    def _note_content(self, job: _Job) -> None:
        """Judge failures by a request that is served: those from before it was made were the files' own."""
        if not self._gate.served(is_probe=job.is_probe):
            return
        job.is_probe = False
        for failure in list(self._held):
            if failure.failed_s <= job.requested_s:
                self._held.remove(failure)
                self._charge(failure)

    def _charge(self, failure: _Failure) -> None:
        """Count a failure against its file."""
        task = failure.task
        error = failure.error
        policy = self._client.policy
        task.charge(error, policy.tries)
        task.next_s = failure.failed_s + policy.pause_s(task.failures.total())
        is_costly = error.tries == FEW_TRIES and task.outcome is None
        if (
            is_costly and error.reason not in self._noted_reasons
        ):  # once only of all that fail alike
            self._noted_reasons.add(error.reason)
            url = public_url(task.file.url)
            self._progress.note(f"{url}: {error.reason}; it is tried again after the others")
        self._sort([task])

    def _sort(self, tasks: Iterable[FileTask]) -> None:
        """Put files into the queue; those that are settled count, and complete their scenes."""
        for task in tasks:
            if task.outcome is None:
                self._queue.append(task)
                continue
            self._settled += 1
            self._show_bytes(task)
            scene = self._scenes[task.file.scene_id]
            if all(other.outcome for other in scene):
                self._worker.compare(scene)

    def _show(self) -> None:
        """Show how far the run is, and what it waits for."""
        for job in self._active:
            if job.task is not None:
                self._show_bytes(job.task)
                if job.task.partial.received_bytes >= PROOF_BYTES:
                    self._note_content(job)
        if self._received_bytes != self._client.received_bytes:
            self._received_bytes = self._client.received_bytes
            self._received_s = time.monotonic()
        self._progress.status(
            self._describe_state() or f"{self._settled:,}/{len(self._tasks):,} files"
        )

    def _describe_state(self) -> str:
        """Describe what the run waits for; an empty text while bytes arrive."""
        if self._gate.state:
            return self._gate.state
        for job in self._active:
            for task in (*job.scene, job.task):
                if task is not None and task.checked_bytes:
                    return f"{format_bytes(task.checked_bytes)} of {task.path.name} checked"
        silent_s = time.monotonic() - self._received_s
        fetched = [job.task for job in self._active if job.task is not None]
        if fetched and silent_s >= _STALL_AFTER_S:
            return f"no data for {format_duration(silent_s)}: {fetched[0].path.name}"
        return ""

    def _show_bytes(self, task: FileTask) -> None:
        """Advance the bar by what has arrived of a file, as a share of its typical size."""
        typical_bytes = task.file.kind.typical_bytes or 0
        arrived_bytes = typical_bytes
        if task.outcome is None:
            arrived_bytes = min(task.partial.size_bytes, typical_bytes)
        if arrived_bytes > task.shown_bytes:
            self._progress.advance(arrived_bytes - task.shown_bytes)
            task.shown_bytes = arrived_bytes

    def _save(self) -> None:
        """Record the complete files, and list the scenes that failed."""
        for scene in self._scenes.values():
            self._worker.compare(scene)  # again, which does nothing, unless the run has ended early
        lock_path = self._plan.data_dir / LOCK_NAME
        locked = dict(self._worker.locked)
        try:
            if locked or lock_path.exists():
                write_if_changed(lock_path, encode_lock(locked), is_durable=True)
            self._list_failures(self._plan.data_dir / FAILED_NAME)
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
