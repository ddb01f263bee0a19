"""Finds the parts of an archive, whether or not it is whole: by its table, its index, or from frame to frame."""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

from scannet_prep.archive.frames import (
    FrameSpan,
    find_frame,
    store_frame,
    stored_frame_bytes,
)
from scannet_prep.archive.index import FORMAT_NAME, INDEX_NAME, GroupEntry, Index
from scannet_prep.archive.read_ahead import choose_reader
from scannet_prep.archive.reader import read_index
from scannet_prep.archive.seek_table import FOOTER_BYTES, SeekTable, parse_footer, parse_seek_table
from scannet_prep.archive.source import ByteSource
from scannet_prep.archive.tar import END_OF_ARCHIVE
from scannet_prep.archive.walk import FoundGroup, Gap, find_first_name, walk_groups
from scannet_prep.errors import ArchiveError

END_FRAME = store_frame(END_OF_ARCHIVE)

_HEADER_BYTES = 18
_BLOCK_HEADER_BYTES = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group lies.

    Attributes:
        offset: First byte in the file.
        end: The byte after the last.
        frame_count: Number of its frames.
        entry: What the index says about it; None where there is no index.
    """

    offset: int
    end: int
    frame_count: int
    entry: GroupEntry | None = None

    @property
    def stored_bytes(self) -> int:
        """Size in the file."""
        return self.end - self.offset


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of an archive.

    Attributes:
        groups: The groups, in order.
        gaps: Bytes among and after the groups that are no groups; only where there is no index.
        index: The index; None where there is none, or a damaged one.
        index_span: Where its frame lies, or should; None where nothing tells.
        problem: Why there is no index.
        is_cut_off: Whether the file ends before its index does.
    """

    groups: tuple[Place, ...]
    gaps: tuple[Gap, ...] = ()
    index: Index | None = None
    index_span: FrameSpan | None = None
    problem: str = ""
    is_cut_off: bool = False


def find_layout(source: ByteSource) -> Layout:
    """Find the parts of an archive.

    The seek table is believed only if what it leads to is an index that fits. An index that is whole says where the
    groups lie, whatever has become of them; without it, the frames themselves do.

    Raises:
        ArchiveError: It cannot be read, or is no archive of this program.
    """
    span, problem = _find_index_by_table(source)
    if span is not None:
        layout = _try_index(source, span)
        if layout.index is not None:
            return layout
        problem = layout.problem
    items = list(walk_groups(choose_reader(source, source.size_bytes), source.size_bytes))
    found = [item for item in items if isinstance(item, FoundGroup)]
    for group in reversed(found):
        if _has_index(source, group):
            layout = _try_index(source, group.spans[0])
            if layout.index is not None:
                return layout
            if span is None:
                span, problem = group.spans[0], layout.problem
    _check_is_archive(source, found)
    limit = source.size_bytes if span is None else span.offset
    return Layout(
        groups=tuple(Place(group.offset, group.end, len(group.spans)) for group in found if group.end <= limit),
        gaps=tuple(item for item in items if isinstance(item, Gap) and item.offset < limit),
        index_span=span,
        problem=problem,
        is_cut_off=span is None and _ends_too_early(items[-1] if items else None, source.size_bytes),
    )


def _find_index_by_table(source: ByteSource) -> tuple[FrameSpan | None, str]:
    try:
        table = read_table(source)
    except ValueError as error:
        if isinstance(error, ArchiveError):
            raise
        return None, str(error)
    if len(table) < 2:
        return None, "the seek table names no index"
    return table.span(len(table) - 2), ""


def read_table(source: ByteSource) -> SeekTable:
    """Read the seek table at the end of an archive.

    Raises:
        ValueError: There is none, or a damaged one.
    """
    size = source.size_bytes
    footer = source.read(max(0, size - FOOTER_BYTES), FOOTER_BYTES)
    table_bytes = parse_footer(footer, size)
    return parse_seek_table(source.read(size - table_bytes, table_bytes), size)


def _try_index(source: ByteSource, span: FrameSpan) -> Layout:
    try:
        index = read_index(source, span)
    except ValueError as error:
        if isinstance(error, ArchiveError):
            raise
        return Layout((), problem=str(error))
    last = index.groups[-1]
    if last.offset + last.stored_bytes != span.offset:
        end = last.offset + last.stored_bytes
        return Layout((), problem=f"the index is for groups that end at byte {end:,}, but it lies at {span.offset:,}")
    places = tuple(
        Place(group.offset, group.offset + group.stored_bytes, group.frame_count, group) for group in index.groups
    )
    return Layout(places, index=index, index_span=span)


def _has_index(source: ByteSource, group: FoundGroup) -> bool:
    """Whether a frame holds the index, be it damaged; as it is not compressed, its name can be seen."""
    span = group.spans[0]
    if span.stored_bytes != stored_frame_bytes(span.size_bytes):
        return False
    name = INDEX_NAME.encode() + b"\0"
    start = source.read(span.offset, _HEADER_BYTES + len(name))
    return start[zstandard.frame_header_size(start) + _BLOCK_HEADER_BYTES :].startswith(name)


def _ends_too_early(last: FoundGroup | Gap | None, size_bytes: int) -> bool:
    if isinstance(last, FoundGroup):
        return last.end == size_bytes
    return last is None or not last.problem


def _check_is_archive(source: ByteSource, found: list[FoundGroup]) -> None:
    """Tell an archive that is damaged, truncated or both from a file of another program.

    Raises:
        ArchiveError: It was never an archive of this program.
    """
    problem = "it begins with another file"
    for offset in (0, *(group.offset for group in found[:3])):
        try:
            name = find_first_name(source.read, offset)
            if name == FORMAT_NAME or (name is not None and offset) or find_frame(source.read, offset) is None:
                return
        except ValueError as error:
            problem = str(error)
    raise ArchiveError(
        source.name,
        f"is no archive that scannet-prep pack made: {problem}",
        "other archives are unpacked with tar --zstd -xf, and can be packed again",
    )
