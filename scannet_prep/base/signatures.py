"""Signatures of functions as text, for errors about how something is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def describe_call_fault(function: Callable[..., Any], *names: str) -> str:
    """Describe why a function cannot be called with positional arguments of these names.

    Returns:
        The reason; empty if the function can be called like that.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return ""
    try:
        # Only the number of arguments matters; the names stand for the values.
        signature.bind(*names)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        return f"{name}{signature} cannot be called with ({', '.join(names)})"
    return ""
