"""Damaged, truncated and malicious archives: intact scenes are recovered, nothing else."""

import os
import random
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import (
    HEAD,
    Forgery,
    find_parts,
    flip,
    forge,
    join_frames,
    pack_tree,
    pad_file,
    read_tree,
    unpack_file,
    unpack_pipe,
    write_tree,
)
from commands import TEST, TRAIN, VAL, Outcome, run_main

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.archive.byte_source import ByteSource, FileSource, PipeSource
from scannet_prep.archive.frames import compress, decompress
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.layout import INDEX_NAME, ArchiveKind, Head
from scannet_prep.archive.tar import END_OF_ARCHIVE, encode_header
from scannet_prep.archive.threads import Threads
from scannet_prep.errors import ArchiveError
from scannet_prep.stages import unpack
from scannet_prep.stages.unpack import UnpackReport

BOTH_WAYS = pytest.mark.parametrize("way", ["file", "pipe"])
UNPACK_BOTH_WAYS = pytest.mark.parametrize(
    "unpack_it", [unpack_file, unpack_pipe], ids=["file", "pipe"]
)


def text_name(scene_id: str) -> str:
    return f"scans/{scene_id}/{scene_id}.txt"


IDS = [f"scene000{number}_00" for number in range(4)]
EXPECTED = {text_name(scene_id): bytes([number]) * 3000 for number, scene_id in enumerate(IDS)}
SCENES = [(scene_id, [(text_name(scene_id), EXPECTED[text_name(scene_id)])]) for scene_id in IDS]


def unpack_from(way: str, archive: Path, out_dir: Path) -> UnpackReport:
    """Unpack an archive, read as a file or as a pipe."""
    with archive.open("rb") as file:
        place = archive if way == "file" else PipeSource(file.fileno())
        return unpack.run([place], out_dir, jobs=2)


def left_in(out_dir: Path) -> dict[str, bytes]:
    """Read the unpacked files, without the list of failures."""
    files = read_tree(out_dir)
    files.pop("failed.txt", None)
    return files


