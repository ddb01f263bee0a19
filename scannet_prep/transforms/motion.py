"""Transforms that move points, and turn normals with them.

All take points in metres, float32 (V, 3), in any frame. The points that they leave are in a frame of
their own, so they remove `axis_alignment` from the sample, and `grid` and boxes as well.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.transforms.arguments import (
    LARGEST,
    SMALLEST,
    Triple,
    choice,
    flag,
    number,
    number_range,
    optional,
    pairs,
    triple,
)
from scannet_prep.transforms.draft import Columns, Draft
from scannet_prep.transforms.draws import draw, normal_quantiles
from scannet_prep.transforms.steps import Moving, Parameters

Range: TypeAlias = tuple[float, float]

# `ClipGaussianJitter` cuts the noise at so many standard deviations: 95 % of it lies within.
_CLIP_QUANTILE = 1.96
_PLANES = {
    "x": (1, 2),
    "y": (2, 0),
    "z": (0, 1),
}  # a rotation about the axis turns the first towards the second
_MAX_NOISE_CELLS = 50_000_000


class RotateZ(Moving, max_angle=number(0, np.pi)):
    """Rotates points and normals about the z axis, by an angle uniform in [-max_angle, max_angle].

    Attributes:
        max_angle: Radians, 0..pi.
    """

    max_angle: float = np.pi

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points` and `normals`."""
        half_turns = self.max_angle / np.pi
        rotation = RandomRotate((-half_turns, half_turns), "z", (0.0, 0.0, 0.0))
        return rotation.change(draft, generator)


class RandomRotate(
    Moving,
    angle=number_range(-2, 2),
    axis=choice(*_PLANES),
    center=optional(triple(number(-LARGEST), "coordinates in metres")),
):
    """Rotates points and normals about one of the axes, by an angle that is uniform in a range.

    Pointcept's `RandomRotate` (pointcept/datasets/transform.py), with `Sometimes` for its `p`. With
    equal ends it turns by a fixed angle, as `RandomRotateTargetAngle` does there in test-time
    augmentation.

    Attributes:
        angle: Smallest and largest angle, in multiples of pi, as there: 1/64 is 2.8 degrees.
            Positive from x to y, y to z, z to x.
        axis: `x`, `y` or `z`.
        center: A point that stays where it is, metres; None for the middle of the bounding box.
    """

    angle: Range = (-1.0, 1.0)
    axis: Literal["x", "y", "z"] = "z"
    center: Triple | None = None

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points` and `normals`."""
        first, second = _PLANES[self.axis]
        angle = generator.uniform(*self.angle) * np.pi
        cosine = math.cos(angle)
        sine = math.sin(angle)
        middle = np.add(*_bounds(draft)) / 2 if self.center is None else self.center

        def turn(columns: Columns) -> Columns:
            # Spelt out: a library's product of matrices may round in another way with another
            # number of threads.
            u = columns[first].copy()
            v = columns[second].copy()
            columns[first] = cosine * u - sine * v
            columns[second] = sine * u + cosine * v
            return columns

        _by_axis(np.subtract, draft.move(), middle)
        draft.turn(turn)
        _by_axis(np.add, draft.move(), middle)
        return {"axis": self.axis, "angle": angle, "center": np.asarray(middle)}


class Flip(Moving, probability=number(0, 1)):
    """Reflects points and normals in x, and in y, each with a probability of its own.

    Attributes:
        probability: Of each of the two, 0..1.
    """

    probability: float = 0.5

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points` and `normals`."""
        signs = np.append(np.where(generator.random(2) < self.probability, -1, 1), 1)
        draft.turn(lambda columns: _by_axis(np.multiply, columns, signs))
        return {"signs": signs}


class Scale(
    Moving,
    smallest=number(SMALLEST),
    largest=number(SMALLEST),
    anisotropic=flag(),
):
    """Scales points about the origin by a factor that is uniform in [smallest, largest].

    Alike in all directions, normals stay as they are. Otherwise normals are divided by the factors
    and made unit vectors again, so that they stay at right angles to surfaces.

    Attributes:
        smallest: Above 0.
        largest: At least `smallest`.
        anisotropic: Whether each axis has a factor of its own, as in Pointcept's `RandomScale`,
            Mask3D and OctFormer.
    """

    smallest: float = 0.9
    largest: float = 1.1
    anisotropic: bool = False

    def __post_init__(self) -> None:
        """Check the arguments, also against each other."""
        super().__post_init__()
        if self.smallest > self.largest:
            raise UsageError(
                f"{type(self).__name__}: smallest is {self.smallest!r} and largest is {self.largest!r}, "
                "expected smallest <= largest",
                f"{type(self).__name__}({self.largest!r}, {self.smallest!r})",
            )

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`, and `normals` if anisotropic."""
        count = 3 if self.anisotropic else 1
        factors = generator.uniform(self.smallest, self.largest, count)
        _by_axis(np.multiply, draft.move(), factors)
        if self.anisotropic and "normals" in draft.sample:
            draft.later(
                "normals", lambda columns: _make_unit(_by_axis(np.divide, columns, factors))
            )
        return {"factors": factors}


