"""The page of a report: one file without a script, which loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any
from xml.etree.ElementTree import Element

from scannet_prep.base.version import VERSION
from scannet_prep.release.files import TERMS_URL
from scannet_prep.stages.report.comparison import Comparison
from scannet_prep.stages.report.figures import MEASURES, Report
from scannet_prep.stages.report.source import Table
from scannet_prep.view.charts import SERIES, draw_bars, draw_histogram
from scannet_prep.view.markup import Child, element, to_html
from scannet_prep.view.page import hash_source

_SPLITS = ("train", "val")
_NOTES = {
    "Sizes": "The area is that of all squares of 10 cm, seen from above, that hold a vertex.",
    "Label coverage": "The share of the vertices of a train or val scene that belong to an annotated group.",
    "Floor and walls": "In the axis-aligned frame, by the vertices labeled floor and wall, where there are enough.",
    "Gallery": "The largest, the smallest and the oddest scenes, in colours of ScanNet20; test scenes in their own.",
}


def make_page(
    report: Report, pictures: Mapping[str, bytes], comparison: Comparison | None = None
) -> str:
    """Make the page.

    Args:
        report: What it shows.
        pictures: Of the scenes of the gallery, by id, as PNG.
        comparison: With another place; None for none.
    """
    style = (
        resources.files("scannet_prep").joinpath("assets/report.css").read_text(encoding="utf-8")
    )
    policy = f"default-src 'none'; img-src data:; style-src {hash_source(style)}; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{report.place} - scannet-prep report"),
        element("style", style),
    )
    terms = f"""\
Pictures and figures derive from ScanNet and are under its terms of use: give them only to people who have accepted
them ({TERMS_URL}). Made by scannet-prep {VERSION} report."""
    main = element("main", _make_sections(report, pictures, comparison))
    return to_html(
        element("html", head, element("body", main, element("footer", terms)), lang="en")
    )


def _make_sections(
    report: Report, pictures: Mapping[str, bytes], comparison: Comparison | None
) -> Iterator[Element]:
    what = f"{report.contents}; errors: {len(report.errors):,}; scenes that stand out: {len(report.odd):,}"
    yield element("header", element("h1", report.place), element("p", what))
    if comparison is not None:
        yield _section(
            f"Compared with {comparison.there}", comparison.summary, _lay_out(comparison.table)
        )
    for table in report.tables():
        yield from [_section(table.title, "", _lay_out(table))] if table.rows else []
    yield from (_show_classes(name, rows) for name, rows in report.label_sets.items())
    for title in dict.fromkeys(measure.section for measure in MEASURES.values()):
        if charts := [
            _draw_measure(report, name)
            for name in report.measures
            if MEASURES[name].section == title
        ]:
            yield _section(title, _NOTES[title], element("div", charts, class_="charts"))
    figures = [
        _show_picture(name, why, data)
        for name, why in report.gallery.items()
        if (data := pictures.get(name))
    ]
    if figures:
        yield _section("Gallery", _NOTES["Gallery"], element("div", figures, class_="gallery"))


def _show_classes(name: str, rows: Sequence[Mapping[str, Any]]) -> Element:
    charts = []
    largest = max(row[split] for row in rows for split in _SPLITS)
    for frequency in dict.fromkeys(row["frequency"] for row in rows):
        group = [row for row in rows if row["frequency"] == frequency]
        occurring = sorted(
            (row for row in group if row["scenes"]), key=lambda row: -row["train"] - row["val"]
        )
        bars = [(row["name"], [row[split] for split in _SPLITS]) for row in occurring]
        caption = element(
            "figcaption", f"{frequency or 'classes'}: {len(bars)} of {len(group)} occur"
        )
        if bars:
            charts.append(
                element("figure", caption, draw_bars(bars, _SPLITS, "vertices", max(2, largest)))
            )
    share = sum(row["share"] for row in rows)
    note = f"{share:.1%} of the vertices of train and val have one of its classes. The axis is logarithmic."
    key = element(
        "p",
        [
            element("span", split, class_=f"key {at}")
            for split, at in zip(_SPLITS, SERIES, strict=True)
        ],
    )
    return _section(name, note, key, element("div", charts, class_="charts"))


def _draw_measure(report: Report, name: str) -> Element:
    title, _, is_log, shown, _ = MEASURES[name]
    values = [
        row[name] for row in report.table if row[name] is not None and (row[name] > 0 or not is_log)
    ]
    return element("figure", draw_histogram(values, title, is_log=is_log, shown=shown))


def _show_picture(name: str, why: str, data: bytes) -> Element:
    image = element(
        "img", src=f"data:image/png;base64,{base64.b64encode(data).decode()}", alt=f"{name}, {why}"
    )
    return element("figure", image, element("figcaption", element("b", name), element("br"), why))


def _lay_out(table: Table) -> Element:
    classes = dict.fromkeys(table.right, "number")
    rows = [("th", table.header), *(("td", row) for row in table.rows)]
    lines = (
        element("tr", (element(tag, it, class_=classes.get(at)) for at, it in enumerate(row)))
        for tag, row in rows
    )
    return element("div", element("table", lines), class_="table")


def _section(title: str, note: str, *content: Child) -> Element:
    return element("section", element("h2", title), element("p", note, class_="note"), *content)
