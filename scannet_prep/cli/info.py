"""Tell what is in a raw or a processed tree, or in an archive.

Shows scenes, vertices, bytes, options, warnings and failures.

Of a processed tree it reads only the manifest; without one, every file. Of an archive, only the index. Several archives
count as the shards of one. How often the classes of both label sets occur: --table classes, or scannet-prep report.

examples:
  scannet-prep info data/processed
  scannet-prep info data/ScanNet -v
  scannet-prep info data/processed --scenes
  scannet-prep info data/processed --table instances -o instances.csv
  scannet-prep info https://host/scannet.tar.zst
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.errors import UsageError
from scannet_prep.base.failures import list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_list, format_count, format_splits

if TYPE_CHECKING:
    from scannet_prep.stages.info import Info


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_places_argument(parser)
    parser.add_argument(
        "--scenes", action="store_true", help="list only the ids of the scenes, one a line"
    )
    table = parser.add_argument_group("instead of the overview, a table of processed scenes")
    table.add_argument(
        "--table", choices=("scenes", "classes", "instances"), help="one row for each of them"
    )
    where = ".csv, .json or .parquet (default: CSV on standard output)"
    table.add_argument("-o", "--output", type=shared.path_argument, metavar="FILE", help=where)
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import info

    certificates = certificates_from(arguments, console)
    if arguments.table:
        from scannet_prep.tables import write_table

        rows, text = write_table(
            arguments.table, arguments.places, arguments.output, certificates=certificates
        )
        value = {
            "table": arguments.table,
            "rows": rows,
            "output": arguments.output,
            "csv": text or None,
        }
        return console.result(
            text.rstrip("\n") or f"{arguments.output}: {format_count(rows, 'row')}", value, 0
        )
    if arguments.output:
        raise UsageError("-o is for tables", "say which one: --table scenes, classes or instances")
    found = info.run(arguments.places, certificates=certificates, progress=console)
    console.tell_errors(found.unreadable)
    lines = found.scene_ids if arguments.scenes else _describe(found, has_all=console.is_verbose)
    return console.result("\n".join(lines), found, 3 if found.unreadable else 0)


def _describe(found: Info, *, has_all: bool) -> Iterator[str]:
    source = f", by {found.program}" if found.program else ""
    yield f"{list_some(found.paths, 1)}: {f'archive of {found.head.kind}' if found.head else found.kind} scenes{source}"
    if found.kind == "processed" and not found.program:
        yield "no usable manifest.json: the files say so"
    if found.options is not None:
        frame = "axis-aligned" if found.options.align_axis else "frame of the scan"
        yield f"options: {found.options.flags} ({found.options.label_set.name}, {frame})"
    if found.head:
        yield f"{format_bytes(found.size_bytes)}, zstd level {found.head.level}"
    yield from ("", format_splits(found.splits))
    for title, items in (
        (
            "files of no scene",
            [f"{name}: {format_bytes(size)}" for name, size in found.shared_files.items()],
        ),
        ("folders left out, whose names are not scene ids", found.left_out),
        ("missing shards of the set", found.missing_shards),
        ("scenes failed", [f"{scene_id}: {text}" for scene_id, text in found.failures.items()]),
        ("warnings", [f"{item.text} (scenes: {len(item.scenes):,})" for item in found.warnings]),
    ):
        yield from describe_list(title, items, has_all=has_all)
    if found.unreadable:
        yield f"\nerrors: {len(found.unreadable):,}; see above"
