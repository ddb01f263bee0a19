"""Calls a function for many items in threads, with results in order and bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20


def map_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[tuple[int, Item]],
    *,
    jobs: int,
    on_error: Callable[[], object] = lambda: None,
) -> Generator[Result]:
    """Call a function for each item in threads; yield the results in order.

    An exception of the function is raised in place of its result and ends everything.

    Args:
        function: What to call.
        items: How many bytes of memory each item takes, and the item; taken when there is room.
            At most 160 MiB are in work; a larger item is in work alone.
        jobs: Number of threads.
        on_error: Called before the threads are waited for if something failed or the caller
            stopped early: it has to end what they may be waiting for.
    """
    pending = deque[tuple[int, Future[Result]]]()

    def has_room(size_bytes: int) -> bool:
        if not pending:
            return True
        held_bytes = sum(held for held, _ in pending)
        return len(pending) <= 2 * jobs and held_bytes + size_bytes <= _MAX_HELD_BYTES

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for size_bytes, item in items:
                while not has_room(size_bytes):
                    yield pending.popleft()[1].result()
                pending.append((size_bytes, pool.submit(function, item)))
                del item  # it may hold the bytes of a frame
            while pending:
                yield pending.popleft()[1].result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            on_error()
            raise
