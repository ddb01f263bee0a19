"""The parts of an archive, its readers in other programs, and what `verify` and `info` report."""

import hashlib
import json
import os
import re
import subprocess
import tarfile
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import TREE, find_parts, flip_middle, forge, pack_tree, read_tree
from commands import TEST, TRAIN, VAL, Verify, run_main

from scannet_prep import archive as archive_package
from scannet_prep.archive import open_archive
from scannet_prep.archive.byte_source import FileSource
from scannet_prep.archive.frames import decompress
from scannet_prep.archive.layout import (
    ArchiveKind,
    check_names,
    encode_index,
    find_scene,
    identify_scene,
    parse_index,
)
from scannet_prep.archive.stream import Stream
from scannet_prep.archive.tar import read_members
from scannet_prep.errors import ArchiveError

ARCHIVE_PAGE = (Path(__file__).parent.parent / "docs/archive.md").read_text()


@pytest.mark.parametrize(
    ("line", "level"),
    [
        pytest.param("tar --zstd -xf ../a.tar.zst", 0, marks=pytest.mark.extra("zstd")),
        pytest.param("tar --zstd -xf ../a.tar.zst", 19, marks=pytest.mark.extra("zstd")),
        pytest.param("zstd -dcq ../a.tar.zst | tar -x", 1, marks=pytest.mark.extra("zstd")),
        pytest.param("bsdtar -xf ../a.tar.zst", 1, marks=pytest.mark.extra("bsdtar")),
    ],
)
def test_other_programs_unpack_the_same_tree(
    line: str, level: int, tree: Path, tmp_path: Path
) -> None:
    pack_tree(tree, tmp_path / "a.tar.zst", level=level)
    (tmp_path / "out").mkdir()

    subprocess.run(line, shell=True, check=True, cwd=tmp_path / "out")

    assert read_tree(tmp_path / "out") == TREE


def test_tarfile_reads_the_same_tree(packed):
    with (
        zstandard.open(packed) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        contents = {}
        for member in archive:
            if member.isfile() and not member.name.startswith(".scannet-prep/"):
                contents[member.name] = archive.extractfile(member).read()

    assert contents == TREE


@pytest.mark.extra("indexed_zstd")
def test_another_reader_of_the_seekable_format_finds_every_file(packed: Path) -> None:
    import indexed_zstd

    file = indexed_zstd.IndexedZstdFile(str(packed))
    archive = open_archive(packed)

    start = 0
    for group in archive.index.groups:
        for member in reversed(group.members):
            file.seek(start + member.offset)
            assert file.read(member.size_bytes) == bytes(archive.read_member(group, member))
        start += group.size_bytes
    file.close()


def test_first_group_holds_the_files_that_belong_to_no_scene(packed: Path) -> None:
    names = [member.name for member in open_archive(packed).index.groups[0].members]

    assert names == [".scannet-prep/format.json", "empty", "scannetv2-labels.combined.tsv"]


def test_index_records_the_sha256_of_every_file(packed: Path) -> None:
    recorded = {}
    for group in open_archive(packed).index.groups:
        recorded.update((member.name, member.sha256) for member in group.members)
    del recorded[".scannet-prep/format.json"]

    assert recorded == {name: hashlib.sha256(data).hexdigest() for name, data in TREE.items()}


def test_index_lists_the_scenes_sorted_with_their_splits(packed: Path) -> None:
    scenes = [(scene.scene_id, scene.split) for scene in open_archive(packed).index.scenes]

    assert scenes == [(TRAIN, "train"), (VAL, "val"), ("scene0022_00", "train"), (TEST, "test")]


def test_each_group_is_one_zstd_frame(packed: Path) -> None:
    stream = Stream(FileSource(packed))

    beginnings = [
        stream.take(group.stored_bytes)[:4] for group in open_archive(packed).index.groups
    ]

    assert beginnings == [zstandard.FRAME_HEADER] * 5


SCENE = "scene0000_00"
NPZ_NAME = f"train/{SCENE}.npz"
TXT_NAME = f"scans/{SCENE}/{SCENE}.txt"
FOREIGN_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "x/../y",
    "a//b",
    "a/b",
    "a\\b",
    "a\nb",
    "\x1b[2J",
    "ä",
    ".hidden",
    "train",
    "scans",
    SCENE,
    "tasks/",
    ".scannet-prep/x",
    "x" * 300,
    f"scans/{SCENE}/../../x",
    f"scans/{SCENE}/./x",
    f"scans/{SCENE}/{SCENE}.\u0663",
    f"scans/{SCENE}/scene0000_01.txt",
]


@pytest.mark.parametrize(
    ("kind", "name", "scene_id"),
    [
        (ArchiveKind.PROCESSED, NPZ_NAME, SCENE),
        (ArchiveKind.PROCESSED, "failed.txt", ""),
        (ArchiveKind.RAW, TXT_NAME, SCENE),
        (ArchiveKind.RAW, "tasks/scannetv2-labels.combined.tsv", ""),
    ],
)
def test_scene_of_a_file_is_found_by_its_name(kind: ArchiveKind, name: str, scene_id: str) -> None:
    assert find_scene(kind, name) == scene_id


@pytest.mark.parametrize("name", [*FOREIGN_NAMES, f"train/{SCENE}.txt", TXT_NAME])
def test_foreign_name_does_not_belong_in_a_processed_archive(name: str) -> None:
    assert find_scene(ArchiveKind.PROCESSED, name) is None


