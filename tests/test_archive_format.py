"""Any flipped bit is found and pinned, any truncation is counted right, and no hostile archive does harm."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from archive_parts import Parts
from archives import pack_tree, write_tree
from scannet_prep.archive.walk import FoundGroup, Gap, walk_groups
from scannet_prep.stages.verify.archive_report import ArchiveReport

from scannet_prep.archive import compression, open_archive
from scannet_prep.archive.source import FileSource
from scannet_prep.stages.verify import archive as verify_archive

FLIPS = 2000
WORKER_PATH = Path(__file__).with_name("hostile_archive_worker.py")


@pytest.fixture
def archive_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A few kilobytes with all that an archive can have: a long name, empty files, a scene of several frames."""
    rng = random.Random(7)
    files = {"notes/ümlaut.txt": b"x" * 600, "empty.txt": b""}
    files |= {f"train/scene{number:04d}_00.npz": rng.randbytes(60) + bytes(400) for number in range(3)}
    files["scans/scene0001_00/scene0001_00.txt"] = rng.randbytes(3000)
    monkeypatch.setattr(compression, "MAX_FRAME_BYTES", 2048)
    monkeypatch.setattr(compression, "_CUT_BYTES", 1024)
    path = tmp_path / "whole.tar.zst"
    with pack_tree(write_tree(tmp_path / "tree", files), path) as archive:
        assert [group.frame_count for group in archive.index.groups] == [4, 1, 5, 1]
    return path


def check(data: bytes, path: Path, *, is_quick: bool = False) -> ArchiveReport:
    path.write_bytes(data)
    (report,) = verify_archive.run(verify_archive.plan([path], is_quick=is_quick)).archives
    return report


def damage(report: ArchiveReport) -> list[str]:
    return [*report.damaged_scenes, *map(str, report.damaged_parts)]


def flip(data: bytes, offset: int, bit: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :]


def test_an_archive_as_it_was_written_is_whole(archive_path: Path, tmp_path: Path) -> None:
    data = archive_path.read_bytes()
    for is_quick in (False, True):
        report = check(data, tmp_path / "copy.tar.zst", is_quick=is_quick)
        assert report.whole_scenes == ("scene0000_00", "scene0001_00", "scene0002_00")
        assert (damage(report), report.findings, report.resume_offset) == ([], (), None)


def test_every_flipped_bit_is_found_and_pinned_to_its_scene_or_part(archive_path: Path, tmp_path: Path) -> None:
    parts, data, rng = Parts.of(archive_path), archive_path.read_bytes(), random.Random(11)
    tail_start = parts.bounds[-3][1]
    for number in range(FLIPS):
        # The end is where most is at stake, and least of the bytes.
        offset = rng.randrange(tail_start if number % 2 else 0, len(data))
        bit = rng.randrange(8)
        report = check(flip(data, offset, bit), tmp_path / "flipped.tar.zst")
        name = parts.part_at(offset)
        assert damage(report) == [name], (offset, bit, report.findings)
        assert len(report.whole_scenes) == 3 - name.startswith("scene"), (offset, bit)
        assert not report.is_truncated, (offset, bit)


def test_a_file_that_ends_at_any_byte_has_the_right_number_of_whole_scenes(archive_path: Path, tmp_path: Path) -> None:
    parts, data = Parts.of(archive_path), archive_path.read_bytes()
    for size in range(len(data)):
        report = check(data[:size], tmp_path / "cut.tar.zst")
        whole = [name for name, _, end in parts.bounds if name.startswith("scene") and end <= size]
        assert list(report.whole_scenes) == whole, size
        assert report.is_truncated, size
        assert damage(report) == [], size
        assert report.resume_offset == max(end for _, _, end in (("", 0, 0), *parts.bounds) if end <= size), size
        assert len(report.findings) == 1, size


def test_a_transfer_that_goes_on_where_verify_says_ends_in_a_whole_archive(archive_path: Path, tmp_path: Path) -> None:
    data = archive_path.read_bytes()
    for size in range(700, len(data), 700):
        # What a broken connection leaves may end in bytes that never were in the archive.
        report = check(data[:size] + b"\0" * 100, tmp_path / "cut.tar.zst")
        assert report.resume_offset is not None
        kept = (data[:size] + b"\0" * 100)[: report.resume_offset]
        assert kept == data[: len(kept)], size


@pytest.mark.parametrize("part", ["index", "end", "seek table"])
def test_a_damaged_end_and_a_damaged_scene_are_told_apart(archive_path: Path, tmp_path: Path, part: str) -> None:
    parts, data = Parts.of(archive_path), archive_path.read_bytes()
    bounds = {name: (start, end) for name, start, end in parts.bounds}
    for place in range(5, 260, 50):
        damaged = flip(flip(data, bounds["scene0002_00"][1] - place % 90 - 1, 3), bounds[part][0] + place % 110, 5)
        report = check(damaged, tmp_path / "both.tar.zst")
        assert part in report.damaged_parts
        assert report.whole_scenes == ("scene0000_00", "scene0001_00")
        assert set(report.damaged_scenes) <= {"scene0002_00"}  # without an index it may have no name any more
        assert len(report.findings) == 2


