"""Writes one archive: the same bytes for the same contents, whatever the number of threads and whatever takes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import deflate

from scannet_prep.archive.compression import Frame, GroupEnd, compress_groups
from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.frames import DEFAULT_LEVEL, MAX_FRAME_BYTES, checksum_of, store_frame, stored_frame_bytes
from scannet_prep.archive.index import FORMAT_NAME, INDEX_NAME, GroupEntry, encode_group, encode_head, encode_index
from scannet_prep.archive.output import FileOutput, Output, PipeOutput, resolve_output
from scannet_prep.archive.reader import ArchivedGroup
from scannet_prep.archive.seek_table import encode_seek_table, seek_table_bytes
from scannet_prep.archive.tar import END_OF_ARCHIVE, encode_header, padding_bytes
from scannet_prep.progress import NoProgress, Progress


@dataclass(frozen=True, slots=True)
class WrittenArchive:
    """One archive that was written.

    Attributes:
        path: Where; None for a pipe.
        size_bytes: Its size.
        scene_count: Scenes in it.
        sha256: Of the whole file, in hexadecimal; empty unless it is one of several shards.
    """

    path: Path | None
    size_bytes: int
    scene_count: int
    sha256: str = ""


def write_archive(
    contents: Contents,
    target: Path | PipeOutput,
    *,
    level: int = DEFAULT_LEVEL,
    jobs: int = 1,
    progress: Progress | None = None,
    before_commit: Callable[[], None] | None = None,
) -> WrittenArchive:
    """Write one archive; a file gets its name when it is whole and on the disk.

    Args:
        contents: What goes in.
        target: The file, or a pipe.
        level: Compression level of zstd, 1..22.
        jobs: How many threads compress.
        progress: Told of tar bytes that were written.
        before_commit: Called when all is written, before the file gets its name; what it raises leaves none.

    Raises:
        SourceError: A file cannot be read, or changed while it was.
        ArchiveError: A scene that is taken over from another archive is damaged.
        OutputError: The archive cannot be written. There is none then, or still the older one.
    """
    with ExitStack() as stack:
        output: Output
        if isinstance(target, PipeOutput):
            output = target
        else:
            output = FileOutput(resolve_output(target))
            stack.callback(output.discard)
        writer = ArchiveWriter(output, contents)
        write_groups(contents, level, jobs, progress or NoProgress(), lambda _: writer)
        size_bytes = writer.finish()
        if isinstance(output, FileOutput):
            output.close()
            if before_commit is not None:
                before_commit()
            output.commit(output.path)
    return WrittenArchive(None if isinstance(target, PipeOutput) else target, size_bytes, len(contents.scenes))


def write_groups(
    contents: Contents, level: int, jobs: int, progress: Progress, choose: Callable[[NextGroup], ArchiveWriter]
) -> None:
    """Compress all groups and hand each to the writer that `choose` names.

    Raises:
        SourceError: A file cannot be read, or changed while it was.
        ArchiveError: A scene that is taken over from another archive is damaged.
        OutputError: An archive cannot be written.
    """
    groups = (files_group(contents, contents.files), *contents.scenes)
    items = compress_groups(groups, level, jobs)
    try:
        for group in groups:
            writer: ArchiveWriter | None = None
            for item in items:
                if isinstance(item, Frame):
                    if writer is None:
                        is_one = group.size_bytes <= MAX_FRAME_BYTES
                        writer = choose(NextGroup(group, len(item.stored) if is_one else group.size_bytes))
                    writer.add_frame(item)
                    progress.advance(item.size_bytes)
                elif writer is not None:
                    writer.end_group(item)
                    break
    finally:
        items.close()


def files_group(contents: Contents, files: tuple[SourceFile, ...]) -> SourceGroup:
    """The group that an archive begins with: the description of the format, then files that belong to no scene."""
    return SourceGroup("", "", 0, (SourceFile.from_content(FORMAT_NAME, encode_head(contents.head)), *files))


@dataclass(frozen=True, slots=True)
class NextGroup:
    """A group that is about to be written.

    Attributes:
        group: The group.
        stored_bytes: Size of its frames; of a group of several frames, the size of its tar bytes.
    """

    group: SourceGroup | ArchivedGroup
    stored_bytes: int

    @property
    def max_line_bytes(self) -> int:
        """How long its line in the index can be at most."""
        group = self.group.entry if isinstance(self.group, ArchivedGroup) else self.group
        members = group.members if isinstance(group, GroupEntry) else group.files
        return 400 + sum(80 + 12 * len(member.name) for member in members)


class ArchiveWriter:
    """Puts frames together to one archive.

    Args:
        output: Takes the bytes.
        contents: What holds for the whole archive.
    """

    def __init__(self, output: Output, contents: Contents) -> None:
        self._output = output
        self._contents = contents
        self._lines: list[str] = []
        self._frames: list[tuple[int, int, bytes]] = []
        self._position = self._first_frame = self._offset = self._crc32 = self._size_bytes = 0

    @property
    def scene_count(self) -> int:
        """Scenes so far."""
        return max(0, len(self._lines) - 1)

    @property
    def size_bytes(self) -> int:
        """Bytes that were written so far."""
        return self._position

    def size_with(self, following: NextGroup) -> int:
        """How large the file can be at most with one more group."""
        empty = len(encode_index(self._contents.head, "", [], self._contents.failures))
        index_bytes = empty + sum(2 + len(line) for line in self._lines) + following.max_line_bytes
        frames = [index_bytes + 2 * len(encode_header(INDEX_NAME, index_bytes)), len(END_OF_ARCHIVE)]
        group_frames = following.stored_bytes // MAX_FRAME_BYTES * 4 + 4
        tail_bytes = sum(map(stored_frame_bytes, frames)) + seek_table_bytes(len(self._frames) + group_frames + 2)
        return self._position + following.stored_bytes + tail_bytes

    def add_frame(self, frame: Frame) -> None:
        """Write the next frame of the present group.

        Raises:
            OutputError: It cannot be written.
        """
        self._write_frame(frame.stored, frame.size_bytes)
        self._crc32 = deflate.crc32(frame.stored, self._crc32)
        self._size_bytes += frame.size_bytes

    def end_group(self, end: GroupEnd) -> None:
        """All frames of the present group have been written."""
        source = end.group.entry if isinstance(end.group, ArchivedGroup) else end.group
        entry = GroupEntry(
            scene_id=source.scene_id,
            split=source.split,
            vertex_count=source.vertex_count,
            first_frame=self._first_frame,
            frame_count=len(self._frames) - self._first_frame,
            offset=self._offset,
            stored_bytes=self._position - self._offset,
            stored_crc32=self._crc32,
            size_bytes=self._size_bytes,
            sha256=end.sha256,
            members=end.members,
        )
        self._lines.append(encode_group(entry))
        self._begin_group()

    def finish(self) -> int:
        """Write index, end and table.

        Returns:
            Size of the archive in bytes.

        Raises:
            OutputError: They cannot be written.
        """
        text = encode_index(self._contents.head, self._lines[0], self._lines[1:], self._contents.failures)
        index = encode_header(INDEX_NAME, len(text)) + text + bytes(padding_bytes(len(text)))
        for content in (index, END_OF_ARCHIVE):
            self._write_frame(store_frame(content), len(content))
        table = encode_seek_table(self._frames)
        self._output.write(table)
        return self._position + len(table)

    def _begin_group(self) -> None:
        self._first_frame, self._offset = len(self._frames), self._position
        self._crc32 = self._size_bytes = 0

    def _write_frame(self, stored: bytes, size_bytes: int) -> None:
        self._output.write(stored)
        self._frames.append((len(stored), size_bytes, checksum_of(stored)))
        self._position += len(stored)
