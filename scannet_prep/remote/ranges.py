"""Reads ranges of one large file on a web server, with the patience and the checks of a download."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scannet_prep.errors import ArchiveError, FileError, ServerDownError, UsageError
from scannet_prep.remote.address import is_server_address, public_url
from scannet_prep.remote.client import Answer, Client, find_certificates
from scannet_prep.remote.gate import Gate
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.transfer import CONTENT_RANGE
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, Hints

TAIL_BYTES = 1 << 20  # holds the index of 1,613 scenes

_MAX_CONNECTIONS = 64  # each thread that reads has one; their number is for those who read to choose
_PATIENCE = TransferPolicy(outage_patience_s=600.0, first_answer_patience_s=30.0, longest_retry_after_s=600.0)
_HINTS = Hints(
    access="name who asks: https://USER:PASSWORD@..., or a line for the server in ~/.netrc; "
    "a signed address may have expired",
    address="name it as https://HOST/PATH/NAME.tar.zst",
    certificate="--ca-bundle FILE or REQUESTS_CA_BUNDLE=FILE names the authority of the server or of your network's "
    "proxy; in Python, RangeSource(URL, certificates=Path(FILE)) does",
    missing="look at the address in a browser; names are case-sensitive",
)

_log = logging.getLogger(__name__)


class _Version(NamedTuple):
    """What tells one version of the file from another: size, ETag and Last-Modified, empty where not given."""

    size_bytes: int
    etag: str
    last_modified: str

    def is_same(self, other: _Version) -> bool:
        """Whether nothing speaks against it that both are the same file."""
        if self.etag and other.etag:
            return self[:2] == other[:2]
        is_dated = bool(self.last_modified and other.last_modified)
        return self.size_bytes == other.size_bytes and (not is_dated or self.last_modified == other.last_modified)


class RangeSource:
    """A file on a web server, of which any range can be read.

    Picklable, and safe under fork and in threads: each process and thread has connections of its own. Opening it
    fetches the end of the file, which is kept until something else is read.

    Args:
        url: Its address, `https://` or `http://`. User and password in it, and the query, never show in messages.
        certificates: True for the system's authorities (or those that REQUESTS_CA_BUNDLE names), a file with others,
            False to accept any certificate.
        policy: How patient to be; `tries` of it says how often in a row a request may bring nothing.

    Raises:
        UsageError: It is not an address, or the file of authorities cannot be used.
        NotOnServerError: The server has no such file.
        TransferError: The server refuses, or too many attempts in a row failed.
        ServerDownError: The server does not answer.
        ArchiveError: The server gives no ranges, only whole files.
    """

    def __init__(self, url: str, *, certificates: bool | Path = True, policy: TransferPolicy | None = None) -> None:
        self._links: dict[int, tuple[Client, Gate]] = {}
        if not is_server_address(url):
            raise UsageError(f"{public_url(url)!r} is not an address of a file on a web server", _HINTS.address)
        find_certificates(url, certificates)
        self._url = url
        self._certificates = certificates
        self._policy = policy or _PATIENCE
        self._version: _Version | None = None
        self._tail_start, self._tail = 0, b""
        self._tail = self._fetch(_Span(-TAIL_BYTES, 0))
        if self._version is None:  # it answers with the whole file, or not at all, where asked for so many last bytes
            self._fetch(_Span(0, 1))
        if not self._tail and self.size_bytes:
            self._tail_start = max(0, self.size_bytes - TAIL_BYTES)
            self._tail = self._fetch(_Span(self._tail_start, self.size_bytes))
        self.close()  # so that processes that are forked now inherit no connection

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
        tail_start, tail = self._tail_start, self._tail
        if tail and tail_start <= offset:
            return tail[offset - tail_start : end - tail_start]
        self._tail = b""
        return self._fetch(_Span(offset, end))

    def close(self) -> None:
        """Close the connections of this process; reading opens new ones."""
        client, _ = self._links.pop(os.getpid(), (None, None))
        if client is not None:
            client.close()

    def __del__(self) -> None:
        """Close the connections of this process."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return self.__dict__ | {"_links": {}, "_tail": b""}

    def _connect(self) -> tuple[Client, Gate]:
        """The connections of this process. Without a lock, which a fork may copy while it is held."""
        link = self._links.get(os.getpid())
        if link is None:
            name, client = self.name, Client(self._url, self._policy, self._certificates, _HINTS)
            gate = Gate(_MAX_CONNECTIONS, self._policy, client.stop, lambda text: _log.warning("%s: %s", name, text))
            link = self._links.setdefault(os.getpid(), (client, gate))
        return link

    def _fetch(self, span: _Span) -> bytes:
        """Fetch a range, with as many requests as it takes."""
        (client, gate), failures, failed_s = self._connect(), 0, 0.0
        while True:
            most_bytes = len(span.data)
            try:
                with gate.request():
                    try:
                        self._receive(client, span)
                    except AttemptError:
                        if len(span.data) <= most_bytes:
                            raise
                        failures = 0  # broken off, but more has come than ever before
                    else:
                        return bytes(span.data)
            except ServerDownError:
                self.close()  # who reads again begins with new patience
                raise
            except AttemptError as error:
                failed_s = failed_s if failures else time.monotonic()
                failures += 1
                tries = error.tries or self._policy.tries
                if failures >= tries and (error.tries or gate.is_file_to_blame(failed_s)):
                    what = "" if tries == 1 else f"{failures} attempts in a row failed, the last one: "
                    if issubclass(error.error_type, FileError):
                        raise error.error_type(self.name, what + error.reason, error.hint) from None
                    raise error.error_type(f"{self.name}: {what}{error.reason}", error.hint) from None

    def _receive(self, client: Client, span: _Span) -> None:
        """Make one request, and append what it gives.

        Raises:
            AttemptError: It does not give all that is missing.
            ArchiveError: It hardly ever will.
        """
        if len(span.data) == span.end - span.start:  # though the connection broke off after its last byte
            return
        first = span.start + len(span.data)
        asked = f"bytes={first}" if first < 0 else f"bytes={first}-{span.end - 1}"
        with client.open(self._url, {"Range": asked}) as answer:
            if not self._begin(answer, asked, span):
                return
            for chunk in answer.read_chunks():
                span.data += chunk
                if len(span.data) > span.end - span.start:
                    del span.data[:]
                    raise AttemptError("more came than was asked for")
        if len(span.data) < span.end - span.start:
            raise AttemptError(f"broken off after {len(span.data):,} of {span.end - span.start:,} bytes")

    def _begin(self, answer: Answer, asked: str, span: _Span) -> bool:
        """Check that the body to come is what is missing; gives whether there is any."""
        content_range = answer.headers.get("Content-Range", "")
        match = CONTENT_RANGE.fullmatch(content_range)
        size_bytes = int(match[3]) if match else self.size_bytes
        found = _Version(
            size_bytes, answer.headers.get("ETag", "").removeprefix("W/"), answer.headers.get("Last-Modified", "")
        )
        if answer.status == 206 and match and match[1] and not answer.is_encoded:
            self._check_version(found)
            first, end = int(match[1]), int(match[2]) + 1
            if span.start < 0 and (first, end) == (max(0, size_bytes + span.start), size_bytes):
                span.start, span.end = first, end
                self._tail_start = first
            if (first, end) != (span.start + len(span.data), span.end):
                raise AttemptError(f"asked for {asked}, the server sent {content_range}", tries=FEW_TRIES)
            return True
        if span.start < 0:
            return False  # some servers know only ranges from the beginning
        is_empty = size_bytes == 0 and (answer.status == 416 or answer.headers.get("Content-Length") == "0")
        if self._version is None and is_empty:  # has no range
            self._version = found
            return False
        if answer.status == 200:
            self._check_version(found)
            if self._version is None or (span.start, span.end) != (0, size_bytes) or answer.is_encoded:
                hint = "fetch the archive and name the file, or serve it by a server that knows ranges, such as nginx"
                reason = "the server sends the whole file where a part was asked for"
                raise AttemptError(reason, hint, tries=FEW_TRIES, error_type=ArchiveError)
            del span.data[:]
            return True
        if match and self._version is not None and size_bytes != self.size_bytes:
            self._check_version(found)
        raise AttemptError(f"asked for {asked}, the server sent {content_range or 'no range'!r:.80}", tries=FEW_TRIES)

    def _check_version(self, found: _Version) -> None:
        """Check that it is the file that was opened, or take note of it where the answer tells its size."""
        if self._version is None and found.size_bytes:
            self._version = found
        elif self._version is not None and not self._version.is_same(found):
            raise ArchiveError(self.name, "was replaced or changed since it was opened", "open it again")


@dataclass(slots=True)
class _Span:
    """A range that is being fetched: first byte (negative: so many at the end), byte after its last, what has come."""

    start: int
    end: int
    data: bytearray = field(default_factory=bytearray)
