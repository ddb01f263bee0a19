"""Fetch the raw files that are needed.

With --types seg these are the 7,765 files (about 21 GB) of all scenes that segmentation needs. Every file is checked
before it gets its final name, and recorded with its SHA-256 in scannet.lock.

Running it again checks what is there, mends what is damaged, and fetches what is missing; a file that was broken off
continues where it stopped. Scenes that lack a file in the end are listed in failed.txt. While the server is down, the
download pauses and retries at intervals, for up to four hours.

examples:
  scannet-prep download --types seg-min --dry-run
  scannet-prep download --types seg --accept-terms
  scannet-prep download --types seg --scenes @data/ScanNet/failed.txt
  scannet-prep download --types seg --print-urls aria2 > urls.txt

types: seg (mesh, labels, segments, aggregation and .txt of each scene, and the label map), seg-min (the same without
_vh_clean_2.labels.ply, nearly half of the bytes, which process reads only with --labels-from ply), or any of the
official suffixes, for example _vh_clean.aggregation.json or .sens, or files of no scene, such as
scannet_frames_25k.zip; several may be given

environment: SCANNET_PREP_ACCEPT_TERMS=1 and SCANNET_PREP_BASE_URL stand for the options of these names;
HTTPS_PROXY, NO_PROXY and REQUESTS_CA_BUNDLE count too
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.cli.arguments import (
    CommandParser,
    add_selection_arguments,
    add_shard_argument,
    add_trust_arguments,
    certificates_from,
    describe_share,
    path_argument,
    positive_number,
    selection_from,
    shard_from,
    size_argument,
)
from scannet_prep.cli.console import Console, describe_merge, format_count, format_duration, format_table
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.shards import Share
    from scannet_prep.stages.download import DownloadPlan, DownloadReport


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "-o", "--output", type=path_argument, default=Path("data/ScanNet"), metavar="DIR",
        help="folder for the raw files (default: data/ScanNet)",
    )  # fmt: skip
    parser.add_argument(
        "--types", nargs="+", required=True, metavar="TYPE", help="which files: seg, seg-min, or suffixes"
    )
    parser.add_argument("--accept-terms", action="store_true", help="I have read, signed and accept the terms of use")
    parser.add_argument("--verify", action="store_true", help="look into files too that scannet.lock knows")
    add_selection_arguments(parser)
    add_shard_argument(parser)
    server = parser.add_argument_group("server")
    jobs = "connections, 1 to 8, of all shards together (default: 4, or what shards leave)"
    server.add_argument("--jobs", type=positive_number, metavar="N", help=jobs)
    server.add_argument("--limit-rate", type=size_argument, metavar="SIZE", help="bytes a second at most: 500kB, 2MB")
    server.add_argument(
        "--wait", type=_parse_time, default=180.0, metavar="TIME",
        help="for a server that is down from the start: 12h (default: 3m)",
    )  # fmt: skip
    server.add_argument("--base-url", metavar="URL", help="a mirror (default: the ScanNet server)")
    add_trust_arguments(server)
    instead = parser.add_argument_group("instead of fetching").add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    instead.add_argument("--print-urls", choices=("plain", "aria2"), metavar="FORMAT", help="plain, aria2; with --json")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.release import BASE_URL
    from scannet_prep.remote.gate import TransferPolicy
    from scannet_prep.stages import download

    base_url = arguments.base_url or os.environ.get("SCANNET_PREP_BASE_URL") or BASE_URL
    selection, shard = selection_from(arguments), shard_from(arguments)
    plan = download.plan(arguments.output, arguments.types, selection=selection, base_url=base_url, shard=shard)
    jobs = arguments.jobs or max(1, min(4, 8 // shard.count if shard else 4))
    if arguments.print_urls:
        return _print_urls(plan, arguments.print_urls, console)
    if arguments.dry_run:
        return _show_plan(plan, "seg" in arguments.types, console)
    certificates = certificates_from(arguments, console)
    there = f"{len(plan.present):,} of {format_count(len(plan.files), 'file')} already there (checked now)"
    start = f"download: {plan.shown_base_url} -> {plan.data_dir}: {there}, to fetch: {_describe_needed(plan)}"
    console.say(start + describe_share(plan.share))
    policy = TransferPolicy(bytes_per_s=arguments.limit_rate, first_answer_patience_s=arguments.wait)
    report = download.run(
        plan, jobs=jobs, policy=policy, certificates=certificates, progress=console,
        accepts_terms=arguments.accept_terms or os.environ.get("SCANNET_PREP_ACCEPT_TERMS") == "1",
        is_strict=arguments.verify,
    )  # fmt: skip
    for text, hint in report.describe_failures():
        console.warn(text, hint)
    text = _describe_report(report, console.seconds, plan.share)
    status = 3 if report.failures else 0
    return console.result(text, report.to_json(), status, shard=str(shard or ""), seconds=console.seconds)


def _print_urls(plan: DownloadPlan, style: str, console: Console) -> int:
    """Print the addresses of what is missing, for other download programs."""
    folder, files = plan.data_dir.absolute(), plan.missing
    form = "{0}\n  dir={1}\n  out={2}" if style == "aria2" else "{0}"
    text = "\n".join(form.format(file.url, folder, file.local_path) for file in files)
    value = {"dir": str(folder), "files": [{"url": file.url, "path": file.local_path} for file in files]}
    return console.result(text, value, 0) if files or console.is_json else 0


def _describe_needed(plan: DownloadPlan) -> str:
    """How much is to be fetched, as far as that is known."""
    unknown = ", ".join(dict.fromkeys(file.kind.suffix for file in plan.missing if file.kind.typical_bytes is None))
    return f"about {format_bytes(plan.needed_bytes)}" + (f", and {unknown} of unknown size" if unknown else "")


def _show_plan(plan: DownloadPlan, is_seg: bool, console: Console) -> int:
    from scannet_prep.release import LABELS_MESH

    present = Counter((file.kind, file.split) for file in plan.files if file.local_path in plan.present)
    cells, kinds = [], []
    for (kind, split), count in Counter((file.kind, file.split) for file in plan.files).items():
        there, each = present[kind, split], kind.typical_bytes
        size = "unknown" if each is None else format_bytes(each * (count - there))
        cells.append([kind.suffix, split or "-", f"{count:,}", f"{there:,}", size])
        kinds.append({"type": kind.suffix, "split": str(split or ""), "files": count, "present": there})
    lines = [
        format_table(["type", "split", "files", "already there", "about"], cells, right=frozenset({2, 3, 4})),
        "",
        f"{format_count(len(plan.missing), 'file')} to fetch, {_describe_needed(plan)}",
    ]
    saved_bytes = sum(file.kind.typical_bytes or 0 for file in plan.missing if file.kind is LABELS_MESH)
    if is_seg and saved_bytes:
        what = f"{LABELS_MESH.suffix}, which process reads only with --labels-from ply"
        lines.append(f"--types seg-min would save about {format_bytes(saved_bytes)}: it leaves out {what}")
    lines.append("(dry run: nothing was fetched; whether files already there are whole is checked by a run)")
    value = {
        "dry_run": True,
        "data_dir": str(plan.data_dir),
        "base_url": plan.shown_base_url,
        "shard": str(plan.share.shard) if plan.share else "",
        "files": len(plan.files),
        "present": len(plan.present),
        "missing_bytes": plan.needed_bytes,
        "kinds": kinds,
    }
    return console.result("\n".join(lines), value, 0)


def _describe_report(report: DownloadReport, seconds: float, share: Share | None) -> str:
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in report.counts().items())
    rate = format_bytes(int(report.received_bytes / max(seconds, 1e-3)))
    lines = [f"{counts}; {format_bytes(report.received_bytes)} received in {format_duration(seconds)} ({rate}/s)"]
    lines += describe_merge(share)
    if report.failures:
        these = f"; --scenes {quote(f'@{report.plan.data_dir}/failed.txt')} for these only"
        lines.append(f"to try again, run the same command{these if share is None else ''}")
    return "\n".join(lines)


def _parse_time(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text.strip().lower())
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 30m or 12h")
    return int(match[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}[match[2]]
