"""Whether the server answers at all, as all workers together see it.

A server that is down for everybody must not use up the retries of every single file. Once it cannot be reached, has
failed several times in a row for several files, or fails with what it has served before, all workers wait, and one of
them knocks now and then, until something has been served again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from scannet_prep.errors import ServerDownError

_CONNECTION_FAILURES_BEFORE_OUTAGE = 2  # without any connection there is nothing that could be the file's fault


class ServerHealth:
    """Shared by all workers of a run; safe for threads.

    Args:
        failures_before_outage: So many failures in a row, of several files, mean that the server is down.
        first_delay_s: Time before the first knock; doubled each time.
        longest_delay_s: Longest time between knocks.
        patience_s: How long an outage may last before the run gives up.
        first_patience_s: The same while it has never served anything: the address may be wrong, or there is no network.
        untold_s: An outage is told of only once it has lasted this long: single connections break all the time.
        on_change: Told in words when the server is away and when it is back.
    """

    def __init__(
        self,
        failures_before_outage: int,
        first_delay_s: float,
        longest_delay_s: float,
        patience_s: float,
        first_patience_s: float,
        untold_s: float,
        on_change: Callable[[str], None],
    ) -> None:
        self._limit = failures_before_outage
        self._first_delay_s = first_delay_s
        self._longest_delay_s = longest_delay_s
        self._patience_s = patience_s
        self._first_patience_s = first_patience_s
        self._has_served = False
        self._untold_s = untold_s
        self._is_told = False
        self._on_change = on_change
        self._condition = threading.Condition()
        self._failures = 0
        self._failing: set[str] = set()
        self._is_certain = False
        self._is_unreachable = False
        self._reason = ""
        self._since_s = 0.0
        self._next_knock_s = 0.0
        self._delay_s = first_delay_s
        self._knocker: int | None = None
        self._is_stopped = False

    @property
    def has_served(self) -> bool:
        """Whether it has served anything at all."""
        return self._has_served

    @property
    def is_certain(self) -> bool:
        """Whether it has failed with what it has served before, and has not served anything since."""
        return self._is_certain

    @property
    def may_be_down(self) -> bool:
        """Whether it has failed so often in a row that it may be down, though perhaps for a single file only."""
        return self._is_certain or self._failures >= self._limit

    @property
    def is_down(self) -> bool:
        """Whether the server is held to be down: it cannot be reached, or fails for several files."""
        if self._is_certain:
            return True
        if self._is_unreachable:
            return self._failures >= _CONNECTION_FAILURES_BEFORE_OUTAGE
        return self.may_be_down and len(self._failing) > 1

    def enter(self) -> None:
        """Wait while the server is down; returns at once while it is up, and for whoever's turn it is to knock.

        Raises:
            ServerDownError: The outage has lasted too long, or the run was stopped.
        """
        with self._condition:
            while self.is_down and not self._is_stopped:
                now_s = time.monotonic()
                if now_s - self._since_s > (self._patience_s if self._has_served else self._first_patience_s):
                    break
                if self._knocker is None and now_s >= self._next_knock_s:
                    self._knocker = threading.get_ident()
                    return
                wait_s = 0.5 if self._knocker is not None else self._next_knock_s - now_s
                self._condition.wait(max(0.01, min(wait_s, 0.5)))
            if self._is_stopped:
                raise ServerDownError("stopped")
            if self.is_down:
                seconds = time.monotonic() - self._since_s
                raise ServerDownError(
                    f"the server has not answered for {seconds:.0f} s ({self._reason})",
                    "run the same command again later: it goes on where it stopped",
                )

    def succeeded(self) -> None:
        """The server has served something."""
        with self._condition:
            was_told, self._is_told = self._is_told, False
            self._has_served = True
            self._failures = 0
            self._failing.clear()
            self._is_certain = False
            self._is_unreachable = False
            self._delay_s = self._first_delay_s
            self._knocker = None
            self._condition.notify_all()
        if was_told:
            self._on_change("the server answers again")

    def failed(
        self, what: str, reason: str, retry_after_s: float, *, is_unreachable: bool, is_certain: bool = False
    ) -> bool:
        """The server could not be reached, or could not serve something.

        Args:
            what: What it was asked for.
            reason: In words.
            retry_after_s: The pause that the server asked for; 0 where it did not.
            is_unreachable: Whether there was no connection at all, whatever was asked for.
            is_certain: Whether it fails for everybody: no need to wait for more failures.

        Returns:
            Whether the server is held to be down.
        """
        with self._condition:
            was_down = self.is_down
            self._failures += 1
            self._is_certain |= is_certain
            self._failing.add(what)
            self._is_unreachable = is_unreachable
            self._reason = reason
            now_s = time.monotonic()
            if self.is_down and not was_down:
                self._since_s = now_s
            is_knock = self._knocker == threading.get_ident()
            if self.is_down and (is_knock or not was_down):
                if is_knock:
                    self._delay_s = min(2 * self._delay_s, self._longest_delay_s)
                    self._knocker = None
                self._next_knock_s = now_s + self._delay_s
            if self.is_down:
                self._next_knock_s = max(self._next_knock_s, now_s + retry_after_s)
            is_down = self.is_down
            is_new = is_down and not self._is_told and self._next_knock_s - self._since_s >= self._untold_s
            self._is_told |= is_new
            self._condition.notify_all()
        if is_new:
            self._on_change(f"the server does not answer ({reason}); waiting for it")
        return is_down

    def leave(self) -> None:
        """Give the turn to knock back, in whatever way an attempt has ended."""
        with self._condition:
            if self._knocker == threading.get_ident():
                self._knocker = None
                self._condition.notify_all()

    def stop(self) -> None:
        """Wake everybody up; nobody goes on."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
