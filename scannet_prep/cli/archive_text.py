"""What `verify` and `info` say about archives."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli.console import describe_hints, format_count, format_duration, format_table
from scannet_prep.cli.listing import MAX_SHOWN, WIDTH, describe_list
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.info.archive import ArchiveInfo, ArchiveSplit
    from scannet_prep.stages.verify.archive import ArchiveFinding, ArchiveReport, VerifyArchivesReport

_MAX_ROWS = 100


def describe_check(report: VerifyArchivesReport, seconds: float, *, has_all: bool) -> str:
    """What `verify` found in archives."""
    lines: list[str] = []
    if report.findings:
        shown = report.findings if has_all else report.findings[:_MAX_ROWS]
        has_several = len(report.archives) > 1
        header = ["", *(["archive"] if has_several else []), "where", "what"]
        lines.append(format_table(header, [_row(finding, has_several=has_several) for finding in shown]))
        if len(shown) < len(report.findings):
            lines.append(f"... and {len(report.findings) - len(shown):,} more; all of them with -v or --json")
        lines += ["", *describe_hints(report.findings, has_all=has_all)]
    for archive in report.archives:
        lines += _describe_archive(archive, has_all=has_all)
    content_bytes = sum(archive.content_bytes for archive in report.archives)
    size_bytes = sum(archive.size_bytes for archive in report.archives)
    depth = f"{format_bytes(content_bytes)} unpacked and checked"
    if report.is_quick:
        depth = "no scene was read"
    lines.append(f"{format_bytes(size_bytes)} ({depth}), in {format_duration(seconds)}")
    error_count = len(report.errors)
    lines.append(f"{format_count(error_count, 'error')}, {format_count(len(report.findings) - error_count, 'note')}")
    return "\n".join(lines)


def describe_info(found: ArchiveInfo, *, has_all: bool) -> Iterator[str]:
    """What `info` says about archives, but for the classes."""
    name = found.names[0] if len(found.names) == 1 else f"{found.names[0]} and {len(found.names) - 1:,} more"
    levels = ", ".join(map(str, found.levels))
    yield f"{name}: archive of {' and '.join(found.kinds)} scenes, by {', '.join(found.programs)}"
    if not found.is_complete:
        yield "not complete: processing had not finished when it was packed"
    if found.options:
        yield "options: " + ", ".join(f"{key}: {value}" for key, value in found.options.items())
    yield (
        f"{format_bytes(found.size_bytes)} for {format_bytes(found.content_bytes)} unpacked "
        f"({100 * found.ratio:.1f} %), zstd level {levels}; files: {found.file_count:,}"
    )
    if found.splits:
        yield ""
        yield _table(found)
    yield from describe_list(
        "missing shards of the set", [Path(name).name for name in found.missing_shards], has_all=has_all
    )
    failures = [f"{scene_id}: {text}" for scene_id, text in found.failures.items()]
    yield from describe_list("scenes that failed in processing", failures, has_all=has_all)
    if found.unreadable:
        yield f"\ncould not be read: {len(found.unreadable):,}; see above"


def _describe_archive(archive: ArchiveReport, *, has_all: bool) -> list[str]:
    vertices = f", {archive.vertex_count:,} vertices" if archive.vertex_count else ""
    lines = [f"{archive.name}: scenes: {archive.scene_count:,}, whole: {len(archive.whole_scenes):,}{vertices}"]
    if archive.damaged_scenes:
        lines.append(_fill("damaged scenes: ", archive.damaged_scenes, has_all=has_all))
    if archive.is_truncated and archive.whole_scenes:
        lines.append(_fill("whole scenes: ", archive.whole_scenes, has_all=has_all))
    return lines


def _fill(title: str, names: tuple[str, ...], *, has_all: bool) -> str:
    shown = names if has_all else names[:MAX_SHOWN]
    more = "" if len(shown) == len(names) else f" and {len(names) - len(shown):,} more; all of them with -v or --json"
    return textwrap.fill(title + " ".join(shown) + more, WIDTH, subsequent_indent="  ")


def _row(finding: ArchiveFinding, *, has_several: bool) -> list[str]:
    where = [*([Path(finding.path).name] if has_several else []), finding.scene_id or "-"]
    return [str(finding.severity), *where, finding.message]


def _table(found: ArchiveInfo) -> str:
    has_vertices = found.vertex_count > 0
    sums = [
        found.scene_count,
        found.vertex_count,
        *(sum(item) for item in zip(*map(_sizes, found.splits), strict=True)),
    ]
    numbers = [[item.scene_count, item.vertex_count, *_sizes(item)] for item in found.splits]
    names = [item.name for item in found.splits]
    rows = []
    for name, row in zip([*names, "all"], [*numbers, sums], strict=True):
        scenes, vertices, stored_bytes, size_bytes = row
        per_vertex = f"{stored_bytes / vertices:.1f}" if vertices else "-"
        counts = [f"{vertices:,}", per_vertex] if has_vertices else []
        rows.append([name, f"{scenes:,}", format_bytes(stored_bytes), format_bytes(size_bytes), *counts])
    header = ["split", "scenes", "size", "unpacked", *(["vertices", "bytes per vertex"] if has_vertices else [])]
    return format_table(header, rows if len(names) > 1 else rows[:1], right=frozenset(range(1, 6)))


def _sizes(item: ArchiveSplit) -> tuple[int, int]:
    return item.stored_bytes, item.size_bytes
