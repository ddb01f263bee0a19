"""Single requests on connections that are kept: TLS, proxies, redirections, and limits to the waiting."""

from __future__ import annotations

import os
import re
import socket
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

from scannet_prep.base.errors import CertificateError, ScanNetPrepError, ServerDownError
from scannet_prep.base.version import CONTACT_URL, VERSION
from scannet_prep.remote.authorities import check_authorities, find_authorities
from scannet_prep.remote.gate import TransferPolicy
from scannet_prep.remote.trouble import (
    CERTIFICATE_HINT,
    FEW_TRIES,
    MANY_TRIES,
    AttemptError,
    public_url,
    raise_for_status,
    translate,
)

_PIECE_BYTES = 1 << 20
_MAX_CONNECTIONS = 64
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
_CONTENT_RANGE = re.compile(
    r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})", re.IGNORECASE
)
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")


class Answer:
    """What a server says to a request: status 200, 206 or 416, and headers, their names in any case.

    Attributes:
        size_bytes: Of the whole file; None where the answer does not tell.
        span: Which part of it comes: first byte, and the one after the last; None where no part was announced.
    """

    def __init__(self, response: requests.Response, client: Client) -> None:
        self._response, self._client = response, client
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.size_bytes: int | None = None
        self.span: tuple[int, int] | None = None
        length = _CONTENT_LENGTH.fullmatch(self.headers.get("Content-Length", ""))
        part = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        # Chunks have lengths of their own, which count instead (RFC 9112, 6.3).
        if self.status == 200 and length and "Transfer-Encoding" not in self.headers:
            self.size_bytes = int(length[0])
        elif self.status != 200 and part:
            self.size_bytes = int(part[3])
            self.span = (int(part[1]), int(part[2]) + 1) if self.status == 206 and part[1] else None

    def read_pieces(self) -> Iterator[bytes]:
        """Iterate over the body as it arrives. Raises AttemptError if it arrives too slowly.

        A timeout of the socket concerns a single piece, so a body that trickles would never meet it.
        """
        policy = self._client.policy
        waited_s = 0.0
        received_bytes = 0
        while True:
            began_s = time.monotonic()
            piece = self._response.raw.read1(_PIECE_BYTES, decode_content=False)
            if (
                self._client.stop.is_set()
            ):  # the connection was shut down, which looks like the end of the body
                raise ServerDownError("stopped")
            if not piece:
                return
            waited_s += time.monotonic() - began_s
            received_bytes += len(piece)
            yield piece
            self._client.count(len(piece))
            if waited_s < policy.slow_window_s:
                continue
            if received_bytes < policy.slowest_bytes_per_s * waited_s:
                reason = f"only {received_bytes:,} bytes of the file came within {waited_s:.0f} s"
                raise AttemptError(reason, tries=FEW_TRIES)
            waited_s = 0.0
            received_bytes = 0


