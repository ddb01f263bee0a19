"""Check a raw or a processed tree, an archive, or an export.

Nothing is changed. What is damaged is named, scene by scene; several archives count as the shards of one. An error is
something wrong; a note is worth knowing, and right all the same.

Raw: structure of every file, counts that must agree across files, segment ids of groups, labels.ply against the groups,
the label map; every frame of .sens and every member of .zip files; and, unless scenes are chosen, the files in tasks/.
A tree may also hold only such files. Processed: checksums, shapes and values of every file, the manifest. Both: the
official splits. Archive: every byte. Export: every file that its manifest names.

Whether two folders, archives or raw trees hold the same data: scannet-prep report PLACE --against PLACE.

examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/ScanNet --against their-scannet.lock
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify data/scannet-*-of-*.tar.zst
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
"""

from __future__ import annotations

import argparse
from shlex import quote

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.failures import list_some
from scannet_prep.base.units import format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_findings, format_count

_MAX_SHOWN_SCENES = 5


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_places_argument(parser)
    parser.add_argument(
        "--complete",
        action="store_true",
        help="a scene of the official lists that is missing is an error",
    )
    against = "compare a raw tree with the scannet.lock of another copy"
    parser.add_argument("--against", type=shared.path_argument, metavar="FILE", help=against)
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser)
    add_trust_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import verify

    report = verify.run(
        arguments.places,
        selection=shared.selection_from(arguments),
        must_be_complete=arguments.complete,
        against=arguments.against,
        certificates=certificates_from(arguments, console),
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    console.tell_errors(
        report.errors if console.is_quiet else [error for error in report.errors if error.trace]
    )
    lines = [*describe_findings(report.findings, report.paths[0], has_all=console.is_verbose)]
    if report.errors and report.kind == "raw":
        types, scenes = report.to_download
        command = (
            f"scannet-prep download --types {' '.join(types)} --verify -o {quote(report.paths[0])}"
        )
        # Only the damaged scenes, if they are few: a tree of a few scenes need not become complete.
        if 0 < len(scenes) <= _MAX_SHOWN_SCENES:
            command += f" --scenes {' '.join(scenes)}"
        lines.append(f"to download again what is missing or damaged: {command}")
    vertices = f"{report.vertices:,} vertices, " if report.vertices else ""
    splits = ", ".join(
        f"{name} {row['present']:,} of {row['official']:,}" for name, row in report.splits.items()
    )
    shared_files = f"files in tasks/: {report.shared_files:,}, " if report.shared_files else ""
    counts = f"{report.kind} scenes: {report.scenes:,}, whole: {len(report.whole_scenes):,} ({splits}), {vertices}"
    counts += shared_files
    size, duration = format_bytes(report.size_bytes), format_duration(console.seconds)
    lines.append(f"{list_some(report.paths, 1)}: {counts}{size}, in {duration}")
    errors, notes = len(report.errors), len(report.findings) - len(report.errors)
    text = "\n".join([*lines, f"{format_count(errors, 'error')}, {format_count(notes, 'note')}"])
    return console.result(text, report, 3 if report.errors else 0, seconds=console.seconds)
