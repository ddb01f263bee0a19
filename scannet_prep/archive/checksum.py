"""The file `NAME.tar.zst.sha256` beside an archive: its SHA-256 in the format of `sha256sum`.

`sha256sum -c NAME.tar.zst.sha256` then shows, without this program, that a copy is complete.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from scannet_prep.archive.shards import SUFFIX
from scannet_prep.base.files import read_file
from scannet_prep.errors import ArchiveError
from scannet_prep.raw.lock import digest_file

CHECKSUM_SUFFIX = f"{SUFFIX}.sha256"

# One line of sha256sum: a backslash if the name is escaped, the digest, `*` for binary mode, and
# the name, which is not compared: the user may have renamed the archive.
_LINE = re.compile(rb"\\?([0-9a-f]{64}) [ *]?.+")
_MAX_FILE_BYTES = 1 << 16


def checksum_path(archive_path: Path) -> Path:
    """Return the path of the checksum file of an archive."""
    return archive_path.with_name(f"{archive_path.name}.sha256")


def encode_checksum(archive_path: Path, sha256: str) -> bytes:
    """Encode the checksum file of an archive as `sha256sum` writes it."""
    name = os.fsencode(archive_path.name)
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    # sha256sum marks an escaped name by a backslash at the beginning of the line.
    mark = b"\\" if escaped != name else b""
    return b"%b%b  %b\n" % (mark, sha256.encode(), escaped)


def check_checksum(archive_path: Path) -> None:
    """Compare an archive with the checksum file beside it, if there is one.

    Raises:
        ArchiveError: The archive has another SHA-256, or the checksum file is damaged.
        FileError: One of the files cannot be read.
    """
    path = checksum_path(archive_path)
    if not path.exists():
        return
    match = _LINE.fullmatch(read_file(path, _MAX_FILE_BYTES).strip())
    if match is None:
        hint = f"make it again: scannet-prep pack writes {path.name}"
        raise ArchiveError(path, "is not a line of sha256sum", hint)
    expected = match[1].decode()
    actual = digest_file(archive_path).sha256
    if actual != expected:
        raise ArchiveError(
            archive_path,
            f"has the SHA-256 {actual[:16]}..., {path.name} records {expected[:16]}...",
            f"copy both files again; if the archive is newer than {path.name}, remove that file",
        )
