"""Decides when the next request may be made, and whether the server is down.

Rate. A rejection makes the interval between requests half as long again. Each file that is served shortens it. A pause
that the server asks for holds for all connections.

Outages. After several failures in a row, the caller makes a single request, a probe. If it fails too, the server is
down: until a probe is served, probes are the only requests, one at a time, at growing intervals.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from scannet_prep.base.errors import ServerDownError, TransferError
from scannet_prep.base.units import format_duration
from scannet_prep.remote.trouble import AttemptError

PROGRESS_BYTES = 16 * 1024
"""A request that breaks off before it has brought so many bytes has failed."""
PROOF_BYTES = 128 * 1024
"""A running transfer that has brought so many bytes shows that the server is up: no error page is as long."""

_REFUSED_PROBES = 3  # so many refused probes, before anything was served, end the run
_TOLD_PROBES = 11  # so many failed probes, which take some seconds, are worth a line
_MESSAGE_COLUMNS = 80

_SLOWER = 1.5
_FASTER = 1.3
_FIRST_INTERVAL_S = 0.005  # after a first rejection


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a run is."""

    connect_timeout_s: float = 10.0  # longest time to connect
    answer_timeout_s: float = 60.0  # longest silence of the server
    # A body that arrives more slowly than this, over `slow_window_s`, is broken off and resumed
    slowest_bytes_per_s: float = 1_000.0
    slow_window_s: float = 60.0  # see above
    tries: int = 8  # so many failures of its own give a file up; see `AttemptError.tries`
    first_delay_s: float = (
        0.02  # mean pause after the first failure; half as long again after each further one
    )
    longest_delay_s: float = 30.0  # longest mean pause
    longest_interval_s: float = (
        2.0  # however many requests are rejected, they are made at least so often
    )
    longest_retry_after_s: float = (
        3600.0  # a server that asks for a longer pause than this gets this one
    )
    outage_patience_s: float = 4 * 3600.0  # how long the server may serve nothing
    first_answer_patience_s: float = 180.0  # the same while it has not served anything in this run
    bytes_per_s: float | None = None  # of all connections together at most; None for no limit

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row, at random so that clients do not keep step."""
        mean_s = min(self.first_delay_s * _SLOWER ** min(failures - 1, 30), self.longest_delay_s)
        return mean_s * random.uniform(0.5, 1.5)  # noqa: S311


class Pace:
    """The interval between requests: longer after each rejection, shorter after each success.

    Attributes:
        next_s: No request is made before this time of the monotonic clock.
    """

    def __init__(self, longest_interval_s: float) -> None:
        self.next_s = 0.0
        self._longest_interval_s = longest_interval_s
        self._interval_s = 0.0  # 0 while the server bears what the connections give
        self._last_reduced_s = 0.0

    def requested(self, now_s: float) -> None:
        """Record a request."""
        self.next_s = max(self.next_s, now_s + self._interval_s)

    def served(self) -> None:
        """Speed up: three successes undo more than a rejection."""
        self._interval_s /= _FASTER

    def rejected(self, requested_s: float, now_s: float, pause_s: float) -> None:
        """Slow down after the rejection of a request that was made at `requested_s`, and pause if asked to.

        All requests that were under way together slow down only once.
        """
        if requested_s >= self._last_reduced_s:
            self._last_reduced_s = now_s
            interval_s = max(_SLOWER * self._interval_s, _FIRST_INTERVAL_S)
            self._interval_s = min(interval_s, self._longest_interval_s)
        # The rejected request has already used up most of the new interval.
        self.next_s = max(now_s + self._interval_s * (1 - 1 / _SLOWER), now_s + pause_s)


class Gate:
    """Says when a request may be made, by how earlier ones have ended; for one thread.

    Args:
        policy: How patient to be.
        address: The server, for messages.
        notify: Receives a line when an outage has lasted for some seconds.

    Attributes:
        pace: The interval between requests.
        failed_probes: How many probes have failed, one after another; not 0 during an outage.
    """

    def __init__(self, policy: TransferPolicy, address: str, notify: Callable[[str], None]) -> None:
        self.pace = Pace(policy.longest_interval_s)
        self.failed_probes = 0
        self._policy = policy
        self._address = address
        self._notify = notify
        self._has_served = False
        self._last_error = AttemptError("")
        self._failing_since_s = 0.0  # since then, nothing was served; 0 if nothing has failed since

    @property
    def state(self) -> str:
        """What all requests wait for, in a few words; empty if they go through."""
        pause_s = max(0.0, self.pace.next_s - time.monotonic())
        if self.failed_probes:
            return f"down, retry in {format_duration(round(pause_s))}"
        if pause_s > self._policy.longest_interval_s:
            return f"server wants a pause, {format_duration(round(pause_s))}"
        return ""

    def may_request(self) -> bool:
        """Return whether a request may be made now.

        Raises:
            ServerDownError: Nothing was served for too long.
            TransferError: The server has never served anything, and refuses everything.
        """
        now_s = time.monotonic()
        if self.failed_probes:
            self._check_patience(now_s - self._failing_since_s)
        return now_s >= self.pace.next_s

    def served(self, *, is_probe: bool) -> bool:
        """Take note that something that can only be content arrives.

        Returns:
            Whether it shows that the server is up. During an outage, only a probe does: other requests are older.
        """
        if self.failed_probes and not is_probe:
            return False
        self.failed_probes = 0
        self._failing_since_s = 0.0
        self._has_served = True
        return True

    def failed(self, error: AttemptError, requested_s: float, *, is_probe: bool) -> bool:
        """Record the failure of a request that was made at `requested_s`.

        Returns:
            Whether the server is down, so that the failure is not the file's own.
        """
        now_s = time.monotonic()
        self._last_error = error
        self._failing_since_s = self._failing_since_s or now_s
        if error.is_busy:
            asked_s = min(error.retry_after_s, self._policy.longest_retry_after_s)
            self.pace.rejected(requested_s, now_s, asked_s)
        if is_probe:
            self.failed_probes += 1
            self.pace.next_s = max(
                self.pace.next_s, now_s + self._policy.pause_s(self.failed_probes)
            )
            if self.failed_probes == _TOLD_PROBES:
                self._notify(self._describe_outage(error))
        return self.failed_probes > 0

    def _check_patience(self, silent_s: float) -> None:
        error = self._last_error
        if error.is_answer and self.failed_probes >= _REFUSED_PROBES and not self._has_served:
            problem = f"{self._address}: the server gives none of the first files: {error.reason}"
            raise TransferError(problem, error.hint or "is it ScanNet's server, or a mirror of it?")
        if silent_s > self._patience_s:
            problem = (
                f"the server has served nothing for {format_duration(silent_s)} ({error.reason})"
            )
            raise ServerDownError(
                problem, "run the same command again later: it continues where it stopped"
            )

    def _describe_outage(self, error: AttemptError) -> str:
        """Describe an outage in a line of 80 columns, for which a long reason is cut."""
        ending = f"; waiting up to {format_duration(self._patience_s)} for it"
        beginning = f"server down ({error.reason}"
        room = _MESSAGE_COLUMNS - len(ending) - 1
        if len(beginning) > room:
            beginning = f"{beginning[: room - 3]}..."
        return f"{beginning}){ending}"

    @property
    def _patience_s(self) -> float:
        return (
            self._policy.outage_patience_s
            if self._has_served
            else self._policy.first_answer_patience_s
        )