EIGHT_IDS = [f"scene{number:04}_00" for number in range(8)]
WHOLE = {"note": b"n"}
_dice = random.Random(0)
for _scene_id in EIGHT_IDS:
    WHOLE[text_name(_scene_id)] = _dice.randbytes(2000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a raw tree of eight scenes."""
    folder = tmp_path_factory.mktemp("damage")
    pack_tree(write_tree(folder / "source", WHOLE), folder / "a.tar.zst")
    return folder / "a.tar.zst"


def copy_of(archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(archive, tmp_path / "a.tar.zst"))


PARTS = ["files", *EIGHT_IDS, "index", "end", "table"]


class TestFlips:
    """Archives with a random bit flipped in one part."""

    @pytest.fixture(params=[*PARTS, "index", "table", "files"])
    def part(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def flipped(
        self, part: str, request: pytest.FixtureRequest, whole: Path, tmp_path: Path
    ) -> Path:
        dice = random.Random(request.node.name)
        offset = dice.randrange(*find_parts(whole)[part])
        return flip(copy_of(whole, tmp_path), offset, dice.randrange(8))

    @BOTH_WAYS
    def test_flip_never_gives_a_wrong_byte(self, way: str, flipped: Path, tmp_path: Path) -> None:
        with suppress(ArchiveError):
            unpack_from(way, flipped, tmp_path / "out")

        assert left_in(tmp_path / "out").items() <= WHOLE.items()

    def test_flip_costs_at_most_its_part_of_a_file(
        self, part: str, flipped: Path, tmp_path: Path
    ) -> None:
        report = unpack_from("file", flipped, tmp_path / "out")

        left = left_in(tmp_path / "out")
        costs = {text_name(part)} if part in EIGHT_IDS else {"note"}
        assert WHOLE.keys() - left.keys() <= costs
        if part in EIGHT_IDS:
            assert {failure.scene_id for failure in report.failures} <= {part}
            is_reported = bool(report.failures or report.damages)
            assert is_reported == (left != WHOLE)


@pytest.mark.parametrize("part", ["index", "end", "table"])
def test_flip_after_the_scenes_costs_a_pipe_no_scene(
    part: str, whole: Path, tmp_path: Path
) -> None:
    dice = random.Random(part)
    offset = dice.randrange(*find_parts(whole)[part])
    archive = flip(copy_of(whole, tmp_path), offset, dice.randrange(8))

    unpack_from("pipe", archive, tmp_path / "out")

    assert WHOLE.keys() - left_in(tmp_path / "out").keys() <= {"note"}


@BOTH_WAYS
@pytest.mark.parametrize("seed", range(12))
def test_replaced_removed_and_inserted_bytes_never_give_a_wrong_byte(
    seed: int, way: str, whole: Path, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    data = bytearray(whole.read_bytes())
    for _ in range(dice.randrange(1, 4)):
        start = dice.randrange(len(data))
        old_size = dice.choice((0, 1, 30))
        new_size = dice.choice((0, 1, 30))
        data[start : start + old_size] = dice.randbytes(new_size)
    (tmp_path / "a.tar.zst").write_bytes(data)

    with suppress(ArchiveError):
        unpack_from(way, tmp_path / "a.tar.zst", tmp_path / "out")

    assert left_in(tmp_path / "out").items() <= WHOLE.items()


HARMLESS = [
    "stored size in the table",
    "size in the table",
    "checksum in the table",
    "flags of the footer",
    "number of frames in the footer",
    "checksum of a scene",
    "checksum of the end",
]


class TestHarmlessDamage:
    """Damage that affects no file: in the seek table, its footer, and checksums of frames."""

    @pytest.fixture(params=HARMLESS)
    def archive(self, request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> Path:
        parts = find_parts(whole)
        table_start, table_end = parts["table"]
        # The table begins with a header of 8 bytes; this is its third row of 12 bytes.
        row = table_start + 8 + 2 * 12
        offsets = dict(
            zip(
                HARMLESS,
                (
                    row,
                    row + 5,
                    row + 9,
                    table_end - 2,
                    table_end - 6,
                    parts["scene0003_00"][1] - 1,
                    parts["end"][1] - 1,
                ),
                strict=True,
            )
        )
        return flip(copy_of(whole, tmp_path), offsets[request.param])

    def test_unpack_recovers_every_file_with_a_warning(self, archive: Path, tmp_path: Path) -> None:
        report = unpack.run([archive], tmp_path / "out")

        assert report.failures == ()
        assert report.damages == ()
        assert len(report.warnings) >= 1
        assert read_tree(tmp_path / "out") == WHOLE


@BOTH_WAYS
def test_bytes_after_the_end_are_a_warning(way: str, whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    (tmp_path / "a.tar.zst").write_bytes(data + data)

    report = unpack_from(way, tmp_path / "a.tar.zst", tmp_path / "out")

    assert len(report.scenes) == 8
    assert any("something follows" in warning for warning in report.warnings)


def choose_cuts(group_ends: list[int]) -> list[int]:
    """Choose sizes to which an archive is truncated: near the ends of frames, and random ones."""
    first = group_ends[0]
    last = group_ends[-1]
    dice = random.Random(2)
    return [
        first,
        first + 3,
        group_ends[4] + 10,
        group_ends[5] - 1,
        group_ends[5],
        last - 1,
        last,
        last + 9,
        dice.randrange(first, last),
        dice.randrange(first, last),
        dice.randrange(first, last),
    ]


class TestTruncated:
    @pytest.fixture(params=range(11))
    def cut(self, request: pytest.FixtureRequest, whole: Path) -> int:
        return choose_cuts([group.end for group in open_archive(whole).index.groups])[request.param]

    @pytest.fixture
    def short(self, cut: int, whole: Path, tmp_path: Path) -> Path:
        (tmp_path / "short.tar.zst").write_bytes(whole.read_bytes()[:cut])
        return tmp_path / "short.tar.zst"

    @BOTH_WAYS
    def test_all_complete_scenes_of_a_truncated_archive_are_recovered(
        self, way: str, cut: int, short: Path, whole: Path, tmp_path: Path
    ) -> None:
        scenes = open_archive(whole).index.scenes
        complete = {scene.scene_id for scene in scenes if scene.end <= cut}

        report = unpack_from(way, short, tmp_path / "out")

        assert set(report.scenes) == complete
        assert report.damages
        names = {"note", *map(text_name, complete)}
        assert left_in(tmp_path / "out") == {name: WHOLE[name] for name in names}

    def test_verify_of_a_truncated_archive_fails(self, short: Path) -> None:
        assert run_main("verify", short).status in {1, 3}


class TestTruncatedProcessedArchive:
    """A processed archive begins with its manifest, which names the missing scenes."""

    @pytest.fixture
    def cut(self, packed_dir: Path, tmp_path: Path) -> Path:
        archive = packed_dir / "processed.tar.zst"
        start, end = find_parts(archive)[VAL]
        (tmp_path / "cut.tar.zst").write_bytes(archive.read_bytes()[: (start + end) // 2])
        return tmp_path / "cut.tar.zst"

    @UNPACK_BOTH_WAYS
    def test_missing_scenes_are_listed(
        self, unpack_it: Callable[..., Outcome], cut: Path, tmp_path: Path
    ) -> None:
        outcome = unpack_it(cut, "-o", tmp_path / "out", "--json")

        assert outcome.status == 3
        failed = [failure["scene_id"] for failure in outcome.json["failures"]]
        assert failed == [VAL, TEST]
        lines = rf"^failed: 2\n  {VAL}: .*\n  {TEST}: .*\nhint: copy"
        assert re.search(lines, outcome.stderr, re.MULTILINE)

    def test_dataset_reads_the_recovered_scenes(self, cut: Path, tmp_path: Path) -> None:
        assert unpack_file(cut, "-o", tmp_path / "out").status == 3

        with pytest.warns(UserWarning, match="failed"):
            assert ScanNet(tmp_path / "out", split="train").scene_ids == [TRAIN]

    def test_failed_list_completes_the_folder_from_an_intact_copy(
        self, cut: Path, packed_dir: Path, tmp_path: Path
    ) -> None:
        assert unpack_file(cut, "-o", tmp_path / "out").status == 3

        words = ("-o", tmp_path / "out", "--scenes", f"@{tmp_path / 'out/failed.txt'}")
        assert unpack_file(packed_dir / "processed.tar.zst", *words).status == 0

        assert run_main("verify", tmp_path / "out").status == 0


class TestOverwrittenFrame:
    @pytest.fixture
    def archive(self, whole: Path, tmp_path: Path) -> Path:
        """An archive with zeros instead of the frame of one scene."""
        start, end = find_parts(whole)["scene0005_00"]
        data = whole.read_bytes()
        (tmp_path / "a.tar.zst").write_bytes(data[:start] + bytes(end - start) + data[end:])
        return tmp_path / "a.tar.zst"

    def test_overwritten_frame_costs_a_file_its_scene(self, archive: Path, tmp_path: Path) -> None:
        assert len(unpack_from("file", archive, tmp_path / "out").scenes) == 7

    def test_overwritten_frame_costs_a_pipe_all_later_scenes(
        self, archive: Path, tmp_path: Path
    ) -> None:
        report = unpack_from("pipe", archive, tmp_path / "out")

        assert len(report.scenes) == 5
        assert "is truncated or damaged after byte" in report.damages[0]


@pytest.mark.parametrize("offset", [13, 600], ids=["name", "content"])
def test_damaged_scene_of_a_pipe_is_named_by_the_index(
    offset: int, whole: Path, tmp_path: Path
) -> None:
    start, _ = find_parts(whole)["scene0005_00"]
    archive = flip(copy_of(whole, tmp_path), start + offset)

    report = unpack_from("pipe", archive, tmp_path / "out")

    assert [failure.scene_id for failure in report.failures] == ["scene0005_00"]
    assert len(report.scenes) == 7
    assert report.damages == ()


def find_whole(source: ByteSource) -> set[str]:
    """Find the scenes that an archive gives as whole."""
    whole: set[str] = set()
    reader = GroupReader(source, lambda *_: True, limit=None)
    for group, problem in reader.read(lambda *_: None, Threads()):
        if problem:
            whole.discard(group.scene_id)
        else:
            whole.add(group.scene_id)
    return whole


def find_header_bytes(path: Path) -> set[int]:
    """Find the headers of frames and blocks, which a pipe needs to find the next frame."""
    data = path.read_bytes()
    offsets: set[int] = set()
    for start, end in find_parts(path).values():
        position = start + zstandard.frame_header_size(data[start:end])
        offsets.update(range(start, position))
        is_last = False
        while not is_last and position < end:
            offsets.update(range(position, position + 3))
            header_bits = int.from_bytes(data[position : position + 3], "little")
            is_last = bool(header_bits & 1)
            is_run_length = header_bits >> 1 & 3 == 1
            position += 3 + (1 if is_run_length else header_bits >> 3)
    return offsets


class TestFlipOfEveryByte:
    @pytest.fixture
    def data(self, tmp_path: Path) -> bytes:
        """A small archive of four scenes."""
        dice = random.Random(3)
        scenes = [(scene_id, [(text_name(scene_id), dice.randbytes(40) * 5)]) for scene_id in IDS]
        return forge(tmp_path / "a.tar.zst", scenes).join()

    def test_flip_of_any_byte_costs_a_file_at_most_one_scene(
        self, data: bytes, tmp_path: Path
    ) -> None:
        dice = random.Random(4)
        flipped = tmp_path / "flipped.tar.zst"
        for offset in range(len(data)):
            flipped.write_bytes(data)
            flip(flipped, offset, dice.randrange(8))

            assert len(find_whole(FileSource(flipped))) >= len(IDS) - 1, offset

    def test_flip_costs_a_pipe_more_than_one_scene_only_in_a_header(
        self, data: bytes, tmp_path: Path
    ) -> None:
        dice = random.Random(5)
        flipped = tmp_path / "flipped.tar.zst"
        headers = find_header_bytes(tmp_path / "a.tar.zst")
        for offset in range(len(data)):
            if offset in headers:
                continue
            flipped.write_bytes(data)
            flip(flipped, offset, dice.randrange(8))

            with flipped.open("rb") as file:
                assert len(find_whole(PipeSource(file.fileno()))) >= len(IDS) - 1, offset


@BOTH_WAYS
def test_index_with_a_damaged_name_costs_no_scene(way: str, tmp_path: Path) -> None:
    """A flip may change two letters of a compressed name, and the tar header still be valid."""
    forgery = forge(tmp_path / "a.tar.zst", SCENES)
    index = bytearray(compress(pad_file(".scbmnet-prep/index.json", forgery.index), 1))
    index[-1] ^= 1
    frames = [*forgery.frames, bytes(index), compress(END_OF_ARCHIVE, 1)]
    (tmp_path / "a.tar.zst").write_bytes(join_frames(frames))

    report = unpack_from(way, tmp_path / "a.tar.zst", tmp_path / "out")

    assert set(report.scenes) == {*IDS}
    assert report.failures == ()
    assert len(report.damages) == 1


EVIL = b"evil"
REFUSED_SCENES: dict[str, Any] = {
    "parent folder": [SCENES[0], (IDS[1], [(f"../{IDS[1]}.txt", EVIL)])],
    "absolute path": [SCENES[0], (IDS[1], [(f"/tmp/{IDS[1]}", EVIL)])],
    "other kind": [SCENES[0], (IDS[1], [(f"train/{IDS[1]}.npz", EVIL)])],
    "escape sequence": [SCENES[0], (IDS[1], [("\x1b[2J", EVIL)])],
    "scene twice": [SCENES[0], SCENES[0]],
    "unordered scenes": [SCENES[1], SCENES[0]],
    "file twice": [(IDS[0], [*SCENES[0][1], *SCENES[0][1]])],
}


@pytest.mark.parametrize("case", REFUSED_SCENES)
class TestMaliciousNames:
    @pytest.fixture
    def archive(self, case: str, tmp_path: Path) -> Path:
        forge(tmp_path / "a.tar.zst", REFUSED_SCENES[case])
        return tmp_path / "a.tar.zst"

    def test_wrong_or_repeated_names_make_the_index_invalid(self, archive: Path) -> None:
        with pytest.raises(ArchiveError, match="the index is damaged"):
            open_archive(archive)

    @BOTH_WAYS
    def test_unpack_refuses_wrong_or_repeated_names(
        self, way: str, archive: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ArchiveError) as caught:
            unpack_from(way, archive, tmp_path / "out")

        assert "do not trust it" in caught.value.hint
        assert "\x1b" not in str(caught.value)

    @BOTH_WAYS
    def test_unpack_writes_no_file_under_a_wrong_name(
        self, way: str, archive: Path, tmp_path: Path
    ) -> None:
        with suppress(ArchiveError):
            unpack_from(way, archive, tmp_path / "out")

        assert left_in(tmp_path / "out").items() <= EXPECTED.items()
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in files if path.read_bytes() == EVIL]

    def test_verify_refuses_wrong_or_repeated_names(self, archive: Path) -> None:
        assert run_main("verify", archive).status in {1, 3}


@pytest.mark.parametrize(
    "tar_type",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE],
    ids=["symbolic link", "hard link", "device", "named pipe", "folder"],
)
class TestSpecialFiles:
    NAME = text_name(IDS[1])

    @pytest.fixture
    def archive(self, tar_type: bytes, tmp_path: Path) -> Path:
        """An archive with a tar header that does not belong to a regular file."""
        header = tarfile.TarInfo(self.NAME)
        header.type = tar_type
        header.linkname = "/etc"
        contents = {IDS[1]: header.tobuf(tarfile.USTAR_FORMAT)}
        scenes = [SCENES[0], (IDS[1], [(self.NAME, b"")])]
        forge(tmp_path / "a.tar.zst", scenes, contents=contents)
        return tmp_path / "a.tar.zst"

    def test_special_file_of_a_pipe_is_refused(self, archive: Path, tmp_path: Path) -> None:
        with pytest.raises(ArchiveError):
            unpack_from("pipe", archive, tmp_path / "out")

    @BOTH_WAYS
    def test_special_file_is_never_made(self, way: str, archive: Path, tmp_path: Path) -> None:
        with suppress(ArchiveError):
            unpack_from(way, archive, tmp_path / "out")

        for path in (tmp_path / "out").rglob("*"):
            assert path.is_dir() or path.is_file()
            assert not path.is_symlink()
        assert left_in(tmp_path / "out").items() <= (EXPECTED | {self.NAME: b""}).items()


@pytest.mark.parametrize(
    ("field", "value"),
    [(3, "0" * 64), (0, f"scans/{IDS[1]}/{IDS[1]}.ply")],
    ids=["sha256", "name"],
)
class TestContradictingIndex:
    """A pipe whose index, at its end, contradicts a scene that was already unpacked."""

    @pytest.fixture
    def archive(self, field: int, value: str, tmp_path: Path) -> Path:
        def edit(index: dict[str, Any]) -> None:
            index["groups"][2]["members"][0][field] = value

        forge(tmp_path / "a.tar.zst", SCENES, edit=edit)
        return tmp_path / "a.tar.zst"

    def test_contradicted_scene_is_a_failure(self, archive: Path, tmp_path: Path) -> None:
        (failure,) = unpack_from("pipe", archive, tmp_path / "out").failures

        assert failure.scene_id == IDS[1]
        assert "does not match the index" in failure.message

    def test_written_files_of_a_contradicted_scene_are_removed(
        self, archive: Path, tmp_path: Path
    ) -> None:
        unpack_from("pipe", archive, tmp_path / "out")

        others = {name: data for name, data in EXPECTED.items() if IDS[1] not in name}
        assert left_in(tmp_path / "out") == others

    def test_earlier_files_of_a_contradicted_scene_stay(
        self, archive: Path, tmp_path: Path
    ) -> None:
        write_tree(tmp_path / "out", EXPECTED)

        assert unpack_pipe(archive, "-o", tmp_path / "out").status == 3

        assert left_in(tmp_path / "out") == EXPECTED


def test_index_of_a_pipe_with_another_offset_contradicts_the_scene(tmp_path: Path) -> None:
    def edit(index: dict[str, Any]) -> None:
        before, scene = index["groups"][1:3]
        before["stored_bytes"] += 1
        scene["offset"] += 1
        scene["stored_bytes"] -= 1

    forge(tmp_path / "a.tar.zst", SCENES[:2], edit=edit)

    failures = unpack_from("pipe", tmp_path / "a.tar.zst", tmp_path / "out").failures

    assert [failure.scene_id for failure in failures] == [IDS[1]]


class TestNewerVersion:
    @pytest.fixture
    def archive(self, tmp_path: Path) -> Path:
        forge(tmp_path / "a.tar.zst", SCENES, head=replace(HEAD, version=2))
        return tmp_path / "a.tar.zst"

    @pytest.mark.parametrize("command", ["unpack", "verify", "info"])
    def test_newer_archive_is_refused_with_the_command_to_type(
        self, command: str, archive: Path
    ) -> None:
        outcome = run_main(command, archive)

        assert outcome.status == 1
        assert "newer scannet-prep: update yours" in outcome.stderr

    def test_newer_archive_from_a_pipe_is_refused_with_the_command_to_type(
        self, archive: Path, tmp_path: Path
    ) -> None:
        outcome = unpack_pipe(archive, "-o", tmp_path)

        assert outcome.status == 1
        assert "newer scannet-prep: update yours" in outcome.stderr


class TestEscapeSequences:
    @pytest.fixture
    def archive(self, tmp_path: Path) -> Path:
        """An archive with escape sequences in every text of its index."""

        def edit(index: dict[str, Any]) -> None:
            index["head"]["program"] = "\x1b[2Jevil"
            index["head"]["notice"] = "\x1b]0;x\x07"
            index["head"]["options"] = {"\x1b[31mkey": "\x1b[0mvalue"}
            index["failures"] = {"scene0009_00": "\x1b[2Jfailed"}

        forge(tmp_path / "a.tar.zst", SCENES, edit=edit)
        return tmp_path / "a.tar.zst"

    @pytest.mark.parametrize("words", [["info"], ["info", "-v"], ["verify"], ["unpack"]])
    def test_escape_sequences_never_reach_the_terminal(
        self, words: list[str], archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        outcome = run_main(*words, archive)

        output = outcome.stdout + outcome.stderr
        assert "\x1b" not in output
        assert "\x07" not in output


def claim(size_bytes: int, blocks: int) -> bytes:
    """Make a frame that declares a size, with run-length blocks of 128 KiB in four bytes each."""
    header = zstandard.FRAME_HEADER + b"\x84\x38" + size_bytes.to_bytes(4, "little")
    block = (0b010 | 1 << 20).to_bytes(3, "little") + b"\0"
    last_block = (0b011 | 1 << 20).to_bytes(3, "little") + b"\0"
    return header + block * (blocks - 1) + last_block + bytes(4)


@pytest.mark.parametrize(
    ("frame", "size_bytes", "message"),
    [
        (claim(1 << 31, 4), 1 << 31, "at most 1,073,741,824"),
        (claim(1 << 29, 4), 1 << 29, "declares 536,870,912 bytes, .*at most 1,051,576"),
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 999),
            999,
            "at most 1,073,741,824",
        ),
        (
            zstandard.FRAME_HEADER + b"\x80\x90" + (999).to_bytes(4, "little"),
            999,
            "too large a window",
        ),
        (b"x" + bytes(30), 999, "no frame begins here"),
    ],
    ids=["too large", "too large for its size", "no size", "window", "no frame"],
)
def test_frame_with_impossible_sizes_is_refused_before_allocating(
    frame: bytes, size_bytes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(frame, size_bytes)


def hostile_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Make archives that request more memory than their size justifies."""
    scenes = [("scene0000_00", [("train/scene0000_00.npz", b"x" * 100)])]
    forgery = forge(folder / "good.tar.zst", scenes, head=Head(ArchiveKind.PROCESSED))
    (first, _) = forgery.frames
    end = compress(END_OF_ARCHIVE, 1)

    # An index of 500 MiB of zeros, made in pieces.
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj(
        size=512 + (500 << 20)
    )
    pieces = [packer.compress(encode_header(INDEX_NAME, 500 << 20))]
    pieces += [packer.compress(bytes(1 << 20)) for _ in range(500)]
    bomb = b"".join([*pieces, packer.flush()])
    yield "an index of zeros", join_frames([first, bomb, end])
    yield "an index of zeros in a stream", first + bomb

    empty = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"")
    yield "empty frames", empty * 20_000
    large = claim(1 << 30, 8192)
    yield "a truncated scene of 1 GiB", first + large[:90_000]
    yield "a scene of 1 GiB in 32 kB", first + large
    text = forgery.index.decode().replace('"size_bytes":1024', f'"size_bytes":{1 << 30}', 1)
    yield "a scene of 1 GiB in 32 kB with an index", Forgery([first, large], text.encode()).join()
    yield "many frames of zeros", first + claim(1 << 29, 4096) * 20
    yield "deep lists", Forgery(forgery.frames, b"[" * 900_000).join()


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("words", [("--scenes", VAL), ("--splits", "val")])
def test_scene_of_a_truncated_archive_is_unpacked_beside_another_archive(
    words: tuple[str, str], kind: str, whole_dir: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first.tar.zst"
    second = tmp_path / "second.tar.zst"
    assert run_main("pack", whole_dir / kind, "-o", first, "--splits", "train").status == 0
    assert run_main("pack", whole_dir / kind, "-o", second, "--splits", "val").status == 0
    os.truncate(second, find_parts(second)["index"][0])

    outcome = run_main("unpack", first, second, "-o", tmp_path / "out", *words, "--json")

    assert outcome.status == 3, outcome
    assert outcome.json["scenes"] == [VAL]
    assert "is truncated" in outcome.json["damages"][0]
