"""Transforms that move points, and change normals accordingly.

They take points in metres, float32 (V, 3), in any frame. The moved points are in a new frame, so
`axis_alignment`, `grid` and the boxes of instances are removed from the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import Columns, Draft
from scannet_prep.transforms.noise import draw_normal, interpolate_noise
from scannet_prep.transforms.steps import Moving, check_share

# A rotation about an axis turns the first of these axes towards the second.
_PLANES = {
    "x": (1, 2),
    "y": (2, 0),
    "z": (0, 1),
}


@dataclass(frozen=True)
class Rotate(Moving):
    """Rotates points and normals about an axis, by an angle uniform in a range.

    It is Pointcept's `RandomRotate` (pointcept/datasets/transform.py), whose `p` becomes
    `Sometimes(Rotate(...), p)`. If smallest and largest angle are equal, it is Pointcept's
    `RandomRotateTargetAngle`, for test-time augmentation. Pointcept's angles are multiples of pi:
    1/64 is 2.8125 degrees.

    Attributes:
        smallest: Smallest angle, degrees. Positive angles rotate x towards y, y towards z, and z
            towards x.
        largest: Largest angle, degrees, at least `smallest`.
        axis: Axis of rotation, `x`, `y` or `z`.
        center: A point that does not move, (x, y, z), metres; None for the middle of the bounding
            box.

    Raises:
        UsageError: The angles are not in ascending order.
    """

    smallest: float = -180.0
    largest: float = 180.0
    axis: Literal["x", "y", "z"] = "z"
    center: tuple[float, float, float] | None = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        """Check the range."""
        _check_range("Rotate", self.smallest, self.largest)

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `normals`."""
        first, second = _PLANES[self.axis]
        degrees = generator.uniform(self.smallest, self.largest)
        angle = math.radians(degrees)
        cosine = math.cos(angle)
        sine = math.sin(angle)

        def turn(columns: Columns) -> Columns:
            # Not a product of matrices, whose rounding may depend on the number of threads.
            u = columns[first].copy()
            v = columns[second].copy()
            columns[first] = cosine * u - sine * v
            columns[second] = sine * u + cosine * v
            return columns

        center: ArrayLike = self.center or 0
        if self.center is None:
            center, _ = _find_middle(draft)
        # Only the points are moved to the centre and back: normals are directions.
        _by_axis(np.subtract, draft.move(), center)
        draft.turn(turn)
        _by_axis(np.add, draft.move(), center)


@dataclass(frozen=True)
class Flip(Moving):
    """Reflects points and normals along x and along y, independently with the same probability.

    Attributes:
        probability: Probability of each of the two reflections, 0..1.

    Raises:
        UsageError: It is not in 0..1.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        """Check the probability."""
        check_share("Flip: probability", self.probability)

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `normals`."""
        # The factors of x, y and z; that of z is always 1.
        is_reflected = generator.random(2) < self.probability
        signs = np.ones(3)
        signs[:2][is_reflected] = -1
        draft.turn(lambda columns: _by_axis(np.multiply, columns, signs))


@dataclass(frozen=True)
class Scale(Moving):
    """Scales points about the origin by a factor uniform in [smallest, largest].

    If all axes have the same factor, normals do not change. Otherwise they are divided by the
    factors and normalized, so that they stay perpendicular to surfaces.

    Attributes:
        smallest: Smallest factor, above 0.
        largest: Largest factor, at least `smallest`.
        anisotropic: Whether each axis has its own factor, as in Pointcept's `RandomScale`, in
            Mask3D and in OctFormer.

    Raises:
        UsageError: The factors are not in ascending order, or not above 0.
    """

    smallest: float = 0.9
    largest: float = 1.1
    anisotropic: bool = False

    def __post_init__(self) -> None:
        """Check the range."""
        _check_range("Scale", self.smallest, self.largest)
        if self.smallest <= 0:
            raise UsageError(f"Scale: smallest is {self.smallest}, expected a factor above 0")

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`, and `normals` if anisotropic."""
        count = 3 if self.anisotropic else 1
        factors = generator.uniform(self.smallest, self.largest, count)
        _by_axis(np.multiply, draft.move(), factors)
        if self.anisotropic and "normals" in draft.sample:
            draft.later(
                "normals",
                lambda columns: _normalize(_by_axis(np.divide, columns, factors)),
            )


@dataclass(frozen=True)
class Jitter(Moving):
    """Adds normal noise, clipped at a limit, to each coordinate. Normals do not change.

    Attributes:
        sigma: Standard deviation, metres.
        limit: Largest change of a coordinate, metres.
    """

    sigma: float = 0.005
    limit: float = 0.02

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`."""
        points = draft.move()
        noise = draw_normal(generator, points.size).reshape(points.shape)
        noise *= np.float32(self.sigma)
        np.clip(noise, -self.limit, self.limit, out=noise)
        points += noise


@dataclass(frozen=True)
class ElasticDistortion(Moving):
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

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points`."""
        points = draft.move()
        if not draft.count:
            return
        for granularity, magnitude in self.distortion_params:
            noise = interpolate_noise(points, granularity, generator)
            points += noise * np.float32(magnitude)


@dataclass(frozen=True)
class CenterShift(Moving):
    """Puts the middle of the bounding box at x = y = 0, and the lowest point at z = 0. Not random.

    It is Pointcept's `CenterShift` (pointcept/datasets/transform.py), and `Normalize` without the
    colours.
    """

    def change(self, draft: Draft, generator: Generator) -> None:  # noqa: ARG002
        """Change `points`."""
        origin, lowest = _find_middle(draft)
        origin[2] = lowest[2]
        _by_axis(np.subtract, draft.move(), origin)


def _check_range(
    name: str,
    smallest: float,
    largest: float,
) -> None:
    # NumPy would silently draw from the reversed range.
    if not smallest <= largest:
        raise UsageError(
            f"{name}: smallest is {smallest} and largest is {largest}, expected ascending numbers"
        )


def _find_middle(draft: Draft) -> tuple[Columns, Columns]:
    """Find the middle of the bounding box and the lowest coordinates, metres.

    Returns:
        Both (3,), and zeros without points.
    """
    points = draft.move()
    if not draft.count:
        points = np.zeros((3, 1), np.float32)
    lowest = points.min(axis=1)
    middle = (lowest + points.max(axis=1)) / 2
    return middle, lowest


def _by_axis(function: np.ufunc, columns: Columns, numbers: ArrayLike) -> Columns:
    """Apply a binary function to each coordinate and the number of its axis, in place.

    The numbers are converted to the type of the columns, which keeps float32 from becoming float64.
    """
    by_axis = np.asarray(numbers, columns.dtype)
    by_axis = by_axis.reshape(-1, 1)
    function(columns, by_axis, out=columns)
    return columns


def _normalize(columns: Columns) -> Columns:
    """Divide vectors by their lengths, in place. Vectors of length 0 do not change."""
    x, y, z = columns
    lengths = np.sqrt(x * x + y * y + z * z)
    lengths[lengths == 0] = 1
    columns /= lengths
    return columns
