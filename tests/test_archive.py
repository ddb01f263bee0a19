"""The archive: what other programs read of it, damage, forgeries, and files that are none."""

import io
import os
import pickle
import random
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard
from archives import (
    TREE,
    Bytes,
    flip_scene,
    forge,
    join_frames,
    pack_tree,
    read_tree,
    span,
    unpack_file,
    unpack_pipe,
)
from commands import PYTHON, TRAIN, VAL, limited_memory, run_main, run_words
from extras import needing

from scannet_prep import ScanNet
from scannet_prep.archive.format import Archive, Owner
from scannet_prep.archive.seekable import CHECKSUM_BYTES, compress, decompress, encode_members
from scannet_prep.archive.sources import FileSource
from scannet_prep.archive.streaming import PipedArchive
from scannet_prep.errors import ArchiveError, ContentError

PAGE = Path(__file__).parents[1] / "docs/archive.md"
SCENE = f"scans/{TRAIN}/{TRAIN}"


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
            for member in reversed(tar.getmembers()):
                tar.extract(member, out_dir, filter="data")
    files = read_tree(out_dir)
    del files[".scannet-prep/index.json"]
    assert files == TREE


def test_frames_are_in_the_order_of_the_page_and_python_opens_them(packed):
    """Python 3.14 opens `.tar.zst` itself; zstandard stands for it in older versions."""
    with packed.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            names = [member.name for member in tar]
    scenes = sorted(set(TREE) - {"empty", "scannetv2-labels.combined.tsv"}, key=os.path.basename)
    others = ["empty", "scannetv2-labels.combined.tsv"]
    assert names == [".scannet-prep/index.json", *others, *scenes]
    archive = Archive(FileSource(packed))
    assert [scene.split for scene in archive.index.scenes] == ["train", "val", "train", "test"]
    for scene in archive.index.scenes:
        start, end = span(packed, scene.scene_id)
        parameters = zstandard.get_frame_parameters(archive.source.read(start, end - start))
        assert (parameters.content_size, parameters.has_checksum) == (scene.size_bytes, True)
    assert read_as_pipe(packed.read_bytes()) == (TREE, 0)


def test_part_of_a_frame_is_damaged():
    frame = compress(b"words " * 900, 1)
    assert decompress(frame) == b"words " * 900
    # Readers know the size of a frame, and so whether it has its checksum.
    for size in range(len(frame) - CHECKSUM_BYTES):
        with pytest.raises(ContentError):
            decompress(frame[:size])


def test_reader_on_the_page_finds_a_scene_without_this_program(packed_dir, tmp_path):
    page = PAGE.read_text()
    (code,) = re.findall(r"```python\n(import io\n.*?)```", page, re.DOTALL)
    assert "scannet_prep" not in code
    (tmp_path / "data").mkdir()
    os.link(packed_dir / "processed.tar.zst", tmp_path / "data/scannet.tar.zst")
    outcome = run_words(PYTHON, "-c", code.replace("scene0191_00", TRAIN), cwd=tmp_path)
    assert outcome.stdout == f"train/{TRAIN}.npz (600, 3)\n", outcome.stderr


def read_by_index(data):
    """Read what is intact with the index; return it, and the number of damaged groups."""
    files = {}
    damaged = 0
    try:
        archive = Archive(Bytes(data))
    except ArchiveError:
        return files, None
    for scene_id in list_ids(archive):
        try:
            files.update(archive.read(scene_id))
        except ArchiveError:
            damaged += 1
    return files, damaged


def list_ids(archive):
    return ["", *(scene.scene_id for scene in archive.index.scenes)]


def read_as_pipe(data):
    """Read what is intact in order; return it, and the number of damaged groups."""
    files = {}
    damaged = 0
    try:
        archive = PipedArchive(io.BytesIO(data), "a pipe")
    except ArchiveError:
        return files, None
    for scene_id in list_ids(archive):
        try:
            files.update(archive.read(scene_id))
        except ArchiveError:
            damaged += 1
    return files, damaged


