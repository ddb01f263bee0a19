"""The parts of an archive, what other programs make of it, and what `verify` and `info` say of it."""

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
from archives import TREE, call, find_parts, flip, forge, pack_tree, read_tree
from commands import SCENES, TEST, TRAIN, VAL, Verify

from scannet_prep import archive as archive_package
from scannet_prep.archive import open_archive
from scannet_prep.archive.layout import (
    ArchiveKind,
    check_names,
    encode_index,
    find_scene,
    identify_scene,
    parse_index,
)
from scannet_prep.archive.source import FileSource, Stream
from scannet_prep.base.errors import ArchiveError
from scannet_prep.release.scene import Split


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("tar --zstd -xf ../a.tar.zst", 0),
        ("tar --zstd -xf ../a.tar.zst", 19),
        ("zstd -dcq ../a.tar.zst | tar -x", 1),
        ("bsdtar -xf ../a.tar.zst", 1),
        ("", 1),
    ],
)
def test_other_programs_and_tarfile_unpack_the_same_tree(
    line: str, level: int, tree: Path, tmp_path: Path
) -> None:
    if line and not all(map(shutil.which, {"bsdtar"} if "bsdtar" in line else {"tar", "zstd"})):
        pytest.skip(f"not installed: {line}")
    pack_tree(tree, tmp_path / "a.tar.zst", level=level)
    (tmp_path / "out").mkdir()
    if line:
        subprocess.run(line, shell=True, check=True, cwd=tmp_path / "out")
    else:
        with (
            zstandard.open(tmp_path / "a.tar.zst") as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            archive.extractall(tmp_path / "out", filter="data")
    assert read_tree(tmp_path / "out") == TREE


def test_a_reader_of_the_seekable_format_that_is_not_ours_finds_every_file(packed: Path) -> None:
    indexed_zstd = pytest.importorskip("indexed_zstd")
    file, start = indexed_zstd.IndexedZstdFile(str(packed)), 0
    archive = open_archive(packed)
    for group in archive.index.groups:
        for member in reversed(group.members):
            file.seek(start + member.offset)
            assert file.read(member.size_bytes) == bytes(archive.read_member(group, member))
        start += group.size_bytes
    file.close()


def test_each_scene_is_one_frame_after_the_files_of_no_scene(packed: Path) -> None:
    index = open_archive(packed).index
    names = [member.name for member in index.groups[0].members]
    assert names == [".scannet-prep/format.json", "empty", "scannetv2-labels.combined.tsv"]
    digests = {
        member.name: member.sha256 for group in index.groups for member in group.members[-2:]
    }
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in TREE.items()}
    found = [(scene.scene_id, scene.split) for scene in index.scenes]
    assert found == [(TRAIN, "train"), (VAL, "val"), ("scene0022_00", "train"), (TEST, "test")]
    stream = Stream(FileSource(packed))
    assert [stream.take(group.stored_bytes)[:4] for group in index.groups] == [
        zstandard.FRAME_HEADER
    ] * 5


SCENE = "scene0000_00"
NO_NAMES = (
    "", ".", "..", "../x", "/etc/passwd", "x/../y", "a//b", "a/b", "a\\b", "a\nb", "\x1b[2J", "ä", ".hidden", "train",
    "scans", SCENE, "tasks/", ".scannet-prep/x", "x" * 300, f"scans/{SCENE}/../../x", f"scans/{SCENE}/./x",
    f"scans/{SCENE}/{SCENE}.\u0663",
)  # fmt: skip


