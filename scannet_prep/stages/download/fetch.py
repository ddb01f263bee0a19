"""Fetch files in threads. A file is given up only while the server serves others.

    waiting --request--> fetched
       ^         |
       |         v  failed
       +----- suspects --counted as soon as something is served--> waiting, or given up

`Fetcher.fetch` handles one file: one request, in a thread of its own. `Fetcher.run` is the loop
above it, which watches the server: it alone decides when a file is requested, or given up.

After five failures in a row, or if nothing else is left, the server may be down. Then a byte of a
file is requested that the server has sent before. If it is served, the failures were those of the
files, and are counted. If not, none is counted, and after a pause, half as many requests are made
at a time, in the end one. If they fail, too, the next pause is longer. Later, each success makes
the pauses shorter, then adds a request at a time. So a server that admits few requests receives
few, and one that rejects most of them at random is still asked by several connections.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue

from scannet_prep.base.files import writing
from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import format_duration
from scannet_prep.errors import DiskFullError, FileError, OutageError, OutputError, TransferError
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, check_file
from scannet_prep.remote.addresses import hide_secrets
from scannet_prep.remote.http import HttpClient, RefusalError, RequestError
from scannet_prep.remote.partial import PartialFile
from scannet_prep.stages.download.plan import DownloadPlan, RemoteFile

# How long the server may be silent in one request.
_SILENCE_S = 60.0
# How long the server may serve nothing in a run: before it has served anything, and later.
_FIRST_ANSWER_S = 180.0
_OUTAGE_S = 4 * 3600.0
# Mean of the first pause. Each further one is longer by half, up to 1.5**20 = 3,300 times.
_FIRST_PAUSE_S = 0.01
_MAX_PAUSES = 20
# No error message is this long. A request that brings so many bytes shows that the server is up.
_PROOF_BYTES = 16 << 10
# After this many failures without a success, the server may be down, or refuse everything.
_MAX_SUSPECTS = 5
# If no file has been served in a run, and one is still refused after this many pauses, the run
# ends: at once, or after `_FIRST_ANSWER_S` if there are files that the server has sent before.
_MAX_REFUSALS = 3
# How often the bytes that have arrived are counted.
_PROGRESS_INTERVAL_S = 0.1

_HINT_DAMAGED = (
    "the server's file may be damaged: try again later; if it is a new version of a recorded file, "
    f"remove its line from {LOCK_NAME}"
)
_HINT_CONTINUE = "run the same command again later: it continues where it stopped"


@dataclass(slots=True)
class DownloadReport:
    """The result of a download.

    Attributes:
        plan: The plan of the run.
        locked: The records of complete files, by local path.
        kept: The files that existed and are complete.
        fetched: The files that were fetched.
        failures: A finding for each file that failed.
        received_bytes: Bytes received over the network.
    """

    plan: DownloadPlan
    locked: dict[str, LockEntry]
    kept: list[RemoteFile] = field(default_factory=list)
    fetched: list[RemoteFile] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    received_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Task:
    """One file of the run.

    Attributes:
        file: The file of the release.
        part: The bytes received so far.
        is_present: Whether the file exists, and is still to be checked.
        ready_s: The time before which it is not requested again, on the monotonic clock.
        spent_percent: The costs of its failures. At 100, the file is given up.
        most_bytes: The largest size that the partial file has had before the last request.
        shown_bytes: How many of its bytes the progress counts: at the end, the typical size.
    """

    file: RemoteFile
    part: PartialFile
    is_present: bool
    ready_s: float = 0.0
    spent_percent: int = 0
    most_bytes: int = 0
    shown_bytes: int = 0


class Fetcher:
    """Fetches files into a data folder.

    Args:
        report: Receives the results.
        progress: Receives bytes, counted by the typical sizes of files, and messages.
        is_insecure: Whether any certificate of the server is accepted.
        known: Further files that the server has served before.
    """

    def __init__(
        self,
        report: DownloadReport,
        progress: Progress,
        *,
        is_insecure: bool,
        known: Sequence[RemoteFile],
    ) -> None:
        self._report = report
        self._progress = progress
        # Files that failed since something was last served.
        self._suspects: dict[_Task, RequestError] = {}
        self._running: dict[Future[LockEntry], _Task] = {}
        self._ended: Queue[Future[LockEntry]] = Queue()
        # Whether something has been served since the last decision.
        self._is_served = False
        # The exponent of the length of the next pause; 0 while the server is up.
        self._pauses = 0
        # No request is made before this time of the monotonic clock, for this reason.
        self._resume_s = 0.0
        self._reason = ""
        # The run ends if nothing is served until then; infinity while the server is up.
        self._deadline_s = math.inf
        self._known = known
        # Whether anything has been served in this run.
        self._has_served = False
        # How many connections may be used.
        self._width = _MAX_SUSPECTS
        self._waiting = deque[_Task]()
        plan = report.plan
        present = {*plan.present}
        # Existing files first: they need no server.
        for file in plan.files:
            part = PartialFile(plan.data_dir / file.local_path)
            self._waiting.append(_Task(file, part, file in present))
        self._file_count = len(self._waiting)
        self._client = HttpClient(_SILENCE_S, is_insecure=is_insecure)

    def run(self, jobs: int) -> None:
        """Check existing files and fetch the others, until each is there or given up.

        Raises:
            OutageError: The server has served nothing for too long.
            TransferError: It refuses the first files.
            DiskFullError: The disk is full.
        """
        threads = ThreadPoolExecutor(jobs, thread_name_prefix="download")
        try:
            while self._waiting or self._suspects or self._running:
                pause_s = self._start(threads, jobs)
                with suppress(Empty):
                    ended = self._ended.get(timeout=min(pause_s, _PROGRESS_INTERVAL_S))
                    self._settle(ended)
                for task in self._running.values():
                    self._show(task, task.part.size_bytes)
        finally:
            self._client.is_stopped.set()
            # The folder stays locked while threads write; an interrupt does not wait for them.
            threads.shutdown(wait=isinstance(sys.exc_info()[1], Exception))

    def fetch(self, task: _Task) -> LockEntry:
        """Keep a file that is there and right; otherwise receive and check it.

        Returns:
            Its record.

        Raises:
            RequestError: One request did not suffice, or brought something else.
            OSError: The file cannot be written.
        """
        part = task.part
        kind = task.file.kind
        recorded = self._report.locked.get(task.file.local_path)
        if task.is_present:
            try:
                return check_file(kind, part.target, recorded)
            except FileError as error:
                task.is_present = False
                self._progress.note(f"{error.message}; fetching it again")
        part.receive(self._client, task.file.url, kind.max_bytes)
        try:
            return check_file(kind, part.path, recorded)
        except FileError as error:
            part.drop()
            problem = f"is not what it should be: {error.problem}"
            raise RequestError(problem, _HINT_DAMAGED) from None

    def _start(self, threads: ThreadPoolExecutor, jobs: int) -> float:
        """Start as many requests as there are connections, unless the server may be down.

        Returns:
            The seconds after which to call this again, if no request ends before.
        """
        if self._is_served:
            self._note_success()
        pause_s = self._resume_s - time.monotonic()
        if pause_s > 0:
            self._progress.status(self._reason)
            return pause_s
        is_doubtful = len(self._suspects) >= min(self._width, _MAX_SUSPECTS) or not self._waiting
        if self._suspects and is_doubtful:
            if self._running:
                return _PROGRESS_INTERVAL_S
            self._ask_server()
            return 0
        while self._waiting and len(self._running) < min(self._width, jobs):
            pause_s = self._waiting[0].ready_s - time.monotonic()
            if pause_s > 0:
                return pause_s
            task = self._waiting.popleft()
            task.most_bytes = max(task.most_bytes, task.part.size_bytes)
            future = threads.submit(self.fetch, task)
            self._running[future] = task
            future.add_done_callback(self._ended.put)
        return _PROGRESS_INTERVAL_S

    def _settle(self, future: Future[LockEntry]) -> None:
        """Record the result of a request; what follows from it is decided afterwards."""
        report = self._report
        task = self._running.pop(future)
        report.received_bytes += task.part.received_bytes
        try:
            with writing(task.part.target):
                # Not by its thread, which may still run when an interrupted run has written its
                # records.
                report.locked[task.file.local_path] = future.result()
                if not task.is_present:
                    task.part.publish()
        except RequestError as error:
            self._suspects[task] = error
            if task.part.received_bytes >= _PROOF_BYTES:
                self._is_served = True
            self._obey(error)
        except DiskFullError:
            raise
        except OutputError as error:
            self._give_up(task, error)
        else:
            if task.is_present:
                report.kept.append(task.file)
            else:
                report.fetched.append(task.file)
                self._is_served = True
            self._show(task, task.file.kind.typical_bytes)
            done = len(report.kept) + len(report.fetched) + len(report.failures)
            self._progress.status(f"{done:,}/{self._file_count:,} files")

    def _note_success(self) -> None:
        """Count the failures so far, which were those of the files, because the server is up.

        Each file is tried again after a pause, or given up.
        """
        self._is_served = False
        self._has_served = True
        self._deadline_s = math.inf
        if self._pauses:
            self._pauses //= 2
            self._pause()
        else:
            self._width += 1
        for task, error in self._suspects.items():
            task.spent_percent += error.cost
            if task.part.size_bytes >= task.most_bytes + _PROOF_BYTES:
                # More of the file is here than ever.
                task.spent_percent = 0
            if task.spent_percent < 100:
                task.ready_s = _draw_end_of_pause(task.spent_percent / 5)
                self._waiting.append(task)
            else:
                self._give_up(task, error)
        self._suspects.clear()

    def _give_up(self, task: _Task, error: Exception) -> None:
        """Report a file as failed."""
        url = hide_secrets(task.file.url)
        self._report.failures.append(Finding.from_error(error, url, task.file.scene_id))
        self._show(task, task.file.kind.typical_bytes)

    def _show(self, task: _Task, size_bytes: int) -> None:
        """Show that so many bytes of a file are there. They stay while it waits for a request."""
        self._progress.advance(size_bytes - task.shown_bytes)
        task.shown_bytes = size_bytes

    def _ask_server(self) -> None:
        """Find out whether the server is up. If not, pause; the failures so far are not counted.

        Raises:
            OutageError: It has served nothing for too long.
            TransferError: It has never served anything, and refuses the first files.
        """
        known = self._report.fetched or self._report.kept or self._known
        # Any of them: the server may have removed some since.
        if known and self._is_up(random.choice(known)):  # noqa: S311
            self._note_success()
            return
        *_, (task, error) = self._suspects.items()
        self._waiting.extend(self._suspects)
        self._suspects.clear()
        is_refused = isinstance(error, RefusalError) and self._pauses >= _MAX_REFUSALS
        patience_s = _OUTAGE_S if self._has_served or self._known else _FIRST_ANSWER_S
        if is_refused and not self._has_served:
            # The address may be wrong.
            patience_s = _FIRST_ANSWER_S if known else 0
        now_s = time.monotonic()
        self._deadline_s = min(self._deadline_s, now_s + patience_s)
        if now_s >= self._deadline_s:
            base_url = hide_secrets(self._report.plan.base_url)
            problem = f"{base_url}: no file was served; {task.file.local_path}: {error.message}"
            ending = TransferError if is_refused and not known else OutageError
            raise ending(problem, error.hint or _HINT_CONTINUE)
        # A server that limits connections counts idle ones, too.
        self._client.close_idle()
        self._width = max(1, self._width // 2)
        self._pauses = min(self._pauses + 1, _MAX_PAUSES)
        self._pause()
        self._reason = f"waiting for the server: {error.message}"

    def _is_up(self, file: RemoteFile) -> bool:
        """Whether the server still sends a file that it has sent before."""
        recorded = self._report.locked.get(file.local_path)
        try:
            with self._client.open(file.url, {"Range": "bytes=0-0"}) as answer:
                answer.check()
                is_other = recorded and answer.size_bytes not in (None, recorded.size_bytes)
                return any(answer.pieces()) and not is_other
        except RequestError as error:
            self._obey(error)
            return False

    def _obey(self, error: RequestError) -> None:
        """Make no request during the pause that the server requests, if it requests one."""
        if error.retry_after_s:
            self._resume_s = max(self._resume_s, time.monotonic() + error.retry_after_s)
            pause = format_duration(error.retry_after_s)
            self._reason = f"the server requests a pause of {pause}: {error.message}"

    def _pause(self) -> None:
        """Make no request for a while, which is longer each time that the server is down."""
        self._resume_s = max(self._resume_s, _draw_end_of_pause(self._pauses))


def _draw_end_of_pause(failures: float) -> float:
    """Draw the time of the next attempt: clients that failed together do not retry together."""
    pause_s: float = _FIRST_PAUSE_S * 1.5**failures
    return time.monotonic() + pause_s * random.uniform(0.5, 1.5)  # noqa: S311