def test_no_flipped_bit_and_no_lost_end_ever_gives_a_wrong_file(tmp_path):
    rng = random.Random(0)
    expected = {}
    for name in [*TREE, f"{SCENE}_random"]:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        expected[name] = rng.randbytes(rng.randrange(500)) + b"words " * rng.randrange(900)
        path.write_bytes(expected[name])
    archive = pack_tree(tmp_path / "tree", tmp_path / "a.tar.zst")
    data = (tmp_path / "a.tar.zst").read_bytes()
    assert read_by_index(data) == (expected, 0)
    assert read_as_pipe(data) == (expected, 0)

    spans = {scene_id: span(tmp_path / "a.tar.zst", scene_id) for scene_id in list_ids(archive)}
    first, last = spans[""][0], spans[archive.index.scenes[-1].scene_id][1]
    harmless = 0
    for offset in range(len(data)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << rng.randrange(8)
        files, damaged = read_by_index(bytes(flipped))
        files_of_pipe, damaged_of_pipe = read_as_pipe(bytes(flipped))
        assert files.items() <= expected.items()
        assert files_of_pipe.items() <= expected.items()
        if first <= offset < last:
            # Only in a pipe can damage hide where the frames after it begin.
            assert damaged in (0, 1)
            assert damaged_of_pipe >= damaged
        elif offset >= last:
            # The end of the tar stream and the seek table, which a pipe does not need.
            assert damaged_of_pipe == 0
        harmless += damaged == 0
        assert damaged != 0 or files == expected
        assert damaged_of_pipe != 0 or files_of_pipe == expected
    # A few bits of zstd's frames mean nothing.
    assert harmless < len(data) / 100

    # Without the flag for a checksum in the header of a frame, no byte is trusted.
    for start, _ in spans.values():
        flipped = bytearray(data)
        flipped[start + 4] ^= 0b100
        assert read_by_index(bytes(flipped))[1] == 1

    for size in range(0, len(data), 50):
        assert read_by_index(data[:size]) == ({}, None)
        whole = [scene_id for scene_id, (_, end) in spans.items() if end <= size]
        files, _ = read_as_pipe(data[:size])
        assert files == {name: data for key in whole for name, data in archive.read(key).items()}


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        (f"train/{TRAIN}.npz", Owner("processed", TRAIN, "train")),
        ("test/my-room.npz", Owner("processed", "my-room", "test")),
        (f"scans/{VAL}/{VAL}.txt", Owner("raw", VAL, "val")),
        (f"{VAL}/{VAL}.txt", Owner("raw", VAL, "val")),
        ("scans_test/scene0999_00/scene0999_00.txt", Owner("raw", "scene0999_00", "")),
        ("scans/scene0999_00/scene0999_00.txt", Owner("raw", "scene0999_00", "")),
        ("scans/my-room/my-room_vh_clean_2.ply", Owner("raw", "my-room", "train")),
        ("scans_test/my-room/my-room_vh_clean_2.ply", Owner("raw", "my-room", "test")),
        ("manifest.json", Owner()),
        ("tasks/limited-bboxes.zip", Owner()),
        (".scannet-prep/index.json", Owner("index")),
    ],
)
def test_owner_of_a_file_is_found_by_its_name(name, owner):
    assert Owner.from_name(name) == owner


HOSTILE_NAMES = [
    "../x", "/etc/x", "tasks/../../x", f"scans/{TRAIN}/../x", f"{SCENE}.txt/x", "a\\b", "a\0b",
    f"scans/{TRAIN}/x.txt", f"scans/{TRAIN}/{TRAIN}.d/x", "x/y", ".hidden", "", ".", "con", "x.",
    "NUL.txt", "com1", "tasks/aux", "a:b", "é", "a b", ".scannet-prep/x", "my-room/my-room.txt",
]  # fmt: skip


def test_file_of_a_hostile_name_has_no_owner():
    assert [name for name in HOSTILE_NAMES if Owner.from_name(name) is not None] == []
    assert Owner.from_name(f"{SCENE}.txt\n") is None


def header_of(name, **fields):
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT)


TXT = f"{SCENE}.txt"
FORGERIES = {
    "name outside": (forge([("", {}), (TRAIN, {"../../evil": b"x"})]), "evil"),
    "name of another scene": (
        forge([("", {}), (TRAIN, {f"scans/{VAL}/{VAL}.txt": b""})]),
        f"{VAL}|other",
    ),
    "processed file": (forge([("", {}), (TRAIN, {f"train/{TRAIN}.npz": b""})]), "npz|other"),
    "scene in the first frame": (forge([("", {TXT: b""})]), f"{TXT}|other"),
    "case variants": (forge([("", {"Readme": b"", "readme": b""})]), "same name"),
    "link": (
        forge([("", {}), (TRAIN, header_of(TXT, type=tarfile.SYMTYPE, linkname="/etc"))]),
        "not a plain file",
    ),
    "long name": (
        forge([("", {}), (TRAIN, header_of(TXT, type=tarfile.GNUTYPE_LONGNAME))]),
        "not a plain file",
    ),
    "program": (forge([("", {}), (TRAIN, header_of(TXT, mode=0o4777))]), "not a plain file"),
    "negative size": (
        forge([("", {}), (TRAIN, encode_members({TXT: b""})[:124] + b"\xff" * 12 + bytes(376))]),
        "tar header",
    ),
    "file that is cut off": (forge([("", {}), (TRAIN, header_of(TXT, size=5000))]), "whole|early"),
    "same scene twice": (
        forge([("", {}), (TRAIN, {TXT: b""}), (TRAIN, {TXT: b""})]),
        "same id|two",
    ),
    "no checksum": (
        join_frames(
            [zstandard.ZstdCompressor().compress(encode_members({"x.txt": b"x"}))],
            {"kind": "raw", "version": 1},
        ),
        "no checksum",
    ),
    "newer version": (forge([("", {}), (TRAIN, {TXT: b""})], version=2), "another version"),
    "no index": (join_frames([compress(b"", 1)] * 3, b"{}"), "version|index"),
}


