"""Show the content of raw scenes, processed scenes, extracted frames or an archive.

Prints the numbers of scenes and of vertices or frames, sizes, options, warnings and failures.

Of a processed folder, only the manifest is read, or every file if there is no manifest; of an
archive, only the index. Several archives are read as shards of one. For the frequencies of classes,
see --table classes.

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

from scannet_prep.base.text import count_of, format_bytes, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, describe_list, format_splits
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.processed.scene import ProcessOptions
    from scannet_prep.stages.info import Info


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_places_argument(parser)
    parser.add_argument(
        "--scenes", action="store_true", help="print only the ids of the scenes, one per line"
    )
    table = parser.add_argument_group("instead of the overview, a table of processed scenes")
    table.add_argument(
        "--table",
        choices=("scenes", "classes", "instances"),
        help="one row per scene, class or instance",
    )
    table.add_argument(
        "-o",
        "--output",
        type=shared.path_argument,
        metavar="FILE",
        help="file to write: .csv, .json or .parquet (default: CSV on standard output)",
    )
    shared.add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import info

    if arguments.table:
        return _write_table(arguments, console)
    if arguments.output:
        raise UsageError("-o is for tables", "add --table scenes, classes or instances")
    certificates = shared.certificates_from(arguments, console)
    report = info.run(arguments.places, certificates=certificates, progress=console)
    console.tell_errors(report.unreadable)
    if arguments.scenes:
        text = "\n".join(report.scene_ids)
    else:
        text = "\n".join(_describe(report, has_all=console.is_verbose))
    status = 3 if report.unreadable else 0
    return console.result(text, report, status)


def _write_table(arguments: argparse.Namespace, console: Console) -> int:
    """Print a table, or write it to a file."""
    from scannet_prep.tables import write_table

    row_count, csv_text = write_table(
        arguments.table,
        arguments.places,
        arguments.output,
        certificates=shared.certificates_from(arguments, console),
    )
    value = {
        "table": arguments.table,
        "rows": row_count,
        "output": arguments.output,
        # The text is empty if the table was written to a file.
        "csv": csv_text or None,
    }
    if arguments.output is None:
        text = csv_text.rstrip("\n")
    else:
        text = f"{arguments.output}: {count_of(row_count, 'row')}"
    return console.result(text, value, status=0)


def _describe_options(options: ProcessOptions, computed_segments: int | None) -> Iterator[str]:
    """Yield the options of processed scenes, and what was computed because of them."""
    frame = "axis-aligned" if options.align_axis else "frame of the scan"
    yield f"options: {options.flags} ({options.label_set.name}, {frame})"
    if options.compute_segments:
        scenes = "scenes that have none in the release"
        if computed_segments is not None:
            scenes = count_of(computed_segments, "scene")
        yield f"segments: computed for {scenes}"


def _describe(report: Info, *, has_all: bool) -> Iterator[str]:
    """Yield the lines of the overview.

    Args:
        report: The summary to describe.
        has_all: Whether to list all entries of long lists.
    """
    from scannet_prep.frames import FrameOptions

    # Only archives have a head.
    kind = f"archive of {report.head.kind}" if report.head else report.kind
    program = f", by {report.program}" if report.program else ""
    # The first path, and the number of the others.
    paths = list_some(report.paths, shown=1)
    yield f"{paths}: {kind} scenes{program}"
    # The program that processed a folder is recorded in its manifest, and nowhere else.
    has_manifest = report.program != ""
    if report.kind == "processed" and not has_manifest:
        yield "no usable manifest.json: read from the files of the scenes"
    if isinstance(report.options, FrameOptions):
        yield f"options: {report.options.flags}"
    elif report.options is not None:
        yield from _describe_options(report.options, report.computed_segments)
    if report.head:
        yield f"{format_bytes(report.size_bytes)}, zstd level {report.head.level}"
    yield ""
    yield format_splits(report.splits)

    shared_files = [f"{name}: {format_bytes(size)}" for name, size in report.shared_files.items()]
    failures = [f"{scene_id}: {reason}" for scene_id, reason in report.failures.items()]
    warnings = [f"{warning.text} (scenes: {len(warning.scenes):,})" for warning in report.warnings]
    for title, entries in (
        ("files of no scene", shared_files),
        ("folders left out, whose names are not scene ids", report.left_out),
        ("missing shards of the set", report.missing_shards),
        ("scenes failed", failures),
        ("warnings", warnings),
    ):
        yield from describe_list(title, entries, has_all=has_all)
    if report.unreadable:
        yield f"\nerrors: {len(report.unreadable):,}; see above"
