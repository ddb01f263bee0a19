"""Make a page of figures and pictures, or compare two places.

Describes a processed folder, an archive or a raw tree as a whole: classes, sizes, warnings, scenes
that stand out, floors that are not horizontal, walls that are off the axes. With -o, it also writes
a page with charts and pictures, whose scenes link to a running scannet-prep view --serve.

--against compares two places scene by scene. The result comes first, then the differences in
groups, labels, points and files. Of an array, the first vertex that differs is shown. The exit
status is 0 if both hold the same data, and 3 if something differs. Either side may also be only a
manifest.json or a scannet.lock. Processed scenes are compared array by array, raw scenes file by
file. The version of the program is ignored.

examples:
  scannet-prep report data/processed -o report.html
  scannet-prep report data/ScanNet --against their-scannet.lock
  scannet-prep report data/processed --against their-manifest.json
  scannet-prep report https://host/scannet.tar.zst -o report.html
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_list, format_table

if TYPE_CHECKING:
    from scannet_prep.base.findings import Finding
    from scannet_prep.report.comparison import Comparison
    from scannet_prep.report.table import Table

_DEFAULT_PLACE = Path("data/processed")


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "places",
        type=shared.place_argument,
        nargs="*",
        default=[_DEFAULT_PLACE],
        metavar="PLACE",
        help="processed folder or raw tree; or an archive, or all shards of one: "
        f"paths or addresses (default: {_DEFAULT_PLACE})",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=shared.file_argument(".html"),
        metavar="FILE.html",
        help="file for the page (default: only a summary on standard output)",
    )
    parser.add_argument(
        "--against",
        type=shared.place_argument,
        nargs="+",
        metavar="PLACE",
        help="compare with this place, manifest.json or scannet.lock",
    )
    shared.add_jobs_argument(parser)
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import report as stage

    certificates = certificates_from(arguments, console)
    reading = stage.Reading(certificates, shared.jobs_from(arguments), console)
    output = arguments.output
    comparison = None
    if arguments.against:
        comparison = stage.compare(arguments.places, arguments.against, reading)
    # A comparison for standard output needs no report; the page shows both.
    report = None
    if comparison is None or output is not None:
        report = stage.run(arguments.places, reading, output, comparison)

    lines: list[str] = []
    errors: list[Finding] = []
    if comparison is not None:
        lines += _show_comparison(comparison, has_all=console.is_verbose)
        errors += comparison.findings
    if report is not None:
        lines += ["", f"{report.place}: {report.contents}"]
        lines += _show_tables(report.tables(), has_all=console.is_verbose)
        errors += report.errors
    if output is not None:
        lines += ["", f"{output}: written; open it in a browser"]

    _warn(errors, console)
    value = {"report": report, "comparison": comparison, "output": output}
    is_same = comparison is None or comparison.is_same
    status = 0 if is_same and not errors else 3
    return console.result("\n".join(lines).strip(), value, status)


def _warn(errors: Sequence[Finding], console: Console) -> None:
    """Print errors on standard error, unless standard output shows them completely.

    With `-q`, standard output lists no errors, so all are printed. Otherwise it lists them without
    their tracebacks, so only errors with a traceback are printed.
    """
    unique = list(dict.fromkeys(errors))
    if not console.is_quiet:
        unique = [error for error in unique if error.trace]
    console.tell_errors(unique)


def _show_comparison(comparison: Comparison, *, has_all: bool) -> Iterator[str]:
    """Format a comparison: first the result, then the differences."""
    yield comparison.summary
    yield from describe_list("Differences", comparison.lines, has_all=has_all)
    yield from _show_tables([comparison.class_table], has_all=has_all)
    if has_all:
        yield from _show_tables([comparison.table], has_all=True)


def _show_tables(tables: Sequence[Table], *, has_all: bool) -> Iterator[str]:
    """Format the tables that have rows.

    A table with columns of numbers is formatted in columns, any other table as a list.
    """
    for table in tables:
        if not table.rows:
            continue
        if table.number_columns:
            yield f"\n{table.title}:\n"
            yield format_table(table.header, table.rows, right=table.number_columns)
        else:
            rows = []
            for name, *cells in table.rows:
                details = "; ".join(cell for cell in cells if cell)
                rows.append(f"{name}: {details}")
            yield from describe_list(table.title, rows, has_all=has_all)
