"""Check a raw tree, a processed folder, an archive, an export, or extracted frames.

Changes nothing, and lists the damage scene by scene. Several archives are checked as shards of one.
An error means that something is wrong; a note is only worth knowing.

What is checked depends on PATH. Raw tree: the structure of every file, counts that must agree
across files, segment ids of groups, labels.ply against the groups, the label map, every frame of
.sens files, every member of .zip files, the official splits; and, unless scenes are selected, the
files in tasks/. A tree may contain only .sens files, or only tasks/. Processed folder: checksums,
shapes and values of every file, the manifest, the official splits. Archive: every byte. Export and
extracted frames: every file that the manifest lists.

examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify data/scannet-*-of-*.tar.zst
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
"""

from __future__ import annotations

import argparse
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes, format_duration, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_findings

if TYPE_CHECKING:
    from scannet_prep.stages.verify import VerifyReport

_MAX_SHOWN_SCENES = 5


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_places_argument(parser)
    parser.add_argument(
        "--complete",
        action="store_true",
        help="report missing scenes of the official splits as errors",
    )
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
        certificates=certificates_from(arguments, console),
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    # Standard output lists all errors, but without the tracebacks of bugs.
    errors = report.errors
    if not console.is_quiet:
        errors = tuple(error for error in errors if error.trace)
    console.tell_errors(errors)

    root = report.paths[0]
    lines = list(describe_findings(report.findings, root, has_all=console.is_verbose))
    if report.errors and report.kind == "raw":
        command = _download_command(report)
        lines.append(f"to download missing and damaged files again: {command}")
    lines.append(_summarize(report, console.seconds))
    error_count = len(report.errors)
    note_count = len(report.findings) - error_count
    lines.append(f"{count_of(error_count, 'error')}, {count_of(note_count, 'note')}")
    status = 3 if report.errors else 0
    return console.result("\n".join(lines), report, status, seconds=console.seconds)


def _download_command(report: VerifyReport) -> str:
    """Return the command that downloads missing and damaged files again."""
    types, scenes = report.to_download
    root = quote(report.paths[0])
    command = f"scannet-prep download --types {' '.join(types)} -o {root}"
    # Without --scenes, the command would also download scenes that this tree never had. It does
    # so if too many scenes are damaged to list them, or if an error may concern any scene.
    if 0 < len(scenes) <= _MAX_SHOWN_SCENES:
        command += f" --scenes {' '.join(scenes)}"
    return command


def _summarize(report: VerifyReport, seconds: float) -> str:
    """Return the counts of the check, in one line."""
    whole = f"whole: {len(report.whole_scenes):,}"
    # A folder of own scenes has no scene of the official splits.
    if any(row["present"] for row in report.splits.values()):
        splits = []
        for name, row in report.splits.items():
            splits.append(f"{name} {row['present']:,} of {row['official']:,}")
        whole += f" ({', '.join(splits)})"
    counts = [f"{report.kind} scenes: {report.scenes:,}", whole]
    if report.vertices:
        counts.append(f"{report.vertices:,} vertices")
    if report.computed_segments:
        counts.append(f"segments computed: {count_of(report.computed_segments, 'scene')}")
    if report.shared_files:
        counts.append(f"files in tasks/: {report.shared_files:,}")
    counts.append(format_bytes(report.size_bytes))
    counts.append(f"in {format_duration(seconds)}")
    place = list_some(report.paths, shown=1)
    return f"{place}: {', '.join(counts)}"
