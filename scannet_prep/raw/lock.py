"""`scannet.lock`: sizes and SHA-256 digests of the files of a raw tree, trusted on first use.

ScanNet publishes no checksums. The first whole download of a file is recorded here; later runs compare with it, and two
labs can compare their copies without exchanging data. One line a file, sorted, readable by people and by diff:

    <sha256>  <size in bytes>  <path below the data folder>
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import LockError
from scannet_prep.files import open_file, read_file
from scannet_prep.shards import ShardFolder

LOCK_NAME = "scannet.lock"
PARTS_NAME = "scannet.lock.d"

_HEADER = "# SHA-256, size in bytes and path of ScanNet files, recorded when each was first found whole\n"
_LINE = re.compile(r"([0-9a-f]{64})  (\d{1,15})  (\S.*)")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LockEntry:
    """What is recorded of one file.

    Attributes:
        sha256: Digest of its content, 64 hexadecimal digits.
        size_bytes: Its length.
    """

    sha256: str
    size_bytes: int


def shards_of(raw_dir: Path) -> ShardFolder:
    """The shards of a download that have not been merged."""
    return ShardFolder(raw_dir / PARTS_NAME, "download", ".lock")


def read_locks(raw_dir: Path) -> dict[str, LockEntry]:
    """Read what is recorded of a raw tree, with what shards have added; empty where there is nothing.

    Raises:
        LockError: The lock file, or a part, is damaged.
    """
    entries: dict[str, LockEntry] = {}
    for path in (raw_dir / LOCK_NAME, *shards_of(raw_dir).list_files().values()):
        if path.exists():
            entries |= read_lock(path)
    return entries


def read_lock(path: Path, data: bytes | None = None) -> dict[str, LockEntry]:
    """Read a lock file; entries by path below the data folder, with `/`.

    Args:
        path: The file.
        data: Its bytes, where they are known: then the path is only for messages.

    Raises:
        MissingFileError: There is no such file.
        LockError: It is damaged.
    """
    entries, text = dict[str, LockEntry](), (read_file(path) if data is None else data).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            hint = "mend the line, or remove it: it is made anew from the file, if the file is whole"
            raise LockError(path, f"line {number} reads {line[:60]!r}, expected digest, size and path", hint)
        entries[match[3]] = LockEntry(match[1], int(match[2]))
    return entries


def encode_lock(entries: Mapping[str, LockEntry]) -> bytes:
    """Encode a lock file."""
    lines = [f"{entry.sha256}  {entry.size_bytes}  {name}\n" for name, entry in sorted(entries.items())]
    return (_HEADER + "".join(lines)).encode()


def digest_file(path: Path) -> LockEntry:
    """Compute what a lock file records of a file.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with open_file(path, 1 << 40) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return LockEntry(digest.hexdigest(), size)
