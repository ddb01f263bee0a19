"""What a check-up finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["ok", "note", "problem"]
_RANKS: tuple[Severity, ...] = ("ok", "note", "problem")


@dataclass(slots=True)
class Check:
    """What one check has found.

    Attributes:
        topic: What was looked at, such as `cores`.
        message: What was found.
        severity: `ok`, `note` (worth knowing), or `problem` (it is going to hurt).
        hint: What to do about it; empty where nothing has to be done.
    """

    topic: str
    message: str
    severity: Severity = "ok"
    hint: str = ""

    def add(self, severity: Severity, text: str, hint: str) -> None:
        """Add something that is worth knowing or going to hurt, and what to do about it."""
        self.severity = max(self.severity, severity, key=_RANKS.index)
        self.message = "; ".join(filter(None, (self.message, text)))
        self.hint = "; ".join(filter(None, (self.hint, hint)))
