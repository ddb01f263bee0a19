"""`scannet-prep verify`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.cli.archive_text import describe_check
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
from scannet_prep.cli.console import Console, format_duration
from scannet_prep.cli.listing import count_findings, describe_findings
from scannet_prep.cli.trust import add_trust_arguments, certificates_from
from scannet_prep.errors import UsageError
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.finding import CheckReport
    from scannet_prep.stages.verify.archive import VerifyArchivesReport

_REMEDIES = {
    "raw": "to download again what is missing or damaged: scannet-prep download -o {}",
    "processed": "to mend it, with RAW and options as before: scannet-prep process RAW -o {}",
}
_DESCRIPTION = """\
Checks a raw or a processed tree, or an archive, and changes nothing.

Raw: structure of every file, counts that must agree across files, segment ids of groups, labels.ply against the groups,
the label map. Processed: checksums, shapes and values of every file, the manifest, the file lists. Both: the official
splits. An error is something wrong; a note is worth knowing, and right all the same.

Archive: every byte. What is damaged is named, scene by scene; of a truncated archive it says which scenes are whole.
Several archives count as the shards of one.
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
        help="of an archive, read no scene: only the index, and the files that belong to none",
    )
    add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    add_jobs_argument(run_options)  # type: ignore[arg-type]  # argparse's groups take arguments as parsers do
    add_trust_arguments(parser.add_argument_group("server, for addresses"))  # type: ignore[arg-type]  # likewise
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages.tree import is_archive

    check = _check_archives if any(map(is_archive, arguments.places)) else _check_tree
    started_s = time.monotonic()
    report, text = check(arguments, console)
    seconds = time.monotonic() - started_s
    for finding in report.errors:
        if console.is_quiet:
            scene = "" if finding.scene_id in finding.place else f"{finding.scene_id}: "
            console.warn(f"error: {finding.place}: {scene}{finding.message}", finding.hint)
        if finding.trace:
            console.warn(finding.trace)
    value = {"command": "verify", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(text, value, 3 if report.errors else 0)


def _check_tree(arguments: argparse.Namespace, console: Console) -> tuple[CheckReport, str]:
    from scannet_prep.stages import verify

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
    console.say(f"verify: {plan.path}: {plan.kind} scenes to check: {len(plan.tasks):,}")
    started_s = time.monotonic()
    report = verify.run(plan, jobs=jobs_from(arguments), progress=console.progress())
    return report, "\n".join(_describe(report, time.monotonic() - started_s, has_all=console.is_verbose))


def _check_archives(arguments: argparse.Namespace, console: Console) -> tuple[VerifyArchivesReport, str]:
    from scannet_prep.stages.verify import archive as verify_archive

    if arguments.against is not None:
        raise UsageError("only raw trees have digests to compare", "leave out --against")
    plan = verify_archive.plan(
        arguments.places,
        selection=selection_from(arguments),
        is_quick=arguments.quick,
        must_be_complete=arguments.complete,
        certificates=certificates_from(arguments, console),
    )
    for item in plan.archives:
        console.say(f"verify: {item.name}: scenes to check: {item.scene_count:,}")
    started_s = time.monotonic()
    report = verify_archive.run(plan, jobs=jobs_from(arguments), progress=console.progress())
    return report, describe_check(report, time.monotonic() - started_s, has_all=console.is_verbose)


def _describe(report: CheckReport, seconds: float, *, has_all: bool) -> Iterator[str]:
    yield from describe_findings(report.findings, str(report.path), has_all=has_all)
    if report.errors:
        yield f"{_REMEDIES[report.kind].format(report.path)}\n"
    counts = report.counts
    splits = ", ".join(f"{name} {row['present']:,} of {row['official']:,}" for name, row in counts["splits"].items())
    if "compared_files" in counts:
        yield f"compared with the other copy: {counts['compared_files']:,} files"
    yield (
        f"{report.path}: {report.kind} scenes checked: {counts['scenes']:,} ({splits}), "
        f"{counts['vertices']:,} vertices, {format_bytes(counts['size_bytes'])}, in {format_duration(seconds)}"
    )
    yield count_findings(report.findings)
