"""Archives that are damaged, truncated or malicious: nothing wrong gets a name, and what is whole comes out."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import pack_tree, read_tree, write_tree
from commands import run_command
from forged_archives import forge, special_member, tar_bytes
from test_unpack import run_pipe, unpack_pipe

from scannet_prep.archive import open_archive
from scannet_prep.errors import ArchiveError
from scannet_prep.stages import unpack

SCENES = [(f"scene000{number}_00", [(f"scene000{number}_00/x", bytes([number]) * 3000)]) for number in range(4)]
GOOD = [SCENES[0]]


def check_refused(archive: Path, out_dir: Path, *words: str) -> None:
    """The file is refused before anything is written; the pipe leaves nothing that was not asked for."""
    with pytest.raises(ArchiveError, match="not safe to unpack") as caught:
        unpack.plan([archive], out_dir / "file")
    for word in words:
        assert word in str(caught.value)
    assert not (out_dir / "file").exists()


def left_by_pipe(archive: Path, out_dir: Path) -> tuple[int, dict[str, bytes]]:
    outcome = unpack_pipe(archive, "-o", out_dir)
    assert outcome.status in (1, 3), outcome.stderr
    return outcome.status, read_tree(out_dir)


@pytest.mark.parametrize(
    "name",
    ["../scene0001_00", "/tmp/scene0001_00", "scene0001_00/../../x", "scene0001_00/./x", "scene0001_00//x",
     "scene0001_00/", ".scannet-prep/scene0001_00", "elsewhere/x"],
)  # fmt: skip
def test_names_that_leave_the_folder_or_the_group_are_refused(tmp_path: Path, name: str) -> None:
    archive = forge(tmp_path / "a.tar.zst", [*GOOD, ("scene0001_00", [(name, b"evil")])])
    check_refused(archive, tmp_path)
    _, left = left_by_pipe(archive, tmp_path / "pipe")
    assert set(left) <= {"scene0000_00/x"}
    assert not (tmp_path / "scene0001_00").exists()


@pytest.mark.parametrize(
    "header",
    [
        special_member("scene0001_00/x", tarfile.SYMTYPE, "/etc"),
        special_member("scene0001_00/x", tarfile.LNKTYPE, "scene0000_00/x"),
        special_member("scene0001_00/x", tarfile.CHRTYPE),
        special_member("scene0001_00/x", tarfile.FIFOTYPE),
        special_member("scene0001_00/x", tarfile.DIRTYPE),
    ],
)
def test_links_devices_and_folders_are_never_made(tmp_path: Path, header: bytes) -> None:
    archive = forge(
        tmp_path / "a.tar.zst",
        [*GOOD, ("scene0001_00", [("scene0001_00/x", b"")])],
        contents={"scene0001_00": header},
    )
    report = unpack.run(unpack.plan([archive], tmp_path / "file"))
    assert [failure.scene_id for failure in report.failures] == ["scene0001_00"]
    status, left = left_by_pipe(archive, tmp_path / "pipe")
    assert status == 3
    for folder in (tmp_path / "file", tmp_path / "pipe"):
        assert sorted(path.name for path in folder.rglob("*")) == ["failed.txt", "scene0000_00", "x"], folder
    assert left["scene0000_00/x"] == GOOD[0][1][0][1]


@pytest.mark.parametrize(
    ("scenes", "files"),
    [
        ([("scene0000_00", [("scene0000_00/x", b"1"), ("scene0000_00/x", b"2")])], []),
        ([("scene0000_00", [("scene0000_00/x", b"1"), ("scene0000_00/x/y", b"2")])], []),
        ([("scene0000_00", [("a/scene0000_00", b"1")])], [("a", b"2")]),
    ],
)
def test_duplicates_and_files_that_are_folders_are_refused(tmp_path: Path, scenes: Any, files: Any) -> None:
    archive = forge(tmp_path / "a.tar.zst", scenes, files)
    check_refused(archive, tmp_path)
    _, left = left_by_pipe(archive, tmp_path / "pipe")
    assert set(left) <= {"a"}


def test_a_scene_that_comes_twice_ends_a_pipe(tmp_path: Path) -> None:
    archive = forge(tmp_path / "a.tar.zst", [*GOOD, *GOOD])
    with pytest.raises(ArchiveError, match="not sorted, or one is there twice"):
        unpack.plan([archive], tmp_path / "file")
    with pytest.raises(ArchiveError, match="or twice"):
        run_pipe(archive, tmp_path / "pipe")


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value["scenes"][1]["members"][0].__setitem__(2, 1 << 50),
        lambda value: value["scenes"][1]["members"][0].__setitem__(1, 600),
        lambda value: value["scenes"][1].__setitem__("size", value["scenes"][1]["size"] + 512),
        lambda value: value["scenes"][1]["members"].clear(),
        lambda value: value["files"]["members"].clear(),
        lambda value: value["scenes"][1]["members"][0].__setitem__(0, "\ud800"),
    ],
)
def test_sizes_and_places_that_do_not_add_up_are_refused(tmp_path: Path, edit: Callable[[Any], object]) -> None:
    archive = forge(tmp_path / "a.tar.zst", SCENES, edit=edit)
    with pytest.raises(ArchiveError):
        unpack.plan([archive], tmp_path / "file")
    assert unpack_pipe(archive, "-o", tmp_path / "pipe").status == 1


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value["scenes"][1].__setitem__("sha256", "0" * 64),
        lambda value: value["scenes"][1]["members"][0].__setitem__(3, 1),
        lambda value: value["scenes"][1]["members"][0].__setitem__(0, "scene0001_00/y"),
    ],
)
def test_what_the_index_contradicts_is_removed_again(tmp_path: Path, edit: Callable[[Any], object]) -> None:
    archive = forge(tmp_path / "a.tar.zst", SCENES, edit=edit)
    with pytest.raises(ArchiveError, match="contradicts its index about scene0001_00") as caught:
        run_pipe(archive, tmp_path / "pipe")
    assert "removed" in str(caught.value)
    assert sorted(read_tree(tmp_path / "pipe")) == ["scene0000_00/x", "scene0002_00/x", "scene0003_00/x"]
    report = unpack.run(unpack.plan([archive], tmp_path / "file"))
    assert [failure.scene_id for failure in report.failures] == ["scene0001_00"]
    assert sorted(read_tree(tmp_path / "file")) == ["failed.txt", "scene0000_00/x", "scene0002_00/x", "scene0003_00/x"]


def test_more_than_the_index_states_is_refused(tmp_path: Path) -> None:
    bomb, _ = tar_bytes([("scene0001_00/x", bytes(300_000_000))])
    archive = forge(tmp_path / "a.tar.zst", SCENES[:2], contents={"scene0001_00": bomb})
    assert archive.stat().st_size < 100_000
    with pytest.raises(ArchiveError):  # the frame holds more than the files of the index
        unpack.plan([archive], tmp_path / "file")
    assert unpack_pipe(archive, "-o", tmp_path / "pipe").status == 1


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dice = random.Random(0)
    files = {f"train/scene{number:04}_00.npz": dice.randbytes(2000) for number in range(12)} | {"note": b"n"}
    directory = tmp_path_factory.mktemp("tree")
    source = write_tree(directory / "source", files)
    big = source / "scene0005_00/big"
    big.parent.mkdir()
    big.write_bytes(dice.randbytes(40_000) + bytes(70 << 20))
    archive = pack_tree(source, directory / "a.tar.zst")
    assert archive.index.scenes[5].frame_count == 5
    return directory


def flip(source: Path, target: Path, offset: int, bit: int = 0) -> Path:
    data = bytearray(source.read_bytes())
    data[offset] ^= 1 << bit
    target.write_bytes(data)
    return target


def test_any_flip_in_a_scene_costs_just_that_scene_and_its_list_brings_it_back(tree: Path, tmp_path: Path) -> None:
    expected, dice = read_tree(tree / "source"), random.Random(1)
    scenes = open_archive(tree / "a.tar.zst").index.scenes
    for number in range(12):
        scene = scenes[5] if number % 3 == 0 else dice.choice(scenes)
        offset = scene.offset + (number // 3 if number % 2 else dice.randrange(scene.stored_bytes))
        archive = flip(tree / "a.tar.zst", tmp_path / "flip.tar.zst", offset, dice.randrange(8))
        names = {name for name in expected if scene.scene_id in name}
        out_dir = tmp_path / f"file{number}"
        report = unpack.run(unpack.plan([archive], out_dir))
        assert [failure.scene_id for failure in report.failures] == [scene.scene_id], (offset, number)
        left = read_tree(out_dir)
        assert left.pop("failed.txt").decode().splitlines()[1:] == [scene.scene_id]
        assert left == {name: data for name, data in expected.items() if name not in names}
        pipe = run_pipe(archive, tmp_path / f"pipe{number}", is_salvage=True)
        assert not pipe.is_whole
        left = read_tree(tmp_path / f"pipe{number}")
        left.pop("failed.txt", None)
        # A flip that zstd does not see, such as one in the size of the window, leaves the content right.
        assert left in (expected, {name: data for name, data in expected.items() if name not in names}), (
            offset,
            number,
        )
    outcome = run_command("unpack", tree / "a.tar.zst", "-o", out_dir, "--scenes", f"@{out_dir / 'failed.txt'}")
    assert outcome.status == 0
    assert read_tree(out_dir) == expected


def test_truncated_anywhere_all_whole_scenes_come_out_by_file_and_by_pipe(tree: Path, tmp_path: Path) -> None:
    expected, dice = read_tree(tree / "source"), random.Random(2)
    archive = open_archive(tree / "a.tar.zst")
    data = (tree / "a.tar.zst").read_bytes()
    ends = [group.offset + group.stored_bytes for group in archive.index.groups]
    cuts = [
        ends[0],
        ends[0] + 3,
        ends[4] + 10,
        ends[5] - 1,
        ends[5],
        ends[-1] - 1,
        ends[-1],
        ends[-1] + 9,
        len(data) - 1,
    ]
    for number, cut in enumerate([*cuts, *(dice.randrange(ends[0], len(data)) for _ in range(5))]):
        short = tmp_path / "short.tar.zst"
        short.write_bytes(data[:cut])
        whole = {group.scene_id for group in archive.index.groups if group.offset + group.stored_bytes <= cut}
        wanted = {name: data for name, data in expected.items() if name == "note" or whole & {name[6:18], name[:12]}}
        with pytest.raises(ArchiveError) as caught:
            unpack.plan([short], tmp_path / "file")
        assert "--salvage" in caught.value.hint
        report = unpack.run(unpack.plan([short], tmp_path / f"file{number}", is_salvage=True))
        assert read_tree(tmp_path / f"file{number}") == wanted, cut
        with pytest.raises(ArchiveError):
            run_pipe(short, tmp_path / f"pipe{number}")
        assert read_tree(tmp_path / f"pipe{number}") == wanted, cut
        assert not run_pipe(short, tmp_path / f"pipe{number}", is_salvage=True).is_whole or cut >= ends[-1]
        assert set(report.scenes) == whole - {""}


def test_without_index_a_damaged_beginning_of_a_large_scene_costs_just_that_scene(tree: Path, tmp_path: Path) -> None:
    expected, scene = read_tree(tree / "source"), open_archive(tree / "a.tar.zst").index.scenes[5]
    data = bytearray((tree / "a.tar.zst").read_bytes()[:-40])
    for place in (4, 6, 30_000):  # descriptor, size, content
        broken = bytearray(data)
        broken[scene.offset + place] ^= 8
        (tmp_path / "broken").write_bytes(broken)
        for number, left in enumerate(salvage_both(tmp_path / "broken", tmp_path / f"out{place}")):
            assert left == {name: item for name, item in expected.items() if scene.scene_id not in name}, (
                place,
                number,
            )


def salvage_both(archive: Path, out_dir: Path) -> list[dict[str, bytes]]:
    assert not unpack.run(unpack.plan([archive], out_dir / "file", is_salvage=True)).is_whole
    assert not run_pipe(archive, out_dir / "pipe", is_salvage=True).is_whole
    trees = [read_tree(out_dir / "file"), read_tree(out_dir / "pipe")]
    for left in trees:
        left.pop("failed.txt", None)
    return trees


def test_mutated_streams_never_crash_and_never_leave_wrong_files(tmp_path: Path) -> None:
    files = {name: data for _, items in SCENES for name, data in items}
    archive = forge(tmp_path / "a.tar.zst", SCENES, [("note", b"n")])
    expected, data, dice = files | {"note": b"n"}, archive.read_bytes(), random.Random(3)
    for number in range(150):
        mutated = bytearray(data)
        for _ in range(dice.randrange(1, 4)):
            start = dice.randrange(len(mutated))
            match dice.randrange(3):
                case 0:
                    mutated[start] = dice.randrange(256)
                case 1:
                    del mutated[start : start + dice.randrange(1, 40)]
                case _:
                    mutated[start:start] = dice.randbytes(dice.randrange(1, 40))
        (tmp_path / "mutated").write_bytes(mutated)
        for mode in ("file", "pipe"):
            out_dir = tmp_path / f"{mode}{number}"
            try:
                if mode == "file":
                    unpack.run(unpack.plan([tmp_path / "mutated"], out_dir, is_salvage=number % 2 == 0))
                else:
                    run_pipe(tmp_path / "mutated", out_dir, is_salvage=number % 2 == 0, jobs=2)
            except ArchiveError:
                pass
            left = read_tree(out_dir)
            left.pop("failed.txt", None)
            assert left.items() <= expected.items(), (number, mode)


def test_a_description_that_is_not_that_of_the_index_is_a_contradiction(tmp_path: Path) -> None:
    archive = forge(tmp_path / "a.tar.zst", GOOD, edit=lambda value: value.__setitem__("notice", "another"))
    with pytest.raises(ArchiveError, match="another description"):
        run_pipe(archive, tmp_path / "pipe")


def test_a_frame_larger_than_any_that_is_made_is_not_decompressed(tmp_path: Path) -> None:
    huge, _ = tar_bytes([("scene0001_00/x", bytes((64 << 20) + 512))])
    archive = forge(tmp_path / "a.tar.zst", SCENES[:3], contents={"scene0001_00": huge})
    truncated = tmp_path / "truncated.tar.zst"
    truncated.write_bytes(archive.read_bytes()[:-10])
    report = unpack.run(unpack.plan([truncated], tmp_path / "file", is_salvage=True))
    assert [(item.scene_id, "at most 67,108,864" in item.message) for item in report.failures] == [
        ("scene0001_00", True)
    ]
    assert sorted(read_tree(tmp_path / "file")) == ["failed.txt", "scene0000_00/x", "scene0002_00/x"]
    outcome = unpack_pipe(archive, "-o", tmp_path / "pipe")
    assert "at most 67,108,864" in outcome.stderr
    assert sorted(read_tree(tmp_path / "pipe")) == ["scene0000_00/x", "scene0002_00/x"]
