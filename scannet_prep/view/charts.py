"""Charts as SVG, with axes and units.

Colours are those of the style sheet of the page: classes `a`, `b` and `rule`. Texts are placed by
their baseline. y points down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.counts import count_of
from scannet_prep.view.markup import element, to_svg

SERIES = ("a", "b")
"""Classes of the series of a chart."""

# In pixels. So are the small numbers in the functions below, which centre texts on rows and ticks
# and leave gaps between bars.
_ROW_HEIGHT = 14
_HISTOGRAM_WIDTH = 280
_HISTOGRAM_HEIGHT = 142
_HISTOGRAM_LEFT = 46
_HISTOGRAM_BOTTOM = 40
_CELL = 14
_CONFUSION_MARGIN = 190

_BINS = 24
_CELL_COLOR = "#08519c"


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps numbers to pixels, between two round numbers.

    Attributes:
        ticks: Round numbers for an axis, from one end to the other.
        pixels: Length of the axis; negative if it points up.
        is_log: Whether equal factors, rather than equal differences, have equal lengths.
    """

    ticks: Sequence[float]
    pixels: int
    is_log: bool = False

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        pixels: int,
        *,
        is_log: bool = False,
        min_step: float = 1e-6,
    ) -> AxisScale:
        """Make a scale that includes all values.

        Args:
            values: At least one; positive if the scale is logarithmic.
            pixels: Length of the axis.
            is_log: Whether the scale is logarithmic.
            min_step: The smallest step between ticks.
        """
        values = list(values)
        low = min(values)
        high = max(values)
        # The last tick is always above the largest value, even if that value is itself round.
        if is_log:
            first_power = math.floor(math.log10(low))
            last_power = math.floor(math.log10(high)) + 1
            ticks = [10.0**power for power in range(first_power, last_power + 1)]
            return cls(ticks, pixels, is_log=True)

        # The largest of 1, 2 and 5 times a power of ten that gives at least four steps.
        power = 10.0 ** math.floor(math.log10(max((high - low) / 4, min_step)))
        step = power
        for factor in (2, 5):
            if power * factor * 4 <= high - low:
                step = power * factor
        first = math.floor(low / step)
        last = math.floor(high / step) + 1
        return cls([step * index for index in range(first, last + 1)], pixels)

    def __call__(self, value: float) -> float:
        """Return the position of a number in pixels; outside the axis, that of the nearer end."""
        low = self.ticks[0]
        high = self.ticks[-1]
        if self.is_log:
            # A number below the axis may have no logarithm, and is placed at its lower end anyway.
            share = math.log(max(value, low) / low, high / low)
        else:
            share = (value - low) / (high - low)
        return round(self.pixels * min(1, max(0, share)), 1)


def draw_bar_axis(scale: AxisScale) -> Element:
    """Draw the axis above bars as wide as its column: the numbers of the ticks.

    Args:
        scale: A scale of 100 pixels, which are percents of the width.
    """
    # The first and the last number end at the edges, the others are in the middle of their tick.
    anchors = ["start", *["middle"] * (len(scale.ticks) - 2), "end"]
    parts = []
    for tick, anchor in zip(scale.ticks, anchors, strict=True):
        parts.append(element("text", shorten(tick), x=f"{scale(tick)}%", y=11, text_anchor=anchor))
    return element("svg", parts, class_="bars", height=_ROW_HEIGHT, aria_hidden="true")


def draw_bars(counts: Sequence[int], titles: Sequence[str], scale: AxisScale) -> Element:
    """Draw horizontal bars below each other, for a row of a table that also contains the counts.

    Args:
        counts: The count of each series, one or two; 0 has no bar.
        titles: The text of each bar, which is shown when the mouse is over it.
        scale: A scale of 100 pixels, which are percents of the width of the column.
    """
    thickness = (_ROW_HEIGHT - 3) / len(counts)
    parts = []
    for tick in scale.ticks:
        x = f"{scale(tick)}%"
        parts.append(element("line", x1=x, x2=x, y2="100%", class_="rule"))
    for index, (count, title) in enumerate(zip(counts, titles, strict=True)):
        if count:
            bar = element(
                "rect",
                element("title", title),
                y=1.5 + index * thickness,
                # A single vertex, too, has a visible bar.
                width=f"{max(scale(count), 0.3)}%",
                height=thickness - 0.5,
                class_=SERIES[index],
            )
            parts.append(bar)
    return element("svg", parts, class_="bars", height=_ROW_HEIGHT, aria_hidden="true")


