"""Colours of instances, such that those of neighbours in the room can be told apart.

A palette has hundreds of colours. Each instance takes one that is far enough from the colours of
its neighbours, and among these the one that is farthest from all other colours in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.categories import UNLABELED_COLOR, Color
from scannet_prep.view.color_distance import measure_distances, to_lab

MIN_DISTANCE = 20
"""CIEDE2000 distance of the colours of neighbours at least, also if light makes one darker."""

# With some reserve for light.
_WANTED_DISTANCE = 24
# Unlabeled vertices, and about the backgrounds.
_AVOIDED = np.array([UNLABELED_COLOR, (0, 0, 0), (255, 255, 255)])
# Numbers in cells that touch are neighbours: all vertices that are nearer than a cell.
_CELL_M = 0.2
# So that the number of a cell fits into 64 bits, in scenes of any size.
_MAX_CELLS = 1 << 20
_PALETTE_SIZE = 512
# The cells that touch a cell, without those on the opposite side: pairs are found from one side.
_SIDES = [
    (x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1) if (x, y, z) >= (0, 0, 0)
]


def choose_colors(
    points: NDArray[np.floating[Any]],
    numbers: NDArray[np.integer[Any]],
    given: Mapping[int, Color] | None = None,
    *,
    reserved: Iterable[Color] = (),
) -> dict[int, Color]:
    """Choose a colour for each number.

    The colours of neighbours differ by `MIN_DISTANCE`, and all differ so much from that of
    unlabeled vertices, black and white. A number with so many neighbours that no colour is left
    gets the one that differs most. The same arguments always give the same colours. If there are a
    hundred numbers or more, some that are not neighbours may share a colour.

    Args:
        points: (V, 3), metres, finite.
        numbers: Integers (V,), such as the instance of each vertex; negative for none.
        given: Colours that some numbers have already.
        reserved: Colours that no other number may get.
    """
    colors = dict(given or {})
    palette = np.random.default_rng(0).integers(30, 256, (_PALETTE_SIZE, 3))
    palette_lab = to_lab(palette)

    # For each number with a colour, the distances of all colours of the palette from it.
    distances = {}
    nearest = measure_distances(palette_lab[:, np.newaxis], to_lab(_AVOIDED)).min(axis=1)
    # The same of colours that every number has to avoid.
    nearest_avoided = nearest.copy()
    for color in reserved:
        nearest_avoided[(palette == color).all(axis=1)] = 0
    for number, color in colors.items():
        distances[number] = measure_distances(palette_lab, to_lab(np.array(color)))
        nearest = np.minimum(nearest, distances[number])

    neighbours = find_neighbours(points, numbers)
    values, counts = np.unique(numbers[numbers >= 0], return_counts=True)
    # Those with the most neighbours come first, when there are still few colours to avoid.
    order = np.lexsort([values, -counts, [-len(neighbours[value]) for value in values.tolist()]])
    for number in values[order].tolist():
        if number in colors:
            continue
        nearest_neighbour = nearest_avoided
        for neighbour in neighbours[number]:
            if neighbour in distances:
                nearest_neighbour = np.minimum(nearest_neighbour, distances[neighbour])
        # If no colour is far enough from all neighbours, the farthest one.
        is_far = nearest_neighbour >= min(_WANTED_DISTANCE, nearest_neighbour.max())
        best = int(np.where(is_far, nearest, -1).argmax())
        red, green, blue = palette[best].tolist()
        colors[number] = (red, green, blue)
        distances[number] = measure_distances(palette_lab, palette_lab[best])
        nearest = np.minimum(nearest, distances[number])
    return colors


def find_neighbours(
    points: NDArray[np.floating[Any]], numbers: NDArray[np.integer[Any]]
) -> defaultdict[int, set[int]]:
    """Find the numbers whose vertices are nearer to each other than 0.2 m, and some farther ones.

    Args:
        points: (V, 3), metres, finite.
        numbers: Integers (V,); negative for none.

    Returns:
        The neighbours of each number that has any, without itself.
    """
    neighbours: defaultdict[int, set[int]] = defaultdict(set)
    is_numbered = numbers >= 0
    if not is_numbered.any():
        return neighbours
    numbers = numbers[is_numbered].astype(np.int64)
    coordinates = points[is_numbered].astype(np.float64)
    coordinates -= coordinates.min(axis=0)
    cell = max(_CELL_M, float(coordinates.max()) / _MAX_CELLS)
    # A border of one cell, so that the cells at both ends of a row do not touch.
    x, y, z = (coordinates / cell).astype(np.int64).T + 1
    side = _MAX_CELLS + 3
    cells = (x * side + y) * side + z

    # The numbers in each cell: pairs of a cell and a number, (P,), sorted by cell.
    values, value_indices = np.unique(numbers, return_inverse=True)
    filled_cells, cell_indices = np.unique(cells, return_inverse=True)
    pairs = np.unique(cell_indices * len(values) + value_indices)
    pair_cells = filled_cells[pairs // len(values)]
    pair_values = pairs % len(values)

    touching = []
    for x_step, y_step, z_step in _SIDES:
        others = pair_cells + (x_step * side + y_step) * side + z_step
        first = np.searchsorted(pair_cells, others, side="left")
        counts = np.searchsorted(pair_cells, others, side="right") - first
        # Each pair with all pairs of the other cell.
        left = np.repeat(np.arange(len(pairs)), counts)
        right = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        touching.append(pair_values[left] * len(values) + pair_values[right])
    ones, others = np.divmod(np.unique(np.concatenate(touching)), len(values))
    for one, other in zip(values[ones].tolist(), values[others].tolist(), strict=True):
        if one != other:
            neighbours[one].add(other)
            neighbours[other].add(one)
    return neighbours
