"""Charts as SVG, with axes and units. Colours are those of the page's style sheet: classes `a`, `b` and `rule`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.markup import element, to_svg

SERIES = ("a", "b")
_ROW, _NAME_WIDTH, _BAR_WIDTH = 14, 122, 196  # pixels
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 280, 142, 46, 40
_BINS = 24
_CELL, _MARGIN = 14, 190  # pixels, of a confusion matrix


@dataclass(frozen=True, slots=True)
class AxisScale:
    """From numbers to pixels, between two round numbers.

    Attributes:
        ticks: Round numbers for an axis, from one end to the other.
        pixels: The length of the axis; negative where it goes up.
        is_log: Whether equal factors, and not equal differences, are equally far.
    """

    ticks: Sequence[float]
    pixels: int
    is_log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], pixels: int, *, is_log: bool = False, least: float = 1e-6
    ) -> AxisScale:
        """A scale that holds all values; they are positive if it is logarithmic. No step is smaller than `least`."""
        low, high = min(values := [*values]), max(values)
        if is_log:
            powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
            return cls([10.0**power for power in powers], pixels, is_log)
        power = 10.0 ** math.floor(math.log10(max((high - low) / 4, least)))
        step = max(
            power * factor
            for factor in (1, 2, 5)
            if factor == 1 or power * factor * 4 <= high - low
        )
        return cls(
            [step * index for index in range(math.floor(low / step), math.floor(high / step) + 2)],
            pixels,
        )

    def __call__(self, value: float) -> float:
        """Where a number is; the nearer end for what is outside."""
        low, high = self.ticks[0], self.ticks[-1]
        share = (
            math.log(max(value, low) / low, high / low)
            if self.is_log
            else (value - low) / (high - low)
        )
        return round(self.pixels * min(1, max(0, share)), 1)


def draw_bars(
    rows: Sequence[tuple[str, Sequence[int]]], series: Sequence[str], unit: str, largest: int
) -> Element:
    """Draw horizontal bars on a logarithmic axis: a row for each name, in it a bar for each series.

    Args:
        rows: Names, and a count for each series; 0 has no bar.
        series: What the counts are of; one or two.
        unit: What is counted.
        largest: The largest count on the axis, so that several charts can be compared.
    """
    scale, height, thick = (
        AxisScale.over([1, largest], _BAR_WIDTH, is_log=True),
        len(rows) * _ROW,
        (_ROW - 3) / len(series),
    )
    parts = [_text(unit, _BAR_WIDTH / 2, height + 28)]
    for tick in scale.ticks:
        parts.append(element("line", x1=scale(tick), x2=scale(tick), y2=height, class_="rule"))
        parts.append(_text(shorten(tick), scale(tick), height + 13))
    for row, (name, counts) in enumerate(rows):
        parts.append(
            _text(name if len(name) <= 19 else f"{name[:18]}…", -5, row * _ROW + 11, "end", name)
        )
        for index, (count, label) in enumerate(zip(counts, series, strict=True)):
            words, width = f"{name}, {label}: {count:,} {unit}", scale(count) if count else 0.0
            parts.append(
                _bar(0, row * _ROW + 1.5 + index * thick, width, thick - 0.5, SERIES[index], words)
            )
    return _picture(
        f"{unit} of {len(rows):,} classes",
        -_NAME_WIDTH,
        0,
        _NAME_WIDTH + _BAR_WIDTH + 24,
        height + 34,
        parts,
    )


def draw_histogram(
    values: Sequence[float], axis: str, *, is_log: bool = False, shown: Sequence[float] = ()
) -> Element:
    """Draw how many scenes have which value.

    Args:
        values: One for each scene; of a logarithmic axis, positive.
        axis: What is measured, and its unit.
        is_log: Whether the axis is logarithmic.
        shown: Further values that the axis has to reach.
    """
    across = AxisScale.over([*values, *shown], _WIDTH, is_log=is_log)
    edges = (np.geomspace if is_log else np.linspace)(across.ticks[0], across.ticks[-1], _BINS + 1)
    counts = np.histogram(values, edges)[0].tolist()
    up = AxisScale.over([0, *counts], -_HEIGHT, least=1)
    parts = [
        _text(axis, _WIDTH / 2, 33),
        element("g", _text("scenes", 0, 0), transform=f"translate(-34 {-_HEIGHT / 2}) rotate(-90)"),
    ]
    for tick in up.ticks:
        parts.append(element("line", x2=_WIDTH, y1=up(tick), y2=up(tick), class_="rule"))
        parts.append(_text(shorten(tick), -6, up(tick) + 4, "end"))
    parts += [_text(shorten(tick), across(tick), 16) for tick in across.ticks]
    for (low, high), count in zip(pairwise(edges.tolist()), counts, strict=True):
        words = f"{shorten(low)} to {shorten(high)}: scenes: {count:,}"
        parts.append(
            _bar(
                across(low) + 0.5, up(count), across(high) - across(low) - 1, -up(count), "a", words
            )
        )
    return _picture(
        f"{axis}: {len(values):,} scenes",
        -_LEFT,
        -_HEIGHT - 8,
        _LEFT + _WIDTH + 16,
        _HEIGHT + _BOTTOM + 8,
        parts,
    )


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
        _turned_text("prediction", f"translate({width / 2} {_CELL - _MARGIN})", "middle"),
        _turned_text(
            "ground truth", f"translate({_CELL - _MARGIN} {height / 2}) rotate(-90)", "middle"
        ),
        *(
            _turned_text(name, f"translate(-6 {row * _CELL + 11})", "end")
            for row, name in enumerate(names)
        ),
        *(
            _turned_text(name, f"translate({column * _CELL + 11} -6) rotate(-90)")
            for column, name in enumerate(columns)
        ),
    ]
    for row, column in np.argwhere(confusion).tolist():
        count, total = confusion[row, column].item(), confusion[row].sum().item()
        words = f"{names[row]} as {columns[column]}: {count / total:.1%} ({count:,} vertices)"
        place = {"x": column * _CELL, "y": row * _CELL, "width": _CELL, "height": _CELL}
        parts.append(
            element(
                "rect",
                element("title", words),
                **place,
                fill="#08519c",
                fill_opacity=f"{count / total:.3f}",
            )
        )
    box = f"{-_MARGIN} {-_MARGIN} {width + _MARGIN + _CELL} {height + _MARGIN + _CELL}"
    return to_svg(element("svg", parts, viewBox=box, font_family="sans-serif", font_size=11))


def shorten(value: float) -> str:
    """A number for an axis: `1k`, `2.5M`, `0.05`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{round(value, 6):.3g}"


def _picture(
    label: str, x: float, y: float, width: float, height: float, parts: Sequence[Element]
) -> Element:
    box = f"{x} {y} {width} {height}"
    return element(
        "svg", parts, viewBox=box, width=width, height=height, role="img", aria_label=label
    )


def _bar(x: float, y: float, width: float, height: float, series: str, words: str) -> Element:
    return element(
        "rect", element("title", words), x=x, y=y, width=width, height=height, class_=series
    )


def _text(words: str, x: float, y: float, anchor: str = "middle", title: str = "") -> Element:
    return element(
        "text", words, [element("title", title)] if title else (), x=x, y=y, text_anchor=anchor
    )


def _turned_text(words: str, transform: str, anchor: str = "start") -> Element:
    return element("text", words, transform=transform, text_anchor=anchor)
