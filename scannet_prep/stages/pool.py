"""Worker processes that may die: a worker that the operating system kills costs only the task it worked on."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

from scannet_prep.errors import WorkerDiedError

Task = TypeVar("Task")
Context = TypeVar("Context")
Result = TypeVar("Result")

_PRELOADED = "scannet_prep.stages.warm_start"

_context: Any = None
_function: Callable[[Any, Any], Any] | None = None


def run_in_workers(
    function: Callable[[Task, Context], Result], tasks: Iterable[Task], context: Context, *, jobs: int
) -> Iterator[tuple[Task, Result | WorkerDiedError]]:
    """Call a function for each task, in worker processes.

    When a worker dies (typically because memory ran out), the pool is rebuilt and goes on. Nobody can tell which of the
    tasks under way was the cause, so each of them is tried once more, alone; one that kills its worker again is given
    up.

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
    waiting = deque(tasks)
    while waiting:
        suspects: deque[Task] = deque()
        yield from _run_until_broken(function, waiting, context, min(jobs, len(waiting)), suspects)
        while suspects:
            alone = deque([suspects.popleft()])
            killers: deque[Task] = deque()
            yield from _run_until_broken(function, alone, context, 1, killers)
            for task in killers:
                yield task, WorkerDiedError("killed its worker process twice, the second time when running alone")


def default_worker_count(environ: Mapping[str, str], cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """How many workers this process may keep busy.

    The smallest of: the processors it may run on (affinity), the quota of its control group (containers), and
    `SLURM_CPUS_PER_TASK`; at least 1.

    Args:
        environ: The environment, where Slurm leaves its limit.
        cgroup_root: Where the control groups are mounted.
    """
    counts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    quota = _cgroup_quota(cgroup_root)
    if quota is not None:
        counts.append(math.ceil(quota))
    slurm = environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdigit():
        counts.append(int(slurm))
    return max(1, min(counts))


def _run_until_broken(
    function: Callable[[Task, Context], Result],
    waiting: deque[Task],
    context: Context,
    jobs: int,
    suspects: deque[Task],
) -> Iterator[tuple[Task, Result]]:
    """Work on `waiting` until it is empty or a worker dies; then `suspects` gets what was under way."""
    # Workers start from a process that has loaded everything and has no threads: a plain fork would copy locks of the
    # caller's threads in whatever state they are.
    start_method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    mp_context: Any = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        mp_context.set_forkserver_preload([_PRELOADED])
    executor = ProcessPoolExecutor(jobs, mp_context, _start_worker, (function, context))
    under_way: dict[Future[Result], Task] = {}
    try:
        _wait_for_start(executor)
        while waiting or under_way:
            # One task more than workers, so that none waits for this process; few, so that there are few suspects.
            while waiting and len(under_way) <= jobs:
                task = waiting[0]
                under_way[executor.submit(_call, task)] = task
                waiting.popleft()
            finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in finished:
                result = future.result()
                yield under_way.pop(future), result
    except BrokenProcessPool:
        for future, task in under_way.items():
            if future.done() and future.exception() is None:
                yield task, future.result()
            else:
                suspects.append(task)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _wait_for_start(executor: ProcessPoolExecutor) -> None:
    """Tell workers that cannot start at all from workers that a task has killed."""
    try:
        executor.submit(os.getpid).result()
    except BrokenProcessPool as error:
        hint = "in a script of your own, call this below: if __name__ == '__main__':"
        raise WorkerDiedError("worker processes end as soon as they are started", hint) from error


def _start_worker(function: Callable[[Any, Any], Any], context: object) -> None:
    global _context, _function
    _function, _context = function, context
    # Ctrl-C reaches every process of the terminal; the main process alone decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this worker when the main process is gone, even if that was killed and could tell nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _call(task: Any) -> Any:  # noqa: ANN401 - the types are those of `run_in_workers`
    if _function is None:
        raise RuntimeError("the worker was not started by this pool")
    return _function(task, _context)


def _cgroup_quota(root: Path) -> float | None:
    """Processors that the control group of this process grants, as a fraction; None where there is no limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        top = root / controllers if controllers else root
        if controllers and "cpu" not in controllers.split(","):
            continue
        directory = top / group.lstrip("/")
        for candidate in (directory, *directory.parents):
            quotas += _read_quota(candidate)
            if candidate == top:
                break
    return min(quotas, default=None)


def _read_quota(directory: Path) -> list[float]:
    """Read the quota of one control group, version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`)."""
    try:
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (directory / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return [int(quota) / int(period)] if int(quota) > 0 else []
    except (OSError, ValueError, ZeroDivisionError):  # no limit ("max"), or no such group
        return []
