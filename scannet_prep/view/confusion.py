"""The confusion matrix as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.markup import element, to_svg

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
    parts = [
        element("rect", x=-_MARGIN, y=-_MARGIN, width="100%", height="100%", fill="white"),
        element("rect", width=width, height=height, fill="none", stroke="gray"),
        _text("prediction", f"translate({width / 2} {_CELL - _MARGIN})", "middle"),
        _text("ground truth", f"translate({_CELL - _MARGIN} {height / 2}) rotate(-90)", "middle"),
        *(_text(name, f"translate(-6 {row * _CELL + 11})", "end") for row, name in enumerate(names)),
        *(_text(name, f"translate({column * _CELL + 11} -6) rotate(-90)") for column, name in enumerate(columns)),
    ]
    for row, column in np.argwhere(confusion).tolist():
        count, total = confusion[row, column].item(), confusion[row].sum().item()
        words = f"{names[row]} as {columns[column]}: {count / total:.1%} ({count:,} vertices)"
        place = {"x": column * _CELL, "y": row * _CELL, "width": _CELL, "height": _CELL}
        parts.append(
            element("rect", element("title", words), **place, fill="#08519c", fill_opacity=f"{count / total:.3f}")
        )
    box = f"{-_MARGIN} {-_MARGIN} {width + _MARGIN + _CELL} {height + _MARGIN + _CELL}"
    return to_svg(element("svg", parts, viewBox=box, font_family="sans-serif", font_size=11))


def _text(words: str, transform: str, anchor: str = "start") -> Element:
    return element("text", words, transform=transform, text_anchor=anchor)
