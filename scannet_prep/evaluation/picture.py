"""The confusion matrix as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

_CELL, _MARGIN = 14, 190  # pixels


def draw_confusion(confusion: NDArray[np.int64], names: Sequence[str]) -> str:
    """Draw the confusion matrix as SVG: a row for each class of the ground truth, a column for each predicted one.

    A cell is the darker, the larger its share of the row. Pointing at it tells the numbers.

    Args:
        confusion: int64 (K, K + 1), as `SemanticScores` has it; the last column is for none of the classes.
        names: The classes, K.
    """
    columns = [*names, "(none)"]
    height, width = (count * _CELL for count in confusion.shape)
    box = f"{-_MARGIN} {-_MARGIN} {width + _MARGIN + _CELL} {height + _MARGIN + _CELL}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="11">',
        f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="white"/>',
        f'<rect width="{width}" height="{height}" fill="none" stroke="gray"/>',
        _text("prediction", f"translate({width / 2} {_CELL - _MARGIN})", "middle"),
        _text("ground truth", f"translate({_CELL - _MARGIN} {height / 2}) rotate(-90)", "middle"),
        *(_text(name, f"translate(-6 {row * _CELL + 11})", "end") for row, name in enumerate(names)),
        *(_text(name, f"translate({column * _CELL + 11} -6) rotate(-90)") for column, name in enumerate(columns)),
    ]
    for row, column in np.argwhere(confusion).tolist():
        count, total = confusion[row, column].item(), confusion[row].sum().item()
        title = escape(f"{names[row]} as {columns[column]}: {count / total:.1%} ({count:,} vertices)")
        parts.append(
            f'<rect x="{column * _CELL}" y="{row * _CELL}" width="{_CELL}" height="{_CELL}" fill="#08519c" '
            f'fill-opacity="{count / total:.3f}"><title>{title}</title></rect>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _text(words: str, transform: str, anchor: str = "start") -> str:
    return f'<text transform="{transform}" text-anchor="{anchor}">{escape(words)}</text>'
