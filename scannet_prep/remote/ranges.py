"""Reads ranges of one large file on a web server, with the patience and the checks of a download."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scannet_prep.errors import ArchiveError, UsageError
from scannet_prep.remote.address import public_url
from scannet_prep.remote.attempts import Attempts
from scannet_prep.remote.client import Answer, Client, check_certificates
from scannet_prep.remote.failure import Hints, TransientError
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.policy import TransferPolicy

TAIL_BYTES = 1 << 20  # holds the index of 1,613 scenes

_PATIENCE = TransferPolicy(outage_patience_s=600.0, first_answer_patience_s=30.0, longest_retry_after_s=600.0)
_FAILURES_BEFORE_OUTAGE = 4
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_HINTS = Hints(
    access="name who asks: https://USER:PASSWORD@..., or a line for this machine in ~/.netrc",
    address="name it as https://HOST/PATH/NAME.tar.zst",
    certificate="--ca-bundle FILE or REQUESTS_CA_BUNDLE=FILE names the authority of the server or of your network's "
    "proxy; in Python, RangeSource(URL, certificates=Path(FILE)) does",
    missing="look at the address in a browser; names are case-sensitive",
)

_log = logging.getLogger(__name__)


class RangeSource:
    """A file on a web server, of which any range can be read.

    Picklable, and safe under fork and in threads: each process and thread has connections of its own. Opening it
    fetches the end of the file, which is kept until something else is read.

    Args:
        url: Its address, `https://` or `http://`. User and password in it, and the query, never show in messages.
        certificates: True for the system's authorities (or those that REQUESTS_CA_BUNDLE names), a file with others,
            False to accept any certificate.
        policy: How patient to be; `attempts` of it says how often in a row a request may fail.

    Raises:
        UsageError: It is no address, or the file of authorities cannot be used.
        NotOnServerError: The server has no such file.
        TransferError: The server refuses, or too many attempts in a row failed.
        ServerDownError: The server does not answer.
        ArchiveError: The server gives no ranges, only whole files.
    """

    def __init__(self, url: str, *, certificates: bool | Path = True, policy: TransferPolicy | None = None) -> None:
        if not _is_address(url):
            raise UsageError(f"{public_url(url)!r} is no address of a file on a web server", _HINTS.address)
        check_certificates(url, certificates)
        self._url = url
        self._certificates = certificates
        self._policy = policy or _PATIENCE
        self._version: _Version | None = None
        self._tail: _Range | None = self._fetch_tail()
        self.close()  # so that processes that are forked now inherit no connection and no thread

    @property
    def name(self) -> str:
        """The address, without what may be secret in it."""
        return public_url(self._url)

    @property
    def size_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._version.size_bytes if self._version else 0

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the file ends.

        Raises:
            ArchiveError: It is no longer the file that was opened.
            NotOnServerError: The server has it no more.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server does not answer any more.
        """
        end = min(offset + size, self.size_bytes)
        if offset >= end:
            return b""
        tail = self._tail
        if tail is not None and tail.start <= offset:
            return bytes(memoryview(tail.data)[offset - tail.start : end - tail.start])
        self._tail = None
        wanted = _Range(offset, end)
        self._fetch(wanted)
        return bytes(wanted.data)

    def close(self) -> None:
        """Close the connections of this process; reading opens new ones."""
        link = self.__dict__.pop("_link", None)
        if link is not None and link.pid == os.getpid():
            link.close()

    def __del__(self) -> None:
        """Close the connections of this process."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {key: value for key, value in self.__dict__.items() if key != "_link"} | {"_tail": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Connect lazily."""
        self.__dict__.update(state)

    def _connect(self) -> _Link:
        """The connections of this process. Without a lock, which a fork may copy while it is held."""
        link: _Link | None = self.__dict__.get("_link")
        if link is None or link.pid != os.getpid():
            link = self._link = _Link(self._url, self._policy, self._certificates)
        return link

    def _fetch_tail(self) -> _Range:
        """Fetch the end of the file, and learn on the way how large it is and which version."""
        tail = _Range(-TAIL_BYTES, 0)
        self._fetch(tail)
        if self._version is None:  # it answers with the whole file, or not at all, where asked for so many last bytes
            self._fetch(_Range(0, 1))
        if not tail.data and self.size_bytes:
            tail = _Range(max(0, self.size_bytes - TAIL_BYTES), self.size_bytes)
            self._fetch(tail)
        return tail

    def _fetch(self, wanted: _Range) -> None:
        link = self._connect()
        link.attempts.repeat(self.name, lambda: self._receive(link, wanted), lambda: len(wanted.data))

    def _receive(self, link: _Link, wanted: _Range) -> None:
        """Make one request, and append what it gives.

        Raises:
            TransientError: Trying again may help.
            NotOnServerError, TransferError: It will not.
            ArchiveError: It hardly will.
        """
        if wanted.is_complete:  # though the connection broke off after its last byte
            return
        with link.client.open(self._url, {"Range": wanted.header}) as answer:
            if not self._begin(answer, wanted):
                return
            for chunk in answer.read_chunks():
                wanted.data += chunk
                if len(wanted.data) > wanted.size_bytes:
                    del wanted.data[:]
                    raise TransientError(f"more than the {wanted.size_bytes:,} bytes that were asked for")
        if not wanted.is_complete:
            raise TransientError(f"broken off after {len(wanted.data):,} of {wanted.size_bytes:,} bytes")

    def _begin(self, answer: Answer, wanted: _Range) -> bool:
        """Check that the body to come is what is missing; gives whether there is any."""
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status == 206 and match is not None and match[1] is not None:
            first, end, size_bytes = int(match[1]), int(match[2]) + 1, int(match[3])
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise TransientError("the server compressed what was asked for as it is")
            if not wanted.is_met_by(first, end, size_bytes):
                raise TransientError(f"asked for {wanted.header}, the server sent {match[0]}")
            self._check_version(_Version.of(answer.headers, size_bytes))
            wanted.start, wanted.end = first - len(wanted.data), end
            return True
        if wanted.is_suffix:
            return False  # some servers know only ranges from the beginning
        if answer.status == 416 and match is not None:
            self._check_version(_Version.of(answer.headers, int(match[3])), is_refusal=True)
            if self._version is None or self.size_bytes:
                raise TransientError("the server refused the range")
            return False
        if answer.status == 200:
            return self._begin_whole(answer, wanted)
        raise TransientError(
            f"asked for {wanted.header}, the server sent {answer.headers.get('Content-Range', 'none')!r}"
        )

    def _begin_whole(self, answer: Answer, wanted: _Range) -> bool:
        """Understand an answer that has the whole file in place of a range: there is no other if that is the file."""
        version = self._version
        found = _Version.of(answer.headers, version.size_bytes if version else 0)
        if version is None and answer.headers.get("Content-Length") == "0":
            self._version = found  # an empty file has no range
            return False
        if version is not None and not version.is_same(found):
            raise self._replaced()
        is_whole = version is not None and (wanted.start, wanted.end) == (0, version.size_bytes)
        if not is_whole or answer.headers.get("Content-Encoding", "identity") != "identity":
            raise ArchiveError(
                self.name,
                "the server sends the whole file where a range of it was asked for",
                "fetch the archive and name the file, or serve it by a server that knows ranges, such as nginx",
            )
        del wanted.data[:]
        return True

    def _check_version(self, found: _Version, *, is_refusal: bool = False) -> None:
        """Check that it is the file that was opened, or take note of it."""
        if self._version is None and (not is_refusal or not found.size_bytes):
            self._version = found
        elif self._version is not None and (
            found.size_bytes != self._version.size_bytes or not (is_refusal or self._version.is_same(found))
        ):
            raise self._replaced()

    def _replaced(self) -> ArchiveError:
        return ArchiveError(self.name, "was replaced or changed since it was opened", "open it again")


