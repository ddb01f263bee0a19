"""Kinds of arguments of transforms, which convert values and describe the accepted ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from scannet_prep.base.signatures import describe_call, describe_call_fault
from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, parse_label_set

Triple: TypeAlias = tuple[float, float, float]

# Limits of lengths, magnitudes and factors. Values beyond them would lead to infinite float32
# coordinates, or to cells of size zero.
SMALLEST = 1e-6
LARGEST = 1e6


class Argument(NamedTuple):
    """One kind of argument.

    Attributes:
        expected: Description of the accepted values, for messages.
        convert: Function that returns the value in the form that a transform stores, which is
            hashable. It raises TypeError, ValueError (such as UsageError) or OverflowError if the
            value is not accepted. `check` writes the message, so these errors need none.
    """

    expected: str
    convert: Callable[[Any], Any]


def check(
    owner: str,
    name: str,
    value: object,
    argument: Argument,
    hint: str | Callable[..., Any] = "",
) -> Any:  # noqa: ANN401
    """Check the value of an argument, and convert it.

    Args:
        owner: Name of the class or function, for the message.
        name: Name of the argument.
        value: The value that was passed.
        argument: The kind of the argument.
        hint: Hint of the error, or a class or function whose signature becomes the hint.

    Raises:
        UsageError: The value is not accepted.
    """
    try:
        return argument.convert(value)
    except (TypeError, ValueError, OverflowError):
        message = f"{owner}: {name} is {value!r:.80}, expected {argument.expected}"
        if not isinstance(hint, str):
            hint = describe_call(hint)
        raise UsageError(message, hint) from None


def number(lowest: float, highest: float = LARGEST) -> Argument:
    """Accept a number from `lowest` to `highest`, and keep it an int or a float."""

    def convert(value: Any) -> float:  # noqa: ANN401
        if isinstance(value, np.generic | np.ndarray):
            value = value.item()
        # In Python, True is an int. Where a number is expected, it is a mistake.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        if not lowest <= value <= highest:
            raise ValueError
        # NumPy refuses to draw a number from 0.0 to -0.0. Adding 0 turns -0.0 into 0.0.
        return value + 0

    return Argument(f"a number from {lowest:g} to {highest:g}", convert)


def whole_number(lowest: int) -> Argument:
    """Accept a whole number of at least `lowest`, and convert it to an int."""

    def convert(value: Any) -> int:  # noqa: ANN401
        whole = operator.index(value)
        # As above, True is a mistake.
        if isinstance(value, bool | np.bool_):
            raise TypeError
        if whole < lowest:
            raise ValueError
        return whole

    return Argument(f"a whole number from {lowest}", convert)


def flag() -> Argument:
    """Accept True and False, but not texts, because bool("no") is True."""

    def convert(value: Any) -> bool:  # noqa: ANN401
        if not isinstance(value, bool | np.bool_):
            raise TypeError
        return bool(value)

    return Argument("True or False", convert)


def choice(*values: str) -> Argument:
    """Accept one of several strings."""

    def convert(value: Any) -> str:  # noqa: ANN401
        if not isinstance(value, str) or value not in values:
            raise ValueError
        return value

    words = [repr(value) for value in values]
    return Argument(f"{', '.join(words[:-1])} or {words[-1]}", convert)


def optional(argument: Argument) -> Argument:
    """Accept None in addition to the values of another kind."""

    def convert(value: Any) -> Any:  # noqa: ANN401
        return None if value is None else argument.convert(value)

    return Argument(f"{argument.expected}, or None", convert)


def number_range(lowest: float, highest: float) -> Argument:
    """Accept a pair of numbers in ascending order, and convert it to a tuple."""
    convert_pair = _sequence_converter(number(lowest, highest).convert, count=2)

    def convert(value: Any) -> tuple[float, float]:  # noqa: ANN401
        smallest, largest = convert_pair(value)
        if smallest > largest:
            raise ValueError
        return smallest, largest

    expected = f"a pair (smallest, largest) of numbers from {lowest:g} to {highest:g}"
    return Argument(expected, convert)


def triple(argument: Argument, plural: str) -> Argument:
    """Accept a value for each of three axes or channels, and convert them to a tuple."""
    return Argument(f"three {plural}", _sequence_converter(argument.convert, count=3))


def pairs(argument: Argument, names: str) -> Argument:
    """Accept any number of pairs, and convert them to a tuple of tuples."""
    convert_pair = _sequence_converter(argument.convert, count=2)
    expected = f"pairs {names}, each {argument.expected}"
    return Argument(expected, _sequence_converter(convert_pair, count=None))


def train_ids() -> Argument:
    """Accept a sequence or an array of train ids of any label set, and convert it to a tuple."""
    highest = len(SCANNET200) - 1
    expected = f"train ids from 0 to {highest}, such as (3, 7) or SCANNET200.tail"

    def convert_one(value: Any) -> int:  # noqa: ANN401
        train_id: int = whole_number(0).convert(value)
        if train_id > highest:
            raise ValueError
        return train_id

    return Argument(expected, _sequence_converter(convert_one, count=None))


def label_set() -> Argument:
    """Accept a label set or its name, and convert it to the label set."""
    expected = f"a label set: {SCANNET20.name.upper()} or {SCANNET200.name.upper()}"
    return Argument(expected, parse_label_set)


def step() -> Argument:
    """Accept a callable with the signature `transform(sample, rng)`."""

    def convert(value: Any) -> Any:  # noqa: ANN401
        return _check_callable(value, "sample", "rng")

    expected = "a transform: an object that is called as transform(sample, rng)"
    return Argument(expected, convert)


def collate_function() -> Argument:
    """Accept a callable that takes the list of the samples of a batch."""

    def convert(value: Any) -> Any:  # noqa: ANN401
        return _check_callable(value, "samples")

    return Argument("a function of a list of samples, such as collate_torch", convert)


def _sequence_converter(
    convert_one: Callable[[Any], Any], count: int | None
) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that converts each value of a sequence.

    Args:
        convert_one: Converts one value.
        count: Number of values that the sequence must have; None for any number.
    """

    def convert(values: Any) -> tuple[Any, ...]:  # noqa: ANN401
        is_sequence = isinstance(values, Sequence | np.ndarray)
        if not is_sequence or isinstance(values, str | bytes):
            raise TypeError
        if count is not None and len(values) != count:
            raise ValueError
        return tuple(convert_one(value) for value in values)

    return convert


def _check_callable(value: Any, *names: str) -> Any:  # noqa: ANN401
    """Return a callable after checking that it takes positional arguments of these names.

    Classes are refused: with `Flip` in place of `Flip()`, the sample would become an argument of
    the constructor.
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError
    if describe_call_fault(value, *names):
        raise TypeError
    return value
