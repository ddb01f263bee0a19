"""Receives one file of the release into a partial file, resumption included."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from scannet_prep.errors import FileError
from scannet_prep.remote.address import public_url
from scannet_prep.remote.attempts import Attempts
from scannet_prep.remote.client import Answer, Client
from scannet_prep.remote.failure import TransientError
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.partial import Partial
from scannet_prep.remote.policy import TransferPolicy

_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})", re.IGNORECASE)
_SMALL_BYTES = 64 * 1024  # nearly nothing to a server that ignores ranges
_SERVED_TRIES = 3
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")


class Fetcher:
    """Fetches files from one server; shared by all threads of a run.

    Args:
        base_url: Where the addresses begin; ends in `/`.
        policy: How patient to be.
        health: What all threads know of the server.
        certificates: True for the system's authorities, a file with others, False to accept any certificate.
        on_bytes: Told how many bytes have arrived, of every chunk.
        on_drop: Told how many bytes of a partial file are of no use after all.
        on_pause: Told in words of long pauses.
    """

    def __init__(
        self,
        base_url: str,
        policy: TransferPolicy,
        health: ServerHealth,
        certificates: bool | Path,
        on_bytes: Callable[[int], None],
        on_drop: Callable[[int], None],
        on_pause: Callable[[str], None],
    ) -> None:
        self._base_url = base_url
        self._health = health
        self._on_bytes = on_bytes
        self._on_drop = on_drop
        self._stop = threading.Event()
        self._client = Client(base_url, policy, health, certificates)
        self._attempts = Attempts(policy, health, self._stop, on_pause, self._ask_for_served)
        self._served_small: list[tuple[str, int]] = []  # addresses and sizes
        self._served_large: list[tuple[str, int]] = []

    def stop(self) -> None:
        """End all transfers; what has arrived stays."""
        self._stop.set()
        self._health.stop()
        self._client.stop()

    def fetch(self, remote_path: str, partial: Partial, check: Callable[[], None]) -> None:
        """Fetch a file to its end.

        Args:
            remote_path: Address below the base URL.
            partial: What has arrived before; complete afterwards.
            check: Raises a `FileError` where the complete file is not what it should be.

        Raises:
            FileError: The server keeps sending something else.
            NotOnServerError: The server says that it has no such file.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server does not answer anybody any more, or the transfers were stopped.
            OutputError: The disk is full.
            PartialLostError: Another process has taken the partial file over.
        """
        url = self._base_url + remote_path

        def attempt() -> None:
            self._receive(url, partial)
            try:
                check()
            except FileError:
                self._drop(partial, "")
                raise

        self._attempts.repeat(public_url(url), attempt, lambda: partial.size_bytes)
        self.note_served(remote_path, partial.size_bytes)

    def note_served(self, remote_path: str, size_bytes: int) -> None:
        """Remember what the server has served, now or in an earlier run, to ask for it when it fails."""
        served = self._served_small if size_bytes <= _SMALL_BYTES else self._served_large
        served.append((self._base_url + remote_path, size_bytes))

    def _ask_for_served(self) -> bool:
        """Ask for something that the server has served before, from its end on; gives False where there is nothing.

        That is like fetching it, but costs nothing. `HEAD` would not do: there are servers that fail with it alone, and
        others that fail with all but it. Several files are tried, as one may be damaged by now.

        Raises:
            TransientError: It fails with those too, or sends something else.
            NotOnServerError, TransferError: It will not give one of them any more.
        """
        served = self._served_small or self._served_large
        for tries_left in reversed(range(min(_SERVED_TRIES, len(served)))):
            try:
                self._ask_for_end(*random.choice(served))  # noqa: S311 - any will do
            except TransientError:
                if not tries_left:
                    raise
            else:
                break
        return bool(served)

    def _ask_for_end(self, url: str, size_bytes: int) -> None:
        """Ask for a file from its end on, which there is nothing of.

        Raises:
            TransientError: The server fails, or has a file of another size there.
            NotOnServerError, TransferError: It will not give it any more.
        """
        with self._client.open(url, {"Range": f"bytes={size_bytes}-"}) as answer:
            match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            found_bytes = int(match[3]) if match else None  # 416
            if answer.status == 200:  # ranges are ignored: what comes is left
                next(_look_first(answer.read_chunks()))
                found_bytes = _content_length(answer.headers)
            if found_bytes not in (None, size_bytes):
                raise TransientError("something else in place of what it has served", trouble="server")

    def _receive(self, url: str, partial: Partial) -> None:
        """Make one request, and append what it gives.

        Raises:
            TransientError: Trying again may help.
            NotOnServerError, TransferError: It will not.
        """
        headers = {}
        if partial.size_bytes and not partial.validator:
            self._drop(partial, "")  # nothing tells whether the rest would belong to the same version
        if partial.size_bytes:
            headers = {"Range": f"bytes={partial.size_bytes}-", "If-Range": partial.validator}
        with self._client.open(url, headers) as answer:
            chunks = answer.read_chunks()
            if partial.size_bytes and answer.status == 200:
                chunks = _look_first(chunks)  # before all that has arrived is given up for it
            expected_bytes = self._begin(answer, partial)
            if expected_bytes is not None and partial.size_bytes == expected_bytes:
                return
            if expected_bytes is not None:
                partial.check_room(expected_bytes)
            for chunk in chunks:
                partial.append(chunk)
                self._on_bytes(len(chunk))
        if expected_bytes is not None and partial.size_bytes < expected_bytes:
            raise TransientError(f"broken off after {partial.size_bytes:,} of {expected_bytes:,} bytes")
        if expected_bytes is not None and partial.size_bytes > expected_bytes:
            found = partial.size_bytes
            self._drop(partial, "")
            raise TransientError(f"{found:,} bytes, where {expected_bytes:,} were announced")

    def _begin(self, answer: Answer, partial: Partial) -> int | None:
        """Prepare the partial file for the body to come; gives the size that the whole file has to have, if known."""
        status, headers = answer.status, answer.headers
        if status == 200:  # a first request, or the server ignores ranges, or has a new version
            self._drop(partial, _validator(headers))
            return _content_length(headers)
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if status == 206:
            if match is None or match[1] is None or int(match[1]) != partial.size_bytes or _is_encoded(headers):
                self._drop(partial, "")
                raise TransientError(f"asked to go on, the server sent {headers.get('Content-Range', 'no range')!r}")
            if not partial.size_bytes:  # not asked for, but a whole file all the same
                self._drop(partial, _validator(headers))
            elif not _may_be_same_version(headers, partial.validator):
                self._drop(partial, "")
                raise TransientError("asked to go on, the server sent the rest of another version")
            return int(match[3])
        if match is not None and match[3] == str(partial.size_bytes):
            return partial.size_bytes  # 416: it was whole already
        self._drop(partial, "")
        raise TransientError("the server has a shorter file than what had arrived")

    def _drop(self, partial: Partial, validator: str) -> None:
        size_bytes = partial.size_bytes
        partial.restart(validator)
        if size_bytes:
            self._on_drop(size_bytes)


def _validator(headers: Mapping[str, str]) -> str:
    """What identifies this version of the file for `If-Range`: a strong ETag, else the date; empty where neither is."""
    if _is_encoded(headers):
        return ""  # offsets into compressed bytes mean nothing
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified", "")


def _may_be_same_version(headers: Mapping[str, str], validator: str) -> bool:
    """Whether the rest of a file goes with what has arrived: servers that ignore `If-Range` send that of any version.

    The answer has to repeat an ETag (RFC 9110, 15.3.7), but not a date.
    """
    if validator.startswith('"'):
        return headers.get("ETag") == validator
    return headers.get("Last-Modified", validator) == validator


def _content_length(headers: Mapping[str, str]) -> int | None:
    length = headers.get("Content-Length", "")
    # Chunks have lengths of their own, which count instead (RFC 9112, 6.3).
    is_length = not _is_encoded(headers) and "Transfer-Encoding" not in headers and _CONTENT_LENGTH.fullmatch(length)
    return int(length) if is_length else None


def _is_encoded(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Encoding", "").strip().lower() not in ("", "identity")


def _look_first(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Give the same chunks, unless they are those of a page: no file of the release begins with `<`, nor is one empty.

    Raises:
        TransientError: They are.
    """
    first = next(chunks, b"")
    if not first or first.lstrip().startswith(b"<"):
        found = "a page" if first else "nothing"
        raise TransientError(f"{found} in place of the file", trouble="server")
    return itertools.chain([first], chunks)
