"""Run tasks in worker processes of this machine, or in an executor of the caller, on any machine.

    tasks --> worker --> result
                     --> it dies: the task runs again at the end, alone --> result
                                                                        --> WorkerDiedError

`concurrent.futures.ProcessPoolExecutor` was tried in place of `WorkerProcesses`, with Python 3.10
to 3.13. If one of its processes dies, all of its tasks are lost; they would only have to be
repeated in a new pool. But if a process dies before it has read its arguments, and these do not fit
into a pipe (64 KB), the executor waits for ever:
`test_worker_that_dies_before_it_reads_a_large_context_is_replaced`. Its processes also outlive a
run that is killed: `test_killed_run_leaves_no_worker`.
"""

from __future__ import annotations

import errno
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import connection
from queue import SimpleQueue
from typing import Any, TypeVar

from scannet_prep.base.memory import keep_freed_memory
from scannet_prep.errors import WorkerDiedError

Task = TypeVar("Task")
Context = TypeVar("Context")
Result = TypeVar("Result")

# Largest number of tasks in an executor, which holds a copy of the context for each.
_MAX_SUBMITTED = 1_000
# How long an executor may go on with its tasks after the caller has stopped early.
_LAST_TASK_S = 2.0
# Attempts to start a worker while there is no other.
_MAX_FAILED_STARTS = 6
_LIMIT_HINTS = {
    errno.EMFILE: "raise the limit on open files: ulimit -n 4096",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or start fewer: --jobs 1",
    errno.ENOMEM: "try again with fewer workers: --jobs 1",
}
_HINT_KILLED = "memory may have run out: free some, then run the same command again"
_HINT_EXECUTOR = "what is done is kept: run it again, with an executor that works, or without one"


