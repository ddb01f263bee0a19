"""Pack a folder of scenes into one archive.

The folder contains processed scenes, or is a raw tree. The archive is a plain .tar.zst that any tar
opens. Training reads it directly: a scene can be read alone, also over HTTP.

The archive contains a SHA-256 of every file, and the same files give the same bytes. It gets its
name when it is complete. An existing archive is compared with the folder, and is not changed if it
is up to date. To check a copy, use the file FILE.sha256 beside the archive: sha256sum -c.

examples:
  scannet-prep pack                           # data/processed
  scannet-prep pack - | ssh host "cd /datasets && scannet-prep unpack -"
  scannet-prep pack data/ScanNet -o data/raw.tar.zst --shard-size 4GB
  scannet-prep pack -o s3://bucket/s.tar.zst  # needs s3fs
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes, format_duration, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.processed.scene import ProcessOptions
    from scannet_prep.stages.pack import PackReport

_PIPE = "-"


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "places",
        nargs="*",
        metavar="SOURCE",
        help="folder to pack (default: data/processed); - writes the archive to standard output",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the archive (default: data/scannet.tar.zst), also at s3://, gs:// or az://; "
        "- for standard output",
    )
    options = parser.add_argument_group("what to make")
    options.add_argument(
        "--level",
        type=int,
        choices=range(23),
        default=1,
        metavar="N",
        help="compression level of zstd, 1..22 (default: 1); 0 for no compression: the archive is "
        "11 %% larger, and scenes are read twice as fast",
    )
    options.add_argument(
        "--shard-size",
        type=shared.size_argument,
        metavar="SIZE",
        help="write several archives of at most this size, such as 4GB or 500MiB",
    )
    options.add_argument(
        "--force",
        action="store_true",
        help="pack again, even if the archive is up to date or contains more scenes",
    )
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser.add_argument_group("how to run"), "compressing threads")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.base.memory import keep_freed_memory
    from scannet_prep.stages import pack

    source = _find_source(arguments)
    is_pipe = _is_pipe(arguments)
    target = None
    if not is_pipe:
        target = shared.place_argument(arguments.output or "data/scannet.tar.zst")
    keep_freed_memory()
    report = pack.run(
        source,
        target,
        selection=shared.selection_from(arguments),
        level=arguments.level,
        shard_bytes=arguments.shard_size,
        is_forced=arguments.force,
        jobs=shared.jobs_from(arguments),
        progress=console,
    )

    _warn(report, console)
    lines = [_describe_archives(report, console.seconds), *_describe_checksums(report)]
    status = 3 if report.missing else 0
    if is_pipe:
        # Standard output is the archive; this goes to standard error.
        console.say("\n".join(lines))
        return status
    is_single = len(report.archives) == 1
    if report.options is not None and is_single and not report.up_to_date:
        lines.append(f"in Python: {_describe_dataset(report, report.options)}")
    return console.result("\n".join(lines), report, status, source=source, seconds=console.seconds)


def _find_source(arguments: argparse.Namespace) -> Path:
    """Return the folder to pack."""
    folders = [word for word in arguments.places if word != _PIPE]
    if len(folders) > 1:
        problem = f"one folder can be packed at a time, not {len(folders)}"
        raise UsageError(problem, "scannet-prep pack --help")
    return shared.path_argument(folders[0] if folders else "data/processed")


def _is_pipe(arguments: argparse.Namespace) -> bool:
    """Whether the archive goes to standard output.

    Raises:
        UsageError: It cannot go there.
    """
    if _PIPE not in (*arguments.places, arguments.output):
        return False
    if arguments.output not in (None, _PIPE):
        problem = f"- and -o {arguments.output} are two places for one archive"
        raise UsageError(problem, "leave out - or -o")
    # Python sets `sys.__stdout__` to None if the shell has closed standard output (>&-).
    if arguments.json or sys.__stdout__ is None or sys.stdout.isatty():
        hint = 'name a file (-o FILE), or a pipe: | ssh host "scannet-prep unpack -"'
        raise UsageError("standard output is a terminal, closed, or taken by --json", hint)
    return True


def _warn(report: PackReport, console: Console) -> None:
    """Print the files that were left out, the archives that are too large, the missing scenes."""
    if report.left_out:
        left_out = f"{len(report.left_out):,} ({list_some(report.left_out)})"
        console.say(f"left out, because {report.kind} trees have no such names: {left_out}")
    if report.oversized:
        console.warn(f"warning: {_describe_oversized(report)}")
    if report.missing:
        missing = list_some(list(report.missing))
        console.warn(f"warning: missing, because processing failed: {missing}")


def _describe_archives(report: PackReport, seconds: float) -> str:
    """Describe the archives, their size, and how long the run took."""
    names = list_some(list(report.archives))
    scenes = count_of(report.scenes, "scene")
    size = format_bytes(sum(report.archives.values()))
    duration = format_duration(seconds)
    if report.up_to_date:
        return f"up to date: {names} was read and holds the same {scenes}, {size}, in {duration}"
    return f"{names}: {scenes}, {size} of {format_bytes(report.size_bytes)}, in {duration}"


def _describe_checksums(report: PackReport) -> list[str]:
    """Describe the SHA-256 of a single archive, and how to check copies of archives on a disk."""
    path, *others = report.archives
    name = Path(path).name
    lines = []
    if others:
        # The shards are in order, so this one is number 0.
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
    count = count_of(len(scenes), "archive")
    return f"{count} larger than --shard-size, because of a single scene: {list_some(scenes)}"


def _describe_dataset(report: PackReport, options: ProcessOptions) -> str:
    """Return the Python line that opens the archive, with its scenes, label set and frame."""
    (path,) = report.archives
    split, count = next(iter(report.splits.items()))
    frame = "axis-aligned" if options.align_axis else "not axis-aligned"
    call = f"ScanNet({json.dumps(path, ensure_ascii=False)}, split={json.dumps(split)})"
    return f"{call}  # {count_of(count, 'scene')}, {options.label_set.name}, {frame}"
