"""Makes the bytes of an archive: the same ones for the same contents, whatever the number of threads."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.archive.frames import DEFAULT_LEVEL, MAX_CONTENT_BYTES, checksum_of, compress
from scannet_prep.archive.index import Group, Head, Index, Member, encode_head, encode_index
from scannet_prep.archive.layout import FORMAT_NAME, INDEX_NAME, check_names
from scannet_prep.archive.seek_table import FrameRow, encode_seek_table
from scannet_prep.archive.tar import BLOCK_BYTES, END_OF_ARCHIVE, encode_header, member_bytes, padding_bytes
from scannet_prep.archive.threads import map_in_threads
from scannet_prep.errors import MissingFileError, SourceError
from scannet_prep.files import Fingerprint, write_atomically
from scannet_prep.progress import NoProgress, Progress

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
    def from_path(cls, name: str, path: Path, fingerprint: Fingerprint | None = None) -> SourceFile:
        """Describe a file on the disk.

        Raises:
            MissingFileError: It is gone, or a link that leads nowhere.
            SourceError: It is not a file, or cannot be looked at.
        """
        try:
            status = path.stat()
        except FileNotFoundError:
            raise MissingFileError(path, "no such file, or a link that leads nowhere", _CHANGED_HINT) from None
        except OSError as error:
            raise SourceError(path, f"cannot be read: {error.strerror or error}") from error
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(path, "is not a file, but a folder, a pipe or a device", "remove it, then pack again")
        return cls(name, path, status.st_size, status.st_mtime_ns, fingerprint)

    @classmethod
    def from_content(cls, name: str, content: bytes) -> SourceFile:
        """Describe a file that exists in memory only."""
        return cls(name, Path(name), len(content), content=content)

    def read_into(self, target: memoryview) -> None:
        """Read it.

        Args:
            target: As large as the file.

        Raises:
            SourceError: It cannot be read, has changed since it was found, or is not what the manifest says.
        """
        if self.content is not None:
            target[:] = self.content
            return
        try:
            with open(self.path, "rb", opener=_open_unblocked) as file:
                done = file.readinto(target)
                status = os.fstat(file.fileno())
        except OSError as error:
            raise SourceError(self.path, f"cannot be read: {error.strerror or error}") from error
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.modified_ns):
            how = f"{self.size_bytes:,} bytes at first, then {status.st_size:,}"
            if status.st_size == self.size_bytes:
                how = "it was written to, and has the same size"
            raise SourceError(self.path, f"changed while it was packed: {how}", _CHANGED_HINT)
        if done < len(target):
            raise SourceError(self.path, f"gave {done:,} of {len(target):,} bytes", _CHANGED_HINT)
        if self.fingerprint is not None and (found := Fingerprint.from_bytes(target)) != self.fingerprint:
            raise SourceError(
                self.path,
                f"is not what the manifest says: {found.size_bytes:,} bytes with CRC-32 {found.crc32}, expected "
                f"{self.fingerprint.size_bytes:,} with {self.fingerprint.crc32}",
                "it is damaged or was replaced: process the scene again, then pack again",
            )


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """Files that are to become one frame: those of one scene, or those that belong to none.

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
        return sum(member_bytes(file.size_bytes) for file in self.files)

    def check_size(self) -> None:
        """Check that it is not too large for a frame.

        Raises:
            SourceError: It is; names its largest file.
        """
        if self.size_bytes > MAX_CONTENT_BYTES:
            largest = max(self.files, key=lambda file: file.size_bytes)
            raise SourceError(
                largest.path,
                f"has {largest.size_bytes:,} bytes; all files of one scene may have {MAX_CONTENT_BYTES:,} together",
                "move it elsewhere, then pack again",
            )


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
    scenes: tuple[SourceGroup, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def groups(self) -> tuple[SourceGroup, ...]:
        """All groups in order: first the description of the format and the files that belong to no scene."""
        head_file = SourceFile.from_content(FORMAT_NAME, encode_head(self.head))
        return (SourceGroup("", "", 0, (head_file, *self.files)), *self.scenes)

    @property
    def size_bytes(self) -> int:
        """Size of the tar bytes of all groups."""
        return sum(group.size_bytes for group in self.groups)


def iter_archive(
    contents: Contents, *, level: int = DEFAULT_LEVEL, jobs: int = 1, progress: Progress | None = None
) -> Iterator[bytes]:
    """Make an archive; its bytes in order.

    Args:
        contents: What goes in.
        level: Compression level of zstd, 1..22, or 0 to store.
        jobs: How many threads compress.
        progress: Told of tar bytes.

    Raises:
        SourceError: A file cannot be read, has changed since it was found, is not what a manifest says, or is too
            large.
    """
    progress = progress or NoProgress()
    groups, rows, offset = list[Group](), list[FrameRow](), 0
    for group, stored in map_in_threads(
        lambda group: _pack(group, contents.head, level),
        contents.groups,
        jobs=jobs,
        weigh=lambda item: 2 * item.size_bytes,
    ):
        groups.append(replace(group, offset=offset))
        rows.append(FrameRow(len(stored), group.size_bytes, checksum_of(stored)))
        offset += len(stored)
        yield stored
        progress.advance(group.size_bytes)
    text = encode_index(Index(contents.head, tuple(groups), contents.failures))
    index = encode_header(INDEX_NAME, len(text)) + text + bytes(padding_bytes(len(text)))
    for content in (index, END_OF_ARCHIVE):
        stored = compress(content, level)
        rows.append(FrameRow(len(stored), len(content), checksum_of(stored)))
        yield stored
    yield encode_seek_table(rows)


def write_archive(
    contents: Contents,
    path: Path,
    *,
    level: int = DEFAULT_LEVEL,
    jobs: int = 1,
    progress: Progress | None = None,
    observe: Callable[[bytes], object] = lambda _piece: None,
) -> None:
    """Write an archive, which gets its name when it is whole and on the disk.

    Args:
        contents: What goes in.
        path: The file; an existing one is replaced.
        level: Compression level of zstd, 1..22, or 0 to store.
        jobs: How many threads compress.
        progress: Told of tar bytes.
        observe: Called with the bytes of the archive, in order.

    Raises:
        SourceError: A file cannot be read, has changed since it was found, is not what a manifest says, or is too
            large.
        OutputError: The archive cannot be written. There is none then, or still the older one.
    """

    def observed() -> Iterator[bytes]:
        for piece in iter_archive(contents, level=level, jobs=jobs, progress=progress):
            observe(piece)
            yield piece

    write_atomically(path, observed(), is_durable=True)


def _pack(source: SourceGroup, head: Head, level: int) -> tuple[Group, bytes]:
    """Make the frame of a group, which is said to begin at 0."""
    source.check_size()
    check_names(head.kind, source.scene_id, [file.name for file in source.files])
    content, members, position = bytearray(source.size_bytes), list[Member](), 0
    with memoryview(content) as room:
        for file in source.files:
            start = position + BLOCK_BYTES
            end = start + file.size_bytes
            room[position:start] = encode_header(file.name, file.size_bytes)
            file.read_into(room[start:end])
            members.append(Member(file.name, start, file.size_bytes, hashlib.sha256(room[start:end]).hexdigest()))
            position = end + padding_bytes(file.size_bytes)
    stored = compress(content, level)
    group = Group(source.scene_id, source.split, source.vertex_count, 0, len(stored), len(content), tuple(members))
    return group, stored


def _open_unblocked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe that took its place, the size tells
