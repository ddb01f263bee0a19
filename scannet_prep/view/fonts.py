"""The two fonts of pictures: a real one if Pillow is installed, and letters of 5 x 8 pixels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.png import LINE_HEIGHT, draw_text, measure_text

# Size and line height of the font of Pillow at scale 1, in pixels.
_SIZE = 10
_LINE_HEIGHT = 13


class Font(Protocol):
    """A font of one size.

    Attributes:
        scale: The factor by which margins and symbols are enlarged.
        line_height: Height of a line, in pixels.
    """

    scale: int
    line_height: int

    def measure(self, text: str) -> int:
        """Return the width of a text, in pixels."""

    def draw(
        self, image: NDArray[np.uint8], x: int, y: int, text: str, color: tuple[int, ...]
    ) -> None:
        """Draw a line of text whose top left is at (x, y).

        Args:
            image: uint8 (H, W, C).
            x: In pixels.
            y: In pixels.
            text: The text.
            color: A value for each channel of the picture.
        """


class BuiltInFont:
    """The letters of `assets/font.txt`. Characters outside ASCII become `?`."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.line_height = LINE_HEIGHT * scale

    def measure(self, text: str) -> int:
        """Return the width of a text, in pixels."""
        return measure_text(text) * self.scale

    def draw(
        self, image: NDArray[np.uint8], x: int, y: int, text: str, color: tuple[int, ...]
    ) -> None:
        """Draw a line of text whose top left is at (x, y)."""
        draw_text(image, x, y, text, color, self.scale)


class PillowFont:
    """The font that Pillow contains, with smooth edges."""

    def __init__(self, scale: int) -> None:
        from PIL import ImageFont

        self.scale = scale
        self.line_height = _LINE_HEIGHT * scale
        self._font = ImageFont.load_default(_SIZE * scale)

    def measure(self, text: str) -> int:
        """Return the width of a text, in pixels."""
        return int(np.ceil(self._font.getlength(text)))

    def draw(
        self, image: NDArray[np.uint8], x: int, y: int, text: str, color: tuple[int, ...]
    ) -> None:
        """Draw a line of text whose top left is at (x, y)."""
        from PIL import Image, ImageDraw

        # The part of the picture that the text covers; smaller at its edges.
        part = image[y : y + self.line_height, x : x + self.measure(text)]
        if not part.size:
            return
        coverage = Image.new("L", (part.shape[1], part.shape[0]))
        # Capital letters begin at the top, as those of the built-in font.
        origin = (0, -self._font.getbbox("E")[1])
        ImageDraw.Draw(coverage).text(origin, text, fill=255, font=self._font)
        opacity = np.asarray(coverage, np.float32)[..., np.newaxis] / 255
        blended = part * (1 - opacity) + np.array(color, np.float32) * opacity
        part[:] = np.rint(blended).astype(np.uint8)


def choose_font(scale: int) -> Font:
    """Return the font of Pillow, or the built-in one if Pillow is not installed."""
    if find_spec("PIL") is None:
        return BuiltInFont(scale)
    return PillowFont(scale)
