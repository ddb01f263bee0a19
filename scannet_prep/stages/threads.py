"""Runs a function in threads, with a bound on what is under way; for work that leaves the interpreter to others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int,
    weigh: Callable[[Item], int],
    max_weight: int,
) -> Generator[tuple[Item, Result]]:
    """Call a function for each item, several at a time.

    Args:
        function: What to call. What it raises ends everything.
        items: Taken one by one, when there is room.
        jobs: How many threads.
        weigh: Weight of an item.
        max_weight: At most so much is under way; an item that is heavier has everything to itself.

    Yields:
        Items and results, in the order in which they come.
    """
    executor = ThreadPoolExecutor(jobs, "unpack")
    pending: dict[Future[Result], tuple[Item, int]] = {}
    weight = 0

    def take(*, until_empty: bool, room: int) -> Generator[tuple[Item, Result]]:
        nonlocal weight
        while pending and (until_empty or len(pending) > jobs or weight + room > max_weight):
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                item, freed = pending.pop(future)
                weight -= freed
                yield item, future.result()

    try:
        for item in items:
            size = weigh(item)
            yield from take(until_empty=False, room=size)
            pending[executor.submit(function, item)] = item, size
            weight += size
            del item
        yield from take(until_empty=True, room=0)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
