"""Schedule a download: one thread decides, and the others do one job each.

    plan -> scenes -> adopt -> queue of files -> fetch -> settled -> scene compared
                                 ^                |
                                 |                v  failed
                                 |--------------- held

`Scheduler`, in the main thread, starts a thread for each job and receives the results. The jobs
are:

- adopt: check the existing files of a scene. The missing ones join the queue.
- fetch: make one request for a file of the queue.
- probe: request a byte of a file that was served before, to find out whether the server is up.

A failed file is held until it is known whether the failure was its own or the server's. If
something that was requested later is served, the failure was the file's own. It is counted, and a
file that has tries left returns to the queue.

If too many files are held, or nothing else is left, one request probes the server. If the probe
fails as well, there is an outage: the held files return to the queue, nothing is counted, and there
are only probes until one is served (`remote.gate`).
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scannet_prep.base.progress import Progress
from scannet_prep.base.text import format_bytes, format_duration
from scannet_prep.release.scene import SceneId
from scannet_prep.remote.addresses import public_url
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import Gate
from scannet_prep.remote.policy import PROOF_BYTES
from scannet_prep.remote.request_errors import FEW_TRIES, AttemptError
from scannet_prep.remote.transfer import PartialFile, check_still_served
from scannet_prep.stages.download.planning import DownloadPlan
from scannet_prep.stages.download.tasks import FileOutcome, FileTask
from scannet_prep.stages.download.worker import Worker

# After this many failures without a success, the server may be down, or refuse everything.
_MAX_HELD = 5
_POLL_INTERVAL_S = 0.02
# How long to wait for threads at the end.
_JOIN_TIMEOUT_S = 1.5
# Time without a byte after which the status names a file that is waited for.
_STALL_AFTER_S = 20.0


@dataclass(slots=True, eq=False)
class _Job:
    """Work for a thread of its own: exactly one of `scene`, `task` and `probe_task` is set.

    Attributes:
        scene: Files of a scene to adopt, as far as they exist.
        task: A file to fetch.
        probe_task: A file that was served before, of which to request a byte.
        is_probe: Whether the result decides if the server is down.
        requested_s: When the job began, on the monotonic clock.
        error: The error that ended the job.
        thread: The thread.
    """

    scene: Sequence[FileTask] = ()
    task: FileTask | None = None
    probe_task: FileTask | None = None
    is_probe: bool = False
    requested_s: float = 0.0
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed request for a file. The cause may be the server or the file.

    Attributes:
        task: The file.
        error: The error.
        failed_s: When it failed, on the monotonic clock.
    """

    task: FileTask
    error: AttemptError
    failed_s: float


