"""Tar headers, made and read by `tarfile`: one block of 512 bytes for each file, which is all that our names need."""

from __future__ import annotations

import tarfile
from functools import lru_cache

from scannet_prep.errors import ContentError
from scannet_prep.files import Buffer

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)


@lru_cache(maxsize=256)
def encode_header(name: str, size_bytes: int) -> bytes:
    """The header of a file: rights 0644, time and owner 0, so that the same file always gives the same bytes."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding_bytes(size_bytes: int) -> int:
    """How many zeros follow a file."""
    return -size_bytes % BLOCK_BYTES


def member_bytes(size_bytes: int) -> int:
    """How much a file takes: header, content and padding."""
    return BLOCK_BYTES + size_bytes + padding_bytes(size_bytes)


def is_header(block: bytes) -> bool:
    """Whether a block is a tar header of any program, by its checksum."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def parse_header(header: Buffer) -> tuple[str, int]:
    """Read name and size of a file.

    Raises:
        ContentError: It is not a header as `encode_header` makes it: damaged, or of a link, a device or a folder.
    """
    try:
        info = tarfile.TarInfo.frombuf(bytes(header), "utf-8", "strict")
        expected = encode_header(info.name, info.size) if info.size >= 0 else b""
    except (tarfile.HeaderError, ValueError) as error:
        raise ContentError(f"a tar header is damaged: {error}") from None
    if expected != header:
        raise ContentError(f"a tar header is not as this program writes it: {info.name[:80]!a}")
    return info.name, info.size


def split_members(content: memoryview) -> list[tuple[str, int, int]]:
    """Find the files in the tar bytes of one frame.

    Returns:
        Name, offset of the content and size in bytes of each.

    Raises:
        ContentError: It is not a sequence of whole files.
    """
    members, position = [], 0
    while position < len(content):
        name, size_bytes = parse_header(content[position : position + BLOCK_BYTES])
        members.append((name, position + BLOCK_BYTES, size_bytes))
        position += member_bytes(size_bytes)
    if position != len(content) or not members:
        raise ContentError("a frame ends in the middle of a file")
    return members