def draw_histogram(
    values: Sequence[float], axis: str, *, is_log: bool = False, shown: Sequence[float] = ()
) -> Element:
    """Draw a histogram of a value over all scenes.

    Args:
        values: One for each scene; positive if the axis is logarithmic.
        axis: Title of the axis, with its unit.
        is_log: Whether the axis is logarithmic.
        shown: Values that the axis has to include besides those of the scenes.
    """
    across = AxisScale.over([*values, *shown], _HISTOGRAM_WIDTH, is_log=is_log)
    space = np.geomspace if is_log else np.linspace
    edges = space(across.ticks[0], across.ticks[-1], _BINS + 1)
    counts = np.histogram(values, edges)[0].tolist()
    # The origin is the lower left corner of the axes, so the vertical axis has negative positions.
    up = AxisScale.over([0, *counts], -_HISTOGRAM_HEIGHT, min_step=1)

    rotated = f"translate(-34 {-_HISTOGRAM_HEIGHT / 2}) rotate(-90)"
    parts = [
        _text(axis, _HISTOGRAM_WIDTH / 2, 33),
        element("g", _text("scenes", 0, 0), transform=rotated),
    ]
    for tick in up.ticks:
        y = up(tick)
        parts.append(element("line", x2=_HISTOGRAM_WIDTH, y1=y, y2=y, class_="rule"))
        parts.append(_text(shorten(tick), -6, y + 4, anchor="end"))
    parts += [_text(shorten(tick), across(tick), 16) for tick in across.ticks]

    for (low, high), count in zip(pairwise(edges.tolist()), counts, strict=True):
        left = across(low)
        width = across(high) - left
        title = f"{shorten(low)} to {shorten(high)}: {count_of(count, 'scene')}"
        parts.append(
            element(
                "g",
                element("title", title),
                # The whole column shows the title, because low bars are hard to point at.
                element(
                    "rect",
                    x=left,
                    y=-_HISTOGRAM_HEIGHT,
                    width=width,
                    height=_HISTOGRAM_HEIGHT,
                    class_="column",
                ),
                element(
                    "rect",
                    x=left + 0.5,
                    y=up(count),
                    width=width - 1,
                    height=-up(count),
                    class_="a",
                ),
            )
        )
    return _picture(
        f"{axis}: {count_of(len(values), 'scene')}",
        parts,
        x=-_HISTOGRAM_LEFT,
        y=-_HISTOGRAM_HEIGHT - 8,
        width=_HISTOGRAM_LEFT + _HISTOGRAM_WIDTH + 16,
        height=_HISTOGRAM_HEIGHT + _HISTOGRAM_BOTTOM + 8,
    )


def draw_confusion(confusion: NDArray[np.int64], names: Sequence[str]) -> str:
    """Draw the confusion matrix as SVG.

    The matrix has a row for each class of the ground truth and a column for each predicted class.
    The larger its share of the row, the darker a cell. Pointing at a cell shows its numbers.

    Args:
        confusion: int64 (K, K + 1), as in `SemanticScores`. The last column counts the vertices
            that were predicted as none of the classes.
        names: The classes, K.
    """
    margin = _CONFUSION_MARGIN
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


def shorten(value: float) -> str:
    """Format a number for an axis: `1k`, `2.5M`, `0.05`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{round(value, 6):.3g}"


def _picture(
    label: str, parts: Sequence[Element], *, x: float, y: float, width: float, height: float
) -> Element:
    return element(
        "svg",
        parts,
        viewBox=f"{x} {y} {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def _text(words: str, x: float, y: float, *, anchor: str = "middle") -> Element:
    return element("text", words, x=x, y=y, text_anchor=anchor)


def _rotated_text(words: str, transform: str, anchor: str = "start") -> Element:
    return element("text", words, transform=transform, text_anchor=anchor)
