"""No flipped bit of an archive, and no lost end, ever becomes a wrong file."""

import io
import pickle
import random

from scannet_prep.archive.format import Archive, Index, Owner
from scannet_prep.archive.sources import FileSource
from scannet_prep.archive.streaming import FileGroup, check_groups, encode_archive, read_in_order
from scannet_prep.errors import ArchiveError


class Bytes:
    name = "bytes in memory"

    def __init__(self, data):
        self.data = data
        self.size_bytes = len(data)

    def read(self, offset, size, /):
        return self.data[offset : offset + size]


def make_groups(folder):
    """Write files of five scenes, which compress well, hardly or not at all, and group them."""
    rng = random.Random(0)
    groups = []
    for scene_id in ("", *(f"scene000{number}_00" for number in range(5))):
        names = ["label-map.tsv", "empty"]
        if scene_id:
            names = [
                f"scans/{scene_id}/{scene_id}{suffix}" for suffix in (".ply", ".txt", "_empty")
            ]
        paths = {}
        for name in sorted(names):
            paths[name] = folder / name
            paths[name].parent.mkdir(parents=True, exist_ok=True)
            content = rng.randbytes(rng.randrange(700)) + b"words " * rng.randrange(900)
            paths[name].write_bytes(b"" if name.endswith("empty") else content)
        owner = Owner.from_name(names[0])
        groups.append(FileGroup(owner, 0, paths, sum(p.stat().st_size for p in paths.values())))
    return groups


def read_by_index(data):
    """Read what is intact with the index; return it, and the number of damaged groups."""
    files = {}
    damaged = 0
    try:
        archive = Archive(Bytes(data))
    except ArchiveError:
        return files, None
    for group in archive.index.groups:
        try:
            files.update(archive.read(group))
        except ArchiveError:
            damaged += 1
    return files, damaged


def read_as_pipe(data):
    """Read what is intact in order; return it, and whether damage was found."""
    files = {}
    try:
        for _, group in read_in_order(io.BytesIO(data), "a pipe"):
            files.update(group)
    except ArchiveError:
        return files, True
    return files, False


def test_damage_costs_at_most_its_scene_by_the_index_and_never_gives_a_wrong_file(tmp_path):
    groups = make_groups(tmp_path)
    check_groups(groups)
    index = Index("raw", None, "", 0, {}, ())

    def encode(jobs):
        pieces = encode_archive(index, groups, level=1, jobs=jobs, advance=lambda _: None)
        return b"".join(pieces)

    data = encode(jobs=1)
    assert data == encode(jobs=5)
    expected = {}
    for group in groups:
        expected |= group.read()
    assert read_by_index(data) == (expected, 0)
    assert read_as_pipe(data) == (expected, False)

    path = tmp_path / "a.tar.zst"
    path.write_bytes(data)
    archive = pickle.loads(pickle.dumps(Archive(FileSource(path))))
    copied = {}
    for group in archive.index.groups:
        copied.update(archive.read(group))
    assert copied == expected

    rng = random.Random(1)
    scenes_end = archive.index.groups[-1].offset + archive.index.groups[-1].stored_bytes
    for offset in range(len(data)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << rng.randrange(8)
        files, damaged = read_by_index(bytes(flipped))
        assert files.items() <= expected.items()
        if offset < scenes_end:
            assert damaged in (0, 1), offset
        # A few bits of zstd's headers mean nothing: then no file differs.
        assert damaged != 0 or files == expected
        files, is_damaged = read_as_pipe(bytes(flipped))
        assert files.items() <= expected.items()
        assert is_damaged or files == expected

    for end in range(0, len(data), 50):
        assert read_by_index(data[:end]) == ({}, None)
        files, _ = read_as_pipe(data[:end])
        assert files.items() <= expected.items()
        # All scenes that are followed by another frame are there.
        whole = [group for group in archive.index.groups if group.offset + group.stored_bytes < end]
        assert len(files) >= sum(len(archive.read(group)) for group in whole[:-1])
