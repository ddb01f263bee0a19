"""Where tasks are done: in worker processes of this machine, or by an executor of the caller's, on any machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import get_type_hints

from scannet_prep.errors import WorkerDiedError
from scannet_prep.stages.pool import Context, Result, Task, run_in_workers

_MOST_AHEAD = 1_000  # tasks that wait in the executor, which holds a copy of the context for each


def run_tasks(
    function: Callable[[Task, Context], Result],
    tasks: Iterable[Task],
    context: Context,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    narrow: Callable[[Context, Task], Context] | None = None,
) -> Iterator[tuple[Task, Result | WorkerDiedError]]:
    """Call a function for each task, in worker processes or in an executor.

    Args:
        function: A module-level function of task and context, which catches its own errors, and says what it returns:
            anything else that an executor gives back is a loss.
        tasks: What to do.
        context: Handed to every call.
        jobs: Number of worker processes, where there is no executor.
        executor: Any `concurrent.futures.Executor`. A task that it loses is tried once more at the end, alone.
        narrow: What of the context a task needs; an executor sends it with every task.

    Yields:
        Each task with its result, in order of completion; a `WorkerDiedError` where it was lost twice.

    Raises:
        WorkerDiedError: Workers cannot be started at all, or the executor takes no more tasks.
    """
    if executor is None:
        yield from run_in_workers(function, tasks, context, jobs=jobs)
        return
    lost: list[Task] = []
    hint = "what is done is kept: run it again, with an executor of concurrent.futures that works, or without one"

    def call(task: Task) -> Future[Result]:
        try:
            future = executor.submit(function, task, narrow(context, task) if narrow else context)
        except Exception as error:  # it is broken, was shut down, or cannot reach its workers
            raise WorkerDiedError(f"the executor takes no more tasks: {error}", hint) from error
        if not isinstance(future, Future):
            raise WorkerDiedError(f"the executor gave back {future!r:.200} for a task, expected a Future", hint)
        return future

    kinds = get_type_hints(function)["return"]
    for task, result in _run_ahead(call, kinds, tasks, _MOST_AHEAD):
        if isinstance(result, WorkerDiedError):
            lost.append(task)
        else:
            yield task, result
    yield from _run_ahead(call, kinds, lost, 1)


def _run_ahead(
    call: Callable[[Task], Future[Result]], kinds: type, tasks: Iterable[Task], most: int
) -> Iterator[tuple[Task, Result | WorkerDiedError]]:
    """Keep so many tasks going; an error where one is lost. Those that still wait are cancelled at the end."""
    waiting, running = deque(tasks), dict[Future[Result], Task]()
    done = SimpleQueue[Future[Result]]()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                future = call(waiting[0])
                running[future] = waiting.popleft()
                future.add_done_callback(done.put)
            future = done.get()
            task = running.pop(future)
            try:
                result = future.result()
                loss = "" if isinstance(result, kinds) else f"it gave back {result!r} instead of a result"
            except Exception as error:  # noqa: BLE001 - functions catch their own: this is the executor's
                loss = f"{type(error).__name__}: {error}"
            yield task, WorkerDiedError(f"lost twice by the executor: {loss}"[:1000]) if loss else result
    finally:
        for future in running:
            future.cancel()
