"""`scannet-prep unpack`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scannet_prep.cli.arguments import (
    CommandParser,
    Commands,
    add_output_arguments,
    add_selection_arguments,
    jobs_from,
    path_argument,
    place_argument,
    positive_number,
    selection_from,
)
from scannet_prep.cli.console import Console, format_count, format_duration
from scannet_prep.cli.trust import add_trust_arguments, certificates_from
from scannet_prep.errors import UsageError
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.unpack import UnpackPlan, UnpackReport

_DESCRIPTION = """\
Writes the files of an archive that scannet-prep pack made: all of them, or those of some scenes.

Of a file only what is asked for is read, of an https:// address only that is fetched; - reads a pipe, in one pass.
Everything is checked before it gets its name: checksums, digests, names. What is there already, and right, is kept, so
that running it again goes on where it stopped. Files that belong to no scene are always unpacked. After a part of a
processed archive, or several shards, the folder is a whole processed folder of just the scenes in it.
"""
_EPILOG = """\
examples:
  scannet-prep unpack data/scannet.tar.zst                     -> data/processed
  scannet-prep unpack data/scannet-*.tar.zst -o /fast/scannet  all shards
  scannet-prep unpack data/scannet.tar.zst --splits val --scenes scene0011_00 scene0011_01
  scannet-prep unpack https://host/scannet.tar.zst --scenes @wanted.txt -o part
  scannet-prep pack - | ssh host "cd /datasets && scannet-prep unpack -"
  scannet-prep unpack broken.tar.zst -o rescued --salvage

