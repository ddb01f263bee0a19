"""The archive: a plain `.tar.zst` that any tool opens, with random access and digests. See the README for its bytes."""

from __future__ import annotations

from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.index import ArchiveKind, GroupEntry, Head, Index, MemberEntry
from scannet_prep.archive.reader import Archive, open_archive
from scannet_prep.archive.writer import WrittenArchive, write_archive

__all__ = [
    "Archive",
    "ArchiveKind",
    "Contents",
    "GroupEntry",
    "Head",
    "Index",
    "MemberEntry",
    "SourceFile",
    "SourceGroup",
    "WrittenArchive",
    "open_archive",
    "write_archive",
]
