"""Charts as SVG, with axes and units. Colours are those of the page's style sheet: classes `a`, `b` and `rule`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import numpy as np

from scannet_prep.view.markup import Child, element

SERIES = ("a", "b")
_ROW, _NAME_WIDTH, _BAR_WIDTH = 15, 122, 190
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 340, 190, 46, 40, 8
_BINS = 24


@dataclass(frozen=True, slots=True)
class Scale:
    """From numbers to pixels.

    Attributes:
        start: The number at pixel 0.
        end: The number at the other end.
        pixels: How far that is; negative upwards.
        is_log: Whether equal factors, and not equal differences, are equally far.
    """

    start: float
    end: float
    pixels: float
    is_log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], pixels: float, *, is_log: bool = False) -> Scale:
        """A scale that holds all values (of a logarithmic one, positive), and begins and ends at round numbers."""
        low, high = (min(values), max(values)) if values else (1, 10)
        if is_log:
            return cls(10 ** math.floor(math.log10(low)), 10 ** (math.floor(math.log10(high)) + 1), pixels, is_log)
        step = _round_step(max(high - low, 1e-3))
        return cls(math.floor(low / step) * step, (math.floor(high / step) + 1) * step, pixels)

    def __call__(self, value: float) -> float:
        """Where a number is; the nearer end for what is outside."""
        low, high, at = (math.log10(max(item, 1e-9)) if self.is_log else item for item in (self.start, self.end, value))
        return round(self.pixels * min(1, max(0, (at - low) / (high - low))), 1)

    def ticks(self) -> list[float]:
        """Round numbers for an axis: powers of ten, or about five."""
        if self.is_log:
            return [10**power for power in range(round(math.log10(self.start)), round(math.log10(self.end)) + 1)]
        step = _round_step(self.end - self.start)
        return [round(index * step, 6) for index in range(math.ceil(self.start / step), int(self.end / step + 1e-6) + 1)]


def draw_bars(
    rows: Sequence[tuple[str, Sequence[int]]], series: Sequence[str], unit: str, largest: int, title: str
) -> Element:
    """Draw horizontal bars on a logarithmic axis: a row for each name, in it a bar for each series.

    Args:
        rows: Names, and a count for each series; 0 has no bar.
        series: What the counts are of; one or two.
        unit: What is counted.
        largest: The largest count on the axis, so that several charts can be compared.
        title: For screen readers.
    """
    scale, height = Scale.over([1, max(2, largest)], _BAR_WIDTH, is_log=True), len(rows) * _ROW
    parts = [
        element("g", element("line", y2=height, class_="rule"), _text(shorten(tick), 0, height + 13, "middle"), **_at(scale(tick), 0))
        for tick in scale.ticks()
    ]
    thickness = (_ROW - 3) / len(series)
    for row, (name, counts) in enumerate(rows):
        parts.append(_text(name if len(name) <= 20 else f"{name[:19]}…", -5, row * _ROW + 11, "end", title=name))
        for index, (count, label) in enumerate(zip(counts, series, strict=True)):
            words = f"{name}, {label}: {count:,} {unit}"
            y = row * _ROW + 1.5 + index * thickness
            parts.append(_bar(0, y, scale(count) if count else 0.0, thickness - 0.5, SERIES[index], words))
    parts.append(_text(unit, _BAR_WIDTH / 2, height + 28, "middle"))
    return _picture(_NAME_WIDTH + _BAR_WIDTH + 24, height + 34, (_NAME_WIDTH, 0), parts, title)


def draw_histogram(values: Sequence[float], axis: str, title: str, *, is_log: bool = False) -> Element:
    """Draw how many scenes have which value.

    Args:
        values: One for each scene; of a logarithmic axis, positive.
        axis: What is measured, and its unit.
        title: For screen readers.
        is_log: Whether the axis is logarithmic.
    """
    scale = Scale.over(values, _WIDTH - _LEFT - 14, is_log=is_log)
    edges = (np.geomspace if is_log else np.linspace)(scale.start, scale.end, _BINS + 1)
    counts = np.histogram(values, edges)[0].tolist()
    up = Scale.over([0, *counts], -(_HEIGHT - _BOTTOM - _TOP))
    bars = [
        _bar(scale(low) + 0.5, up(count), scale(high) - scale(low) - 1, -up(count), "a", f"{shorten(low)} to {shorten(high)}: scenes: {count:,}")
        for low, high, count in zip(edges, edges[1:], counts, strict=True)
        if count
    ]  # fmt: skip
    return _plot(scale, up, bars, axis, "scenes", title)


def draw_dots(dots: Sequence[tuple[str, float, float, bool]], axes: tuple[str, str], title: str) -> Element:
    """Draw a dot for each scene on two logarithmic axes.

    Args:
        dots: Name, both values (positive), and whether it stands out.
        axes: What is measured, and its unit.
        title: For screen readers.
    """
    across = Scale.over([dot[1] for dot in dots], _WIDTH - _LEFT - 14, is_log=True)
    up = Scale.over([dot[2] for dot in dots], -(_HEIGHT - _BOTTOM - _TOP), is_log=True)
    marks = [
        element("circle", element("title", f"{name}: {x:,g} / {y:,g}"), cx=across(x), cy=up(y), r=3 if is_odd else 2, class_=SERIES[is_odd])
        for name, x, y, is_odd in sorted(dots, key=lambda dot: dot[3])
    ]  # fmt: skip
    return _plot(across, up, marks, *axes, title)


def shorten(value: float) -> str:
    """A number for an axis: `1k`, `2.5M`, `0.05`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _plot(across: Scale, up: Scale, marks: Iterable[Element], x_axis: str, y_axis: str, title: str) -> Element:
    """Draw marks over a grid; the origin is the lower left corner."""
    parts = [element("line", x2=across.pixels, y1=up(tick), y2=up(tick), class_="rule") for tick in up.ticks()]
    parts += [_text(shorten(tick), -6, up(tick) + 4, "end") for tick in up.ticks()]
    parts += [element("line", x1=across(tick), x2=across(tick), y2=4, class_="rule") for tick in across.ticks()]
    parts += [_text(shorten(tick), across(tick), 16, "middle") for tick in across.ticks()]
    parts += [_text(x_axis, across.pixels / 2, 33, "middle")]
    parts += [element("g", _text(y_axis, 0, 0, "middle"), transform=f"translate(-34 {up.pixels / 2}) rotate(-90)")]
    return _picture(_WIDTH, _HEIGHT, (_LEFT, _HEIGHT - _BOTTOM), [*parts, *marks], title)


def _picture(width: float, height: float, origin: tuple[float, float], parts: Sequence[Element], title: str) -> Element:
    box = f"{-origin[0]} {-origin[1]} {width} {height}"
    return element("svg", element("title", title), parts, viewBox=box, width=width, height=height, role="img")


def _bar(x: float, y: float, width: float, height: float, series: str, words: str) -> Element:
    return element("rect", element("title", words), x=x, y=y, width=width, height=height, class_=series)


def _text(words: str, x: float, y: float, anchor: str, *, title: str = "") -> Element:
    more: Child = [element("title", title)] if title else ()
    return element("text", words, more, x=x, y=y, text_anchor=anchor)


def _at(x: float, y: float) -> dict[str, str]:
    return {"transform": f"translate({x} {y})"}


def _round_step(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, of which four to nine make the span."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(power * factor for factor in (5, 2, 1) if power * factor * 4 <= span * 1.0001)
