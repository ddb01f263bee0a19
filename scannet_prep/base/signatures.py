"""Signatures of functions as text, for errors about how something is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def describe_call(function: Callable[..., Any]) -> str:
    """Describe how a function or class is called.

    Returns:
        For example `Scale(smallest=0.9, largest=1.1, anisotropic=False)`.
    """
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    without_types = signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name}{without_types}"


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
        return f"{describe_call(function)} cannot be called with ({', '.join(names)})"
    return ""
