"""Reads ranges of one large file on a web server, with the patience and the checks of a download."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from scannet_prep.base.errors import ServerDownError, TransferError, UsageError
from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.remote.client import Answer, Client
from scannet_prep.remote.gate import PROGRESS_BYTES, Gate, TransferPolicy
from scannet_prep.remote.source import RemoteSource
from scannet_prep.remote.trouble import (
    FEW_TRIES,
    LOGIN_HINT,
    RELEASE_ACCESS_HINT,
    AttemptError,
    is_server_address,
    public_url,
)

_PATIENCE = TransferPolicy(
    outage_patience_s=600.0, first_answer_patience_s=30.0, longest_retry_after_s=600.0
)
_log = logging.getLogger(__name__)


class RangeSource(RemoteSource):
    """A file on a web server, of which any range can be read.

    Picklable, and safe under fork and in threads: each process and thread has connections of its own. Opening it
    asks for the first byte, which tells the size.

    Args:
        url: Its address, `https://` or `http://`. User and password in it, and the query, never show in messages.
        certificates: A file or folder of authorities, True for those that the environment names or else those of
            certifi, False to accept any certificate.
        policy: How patient to be.

    Raises:
        UsageError: It is not an address, or the file of authorities cannot be used.
        NotOnServerError: The server has no such file.
        TransferError: The server refuses, gives no ranges, or too many attempts in a row failed.
        ServerDownError: The server does not answer.
    """

    def __init__(
        self, url: str, *, certificates: bool | Path = True, policy: TransferPolicy | None = None
    ) -> None:
        self._clients: dict[int, Client] = {}
        if not is_server_address(url):
            hint = "name it as https://HOST/PATH/NAME.tar.zst"
            raise UsageError(
                f"{public_url(url)!r} is not an address of a file on a web server", hint
            )
        self._url, self._certificates, self._policy = url, certificates, policy or _PATIENCE
        super().__init__(public_url(url))
        self.close()  # so that processes that are forked now inherit no connection

    def close(self) -> None:
        """Close the connections of this process, which ends what other threads read; reading opens new ones."""
        if client := self._clients.pop(os.getpid(), None):
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return self.__dict__ | {"_clients": {}}

    def _fetch(self, start: int, end: int) -> bytes:
        """Fetch a range, with as many requests as it takes; they are given up when nothing has come for too long."""
        client = self._clients.get(os.getpid())
        if client is None:  # without a lock, which a fork may copy while it is held
            client = self._clients.setdefault(
                os.getpid(), Client(self._url, self._policy, self._certificates)
            )
        gate = Gate(self._policy, self.name, lambda text: _log.warning("%s: %s", self.name, text))
        if self._version:
            gate.served(is_probe=True)
        data = bytearray()
        while len(data) < min(end, self.size_bytes) - start:
            there_bytes = len(data)
            try:
                self._receive(client, data, start, end)
            except AttemptError as error:
                if len(data) >= there_bytes + PROGRESS_BYTES:
                    gate.served(is_probe=True)
                else:
                    self._wait_for_server(client, gate, error)
        return bytes(data)

    def _wait_for_server(self, client: Client, gate: Gate, error: AttemptError) -> None:
        """Pause after a request that has failed.

        Raises:
            TransferError: It was one too many.
            ServerDownError: Nothing was served for too long.
        """
        gate.failed(error, time.monotonic(), is_probe=True)
        failures = gate.failed_probes
        if 0 < error.tries <= min(failures, FEW_TRIES):
            hint = LOGIN_HINT if error.hint == RELEASE_ACCESS_HINT else error.hint
            raise error.error_type(f"{self.name}: {error.describe(failures)}", hint)
        try:
            gate.may_request()
        except ServerDownError as down:
            raise ServerDownError(f"{self.name}: {down.message}", "try again later") from None
        client.stop.wait(gate.pace.next_s - time.monotonic())

    def _receive(self, client: Client, data: bytearray, start: int, end: int) -> None:
        """Make one request for what is missing of a range, and append what it gives."""
        first = start + len(data)
        with client.open(self._url, {"Range": f"bytes={first}-{end - 1}"}) as answer:
            if answer.status == 200:
                raise _explain_whole_answer(answer)
            if answer.size_bytes is not None:
                headers = answer.headers
                self._check_version(
                    (answer.size_bytes, headers.get("ETag", ""), headers.get("Last-Modified", ""))
                )
            if self.size_bytes == 0:
                return
            if answer.span != (first, end):
                raise AttemptError(
                    f"asked for {first}-{end - 1}, the server sent other bytes", tries=FEW_TRIES
                )
            for piece in answer.read_pieces():
                if len(data) + len(piece) > end - start:
                    raise AttemptError("more came than was asked for", tries=FEW_TRIES)
                data += piece
        if len(data) < end - start:
            raise AttemptError("the connection broke off")


def _explain_whole_answer(answer: Answer) -> AttemptError:
    """Explain status 200 where a range was requested: a page, such as a login, or a server without ranges."""
    kind = describe_beginning(next(answer.read_pieces(), b""))
    if kind == "a web page" or answer.headers.get("Content-Type", "").startswith("text/html"):
        reason = "the server sends a web page instead of the archive, for example a login"
        hint = f"open the address in a browser; {LOGIN_HINT}"
        return AttemptError(reason, hint, tries=FEW_TRIES, error_type=TransferError)
    hint = "download the archive and name the file, or serve it from a server that supports ranges, such as nginx"
    reason = "the server sends the whole file instead of a part: it does not support ranges"
    return AttemptError(reason, hint, tries=FEW_TRIES)
