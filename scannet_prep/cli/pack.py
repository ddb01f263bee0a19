"""Make one archive of a folder of scenes.

The folder has processed scenes, or is a raw tree. The archive is a plain .tar.zst that any tar opens.

Scenes can be read from it one by one, also over HTTP, and a Dataset trains from it directly. Every file has a SHA-256.
The same files give the same bytes. The archive gets its name when it is whole; one that holds the same already is read,
compared with the folder, and left as it is. Beside it, FILE.sha256 proves that a copy is complete: sha256sum -c.

examples:
  scannet-prep pack                                    data/processed -> data/scannet.tar.zst
  scannet-prep pack - | ssh host "cd /datasets && scannet-prep unpack -"
  scannet-prep pack data/ScanNet -o data/raw.tar.zst --shard-size 4GB
  scannet-prep pack -o s3://bucket/scannet.tar.zst     needs scannet-prep[cloud] and s3fs
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.errors import UsageError
from scannet_prep.base.failures import list_some
from scannet_prep.base.units import format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, format_count

if TYPE_CHECKING:
    from scannet_prep.processed.scene import ProcessOptions
    from scannet_prep.stages.pack import PackReport

_PIPE = "-"


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    source = "folder to pack (default: data/processed); - writes the archive to standard output"
    parser.add_argument("places", nargs="*", metavar="SOURCE", help=source)
    target = "the archive (default: data/scannet.tar.zst), also s3://, gs:// or az://; - for standard output"
    parser.add_argument("-o", "--output", metavar="FILE", help=target)
    options = parser.add_argument_group("what to make")
    level = "compression level of zstd, 1..22 (default: 1); 0 stores: 11 %% larger, and a scene reads twice as fast"
    options.add_argument("--level", type=int, choices=range(23), default=1, metavar="N", help=level)
    size = "several archives of at most this size, such as 4GB or 500MiB"
    options.add_argument("--shard-size", type=shared.size_argument, metavar="SIZE", help=size)
    force = "pack again, even where the archive is up to date or holds more scenes"
    options.add_argument("--force", action="store_true", help=force)
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser.add_argument_group("how to run"), "compressing threads")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.base.memory import keep_freed_memory
    from scannet_prep.stages import pack

    folders = [word for word in arguments.places if word != _PIPE]
    if len(folders) > 1:
        raise UsageError(
            f"one folder can be packed at a time, not {len(folders)}", "scannet-prep pack --help"
        )
    is_pipe = _PIPE in (*arguments.places, arguments.output)
    if is_pipe and arguments.output not in (None, _PIPE):
        raise UsageError(
            f"both - and -o {arguments.output} say where the archive goes", "leave out - or -o"
        )
    if is_pipe and (arguments.json or sys.__stdout__ is None or sys.stdout.isatty()):
        hint = 'name a file (-o FILE), or a pipe: | ssh host "scannet-prep unpack -"'
        raise UsageError("standard output is a terminal, closed, or taken by --json", hint)
    source = shared.path_argument(folders[0] if folders else "data/processed")
    keep_freed_memory()
    report = pack.run(
        source,
        None if is_pipe else shared.place_argument(arguments.output or "data/scannet.tar.zst"),
        selection=shared.selection_from(arguments),
        level=arguments.level,
        shard_bytes=arguments.shard_size,
        is_forced=arguments.force,
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    names = list_some(list(report.archives))
    scenes = format_count(report.scenes, "scene")
    size = format_bytes(sum(report.archives.values()))
    duration = format_duration(console.seconds)
    lines = [f"{names}: {scenes}, {size} of {format_bytes(report.size_bytes)}, in {duration}"]
    if report.up_to_date:
        lines = [f"up to date: {names} was read and holds the same {scenes}, {size}, in {duration}"]
    lines += _describe_checksums(report)
    if report.left_out:
        left_out = f"{len(report.left_out):,} ({list_some(report.left_out)})"
        console.say(f"left out, because {report.kind} trees have no such names: {left_out}")
    if report.oversized:
        console.warn(f"warning: {_describe_oversized(report)}")
    if report.missing:
        console.warn(
            f"warning: missing, because processing failed: {list_some(list(report.missing))}"
        )
    status = 3 if report.missing else 0
    if is_pipe:
        console.say("\n".join(lines))
        return status
    if report.options is not None and len(report.archives) == 1 and not report.up_to_date:
        lines.append(f"in Python: {_describe_dataset(report, report.options)}")
    return console.result("\n".join(lines), report, status, source=source, seconds=console.seconds)


def _describe_checksums(report: PackReport) -> list[str]:
    """Describe the SHA-256 of a single archive, and how copies of archives on a disk are checked."""
    path, *others = report.archives
    name = Path(path).name
    lines = []
    if others:
        stem, _, end = name.rpartition("-00000-of-")
        files = f"{quote(stem)}-*-of-{end}.sha256"
    else:
        lines.append(f"sha256: {report.sha256[path]}")
        files = quote(f"{name}.sha256")
    if report.has_checksum_files:
        lines.append(f"to check a copy, in its folder: sha256sum -c {files}")
    return lines


def _describe_oversized(report: PackReport) -> str:
    """Describe the archives that a single scene makes larger than --shard-size."""
    scenes = [f"{scene_id} ({format_bytes(size)})" for scene_id, size in report.oversized.items()]
    count = format_count(len(scenes), "archive")
    return f"{count} larger than --shard-size, because of a single scene: {list_some(scenes)}"


def _describe_dataset(report: PackReport, options: ProcessOptions) -> str:
    """Write the line of Python that opens the archive, with its scenes, label set and frame."""
    ((path, _),) = report.archives.items()
    split, count = next(iter(report.splits.items()))
    frame = "axis-aligned" if options.align_axis else "not axis-aligned"
    call = f"ScanNet({json.dumps(path, ensure_ascii=False)}, split={json.dumps(split)})"
    return f"{call}  # {format_count(count, 'scene')}, {options.label_set.name}, {frame}"
