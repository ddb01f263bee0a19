"""The archive: a `.tar.zst` that any tool opens, with random access and a digest of every file.

    +--------------------------------+  frame 0: the files that belong to no scene
    | .scannet-prep/format.json      |    the head: kind, program, options, terms
    | TERMS.txt, manifest.json, ...  |
    +--------------------------------+  frames 1..n: one for each scene, sorted by id
    | train/scene0000_00.npz         |    of a raw tree: all files of the scene
    +--------------------------------+
    | ...                            |
    +--------------------------------+  frame n + 1
    | .scannet-prep/index.json       |    offset of each scene; name, offset, size, SHA-256 of files
    +--------------------------------+  frame n + 2
    | 1,024 zeros                    |    the end of the tar stream
    +--------------------------------+  skippable frame
    | seek table                     |    stored size, size and checksum of each frame above
    +--------------------------------+

Every frame is a zstd frame that records the size of its content and ends with a checksum of it. The
content is tar: for each file a header of 512 bytes, the file, and zeros up to the next multiple of
512. All contents together are one tar file. The seek table is that of zstd's seekable format, so
other readers of that format find any byte.

The journeys, each drawn in the first module that it enters:

    pack      writer -> contents, tar, frames
    one file  opened -> byte_source, frames, tar
    unpack    archive_set -> groups -> opened -> frames, tar    by the index
              archive_set -> groups -> frames, tar              without it, from first to last
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannet_prep.archive.byte_source import Place
    from scannet_prep.archive.opened import Archive

__all__ = ["open_archive"]


def open_archive(place: Place, *, certificates: bool | Path = True) -> Archive:
    """Open an archive by its index.

    Args:
        place: A path, an address, or a `ByteSource`.
        certificates: Certificate authorities to trust for servers; see `RangeSource`.

    Raises:
        ArchiveError: It is truncated, damaged at its end, or was written by another program.
        ScanNetPrepError: See `open_bytes`.
    """
    # Imported here: identifying a path needs no zstandard.
    from scannet_prep.archive.byte_source import open_bytes
    from scannet_prep.archive.opened import Archive

    return Archive(open_bytes(place, certificates=certificates))
