"""Lists in the texts of commands, cut where they are long."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from scannet_prep.cli.console import format_count, format_table, output_width
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.finding import Finding

MAX_SHOWN = 10
_MAX_FINDINGS = 100
_MAX_HINTS = 5


def join_names(names: Sequence[str], shown: int = 3) -> str:
    """The first names, and how many there are beside them: `a, b, c and 4 more`."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown:,} more" if len(names) > shown else "")


def describe_list(title: str, items: Sequence[str], *, has_all: bool) -> Iterator[str]:
    """Lines with a title and items, the first ten of them or all; nothing where there are none."""
    if not items:
        return
    yield f"\n{title}: {len(items):,}"
    shown = items if has_all else items[:MAX_SHOWN]
    for item in shown:
        yield _fill(item, "  ")
    if len(shown) < len(items):
        yield f"  ... and {len(items) - len(shown):,} more; all of them with -v"


def describe_findings(findings: Sequence[Finding], root: str, *, has_all: bool) -> Iterator[str]:
    """Lines with findings, the first hundred of them or all, and each hint once.

    Args:
        findings: Errors first.
        root: Folder that paths are shown below.
        has_all: Whether to show all.
    """
    shown = findings if has_all else findings[:_MAX_FINDINGS]
    for finding in shown:
        yield _fill(f"{finding.severity}: {finding.place.removeprefix(f'{root}/')}: {finding.message}", "")
    if len(shown) < len(findings):
        yield f"... and {len(findings) - len(shown):,} more; all of them with -v or --json"
    hints = list(dict.fromkeys(finding.hint for finding in findings if finding.hint))
    yield from (f"hint: {hint}" for hint in (hints if has_all else hints[:_MAX_HINTS]))


def count_findings(findings: Sequence[Finding]) -> str:
    """How many errors and notes there are."""
    error_count = sum(finding.is_error for finding in findings)
    return f"{format_count(error_count, 'error')}, {format_count(len(findings) - error_count, 'note')}"


def format_splits(splits: Mapping[str, Mapping[str, int]]) -> str:
    """A table of numbers by split and by what was counted; those that end in `_bytes` are sizes."""
    names = list(next(iter(splits.values()), {}))
    per_vertex = "stored_bytes" if "stored_bytes" in names else "size_bytes" if "size_bytes" in names else ""
    rows = []
    for split, row in splits.items():
        cells = [format_bytes(row[name]) if name.endswith("_bytes") else f"{row[name]:,}" for name in names]
        ratio = f"{row[per_vertex] / row['vertices']:.1f}" if per_vertex and row["vertices"] else "-"
        rows.append([split, *cells, *([ratio] if per_vertex else [])])
    header = ["split", *(name.removesuffix("_bytes") for name in names), *(["B/vertex"] if per_vertex else [])]
    return format_table(header, rows, right=frozenset(range(1, len(header))))


def name_places(paths: Sequence[str]) -> str:
    """The first of several paths, and how many more there are."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"


def _fill(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        output_width(),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
