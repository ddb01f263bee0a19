"""Run tasks in worker processes of this machine, or in an executor of the caller.

task --> worker --> a result
                --> an exception: a Finding, and the other tasks go on
                --> an OutputError or OutageError: the run ends, since no other task could write
                    or fetch anything either
                --> the worker is killed: the task runs again at the end, alone
                                        --> a result
                                        --> killed again: a Finding
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

from scannet_prep.base.findings import Finding
from scannet_prep.base.machine import keep_freed_memory
from scannet_prep.base.version import VERSION
from scannet_prep.errors import OutageError, OutputError, UsageError, WorkerDiedError

Task = TypeVar("Task")
Context = TypeVar("Context")
Result = TypeVar("Result")

_DASK_TIMEOUT_S = 30
_WATCH_S = 0.1
_HINT_KILLED = "memory may have run out: try again with fewer workers (--jobs)"
_HINT_START = "start fewer workers (--jobs), or raise the limits that ulimit -a shows"
_HINT_LOST = "start the cluster again, then run the same command again"
_HINT_ADDRESS = "give the address that the scheduler prints when it starts: tcp://HOST:PORT"
_HINT_INSTALL = "install the same version with the extra [dask], here and on the dask cluster"


def run_tasks(
    make: Callable[[Task, Context], Result],
    tasks: Iterable[Task],
    context: Context,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Generator[tuple[Task, Result | Finding], None, None]:
    """Call a function for each task, in worker processes or in an executor.

    Iterate over this directly, `for task, outcome in run_tasks(...)`: if the loop is left early, by
    an exception or Ctrl-C, the work then ends at once.

    Args:
        make: A module-level function of task and context.
        tasks: The tasks, each with the attributes `scene_id` and `source`, its file or folder.
        context: The second argument of all calls.
        jobs: Number of worker processes, if there is no executor.
        executor: Does the work instead of worker processes. The caller shuts it down.

    Yields:
        Each task with its result, or with the Finding of its failure, in order of completion.

    Raises:
        OutputError: A task could not write.
        OutageError: The server of a task has served nothing for too long.
        WorkerDiedError: Worker processes cannot be started.
    """
    call = pickle.dumps((make, context))
    # Workers that are threads of this process may have loaded the same context for an earlier run.
    _load_call.cache_clear()
    lost_tasks: list[Any] = []
    for task, outcome in _run(call, tasks, jobs, executor):
        if isinstance(outcome, WorkerDiedError):
            lost_tasks.append(task)
        else:
            yield task, outcome
    for task in lost_tasks:
        [(_, outcome)] = _run(call, [task], 1, executor)
        if isinstance(outcome, WorkerDiedError):
            problem = f"killed twice, the second time while nothing else ran: {outcome.message}"
            error = WorkerDiedError(problem, _HINT_KILLED)
            outcome = Finding.from_error(error, task.source, task.scene_id)
        yield task, outcome


def _run(
    call: bytes, tasks: Iterable[Any], jobs: int, executor: Executor | None
) -> Iterator[tuple[Any, Any]]:
    """Yield each task with its result or Finding, or a WorkerDiedError if its worker was killed."""
    running: dict[Future[Any], Any] = {}
    done: SimpleQueue[Future[Any]] = SimpleQueue()
    with WorkerProcesses(jobs) if executor is None else nullcontext(executor) as engine:
        try:
            for task in tasks:
                future = engine.submit(_try, task, call)
                running[future] = task
                future.add_done_callback(done.put)
            while running:
                future = done.get()
                yield running.pop(future), _find_outcome(future)
        finally:
            for future in running:
                future.cancel()


def _try(task: Any, call: bytes) -> Any:  # noqa: ANN401 - the result of any function
    """Do a task, in a worker. Errors are returned, so that the worker can do other tasks."""
    try:
        make, context = _load_call(call)
        return make(task, context)
    except (OutputError, OutageError) as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug must not stop the others; its traceback is kept
        return Finding.from_error(error, task.source, task.scene_id)


@lru_cache(maxsize=1)
def _load_call(call: bytes) -> Any:  # noqa: ANN401 - as above
    """Load function and context, which are the same for all tasks, once in each worker."""
    return pickle.loads(call)  # noqa: S301 - from the main process


def _find_outcome(future: Future[Any]) -> Any:  # noqa: ANN401 - as above
    try:
        outcome = future.result()
    except WorkerDiedError:  # no worker can be started
        raise
    except Exception as error:  # noqa: BLE001 - executors have errors of their own for lost tasks
        return WorkerDiedError(f"{type(error).__name__}: {error}")
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class WorkerProcesses(ThreadPoolExecutor):
    """An executor whose threads hand their tasks to processes, one each.

    If a process is killed, only its task is lost, and another process takes its place. Python's
    ProcessPoolExecutor would lose all tasks, and run the caller's script again in each process.

    Args:
        count: Largest number of processes. They are started when they are needed.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: list[tuple[subprocess.Popen[bytes], Connection]] = []
        self._is_over = False

    def submit(self, _: Any, /, *arguments: Any, **_options: Any) -> Future[Any]:  # noqa: ANN401 - as in Executor
        """Submit a call of `_try`, whose task and result are pickled."""
        return super().submit(self._hand_over, *arguments)

    def _hand_over(self, task: object, call: bytes) -> object:
        messages = [pickle.dumps(task)]
        try:
            process, pipe = self._idle.pop()
        except IndexError:
            process, pipe = self._start()
            # All tasks have the same call, which may be large.
            messages.insert(0, call)
        try:
            for message in messages:
                pipe.send_bytes(message)
            result = pipe.recv()
        except (EOFError, OSError):
            problem = f"its process ended with status {process.wait()}"
            raise ChildProcessError(problem) from None
        self._idle.append((process, pipe))
        return result

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start a process.

        Raises:
            WorkerDiedError: The operating system refuses to start one.
        """
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import work; work"
        try:
            pipe, other_end = multiprocessing.Pipe()
            with other_end:
                descriptor = other_end.fileno()
                process = subprocess.Popen(  # noqa: S603 - this Python, and a program of ours
                    [sys.executable, "-c", f"{program}({descriptor}, {os.getpid()})"],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                    start_new_session=True,  # Ctrl-C is for the main process
                )
        except OSError as error:
            problem = f"worker processes cannot be started: {error}"
            raise WorkerDiedError(problem, _HINT_START) from error
        self._processes.append(process)
        if self._is_over:  # `shutdown` may have missed it
            process.kill()
        return process, pipe

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Kill all processes. Files are whole at any moment, so nothing is lost."""
        self._is_over = True
        for process in self._processes:
            process.kill()
        super().shutdown(wait, cancel_futures=cancel_futures)
        for process in self._processes:
            process.wait()


