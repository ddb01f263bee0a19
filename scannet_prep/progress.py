"""How a stage tells how far it is. The library never draws: the caller of a stage hands down an object that may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Receives the progress of one piece of work at a time. This one ignores it; others draw."""

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:  # noqa: ARG002 - for those that draw
        """A piece of work of `total` units (for example 1613 of "scenes"); 0 where nobody knows how many."""
        yield

    def advance(self, count: int = 1) -> None:
        """So many more units are finished, well or not."""

    def status(self, text: str) -> None:
        """A short text about the state of the work, to stand beside the count."""

    def note(self, message: str) -> None:
        """Something worth a line while the work goes on."""
