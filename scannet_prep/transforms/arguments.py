"""Kinds of arguments of transforms: each converts a value, and states in words which values it accepts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from scannet_prep.base.errors import UsageError
from scannet_prep.base.signatures import describe_call, describe_call_fault
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set

Triple: TypeAlias = tuple[float, float, float]

# Lengths, magnitudes and factors beyond these make float32 coordinates infinite, or cells without an extent.
SMALLEST = 1e-6
LARGEST = 1e6


class Argument(NamedTuple):
    """One kind of argument.

    Attributes:
        expected: The accepted values in words, for messages.
        convert: Returns the value in the form that a transform keeps, which is hashable. It raises TypeError,
            ValueError or OverflowError if the value is not accepted.
    """

    expected: str
    convert: Callable[[Any], Any]


def check(
    owner: str, name: str, value: object, argument: Argument, hint: str | Callable[..., Any] = ""
) -> Any:  # noqa: ANN401
    """Convert the value of an argument.

    Args:
        owner: Name of the class or function, for the message.
        name: Name of the argument.
        value: What was passed.
        argument: Its kind.
        hint: Hint of the error, or the class or function whose call is described in it.

    Raises:
        UsageError: The value is not accepted. The message names owner, argument, value and expectation.
    """
    try:
        return argument.convert(value)
    except (TypeError, ValueError, OverflowError):
        message = f"{owner}: {name} is {value!r:.80}, expected {argument.expected}"
        text = hint if isinstance(hint, str) else describe_call(hint)
        raise UsageError(message, text) from None


def number(lowest: float, highest: float = LARGEST) -> Argument:
    """Accept a number in a closed range; it stays an int or a float."""

    def convert(value: Any) -> float:  # noqa: ANN401
        if isinstance(value, np.generic | np.ndarray):
            value = value.item()
        # True and False are numbers to Python, but a slip where a number is expected.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        if not lowest <= value <= highest:
            raise ValueError
        return value + 0  # -0.0 becomes 0.0: NumPy refuses the range from 0.0 to -0.0

    return Argument(f"a number from {lowest:g} to {highest:g}", convert)


def whole_number(lowest: int) -> Argument:
    """Accept a whole number of at least `lowest`; it becomes an int."""

    def convert(value: Any) -> int:  # noqa: ANN401
        whole = operator.index(value)
        if isinstance(value, bool | np.bool_) or whole < lowest:
            raise ValueError
        return whole

    return Argument(f"a whole number from {lowest}", convert)


def flag() -> Argument:
    """Accept True or False only: the text "no" would count as true."""

    def convert(value: Any) -> bool:  # noqa: ANN401
        if not isinstance(value, bool | np.bool_):
            raise TypeError
        return bool(value)

    return Argument("True or False", convert)


def choice(*values: str) -> Argument:
    """Accept one of several words."""

    def convert(value: Any) -> str:  # noqa: ANN401
        if not isinstance(value, str) or value not in values:
            raise ValueError
        return value

    words = [repr(value) for value in values]
    return Argument(f"{', '.join(words[:-1])} or {words[-1]}", convert)


def optional(argument: Argument) -> Argument:
    """Accept None as well."""

    def convert(value: Any) -> Any:  # noqa: ANN401
        return None if value is None else argument.convert(value)

    return Argument(f"{argument.expected}, or None", convert)


def number_range(lowest: float, highest: float) -> Argument:
    """Accept a pair of numbers, the smaller one first; it becomes a tuple."""
    pair = _several(number(lowest, highest), count=2)

    def convert(value: Any) -> tuple[float, float]:  # noqa: ANN401
        smallest, largest = pair(value)
        if smallest > largest:
            raise ValueError
        return smallest, largest

    expected = f"a pair (smallest, largest) of numbers from {lowest:g} to {highest:g}"
    return Argument(expected, convert)


def triple(argument: Argument, plural: str) -> Argument:
    """Accept a value for each of three axes or channels; it becomes a tuple."""
    return Argument(f"three {plural}", _several(argument, count=3))


def pairs(argument: Argument, names: str) -> Argument:
    """Accept any number of pairs; they become a tuple of tuples."""
    pair = Argument("", _several(argument, count=2))
    expected = f"pairs {names}, each {argument.expected}"
    return Argument(expected, _several(pair, count=None))


def train_ids() -> Argument:
    """Accept train ids in a sequence or an array; they become a tuple."""
    highest = len(SCANNET200) - 1
    expected = f"train ids from 0 to {highest}, such as (3, 7) or SCANNET200.tail"

    def convert_one(value: Any) -> int:  # noqa: ANN401
        train_id = whole_number(0).convert(value)
        if train_id > highest:
            raise ValueError
        return int(train_id)

    return Argument(expected, _several(Argument("", convert_one), count=None))


def label_set() -> Argument:
    """Accept a label set or its name; it becomes the label set."""

    def convert(value: Any) -> LabelSet:  # noqa: ANN401
        return parse_label_set(value)

    return Argument(f"a label set: {SCANNET20.name.upper()} or {SCANNET200.name.upper()}", convert)


def step() -> Argument:
    """Accept what can be called as `transform(sample, rng)`."""
    return Argument(
        "a transform: an object that is called as transform(sample, rng)",
        lambda value: _accept_callable(value, "sample", "rng"),
    )


def collate_function() -> Argument:
    """Accept what can be called with the samples of a batch."""
    return Argument(
        "a function of a list of samples, such as collate_torch",
        lambda value: _accept_callable(value, "samples"),
    )


def _several(argument: Argument, count: int | None) -> Callable[[Any], tuple[Any, ...]]:
    """Make a function that converts each value of a sequence; None for any number of values."""

    def convert(values: Any) -> tuple[Any, ...]:  # noqa: ANN401
        is_sequence = isinstance(values, Sequence | np.ndarray)
        if not is_sequence or isinstance(values, str | bytes):
            raise TypeError
        if count is not None and len(values) != count:
            raise ValueError
        return tuple(argument.convert(value) for value in values)

    return convert


def _accept_callable(value: Any, *names: str) -> Any:  # noqa: ANN401
    """Return a callable that takes these positional arguments.

    A class is not accepted, because `Flip` in place of `Flip()` would make an object of a sample.
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError
    if describe_call_fault(value, *names):
        raise TypeError
    return value
