"""How patient the program is with a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a transfer is.

    Attributes:
        connect_timeout_s: Longest time to connect.
        read_timeout_s: Longest time without a byte.
        answer_timeout_s: Longest time from a request to the end of the answer's headers, redirections included.
        slowest_bytes_per_s: A transfer that is slower over `slow_window_s` is broken off and resumed.
        slow_window_s: See above; a trickle of single bytes never runs into the read timeout.
        attempts: So many failures in a row, without a byte gained, give a file up; those of outages do not count.
        wrong_contents: So many whole bodies that are not the file (an error page, a broken copy) give a file up; those
            of outages do not count.
        first_delay_s: Mean pause after the first failure; doubled after each further one.
        longest_delay_s: Longest pause.
        longest_retry_after_s: A server that asks for a longer pause than this gets this one.
        told_pause_s: Pauses that are longer than this are told.
        outage_patience_s: How long the server may be down for everybody.
        first_answer_patience_s: The same while it has not served anything in this run.
        untold_outage_s: Outages that are shorter are not told.
    """

    connect_timeout_s: float = 20.0
    read_timeout_s: float = 60.0
    answer_timeout_s: float = 180.0
    slowest_bytes_per_s: float = 1_000.0
    slow_window_s: float = 60.0
    attempts: int = 8
    wrong_contents: int = 3
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    longest_retry_after_s: float = 3600.0
    told_pause_s: float = 120.0
    outage_patience_s: float = 4 * 3600.0
    first_answer_patience_s: float = 180.0
    untold_outage_s: float = 5.0
