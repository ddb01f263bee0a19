"""Show what is in a raw tree, a processed folder, extracted frames or an archive.

Prints the numbers of scenes and vertices, sizes, options, warnings and
failures. No scene is read, except for --table: it prints a row per scene (with
extents, area and labeled share), class or instance.

examples:
  scannet-prep info data/processed
  scannet-prep info data/ScanNet -v
  scannet-prep info data/processed --table instances -o instances.csv
  scannet-prep info https://host/scannet.tar.zst
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome, format_table
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.stages.info import Info

# Number of entries of a list that are shown without -v.
_MAX_LISTED = 10


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_place_argument(parser)
    table = parser.add_argument_group("instead of the overview, a table of processed scenes")
    table.add_argument(
        "--table",
        choices=("scenes", "classes", "instances"),
        help="one row per scene, class or instance",
    )
    shared.add_output_path(
        table, "FILE", "file to write: .csv, .json or .parquet (default: CSV on standard output)"
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import info

    if arguments.table:
        return _write_table(arguments)
    if arguments.output:
        raise UsageError("-o is for tables", "add --table scenes, classes or instances")
    report = info.run(arguments.place)
    return Outcome(report, _describe(report, has_all=console.is_verbose))


def _write_table(arguments: argparse.Namespace) -> Outcome:
    """Print a table, or write it to a file."""
    from scannet_prep.tables import write_table

    row_count, csv_text = write_table(arguments.table, arguments.place, arguments.output)
    value = {
        "table": arguments.table,
        "rows": row_count,
        "output": arguments.output,
        # The text is empty if the table was written to a file.
        "csv": csv_text or None,
    }
    lines = [csv_text.rstrip("\n")]
    if arguments.output:
        lines = [f"{arguments.output}: {count_of(row_count, 'row')}"]
    return Outcome(value, lines)


def _describe(report: Info, *, has_all: bool) -> Iterator[str]:
    """Yield the lines of the overview.

    Args:
        report: The summary to describe.
        has_all: Whether to list all entries of long lists.
    """
    yield f"{report.path}: {report.kind}"
    lists = {}
    for name, value in report.facts.items():
        title = name.replace("_", " ")
        if value and isinstance(value, list):
            lists[title] = value
        elif value:
            yield f"{title}: {value}"
    header = ["split"]
    rows = []
    for split, numbers in report.splits.items():
        *counts, size_bytes = numbers.values()
        rows.append([split, *map("{:,}".format, counts), format_bytes(size_bytes)])
        header[1:] = [name.removesuffix("_bytes") for name in numbers]
    yield f"\n{format_table(header, rows)}"
    for title, entries in lists.items():
        yield f"\n{title}: {len(entries):,}"
        shown = entries if has_all else entries[:_MAX_LISTED]
        for entry in shown:
            yield f"  {entry}"
        left_out = len(entries) - len(shown)
        if left_out:
            yield f"  ... and {left_out:,} more; all of them with -v"