def test_names_are_those_of_a_tree_or_refused_and_a_scene_lies_in_one_folder() -> None:
    npz, txt = f"train/{SCENE}.npz", f"scans/{SCENE}/{SCENE}.txt"
    for kind, names in (
        (
            ArchiveKind.PROCESSED,
            {npz: SCENE, "failed.txt": "", f"train/{SCENE}.txt": None, txt: None},
        ),
        (
            ArchiveKind.RAW,
            {txt: SCENE, "tasks/scannetv2-labels.combined.tsv": "", npz: None, f"{txt}.d/x": None},
        ),
    ):
        expected = names | dict.fromkeys((*NO_NAMES, f"scans/{SCENE}/scene0000_01.txt"))
        assert {name: find_scene(kind, name) for name in expected} == expected
    test_name = "scans_test/scene9999_00/scene9999_00.txt"
    assert identify_scene(test_name) == (
        ArchiveKind.RAW,
        "scene9999_00",
        "test",
    )  # though it is not listed
    with pytest.raises(ValueError, match="or they do not lie in one folder"):
        check_names(ArchiveKind.RAW, SCENE, [f"{SCENE}/{SCENE}.txt", txt])


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (("groups",), lambda _: []),
        (("groups",), lambda groups: [*groups, groups[-1]]),
        (("groups",), lambda groups: [groups[0], groups[-1], *groups[1:-1]]),
        (("groups", 1, "offset"), 5),
        (("groups", 1, "size_bytes"), 10**30),
        (("groups", 1, "split"), "all"),
        (("groups", 2, "split"), "train"),
        (("groups", -1, "stored_bytes"), 1 << 40),
        (("groups", 1, "members", 0, 0), "../x"),
        (("groups", 1, "members", 0, 1), 600),
        (("groups", 1, "members", 0, 2), 1 << 50),
        (("head", "version"), 2),
        (("head", "format"), "zip"),
        (("head", "kind"), "cooked"),
    ],
)
def test_no_index_or_a_contradictory_one_is_refused(
    place: tuple[Any, ...], change: Any, packed_dir: Path
) -> None:
    value = json.loads(encode_index(open_archive(packed_dir / "processed.tar.zst").index))
    holder = reduce(getitem, place[:-1], value)
    holder[place[-1]] = change(holder[place[-1]]) if callable(change) else change
    for text in (
        json.dumps(value).encode(),
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b'{"head":' + b"9" * 5000 + b"}",
    ):
        with pytest.raises(ValueError, match="the index is damaged"):
            parse_index(text)


def test_an_archive_whose_index_is_for_other_frames_is_refused(tmp_path: Path) -> None:
    scenes = [
        (f"scene000{number}_00", [(f"scene000{number}_00/scene000{number}_00.txt", b"x")])
        for number in range(3)
    ]
    forgery = forge(tmp_path / "a.tar.zst", scenes)
    forgery.frames.pop()
    (tmp_path / "a.tar.zst").write_bytes(forgery.join())
    with pytest.raises(
        ArchiveError, match=r"the index names 4 frames of .* bytes, the archive has 3 of"
    ):
        open_archive(tmp_path / "a.tar.zst")


def test_the_page_has_the_figure_of_the_code_and_reads_a_scene_without_this_program() -> None:
    page = (Path(__file__).parent.parent / "docs/archive.md").read_text()
    (figure,) = re.findall(r"```text\n(\+--.*?)```", page, re.DOTALL)
    lines = [
        line.strip()
        for line in (archive_package.__doc__ or "").splitlines()
        if line.startswith("    ")
    ]
    assert figure.splitlines() == lines[:14]
    (block,) = (
        item
        for item in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "import zstandard" in item
    )
    assert "scannet_prep" not in block  # it is run with all others of the pages


