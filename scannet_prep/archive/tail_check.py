"""Checks the end of an archive: index, end of the tar stream, seek table. Each can be written in one way only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scannet_prep.archive.frames import CHECKSUM_BYTES, FrameSpan, checksum_of, store_frame
from scannet_prep.archive.group_check import FoundFrame, GroupCheck
from scannet_prep.archive.index import INDEX_NAME, Index, encode_group, encode_index
from scannet_prep.archive.layout import END_FRAME, Layout, read_table
from scannet_prep.archive.seek_table import ENTRY_BYTES, encode_seek_table, seek_table_bytes
from scannet_prep.archive.source import ByteSource
from scannet_prep.archive.tar import END_OF_ARCHIVE, encode_header, padding_bytes

_TABLE_HEADER_BYTES = 8
_TAIL_FRAMES = 2  # the index, and the end of the tar stream
_FOUND_END_FRAME = FoundFrame(len(END_FRAME), len(END_OF_ARCHIVE), checksum_of(END_FRAME))


class Part(StrEnum):
    """What an archive consists of, besides scenes."""

    FILES = "files"
    INDEX = "index"
    END = "end"
    TABLE = "seek table"


@dataclass(frozen=True, slots=True)
class TailCheck:
    """What the check of the end of an archive found.

    Attributes:
        problems: What is wrong with which part.
        cut_off_part: The part that the file ends in, or before; None where it does not end too early.
        whole_end: The byte after the last part that is whole, if all that comes before it is; 0 if not even the index
            is.
    """

    problems: tuple[tuple[Part, str], ...]
    cut_off_part: Part | None = None
    whole_end: int = 0


def check_tail(source: ByteSource, layout: Layout, checks: Sequence[GroupCheck | None]) -> TailCheck:
    """Write the end of an archive again from what was found, and compare every byte.

    Args:
        source: The archive.
        layout: Its parts.
        checks: What was found about its groups, in order; None for those that were not checked.
    """
    span = layout.index_span
    if span is None:
        if layout.is_cut_off:
            return TailCheck((), Part.INDEX)
        return TailCheck(((Part.INDEX, f"is not there, or too damaged to be found; {layout.problem}"),))
    problems = []
    index_problem = layout.problem or _check_index(source, layout.index, span)
    if index_problem:
        problems.append((Part.INDEX, index_problem))
    left_bytes = source.size_bytes - span.end
    if left_bytes < len(END_FRAME):
        return TailCheck(tuple(problems), Part.END, 0 if problems else span.end)
    if source.read(span.end, len(END_FRAME)) != END_FRAME:
        problems.append((Part.END, f"differs from {len(END_OF_ARCHIVE):,} zeros, stored in a frame"))
    whole_end = 0 if problems else span.end + len(END_FRAME)
    if left_bytes < len(END_FRAME) + _table_bytes(layout):
        return TailCheck(tuple(problems), Part.TABLE, whole_end)
    index_frame = FoundFrame(span.stored_bytes, span.size_bytes, source.read(span.end - CHECKSUM_BYTES, CHECKSUM_BYTES))
    frames = [*_list_frames(layout, checks), None if index_problem else index_frame, _FOUND_END_FRAME]
    table_problem = _check_table(source, span.end + len(END_FRAME), frames, has_gaps=bool(layout.gaps))
    if table_problem:
        problems.append((Part.TABLE, table_problem))
    return TailCheck(tuple(problems), whole_end=whole_end)


def _table_bytes(layout: Layout) -> int:
    """Size of the table, at least, where there are gaps."""
    return seek_table_bytes(sum(place.frame_count for place in layout.groups) + _TAIL_FRAMES)


def _check_table(source: ByteSource, offset: int, frames: Sequence[FoundFrame | None], *, has_gaps: bool) -> str:
    if has_gaps:  # then nobody knows how many frames there were
        try:
            read_table(source)
        except ValueError as error:
            return str(error)
        return ""
    table_bytes = seek_table_bytes(len(frames))
    extra_bytes = source.size_bytes - offset - table_bytes
    if extra_bytes:
        return f"is followed by {extra_bytes:,} bytes, from byte {offset + table_bytes:,} on"
    return _compare_table(source.read(offset, table_bytes), frames, offset)


def _check_index(source: ByteSource, index: Index | None, span: FrameSpan) -> str:
    if index is None:
        return "is damaged"
    lines = [encode_group(group) for group in index.groups]
    text = encode_index(index.head, lines[0], lines[1:], index.failures)
    expected = store_frame(encode_header(INDEX_NAME, len(text)) + text + bytes(padding_bytes(len(text))))
    found = source.read(span.offset, span.stored_bytes)
    if found == expected:
        return ""
    return f"is not written as this program does: {_first_difference(found, expected, span.offset)}"


def _list_frames(layout: Layout, checks: Sequence[GroupCheck | None]) -> list[FoundFrame | None]:
    """All frames of the groups; None for those of which nobody knows what they were."""
    frames: list[FoundFrame | None] = []
    for place, check in zip(layout.groups, checks, strict=True):
        if check is not None and check.frames:
            frames += check.frames
        else:
            frames += [None] * place.frame_count
    return frames


def _compare_table(found: bytes, frames: Sequence[FoundFrame | None], offset: int) -> str:
    known = [
        (0, 0, b"") if frame is None else (frame.stored_bytes, frame.size_bytes, frame.checksum) for frame in frames
    ]
    expected = bytearray(encode_seek_table(known))
    for number, frame in enumerate(frames):
        if frame is None:
            start = _TABLE_HEADER_BYTES + ENTRY_BYTES * number
            expected[start : start + ENTRY_BYTES] = found[start : start + ENTRY_BYTES]
    return "" if found == expected else f"does not fit: {_first_difference(found, expected, offset)}"


def _first_difference(found: bytes, expected: bytes | bytearray, offset: int) -> str:
    if len(found) != len(expected):
        return f"it has {len(found):,} bytes, expected {len(expected):,}"
    different = [number for number, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
    return f"{len(different):,} bytes differ, the first at byte {offset + different[0]:,}"
