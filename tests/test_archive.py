"""Archives: reading them with other programs, damage, forgeries, and files of other kinds."""

import io
import os
import pickle
import random
import re
import subprocess
import tarfile

import pytest
import zstandard
from commands import (
    TRAIN,
    TREE,
    VAL,
    fail,
    limited_memory,
    needing,
    pack_tree,
    read_tree,
    run_main,
    span,
    unpack_file,
    unpack_pipe,
    write_tree,
)

from scannet_prep import ScanNet
from scannet_prep.archive import frames
from scannet_prep.archive.format import INDEX_NAME, Archive, find_owner, open_archive
from scannet_prep.archive.writing import compress, encode_members
from scannet_prep.base.json import encode_json
from scannet_prep.errors import ArchiveError, FileError, MissingFileError
from scannet_prep.source.place import PackedScenes, open_place


class Bytes:
    """An archive in memory, as a source of bytes."""

    name = "bytes in memory"

    def __init__(self, data):
        self.data = self.end = data
        self.size_bytes = len(data)

    def read(self, offset, size, /):
        return self.data[offset : offset + size]


def join_frames(scenes, index, others=b""):
    """Join frames of an archive, and make what comes before and after them.

    Args:
        scenes: The frames of the scenes.
        index: The text of the index, or a value to be encoded.
        others: The tar bytes of the files of no scene.
    """
    text = index if isinstance(index, bytes) else encode_json(index)
    first = compress(encode_members({INDEX_NAME: text}) + others, 1)
    whole = [first, *scenes, compress(frames.END_OF_TAR, 1)]
    return b"".join(whole) + frames.encode_seek_table([*map(frames.find_row, whole)])


def forge(files, others=b"", **facts):
    """Make an archive of a raw scene without any of the checks of the program.

    Args:
        files: The files of the scene by name, or its tar bytes.
        others: The tar bytes of the files of no scene.
        facts: Further keys of the index.
    """
    content = files if isinstance(files, bytes) else encode_members(files)
    return join_frames([compress(content, 1)], INDEX | facts, others)


# The index of a raw tree with one scene.
INDEX = {
    "kind": "raw",
    "scenes": [{"scene_id": TRAIN, "split": "train", "size_bytes": 1}],
    "version": 2,
}
SCENE = f"scans/{TRAIN}/{TRAIN}"
TXT = f"{SCENE}.txt"


@pytest.mark.parametrize("program", needing("zstd", "bsdtar", "indexed_zstd"))
def test_other_programs_read_the_same_tree(program, packed, tmp_path):
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    if program == "zstd":
        subprocess.run(["zstd", "-q", "-t", packed], check=True)
        subprocess.run(["tar", "--zstd", "-xf", packed, "-C", out_dir], check=True)
    elif program == "bsdtar":
        subprocess.run(["bsdtar", "-xf", packed, "-C", out_dir], check=True)
    else:
        import indexed_zstd

        with indexed_zstd.IndexedZstdFile(str(packed)) as file, tarfile.open(fileobj=file) as tar:
            # Python 3.11.2 cannot filter what it extracts.
            members = reversed(tar.getmembers())
            write_tree(out_dir, {each.name: tar.extractfile(each).read() for each in members})
    files = read_tree(out_dir)
    del files[".scannet-prep/index.json"]
    assert files == TREE


def test_frames_are_in_the_order_of_the_page_and_python_opens_them(packed):
    """Python 3.14 opens `.tar.zst` itself; zstandard stands for it in older versions."""
    with packed.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            names = [member.name for member in tar]
    others = ["empty", "scannetv2-labels.combined.tsv"]
    scenes = sorted(TREE.keys() - others, key=os.path.basename)
    assert names == [".scannet-prep/index.json", *others, *scenes]


def by_index(data):
    return frames.SeekableFrames(Bytes(data))


def as_pipe(data):
    return frames.PipedFrames(io.BytesIO(data))


def read_intact(way, data):
    """Read what is intact; return it, and the number of damaged groups, None for all of them."""
    damaged = 0
    try:
        archive = Archive(way(data))
    except FileError:
        return {}, None
    files = dict(archive.others)
    for scene in archive.index.scenes:
        try:
            files.update(archive.iter_files(scene.scene_id))
        except ArchiveError:
            damaged += 1
    if way is by_index:
        try:
            PackedScenes(archive).verify_rest()
        except ArchiveError:
            damaged += 1
    return files, damaged


