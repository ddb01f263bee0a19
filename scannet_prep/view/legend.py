"""The legend of a picture: its categories, with their colours and their shares of the vertices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.categories import Category, Color
from scannet_prep.view.fonts import Font

MARGIN = 8
"""Distance from the rim of the picture, in pixels at scale 1."""

_SYMBOL_SIZE = 7
_MAX_LETTERS = 28
# Names that are measured, of possibly thousands.
_MEASURED = 50


class Legend:
    """A column on the right of a picture.

    Args:
        categories: The categories that may be in the picture.
        vertex_count: The number of vertices that the shares refer to.
        font: The font.
        height: Height of the picture, in pixels.

    Attributes:
        width: Width of the column, in pixels.
    """

    def __init__(
        self, categories: Sequence[Category], vertex_count: int, font: Font, height: int
    ) -> None:
        self._vertex_count = vertex_count
        self._font = font
        margin = MARGIN * font.scale
        self._max_lines = max(1, (height - 2 * margin) // font.line_height)
        self.width = 0
        if categories:
            # Any of them may be in the picture: the longest names are the widest, nearly always.
            longest = sorted(categories, key=lambda category: -len(category.name))[:_MEASURED]
            names = [_shorten_name(category) for category in longest]
            if len(categories) > self._max_lines:
                names.append(_count_more(len(categories)))
            # The largest category is the first, or the last if that is unlabeled.
            ends = (categories[0], categories[-1])
            share_width = max(font.measure(self._format_share(each)) for each in ends)
            name_width = max(map(font.measure, names))
            self.width = name_width + share_width + 3 * margin + font.line_height

    def draw(self, image: NDArray[np.uint8], categories: Sequence[Category], ink: Color) -> None:
        """Draw the legend.

        Args:
            image: uint8 (H, W, C).
            categories: The categories that are in the picture. If they are too many, the last line
                counts the omitted ones.
            ink: The colour of the text.
        """
        font = self._font
        margin = MARGIN * font.scale
        symbol = _SYMBOL_SIZE * font.scale
        left = image.shape[1] - self.width + margin
        right = image.shape[1] - margin
        names, shares, listed = self._make_lines(categories)
        for number, (name, share) in enumerate(zip(names, shares, strict=True)):
            top = margin + number * font.line_height
            if number < len(listed):
                color = (*listed[number].color, 255)[: image.shape[2]]
                image[top : top + symbol, left : left + symbol] = color
            font.draw(image, left + font.line_height, top, name, ink)
            font.draw(image, right - font.measure(share), top, share, ink)

    def _make_lines(
        self, categories: Sequence[Category]
    ) -> tuple[list[str], list[str], Sequence[Category]]:
        """Return the names and the shares of all lines, and the categories that have a line."""
        listed = categories
        if len(categories) > self._max_lines:
            listed = categories[: self._max_lines - 1]
        names = [_shorten_name(category) for category in listed]
        shares = [self._format_share(category) for category in listed]
        omitted_count = len(categories) - len(listed)
        if omitted_count:
            names.append(_count_more(omitted_count))
            shares.append("")
        return names, shares, listed

    def _format_share(self, category: Category) -> str:
        """Return the share of a category, such as `12.3%`."""
        return f"{category.count / self._vertex_count:.1%}"


def _count_more(count: int) -> str:
    """Return the line that counts the omitted categories."""
    return f"and {count:,} more"


def _shorten_name(category: Category) -> str:
    """Return the name of a category, shortened if it is too long for the legend."""
    if len(category.name) <= _MAX_LETTERS:
        return category.name
    return f"{category.name[: _MAX_LETTERS - 3]}..."
