"""One request at a time, on connections that are kept: TLS, proxies, and limits to every wait.

A timeout of a socket strikes only where nothing comes at all; headers, chunk sizes and bodies that arrive byte by byte
never run into it. So all reading goes through `_WatchedSocket`, which knows how long it may take in all.
"""

from __future__ import annotations

import functools
import http.client
import io
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from scannet_prep.errors import ScanNetPrepError, ServerDownError, UsageError
from scannet_prep.remote.gate import TransferPolicy
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url, raise_for_status, translate
from scannet_prep.version import CONTACT_URL, VERSION

_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_STOP_LOOK_S = 0.2  # how often a thread that waits looks whether it is to stop
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})", re.IGNORECASE)
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
        """Give the body piece by piece, as it comes; raises AttemptError where that is too slow."""
        while piece := self._response.raw.read1(_PIECE_BYTES, decode_content=False):
            yield piece
            self._client.count(len(piece))


class Client:
    """Makes requests to one server; shared by all threads of a run. Setting `stop` ends all waiting for content.

    `certificates` is True for the system's authorities, a file with others, False to accept any certificate.

    Raises:
        UsageError: The file of certificate authorities cannot be used.
    """

    def __init__(self, base_url: str, policy: TransferPolicy, certificates: bool | Path) -> None:
        self.policy = policy
        self.stop = threading.Event()
        self.received_bytes = 0
        self._lock = threading.Lock()
        self._free_s = 0.0  # until then, the bandwidth is used up
        self._session = requests.Session()  # keeps connections, which are given to one request at a time
        found: Any = str(certificates) if isinstance(certificates, Path) else certificates
        if found is True:  # what the environment names counts, as requests has it
            found = self._session.merge_environment_settings(base_url, {}, None, True, None)["verify"]
        if isinstance(found, str):
            try:
                place = {"capath" if certificates is True and Path(found).is_dir() else "cafile": found}
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**place)
            except OSError as error:
                reason = "holds no certificate (PEM)" if isinstance(error, ssl.SSLError) else error.strerror
                hint = "a file of certificates (PEM) is expected; REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE name one too"
                raise UsageError(f"{found}: {reason}", hint) from None
        host = urlsplit(base_url).hostname or ""
        self._options: dict[str, Any] = {
            "timeout": (policy.connect_timeout_s, policy.answer_timeout_s),
            "verify": found,
            # They are for other machines, also where the environment forgets to say so.
            "proxies": {"no_proxy": host} if host in _THIS_MACHINE else {},
        }
        # Without identity, servers compress, and then neither lengths nor offsets mean anything.
        names = {"User-Agent": f"scannet-prep/{VERSION} (+{CONTACT_URL})", "Accept-Encoding": "identity"}
        self._session.headers.update(names)
        # The body of a redirection, however long, would be read.
        leave: Any = lambda response, **_: response.close() if response.is_redirect else None  # noqa: E731
        self._session.hooks["response"].append(leave)
        self._session.adapters.clear()
        adapter = _WatchedAdapter(policy, self.stop, find_source_address(base_url))
        self._session.mount("https://", adapter)
        if urlsplit(base_url).scheme == "http":  # from https, encryption is never given up on the way
            self._session.mount("http://", adapter)

    def close(self) -> None:
        """Stop all transfers, and close all connections."""
        self.stop.set()
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
        try:
            with self._session.request(method, url, headers=headers, stream=True, **self._options) as response:
                raise_for_status(response)
                yield Answer(response, self)
        except ScanNetPrepError:
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            raise translate(error, public_url(url)) from None

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
        found = socket.getaddrinfo(address.hostname, address.port or address.scheme, type=socket.SOCK_STREAM)
        if {item[0] for item in found} == {socket.AF_INET, socket.AF_INET6} and found[0][0] == socket.AF_INET6:
            try:
                socket.create_connection((str(found[0][4][0]), found[0][4][1]), timeout_s).close()
            except OSError:
                return ("0.0.0.0", 0)  # noqa: S104 - connects only, does not listen
    return None