class Client:
    """Makes requests to one server; shared by all threads of a run.

    `certificates` is a file or folder of authorities, True for those that the environment names or else those of
    certifi, or False to accept any certificate.

    Raises:
        UsageError: The authorities cannot be used.
    """

    def __init__(self, base_url: str, policy: TransferPolicy, certificates: bool | Path) -> None:
        self.policy = policy
        self.stop = threading.Event()
        self.received_bytes = 0
        self._lock = threading.Lock()
        self._free_s = 0.0  # until then, the bandwidth is used up
        self._open_responses: set[requests.Response] = set()
        self._session = (
            requests.Session()
        )  # keeps connections, which are given to one request at a time
        if certificates is True:
            certificates = find_authorities(os.environ)
        self._authorities = ""
        if isinstance(certificates, Path):
            check_authorities(certificates)
            self._authorities = str(certificates)
        host = urlsplit(base_url).hostname or ""
        self._options: dict[str, Any] = {
            "timeout": (policy.connect_timeout_s, policy.answer_timeout_s),
            "verify": self._authorities or certificates,
            # They are for other machines, also where the environment forgets to say so.
            "proxies": {"no_proxy": host} if host in _THIS_MACHINE else {},
        }
        # Without identity, servers compress, and then neither lengths nor offsets mean anything.
        names = {
            "User-Agent": f"scannet-prep/{VERSION} (+{CONTACT_URL})",
            "Accept-Encoding": "identity",
        }
        self._session.headers.update(names)
        self._session.hooks["response"].append(_close_redirection)
        self._session.adapters.clear()
        adapter = HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS)
        adapter.poolmanager.connection_pool_kw["source_address"] = find_source_address(base_url)
        self._session.mount("https://", adapter)
        is_encrypted = urlsplit(base_url).scheme == "https"
        self._session.mount("http://", _RefusingAdapter() if is_encrypted else adapter)

    def close(self) -> None:
        """Stop all transfers, and close all connections."""
        self.stop.set()
        for response in list(self._open_responses):
            with suppress(ValueError, RuntimeError, OSError):  # it has ended meanwhile
                response.raw.shutdown()  # wakes the thread that waits for content
        self._session.close()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str], method: str = "GET") -> Iterator[Answer]:
        """Ask for a file, or a range of it; gives an answer whose body is yet to come.

        Errors of the network are translated inside the `with` block too, so that the body may be read in it.

        Raises:
            AttemptError: Another attempt may help, or only this file is concerned.
            CertificateError, ProxyError: Nothing can be fetched at all.
            ServerDownError: The transfers were stopped.
        """
        if self.stop.is_set():
            raise ServerDownError("stopped")
        has_answered = False
        try:
            with self._session.request(
                method, url, headers=headers, stream=True, **self._options
            ) as response:
                has_answered = True
                raise_for_status(response)
                self._open_responses.add(response)
                try:
                    yield Answer(response, self)
                finally:
                    self._open_responses.discard(response)
        except ScanNetPrepError:
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            if self.stop.is_set():
                raise ServerDownError("stopped") from None
            translated = translate(error, public_url(url))
            if (
                self._authorities
                and isinstance(translated, CertificateError)
                and translated.hint == CERTIFICATE_HINT
            ):
                hint = f"none of the authorities in {self._authorities} signed it: add the right one to them"
                raise CertificateError(translated.message, hint) from None
            # A connection that fails before the answer concerns the server, not the file.
            if isinstance(translated, AttemptError) and not translated.tries and not has_answered:
                translated.tries = MANY_TRIES
            raise translated from None

    def count(self, size_bytes: int) -> None:
        """Count bytes that have come, and wait as long as all connections together may take for them."""
        with self._lock:
            self.received_bytes += size_bytes
            if self.policy.bytes_per_s is None:
                return
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s) + size_bytes / self.policy.bytes_per_s
            pause_s = self._free_s - now_s
        self.stop.wait(pause_s)


def find_source_address(url: str, timeout_s: float = 2.0) -> tuple[str, int] | None:
    """Find out from which address to connect: from an IPv4 one where IPv6 leads nowhere, else from any (None)."""
    address = urlsplit(url)
    if requests.utils.get_environ_proxies(url):
        return None
    with suppress(OSError):
        found = socket.getaddrinfo(
            address.hostname, address.port or address.scheme, type=socket.SOCK_STREAM
        )
        if {item[0] for item in found} == {socket.AF_INET, socket.AF_INET6} and found[0][
            0
        ] == socket.AF_INET6:
            try:
                socket.create_connection((str(found[0][4][0]), found[0][4][1]), timeout_s).close()
            except OSError:
                return ("0.0.0.0", 0)  # noqa: S104 - connects only, does not listen
    return None


def _close_redirection(response: requests.Response, **_options: object) -> None:
    """Close a redirection without reading its body: requests would read all of it."""
    if response.is_redirect:
        response.close()


class _RefusingAdapter(BaseAdapter):
    """Refuses to go on without encryption after a redirection from https to http."""

    def send(self, *_arguments: object, **_options: object) -> requests.Response:
        raise AttemptError(
            "is redirected from https to http, which is not followed",
            "the login page of your network may cause it: open the address in a browser",
            tries=1,
            is_answer=True,
        )

    def close(self) -> None:
        """There is nothing to close."""
