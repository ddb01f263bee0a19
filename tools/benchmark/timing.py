"""Timing of functions, alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def time_alternately(
    functions: Mapping[str, Callable[[], object]], repeat: int, *, of_cpu: bool = True
) -> dict[str, float]:
    """Time functions in turn, because the load of a shared machine changes.

    Args:
        functions: The functions, by name.
        repeat: Number of rounds. A round before them does not count.
        of_cpu: Whether the CPU time of this process counts, or the time that passes.

    Returns:
        The fewest seconds of each, by name.
    """
    clock = time.process_time if of_cpu else time.perf_counter
    best = dict.fromkeys(functions, float("inf"))
    for turn in range(repeat + 1):
        for name, function in functions.items():
            start_s = clock()
            function()
            if turn:
                best[name] = min(best[name], clock() - start_s)
    return best