Other programs open these archives too: tar --zstd -xf data/scannet.tar.zst -C somewhere
"""
_PIPE = Path("-")


def add_command(commands: Commands) -> None:
    """Add the command to the program."""
    parser: CommandParser = commands.add_parser(
        "unpack",
        help="write the files of an archive, or of some of its scenes",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "archives", type=place_argument, nargs="+", metavar="ARCHIVE",
        help="path or address of an archive, or several (shards); - for standard input",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=path_argument, metavar="DIR",
        help="where the files go (default: data/processed or data/ScanNet, by what is in the archive)",
    )  # fmt: skip
    add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    run_options.add_argument(
        "--salvage", action="store_true", help="get out what is whole of a truncated or damaged archive"
    )
    run_options.add_argument(
        "--jobs", type=positive_number, metavar="N",
        help="threads (default: the processors that affinity, container and Slurm grant)",
    )  # fmt: skip
    run_options.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    add_trust_arguments(parser.add_argument_group("server, for addresses"))  # type: ignore[arg-type]  # as parsers do
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import unpack

    selection, jobs = selection_from(arguments), jobs_from(arguments)
    started_s = time.monotonic()
    if _PIPE in arguments.archives:
        _check_pipe(arguments)
        report = unpack.run_pipe(
            unpack.PipeReader(sys.stdin.fileno()),
            arguments.output,
            selection=selection,
            is_salvage=arguments.salvage,
            jobs=jobs,
            progress=console.progress(),
        )
    else:
        certificates = certificates_from(arguments, console)
        plan = unpack.plan(
            arguments.archives,
            arguments.output,
            selection=selection,
            is_salvage=arguments.salvage,
            certificates=certificates,
        )
        _tell_warnings(plan, console)
        if arguments.dry_run:
            return console.result(_describe_plan(plan), _plan_to_json(plan), 3 if plan.is_salvage else 0)
        console.say(_describe_start(plan))
        report = unpack.run(plan, jobs=jobs, progress=console.progress())
    return _tell_report(report, time.monotonic() - started_s, console)


def _check_pipe(arguments: argparse.Namespace) -> None:
    if len(arguments.archives) > 1:
        raise UsageError("- is the only archive where it is given", "unpack the others by a command of their own")
    if arguments.dry_run:
        raise UsageError("--dry-run cannot look into a pipe without emptying it", "name a file")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "- reads an archive from a pipe, but standard input is a terminal",
            "name a file, or put a pipe before it: cat FILE | scannet-prep unpack -",
        )


def _tell_warnings(plan: UnpackPlan, console: Console) -> None:
    if plan.missing_shards:
        count = format_count(len(plan.missing_shards), "shard")
        console.warn(f"warning: {count} of the set not given: {', '.join(plan.missing_shards[:3])}")


def _tell_report(report: UnpackReport, seconds: float, console: Console) -> int:
    for failure in report.failures:
        console.warn(f"failed: {failure.scene_id}: {failure.message}", failure.hint)
    for damage in report.damages:
        console.warn(f"damaged: {damage}")
    if report.left_out:
        names = ", ".join(report.left_out[:3])
        count = format_count(len(report.left_out), "scene")
        console.warn(f"warning: left out, because nobody knows their split: {count} ({names})", "name them by --scenes")
    for name in report.replaced if console.is_verbose else ():
        console.say(f"replaced: {name}")
    value = {"command": "unpack", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(_describe_report(report, seconds), value, 0 if report.is_whole else 3)


def _describe_start(plan: UnpackPlan) -> str:
    names = ", ".join(plan.archives[:3]) + (f" and {len(plan.archives) - 3:,} more" if len(plan.archives) > 3 else "")
    scenes = format_count(len(plan.scene_ids), "scene" if plan.kind == "files" else f"{plan.kind} scene")
    there = f", {plan.there_count:,} of them there already (and checked now)" if plan.there_count else ""
    return f"unpack: {names} -> {plan.out_dir}: {scenes}{there}, {format_bytes(plan.size_bytes)}"


def _describe_plan(plan: UnpackPlan) -> str:
    lines = [_describe_start(plan)]
    lines.append(
        f"to write: {format_count(plan.needed_files, 'file')}, {format_bytes(plan.needed_bytes)}; "
        f"free in {plan.out_dir}: {format_bytes(plan.free_bytes)}"
    )
    if plan.lacking_bytes or plan.lacking_inodes:
        lacking = f"{format_bytes(plan.lacking_bytes)} and room for {plan.lacking_inodes:,} files are lacking"
        lines.append(f"the disk will not hold it: {lacking}")
    for name, gap in plan.gaps:
        lines.append(f"{name}: bytes {gap.offset:,} to {gap.end:,} hold no whole scene")
    lines.append("(dry run: nothing was written; whether files already there are right is checked by a run)")
    return "\n".join(lines)


def _plan_to_json(plan: UnpackPlan) -> dict[str, Any]:
    return {
        "command": "unpack",
        "dry_run": True,
        "archives": list(plan.archives),
        "kind": str(plan.kind),
        "out_dir": str(plan.out_dir),
        "scenes": plan.scene_ids,
        "present": plan.there_count,
        "missing_files": plan.needed_files,
        "missing_bytes": plan.needed_bytes,
        "free_bytes": plan.free_bytes,
        "lacking_bytes": plan.lacking_bytes,
        "left_out": list(plan.left_out),
        "missing_shards": list(plan.missing_shards),
    }


def _describe_report(report: UnpackReport, seconds: float) -> str:
    from scannet_prep.archive.pending import FileOutcome

    kept = len(report.scenes) - len(report.new_scenes)
    counts = f"{len(report.new_scenes):,} unpacked, {kept:,} already there, {len(report.failures):,} failed"
    files = format_count(sum(report.files.values()), "file")
    lines = [f"{counts}, in {format_duration(seconds)}: {files}, {format_bytes(report.size_bytes)} in {report.out_dir}"]
    if report.files.get(FileOutcome.REPLACED):
        lines.append(f"replaced, because they differed: {format_count(len(report.replaced), 'file')} (-v names them)")
    if report.failed_path is not None:
        lines.append(f"to try the failed ones again, add --scenes @{report.failed_path} to the same command")
    elif report.kind == "processed" and report.scenes and report.is_whole:
        lines.append(f'in Python: ScanNet("{report.out_dir}", split=...)')
    return "\n".join(lines)
