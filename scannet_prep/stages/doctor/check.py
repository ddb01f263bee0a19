"""What a check-up finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scannet_prep.backports import StrEnum

_Argument = TypeVar("_Argument")


class Severity(StrEnum):
    """What a finding means for the user."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(slots=True)
class Check:
    """What one check has found.

    Attributes:
        topic: What was looked at, such as `cores`.
        message: What was found.
        values: The same for programs.
        severity: `ok`, `note` (worth knowing), or `problem` (it is going to hurt).
        hint: What to do about it; empty where nothing has to be done.
    """

    topic: str
    message: str
    values: dict[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.OK
    hint: str = ""

    def note(self, text: str, hint: str) -> Check:
        """Add something that is worth knowing, and what to do about it."""
        if self.severity is Severity.OK:
            self.severity = Severity.NOTE
        self.message = "; ".join(filter(None, (self.message, text)))
        self.hint = "; ".join(filter(None, (self.hint, hint)))
        return self

    def problem(self, text: str, hint: str) -> Check:
        """Add something that is going to hurt, and what to do about it."""
        self.severity = Severity.PROBLEM
        return self.note(text, hint)


def make_check(topic: str, function: Callable[[_Argument], Check], argument: _Argument) -> Check:
    """Make one check; whatever a library or a driver raises is a finding, too."""
    try:
        check = function(argument)
    except Exception as error:  # noqa: BLE001 - see above
        test = "test it alone: python -c 'import torch; torch.cuda.init()'"
        hint = test if topic == "GPU" else "this cannot be found out here; please report this line"
        check = Check(topic, "").problem(f"{type(error).__name__}: {error}"[:300], hint)
    check.topic = topic
    return check
