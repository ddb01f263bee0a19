"""Random numbers for each vertex, drawn from tables because that is faster than computing them."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


@cache
def normal_quantiles() -> NDArray[np.float32]:
    """Return 65,536 quantiles of the standard normal distribution, float32, ascending.

    Drawing from them takes a fifth of the time that normal random numbers take. The largest is
    4.33.
    """
    # Integrate the density from -6 to 6, and invert the integral by interpolation.
    numbers = np.linspace(-6, 6, 1 << 17)
    density = np.exp(-numbers * numbers / 2)
    shares = np.cumsum(density) - density / 2
    probabilities = (np.arange(1 << 16) + 0.5) / (1 << 16)
    quantiles = np.interp(probabilities, shares / density.sum(), numbers)

    # Scaled, so that the standard deviation is exactly 1.
    return np.asarray(quantiles / quantiles.std(), np.float32)


def draw(values: NDArray[Any], generator: Generator, count: int) -> NDArray[Any]:
    """Draw `count` numbers from 65,536 values, uniformly and with replacement."""
    indices = draw_bits(generator, count)
    # `take` is much faster with `out` than without.
    return values.take(indices, mode="clip", out=np.empty(count, values.dtype))


def draw_bits(generator: Generator, count: int) -> NDArray[np.uint16]:
    """Draw `count` uniform numbers of 16 bits, four from each number of 64 bits."""
    word_count = math.ceil(count / 4)
    return generator.integers(0, 1 << 64, word_count, np.uint64).view(np.uint16)[:count]


def choose(generator: Generator, count: int, share: float) -> NDArray[np.int64]:
    """Choose int(count * share) of the indices below `count`, in random order."""
    return generator.permutation(count)[: int(count * share)]
