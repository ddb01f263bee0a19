"""Compresses groups of files into frames, several at a time, and gives the frames in order."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import deflate

from scannet_prep.archive.contents import SourceGroup
from scannet_prep.archive.frames import MAX_FRAME_BYTES, checksum_of, compress_frame
from scannet_prep.archive.index import MemberEntry
from scannet_prep.archive.reader import ArchivedGroup
from scannet_prep.archive.tar import encode_header, member_bytes, padding_bytes
from scannet_prep.errors import ArchiveError
from scannet_prep.files import Buffer, Fingerprint

_CUT_BYTES = 1 << 24
_CUT_SHIFT_BYTES = 256
_MAX_WAITING_BYTES = 96 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """One compressed frame.

    Attributes:
        stored: Its bytes.
        size_bytes: Size of its content.
    """

    stored: bytes
    size_bytes: int

    @property
    def checksum(self) -> bytes:
        """Checksum of the content."""
        return checksum_of(self.stored)


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """Follows the frames of a group.

    Attributes:
        group: The group.
        sha256: Of its tar bytes, in hexadecimal.
        members: Its files, as they lie in the tar bytes.
    """

    group: SourceGroup | ArchivedGroup
    sha256: str
    members: tuple[MemberEntry, ...]


def compress_groups(
    groups: Iterable[SourceGroup | ArchivedGroup], level: int, jobs: int
) -> Generator[Frame | GroupEnd]:
    """Compress groups in threads; zstd and the digests leave the interpreter to others.

    A group of up to 64 MiB becomes one frame. A larger one is cut every 16 MiB, 256 bytes into a block of the tar
    stream: so a frame that ends between blocks is the last of its group, and who has no index knows it.

    Args:
        groups: In the order in which they are wanted.
        level: Compression level of zstd.
        jobs: How many threads compress.

    Yields:
        The frames of each group, then its end. The same ones whatever `jobs` is.

    Raises:
        SourceError: A file cannot be read, has changed since it was found, or is not what a manifest says.
        ArchiveError: A scene that is taken over is damaged.
    """
    with ThreadPoolExecutor(jobs, "compress") as executor:
        queue = _Queue(executor, 4 * jobs)
        try:
            for group in groups:
                if isinstance(group, ArchivedGroup):
                    yield from queue.drain()
                    yield from _copy_group(group)
                elif group.size_bytes <= MAX_FRAME_BYTES:
                    yield from queue.submit(group.size_bytes, _compress_group, group, level)
                else:
                    yield from _compress_pieces(group, level, queue)
            yield from queue.drain()
        finally:
            queue.cancel()


class _Queue:
    """Work that was begun, in order; what it holds in memory is bounded."""

    def __init__(self, executor: ThreadPoolExecutor, max_count: int) -> None:
        self._executor = executor
        self._max_count = max_count
        self._waiting: deque[tuple[int, Future[list[Frame | GroupEnd]]]] = deque()

    def submit(
        self, size_bytes: int, function: Callable[..., list[Frame | GroupEnd]], *args: object
    ) -> Iterator[Frame | GroupEnd]:
        """Begin a piece of work when there is room for it; give the results that had to make room."""
        yield from self.make_room(size_bytes)
        self._waiting.append((size_bytes, self._executor.submit(function, *args)))

    def make_room(self, size_bytes: int) -> Iterator[Frame | GroupEnd]:
        """Give results until so many bytes more may be held."""
        while self._waiting and (
            len(self._waiting) >= self._max_count
            or sum(size for size, _ in self._waiting) + size_bytes > _MAX_WAITING_BYTES
        ):
            yield from self._waiting.popleft()[1].result()

    def drain(self) -> Iterator[Frame | GroupEnd]:
        """Give all results."""
        while self._waiting:
            yield from self._waiting.popleft()[1].result()

    def cancel(self) -> None:
        """Forget what has not begun."""
        for _, future in self._waiting:
            future.cancel()


def _compress_group(group: SourceGroup, level: int) -> list[Frame | GroupEnd]:
    content, members = bytearray(group.size_bytes), list[MemberEntry]()
    with memoryview(content) as room:
        for _ in _read_group(group, members, room):
            pass
    frame = Frame(compress_frame(content, level), len(content))
    return [frame, GroupEnd(group, hashlib.sha256(content).hexdigest(), tuple(members))]


def _compress_pieces(group: SourceGroup, level: int, queue: _Queue) -> Iterator[Frame | GroupEnd]:
    digest, members = hashlib.sha256(), list[MemberEntry]()
    waiting = bytearray()
    cut_bytes = _CUT_BYTES + _CUT_SHIFT_BYTES
    yield from queue.make_room(_CUT_BYTES)
    for data in _read_group(group, members):
        digest.update(data)
        waiting += data
        while len(waiting) >= cut_bytes:
            content, waiting = waiting[:cut_bytes], waiting[cut_bytes:]
            cut_bytes = _CUT_BYTES  # counted from the first cut, so that none falls between two blocks
            yield from queue.submit(len(content), _compress_piece, content, level)
            yield from queue.make_room(2 * _CUT_BYTES)
    yield from queue.submit(len(waiting), _compress_piece, waiting, level)
    end = GroupEnd(group, digest.hexdigest(), tuple(members))
    yield from queue.submit(0, lambda: [end])


def _compress_piece(content: bytearray, level: int) -> list[Frame | GroupEnd]:
    return [Frame(compress_frame(content, level), len(content))]


def _read_group(group: SourceGroup, members: list[MemberEntry], room: memoryview | None = None) -> Iterator[Buffer]:
    """Read the tar bytes of a group in pieces; what its files are is added to `members` on the way.

    Args:
        group: The group.
        members: Gets an entry for each file.
        room: Zeros, as many as there are tar bytes, which these are written to.
    """
    position = 0
    for file in group.files:
        header = encode_header(file.name, file.size_bytes)
        start = position + len(header)
        if room is not None:
            room[position:start] = header
        yield header
        crc32 = 0
        for piece in file.read(None if room is None else room[start : start + file.size_bytes]):
            crc32 = deflate.crc32(piece, crc32)
            yield piece
        file.check_digest(Fingerprint(file.size_bytes, crc32))
        members.append(MemberEntry(file.name, start, file.size_bytes, crc32))
        yield bytes(padding_bytes(file.size_bytes))
        position += member_bytes(file.name, file.size_bytes)


def _copy_group(group: ArchivedGroup) -> Iterator[Frame | GroupEnd]:
    crc32 = 0
    for span in group.archive.spans(group.entry):
        stored = group.archive.read_stored(span)
        crc32 = deflate.crc32(stored, crc32)
        yield Frame(stored, span.size_bytes)
    if crc32 != group.entry.stored_crc32:
        raise ArchiveError(group.archive.name, f"{group.entry.name}: is damaged: its CRC-32 is not that of the index")
    yield GroupEnd(group, group.entry.sha256, group.entry.members)
