"""Transforms for training: each takes a sample and a random generator, and returns a new sample.

    transform = Compose(RotateZ(), Scale(), Flip(), ColorJitter(), Normalize(), GridSample(0.02), CropPoints(200_000))
    dataset = ScanNet("data/processed", split="train", transform=transform)

They are values: picklable, comparable, without a state. What they are given stays as it is. An array counts as one of
the vertices where its first dimension is the number of points, whatever its name, so arrays of yours are cropped and
dropped with the others; `inverse` (see `GridSample`) is the exception. Ids of instances and segments keep their values.
Move points first, then sample: what moves points leaves out `grid`, whose cells no longer hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError

Ints: TypeAlias = NDArray[np.int64]
Sample: TypeAlias = dict[str, Any]
T = TypeVar("T")
Step: TypeAlias = Callable[[Any, Generator], Any]  # of a dict, or of the TypedDict of the dataset

_OTHER_KEYS = {"inverse", "axis_alignment", "faces"}  # have no row for each vertex, even where the numbers are equal


def _checked(kind: type = float, /, **limits: tuple[float | str, float]) -> Callable[[type[T]], type[T]]:
    """Let a dataclass refuse arguments that are not numbers from the lowest (or another argument) to the highest."""

    def check(transform: object) -> None:
        types = int | np.integer if kind is int else int | float | np.number
        for name, (lowest, highest) in limits.items():
            value = getattr(transform, name)
            least: float = getattr(transform, lowest) if isinstance(lowest, str) else lowest
            if not isinstance(value, types) or not least <= value <= highest:
                expected = f"at least {least:g}" if highest == np.inf else f"from {least:g} to {highest:g}"
                message = f"{name} is {value!r}, expected a {'whole ' * (kind is int)}number {expected}"
                raise UsageError(f"{type(transform).__name__}: {message}")

    def decorate(transform_class: type[T]) -> type[T]:
        transform_class.__post_init__ = check  # type: ignore[attr-defined]
        return transform_class

    return decorate


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

    def __call__(self, sample: Sample, generator: Generator) -> Any:  # noqa: ANN401 - what the last returns
        """Apply them."""
        for step in self.steps:
            sample = step(sample, generator)
        return sample

    def __repr__(self) -> str:
        """As it is made."""
        return f"Compose({', '.join(map(repr, self.steps))})"


@dataclass(frozen=True, slots=True)
@_checked(max_angle=(0, np.pi))
class RotateZ:
    """Rotates points and normals about the z axis, by an angle that is uniform in [-max_angle, max_angle].

    Attributes:
        max_angle: Radians.
    """

    max_angle: float = np.pi

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `points` and `normals`."""
        angle = generator.uniform(-self.max_angle, self.max_angle)
        cosine, sine = math.cos(angle), math.sin(angle)
        mapped = {}
        for key in ("points", "normals"):
            if key in sample:
                mapped[key] = sample[key].astype(np.result_type(sample[key], np.float32))
                # Spelt out: a library's product of matrices may round in another way with another number of threads.
                x, y = sample[key][:, 0], sample[key][:, 1]
                mapped[key][:, 0] = cosine * x - sine * y
                mapped[key][:, 1] = sine * x + cosine * y
        return _move(sample, **mapped)


@dataclass(frozen=True, slots=True)
@_checked(probability=(0, 1))
class Flip:
    """Reflects points and normals in x, and in y, each with a probability of its own.

    Attributes:
        probability: Of each of the two, 0..1.
    """

    probability: float = 0.5

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `points` and `normals`."""
        axes = np.flatnonzero(generator.random(2) < self.probability)
        if not len(axes):
            return _move(sample, sample["points"])
        mapped = {key: sample[key].copy() for key in ("points", "normals") if key in sample}
        for array in mapped.values():
            for axis in axes:
                np.negative(array[:, axis], out=array[:, axis])
        return _move(sample, **mapped)


@dataclass(frozen=True, slots=True)
@_checked(smallest=(1e-6, np.inf), largest=("smallest", np.inf))
class Scale:
    """Scales points about the origin, alike in all directions, by a factor that is uniform in [smallest, largest].

    Normals are unit vectors and stay as they are.

    Attributes:
        smallest: Above 0.
        largest: At least `smallest`.
    """

    smallest: float = 0.9
    largest: float = 1.1

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `points`."""
        return _move(sample, sample["points"] * np.float32(generator.uniform(self.smallest, self.largest)))


