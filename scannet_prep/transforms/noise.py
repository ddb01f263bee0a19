"""Random numbers of transforms: normal ones, and smooth noise in space."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from scannet_prep.transforms.draft import Columns, Floats, Ints

# Points are interpolated in blocks, so that intermediate results stay in the processor's cache.
_BLOCK_POINTS = 16_384


def draw_normal(generator: Generator, count: int) -> Floats:
    """Draw normal numbers, float32 (count,), by the method of Box and Muller.

    It takes two thirds of the time of `Generator.standard_normal`.
    """
    pair_count = math.ceil(count / 2)
    # 1 - random is in (0, 1], so that its logarithm is finite.
    uniform = 1 - generator.random(pair_count, np.float32)
    lengths = np.sqrt(-2 * np.log(uniform))
    angles = generator.random(pair_count, np.float32)
    angles *= np.float32(2 * np.pi)
    cosines = lengths * np.cos(angles)
    sines = lengths * np.sin(angles)
    return np.concatenate([cosines, sines])[:count]


def interpolate_noise(points: Columns, granularity: float, generator: Generator) -> Floats:
    """Draw smooth noise for each point, float32 (3, N); see `ElasticDistortion`.

    Args:
        points: Floats (3, N), metres, at least one point.
        granularity: Edge of a grid cell, metres.
        generator: Random numbers.
    """
    # Positions in units of cells, counted from the lowest point, (3, N).
    lowest = points.min(axis=1, keepdims=True)
    positions = points - lowest
    positions /= np.float32(granularity)
    positions = positions.astype(np.float32, copy=False)

    # Corners of the grid along each axis: from one cell below the lowest point to the first corner
    # above the highest.
    extent = np.floor(positions.max(axis=1))
    shape = [int(number) + 3 for number in extent]
    noise = _draw_smooth_noise(shape, generator)
    noise = noise.reshape(3, -1)

    # The cell of each point and the position within it, (3, N), and the index of the lowest corner
    # of this cell in `noise`, (N,). Cells are counted from the lowest point, corners from one cell
    # below it: hence the + 1.
    cells = positions.astype(np.intp)
    fractions = positions - cells.astype(np.float32)
    x, y, z = cells + 1
    _, y_count, z_count = shape
    corners = (x * y_count + y) * z_count + z

    # Distances, in the flattened grid, to the next corner along x, y and z.
    strides = (y_count * z_count, z_count, 1)
    result: Floats = np.empty_like(positions)
    for start in range(0, len(corners), _BLOCK_POINTS):
        block = slice(start, start + _BLOCK_POINTS)
        result[:, block] = _interpolate(
            noise,
            corners[block],
            strides,
            fractions[:, block],
        )
    return result


def _interpolate(
    noise: Floats,
    corners: Ints,
    strides: Sequence[int],
    fractions: Columns,
) -> Floats:
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
    stride, *later_strides = strides
    fraction, later_fractions = fractions[0], fractions[1:]
    here = _interpolate(noise, corners, later_strides, later_fractions)
    change = _interpolate(noise, corners + stride, later_strides, later_fractions)
    change -= here
    change *= fraction
    change += here
    return change


def _draw_smooth_noise(shape: list[int], generator: Generator) -> Floats:
    """Draw normal noise (3, X, Y, Z), averaged twice over three neighbours along each axis."""
    noise = generator.standard_normal((3, *shape), np.float32)
    for axis in (1, 2, 3, 1, 2, 3):
        # A view, through which the result is written into `noise`.
        lines = np.moveaxis(noise, axis, 0)
        sums = lines.copy()
        sums[1:] += lines[:-1]
        sums[:-1] += lines[1:]
        third = np.float32(1 / 3)
        np.multiply(sums, third, out=lines)
    return noise
