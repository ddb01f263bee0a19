"""Transforms that move points, and change normals accordingly.

They take points in metres, float32 (V, 3), in any frame. The moved points are in a new frame, so
`axis_alignment`, `grid` and the boxes of instances are removed from the sample.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import UsageError
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

# Where `ClipGaussianJitter` clips noise, in standard deviations. 95 % of a normal distribution lies
# between -1.96 and 1.96.
_CLIP_QUANTILE = 1.96
# A rotation about an axis turns the first of these axes towards the second.
_PLANES = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}
_MAX_NOISE_CELLS = 50_000_000
# Points are interpolated in blocks, so that intermediate results stay in the processor's cache.
_BLOCK_POINTS = 8192


class RotateZ(Moving, max_angle=number(0, np.pi)):
    """Rotates points and normals about the z axis, by an angle uniform in [-max_angle, max_angle].

    Attributes:
        max_angle: Radians, 0..pi.
    """

    max_angle: float = np.pi

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points` and `normals`."""
        # `RandomRotate` takes angles in multiples of pi.
        half_turns = self.max_angle / np.pi
        rotation = RandomRotate((-half_turns, half_turns), "z", (0.0, 0.0, 0.0))
        return rotation.change(draft, generator)


class RandomRotate(
    Moving,
    angle=number_range(-2, 2),
    axis=choice(*_PLANES),
    center=optional(triple(number(-LARGEST), "coordinates in metres")),
):
    """Rotates points and normals about one of the axes, by an angle uniform in a range.

    It is Pointcept's `RandomRotate` (pointcept/datasets/transform.py), whose `p` becomes
    `Sometimes(RandomRotate(...), p)`. If smallest and largest angle are equal, it is Pointcept's
    `RandomRotateTargetAngle`, for test-time augmentation.

    Attributes:
        angle: Smallest and largest angle, in multiples of pi, as in Pointcept: 1/64 is 2.8 degrees.
            Positive angles rotate x towards y, y towards z, and z towards x.
        axis: Axis of rotation, `x`, `y` or `z`.
        center: A point that does not move, (x, y, z), metres; None for the middle of the bounding
            box.
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
        if self.center is not None:
            center = np.asarray(self.center)
        else:
            lowest, highest = _bounds(draft)
            center = (lowest + highest) / 2

        def turn(columns: Columns) -> Columns:
            # Not a product of matrices, whose rounding may depend on the number of threads.
            u = columns[first].copy()
            v = columns[second].copy()
            columns[first] = cosine * u - sine * v
            columns[second] = sine * u + cosine * v
            return columns

        # Only the points are moved to the centre and back: normals are directions.
        _by_axis(np.subtract, draft.move(), center)
        draft.turn(turn)
        _by_axis(np.add, draft.move(), center)
        return {"axis": self.axis, "angle": angle, "center": center}


class Flip(Moving, probability=number(0, 1)):
    """Reflects points and normals along x and along y, independently with the same probability.

    Attributes:
        probability: Probability of each of the two reflections, 0..1.
    """

    probability: float = 0.5

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points` and `normals`."""
        # The factors of x, y and z; that of z is always 1.
        is_reflected = generator.random(2) < self.probability
        signs = np.append(np.where(is_reflected, -1, 1), 1)
        draft.turn(lambda columns: _by_axis(np.multiply, columns, signs))
        return {"signs": signs}


