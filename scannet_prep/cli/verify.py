"""`scannet-prep verify`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Any

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import (
    Console,
    count_findings,
    describe_findings,
    describe_list,
    format_duration,
    name_places,
)
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.finding import CheckReport
    from scannet_prep.stages.verify import TreeReport
    from scannet_prep.stages.verify.archive import ArchivesReport

_REMEDIES = {
    "raw": "to download again what is missing or damaged: scannet-prep download --types seg --verify -o {}",
    "export": "to mend it, with the same options as before: scannet-prep export PLACE --format F --force -o {}",
    "processed": "to mend it, with RAW and options as before: scannet-prep process RAW --checksum -o {}",
}
SUMMARY = "check a raw or a processed tree, an archive, or an export"
DESCRIPTION = """\
Checks a raw or a processed tree, an archive, or an export, and changes nothing.

Raw: structure of every file, counts that must agree across files, segment ids of groups, labels.ply against the groups,
the label map. Processed: checksums, shapes and values of every file, the manifest. Both: the official splits.
Archive: every byte. Export: every file that its manifest names. What is damaged is named, scene by scene; several
archives count as the shards of one. An error is something wrong; a note is worth knowing, and right all the same.

Whether two folders, archives or raw trees hold the same data: scannet-prep report PLACE --against PLACE.
"""
EPILOG = """\
examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify data/scannet-*-of-*.tar.zst
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
"""


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_places_argument(parser)
    parser.add_argument(
        "--complete", action="store_true", help="a scene of the official lists that is missing is an error"
    )
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser)
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import verify
    from scannet_prep.stages.verify import archive
    from scannet_prep.tree import find_folder

    report: CheckReport
    places = arguments.places
    folder = find_folder(places)
    selection = shared.selection_from(arguments)
    if arguments.complete:
        selection.check_whole_splits()
    options: dict[str, Any] = {
        "selection": selection,
        "must_be_complete": arguments.complete,
        "jobs": shared.jobs_from(arguments),
        "progress": console.progress(),
    }
    if folder is None:
        certificates = certificates_from(arguments, console)
        report = found = archive.run(places, certificates=certificates, **options)
        lines = _describe_archives(found, console.seconds, has_all=console.is_verbose)
    else:
        report = tree = verify.run(folder, **options)
        lines = _describe(tree, console.seconds)
    console.tell_errors(report.errors if console.is_quiet else [error for error in report.errors if error.trace])
    text = "\n".join([*describe_findings(report.findings, str(report.path), has_all=console.is_verbose), *lines])
    return console.result(
        f"{text}\n{count_findings(report.findings)}", report, 3 if report.errors else 0, seconds=console.seconds
    )


def _only_damaged(report: TreeReport) -> str:
    """The choice of the damaged scenes of a raw tree, if they are few; a tree of a few scenes need not become whole."""
    scenes = dict.fromkeys(finding.scene_id for finding in report.errors)
    return f" --scenes {' '.join(scenes)}" if report.kind == "raw" and "" not in scenes and len(scenes) < 6 else ""


def _describe(report: TreeReport, seconds: float) -> Iterator[str]:
    if report.errors:
        yield _REMEDIES[report.kind].format(quote(str(report.path))) + _only_damaged(report)
    splits = ", ".join(f"{name} {row['present']:,} of {row['official']:,}" for name, row in report.splits.items())
    vertices = f"{report.vertices:,} vertices, " if report.vertices else ""
    yield (
        f"{report.path}: {report.kind} scenes checked: {report.scenes:,} ({splits}), {vertices}"
        f"{format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
    )


def _describe_archives(report: ArchivesReport, seconds: float, *, has_all: bool) -> Iterator[str]:
    """What `verify` found in archives, but for the findings."""
    vertices = f", {report.vertices:,} vertices" if report.vertices else ""
    yield f"{name_places(report.paths)}: scenes: {report.scenes:,}, whole: {len(report.whole_scenes):,}{vertices}"
    yield from describe_list("damaged scenes", report.damaged_scenes, has_all=has_all)
    yield f"{format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
