"""Progress of a stage. The library never draws: the caller passes an object that may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Receives the progress of one piece of work at a time. This one ignores it; others draw."""

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:  # noqa: ARG002 - for those that draw
        """Enclose a piece of work of `total` units, for example 1613 "scenes"; 0 if unknown."""
        yield

    def advance(self, count: int = 1) -> None:
        """Count units that are finished, whether they succeeded or failed."""

    def status(self, text: str) -> None:
        """Show a short text about the state of the work, beside the count."""

    def note(self, message: str) -> None:
        """Show a line of text while the work goes on."""
