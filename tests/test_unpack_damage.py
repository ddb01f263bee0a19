"""Archives that are damaged, truncated or malicious: nothing wrong gets a name, and what is whole comes out."""

import os
import random
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import (
    HEAD,
    Forgery,
    call,
    find_parts,
    flip,
    forge,
    pack_tree,
    pad_file,
    read_tree,
    row_of,
    unpack_pipe,
    write_tree,
)
from commands import TEST, TRAIN, VAL, limited_memory

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.archive.byte_source import PipeSource
from scannet_prep.archive.frames import compress, decompress, encode_seek_table
from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import INDEX_NAME, ArchiveKind, Head
from scannet_prep.archive.tar import END_OF_ARCHIVE, encode_header
from scannet_prep.base.errors import ArchiveError, ScanNetPrepError
from scannet_prep.base.progress import Progress
from scannet_prep.stages import info, unpack, verify


def file_of(scene_id: str) -> str:
    return f"scans/{scene_id}/{scene_id}.txt"


IDS = [f"scene000{number}_00" for number in range(4)]
EXPECTED = {file_of(scene_id): bytes([number]) * 3000 for number, scene_id in enumerate(IDS)}
SCENES = [(scene_id, [(file_of(scene_id), EXPECTED[file_of(scene_id)])]) for scene_id in IDS]


def unpack_both(archive: Path, out_dir: Path) -> list[Any]:
    """Unpack from a file and from a pipe, into folders of those names."""
    outcomes: list[Any] = []
    with archive.open("rb") as file:
        for way, place in (("file", archive), ("pipe", PipeSource(file.fileno()))):
            try:
                outcomes.append(unpack.run([place], out_dir / way, jobs=2))
            except ArchiveError as error:
                outcomes.append(error)
    return outcomes


def left_in(out_dir: Path) -> dict[str, bytes]:
    """What was unpacked, without the list of failures."""
    left = read_tree(out_dir)
    left.pop("failed.txt", None)
    return left


