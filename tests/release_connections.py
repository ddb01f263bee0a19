"""A connection to the release server: reads requests, sends answers, ends as told."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import select
import socket
import ssl
import struct
import termios
import time
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from release_faults import BEFORE_STATUS, Answer, Fault

PIECE_BYTES = 1 << 18
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP


@dataclass
class Request:
    """A request, and what has been sent for it so far; header names in lower case, `number` counts from 1 per path."""

    method: str
    path: str
    number: int
    headers: dict[str, str]
    connection: int
    thread: str
    time_s: float
    faults: tuple[Fault, ...] = ()
    status: int | None = None
    offset: int | None = None
    sent_bytes: int = 0

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    @property
    def if_range(self) -> str | None:
        return self.headers.get("if-range")


class ConnectionEndedError(Exception):
    """The client has left, or the server has cut the connection."""


class Connection:
    """One client's connection; whatever ends it raises `ConnectionEndedError`."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.reader = sock.makefile("rb")

    @contextlib.contextmanager
    def _translated(self):
        try:
            yield
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: closed meanwhile; no HTTP
            raise ConnectionEndedError from error

    def read_request(self) -> tuple[str, str, dict[str, str]]:
        with self._translated():
            if isinstance(self.sock, ssl.SSLSocket) and self.sock.version() is None:
                self.sock.do_handshake()
            method, target, _ = self.reader.readline(65536).decode("latin-1").split()
            headers = http.client.parse_headers(self.reader)
        return method, target, {name.lower(): value for name, value in headers.items()}

    def send(self, data: bytes | memoryview) -> None:
        with self._translated():
            self.sock.sendall(data)

    def wait(self, seconds: float | None) -> None:
        if _poll(None if seconds is None else seconds * 1000, self.sock):
            raise ConnectionEndedError

    def cut(self) -> None:
        raise ConnectionEndedError

    def reset(self) -> None:
        """Once all that has been sent has arrived: Linux would drop the rest."""
        deadline = time.monotonic() + 5  # for clients that do not read
        with self._translated():
            while any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4))) and time.monotonic() < deadline:
                time.sleep(0.001)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise ConnectionEndedError

    def has_left(self) -> bool:
        return bool(_poll(0, self.sock, _HANGUP))

    def end(self) -> None:
        """From another thread: this one's calls fail from now on, and it closes the socket."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # an SSLSocket's own would go on without encryption

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.reader.close()
        self.sock.close()


def _poll(milliseconds: float | None, sock: socket.socket, events: int = select.POLLIN | _HANGUP) -> list:
    if sock.fileno() < 0:
        return [sock]
    poll = select.poll()
    poll.register(sock, events)
    return poll.poll(milliseconds)


def send_answer(connection: Connection, answer: Answer) -> None:
    """Send it; for HEAD without its body."""
    request = answer.request
    body = memoryview(b"" if request.method == "HEAD" else answer.body)
    breaks = sorted(answer.breaks, key=lambda entry: entry[0])
    connection.wait(answer.delay_s)
    for _, ending in breaks[: sum(position <= BEFORE_STATUS for position, _ in breaks)]:
        _break(connection, ending)
    request.status, request.offset = answer.status, answer.offset
    _send_slowly(connection, _head(answer), answer.head_pause_s)
    if answer.chunk_pause_s:
        _send_slowly(connection, b"1;" + b"x" * 10_000, answer.chunk_pause_s)
    position = 0
    for break_at, ending in breaks:
        if break_at > BEFORE_STATUS:
            stop = max(position, min(break_at, len(body)))
            _send_body(connection, answer, body[position:stop])
            position = stop
            _break(connection, ending)
    _send_body(connection, answer, body[position:])
    if answer.is_chunked and request.method != "HEAD":
        connection.send(b"0\r\n\r\n")


def _send_slowly(connection: Connection, data: bytes, pause_s: float) -> None:
    if not pause_s:
        connection.send(data)
        return
    for byte in data:
        connection.send(bytes([byte]))
        connection.wait(pause_s)


def _head(answer: Answer) -> bytes:
    reason = HTTPStatus(answer.status).phrase
    headers = answer.headers | {"Date": formatdate(usegmt=True)} | ({"Connection": "close"} if answer.is_last else {})
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _break(connection: Connection, ending: str | float | None) -> None:
    if ending == "cut":
        connection.cut()
    elif ending == "reset":
        connection.reset()
    else:
        connection.wait(ending)


def _send_body(connection: Connection, answer: Answer, body: memoryview) -> None:
    request = answer.request
    pace_from, paced_bytes, pause_s = answer.pace or (len(answer.body), PIECE_BYTES, 0)
    while body:
        is_paced = request.sent_bytes >= pace_from
        size = paced_bytes if is_paced else min(PIECE_BYTES, pace_from - request.sent_bytes)
        piece, body = body[:size], body[size:]
        # Counted before it goes, so that a client that has a byte never sees it uncounted.
        request.sent_bytes += len(piece)
        try:
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.is_chunked else piece)
        except ConnectionEndedError:
            request.sent_bytes -= len(piece)
            raise
        if is_paced:
            connection.wait(pause_s)
