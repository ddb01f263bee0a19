"""Make the bytes of an archive, which depend on its contents only, not on the number of threads.

The way of a group, from files to a frame:

    Contents.groups -- in threads, _make_frame:
        files                       -> tar bytes, with the offset of each file in them
        compress                    tar bytes -> frame
    -- in order, ArchiveBytes:
        frame                       -> the archive
        StoredGroup, with offset    -> the index, which becomes the last frame but one
        row                         -> the seek table, which follows the last frame
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.frames import compress, encode_seek_table, seek_row
from scannet_prep.archive.layout import INDEX_NAME, Index, StoredGroup, encode_index
from scannet_prep.archive.tar import (
    BLOCK_BYTES,
    END_OF_ARCHIVE,
    Member,
    encode_header,
    place_files,
)
from scannet_prep.archive.threads import Threads


class ArchiveBytes:
    """The bytes of an archive, in order; they are made anew by each loop over this object.

    A loop raises a `FileError` if a file cannot be read, has changed since it was found, or differs
    from the manifest.

    Args:
        contents: The contents.
        threads: Compress the groups; their progress receives the number of tar bytes.

    Attributes:
        contents: As given.
        threads: As given.
        size_bytes: Number of bytes that the last loop has made.
    """

    def __init__(self, contents: Contents, threads: Threads | None = None) -> None:
        self.contents = contents
        self.threads = threads or Threads()
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes that the last loop has made, 64 hexadecimal digits."""
        return self._sha256.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        """Make the bytes."""
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        for piece in self._make_pieces():
            # `update` releases the interpreter lock, so that other threads compress meanwhile.
            self._sha256.update(piece)
            self.size_bytes += len(piece)
            yield piece

    def _make_pieces(self) -> Iterator[bytes]:
        """Make the frames and the seek table."""
        head = self.contents.head
        make_frame = partial(_make_frame, level=head.level)
        groups: list[StoredGroup] = []
        rows: list[bytes] = []
        # While it is in work, a group takes its size twice: as tar bytes and as a frame.
        tasks = [(2 * group.size_bytes, group) for group in self.contents.groups]
        frames = self.threads.map(make_frame, tasks)
        for source, (members, frame) in zip(self.contents.groups, frames, strict=True):
            group = StoredGroup(
                scene_id=source.scene_id,
                split=source.split,
                vertex_count=source.vertex_count,
                offset=self.size_bytes,
                stored_bytes=len(frame),
                size_bytes=source.size_bytes,
                members=members,
            )
            groups.append(group)
            rows.append(seek_row(frame))
            yield frame
            self.threads.progress.advance(source.size_bytes)

        index = encode_index(Index(head, tuple(groups), self.contents.failures))
        index_file = SourceFile.from_content(INDEX_NAME, index)
        _, index_frame = make_frame(SourceGroup("", "", 0, (index_file,)))
        end_frame = compress(END_OF_ARCHIVE, head.level)
        rows += [seek_row(index_frame), seek_row(end_frame)]
        yield from (index_frame, end_frame, encode_seek_table(rows))


def _make_frame(group: SourceGroup, *, level: int) -> tuple[tuple[Member, ...], bytes]:
    """Read the files of a group into tar bytes, and compress these.

    Returns:
        The files as the index lists them, and the frame.

    Raises:
        FileError: A file cannot be read, or is not the one that was found.
    """
    offsets, size_bytes = place_files([file.size_bytes for file in group.files])
    content = memoryview(bytearray(size_bytes))
    members = []
    for file, offset in zip(group.files, offsets, strict=True):
        data = content[offset : offset + file.size_bytes]
        content[offset - BLOCK_BYTES : offset] = encode_header(file.name, file.size_bytes)
        file.read_into(data)
        sha256 = hashlib.sha256(data).hexdigest()
        members.append(Member(file.name, offset, file.size_bytes, sha256))
    return tuple(members), compress(content, level)
