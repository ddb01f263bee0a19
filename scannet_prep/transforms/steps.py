"""What all transforms share: how they are composed, their arguments checked, and the arrays of a sample changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError

Ints: TypeAlias = NDArray[np.int64]
Sample: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Any, Generator], Any]  # of a dict, or of the TypedDict of the dataset

# These have no row for each vertex, even where the numbers are equal.
_OTHER_KEYS = {"inverse", "axis_alignment", "faces", "instance_labels", "instance_boxes", "instance_centers"}
# These are computed from where the points are, and from which points there are.
BOX_KEYS = ("instance_boxes", "instance_centers")


class Transform:
    """What changes a sample: a dataclass whose arguments are checked.

    Attributes:
        limits: Lowest and highest number of arguments, by name. An argument is a number, a tuple of them, or None.
    """

    limits: ClassVar[dict[str, tuple[float, float]]] = {}

    def __init_subclass__(cls, **limits: tuple[float, float]) -> None:
        """Take the limits from where the class is declared."""
        cls.limits = limits

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name, (lowest, highest) in self.limits.items():
            value = getattr(self, name)
            for number in [] if value is None else np.ravel(value).tolist():
                if not isinstance(number, int | float) or not lowest <= number <= highest:
                    expected = f"at least {lowest:g}" if highest == np.inf else f"from {lowest:g} to {highest:g}"
                    raise UsageError(f"{type(self).__name__}: {name} is {number!r}, expected a number {expected}")


class Moving(Transform):
    """A transform that moves points, and leaves out what then holds no longer."""

    drops = frozenset({"grid", *BOX_KEYS})


class Selecting(Transform):
    """A transform that chooses among the points, and leaves out what then holds no longer."""

    drops = frozenset({"faces", *BOX_KEYS})


@dataclass(frozen=True, init=False, repr=False)
class Compose:
    """Applies transforms one after the other, with the same generator.

    Attributes:
        steps: Callables of (sample, generator), or a list of them. They pickle if they stand at the top level of a
            module.
    """

    steps: tuple[Step, ...]

    def __init__(self, *steps: Step | Sequence[Step]) -> None:
        flat = [step for item in steps for step in (item if isinstance(item, Sequence) else [item])]
        object.__setattr__(self, "steps", tuple(flat))

    @property
    def drops(self) -> frozenset[str]:
        """Keys that a step leaves out."""
        return frozenset().union(*(getattr(step, "drops", ()) for step in self.steps))

    def __call__(self, sample: Sample, generator: Generator) -> Any:  # noqa: ANN401 - what the last returns
        """Apply them."""
        for step in self.steps:
            sample = step(sample, generator)
        return sample

    def __repr__(self) -> str:
        """As it is made."""
        return f"Compose({', '.join(map(repr, self.steps))})"


@dataclass(frozen=True)
class Sometimes(Transform, p=(0, 1)):
    """Applies a transform with a probability, and leaves the sample as it is otherwise.

    It stands for the `p` of Pointcept's transforms. Samples of one batch must have the same keys: what the transforms
    of this package leave out (`grid`, `faces`), is left out in either case. One that adds keys does not belong here.

    Attributes:
        step: Any transform.
        p: Probability, 0..1.
    """

    step: Step
    p: float = 0.5

    def __call__(self, sample: Sample, generator: Generator) -> Any:  # noqa: ANN401 - what the step returns
        """Apply it, or not."""
        return self.step(sample, generator) if generator.random() < self.p else without(sample, self.drops)

    @property
    def drops(self) -> frozenset[str]:
        """Keys that the step leaves out."""
        return frozenset(getattr(self.step, "drops", ()))


def colors_as_given(sample: Sample, transform: object) -> NDArray[np.uint8]:
    """The colours of a sample, uint8 (V, 3); refuses those that have been normalized."""
    colors: NDArray[np.uint8] = sample["colors"]
    if colors.dtype != np.uint8:
        message = f"{type(transform).__name__}: colors are {colors.dtype}, expected uint8"
        raise UsageError(message, "put it before Normalize and NormalizeColor")
    return colors


@cache
def normal_quantiles() -> NDArray[np.float32]:
    """65,536 numbers that are distributed normally, float32, ascending; the mean is 0, the standard deviation 1.

    To draw from them takes a fifth of the time of drawing normal numbers; none is beyond 4.33.
    """
    numbers = np.linspace(-6, 6, 1 << 17)
    density = np.exp(-numbers * numbers / 2)
    shares = np.cumsum(density) - density / 2
    quantiles = np.interp((np.arange(1 << 16) + 0.5) / (1 << 16), shares / density.sum(), numbers)
    return np.asarray(quantiles / quantiles.std(), np.float32)


def draw(values: NDArray[Any], generator: Generator, count: int) -> NDArray[Any]:
    """Draw so many of 65,536 values, each as likely every time."""
    places = generator.integers(0, 1 << 64, -(-count // 4), np.uint64).view(np.uint16)[:count]
    return values.take(places, mode="clip", out=np.empty(count, values.dtype))  # much faster than without


def as_rows(columns: NDArray[Any]) -> NDArray[Any]:
    """(V, 3) of (3, V), contiguous; NumPy would copy three numbers at a time."""
    rows = np.empty(columns.shape[::-1], columns.dtype)
    for axis, column in enumerate(columns):
        rows[:, axis] = column
    return rows


def move(sample: Sample, points: NDArray[Any], **changed: NDArray[Any]) -> dict[str, Any]:
    """The sample with other points, and without what was computed from where they were."""
    return without({**sample, "points": points, **changed}, Moving.drops)


def without(sample: Sample, keys: Collection[str]) -> dict[str, Any]:
    """A copy without some keys."""
    return {key: value for key, value in sample.items() if key not in keys}


def vertex_keys(sample: Sample) -> list[str]:
    """Names of the arrays that have a row for each vertex."""
    count = len(sample["points"])
    return [
        key
        for key, value in sample.items()
        if isinstance(value, np.ndarray) and value.ndim and len(value) == count and key not in _OTHER_KEYS
    ]


def select(sample: Sample, kept: Ints) -> dict[str, Any]:
    """Keep some vertices, by index, in every array of the vertices; `faces` would lack corners, and are left out.

    Where `GridSample` has left an `inverse`, it points to the new places, and is -1 where the representative is gone.
    Boxes and centres of instances hold no longer, and are left out.
    """
    if "edge_index" in sample:
        raise UsageError("the sample has an edge_index, whose numbers would no longer hold", "add edges afterwards")
    result = without(sample, Selecting.drops)
    for key in vertex_keys(sample):
        result[key] = sample[key].take(kept, axis=0)
    if "inverse" in sample:
        places = np.full(len(sample["points"]) + 1, -1, np.int64)  # the last for -1
        places[kept] = np.arange(len(kept))
        result["inverse"] = places[sample["inverse"]]
    return result
