"""Read ranges of one large file on a web server, with the patience and the checks of a download."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.errors import ServerDownError, UsageError
from scannet_prep.remote.addresses import is_server_address, public_url
from scannet_prep.remote.client import Answer, Client
from scannet_prep.remote.gate import Gate
from scannet_prep.remote.policy import PROGRESS_BYTES, TransferPolicy
from scannet_prep.remote.request_errors import (
    FEW_TRIES,
    HINT_LOGIN,
    HINT_RELEASE_ACCESS,
    AttemptError,
)
from scannet_prep.remote.source import RemoteSource

_DEFAULT_POLICY = TransferPolicy(
    outage_patience_s=600.0, first_answer_patience_s=30.0, longest_retry_after_s=600.0
)
_log = logging.getLogger(__name__)


class RangeSource(RemoteSource):
    """A file on a web server, of which any range can be read.

    Picklable, and safe under fork and in threads: each process and each thread has its own
    connections. Opening the source requests the first byte, to learn the size of the file.

    Args:
        url: Its address, `https://` or `http://`. User, password and query never appear in
            messages.
        certificates: A file or folder of authorities, True for those named in the environment or
            else those of certifi, False to accept any certificate.
        policy: How patient to be.

    Raises:
        UsageError: The address is not valid, or the authorities cannot be used.
        NotOnServerError: The server has no such file.
        TransferError: The server refuses, does not support ranges, or too many attempts in a row
            failed.
        ServerDownError: The server does not answer.
    """

    def __init__(
        self, url: str, *, certificates: bool | Path = True, policy: TransferPolicy | None = None
    ) -> None:
        if not is_server_address(url):
            raise UsageError(
                f"{public_url(url)!r} is not an address of a file on a web server",
                "name it as https://HOST/PATH/NAME.tar.zst",
            )
        self._url = url
        self._certificates = certificates
        self._policy = policy or _DEFAULT_POLICY
        # Clients by process id.
        self._clients: dict[int, Client] = {}
        # This makes the first request.
        super().__init__(public_url(url))
        # Processes that are forked from now on inherit no connection.
        self.close()

    def close(self) -> None:
        """Close the connections of this process.

        This ends reads in other threads. Later reads connect again.
        """
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connections, which belong to this process."""
        return self.__dict__ | {"_clients": {}}

    def _fetch(self, start: int, end: int) -> bytes:
        """Request a range, as often as necessary, until nothing has arrived for too long."""
        client = self._get_client()
        # Each request is a probe: no other request uses this gate.
        gate = Gate(self._policy, self.name, self._log_outage)
        if self._version is not None:
            # The server has served this file before, so the longer patience holds.
            gate.served(is_probe=True)

        data = bytearray()
        # The first answer sets `size_bytes`. If the file is empty, it becomes 0 and ends the loop.
        while len(data) < min(end, self.size_bytes) - start:
            previous_bytes = len(data)
            try:
                self._receive(client, data, start, end)
            except AttemptError as error:
                if len(data) >= previous_bytes + PROGRESS_BYTES:
                    gate.served(is_probe=True)
                else:
                    self._wait_for_server(client, gate, error)
        return bytes(data)

    def _get_client(self) -> Client:
        """Return the client of this process; make it first if necessary."""
        # No lock, because a fork could copy a held one. If two threads come here at once, both use
        # the client that was stored first.
        client = self._clients.get(os.getpid())
        if client is None:
            client = Client(self._url, self._policy, self._certificates)
            client = self._clients.setdefault(os.getpid(), client)
        return client

    def _log_outage(self, text: str) -> None:
        _log.warning("%s: %s", self.name, text)

    def _wait_for_server(self, client: Client, gate: Gate, error: AttemptError) -> None:
        """Pause after a failed request.

        Raises:
            TransferError: Too many requests failed.
            ServerDownError: Nothing was served for too long.
        """
        gate.failed(error, time.monotonic(), is_probe=True)
        failures = gate.failed_probes
        # Broken connections (0 tries) and rejections (`MANY_TRIES`) are retried for as long as the
        # patience lasts.
        is_counted = 0 < error.tries <= FEW_TRIES
        if is_counted and failures >= error.tries:
            # The file is not one of the release: its server does not require signed terms.
            hint = HINT_LOGIN if error.hint == HINT_RELEASE_ACCESS else error.hint
            raise error.error_type(f"{self.name}: {error.describe(failures)}", hint)
        try:
            # Called only because it raises an error when the patience is over.
            gate.may_request()
        except ServerDownError as down:
            raise ServerDownError(f"{self.name}: {down.message}", "try again later") from None
        client.stop.wait(gate.pace.next_s - time.monotonic())

    def _receive(self, client: Client, data: bytearray, start: int, end: int) -> None:
        """Request the missing bytes of a range once, and append those that arrive to `data`.

        Raises:
            AttemptError: The range is still incomplete, or the answer is not this range.
            ArchiveError: The file has changed since it was opened.
        """
        first = start + len(data)
        with client.open(self._url, {"Range": f"bytes={first}-{end - 1}"}) as answer:
            if answer.status == 200:
                raise _explain_whole_answer(answer)
            if answer.size_bytes is not None:
                etag = answer.headers.get("ETag", "")
                date = answer.headers.get("Last-Modified", "")
                self._check_version((answer.size_bytes, etag, date))
            if self.size_bytes == 0:
                # An empty file has no ranges (416).
                return
            if answer.span != (first, end):
                problem = f"requested bytes {first}-{end - 1}, but the server sent others"
                raise AttemptError(problem, tries=FEW_TRIES)
            for piece in answer.read_pieces():
                if len(data) + len(piece) > end - start:
                    problem = "the server sent more bytes than were requested"
                    raise AttemptError(problem, tries=FEW_TRIES)
                data += piece
        if len(data) < end - start:
            raise AttemptError("the connection broke off")


def _explain_whole_answer(answer: Answer) -> AttemptError:
    """Explain status 200 for a range: a web page such as a login, or a server without ranges."""
    kind = describe_beginning(next(answer.read_pieces(), b""))
    is_html = answer.headers.get("Content-Type", "").startswith("text/html")
    if kind == "a web page" or is_html:
        return AttemptError(
            "the server sends a web page instead of the archive, for example a login",
            f"open the address in a browser; {HINT_LOGIN}",
            tries=FEW_TRIES,
        )
    return AttemptError(
        "the server sends the whole file instead of a part: it does not support ranges",
        "download the archive and name the file, or serve it from a server that supports ranges, "
        "such as nginx",
        tries=FEW_TRIES,
    )