class Scale(
    Moving,
    smallest=number(SMALLEST),
    largest=number(SMALLEST),
    anisotropic=flag(),
):
    """Scales points about the origin by a factor uniform in [smallest, largest].

    If all axes have the same factor, normals do not change. Otherwise they are divided by the
    factors and normalized, so that they stay perpendicular to surfaces.

    Attributes:
        smallest: Smallest factor, above 0.
        largest: Largest factor, at least `smallest`.
        anisotropic: Whether each axis has its own factor, as in Pointcept's `RandomScale`, in
            Mask3D and in OctFormer.
    """

    smallest: float = 0.9
    largest: float = 1.1
    anisotropic: bool = False

    def __post_init__(self) -> None:
        """Check each argument, and that they are in ascending order."""
        super().__post_init__()
        if self.smallest > self.largest:
            name = type(self).__name__
            raise UsageError(
                f"{name}: smallest is {self.smallest!r} and largest is {self.largest!r}, "
                "expected smallest <= largest",
                f"{name}({self.largest!r}, {self.smallest!r})",
            )

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`, and `normals` if anisotropic."""
        count = 3 if self.anisotropic else 1
        factors = generator.uniform(self.smallest, self.largest, count)
        _by_axis(np.multiply, draft.move(), factors)
        if self.anisotropic and "normals" in draft.sample:

            def scale_normals(columns: Columns) -> Columns:
                return _normalize(_by_axis(np.divide, columns, factors))

            draft.later("normals", scale_normals)
        return {"factors": factors}


class Jitter(Moving, sigma=number(0), limit=number(0)):
    """Adds normal noise, clipped at a limit, to each coordinate. Normals do not change.

    Attributes:
        sigma: Standard deviation, metres.
        limit: Largest change of a coordinate, metres.
    """

    sigma: float = 0.005
    limit: float = 0.02

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        points = draft.move()
        # All possible changes of a coordinate, equally likely.
        noise = normal_quantiles() * np.float32(self.sigma)
        distances = np.clip(noise, -self.limit, self.limit)
        points += draw(distances, generator, points.size).reshape(points.shape)
        return {}


class ClipGaussianJitter(Moving, scalar=number(0)):
    """Adds normal noise, of which 5 % is clipped, to each coordinate. Normals do not change.

    A coordinate changes by `scalar * clip(n / 1.96, -1, 1)`, with n from the standard normal
    distribution. This is the same as `Jitter(sigma=scalar / 1.96, limit=scalar)`.

    It does what Pointcept's `ClipGaussianJitter` should do (pointcept/datasets/transform.py).
    Pointcept's code fails, because it passes the number `np.mean(3)` as the mean of three
    coordinates, which NumPy refuses. Pointcept's option `store_jitter` does not exist here.

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
    """Distorts points smoothly, by interpolated noise on a coarse grid. Normals do not change.

    For each pair of parameters in turn: draw normal noise for the corners of a grid, average it
    twice over three neighbours along each axis (zeros beyond the grid), and add the noise,
    interpolated linearly, to the points.

    It is the same as `ElasticDistortion` of Pointcept (pointcept/datasets/transform.py),
    `elastic_distortion` of Mask3D (datasets/semseg.py) and `elastic_distort` of OctFormer
    (datasets/scannet.py), which apply it with probability 0.95.

    Attributes:
        distortion_params: Pairs of granularity (edge of a grid cell) and magnitude (factor of the
            noise), metres. The standard deviation of the smoothed noise is about a tenth of the
            magnitude.
    """

    distortion_params: tuple[tuple[float, float], ...] = ((0.2, 0.4), (0.8, 1.6))

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        points = draft.move()
        if not draft.count:
            return {}
        for granularity, magnitude in self.distortion_params:
            noise = _interpolate_noise(points, granularity, generator)
            points += noise * np.float32(magnitude)
        return {}


class CenterShift(Moving, apply_z=flag(), apply_xy=flag()):
    """Puts the middle of the bounding box at x = y = 0, and the lowest point at z = 0. Not random.

    It is Pointcept's `CenterShift` (pointcept/datasets/transform.py), and `Normalize` without the
    colours.

    Attributes:
        apply_z: Whether to shift z.
        apply_xy: Whether to shift x and y; False for OctFormer's `align_z` (datasets/scannet.py).
    """

    apply_z: bool = True
    apply_xy: bool = True

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Change `points`."""
        lowest, highest = _bounds(draft)
        # A coordinate of the origin is 0 if the axis is not shifted: the flags are factors.
        origin = (lowest + highest) / 2 * self.apply_xy
        origin[2] = lowest[2] * self.apply_z
        _by_axis(np.subtract, draft.move(), origin)
        return {"origin": origin}


class RandomShift(
    Moving,
    shift=optional(triple(number_range(-LARGEST, LARGEST), "pairs (smallest, largest) in metres")),
):
    """Shifts points along each axis by a uniform distance.

    With ranges, it is Pointcept's `RandomShift` (pointcept/datasets/transform.py). Without, it is
    the first step of Mask3D (datasets/semseg.py): the mean of the points is moved to the origin,
    and from there to a random position in the inner half of the bounding box.

    Attributes:
        shift: Smallest and largest shift along x, y and z, metres; None to shift like Mask3D.
    """

    shift: tuple[Range, Range, Range] | None = None

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points`."""
        shift = self._draw_shift(draft, generator)
        _by_axis(np.add, draft.move(), shift)
        return {"shift": shift}

    def _draw_shift(self, draft: Draft, generator: Generator) -> NDArray[np.float64]:
        """Draw the shift along each axis, (3,), metres."""
        if self.shift is not None:
            smallest, largest = np.array(self.shift, np.float64).T
            return np.asarray(generator.uniform(smallest, largest))
        mean = np.zeros(3)
        if draft.count:
            mean = draft.columns("points").mean(axis=1, dtype=np.float64)
        lowest, highest = _bounds(draft)
        # Once the mean is at the origin, the bounding box reaches from `lowest - mean` to
        # `highest - mean`. The new position of the mean is drawn from this box at half its size.
        position = np.asarray(generator.uniform(lowest - mean, highest - mean)) / 2
        return np.asarray(position - mean)


def _bounds(draft: Draft) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lowest and the highest coordinates, (3,) each, metres; zeros without points."""
    points = draft.move() if draft.count else np.zeros((3, 1), np.float32)
    return points.min(axis=1), points.max(axis=1)


