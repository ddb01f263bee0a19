"""Makes the bytes of an archive: the same ones for the same contents, whatever the number of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from scannet_prep.archive import frames, layout
from scannet_prep.archive.layout import Head, Index, StoredGroup
from scannet_prep.base.errors import FileError
from scannet_prep.base.files import Fingerprint, open_file
from scannet_prep.base.progress import Progress
from scannet_prep.processed.npz import again_hint

# In the index and the seek table, and of the frame's own framing; more than there is.
_EXTRA_BYTES_PER_FILE = 400


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
    def from_path(
        cls, path: Path, root: Path, fingerprint: Fingerprint | None = None
    ) -> SourceFile:
        """Describe a file on the disk, below a root; a `FileError` where it is gone, or a link that leads nowhere."""
        try:
            status = path.stat()
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            raise FileError(
                path, problem, "process or download the scene again, or remove it; then pack again"
            ) from error
        return cls(
            path.relative_to(root).as_posix(), path, status.st_size, status.st_mtime_ns, fingerprint
        )

    @classmethod
    def from_content(cls, name: str, content: bytes) -> SourceFile:
        """Describe a file that exists in memory only."""
        return cls(name, Path(name), len(content), content=content)

    def read_into(self, target: memoryview) -> None:
        """Read it into memory of its size; a `FileError` where it has changed, or is not what the manifest says."""
        if self.content is not None:
            target[:] = self.content
            return
        with open_file(self.path, sys.maxsize) as file:
            done = os.readv(file.fileno(), [target])
            status = os.fstat(file.fileno())
        if (done, status.st_size, status.st_mtime_ns) != (
            len(target),
            self.size_bytes,
            self.modified_ns,
        ):
            raise FileError(
                self.path,
                "changed while it was packed",
                "pack again when nothing writes there any more",
            )
        if (
            self.fingerprint is not None
            and (found := Fingerprint.from_bytes(target)) != self.fingerprint
        ):
            problem = f"is not what the manifest says: {found.size_bytes:,} bytes with CRC-32 {found.crc32}"
            raise FileError(self.path, problem, f"{again_hint(self.path)}; then pack again")


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
        return sum(layout.member_bytes(file.size_bytes) for file in self.files)


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into an archive.

    Attributes:
        head: What holds for all of it.
        groups: The files that belong to no scene, those of the program first; then the scenes, sorted by id.
        failures: Why scenes are missing that were asked for, by id.
        left_out: Files and folders that do not go in, because a tree of that kind has no such names; sorted.
    """

    head: Head
    groups: tuple[SourceGroup, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)
    left_out: tuple[str, ...] = ()

    @property
    def scenes(self) -> tuple[SourceGroup, ...]:
        """The scenes, sorted by id."""
        return self.groups[1:]

    @property
    def size_bytes(self) -> int:
        """Size of the tar bytes of all groups."""
        return sum(group.size_bytes for group in self.groups)

    def split(self, shard_bytes: int) -> list[Contents]:
        """Divide the scenes into archives of at most a size (or of one larger scene), whatever they compress to.

        Each gets a run of the scenes, and all files that belong to no scene, so that it is whole by itself.
        """
        start_bytes = size_bytes = 2 * self.groups[0].size_bytes + _EXTRA_BYTES_PER_FILE * len(
            self.failures
        )
        shards: list[list[SourceGroup]] = [[]]
        for scene in self.scenes:
            scene_bytes = scene.size_bytes + _EXTRA_BYTES_PER_FILE * (1 + len(scene.files))
            if shards[-1] and size_bytes + scene_bytes > shard_bytes:
                shards.append([])
                size_bytes = start_bytes
            shards[-1].append(scene)
            size_bytes += scene_bytes
        return [replace(self, groups=(self.groups[0], *shard)) for shard in shards]


def iter_archive(
    contents: Contents, *, jobs: int = 1, progress: Progress | None = None
) -> Iterator[bytes]:
    """Make an archive, its bytes in order, by so many threads; `progress` is told of tar bytes.

    Raises:
        FileError: A file cannot be read, has changed since it was found, or is not what a manifest says.
    """
    progress = progress or Progress()
    groups, rows, offset = list[StoredGroup](), list[bytes](), 0
    sources = ((2 * group.size_bytes, group) for group in contents.groups)
    for group, stored in frames.map_in_threads(partial(_pack, contents.head), sources, jobs=jobs):
        groups.append(replace(group, offset=offset))
        rows.append(frames.seek_row(stored))
        offset += len(stored)
        yield stored
        progress.advance(group.size_bytes)
    text = layout.encode_index(Index(contents.head, tuple(groups), contents.failures))
    index = layout.encode_header(layout.INDEX_NAME, len(text)) + text
    for content in (index.ljust(layout.member_bytes(len(text)), b"\0"), layout.END_OF_ARCHIVE):
        stored = frames.compress(content, contents.head.level)
        rows.append(frames.seek_row(stored))
        yield stored
    yield frames.encode_seek_table(rows)


def _pack(head: Head, source: SourceGroup) -> tuple[StoredGroup, bytes]:
    """Make the frame of a group, which is said to begin at 0."""
    layout.check_names(head.kind, source.scene_id, [file.name for file in source.files])
    content = memoryview(bytearray(source.size_bytes))
    position = 0
    for file in source.files:
        start = position + layout.BLOCK_BYTES
        content[position:start] = layout.encode_header(file.name, file.size_bytes)
        file.read_into(content[start : start + file.size_bytes])
        position += layout.member_bytes(file.size_bytes)
    stored, members = frames.compress(content, head.level), layout.read_members(content)
    sizes = len(stored), len(content)
    return StoredGroup(
        source.scene_id, source.split, source.vertex_count, 0, *sizes, members
    ), stored
