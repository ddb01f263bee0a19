"""`scannet-prep info`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_list, format_count, format_splits, format_table, name_places
from scannet_prep.errors import UsageError
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.class_weights import ClassTable
    from scannet_prep.stages.info import Info
    from scannet_prep.stages.info.archive import ArchiveInfo
    from scannet_prep.stages.info.trees import ProcessedInfo, RawInfo

SUMMARY = "tell what is in a raw or a processed tree, or in an archive"
DESCRIPTION = """\
Tells what is in a raw or a processed tree, or in an archive: scenes, vertices, bytes, the classes of both label sets.

Of a processed tree it reads only the manifest; without one, every file. Of an archive, only the index and the manifest.
Several archives count as the shards of one. Train ids are those of ScanNet(...): 0 for the first class. The figures as
a page with charts and pictures: scannet-prep report.
"""
EPILOG = """\
examples:
  scannet-prep info data/processed
  scannet-prep info data/ScanNet -v
  scannet-prep info data/processed --scenes
  scannet-prep info data/processed --table instances -o instances.csv
  scannet-prep info https://host/scannet.tar.zst
"""


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_places_argument(parser)
    parser.add_argument("--scenes", action="store_true", help="list only the ids of the scenes, one a line")
    table = parser.add_argument_group("instead of the overview, a table of processed scenes")
    table.add_argument("--table", choices=("scenes", "classes", "instances"), help="one row for each of them")
    where = ".csv, .json or .parquet (default: CSV on standard output)"
    table.add_argument("-o", "--output", type=shared.path_argument, metavar="FILE", help=where)
    shared.add_jobs_argument(parser)
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import info

    if arguments.table or arguments.output:
        return _write_table(arguments, console)
    certificates = certificates_from(arguments, console)
    jobs = shared.jobs_from(arguments)
    found = info.run(arguments.places, certificates=certificates, jobs=jobs, progress=console.progress())
    console.tell_errors(found.unreadable)
    lines = found.scene_ids if arguments.scenes else _describe(found, has_all=console.is_verbose)
    return console.result("\n".join(lines), found, 3 if found.unreadable else 0)


def _write_table(arguments: argparse.Namespace, console: Console) -> int:
    from scannet_prep.tables import write_table

    if arguments.table is None:
        raise UsageError("-o is for tables", "say which one: --table scenes, classes or instances")
    certificates = certificates_from(arguments, console)
    rows, text = write_table(arguments.table, arguments.places, arguments.output, certificates=certificates)
    value = {"table": arguments.table, "rows": rows, "output": arguments.output, "csv": text or None}
    return console.result(
        text.rstrip("\n") or f"{arguments.output}: {format_count(rows, 'row')}", value, 0, wraps=False
    )


def _describe(found: Info, *, has_all: bool) -> Iterator[str]:
    describe: dict[str, Any] = {
        "archive": _describe_archives,
        "raw": _describe_raw,
        "processed": _describe_processed,
    }
    yield from describe[found.kind](found, has_all=has_all)
    if found.unreadable:
        yield f"\nerrors: {len(found.unreadable):,}; see above"
    for name, table in found.label_sets.items():
        yield from _describe_classes(name, table, has_all=has_all)


def _describe_archives(found: ArchiveInfo, *, has_all: bool) -> Iterator[str]:
    """What `info` says about archives, but for the classes."""
    yield f"{name_places(found.paths)}: archive of {found.head.kind} scenes, by {found.head.program}"
    if found.head.options:
        yield "options: " + ", ".join(f"{key}: {value}" for key, value in found.head.options.items())
    ratio = found.size_bytes / max(1, found.content_bytes)
    sizes = f"{format_bytes(found.size_bytes)} for {format_bytes(found.content_bytes)} unpacked ({ratio:.1%})"
    yield f"{sizes}, zstd level {found.head.level}; files: {found.files:,}"
    yield "\n" + format_splits(found.splits)
    yield from describe_list("missing shards of the set", found.missing_shards, has_all=has_all)
    failures = [f"{scene_id}: {text}" for scene_id, text in found.failures.items()]
    yield from describe_list("scenes that failed in processing", failures, has_all=has_all)


def _describe_raw(found: RawInfo, *, has_all: bool) -> Iterator[str]:
    yield f"{found.path}: raw scenes, label map: {found.label_map}\n"
    yield format_splits(found.splits)
    rows = [[suffix, f"{item['files']:,}", format_bytes(item["size_bytes"])] for suffix, item in found.files.items()]
    yield "\n" + format_table(["kind of file", "files", "size"], rows, right=frozenset({1, 2}))
    yield from describe_list("folders left out, whose names are not scene ids", found.left_out, has_all=has_all)


def _describe_processed(found: ProcessedInfo, *, has_all: bool) -> Iterator[str]:
    source = f"by scannet-prep {found.program_versions[0]}" if found.has_manifest else "no usable manifest.json"
    yield f"{found.path}: processed scenes, {source}"
    for item in found.options:
        options = item["options"]
        labels = f"labels: {options.label_set.name} from {options.labels_from}"
        frame = "axis-aligned" if options.align_axis else "frame of the scan"
        yield f"{labels}, {frame}, {'with' if options.faces else 'without'} faces; scenes: {item['scenes']:,}"
    yield "\n" + format_splits(found.splits)
    failures = [f"{item.scene_id}: {item.message}" for item in found.failures]
    yield from describe_list("scenes failed", failures, has_all=has_all)
    warnings = [f"{item.text} (scenes: {len(item.scenes):,})" for item in found.warnings]
    yield from describe_list("warnings", warnings, has_all=has_all)


def _describe_classes(name: str, table: ClassTable, *, has_all: bool) -> Iterator[str]:
    occurring = [count for count in table.classes if count.vertices]
    yield (
        f"\n{name}: {len(occurring):,} of {len(table.classes):,} classes occur; "
        f"annotated scenes: {table.scenes:,} (those of test are not)"
    )
    rows = [
        [
            "-" if count.train_id is None else str(count.train_id),
            count.name,
            f"{count.vertices:,}",
            f"{100 * count.share:.2f} %",
            f"{count.scenes:,}",
            count.frequency or "",
        ]
        for count in (*(table.classes if has_all else occurring), table.unlabeled)
    ]
    if table.scenes:
        header = ["train id", "class", "vertices", "share", "scenes", ""]
        yield format_table(header, rows, right=frozenset({0, 2, 3, 4}))
