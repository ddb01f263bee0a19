"""The confusion matrix as SVG. Texts are placed by their baseline. y points down."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.markup import element, to_svg

# In pixels. So are the small numbers below, which centre texts on rows and leave gaps.
_CELL = 14
_MARGIN = 190

_CELL_COLOR = "#08519c"


def draw_confusion(confusion: NDArray[np.int64], names: Sequence[str]) -> str:
    """Draw the confusion matrix as SVG.

    The matrix has a row for each class of the ground truth and a column for each predicted class.
    The larger its share of the row, the darker a cell. Pointing at a cell shows its numbers.

    Args:
        confusion: int64 (K, K + 1), as in `SemanticScores`. The last column counts the vertices
            that were predicted as none of the classes.
        names: The classes, K.
    """
    margin = _MARGIN
    height = confusion.shape[0] * _CELL
    width = confusion.shape[1] * _CELL
    columns = [*names, "(none)"]
    parts = [
        element("rect", x=-margin, y=-margin, width="100%", height="100%", fill="white"),
        element("rect", width=width, height=height, fill="none", stroke="gray"),
        _rotated_text("prediction", f"translate({width / 2} {_CELL - margin})", "middle"),
        _rotated_text(
            "ground truth", f"translate({_CELL - margin} {height / 2}) rotate(-90)", "middle"
        ),
    ]
    for row, name in enumerate(names):
        parts.append(_rotated_text(name, f"translate(-6 {row * _CELL + 11})", "end"))
    for column, name in enumerate(columns):
        parts.append(_rotated_text(name, f"translate({column * _CELL + 11} -6) rotate(-90)"))

    row_sums = confusion.sum(axis=1).tolist()
    for row, column in np.argwhere(confusion).tolist():
        count = confusion[row, column].item()
        share = count / row_sums[row]
        title = f"{names[row]} as {columns[column]}: {share:.1%} ({count:,} vertices)"
        cell = element(
            "rect",
            element("title", title),
            x=column * _CELL,
            y=row * _CELL,
            width=_CELL,
            height=_CELL,
            fill=_CELL_COLOR,
            fill_opacity=f"{share:.3f}",
        )
        parts.append(cell)
    box = f"{-margin} {-margin} {width + margin + _CELL} {height + margin + _CELL}"
    return to_svg(element("svg", parts, viewBox=box, font_family="sans-serif", font_size=11))


def _rotated_text(words: str, transform: str, anchor: str = "start") -> Element:
    return element("text", words, transform=transform, text_anchor=anchor)
