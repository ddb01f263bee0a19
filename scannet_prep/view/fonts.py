"""The two fonts of pictures: that of Pillow, and letters of 5 x 8 pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.blending import cover
from scannet_prep.view.categories import Color
from scannet_prep.view.png import LETTER_HEIGHT, LINE_HEIGHT, cover_text, measure_text

# Size and line height of the font of Pillow at scale 1, in pixels.
_SIZE = 10
_LINE_HEIGHT = 13


class Font(ABC):
    """A font of one size.

    Attributes:
        scale: The factor by which margins and symbols are enlarged.
        line_height: Height of a line, in pixels.
        letter_height: Height of a capital letter, in pixels.
    """

    scale: int
    line_height: int
    letter_height: int

    @abstractmethod
    def measure(self, text: str) -> int:
        """Return the width of a text, in pixels."""

    @abstractmethod
    def cover(self, text: str) -> NDArray[np.float32]:
        """Return how much of each pixel a line of text covers.

        Returns:
            float32 (H, W), from 0 to 1. Capital letters begin in the first row.
        """

    def draw(self, image: NDArray[np.uint8], x: int, y: int, text: str, color: Color) -> None:
        """Draw a line of text whose top left is at (x, y).

        Args:
            image: uint8 (H, W, C).
            x: In pixels.
            y: In pixels.
            text: The text; it may extend beyond the picture.
            color: Red, green, blue.
        """
        cover(image, x, y, self.cover(text), color)


class BuiltInFont(Font):
    """The letters of `assets/font.txt`. Characters outside ASCII become `?`."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.line_height = LINE_HEIGHT * scale
        self.letter_height = LETTER_HEIGHT * scale

    def measure(self, text: str) -> int:
        """Return the width of a text, in pixels."""
        return measure_text(text) * self.scale

    def cover(self, text: str) -> NDArray[np.float32]:
        """Return how much of each pixel a line of text covers, float32 (H, W)."""
        return cover_text(text, self.scale).astype(np.float32)


class PillowFont(Font):
    """The font that Pillow contains, with smooth edges."""

    def __init__(self, scale: int) -> None:
        from PIL import ImageFont

        self.scale = scale
        self.line_height = _LINE_HEIGHT * scale
        self._font = ImageFont.load_default(_SIZE * scale)
        _, self._top, _, bottom = self._font.getbbox("E")
        self.letter_height = int(bottom - self._top)

    def measure(self, text: str) -> int:
        """Return the width of a text, in pixels."""
        return int(np.ceil(self._font.getlength(text)))

    def cover(self, text: str) -> NDArray[np.float32]:
        """Return how much of each pixel a line of text covers, float32 (H, W)."""
        from PIL import Image, ImageDraw

        coverage = Image.new("L", (self.measure(text), self.line_height))
        # Capital letters begin at the top, as those of the built-in font.
        ImageDraw.Draw(coverage).text((0, -self._top), text, fill=255, font=self._font)
        return np.asarray(np.asarray(coverage, np.float32) / np.float32(255))
