"""Make the bytes of an archive, which depend on its contents only, not on the number of threads.

The way of a group, from files to a frame:

    Contents.groups -- in threads, _pack:
        check_names                 names that readers refuse are never packed
        write_members               files -> tar bytes, and the offset of each file in them
        compress                    tar bytes -> frame
    -- in order, iter_archive:
        frame                       -> the archive
        StoredGroup, with offset    -> the index, which becomes the last frame but one
        row                         -> the seek table, which follows the last frame
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.frames import compress, encode_seek_table, seek_row
from scannet_prep.archive.layout import (
    INDEX_NAME,
    Head,
    Index,
    StoredGroup,
    check_names,
    encode_index,
)
from scannet_prep.archive.tar import END_OF_ARCHIVE, write_members
from scannet_prep.archive.threads import map_in_threads
from scannet_prep.base.progress import Progress


def iter_archive(
    contents: Contents, *, jobs: int = 1, progress: Progress | None = None
) -> Iterator[bytes]:
    """Make an archive, and yield its bytes in order.

    Args:
        contents: The contents.
        jobs: Number of threads.
        progress: Receives the number of tar bytes.

    Raises:
        FileError: A file cannot be read, has changed since it was found, or differs from the
            manifest.
        ContentError: The name of a file does not belong in the archive.
    """
    progress = progress or Progress()
    groups = list[StoredGroup]()
    rows = list[bytes]()
    offset = 0
    # While it is in work, a group takes its size twice: as tar bytes and as a frame.
    tasks = ((2 * group.size_bytes, group) for group in contents.groups)
    for group, frame in map_in_threads(partial(_pack, contents.head), tasks, jobs=jobs):
        groups.append(replace(group, offset=offset))
        rows.append(seek_row(frame, group.size_bytes))
        offset += len(frame)
        yield frame
        progress.advance(group.size_bytes)

    text = encode_index(Index(contents.head, tuple(groups), contents.failures))
    index, _ = write_members([SourceFile.from_content(INDEX_NAME, text)])
    for content in (index, END_OF_ARCHIVE):
        frame = compress(content, contents.head.level)
        rows.append(seek_row(frame, len(content)))
        yield frame
    yield encode_seek_table(rows)


def _pack(head: Head, source: SourceGroup) -> tuple[StoredGroup, bytes]:
    """Make the frame of a group, and describe it with offset 0, which the caller replaces."""
    check_names(head.kind, source.scene_id, [file.name for file in source.files])
    content, members = write_members(source.files)
    frame = compress(content, head.level)
    group = StoredGroup(
        scene_id=source.scene_id,
        split=source.split,
        vertex_count=source.vertex_count,
        offset=0,
        stored_bytes=len(frame),
        size_bytes=len(content),
        members=members,
    )
    return group, frame
