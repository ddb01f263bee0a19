"""Archives for tests, other programs' ways to open them, and archives that no honest program writes."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from commands import TEST, TRAIN, VAL, Outcome
from commands import run_main as call

from scannet_prep.archive import layout, open_archive
from scannet_prep.archive.frames import compress, encode_seek_table, seek_row
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.source import shard_path
from scannet_prep.archive.writer import iter_archive
from scannet_prep.base.files import write_atomically
from scannet_prep.base.typed_json import encode_json
from scannet_prep.stages.pack import find_contents
from scannet_prep.stages.selection import Selection

# A raw tree by its names, with content that is none.
TREE = {
    "scannetv2-labels.combined.tsv": b"of no scene",
    "empty": b"",
    f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply": b"first" * 500,
    f"scans/{TRAIN}/{TRAIN}.txt": b"",
    f"scans/{VAL}/{VAL}_vh_clean_2.ply": bytes(2_000_000),  # compresses so well that it is stored
    f"scans_test/{TEST}/{TEST}_vh_clean_2.ply": b"test" * 128,
    "scene0022_00/scene0022_00.aggregation.json": b"not in scans",
}


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def pack_tree(folder: Path, archive_path: Path, level: int = 1) -> Archive:
    """Pack a folder and open the archive."""
    write_atomically(archive_path, iter_archive(find_contents(folder, Selection(), level=level)))
    return open_archive(archive_path)


def pack_shards(folder: Path, target: Path, shard_bytes: int) -> list[Path]:
    """Pack a folder as shards, which may be smaller than the command makes them."""
    parts = find_contents(folder, Selection()).split(shard_bytes)
    paths = [shard_path(target, number, len(parts)) for number in range(len(parts))]
    for part, path in zip(parts, paths, strict=True):
        write_atomically(path, iter_archive(part))
    return paths


def unpack_pipe(archive: Path, *words: object) -> Outcome:
    """Run `unpack -`, which reads an archive from stdin."""
    with archive.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        return call("unpack", "-", *words)


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files by name, without what an archive adds for itself."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_relative_to(folder / ".scannet-prep")
    }


HEAD = layout.Head(layout.ArchiveKind.RAW, notice="a notice", program="a test")
Files = Sequence[tuple[str, bytes]]


def pad_file(name: str, data: bytes) -> bytes:
    return (layout.encode_header(name, len(data)) + data).ljust(
        layout.member_bytes(len(data)), b"\0"
    )


@dataclass
class Forgery:
    """An archive in the making: the frames before the index, and its text."""

    frames: list[bytes]
    index: bytes

    def join(self) -> bytes:
        """All of it, with a seek table that is right."""
        last = pad_file(layout.INDEX_NAME, self.index), layout.END_OF_ARCHIVE
        frames = [*self.frames, *(compress(data, 1) for data in last)]
        return b"".join([*frames, encode_seek_table(list(map(seek_row, frames)))])


def forge(
    path: Path,
    scenes: Sequence[tuple[str, Files]],
    *,
    head: layout.Head = HEAD,
    others: Files = (),
    contents: Mapping[str, bytes] = MappingProxyType({}),
    edit: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Forgery:
    """Write an archive of scene ids with their files; `contents` are tar bytes to store in place of those of a scene.

    `others` are further files that belong to no scene; `edit` changes the index.
    """
    groups, frames = list[layout.StoredGroup](), list[bytes]()
    for scene_id, files in [
        ("", [(layout.FORMAT_NAME, encode_json(head) + b"\n"), *others]),
        *scenes,
    ]:
        content, members = b"", list[layout.Member]()
        for name, data in files:
            members.append(
                layout.Member(name, len(content) + 512, len(data), hashlib.sha256(data).hexdigest())
            )
            content += pad_file(name, data)
        stored, offset = compress(contents.get(scene_id, content), 1), sum(map(len, frames))
        split = "train" if scene_id else ""
        groups.append(
            layout.StoredGroup(
                scene_id, split, 0, offset, len(stored), len(content), tuple(members)
            )
        )
        frames.append(stored)
    value = json.loads(layout.encode_index(layout.Index(head, tuple(groups))))
    edit(value)
    forgery = Forgery(frames, json.dumps(value, separators=(",", ":")).encode())
    path.write_bytes(forgery.join())
    return forgery


def find_parts(path: Path) -> dict[str, tuple[int, int]]:
    """Where the parts of an archive lie: scenes by id, `files`, `index`, `end` and `table`."""
    archive = open_archive(path)
    groups = archive.index.groups
    size = archive.source.size_bytes
    parts = {group.scene_id or "files": (group.offset, group.end) for group in groups}
    table = size - len(encode_seek_table([])) - 12 * (len(groups) + 2)
    end = table - len(compress(layout.END_OF_ARCHIVE, 1))
    return parts | {"index": (groups[-1].end, end), "end": (end, table), "table": (table, size)}


def flip(path: Path, offset: int, bit: int = 2) -> Path:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return path
