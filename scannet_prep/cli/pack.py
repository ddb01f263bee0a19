"""`scannet-prep pack`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, format_count, format_duration
from scannet_prep.errors import UsageError
from scannet_prep.failures import list_some
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.pack import PackPlan, PackReport

SUMMARY = "make one archive of a folder of scenes"
DESCRIPTION = """\
Makes one archive of a processed folder or of a raw tree.

The archive is a plain .tar.zst that any tar opens. Scenes can be read from it one by one, also over HTTP, and a Dataset
trains from it directly. Every file has a SHA-256. The same files give the same bytes. The archive gets its name when it
is whole and on the disk. One that holds the same already is read, compared with the folder, and left as it is.
"""
EPILOG = """\
examples:
  scannet-prep pack                                    data/processed -> data/scannet.tar.zst
  scannet-prep pack /fast/scannet -o /nas/scannet.tar.zst --jobs 16
  scannet-prep pack - | ssh host "cd /datasets && scannet-prep unpack -"
  scannet-prep pack --splits val -o data/val.tar.zst
  scannet-prep pack data/ScanNet -o data/raw.tar.zst --shard-size 4GB
  scannet-prep pack -o s3://bucket/scannet.tar.zst     needs scannet-prep[cloud]
"""
_PIPE = "-"


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "places", nargs="*", metavar="SOURCE",
        help="folder to pack (default: data/processed); - writes the archive to standard output",
    )  # fmt: skip
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the archive (default: data/scannet.tar.zst), also s3://, gs:// or az://; - for standard output",
    )
    options = parser.add_argument_group("what to make")
    options.add_argument(
        "--level", type=int, default=1, metavar="N",
        help="compression level of zstd, 1..22 (default: 1); 0 stores: 11 %% larger, and a scene reads twice as fast",
    )  # fmt: skip
    options.add_argument(
        "--shard-size", type=shared.size_argument, metavar="SIZE",
        help="several archives of at most this size, such as 4GB or 500MiB",
    )  # fmt: skip
    options.add_argument(
        "--allow-incomplete", action="store_true", help="pack a processed folder though scenes of it are missing"
    )
    options.add_argument(
        "--force", action="store_true", help="pack again, even where the archive is up to date or holds more scenes"
    )
    shared.add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    shared.add_jobs_argument(run_options, "compressing threads")
    run_options.add_argument("--dry-run", action="store_true", help="say what would be packed, and do nothing")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import pack
    from scannet_prep.stages.pool import keep_freed_memory

    source, target = _places(arguments)
    if target is None and not arguments.dry_run:
        _check_pipe(arguments)
    plan = pack.plan(
        source,
        target,
        selection=shared.selection_from(arguments),
        level=arguments.level,
        shard_bytes=arguments.shard_size,
        allows_incomplete=arguments.allow_incomplete,
        is_forced=arguments.force,
    )
    if arguments.dry_run:
        ids = [scene.scene_id for scene in plan.contents.scenes]
        value = {"dry_run": True, "source": source, "target": plan.target, "scenes": ids, "left_out": plan.left_out}
        return console.result(_describe_plan(plan), value, 0)
    console.say(_describe_plan(plan))
    keep_freed_memory()
    report = pack.run(plan, jobs=shared.jobs_from(arguments), progress=console.progress())
    if report.missing:
        console.warn(f"warning: missing in the archive: {format_count(len(report.missing), 'scene')} that failed")
    text = _describe_report(report, target, console.seconds)
    if target is None:
        console.say(text)
        return 0
    return console.result(text, report, 0, source=source, seconds=console.seconds)


def _places(arguments: argparse.Namespace) -> tuple[Path, Path | str | None]:
    """The folder, and the archive or None for standard output, from the words in any order."""
    folders = [word for word in arguments.places if word != _PIPE]
    has_pipe = _PIPE in arguments.places or arguments.output == _PIPE
    if len(folders) > 1:
        raise UsageError(f"one folder can be packed at a time, not {len(folders)}", "scannet-prep pack --help")
    if has_pipe and arguments.output not in (None, _PIPE):
        raise UsageError(f"both - and -o {arguments.output} say where the archive goes", "leave out one of them")
    source = shared.path_argument(folders[0]) if folders else Path("data/processed")
    return source, None if has_pipe else shared.place_argument(arguments.output or "data/scannet.tar.zst")


def _check_pipe(arguments: argparse.Namespace) -> None:
    if arguments.json:
        raise UsageError("--json and the archive cannot both go to standard output", "name a file: -o FILE")
    if sys.__stdout__ is None:
        raise UsageError("standard output is closed", "name a file: -o FILE")
    if sys.stdout.isatty():
        hint = 'name a file (-o FILE), or a pipe: | ssh host "scannet-prep unpack -"'
        raise UsageError("the archive would go to the terminal", hint)


def _describe_plan(plan: PackPlan) -> str:
    contents = plan.contents
    scenes = format_count(len(contents.scenes), f"{contents.head.kind} scene")
    files = format_count(sum(len(group.files) for group in contents.groups) - 1, "file")
    size = format_bytes(contents.size_bytes)
    target = str(plan.target or "standard output")
    if plan.shard_bytes is not None:
        target = target.removesuffix(".tar.zst") + "-*-of-*.tar.zst"
    lines = [f"pack: {plan.source} -> {target}: {scenes}, {files}, {size}"]
    if plan.left_out:
        names = f"{len(plan.left_out):,} ({list_some(plan.left_out)})"
        lines.append(f"left out, because {contents.head.kind} trees have no such names: {names}")
    return "\n".join(lines)


def _describe_report(report: PackReport, target: Path | str | None, seconds: float) -> str:
    names = list_some(list(report.archives))
    size = format_bytes(report.size_bytes)
    scenes = format_count(report.scenes, "scene")
    if report.up_to_date:
        return f"up to date: {names} was read and holds the same {scenes}, {size}, in {format_duration(seconds)}"
    share = f"{report.size_bytes / report.source_bytes:.0%} of {format_bytes(report.source_bytes)}"
    vertices = f", {report.vertices:,} vertices" if report.vertices else ""
    lines = [f"{names}: {scenes}{vertices}, {size} ({share}), in {format_duration(seconds)}"]
    if target is not None and report.splits and report.kind == "processed":
        first, split = next(iter(report.archives)), "train" if "train" in report.splits else report.splits[-1]
        path, shards = Path(first), re.sub(r"-\d+-of-", "-*-of-", Path(first).name)
        place = f'sorted(Path("{path.parent}").glob("{shards}"))' if len(report.archives) > 1 else f'"{first}"'
        lines.append(f'in Python: ScanNet({place}, split="{split}")')
    return "\n".join(lines)
