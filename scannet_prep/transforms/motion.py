"""Transforms that move points, and turn normals with them. All take points in metres, float32 (V, 3), in any frame."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.steps import Columns, Draft, Moving, Triple, draw, normal_quantiles

_PLANES = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}  # a rotation about the axis turns the first towards the second
_MAX_NOISE_CELLS = 50_000_000


class RotateZ(Moving, max_angle=(0, np.pi)):
    """Rotates points and normals about the z axis, by an angle that is uniform in [-max_angle, max_angle].

    Attributes:
        max_angle: Radians.
    """

    max_angle: float = np.pi

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `normals`."""
        turns = self.max_angle / np.pi
        RandomRotate((-turns, turns), "z", (0.0, 0.0, 0.0)).change(draft, generator)


class RandomRotate(Moving, angle=(-2, 2), center=(-np.inf, np.inf)):
    """Rotates points and normals about one of the axes, by an angle that is uniform in a range.

    Pointcept's `RandomRotate` (pointcept/datasets/transform.py), with `Sometimes` for its `p`. With equal ends it turns
    by a fixed angle, as `RandomRotateTargetAngle` does there in test-time augmentation.

    Attributes:
        angle: Smallest and largest angle, in multiples of pi, as there: 1/64 is 2.8 degrees. Positive from x to y, y
            to z, z to x.
        axis: `x`, `y` or `z`.
        center: A point that stays where it is, metres; None for the middle of the bounding box.
    """

    angle: tuple[float, float] = (-1.0, 1.0)
    axis: Literal["x", "y", "z"] = "z"
    center: Triple | None = None

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `normals`."""
        if self.axis not in _PLANES:
            raise UsageError(f"RandomRotate: axis is {self.axis!r}, expected 'x', 'y' or 'z'")
        first, second = _PLANES[self.axis]
        angle = generator.uniform(*self.angle) * np.pi
        cosine, sine = math.cos(angle), math.sin(angle)
        middle = np.add(*_bounds(draft)) / 2 if self.center is None else self.center

        def turn(columns: Columns) -> Columns:
            # Spelt out: a library's product of matrices may round in another way with another number of threads.
            u, v = columns[first].copy(), columns[second].copy()
            columns[first] = cosine * u - sine * v
            columns[second] = sine * u + cosine * v
            return columns

        _by_axis(np.subtract, draft.move(), middle)
        draft.turn(turn)
        _by_axis(np.add, draft.move(), middle)


class Flip(Moving, probability=(0, 1)):
    """Reflects points and normals in x, and in y, each with a probability of its own.

    Attributes:
        probability: Of each of the two, 0..1.
    """

    probability: float = 0.5

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `normals`."""
        signs = np.where(generator.random(2) < self.probability, -1, 1)
        draft.turn(lambda columns: _by_axis(np.multiply, columns, np.append(signs, 1)))


class Scale(Moving, smallest=(1e-6, np.inf), largest=(1e-6, np.inf)):
    """Scales points about the origin by a factor that is uniform in [smallest, largest].

    Alike in all directions, normals stay as they are. Otherwise normals are divided by the factors and made unit
    vectors again, so that they stay at right angles to surfaces.

    Attributes:
        smallest: Above 0.
        largest: At least `smallest`.
        anisotropic: Whether each axis has a factor of its own, as in Pointcept's `RandomScale`, Mask3D and OctFormer.
    """

    smallest: float = 0.9
    largest: float = 1.1
    anisotropic: bool = False

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`, and `normals` if anisotropic."""
        factors = generator.uniform(self.smallest, self.largest, 3 if self.anisotropic else 1)
        _by_axis(np.multiply, draft.move(), factors)
        if self.anisotropic and "normals" in draft.sample:
            draft.later("normals", lambda columns: _make_unit(_by_axis(np.divide, columns, factors)))


class Jitter(Moving, sigma=(0, np.inf), limit=(0, np.inf)):
    """Adds normal noise to each coordinate, cut at a largest distance. Normals stay as they are.

    Attributes:
        sigma: Standard deviation, metres.
        limit: Largest change of a coordinate, metres.
    """

    sigma: float = 0.005
    limit: float = 0.02

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`."""
        points = draft.move()
        distances = np.clip(normal_quantiles() * np.float32(self.sigma), -self.limit, self.limit)
        points += draw(distances, generator, points.size).reshape(points.shape)


class ElasticDistortion(Moving, distortion_params=(1e-6, np.inf)):
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

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`."""
        points = draft.move()
        if draft.count:
            for granularity, magnitude in self.distortion_params:
                points += _interpolated_noise(points, granularity, generator) * np.float32(magnitude)


class CenterShift(Moving):
    """Puts the middle of the bounding box at x = y = 0, and the lowest point at z = 0. Nothing is random.

    Pointcept's `CenterShift` (pointcept/datasets/transform.py); `Normalize` without the colours.

    Attributes:
        apply_z: False to leave z as it is.
        apply_xy: False to leave x and y as they are (`align_z` of OctFormer, datasets/scannet.py).
    """

    apply_z: bool = True
    apply_xy: bool = True

    def change(self, draft: Draft, generator: Generator) -> None:  # noqa: ARG002
        """Change `points`."""
        lowest, highest = _bounds(draft)
        origin = (lowest + highest) / 2 * self.apply_xy
        origin[2] = lowest[2] * self.apply_z
        _by_axis(np.subtract, draft.move(), origin)


class RandomShift(Moving, shift=(-np.inf, np.inf)):
    """Shifts points by distances that are uniform, one for each axis.

    Pointcept's `RandomShift` (pointcept/datasets/transform.py). Without ranges it is what Mask3D begins with
    (datasets/semseg.py): the mean of the points comes to the origin, and then anywhere in the inner half of the box.

    Attributes:
        shift: Smallest and largest shift along x, y and z, metres; None for Mask3D's way.
    """

    shift: tuple[tuple[float, float], tuple[float, float], tuple[float, float]] | None = None

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`."""
        if self.shift is not None:
            shift: NDArray[np.float64] = np.asarray(generator.uniform(*np.array(self.shift, np.float64).T))
        else:
            mean = draft.columns("points").mean(axis=1, dtype=np.float64) if draft.count else np.zeros(3)
            lowest, highest = _bounds(draft)
            shift = np.asarray(generator.uniform(lowest - mean, highest - mean)) / 2 - mean
        _by_axis(np.add, draft.move(), shift)


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


def _interpolated_noise(columns: NDArray[Any], granularity: float, generator: Generator) -> NDArray[np.float32]:
    """Smoothed noise at each point, (3, V) like the points; see `ElasticDistortion`."""
    places = ((columns - columns.min(axis=1, keepdims=True)) / np.float32(granularity)).astype(np.float32)
    extent = np.floor(places.max(axis=1)) + 3  # one cell more on each side
    if not extent.prod() <= _MAX_NOISE_CELLS:
        cells = " x ".join(f"{number:g}" for number in extent)
        raise UsageError(f"ElasticDistortion: the noise has {cells} cells, too many", "choose a larger granularity")
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
            result[:, part] += both[x][0] * both[y][1] * both[z][2] * corners.take(neighbour, axis=1)
    return result
