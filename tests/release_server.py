"""ScanNet's server on this machine: real sockets, a synthetic release, and the faults of `release_faults` on demand."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Collection
from email.utils import formatdate
from pathlib import Path
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

from release_connections import Connection, ConnectionEndedError, Request, send_answer
from release_faults import Answer, Rule, Source, pace_of, replace_answer

from scannet_prep.labels import LABEL_MAP_NAME

ROOT = "/scannet/"
LABEL_MAP_URL_PATH = f"{ROOT}v2/tasks/{LABEL_MAP_NAME}"
TERMS_URL_PATH = f"{ROOT}ScanNet_TOS.pdf"


def scene_url_path(scene_id: str, suffix: str) -> str:
    return f"{ROOT}v2/scans/{scene_id}/{scene_id}{suffix}"


def release_urls(root: Path) -> dict[str, Path | bytes]:
    """What lies where on the server, for a raw tree as `write_release` makes it; terms and lists are made up."""
    urls: dict[str, Path | bytes] = {TERMS_URL_PATH: b"%PDF-1.4\n% terms of use\n%%EOF\n"}
    for name in ("scans", "scans_test"):
        scene_dirs = sorted(path for path in root.glob(f"{name}/*") if path.is_dir())
        urls[f"{ROOT}v2/{name}.txt"] = "".join(f"{path.name}\n" for path in scene_dirs).encode()
        for path in itertools.chain.from_iterable(scene_dir.iterdir() for scene_dir in scene_dirs):
            version = "v1" if path.suffix == ".sens" and name == "scans" else "v2"
            urls[f"{ROOT}{version}/scans/{path.parent.name}/{path.name}"] = path
    urls |= {f"{ROOT}v2/tasks/{path.name}": path for path in root.glob("tasks/*")}
    return urls | {LABEL_MAP_URL_PATH: root / LABEL_MAP_NAME}


def reserve_port(port: int = 0) -> socket.socket:
    """Bind a socket to a port of 127.0.0.1, beside others that are made so.

    As long as there is one, the port is not given to anybody else; as long as none listens, connections are refused.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class ReleaseServer:
    """Serves a raw tree with ScanNet's URLs; see `release_faults` for rules. All settings may change while it runs.

    Args:
        root: A tree as `write_release` makes it; `files` says what lies where.
        faults: Rules; all that match apply.
        certificate: A certificate with its key makes it https.
        request_latency_s: Added to each request; `connection_latency_s` to each new connection.
        bytes_per_s: Bandwidth of each connection.
    """

    def __init__(
        self,
        root: Path,
        *,
        faults: Collection[Rule] = (),
        certificate: Path | None = None,
        etag: Literal["strong", "weak"] | None = "strong",
        has_last_modified: bool = True,
        request_latency_s: float = 0,
        connection_latency_s: float = 0,
        bytes_per_s: float | None = None,
    ) -> None:
        self.files = release_urls(root)
        self.faults = faults
        self.etag = etag
        self.has_last_modified = has_last_modified
        self.request_latency_s = request_latency_s
        self.connection_latency_s = connection_latency_s
        self.bytes_per_s = bytes_per_s
        self.max_connections = self.connection_count = 0
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._counts: Counter[str] = Counter()
        self._connections: dict[Connection, threading.Thread] = {}
        self._closing = threading.Event()
        self._listener: tuple[socket.socket, threading.Thread] | None = None
        self._numbers = itertools.count(1)
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Self:
        self._placeholder = reserve_port()
        self.port = self._placeholder.getsockname()[1]
        self.origin = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        self.base_url = f"{self.origin}{ROOT}"
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        for timer in self._timers:
            timer.cancel()
        for thread in self.stop():
            thread.join(20)
            assert not thread.is_alive(), "a connection does not end"
        self._placeholder.close()

    def start(self) -> None:
        """After `stop`: listen again, on the same port."""
        with self._lock:
            if self._listener is None and not self._closing.is_set():
                sock = reserve_port(self.port)
                sock.listen(128)
                self._listener = sock, threading.Thread(target=self._accept, args=(sock,), daemon=True)
                self._listener[1].start()

    def stop(self) -> list[threading.Thread]:
        """Refuse new connections and end all there are."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener[0].shutdown(socket.SHUT_RDWR)  # wakes it up
            listener[1].join(20)
            listener[0].close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.end()
        return list(connections.values())

    def requests(self, path: str | None = None, method: str | None = None) -> list[Request]:
        with self._lock:
            return [r for r in self._requests if path in (None, r.path) and method in (None, r.method)]

    def forget(self) -> None:
        """Forget all requests so far; numbers begin at 1 again."""
        with self._lock:
            self._requests, self._counts = [], Counter()
            self.max_connections = self.connection_count = 0

    def sent(self, path: str) -> list[tuple[int, int]]:
        """Bytes of the release's file handed to the network, as (offset, length), in order of requests.

        Up to the client's and the server's socket buffers of them may be lost where a client leaves early. Pages,
        compressed bodies and other versions do not count.
        """
        return [(r.offset, r.sent_bytes) for r in self.requests(path) if r.offset is not None and r.sent_bytes]

    def bytes_sent_again(self, path: str) -> int:
        """How many of the bytes sent had been sent before."""
        end = again = 0
        for offset, length in sorted(self.sent(path)):
            again += max(0, min(end, offset + length) - offset)
            end = max(end, offset + length)
        return again

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                if self._tls is not None:
                    sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the client has left already
                sock.close()
                continue
            connection = Connection(next(self._numbers), sock)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._connections[connection] = thread
                self.connection_count += 1
                count = sum(not other.has_left() for other in self._connections)
                self.max_connections = max(self.max_connections, count)
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            self._closing.wait(self.connection_latency_s)
            while self._serve_request(connection):
                pass
        except ConnectionEndedError:
            pass
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _serve_request(self, connection: Connection) -> bool:
        method, target, headers = connection.read_request()
        path = unquote(urlsplit(target).path)
        with self._lock:
            self._counts[path] += 1
            request = Request(
                method, path, self._counts[path], headers,
                connection.number, threading.current_thread().name, time.monotonic(),
            )  # fmt: skip
            self._requests.append(request)
        request.faults = tuple(fault for rule in self.faults for fault in rule(request))
        answer = self._answer(request)
        if answer.outage_s is not None:
            self._go_down(answer.outage_s)
        answer.is_last |= headers.get("connection", "").lower() == "close"
        send_answer(connection, answer)
        return not answer.is_last

    def _go_down(self, seconds: float) -> None:
        if math.isfinite(seconds):
            timer = threading.Timer(seconds, self.start)
            timer.daemon = True
            self._timers.append(timer)
            timer.start()
        self.stop()

    def _answer(self, request: Request) -> Answer:
        source = self._find(request.path)
        for fault in request.faults:
            fault.change_source(source)
        answer = answer_honestly(request, source)
        answer.delay_s += self.request_latency_s
        if self.bytes_per_s is not None:
            answer.pace = pace_of(self.bytes_per_s)
        for fault in request.faults:
            fault.change_answer(answer)
        return answer

    def _find(self, path: str) -> Source:
        file = self.files.get(path)
        try:
            content = file.read_bytes() if isinstance(file, Path) else file
        except FileNotFoundError:
            content = None
        if content is None:
            return Source(b"", None, None, exists=False)
        modified_ns = file.stat().st_mtime_ns if isinstance(file, Path) else 0
        tag = f'"{modified_ns:x}-{len(content):x}"'
        return Source(
            content,
            etag={"strong": tag, "weak": f"W/{tag}", None: None}[self.etag],
            last_modified=formatdate(modified_ns // 10**9, usegmt=True) if self.has_last_modified else None,
        )


def answer_honestly(request: Request, source: Source) -> Answer:
    """What RFC 9110 asks for; several ranges at once count as none."""
    answer = Answer(request, source, body=source.content, offset=0 if source.is_release else None)
    if request.method not in ("GET", "HEAD") or not source.exists:
        replace_answer(answer, 404 if request.method in ("GET", "HEAD") else 405, b"No.\n")
        return answer
    size = len(source.content)
    span = find_span(request.range, size) if source.ranges and may_resume(request.if_range, source) else None
    headers = {
        "Content-Type": source.content_type,
        "Content-Encoding": source.content_encoding,
        "Accept-Ranges": "bytes" if source.ranges else None,
        "ETag": source.etag,
        "Last-Modified": source.last_modified,
    }
    if span is not None and span[0] >= span[1]:
        replace_answer(answer, 416)
        headers["Content-Range"] = f"bytes */{size}"
    elif span is not None:
        first, end = span
        answer.status, answer.body = 206, memoryview(source.content)[first:end]
        answer.offset = first if source.is_release else None
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    headers["Content-Length"] = str(len(answer.body))
    answer.headers.update((name, value) for name, value in headers.items() if value is not None)
    return answer


def may_resume(if_range: str | None, source: Source) -> bool:
    return is_if_range_met(if_range, source) or not source.heeds_if_range


def is_if_range_met(if_range: str | None, source: Source) -> bool:
    """Weak tags never do."""
    return if_range is None or (if_range in (source.etag, source.last_modified) and not if_range.startswith("W/"))


def find_span(text: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for no range or nonsense; empty where it cannot be satisfied."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first, last = int(match[1]), int(match[2] or size)
    return (first, min(last + 1, size)) if first <= last or not match[2] else None
