"""The page of a report: one file without a script, which loads no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from scannet_prep.base.version import VERSION
from scannet_prep.release.files import TERMS_URL
from scannet_prep.report.comparison import Comparison
from scannet_prep.report.figures import MEASURES, Report
from scannet_prep.report.table import Table
from scannet_prep.view.charts import SERIES, draw_bars, draw_histogram
from scannet_prep.view.markup import Child, element, embed_png, make_page, read_asset

_SPLITS = ("train", "val")
# The notes under the headings of sections.
_NOTES = {
    "Sizes": "The area is that of all squares of 10 cm, seen from above, that contain a vertex.",
    "Label coverage": "The share of the vertices of a train or val scene that have a nyu40 id.",
    "Floor and walls": (
        "In the axis-aligned frame, from the vertices labeled floor and wall, "
        "for scenes with enough of these."
    ),
    "Gallery": (
        "The largest, the smallest and the oddest scenes, in the colours of ScanNet20; "
        "test scenes in the colours of the scan."
    ),
}
_TERMS = (
    "Pictures and figures derive from ScanNet and are under its terms of use: "
    f"give them only to people who have accepted the terms ({TERMS_URL}). "
    f"Made by scannet-prep {VERSION} report."
)


def make_report_page(
    report: Report, pictures: Mapping[str, bytes], comparison: Comparison | None = None
) -> bytes:
    """Make the page.

    Args:
        report: The figures to show.
        pictures: The pictures of the gallery as PNG, by scene id.
        comparison: The comparison with another place; None for none.
    """
    return make_page(
        f"{report.place} - scannet-prep report",
        element("main", _make_sections(report, pictures, comparison)),
        element("footer", _TERMS),
        style=read_asset("report.css"),
    )


def _make_sections(
    report: Report, pictures: Mapping[str, bytes], comparison: Comparison | None
) -> Iterator[Element]:
    """Make the header and the sections of the page, from top to bottom."""
    errors = f"errors: {len(report.errors):,}"
    odd = f"scenes that stand out: {len(report.odd):,}"
    summary = f"{report.contents}; {errors}; {odd}"
    yield element("header", element("h1", report.place), element("p", summary))

    if comparison is not None:
        title = f"Compared with {comparison.there}"
        yield _section(title, comparison.summary, _make_table(comparison.table))
    for table in report.tables():
        if table.rows:
            yield _section(table.title, "", _make_table(table))
    for name, rows in report.label_sets.items():
        yield _show_classes(name, rows)

    for title in dict.fromkeys(measure.section for measure in MEASURES.values()):
        names = [name for name in report.measures if MEASURES[name].section == title]
        if names:
            charts = [_draw_measure(report, name) for name in names]
            yield _section(title, _NOTES[title], element("div", charts, class_="charts"))

    figures = []
    for scene_id, reason in report.gallery.items():
        if scene_id in pictures:
            figures.append(_show_picture(scene_id, reason, pictures[scene_id]))
    if figures:
        gallery = element("div", figures, class_="gallery")
        yield _section("Gallery", _NOTES["Gallery"], gallery)


def _show_classes(name: str, rows: Sequence[Mapping[str, Any]]) -> Element:
    """Draw the vertex counts of a label set, with a chart for each group of class frequency."""
    # The same axis for all groups.
    largest = max(row[split] for row in rows for split in _SPLITS)
    charts = []
    for frequency in dict.fromkeys(row["frequency"] for row in rows):
        group = [row for row in rows if row["frequency"] == frequency]
        occurring = [row for row in group if row["scenes"]]
        # The most frequent class first.
        occurring.sort(key=lambda row: row["train"] + row["val"], reverse=True)
        if not occurring:
            continue
        title = f"{frequency or 'classes'}: {len(occurring)} of {len(group)} occur"
        bars = [(row["name"], [row[split] for split in _SPLITS]) for row in occurring]
        chart = draw_bars(bars, _SPLITS, "vertices", largest)
        charts.append(element("figure", element("figcaption", title), chart))

    share = sum(row["share"] for row in rows)
    note = (
        f"{share:.1%} of the vertices of train and val have one of its classes. "
        "The axis is logarithmic."
    )
    keys = []
    for split, series in zip(_SPLITS, SERIES, strict=True):
        keys.append(element("span", split, class_=f"key {series}"))
    return _section(name, note, element("p", keys), element("div", charts, class_="charts"))


def _draw_measure(report: Report, name: str) -> Element:
    """Draw a histogram of a measure over all scenes."""
    measure = MEASURES[name]
    values = [row[name] for row in report.table if row[name] is not None]
    if measure.is_log:
        values = [value for value in values if value > 0]
    chart = draw_histogram(values, measure.title, is_log=measure.is_log, shown=measure.shown)
    return element("figure", chart)


def _show_picture(scene_id: str, reason: str, data: bytes) -> Element:
    """Make the figure of a scene in the gallery."""
    image = element("img", src=embed_png(data), alt=f"{scene_id}, {reason}")
    caption = element("figcaption", element("b", scene_id), element("br"), reason)
    return element("figure", image, caption)


def _make_table(table: Table) -> Element:
    """Make the element of a table."""
    lines = [_make_row("th", table.header, table.number_columns)]
    lines += [_make_row("td", row, table.number_columns) for row in table.rows]
    return element("div", element("table", lines), class_="table")


def _make_row(tag: str, cells: Sequence[str], number_columns: frozenset[int]) -> Element:
    """Make the element of a row."""
    row = element("tr")
    for column, cell in enumerate(cells):
        row.append(element(tag, cell, class_="number" if column in number_columns else None))
    return row


def _section(title: str, note: str, *content: Child) -> Element:
    """Make a section with a heading and a note."""
    return element("section", element("h2", title), element("p", note, class_="note"), *content)
