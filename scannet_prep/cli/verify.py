"""Check a raw tree, a processed folder, an archive, or extracted frames, or compare two copies.

Changes nothing, and lists the damage scene by scene. An error means that something is wrong; a note
is only worth knowing.

Raw tree: every file by itself and with the others of its scene (counts, segment ids, labels.ply
against the groups, axis alignment), the records in scannet.lock, the label map and, unless scenes
are selected, tasks/. Processed folder: checksums, shapes and values of every scene, against the
manifest. Archive: every checksum. Frames: every file that the record of a scene lists.

With --against, PATH and another copy of the same data are compared, both with processed scenes or
both raw: which scenes one of them lacks, which arrays differ and where, and how many vertices
changed their class.

examples:
  scannet-prep verify data/ScanNet
  scannet-prep verify data/processed --complete --splits train val
  scannet-prep verify https://host/scannet.tar.zst --scenes scene0011_00
  scannet-prep verify data/processed --against /their/scannet.tar.zst
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, format_table
from scannet_prep.cli.outcome import Outcome
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.stages.comparison import Comparison
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
    parser.add_argument(
        "--complete",
        action="store_true",
        help="report missing scenes of the official splits as errors",
    )
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    selection = shared.selection_from(arguments)
    jobs = shared.jobs_from(arguments)
    if arguments.against is not None:
        from scannet_prep.stages import comparison

        if arguments.complete:
            raise UsageError("--complete is for checks, not for --against", "leave out one of them")
        compared = comparison.run(
            arguments.place, arguments.against, selection=selection, jobs=jobs, progress=console
        )
        return Outcome(compared, _describe_comparison(compared), compared.findings)

    from scannet_prep.stages import verify

    report = verify.run(
        arguments.place,
        selection=selection,
        must_be_complete=arguments.complete,
        jobs=jobs,
        progress=console,
    )
    lines = _describe(report, console.seconds)
    return Outcome(report, lines, report.findings, {"seconds": console.seconds})


def _describe(report: VerifyReport, seconds: float) -> Iterator[str]:
    """Yield the counts of the check."""
    counts = [
        f"{row['present']:,} of {row['official']:,} {name}" for name, row in report.splits.items()
    ]
    yield (
        f"{report.path} ({report.kind}): {count_of(report.scenes, 'scene')} ({', '.join(counts)}), "
        f"{format_bytes(report.size_bytes)}, in {format_duration(seconds)}"
    )
    error_count = sum(finding.is_error for finding in report.findings)
    note_count = len(report.findings) - error_count
    damaged = count_of(len(report.damaged_scenes), "damaged scene")
    yield f"{damaged}, {count_of(error_count, 'error')}, {count_of(note_count, 'note')}"


def _describe_comparison(report: Comparison) -> Iterator[str]:
    """Yield the vertices by class here and there, and the counts of scenes."""
    if report.classes:
        rows = [(row.here, row.there, f"{row.vertices:,}") for row in report.classes]
        header = (f"class in {report.path}", "in the other copy", "vertices")
        yield format_table(header, rows, text_columns=2)
    yield (
        f"scenes: {report.same:,} the same, {len(report.different):,} different, "
        f"{len(report.only_here):,} only here, {len(report.only_there):,} only there"
    )
