"""`scannet.lock`: sizes and SHA-256 digests of the files of a raw tree, trusted on first use.

ScanNet publishes no checksums. The first complete download of a file is recorded here; later runs
compare with it, and two labs can compare their copies without exchanging data. The file has one
line per file, sorted, readable by people and by diff:

    <sha256>  <size in bytes>  <path below the data folder>
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import open_file, read_text
from scannet_prep.errors import FileError
from scannet_prep.raw.files import read_raw_file
from scannet_prep.release.files import FileKind

LOCK_NAME = "scannet.lock"

_HEADER = (
    "# SHA-256, size in bytes and path of ScanNet files, recorded when each was first found whole\n"
)
_LINE = re.compile(r"([0-9a-f]{64})  (\d{1,15})  (\S.*)")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LockEntry:
    """The record of one file.

    Attributes:
        sha256: Digest of the content, 64 hexadecimal digits.
        size_bytes: Size of the file.
    """

    sha256: str
    size_bytes: int

    def __str__(self) -> str:
        """Return both as text, for messages."""
        return f"{self.size_bytes:,} bytes, sha256 {self.sha256[:12]}"


def read_tree_lock(raw_dir: Path) -> dict[str, LockEntry]:
    """Read the lock file of a raw tree.

    Returns:
        Entries by path below the data folder, with `/`; empty if there is no lock file.

    Raises:
        FileError: The lock file is damaged.
    """
    path = raw_dir / LOCK_NAME
    entries: dict[str, LockEntry] = {}
    if not path.exists():
        return entries
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            hint = "remove the line; scannet-prep download writes it again if the file is intact"
            raise FileError(
                path, f"line {number} reads {line[:60]!r}, expected digest, size and path", hint
            )
        sha256, size, name = match.groups()
        entries[name] = LockEntry(sha256, int(size))
    return entries


def encode_lock(entries: Mapping[str, LockEntry]) -> bytes:
    """Encode a lock file."""
    lines = [_HEADER]
    for name, entry in sorted(entries.items()):
        lines.append(f"{entry.sha256}  {entry.size_bytes}  {name}\n")
    return "".join(lines).encode()


def digest_file(path: Path) -> LockEntry:
    """Compute the entry of a file.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
    """
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
        return LockEntry(digest.hexdigest(), file.tell())


def check_file(kind: FileKind, path: Path, recorded: LockEntry | None) -> LockEntry:
    """Check a file against its record, or if it has none, by its content.

    Args:
        kind: The kind of the file.
        path: The file, which may have any name.
        recorded: Its record; None if it has none.

    Returns:
        Its entry.

    Raises:
        FileError: It is missing, damaged or another file.
    """
    if recorded is None:
        read_raw_file(kind, path)
    entry = digest_file(path)
    if recorded not in (None, entry):
        problem = f"is not the file recorded in {LOCK_NAME}: {entry}, expected {recorded}"
        raise FileError(path, problem)
    return entry