class Jitter(Moving, sigma=number(0), limit=number(0)):
    """Adds normal noise to each coordinate, cut at a largest distance. Normals stay as they are.

    Attributes:
        sigma: Standard deviation, metres.
        limit: Largest change of a coordinate, metres.
    """

    sigma: float = 0.005
    limit: float = 0.02

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        points = draft.move()
        noise = normal_quantiles() * np.float32(self.sigma)
        distances = np.clip(noise, -self.limit, self.limit)
        points += draw(distances, generator, points.size).reshape(points.shape)
        return {}


class ClipGaussianJitter(Moving, scalar=number(0)):
    """Adds normal noise to each coordinate, of which 5 % is cut. Normals stay as they are.

    The change of a coordinate is `scalar * clip(n / 1.96, -1, 1)` with n from the standard normal
    distribution: the same as `Jitter(sigma=scalar / 1.96, limit=scalar)`. It is what Pointcept's
    `ClipGaussianJitter` describes (pointcept/datasets/transform.py). That one cannot run: it passes
    the number `np.mean(3)` as the mean of three coordinates, which NumPy refuses. Its
    `store_jitter` is not offered.

    Attributes:
        scalar: Largest change of a coordinate, metres.
    """

    scalar: float = 0.02

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        return Jitter(self.scalar / _CLIP_QUANTILE, self.scalar).change(draft, generator)


class ElasticDistortion(
    Moving,
    distortion_params=pairs(number(SMALLEST), "(granularity, magnitude)"),
):
    """Distorts points smoothly: adds noise on a coarse grid, smoothed and interpolated. Normals stay as they are.

    Normal noise on the corners of a grid is averaged twice over three neighbours along each axis, with zeros beyond the
    grid, and interpolated linearly. For each pair once, one after the other. The same as `ElasticDistortion` of
    Pointcept (pointcept/datasets/transform.py), `elastic_distortion` of Mask3D (datasets/semseg.py) and
    `elastic_distort` of OctFormer (datasets/scannet.py); they apply it with probability 0.95.

    Attributes:
        distortion_params: Pairs of granularity (edge of a cell of the grid) and magnitude (factor of the noise),
            metres. The smoothed noise has a standard deviation of about a tenth of the magnitude.
    """

    distortion_params: tuple[tuple[float, float], ...] = ((0.2, 0.4), (0.8, 1.6))

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        points = draft.move()
        if draft.count:
            for granularity, magnitude in self.distortion_params:
                noise = _interpolated_noise(points, granularity, generator)
                points += noise * np.float32(magnitude)
        return {}


