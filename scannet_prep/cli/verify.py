"""Check a raw tree, a processed folder, frames or an archive, or compare two.

Changes nothing, and lists the damage scene by scene. An error means that
something is wrong; a note is only worth knowing.

Raw tree: every file by itself and with the others of its scene (counts, segment
ids, labels.ply against the groups, axis alignment), the records in
scannet.lock, the label map and, unless scenes are selected, tasks/. Processed
folder: checksums, shapes and values of every scene, against the manifest.
Archive: every checksum. Frames: every file that the record of a scene lists.

With --against, PATH and another copy of the same data are compared: which
scenes one of them lacks, which arrays differ and where, and how many vertices
have another class there. Before the comparison, raw scenes are processed with
the default options.

examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/processed --splits train val
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
  scannet-prep verify data/processed --against /their/scannet.tar.zst
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome

if TYPE_CHECKING:
    from scannet_prep.stages.verify import VerifyReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_place_argument(parser)
    parser.add_argument(
        "--against",
        type=shared.place_argument,
        metavar="PATH",
        help="compare with this copy, instead of checking",
    )
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import verify

    report = verify.run(
        arguments.place,
        against=arguments.against,
        selection=shared.selection_from(arguments),
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    lines = _describe(report, console.seconds)
    return Outcome(report, lines, report.findings)


def _describe(report: VerifyReport, seconds: float) -> Iterator[str]:
    """Yield the counts."""
    for change, count in report.classes.items():
        yield f"{count:,} vertices: {change}"
    counts = [
        f"{row['present']:,} of {row['official']:,} {name}" for name, row in report.splits.items()
    ]
    yield (
        f"{report.path} ({report.kind}): {count_of(report.scenes, 'scene')} ({', '.join(counts)}), "
        f"{format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
    )
    error_count = sum(finding.is_error for finding in report.findings)
    note_count = len(report.findings) - error_count
    damaged = count_of(len(report.damaged_scenes), "scene")
    yield f"{damaged} with errors, {count_of(error_count, 'error')}, {count_of(note_count, 'note')}"