class _WatchedSocket(io.RawIOBase):
    """What `http.client` reads an answer from; bounds the time of its headers, and the pace of its body."""

    def __init__(self, policy: TransferPolicy, stop: threading.Event, inner: io.RawIOBase, sock: Any) -> None:  # noqa: ANN401 - urllib3 has sockets of its own
        self._inner = inner  # keeps the socket open until the answer has been read
        self._sock, self._policy, self._stop = sock, policy, stop
        self.expect(is_body=False)

    def readable(self) -> bool:
        return True

    def expect(self, *, is_body: bool) -> None:
        """From now on, headers or content come, and count anew."""
        self._is_body, self._waited_s, self._received_bytes = is_body, 0.0, 0

    def readinto(self, target: Any) -> int:  # noqa: ANN401 - a writable buffer
        """Receive what there is, at least a byte, unless the connection has ended."""
        count: int | None = None
        while count is None:
            if self._stop.is_set():
                raise ServerDownError("stopped")
            began_s = time.monotonic()
            self._sock.settimeout(_STOP_LOOK_S)
            with suppress(TimeoutError):
                count = self._sock.recv_into(target)
            seconds = time.monotonic() - began_s
            if count and isinstance(self._sock, ssl.SSLSocket):  # gives 16 KB at a time, but there may be more
                self._sock.settimeout(0)
                rest = memoryview(target)
                with suppress(OSError):  # nothing, or not a whole record; other errors come up again
                    while count < len(rest) and (more := self._sock.recv_into(rest[count:])):
                        count += more
            self._check_pace(seconds, count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()

    def _check_pace(self, seconds: float, size_bytes: int) -> None:
        self._waited_s, self._received_bytes = self._waited_s + seconds, self._received_bytes + size_bytes
        if self._waited_s < (self._policy.slow_window_s if self._is_body else self._policy.answer_timeout_s):
            return
        if not self._is_body or self._received_bytes < self._policy.slowest_bytes_per_s * self._waited_s:
            what = f"{self._received_bytes:,} bytes {'of the file' if self._is_body else 'of an answer'}"
            raise AttemptError(f"only {what} came within {self._waited_s:.0f} s", tries=FEW_TRIES)
        self.expect(is_body=True)


class _WatchedResponse(http.client.HTTPResponse):
    def __init__(self, policy: TransferPolicy, stop: threading.Event, sock: Any, *more: Any, **options: Any) -> None:  # noqa: ANN401 - handed through
        super().__init__(sock, *more, **options)
        raw: Any = self.fp
        self._watched = _WatchedSocket(policy, stop, raw.detach(), sock)
        self.fp = io.BufferedReader(self._watched, _HEAD_BYTES)

    def _read_status(self) -> tuple[str, int, str]:
        """Pass over what comes before the answer itself, such as 103 Early Hints."""
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]  # not in the types
            if not 101 < found[1] < 200:
                return found
            http.client.parse_headers(self.fp)

    def _read_and_discard_trailer(self) -> None:
        """What may follow the last chunk; `http.client` would read it without end."""
        if not any(self.fp.readline(_HEAD_BYTES) in (b"\r\n", b"\n", b"") for _ in range(100)):
            raise AttemptError("the answer does not end", tries=FEW_TRIES)

    def begin(self) -> None:
        """Read the headers; what follows is the body."""
        super().begin()
        self._watched.expect(is_body=True)


class _WatchedAdapter(HTTPAdapter):
    """Makes connections whose answers are read through a watch."""

    def __init__(self, policy: TransferPolicy, stop: threading.Event, source_address: tuple[str, int] | None) -> None:
        super().__init__(pool_maxsize=64)
        self.poolmanager.connection_pool_kw["source_address"] = source_address
        self._members = {"response_class": staticmethod(functools.partial(_WatchedResponse, policy, stop))}

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - handed through
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        if "response_class" not in vars(pool.ConnectionCls):
            pool.ConnectionCls = type("WatchedConnection", (pool.ConnectionCls,), self._members)
        return pool