def test_no_flipped_bit_and_no_lost_end_ever_gives_a_wrong_file(tmp_path):
    rng = random.Random(0)
    expected = {}
    for name in [*TREE, f"{SCENE}_vh_clean.ply"]:
        expected[name] = rng.randbytes(rng.randrange(500)) + b"words " * rng.randrange(900)
    archive = pack_tree(write_tree(tmp_path / "tree", expected), tmp_path / "a.tar.zst")
    data = (tmp_path / "a.tar.zst").read_bytes()
    assert read_intact(by_index, data) == read_intact(as_pipe, data) == (expected, 0)

    scene_ids = ["", *(scene.scene_id for scene in archive.index.scenes)]
    spans = {scene_id: span(tmp_path / "a.tar.zst", scene_id) for scene_id in scene_ids}
    first, last = spans[""][1], spans[scene_ids[-1]][1]
    for offset in range(len(data)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << rng.randrange(8)
        for way in (by_index, as_pipe):
            files, damaged = read_intact(way, bytes(flipped))
            assert files.items() <= expected.items()
            assert damaged != 0 or files == expected
            # A pipe hides what comes after damage, and does not need the seek table.
            assert way is as_pipe or not first <= offset < last or damaged in (0, 1)
            assert way is by_index or offset < last or damaged == 0
            # The size of the end of the tar stream, which holds no file, and the seek table.
            assert way is as_pipe or offset < last + 5 or damaged != 0

    # Without the flag for a checksum in the header of a frame, no byte is trusted.
    for scene_id, (start, _) in spans.items():
        flipped = bytearray(data)
        flipped[start + 4] ^= 0b100
        assert read_intact(by_index, bytes(flipped))[1] == (1 if scene_id else None)
        assert not any(scene_id in name for name in read_intact(as_pipe, bytes(flipped))[0])

    for size in range(0, len(data), 50):
        assert read_intact(by_index, data[:size]) == ({}, None)
        whole = dict(archive.others) if size >= first else {}
        for scene_id in scene_ids[1:]:
            if spans[scene_id][1] <= size:
                whole.update(archive.iter_files(scene_id))
        assert read_intact(as_pipe, data[:size])[0] == whole


OWNERS = [
    ("processed", f"train/{TRAIN}.npz", TRAIN),
    ("processed", "test/my-room.npz", "my-room"),
    ("processed", "manifest.json", ""),
    ("raw", f"scans/{VAL}/{VAL}.txt", VAL),
    ("raw", f"{VAL}/{VAL}.txt", VAL),
    ("raw", "scans_test/my-room/my-room_vh_clean_2.ply", "my-room"),
    ("raw", "tasks/limited-bboxes.zip", ""),
]
HOSTILE_NAMES = [
    "../x", "/etc/x", "tasks/../../x", f"scans/{TRAIN}/../x", f"{SCENE}.txt/x", "a\\b", "a\0b",
    f"scans/{TRAIN}/x.txt", f"scans/{TRAIN}/{TRAIN}.d/x", ".hidden", "",
    "é:b", ".scannet-prep/x", "my-room/my-room.txt", f"{SCENE}.txt\n", "train/../x.npz",
    "scans/" + "r" * 90 + "/" + "r" * 90 + "_vh_clean_2.ply"
]  # fmt: skip


def test_scene_of_a_file_is_found_by_its_name_and_a_hostile_name_has_none():
    for kind, name, scene_id in OWNERS:
        assert find_owner(kind, name) == scene_id
    for kind in ("processed", "raw"):
        assert not [name for name in HOSTILE_NAMES if find_owner(kind, name) is not None]
    # The files of frames have any names, in folders with any names.
    assert find_owner("frames", f"{TRAIN}/..") is find_owner("frames", f"{TRAIN}/a/../x") is None


def header_of(name, **fields):
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT)


NEGATIVE_SIZE = encode_members({TXT: b""})[:124] + b"\xff" * 12 + bytes(376)
FORGERIES = {
    "name outside": (forge({"../../evil": b"x"}), "evil"),
    "name of another scene": (forge({f"scans/{VAL}/{VAL}.txt": b""}), VAL),
    "scene in the first frame": (forge({}, encode_members({TXT: b""})), TXT),
    "link": (forge(header_of(TXT, type=tarfile.SYMTYPE, linkname="/etc")), "tar headers"),
    "program": (forge(header_of(TXT, mode=0o4777)), "tar headers"),
    "negative size": (forge(NEGATIVE_SIZE), "tar headers"),
    "file that is cut off": (forge(header_of(TXT, size=1)), "whole"),
    "frame without its checksum": (
        join_frames([compress(encode_members({TXT: b""}), 1)[:-4]], INDEX),
        "cannot be decompressed",
    ),
    "older version": (forge({TXT: b""}, version=1), "this version .*version.*\n.*pack it again"),
    "endless index": (join_frames([], b'{"x":' + b"[" * 99_999), "recursion"),
    "no index": (join_frames([compress(b"", 1)] * 3, b"{}"), "kind"),
    "too few frames": (join_frames([], INDEX), "lists other frames|tar headers"),
    "too many frames": (join_frames([compress(b"", 1)] * 2, INDEX), "lists other frames"),
}


@pytest.mark.parametrize("unpack", [unpack_file, unpack_pipe])
@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_is_an_error_and_nothing_is_written_outside(name, unpack, tmp_path):
    data, message = FORGERIES[name]
    (tmp_path / "a.tar.zst").write_bytes(data)
    outcome = unpack(tmp_path / "a.tar.zst", "-o", tmp_path / "1/out")
    # A pipe is read in order, and needs no seek table.
    if unpack is unpack_file or name != "too many frames":
        assert outcome.status in (1, 3)
        assert re.search(message, outcome.stderr), outcome.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"a.tar.zst", "1"}
    assert "Traceback" not in outcome.stderr


