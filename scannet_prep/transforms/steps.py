"""What all transforms share: arguments that are checked, and a draft of a sample, in which arrays are changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.backports import dataclass_transform
from scannet_prep.errors import UsageError

Ints: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = NDArray[Any]  # an array of the vertices by axis, (3, N)
AnySample: TypeAlias = dict[str, Any]
Triple: TypeAlias = tuple[float, float, float]
Step: TypeAlias = Callable[[Any, Generator], Any]  # of a dict, or of the TypedDict of the dataset

# These have no row for each vertex, even where the numbers are equal.
_OTHER_KEYS = {"inverse", "axis_alignment", "faces", "instance_labels", "instance_boxes", "instance_centers"}
# These are computed from where the points are, and from which points there are.
BOX_KEYS = ("instance_boxes", "instance_centers")


class Draft:
    """A sample while transforms change it.

    Coordinates are held by axis: NumPy works several times as fast along long rows as on three numbers at a time.
    Choices among the vertices add up, and arrays that nobody has asked for meanwhile are copied once, by `finish`.
    What `later` is told is done then, too, to the vertices that are left.

    Attributes:
        sample: What it was made of, and what has been added; without what has been left out.
        count: Number of vertices now, N.
    """

    def __init__(self, sample: AnySample) -> None:
        self.sample = dict(sample)
        self._kept: Ints | None = None  # of the vertices of the sample
        self._columns: dict[str, Columns] = {}  # of the vertices that are left
        self._later: dict[str, list[Callable[[Columns], Columns]]] = {}
        self.count = len(sample.get("points", ()))  # a step of the user's may have renamed them

    def columns(self, key: str) -> Columns:
        """An array of the vertices by axis, (3, N) or (N,), contiguous; it may be changed in place."""
        if key not in self._columns:
            array = self.sample[key].T
            self._columns[key] = array.copy() if self._kept is None else array.take(self._kept, axis=-1, mode="clip")
        for function in self._later.pop(key, ()):
            self._columns[key] = function(self._columns[key])
        return self._columns[key]

    def move(self) -> Columns:
        """The points as floats, (3, N), metres, to be changed in place."""
        points = self.columns("points")
        self._columns["points"] = points.astype(np.result_type(points, np.float32), copy=False)
        return self._columns["points"]

    def turn(self, function: Callable[[Columns], Columns]) -> None:
        """Change points, and later normals, by a function that changes columns in place."""
        function(self.move())
        if "normals" in self.sample:
            self.later("normals", function)

    def later(self, key: str, function: Callable[[Columns], Columns]) -> None:
        """Replace the columns of an array by what a function makes of them, when all vertices have been chosen."""
        self._later.setdefault(key, []).append(function)

    def add(self, key: str, columns: Columns) -> None:
        """Add an array of the vertices that are left, by axis."""
        self._columns[key] = columns

    def leave_out(self, keys: Collection[str]) -> None:
        """Leave out keys, where they are there."""
        for key in keys:
            for arrays in (self.sample, self._columns, self._later):
                arrays.pop(key, None)

    def select(self, kept: Ints) -> None:
        """Keep some vertices, by index.

        Where `GridSample` has left an `inverse`, it points to the new places, and is -1 where the representative is
        gone.
        """
        if "edge_index" in self.sample:
            raise UsageError("the sample has an edge_index, whose numbers would no longer hold", "add edges afterwards")
        if "inverse" in self.sample:
            places = np.full(self.count + 1, -1, np.int64)  # the last for -1
            places[kept] = np.arange(len(kept))
            self.sample["inverse"] = places[self.sample["inverse"]]
        self._columns = {key: array.take(kept, axis=-1, mode="clip") for key, array in self._columns.items()}
        self._kept = kept if self._kept is None else self._kept.take(kept, mode="clip")
        self.count = len(kept)

    def finish(self) -> dict[str, Any]:
        """The sample that has come of it; arrays that nothing has changed are those from before."""
        for key in list(self._later):
            self.columns(key)
        result = self.sample | {key: as_rows(array) for key, array in self._columns.items()}
        if self._kept is not None:
            for key in set(vertex_keys(self.sample)) - self._columns.keys():
                result[key] = self.sample[key].take(self._kept, axis=0, mode="clip")
        return result


@dataclass_transform(frozen_default=True)
class Checked:
    """Classes below that declare arguments are frozen dataclasses, and the arguments are checked.

    Attributes:
        limits: Lowest and highest number of arguments, by name. An argument is a number, a tuple of them, or None.
    """

    limits: ClassVar[dict[str, tuple[float, float]]] = {}

    def __init_subclass__(cls, **limits: tuple[float, float]) -> None:
        """Take the limits from where the class is declared; one with arguments of its own becomes a dataclass."""
        cls.limits = cls.limits | limits
        if get_annotations(cls):
            dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name, (lowest, highest) in self.limits.items():
            value = getattr(self, name)
            for number in [] if value is None else np.ravel(value).tolist():
                if not isinstance(number, int | float) or not lowest <= number <= highest:
                    expected = f"at least {lowest:g}" if highest == np.inf else f"from {lowest:g} to {highest:g}"
                    raise UsageError(f"{type(self).__name__}: {name} is {number!r}, expected a number {expected}")


class Transform(Checked):
    """What changes a sample.

    Attributes:
        drops: Keys that hold no longer, and are left out.
    """

    drops: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, sample: AnySample, generator: Generator) -> Any:  # noqa: ANN401 - what the last step returns
        """Apply it to a sample; what is given stays as it is."""
        return _finish(self.apply(sample, generator))

    def apply(self, state: Any, generator: Generator) -> Any:  # noqa: ANN401 - see below
        """Apply it to a sample, or to the draft of one; gives either."""
        draft = state if isinstance(state, Draft) else Draft(state)
        draft.leave_out(self.drops)
        self.change(draft, generator)
        return draft

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change a draft."""


