"""The contents of an archive before they are read: files by scene, on the disk or in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from scannet_prep.archive.layout import Head
from scannet_prep.archive.tar import place_files
from scannet_prep.base.files import Fingerprint, open_file
from scannet_prep.errors import FileError
from scannet_prep.processed.npz import DAMAGE_HINT

# An upper limit of the bytes that a file adds to the index, the seek table and the frame headers.
_EXTRA_BYTES_PER_FILE = 400


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to pack.

    Attributes:
        name: Its name in the archive, with `/`.
        path: Its path; only for messages if `content` is given.
        size_bytes: Its size when it was listed.
        modified_ns: Its modification time when it was listed.
        fingerprint: The fingerprint that the manifest records; None without a manifest.
        content: Its content, if it is not on the disk.
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
        """Describe a file on the disk.

        Args:
            path: The file.
            root: The folder that its name in the archive is relative to.
            fingerprint: The fingerprint that the manifest records.

        Raises:
            FileError: The file does not exist any more, or is a dangling link.
        """
        try:
            status = path.stat()
        except OSError as error:
            raise FileError(
                path,
                f"cannot be read: {error.strerror or error}",
                "process or download the scene again, or remove it; then pack again",
            ) from error
        name = path.relative_to(root).as_posix()
        return cls(name, path, status.st_size, status.st_mtime_ns, fingerprint)

    @classmethod
    def from_content(cls, name: str, content: bytes) -> SourceFile:
        """Describe a file that exists only in memory."""
        return cls(name, Path(name), len(content), content=content)

    def read_into(self, target: memoryview) -> None:
        """Fill a buffer of its size with its content.

        Raises:
            FileError: The file has changed since it was found, or differs from the manifest.
        """
        if self.content is not None:
            target[:] = self.content
            return
        # Do not limit the size here: one that differs from the buffer's is reported below.
        with open_file(self.path, max_bytes=sys.maxsize) as file:
            read_bytes = os.readv(file.fileno(), [target])
            status = os.fstat(file.fileno())
        is_complete = read_bytes == len(target)
        has_same_size = status.st_size == self.size_bytes
        has_same_time = status.st_mtime_ns == self.modified_ns
        if not (is_complete and has_same_size and has_same_time):
            problem = "changed while it was packed"
            raise FileError(self.path, problem, "pack again when nothing writes there any more")
        if self.fingerprint is not None:
            self._check_fingerprint(target, self.fingerprint)

    def _check_fingerprint(self, data: memoryview, expected: Fingerprint) -> None:
        actual = Fingerprint.from_bytes(data)
        if actual != expected:
            raise FileError(
                self.path,
                f"is not the file that the manifest records: it has {actual.size_bytes:,} bytes "
                f"with CRC-32 {actual.crc32}",
                DAMAGE_HINT,
            )


@dataclass(frozen=True)
class SourceGroup:
    """The files of one frame: the files of one scene, or all files that belong to no scene.

    Attributes:
        scene_id: The scene; empty for the files that belong to no scene.
        split: Its split; empty if unknown.
        vertex_count: V; 0 if unknown.
        files: Its files, sorted by name.
    """

    scene_id: str
    split: str
    vertex_count: int
    files: tuple[SourceFile, ...]

    @cached_property
    def size_bytes(self) -> int:
        """Size of the group as tar bytes."""
        _, size_bytes = place_files([file.size_bytes for file in self.files])
        return size_bytes


@dataclass(frozen=True)
class Contents:
    """The contents of an archive.

    Attributes:
        head: The facts that apply to the whole archive.
        groups: The files that belong to no scene, the program's own one first; then the scenes,
            sorted by id.
        failures: Why requested scenes are missing, by id.
        left_out: Files and folders that are not packed, because their names do not belong in a
            tree of that kind; sorted.
    """

    head: Head
    groups: tuple[SourceGroup, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)
    left_out: tuple[str, ...] = ()

    @property
    def scenes(self) -> tuple[SourceGroup, ...]:
        """The scenes, sorted by id."""
        return self.groups[1:]

    @cached_property
    def size_bytes(self) -> int:
        """Size of the tar bytes of all groups."""
        return sum(group.size_bytes for group in self.groups)

    def split(self, shard_bytes: int) -> list[Contents]:
        """Divide the scenes into shards of a maximum size, however well they compress.

        A shard is larger only if a single scene is. Each shard gets consecutive scenes and all
        files that belong to no scene, so that it is a complete archive.

        Args:
            shard_bytes: Maximum size of a shard.
        """
        # The first group counts twice, because the index repeats the head and the failures in it.
        others_bytes = 2 * self.groups[0].size_bytes + _EXTRA_BYTES_PER_FILE * len(self.failures)
        shards: list[list[SourceGroup]] = [[]]
        size_bytes = others_bytes
        for scene in self.scenes:
            scene_bytes = scene.size_bytes + _EXTRA_BYTES_PER_FILE * (1 + len(scene.files))
            if shards[-1] and size_bytes + scene_bytes > shard_bytes:
                shards.append([])
                size_bytes = others_bytes
            shards[-1].append(scene)
            size_bytes += scene_bytes
        return [replace(self, groups=(self.groups[0], *shard)) for shard in shards]
