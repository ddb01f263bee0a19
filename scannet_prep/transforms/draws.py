"""Random numbers for each vertex: drawn from tables, which is faster than drawing them one by one."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


@cache
def normal_quantiles() -> NDArray[np.float32]:
    """65,536 numbers that are distributed normally, float32, ascending; the mean is 0, the standard deviation 1.

    To draw from them takes a fifth of the time of drawing normal numbers; none is beyond 4.33.
    """
    numbers = np.linspace(-6, 6, 1 << 17)
    density = np.exp(-numbers * numbers / 2)
    shares = np.cumsum(density) - density / 2
    quantiles = np.interp((np.arange(1 << 16) + 0.5) / (1 << 16), shares / density.sum(), numbers)
    return np.asarray(quantiles / quantiles.std(), np.float32)


def draw(values: NDArray[Any], generator: Generator, count: int) -> NDArray[Any]:
    """Draw `count` of 65,536 values, each as likely every time."""
    indices = draw_bits(generator, count)
    # Much faster with `out` than without.
    return values.take(indices, mode="clip", out=np.empty(count, values.dtype))


def draw_bits(generator: Generator, count: int) -> NDArray[np.uint16]:
    """Draw `count` numbers of 16 bits."""
    word_count = -(-count // 4)
    return generator.integers(0, 1 << 64, word_count, np.uint64).view(np.uint16)[:count]


def choose(generator: Generator, count: int, share: float) -> NDArray[np.int64]:
    """Choose a share of `count` indices at random, rounded down, in any order."""
    return generator.permutation(count)[: int(count * share)]
