"""One gate for all requests of a run: it tells outages from files that fail, and slows down for a busy server.

While the gate is open, requests go through, as often as the server bears. A request that brings nothing closes
it: from then on one request at a time tries, at growing intervals, until something is served. That first try asks for a
file that was served before, if there is one, else for another one. So it shows at once what the failure meant:

- something comes: the server is up, and the file that failed is to blame;
- it does not come either: an outage, whatever the status; no file is to blame, and all wait.

The gate gives up when nothing has been served for the time that the policy states.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scannet_prep.errors import RefusedError, ServerDownError
from scannet_prep.remote.trouble import AttemptError

PROGRESS_BYTES = 16 * 1024
"""A request that breaks off before so much has come is a failure like any other, and is followed by a pause."""
PROOF_BYTES = 128 * 1024
"""So much is content, though there may be more to come: no page that says that the server is down is as long."""

_FEW_ANSWERS = 5  # so many refusals in a row, before anything was ever served, mean that it is the wrong server
_FIRST_SPACING_S = 0.05
_LESS_SPACING = 0.95  # after each success


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
    untold_outage_s: float = 5.0  # outages that are shorter are not told
    bytes_per_s: float | None = None  # of all connections together at most; None for no limit

    def pause_s(self, failures: int, asked_s: float) -> float:
        """How long to wait after so many failures in a row, at random and not in step, or where asked to."""
        mean_s = min(self.first_delay_s * 2.0 ** min(failures - 1, 30), self.longest_delay_s) if failures else 0.0
        return max(mean_s * random.uniform(0.5, 1.5), min(asked_s, self.longest_retry_after_s))  # noqa: S311


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Leave to make one request."""

    began_s: float  # when it was given
    is_trial: bool  # whether the gate is closed, so that this request shows whether the server is back


class Gate:
    """Shared by all threads of a run.

    `stop` ends all waiting once it is set; `tell` is told in words of outages, and of their end.

    Attributes:
        served_s: When the latest of those requests began that were served, on the monotonic clock. What failed before
            that is itself to blame, unless a trial has failed since.
        down_s: When a trial last failed: nobody knows whose fault the failures until then were.
    """

    def __init__(self, policy: TransferPolicy, stop: threading.Event, tell: Callable[[str], None]) -> None:
        self.served_s = self.down_s = 0.0
        self._policy, self._stop, self._tell = policy, stop, tell
        self._condition = threading.Condition()
        self._failures: list[AttemptError] = []  # in a row; while there are any, the gate is closed
        self._trial: Ticket | None = None
        self._alive_s = self._spacing_s = self._slowed_s = self._next_s = 0.0
        self._is_told = False

    @property
    def is_closed(self) -> bool:
        """Whether one request at a time tries if the server is back."""
        return bool(self._failures)

    @property
    def state(self) -> str:
        """What all requests wait for, in words; empty while they go through."""
        failures, pause_s = self._failures, self._next_s - time.monotonic()
        if not failures or pause_s < 1:
            return ""
        return f"waiting for the server ({failures[-1].reason}), next try in {pause_s:.0f} s"

    @contextmanager
    def request(self) -> Iterator[Ticket]:
        """Wait for leave to make a request, which is made in the `with` block.

        An `AttemptError` that leaves the block is a failure, a normal end a success.

        Raises:
            ServerDownError: Nothing has been served for too long, or the run was stopped.
            RefusedError: The server has never served anything, and refuses everything.
        """
        ticket = self._enter()
        try:
            yield ticket
            self.served(ticket)
            self._spacing_s *= _LESS_SPACING
        except AttemptError as error:
            self._failed(ticket, error)
            raise
        finally:
            with self._condition:
                self._trial = None if ticket is self._trial else self._trial
                self._condition.notify_all()

    def served(self, ticket: Ticket) -> None:
        """Something that can only be content has come, though there may be more."""
        with self._condition:
            self._alive_s = time.monotonic()
            # What was asked for before the gate closed does not show that the server answers new requests.
            if self._failures and ticket is not self._trial:
                return
            self._trial = None  # though it may go on for long
            self.served_s = max(self.served_s, ticket.began_s)
            self._failures = []
            was_told, self._is_told = self._is_told, False
            self._condition.notify_all()
        if was_told:
            self._tell("the server answers again")

    def _enter(self) -> Ticket:
        with self._condition:
            while True:
                now_s = time.monotonic()
                if self._stop.is_set():
                    raise ServerDownError("stopped")
                if self._failures:
                    self._raise_if_hopeless(now_s)
                may_go = not self._failures or self._trial is None
                if may_go and now_s >= self._next_s:
                    ticket = Ticket(now_s, self.is_closed)
                    self._trial = ticket if self._failures else None
                    self._next_s = now_s + self._spacing_s
                    return ticket
                self._condition.wait(min(0.5, max(0.01, self._next_s - now_s)) if may_go else 0.5)

    def _raise_if_hopeless(self, now_s: float) -> None:
        last = self._failures[-1]
        if not self._alive_s and sum(error.is_answer for error in self._failures) >= _FEW_ANSWERS:
            raise RefusedError(f"the server gives none of the first files: {last.reason}", last.hint)
        seconds = now_s - max(self._failures[0].failed_s, self._alive_s)
        if seconds > self._patience_s:
            raise ServerDownError(
                f"the server has served nothing for {seconds:.0f} s ({last.reason})",
                "run the same command again later: it continues where it stopped",
            )

    @property
    def _patience_s(self) -> float:
        return self._policy.outage_patience_s if self._alive_s else self._policy.first_answer_patience_s

    def _failed(self, ticket: Ticket, error: AttemptError) -> None:
        policy, note = self._policy, ""
        with self._condition:
            now_s, is_trial = time.monotonic(), ticket is self._trial
            if error.is_busy and ticket.began_s >= self._slowed_s and not is_trial:  # a trial waits anyway
                self._slowed_s = now_s
                self._spacing_s = min(max(2 * self._spacing_s, _FIRST_SPACING_S), policy.longest_delay_s)
            if self._failures and not is_trial:
                return  # of the same moment as the failure that closed the gate
            self.down_s = now_s if is_trial else self.down_s
            pause_s = policy.pause_s(len(self._failures), error.retry_after_s)
            self._next_s = now_s + max(pause_s, self._spacing_s)
            self._failures.append(error)
            if not self._is_told and self._next_s - self._failures[0].failed_s >= policy.untold_outage_s:
                self._is_told = True
                hours, minutes = self._patience_s / 3600, self._patience_s / 60
                patience = f"{hours:.0f} hours" if hours >= 2 else f"{minutes:.0f} minutes"
                patience = patience if minutes >= 2 else f"{self._patience_s:.0f} s"
                note = (
                    f"the server serves nothing ({error.reason}). While it is down, the download pauses and retries "
                    f"at intervals, for up to {patience}"
                )
        if note:
            self._tell(note)
