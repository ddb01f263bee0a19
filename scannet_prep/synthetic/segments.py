"""Cuts surfaces into segments, as an over-segmentation does: many small patches and a few large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scannet_prep.synthetic.surfaces import Grid

# Together these give one segment for about 120 vertices, half of the segments below 70, as in the release.
_TILE_VERTICES = 80
_WHOLE_BOX_VERTICES = 150
_MIN_VERTICES = 20
_JOIN_PROBABILITY = 0.25
_BACKGROUND_PROBABILITY = 0.3

_WAVE_LENGTH = 11.0
_WAVE_HEIGHT = 3.0


def cut_segments(grid: Grid, boxes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Cut every rectangle into tiles with jagged borders, and join some of them.

    Small boxes stay whole. No segment is on two boxes.

    Args:
        grid: Grid points of R rectangles.
        boxes: int64 (R,), the box that each rectangle is a side of.
        rng: Source of chance.

    Returns:
        int64 (V,): segment of each point, from 0, without gaps.
    """
    counts = grid.shapes.prod(1)
    is_whole = (np.bincount(boxes, counts) < _WHOLE_BOX_VERTICES)[boxes]
    side = np.sqrt(_TILE_VERTICES)
    tiles_v = np.where(is_whole, 1, np.maximum(1, np.rint(grid.shapes[:, 1] / side))).astype(np.int64)
    tiles_u = np.where(is_whole, 1, np.maximum(1, np.rint(counts / (_TILE_VERTICES * tiles_v)))).astype(np.int64)
    first_tiles = np.cumsum(tiles_u * tiles_v) - tiles_u * tiles_v
    segment_of_tile = _join_tiles(tiles_u * tiles_v, first_tiles, rng)

    # The sides of a box that stays whole all use the tile of its first side.
    _, first_sides = np.unique(boxes, return_index=True)
    first_tiles = np.where(is_whole, first_tiles[first_sides[boxes]], first_tiles)

    phases = rng.random((2, len(counts)))
    chosen = grid.rectangles
    u = grid.rows + _wave(grid.columns / _WAVE_LENGTH + phases[0, chosen])
    v = grid.columns + _wave(grid.rows / _WAVE_LENGTH + phases[1, chosen])
    tile_u = _tile_index(u, grid.shapes[:, 0], tiles_u, chosen)
    tile_v = _tile_index(v, grid.shapes[:, 1], tiles_v, chosen)
    segments = segment_of_tile[first_tiles[chosen] + tile_u * tiles_v[chosen] + tile_v]
    is_scrap = np.bincount(segments) < _MIN_VERTICES
    return number_contiguously(np.where(is_scrap[segments], segment_of_tile[first_tiles[chosen]], segments))


def number_contiguously(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber non-negative integers from 0 without gaps, in their order."""
    is_used = np.bincount(indices) > 0
    numbers: NDArray[np.int64] = (np.cumsum(is_used) - 1)[indices]
    return numbers


def _join_tiles(
    counts: NDArray[np.int64], first_tiles: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Join some tiles to the one before, and some to the background of their rectangle, which is its first tile."""
    total = int(counts.sum())
    is_start = rng.random(total) >= _JOIN_PROBABILITY
    is_start[first_tiles] = True
    segments = np.cumsum(is_start) - 1
    backgrounds = np.repeat(segments[first_tiles], counts)
    return np.where(rng.random(total) < _BACKGROUND_PROBABILITY, backgrounds, segments)


def _wave(phase: NDArray[np.float64]) -> NDArray[np.float64]:
    """A triangle wave; no sine, whose last digit differs between processors."""
    return _WAVE_HEIGHT * (np.abs(phase - np.floor(phase) - 0.5) * 4.0 - 1.0)


def _tile_index(
    places: NDArray[np.float64], lengths: NDArray[np.int64], tiles: NDArray[np.int64], chosen: NDArray[np.int64]
) -> NDArray[np.int64]:
    indices = np.floor(places * (tiles / lengths)[chosen]).astype(np.int64)
    return np.clip(indices, 0, (tiles - 1)[chosen])