def damage(path: Path, part: str) -> None:
    flip(path, sum(find_parts(path)[part]) // 2)


def test_a_whole_archive_has_no_findings_under_any_name(
    verify: Verify, packed_dir: Path, tmp_path: Path
) -> None:
    for kind in ("processed", "raw"):
        path = Path(shutil.copy(packed_dir / f"{kind}.tar.zst", tmp_path / "download"))
        assert verify(path) == (0, [])
        value = verify.value
        assert (value["kind"], value["scenes"], value["vertices"]) == ("archive", 3, 1800)
        assert (value["whole_scenes"], value["size_bytes"]) == (sorted(SCENES), path.stat().st_size)


def test_a_flip_is_told_by_its_part_and_an_exit_status(
    verify: Verify, archive_path: Path, tmp_path: Path
) -> None:
    for part, severity, words in (
        ("files", "error", "the files that belong to no scene"),
        ("index", "error", "the index is damaged"),
        ("end", "note", "other programs need it"),
        ("table", "note", "the seek table"),
        (VAL, "error", "is damaged (bytes "),
    ):
        path = Path(shutil.copy(archive_path, tmp_path / "copy"))
        damage(path, part)
        damaged = [part] if part == VAL else []
        status, [(found, scene_id, _, message)] = verify(path)
        assert (status, found, words in message) == (
            3 if severity == "error" else 0,
            severity,
            True,
        )
        assert (scene_id, verify.value["damaged_scenes"]) == ("".join(damaged), damaged)
        assert verify.value["whole_scenes"] == sorted({*SCENES} - {part})
    outcome = call("verify", path, "-q")
    assert (outcome.status, outcome.stdout) == (3, "")
    assert f"error: {path}: {VAL}: is damaged" in outcome.stderr
    lines = call("verify", path, "--jobs", "2").stdout.splitlines()
    assert lines[-2].startswith(f"{path}: archive scenes: 3, whole: 2 (train 1 of 1,201, ")
    assert (f"error: {path}: {VAL}: is damaged" in lines[0], lines[-1]) == (
        True,
        "1 error, 3 notes",
    )


def test_a_truncated_archive_says_what_is_whole_and_names_the_rest(
    verify: Verify, archive_path: Path
) -> None:
    start, end = find_parts(archive_path)[VAL]
    os.truncate(archive_path, (start + end) // 2)
    for words, lost in (
        ((), [VAL, TEST]),
        (("--splits", "test"), [TEST]),
        (("--scenes", VAL), [VAL]),
    ):
        status, [(_, _, _, message), *others] = verify(
            archive_path, *words, *(() if words else ("--splits", *Split))
        )
        assert (status, [item[1] for item in others if item[0] == "error"]) == (3, lost)
    assert f"is truncated or damaged behind byte {start:,}" in message
    assert verify(archive_path)[0] == 3
    assert verify.value["whole_scenes"] == [TRAIN]
    outcome = call("info", archive_path)
    assert (outcome.status, "does not end in a seek table: it is truncated" in outcome.stderr) == (
        1,
        True,
    )
    assert "to recover everything that is whole: scannet-prep unpack" in outcome.stderr


def test_the_scenes_that_were_asked_for_are_checked_and_no_others(
    verify: Verify, archive_path: Path
) -> None:
    damage(archive_path, VAL)
    assert verify(archive_path, "--scenes", TRAIN) == (0, [])
    assert verify.value["whole_scenes"] == [TRAIN]
    assert verify(archive_path, "--splits", "train", "test")[0] == 0
    assert verify.value["whole_scenes"] == [TRAIN, TEST]
    assert verify(archive_path, "--splits", "val")[0] == 3
    assert verify(archive_path, "--limit", "1")[0] == 0
    assert verify.value["scenes"] == 1
    for words in (("--complete", "--limit", "1"), ("--complete", "--scenes", VAL)):
        assert verify(archive_path, *words)[0] == 2
    status, [(_, scene_id, _, message)] = verify(archive_path, "--scenes", TRAIN, "scene0500_00")
    assert (status, scene_id, "is not here" in message) == (3, "scene0500_00", True)
    status, [(_, scene_id, _, message)] = verify(
        archive_path, "--scenes", TRAIN, "--splits", "test"
    )
    assert (status, scene_id, "is not here" in message) == (3, TRAIN, True)
    status, findings = verify(archive_path, "--complete", "--splits", "test")
    assert (status, len(findings)) == (3, 99)
    assert TEST not in {scene_id for _, scene_id, _, _ in findings}
    archive_path.write_bytes(
        archive_path.read_bytes() + b"x"
    )  # so that the index is found on the way
    for words in (("--complete", "--splits", "train"), ("--scenes", TRAIN, "scene0001_00")):
        status, findings = verify(archive_path, *words)
        assert (status, {item[0] for item in findings}) == (3, {"error", "note"}), findings


def test_an_archive_is_described_by_its_index_alone(
    archive_path: Path, whole_dir: Path, packed_dir: Path
) -> None:
    bounds, data = find_parts(archive_path), bytearray(archive_path.read_bytes())
    data[: bounds["index"][0]] = bytes(bounds["index"][0])
    archive_path.write_bytes(data)
    outcome = call("info", archive_path, "--json")
    value, folder = outcome.json, call("info", whole_dir / "processed", "--json").json
    kinds = (value["kind"], value["head"]["kind"], value["head"]["level"])
    assert (outcome.status, *kinds) == (0, "archive", "processed", 1)
    for split, scene_id in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        found, (start, end) = value["splits"][split], bounds[scene_id]
        assert (found["scenes"], found["vertices"], found["stored_bytes"]) == (1, 600, end - start)
        assert found["size_bytes"] >= folder["splits"][split]["size_bytes"]
    assert all(value[key] == folder[key] for key in ("options", "scene_ids", "program"))
    assert (value["size_bytes"], value["failures"], value["missing_shards"]) == (len(data), {}, [])
    value = call("info", packed_dir / "raw.tar.zst", "--json").json
    assert (value["head"]["kind"], value["scene_ids"], value["options"]) == ("raw", [*SCENES], None)