class CenterShift(Moving, apply_z=flag(), apply_xy=flag()):
    """Puts the middle of the bounding box at x = y = 0, and the lowest point at z = 0. Nothing is random.

    Pointcept's `CenterShift` (pointcept/datasets/transform.py); `Normalize` without the colours.

    Attributes:
        apply_z: False to leave z as it is.
        apply_xy: False to leave x and y as they are (`align_z` of OctFormer, datasets/scannet.py).
    """

    apply_z: bool = True
    apply_xy: bool = True

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Change `points`."""
        lowest, highest = _bounds(draft)
        origin = (lowest + highest) / 2 * self.apply_xy
        origin[2] = lowest[2] * self.apply_z
        _by_axis(np.subtract, draft.move(), origin)
        return {"origin": origin}


class RandomShift(
    Moving,
    shift=optional(triple(number_range(-LARGEST, LARGEST), "pairs (smallest, largest) in metres")),
):
    """Shifts points by distances that are uniform, one for each axis.

    Pointcept's `RandomShift` (pointcept/datasets/transform.py). Without ranges it is what Mask3D begins with
    (datasets/semseg.py): the mean of the points comes to the origin, and then anywhere in the inner half of the box.

    Attributes:
        shift: Smallest and largest shift along x, y and z, metres; None for Mask3D's way.
    """

    shift: tuple[Range, Range, Range] | None = None

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        shift: NDArray[np.float64]
        if self.shift is not None:
            smallest, largest = np.array(self.shift, np.float64).T
            shift = np.asarray(generator.uniform(smallest, largest))
        else:
            mean = np.zeros(3)
            if draft.count:
                mean = draft.columns("points").mean(axis=1, dtype=np.float64)
            lowest, highest = _bounds(draft)
            shift = np.asarray(generator.uniform(lowest - mean, highest - mean)) / 2 - mean
        _by_axis(np.add, draft.move(), shift)
        return {"shift": shift}


def _bounds(draft: Draft) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lowest and highest coordinates, (3,) each, metres; zeros where there are no points."""
    points = draft.move() if draft.count else np.zeros((3, 1), np.float32)
    return points.min(axis=1), points.max(axis=1)


def _by_axis(function: np.ufunc, columns: Columns, numbers: ArrayLike) -> Columns:
    """Combine each coordinate with the number of its axis, in place and in the precision of the columns."""
    function(columns, np.asarray(numbers, columns.dtype)[:, None], out=columns)
    return columns


def _make_unit(columns: Columns) -> Columns:
    """Divide vectors by their lengths, in place, but for those of length 0."""
    x, y, z = columns
    lengths = np.sqrt(x * x + y * y + z * z)
    columns /= np.where(lengths == 0, 1, lengths)
    return columns


def _interpolated_noise(
    columns: NDArray[Any], granularity: float, generator: Generator
) -> NDArray[np.float32]:
    """Smoothed noise at each point, (3, V) like the points; see `ElasticDistortion`."""
    places = ((columns - columns.min(axis=1, keepdims=True)) / np.float32(granularity)).astype(
        np.float32
    )
    extent = np.floor(places.max(axis=1)) + 3  # one cell more on each side
    if not extent.prod() <= _MAX_NOISE_CELLS:
        cells = " x ".join(f"{number:g}" for number in extent)
        raise UsageError(
            f"ElasticDistortion: the noise has {cells} cells, too many",
            "ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), for points in metres",
        )
    cells = places.astype(np.intp)
    fractions = places - cells.astype(np.float32)
    shape = [int(number) for number in extent]
    noise = generator.standard_normal((3, *shape), np.float32)
    for axis in (1, 2, 3, 1, 2, 3):
        lines = np.moveaxis(noise, axis, 0)  # a view
        sums = lines.copy()
        sums[1:] += lines[:-1]
        sums[:-1] += lines[1:]
        np.multiply(sums, np.float32(1 / 3), out=lines)
    corners = noise.reshape(3, -1)
    lowest = ((cells[0] + 1) * shape[1] + cells[1] + 1) * shape[2] + cells[2] + 1
    result: NDArray[np.float32] = np.zeros_like(places)
    for start in range(0, len(lowest), 8192):  # so that what is in between stays in the cache
        part = slice(start, start + 8192)
        upper = fractions[:, part]
        both = (1 - upper, upper)
        for x, y, z in product((0, 1), repeat=3):
            neighbour = lowest[part] + ((x * shape[1] + y) * shape[2] + z)
            result[:, part] += (
                both[x][0] * both[y][1] * both[z][2] * corners.take(neighbour, axis=1)
            )
    return result
