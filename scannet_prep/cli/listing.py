"""Lists in the texts of commands, cut where they are long."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

MAX_SHOWN = 10
WIDTH = 100


def describe_list(title: str, items: list[str], *, has_all: bool) -> Iterator[str]:
    """Lines with a title and items, the first ten of them or all; nothing where there are none."""
    if not items:
        return
    yield f"\n{title}: {len(items):,}"
    shown = items if has_all else items[:MAX_SHOWN]
    for item in shown:
        yield textwrap.fill(item, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    if len(shown) < len(items):
        yield f"  ... and {len(items) - len(shown):,} more; all of them with -v"
