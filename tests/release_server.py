"""ScanNet's server on this machine: real sockets, a synthetic release, and faults on demand.

A rule is a function from a request to the faults that hit it; all faults of all rules apply, in order:

    at(path, Cut(1000), Status(503))               first request of that path, second request; the third one is answered
    at(ending(".ply"), None, Reset(10), then=...)  each path of that ending by itself: first request fine, second reset
    always(None, Trickle(0.1), Header("ETag"))     every request of every path, both faults together

A fault is a function that changes the answer before it is sent.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import itertools
import re
import select
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from scannet_prep.labels import LABEL_MAP_NAME

ROOT = "/scannet/"
LABEL_MAP_URL_PATH = f"{ROOT}v2/tasks/{LABEL_MAP_NAME}"
BEFORE_STATUS = -1
PAGE = b"<!DOCTYPE html>\n<html><head><title>Maintenance</title></head><body>Back soon.</body></html>\n"
_PIECE_BYTES = 1 << 18


def scene_url_path(scene_id: str, suffix: str) -> str:
    return f"{ROOT}v2/scans/{scene_id}/{scene_id}{suffix}"


def release_urls(root: Path) -> dict[str, Path | bytes]:
    """What lies where on the server, for a raw tree as `write_release` makes it."""
    urls: dict[str, Path | bytes] = {LABEL_MAP_URL_PATH: root / LABEL_MAP_NAME}
    for path in itertools.chain(root.glob("scans/*/*"), root.glob("scans_test/*/*")):
        version = "v1" if path.suffix == ".sens" and path.parents[1].name == "scans" else "v2"
        urls[f"{ROOT}{version}/scans/{path.parent.name}/{path.name}"] = path
    return urls


@dataclass
class Answer:
    """What the server is going to say, and how; header names in lower case. Places count bytes of the body."""

    status: int
    headers: dict[str, str | None]
    body: bytes
    offset: int | None  # where in the release's file the body starts; None where it is no part of it
    cut_at: int | None = None  # here the connection ends by FIN; -1: before the status line
    is_reset: bool = False  # by RST instead
    stall_at: int | None = None  # from here on nothing comes, until the client leaves
    trickle: tuple[int, float] | None = None  # from here on a byte each so many seconds
    head_pause_s: float = 0  # between the bytes of status and headers: no timeout of a socket ever strikes
    is_chunked: bool = False
    chunk_pause_s: float = 0  # the size of the first chunk never ends
    is_down: bool = False  # the server stops
    before: bytes = b""  # sent before the answer


@dataclass
class Request:
    """A request, and what has been sent for it; `number` counts from 1 for each path."""

    method: str
    path: str
    number: int
    headers: dict[str, str]
    connection: tuple[str, int]
    content: bytes | None  # what the server has under the path
    faults: tuple[Fault, ...] = ()
    sent: tuple[int, int] | None = None  # (offset, length) of the release's bytes

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


Fault = Callable[[Answer, Request], Any]
Rule = Callable[[Request], Iterable[Fault]]
Where = str | Callable[[str], bool] | None


def Set(**values: Any) -> Fault:
    """Fields of `Answer`, as they are to be; what follows is made of it."""
    return lambda answer, _request: [setattr(answer, name, value) for name, value in values.items()]


def Cut(after_bytes: int = 0) -> Fault:
    return Set(cut_at=after_bytes)


def Reset(after_bytes: int = BEFORE_STATUS) -> Fault:
    return Set(cut_at=after_bytes, is_reset=True)


def Stall(after_bytes: int = 0) -> Fault:
    return Set(stall_at=after_bytes)


def Trickle(seconds_per_byte: float = 1, after_bytes: int = 0) -> Fault:
    return Set(trickle=(after_bytes, seconds_per_byte))


def TrickledHead(seconds_per_byte: float = 1) -> Fault:
    return Set(head_pause_s=seconds_per_byte)


def Header(name: str, value: str | None = None) -> Fault:
    """A header with another value, or without it."""
    return lambda answer, _request: answer.headers.update({name.lower(): value})


def Status(code: int, retry_after: str | None = None, body: bytes = b"Something is wrong here.\n") -> Fault:
    """Another status, such as 500, 503, 429, 404, 403, 416."""

    def fault(answer: Answer, _request: Request) -> None:
        answer.status, answer.body, answer.offset = code, body, None
        answer.headers = {"content-length": str(len(body)), "retry-after": retry_after}

    return fault


def Page(content: bytes = PAGE) -> Fault:
    """A page with status 200 in place of the file."""
    return Status(200, body=content)


def Redirect(path: str | None = None, origin: str = "", status: int = 302) -> Fault:
    """To another path (by default the same one, which makes a circle), or origin, such as another server's."""
    return lambda answer, request: (
        Status(status)(answer, request), Header("location", f"{origin}{path or request.path}")(answer, request)
    )  # fmt: skip


