"""Archives for tests: packed trees, forgeries that no honest program writes, and damage."""

import sys

import pytest
from commands import TEST, TRAIN, VAL, run_main

from scannet_prep.archive.format import INDEX_NAME, open_archive
from scannet_prep.archive.seekable import (
    END_OF_TAR,
    compress,
    encode_members,
    encode_seek_table,
    find_row,
    read_seek_table,
)
from scannet_prep.archive.sources import FileSource
from scannet_prep.base.json import encode_json
from scannet_prep.stages import pack

# The names of a raw tree, with arbitrary content.
TREE = {
    "scannetv2-labels.combined.tsv": b"of no scene",
    "empty": b"",
    f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply": b"first" * 500,
    f"scans/{TRAIN}/{TRAIN}.txt": b"",
    f"scans/{VAL}/{VAL}_vh_clean_2.ply": bytes(2_000_000),
    f"scans_test/{TEST}/{TEST}_vh_clean_2.ply": b"test" * 128,
    "scene0022_00/scene0022_00.aggregation.json": b"not in scans",
}


class Bytes:
    """An archive in memory, as a source of bytes."""

    name = "bytes in memory"

    def __init__(self, data):
        self.data = data
        self.size_bytes = len(data)

    def read(self, offset, size, /):
        return self.data[offset : offset + size]


def write_tree(folder, files):
    """Write files by name, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def read_tree(folder):
    """Read all files by name."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def pack_tree(folder, archive_path, level=1):
    """Pack a folder and open the archive."""
    pack.run(folder, archive_path, level=level, is_forced=True)
    return open_archive(archive_path)


def unpack_file(archive, *words, **options):
    """Run `unpack ARCHIVE`."""
    return run_main("unpack", archive, *words, **options)


def unpack_pipe(archive, *words, **options):
    """Run `unpack -` with the archive on standard input."""
    with archive.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", type("Stdin", (), {"buffer": file, "isatty": bool}))
        return run_main("unpack", "-", *words, **options)


def join_frames(frames, index):
    """Join frames of an archive, and make what comes before and after them.

    Args:
        frames: The frames.
        index: The text of the index, or a value to be encoded.
    """
    text = index if isinstance(index, bytes) else encode_json(index)
    first = compress(encode_members({INDEX_NAME: text}), 1)
    frames = [first, *frames, compress(END_OF_TAR, 1)]
    return b"".join(frames) + encode_seek_table([find_row(frame) for frame in frames])


def forge(groups, kind="raw", **facts):
    """Make an archive without any of the checks of the program.

    Args:
        groups: The scene id of each group, and its files by name, or its tar bytes.
        kind: The kind of the tree.
        facts: Further keys of the index.
    """
    frames = []
    entries = []
    for scene_id, files in groups:
        content = files if isinstance(files, bytes) else encode_members(files)
        frames.append(compress(content, 1))
        entries.append({"scene_id": scene_id, "split": "train", "size_bytes": len(content)})
    return join_frames(frames, {"kind": kind, "scenes": entries[1:], "version": 1} | facts)


def flip(path, offset, bit=2):
    """Flip one bit of a file, and return its path."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return path


def flip_scene(path, scene_id=VAL):
    """Flip a bit in the middle of a scene, or of the files of no scene for an empty id."""
    offset, end = span(path, scene_id)
    return flip(path, (offset + end) // 2)


def span(path, scene_id=""):
    """Find the first byte of the frame of a scene, or of the files of no scene, and its end."""
    scene_ids = [None, "", *(scene.scene_id for scene in open_archive(path).index.scenes)]
    sizes = [row[0] for row in read_seek_table(FileSource(path)).tolist()]
    number = scene_ids.index(scene_id)
    return sum(sizes[:number]), sum(sizes[: number + 1])
