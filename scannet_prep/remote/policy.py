"""The patience of a run: timeouts, tries, pauses and rates."""

from __future__ import annotations

import random
from dataclasses import dataclass

PROGRESS_BYTES = 16 * 1024
"""A request that breaks off before it has brought this many bytes counts as a failure."""
PROOF_BYTES = 128 * 1024
"""A running transfer that has brought this many bytes shows that the server is up.

No error page is as long.
"""

BACKOFF = 1.5
"""Factor by which pauses grow after each failure, and intervals after each rejection."""
# By then, any pause has reached its maximum. A larger power could overflow.
_MAX_BACKOFFS = 30


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """The patience of a run.

    Attributes:
        connect_timeout_s: Longest time to connect.
        answer_timeout_s: Longest silence of the server.
        slowest_bytes_per_s: A body that arrives more slowly over `slow_window_s` is broken off and
            resumed.
        slow_window_s: Time over which the rate of a body is measured.
        tries: Failures after which a file is given up, if the failures do not have a number of
            their own (`AttemptError.tries`).
        first_delay_s: Mean pause after the first failure. It grows by half after each further one.
        longest_delay_s: Longest mean pause.
        longest_interval_s: Longest interval between requests, however many are rejected.
        longest_retry_after_s: Longest pause that the server may request.
        outage_patience_s: How long the server may serve nothing.
        first_answer_patience_s: The same while the server has not served anything in this run.
        bytes_per_s: Maximum rate of all connections together; None for no limit.
    """

    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0
    slowest_bytes_per_s: float = 1_000.0
    slow_window_s: float = 60.0
    tries: int = 8
    first_delay_s: float = 0.02
    longest_delay_s: float = 30.0
    longest_interval_s: float = 2.0
    longest_retry_after_s: float = 3600.0
    outage_patience_s: float = 4 * 3600.0
    first_answer_patience_s: float = 180.0
    bytes_per_s: float | None = None

    def pause_s(self, failures: int) -> float:
        """Return the pause after this many failures in a row.

        It is random, so that clients that failed together do not retry together.
        """
        backoffs = min(failures - 1, _MAX_BACKOFFS)
        mean_s = min(self.first_delay_s * BACKOFF**backoffs, self.longest_delay_s)
        return mean_s * random.uniform(0.5, 1.5)  # noqa: S311
