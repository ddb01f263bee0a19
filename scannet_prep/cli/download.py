"""`scannet-prep download`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scannet_prep.cli.arguments import (
    CommandParser,
    Commands,
    add_output_arguments,
    add_selection_arguments,
    path_argument,
    positive_number,
    selection_from,
)
from scannet_prep.cli.console import Console, format_count, format_duration, format_table
from scannet_prep.cli.trust import add_trust_arguments, certificates_from
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.download import DownloadPlan, DownloadReport

_DESCRIPTION = """\
Fetches the raw files that are needed: with --types seg the 7,765 files (about 21 GB) of all scenes that segmentation
needs. Every file is checked before it gets its final name, and recorded with its SHA-256 in scannet.lock.

Running it again checks what is there, mends what is damaged, and fetches what is missing; a file that was broken off
goes on where it stopped. Scenes that lack a file in the end are listed in failed.txt.
"""
_EPILOG = """\
types:
  seg    mesh, labels, segments, aggregation and .txt of each scene, and the label map
  or any of the official suffixes, for example _vh_clean.aggregation.json or .sens; several may be given

environment:
  SCANNET_PREP_ACCEPT_TERMS=1   the same as --accept-terms
  SCANNET_PREP_BASE_URL         the same as --base-url
  HTTPS_PROXY, NO_PROXY         proxies
  REQUESTS_CA_BUNDLE            certificate authorities, where there is no --ca-bundle

examples:
  scannet-prep download --types seg --dry-run
  scannet-prep download --types seg --accept-terms
  scannet-prep download --types seg --splits val --limit 10
  scannet-prep download --types seg --scenes @data/ScanNet/failed.txt
  scannet-prep download --types seg --print-urls aria2 > urls.txt