def run_tasks(
    function: Callable[[Task, Context], Result],
    tasks: Iterable[Task],
    context: Context,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Generator[tuple[Task, Result | WorkerDiedError], None, None]:
    """Call a function for each task, in worker processes or in an executor.

    A task that is lost, typically because memory ran out, runs once more at the end, alone. A
    caller that stops early closes the generator: until then, the work goes on.

    Args:
        function: A module-level function of task and context. It catches its own errors, and never
            returns None.
        tasks: The tasks.
        context: The argument that all calls share. It is sent to each worker process only once, but
            to an executor with every task.
        jobs: Number of worker processes, if there is no executor.
        executor: Does the work instead of worker processes.

    Yields:
        Each task with its result, in order of completion, or with a WorkerDiedError if it was lost
        twice.

    Raises:
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    engine: Any
    if executor is None:
        engine = WorkerProcesses(function, context, jobs)
    else:
        engine = _Futures(function, context, executor)

    with closing(engine):
        lost_tasks = []
        for task, outcome in engine.run(tasks):
            if isinstance(outcome, WorkerDiedError):
                lost_tasks.append(task)
            else:
                yield task, outcome
        for lost_task in lost_tasks:
            for task, outcome in engine.run([lost_task]):
                yield task, _describe_second_loss(outcome)


def _describe_second_loss(outcome: Any) -> Any:  # noqa: ANN401 - the result of any function
    """Return the outcome of a task that was lost once: its result, or the error to report."""
    if not isinstance(outcome, WorkerDiedError):
        return outcome
    problem = f"lost twice, the second time when running alone: {outcome.message}"
    return WorkerDiedError(problem[:1000], outcome.hint)


class _Futures:
    """An executor of the caller.

    Args:
        function: The function to call.
        context: Its second argument.
        executor: The executor; the caller shuts it down.
    """

    def __init__(self, function: object, context: object, executor: Executor) -> None:
        self._function: Any = function
        self._context = context
        self._executor = executor
        self._running: dict[Future[Any], Any] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run tasks; yields each with its result, or with a WorkerDiedError if it was lost."""
        waiting = deque(tasks)
        while waiting or self._running:
            while waiting and len(self._running) < _MAX_SUBMITTED:
                self._submit(waiting.popleft())
            future = self._done.get()
            task = self._running.pop(future)
            yield task, _find_outcome(future)

    def _submit(self, task: object) -> None:
        try:
            future = self._executor.submit(self._function, task, self._context)
        except Exception as error:
            # The executor is broken, was shut down, or cannot reach its workers.
            problem = f"the executor takes no more tasks: {error}"
            raise WorkerDiedError(problem, _HINT_EXECUTOR) from error
        self._running[future] = task
        future.add_done_callback(self._done.put)

    def close(self) -> None:
        """Cancel the tasks that wait, and give the others a moment."""
        # A future that cannot be cancelled is running or done.
        started = [future for future in self._running if not future.cancel()]
        wait(started, _LAST_TASK_S)


def _find_outcome(future: Future[Any]) -> Any:  # noqa: ANN401 - the result of any function
    """Return the result of a future that is done, or a WorkerDiedError if its task was lost."""
    if future.cancelled():
        return WorkerDiedError("the executor cancelled it")
    error = future.exception()
    if error is not None:
        return WorkerDiedError(f"{type(error).__name__}: {error}")
    result = future.result()
    if result is None:
        return WorkerDiedError("the executor gave back no result")
    return result


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker process.

    Attributes:
        process: The process.
        pipe: Our end of the socket to it. It breaks when the process ends.
        is_started: Whether the process has sent its first message, which is answered with the
            function and the context.
        is_ready: Whether the process has received them, and takes tasks.
        task: The task that the process is working on; None if it has none.
    """

    process: subprocess.Popen[bytes]
    pipe: connection.Connection
    is_started: bool = False
    is_ready: bool = False
    task: Any = None


class WorkerProcesses:
    """Worker processes. One that dies costs only its task, and is replaced.

    If a worker cannot be started, memory may be short: the others do the work.

    Args:
        function: The function to call.
        context: Its second argument. Each worker receives both once.
        jobs: Largest number of workers.
    """

    def __init__(self, function: object, context: object, jobs: int) -> None:
        self._call = pickle.dumps((function, context))
        self._max_workers = jobs
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run tasks; yields each with its result, or with a WorkerDiedError if it was lost.

        Raises:
            WorkerDiedError: Workers cannot be started, or die as soon as they are.
        """
        waiting = deque(tasks)
        running = 0
        while waiting or running:
            self._start_workers(running + len(waiting))
            for worker in self._workers:
                if waiting and worker.is_ready and worker.task is None:
                    # If the worker has died, the task stays in `waiting`, and the broken pipe is
                    # noticed below.
                    with suppress(OSError):
                        worker.pipe.send(waiting[0])
                        worker.task = waiting.popleft()
                        running += 1

            pipes = connection.wait([worker.pipe for worker in self._workers])
            # A list, because `_receive` removes dead workers from `self._workers`.
            for worker in [worker for worker in self._workers if worker.pipe in pipes]:
                # `_receive` also forgets the task.
                task = worker.task
                outcome = self._receive(worker)
                if task is not None:
                    running -= 1
                    yield task, outcome

    def _start_workers(self, count: int) -> None:
        """Start workers until there are `count` of them, or the system starts no more."""
        while len(self._workers) < min(count, self._max_workers):
            try:
                self._workers.append(_start_worker())
            except OSError as error:
                problem = f"worker processes cannot be started: {error.strerror}"
                hint = _LIMIT_HINTS.get(error.errno or 0, "")
                self._note_failed_start(WorkerDiedError(problem, hint))

    def _receive(self, worker: _Worker) -> Any:  # noqa: ANN401 - the result of any function
        """Receive a message of a worker, which `_work` describes, and answer the first one.

        Returns:
            The result of its task, or a WorkerDiedError; None if it had no task.
        """
        try:
            message = worker.pipe.recv()
            if not worker.is_started:
                worker.is_started = True
                worker.pipe.send_bytes(self._call)
            elif not worker.is_ready:
                worker.is_ready = True
                self._failed_starts = 0
        except (EOFError, OSError):
            return self._remove_dead(worker)
        if worker.task is None:
            return None
        worker.task = None
        result, problem = message
        return WorkerDiedError(problem) if problem else result

    def _remove_dead(self, worker: _Worker) -> WorkerDiedError:
        self._workers.remove(worker)
        worker.pipe.close()
        status = worker.process.wait()
        if not worker.is_ready:
            problem = f"worker processes end as soon as they are started: exit status {status}"
            self._note_failed_start(WorkerDiedError(problem))
        hint = _HINT_KILLED if status == -signal.SIGKILL else ""
        return WorkerDiedError(f"its worker process ended with status {status}", hint)

    def _note_failed_start(self, error: WorkerDiedError) -> None:
        """Limit the workers to those that run. Give up if none runs after some attempts.

        Raises:
            WorkerDiedError: The given error, after the last attempt.
        """
        self._max_workers = max(1, len(self._workers))
        if not self._workers:
            self._failed_starts += 1
            if self._failed_starts == _MAX_FAILED_STARTS:
                raise error

    def close(self) -> None:
        """End all workers at once: a kill at any moment loses nothing."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.pipe.close()
        self._workers.clear()


def _start_worker() -> _Worker:
    """Start a worker as a program of its own.

    `multiprocessing` would run the caller's script again in it, or fork a process with threads.

    Raises:
        OSError: The system starts no other process.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {__name__} import _work; _work({theirs.fileno()})"
        )
        options = [f"-W{option}" for option in sys.warnoptions]
        if sys.dont_write_bytecode:
            options.append("-B")
        # In a group of its own: Ctrl-C is for the main process, which decides what to do about it.
        group: dict[str, Any] = {"start_new_session": True}
        if sys.version_info >= (3, 11):
            group = {"process_group": 0}
        process = subprocess.Popen(  # noqa: S603 - this Python, and a program of ours
            [sys.executable, *options, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            **group,
        )
        return _Worker(process, connection.Connection(ours.detach()))


def _work(descriptor: int) -> None:
    """Do tasks until the socket breaks, which it also does when the main process is killed.

    Args:
        descriptor: The worker's end of the socket. It sends a message when it has started, receives
            the function and the context, sends a message again, and then receives task after task.
    """
    pipe = connection.Connection(descriptor)
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send("started")
        function, context = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the main process
        pipe.send("ready")
        while True:
            task = pipe.recv()
            try:
                message = (function(task, context), "")
            except Exception as error:  # noqa: BLE001 - reported by the main process
                message = (None, f"{type(error).__name__}: {error}")
            pipe.send(message)