@pytest.mark.parametrize("number", [0, 1], ids=["of one frame", "of several frames"])
def test_a_truncated_file_with_a_damaged_scene_keeps_the_others(
    archive_path: Path, tmp_path: Path, number: int
) -> None:
    parts, data = Parts.of(archive_path), archive_path.read_bytes()
    name, start, end = parts.bounds[1 + number]
    index_start = parts.bounds[-3][1]
    others = {f"scene{other:04d}_00" for other in range(3)} - {name}
    ignored_count = 0
    for offset in range(start, end, 1 + 6 * number):
        report = check(flip(data, offset, offset % 8)[: index_start + 50], tmp_path / "cut.tar.zst")
        assert set(report.whole_scenes) - {name} == others, offset
        assert set(report.damaged_scenes) <= {name}, offset
        assert report.is_truncated, offset
        is_ignored = name in report.whole_scenes  # zstd ignores a few bits; the files are right all the same
        assert (report.resume_offset == start) is not is_ignored, offset
        ignored_count += is_ignored
    assert ignored_count < 10


def test_of_a_scene_of_several_frames_only_those_are_read_that_hold_the_file(archive_path: Path) -> None:
    class CountingSource(FileSource):
        def read(self, offset: int, size: int, /) -> bytes:
            offsets.append(offset)
            return super().read(offset, size)

    offsets: list[int] = []
    with open_archive(CountingSource(archive_path)) as archive:
        group = archive.index.groups[2]
        for member in group.members:
            offsets.clear()
            data = archive.read_member(group, member)
            assert data == (archive_path.with_name("tree") / member.name).read_bytes()
            assert len(offsets) == {3000: 4, 460: 2}[member.size_bytes]


def test_bytes_after_the_end_are_found(archive_path: Path, tmp_path: Path) -> None:
    report = check(archive_path.read_bytes() + b"\0", tmp_path / "longer.tar.zst")
    assert damage(report) == ["seek table"]
    assert "followed by 1 bytes" in report.findings[0].message


def test_an_index_that_is_written_in_another_way_is_found(archive_path: Path, tmp_path: Path) -> None:
    parts = Parts.of(archive_path)
    assert parts.joined() == archive_path.read_bytes()
    for other in (
        json.dumps(json.loads(parts.index)).encode(),
        parts.index + b"\n",
        parts.index.replace(b'"id":"scene0000_00"', b'"id":"scene0009_00","id":"scene0000_00"'),
    ):
        report = check(parts.with_index(other), tmp_path / "other.tar.zst")
        assert damage(report) == ["index"]
        assert len(report.whole_scenes) == 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("train/scene0000_00.npz", "train/scene0000_00.npy", "but the index says 'train/scene0000_00.npy'"),
        ('",512,460,', '",512,461,', "461 bytes"),
        ('"sha256":"', '"sha256":"0', "sha256"),
        ('"stored_crc32":', '"stored_crc32":1', "CRC-32 of its frames"),
    ],
)
def test_an_index_that_says_other_things_than_the_frames_is_found(
    archive_path: Path, tmp_path: Path, old: str, new: str, words: str
) -> None:
    parts = Parts.of(archive_path)
    start = parts.index.index(b'"id":"scene0000_00"')
    changed = parts.index[:start] + parts.index[start:].replace(old.encode(), new.encode(), 1)
    assert changed != parts.index
    report = check(parts.with_index(changed), tmp_path / "other.tar.zst")
    assert report.damaged_scenes == ("scene0000_00",)
    assert words in report.findings[0].message


def test_frames_that_are_exchanged_in_the_table_only_are_of_the_table(archive_path: Path, tmp_path: Path) -> None:
    parts = Parts.of(archive_path)
    # The sixth and seventh are of the same scene, so that all sums stay as they were.
    rows = list(parts.rows)
    rows[6], rows[7] = (rows[6][0] + 1, *rows[6][1:]), (rows[7][0] - 1, *rows[7][1:])
    report = check(replace(parts, rows=tuple(rows)).joined(), tmp_path / "other.tar.zst")
    assert damage(report) == ["seek table"]


def test_hostile_archives_give_errors_of_ours_within_bounds_of_time_and_memory(archive_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", WORKER_PATH, archive_path, "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert not result["faults"], "\n".join(result["faults"][:40])
    assert result["files"] >= 900
    assert result["refused"] >= 700


def test_the_walk_goes_on_behind_a_frame_that_a_damaged_header_leads_out_of_the_file(archive_path: Path) -> None:
    parts, data = Parts.of(archive_path), bytearray(archive_path.read_bytes())
    _, start, end = parts.bounds[1]
    header_bytes = 7  # magic number, descriptor, two bytes of size
    data[start + header_bytes : start + header_bytes + 3] = (100_000 << 3).to_bytes(3, "little")

    def read_at(offset: int, size: int) -> bytes:
        return bytes(data[offset : offset + size])

    first, gap, *others = walk_groups(read_at, len(data))
    assert isinstance(first, FoundGroup)
    assert isinstance(gap, Gap)
    assert (gap.offset, gap.end, bool(gap.problem)) == (start, end, True)
    assert [isinstance(item, FoundGroup) for item in others] == [True] * 4
