"""Threads that work on the groups of archives, with results in order and bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from scannet_prep.base.progress import Progress

Task = TypeVar("Task")
Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20


class Threads:
    """A number of threads that work on archives, and the progress that they report to.

    Args:
        jobs: Number of threads.
        progress: Receives the number of tar bytes; nobody by default.

    Attributes:
        progress: As given.
    """

    def __init__(self, jobs: int = 1, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()
        self._jobs = jobs

    def map(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[tuple[int, Task]],
        *,
        on_error: Callable[[], object] = lambda: None,
    ) -> Generator[Result]:
        """Call a function for each task in threads, and yield the results in order.

        An exception of the function is raised instead of its result, and ends everything.

        Args:
            function: The function.
            tasks: The memory that each task takes, in bytes, and the task. A task begins when the
                tasks in work take at most 160 MiB together with it, or when there are none.
            on_error: Called after a failure, or if the caller stops early. `map` then waits for the
                threads, so `on_error` must end what may block them, such as a read.
        """
        pending = deque[tuple[int, Future[Result]]]()

        def has_room(size_bytes: int) -> bool:
            if not pending:
                return True
            held_bytes = sum(task_bytes for task_bytes, _ in pending)
            # Twice the threads, so that none waits while the caller works on a result.
            return len(pending) <= 2 * self._jobs and held_bytes + size_bytes <= _MAX_HELD_BYTES

        def take_result() -> Result:
            _, future = pending.popleft()
            return future.result()

        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                for size_bytes, task in tasks:
                    while not has_room(size_bytes):
                        yield take_result()
                    pending.append((size_bytes, pool.submit(function, task)))
                    del task  # it may hold the bytes of a frame
                while pending:
                    yield take_result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                on_error()
                raise
