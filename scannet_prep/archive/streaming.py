"""An archive as a stream of bytes: made in order, and read in order, for example by pipes.

FileGroup -- PackedScene -----------------------> the index, the first frame
          -- in threads --> frame -- in order --> the archive
                                  -- SeekRow ---> the seek table, after the last frame
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, TypeVar

import zstandard

from scannet_prep.archive.format import (
    INDEX_NAME,
    Index,
    Owner,
    PackedScene,
    TreeKind,
    damage_error,
    parse_frame,
    parse_index,
)
from scannet_prep.archive.seekable import (
    CHECKSUM_BYTES,
    END_OF_TAR,
    MAX_FRAME_BYTES,
    SKIPPABLE_MAGIC,
    SeekRow,
    compress,
    decompress,
    encode_members,
    encode_seek_table,
    member_bytes,
)
from scannet_prep.base.files import Fingerprint, open_file, read_file
from scannet_prep.base.json import encode_json
from scannet_prep.errors import ContentError, FileError
from scannet_prep.processed.manifest import SceneEntry

Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20
# Content that does not compress grows by less than a hundredth.
_MAX_STORED_BYTES = MAX_FRAME_BYTES + (MAX_FRAME_BYTES >> 6)
# Enough bytes of a frame to know the size of its header.
_START_BYTES = 5
_BLOCK_HEADER_BYTES = 3
_RUN_LENGTH_BLOCK = 1


@dataclass(frozen=True)
class FileGroup:
    """The files of a scene, or those of no scene, to be packed into one frame.

    Attributes:
        owner: The scene and its split.
        paths: The files by their names in the archive, sorted.
        entry: The entry of a processed scene in the manifest of its folder.
    """

    owner: Owner
    paths: Mapping[str, Path]
    entry: SceneEntry | None = None

    @cached_property
    def size_bytes(self) -> int:
        """Size of the files as tar bytes.

        Raises:
            FileError: A file does not exist, or they are too large for one frame.
        """
        size_bytes = 0
        for path in self.paths.values():
            with open_file(path, MAX_FRAME_BYTES) as file:
                size_bytes += member_bytes(os.fstat(file.fileno()).st_size)
            if size_bytes > MAX_FRAME_BYTES:
                problem = f"and the files before it have {size_bytes:,} bytes"
                raise FileError(path, f"{problem}, expected at most {MAX_FRAME_BYTES:,} in a frame")
        return size_bytes

    def encode(self) -> bytes:
        """Read the files into tar bytes.

        Raises:
            FileError: A file cannot be read, or is not the one that the manifest records.
        """
        files = {name: read_file(path, MAX_FRAME_BYTES) for name, path in self.paths.items()}
        fingerprint = Fingerprint.from_bytes(*files.values())
        if self.entry is not None and self.entry.fingerprint != fingerprint:
            (path,) = self.paths.values()
            problem = "is not the file that the manifest records"
            raise FileError(path, problem, "process the scene again, then pack again")
        return encode_members(files)


def encode_archive(
    kind: TreeKind,
    groups: Sequence[FileGroup],
    *,
    level: int,
    jobs: int,
    advance: Callable[[int], object],
) -> Iterator[bytes]:
    """Make the bytes of an archive, which depend on its files and the level only.

    Args:
        kind: The kind of the tree.
        groups: The files of no scene, then those of each scene, sorted by id.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
        jobs: Number of threads.
        advance: Called with the size of each group that is finished.

    Raises:
        FileError: A file cannot be read, or is not the one that the manifest records.
    """
    scenes = []
    for group in groups[1:]:
        _, scene_id, split = group.owner
        scenes.append(PackedScene(scene_id, split, group.size_bytes))
    index = encode_json(Index(kind, tuple(scenes)))
    first = compress(encode_members({INDEX_NAME: index}), level)
    rows = [SeekRow.from_frame(first)]
    yield first
    for group, frame in map_in_order(partial(_make_frame, level), groups, jobs):
        rows.append(SeekRow.from_frame(frame))
        yield frame
        advance(group.size_bytes)
    last = compress(END_OF_TAR, level)
    rows.append(SeekRow.from_frame(last))
    yield last
    yield encode_seek_table(rows)


def _make_frame(level: int, group: FileGroup) -> bytes:
    return compress(group.encode(), level)


def map_in_order(
    function: Callable[[Any], Result], tasks: Iterable[Any], jobs: int
) -> Iterator[tuple[Any, Result]]:
    """Call a function for each task in threads; yield tasks and results in order.

    At most twice as many tasks as threads are in work, and of large ones fewer.

    Args:
        function: The function.
        tasks: Objects with the attribute `size_bytes`.
        jobs: Number of threads.
    """
    pending = deque[Any]()
    held_bytes = 0
    pool = ThreadPoolExecutor(jobs)
    try:
        for task in tasks:
            pending.append((task, pool.submit(function, task)))
            held_bytes += task.size_bytes
            while pending and (len(pending) > 2 * jobs or held_bytes > _MAX_HELD_BYTES):
                done, future = pending.popleft()
                yield done, future.result()
                held_bytes -= done.size_bytes
        for done, future in pending:
            yield done, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


class PipedArchive:
    """An archive that is read once and in order, as from a pipe. Its index has been read.

    Args:
        file: The archive.
        name: Its name, for messages.

    Attributes:
        name: As given.
        index: Its index.

    Raises:
        ArchiveError: The index is damaged, or it is something else.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        self._frames = _iter_frames(file)
        try:
            self.index = parse_index(decompress(next(self._frames)))
        except (zstandard.ZstdError, ContentError) as error:
            raise damage_error(name, "", error) from None
        self._owners = iter(self.index.list_owners()[1:])

    def read(self, scene_id: str = "") -> dict[str, memoryview]:
        """Read files; those of scenes before them in the index cannot be read any more.

        Args:
            scene_id: The scene; empty for the files of no scene, which come first.

        Returns:
            The files by name.

        Raises:
            ArchiveError: They are damaged, or come after damage that hides where frames end.
        """
        try:
            for owner, frame in zip(self._owners, self._frames, strict=False):
                if owner.scene_id == scene_id:
                    return parse_frame(decompress(frame), owner)
        except (zstandard.ZstdError, ContentError) as error:
            raise damage_error(self.name, scene_id, error) from None
        raise damage_error(self.name, scene_id, ContentError("it comes after other damage"))


def _iter_frames(file: IO[bytes]) -> Iterator[bytes]:
    """Read frames, up to the seek table. The headers of its blocks show where a frame ends."""
    start = _take(file, _START_BYTES)
    while not start.startswith(SKIPPABLE_MAGIC):
        frame = bytearray(start)
        frame += _take(file, zstandard.frame_header_size(start) - len(start))
        is_last = False
        while not is_last and len(frame) < _MAX_STORED_BYTES:
            header = _take(file, _BLOCK_HEADER_BYTES)
            # From the lowest bit: last block (1 bit), type (2 bits), size (21 bits).
            bits = int.from_bytes(header, "little")
            is_last = bool(bits & 1)
            # A run-length block stores one byte, whatever its size.
            stored_bytes = 1 if bits >> 1 & 3 == _RUN_LENGTH_BLOCK else bits >> 3
            frame += header + _take(file, stored_bytes)
        frame += _take(file, CHECKSUM_BYTES)
        yield bytes(frame)
        start = _take(file, _START_BYTES)


def _take(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ContentError("it ends too early")
    return data
