"""`scannet-prep info`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

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

Description: TypeAlias = tuple[list[str], dict[str, Sequence[str]]]
"""Lines at the top, and lists with their titles."""

SUMMARY = "tell what is in a raw or a processed tree, or in an archive"
DESCRIPTION = """\
Tells what is in a raw or a processed tree, or in an archive: scenes, vertices, bytes, and of processed scenes the
classes of both label sets.

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
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import info

    if arguments.table or arguments.output:
        return _write_table(arguments, console)
    certificates = certificates_from(arguments, console)
    found = info.run(arguments.places, certificates=certificates, progress=console.progress())
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
    text = text.rstrip("\n") or f"{arguments.output}: {format_count(rows, 'row')}"
    return console.result(text, value, 0)


def _describe(found: Info, *, has_all: bool) -> Iterator[str]:
    describe: dict[str, Any] = {
        "archive": _describe_archives,
        "raw": _describe_raw,
        "processed": _describe_processed,
    }
    head, lists = describe[found.kind](found)
    yield from (*head, "", format_splits(found.splits))
    for title, items in lists.items():
        yield from describe_list(title, items, has_all=has_all)
    if found.unreadable:
        yield f"\nerrors: {len(found.unreadable):,}; see above"
    for name, table in getattr(found, "label_sets", {}).items():
        yield from _describe_classes(name, table, has_all=has_all)


def _describe_archives(found: ArchiveInfo) -> Description:
    head = [f"{name_places(found.paths)}: archive of {found.head.kind} scenes, by {found.head.program}"]
    if not found.head.is_complete:
        head.append("not complete: processing had not finished when it was packed")
    if found.head.options:
        head.append(_describe_options(found.head.options))
    ratio = found.size_bytes / max(1, found.content_bytes)
    sizes = f"{format_bytes(found.size_bytes)} for {format_bytes(found.content_bytes)} unpacked ({ratio:.1%})"
    head.append(f"{sizes}, zstd level {found.head.level}; files: {found.files:,}")
    failures = [f"{scene_id}: {text}" for scene_id, text in found.failures.items()]
    return head, {"missing shards of the set": found.missing_shards, "scenes that failed in processing": failures}


def _describe_raw(found: RawInfo) -> Description:
    return [f"{found.path}: raw scenes"], {"folders left out, whose names are not scene ids": found.left_out}


def _describe_processed(found: ProcessedInfo) -> Description:
    source = f"by scannet-prep {found.program_versions[0]}" if found.has_manifest else "no usable manifest.json"
    head = [f"{found.path}: processed scenes, {source}"]
    head += [f"{_describe_options(asdict(item['options']))}; scenes: {item['scenes']:,}" for item in found.options]
    failures = [f"{item.scene_id}: {item.message}" for item in found.failures]
    warnings = [f"{item.text} (scenes: {len(item.scenes):,})" for item in found.warnings]
    return head, {"scenes failed": failures, "warnings": warnings}


def _describe_options(options: Mapping[str, bool | str]) -> str:
    return "options: " + ", ".join(f"{name} {value}" for name, value in options.items())


def _describe_classes(name: str, table: ClassTable, *, has_all: bool) -> Iterator[str]:
    shown = [row for row in table.classes if row.vertices or has_all]
    occurring = sum(row.vertices > 0 for row in table.classes)
    yield (
        f"\n{name}: {occurring:,} of {len(table.classes):,} classes occur; "
        f"annotated scenes: {table.scenes:,} (those of test are not)"
    )
    rows = []
    for row in (*shown, table.unlabeled):
        number = "-" if row.train_id is None else str(row.train_id)
        counts = [f"{row.vertices:,}", f"{row.share:.2%}", f"{row.scenes:,}"]
        rows.append([number, row.name, *counts, row.frequency or ""])
    if table.scenes:
        header = ["train id", "class", "vertices", "share", "scenes", ""]
        yield format_table(header, rows, right=frozenset({0, 2, 3, 4}))
