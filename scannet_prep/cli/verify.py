"""`scannet-prep verify`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.archive_text import describe_check
from scannet_prep.cli.console import Console, format_duration
from scannet_prep.cli.listing import count_findings, describe_findings
from scannet_prep.cli.trust import add_trust_arguments, certificates_from
from scannet_prep.errors import UsageError
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.finding import CheckReport
    from scannet_prep.stages.verify.archive import VerifyArchivesReport

_REMEDIES = {
    "raw": "to download again what is missing or damaged: scannet-prep download --types seg --verify -o {}",
    "processed": "to mend it, with RAW and options as before: scannet-prep process RAW --checksum -o {}",
}
_DESCRIPTION = """\
Checks a raw or a processed tree, or an archive, and changes nothing.

Raw: structure of every file, counts that must agree across files, segment ids of groups, labels.ply against the groups,
the label map. Processed: checksums, shapes and values of every file, the manifest, the file lists. Both: the official
splits. Archive: every byte. What is damaged is named, scene by scene; several archives count as the shards of one.
An error is something wrong; a note is worth knowing, and right all the same.
"""
_EPILOG = """\
examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/ScanNet --against their-scannet.lock
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify data/scannet-*-of-*.tar.zst --quick
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
"""


def add_command(commands: shared.Commands) -> None:
    """Add the command to the program."""
    parser: shared.CommandParser = commands.add_parser(
        "verify", help="check a raw or a processed tree, or an archive", description=_DESCRIPTION, epilog=_EPILOG
    )
    shared.add_places_argument(parser)
    parser.add_argument(
        "--complete", action="store_true", help="a scene of the official lists that is missing is an error"
    )
    against = "compare a raw tree with the scannet.lock of another copy"
    parser.add_argument("--against", type=shared.path_argument, metavar="FILE", help=against)
    quick = "of an archive, read no scene: only the index, and the files that belong to none"
    parser.add_argument("--quick", action="store_true", help=quick)
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser)
    add_trust_arguments(parser)
    shared.add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages.tree import is_archive
    from scannet_prep.typed_json import to_plain

    report: CheckReport | VerifyArchivesReport
    started_s = time.monotonic()
    if any(map(is_archive, arguments.places)):
        report = archives = _check_archives(arguments, console)
        text = describe_check(archives, time.monotonic() - started_s, has_all=console.is_verbose)
    else:
        report = tree = _check_tree(arguments, console)
        text = "\n".join(_describe(tree, time.monotonic() - started_s, has_all=console.is_verbose))
    console.tell_errors(report.errors if console.is_quiet else [error for error in report.errors if error.trace])
    value = {"command": "verify", **to_plain(report), "seconds": round(time.monotonic() - started_s, 3)}
    return console.result(text, value, 3 if report.errors else 0)


def _check_tree(arguments: argparse.Namespace, console: Console) -> CheckReport:
    from scannet_prep.stages import verify

    if len(arguments.places) > 1:
        raise UsageError("one folder can be checked at a time", "name one folder, or several archives")
    if arguments.quick:
        raise UsageError("--quick is for archives", "leave it out: every file of a folder is read")
    plan = verify.plan(
        Path(arguments.places[0]),
        selection=shared.selection_from(arguments),
        must_be_complete=arguments.complete,
        against=arguments.against,
    )
    return verify.run(plan, jobs=shared.jobs_from(arguments), progress=console.progress())


def _check_archives(arguments: argparse.Namespace, console: Console) -> VerifyArchivesReport:
    from scannet_prep.stages.verify import archive

    if arguments.against is not None:
        raise UsageError("only raw trees have digests to compare", "leave out --against")
    plan = archive.plan(
        arguments.places,
        selection=shared.selection_from(arguments),
        is_quick=arguments.quick,
        must_be_complete=arguments.complete,
        certificates=certificates_from(arguments, console),
    )
    return archive.run(plan, jobs=shared.jobs_from(arguments), progress=console.progress())


def _describe(report: CheckReport, seconds: float, *, has_all: bool) -> Iterator[str]:
    yield from describe_findings(report.findings, str(report.path), has_all=has_all)
    if report.errors:
        yield _REMEDIES[report.kind].format(report.path)
    if report.compared_files is not None:
        yield f"compared with the other copy: {report.compared_files:,} files"
    splits = ", ".join(f"{name} {row['present']:,} of {row['official']:,}" for name, row in report.splits.items())
    yield (
        f"{report.path}: {report.kind} scenes checked: {report.scenes:,} ({splits}), "
        f"{report.vertices:,} vertices, {format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
    )
    yield count_findings(report.findings)
