"""The parts of an archive, its readers in other programs, and what `verify` and `info` report."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import TREE, find_parts, flip_middle, forge, pack_tree, read_tree
from commands import SCENES, TEST, TRAIN, VAL, Verify, run_main

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
from scannet_prep.release.scene import Split

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


@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_intact_archive_has_no_findings_under_any_name(
    kind: str, verify: Verify, packed_dir: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(packed_dir / f"{kind}.tar.zst", tmp_path / "download"))

    assert verify(path) == (0, [])

    expected = {
        "kind": "archive",
        "scenes": 3,
        "vertices": 1800,
        "whole_scenes": sorted(SCENES),
        "size_bytes": path.stat().st_size,
    }
    assert {key: verify.value[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("part", "severity", "words"),
    [
        ("files", "error", "the files that belong to no scene"),
        ("index", "error", "the index is damaged"),
        ("end", "note", "other programs need it"),
        ("table", "note", "the seek table"),
        (VAL, "error", "is damaged (bytes "),
    ],
)
def test_verify_names_the_damaged_part(
    part: str, severity: str, words: str, verify: Verify, archive_path: Path
) -> None:
    flip_middle(archive_path, part)

    status, findings = verify(archive_path)

    ((found_severity, scene_id, _, message),) = findings
    assert status == (3 if severity == "error" else 0)
    assert found_severity == severity
    assert scene_id == (VAL if part == VAL else "")
    assert words in message


@pytest.mark.parametrize("part", ["files", "index", "end", "table", VAL])
def test_verify_lists_damaged_and_whole_scenes(
    part: str, verify: Verify, archive_path: Path
) -> None:
    flip_middle(archive_path, part)

    verify(archive_path)

    assert verify.value["damaged_scenes"] == ([VAL] if part == VAL else [])
    assert verify.value["whole_scenes"] == sorted({*SCENES} - {part})


class TestOutputOfVerify:
    def test_quiet_verify_prints_only_the_error(self, archive_path: Path) -> None:
        flip_middle(archive_path, VAL)

        outcome = run_main("verify", archive_path, "-q")

        assert outcome.status == 3
        assert outcome.stdout == ""
        assert f"error: {archive_path}: {VAL}: is damaged" in outcome.stderr

    def test_verify_ends_with_the_number_of_whole_scenes(self, archive_path: Path) -> None:
        flip_middle(archive_path, VAL)

        lines = run_main("verify", archive_path, "--jobs", "2").stdout.splitlines()

        assert f"error: {archive_path}: {VAL}: is damaged" in lines[0]
        summary = f"{archive_path}: archive scenes: 3, whole: 2 (train 1 of 1,201, "
        assert lines[-2].startswith(summary)
        assert lines[-1] == "1 error, 3 notes"


class TestTruncatedArchive:
    @pytest.fixture
    def truncated(self, archive_path: Path) -> Path:
        """An archive that ends within the second of three scenes."""
        start, end = find_parts(archive_path)[VAL]
        os.truncate(archive_path, (start + end) // 2)
        return archive_path

    @pytest.mark.parametrize(
        ("words", "missing"),
        [
            (("--splits", *Split), [VAL, TEST]),
            (("--splits", "test"), [TEST]),
            (("--scenes", VAL), [VAL]),
        ],
    )
    def test_verify_names_the_missing_scenes(
        self, words: tuple[str, ...], missing: list[str], verify: Verify, truncated: Path
    ) -> None:
        status, findings = verify(truncated, *words)

        errors = [row for row in findings[1:] if row[0] == "error"]
        assert status == 3
        assert [scene_id for _, scene_id, _, _ in errors] == missing

    def test_verify_names_the_byte_after_the_last_whole_frame(
        self, verify: Verify, archive_path: Path
    ) -> None:
        start, end = find_parts(archive_path)[VAL]
        os.truncate(archive_path, (start + end) // 2)

        _, findings = verify(archive_path, "--scenes", VAL)

        assert f"is truncated or damaged after byte {start:,}" in findings[0][3]

    def test_verify_lists_the_whole_scenes(self, verify: Verify, truncated: Path) -> None:
        status, _ = verify(truncated)

        assert status == 3
        assert verify.value["whole_scenes"] == [TRAIN]

    def test_info_suggests_to_recover_the_scenes(self, truncated: Path) -> None:
        outcome = run_main("info", truncated)

        assert outcome.status == 1
        assert "does not end in a seek table: it is truncated" in outcome.stderr
        assert "to recover everything that is intact: scannet-prep unpack" in outcome.stderr


class TestVerifyOfSelectedScenes:
    @pytest.mark.parametrize(
        ("words", "whole_scenes"),
        [
            (("--scenes", TRAIN), [TRAIN]),
            (("--splits", "train", "test"), [TRAIN, TEST]),
            (("--limit", "1"), [TRAIN]),
        ],
    )
    def test_damage_of_other_scenes_is_not_reported(
        self, words: tuple[str, ...], whole_scenes: list[str], verify: Verify, archive_path: Path
    ) -> None:
        flip_middle(archive_path, VAL)

        status, findings = verify(archive_path, *words)

        assert status == 0
        assert "error" not in {severity for severity, _, _, _ in findings}
        assert verify.value["whole_scenes"] == whole_scenes
        assert verify.value["scenes"] == len(whole_scenes)

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

    @pytest.mark.parametrize(
        ("words", "missing"),
        [
            (("--scenes", TRAIN, "scene0500_00"), "scene0500_00"),
            (("--scenes", TRAIN, "--splits", "test"), TRAIN),
        ],
    )
    def test_selected_scene_that_is_missing_is_an_error(
        self, words: tuple[str, ...], missing: str, verify: Verify, archive_path: Path
    ) -> None:
        status, findings = verify(archive_path, *words)

        ((_, scene_id, _, message),) = findings
        assert status == 3
        assert scene_id == missing
        assert "is not here" in message

    def test_complete_names_every_missing_scene_of_a_split(
        self, verify: Verify, archive_path: Path
    ) -> None:
        status, findings = verify(archive_path, "--complete", "--splits", "test")

        assert status == 3
        assert len(findings) == 99
        assert TEST not in {scene_id for _, scene_id, _, _ in findings}

    @pytest.mark.parametrize(
        "words", [("--complete", "--splits", "train"), ("--scenes", TRAIN, "scene0001_00")]
    )
    def test_missing_scene_is_an_error_if_the_index_is_read_last(
        self, words: tuple[str, ...], verify: Verify, archive_path: Path
    ) -> None:
        with archive_path.open("ab") as file:
            file.write(b"x")

        status, findings = verify(archive_path, *words)

        assert status == 3
        assert {severity for severity, _, _, _ in findings} == {"error", "note"}


class TestInfo:
    @pytest.fixture
    def index_only(self, archive_path: Path) -> Path:
        """An archive with zeros instead of everything before the index."""
        index_start, _ = find_parts(archive_path)["index"]
        data = archive_path.read_bytes()
        archive_path.write_bytes(bytes(index_start) + data[index_start:])
        return archive_path

    def test_info_reads_the_index_only(self, index_only: Path) -> None:
        outcome = run_main("info", index_only, "--json")

        assert outcome.status == 0
        assert outcome.json["kind"] == "archive"

    def test_info_shows_kind_and_level_of_what_was_packed(self, index_only: Path) -> None:
        head = run_main("info", index_only, "--json").json["head"]

        assert head["kind"] == "processed"
        assert head["level"] == 1

    def test_info_shows_the_size_of_the_archive(self, index_only: Path) -> None:
        value = run_main("info", index_only, "--json").json

        assert value["size_bytes"] == index_only.stat().st_size

    @pytest.mark.parametrize(("key", "expected"), [("failures", {}), ("missing_shards", [])])
    def test_info_lists_nothing_that_a_complete_archive_lacks(
        self, index_only: Path, key: str, expected: object
    ) -> None:
        assert run_main("info", index_only, "--json").json[key] == expected

    def test_info_counts_scenes_vertices_and_bytes_of_each_split(
        self, archive_path: Path, whole_dir: Path
    ) -> None:
        bounds = find_parts(archive_path)
        of_archive = run_main("info", archive_path, "--json").json["splits"]
        of_folder = run_main("info", whole_dir / "processed", "--json").json["splits"]

        for split, scene_id in (("train", TRAIN), ("val", VAL), ("test", TEST)):
            start, end = bounds[scene_id]
            assert of_archive[split]["scenes"] == 1
            assert of_archive[split]["vertices"] == 600
            assert of_archive[split]["stored_bytes"] == end - start
            assert of_archive[split]["size_bytes"] >= of_folder[split]["size_bytes"]

    def test_info_agrees_with_that_of_the_folder(self, archive_path: Path, whole_dir: Path) -> None:
        of_archive = run_main("info", archive_path, "--json").json
        of_folder = run_main("info", whole_dir / "processed", "--json").json

        for key in ("options", "scene_ids", "program"):
            assert of_archive[key] == of_folder[key], key

    def test_info_lists_the_scenes_of_a_raw_archive(self, packed_dir: Path) -> None:
        value = run_main("info", packed_dir / "raw.tar.zst", "--json").json

        assert value["head"]["kind"] == "raw"
        assert value["scene_ids"] == [*SCENES]

    def test_info_of_a_raw_archive_has_no_options(self, packed_dir: Path) -> None:
        value = run_main("info", packed_dir / "raw.tar.zst", "--json").json

        assert value["options"] is None
