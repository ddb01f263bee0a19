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
        The compiled function; None where numba is not installed.
    """
    try:
        import numba
    except ImportError:
        return None
    compiled: Any
    try:
        compiled = numba.njit(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder to keep the compiled code in: read-only installation and no home
        compiled = numba.njit(signature, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]
