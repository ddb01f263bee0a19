"""Transforms of where the vertices are, and of their normals with them.

They leave out `grid`, if it is there: the cells of `GridSample` hold for the points that it was given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.arguments import check_range, colors_as_given


def _move(sample: dict[str, Any], points: NDArray[Any], **changed: NDArray[Any]) -> dict[str, Any]:
    """The sample with other points, and without what was computed from where they were."""
    result = {**sample, "points": points, **changed}
    result.pop("grid", None)
    return result


@dataclass(frozen=True, slots=True)
class RotateZ:
    """Rotates points and normals about the z axis, by an angle that is uniform in [-max_angle, max_angle].

    Attributes:
        max_angle: Radians.
    """

    max_angle: float = np.pi

    def __post_init__(self) -> None:
        """Check the argument."""
        check_range(self, "max_angle", lowest=0, highest=np.pi)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
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
class Flip:
    """Reflects points and normals in x, and in y, each with a probability of its own.

    Attributes:
        probability: Of each of the two, 0..1.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        """Check the argument."""
        check_range(self, "probability", lowest=0, highest=1)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Change `points` and `normals`."""
        mapped = {key: sample[key].copy() for key in ("points", "normals") if key in sample}
        for axis in np.flatnonzero(generator.random(2) < self.probability):
            for array in mapped.values():
                np.negative(array[:, axis], out=array[:, axis])
        return _move(sample, **mapped)


@dataclass(frozen=True, slots=True)
class Scale:
    """Scales points about the origin, alike in all directions, by a factor that is uniform in [smallest, largest].

    Normals are unit vectors and stay as they are.

    Attributes:
        smallest: Above 0.
        largest: At least `smallest`.
    """

    smallest: float = 0.9
    largest: float = 1.1

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_range(self, "smallest", lowest=1e-6)
        check_range(self, "largest", lowest=self.smallest)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Change `points`."""
        return _move(sample, sample["points"] * np.float32(generator.uniform(self.smallest, self.largest)))


@dataclass(frozen=True, slots=True)
class Jitter:
    """Adds normal noise to each coordinate, cut at a largest distance. Normals stay as they are.

    Attributes:
        sigma: Standard deviation, metres.
        limit: Largest change of a coordinate, metres.
    """

    sigma: float = 0.005
    limit: float = 0.02

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_range(self, "sigma", lowest=0)
        check_range(self, "limit", lowest=0)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Change `points`."""
        points = sample["points"]
        noise = generator.standard_normal(points.shape, np.float32) * np.float32(self.sigma)
        return _move(sample, points + np.clip(noise, -np.float32(self.limit), np.float32(self.limit)))


@dataclass(frozen=True, slots=True)
class Normalize:
    """Puts the scene's middle at x = y = 0 and its lowest point at z = 0, and colours into [-1, 1]. Nothing is random.

    The middle is that of the bounding box. Colours become float32, c / 127.5 - 1.
    """

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:  # noqa: ARG002
        """Change `points` and `colors`."""
        points, colors = sample["points"], colors_as_given(sample, self)
        if not len(points):
            raise UsageError("Normalize: there are no points")
        columns = points.T.copy()  # much faster than along axis 0
        lowest, highest = columns.min(axis=1), columns.max(axis=1)
        origin = np.array([*((lowest + highest) / 2)[:2], lowest[2]], np.float32)
        return _move(sample, points - origin, colors=colors / np.float32(127.5) - np.float32(1))
