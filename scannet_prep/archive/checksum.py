"""The file `NAME.tar.zst.sha256` beside an archive: its SHA-256 in the format of `sha256sum`.

It proves that a copy is complete: `sha256sum -c NAME.tar.zst.sha256` needs no program of ours.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from scannet_prep.archive.source import SUFFIX
from scannet_prep.base.errors import ArchiveError
from scannet_prep.base.files import Buffer, open_file, read_file

CHECKSUM_SUFFIX = f"{SUFFIX}.sha256"

_LINE = re.compile(rb"\\?([0-9a-f]{64}) [ *]?.+")
_MAX_FILE_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 22


class Digest:
    """Computes the size and SHA-256 of bytes while they pass.

    Attributes:
        size_bytes: Number of bytes so far.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes so far, 64 hexadecimal digits."""
        return self._sha256.hexdigest()

    def watch(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield pieces unchanged, and count them."""
        for piece in pieces:
            self._sha256.update(piece)  # without the interpreter lock: threads compress meanwhile
            self.size_bytes += len(piece)
            yield piece


def checksum_path(archive_path: Path) -> Path:
    """Name of the checksum file of an archive."""
    return archive_path.with_name(f"{archive_path.name}.sha256")


def encode_checksum(archive_path: Path, sha256: str) -> bytes:
    """Encode the checksum file of an archive as `sha256sum` writes it."""
    name = os.fsencode(archive_path.name)
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    start = b"\\" if escaped != name else b""
    return b"%b%b  %b\n" % (start, sha256.encode(), escaped)


def check_checksum(archive_path: Path) -> None:
    """Compare an archive with the checksum file beside it, if there is one.

    Raises:
        ArchiveError: The archive has another SHA-256, or the file holds none.
        FileError: One of the two cannot be read.
    """
    path = checksum_path(archive_path)
    if not path.exists():
        return
    match = _LINE.fullmatch(read_file(path, _MAX_FILE_BYTES).strip())
    if match is None:
        raise ArchiveError(
            path,
            "is not a line of sha256sum",
            f"make it again: scannet-prep pack writes {path.name}",
        )
    digest = Digest()
    with open_file(archive_path, 1 << 60) as file:
        for _ in digest.watch(iter(lambda: file.read(_BLOCK_BYTES), b"")):
            pass
    expected = match[1].decode()
    if digest.sha256 != expected:
        raise ArchiveError(
            archive_path,
            f"has the SHA-256 {digest.sha256[:16]}..., {path.name} records {expected[:16]}...",
            f"copy both files again; if the archive is newer than {path.name}, remove that file",
        )
