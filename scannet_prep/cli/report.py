"""Make a page of figures and pictures, or compare two places.

Tells how a processed folder, an archive or a raw tree looks as a whole, with -o on a page with charts and pictures:
classes, sizes, warnings, scenes that stand out, floors that are not horizontal, walls that are off the axes.

With --against it compares two places scene by scene: the exit status is 0 where both hold the same data, and 3 where
something differs. Either side may also be a manifest.json or a scannet.lock alone. Processed scenes are compared array
by array, raw ones file by file. The version of the program does not count.

examples:
  scannet-prep report data/processed -o report.html
  scannet-prep report data/ScanNet --against their-scannet.lock
  scannet-prep report data/processed --against their-manifest.json
  scannet-prep report https://host/scannet.tar.zst -o report.html
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_list, format_table

if TYPE_CHECKING:
    from scannet_prep.stages.finding import Finding
    from scannet_prep.stages.report.source import Table


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    default = Path("data/processed")
    what = f"processed folder, raw tree; or an archive, or all shards of one: paths or addresses (default: {default})"
    parser.add_argument(
        "places",
        type=shared.place_argument,
        nargs="*",
        default=[default],
        metavar="PLACE",
        help=what,
    )
    where = "write the page there (default: only a summary on standard output)"
    parser.add_argument(
        "-o", "--output", type=shared.file_argument(".html"), metavar="FILE.html", help=where
    )
    against = "compare with another place, a manifest.json or a scannet.lock"
    parser.add_argument(
        "--against", type=shared.place_argument, nargs="+", metavar="PLACE", help=against
    )
    shared.add_jobs_argument(parser)
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import report as stage

    certificates = certificates_from(arguments, console)
    reading = stage.Reading(certificates, shared.jobs_from(arguments), console)
    places, lines = arguments.places, list[str]()
    tables: list[Table] = []
    errors: list[Finding] = []
    heading = list[str]()
    comparison = found = None
    if arguments.against:
        comparison = stage.compare(places, arguments.against, reading)
        tables, lines, errors = [comparison.table], [comparison.summary], [*comparison.findings]
    if comparison is None or arguments.output is not None:
        found = stage.run(places, reading, arguments.output, comparison)
        tables, errors = [*found.tables(), *tables], [*errors, *found.errors]
        heading = [f"{found.place}: {found.contents}"]
    console.tell_errors(error for error in dict.fromkeys(errors) if console.is_quiet or error.trace)
    if arguments.output is not None:
        lines.append(f"{arguments.output}: written; open it in a browser")
    shown = [
        line for table in tables if table.rows for line in _show(table, has_all=console.is_verbose)
    ]
    value = {"report": found, "comparison": comparison, "output": arguments.output}
    is_same = comparison is None or comparison.is_same
    text = "\n".join([*heading, *shown, "", *lines]).strip()
    return console.result(text, value, 3 if errors or not is_same else 0)


def _show(table: Table, *, has_all: bool) -> Iterator[str]:
    if table.right:
        yield f"\n{table.title}:\n"
        yield format_table(table.header, table.rows, right=table.right)
    else:
        rows = [f"{row[0]}: {'; '.join(filter(None, row[1:]))}" for row in table.rows]
        yield from describe_list(table.title, rows, has_all=has_all)
