"""An archive as a stream of bytes: made in order, and read in order, for example by pipes.

FileGroup -- in threads --> frame -- in order -----> the archive
                                  -- StoredGroup --> the index, the last frame but one
                                  -- SeekRow ------> the seek table, after the last frame
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, TypeVar

import zstandard

from scannet_prep.archive.format import (
    HINT_DAMAGED,
    INDEX_NAME,
    MAX_FRAME_BYTES,
    Index,
    Owner,
    StoredGroup,
    parse_index,
)
from scannet_prep.archive.seekable import (
    CHECKSUM_BYTES,
    END_OF_TAR,
    SKIPPABLE_MAGIC,
    SeekRow,
    compress,
    decompress,
    encode_members,
    encode_seek_table,
    iter_members,
    member_bytes,
)
from scannet_prep.base.files import Fingerprint, open_file, read_file
from scannet_prep.base.json import encode_json
from scannet_prep.errors import ArchiveError, ContentError, FileError
from scannet_prep.processed.manifest import SceneEntry

Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20
# Enough bytes of a frame to know the size of its header.
_START_BYTES = 5
_BLOCK_HEADER_BYTES = 3
_RUN_LENGTH_BLOCK = 1
_MARGIN_BYTES = 1 << 20


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
    index: Index,
    groups: Sequence[FileGroup],
    *,
    level: int,
    jobs: int,
    advance: Callable[[int], object],
) -> Iterator[bytes]:
    """Make the bytes of an archive, which depend on its files and the level only.

    Args:
        index: Its index, still without groups.
        groups: The files of no scene, then those of each scene, sorted by id.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
        jobs: Number of threads.
        advance: Called with the size of each group that is finished.

    Raises:
        FileError: A file cannot be read, or is not the one that the manifest records.
    """
    stored = []
    rows = []
    offset = 0
    for group, (frame, row) in map_in_order(partial(_make_frame, level), groups, jobs):
        _, scene_id, split = group.owner
        vertex_count = group.entry.vertex_count if group.entry else 0
        sizes = (row.stored_bytes, row.size_bytes)
        stored.append(StoredGroup(scene_id, split, vertex_count, offset, *sizes))
        rows.append(row)
        offset += row.stored_bytes
        yield frame
        advance(group.size_bytes)
    index = replace(index, groups=tuple(stored))
    for content in (encode_members({INDEX_NAME: encode_json(index)}), END_OF_TAR):
        frame = compress(content, level)
        rows.append(SeekRow.from_frame(frame, len(content)))
        yield frame
    yield encode_seek_table(rows)


def _make_frame(level: int, group: FileGroup) -> tuple[bytes, SeekRow]:
    content = group.encode()
    frame = compress(content, level)
    return frame, SeekRow.from_frame(frame, len(content))


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


def read_in_order(file: IO[bytes], name: str) -> Iterator[tuple[Owner, dict[str, memoryview]]]:
    """Read the files of no scene, then those of each scene, without the help of the index.

    A damaged frame is skipped if it is not the first one, and shows where it ends.

    Args:
        file: The archive.
        name: Its name, for messages.

    Raises:
        ArchiveError: It is damaged or truncated. Whatever was yielded before is intact.
    """
    try:
        yield from _read_groups(file)
    except (zstandard.ZstdError, ContentError) as error:
        problem = f"is damaged or truncated, or scannet-prep did not make it: {error}"
        raise ArchiveError(name, problem, HINT_DAMAGED) from None


def _read_groups(file: IO[bytes]) -> Iterator[tuple[Owner, dict[str, memoryview]]]:
    owners: list[Owner | None] = []
    listed: list[Owner] = []
    # By the number of the frame, which has no owner then.
    problems: dict[int, str] = {}
    for frame, row in _read_frames(file):
        try:
            content = decompress(frame, row)
            if listed and content == END_OF_TAR:
                continue
            files = dict(iter_members(content))
            owner = _find_owner(list(files), owners)
        except ContentError as error:
            if not owners:
                raise
            problems[len(owners)] = error.message
            owners.append(None)
            continue
        if owner.kind == "index":
            index = parse_index(files)
            listed = [Owner.of_group(index.kind, group) for group in index.groups]
            continue
        owners.append(owner)
        yield owner, files

    names = dict(enumerate(owner.scene_id for owner in listed))
    damage = []
    for number, text in problems.items():
        name = names.get(number, "a frame")
        damage.append(f"{name}: {text}")
    # A damaged frame may be that of any scene.
    found = [owner or other for owner, other in zip(owners, listed, strict=False)]
    if not listed or found != listed or len(owners) > len(listed):
        damage.append("its index is damaged, or lists other scenes")
    if damage:
        raise ContentError("; ".join(damage))


def _find_owner(names: list[str], others: list[Owner | None]) -> Owner:
    """Find the owner of the files of a frame.

    Raises:
        ContentError: They have no owner or several, or the owner has another frame already.
    """
    owner = Owner.from_name(names[0]) if names else Owner()
    if owner is None:
        raise ContentError(f"{names[0][:200]!a} is not the name of a file of a tree")
    owner.check(names)
    if owner in others:
        raise ContentError(f"{owner.scene_id} has another frame already")
    return owner


def _read_frames(file: IO[bytes]) -> Iterator[tuple[bytes, SeekRow]]:
    """Read the frames and their rows, up to the seek table, which must have the same rows."""
    rows: list[SeekRow] = []
    start = _take(file, _START_BYTES)
    while not start.startswith(SKIPPABLE_MAGIC):
        frame = bytearray(start + _take(file, zstandard.frame_header_size(start) - len(start)))
        size_bytes = zstandard.frame_content_size(frame)
        if not 0 <= size_bytes <= MAX_FRAME_BYTES:
            raise ContentError(f"the header of a frame declares {size_bytes:,} bytes")
        # The headers of its blocks show where the frame ends.
        is_last = False
        while not is_last:
            header = _take(file, _BLOCK_HEADER_BYTES)
            # From the lowest bit: last block (1 bit), type (2 bits), size (21 bits).
            bits = int.from_bytes(header, "little")
            is_last = bool(bits & 1)
            # A run-length block stores one byte, whatever its size.
            stored_bytes = 1 if bits >> 1 & 3 == _RUN_LENGTH_BLOCK else bits >> 3
            frame += header + _take(file, stored_bytes)
            # Content that does not compress grows by less than a hundredth.
            if len(frame) > _MARGIN_BYTES + size_bytes * 1.01:
                raise ContentError("a frame is larger than its header declares")
        frame += _take(file, CHECKSUM_BYTES)
        rows.append(SeekRow.from_frame(bytes(frame), size_bytes))
        yield bytes(frame), rows[-1]
        start = _take(file, _START_BYTES)
    if start + file.read() != encode_seek_table(rows):
        raise ContentError("its seek table is damaged, or something follows it")


def _take(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ContentError("it ends too early")
    return data