@dataclass(frozen=True, slots=True)
@_checked(sigma=(0, np.inf), limit=(0, np.inf))
class Jitter:
    """Adds normal noise to each coordinate, cut at a largest distance. Normals stay as they are.

    Attributes:
        sigma: Standard deviation, metres.
        limit: Largest change of a coordinate, metres.
    """

    sigma: float = 0.005
    limit: float = 0.02

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `points`."""
        points = sample["points"]
        noise = generator.standard_normal(points.shape, np.float32)
        noise *= np.float32(self.sigma)  # in place, because fresh memory costs more than the arithmetic
        np.clip(noise, -np.float32(self.limit), np.float32(self.limit), out=noise)
        return _move(sample, np.add(points, noise, out=noise if points.dtype == np.float32 else None))


@dataclass(frozen=True, slots=True)
class Normalize:
    """Puts the scene's middle at x = y = 0 and its lowest point at z = 0, and colours into [-1, 1]. Nothing is random.

    The middle is that of the bounding box. Colours become float32, c / 127.5 - 1.
    """

    def __call__(self, sample: Sample, generator: Generator) -> Sample:  # noqa: ARG002
        """Change `points` and `colors`."""
        points, colors = sample["points"], _colors_as_given(sample, self)
        if not len(points):
            raise UsageError("Normalize: there are no points")
        columns = points.T.copy()  # much faster than along axis 0
        lowest, highest = columns.min(axis=1), columns.max(axis=1)
        origin = np.array([*((lowest + highest) / 2)[:2], lowest[2]], np.float32)
        return _move(sample, points - origin, colors=colors / np.float32(127.5) - np.float32(1))


@dataclass(frozen=True, slots=True)
@_checked(shift=(0, 255), noise=(0, 255))
class ColorJitter:
    """Shifts the colours of the scene, each channel by itself, and adds noise to those of each vertex.

    The shift of a channel is uniform in [-shift, shift], the noise normal. Colours stay uint8: rounded, and cut to
    0..255. To be put before `Normalize`.

    Attributes:
        shift: Largest shift, 0..255.
        noise: Standard deviation of the noise, 0..255.
    """

    shift: float = 12.0
    noise: float = 6.0

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `colors`."""
        colors = _colors_as_given(sample, self)
        shift = generator.uniform(-self.shift, self.shift, 3).astype(np.float32)
        changed = generator.standard_normal(colors.shape, np.float32)
        changed *= np.float32(self.noise)
        for channel in range(3):  # column by column: much faster than three numbers at a time
            changed[:, channel] += shift[channel]
        changed += colors
        np.clip(np.rint(changed, out=changed), 0, 255, out=changed)
        return {**sample, "colors": changed.astype(np.uint8)}


@dataclass(frozen=True, slots=True)
@_checked(int, max_points=(1, np.inf))
class CropPoints:
    """Keeps the vertices nearest to a random vertex, where the scene has more than it may.

    Vertices stay in their order; among equally far ones the first count as nearer.

    Attributes:
        max_points: Vertices to keep.
    """

    max_points: int

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Crop."""
        points = sample["points"]
        if len(points) <= self.max_points:
            return dict(sample)
        x, y, z = (points - points[generator.integers(len(points))]).T
        distances = x * x + y * y + z * z  # spelt out: what libraries add up depends on the number of threads
        farthest = np.partition(distances, self.max_points - 1)[self.max_points - 1]
        if not np.isfinite(farthest):  # no vertex would be nearer, and the scene empty
            raise UsageError("CropPoints: there are points that are not finite", "take them out before")
        is_kept = distances < farthest
        at_the_edge = np.flatnonzero(distances == farthest)
        is_kept[at_the_edge[: self.max_points - np.count_nonzero(is_kept)]] = True
        return _select(sample, np.flatnonzero(is_kept))


@dataclass(frozen=True, slots=True)
@_checked(share=(0, 1))
class Drop:
    """Drops a share of the vertices, chosen at random; at least one stays. Vertices stay in their order.

    Attributes:
        share: 0..1; the number of dropped vertices is rounded.
    """

    share: float = 0.2

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Drop."""
        count = len(sample["points"])
        kept_count = max(min(count, 1), count - round(self.share * count))
        return _select(sample, np.sort(generator.permutation(count)[:kept_count]))