@dataclass
class _Range:
    """A range that is being fetched.

    Attributes:
        start: Its first byte; negative for so many bytes at the end of the file.
        end: The byte after its last.
        data: What has arrived.
    """

    start: int
    end: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def is_suffix(self) -> bool:
        """Whether it is not yet known where it begins."""
        return self.start < 0

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.end - self.start

    @property
    def is_complete(self) -> bool:
        """Whether all of it has arrived."""
        return not self.is_suffix and len(self.data) == self.size_bytes

    @property
    def header(self) -> str:
        """What asks for the part that is missing."""
        return f"bytes={self.start}" if self.is_suffix else f"bytes={self.start + len(self.data)}-{self.end - 1}"

    def is_met_by(self, first: int, end: int, size_bytes: int) -> bool:
        """Whether an answer has just the part that is missing."""
        if self.is_suffix:
            return end == size_bytes and first == max(0, size_bytes + self.start)
        return (first, end) == (self.start + len(self.data), self.end)


@dataclass(frozen=True, slots=True)
class _Version:
    """What tells one version of the file from another.

    Attributes:
        size_bytes: Its size.
        etag: ETag; empty where the server gives none.
        last_modified: Last-Modified; empty where the server gives none.
    """

    size_bytes: int
    etag: str
    last_modified: str

    @classmethod
    def of(cls, headers: Mapping[str, str], size_bytes: int) -> _Version:
        """The version that an answer is about."""
        return cls(size_bytes, headers.get("ETag", "").removeprefix("W/"), headers.get("Last-Modified", ""))

    def is_same(self, other: _Version) -> bool:
        """Whether nothing speaks against it that both are the same file."""
        if self.size_bytes != other.size_bytes:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag
        return not (self.last_modified and other.last_modified) or self.last_modified == other.last_modified


class _Link:
    """The connections of one process, and what it knows of the server.

    Args:
        url: The address.
        policy: How patient to be.
        certificates: As `RangeSource` takes them.
    """

    def __init__(self, url: str, policy: TransferPolicy, certificates: bool | Path) -> None:
        def log(text: str) -> None:
            _log.warning("%s: %s", public_url(url), text)

        self.pid = os.getpid()
        self._stop = threading.Event()
        self._health = ServerHealth(
            failures_before_outage=_FAILURES_BEFORE_OUTAGE,
            first_delay_s=policy.first_delay_s,
            longest_delay_s=policy.longest_delay_s,
            patience_s=policy.outage_patience_s,
            first_patience_s=policy.first_answer_patience_s,
            untold_s=policy.untold_outage_s,
            on_change=log,
        )
        self.client = Client(url, policy, self._health, certificates, _HINTS)
        self.attempts = Attempts(policy, self._health, self._stop, log)

    def close(self) -> None:
        """Close all connections; whoever waits for one gets an error."""
        self._stop.set()
        self._health.stop()
        self.client.close()


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
