"""Tar members in the one form that this program writes: plain files, without owner or time."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from scannet_prep.files import Buffer

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)

_MODE = 0o644
_MAX_BLOCK_SIZE = 8**11 - 1  # what fits into the size field of one block
_MAX_EXTENSION_BYTES = 1 << 16
_PAX_LENGTH = re.compile(rb"(\d{1,6}) ")


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file in a tar stream.

    Attributes:
        name: Its path, with `/`.
        size_bytes: Its size.
    """

    name: str
    size_bytes: int


def encode_header(name: str, size_bytes: int) -> bytes:
    """Encode what stands before a member's data: one block, or three and more for long or non-ASCII names.

    Raises:
        ValueError: The name cannot be written as UTF-8.
    """
    if len(name) <= tarfile.LENGTH_NAME and name.isascii():
        return _encode_header(name, size_bytes)
    return _encode_long_header(name, size_bytes)


def header_bytes(name: str, size_bytes: int) -> int:
    """Size of `encode_header`, mostly known without encoding it.

    Raises:
        ValueError: The name cannot be written as UTF-8.
    """
    if len(name) <= tarfile.LENGTH_NAME and name.isascii() and size_bytes <= _MAX_BLOCK_SIZE:
        return BLOCK_BYTES
    return len(encode_header(name, size_bytes))


def padding_bytes(size_bytes: int) -> int:
    """How many zeros follow so many bytes of data."""
    return -size_bytes % BLOCK_BYTES


def member_bytes(name: str, size_bytes: int) -> int:
    """Size of a whole member: header, data, and zeros up to the next block."""
    return header_bytes(name, size_bytes) + size_bytes + padding_bytes(size_bytes)


@lru_cache(maxsize=256)
def _encode_long_header(name: str, size_bytes: int) -> bytes:
    return _encode_header(name, size_bytes)


def _encode_header(name: str, size_bytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    info.mode = _MODE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


class TarParser:
    """Takes a tar stream apart as it comes, in pieces of any size.

    Only what `encode_header` makes is accepted: no links, no devices, no folders, no other program's headers.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_bytes = 0
        self._padding_bytes = 0
        self._is_open = False
        self._zeros = 0

    @property
    def is_at_boundary(self) -> bool:
        """Whether the stream may end here: no member has begun that has not ended."""
        return not self._is_open and not self._head

    @property
    def has_ended(self) -> bool:
        """Whether the end-of-archive blocks have come."""
        return self._zeros >= len(END_OF_ARCHIVE)

    def feed(self, data: Buffer) -> Iterator[TarMember | memoryview | None]:
        """Take the next bytes.

        Yields:
            A member where one begins, then pieces of its data, then None where it ends.

        Raises:
            ValueError: It is not a tar stream of this program.
        """
        rest = memoryview(data)
        while rest:
            if self._is_open:
                if self._left_bytes:
                    piece, rest = rest[: self._left_bytes], rest[self._left_bytes :]
                    self._left_bytes -= len(piece)
                    yield piece
                else:
                    piece, rest = rest[: self._padding_bytes], rest[self._padding_bytes :]
                    if any(piece):
                        raise ValueError("the zeros after a member are damaged")
                    self._padding_bytes -= len(piece)
                if not self._left_bytes and not self._padding_bytes:
                    self._is_open = False
                    yield None
                continue
            count = BLOCK_BYTES - len(self._head) % BLOCK_BYTES
            self._head += rest[:count]
            rest = rest[count:]
            if len(self._head) % BLOCK_BYTES == 0 and (member := self._parse_head()) is not None:
                self._left_bytes, self._padding_bytes = member.size_bytes, padding_bytes(member.size_bytes)
                self._is_open = bool(self._left_bytes)
                yield member
                if not self._is_open:
                    yield None

    def _parse_head(self) -> TarMember | None:
        """Read the header that has come so far; None where more must come."""
        head = bytes(self._head)
        if not any(head):
            self._zeros += len(head)
            self._head.clear()
            return None
        if self._zeros:
            raise ValueError("members follow the end of the tar stream")
        member = parse_header(head)
        if member is not None:
            self._head.clear()
        return member


def _iter_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Take a pax extension apart: `<length of all> <key>=<value>` and a line feed, each."""
    position = 0
    while match := _PAX_LENGTH.match(data, position):
        key, _, value = data[match.end() : position + int(match[1]) - 1].partition(b"=")
        yield key, value
        position += max(int(match[1]), 1)


def parse_header(head: bytes) -> TarMember | None:
    """Read the header of a member from whole blocks.

    Returns:
        The member; None where its header has more blocks.

    Raises:
        ValueError: It is not as `encode_header` makes it.
    """
    try:
        first = tarfile.TarInfo.frombuf(head[:BLOCK_BYTES], "utf-8", "strict")
        if first.type == tarfile.XHDTYPE:
            if first.size > _MAX_EXTENSION_BYTES:
                raise ValueError(f"a tar header has an extension of {first.size:,} bytes")
            last_start = BLOCK_BYTES + first.size + padding_bytes(first.size)
            if len(head) < last_start + BLOCK_BYTES:
                return None
            last = tarfile.TarInfo.frombuf(head[last_start:], "utf-8", "strict")
            values = dict(_iter_records(head[BLOCK_BYTES : BLOCK_BYTES + first.size]))
            name = values[b"path"].decode("utf-8") if b"path" in values else last.name
            member = TarMember(name, int(values.get(b"size", last.size)))
        else:
            member = TarMember(first.name, first.size)
    except tarfile.HeaderError as error:
        raise ValueError(f"a tar header is damaged: {error}") from None
    except UnicodeError:
        raise ValueError("a tar header has a name that is not UTF-8") from None
    # Links, devices, folders, owners, times and whatever else a header can say end here.
    if member.size_bytes < 0 or encode_header(member.name, member.size_bytes) != head:
        raise ValueError(f"a tar header is not as this program writes it: {member.name[:80]!r}")
    return member


def begins_group(start: bytes, size_bytes: int) -> bool:
    """Whether a frame is the first of a group: a member begins with it, or it is the end of the tar stream.

    The later frames of a group begin in the middle of a block, so that no archive in an archive is taken for one.

    Args:
        start: The first block of its content.
        size_bytes: Size of its content.
    """
    try:
        parse_header(start[:BLOCK_BYTES])
    except ValueError:
        return size_bytes == len(END_OF_ARCHIVE) and not any(start[:BLOCK_BYTES])
    return True