@dataclass(frozen=True, slots=True)
@_checked(size=(1e-6, np.inf))
class GridSample:
    """Keeps one vertex, chosen at random, of all that lie in the same cell of a grid (voxel).

    Nothing is averaged, so labels and ids stay exact. A vertex lies in the cell floor(point / size), computed in double
    precision; the grid begins at the origin of the frame. Vertices stay in their order. It adds

    - `grid`: int32 (N, 3), the cell of each kept vertex, counted from the smallest in each direction;
    - `inverse`: int64 (V,), for each vertex from before, where its representative now is: `prediction[inverse]` has a
      prediction for every vertex of the scene.

    Attributes:
        size: Edge of a cell, metres.
        has_inverse: False to leave `inverse` out, which training does not need.
    """

    size: float
    has_inverse: bool = True

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Sample."""
        if "inverse" in sample:
            raise UsageError("GridSample: the sample has an inverse map already", "use GridSample once")
        points = sample["points"]
        if not len(points):
            raise UsageError("GridSample: there are no points")
        cells = np.array(points.T, np.float64, order="C")
        cells /= self.size
        np.floor(cells, out=cells)
        cells -= cells.min(axis=1, keepdims=True)
        extent = cells.max(axis=1) + 1
        bits = len(points).bit_length()
        if not np.isfinite(extent).all() or extent.max() > np.iinfo(np.int32).max or extent.prod() > 2.0 ** (62 - bits):
            cells_text = " x ".join(f"{number:g}" for number in extent)
            raise UsageError(f"GridSample: the scene has {cells_text} cells, too many to count", "choose a larger size")
        keys = cells[0].astype(np.int64)
        for axis in (1, 2):
            keys *= int(extent[axis])
            keys += cells[axis].astype(np.int64)
        kept = _choose_one_each(keys, bits, generator, has_inverse=self.has_inverse)
        result = _select(sample, kept)
        result["grid"] = np.ascontiguousarray(cells.take(kept, axis=1).T, np.int32)
        return {**result, "inverse": keys} if self.has_inverse else result


def _colors_as_given(sample: Sample, transform: object) -> NDArray[np.uint8]:
    """The colours of a sample, uint8 (V, 3); refuses those that have been normalized."""
    colors: NDArray[np.uint8] = sample["colors"]
    if colors.dtype != np.uint8:
        message = f"{type(transform).__name__}: colors are {colors.dtype}, expected uint8"
        raise UsageError(message, "put it before Normalize")
    return colors


def _move(sample: Sample, points: NDArray[Any], **changed: NDArray[Any]) -> dict[str, Any]:
    """The sample with other points, and without what was computed from where they were."""
    result = {**sample, "points": points, **changed}
    result.pop("grid", None)
    return result


def _select(sample: Sample, kept: Ints) -> dict[str, Any]:
    """Keep some vertices, by index, in every array of the vertices; `faces` would lack corners, and are left out.

    Where `GridSample` has left an `inverse`, it points to the new places, and is -1 where the representative is gone.
    """
    if "edge_index" in sample:
        raise UsageError("the sample has an edge_index, whose numbers would no longer hold", "add edges afterwards")
    count = len(sample["points"])
    result = dict(sample)
    result.pop("faces", None)
    for key, value in sample.items():
        if isinstance(value, np.ndarray) and value.ndim and len(value) == count and key not in _OTHER_KEYS:
            result[key] = value.take(kept, axis=0)
    if "inverse" in sample:
        places = np.full(count + 1, -1, np.int64)  # the last for -1
        places[kept] = np.arange(len(kept))
        result["inverse"] = places[sample["inverse"]]
    return result


def _choose_one_each(keys: Ints, bits: int, generator: Generator, *, has_inverse: bool) -> Ints:
    """Choose one position at random for each key that occurs; gives the chosen positions, ascending.

    Keys are below 2 ** (63 - bits), and overwritten; a position needs so many bits. With an inverse, they become, for
    each position, which of the chosen ones has its key.
    """
    # Key and position in one number: much faster than a stable argsort, with the same result on every processor. In
    # place, because fresh memory costs more than the arithmetic.
    keys <<= bits
    keys |= np.arange(len(keys))
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    counts = np.diff(starts, append=len(keys))
    chosen = order[starts + (generator.random(len(starts)) * counts).astype(np.int64)]
    is_chosen = np.zeros(len(keys), np.bool_)
    is_chosen[chosen] = True
    if has_inverse:
        places = np.cumsum(is_chosen) - 1
        keys[order] = np.repeat(places[chosen], counts)
    return np.flatnonzero(is_chosen)
