"""The page of a report: one file without a script, which loads no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any
from xml.etree.ElementTree import Element

from scannet_prep.base.counts import count_of
from scannet_prep.base.version import VERSION
from scannet_prep.release.files import TERMS_URL
from scannet_prep.report.comparison import Comparison
from scannet_prep.report.figures import MEASURES, Report
from scannet_prep.report.table import Table
from scannet_prep.view.addresses import scene_url
from scannet_prep.view.charts import (
    SERIES,
    AxisScale,
    draw_bar_axis,
    draw_bars,
    draw_histogram,
)
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
    report: Report,
    pictures: Mapping[str, bytes],
    comparison: Comparison | None = None,
    source: str = "",
) -> bytes:
    """Make the page.

    Args:
        report: The figures to show.
        pictures: The pictures of the gallery as PNG, by scene id.
        comparison: The comparison with another place; None for none.
        source: The place as `view --source` takes it; empty if `view` cannot show its scenes.
    """
    return make_page(
        f"{report.place} - scannet-prep report",
        element("main", _make_sections(report, pictures, comparison, source)),
        element("footer", _TERMS),
        style=read_asset("report.css"),
    )


def _make_sections(
    report: Report, pictures: Mapping[str, bytes], comparison: Comparison | None, source: str
) -> Iterator[Element]:
    """Make the header and the sections of the page, from top to bottom."""
    errors = f"errors: {len(report.errors):,}"
    odd = f"scenes that stand out: {len(report.odd):,}"
    summary = f"{report.contents}; {errors}; {odd}"
    yield element(
        "header", element("h1", report.place), element("p", summary), _explain_links(source)
    )

    if comparison is not None:
        yield _show_comparison(comparison, is_linked=bool(source))
    *tables, odd_table = report.tables()
    for table in tables:
        if table.rows:
            yield _section(table.title, "", _make_table(table))
    for name, rows in report.label_sets.items():
        yield _show_classes(name, rows)

    yield from _show_measures(report)
    yield from _show_gallery(report, pictures, is_linked=bool(source))
    if odd_table.rows:
        content = _make_table(odd_table, has_links=bool(source))
        yield _section(odd_table.title, "", _fold(count_of(len(odd_table.rows), "scene"), content))


def _explain_links(source: str) -> list[Element]:
    """Explain which command serves the scenes that the page links to."""
    if not source:
        return []
    command = "scannet-prep view --serve"
    if source != "data/processed":
        command += f" --source {quote(source)}"
    text = "Links open scenes in the browser while this command runs on the same machine: "
    return [element("p", text, element("code", command))]


def _show_comparison(comparison: Comparison, *, is_linked: bool) -> Element:
    """Show a comparison: the result, what differs and, folded, every fact."""
    lines = []
    for line in comparison.lines:
        # Many lines begin with a scene.
        first, separator, rest = line.partition(": ")
        if is_linked and first in comparison.differences:
            lines.append(element("li", _link(first), separator + rest))
        else:
            lines.append(element("li", line))
    parts = [element("ul", lines)] if lines else []
    if comparison.class_table.rows:
        parts.append(element("h3", comparison.class_table.title))
        parts.append(_make_table(comparison.class_table))
    facts = comparison.table
    if facts.rows:
        parts.append(_fold(f"{facts.title}: {len(facts.rows):,}", _make_table(facts)))
    title = f"Compared with {comparison.there}"
    return _section(title, comparison.summary, parts)


def _fold(words: str, content: Element) -> Element:
    """Hide content that may be long behind a few words; a click shows it."""
    return element("details", element("summary", words), content)


def _show_classes(name: str, rows: Sequence[Mapping[str, Any]]) -> Element:
    """Show the counts of a label set, with a table for each group of class frequency."""
    # The same axis for all groups.
    largest = max(row[split] for row in rows for split in _SPLITS)
    scale = AxisScale.over([1, max(1, largest)], pixels=100, is_log=True)
    tables = []
    for frequency in dict.fromkeys(row["frequency"] for row in rows):
        group = [row for row in rows if row["frequency"] == frequency]
        occurring = [row for row in group if row["scenes"]]
        # The most frequent class first.
        occurring.sort(key=lambda row: row["train"] + row["val"], reverse=True)
        if occurring:
            title = f"{frequency or 'classes'}: {len(occurring)} of {len(group)} occur"
            tables.append(_make_class_table(title, occurring, scale))

    share = sum(row["share"] for row in rows)
    note = (
        f"{share:.1%} of the vertices of train and val have one of its classes. "
        "The axis is logarithmic."
    )
    keys = []
    for split, series in zip(_SPLITS, SERIES, strict=True):
        keys.append(element("span", split, class_=f"key {series}"))
    return _section(name, note, element("p", keys), tables)


def _make_class_table(title: str, rows: Sequence[Mapping[str, Any]], scale: AxisScale) -> Element:
    """Make the table of a group of classes: bars, and the counts of vertices, scenes, instances."""
    columns = [f"vertices, {split}" for split in _SPLITS]
    columns += ["scenes", "instances"]
    header = element("tr", element("th", "class"), element("th", draw_bar_axis(scale)))
    header.extend(element("th", column, class_="number") for column in columns)
    lines = [header]
    for row in rows:
        counts = [row[split] for split in _SPLITS]
        titles = []
        for split, count in zip(_SPLITS, counts, strict=True):
            vertices = count_of(count, "vertex", "vertices")
            titles.append(f"{row['name']}, {split}: {vertices}")
        line = element("tr", element("th", row["name"], scope="row"))
        line.append(element("td", draw_bars(counts, titles, scale)))
        for count in (*counts, row["scenes"], row["instances"]):
            line.append(element("td", f"{count:,}", class_="number"))
        lines.append(line)
    table = element("table", element("caption", title), lines, class_="classes")
    return element("div", table, class_="table")


def _show_measures(report: Report) -> Iterator[Element]:
    """Show the histograms of the measures, with a section for each group of them."""
    for title in dict.fromkeys(measure.section for measure in MEASURES.values()):
        names = [name for name in report.measures if MEASURES[name].section == title]
        if names:
            charts = [_draw_measure(report, name) for name in names]
            yield _section(title, _NOTES[title], element("div", charts, class_="charts"))


def _draw_measure(report: Report, name: str) -> Element:
    """Draw a histogram of a measure over all scenes."""
    measure = MEASURES[name]
    values = [row[name] for row in report.table if row[name] is not None]
    if measure.is_log:
        values = [value for value in values if value > 0]
    chart = draw_histogram(values, measure.title, is_log=measure.is_log, shown=measure.shown)
    return element("figure", chart)


def _show_gallery(
    report: Report, pictures: Mapping[str, bytes], *, is_linked: bool
) -> Iterator[Element]:
    """Show the pictures of a few scenes, if there are any."""
    figures = []
    for scene_id, reason in report.gallery.items():
        if scene_id in pictures:
            figure = _show_picture(scene_id, reason, pictures[scene_id], is_linked=is_linked)
            figures.append(figure)
    if figures:
        yield _section("Gallery", _NOTES["Gallery"], element("div", figures, class_="gallery"))


def _show_picture(scene_id: str, reason: str, data: bytes, *, is_linked: bool) -> Element:
    """Make the figure of a scene in the gallery."""
    image = element("img", src=embed_png(data), alt=f"{scene_id}, {reason}")
    name = element("b", _link(scene_id) if is_linked else scene_id)
    caption = element("figcaption", name, element("br"), reason)
    return element("figure", image, caption)


def _link(scene_id: str) -> Element:
    """Make a link to a scene on the server that `_explain_links` names."""
    return element("a", scene_id, href=scene_url(scene_id))


def _make_table(table: Table, *, has_links: bool = False) -> Element:
    """Make the element of a table; the first column may link to scenes."""
    lines = [_make_row("th", table.header, table.number_columns)]
    for cells in table.rows:
        first: Child = _link(cells[0]) if has_links else cells[0]
        lines.append(_make_row("td", [first, *cells[1:]], table.number_columns))
    return element("div", element("table", lines), class_="table")


def _make_row(tag: str, cells: Sequence[Child], number_columns: frozenset[int]) -> Element:
    """Make the element of a row."""
    row = element("tr")
    for column, cell in enumerate(cells):
        row.append(element(tag, cell, class_="number" if column in number_columns else None))
    return row


def _section(title: str, note: str, *content: Child) -> Element:
    """Make a section with a heading and a note."""
    return element("section", element("h2", title), element("p", note, class_="note"), *content)