DICE = random.Random(0)
WHOLE = {file_of(f"scene{number:04}_00"): DICE.randbytes(2000) for number in range(8)} | {
    "note": b"n"
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a raw tree of 8 scenes."""
    folder = tmp_path_factory.mktemp("damage")
    pack_tree(write_tree(folder / "source", WHOLE), folder / "a.tar.zst")
    return folder / "a.tar.zst"


def test_any_flip_costs_at_most_its_scene_and_no_damage_gives_a_wrong_byte(
    whole: Path, tmp_path: Path
) -> None:
    dice, archive, data, parts = (
        random.Random(1),
        tmp_path / "flip.tar.zst",
        whole.read_bytes(),
        find_parts(whole),
    )
    for number, part in enumerate([*parts, "index", "table", "files", *[""] * 12]):
        mutated = bytearray(data)
        if part:
            mutated[dice.randrange(*parts[part])] ^= 1 << dice.randrange(8)
        else:
            for _ in range(dice.randrange(1, 4)):
                start = dice.randrange(len(mutated))
                mutated[start : start + dice.choice((0, 1, 30))] = dice.randbytes(
                    dice.choice((0, 1, 30))
                )
        archive.write_bytes(mutated)
        for report, way in zip(
            unpack_both(archive, tmp_path / str(number)), ("file", "pipe"), strict=True
        ):
            left = left_in(tmp_path / str(number) / way)
            assert left.items() <= WHOLE.items(), (number, part, way)
            if part in {"index", "end", "table"} or (way == "file" and part == "files"):
                assert WHOLE.keys() - left.keys() <= {"note"}, (number, part, way)
            if way == "file" and part.startswith("scene"):
                assert WHOLE.keys() - left.keys() <= {file_of(part)}, (number, part)
                assert {failure.scene_id for failure in report.failures} <= {part}
                assert (not report.failures and not report.damages) == (left == WHOLE)


def test_damage_outside_the_files_costs_nothing_and_is_a_note(whole: Path, tmp_path: Path) -> None:
    parts = find_parts(whole)
    (row, end), data, archive = parts["table"], whole.read_bytes(), tmp_path / "a.tar.zst"
    row += 8 + 2 * 12
    # Stored size, size and checksum in the table; its footer; the checksum of a frame; the end of the tar stream.
    places = (
        row,
        row + 5,
        row + 9,
        end - 2,
        end - 6,
        parts["scene0003_00"][1] - 1,
        parts["end"][1] - 1,
    )
    for place in places:
        archive.write_bytes(data)
        flip(archive, place)
        report = unpack.run([archive], tmp_path / str(place))
        assert (report.failures, report.damages, len(report.warnings) >= 1) == ((), (), True), place
        assert read_tree(tmp_path / str(place)) == WHOLE
        check = verify.run([archive])
        assert (check.errors, len(check.findings) >= 1, check.scenes) == ((), True, 8), place
    archive.write_bytes(data + data)
    for report in unpack_both(archive, tmp_path):
        assert len(report.scenes) == 8
        assert any("something follows" in warning for warning in report.warnings)


def test_truncated_anywhere_all_whole_scenes_come_out_by_file_and_by_pipe(
    whole: Path, tmp_path: Path
) -> None:
    dice, data = random.Random(2), whole.read_bytes()
    groups = open_archive(whole).index.groups
    ends = [group.end for group in groups]
    cuts = [
        ends[0],
        ends[0] + 3,
        ends[4] + 10,
        ends[5] - 1,
        ends[5],
        ends[-1] - 1,
        ends[-1],
        ends[-1] + 9,
    ]
    for number, cut in enumerate([*cuts, *(dice.randrange(ends[0], ends[-1]) for _ in range(3))]):
        short = tmp_path / "short.tar.zst"
        short.write_bytes(data[:cut])
        found = {group.scene_id for group in groups if group.end <= cut} - {""}
        for report, way in zip(
            unpack_both(short, tmp_path / str(number)), ("file", "pipe"), strict=True
        ):
            assert (set(report.scenes), bool(report.damages)) == (found, True), (cut, way)
            assert left_in(tmp_path / str(number) / way) == {
                name: content
                for name, content in WHOLE.items()
                if name == "note" or name[6:18] in found
            }
        assert call("verify", short).status in {1, 3}


def test_of_a_truncated_processed_archive_the_missing_scenes_are_named(
    packed_dir: Path, tmp_path: Path
) -> None:
    archive = packed_dir / "processed.tar.zst"
    start, end = find_parts(archive)[VAL]
    (tmp_path / "cut.tar.zst").write_bytes(archive.read_bytes()[: (start + end) // 2])
    for unpack_it in (lambda *words: call("unpack", *words), unpack_pipe):
        outcome = unpack_it(tmp_path / "cut.tar.zst", "-o", tmp_path / "out", "--json")
        assert (outcome.status, [item["scene_id"] for item in outcome.json["failures"]]) == (
            3,
            [VAL, TEST],
        )
        assert re.search(
            rf"^failed: 2\n  {VAL}: .*\n  {TEST}: .*\nhint: copy", outcome.stderr, re.MULTILINE
        )
    with pytest.warns(UserWarning, match="failed"):
        assert ScanNet(tmp_path / "out", split="train").scene_ids == [TRAIN]
    listed = f"@{tmp_path / 'out/failed.txt'}"
    assert call("unpack", archive, "-o", tmp_path / "out", "--scenes", listed).status == 0
    assert call("verify", tmp_path / "out").status == 0


def test_where_the_first_frame_is_lost_all_scenes_still_come_out(
    packed_dir: Path, tmp_path: Path
) -> None:
    for kind in ("raw", "processed"):
        archive = flip(Path(shutil.copy(packed_dir / f"{kind}.tar.zst", tmp_path)), 200)
        for report in unpack_both(archive, tmp_path / kind):
            assert (len(report.scenes), len(report.damages)) == (3, 1)
    assert ScanNet(tmp_path / "processed/pipe", split="train").scene_ids == [TRAIN]


def test_damage_costs_a_file_its_scene_and_a_pipe_at_most_what_follows(
    whole: Path, tmp_path: Path
) -> None:
    start, end = find_parts(whole)["scene0005_00"]
    data, archive = whole.read_bytes(), tmp_path / "a.tar.zst"
    archive.write_bytes(data[:start] + bytes(end - start) + data[end:])
    from_file, from_pipe = unpack_both(archive, tmp_path)
    assert (len(from_file.scenes), len(from_pipe.scenes)) == (7, 5)
    assert "is truncated or damaged after byte" in from_pipe.damages[0]
    for place in (
        13,
        600,
    ):  # where the name is, and where the file is; the index that comes later names the scene
        archive.write_bytes(data)
        _, report = unpack_both(flip(archive, start + place), tmp_path / str(place))
        assert [failure.scene_id for failure in report.failures] == ["scene0005_00"]
        assert (len(report.scenes), report.damages) == (7, ())


def find_whole(place: Any) -> set[str]:
    """The scenes that an archive gives as whole."""
    whole: set[str] = set()
    for reader in ArchiveSet([place], lambda *_: True, None).readers:
        for group, problem in reader.read(lambda *_: None, 1, Progress()):
            whole.discard(group.scene_id) if problem else whole.add(group.scene_id)
    return whole


def find_header_bytes(path: Path) -> set[int]:
    """Where the headers of frames and of their blocks are, which a pipe needs to find the next frame."""
    data, offsets = path.read_bytes(), set()
    for start, end in find_parts(path).values():
        position, is_last = start + zstandard.frame_header_size(data[start:end]), False
        offsets |= {*range(start, position)}
        while not is_last and position < end:
            number = int.from_bytes(data[position : position + 3], "little")
            offsets |= {*range(position, position + 3)}
            is_last = bool(number & 1)
            position += 3 + (1 if number >> 1 & 3 == 1 else number >> 3)
    return offsets


def test_flip_of_any_byte_costs_a_file_one_scene_and_a_pipe_more_only_by_a_header(
    tmp_path: Path,
) -> None:
    path, flipped, dice = tmp_path / "a.tar.zst", tmp_path / "flipped.tar.zst", random.Random(3)
    scenes = [(scene_id, [(file_of(scene_id), dice.randbytes(40) * 5)]) for scene_id in IDS]
    data = forge(path, scenes).join()
    headers = find_header_bytes(path)
    for offset in range(len(data)):
        flipped.write_bytes(data)
        flip(flipped, offset, dice.randrange(8))
        assert len(IDS) - len(find_whole(flipped)) <= 1, offset
        with flipped.open("rb") as file:
            try:
                lost = len(IDS) - len(find_whole(PipeSource(file.fileno())))
            except ArchiveError:
                lost = len(IDS)
        assert lost <= 1 or offset in headers, offset


def test_index_whose_name_is_damaged_costs_no_scene(tmp_path: Path) -> None:
    """A flipped bit may change two letters of a compressed name so that the checksum of the tar header still holds."""
    forgery = forge(tmp_path / "a.tar.zst", SCENES)
    index = bytearray(compress(pad_file(".scbmnet-prep/index.json", forgery.index), 1))
    index[-1] ^= 1
    frames = [*forgery.frames, bytes(index), compress(END_OF_ARCHIVE, 1)]
    (tmp_path / "a.tar.zst").write_bytes(
        b"".join([*frames, encode_seek_table(list(map(row_of, frames)))])
    )
    for report in unpack_both(tmp_path / "a.tar.zst", tmp_path):
        assert (set(report.scenes), report.failures, len(report.damages)) == ({*IDS}, (), 1)


EVIL_NAMES = ("../scene0001_00.txt", "/tmp/scene0001_00", "train/scene0001_00.npz", "\x1b[2J")
REFUSED: list[Any] = [[SCENES[0], ("scene0001_00", [(name, b"evil")])] for name in EVIL_NAMES]
REFUSED += [
    [SCENES[0], SCENES[0]],
    [SCENES[1], SCENES[0]],
    [(IDS[0], [*SCENES[0][1], *SCENES[0][1]])],
]


@pytest.mark.parametrize("scenes", REFUSED)
def test_wrong_names_and_scenes_or_files_that_come_twice_or_unordered_are_refused(
    tmp_path: Path, scenes: Any
) -> None:
    forge(tmp_path / "a.tar.zst", scenes)
    with pytest.raises(ArchiveError, match="the index is damaged"):
        open_archive(tmp_path / "a.tar.zst")
    for outcome in unpack_both(tmp_path / "a.tar.zst", tmp_path):
        assert isinstance(outcome, ArchiveError)
        assert "do not trust it" in outcome.hint
        assert "\x1b" not in str(outcome)
    assert left_in(tmp_path / "pipe").items() <= EXPECTED.items()
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"
    ]
    assert call("verify", tmp_path / "a.tar.zst").status in {1, 3}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_links_devices_and_folders_are_never_made(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo(file_of(IDS[1]))
    info.type, info.linkname = kind, "/etc"
    contents = {IDS[1]: info.tobuf(tarfile.USTAR_FORMAT)}
    forge(tmp_path / "a.tar.zst", [SCENES[0], (IDS[1], [(info.name, b"")])], contents=contents)
    _, by_walk = unpack_both(tmp_path / "a.tar.zst", tmp_path)
    assert isinstance(by_walk, ArchiveError)
    for folder in (tmp_path / "file", tmp_path / "pipe"):
        assert all(
            (path.is_dir() or path.is_file()) and not path.is_symlink()
            for path in folder.rglob("*")
        )
        assert left_in(folder).items() <= (EXPECTED | {info.name: b""}).items()


@pytest.mark.parametrize(("place", "value"), [(3, "0" * 64), (0, f"scans/{IDS[1]}/{IDS[1]}.ply")])
def test_what_the_index_contradicts_is_not_left_behind(
    tmp_path: Path, place: int, value: str
) -> None:
    forge(
        tmp_path / "a.tar.zst",
        SCENES,
        edit=lambda index: index["groups"][2]["members"][0].__setitem__(place, value),
    )
    (failure,) = unpack_both(tmp_path / "a.tar.zst", tmp_path)[1].failures
    assert (failure.scene_id, "does not match the index" in failure.message) == (IDS[1], True)
    assert left_in(tmp_path / "pipe") == {
        name: data for name, data in EXPECTED.items() if IDS[1] not in name
    }
    write_tree(tmp_path / "there", EXPECTED)
    outcome = unpack_pipe(tmp_path / "a.tar.zst", "-o", tmp_path / "there")
    assert (outcome.status, left_in(tmp_path / "there")) == (
        3,
        EXPECTED,
    )  # nor is what was there before removed


def test_of_an_archive_of_a_newer_version_it_is_said_what_to_type(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.zst"
    forge(archive, SCENES, head=replace(HEAD, version=2))
    for outcome in (
        unpack_pipe(archive, "-o", tmp_path),
        *(call(word, archive) for word in ("unpack", "verify", "info")),
    ):
        assert (
            outcome.status,
            "newer scannet-prep, which pip install --upgrade" in outcome.stderr,
        ) == (1, True)


def test_escape_sequences_of_an_archive_never_reach_the_terminal(tmp_path: Path) -> None:
    def edit(value: Any) -> None:
        value["head"].update(
            program="\x1b[2Jevil", notice="\x1b]0;x\x07", options={"\x1b[31mkey": "\x1b[0mvalue"}
        )
        value["failures"] = {"scene0009_00": "\x1b[2Jfailed"}

    forge(tmp_path / "a.tar.zst", SCENES, edit=edit)
    for words in (["info"], ["info", "-v"], ["verify"], ["unpack", "-o", tmp_path / "out"]):
        outcome = call(*words, tmp_path / "a.tar.zst")
        assert "evil" in outcome.stdout or words[0] != "info"
        assert not {"\x1b", "\x07"} & set(outcome.stdout + outcome.stderr)


def claim(size_bytes: int, blocks: int) -> bytes:
    """A frame that says it holds so much, of blocks of 128 KiB of zeros in four bytes each."""
    head = zstandard.FRAME_HEADER + b"\x84\x38" + size_bytes.to_bytes(4, "little")
    block, last = ((kind | 1 << 20).to_bytes(3, "little") + b"\0" for kind in (0b010, 0b011))
    return head + block * (blocks - 1) + last + bytes(4)


def test_a_frame_that_asks_for_more_than_it_can_hold_is_refused_before_memory_is_taken() -> None:
    for frame, size_bytes, message in (
        (claim(1 << 31, 4), 1 << 31, "at most 1,073,741,824"),
        (claim(1 << 29, 4), 1 << 29, r"declares 536,870,912 bytes, .*at most 1,051,576"),
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
    ):
        with pytest.raises(ValueError, match=message):
            decompress(frame, size_bytes)


def hostile_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    head = Head(ArchiveKind.PROCESSED)
    forgery = forge(
        folder / "good.tar.zst",
        [("scene0000_00", [("train/scene0000_00.npz", b"x" * 100)])],
        head=head,
    )
    (first, _), end = forgery.frames, compress(END_OF_ARCHIVE, 1)
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj(
        size=512 + (500 << 20)
    )
    pieces = [encode_header(INDEX_NAME, 500 << 20), *[bytes(1 << 20)] * 500]
    bomb = b"".join([*map(packer.compress, pieces), packer.flush()])
    yield (
        "an index of zeros",
        first + bomb + end + encode_seek_table(list(map(row_of, (first, bomb, end)))),
    )
    yield "an index of zeros in a stream", first + bomb
    yield (
        "zero frames",
        zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"") * 20_000,
    )
    big = claim(1 << 30, 8192)
    yield "a scene that claims 1 GiB", first + big[:90_000]
    yield "a scene of 1 GiB in 32 kB", first + big
    text = forgery.index.decode().replace('"size_bytes":1024', f'"size_bytes":{1 << 30}', 1)
    yield "a scene of 1 GiB in 32 kB with an index", Forgery([first, big], text.encode()).join()
    yield "many frames of zeros", first + claim(1 << 29, 4096) * 20
    yield "deep lists", Forgery(forgery.frames, b"[" * 900_000).join()


def test_archives_that_ask_for_too_much_are_refused_within_bounds_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "hostile.tar.zst"
    for name, data in hostile_files(tmp_path):
        path.write_bytes(data)
        with limited_memory(
            400 << 20
        ):  # a thread takes 72 MB of addresses, and uses little of them
            for read in (
                lambda: unpack.run([PipeSource(os.open(path, os.O_RDONLY))], tmp_path / "pipe"),
                lambda: unpack.run([path], tmp_path / "file"),
                lambda: verify.run([path]),
                lambda: info.run([path]),
                lambda: ScanNet(path, split="train")[0],
            ):
                told = ""
                try:
                    read()
                except ScanNetPrepError as error:
                    told = str(error)
                assert "memory ran out" not in told, name


def test_a_scene_of_an_archive_without_index_is_found_beside_another_archive(
    whole_dir: Path, tmp_path: Path
) -> None:
    for kind in ("raw", "processed"):
        first, second = tmp_path / f"{kind}-first.tar.zst", tmp_path / f"{kind}-second.tar.zst"
        assert call("pack", whole_dir / kind, "-o", first, "--splits", "train").status == 0
        assert call("pack", whole_dir / kind, "-o", second, "--splits", "val").status == 0
        second.write_bytes(second.read_bytes()[: find_parts(second)["index"][0]])
        for words in (("--scenes", VAL), ("--splits", "val")):
            out_dir = tmp_path / f"{kind}{words[0]}"
            outcome = call("unpack", first, second, "-o", out_dir, *words, "--json")
            assert (outcome.status, outcome.json["scenes"]) == (3, [VAL]), outcome
            assert "is truncated" in outcome.json["damages"][0]
