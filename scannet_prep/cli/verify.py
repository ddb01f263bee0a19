"""`scannet-prep verify`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scannet_prep.cli.arguments import (
    CommandParser,
    Commands,
    add_jobs_argument,
    add_output_arguments,
    add_selection_arguments,
    jobs_from,
    path_argument,
    selection_from,
)
from scannet_prep.cli.console import Console, format_bytes, format_count, format_duration, format_table

if TYPE_CHECKING:
    from scannet_prep.stages.finding import Finding
    from scannet_prep.stages.verify import VerifyReport

_MAX_ROWS = 100
_MAX_HINTS = 5

_DESCRIPTION = """\
Checks a raw or a processed tree and changes nothing.

Raw: structure of every file, counts that must agree across files, segment ids of groups, labels.ply against the groups,
the label map. Processed: checksums, shapes and values of every file, the manifest, the file lists. Both: the official
splits. An error is something wrong; a note is worth knowing, and right all the same.
"""
_EPILOG = """\
examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify data/ScanNet --against their-scannet.lock
  scannet-prep verify data/processed --json
"""


def add_command(commands: Commands) -> None:
    """Add the command to the program."""
    parser: CommandParser = commands.add_parser(
        "verify", help="check a raw or a processed tree", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("path", type=path_argument, metavar="PATH", help="folder with raw or with processed scenes")
    parser.add_argument(
        "--complete", action="store_true", help="a scene of the official lists that is not there is an error"
    )
    parser.add_argument(
        "--against", type=path_argument, metavar="FILE", help="compare a raw tree with the scannet.lock of another copy"
    )
    add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    add_jobs_argument(run_options)  # type: ignore[arg-type]  # argparse's groups take arguments as parsers do
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import verify

    plan = verify.plan(
        arguments.path,
        selection=selection_from(arguments),
        must_be_complete=arguments.complete,
        against=arguments.against,
    )
    console.say(f"verify: {plan.path}: {plan.kind} scenes to check: {len(plan.tree.tasks):,}")
    started_s = time.monotonic()
    report = verify.run(plan, jobs=jobs_from(arguments), progress=console.progress())
    seconds = time.monotonic() - started_s
    for finding in report.errors:
        if console.is_quiet:
            console.warn(f"error: {finding.path}: {finding.message}", finding.hint)
        if finding.trace:
            console.warn(finding.trace)
    status = 3 if report.errors else 0
    value = {"command": "verify", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(_describe(report, seconds, has_all=console.is_verbose), value, status)


def _describe(report: VerifyReport, seconds: float, *, has_all: bool) -> str:
    lines = []
    if report.findings:
        shown = report.findings if has_all else report.findings[:_MAX_ROWS]
        rows = [_row(finding, report) for finding in shown]
        lines.append(format_table(["", "scene", "file", "what"], rows))
        if len(shown) < len(report.findings):
            lines.append(f"... and {len(report.findings) - len(shown):,} more; all of them with -v or --json")
        lines += ["", *_describe_hints(report.findings, has_all=has_all)]
    error_count, note_count = len(report.errors), len(report.findings) - len(report.errors)
    splits = ", ".join(item.text for item in report.splits)
    lines.append(
        f"{report.path}: {report.kind} scenes checked: {report.scene_count:,} ({splits}), "
        f"{report.vertex_count:,} vertices, {format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
    )
    lines.append(f"{format_count(error_count, 'error')}, {format_count(note_count, 'note')}")
    return "\n".join(lines)


def _row(finding: Finding, report: VerifyReport) -> list[str]:
    if finding.path == report.path:
        name = "-"
    elif finding.path.is_relative_to(report.path):
        name = os.path.relpath(finding.path, report.path)
    else:
        name = str(finding.path)
    return [str(finding.severity), finding.scene_id or "-", name, finding.message]


def _describe_hints(findings: Sequence[Finding], *, has_all: bool) -> list[str]:
    hints = list(dict.fromkeys(finding.hint for finding in findings if finding.hint))
    lines = [f"hint: {hint}" for hint in (hints if has_all else hints[:_MAX_HINTS])]
    return [*lines, ""] if lines else []
