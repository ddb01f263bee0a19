"""Random numbers of transforms: normal ones, and smooth noise in space."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import Columns, Ints

_MAX_NOISE_CELLS = 50_000_000
# Points are interpolated in blocks, so that intermediate results stay in the processor's cache.
_BLOCK_POINTS = 16_384


def draw_normal(generator: Generator, count: int) -> NDArray[np.float32]:
    """Draw normal numbers, float32 (count,), by the method of Box and Muller.

    It takes two thirds of the time of `Generator.standard_normal`.
    """
    pair_count = math.ceil(count / 2)
    # 1 - random is in (0, 1], so that its logarithm is finite.
    lengths = 1 - generator.random(pair_count, np.float32)
    np.log(lengths, out=lengths)
    lengths *= -2
    np.sqrt(lengths, out=lengths)
    angles = generator.random(pair_count, np.float32)
    angles *= np.float32(2 * np.pi)

    pairs = np.empty((2, pair_count), np.float32)
    np.cos(angles, out=pairs[0])
    np.sin(angles, out=pairs[1])
    pairs *= lengths
    return pairs.reshape(-1)[:count]


def interpolate_noise(
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
            "coordinates and granularity are in metres",
        )
    shape = [int(number) for number in extent]
    noise = _draw_smooth_noise(shape, generator).reshape(3, -1)

    # The cell of each point and the position within it, (3, N), and the index of the lowest corner
    # of this cell in `noise`, (N,). Cells are counted from the lowest point, corners from one cell
    # below it: hence the + 1.
    cells = positions.astype(np.intp)
    fractions = positions - cells.astype(np.float32)
    lowest = ((cells[0] + 1) * shape[1] + cells[1] + 1) * shape[2] + cells[2] + 1

    # Distances, in the flattened grid, to the next corner along x, y and z.
    strides = (shape[1] * shape[2], shape[2], 1)
    result: NDArray[np.float32] = np.empty_like(positions)
    for start in range(0, len(lowest), _BLOCK_POINTS):
        block = slice(start, start + _BLOCK_POINTS)
        result[:, block] = _interpolate(noise, lowest[block], strides, fractions[:, block])
    return result


def _interpolate(
    noise: NDArray[np.float32], corners: Ints, strides: tuple[int, ...], fractions: Columns
) -> NDArray[np.float32]:
    """Interpolate linearly along the remaining axes, from some corners to the next ones.

    Args:
        noise: Three numbers for each corner of the grid, (3, corners).
        corners: Indices of corners, (N,).
        strides: For each remaining axis, the distance between neighbours in `noise`.
        fractions: The weight of the next corner along each of these axes, (axes, N).

    Returns:
        float32 (3, N)
    """
    if not strides:
        return noise.take(corners, axis=1, mode="clip")
    here = _interpolate(noise, corners, strides[1:], fractions[1:])
    change = _interpolate(noise, corners + strides[0], strides[1:], fractions[1:])
    change -= here
    change *= fractions[0]
    change += here
    return change


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
