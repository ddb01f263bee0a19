"""The bytes of an archive, made in order.

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
from typing import Any, TypeVar

from scannet_prep.archive.format import INDEX_NAME, Index, PackedScene, TreeKind
from scannet_prep.archive.seekable import (
    END_OF_TAR,
    MAX_FRAME_BYTES,
    compress,
    encode_members,
    encode_seek_table,
    find_row,
    member_bytes,
)
from scannet_prep.base.files import Fingerprint, open_file, read_file
from scannet_prep.base.json import encode_json
from scannet_prep.errors import FileError

Result = TypeVar("Result")

_MAX_HELD_BYTES = 160 << 20


@dataclass(frozen=True)
class FileGroup:
    """The files of a scene, or those of no scene, to be packed into one frame.

    Attributes:
        scene_id: The scene; empty for the files of no scene.
        split: Its split; empty if it has none.
        paths: The files by their names in the archive, sorted.
        fingerprint: That of the only file of a processed scene; None if none is known.
    """

    scene_id: str
    split: str
    paths: Mapping[str, Path]
    fingerprint: Fingerprint | None = None

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
        if self.fingerprint not in (None, Fingerprint.from_bytes(*files.values())):
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
    scenes = [PackedScene(group.scene_id, group.split, group.size_bytes) for group in groups[1:]]
    index = encode_json(Index(kind, tuple(scenes)))
    first = compress(encode_members({INDEX_NAME: index}), level)
    rows = [find_row(first)]
    yield first
    for group, frame in map_in_order(partial(_make_frame, level), groups, jobs):
        rows.append(find_row(frame))
        yield frame
        advance(group.size_bytes)
    last = compress(END_OF_TAR, level)
    rows.append(find_row(last))
    yield last
    yield encode_seek_table(rows)


def _make_frame(level: int, group: FileGroup) -> bytes:
    return compress(group.encode(), level)


def map_in_order(
    function: Callable[[Any], Result], tasks: Iterable[Any], jobs: int
) -> Iterator[tuple[Any, Result]]:
    """Call a function for each task in threads; yield tasks and results in order.

    Tasks are begun while those in memory have less than 160 MiB.

    Args:
        function: The function.
        tasks: Objects with the attribute `size_bytes`.
        jobs: Number of threads.
    """
    pending = deque[Any]()
    held_bytes = 0
    with ThreadPoolExecutor(jobs) as pool:
        for task in tasks:
            pending.append((task, pool.submit(function, task)))
            held_bytes += task.size_bytes
            while pending and held_bytes > _MAX_HELD_BYTES:
                done, future = pending.popleft()
                yield done, future.result()
                held_bytes -= done.size_bytes
        for done, future in pending:
            yield done, future.result()
