"""Single requests to one server: kept connections, TLS, proxies, redirections and timeouts."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from scannet_prep.base.version import CONTACT_URL, VERSION
from scannet_prep.errors import CertificateError, ScanNetPrepError, ServerDownError
from scannet_prep.remote.addresses import public_url
from scannet_prep.remote.authorities import check_authorities, find_authorities
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.request_errors import (
    FEW_TRIES,
    HINT_CERTIFICATE,
    MANY_TRIES,
    AttemptError,
    check_status,
    translate,
)

_PIECE_BYTES = 1 << 20
_MAX_CONNECTIONS = 64
# The longest time after which `Answer._watch` reads the clock again.
_MAX_WATCH_INTERVAL_S = 1.0
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
_CONTENT_RANGE = re.compile(
    r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})", re.IGNORECASE
)
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")


class Answer:
    """The answer to a request, with a body that is still to be read.

    Attributes:
        status: 200 (the whole file), 206 (a range) or 416 (the range lies outside the file).
        headers: The headers; their names may be written in any case.
        size_bytes: Size of the whole file; None if the answer does not contain it.
        span: The range of the file that the body contains: its first byte, and the byte after its
            last one; None if the answer does not contain it.
    """

    def __init__(self, response: requests.Response, client: Client) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.size_bytes: int | None = None
        self.span: tuple[int, int] | None = None
        self._response = response
        self._client = client
        # When `read_pieces` began to wait for the next piece, on the monotonic clock; infinity
        # while it does not wait.
        self._waiting_since_s = math.inf
        self._is_closed = threading.Event()
        self._is_too_slow = False
        if self.status == 200:
            self._parse_length()
        else:
            self._parse_range()

    def read_pieces(self) -> Iterator[bytes]:
        """Iterate over the body as it arrives. Raises AttemptError if it arrives too slowly."""
        policy = self._client.policy
        # Only chunked bodies need the watch. With any other body, the timeout of the socket limits
        # how long a piece takes to arrive.
        if "Transfer-Encoding" in self.headers:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()
        waited_s = 0.0
        received_bytes = 0
        while True:
            self._waiting_since_s = time.monotonic()
            piece = self._read_piece()
            if not piece:
                return
            waited_s += time.monotonic() - self._waiting_since_s
            self._waiting_since_s = math.inf
            received_bytes += len(piece)
            yield piece
            # This waits if the rate is limited, so the caller receives the piece first.
            self._client.count(len(piece))

            if waited_s < policy.slow_window_s:
                continue
            if received_bytes < policy.slowest_bytes_per_s * waited_s:
                reason = (
                    f"only {received_bytes:,} bytes of the file arrived within {waited_s:.0f} s"
                )
                raise AttemptError(reason, tries=FEW_TRIES)
            waited_s = 0.0
            received_bytes = 0

    def close(self) -> None:
        """End the watch of the body, even if not all of it was read."""
        self._is_closed.set()

    def shut_down(self) -> None:
        """Shut the connection down. A thread that waits for a piece wakes, as if the body ended."""
        # These errors are raised if the response has ended meanwhile.
        with suppress(ValueError, RuntimeError, OSError):
            self._response.raw.shutdown()

    def _read_piece(self) -> bytes:
        """Wait for a piece of the body; empty at the end.

        Raises:
            AttemptError: Nothing of the file has arrived for too long.
            ServerDownError: The transfers were stopped.
        """
        try:
            piece: bytes = self._response.raw.read1(_PIECE_BYTES, decode_content=False)
        except urllib3.exceptions.HTTPError:
            self._check_not_shut_down()
            raise
        # The body of a connection that was shut down may also seem to end.
        self._check_not_shut_down()
        return piece

    def _check_not_shut_down(self) -> None:
        """Raise the error that explains why the connection was shut down, if it was."""
        self._client.check_not_stopped()
        if self._is_too_slow:
            wait_s = self._client.policy.slow_window_s
            raise AttemptError(
                f"no byte of the file arrived within {wait_s:.0f} s", tries=FEW_TRIES
            )

    def _watch(self) -> None:
        """Shut the connection down if a piece of a chunked body takes too long to arrive.

        The timeout of the socket is not enough, because it starts again with each byte that
        arrives. The size line before a chunk, or the lines after the last one, may arrive byte by
        byte and never end.
        """
        longest_wait_s = self._client.policy.slow_window_s
        # A quarter is for tests, whose time windows are short.
        interval_s = min(_MAX_WATCH_INTERVAL_S, longest_wait_s / 4)
        while not self._is_closed.wait(interval_s):
            if time.monotonic() - self._waiting_since_s > longest_wait_s:
                self._is_too_slow = True
                self.shut_down()
                return

    def _parse_length(self) -> None:
        """Set the size from Content-Length, unless the body is chunked (RFC 9112, 6.3)."""
        length = _CONTENT_LENGTH.fullmatch(self.headers.get("Content-Length", ""))
        if length is not None and "Transfer-Encoding" not in self.headers:
            self.size_bytes = int(length[0])

    def _parse_range(self) -> None:
        """Set the size and the range of the body from Content-Range."""
        content_range = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        if content_range is None:
            return
        first, last, size = content_range.groups()
        self.size_bytes = int(size)
        if self.status == 206 and first is not None:
            self.span = (int(first), int(last) + 1)


class Client:
    """Makes requests to one server; shared by all threads of a run.

    Args:
        base_url: The address of the server.
        policy: Timeouts and the maximum rate.
        certificates: A file or folder of authorities, True for those named in the environment or
            else those of certifi, False to accept any certificate.

    Attributes:
        policy: As above.
        stop: Set when all transfers are to end.
        received_bytes: Bytes received so far.

    Raises:
        UsageError: The authorities cannot be used.
    """

    def __init__(self, base_url: str, policy: TransferPolicy, certificates: bool | Path) -> None:
        self.policy = policy
        self.stop = threading.Event()
        self.received_bytes = 0
        self._lock = threading.Lock()
        # When the maximum rate allows the next bytes, on the monotonic clock.
        self._next_allowed_s = 0.0
        self._open_answers: set[Answer] = set()

        if certificates is True:
            certificates = find_authorities(os.environ)
        # The file or folder of authorities, for error messages. Empty if the authorities are those
        # of certifi, and if any certificate is accepted.
        self._authorities = ""
        verify: bool | str
        if isinstance(certificates, Path):
            check_authorities(certificates)
            self._authorities = str(certificates)
            verify = self._authorities
        else:
            verify = certificates

        # Never use a proxy to reach this machine, even if the environment names one for all hosts.
        proxies = {}
        host = urlsplit(base_url).hostname
        if host in _THIS_MACHINE:
            proxies = {"no_proxy": host}
        self._options: dict[str, Any] = {
            "timeout": (policy.connect_timeout_s, policy.answer_timeout_s),
            "verify": verify,
            "proxies": proxies,
        }
        self._session = _make_session(base_url)

    def close(self) -> None:
        """Stop all transfers, and close all connections."""
        self.stop.set()
        # A copy, because other threads remove their answers meanwhile.
        for answer in list(self._open_answers):
            answer.shut_down()
        self._session.close()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str], method: str = "GET") -> Iterator[Answer]:
        """Request a file or a range of it, and give an answer whose body is still to be read.

        Errors of the network in the `with` block are translated too, so the body can be read there.

        Raises:
            AttemptError: Another attempt may succeed, or only this file is concerned.
            CertificateError, ProxyError: Nothing can be downloaded at all.
            ServerDownError: The transfers were stopped.
        """
        self.check_not_stopped()
        has_answered = False
        try:
            with self._session.request(
                method, url, headers=headers, stream=True, **self._options
            ) as response:
                has_answered = True
                check_status(response)
                answer = Answer(response, self)
                self._open_answers.add(answer)
                try:
                    # `close` may have run since the check above, too early to find this answer in
                    # `_open_answers` and shut it down.
                    self.check_not_stopped()
                    yield answer
                finally:
                    answer.close()
                    self._open_answers.discard(answer)
        except ScanNetPrepError:
            # Some of these are also ValueErrors.
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            if self.stop.is_set():
                raise ServerDownError("stopped") from None
            raise self._translate(error, url, has_answered=has_answered) from None

    def count(self, size_bytes: int) -> None:
        """Count received bytes, and wait as long as the maximum rate of the run requires."""
        with self._lock:
            self.received_bytes += size_bytes
            if self.policy.bytes_per_s is None:
                return
            now_s = time.monotonic()
            # At the maximum rate, these bytes take this long, beginning after all earlier ones. If
            # no bytes arrived for some time, that does not allow a higher rate later.
            duration_s = size_bytes / self.policy.bytes_per_s
            self._next_allowed_s = max(self._next_allowed_s, now_s) + duration_s
            pause_s = self._next_allowed_s - now_s
        self.stop.wait(pause_s)

    def check_not_stopped(self) -> None:
        """Raise a ServerDownError if all transfers are to end."""
        if self.stop.is_set():
            raise ServerDownError("stopped")

    def _translate(self, error: Exception, url: str, *, has_answered: bool) -> Exception:
        """Translate an error of the network, and adapt it to the settings of this client."""
        translated = translate(error, public_url(url))
        if isinstance(translated, AttemptError):
            # A connection that fails before the answer concerns the server, not the file. An error
            # keeps its own number of tries; 0 means that it has none.
            has_own_tries = translated.tries > 0
            if not has_answered and not has_own_tries:
                translated.tries = MANY_TRIES
            return translated
        if isinstance(translated, CertificateError) and self._authorities:
            return self._name_authorities(translated)
        return translated

    def _name_authorities(self, error: CertificateError) -> CertificateError:
        """Replace a hint that suggests giving authorities, because some were given."""
        if error.hint != HINT_CERTIFICATE:
            return error
        hint = (
            f"none of the authorities in {self._authorities} signed it: add the right one to them"
        )
        return CertificateError(error.message, hint)


def _make_session(base_url: str) -> requests.Session:
    """Make a session, which keeps connections and lends each to one request at a time."""
    session = requests.Session()
    session.headers["User-Agent"] = f"scannet-prep/{VERSION} (+{CONTACT_URL})"
    # Servers compress unless identity is requested. The lengths and offsets of compressed content
    # are not those of the file.
    session.headers["Accept-Encoding"] = "identity"
    session.hooks["response"].append(_close_redirection)

    adapter = HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS)
    is_encrypted = urlsplit(base_url).scheme == "https"
    session.mount("https://", adapter)
    session.mount("http://", _RefusingAdapter() if is_encrypted else adapter)
    return session


def _close_redirection(response: requests.Response, **_options: object) -> None:
    """Close a redirection without reading its body: requests would read all of it."""
    if response.is_redirect:
        response.close()


class _RefusingAdapter(BaseAdapter):
    """Refuses unencrypted requests of a session with https.

    Such a request can only come from a redirection.
    """

    def send(self, *_arguments: object, **_options: object) -> requests.Response:
        raise AttemptError(
            "is redirected from https to http, which is not followed",
            "the login page of your network may cause it: open the address in a browser",
            tries=1,
            is_answer=True,
        )

    def close(self) -> None:
        """Do nothing: there are no connections."""
