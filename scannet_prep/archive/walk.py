"""Finds the groups of an archive from its beginning, without index and table: for pipes, and for truncated files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scannet_prep.archive.frames import MAX_FRAME_BYTES, FrameSpan, ReadAt, find_frame, iter_beginning
from scannet_prep.archive.tar import BLOCK_BYTES, TarMember, TarParser

_SKIPPABLE_MAGIC = (0x184D2A5E).to_bytes(4, "little")
_SEARCH_BYTES = 1 << 20
_FRAME_MAGIC = (0xFD2FB528).to_bytes(4, "little")
_MAX_READS = 1 << 21
_MIN_READ_BYTES = 1 << 8


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
    """Find all whole groups, by the headers of frames and blocks.

    A frame that ends between two blocks of the tar stream is the last of its group; others are decompressed, to see
    that they are not just damaged where they say how much they hold. After a damaged frame the search
    goes on at the next that looks whole. The seek table, where it comes, is the end. A file that was made to look like
    very many frames, none of them whole, is given up after a while.

    Args:
        read_at: Reads the archive.
        size_bytes: Its size.
        offset: Where a group begins.

    Yields:
        Groups, and gaps for what lies between and after them.
    """
    end = offset
    gap: Gap | None = None
    try:
        for item in _walk(_count_reads(read_at, size_bytes), size_bytes, offset):
            end = item.end
            if gap is not None and isinstance(item, Gap) and item.problem:
                gap = replace(gap, end=end)
                continue
            if gap is not None:
                yield gap
            gap = item if isinstance(item, Gap) else None
            if gap is None:
                yield item
    except _GaveUpError:
        start = end if gap is None else gap.offset
        gap = Gap(start, size_bytes, "holds too much that looks like frames")
    if gap is not None:
        yield gap


def _walk(read_at: ReadAt, size_bytes: int, offset: int) -> Iterator[FoundGroup | Gap]:
    spans: list[FrameSpan] = []
    is_lost = False  # after damage, frames may come that are the rest of a group
    while offset < size_bytes:
        if read_at(offset, len(_SKIPPABLE_MAGIC)) == _SKIPPABLE_MAGIC and not spans:
            return
        try:
            span = _find_frame(read_at, offset)
            if span is None and _is_cut_off(read_at, offset):
                yield Gap(spans[0].offset if spans else offset, size_bytes)
                return
            if span is None:
                raise ValueError("a frame has a damaged block: it is followed by nothing")  # noqa: TRY301
        except ValueError as error:
            start = spans[0].offset if spans else offset
            spans, is_lost = [], True
            offset = _find_next(read_at, offset + 1, size_bytes)
            yield Gap(start, offset, str(error))
            continue
        spans.append(span)
        offset = span.end
        is_end = sum(item.size_bytes for item in spans) % BLOCK_BYTES == 0
        is_first = len(spans) == 1
        problem = _check_beginning(read_at, span) if is_first and (is_lost or not is_end) else ""
        problem = problem or ("" if is_end else _check_content(read_at, span))
        if problem:
            yield Gap(spans[0].offset, offset, problem)
            spans, is_lost = [], True
        elif is_end:
            yield FoundGroup(tuple(spans))
            spans, is_lost = [], False
    if spans:
        yield Gap(spans[0].offset, size_bytes)


def find_first_name(read_at: ReadAt, offset: int) -> str | None:
    """Read the name of the first member of a group; None where the file ends too early to tell.

    Raises:
        ValueError: The group is damaged, or none of this program.
    """
    parser = TarParser()
    for piece in iter_beginning(read_at, offset, MAX_FRAME_BYTES):
        for item in parser.feed(piece):
            if isinstance(item, TarMember):
                return item.name
    return None


def _check_beginning(read_at: ReadAt, span: FrameSpan) -> str:
    """Check that a group begins with a frame; what is wrong, or nothing."""
    try:
        name = find_first_name(read_at, span.offset)
    except ValueError as error:
        return str(error)
    return "no file begins here" if name is None else ""


def _check_content(read_at: ReadAt, span: FrameSpan) -> str:
    """Check a frame by its checksum; what is wrong, or nothing."""
    try:
        for _ in iter_beginning(read_at, span.offset, MAX_FRAME_BYTES):
            pass
    except ValueError as error:
        return str(error)
    return ""


def _find_frame(read_at: ReadAt, offset: int) -> FrameSpan | None:
    """Find a frame; where nothing follows it that could, a damaged block may have led astray, or that is damaged."""
    span = find_frame(read_at, offset)
    if span is not None:
        following = read_at(span.end, len(_FRAME_MAGIC))
        is_followed = _FRAME_MAGIC.startswith(following) or _SKIPPABLE_MAGIC.startswith(following)
        if not is_followed and (problem := _check_content(read_at, span)):
            raise ValueError(problem)
    return span


class _GaveUpError(Exception):
    """More was read than the headers of any archive need."""


def _count_reads(read_at: ReadAt, size_bytes: int) -> ReadAt:
    left = _MAX_READS + size_bytes // _MIN_READ_BYTES

    def read(offset: int, size: int) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise _GaveUpError
        return read_at(offset, size)

    return read


def _is_cut_off(read_at: ReadAt, offset: int) -> bool:
    """Whether the last frame is whole as far as it goes; else a damaged header led beyond the end of the file."""
    try:
        for _ in iter_beginning(read_at, offset, MAX_FRAME_BYTES):
            pass
    except ValueError:
        return False
    return True


def _find_next(read_at: ReadAt, offset: int, size_bytes: int) -> int:
    """Find the next place where a whole frame begins, or the end of the file."""
    while offset < size_bytes:
        data = read_at(offset, _SEARCH_BYTES)
        position = data.find(_FRAME_MAGIC)
        while position >= 0:
            try:
                if _find_frame(read_at, offset + position) is not None:
                    return offset + position
            except ValueError:
                pass  # the four bytes stand there by chance
            position = data.find(_FRAME_MAGIC, position + 1)
        offset += max(1, len(data) - len(_FRAME_MAGIC) + 1)
    return size_bytes
