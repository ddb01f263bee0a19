"""What goes into an archive: files by scene, found before any of them is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import deflate

from scannet_prep.archive.index import Head
from scannet_prep.archive.reader import ArchivedGroup
from scannet_prep.archive.tar import member_bytes
from scannet_prep.errors import MissingFileError, SourceError
from scannet_prep.files import Buffer, Fingerprint

_READ_BYTES = 1 << 20
_CHANGED_HINT = "wait until nothing writes there any more, then pack again"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that is to be packed.

    Attributes:
        name: Its name in the archive, with `/`.
        path: Where it lies; for messages only, if `content` is given.
        size_bytes: Its size when it was found.
        modified_ns: Its time of change when it was found.
        fingerprint: What it must be, where a manifest says so.
        content: Its content, where it is not read from the disk.
    """

    name: str
    path: Path
    size_bytes: int
    modified_ns: int = 0
    fingerprint: Fingerprint | None = None
    content: bytes | None = field(default=None, repr=False)

    @classmethod
    def from_path(cls, name: str, path: Path, fingerprint: Fingerprint | None = None) -> Self:
        """Describe a file on the disk.

        Raises:
            MissingFileError: It is gone, or a link that leads nowhere.
            SourceError: It cannot be looked at.
        """
        try:
            status = path.stat()
        except FileNotFoundError:
            raise MissingFileError(path, "no such file, or a link that leads nowhere", _CHANGED_HINT) from None
        except OSError as error:
            raise SourceError(path, f"cannot be read: {error.strerror or error}") from error
        return cls(name, path, status.st_size, status.st_mtime_ns, fingerprint)

    @classmethod
    def from_content(cls, name: str, content: bytes) -> Self:
        """Describe a file that exists in memory only."""
        return cls(name, Path(name), len(content), content=content)

    def read(self, buffer: memoryview | None = None) -> Iterator[Buffer]:
        """Read it in pieces.

        Args:
            buffer: Where to put it, in one piece; None for pieces of 1 MiB, of which only the last one is valid: they
                cannot be collected.

        Raises:
            SourceError: It cannot be read, or has changed since it was found.
        """
        if self.content is not None:
            if buffer is not None:
                buffer[:] = self.content
            yield self.content
            return
        room = memoryview(bytearray(min(self.size_bytes, _READ_BYTES))) if buffer is None else buffer
        try:
            with self.path.open("rb", buffering=0) as file:
                self._check(os.fstat(file.fileno()))
                left = self.size_bytes
                while left:
                    start = 0 if buffer is None else self.size_bytes - left
                    count = file.readinto(room[start : start + left])
                    if not count:
                        break
                    left -= count
                    yield room[start : start + count]
                self._check(os.fstat(file.fileno()))
        except OSError as error:
            raise SourceError(self.path, f"cannot be read: {error.strerror or error}") from error
        if left:
            raise SourceError(self.path, f"gave {self.size_bytes - left:,} of {self.size_bytes:,} bytes")

    def read_whole(self) -> bytes:
        """Read it at once.

        Raises:
            SourceError: It cannot be read, or has changed since it was found.
        """
        content = bytearray(self.size_bytes)
        with memoryview(content) as room:
            for _ in self.read(room):
                pass
        return bytes(content)

    def compute_fingerprint(self) -> Fingerprint:
        """Read it, and tell what it is.

        Raises:
            SourceError: It cannot be read, or has changed since it was found.
        """
        crc32 = 0
        for piece in self.read():
            crc32 = deflate.crc32(piece, crc32)
        return Fingerprint(self.size_bytes, crc32)

    def check_digest(self, found: Fingerprint) -> None:
        """Check that what was read is what the manifest says.

        Raises:
            SourceError: It is something else.
        """
        if self.fingerprint is not None and found != self.fingerprint:
            raise SourceError(
                self.path,
                f"is not what the manifest says: {found.size_bytes:,} bytes with CRC-32 {found.crc32:08x}, expected "
                f"{self.fingerprint.size_bytes:,} with {self.fingerprint.crc32:08x}",
                "it is damaged or was replaced: process the scene again, then pack again",
            )

    def _check(self, status: os.stat_result) -> None:
        if status.st_size != self.size_bytes:
            how = f"{self.size_bytes:,} bytes at first, then {status.st_size:,}"
        elif status.st_mtime_ns != self.modified_ns:
            how = "it was written to, and has the same size"
        else:
            return
        raise SourceError(self.path, f"changed while it was packed: {how}", _CHANGED_HINT)


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """Files that are compressed together: those of one scene, or those that belong to none.

    Attributes:
        scene_id: The scene; empty for the files that belong to none.
        split: Its split; empty where nobody knows.
        vertex_count: V; 0 where it is not known.
        files: Its files, sorted by name.
    """

    scene_id: str
    split: str
    vertex_count: int
    files: tuple[SourceFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of its tar bytes."""
        return sum(member_bytes(file.name, file.size_bytes) for file in self.files)


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into an archive.

    Attributes:
        head: What holds for all of it.
        files: The files that belong to no scene, sorted by name.
        scenes: The scenes, sorted by id.
        failures: Why scenes are missing that were asked for, by id.
    """

    head: Head
    files: tuple[SourceFile, ...]
    scenes: tuple[SourceGroup | ArchivedGroup, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)
