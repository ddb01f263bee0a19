"""Tells outages from files that fail, and says when the next request may be made: slowly to a busy server.

While the gate is open, requests go through, as often as the server bears. A request that brings nothing closes
it: from then on one request at a time tries, at growing intervals, until something is served. That first trial asks for
a file that was served before, if there is one, else for another one. So it shows at once what the failure meant:

- something comes: the server is up, and the file that failed is to blame;
- it does not come either: an outage, whatever the status; no file is to blame, and all wait.

The gate gives up when nothing has been served for the time that the policy states. It is for one thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from scannet_prep.errors import RefusedError, ServerDownError
from scannet_prep.remote.trouble import AttemptError

PROGRESS_BYTES = 16 * 1024
"""A request that breaks off before so much has come is a failure like any other, and is followed by a pause."""
PROOF_BYTES = 128 * 1024
"""So much is content, though there may be more to come: no page that says that the server is down is as long."""

_TOLD_FAILURES = 4  # so many in a row, which take some seconds, are worth a line
_FEW_ANSWERS = 5  # so many refusals in a row, before anything was ever served, mean that it is the wrong server
_FIRST_SPACING_S = 0.05
_LESS_SPACING = 0.95  # with each request


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a run is."""

    connect_timeout_s: float = 10.0  # longest time to connect
    answer_timeout_s: float = 60.0  # longest time from a request to the end of the answer's headers
    # A body that comes more slowly than this, over `slow_window_s`, is broken off and resumed
    slowest_bytes_per_s: float = 1_000.0
    slow_window_s: float = 60.0  # see above
    tries: int = 8  # so many failures of a file, while the server serves others, give it up
    first_delay_s: float = 0.5  # mean pause after the first failure; doubled after each further one
    longest_delay_s: float = 60.0  # longest pause
    longest_retry_after_s: float = 3600.0  # A server that asks for a longer pause than this gets this one
    outage_patience_s: float = 4 * 3600.0  # how long the server may serve nothing
    first_answer_patience_s: float = 180.0  # the same while it has not served anything in this run
    bytes_per_s: float | None = None  # of all connections together at most; None for no limit

    def pause_s(self, failures: int, asked_s: float) -> float:
        """How long to wait after so many failures in a row, at random and not in step, or where asked to."""
        mean_s = min(self.first_delay_s * 2.0 ** min(failures - 1, 30), self.longest_delay_s) if failures else 0.0
        return max(mean_s * random.uniform(0.5, 1.5), min(asked_s, self.longest_retry_after_s))  # noqa: S311


class Gate:
    """What a run knows of its server, whose address is for messages; `tell` is told of outages, in words.

    Requests are any objects; `admits` says whether one may be made, and how it ends is told by `served` and `failed`.

    Attributes:
        next_s: No request is made before, on the monotonic clock.
        trial: The request that tries whether the server is back.
    """

    def __init__(self, policy: TransferPolicy, address: str, tell: Callable[[str], None]) -> None:
        self.next_s = 0.0
        self.trial: object = None
        self._policy, self._address, self._tell = policy, address, tell
        self._failures: list[AttemptError] = []  # what closed the gate, and trials; while there are any, it is closed
        self._first_failed_s = 0.0
        self._blames: list[Callable[[], None]] = []  # for what has failed since it was open
        self._alive_s = self._spacing_s = 0.0

    @property
    def state(self) -> str:
        """What all requests wait for, in words; empty while they go through."""
        if not self._failures:
            return ""
        pause_s = max(0.0, self.next_s - time.monotonic())
        return f"waiting for the server ({self._failures[-1].reason}), next try in {pause_s:.0f} s"

    @property
    def failure_count(self) -> int:
        """How many requests have brought nothing, one after another: the one that closed the gate, and trials."""
        return len(self._failures)

    def admits(self) -> bool:
        """Whether a request may be made now.

        Raises:
            ServerDownError: Nothing has been served for too long.
            RefusedError: The server has never served anything, and refuses everything.
        """
        now_s = time.monotonic()
        if self._failures:
            last, silent_s = self._failures[-1], now_s - max(self._first_failed_s, self._alive_s)
            if not self._alive_s and sum(error.is_answer for error in self._failures) >= _FEW_ANSWERS:
                problem = f"{self._address}: the server gives none of the first files: {last.reason}"
                raise RefusedError(problem, last.hint or "is it ScanNet's server, or a mirror of it?")
            if silent_s > self._patience_s:
                problem = f"the server has served nothing for {silent_s:.0f} s ({last.reason})"
                raise ServerDownError(problem, "run the same command again later: it continues where it stopped")
        return now_s >= self.next_s and self.trial is None

    def enter(self, request: object) -> None:
        """A request is made."""
        self._spacing_s *= _LESS_SPACING
        self.next_s = time.monotonic() + self._spacing_s
        self.trial = request if self._failures else None

    def served(self, request: object) -> None:
        """Something that can only be content has come, though there may be more."""
        self._alive_s = time.monotonic()
        # What was asked for before the gate closed does not show that the server answers new requests.
        if request is not self.trial:
            return
        is_outage, blames = len(self._failures) > 1, self._blames
        self.trial, self._failures, self._blames = None, [], []
        for blame in blames if not is_outage else ():
            blame()

    def failed(self, request: object, error: AttemptError, blame: Callable[[], None] | None = None) -> None:
        """A request has brought nothing; `blame` is called if that is the fault of the file."""
        self._blames += [blame] if blame else []
        is_trial, policy, now_s = request is self.trial, self._policy, time.monotonic()
        if self._failures and not is_trial:
            return  # of the same moment as the failure that closed the gate
        self.trial = None
        if not self._failures:
            self._first_failed_s = now_s
            if error.is_busy:
                self._spacing_s = min(max(2 * self._spacing_s, _FIRST_SPACING_S), policy.longest_delay_s)
        self.next_s = now_s + max(policy.pause_s(len(self._failures), error.retry_after_s), self._spacing_s)
        self._failures.append(error)
        if len(self._failures) == _TOLD_FAILURES:
            self._tell(
                f"the server serves nothing ({error.reason}). While it is down, the download pauses and retries "
                f"at intervals, for up to {round(self._patience_s / 60, 1):,g} minutes"
            )

    @property
    def _patience_s(self) -> float:
        return self._policy.outage_patience_s if self._alive_s else self._policy.first_answer_patience_s
