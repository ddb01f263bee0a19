"""Receives one file of the release into a partial file, resumption included."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping

from scannet_prep.remote.client import Answer, Client
from scannet_prep.remote.partial import Partial
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError
from scannet_prep.space import format_bytes

CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)/([0-9]{1,18})", re.IGNORECASE)

_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
_PROOF_BYTES = 128 * 1024  # no page that says that the server is down is as long


def receive(client: Client, url: str, partial: Partial, max_bytes: int, on_chunk: Callable[[bool], None]) -> None:
    """Make one request for what is missing of a file, and append what it gives: the file is complete afterwards.

    Args:
        client: Makes the request.
        url: The address.
        partial: What has arrived before.
        max_bytes: No file of this kind is larger.
        on_chunk: Called after each piece; told whether so much has come that it must be content.

    Raises:
        AttemptError: It is not complete.
        OutputError: The disk is full.
    """
    headers = {}
    if partial.size_bytes and not partial.validator:
        partial.restart()  # nothing tells whether the rest would belong to the same version
    if partial.size_bytes:
        headers = {"Range": f"bytes={partial.size_bytes}-", "If-Range": partial.validator}
    with client.open(url, headers) as answer:
        chunks = answer.read_chunks()
        if answer.status == 200:  # looked at before all that has arrived is given up for it
            chunks = _refuse_pages(chunks)
        expected_bytes = _begin(answer, partial)
        _check_size(expected_bytes or 0, partial, max_bytes)
        received_bytes = 0
        for chunk in chunks if partial.size_bytes != expected_bytes else ():
            _check_size(partial.size_bytes + len(chunk), partial, max_bytes)
            partial.append(chunk)
            received_bytes += len(chunk)
            on_chunk(received_bytes >= _PROOF_BYTES)
    if expected_bytes is not None and partial.size_bytes != expected_bytes:
        found = partial.size_bytes
        if found > expected_bytes:
            partial.restart()
        raise AttemptError(f"broken off after {found:,} of {expected_bytes:,} bytes")


def ask_for_end(client: Client, url: str, size_bytes: int) -> None:
    """Ask for the last byte of a file that was served before: this costs nothing, and is like fetching it.

    `HEAD` would not do: there are servers that fail with it alone, and others that fail with all but it.

    Raises:
        AttemptError: The server does not give it, or has something else there.
    """
    with client.open(url, {"Range": f"bytes={size_bytes - 1}-"}) as answer:
        match = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        found_bytes = int(match[3]) if match else _content_length(answer)
        if answer.status == 200:  # ranges are ignored: what comes is left
            next(_refuse_pages(answer.read_chunks()))
        elif match is None:
            found_bytes = size_bytes
        if found_bytes not in (None, size_bytes):
            raise AttemptError("something else in place of what was served before")


def find_size(client: Client, url: str) -> int | None:
    """Ask how large a file is; None where the server does not say.

    Raises:
        AttemptError: The server does not answer that.
    """
    with client.open(url, {}, "HEAD") as answer:
        return _content_length(answer)


def _begin(answer: Answer, partial: Partial) -> int | None:
    """Prepare the partial file for the body to come; gives the size that the whole file has to have, if known."""
    status, headers = answer.status, answer.headers
    if status == 200:  # a first request, or the server ignores ranges, or has a new version
        partial.restart(_validator(answer))
        return _content_length(answer)
    content_range = headers.get("Content-Range", "")
    match = CONTENT_RANGE.fullmatch(content_range)
    if status == 206:
        if match is None or match[1] is None or int(match[1]) != partial.size_bytes or answer.is_encoded:
            partial.restart()
            raise AttemptError(f"asked to go on, the server sent {content_range[:80] or 'no range'!r}")
        if not partial.size_bytes:  # not asked for, but a whole file all the same
            partial.restart(_validator(answer))
        elif not _may_be_same_version(headers, partial.validator):
            partial.restart()
            raise AttemptError("asked to go on, the server sent the rest of another version")
        return int(match[3])
    if match is not None and partial.size_bytes and match[3] == str(partial.size_bytes):
        return partial.size_bytes  # 416: it was whole already
    partial.restart()
    raise AttemptError("the server has a shorter file than what had arrived")


def _check_size(size_bytes: int, partial: Partial, max_bytes: int) -> None:
    """Check that a file of so many bytes can be of its kind, and that the disk holds it.

    Raises:
        AttemptError: It cannot, or does not.
    """
    if size_bytes > max_bytes:
        partial.restart()
        what = f"has {format_bytes(size_bytes)} or more, but no file of this kind has more than"
        raise AttemptError(f"{what} {format_bytes(max_bytes)}", tries=FEW_TRIES, is_answer=True)
    free_bytes = partial.free_bytes() if size_bytes > partial.size_bytes + _PROOF_BYTES else 0
    if free_bytes and size_bytes - partial.size_bytes > free_bytes:
        raise AttemptError(
            f"has {format_bytes(size_bytes)}, but only {format_bytes(free_bytes)} is free on the disk",
            "free some space, or choose a folder on another disk",
            tries=1,
        )


def _refuse_pages(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Give the same chunks, unless they are a page: no file of the release begins with `<`, nor is one empty.

    Raises:
        AttemptError: They are.
    """
    first = next(chunks, b"")
    if not first or first.lstrip().startswith(b"<"):
        raise AttemptError(
            f"{'a web page' if first else 'nothing'} in place of the file",
            "a web page for every file may be the login page of your network: open the address in a browser",
            tries=FEW_TRIES,
            is_answer=True,
        )
    return itertools.chain([first], chunks)


def _validator(answer: Answer) -> str:
    """What identifies this version of the file for `If-Range`: a strong ETag, else the date; empty where neither is."""
    if answer.is_encoded:
        return ""  # offsets into compressed bytes mean nothing
    etag = answer.headers.get("ETag", "")
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified", "")


def _may_be_same_version(headers: Mapping[str, str], validator: str) -> bool:
    """Whether the rest of a file goes with what has arrived: servers that ignore `If-Range` send that of any version.

    The answer has to repeat an ETag (RFC 9110, 15.3.7), but not a date.
    """
    if validator.startswith('"'):
        return headers.get("ETag") == validator
    return headers.get("Last-Modified", validator) == validator


def _content_length(answer: Answer) -> int | None:
    length = answer.headers.get("Content-Length", "")
    # Chunks have lengths of their own, which count instead (RFC 9112, 6.3).
    is_length = (
        not answer.is_encoded and "Transfer-Encoding" not in answer.headers and _CONTENT_LENGTH.fullmatch(length)
    )
    return int(length) if is_length else None
