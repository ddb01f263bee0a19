"""Progress of a stage, reported to an object of the caller that may draw it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Receiver of the progress of one piece of work at a time.

    This class ignores all calls; subclasses draw. `advance` and `status` are called only inside
    `work`.
    """

    @contextmanager
    def work(self, title: str, total: int, unit: str) -> Iterator[None]:  # noqa: ARG002 - for subclasses
        """Enclose a piece of work.

        Args:
            title: Name of the work, such as `process`.
            total: Number of units; 0 if unknown.
            unit: Name of the unit, such as `scenes`.
        """
        yield

    def advance(self, count: int = 1) -> None:
        """Count units that are finished, whether they succeeded or failed."""

    def status(self, text: str) -> None:
        """Show a short text about the state of the work, beside the count."""

    def note(self, message: str) -> None:
        """Show a line of text while the work goes on."""
