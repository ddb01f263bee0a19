"""Makes a random packing from one that fits, with the same number of batches and within the same limits.

Packing shuffled scenes from scratch would need one batch more in some epochs than in others. So scenes of pairs of
batches change places, again and again, wherever the limits allow it: whatever happens, the result fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.sampling.packing import Limits, Packing

# How often each place is offered a change, on average, and from how many places a batch on it is not offered more.
_OFFERS_PER_PLACE = 100
_MANY_PLACES = 40
# How much fuller than the mean a batch may get, where the budget would allow more: even batches keep memory and time
# of a step even.
_MAX_EXCESS = 1.03


@dataclass(slots=True)
class _Places:
    """Batches as rows of places, each with a scene or empty; a scene that moves to an empty place is a change too.

    Attributes:
        starts: First place of each batch, (K,).
        sizes: Places of each batch, (K,): one more than it has scenes to begin with, at most the limit of scenes.
        scenes: What is in each place; the number of scenes stands for empty.
        points: Vertices of each batch, (K,).
        counts: Scenes of each batch, (K,).
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    scenes: NDArray[np.int64]
    points: NDArray[np.int64]
    counts: NDArray[np.int64]


def shuffle(packing: Packing, lengths: NDArray[np.int64], limits: Limits, generator: np.random.Generator) -> Packing:
    """Mix the scenes of the batches.

    Args:
        packing: Batches within the limits, none of them empty.
        lengths: Vertices of each scene of the dataset, (n,).
        limits: What a batch may hold.
        generator: Source of randomness.

    Returns:
        As many batches, with the same scenes in all, within the same limits, none of them empty.
    """
    if len(packing) < 2:
        return packing
    places = _lay_out(packing, lengths, limits)
    # Sums of whole numbers are exact: every processor plans the same.
    mean = int(places.points.sum()) / len(packing)
    ceiling = min(float(limits.max_points), max(float(places.points.max()), _MAX_EXCESS * mean))
    values = np.append(lengths, 0)
    per_batch = int(places.sizes.sum()) / len(packing)
    # In batches of many scenes, several at a time change places.
    at_once = [1 << power for power in range(max(1, int(per_batch / 4).bit_length()))]
    for turn in range(int(_OFFERS_PER_PLACE * min(per_batch, _MANY_PLACES))):
        _exchange(places, values, (2 * mean - ceiling, ceiling), at_once[turn % len(at_once)], generator)
    return _collect(places, len(lengths))


def _lay_out(packing: Packing, lengths: NDArray[np.int64], limits: Limits) -> _Places:
    counts = packing.counts
    sizes = np.minimum(counts + 1, limits.max_scenes)
    starts = np.cumsum(sizes) - sizes
    scenes = np.full(int(sizes.sum()), len(lengths), np.int64)
    scenes[np.arange(len(packing.scenes)) + np.repeat(starts - packing.starts, counts)] = packing.scenes
    return _Places(starts, sizes, scenes, packing.loads(lengths), counts)


def _exchange(
    places: _Places,
    values: NDArray[np.int64],
    wanted: tuple[float, float],
    at_once: int,
    generator: np.random.Generator,
) -> None:
    """Pair all batches at random and let each pair exchange random places, where both stay within what is wanted."""
    order = generator.permutation(len(places.starts))
    half = len(order) // 2
    a, b = order[:half], order[half : 2 * half]
    place_a, is_place_a = _choose_places(places, a, at_once, generator)
    place_b, is_place_b = _choose_places(places, b, at_once, generator)
    is_both = is_place_a & is_place_b
    scene_a, scene_b = places.scenes[place_a], places.scenes[place_b]
    empty = len(values) - 1
    points = np.where(is_both, values[scene_b] - values[scene_a], 0).sum(axis=1)
    counts = np.where(is_both, (scene_a == empty).astype(np.int64) - (scene_b == empty), 0).sum(axis=1)
    points_a, points_b = places.points[a] + points, places.points[b] - points
    lowest, highest = wanted
    is_fitting = np.maximum(points_a, points_b) <= highest
    is_even = np.minimum(points_a, points_b) >= lowest
    is_no_worse = np.abs(points_a - points_b) <= np.abs(places.points[a] - places.points[b])
    has_scenes = (places.counts[a] + counts > 0) & (places.counts[b] - counts > 0)
    is_done = is_fitting & (is_even | is_no_worse) & has_scenes
    moves = is_both & is_done[:, np.newaxis]
    places.scenes[place_a[moves]] = scene_b[moves]
    places.scenes[place_b[moves]] = scene_a[moves]
    done_a, done_b = a[is_done], b[is_done]
    places.points[done_a], places.points[done_b] = points_a[is_done], points_b[is_done]
    places.counts[done_a] += counts[is_done]
    places.counts[done_b] -= counts[is_done]


def _choose_places(
    places: _Places, batches: NDArray[np.int64], at_once: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Choose different places of each batch, one in each of so many equal parts of it; False where a part is empty."""
    sizes = places.sizes[batches][:, np.newaxis]
    parts = np.arange(at_once)
    first = parts * sizes // at_once
    widths = (parts + 1) * sizes // at_once - first
    offsets = (generator.random(widths.shape) * widths).astype(np.int64)
    chosen = places.starts[batches][:, np.newaxis] + first + offsets
    return np.minimum(chosen, len(places.scenes) - 1), widths > 0


def _collect(places: _Places, empty: int) -> Packing:
    is_scene = places.scenes != empty
    return Packing(places.scenes[is_scene], np.cumsum(places.counts))
