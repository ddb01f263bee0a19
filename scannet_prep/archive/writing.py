"""The bytes of an archive, made in order from the files of a folder.

FileGroup -- PackedScene -----------------------> the index, the first frame
          -- in threads --> frame -- in order --> the archive
                                  -- SeekRow ---> the seek table, after the last frame
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import zstandard

from scannet_prep.archive.format import INDEX_NAME, Index, PackedScene, TreeKind, find_owner
from scannet_prep.archive.frames import (
    BLOCK_BYTES,
    END_OF_TAR,
    MAX_FRAME_BYTES,
    encode_header,
    encode_seek_table,
    find_row,
)
from scannet_prep.base.files import Buffer, Fingerprint, open_file, read_file
from scannet_prep.base.json import encode_json
from scannet_prep.errors import FileError

Result = TypeVar("Result")

_HINT_PLACE = "move them to scans/SCENE/ and scans_test/SCENE/, then pack again"
_HINT_CHANGED = "run the command again that made it, then pack again"
_MAX_HELD_BYTES = 160 << 20
# zstd's own level 0 is another name of its default level.
_STORING_LEVEL = -(1 << 17)
# Images that are compressed already.
_IMAGE_ENDINGS = (".jpg", ".png")


@dataclass(frozen=True)
class FileGroup:
    """The files of a scene, or those of no scene, to be packed into one frame.

    Attributes:
        scene_id: The scene; empty for the files of no scene.
        split: Its split; empty if it has none.
        paths: The files by their names in the archive, sorted.
        fingerprint: That of the only file, as it is recorded; None if there is no record.
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
        total_bytes = 0
        for path in self.paths.values():
            if self.fingerprint is None:
                with open_file(path, MAX_FRAME_BYTES) as file:
                    size_bytes = os.fstat(file.fileno()).st_size
            else:
                size_bytes = self.fingerprint.size_bytes
            total_bytes += BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES
            if total_bytes > MAX_FRAME_BYTES:
                problem = f"and the files before it have {total_bytes:,} bytes"
                raise FileError(path, f"{problem}, expected at most {MAX_FRAME_BYTES:,} in a frame")
        return total_bytes

    def encode(self) -> bytes:
        """Read the files into tar bytes.

        Raises:
            FileError: A file cannot be read, or is not the one that was recorded.
        """
        files = {name: read_file(path, MAX_FRAME_BYTES) for name, path in self.paths.items()}
        if self.fingerprint not in (None, Fingerprint.from_bytes(*files.values())):
            (path,) = self.paths.values()
            raise FileError(path, "is not the file that was recorded", _HINT_CHANGED)
        return encode_members(files)


def encode_members(files: Mapping[str, Buffer]) -> bytes:
    """Encode files as tar bytes; equal files give equal bytes."""
    pieces: list[Buffer] = []
    for name, data in files.items():
        padding = bytes(-len(data) % BLOCK_BYTES)
        pieces += [encode_header(name, len(data)), data, padding]
    return b"".join(pieces)


def compress(content: Buffer, level: int) -> bytes:
    """Make a frame, always the same for the same content, level and version of zstd.

    Args:
        content: Its content.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
    """
    compressor = zstandard.ZstdCompressor(
        level=level or _STORING_LEVEL,
        write_checksum=True,
        write_content_size=True,
    )
    return compressor.compress(content)


def make_index(kind: TreeKind, groups: Iterable[FileGroup], options: str) -> Index:
    """Make the index of an archive.

    Args:
        kind: The kind of the tree.
        groups: The files of each scene, sorted by id; several groups for several frames.
        options: The options with which the scenes were made.

    Raises:
        FileError: A file does not exist, or lies where no file of its scene belongs.
    """
    scenes = []
    for (scene_id, split), same in groupby(groups, key=attrgetter("scene_id", "split")):
        sizes = []
        for group in same:
            for name, path in group.paths.items():
                if find_owner(kind, name) != scene_id:
                    raise FileError(path, "lies outside of scans/ and scans_test/", _HINT_PLACE)
            sizes.append(group.size_bytes)
        scenes.append(PackedScene(scene_id, split, sum(sizes), len(sizes)))
    return Index(kind, tuple(scenes), options)


def encode_archive(
    index: Index,
    groups: Iterable[FileGroup],
    *,
    level: int,
    jobs: int,
    advance: Callable[[int], object],
) -> Iterator[bytes]:
    """Make the bytes of an archive, which depend on its files and the level only.

    Args:
        index: Its index.
        groups: The files of no scene, then those of which the index was made.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
        jobs: Number of threads.
        advance: Called with the size of each group that is finished.

    Raises:
        FileError: A file cannot be read, or is not the one that was recorded.
    """
    first = compress(encode_members({INDEX_NAME: encode_json(index)}), level)
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
    if all(name.endswith(_IMAGE_ENDINGS) for name in group.paths):
        level = 0
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