def _by_axis(function: np.ufunc, columns: Columns, numbers: ArrayLike) -> Columns:
    """Apply a binary function to each coordinate and the number of its axis, in place.

    The numbers are converted to the type of the columns, which keeps float32 from becoming float64.
    """
    function(columns, np.asarray(numbers, columns.dtype)[:, None], out=columns)
    return columns


def _normalize(columns: Columns) -> Columns:
    """Divide vectors by their lengths, in place. Vectors of length 0 do not change."""
    x, y, z = columns
    lengths = np.sqrt(x * x + y * y + z * z)
    columns /= np.where(lengths == 0, 1, lengths)
    return columns


def _interpolate_noise(
    points: Columns, granularity: float, generator: Generator
) -> NDArray[np.float32]:
    """Draw smooth noise for each point, float32 (3, N); see `ElasticDistortion`.

    Args:
        points: Floats (3, N), metres, at least one point.
        granularity: Edge of a grid cell, metres.
        generator: Random numbers.

    Raises:
        UsageError: The grid has too many cells.
    """
    # Positions in units of cells, counted from the lowest point, (3, N).
    positions = points - points.min(axis=1, keepdims=True)
    positions /= np.float32(granularity)
    positions = positions.astype(np.float32, copy=False)

    # Corners of the grid along each axis, (3,): from one cell below the lowest point to the first
    # corner above the highest. Extents that are not finite fail the comparison.
    extent = np.floor(positions.max(axis=1)) + 3
    if not extent.prod() <= _MAX_NOISE_CELLS:
        cells_text = " x ".join(f"{number:g}" for number in extent)
        raise UsageError(
            f"ElasticDistortion: the noise has {cells_text} cells, too many: "
            f"expected at most {_MAX_NOISE_CELLS:,}",
            "ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), for points in metres",
        )
    shape = [int(number) for number in extent]
    # (3, corners)
    noise = _draw_smooth_noise(shape, generator).reshape(3, -1)

    # The cell of each point and the position within it, (3, N), and the index of the lowest corner
    # of this cell in `noise`, (N,). Cells are counted from the lowest point, corners from one cell
    # below it: hence the + 1.
    cells = positions.astype(np.intp)
    fractions = positions - cells.astype(np.float32)
    lowest = ((cells[0] + 1) * shape[1] + cells[1] + 1) * shape[2] + cells[2] + 1

    # Interpolate between the eight corners of each cell: a closer corner has a larger weight.
    result: NDArray[np.float32] = np.zeros_like(positions)
    for start in range(0, len(lowest), _BLOCK_POINTS):
        block = slice(start, start + _BLOCK_POINTS)
        upper_weights = fractions[:, block]
        weights = (1 - upper_weights, upper_weights)
        for x, y, z in product((0, 1), repeat=3):
            corners = lowest[block] + ((x * shape[1] + y) * shape[2] + z)
            weight = weights[x][0] * weights[y][1] * weights[z][2]
            result[:, block] += weight * noise.take(corners, axis=1)
    return result


def _draw_smooth_noise(shape: list[int], generator: Generator) -> NDArray[np.float32]:
    """Draw normal noise (3, X, Y, Z), averaged twice over three neighbours along each axis."""
    noise = generator.standard_normal((3, *shape), np.float32)
    for axis in (1, 2, 3, 1, 2, 3):
        # A view, through which the result is written into `noise`.
        lines = np.moveaxis(noise, axis, 0)
        sums = lines.copy()
        sums[1:] += lines[:-1]
        sums[:-1] += lines[1:]
        np.multiply(sums, np.float32(1 / 3), out=lines)
    return noise
