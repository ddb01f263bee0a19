"""Rectangles in space, and their triangulated grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from scannet_prep.synthetic.furniture import Box

Vector: TypeAlias = tuple[float, float, float]

_BISECTION_STEPS = 60
# A scan rounds off the rims of boards.
_MIN_SIDE = 0.055


class Rectangle(NamedTuple):
    """A rectangle whose front is where `along_u` x `along_v` points.

    Attributes:
        origin: One corner, metres.
        along_u: From that corner to the next, metres.
        along_v: From that corner to the one before, metres.
    """

    origin: Vector
    along_u: Vector
    along_v: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Rectangles:
    """Many rectangles.

    Attributes:
        origins: float64 (R, 3), metres.
        along_u: float64 (R, 3), metres.
        along_v: float64 (R, 3), metres.
        pieces: int64 (R,), index of the piece (object) that each belongs to.
        boxes: int64 (R,), index of the box that each is a side of.
    """

    origins: NDArray[np.float64]
    along_u: NDArray[np.float64]
    along_v: NDArray[np.float64]
    pieces: NDArray[np.int64]
    boxes: NDArray[np.int64]

    @classmethod
    def from_boxes(cls, boxes: Iterable[tuple[int, list[Rectangle]]]) -> Rectangles:
        """Collect the sides of boxes, each given with the index of its piece."""
        sides, pieces, box_indices = [], [], []
        for index, (piece, box_sides) in enumerate(boxes):
            sides += box_sides
            pieces += [piece] * len(box_sides)
            box_indices += [index] * len(box_sides)
        corners = np.array(sides, np.float64)
        return cls(corners[:, 0], corners[:, 1], corners[:, 2], np.array(pieces), np.array(box_indices))

    @property
    def lengths(self) -> NDArray[np.float64]:
        """float64 (R, 2): lengths along u and v, metres."""
        return np.stack([np.sqrt((self.along_u**2).sum(1)), np.sqrt((self.along_v**2).sum(1))], axis=1)

    @property
    def normals(self) -> NDArray[np.float64]:
        """float64 (R, 3): unit vectors to the front."""
        crosses = np.cross(self.along_u, self.along_v)
        normals: NDArray[np.float64] = crosses / np.sqrt((crosses**2).sum(1, keepdims=True))
        return normals


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The grid points of many rectangles, one rectangle after the other.

    Attributes:
        shapes: int64 (R, 2), points along u and v, at least 2.
        rectangles: int64 (V,), the rectangle that each point is on.
        rows: int64 (V,), index of each point along u.
        columns: int64 (V,), index of each point along v.
    """

    shapes: NDArray[np.int64]
    rectangles: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @classmethod
    def from_shapes(cls, shapes: NDArray[np.int64]) -> Grid:
        """Number the points of all rectangles."""
        counts = shapes.prod(1)
        rectangles = np.repeat(np.arange(len(shapes)), counts)
        within = np.arange(counts.sum()) - (np.cumsum(counts) - counts)[rectangles]
        rows, columns = np.divmod(within, shapes[rectangles, 1])
        return cls(shapes, rectangles, rows, columns)

    def positions(self, surfaces: Rectangles) -> NDArray[np.float64]:
        """float64 (V, 3): where the points are, metres."""
        steps = self.shapes - 1
        step_u = surfaces.along_u / steps[:, :1]
        step_v = surfaces.along_v / steps[:, 1:]
        chosen = self.rectangles
        positions = step_u[chosen]
        positions *= self.rows[:, None]
        positions += surfaces.origins[chosen]
        positions += step_v[chosen] * self.columns[:, None]
        return positions

    def triangles(self) -> NDArray[np.int64]:
        """int64 (F, 3): two triangles for each grid cell, counter-clockwise as seen from the front."""
        steps = self.shapes - 1
        has_cell = (self.rows < steps[self.rectangles, 0]) & (self.columns < steps[self.rectangles, 1])
        corner = np.flatnonzero(has_cell)
        beside = corner + self.shapes[self.rectangles[corner], 1]
        triangles = np.stack([corner, beside, beside + 1, corner, beside + 1, corner + 1], axis=1)
        return triangles.reshape(-1, 3)


def box_sides(box: Box) -> list[Rectangle]:
    """The sides of a box, fronts outwards; without the one that stands on the floor, and without thin rims."""
    x0, y0, z0, x1, y1, z1 = box
    dx, dy, dz = x1 - x0, y1 - y0, z1 - z0
    sides = [
        Rectangle((x0, y0, z1), (dx, 0.0, 0.0), (0.0, dy, 0.0)),
        Rectangle((x0, y0, z0), (dx, 0.0, 0.0), (0.0, 0.0, dz)),
        Rectangle((x1, y1, z0), (-dx, 0.0, 0.0), (0.0, 0.0, dz)),
        Rectangle((x1, y0, z0), (0.0, dy, 0.0), (0.0, 0.0, dz)),
        Rectangle((x0, y1, z0), (0.0, -dy, 0.0), (0.0, 0.0, dz)),
    ]
    if z0 > 0:
        sides.append(Rectangle((x0, y0, z0), (0.0, dy, 0.0), (dx, 0.0, 0.0)))
    return [side for side in sides if min(_axis_length(side.along_u), _axis_length(side.along_v)) > _MIN_SIDE]


def _axis_length(edge: Vector) -> float:
    """Length of an edge that is parallel to an axis."""
    return abs(edge[0]) + abs(edge[1]) + abs(edge[2])


def place(side: Rectangle, cosine: float, sine: float, x: float, y: float) -> Rectangle:
    """Turn a rectangle about the z axis, then shift it by x, y."""
    turned = [(cosine * u - sine * v, sine * u + cosine * v, w) for u, v, w in side]
    return Rectangle((turned[0][0] + x, turned[0][1] + y, turned[0][2]), turned[1], turned[2])


def fit_grid(lengths: NDArray[np.float64], vertices: int) -> NDArray[np.int64]:
    """Find the coarsest square grid that has at least so many points on all rectangles together.

    Args:
        lengths: float64 (R, 2), metres.
        vertices: How many points; more than 4 R, which is what the coarsest grid of all has.

    Returns:
        int64 (R, 2): points along u and v.
    """
    area = float(lengths.prod(1).sum())
    fine, coarse = 0.5 * (area / vertices) ** 0.5, 2.0 * float(lengths.max())
    for _ in range(_BISECTION_STEPS):
        middle = 0.5 * (fine + coarse)
        if _grid_shapes(lengths, middle).prod(1).sum() >= vertices:
            fine = middle
        else:
            coarse = middle
    return _grid_shapes(lengths, fine)


def _grid_shapes(lengths: NDArray[np.float64], spacing: float) -> NDArray[np.int64]:
    return np.maximum(2, (lengths / spacing).astype(np.int64) + 1)
