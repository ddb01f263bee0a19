"""The tar bytes of a frame: headers and contents of files.

    header (512 bytes) | content | zeros up to the next multiple of 512 | next header | ...

`tarfile` makes and reads the headers. One block is enough for all names that an archive may hold.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from scannet_prep.base.files import Buffer
from scannet_prep.base.json import Count
from scannet_prep.errors import ContentError

BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Member(NamedTuple):
    """One file in the tar bytes of a frame.

    Attributes:
        name: Its path, with `/`.
        offset: First byte of its content in the tar bytes.
        size_bytes: Its size.
        sha256: SHA-256 of its content, in hexadecimal.
    """

    name: str
    offset: Count
    size_bytes: Count
    sha256: _Sha256

    def of(self, content: memoryview) -> memoryview:
        """Return the content of this file from the tar bytes of its frame."""
        return content[self.offset : self.offset + self.size_bytes]

    def check(self, data: Buffer) -> None:
        """Check the content of this file; a `ContentError` if it has another SHA-256."""
        actual = hashlib.sha256(data).hexdigest()
        if actual != self.sha256:
            raise ContentError(
                f"{self.name} has the SHA-256 {actual[:16]}..., expected {self.sha256[:16]}..."
            )


def member_bytes(size_bytes: int) -> int:
    """Return the size of a file of `size_bytes` with its header and its padding."""
    padding_bytes = -size_bytes % BLOCK_BYTES
    return BLOCK_BYTES + size_bytes + padding_bytes


def place_files(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Place files one after the other, without gaps.

    Args:
        sizes: Their sizes.

    Returns:
        The first byte of the content of each file in the tar bytes, and the size of the tar bytes.
    """
    offsets = []
    position = 0
    for size_bytes in sizes:
        offsets.append(position + BLOCK_BYTES)
        position += member_bytes(size_bytes)
    return offsets, position


def encode_header(name: str, size_bytes: int) -> bytes:
    """Make the header of a file, with owner and time 0, so that equal files give equal bytes."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf(tarfile.USTAR_FORMAT)


def read_members(content: memoryview) -> tuple[Member, ...]:
    """Find the files in tar bytes that no index describes.

    Raises:
        ContentError: A header was not made by `encode_header`, or a file is cut off.
    """
    members = []
    position = 0
    while position < len(content):
        name, size_bytes = parse_header(content[position : position + BLOCK_BYTES])
        start = position + BLOCK_BYTES
        sha256 = hashlib.sha256(content[start : start + size_bytes]).hexdigest()
        members.append(Member(name, start, size_bytes, sha256))
        position += member_bytes(size_bytes)
    if position != len(content) or not members:
        raise ContentError("a frame ends in the middle of a file")
    return tuple(members)


def parse_header(header: Buffer) -> tuple[str, int]:
    """Read the name and the size of a file from its header.

    Raises:
        ContentError: It is not a header that `encode_header` makes: it is damaged, or does not
            belong to a regular file.
    """
    try:
        info = tarfile.TarInfo.frombuf(bytes(header), "utf-8", "strict")
        # A header can record a negative size, which `encode_header` cannot make.
        expected = encode_header(info.name, info.size) if info.size >= 0 else b""
    except (tarfile.HeaderError, ValueError) as error:
        raise ContentError(f"a tar header is damaged: {error}") from None
    if expected != header:
        raise ContentError(f"a tar header is not as this program writes it: {info.name[:80]!a}")
    return info.name, info.size


def check_members(members: Sequence[Member], content: memoryview) -> bool:
    """Check the files that an index describes, each by its SHA-256.

    Returns:
        Whether their headers are intact, too. Only other programs need them: this program uses
        the index instead.

    Raises:
        ContentError: A file is damaged.
    """
    are_headers_intact = True
    for member in members:
        member.check(member.of(content))
        header = content[member.offset - BLOCK_BYTES : member.offset]
        if header != encode_header(member.name, member.size_bytes):
            are_headers_intact = False
    return are_headers_intact
