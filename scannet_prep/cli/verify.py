"""`scannet-prep verify`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli.arguments import (
    CommandParser,
    Commands,
    add_jobs_argument,
    add_output_arguments,
    add_selection_arguments,
    jobs_from,
    path_argument,
    place_argument,
    selection_from,
)
from scannet_prep.cli.console import Console, describe_hints, format_count, format_duration, format_table
from scannet_prep.cli.trust import add_trust_arguments, certificates_from
from scannet_prep.errors import UsageError
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.finding import Finding
    from scannet_prep.stages.verify import VerifyReport

_MAX_ROWS = 100

_DESCRIPTION = """\
Checks a raw or a processed tree, or an archive, and changes nothing.

Raw: structure of every file, counts that must agree across files, segment ids of groups, labels.ply against the groups,
the label map. Processed: checksums, shapes and values of every file, the manifest, the file lists. Both: the official
splits. An error is something wrong; a note is worth knowing, and right all the same.

Archive: every byte, by the checksums of all frames, the sha256 of all scenes, and index and seek table written again
and compared. What is damaged is named, scene by scene. Of a truncated archive it says which scenes are whole, and from
which byte a transfer should go on. Several archives count as the shards of one.
"""
_EPILOG = """\
examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify data/ScanNet --against their-scannet.lock
  scannet-prep verify data/processed --json
  scannet-prep verify data/scannet.tar.zst
  scannet-prep verify data/scannet-*-of-*.tar.zst --quick
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
"""


def add_command(commands: Commands) -> None:
    """Add the command to the program."""
    parser: CommandParser = commands.add_parser(
        "verify", help="check a raw or a processed tree, or an archive", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "places", type=place_argument, nargs="+", metavar="PATH",
        help="folder with raw or with processed scenes; or an archive, or all shards of one: paths or addresses",
    )  # fmt: skip
    parser.add_argument(
        "--complete", action="store_true", help="a scene of the official lists that is not there is an error"
    )
    parser.add_argument(
        "--against", type=path_argument, metavar="FILE", help="compare a raw tree with the scannet.lock of another copy"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of an archive, check the structure only, and read little of it (on the web, all is fetched even so)",
    )
    add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    add_jobs_argument(run_options)  # type: ignore[arg-type]  # argparse's groups take arguments as parsers do
    add_trust_arguments(parser.add_argument_group("server, for addresses"))  # type: ignore[arg-type]  # likewise
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import verify
    from scannet_prep.stages.tree import is_archive

    if any(map(is_archive, arguments.places)):
        return _run_archives(arguments, console)
    if len(arguments.places) > 1:
        raise UsageError("one folder can be checked at a time", "name one folder, or several archives")
    if arguments.quick:
        raise UsageError("--quick is for archives", "leave it out: every file of a folder is read")
    plan = verify.plan(
        arguments.places[0],
        selection=selection_from(arguments),
        must_be_complete=arguments.complete,
        against=arguments.against,
    )
    console.say(f"verify: {plan.path}: {plan.kind} scenes to check: {len(plan.tree.tasks):,}")
    started_s = time.monotonic()
    report = verify.run(plan, jobs=jobs_from(arguments), progress=console.progress())
    seconds = time.monotonic() - started_s
    _warn(report.errors, console)
    status = 3 if report.errors else 0
    value = {"command": "verify", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(_describe(report, seconds, has_all=console.is_verbose), value, status)


def _run_archives(arguments: argparse.Namespace, console: Console) -> int:
    from scannet_prep.cli.archive_text import describe_check
    from scannet_prep.stages.verify import archive as verify_archive

    if arguments.against is not None:
        raise UsageError("only raw trees have digests to compare", "leave out --against")
    certificates = certificates_from(arguments, console)
    plan = verify_archive.plan(
        arguments.places,
        selection=selection_from(arguments),
        is_quick=arguments.quick,
        must_be_complete=arguments.complete,
        certificates=certificates,
    )
    for item in plan.archives:
        console.say(f"verify: {item.name}: scenes to check: {item.scene_count:,}")
    started_s = time.monotonic()
    report = verify_archive.run(plan, jobs=jobs_from(arguments), progress=console.progress())
    seconds = time.monotonic() - started_s
    _warn(report.errors, console)
    status = 3 if report.errors else 0
    value = {"command": "verify", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(describe_check(report, seconds, has_all=console.is_verbose), value, status)


def _warn(errors: Sequence[Finding], console: Console) -> None:
    for finding in errors:
        if console.is_quiet:
            console.warn(f"error: {finding.place}: {finding.message}", finding.hint)
        if finding.trace:
            console.warn(finding.trace)


def _describe(report: VerifyReport, seconds: float, *, has_all: bool) -> str:
    lines = []
    if report.findings:
        shown = report.findings if has_all else report.findings[:_MAX_ROWS]
        rows = [_row(finding, report) for finding in shown]
        lines.append(format_table(["", "scene", "file", "what"], rows))
        if len(shown) < len(report.findings):
            lines.append(f"... and {len(report.findings) - len(shown):,} more; all of them with -v or --json")
        lines += ["", *describe_hints(report.findings, has_all=has_all)]
    error_count, note_count = len(report.errors), len(report.findings) - len(report.errors)
    splits = ", ".join(item.text for item in report.splits)
    lines.append(
        f"{report.path}: {report.kind} scenes checked: {report.scene_count:,} ({splits}), "
        f"{report.vertex_count:,} vertices, {format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
    )
    lines.append(f"{format_count(error_count, 'error')}, {format_count(note_count, 'note')}")
    return "\n".join(lines)


def _row(finding: Finding, report: VerifyReport) -> list[str]:
    path = Path(finding.path)
    if path == report.path:
        name = "-"
    elif path.is_relative_to(report.path):
        name = os.path.relpath(path, report.path)
    else:
        name = str(path)
    return [str(finding.severity), finding.scene_id or "-", name, finding.message]
