"""Loops compiled by numba, where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Loop = TypeVar("Loop", bound=Callable[..., Any])


@cache
def compile_loop(function: Loop, signature: str) -> Loop | None:
    """Compile a function; the machine code is kept beside its module, so that it is done once.

    Args:
        function: Of arrays and numbers, in the part of Python that numba knows.
        signature: Types of result and arguments, as numba writes them.

    Returns:
        The compiled function; None where numba is not installed or does not work. It only makes things faster: callers
        have another way to the same result.
    """
    # Beside a missing numba, there are ones that do not fit the NumPy at hand, disks that are full or read-only where
    # the machine code is kept, and damaged files of machine code.
    for keeps_code in (True, False):
        try:
            import numba

            compiled: Any = numba.njit(signature, cache=keeps_code, error_model="numpy")(function)
        except Exception:  # noqa: BLE001, S112 - see above
            continue
        return compiled  # type: ignore[no-any-return]
    return None
