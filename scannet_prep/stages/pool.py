"""Worker processes that may die: a worker that the operating system kills costs only the task it worked on.

`concurrent.futures` cannot do this: when one worker dies, it ends all others, does not tell which task was the cause,
and in Python 3.11 it waits for ever if a worker was just being started.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from scannet_prep.errors import WorkerDiedError
from scannet_prep.stages.granted import CGROUP_ROOT, MEMBERSHIP_PATH, find_granted_cores

Task = TypeVar("Task")
Context = TypeVar("Context")
Result = TypeVar("Result")

_LAST_TASK_S = 2.0  # how long workers may go on with what they are at when the caller stops early
_MAX_FAILED_STARTS = 6
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def run_in_workers(
    function: Callable[[Task, Context], Result], tasks: Iterable[Task], context: Context, *, jobs: int
) -> Iterator[tuple[Task, Result | WorkerDiedError]]:
    """Call a function for each task, in worker processes.

    When a worker dies (typically because memory ran out), another takes its place. Its task is tried once more at the
    end, alone; if that kills its worker again, it is given up.

    Args:
        function: A module-level function of task and context, which catches its own errors.
        tasks: What to do.
        context: Handed to every call; sent to each worker only once.
        jobs: Number of workers.

    Yields:
        Each task with its result, in order of completion; a `WorkerDiedError` where the task killed two workers.

    Raises:
        WorkerDiedError: Workers cannot be started at all.
    """
    suspects: list[Task] = []
    for task, result in _Pool(function, context, jobs).run(tasks):
        if isinstance(result, WorkerDiedError):
            suspects.append(task)
        else:
            yield task, result
    for suspect in suspects:
        yield from _Pool(function, context, 1).run([suspect])


def default_worker_count(
    environ: Mapping[str, str], cgroup_root: Path = CGROUP_ROOT, membership_path: Path = MEMBERSHIP_PATH
) -> int:
    """How many workers this process may keep busy.

    The smallest of: the processors it may run on (affinity), the quota of its control group (containers), and its
    share of what Slurm grants; at least 1.

    Args:
        environ: The environment, where Slurm leaves its limit.
        cgroup_root: Where the control groups are mounted.
        membership_path: Where the system says in which of them this process is.
    """
    return min(find_granted_cores(environ, cgroup_root, membership_path).values())


def _work(descriptor: int) -> None:
    """Do tasks until the pipe ends; it does so too when the main process is killed.

    Args:
        descriptor: Of this worker's end of the pipe. First come the function and its context, then tasks.
    """
    pipe = Connection(descriptor)
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function, context = pipe.recv()
        pipe.send(())  # ready
        while True:
            task = pipe.recv()
            try:
                message: tuple[Any, Exception | None] = (function(task, context), None)
            except Exception as error:  # noqa: BLE001 - handed to the main process, which raises it
                message = (None, error)
            pipe.send(message)


def keep_freed_memory() -> None:
    """Reuse memory for the next task instead of giving it back to the system, which would have to clear it each time.

    For arrays of some megabytes, that takes longer than to compute them. Only glibc needs to be told.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


@dataclass(eq=False, slots=True)
class _Worker(Generic[Task]):
    """A worker process, the pipe to it, and the task it is at."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    is_ready: bool = False
    tasks: tuple[Task, ...] = ()


class _Pool(Generic[Task, Context, Result]):
    """Hands tasks to workers, one at a time each, so that a death tells which task it was."""

    def __init__(self, function: Callable[[Task, Context], Result], context: Context, jobs: int) -> None:
        self._function = function
        self._context = context
        self._jobs = jobs
        self._workers: list[_Worker[Task]] = []
        self._failed_starts = 0

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Result | WorkerDiedError]]:
        """Yield each task with its result, or with an error where its worker died."""
        waiting = deque(tasks)
        try:
            while waiting or any(worker.tasks for worker in self._workers):
                while len(self._workers) < min(self._jobs, len(waiting) + sum(len(w.tasks) for w in self._workers)):
                    self._workers.append(self._start_worker())
                for worker in self._workers:
                    if worker.is_ready and not worker.tasks and waiting and _send(worker, waiting[0]):
                        worker.tasks = (waiting.popleft(),)
                pipes = {worker.pipe: worker for worker in self._workers}
                for pipe in connection.wait(list(pipes)):
                    yield from self._hear(pipes[pipe])  # type: ignore[index]  # only pipes were given
        finally:
            self._end()

    def _start_worker(self) -> _Worker[Task]:
        """Start a worker as a program of its own.

        `multiprocessing` would run the caller's script again in it, which scripts without a guard, notebooks and
        standard input do not survive, and would have to fork a process that may have threads.
        """
        ours, theirs = socket.socketpair()
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _work; _work({theirs.fileno()})"
        flags = [f"-W{option}" for option in sys.warnoptions] + (["-B"] if sys.dont_write_bytecode else [])
        # Ctrl-C is for the main process, which decides what to do about it.
        apart: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, *flags, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                **apart,
            )
        except OSError as error:
            ours.close()
            raise WorkerDiedError(f"worker processes cannot be started: {error}") from error
        finally:
            theirs.close()  # from now on, the end of the process is the end of the pipe
        worker: _Worker[Task] = _Worker(process, Connection(ours.detach()))
        _send(worker, (self._function, self._context))
        return worker

    def _hear(self, worker: _Worker[Task]) -> Iterator[tuple[Task, Result | WorkerDiedError]]:
        """Take what a worker sends; the end of its pipe means that it is dead."""
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            for task in worker.tasks:
                yield task, WorkerDiedError("killed its worker process twice, the second time when running alone")
            return
        worker.is_ready, self._failed_starts = True, 0
        if message:
            result, error = message
            if error is not None:
                raise error
            (task,), worker.tasks = worker.tasks, ()
            yield task, result

    def _bury(self, worker: _Worker[Task]) -> None:
        """Forget a dead worker. Where it was not even ready, memory may be short: then fewer work at a time."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.wait()
        if worker.is_ready:
            return
        self._failed_starts += 1
        self._jobs = max(1, self._jobs // 2)
        if self._failed_starts == _MAX_FAILED_STARTS:
            raise WorkerDiedError(
                f"worker processes end as soon as they are started, with status {worker.process.returncode}"
            )

    def _end(self) -> None:
        """Let all workers end: they do when their pipe is closed, after the task they are at."""
        for worker in self._workers:
            worker.pipe.close()
        deadline_s = time.monotonic() + _LAST_TASK_S
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def _send(worker: _Worker[Any], message: object) -> bool:
    """Send something to a worker; where it is dead, which `_hear` is going to notice, nothing happens."""
    try:
        worker.pipe.send(message)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True
