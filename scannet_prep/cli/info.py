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
    from scannet_prep.stages.info.processed import ProcessedInfo
    from scannet_prep.stages.info.raw import RawInfo
    from scannet_prep.stages.info.split_table import SplitTable

_DESCRIPTION = """\
Tells what is in a raw or a processed tree, or in an archive: scenes, vertices, bytes, the classes of both label sets.

Of a processed tree it reads only the manifest; without one, every file. Of an archive, only the index and the manifest.
Several archives count as the shards of one. Train ids are those of ScanNet(...): 0 for the first class.
"""
_EPILOG = """\
examples:
  scannet-prep info data/processed
  scannet-prep info data/ScanNet -v
  scannet-prep info data/processed --scenes
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
    parser.add_argument("--scenes", action="store_true", help="list only the ids of the scenes, one a line")
    run_options = parser.add_argument_group("how to run")
    add_jobs_argument(run_options)  # type: ignore[arg-type]  # argparse's groups take arguments as parsers do
    add_trust_arguments(parser.add_argument_group("server, for addresses"))  # type: ignore[arg-type]  # likewise
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import info

    found = info.run(
        arguments.places,
        certificates=certificates_from(arguments, console),
        jobs=jobs_from(arguments),
        progress=console.progress(),
    )
    for finding in found.unreadable:
        console.warn(f"error: {finding.place}: {finding.message}", finding.hint)
        if finding.trace:
            console.warn(finding.trace)
    lines = found.scene_ids if arguments.scenes else _describe(found, has_all=console.is_verbose)
    return console.result("\n".join(lines), {"command": "info", **found.to_json()}, 3 if found.unreadable else 0)


def _describe(found: Info, *, has_all: bool) -> Iterator[str]:
    from scannet_prep.stages.info.archive import ArchiveInfo
    from scannet_prep.stages.info.raw import RawInfo

    if isinstance(found, ArchiveInfo):
        yield from describe_info(found, has_all=has_all)
    elif isinstance(found, RawInfo):
        yield from _describe_raw(found)
    else:
        yield from _describe_processed(found, has_all=has_all)
    if found.unreadable:
        yield f"\nerrors: {len(found.unreadable):,}; see above"
    for table in found.class_tables:
        yield ""
        yield from _describe_classes(table, has_all=has_all)


def _describe_raw(found: RawInfo) -> Iterator[str]:
    yield f"{found.path}: raw scenes, label map: {found.label_map_source}"
    yield ""
    yield _format_splits(found.splits)
    yield ""
    rows = [[suffix, f"{count:,}", format_bytes(size)] for suffix, (count, size) in found.files.items()]
    yield format_table(["kind of file", "files", "size"], rows, right=frozenset({1, 2}))


def _describe_processed(found: ProcessedInfo, *, has_all: bool) -> Iterator[str]:
    versions = ", ".join(found.program_versions) or "unknown"
    source = "" if found.has_manifest else "; no usable manifest.json: every file was read"
    yield f"{found.path}: processed scenes, by scannet-prep {versions}{source}"
    for options, count in found.options:
        labels = f"labels: {options.label_set.name} from {options.labels_from}"
        frame = "axis-aligned" if options.align_axis else "frame of the scan"
        yield f"{labels}, {frame}, {'with' if options.faces else 'without'} faces; scenes: {count:,}"
    yield ""
    yield _format_splits(found.splits)
    failures = [f"{item.scene_id}: {item.message}" for item in found.manifest.failures.values()]
    yield from describe_list("scenes failed", failures, has_all=has_all)
    warnings = [f"{item.warning.text} (scenes: {len(item.scene_ids):,})" for item in found.warnings]
    yield from describe_list("warnings", warnings, has_all=has_all)


def _format_splits(splits: SplitTable) -> str:
    """A row for each split, and one with the sums unless there is only one to add up."""
    named_rows = [*splits.rows.items(), *([("all", splits.sums)] if len(splits.rows) > 1 else [])]
    rows = []
    for name, numbers in named_rows:
        row = [name, *(f"{count:,}" for key, count in numbers.items() if key != "size_bytes")]
        if "size_bytes" in numbers:
            row += [format_bytes(numbers["size_bytes"]), f"{numbers['size_bytes'] / max(1, numbers['vertices']):.1f}"]
        rows.append(row)
    header = ["split", *(key for key in splits.sums if key != "size_bytes")]
    header += ["size", "B/vertex"] if "size_bytes" in splits.sums else []
    return format_table(header, rows, right=frozenset(range(1, len(header))))


def _describe_classes(table: ClassTable, *, has_all: bool) -> Iterator[str]:
    occurring = [count for count in table.classes if count.vertex_count]
    yield (
        f"{table.label_set.name}: {len(occurring):,} of {len(table.classes):,} classes occur; "
        f"annotated scenes: {table.scene_count:,} (those of test are not)"
    )
    if not table.scene_count:
        return
    has_frequency = any(count.item is not None and count.item.frequency for count in table.classes)
    header = ["train id", "class", "vertices", "share", "scenes", *(["often"] if has_frequency else [])]
    shown = table.classes if has_all else occurring
    rows = [_class_row(count, table, has_frequency=has_frequency) for count in (*shown, table.unlabeled)]
    yield format_table(header, rows, right=frozenset({0, 2, 3, 4}))


def _class_row(count: ClassCount, table: ClassTable, *, has_frequency: bool) -> list[str]:
    item = count.item
    names = ["-", "(unlabeled)"] if item is None else [str(item.train_id), item.name]
    numbers = [f"{count.vertex_count:,}", f"{100 * table.share(count):.2f} %", f"{count.scene_count:,}"]
    frequency = "" if item is None else item.frequency or ""
    return [*names, *numbers, *([frequency] if has_frequency else [])]
