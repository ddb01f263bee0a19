"""What `verify` and `info` say about archives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.cli.console import format_duration
from scannet_prep.cli.listing import describe_list, format_splits
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.info.archive import ArchiveInfo
    from scannet_prep.stages.verify.archive import ArchivesReport


def describe_check(report: ArchivesReport, seconds: float, *, has_all: bool) -> Iterator[str]:
    """What `verify` found in archives, but for the findings."""
    vertices = f", {report.vertices:,} vertices" if report.vertices else ""
    yield f"{_name(report.paths)}: scenes: {report.scenes:,}, whole: {len(report.whole_scenes):,}{vertices}"
    yield from describe_list("damaged scenes", report.damaged_scenes, has_all=has_all)
    if report.truncated:
        yield from describe_list("whole scenes", report.whole_scenes, has_all=has_all)
    depth = "no scene was read" if report.quick else f"{format_bytes(report.content_bytes)} unpacked and checked"
    yield f"{format_bytes(report.size_bytes)} ({depth}), in {format_duration(seconds)}"


def describe_info(found: ArchiveInfo, *, has_all: bool) -> Iterator[str]:
    """What `info` says about archives, but for the classes."""
    yield f"{_name(found.paths)}: archive of {found.archive_kind} scenes, by {', '.join(found.programs)}"
    if not found.complete:
        yield "not complete: processing had not finished when it was packed"
    if found.options:
        yield "options: " + ", ".join(f"{key}: {value}" for key, value in found.options.items())
    levels = ", ".join(map(str, found.levels))
    ratio = found.size_bytes / max(1, found.content_bytes)
    sizes = f"{format_bytes(found.size_bytes)} for {format_bytes(found.content_bytes)} unpacked ({ratio:.1%})"
    yield f"{sizes}, zstd level {levels}; files: {found.files:,}"
    yield "\n" + format_splits(found.splits)
    yield from describe_list("missing shards of the set", found.missing_shards, has_all=has_all)
    failures = [f"{scene_id}: {text}" for scene_id, text in found.failures.items()]
    yield from describe_list("scenes that failed in processing", failures, has_all=has_all)


def _name(paths: tuple[str, ...]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"