def RangesIgnored() -> Fault:
    """The whole file, whatever was asked for."""
    return lambda answer, request: answer_whole(answer, request.content or b"")


def ShiftedRange(by: int) -> Fault:
    """206 with another start than asked for; Content-Range admits it and fits the body."""

    def fault(answer: Answer, request: Request) -> None:
        if answer.status == 206 and answer.offset is not None and request.content:
            answer_part(answer, request.content, max(0, answer.offset + by), answer.offset + len(answer.body))

    return fault


def IfRangeIgnored() -> Fault:
    """A part, although the validator is that of another version."""

    def fault(answer: Answer, request: Request) -> None:
        span = find_span(request.range, len(answer.body))
        if answer.status == 200 and span is not None:
            answer_part(answer, answer.body, *span)

    return fault


def WrongLength(by: int) -> Fault:
    """A Content-Length that is too large or, with a negative number, too small; all of the body is sent, then FIN."""
    return lambda answer, _request: answer.headers.update(
        {"content-length": str(len(answer.body) + by), "connection": "close"}
    )


def NoLength(*, is_chunked: bool = True) -> Fault:
    """No Content-Length: the body comes in chunks or, if not chunked, ends with the connection."""
    how = {"transfer-encoding": "chunked"} if is_chunked else {"connection": "close"}
    return lambda answer, request: [
        Set(is_chunked=is_chunked)(answer, request), answer.headers.update({"content-length": None, **how})
    ]  # fmt: skip


def Gzip() -> Fault:
    """The whole file, compressed, although identity was asked for."""

    def fault(answer: Answer, request: Request) -> None:
        answer_whole(answer, gzip.compress(request.content or b"", mtime=0))
        answer.headers["content-encoding"], answer.offset = "gzip", None

    return fault


def other_version(content: bytes) -> bytes:
    """Content of the same size in which every byte is another one, so that no mixture of both goes unseen."""
    return content.translate(bytes(byte ^ 1 for byte in range(256)))


def at(where: Where, *faults: Fault | None, then: Fault | None = None) -> Rule:
    """The n-th request of a path meets the n-th fault, later ones `then`; None is none."""

    def rule(request: Request) -> list[Fault]:
        fault = faults[request.number - 1] if request.number <= len(faults) else then
        return [fault] if fault is not None and _is_at(where, request.path) else []

    return rule


def always(where: Where, *faults: Fault) -> Rule:
    """Every request meets all of the faults."""
    return lambda request: faults if _is_at(where, request.path) else ()


def between(first: int, end: int, fault: Fault) -> Rule:
    """An outage: the requests from the n-th on, until before another, of whatever path; counted from 0."""
    numbers = itertools.count()
    return lambda _request: [fault] if first <= next(numbers) < end else []


def ending(suffix: str) -> Callable[[str], bool]:
    return lambda path: path.endswith(suffix)


def _is_at(where: Where, path: str) -> bool:
    return where is None or (path == where if isinstance(where, str) else where(path))


