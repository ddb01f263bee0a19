"""What the release server can be told to do wrong, and when.

A rule is a function from a request to the faults that hit it; all faults of all rules apply, in order:

    at(path, Cut(1000), Status(503))               first request of that path, second request; the third one is answered
    at(ending(".ply"), None, Reset(10), then=...)  each path of that ending by itself: first request fine, second reset
    always(None, Delay(0.02), Slow(1e6))           every request of every path, both faults together
    at_random(7, 0.3, Status(500), Cut(50))        3 of 10 requests, one of the faults; same seed, same faults
"""

from __future__ import annotations

import gzip
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from release_connections import Request

BEFORE_STATUS = -1


@dataclass
class Source:
    """What the server finds under a path; faults may put something else there, or hide abilities."""

    content: bytes
    etag: str | None
    last_modified: str | None
    content_type: str = "application/octet-stream"
    content_encoding: str | None = None
    exists: bool = True
    ranges: bool = True
    heeds_if_range: bool = True
    is_release: bool = True


@dataclass
class Answer:
    """What the server is going to say, and how.

    Attributes:
        request: To which request.
        source: About what.
        offset: Where in the release's file the body starts; None where the body is no part of it.
        breaks: What happens once that many body bytes are sent: a cut, a reset, or a pause of so many seconds (None:
            until the client leaves).
        head_pause_s: Status and headers are sent byte by byte, with so many seconds between.
        chunk_pause_s: The size of the first chunk never ends; one more character each so many seconds.
        pace: Body bytes from where on are sent in pieces of how many bytes with how many seconds between.
    """

    request: Request
    source: Source
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    offset: int | None = None
    delay_s: float = 0
    is_chunked: bool = False
    is_last: bool = False
    breaks: list[tuple[int, str | float | None]] = field(default_factory=list)
    pace: tuple[int, int, float] | None = None
    outage_s: float | None = None
    head_pause_s: float = 0
    chunk_pause_s: float = 0


class Fault:
    def change_source(self, source: Source) -> None:
        """Before the server makes up its answer."""

    def change_answer(self, answer: Answer) -> None:
        """After it has."""


@dataclass(frozen=True)
class Cut(Fault):
    """The connection ends in good order (FIN) after so many body bytes; -1: before the status line."""

    after_bytes: int = 0

    def change_answer(self, answer):
        answer.breaks.append((self.after_bytes, "cut"))


@dataclass(frozen=True)
class Reset(Fault):
    """The connection is reset (RST) after so many body bytes have arrived; -1: before the status line."""

    after_bytes: int = BEFORE_STATUS

    def change_answer(self, answer):
        answer.breaks.append((self.after_bytes, "reset"))


@dataclass(frozen=True)
class Stall(Fault):
    """Nothing comes after so many body bytes (-1: not even a status), for a time or until the client leaves."""

    after_bytes: int = 0
    seconds: float | None = None

    def change_answer(self, answer):
        answer.breaks.append((self.after_bytes, self.seconds))


@dataclass(frozen=True)
class Trickle(Fault):
    """After so many body bytes, one byte at a time."""

    seconds_per_byte: float = 1
    after_bytes: int = 0

    def change_answer(self, answer):
        answer.pace = (self.after_bytes, 1, self.seconds_per_byte)


@dataclass(frozen=True)
class TrickledHead(Fault):
    """Status and headers one byte at a time: no timeout of a socket ever strikes."""

    seconds_per_byte: float = 1

    def change_answer(self, answer):
        answer.head_pause_s = self.seconds_per_byte


@dataclass(frozen=True)
class EndlessChunkSize(Fault):
    """A body in chunks, the first of which has a size that never ends, one character at a time."""

    seconds_per_byte: float = 1

    def change_answer(self, answer):
        NoLength().change_answer(answer)
        answer.chunk_pause_s = self.seconds_per_byte


@dataclass(frozen=True)
class Slow(Fault):
    """A limit to the bandwidth of this answer."""

    bytes_per_s: float

    def change_answer(self, answer):
        answer.pace = pace_of(self.bytes_per_s)


@dataclass(frozen=True)
class Delay(Fault):
    """The answer begins later."""

    seconds: float

    def change_answer(self, answer):
        answer.delay_s += self.seconds


@dataclass(frozen=True)
class Status(Fault):
    """Another status, such as 500, 503, 429, 404, 403, 416; Retry-After in seconds or as an HTTP date."""

    code: int
    retry_after_s: int | None = None
    as_date: bool = False

    def change_answer(self, answer):
        replace_answer(answer, self.code, b"Something is wrong here.\n")
        if self.retry_after_s is not None:
            when = math.ceil(time.time()) + self.retry_after_s
            answer.headers["Retry-After"] = formatdate(when, usegmt=True) if self.as_date else str(self.retry_after_s)


@dataclass(frozen=True)
class RangeRefused(Fault):
    """416 for whatever range is asked for; whole files are served."""

    def change_answer(self, answer):
        if answer.request.range is not None:
            replace_answer(answer, 416)
            answer.headers["Content-Range"] = f"bytes */{len(answer.source.content)}"


@dataclass(frozen=True)
class RangesIgnored(Fault):
    """200 and the whole file whatever range is asked for."""

    def change_source(self, source):
        source.ranges = False


@dataclass(frozen=True)
class IfRangeIgnored(Fault):
    """206 whatever the version that the client has a part of."""

    def change_source(self, source):
        source.heeds_if_range = False