def test_unknown_split_and_scene_without_its_file_are_no_bugs(packed_dir, tmp_path):
    path = tmp_path / "a.tar.zst"
    path.write_bytes(forge({TXT: b""}, scenes=[INDEX["scenes"][0] | {"split": "more"}]))
    assert run_main("info", path, "--json").json["splits"]["more"]["scenes"] == 1
    archive = open_archive(packed_dir / "processed.tar.zst")
    empty = [compress(b"", 1)] * 3
    path.write_bytes(join_frames(empty, archive.index, encode_members(archive.others)))
    with pytest.raises(FileError, match="is truncated"):
        ScanNet(path, split="train")[0]


def test_small_hostile_archive_takes_no_memory_and_no_time(packed, monkeypatch):
    """A frame of a wrong size, a huge file, a huge index, and a frame without its size."""
    zeros = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(bytes(1 << 29))
    header = encode_members({TXT: b""})
    bombs = [
        forge(header).replace(compress(header, 1), zeros),
        forge(header_of(TXT, size=(1 << 33) - 1)),
        join_frames([compress(b"", 1)], b" " * (1 << 25)),
        zstandard.ZstdCompressor(write_content_size=False).compress(header) + zeros,
    ]
    with limited_memory(1 << 30):
        for data in bombs:
            assert len(data) < 100_000
            assert read_intact(by_index, data)[1] != 0
            assert read_intact(as_pipe, data)[1] != 0
    # The scene of zeros is too large then.
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1_000_000)
    for way in (by_index, as_pipe):
        assert read_intact(way, packed.read_bytes())[1] > 0


OTHER_TAR = compress(encode_members({"x.txt": b"x"}) + bytes(1024), 3)
NO_ARCHIVES = {
    b"": "is empty",
    b"<!DOCTYPE html><html>": "is a web page",
    b"PK\x03\x04" + bytes(100): "is a zip file",
    b"\x1f\x8b" + bytes(100): "is a gzip file",
    b"some text": "is a file of another kind",
    OTHER_TAR: "is a zstd file",
}


def test_file_that_is_no_archive_is_named(tmp_path):
    path = tmp_path / "a.tar.zst"
    for data, kind in NO_ARCHIVES.items():
        path.write_bytes(data)
        fail(1, f"error: {path}: {kind}, expected a whole archive of", "info", path)
        with pytest.raises(ArchiveError, match=kind):
            ScanNet(path, split="train")


def test_large_files_of_no_scene_are_not_sent_to_workers(tree, tmp_path):
    write_tree(tree, {"tasks/points.zip": bytes(10_000_000)})
    pack_tree(tree, tmp_path / "large.tar.zst")
    place = open_place(tmp_path / "large.tar.zst")
    assert len(pickle.dumps(place)) < 100_000
    assert pickle.loads(pickle.dumps(place)).verify(TRAIN) == []


def test_seek_table_that_is_longer_than_the_end_is_read_by_itself(packed, monkeypatch):
    expected = open_archive(packed)
    monkeypatch.setattr(frames, "_END_BYTES", 50)
    # As long as the header of a frame.
    monkeypatch.setattr(frames, "_PIECE_BYTES", 18)
    assert read_intact(as_pipe, packed.read_bytes())[1] == 0
    archive = open_archive(packed)
    assert dict(archive.iter_files(VAL)) == dict(expected.iter_files(VAL))


def test_frame_that_begins_beyond_4_gib_is_read(tmp_path):
    size_bytes = 0xFFFF_FFFF
    frame = compress(b"scene", 1)
    with (tmp_path / "a.tar.zst").open("wb") as file:
        file.seek(size_bytes)
        file.write(frame + frames.encode_seek_table([[size_bytes, 0, 0], frames.find_row(frame)]))
    assert frames.SeekableFrames(frames.open_source(file.name)).read(1) == b"scene"


def test_frame_of_an_archive_that_replaced_this_one_is_refused(packed, tmp_path):
    """The other archive has frames of the same sizes, and is intact. An equal copy is the same."""
    archive = pickle.loads(pickle.dumps(open_archive(packed)))
    packed.write_bytes(packed.read_bytes())
    assert dict(archive.iter_files(TRAIN))
    other = {name: data.replace(b"first", b"fir5t") for name, data in TREE.items()}
    pack_tree(write_tree(tmp_path / "other", other), tmp_path / "b.tar.zst")
    size_bytes = packed.stat().st_size
    assert (tmp_path / "b.tar.zst").replace(packed).stat().st_size == size_bytes
    with pytest.raises(ArchiveError, match=f"(?s){TRAIN}: is damaged: .* not the one.*unpack A"):
        list(archive.iter_files(TRAIN))
    packed.unlink()
    with pytest.raises(MissingFileError, match=f"^{packed}: no such file"):
        list(archive.iter_files(TRAIN))