class ReleaseServer:
    """Serves a raw tree, as `write_release` makes it, with ScanNet's URLs. All settings may change while it runs.

    `files` says what lies where, `faults` are rules, `change` makes other versions of files; ETags are each content's
    own ("strong"), "weak", or None; latencies are added to each request and to each new connection.
    """

    def __init__(
        self,
        root: Path,
        *,
        faults: Iterable[Rule] = (),
        certificate: Path | None = None,
        etag: str | None = "strong",
        has_last_modified: bool = True,
        request_latency_s: float = 0,
        connection_latency_s: float = 0,
    ) -> None:
        self.files = release_urls(root)
        self.faults = faults
        self.change: Callable[[Request, bytes], bytes] = lambda _request, content: content
        self.etag, self.has_last_modified = etag, has_last_modified
        self.request_latency_s, self.connection_latency_s = request_latency_s, connection_latency_s
        self.certificate = certificate
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.sockets: set[socket.socket] = set()
        self.server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.forget()

    def __enter__(self) -> ReleaseServer:
        self.start()
        self.origin = f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"
        self.base_url = f"{self.origin}{ROOT}"
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing.set()
        self.stop()

    def start(self) -> None:
        """Listen, after `stop` again on the same port."""
        if self.server is not None or self.closing.is_set():
            return
        self.server = _Listener(("127.0.0.1", self.port), type("Handler", (_Handler,), {"owner": self}))
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse new connections and end all there are."""
        server, self.server = self.server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self.lock:
            for sock in self.sockets:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def forget(self) -> None:
        """Forget all requests so far; numbers begin at 1 again."""
        with self.lock:
            self.seen: list[Request] = []
            self.counts: Counter[str] = Counter()
            self.connection_count = 0

    def requests(self, path: str | None = None, method: str = "GET") -> list[Request]:
        with self.lock:
            return [request for request in self.seen if request.method == method and path in (None, request.path)]

    def sent(self, path: str) -> list[tuple[int, int]]:
        """Bytes of the release's file handed to the network, as (offset, length), in order of requests."""
        return [request.sent for request in self.requests(path) if request.sent]

    def bytes_sent_again(self, path: str) -> int:
        """How many of the bytes sent had been sent before; not those that show that the server is up."""
        end = again = 0
        for offset, length in sorted(span for span in self.sent(path) if span[1] > 1):
            again += max(0, min(end, offset + length) - offset)
            end = max(end, offset + length)
        return again

    def find(self, path: str) -> tuple[bytes | None, float]:
        """Content and time of what lies under a path; None where there is nothing."""
        file = self.files.get(path)
        if isinstance(file, Path):
            return (file.read_bytes(), file.stat().st_mtime) if file.is_file() else (None, 0)
        return file, 0


