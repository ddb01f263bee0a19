"""Where tasks are done: in worker processes of this machine, or by an executor of the caller's, on any machine.

`ProcessPoolExecutor` cannot take the place of our workers: when one of its own dies, it ends all others, and in Python
3.11 it waits for ever if a worker was just being started; and it runs the caller's script again in each.
"""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Executor, Future, wait
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from scannet_prep.base.errors import WorkerDiedError
from scannet_prep.base.memory import keep_freed_memory

Task = TypeVar("Task")
Context = TypeVar("Context")
Result = TypeVar("Result")
WorkerProcess: TypeAlias = tuple[subprocess.Popen[bytes], Connection]
"""A process, and the pipe to it."""

_MOST_AHEAD = 1_000  # tasks that wait in the executor, which holds a copy of the context for each
_LAST_TASK_S = 2.0  # how long workers may go on with what they are at when the caller stops early
_MAX_FAILED_STARTS = 6  # in a row, one at a time
_LIMIT_HINTS = {
    errno.EMFILE: "raise the limit on open files: ulimit -n 4096",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or start fewer: --jobs 1",
    errno.ENOMEM: "try again with fewer workers: --jobs 1",
}
_KEPT = "what is done is kept: run it again, with an executor that works, or without one"


def run_tasks(
    function: Callable[[Task, Context], Result],
    tasks: Iterable[Task],
    context: Context,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Generator[tuple[Task, Result | WorkerDiedError], None, None]:
    """Call a function for each task, in worker processes or in an executor.

    A task that is lost, typically because memory ran out, is tried once more at the end, alone. Who stops before the
    end closes the generator: until then, tasks go on.

    Args:
        function: A module-level function of task and context, which catches its own errors, and never returns None.
        tasks: What to do.
        context: Handed to every call; sent to each worker process only once, but by an executor with every task.
        jobs: Number of worker processes, where there is no executor.
        executor: Any `concurrent.futures.Executor`.

    Yields:
        Each task with its result, in order of completion; a `WorkerDiedError` where it was lost twice.

    Raises:
        WorkerDiedError: Workers cannot be started at all, or the executor takes no more tasks.
    """
    if executor is None:
        with WorkerPool(jobs) as pool:
            yield from run_tasks(function, tasks, context, executor=pool)
        return
    lost, running, done = deque[Task](), dict[Future[Result], Task](), SimpleQueue[Future[Result]]()
    try:
        for waiting, most in ((deque(tasks), _MOST_AHEAD), (lost, 1)):
            while waiting or running:
                while waiting and len(running) < most:
                    try:
                        future = executor.submit(function, waiting[0], context)
                    except WorkerDiedError:  # of the pool, which names the cause
                        raise
                    except (
                        Exception
                    ) as error:  # it is broken, was shut down, or cannot reach its workers
                        raise WorkerDiedError(
                            f"the executor takes no more tasks: {error}", _KEPT
                        ) from error
                    running[future] = waiting.popleft()
                    future.add_done_callback(done.put)
                future = done.get()
                task = running.pop(future)
                loss = CancelledError() if future.cancelled() else future.exception()
                if loss is None and (result := future.result()) is not None:
                    yield task, result
                elif waiting is not lost:
                    lost.append(task)
                else:
                    what = (
                        f"{type(loss).__name__}: {loss}"
                        if loss
                        else "the executor gave back no result"
                    )
                    problem = f"lost twice, the second time when running alone: {what}"
                    yield task, WorkerDiedError(problem[:1000])
    finally:
        wait([future for future in running if not future.cancel()], _LAST_TASK_S)


class WorkerPool(Executor):
    """Worker processes, each led by a thread: one that dies costs only the task that it was at, and is replaced.

    A `ProcessPoolExecutor` breaks as a whole if one of its processes is killed:
    `test_a_task_that_kills_its_worker_twice_is_given_up_and_costs_no_other` shows what it would cost.

    All tasks of a pool have the same function and the same context, which each worker gets once.

    An interrupt in the main thread can leave a lock of a future locked, so that a thread waits for ever. Nobody waits
    long for these threads, as Python does for those of `ThreadPoolExecutor`.

    Args:
        jobs: Number of workers.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs, self._threads = jobs, list[threading.Thread]()
        self._tasks = SimpleQueue[tuple[Future[Any], tuple[Any, ...]] | None]()
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._workers: list[WorkerProcess] | None = []  # None when no more may be started
        self._failed_starts = 0
        self._start_error: WorkerDiedError | None = None

    def submit(
        self, function: Callable[..., Any], /, *arguments: object, **_: object
    ) -> Future[Any]:
        """Have a function called with a task and a context.

        Raises:
            WorkerDiedError: Workers cannot be started, or die as soon as they are.
        """
        if self._start_error is not None and self._failed_starts >= _MAX_FAILED_STARTS:
            raise self._start_error
        future: Future[Any] = Future()
        self._tasks.put((future, (function, *arguments)))
        if len(self._threads) < self._jobs:
            thread = threading.Thread(target=self._lead, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the limit on processes counts threads, too
                if self._threads:
                    return future  # those that there are do the work
                raise WorkerDiedError(
                    f"threads cannot be started: {error}", _LIMIT_HINTS[errno.EAGAIN]
                ) from error
            self._threads.append(thread)  # not before it is started, where an interrupt may strike
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - as in Executor
        """End all workers; what is not done yet fails."""
        with self._lock:
            workers, self._workers = self._workers or [], None
        for process, _ in workers:
            process.kill()
            process.wait()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(_LAST_TASK_S if wait else 0)
        for _, pipe in workers:
            pipe.close()

    def _lead(self) -> None:
        """Have a worker do tasks, in a thread of its own."""
        worker: WorkerProcess | None = None
        while item := self._tasks.get():
            future, (function, task, context) = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                process, pipe = worker = worker or self._hire(function, context)
                try:
                    pipe.send(task)
                    result, error = pipe.recv()
                except (EOFError, OSError):
                    worker, error = (
                        None,
                        WorkerDiedError(f"its worker process ended with status {process.wait()}"),
                    )
            except BaseException as problem:  # noqa: BLE001 - raised where the result is asked for
                error = problem
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _hire(self, function: object, context: object) -> WorkerProcess:
        """Start a worker and wait until it is ready; where that fails, memory may be short: then one at a time.

        Raises:
            WorkerDiedError: No worker could be started in several attempts.
        """
        is_alone = False
        while self._failed_starts < _MAX_FAILED_STARTS:
            try:
                with self._alone if is_alone else nullcontext():
                    worker = self._start(function, context)
            except EOFError as error:
                self._start_error = WorkerDiedError(
                    f"worker processes end as soon as they are started: {error}"
                )
            except OSError as error:
                hint = _LIMIT_HINTS.get(error.errno or 0, "")
                self._start_error = WorkerDiedError(
                    f"worker processes cannot be started: {error.strerror}", hint
                )
            else:
                self._failed_starts = 0
                return worker
            self._failed_starts += is_alone
            is_alone = True
        raise self._start_error or WorkerDiedError("worker processes cannot be started")

    def _start(self, function: object, context: object) -> WorkerProcess:
        """Start a worker as a program of its own.

        `multiprocessing` would run the caller's script again in it, which scripts without a guard, notebooks and
        standard input do not survive, and would have to fork a process that may have threads.

        Raises:
            OSError: The system does not start another process.
            EOFError: The process ended before it was ready; names its exit status.
            WorkerDiedError: The pool has been shut down.
        """
        ours, theirs = socket.socketpair()
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _work; _work({theirs.fileno()})"
        flags = [f"-W{option}" for option in sys.warnoptions] + (
            ["-B"] if sys.dont_write_bytecode else []
        )
        # Ctrl-C is for the main process, which decides what to do about it.
        apart: dict[str, Any] = (
            {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        )
        with (
            ours,
            theirs,
            self._lock,
        ):  # when `theirs` is closed, the end of the process is the end of the pipe
            if self._workers is None:
                raise WorkerDiedError("its worker was not started any more")
            command, descriptors = [sys.executable, *flags, "-c", program], [theirs.fileno()]
            process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, pass_fds=descriptors, **apart
            )
            self._workers.append(worker := (process, Connection(ours.detach())))
        _, pipe = worker
        try:
            pipe.send((function, context))
            pipe.recv()  # ready
        except (EOFError, OSError) as error:
            raise EOFError(f"exit status {process.wait()}") from error
        return worker


def _work(descriptor: int) -> None:
    """Do tasks until the pipe ends; it does so too when the main process is killed.

    Args:
        descriptor: Of this worker's end of the pipe. First come the function and its context, then tasks.
    """
    pipe = Connection(descriptor)
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function, context = pipe.recv()
        pipe.send(True)  # ready
        while True:
            task = pipe.recv()
            try:
                message: tuple[Any, Exception | None] = (function(task, context), None)
            except Exception as error:  # noqa: BLE001 - handed to the main process
                message = (None, error)
            pipe.send(message)
