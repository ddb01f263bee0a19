"""The confusion matrix as SVG. Texts are placed by their baseline. y points down."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

# In pixels. So are the small numbers below, which centre texts on rows and leave gaps.
_CELL = 14
_MARGIN = 190

_PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="-{margin} -{margin} {full_width} {full_height}"
 font-family="sans-serif" font-size="11">
<rect x="-{margin}" y="-{margin}" width="100%" height="100%" fill="white"/>
<rect width="{width}" height="{height}" fill="none" stroke="gray"/>
<g fill="#08519c">
{cells}
</g>
{texts}
</svg>
"""


def draw_confusion(confusion: NDArray[np.int64], names: Sequence[str]) -> str:
    """Draw the confusion matrix as SVG.

    The matrix has a row for each class of the ground truth and a column for each predicted class.
    The larger its share of the row, the darker a cell. Pointing at a cell shows its numbers.

    Args:
        confusion: int64 (K, K + 1), as in `SemanticScores`. The last column counts the vertices
            that were predicted as none of the classes.
        names: The classes, K.
    """
    height = confusion.shape[0] * _CELL
    width = confusion.shape[1] * _CELL
    columns = [*names, "(none)"]
    edge = _CELL - _MARGIN
    texts = [
        _text("prediction", f"translate({width / 2} {edge})", "middle"),
        _text("ground truth", f"translate({edge} {height / 2}) rotate(-90)", "middle"),
    ]
    for row, name in enumerate(names):
        texts.append(_text(name, f"translate(-6 {row * _CELL + 11})", "end"))
    for column, name in enumerate(columns):
        texts.append(_text(name, f"translate({column * _CELL + 11} -6) rotate(-90)", "start"))

    row_sums = confusion.sum(axis=1).tolist()
    cells = []
    for row, column in np.argwhere(confusion).tolist():
        count = confusion[row, column].item()
        share = count / row_sums[row]
        title = f"{names[row]} as {columns[column]}: {100 * share:.1f} % ({count:,} vertices)"
        place = f'x="{column * _CELL}" y="{row * _CELL}" width="{_CELL}" height="{_CELL}"'
        cells.append(
            f'<rect {place} fill-opacity="{share:.3f}"><title>{escape(title)}</title></rect>'
        )
    return _PICTURE.format(
        margin=_MARGIN,
        width=width,
        height=height,
        full_width=width + _MARGIN + _CELL,
        full_height=height + _MARGIN + _CELL,
        cells="\n".join(cells),
        texts="\n".join(texts),
    )


def _text(words: str, transform: str, anchor: str) -> str:
    """Return a text as SVG."""
    return f'<text transform="{transform}" text-anchor="{anchor}">{escape(words)}</text>'