class Moving(Transform):
    """A transform that moves points."""

    drops = frozenset({"grid", *BOX_KEYS})


class Selecting(Transform):
    """A transform that chooses among the points."""

    drops = frozenset({"faces", *BOX_KEYS})


class Compose(Transform):
    """Applies transforms one after the other, with the same generator.

    Those of this package share the work: rows are copied once, when all choices among the vertices have been made, and
    colours and normals are changed after that. A callable of yours gets the sample as all steps before it leave it.

    Attributes:
        steps: Callables of (sample, generator), or a list of them. They pickle if they stand at the top level of a
            module.
    """

    steps: tuple[Step, ...]

    def __init__(self, *steps: Step | Sequence[Step]) -> None:
        flat = [step for item in steps for step in (item if isinstance(item, Sequence) else [item])]
        object.__setattr__(self, "steps", tuple(flat))

    @property
    def drops(self) -> frozenset[str]:  # type: ignore[override]
        """Keys that a step leaves out."""
        return frozenset().union(*(getattr(step, "drops", ()) for step in self.steps))

    def apply(self, state: Any, generator: Generator) -> Any:  # noqa: ANN401
        """Apply them."""
        for step in self.steps:
            state = _apply(step, state, generator)
        return state


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

    @property
    def drops(self) -> frozenset[str]:  # type: ignore[override]
        """Keys that the step leaves out."""
        return frozenset(getattr(self.step, "drops", ()))

    def apply(self, state: Any, generator: Generator) -> Any:  # noqa: ANN401
        """Apply it, or not."""
        is_applied = generator.random() < self.p
        return _apply(self.step, state, generator) if is_applied else super().apply(state, generator)


def _apply(step: Step, state: Any, generator: Generator) -> Any:  # noqa: ANN401
    """Apply a step to a sample, or to the draft of one; gives either."""
    if isinstance(step, Transform) and type(step).__call__ is Transform.__call__:  # a subclass may have its own
        return step.apply(state, generator)
    return step(_finish(state), generator)


def _finish(state: Any) -> Any:  # noqa: ANN401
    return state.finish() if isinstance(state, Draft) else state


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
    places = draw_bits(generator, count)
    return values.take(places, mode="clip", out=np.empty(count, values.dtype))  # much faster than without


def draw_bits(generator: Generator, count: int) -> NDArray[np.uint16]:
    """Draw so many numbers of 16 bits."""
    return generator.integers(0, 1 << 64, -(-count // 4), np.uint64).view(np.uint16)[:count]


def as_rows(columns: Columns) -> NDArray[Any]:
    """(N, 3) of (3, N), contiguous; NumPy would copy three numbers at a time."""
    if columns.ndim == 1:
        return columns
    rows = np.empty(columns.shape[::-1], columns.dtype)
    for axis, column in enumerate(columns):
        rows[:, axis] = column
    return rows


def vertex_keys(sample: AnySample) -> list[str]:
    """Names of the arrays that have a row for each vertex."""
    count = len(sample["points"])
    return [
        key
        for key, value in sample.items()
        if isinstance(value, np.ndarray) and value.ndim and len(value) == count and key not in _OTHER_KEYS
    ]