"""


def add_command(commands: Commands) -> None:
    """Add the command to the program."""
    parser: CommandParser = commands.add_parser(
        "download", help="fetch the raw files that are needed", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "-o", "--output", type=path_argument, default=Path("data/ScanNet"), metavar="DIR",
        help="folder for the raw files (default: data/ScanNet)",
    )  # fmt: skip
    parser.add_argument(
        "--types", nargs="+", required=True, metavar="TYPE", help="which files: seg, or suffixes; see below"
    )
    parser.add_argument("--accept-terms", action="store_true", help="I have read, signed and accept the terms of use")
    add_selection_arguments(parser)
    server = parser.add_argument_group("server")
    server.add_argument("--jobs", type=positive_number, default=4, metavar="N", help="connections, 1 to 8 (default: 4)")
    server.add_argument("--base-url", metavar="URL", help="a mirror (default: the ScanNet server)")
    add_trust_arguments(server)  # type: ignore[arg-type]  # argparse's groups take arguments as parsers do
    instead = parser.add_argument_group("instead of fetching").add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    instead.add_argument(
        "--print-urls", choices=("plain", "aria2", "json"), metavar="FORMAT", help="plain, aria2, json"
    )
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.release import BASE_URL
    from scannet_prep.stages import download

    base_url = arguments.base_url or os.environ.get("SCANNET_PREP_BASE_URL") or BASE_URL
    plan = download.plan(arguments.output, arguments.types, selection=selection_from(arguments), base_url=base_url)
    if arguments.print_urls:
        return _print_urls(plan, arguments.print_urls, console)
    if arguments.dry_run:
        return console.result(_describe_plan(plan), _plan_to_json(plan), 0)
    certificates = certificates_from(arguments, console)
    download.check(plan, jobs=arguments.jobs, certificates=certificates)
    _ask_for_terms(arguments, console)
    console.say(_describe_start(plan))
    started_s = time.monotonic()
    report = download.run(plan, jobs=arguments.jobs, certificates=certificates, progress=console.progress())
    seconds = time.monotonic() - started_s
    for failure in report.failures if console.is_quiet else ():  # otherwise each was told when it happened
        console.warn(f"{failure.outcome}: {failure.message}", failure.hint)
    for path in report.orphans:
        console.say(f"left over from another download program, may be removed: {path}")
    value = {"command": "download", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(_describe_report(report, seconds), value, 3 if report.failures else 0)


def _ask_for_terms(arguments: argparse.Namespace, console: Console) -> None:
    """Record that the terms are accepted, if they are; ask only on a terminal."""
    from scannet_prep.release import TERMS_URL
    from scannet_prep.stages.download.terms import accept_terms, has_accepted_terms, require_terms

    if has_accepted_terms(arguments.output):
        return
    if arguments.accept_terms or os.environ.get("SCANNET_PREP_ACCEPT_TERMS") == "1":
        accept_terms(arguments.output)
        return
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty() and not console.is_json:
        print(f"ScanNet is handed out under its Terms of Use: {TERMS_URL}", file=sys.stderr)
        print("Have you signed them, and do you accept them? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            accept_terms(arguments.output)
            return
    require_terms(arguments.output)


def _print_urls(plan: DownloadPlan, style: str, console: Console) -> int:
    """Print the addresses of what is missing, for other download programs."""
    folder = plan.data_dir.absolute()
    files = [{"url": plan.url(file), "path": file.local_path} for file in plan.missing]
    if console.is_json or style == "json":
        print(json.dumps({"exit_status": 0, "command": "download", "dir": str(folder), "files": files}))
    elif style == "plain":
        print("".join(f"{item['url']}\n" for item in files), end="")
    else:
        print("".join(f"{item['url']}\n  dir={folder}\n  out={item['path']}\n" for item in files), end="")
    return 0


def _describe_start(plan: DownloadPlan) -> str:
    there = f"{len(plan.present):,} of {format_count(len(plan.files), 'file')} already there (and checked now)"
    return f"download: {plan.shown_base_url} -> {plan.data_dir}: {there}, to fetch: {_describe_needed(plan)}"


def _describe_needed(plan: DownloadPlan) -> str:
    """How much is to be fetched, as far as that is known."""
    unknown = ", ".join(kind.suffix for kind in plan.unknown_kinds)
    size = f"about {format_bytes(plan.needed.size_bytes or 0)}"
    if unknown:
        return f"{size} and {unknown} of unknown size" if plan.needed.size_bytes else "of unknown size"
    return size


def _describe_plan(plan: DownloadPlan) -> str:
    from scannet_prep.stages.download.space import describe_lack

    rows: dict[tuple[str, str], list[int]] = {}
    for file in plan.files:
        row = rows.setdefault((file.kind.suffix, str(file.split or "-")), [0, 0, 0])
        row[0] += 1
        row[1] += file.local_path in plan.present
        row[2] += 0 if file.local_path in plan.present else file.kind.typical_bytes or 0
    unknown = {kind.suffix for kind in plan.unknown_kinds}
    cells = [
        [suffix, split, f"{count:,}", f"{there:,}", "unknown" if suffix in unknown else format_bytes(size)]
        for (suffix, split), (count, there, size) in rows.items()
    ]
    to_fetch = f"{format_count(len(plan.missing), 'file')} to fetch, {_describe_needed(plan)}"
    free = "unknown" if plan.free.size_bytes is None else format_bytes(plan.free.size_bytes)
    lines = [
        format_table(["type", "split", "files", "already there", "about"], cells, right=frozenset({2, 3, 4})),
        "",
        f"{to_fetch}; free in {plan.data_dir}: {free}",
    ]
    if plan.lack:
        lines.append(f"the disk will not hold it: it lacks {describe_lack(plan.lack)}")
    lines += [f"left over from another download program: {path}" for path in plan.orphans]
    lines.append("(dry run: nothing was fetched; whether files already there are whole is checked by a run)")
    return "\n".join(lines)


def _plan_to_json(plan: DownloadPlan) -> dict[str, Any]:
    kinds = Counter((file.kind.suffix, str(file.split or "")) for file in plan.files)
    there = Counter((file.kind.suffix, str(file.split or "")) for file in plan.files if file.local_path in plan.present)
    return {
        "command": "download",
        "dry_run": True,
        "data_dir": str(plan.data_dir),
        "base_url": plan.shown_base_url,
        "files": len(plan.files),
        "present": len(plan.present),
        "missing_bytes": plan.needed.size_bytes,
        "free_bytes": plan.free.size_bytes,
        "lacking_bytes": plan.lack.size_bytes,
        "free_files": plan.free.files,
        "lacking_files": plan.lack.files,
        "kinds": [
            {"type": suffix, "split": split, "files": count, "present": there[suffix, split]}
            for (suffix, split), count in kinds.items()
        ],
    }


def _describe_report(report: DownloadReport, seconds: float) -> str:
    from scannet_prep.stages.download import FileOutcome

    rows = [
        [suffix, *(f"{counts[outcome]:,}" for outcome in FileOutcome)] for suffix, counts in report.counts().items()
    ]
    total = sum((counts for counts in report.counts().values()), Counter[FileOutcome]())
    rows.append(["all", *(f"{total[outcome]:,}" for outcome in FileOutcome)])
    rate = format_bytes(int(report.received_bytes / max(seconds, 1e-3)))
    lines = [
        format_table(["type", *FileOutcome], rows, right=frozenset({1, 2, 3, 4})),
        "",
        f"{format_bytes(report.received_bytes)} received in {format_duration(seconds)} ({rate}/s)",
    ]
    if report.mended:
        lines.append(f"mended: {format_count(len(report.mended), 'file')} that had been damaged")
    if report.opened:
        lines.append(f"permissions repaired: {format_count(len(report.opened), 'file')}")
    if report.failed_scenes:
        lines.append(
            f"to try the failed ones again, add --scenes @{report.data_dir / 'failed.txt'} to the same command"
        )
    elif report.failures:
        lines.append("to try again, run the same command")
    return "\n".join(lines)
