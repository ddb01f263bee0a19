"""Archives that no honest program writes: any tar bytes, any index, and everything around them right."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scannet_prep.archive.frames import checksum_of, compress_frame, store_frame
from scannet_prep.archive.index import (
    FORMAT_NAME,
    INDEX_NAME,
    ArchiveKind,
    GroupEntry,
    Head,
    MemberEntry,
    encode_group,
    encode_head,
    encode_index,
)
from scannet_prep.archive.seek_table import encode_seek_table
from scannet_prep.archive.tar import END_OF_ARCHIVE, encode_header, padding_bytes

HEAD = Head(ArchiveKind.FILES, "a notice", {}, "a test", 3)
Files = Sequence[tuple[str, bytes]]


def tar_bytes(files: Files) -> tuple[bytes, tuple[MemberEntry, ...]]:
    content, members = b"", []
    for name, data in files:
        content += encode_header(name, len(data))
        members.append(MemberEntry(name, len(content), len(data), zlib.crc32(data)))
        content += data + bytes(padding_bytes(len(data)))
    return content, tuple(members)


def special_member(name: str, kind: bytes, target: str = "") -> bytes:
    """The tar header of a link, a device or a folder."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def forge(
    path: Path,
    scenes: Sequence[tuple[str, Files]],
    files: Files = (),
    *,
    contents: dict[str, bytes] | None = None,
    edit: Callable[[dict[str, Any]], object] | None = None,
) -> Path:
    """Write an archive.

    Args:
        path: Where.
        scenes: Scene ids with their files.
        files: The files that belong to no scene.
        contents: Tar bytes to store in place of those of a scene ("" for the files); the index stays.
        edit: Changes the index.
    """
    frames: list[tuple[int, int, bytes]] = []
    stored_all, lines = b"", []
    for scene_id, members in [("", [(FORMAT_NAME, encode_head(HEAD)), *files]), *scenes]:
        content, entries = tar_bytes(members)
        content = (contents or {}).get(scene_id, content)
        stored = compress_frame(content, 3)
        digest = hashlib.sha256(content).hexdigest()
        lines.append(
            encode_group(
                GroupEntry(
                    scene_id, "train" if scene_id else "", 0, len(frames), 1, len(stored_all), len(stored),
                    zlib.crc32(stored), len(content), digest, entries,
                )
            )
        )  # fmt: skip
        frames.append((len(stored), len(content), checksum_of(stored)))
        stored_all += stored
    text = encode_index(HEAD, lines[0], lines[1:], {})
    if edit is not None:
        value = json.loads(text)
        edit(value)
        text = json.dumps(value).encode()
    index = encode_header(INDEX_NAME, len(text)) + text + bytes(padding_bytes(len(text)))
    for content in (index, END_OF_ARCHIVE):
        stored = store_frame(content)
        frames.append((len(stored), len(content), checksum_of(stored)))
        stored_all += stored
    path.write_bytes(stored_all + encode_seek_table(frames))
    return path