@pytest.mark.parametrize("name", [*FOREIGN_NAMES, NPZ_NAME, f"{TXT_NAME}.d/x"])
def test_foreign_name_does_not_belong_in_a_raw_archive(name: str) -> None:
    assert find_scene(ArchiveKind.RAW, name) is None


def test_unlisted_scene_in_scans_test_is_identified_as_test_scene() -> None:
    scene_file = identify_scene("scans_test/scene9999_00/scene9999_00.txt")

    assert scene_file == (ArchiveKind.RAW, "scene9999_00", "test")


def test_files_of_one_scene_in_two_folders_are_refused() -> None:
    with pytest.raises(ValueError, match="or its files are in several folders"):
        check_names(ArchiveKind.RAW, SCENE, [f"{SCENE}/{SCENE}.txt", TXT_NAME])


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        (("groups",), lambda _: []),
        (("groups",), lambda groups: [*groups, groups[-1]]),
        (("groups",), lambda groups: [groups[0], groups[-1], *groups[1:-1]]),
        (("groups", 1, "offset"), lambda _: 5),
        (("groups", 1, "size_bytes"), lambda _: 10**30),
        (("groups", 1, "split"), lambda _: "all"),
        (("groups", 2, "split"), lambda _: "train"),
        (("groups", -1, "stored_bytes"), lambda _: 1 << 40),
        (("groups", 1, "members", 0, 0), lambda _: "../x"),
        (("groups", 1, "members", 0, 1), lambda _: 600),
        (("groups", 1, "members", 0, 2), lambda _: 1 << 50),
        (("head", "version"), lambda _: 2),
        (("head", "format"), lambda _: "zip"),
        (("head", "kind"), lambda _: "cooked"),
    ],
)
def test_contradictory_index_is_refused(
    keys: tuple[Any, ...], change: Any, packed_dir: Path
) -> None:
    index = json.loads(encode_index(open_archive(packed_dir / "processed.tar.zst").index))
    parent = reduce(getitem, keys[:-1], index)
    parent[keys[-1]] = change(parent[keys[-1]])

    with pytest.raises(ValueError, match="the index is damaged"):
        parse_index(json.dumps(index).encode())


@pytest.mark.parametrize(
    "text",
    [b"{}", b"[" * 100_000, b"\xff", b'{"head":' + b"9" * 5000 + b"}"],
    ids=["empty", "deep lists", "not UTF-8", "long number"],
)
def test_text_that_is_not_an_index_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="the index is damaged"):
        parse_index(text)


def test_archive_whose_index_describes_other_frames_is_refused(tmp_path: Path) -> None:
    scenes = []
    for number in range(3):
        scene_id = f"scene000{number}_00"
        scenes.append((scene_id, [(f"{scene_id}/{scene_id}.txt", b"x")]))
    forgery = forge(tmp_path / "a.tar.zst", scenes)
    forgery.frames.pop()
    (tmp_path / "a.tar.zst").write_bytes(forgery.join())

    problem = r"the index lists 4 frames of .* bytes, the archive has 3 of"
    with pytest.raises(ArchiveError, match=problem):
        open_archive(tmp_path / "a.tar.zst")


def test_members_in_the_index_equal_those_read_from_the_tar_bytes(
    tree: Path, tmp_path: Path
) -> None:
    archive = pack_tree(tree, tmp_path / "a.tar.zst")

    for group in archive.index.groups:
        frame = archive.source.read(group.offset, group.stored_bytes)
        content, _ = decompress(frame, group.size_bytes)
        assert group.members == read_members(content)


def test_page_shows_the_figure_of_the_code() -> None:
    (figure,) = re.findall(r"```text\n(\+--.*?)```", ARCHIVE_PAGE, re.DOTALL)
    docstring = archive_package.__doc__ or ""
    indented = [line.strip() for line in docstring.splitlines() if line.startswith("    ")]

    assert figure.splitlines() == indented[:14]


def test_page_reads_a_scene_without_this_program() -> None:
    """The block is run with all other blocks of the pages."""
    blocks = re.findall(r"```python\n(.*?)```", ARCHIVE_PAGE, re.DOTALL)
    (reader,) = [block for block in blocks if "import zstandard" in block]

    assert "scannet_prep" not in reader


class TestTruncatedArchive:
    @pytest.fixture
    def truncated(self, archive_path: Path) -> Path:
        """An archive that ends within the second of three scenes."""
        start, end = find_parts(archive_path)[VAL]
        os.truncate(archive_path, (start + end) // 2)
        return archive_path

    def test_info_suggests_to_recover_the_scenes(self, truncated: Path) -> None:
        outcome = run_main("info", truncated)

        assert outcome.status == 1
        assert "does not end in a seek table: it is truncated" in outcome.stderr
        assert "to recover everything that is intact: scannet-prep unpack" in outcome.stderr


class TestVerifyOfSelectedScenes:
    def test_damage_of_a_selected_scene_is_an_error(
        self, verify: Verify, archive_path: Path
    ) -> None:
        flip_middle(archive_path, VAL)

        assert verify(archive_path, "--splits", "val")[0] == 3

    @pytest.mark.parametrize("words", [("--limit", "1"), ("--scenes", VAL)])
    def test_complete_is_refused_for_a_part_of_a_split(
        self, words: tuple[str, ...], verify: Verify, archive_path: Path
    ) -> None:
        assert verify(archive_path, "--complete", *words)[0] == 2

    def test_complete_names_every_missing_scene_of_a_split(
        self, verify: Verify, archive_path: Path
    ) -> None:
        status, findings = verify(archive_path, "--complete", "--splits", "test")

        assert status == 3
        assert len(findings) == 99
        assert TEST not in {scene_id for _, scene_id, _, _ in findings}
