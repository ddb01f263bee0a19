"""Finds the groups of an archive from its beginning, without index and table: for pipes, and for truncated files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scannet_prep.archive.frames import FrameSpan, ReadAt, find_frame
from scannet_prep.archive.tar import BLOCK_BYTES

_SKIPPABLE_MAGIC = (0x184D2A5E).to_bytes(4, "little")
_SEARCH_BYTES = 1 << 20
_FRAME_MAGIC = (0xFD2FB528).to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """Frames that belong together: those of one scene, of the first files, of the index, or of the end.

    Attributes:
        spans: Where they lie.
    """

    spans: tuple[FrameSpan, ...]

    @property
    def offset(self) -> int:
        """First byte in the file."""
        return self.spans[0].offset

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.spans[-1].end

    @property
    def size_bytes(self) -> int:
        """Size of its tar bytes."""
        return sum(span.size_bytes for span in self.spans)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are no frame.

    Attributes:
        offset: The first of them.
        end: The byte after the last.
        problem: What is wrong with them; empty where the file ends in the middle of a frame or of a group.
    """

    offset: int
    end: int
    problem: str = ""


def walk_groups(read_at: ReadAt, size_bytes: int, offset: int = 0) -> Iterator[FoundGroup | Gap]:
    """Find all whole groups, by the headers of frames and blocks; nothing is decompressed.

    A frame that ends between two blocks of the tar stream is the last of its group. After a damaged frame the search
    goes on at the next that looks whole. The seek table, where it comes, is the end.

    Args:
        read_at: Reads the archive.
        size_bytes: Its size.
        offset: Where a group begins.

    Yields:
        Groups, and gaps for what lies between and after them.
    """
    spans: list[FrameSpan] = []
    while offset < size_bytes:
        if read_at(offset, len(_SKIPPABLE_MAGIC)) == _SKIPPABLE_MAGIC and not spans:
            return
        try:
            span = find_frame(read_at, offset)
        except ValueError as error:
            start = spans[0].offset if spans else offset
            spans = []
            offset = _find_next(read_at, offset + 1, size_bytes)
            yield Gap(start, offset, str(error))
            continue
        if span is None:
            yield Gap(spans[0].offset if spans else offset, size_bytes)
            return
        spans.append(span)
        offset = span.end
        if sum(item.size_bytes for item in spans) % BLOCK_BYTES == 0:
            yield FoundGroup(tuple(spans))
            spans = []
    if spans:
        yield Gap(spans[0].offset, size_bytes)


def _find_next(read_at: ReadAt, offset: int, size_bytes: int) -> int:
    """Find the next place where a whole frame begins, or the end of the file."""
    while offset < size_bytes:
        data = read_at(offset, _SEARCH_BYTES)
        position = data.find(_FRAME_MAGIC)
        while position >= 0:
            try:
                if find_frame(read_at, offset + position) is not None:
                    return offset + position
            except ValueError:
                pass  # the four bytes stand there by chance
            position = data.find(_FRAME_MAGIC, position + 1)
        offset += max(1, len(data) - len(_FRAME_MAGIC) + 1)
    return size_bytes