@dataclass(frozen=True)
class Header(Fault):
    """A header that is not true; None leaves it out."""

    name: str
    value: str | None

    def change_answer(self, answer):
        answer.headers.pop(self.name, None)
        if self.value is not None:
            answer.headers[self.name] = self.value
        answer.is_last = True


@dataclass(frozen=True)
class ShiftedRange(Fault):
    """206 with another start than asked for; Content-Range admits it and fits the body."""

    by: int

    def change_answer(self, answer):
        if answer.status == 206:
            start = max(0, answer.offset + self.by)
            end = answer.offset + len(answer.body)
            answer.offset, answer.body = start, answer.source.content[start:end]
            answer.headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(answer.source.content)}"
            answer.headers["Content-Length"] = str(len(answer.body))


@dataclass(frozen=True)
class WrongLength(Fault):
    """A Content-Length that is too large or, with a negative number, too small; all of the body is sent, then FIN."""

    by: int

    def change_answer(self, answer):
        answer.headers["Content-Length"] = str(int(answer.headers["Content-Length"]) + self.by)
        answer.is_last = True


@dataclass(frozen=True)
class NoLength(Fault):
    """No Content-Length: the body comes in chunks or, if not chunked, ends with the connection."""

    is_chunked: bool = True

    def change_answer(self, answer):
        del answer.headers["Content-Length"]
        answer.is_chunked = self.is_chunked
        answer.is_last = not self.is_chunked
        if self.is_chunked:
            answer.headers["Transfer-Encoding"] = "chunked"


@dataclass(frozen=True)
class Gzip(Fault):
    """The whole file, compressed, although identity was asked for."""

    def change_source(self, source):
        source.content, source.content_encoding = gzip.compress(source.content, mtime=0), "gzip"
        source.ranges = source.is_release = False


@dataclass(frozen=True)
class HtmlPage(Fault):
    """A page with status 200 in place of the file."""

    content: bytes = b"<!DOCTYPE html>\n<html><head><title>Maintenance</title></head><body>Back soon.</body></html>\n"

    def change_source(self, source):
        source.content, source.content_type = self.content, "text/html; charset=utf-8"
        source.exists, source.etag, source.last_modified = True, None, None
        source.ranges = source.is_release = False


def another_version(content: bytes) -> bytes:
    """Content of the same size in which every byte is another one, so that no mixture of both goes unseen."""
    return content.translate(bytes(byte ^ 1 for byte in range(256)))


@dataclass(frozen=True)
class OtherVersion(Fault):
    """Other content than the release's, under the same path.

    Validators are its own, as honest servers have them; or the same as the release's (a weak ETag may stay the same
    rightly). Without ETag and Last-Modified: see the server's settings.
    """

    change: Callable[[bytes], bytes] = another_version
    has_same_validators: bool = False

    def change_source(self, source):
        source.content, source.is_release = self.change(source.content), False
        if not self.has_same_validators:
            source.etag = source.etag and f'{source.etag[:-1]}-other"'
            source.last_modified = source.last_modified and formatdate(0, usegmt=True)


@dataclass(frozen=True)
class Redirect(Fault):
    """To another path (by default the same one, which makes a circle), or origin, such as another server's."""

    path: str | None = None
    origin: str = ""
    status: int = 302

    def change_answer(self, answer):
        replace_answer(answer, self.status)
        answer.headers["Location"] = f"{self.origin}{self.path or answer.request.path}"


@dataclass(frozen=True)
class ServerDown(Fault):
    """With this request all connections are reset, and new ones refused for a time (None: until `server.start()`)."""

    seconds: float | None = None

    def change_answer(self, answer):
        answer.outage_s = math.inf if self.seconds is None else self.seconds


def replace_answer(answer: Answer, status: int, body: bytes = b"") -> None:
    answer.status, answer.body, answer.offset = status, body, None
    answer.headers.clear()
    answer.headers |= {"Content-Type": "text/plain", "Content-Length": str(len(body))}


def pace_of(bytes_per_s: float) -> tuple[int, int, float]:
    """Pieces of a hundredth of a second."""
    piece_bytes = max(1, round(bytes_per_s / 100))
    return 0, piece_bytes, piece_bytes / bytes_per_s


Where = str | Callable[[str], bool] | None
Rule = Callable[["Request"], Iterable[Fault]]


def _is_at(where: Where, path: str) -> bool:
    return where is None or (path == where if isinstance(where, str) else where(path))


def ending(suffix: str) -> Callable[[str], bool]:
    """For paths that end so."""
    return lambda path: path.endswith(suffix)


def at(where: Where, *faults: Fault | None, then: Fault | None = None) -> Rule:
    """The n-th request of a path meets the n-th fault, later ones `then`; None is none."""

    def faults_of(request: Request) -> list[Fault]:
        fault = faults[request.number - 1] if request.number <= len(faults) else then
        return [fault] if fault is not None and _is_at(where, request.path) else []

    return faults_of


def always(where: Where, *faults: Fault) -> Rule:
    """Every request meets all of the faults."""
    return lambda request: faults if _is_at(where, request.path) else ()


def at_random(seed: int, share: float, *faults: Fault, where: Where = None, last_number: float = math.inf) -> Rule:
    """A share of the requests meets one of the faults, whichever order they come in; none after a path's n-th."""

    def faults_of(request: Request) -> list[Fault]:
        dice = random.Random(f"{seed} {request.path} {request.number}")
        is_hit = dice.random() < share and request.number <= last_number and _is_at(where, request.path)
        return [dice.choice(faults)] if is_hit else []

    return faults_of
