"""An archive as a stream of bytes: made in order, and read in order, for example by pipes.

FileGroup -- in threads --> frame -- in order --> the archive
                                  -- StoredGroup -----> the index, the last frame but one
                                  -- SeekRow ---> the seek table, after the last frame
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
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
    check_scene_ids,
    parse_index,
)
from scannet_prep.archive.seekable import (
    BLOCK_BYTES,
    END_OF_TAR,
    MAX_WINDOW_BYTES,
    SeekRow,
    compress,
    encode_members,
    encode_seek_table,
    padding_bytes,
    parse_header,
)
from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.json import encode_json
from scannet_prep.errors import ArchiveError, ContentError, FileError

Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20
_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class FileGroup:
    """The files of a scene, or those of no scene, to be packed into one frame.

    Attributes:
        owner: The scene and its split.
        vertex_count: V; 0 if unknown.
        paths: The files by their names in the archive, sorted.
        size_bytes: Their size in all when they were found.
        fingerprint: That of the only file, if a manifest records it.
    """

    owner: Owner
    vertex_count: int
    paths: Mapping[str, Path]
    size_bytes: int
    fingerprint: Fingerprint | None = None

    def read(self) -> dict[str, bytes]:
        """Read the files.

        Raises:
            FileError: A file cannot be read, or is not the one that the manifest records.
        """
        files = {name: read_file(path, MAX_FRAME_BYTES) for name, path in self.paths.items()}
        if self.fingerprint not in (None, Fingerprint.from_bytes(*files.values())):
            (path,) = self.paths.values()
            problem = "is not the file that the manifest records"
            raise FileError(path, problem, "process the scene again, then pack again")
        return files


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
        sizes = (row.stored_bytes, row.size_bytes)
        stored.append(StoredGroup(scene_id, split, group.vertex_count, offset, *sizes))
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


def check_groups(groups: Sequence[FileGroup]) -> None:
    """Check that groups can be packed.

    Raises:
        ContentError: A name does not belong in an archive, or the scenes are not sorted.
    """
    for group in groups:
        group.owner.check(list(group.paths))
    check_scene_ids([group.owner.scene_id for group in groups])


def _make_frame(level: int, group: FileGroup) -> tuple[bytes, SeekRow]:
    content = encode_members(group.read())
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


def read_in_order(file: IO[bytes], name: str) -> Iterator[tuple[Owner, dict[str, bytes]]]:
    """Read the files of no scene, then those of each scene, without using the index.

    The checksum of a frame follows its content. So the files of a scene are yielded only when the
    next frame has begun.

    Args:
        file: The archive.
        name: Its name, for messages.

    Raises:
        ArchiveError: It is truncated or damaged. Whatever was yielded before is intact.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(file, _READ_BYTES, read_across_frames=True) as reader:
            yield from _read_groups(reader)
    except (zstandard.ZstdError, ContentError) as error:
        problem = f"is damaged or truncated, or scannet-prep did not make it: {error}"
        raise ArchiveError(name, problem, HINT_DAMAGED) from None


def _read_groups(reader: IO[bytes]) -> Iterator[tuple[Owner, dict[str, bytes]]]:
    scene_ids = []
    folded_ids = set()
    files = {}
    for owner, members in groupby(_read_members(reader), key=itemgetter(0)):
        # This reads on until the next group begins, or until the end.
        files = {name: data for _, name, data in members}
        if owner.kind == "index":
            break
        owner.check(list(files))
        scene_ids.append(owner.scene_id)
        folded_ids.add(owner.scene_id.casefold())
        if len(folded_ids) < len(scene_ids):
            raise ContentError(f"it has two frames of {owner.scene_id or 'no scene'}")
        yield owner, files
    index = parse_index(files)
    if [group.scene_id for group in index.groups] != scene_ids:
        raise ContentError("its index lists other scenes than it holds")


def _read_members(reader: IO[bytes]) -> Iterator[tuple[Owner, str, bytes]]:
    """Read files up to the end of the tar stream, which must be that of the archive, too."""
    owner = None
    header = _take(reader, BLOCK_BYTES)
    while any(header):
        name, size_bytes = parse_header(header)
        previous = owner
        owner = Owner.from_name(name)
        if owner != previous:
            room_bytes = MAX_FRAME_BYTES
        room_bytes -= size_bytes
        if room_bytes < 0:
            raise ContentError(f"{name!a} has {size_bytes:,} bytes, too many for a frame")
        yield owner, name, _take(reader, size_bytes)
        _take(reader, padding_bytes(size_bytes))
        header = _take(reader, BLOCK_BYTES)
    # The second half of the end. Only the seek table, which is no content, may follow it.
    if any(_take(reader, BLOCK_BYTES)) or reader.read(1):
        raise ContentError("something follows the end of its tar stream")


def _take(reader: IO[bytes], size: int) -> bytes:
    data = reader.read(size)
    if len(data) < size:
        raise ContentError("it ends too early")
    return data
