"""The archive: a plain `.tar.zst` that any tool opens, with random access and a digest of every file.

    +--------------------------------+  frame 0: the files that belong to no scene
    | .scannet-prep/format.json      |    what the archive is: kind, program, options, terms
    | TERMS.txt, manifest.json, ...  |
    +--------------------------------+  frames 1..n: one for each scene, sorted by id
    | train/scene0000_00.npz         |    of a raw tree: all files of the scene
    +--------------------------------+
    | ...                            |
    +--------------------------------+  frame n + 1
    | .scannet-prep/index.json       |    where each scene lies; name, offset, size and SHA-256 of each file
    +--------------------------------+  frame n + 2
    | 1,024 zeros                    |    the end of the tar stream
    +--------------------------------+  skippable frame
    | seek table                     |    stored size, size and checksum of each frame above
    +--------------------------------+

Every frame is a zstd frame that states the size of its content and ends in a checksum of it. Its content is tar: a
header of 512 bytes for each file, the file, zeros up to the next multiple of 512. So all frames together are one tar
file. The seek table is that of zstd's seekable format, and other readers of it find any byte.
"""

from __future__ import annotations

from scannet_prep.archive.reader import Archive as open_archive  # noqa: N813 - called like the function `open`

__all__ = ["open_archive"]
