"""How patient the program is with a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a run is.

    Attributes:
        connect_timeout_s: Longest time to connect.
        answer_timeout_s: Longest time from a request to the end of the answer's headers.
        slowest_bytes_per_s: A body that comes more slowly than this, over `slow_window_s`, is broken off and resumed.
        slow_window_s: See above.
        tries: So many failures of a file, while the server serves others, give it up.
        first_delay_s: Mean pause after the first failure; doubled after each further one.
        longest_delay_s: Longest pause.
        longest_retry_after_s: A server that asks for a longer pause than this gets this one.
        outage_patience_s: How long the server may serve nothing.
        first_answer_patience_s: The same while it has not served anything in this run.
        untold_outage_s: Outages that are shorter are not told.
        bytes_per_s: Of all connections together at most; None for no limit.
    """

    connect_timeout_s: float = 20.0
    answer_timeout_s: float = 60.0
    slowest_bytes_per_s: float = 1_000.0
    slow_window_s: float = 60.0
    tries: int = 8
    first_delay_s: float = 0.5
    longest_delay_s: float = 60.0
    longest_retry_after_s: float = 3600.0
    outage_patience_s: float = 4 * 3600.0
    first_answer_patience_s: float = 180.0
    untold_outage_s: float = 5.0
    bytes_per_s: float | None = None

    def delay_s(self, failures: int) -> float:
        """Mean pause after so many failures in a row."""
        return min(self.first_delay_s * 2.0 ** min(failures - 1, 30), self.longest_delay_s)
