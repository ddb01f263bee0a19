"""The state of each file of a download, and its final outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.base.backports import StrEnum
from scannet_prep.remote.addresses import public_url
from scannet_prep.remote.request_errors import MANY_TRIES, AttemptError
from scannet_prep.remote.transfer import PartialFile
from scannet_prep.stages.download.content import Facts
from scannet_prep.stages.download.planning import RemoteFile


class FileOutcome(StrEnum):
    """The outcome of one file."""

    FETCHED = "fetched"
    PRESENT = "already there"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class FileTask:
    """One file of a download: its state while the run goes on, and its outcome.

    Attributes:
        file: The file of the release.
        path: Its final path.
        outcome: Its outcome; None while it is not settled.
        size_bytes: Its size under the final name.
        reason: Why it failed; the same text for all files that fail alike.
        subject: The address or path that the reason is about.
        hint: What to do about it; may be empty.
        facts: Facts to compare with other files of the scene, if the content was checked.
        checked_bytes: Bytes of a large file whose content has been checked so far.
        most_bytes: The largest size that the partial file has had.
        failures: Failures since bytes last arrived, by the number of tries allowed for them.
        is_late: Whether other files come first, because a failure was more than a rejection.
        next_s: Time of the monotonic clock before which it is not tried again.
        shown_bytes: Bytes of its typical size that were shown as progress.
        partial: The bytes received so far; set when the file is requested.
    """

    file: RemoteFile
    path: Path
    outcome: FileOutcome | None = None
    size_bytes: int = 0
    reason: str = ""
    subject: str = ""
    hint: str = ""
    facts: Facts | None = None
    checked_bytes: int = 0
    most_bytes: int = 0
    failures: Counter[int] = field(default_factory=Counter)
    is_late: bool = False
    next_s: float = 0.0
    shown_bytes: int = 0
    partial: PartialFile = field(init=False)

    @property
    def message(self) -> str:
        """Why the file failed, with its address or path; empty if it did not fail."""
        if self.outcome is not FileOutcome.FAILED:
            return ""
        return f"{self.subject}: {self.reason}"

    def fail(self, reason: str, hint: str = "", subject: str | Path = "") -> None:
        """Settle the file as failed.

        Args:
            reason: Why it failed.
            hint: What to do about it; may be empty.
            subject: The address or path that the reason is about; the file's address by default.
        """
        self.subject = str(subject or public_url(self.file.url))
        self.reason = reason
        self.hint = hint
        self.outcome = FileOutcome.FAILED

    def charge(self, error: AttemptError, default_tries: int) -> None:
        """Count a failure against the file, and settle it as failed if it has no tries left.

        Args:
            error: The failure.
            default_tries: Tries for failures that allow no number of their own.
        """
        tries = error.tries or default_tries
        self.failures[tries] += 1
        if tries != MANY_TRIES:
            self.is_late = True
        if self.failures[tries] >= tries:
            self.fail(error.describe(self.failures.total()), error.hint)
