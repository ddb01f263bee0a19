"""What happens to servers: outages for everybody, and faults of single files that pass."""

from __future__ import annotations

import threading
import time

from release_connections import Request
from release_faults import (
    BEFORE_STATUS,
    Cut,
    Fault,
    Gzip,
    HtmlPage,
    NoLength,
    RangeRefused,
    RangesIgnored,
    Reset,
    ShiftedRange,
    Stall,
    Status,
    Trickle,
    WrongLength,
)


class Outage:
    """Every request meets a fault, for a time that begins with the n-th request."""

    def __init__(self, fault: Fault, *, after_requests: int, seconds: float = 1.0) -> None:
        self.fault, self.after_requests, self.seconds = fault, after_requests, seconds
        self.count = 0
        self.began_s: float | None = None
        self.guard = threading.Lock()

    def __call__(self, _request: Request) -> list[Fault]:
        with self.guard:
            self.count += 1
            if self.count <= self.after_requests:
                return []
            self.began_s = self.began_s or time.monotonic()
            return [self.fault] if time.monotonic() - self.began_s < self.seconds else []


def passing_faults(size: int) -> dict[str, list[Fault]]:
    """By name, what happens to a file of at least so many bytes, and passes: no trace of it may stay."""
    return {
        "cut before the status": [Cut(BEFORE_STATUS)],
        "cut at the first byte": [Cut(0)],
        "cut in the middle": [Cut(size // 2), Cut(size // 4), Cut(1)],
        "reset": [Reset(BEFORE_STATUS), Reset(size // 4)],
        "stall": [Stall(size // 8), Stall(BEFORE_STATUS)],
        "trickle": [Trickle(0.05, after_bytes=size // 8)],
        "busy": [Status(503, retry_after_s=1), Status(429, retry_after_s=1, as_date=True), Status(500)],
        "range refused": [Cut(size // 2), RangeRefused()],
        "ranges ignored": [Cut(size // 2), RangesIgnored()],
        "shifted range": [Cut(size // 2), ShiftedRange(-100), ShiftedRange(100)],
        "length too large": [WrongLength(100)],
        "length too small": [WrongLength(-100)],
        "no length": [NoLength()],
        "ends with the connection": [NoLength(is_chunked=False)],
        "gzip": [Cut(size // 4), Gzip()],
        "page": [HtmlPage()],
    }
