"""`scannet-prep info`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.cli.archive_text import describe_info
from scannet_prep.cli.arguments import (
    CommandParser,
    Commands,
    add_jobs_argument,
    add_output_arguments,
    jobs_from,
    place_argument,
)
from scannet_prep.cli.console import Console, format_table
from scannet_prep.cli.listing import describe_list
from scannet_prep.cli.trust import add_trust_arguments, certificates_from
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.info import Info
    from scannet_prep.stages.info.class_table import ClassCount, ClassTable
    from scannet_prep.stages.info.processed import ProcessedTreeInfo
    from scannet_prep.stages.info.raw import RawTreeInfo


_DESCRIPTION = """\
Tells what is in a raw or a processed tree, or in an archive: scenes, vertices, bytes, the classes of both label sets.

Of a processed tree it reads only the manifest; without one, every file. Of an archive, only the index and the manifest.
Several archives count as the shards of one.
"""
_EPILOG = """\
examples:
  scannet-prep info data/processed
  scannet-prep info data/ScanNet -v
  scannet-prep info data/processed --json
  scannet-prep info data/scannet.tar.zst
  scannet-prep info https://host/scannet.tar.zst
"""


def add_command(commands: Commands) -> None:
    """Add the command to the program."""
    parser: CommandParser = commands.add_parser(
        "info",
        help="tell what is in a raw or a processed tree, or in an archive",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "places", type=place_argument, nargs="+", metavar="PATH",
        help="folder with raw or with processed scenes; or an archive, or all shards of one: paths or addresses",
    )  # fmt: skip
    run_options = parser.add_argument_group("how to run")
    add_jobs_argument(run_options)  # type: ignore[arg-type]  # argparse's groups take arguments as parsers do
    add_trust_arguments(parser.add_argument_group("server, for addresses"))  # type: ignore[arg-type]  # likewise
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import info

    certificates = certificates_from(arguments, console)
    plan = info.plan(arguments.places, certificates=certificates)
    found = info.run(plan, jobs=jobs_from(arguments), progress=console.progress())
    for finding in found.unreadable:
        console.warn(f"cannot be read: {finding.path}: {finding.message}", finding.hint)
        if finding.trace:
            console.warn(finding.trace)
    status = 3 if found.unreadable else 0
    text = "\n".join(_describe(found, has_all=console.is_verbose))
    return console.result(text, {"command": "info", **found.to_json()}, status)


def _describe(found: Info, *, has_all: bool) -> Iterator[str]:
    from scannet_prep.stages.info.archive import ArchiveInfo
    from scannet_prep.stages.info.raw import RawTreeInfo

    if isinstance(found, ArchiveInfo):
        yield from describe_info(found, has_all=has_all)
    elif isinstance(found, RawTreeInfo):
        yield from _describe_raw(found)
    else:
        yield from _describe_processed(found, has_all=has_all)
    for table in found.class_tables:
        yield ""
        yield from _describe_classes(table, has_all=has_all)


def _describe_raw(found: RawTreeInfo) -> Iterator[str]:
    yield f"{found.path}: raw scenes, label map: {found.label_map_source}"
    yield ""
    rows = [
        [
            item.name,
            *map(
                _number, (item.scene_count, item.annotated_count, item.vertex_count, item.face_count, item.group_count)
            ),
        ]
        for item in found.splits
    ]
    header = ["split", "scenes", "annotated", "vertices", "faces", "groups"]
    yield format_table(header, _with_total(rows), right=frozenset(range(1, 6)))
    yield ""
    rows = [[item.suffix, _number(item.file_count), format_bytes(item.size_bytes)] for item in found.kinds]
    yield format_table(["kind of file", "files", "size"], rows, right=frozenset({1, 2}))
    if found.unreadable:
        yield f"\ncould not be read: {len(found.unreadable):,}; see above"


def _describe_processed(found: ProcessedTreeInfo, *, has_all: bool) -> Iterator[str]:
    versions = ", ".join(found.program_versions) or "unknown"
    source = "" if found.has_manifest else "; no usable manifest.json: every file was read"
    yield f"{found.path}: processed scenes, format {found.format_version}, by scannet-prep {versions}{source}"
    for options, count in found.options:
        labels = f"labels: {options.label_set.name} from {options.labels_from}"
        frame = "axis-aligned" if options.align_axis else "frame of the scan"
        yield f"{labels}, {frame}, {'with' if options.faces else 'without'} faces; scenes: {count:,}"
    if found.is_complete is False:
        yield "not complete: processing has not finished; run the same scannet-prep process command again"
    yield ""
    rows = [
        [
            str(item.split),
            _number(item.scene_count),
            _number(item.vertex_count),
            format_bytes(item.size_bytes),
            f"{item.size_bytes / item.vertex_count:.1f}",
        ]
        for item in found.splits
    ]
    if len(rows) > 1:
        scene_count = sum(item.scene_count for item in found.splits)
        per_vertex = f"{found.size_bytes / found.vertex_count:.1f}"
        rows.append(
            ["all", _number(scene_count), _number(found.vertex_count), format_bytes(found.size_bytes), per_vertex]
        )
    yield format_table(["split", "scenes", "vertices", "size", "bytes per vertex"], rows, right=frozenset({1, 2, 3, 4}))
    failures = [f"{item.scene_id}: {item.message}" for item in found.failures]
    yield from describe_list("scenes failed", failures, has_all=has_all)
    warnings = [f"{item.warning.text} (scenes: {len(item.scene_ids):,})" for item in found.warnings]
    yield from describe_list("warnings", warnings, has_all=has_all)
    if found.unreadable:
        yield f"\ncould not be read: {len(found.unreadable):,}; see above"


def _describe_classes(table: ClassTable, *, has_all: bool) -> Iterator[str]:
    occurring = [count for count in table.classes if count.vertex_count]
    yield (
        f"{table.label_set.name}: {len(occurring):,} of {len(table.classes):,} classes occur; "
        f"annotated scenes: {table.scene_count:,} (those of test are not)"
    )
    if not table.scene_count:
        return
    has_frequency = any(count.item is not None and count.item.frequency for count in table.classes)
    header = ["label", "id", "class", "vertices", "share", "scenes", *(["frequency"] if has_frequency else [])]
    shown = table.classes if has_all else occurring
    rows = [_class_row(count, table, has_frequency=has_frequency) for count in (*shown, table.unlabeled)]
    yield format_table(header, rows, right=frozenset({0, 1, 3, 4, 5}))


def _class_row(count: ClassCount, table: ClassTable, *, has_frequency: bool) -> list[str]:
    item = count.item
    # What stands in the array `labels`: 0 for unlabeled, else the train id plus one.
    names = ["0", "-", "(unlabeled)"] if item is None else [str(item.train_id + 1), str(item.raw_id), item.name]
    numbers = [_number(count.vertex_count), f"{100 * table.share(count):.2f} %", _number(count.scene_count)]
    frequency = "" if item is None else item.frequency or ""
    return [*names, *numbers, *([frequency] if has_frequency else [])]


def _with_total(rows: list[list[str]]) -> list[list[str]]:
    """Add a row with the sums of the columns, unless there is only one to add up."""
    if len(rows) < 2:
        return rows
    sums = [sum(int(row[column].replace(",", "")) for row in rows) for column in range(1, len(rows[0]))]
    return [*rows, ["all", *map(_number, sums)]]


def _number(count: int) -> str:
    return f"{count:,}"
