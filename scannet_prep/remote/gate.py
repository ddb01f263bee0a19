"""Decide when the next request may be made, and whether the server is down.

Rate: a rejection lengthens the interval between requests by half. Each file that is served shortens
it. A pause that the server requests holds for all connections.

Outages: after several failures in a row, the caller makes a single request, a probe. If it fails
too, the server is down. Until a probe is served, probes are then the only requests, one at a time,
at growing intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from scannet_prep.base.text import format_duration
from scannet_prep.errors import ServerDownError, TransferError
from scannet_prep.remote.policy import BACKOFF, TransferPolicy
from scannet_prep.remote.request_errors import AttemptError

# If nothing was served before, this many refused probes end the run.
_MAX_REFUSED_PROBES = 3
# After this many failed probes, which take some seconds, a line is shown.
_PROBES_BEFORE_NOTE = 11
_MESSAGE_COLUMNS = 80

# A success divides the interval by this. Two successes outweigh a rejection: 1.3 * 1.3 > BACKOFF.
_SPEED_UP = 1.3
# The interval after the first rejection.
_FIRST_INTERVAL_S = 0.005


class Pace:
    """The interval between requests: longer after each rejection, shorter after each success.

    Attributes:
        next_s: No request is made before this time of the monotonic clock.
    """

    def __init__(self, longest_interval_s: float) -> None:
        self.next_s = 0.0
        self._longest_interval_s = longest_interval_s
        # 0 as long as the server has not rejected anything.
        self._interval_s = 0.0
        self._last_lengthened_s = 0.0

    def requested(self, now_s: float) -> None:
        """Record a request."""
        self.next_s = max(self.next_s, now_s + self._interval_s)

    def served(self) -> None:
        """Shorten the interval after a success."""
        self._interval_s /= _SPEED_UP

    def rejected(self, requested_s: float, now_s: float, pause_s: float) -> None:
        """Lengthen the interval after a rejection.

        Of requests that were under way together, only the first rejection lengthens it.

        Args:
            requested_s: When the rejected request was made.
            now_s: The time now.
            pause_s: The pause that the server requests; 0 for none.
        """
        if requested_s >= self._last_lengthened_s:
            self._last_lengthened_s = now_s
            interval_s = max(BACKOFF * self._interval_s, _FIRST_INTERVAL_S)
            self._interval_s = min(interval_s, self._longest_interval_s)
        # The old interval has passed since the rejected request was made. Wait only for the rest of
        # the new one.
        old_interval_s = self._interval_s / BACKOFF
        rest_s = self._interval_s - old_interval_s
        # A longer pause that an earlier rejection requested still holds.
        self.next_s = max(self.next_s, now_s + rest_s, now_s + pause_s)


class Gate:
    """Decide when a request may be made, from the results of earlier ones; for one thread.

    Args:
        policy: The patience of the run.
        address: The server, for messages.
        notify: Receives a line when an outage has lasted for some seconds.

    Attributes:
        pace: The interval between requests.
        failed_probes: Probes that failed one after another; not 0 during an outage.
    """

    def __init__(self, policy: TransferPolicy, address: str, notify: Callable[[str], None]) -> None:
        self.pace = Pace(policy.longest_interval_s)
        self.failed_probes = 0
        self._policy = policy
        self._address = address
        self._notify = notify
        self._has_served = False
        self._last_error = AttemptError("")
        # Time of the first failure since something was served; 0 if there was none.
        self._failing_since_s = 0.0

    @property
    def state(self) -> str:
        """Describe in a few words what all requests wait for; empty if they need not wait."""
        pause_s = max(0.0, self.pace.next_s - time.monotonic())
        if self.failed_probes:
            return f"down, retry in {format_duration(round(pause_s))}"
        # A pause longer than any interval between requests is one that the server requested.
        if pause_s > self._policy.longest_interval_s:
            return f"server requests a pause, {format_duration(round(pause_s))}"
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
        """Record that a request brings content of a file, and more of it than any error page has.

        Returns:
            Whether this shows that the server is up. During an outage, only a probe does: other
            requests were made before it began.
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
            Whether the server is down, so that the failure does not count against the file.
        """
        now_s = time.monotonic()
        self._last_error = error
        if self._failing_since_s == 0:
            self._failing_since_s = now_s
        if error.is_busy:
            requested_pause_s = min(error.retry_after_s, self._policy.longest_retry_after_s)
            self.pace.rejected(requested_s, now_s, requested_pause_s)
        if is_probe:
            self.failed_probes += 1
            probe_s = now_s + self._policy.pause_s(self.failed_probes)
            self.pace.next_s = max(self.pace.next_s, probe_s)
            if self.failed_probes == _PROBES_BEFORE_NOTE:
                self._notify(self._describe_outage(error))
        return self.failed_probes > 0

    @property
    def _patience_s(self) -> float:
        if self._has_served:
            return self._policy.outage_patience_s
        return self._policy.first_answer_patience_s

    def _check_patience(self, silent_s: float) -> None:
        """Raise an error if the server refuses everything, or has served nothing for too long."""
        error = self._last_error
        is_refused = error.is_answer and self.failed_probes >= _MAX_REFUSED_PROBES
        if is_refused and not self._has_served:
            raise TransferError(
                f"{self._address}: the server refuses all of the first files: {error.reason}",
                error.hint or "check --base-url: it must be ScanNet's server, or a mirror of it",
            )
        if silent_s > self._patience_s:
            raise ServerDownError(
                f"the server has served nothing for {format_duration(silent_s)} ({error.reason})",
                "run the same command again later: it continues where it stopped",
            )

    def _describe_outage(self, error: AttemptError) -> str:
        """Describe an outage in a line of at most 80 columns; a long reason is cut."""
        beginning = "server down ("
        ending = f"); waiting up to {format_duration(self._patience_s)} for it"
        reason = error.reason
        max_letters = _MESSAGE_COLUMNS - len(beginning) - len(ending)
        if len(reason) > max_letters:
            reason = f"{reason[: max_letters - 3]}..."
        return f"{beginning}{reason}{ending}"
