"""Download the raw ScanNet files.

--types seg selects the files that segmentation needs: 7,766 files, about 21 GB,
for all scenes. Each file is checked before it gets its final name, and its
SHA-256 is recorded in scannet.lock.

Run the command again to check existing files, replace damaged ones and download
missing ones. Interrupted files continue where they stopped. Scenes that still
lack a file at the end are listed in failed.txt. If the server goes down, the
download pauses and retries at intervals for up to four hours.

The first time, the command asks whether you have signed the ScanNet Terms of
Use. Without a terminal it does not ask, and requires --accept-terms.

examples:
  scannet-prep download --types seg-min --dry-run
  scannet-prep download --types seg --accept-terms
  scannet-prep download --types seg --scenes @data/ScanNet/failed.txt
  scannet-prep download --types seg --print-urls > urls.txt

types (several may be given):
  seg        mesh, labels, segments, groups and .txt of each scene; label map
  seg-min    seg without _vh_clean_2.labels.ply (9.7 GB, for --labels-from ply)
  suffix     any official suffix, such as _vh_clean.aggregation.json or .sens
  file name  a file that belongs to no scene, such as scannet_frames_25k.zip

environment variables:
  SCANNET_PREP_BASE_URL  same as --base-url
  HTTPS_PROXY, NO_PROXY  the proxy, and the servers that are reached without it
  REQUESTS_CA_BUNDLE     file or folder of certificate authorities to trust
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from scannet_prep.base.text import count_of, format_bytes, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome, format_table
from scannet_prep.release.files import TERMS_URL, TYPES

if TYPE_CHECKING:
    from scannet_prep.stages.download import DownloadPlan


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_path_argument(
        parser,
        "-o",
        "--output",
        metavar="DIR",
        default="data/ScanNet",
        text="folder for the raw files",
    )
    parser.add_argument(
        "--types",
        nargs="+",
        action="extend",
        required=True,
        choices=TYPES,
        metavar="TYPE",
        help="files to download: seg, seg-min, or file suffixes such as .sens (see types below)",
    )
    parser.add_argument(
        "--accept-terms",
        action="store_true",
        help="confirm that you have read, signed and accept the terms of use",
    )
    shared.add_selection_arguments(parser)
    # The server belongs to a university chair, and many people share it.
    parser.add_argument(
        "--jobs",
        type=int,
        choices=range(1, 9),
        default=4,
        metavar="N",
        help="parallel connections, at most 8 (default: 4)",
    )
    parser.add_argument(
        "--base-url",
        type=shared.server_argument,
        default=shared.find_base_url(),
        metavar="URL",
        help="download from this mirror (default: the ScanNet server)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="accept any certificate, so that anybody can pose as the server",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="show what would be downloaded, then exit"
    )
    instead.add_argument(
        "--print-urls",
        action="store_true",
        help="print the URLs of missing and incomplete files, then exit",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.remote.addresses import hide_secrets
    from scannet_prep.stages import download

    plan = download.plan(
        arguments.output,
        arguments.types,
        selection=shared.selection_from(arguments),
        base_url=arguments.base_url,
    )
    shown_url = hide_secrets(plan.base_url)
    facts: dict[str, Any] = {"data_dir": str(plan.data_dir), "base_url": shown_url}
    if arguments.print_urls:
        files = [{"url": file.url, "path": file.local_path} for file in plan.missing]
        return Outcome(facts | {"files": files}, [file["url"] for file in files])
    if arguments.dry_run:
        return _show_plan(plan, facts)

    if arguments.insecure:
        console.warn("warning: --insecure: anybody can pose as the server")
    console.say(
        f"download: {shown_url} -> {plan.data_dir}: {len(plan.present):,} of "
        f"{count_of(len(plan.files), 'file')} already there, which are checked; "
        f"about {format_bytes(plan.missing_bytes.total())} to fetch"
    )
    report = download.run(
        plan,
        jobs=arguments.jobs,
        is_insecure=arguments.insecure,
        progress=console,
        accepts_terms=arguments.accept_terms or _asks_for_terms(plan, console),
    )
    counts = {
        "fetched": len(report.fetched),
        "already there": len(report.kept),
        "failed": len(report.failures),
    }
    facts |= {
        "files": counts,
        "failures": report.failures,
        "received_bytes": report.received_bytes,
    }
    numbers = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    line = (
        f"{numbers}; {format_bytes(report.received_bytes)} received in "
        f"{format_duration(console.seconds)}"
    )
    return Outcome(facts, [line], report.failures)


def _asks_for_terms(plan: DownloadPlan, console: Console) -> bool:
    """Ask at a terminal, once, whether the terms of use are accepted."""
    from scannet_prep.stages.download import has_accepted_terms

    # Python has no standard input if its descriptor was closed (`<&-`).
    has_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if has_accepted_terms(plan.data_dir) or console.is_json or not has_terminal:
        return False
    console.warn(
        f"ScanNet is for those who have signed its Terms of Use: {TERMS_URL}\n"
        "Have you signed the terms, and do you accept them? [y/N]"
    )
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _show_plan(plan: DownloadPlan, facts: dict[str, Any]) -> Outcome:
    """Show how many files of each type exist, and how much is to be fetched."""
    present = Counter(file.kind for file in plan.present)
    rows = []
    for kind, count in Counter(file.kind for file in plan.files).items():
        size = format_bytes(plan.missing_bytes[kind])
        rows.append([kind.suffix, f"{count:,}", f"{present[kind]:,}", size])
    lines = [
        format_table(["type", "files", "already there", "about"], rows),
        (
            f"\n{count_of(len(plan.missing), 'file')} to fetch, about "
            f"{format_bytes(plan.missing_bytes.total())}"
        ),
        "(dry run: nothing was fetched; the content of files already there was not checked)",
    ]
    facts |= {
        "dry_run": True,
        "files": len(plan.files),
        "present": len(plan.present),
        "missing_bytes": plan.missing_bytes.total(),
    }
    return Outcome(facts, lines)
