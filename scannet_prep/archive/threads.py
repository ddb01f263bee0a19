"""Runs a function in threads, with a bound on what is held in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], *, jobs: int, weigh: Callable[[Item], int]
) -> Generator[Result]:
    """Call a function for each item, several at a time.

    Args:
        function: What to call. What it raises ends everything.
        items: Taken one by one, when there is room.
        jobs: How many threads.
        weigh: How many bytes an item takes in memory. At most 160 MiB are under way; a larger item has all to itself.

    Yields:
        The results, in the order of the items.
    """
    executor = ThreadPoolExecutor(jobs, "archive")
    pending: deque[tuple[Future[Result], int]] = deque()
    held_bytes = 0
    try:
        for item in items:
            size_bytes = weigh(item)
            while pending and (len(pending) > 2 * jobs or held_bytes + size_bytes > _MAX_HELD_BYTES):
                future, freed_bytes = pending.popleft()
                held_bytes -= freed_bytes
                yield future.result()
            pending.append((executor.submit(function, item), size_bytes))
            held_bytes += size_bytes
            del item  # it may hold the bytes of a frame
        while pending:
            yield pending.popleft()[0].result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