class Scheduler:
    """One run. All methods except `_work` run in the main thread.

    A file that is not settled is in exactly one state: its scene is not adopted yet, or it is in
    the queue, requested by a thread, or held.

    Attributes:
        tasks: All files of the plan.
        scenes: The same files by scene; None for those that belong to no scene.
    """

    def __init__(
        self, plan: DownloadPlan, client: Client, worker: Worker, jobs: int, progress: Progress
    ) -> None:
        self.tasks = [FileTask(file, plan.data_dir / file.local_path) for file in plan.files]
        self.scenes: dict[SceneId | None, list[FileTask]] = {}
        for task in self.tasks:
            self.scenes.setdefault(task.file.scene_id, []).append(task)
        self._client = client
        self._worker = worker
        self._max_active = jobs
        self._progress = progress
        self._gate = Gate(client.policy, plan.shown_base_url, progress.note)

        self._not_adopted = deque(self.scenes.values())
        self._queue: list[FileTask] = []
        self._active: set[_Job] = set()
        self._ended: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        # Failures since something was last served.
        self._held: list[_Failure] = []
        # Reasons for which a line was shown.
        self._noted_reasons: set[str] = set()

        self._settled_count = 0
        # The client's count of bytes when it last grew, and the time then.
        self._received_bytes = 0
        self._received_s = time.monotonic()

    def run(self) -> None:
        """Settle all files.

        Raises:
            ServerDownError: The server has served nothing for too long; some files are not settled.
        """
        total_bytes = sum(task.file.kind.typical_bytes or 0 for task in self.tasks)
        with self._progress.work("download", total_bytes, "B"):
            self._run_jobs()

    def _run_jobs(self) -> None:
        """Start jobs and handle their results until all files are settled and no job is left."""
        try:
            while self._active or self._settled_count < len(self.tasks):
                self._start_jobs()
                job = self._wait_for_job()
                if job is not None:
                    self._handle_result(job)
                self._show_progress()
        finally:
            self._client.close()
            deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
            for job in self._active:
                job.thread.join(max(0.0, deadline_s - time.monotonic()))
            # Close the connections that threads have opened meanwhile.
            self._client.close()

    # Start jobs.

    def _start_jobs(self) -> None:
        """Start as many jobs as there are connections and things to do."""
        while len(self._active) < self._max_active:
            job = self._choose_job()
            if job is None:
                return
            self._start(job)

    def _choose_job(self) -> _Job | None:
        """Choose the next job; None if there is nothing to do at the moment."""
        may_be_outage = self._gate.failed_probes > 0 or len(self._held) >= _MAX_HELD
        job = self._choose_probe() if may_be_outage else self._choose_fetch()
        if job is not None:
            return job
        # Existing files can be checked even while no request may be made.
        if self._not_adopted:
            return _Job(scene=self._not_adopted.popleft())
        if self._active:
            return None
        # Nothing else is left that could show whether the held failures were the server's.
        return self._choose_probe()

    def _choose_fetch(self) -> _Job | None:
        """Take a file to request from the queue; None if none may be requested now."""
        if not self._queue or not self._gate.may_request():
            return None
        now_s = time.monotonic()
        ready = [task for task in self._queue if task.next_s <= now_s]
        # Late files come after all others, also those of scenes that are not adopted yet.
        in_time = [task for task in ready if not task.is_late]
        if not in_time and self._not_adopted:
            return None
        candidates = in_time or ready
        if not candidates:
            return None
        task = candidates[0]
        self._queue.remove(task)
        return _Job(task=task)

    def _choose_probe(self) -> _Job | None:
        """Choose a file to probe the server with; None if no probe is needed or possible now.

        The best probe is a file that the server sent in this run. If there is none yet, the next
        best is a file of an earlier run; but a mirror may lack all of these. Therefore, every
        second probe requests a file that is still to be fetched.
        """
        is_probing = any(job.is_probe for job in self._active)
        is_outage = self._gate.failed_probes > 0
        is_needed = len(self._held) > 0 or (is_outage and len(self._queue) > 0)
        if is_probing or not is_needed or not self._gate.may_request():
            return None
        served = [task for task in self.tasks if task.outcome is FileOutcome.FETCHED]
        is_turn_of_present = self._gate.failed_probes % 2 == 0
        if not served and is_turn_of_present:
            served = [task for task in self.tasks if task.outcome is FileOutcome.PRESENT]
        if served:
            return _Job(probe_task=random.choice(served), is_probe=True)  # noqa: S311 - any will do
        if self._queue:
            return _Job(task=self._queue.pop(0), is_probe=True)
        # This removes the failure of the file without counting it: the probe repeats the request.
        failure = self._held.pop(0)
        return _Job(task=failure.task, is_probe=True)

    def _start(self, job: _Job) -> None:
        """Start the thread of a job."""
        job.requested_s = time.monotonic()
        if not job.scene:
            self._gate.pace.requested(job.requested_s)
        if job.task is not None:
            job.task.partial = PartialFile(job.task.path)
        # A daemon, so that an interrupted run does not wait for it.
        job.thread = threading.Thread(target=self._work, args=[job], name="download", daemon=True)
        job.thread.start()
        self._active.add(job)

    def _work(self, job: _Job) -> None:
        """Do a job, in its own thread."""
        try:
            if job.task is not None:
                self._worker.fetch(job.task)
            elif job.probe_task is not None:
                check_still_served(self._client, job.probe_task.file.url, job.probe_task.size_bytes)
            else:
                self._worker.adopt(job.scene)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            job.error = error
        self._ended.put(job)

    # Handle results.

    def _wait_for_job(self) -> _Job | None:
        """Wait for a job to end; None if another request may be made earlier."""
        wait_s = _POLL_INTERVAL_S
        pause_s = self._gate.pace.next_s - time.monotonic()
        if 0 < pause_s < wait_s:
            wait_s = pause_s
        try:
            job = self._ended.get(timeout=wait_s)
        except queue.Empty:
            return None
        job.thread.join()
        self._active.remove(job)
        return job

    def _handle_result(self, job: _Job) -> None:
        """Hold a failure, or settle the files of a job."""
        if isinstance(job.error, AttemptError):
            self._hold_failure(job, job.error)
            return
        if job.error is not None:
            raise job.error
        if job.scene:
            self._settle_or_queue(job.scene)
            return
        self._gate.pace.served()
        self._count_earlier_failures(job)
        if job.task is not None:
            self._settle_or_queue([job.task])

    def _hold_failure(self, job: _Job, error: AttemptError) -> None:
        """Hold a failure. During an outage, all held files return to the queue instead.

        Their failures are then not counted. A failure of a request that has brought much content
        is counted at once: the request itself shows that the server is up.
        """
        if job.task is not None:
            is_long = job.task.partial.received_bytes >= PROOF_BYTES
            if is_long and self._count_earlier_failures(job):
                self._count_failure(_Failure(job.task, error, failed_s=time.monotonic()))
                return
            self._held.append(_Failure(job.task, error, failed_s=time.monotonic()))
        is_outage = self._gate.failed(error, job.requested_s, is_probe=job.is_probe)
        if is_outage:
            self._settle_or_queue([failure.task for failure in self._held])
            self._held.clear()

    def _count_earlier_failures(self, job: _Job) -> bool:
        """Count the held failures that are older than a request that the server answers.

        The server was up after them, so the files were the cause.

        Returns:
            Whether the answer shows that the server is up.
        """
        is_up = self._gate.served(is_probe=job.is_probe)
        if not is_up:
            return False
        # The probe has shown that the server is up. If its transfer breaks off later, that is an
        # ordinary failure.
        job.is_probe = False
        for failure in list(self._held):
            if failure.failed_s <= job.requested_s:
                self._held.remove(failure)
                self._count_failure(failure)
        return True

    def _count_failure(self, failure: _Failure) -> None:
        """Count a failure against its file, which is tried again later if it has tries left."""
        task = failure.task
        error = failure.error
        policy = self._client.policy
        task.charge(error, default_tries=policy.tries)
        task.next_s = failure.failed_s + policy.pause_s(task.failures.total())

        # Show failures that cost much time or data, in one line for all files that fail alike. A
        # file that has no tries left is reported at the end.
        is_expensive = error.tries == FEW_TRIES
        is_retried = task.outcome is None
        if is_expensive and is_retried and error.reason not in self._noted_reasons:
            self._noted_reasons.add(error.reason)
            url = public_url(task.file.url)
            self._progress.note(f"{url}: {error.reason}; it is tried again after the others")
        self._settle_or_queue([task])

    def _settle_or_queue(self, tasks: Iterable[FileTask]) -> None:
        """Put files without an outcome into the queue, and count the others as settled."""
        for task in tasks:
            if task.outcome is None:
                self._queue.append(task)
                continue
            self._settled_count += 1
            self._advance_bar(task)
            scene = self.scenes[task.file.scene_id]
            # Compare the files of a scene when the last one of them is settled.
            if all(other.outcome is not None for other in scene):
                self._worker.compare(scene)

    # Show progress.

    def _show_progress(self) -> None:
        """Show how much has arrived, and what the run waits for."""
        for job in self._active:
            if job.task is not None:
                self._advance_bar(job.task)
                # So many bytes cannot be an error page: the server is up.
                if job.task.partial.received_bytes >= PROOF_BYTES:
                    self._count_earlier_failures(job)
        if self._received_bytes != self._client.received_bytes:
            self._received_bytes = self._client.received_bytes
            self._received_s = time.monotonic()
        count = f"{self._settled_count:,}/{len(self.tasks):,} files"
        self._progress.status(self._describe_state() or count)

    def _describe_state(self) -> str:
        """Describe what the run waits for; empty while bytes arrive."""
        state = self._gate.state
        if state:
            return state
        for job in self._active:
            for task in (*job.scene, job.task):
                if task is not None and task.checked_bytes:
                    return f"{format_bytes(task.checked_bytes)} of {task.path.name} checked"
        silent_s = time.monotonic() - self._received_s
        requested = [job.task for job in self._active if job.task is not None]
        if requested and silent_s >= _STALL_AFTER_S:
            return f"no data for {format_duration(silent_s)}: {requested[0].path.name}"
        return ""

    def _advance_bar(self, task: FileTask) -> None:
        """Advance the bar by the new bytes of a file, up to its typical size.

        A file that is settled, even as failed, counts with its typical size, so that the bar
        reaches its end.
        """
        typical_bytes = task.file.kind.typical_bytes or 0
        arrived_bytes = typical_bytes
        if task.outcome is None:
            arrived_bytes = min(task.partial.size_bytes, typical_bytes)
        if arrived_bytes > task.shown_bytes:
            self._progress.advance(arrived_bytes - task.shown_bytes)
            task.shown_bytes = arrived_bytes