class _Listener(http.server.ThreadingHTTPServer):
    allow_reuse_address = daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_arguments: Any) -> None:
        """Clients that leave are the purpose."""


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: ReleaseServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        owner = self.owner
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if owner.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(owner.certificate)
            self.request = context.wrap_socket(self.request, server_side=True)
        with owner.lock:
            owner.sockets.add(self.request)
            owner.connection_count += 1
        super().setup()
        owner.closing.wait(owner.connection_latency_s)

    def finish(self) -> None:
        with self.owner.lock:
            self.owner.sockets.discard(self.request)
        with contextlib.suppress(OSError):
            super().finish()
        self.request.close()

    def log_message(self, *_arguments: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        owner, path = self.owner, unquote(urlsplit(self.path).path)
        content, time_s = owner.find(path)
        with owner.lock:
            owner.counts[f"{self.command} {path}"] += 1
            headers = {name.lower(): value for name, value in self.headers.items()}
            number = owner.counts[f"{self.command} {path}"]
            request = Request(self.command, path, number, headers, self.client_address, content)
            owner.seen.append(request)
            request.faults = tuple(fault for rule in owner.faults for fault in rule(request))
        changed = None if content is None else owner.change(request, content)
        answer = self.answer(request, changed, time_s)
        for fault in request.faults:
            fault(answer, request)
        if answer.is_down:
            threading.Thread(target=owner.stop, daemon=True).start()
            answer.cut_at = BEFORE_STATUS
        owner.closing.wait(owner.request_latency_s)
        self.send(answer, request)

    do_HEAD = do_CONNECT = do_GET  # noqa: N815 - as the library calls it

    def answer(self, request: Request, content: bytes | None, time_s: float) -> Answer:
        """What RFC 9110 asks for; several ranges at once count as none."""
        answer = Answer(200, {}, b"", None)
        if content is None:
            Status(404)(answer, request)
            return answer
        tag = f'"{hash(content):x}"'
        validators = {
            "etag": {"strong": tag, "weak": f"W/{tag}", None: None}[self.owner.etag],
            "last-modified": formatdate(time_s, usegmt=True) if self.owner.has_last_modified else None,
        }
        answer.headers = {name: value for name, value in validators.items() if value}
        answer_whole(answer, content)
        answer.offset = 0 if content == request.content else None
        if_range = request.headers.get("if-range")
        span = find_span(request.range, len(content))
        if span is not None and (if_range is None or (if_range in validators.values() and if_range[:2] != "W/")):
            answer_part(answer, content, *span)
            if content != request.content:
                answer.offset = None
        return answer

    def send(self, answer: Answer, request: Request) -> None:
        """Send an answer with all that is to go wrong."""
        reason = HTTPStatus(answer.status).phrase
        lines = [
            f"HTTP/1.1 {answer.status} {reason}",
            *(f"{name}: {text}" for name, text in answer.headers.items() if text is not None),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        body = memoryview(b"" if request.method == "HEAD" else answer.body)
        self.close_connection |= answer.headers.get("connection") == "close"
        stops = {answer.cut_at, answer.stall_at} - {None}
        if BEFORE_STATUS in stops:
            self.interrupt(answer, BEFORE_STATUS)
        head = answer.before + head
        for piece in [head] if not answer.head_pause_s else [bytes([byte]) for byte in head]:
            self.wfile.write(piece)
            self.pause(answer.head_pause_s)
        for byte in b"1;" + b"x" * 10_000 if answer.chunk_pause_s else b"":
            self.wfile.write(bytes([byte]))
            self.pause(answer.chunk_pause_s)
        slow_from, byte_pause_s = answer.trickle or (len(body), 0)
        position = 0
        while position < len(body) or position in stops:
            if position in stops:
                stops.discard(position)
                self.interrupt(answer, position)
                continue
            size = 1 if position >= slow_from else min(_PIECE_BYTES, slow_from - position)
            piece = body[position : min([position + size, *(stop for stop in stops if stop > position)])]
            position += len(piece)
            if answer.offset is not None:  # before it goes, so that a client that has a byte never sees it uncounted
                request.sent = answer.offset, position
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.is_chunked else piece)
            self.pause(byte_pause_s if position >= slow_from else 0)
        if answer.is_chunked and request.method != "HEAD":
            self.wfile.write(b"0\r\n\r\n")

    def interrupt(self, answer: Answer, position: int) -> None:
        self.pause(3600 if answer.stall_at == position else 0)
        if answer.is_reset:
            self.pause(0.05)  # what has been sent arrives; Linux would drop the rest
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.connection, socket.SHUT_RDWR)
        raise ConnectionError

    def pause(self, seconds: float) -> None:
        """Wait, unless the client leaves or the server stops."""
        if seconds and select.select([self.connection], [], [], seconds)[0]:
            raise ConnectionError


def answer_whole(answer: Answer, content: bytes) -> None:
    answer.status, answer.body, answer.offset = 200, content, 0
    answer.headers |= {"content-length": str(len(content)), "accept-ranges": "bytes"}
    answer.headers.pop("content-range", None)


def answer_part(answer: Answer, content: bytes, first: int, end: int) -> None:
    answer.status, answer.body, answer.offset = (206, content[first:end], first) if first < end else (416, b"", None)
    shown = f"{first}-{end - 1}" if first < end else "*"
    answer.headers |= {"content-length": str(len(answer.body)), "content-range": f"bytes {shown}/{len(content)}"}


def find_span(text: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for no range or nonsense; empty where it cannot be satisfied."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first, last = int(match[1]), int(match[2] or size)
    return (first, min(last + 1, size)) if first <= last or not match[2] else None