def work(descriptor: int, parent: int) -> None:
    """Do tasks until the pipe breaks, or the main process is killed.

    Args:
        descriptor: The file descriptor of the worker's end of the pipe.
        parent: The process id of the main process, which may have been killed by now.
    """
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()
    pipe = Connection(descriptor)
    keep_freed_memory()
    with suppress(EOFError, ConnectionError):
        call = pipe.recv_bytes()
        while True:
            pipe.send(_try(pipe.recv(), call))


def _end_with(parent: int) -> None:
    """End this process when its parent ends, even during a long task such as a download."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)


class _DaskExecutor(Executor):
    """An executor whose futures are those of dask.

    Some futures of `Client.get_executor` never end if the scheduler is lost.

    Args:
        client: A client of dask.
    """

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - dask has no types
        self._client = client

    def submit(self, function: Any, /, *arguments: Any, **_options: Any) -> Any:  # noqa: ANN401 - as in Executor
        """Submit a call.

        Raises:
            WorkerDiedError: The scheduler is lost.
        """
        # Without a connection, dask accepts calls that it never makes.
        if self._client.status != "running":
            raise WorkerDiedError("the connection to the dask scheduler is lost", _HINT_LOST)
        return self._client.submit(function, *arguments, pure=False)


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Connect to a dask scheduler, and yield an executor that runs tasks on its workers.

    Args:
        address: The address of the scheduler, such as `tcp://node01:8786`.

    Raises:
        UsageError: dask is not installed, nothing answers at the address, or the scheduler or a
            worker has no scannet_prep of the same version.
    """
    try:
        from distributed import Client
        from distributed.comm import get_address_host
    except ImportError as error:
        raise UsageError(f"--dask needs the package distributed: {error}", _HINT_INSTALL) from None
    try:
        # If an address is first refused by `Client`, Python ends a minute later, with a traceback.
        get_address_host(address)
        client = Client(address, timeout=_DASK_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--dask {address}: no scheduler answers: {error}", _HINT_ADDRESS
        ) from None
    with client:
        # The scheduler loads the tasks, too.
        versions = {"the scheduler": "none"}
        with suppress(ImportError):
            versions["the scheduler"] = client.run_on_scheduler(_find_version)
        versions |= client.run(_find_version, on_error="return")
        for node, version in versions.items():
            if version != VERSION:
                problem = f"{node} has scannet_prep {version}, expected {VERSION}"
                raise UsageError(f"--dask {address}: {problem}", _HINT_INSTALL)
        yield _DaskExecutor(client)


def _find_version() -> str:
    return VERSION
