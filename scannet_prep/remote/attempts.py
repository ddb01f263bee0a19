"""One loop that owns every kind of failure, whatever is fetched: when to try again, after which pause, when to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from scannet_prep.errors import FileError, ServerDownError, TransferError
from scannet_prep.remote.failure import TransientError
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.policy import TransferPolicy

_SERVED = "what has been served"


class Attempts:
    """Repeats what fails; shared by all threads of a run.

    Args:
        policy: How patient to be.
        health: What all threads know of the server.
        stop: Ends all pauses once it is set.
        on_pause: Told in words of long pauses.
        ask_for_served: Asks for something that the server has served before; gives False where there is nothing, and
            raises what `attempt` may raise. None where all is about one file, which then is to blame.
    """

    def __init__(
        self,
        policy: TransferPolicy,
        health: ServerHealth,
        stop: threading.Event,
        on_pause: Callable[[str], None],
        ask_for_served: Callable[[], bool] | None = None,
    ) -> None:
        self._policy = policy
        self._health = health
        self._stop = stop
        self._on_pause = on_pause
        self._ask_for_served = ask_for_served

    def repeat(self, url: str, attempt: Callable[[], None], count_bytes: Callable[[], int]) -> None:
        """Call `attempt` until it succeeds.

        Args:
            url: What is fetched, for messages.
            attempt: Makes one request. Raises `TransientError` where another one may help, and `FileError` where all
                has arrived, but is not what it should be.
            count_bytes: How much there is so far. More than ever before means progress, and renews the patience.

        Raises:
            FileError: The server keeps sending something else.
            NotOnServerError: The server says that it has no such file.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server does not answer anybody any more, or the transfers were stopped.
        """
        failures = wrong_contents = 0
        most_bytes = count_bytes()
        while True:
            self._health.enter()
            retry_after_s: float | None = None
            is_outage = False
            try:
                attempt()
            except FileError as error:
                reason = str(error)
                is_outage = self._serves_nothing()
                wrong_contents += not is_outage
                if wrong_contents >= self._policy.wrong_contents:
                    raise
            except TransientError as error:
                reason, retry_after_s = str(error), error.retry_after_s
                is_last = failures + 1 >= self._policy.attempts
                is_outage = self._is_outage(url, error, is_last=is_last)
            else:
                self._health.succeeded()
                return
            finally:
                self._health.leave()
            if self._stop.is_set():
                raise ServerDownError("stopped")
            if count_bytes() > most_bytes:  # more than ever before: without a validator each attempt begins anew
                most_bytes, failures = count_bytes(), 0
            if is_outage:
                continue  # `enter` waits, together with everybody else
            failures += 1
            if failures >= self._policy.attempts:
                raise TransferError(f"{url}: {failures} attempts in a row failed, the last one: {reason}")
            self._pause(url, reason, failures, retry_after_s)

    def _is_outage(self, url: str, error: TransientError, *, is_last: bool) -> bool:
        """Tell everybody of a failure that may concern everybody; gives whether it is certainly not this file's."""
        if error.trouble == "transfer":
            return False
        was_certain = self._health.is_certain
        is_down = self._tell(url, error)
        if error.trouble == "connection":  # without any, no file is to blame
            return is_down
        # A server that answers with errors may mean this file alone, unless it fails with what it has served before.
        if not self._health.may_be_down and not is_last:
            return False
        if self._serves_nothing():
            return True
        # Either an outage has just ended, or nothing has been served so far, to nobody.
        return was_certain or (is_down and not self._health.has_served)

    def _serves_nothing(self) -> bool:
        """Find out whether the server fails with what it has served before, too; if so, tell everybody."""
        try:
            if self._ask_for_served is not None and self._ask_for_served():
                self._health.succeeded()
        except TransientError as error:
            self._tell(_SERVED, error, is_certain=True)
            return True
        except TransferError:  # that file has gone; it answers
            return False
        return False

    def _tell(self, what: str, error: TransientError, *, is_certain: bool = False) -> bool:
        """Tell everybody of a failure; gives whether the server is held to be down."""
        return self._health.failed(
            what,
            str(error),
            min(error.retry_after_s or 0.0, self._policy.longest_retry_after_s),
            is_unreachable=error.trouble == "connection",
            is_certain=is_certain,
        )

    def _pause(self, url: str, reason: str, failures: int, retry_after_s: float | None) -> None:
        policy = self._policy
        if retry_after_s is None:
            longest_s = min(policy.first_delay_s * 2 ** (failures - 1), policy.longest_delay_s)
            pause_s = longest_s * random.uniform(0.5, 1.5)  # noqa: S311 - so that workers do not knock in step
        else:
            pause_s = min(retry_after_s, policy.longest_retry_after_s)
        if pause_s > policy.told_pause_s:
            self._on_pause(f"{url}: {reason}; the server asks to wait, trying again in {pause_s / 60:.0f} min")
        self._stop.wait(pause_s)
