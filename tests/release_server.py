"""ScanNet's server on this machine: real sockets, a synthetic release, and faults on demand.

A rule is a function from a request to the faults that hit it; all faults of all rules apply, in order:

    at(path, Cut(1000), Status(503))               first request of that path, second request; the third one is answered
    at(ending(".ply"), None, Reset(10), then=...)  each path of that ending by itself: first request fine, second reset
    at(None, then=Stall(100))                      every request of every path

A fault is a function that changes the answer before it is sent; the table of them is below.
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

from scannet_prep.release.label_map import LABEL_MAP_NAME

ROOT = "/scannet/"
LABEL_MAP_URL_PATH = f"{ROOT}v2/tasks/{LABEL_MAP_NAME}"
BEFORE_STATUS = -1
PAGE = b"<!DOCTYPE html>\n<html><head><title>Maintenance</title></head><body>Back soon.</body></html>\n"
_PIECE_BYTES = 1 << 18


def scene_url_path(scene_id: str, suffix: str) -> str:
    return f"{ROOT}v2/scans/{scene_id}/{scene_id}{suffix}"


def release_urls(root: Path) -> dict[str, Path | bytes]:
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
    offset: (
        int | None
    )  # where in the release's file the body starts; None where it is no part of it
    cut_at: int | None = None  # here the connection ends by FIN; -1: before the status line
    is_reset: bool = False  # by RST instead
    stall_at: int | None = None  # from here on nothing comes, until the client leaves
    trickle: tuple[int, float] | None = (
        None  # from here on a byte each so many seconds: no timeout of a socket strikes
    )
    is_chunked: bool = False
    before: bytes = b""  # comes before the status line
    is_down: bool = False  # the server stops


@dataclass
class Request:
    """A request, and what has been sent for it; `number` counts from 1 for each path."""

    method: str
    path: str
    number: int
    headers: dict[str, str]
    range: str | None
    connection: tuple[str, int]
    content: bytes | None  # what the server has under the path
    faults: tuple[Fault, ...] = ()
    sent: tuple[int, int] | None = None  # (offset, length) of the release's bytes


Fault = Callable[[Answer, Request], Any]
Rule = Callable[[Request], Iterable[Fault]]
Where = str | Callable[[str], bool] | None


def fault(change: Callable[..., None]) -> Callable[..., Fault]:
    """Make a fault of a function; what it takes besides answer and request is given where the fault is named."""
    return lambda *values, **options: (
        lambda answer, request: change(answer, request, *values, **options)
    )


def answer_status(
    answer: Answer, code: int, retry_after: str | None = None, body: bytes = b"Wrong.\n"
) -> None:
    answer.status, answer.body, answer.offset = code, body, None
    answer.headers = {"content-length": str(len(body)), "retry-after": retry_after}


def answer_whole(answer: Answer, content: bytes) -> None:
    answer.status, answer.body, answer.offset = 200, content, 0
    answer.headers |= {"content-length": str(len(content)), "accept-ranges": "bytes"}
    answer.headers.pop("content-range", None)


def answer_part(answer: Answer, content: bytes, first: int, end: int) -> None:
    answer.status, answer.body, answer.offset = (
        (206, content[first:end], first) if first < end else (416, b"", None)
    )
    shown = f"{first}-{end - 1}" if first < end else "*"
    answer.headers |= {
        "content-length": str(len(answer.body)),
        "content-range": f"bytes {shown}/{len(content)}",
    }


def answer_other_part(answer: Answer, request: Request, by: int) -> None:
    content = request.content or b""
    if span := find_span(request.range, len(content)):
        answer_part(answer, content, max(0, span[0] + by), span[1])


def redirect(
    answer: Answer, request: Request, path: str = "", origin: str = "", status: int = 302
) -> None:
    answer_status(answer, status)
    answer.headers["location"] = f"{origin}{path or request.path}"


# The faults. Fields of `Answer`, as they are to be; what follows is made of it.
Set = fault(lambda answer, _, **values: vars(answer).update(values))
Cut = fault(lambda answer, _, after_bytes=BEFORE_STATUS: vars(answer).update(cut_at=after_bytes))
Reset = fault(
    lambda answer, _, after_bytes=BEFORE_STATUS: vars(answer).update(
        cut_at=after_bytes, is_reset=True
    )
)
Stall = fault(
    lambda answer, _, after_bytes=BEFORE_STATUS: vars(answer).update(stall_at=after_bytes)
)
# A header with another value, or without it; a length that is too large or too small, with all of the body, then FIN.
Header = fault(lambda answer, _, name, value=None: answer.headers.update({name.lower(): value}))
WrongLength = fault(
    lambda answer, _, by: answer.headers.update(
        {"content-length": str(len(answer.body) + by), "connection": "close"}
    )
)
# No length: the body comes in chunks, or ends with the connection.
NoLength = fault(
    lambda answer, _: [
        vars(answer).update(is_chunked=True),
        answer.headers.update({"content-length": None, "transfer-encoding": "chunked"}),
    ]
)
UntilClosed = fault(
    lambda answer, _: answer.headers.update({"content-length": None, "connection": "close"})
)
# Another status; a page with status 200 in place of the file; a redirection, by default to the same path, in a circle.
Status = fault(lambda answer, _, *values, **options: answer_status(answer, *values, **options))
Page = fault(lambda answer, _, content=PAGE: answer_status(answer, 200, body=content))
Redirect = fault(redirect)
# The whole file, whatever was asked for; 206 whatever If-Range says, with another start than asked for, which
# Content-Range admits, or by 0 the same; the whole file compressed, although identity was asked for.
RangesIgnored = fault(lambda answer, request: answer_whole(answer, request.content or b""))
ShiftedRange = fault(answer_other_part)
Gzip = fault(
    lambda answer, request: [
        answer_whole(answer, gzip.compress(request.content or b"")),
        vars(answer).update(offset=None),
        answer.headers.update({"content-encoding": "gzip"}),
    ]
)


def other_version(content: bytes) -> bytes:
    """Content of the same size in which every byte is another one, so that no mixture of both goes unseen."""
    return content.translate(bytes(byte ^ 1 for byte in range(256)))


def at(where: Where, *faults: Fault | None, then: Fault | None = None) -> Rule:
    """The n-th request of a path meets the n-th fault, later ones `then`; None is none."""

    def rule(request: Request) -> list[Fault]:
        fault = faults[request.number - 1] if request.number <= len(faults) else then
        is_at = where is None or (
            request.path == where if isinstance(where, str) else where(request.path)
        )
        return [fault] if fault is not None and is_at else []

    return rule


def between(first: int, end: int, fault: Fault) -> Rule:
    """An outage: the requests from the n-th on, until before another, of whatever path; counted from 0."""
    numbers = itertools.count()
    return lambda _request: [fault] if first <= next(numbers) < end else []


def ending(suffix: str) -> Callable[[str], bool]:
    return lambda path: path.endswith(suffix)


@dataclass(eq=False)
class ReleaseServer:
    """Serves a raw tree, as `write_release` makes it, with ScanNet's URLs. All settings may change while it runs.

    `files` says what lies where, `faults` are rules, `change` makes other versions of files; ETags are each content's
    own ("strong"), "weak", or None; latencies are added to each request and to each new connection.
    """

    root: Path
    faults: Iterable[Rule] = ()
    certificate: Path | None = None
    etag: str | None = "strong"
    has_last_modified: bool = True
    request_latency_s: float = 0
    connection_latency_s: float = 0

    def __post_init__(self) -> None:
        self.files = release_urls(self.root)
        self.change: Callable[[Request, bytes], bytes] = lambda _request, content: content
        self.lock, self.closing, self.port = threading.Lock(), threading.Event(), 0
        self.sockets: set[socket.socket] = set()
        self.server: http.server.ThreadingHTTPServer | None = None
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
        self.server = _Listener(
            ("127.0.0.1", self.port), type("Handler", (_Handler,), {"owner": self})
        )
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
            return [
                request
                for request in self.seen
                if request.method == method and path in (None, request.path)
            ]

    def bytes_sent_again(self, path: str) -> int:
        """How many of the bytes sent had been sent before; not those that show that the server is up."""
        end = again = 0
        spans = [
            request.sent for request in self.requests(path) if request.sent
        ]  # (offset, length)
        for offset, length in sorted(span for span in spans if span[1] > 1):
            again += max(0, min(end, offset + length) - offset)
            end = max(end, offset + length)
        return again


class _Listener(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_arguments: Any) -> None:
        """Clients that leave are the purpose."""


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: ReleaseServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        owner = self.owner
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
        file = owner.files.get(path)
        is_there = isinstance(file, Path) and file.is_file()
        content = file.read_bytes() if is_there else None if isinstance(file, Path) else file
        with owner.lock:
            owner.counts[f"{self.command} {path}"] += 1
            headers = {name.lower(): value for name, value in self.headers.items()}
            number = owner.counts[f"{self.command} {path}"]
            where = self.command, path, number, headers, headers.get("range")
            request = Request(*where, self.client_address, content)
            owner.seen.append(request)
            request.faults = tuple(fault for rule in owner.faults for fault in rule(request))
        changed = None if content is None else owner.change(request, content)
        answer = self.answer(request, changed, file.stat().st_mtime if is_there else 0)
        for fault in request.faults:
            fault(answer, request)
        if answer.is_down:
            threading.Thread(target=owner.stop, daemon=True).start()
            answer.cut_at = BEFORE_STATUS
        owner.closing.wait(owner.request_latency_s)
        self.send(answer, request)

    do_HEAD = do_CONNECT = do_GET  # noqa: N815 - as the library calls it

    def answer(self, request: Request, content: bytes | None, time_s: float) -> Answer:
        answer, owner = Answer(200, {}, b"", None), self.owner
        if content is None:
            answer_status(answer, 404)
            return answer
        etag = {"strong": f'"{hash(content):x}"', "weak": f'W/"{hash(content):x}"', None: None}[
            owner.etag
        ]
        time = formatdate(time_s, usegmt=True) if owner.has_last_modified else None
        answer.headers = {"etag": etag, "last-modified": time}
        answer_whole(answer, content)
        if_range, span = request.headers.get("if-range"), find_span(request.range, len(content))
        if span is not None and (
            if_range is None or (if_range in (etag, time) and if_range[:2] != "W/")
        ):
            answer_part(answer, content, *span)
        if content != request.content:
            answer.offset = None
        return answer

    def send(self, answer: Answer, request: Request) -> None:
        fields = "".join(
            f"{name}: {text}\r\n" for name, text in answer.headers.items() if text is not None
        )
        status = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        head = answer.before + f"{status}{fields}\r\n".encode("latin-1")
        body = memoryview(b"" if request.method == "HEAD" else answer.body)
        self.close_connection |= answer.headers.get("connection") == "close"
        stops = {answer.cut_at, answer.stall_at} - {None}
        if BEFORE_STATUS in stops:
            self.interrupt(answer, BEFORE_STATUS)
        slow_from, byte_pause_s = answer.trickle or (len(body), 0)
        for piece in [head] if slow_from > BEFORE_STATUS else [bytes([byte]) for byte in head]:
            self.wfile.write(piece)
            self.pause(byte_pause_s if slow_from == BEFORE_STATUS else 0)
        position = 0
        while position < len(body) or position in stops:
            if position in stops:
                stops.discard(position)
                self.interrupt(answer, position)
                continue
            size = 1 if position >= slow_from else min(_PIECE_BYTES, slow_from - position)
            piece = body[
                position : min([position + size, *(stop for stop in stops if stop > position)])
            ]
            position += len(piece)
            if (
                answer.offset is not None
            ):  # before it goes, so that a client that has a byte never sees it uncounted
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
        """Wait, unless the client leaves."""
        if seconds and select.select([self.connection], [], [], seconds)[0]:
            raise ConnectionError


def find_span(text: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for no range or nonsense; empty where it cannot be satisfied."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", text or "")
    if match is None:
        return None
    first, last = int(match[1]), int(match[2] or size)
    return (first, min(last + 1, size)) if first <= last or not match[2] else None