@pytest.mark.parametrize("unpack", [unpack_file, unpack_pipe])
@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_is_an_error_and_nothing_is_written_outside(name, unpack, tmp_path):
    data, message = FORGERIES[name]
    (tmp_path / "a.tar.zst").write_bytes(data)
    outcome = unpack(tmp_path / "a.tar.zst", "-o", tmp_path / "1/out")
    assert outcome.status in (1, 3)
    assert re.search(message, outcome.stderr), outcome.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"a.tar.zst", "1"}
    assert "Traceback" not in outcome.stderr


def test_small_hostile_archive_takes_no_memory_and_no_time(tmp_path):
    """Frames of zeros that declare a wrong size, a huge size, or no size."""
    zeros = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(bytes(1 << 29))
    header = encode_members({TXT: b""})
    bombs = {
        "wrong size": forge([("", {}), (TRAIN, header)]).replace(compress(header, 1), zeros),
        "huge member": forge([("", {}), (TRAIN, header_of(TXT, size=(1 << 33) - 1))]),
        "huge index": join_frames([compress(b"", 1)], b" " * (1 << 25)),
        "no size": zstandard.ZstdCompressor(write_content_size=False).compress(header) + zeros,
    }
    with limited_memory(1 << 30):
        for data in bombs.values():
            assert len(data) < 100_000
            assert read_by_index(data)[1] != 0
            assert read_as_pipe(data)[1] != 0


OTHER_TAR = compress(encode_members({"x.txt": b"x"}) + bytes(1024), 3)
NO_ARCHIVES = {
    "empty": (b"", "is empty"),
    "page": (b"<!DOCTYPE html><html>", "is a web page"),
    "zip": (b"PK\x03\x04" + bytes(100), "is a zip file"),
    "gzip": (b"\x1f\x8b" + bytes(100), "is a gzip file"),
    "text": (b"some text", "is a file of another kind"),
    "zstd": (OTHER_TAR, "scannet-prep did not make it"),
}


@pytest.mark.parametrize("name", NO_ARCHIVES)
def test_file_that_is_no_archive_is_named_by_each_reader(name, tmp_path):
    data, message = NO_ARCHIVES[name]
    path = tmp_path / "a.tar.zst"
    path.write_bytes(data)
    for words in (["info", path], ["verify", path], ["unpack", path, "-o", tmp_path / "out"]):
        outcome = run_main(*words)
        assert outcome.status == 1
        assert f"error: {path}: {message}" in outcome.stderr or message in outcome.stderr
    with pytest.raises(ArchiveError, match=message):
        ScanNet(path, split="train")
    assert not (tmp_path / "out").exists()


def test_places_that_cannot_be_read_are_named(packed, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "pipe": "is a named pipe, expected a file",
        "missing.tar.zst": "no such file",
    }.items():
        outcome = run_main("unpack", tmp_path / name)
        assert (outcome.status, message in outcome.stderr) == (1, True), outcome.stderr

    archive = pickle.loads(pickle.dumps(Archive(FileSource(packed))))
    packed.write_bytes(packed.read_bytes() + b"x")
    with pytest.raises(ArchiveError, match="was replaced or changed since it was opened"):
        archive.read()


def test_frame_of_an_archive_that_replaced_this_one_is_refused(packed, tmp_path):
    """The other archive has frames of the same sizes, and is intact."""
    source = Bytes(packed.read_bytes())
    archive = Archive(source)
    other = TREE | {f"scans_test/{name}": b"next" * 128 for name in ()}
    assert archive.read(TRAIN)
    tree = tmp_path / "other"
    for name, data in other.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data.replace(b"first", b"fir5t"))
    pack_tree(tree, tmp_path / "b.tar.zst")
    source.data = (tmp_path / "b.tar.zst").read_bytes()
    assert len(source.data) == source.size_bytes
    with pytest.raises(ArchiveError, match=f"{TRAIN}: is damaged: .* not the one"):
        archive.read(TRAIN)


def test_dataset_names_a_damaged_scene_and_reads_the_others(archive_path):
    flip_scene(archive_path, TRAIN)
    dataset = ScanNet(archive_path, split="train")
    with pytest.raises(ArchiveError, match=f"{TRAIN}: is damaged"):
        dataset[0]
    assert len(ScanNet(archive_path, split="val")[0]["points"]) == 600
