"""Archives for tests: packed trees, forgeries that no honest program writes, and damage."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from commands import TEST, TRAIN, VAL, Outcome, run_main

from scannet_prep.archive import layout, open_archive, tar
from scannet_prep.archive.frames import compress, encode_seek_table, seek_row, seek_table_bytes
from scannet_prep.archive.opened import Archive
from scannet_prep.archive.shards import shard_path
from scannet_prep.archive.writer import ArchiveBytes
from scannet_prep.base.files import write_atomically
from scannet_prep.base.json import encode_json
from scannet_prep.stages.pack import find_contents
from scannet_prep.stages.selection import Selection

# The names of a raw tree, with arbitrary content. The zeros compress so well that they are stored.
TREE = {
    "scannetv2-labels.combined.tsv": b"of no scene",
    "empty": b"",
    f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply": b"first" * 500,
    f"scans/{TRAIN}/{TRAIN}.txt": b"",
    f"scans/{VAL}/{VAL}_vh_clean_2.ply": bytes(2_000_000),
    f"scans_test/{TEST}/{TEST}_vh_clean_2.ply": b"test" * 128,
    "scene0022_00/scene0022_00.aggregation.json": b"not in scans",
}


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files by name, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def read_tree(folder: Path) -> dict[str, bytes]:
    """Read all files by name, without those that an archive adds for itself."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(folder / ".scannet-prep"):
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def pack_tree(folder: Path, archive_path: Path, level: int = 1) -> Archive:
    """Pack a folder and open the archive."""
    write_atomically(archive_path, ArchiveBytes(find_contents(folder, Selection(), level=level)))
    return open_archive(archive_path)


def pack_shards(folder: Path, target: Path, shard_bytes: int) -> list[Path]:
    """Pack a folder as shards, which may be smaller than the command makes them."""
    parts = find_contents(folder, Selection()).split(shard_bytes)
    paths = [shard_path(target, number, len(parts)) for number in range(len(parts))]
    for part, path in zip(parts, paths, strict=True):
        write_atomically(path, ArchiveBytes(part))
    return paths


def unpack_file(archive: Path, *words: str | Path) -> Outcome:
    """Run `unpack ARCHIVE`."""
    return run_main("unpack", archive, *words)


def unpack_pipe(archive: Path, *words: str | Path) -> Outcome:
    """Run `unpack -` with the archive on standard input."""
    with archive.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        return run_main("unpack", "-", *words)


HEAD = layout.Head(layout.ArchiveKind.RAW, notice="a notice", program="a test")
Files = Sequence[tuple[str, bytes]]


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Join frames, and append their seek table."""
    return b"".join([*frames, encode_seek_table([seek_row(frame) for frame in frames])])


def pad_file(name: str, data: bytes) -> bytes:
    """Make the tar bytes of one file."""
    return (tar.encode_header(name, len(data)) + data).ljust(tar.member_bytes(len(data)), b"\0")


@dataclass
class Forgery:
    """An archive in the making.

    Attributes:
        frames: The frames before the index.
        index: The text of the index.
    """

    frames: list[bytes]
    index: bytes

    def join(self) -> bytes:
        """Return the bytes of the archive, with a correct seek table."""
        index_frame = compress(pad_file(layout.INDEX_NAME, self.index), 1)
        end_frame = compress(tar.END_OF_ARCHIVE, 1)
        return join_frames([*self.frames, index_frame, end_frame])


def forge(
    path: Path,
    scenes: Sequence[tuple[str, Files]],
    *,
    head: layout.Head = HEAD,
    others: Files = (),
    contents: Mapping[str, bytes] = MappingProxyType({}),
    edit: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Forgery:
    """Write an archive without any of the checks of the program.

    Args:
        path: The archive.
        scenes: Scene ids with their files.
        head: The head of the archive.
        others: Further files that belong to no scene.
        contents: Tar bytes to store instead of those of a scene, by its id.
        edit: Changes the index.
    """
    format_file = (layout.FORMAT_NAME, encode_json(head) + b"\n")
    groups: list[layout.StoredGroup] = []
    frames: list[bytes] = []
    offset = 0
    for scene_id, files in [("", [format_file, *others]), *scenes]:
        content = b""
        members = []
        for name, data in files:
            sha256 = hashlib.sha256(data).hexdigest()
            members.append(tar.Member(name, len(content) + 512, len(data), sha256))
            content += pad_file(name, data)
        frame = compress(contents.get(scene_id, content), 1)
        group = layout.StoredGroup(
            scene_id=scene_id,
            split="train" if scene_id else "",
            vertex_count=0,
            offset=offset,
            stored_bytes=len(frame),
            size_bytes=len(content),
            members=tuple(members),
        )
        groups.append(group)
        frames.append(frame)
        offset += len(frame)

    index = json.loads(layout.encode_index(layout.Index(head, tuple(groups))))
    edit(index)
    forgery = Forgery(frames, json.dumps(index, separators=(",", ":")).encode())
    path.write_bytes(forgery.join())
    return forgery


def find_parts(path: Path) -> dict[str, tuple[int, int]]:
    """Find the first byte of each part of an archive, and the byte after it.

    Returns:
        The scenes by id, `files`, `index`, `end` and `table`.
    """
    archive = open_archive(path)
    groups = archive.index.groups
    size_bytes = archive.source.size_bytes
    table = size_bytes - seek_table_bytes(len(groups) + 2)
    end = table - len(compress(tar.END_OF_ARCHIVE, 1))
    parts = {group.scene_id or "files": (group.offset, group.end) for group in groups}
    parts["index"] = (groups[-1].end, end)
    parts["end"] = (end, table)
    parts["table"] = (table, size_bytes)
    return parts


def flip(path: Path, offset: int, bit: int = 2) -> Path:
    """Flip one bit of a file, and return its path."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return path


def flip_middle(path: Path, part: str) -> Path:
    """Flip a bit in the middle of a part of an archive, see `find_parts`."""
    return flip(path, sum(find_parts(path)[part]) // 2)
