"""Archives that no honest program writes: any tar bytes, any index, and everything around them right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.archive import ArchiveKind, Group, Head, Index, Member, open_archive
from scannet_prep.archive.frames import FrameRow, compress, encode_seek_table
from scannet_prep.archive.layout import (
    END_OF_ARCHIVE,
    FORMAT_NAME,
    INDEX_NAME,
    encode_header,
    encode_index,
    padding_bytes,
)
from scannet_prep.typed_json import encode_json

HEAD = Head(ArchiveKind.RAW, "a notice", {}, "a test", 1)
Files = Sequence[tuple[str, bytes]]


def tar_bytes(files: Files) -> tuple[bytes, tuple[Member, ...]]:
    content, members = b"", []
    for name, data in files:
        content += encode_header(name, len(data))
        members.append(Member(name, len(content), len(data), hashlib.sha256(data).hexdigest()))
        content += data + bytes(padding_bytes(len(data)))
    return content, tuple(members)


@dataclass
class Forgery:
    """An archive in the making: size of the content and bytes of the frames before the index, and its text."""

    frames: list[tuple[int, bytes]]
    index: bytes

    def join(self, rows: list[FrameRow] | None = None) -> bytes:
        """All of it, with a seek table that is right, or one of other rows."""
        content = encode_header(INDEX_NAME, len(self.index)) + self.index + bytes(padding_bytes(len(self.index)))
        frames = [*self.frames, (len(content), compress(content, 1)), (1024, compress(END_OF_ARCHIVE, 1))]
        right = [FrameRow(len(stored), size_bytes, stored[-4:]) for size_bytes, stored in frames]
        return b"".join(stored for _, stored in frames) + encode_seek_table(right if rows is None else rows)


def forge(
    path: Path,
    scenes: Sequence[tuple[str, Files]],
    files: Files = (),
    *,
    head: Head = HEAD,
    contents: dict[str, bytes] | None = None,
    edit: Callable[[dict[str, Any]], object] | None = None,
) -> Forgery:
    """Write an archive of scene ids with their files, and of those that belong to no scene.

    `contents` are tar bytes to store in place of those of a scene ("" for the files); `edit` changes the index.
    """
    groups, frames, offset = list[Group](), list[tuple[int, bytes]](), 0
    for scene_id, items in [("", [(FORMAT_NAME, encode_json(head) + b"\n"), *files]), *scenes]:
        content, members = tar_bytes(items)
        real = (contents or {}).get(scene_id, content)
        stored = compress(real, 1)
        split = "train" if scene_id else ""
        groups.append(Group(scene_id, split, 0, offset, len(stored), len(content), members))
        frames.append((len(real), stored))
        offset += len(stored)
    text = encode_index(Index(head, tuple(groups)))
    if edit is not None:
        value = json.loads(text)
        edit(value)
        text = json.dumps(value).encode()
    forgery = Forgery(frames, text)
    path.write_bytes(forgery.join())
    return forgery


def find_parts(path: Path) -> dict[str, tuple[int, int]]:
    """Where the parts of an archive lie: scenes by id, `files`, `index`, `end` and `table`."""
    with open_archive(path) as archive:
        groups = archive.index.groups
        size = archive.source.size_bytes
    parts = {group.scene_id or "files": (group.offset, group.end) for group in groups}
    table = size - len(encode_seek_table([])) - 12 * (len(groups) + 2)
    end = table - len(compress(END_OF_ARCHIVE, 1))
    return parts | {"index": (groups[-1].end, end), "end": (end, table), "table": (table, size)}


def flip(path: Path, offset: int, bit: int = 2) -> Path:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return path
