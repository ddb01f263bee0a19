"""The bytes of an archive, made in order from the files of a folder.

Index, FileGroup of no scene -----------------------> the first frame
FileGroup of a scene -- in threads --> frame -- in order --> the archive
                                             -- SeekRow ---> the seek table, after the last frame
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import zstandard

from scannet_prep.archive.format import INDEX_NAME, Index, TreeKind, find_owner
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
from scannet_prep.errors import FileError, OutputError

_HINT_PLACE = "move it to scans/SCENE/ or scans_test/SCENE/; its name has at most 100 letters"
_HINT_CHANGED = "remove it, repeat the command that made it, then pack again"
_MAX_HELD_BYTES = 160 << 20
# The index and the headers of files take less than the rest of a frame.
_MAX_GROUP_BYTES = MAX_FRAME_BYTES - (1 << 26)
# zstd's own level 0 is another name for its default level.
_STORING_LEVEL = -(1 << 17)
# Images that are compressed already.
_IMAGE_ENDINGS = (".jpg", ".png")


@dataclass(frozen=True)
class FileGroup:
    """Files of a scene, or those of no scene, to be packed into one frame.

    Attributes:
        scene_id: The scene; empty for the files of no scene.
        paths: The files by their names in the archive, sorted.
        fingerprint: The recorded fingerprint of the only file; None if there is no record.
    """

    scene_id: str
    paths: Mapping[str, Path]
    fingerprint: Fingerprint | None = None

    @cached_property
    def size_bytes(self) -> int:
        """Size of the files.

        Raises:
            FileError: A file does not exist, or they are too large for one frame.
        """
        if self.fingerprint:
            return self.fingerprint.size_bytes
        total_bytes = 0
        for path in self.paths.values():
            with open_file(path, MAX_FRAME_BYTES) as file:
                total_bytes += file.seek(0, os.SEEK_END)
            if total_bytes > _MAX_GROUP_BYTES:
                problem = f"and the files before it have {total_bytes:,} bytes"
                raise FileError(path, f"{problem}, expected at most {_MAX_GROUP_BYTES:,}")
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
    compressor = zstandard.ZstdCompressor(level=level or _STORING_LEVEL, write_checksum=True)
    return compressor.compress(content)


def encode_archive(
    index: Index,
    others: FileGroup,
    groups: Iterable[FileGroup],
    *,
    level: int,
    jobs: int,
    advance: Callable[[FileGroup], object],
) -> Iterator[bytes]:
    """Make the bytes of an archive, which depend on its files and the level only.

    Args:
        index: Its index.
        others: The files of no scene.
        groups: The files of the scenes in the order of the index, a group for each frame.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
        jobs: Number of threads.
        advance: Called with each group of a scene that is finished.

    Raises:
        FileError: A file cannot be read, is not the one that was recorded, or lies where no file of
            its scene belongs.
        OutputError: There are more or fewer groups than the index lists.
    """
    content = encode_members({INDEX_NAME: encode_json(index)}) + others.encode()
    first = compress(content, level)
    rows = array("I", find_row(first))
    yield first
    missing = sum(scene.frames for scene in index.scenes)
    make_frame = partial(_make_frame, index.kind, level)
    for group, frame in _make_frames(make_frame, groups, jobs):
        rows.extend(find_row(frame))
        missing -= 1
        yield frame
        advance(group)
    if missing:
        raise OutputError("scenes were changed while they were packed", "pack them again")
    last = compress(END_OF_TAR, level)
    rows.extend(find_row(last))
    yield last
    yield encode_seek_table(rows)


def _make_frame(kind: TreeKind, level: int, group: FileGroup) -> bytes:
    """Make the frame of a group; errors are those of `encode_archive`."""
    for name, path in group.paths.items():
        if find_owner(kind, name) != group.scene_id:
            problem = "lies outside of scans/ and scans_test/, or has a long name"
            raise FileError(path, problem, _HINT_PLACE)
    if all(name.endswith(_IMAGE_ENDINGS) for name in group.paths):
        level = 0
    return compress(group.encode(), level)


def _make_frames(
    make: Callable[[FileGroup], bytes], groups: Iterable[FileGroup], jobs: int
) -> Iterator[tuple[FileGroup, bytes]]:
    """Make the frames of groups in threads, in order.

    New groups are started while those in memory have less than 160 MiB.
    """
    pending = deque[tuple[FileGroup, Future[bytes]]]()
    held_bytes = 0
    # Neither an error nor an interrupt waits for the threads.
    pool = ThreadPoolExecutor(jobs)
    for group in groups:
        held_bytes += group.size_bytes
        pending.append((group, pool.submit(make, group)))
        while held_bytes > _MAX_HELD_BYTES:
            done, future = pending.popleft()
            yield done, future.result()
            held_bytes -= done.size_bytes
    for done, future in pending:
        yield done, future.result()
