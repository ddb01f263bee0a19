"""Download the raw ScanNet files.

--types seg selects the files that segmentation needs: 7,766 files, about 21 GB, for all scenes.
Each file is checked before it gets its final name, and its SHA-256 is recorded in scannet.lock.

Run the command again to check existing files, replace damaged ones and download missing ones.
Interrupted files continue where they stopped. Scenes that still lack a file at the end are listed
in failed.txt. If the server goes down, the download pauses and retries at intervals for up to four
hours.

The first time, the command asks whether you have signed the ScanNet Terms of Use. Without a
terminal it does not ask, and requires --accept-terms.

examples:
  scannet-prep download --types seg-min --dry-run
  scannet-prep download --types seg --accept-terms
  scannet-prep download --types seg --scenes @data/ScanNet/failed.txt
  scannet-prep download --types seg --print-urls aria2 > urls.txt

types (several may be given):
  seg           mesh, labels, segments, aggregation and .txt of each scene, and the label map
  seg-min       seg without _vh_clean_2.labels.ply (9.7 GB, used only with --labels-from ply)
  suffix        any official suffix, for example _vh_clean.aggregation.json or .sens
  file name     a file that belongs to no scene, for example scannet_frames_25k.zip

environment variables:
  SCANNET_PREP_ACCEPT_TERMS=1  same as --accept-terms
  SCANNET_PREP_BASE_URL        same as --base-url

HTTPS_PROXY and NO_PROXY are also respected, and, without --ca-bundle, the first of
REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR that is set.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scannet_prep.base.text import count_of, format_bytes, format_duration
from scannet_prep.cli.arguments import (
    CommandParser,
    add_selection_arguments,
    add_trust_arguments,
    certificates_from,
    duration_argument,
    path_argument,
    positive_number,
    selection_from,
    size_argument,
)
from scannet_prep.cli.console import Console, format_table
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.release.files import FileKind
    from scannet_prep.release.scene import Split
    from scannet_prep.stages.download import DownloadPlan, DownloadReport


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "-o", "--output", type=path_argument, default=Path("data/ScanNet"), metavar="DIR",
        help="folder for the raw files (default: data/ScanNet)",
    )  # fmt: skip
    parser.add_argument(
        "--types", nargs="+", required=True, metavar="TYPE",
        help="files to download: seg, seg-min, or file suffixes such as .sens (see types below)",
    )  # fmt: skip
    parser.add_argument(
        "--accept-terms", action="store_true",
        help="confirm that you have read, signed and accept the terms of use",
    )  # fmt: skip
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check the content of every existing file, even if its SHA-256 matches scannet.lock",
    )
    add_selection_arguments(parser)
    server = parser.add_argument_group("server")
    server.add_argument(
        "--jobs",
        type=positive_number,
        default=4,
        metavar="N",
        help="parallel connections, at most 8 (default: 4)",
    )
    server.add_argument(
        "--limit-rate", type=size_argument, metavar="SIZE",
        help="maximum bytes per second, for example 500kB or 2MB",
    )  # fmt: skip
    server.add_argument(
        "--wait", type=duration_argument, default=180.0, metavar="TIME",
        help="how long to wait if the server is down at the start, for example 12h30m "
        "(default: 3m)",
    )  # fmt: skip
    server.add_argument(
        "--base-url", metavar="URL", help="download from this mirror (default: the ScanNet server)"
    )
    add_trust_arguments(server)
    instead = parser.add_argument_group("without downloading").add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="show what would be downloaded, then exit"
    )
    instead.add_argument(
        "--print-urls", choices=("plain", "aria2"), metavar="FORMAT",
        help="print the URLs of missing and incomplete files, then exit; FORMAT is plain or aria2 "
        "(add --json for JSON)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.release.files import BASE_URL
    from scannet_prep.remote.policy import TransferPolicy
    from scannet_prep.stages import download

    base_url = arguments.base_url or os.environ.get("SCANNET_PREP_BASE_URL") or BASE_URL
    selection = selection_from(arguments)
    plan = download.plan(arguments.output, arguments.types, selection=selection, base_url=base_url)
    if arguments.print_urls:
        return _print_urls(plan, arguments.print_urls, console)
    if arguments.dry_run:
        return _show_plan(plan, is_seg="seg" in arguments.types, console=console)

    certificates = certificates_from(arguments, console)
    accepts_terms = _accepts_terms(arguments, plan, console)
    file_count = count_of(len(plan.files), "file")
    console.say(
        f"download: {plan.shown_base_url} -> {plan.data_dir}: "
        f"{len(plan.complete):,} of {file_count} already there, which are checked; "
        f"to fetch: {_describe_needed(plan)}"
    )
    policy = TransferPolicy(
        bytes_per_s=arguments.limit_rate, first_answer_patience_s=arguments.wait
    )
    report = download.run(
        plan,
        jobs=arguments.jobs,
        policy=policy,
        certificates=certificates,
        progress=console,
        accepts_terms=accepts_terms,
        is_strict=arguments.verify,
    )
    for text, hint in report.describe_failures():
        console.warn(text, hint)
    text = _describe_report(report, console.seconds)
    status = 3 if report.failures else 0
    return console.result(text, report.to_json(), status, seconds=console.seconds)


def _accepts_terms(arguments: argparse.Namespace, plan: DownloadPlan, console: Console) -> bool:
    """Return True if the terms of use are accepted.

    They are accepted by an option, in the environment, in an earlier run, or now at the terminal.

    Raises:
        UsageError: They are not accepted.
    """
    from scannet_prep.stages.download import HOW_TO_SIGN, has_accepted_terms

    if arguments.accept_terms or os.environ.get("SCANNET_PREP_ACCEPT_TERMS") == "1":
        return True
    if has_accepted_terms(plan.data_dir):
        return True
    if console.can_ask:
        console.explain(f"ScanNet is for those who have signed its Terms of Use. {HOW_TO_SIGN}")
        if console.ask("Have you signed the terms, and do you accept them?"):
            return True

    problem = "the ScanNet Terms of Use have not been accepted"
    if not console.can_ask:
        problem += f". {HOW_TO_SIGN}"
    # The command as it was typed, except for a password in the address of the mirror.
    words = [*arguments.words, "--accept-terms"]
    if arguments.base_url:
        words = [word.replace(arguments.base_url, plan.shown_base_url) for word in words]
    command = shlex.join(["scannet-prep", *words])
    raise UsageError(problem, f"once you have signed them: {command}")


def _print_urls(plan: DownloadPlan, style: str, console: Console) -> int:
    """Print the URLs of missing and incomplete files, for other download programs."""
    folder = plan.data_dir.absolute()
    lines = []
    for file in plan.missing:
        lines.append(file.url)
        if style == "aria2":
            lines += [f"  dir={folder}", f"  out={file.local_path}"]
            if file.local_path in plan.incomplete:
                # Without this, aria2 writes under a new name, unless the .aria2 file exists.
                lines.append("  allow-overwrite=true")
    # Without this, an empty line would be printed.
    if not lines and not console.is_json:
        return 0
    value = {
        "dir": str(folder),
        "files": [{"url": file.url, "path": file.local_path} for file in plan.missing],
    }
    return console.result("\n".join(lines), value, status=0)


def _describe_needed(plan: DownloadPlan) -> str:
    """Describe how many bytes are to be fetched, and which types have an unknown size."""
    size = f"about {format_bytes(plan.needed_bytes)}"
    unsized = [file.kind.suffix for file in plan.missing if file.kind.typical_bytes is None]
    if not unsized:
        return size
    suffixes = ", ".join(dict.fromkeys(unsized))
    return f"{size}, and {suffixes} of unknown size"


def _show_plan(plan: DownloadPlan, is_seg: bool, console: Console) -> int:
    """Show how many files of each type and split exist, and how much is to be fetched.

    With `is_seg` (--types seg), also show how much --types seg-min would save.
    """
    lines = [_format_plan_table(plan), ""]
    lines.append(f"{count_of(len(plan.missing), 'file')} to fetch, {_describe_needed(plan)}")
    if plan.incomplete:
        lines.append(f"existing but incomplete files among these: {len(plan.incomplete):,}")
    suggestion = _suggest_seg_min(plan) if is_seg else ""
    if suggestion:
        lines.append(suggestion)
    lines.append(
        "(dry run: nothing was fetched; the content of files already there was not checked)"
    )
    value = {
        "dry_run": True,
        "data_dir": str(plan.data_dir),
        "base_url": plan.shown_base_url,
        "files": len(plan.files),
        "present": len(plan.complete),
        "incomplete": len(plan.incomplete),
        "missing_bytes": plan.needed_bytes,
        "kinds": [
            {
                "type": row.kind.suffix,
                "split": str(row.split or ""),
                "files": row.file_count,
                "present": row.present_count,
            }
            for row in _count_kinds(plan)
        ],
    }
    return console.result("\n".join(lines), value, status=0)


class _KindCount(NamedTuple):
    """The files of one type and split.

    Attributes:
        kind: The type.
        split: The split; None for files that belong to no scene.
        file_count: Number of files.
        present_count: Number of those that exist and are complete.
    """

    kind: FileKind
    split: Split | None
    file_count: int
    present_count: int


def _count_kinds(plan: DownloadPlan) -> list[_KindCount]:
    """Count the files of a plan by type and split."""
    counts = Counter((file.kind, file.split) for file in plan.files)
    present = Counter(
        (file.kind, file.split) for file in plan.files if file.local_path in plan.complete
    )
    return [
        _KindCount(kind, split, count, present[kind, split])
        for (kind, split), count in counts.items()
    ]


def _format_plan_table(plan: DownloadPlan) -> str:
    """Return a table with a row for each type and split."""
    rows = []
    for kind, split, file_count, present_count in _count_kinds(plan):
        size = "unknown"
        if kind.typical_bytes is not None:
            size = format_bytes(kind.typical_bytes * (file_count - present_count))
        rows.append([kind.suffix, split or "-", f"{file_count:,}", f"{present_count:,}", size])
    header = ["type", "split", "files", "already there", "about"]
    return format_table(header, rows, text_columns=2)


def _suggest_seg_min(plan: DownloadPlan) -> str:
    """Describe how much `--types seg-min` would save; empty if nothing."""
    from scannet_prep.release.files import LABELS_MESH

    saved_bytes = sum(
        file.kind.typical_bytes or 0 for file in plan.missing if file.kind is LABELS_MESH
    )
    if not saved_bytes:
        return ""
    return (
        f"--types seg-min would save about {format_bytes(saved_bytes)}: it leaves out "
        f"{LABELS_MESH.suffix}, which process reads only with --labels-from ply"
    )


def _describe_report(report: DownloadReport, seconds: float) -> str:
    """Describe the outcomes of the files, and how to fetch those that failed."""
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in report.counts().items())
    rate = format_bytes(int(report.received_bytes / max(seconds, 1e-3)))
    received = format_bytes(report.received_bytes)
    lines = [f"{counts}; {received} received in {format_duration(seconds)} ({rate}/s)"]
    if report.failures:
        failed_list = shlex.quote(f"@{report.plan.data_dir}/failed.txt")
        lines.append(f"to try again, run the same command; --scenes {failed_list} for these only")
    return "\n".join(lines)
