"""The parts of an archive: what is damaged, too large, or not as this program writes it is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import TREE, claims, forge, has_tool, pack_tree, unpack_by
from commands import TEST, TRAIN, VAL

from scannet_prep import archive as archive_package
from scannet_prep.archive import open_archive
from scannet_prep.archive.frames import decompress
from scannet_prep.archive.layout import (
    ArchiveKind,
    check_names,
    encode_index,
    find_scene,
    identify_scene,
    parse_index,
)
from scannet_prep.archive.source import FileSource, Stream
from scannet_prep.errors import ArchiveError


@pytest.mark.parametrize(("tool", "level"), [("tar", 0), ("tar", 19), ("zstd", 1), ("bsdtar", 1), ("python", 1)])
def test_other_programs_unpack_the_same_tree(tool: str, level: int, tree: Path, tmp_path: Path) -> None:
    if not has_tool(tool):
        pytest.skip(f"{tool} is not installed")
    pack_tree(tree, tmp_path / "a.tar.zst", level=level).close()
    assert unpack_by(tool, tmp_path / "a.tar.zst", tmp_path / "out") == TREE


def test_a_reader_of_the_seekable_format_that_is_not_ours_finds_every_file(packed: Path) -> None:
    indexed_zstd = pytest.importorskip("indexed_zstd")
    file, start = indexed_zstd.IndexedZstdFile(str(packed)), 0
    with open_archive(packed) as archive:
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
    digests = {member.name: member.sha256 for group in index.groups for member in group.members[-2:]}
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in TREE.items()}
    found = [(scene.scene_id, scene.split) for scene in index.scenes]
    assert found == [(TRAIN, "train"), (VAL, "val"), ("scene0022_00", "train"), (TEST, "test")]
    stream = Stream(FileSource(packed))
    assert [stream.take(group.stored_bytes)[:4] for group in index.groups] == [zstandard.FRAME_HEADER] * 5


@pytest.mark.parametrize(
    ("frame", "size_bytes", "message"),
    [
        (claims(1 << 31, 4), 1 << 31, "at most 1,073,741,824"),
        (claims(1 << 29, 4), 1 << 29, r"is said to hold 536,870,912 bytes, .* at most 1,051,576"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 999), 999, "at most 1,073,741,824"),
        (b"x" + bytes(30), 999, "no frame begins here"),
    ],
)
def test_a_frame_that_asks_for_more_than_it_can_hold_is_refused_before_memory_is_taken(
    frame: bytes, size_bytes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decompress(frame, size_bytes)


PROCESSED, RAW = ArchiveKind.PROCESSED, ArchiveKind.RAW
SCENE = "scene0000_00"
NO_NAMES = (
    "", ".", "..", "../x", "/etc/passwd", "x/../y", "a//b", "a/b", "a\\b", "a\nb", "\x1b[2J", "ä", ".hidden", "train",
    "scans", SCENE, "tasks/", ".scannet-prep/x", "x" * 300, f"scans/{SCENE}/{SCENE}.\u0663",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "scene"),
    [
        (PROCESSED, f"train/{SCENE}.npz", SCENE),
        (PROCESSED, "failed.txt", ""),
        (PROCESSED, f"train/{SCENE}.txt", None),
        (PROCESSED, f"scans/{SCENE}/{SCENE}.txt", None),
        (RAW, f"scans/{SCENE}/{SCENE}_vh_clean_2.0.010000.segs.json", SCENE),
        (RAW, "scans_test/scene0707_00/scene0707_00.txt", "scene0707_00"),
        (RAW, f"{SCENE}/{SCENE}.txt", SCENE),
        (RAW, "tasks/scannetv2-labels.combined.tsv", ""),
        (RAW, f"scans/{SCENE}/scene0000_01.txt", None),
        (RAW, f"scans/{SCENE}/{SCENE}.d/x", None),
        (RAW, f"train/{SCENE}.npz", None),
        *((kind, name, None) for kind in ArchiveKind for name in NO_NAMES),
    ],
)
def test_names_are_those_of_a_tree_or_refused(kind: ArchiveKind, name: str, scene: str | None) -> None:
    assert find_scene(kind, name) == scene


def test_an_unlisted_scene_of_scans_test_is_of_test_and_a_scene_lies_in_one_folder() -> None:
    assert identify_scene("scans_test/scene9999_00/scene9999_00.txt") == (RAW, "scene9999_00", "test")
    with pytest.raises(ValueError, match="or they do not lie in one folder"):
        check_names(RAW, SCENE, [f"{SCENE}/{SCENE}.txt", f"scans/{SCENE}/{SCENE}.ply"])


def member(place: int, value: object) -> Callable[[Any], object]:
    return lambda index: index["groups"][1]["members"][0].__setitem__(place, value)


def group(**changes: object) -> Callable[[Any], object]:
    return lambda index: index["groups"][1].update(changes)


def head(**changes: object) -> Callable[[Any], object]:
    return lambda index: index["head"].update(changes)


EDITS: dict[str, Callable[[Any], object]] = {
    "no groups": lambda index: index["groups"].clear(),
    "a scene twice": lambda index: index["groups"].append(index["groups"][-1]),
    "not sorted": lambda index: index["groups"].insert(1, index["groups"].pop()),
    "an offset": group(offset=5),
    "a huge size": group(size_bytes=10**30),
    "another split": group(split="all"),
    "a member elsewhere": member(1, 600),
    "a member that leaves": member(0, "../x"),
    "a member larger than all": member(2, 1 << 50),
    "another version": head(version=2),
    "another format": head(format="zip"),
    "another kind": head(kind="cooked"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_index_that_contradicts_itself_or_is_none_is_refused(edit: Callable[[Any], object], packed: Path) -> None:
    value = json.loads(encode_index(open_archive(packed).index))
    edit(value)
    for text in (json.dumps(value).encode(), b"{}", b"[" * 100_000, b"\xff", b'{"head":' + b"9" * 5000 + b"}"):
        with pytest.raises(ValueError, match="the index is damaged"):
            parse_index(text)


def test_an_archive_whose_index_is_for_other_frames_is_refused(tmp_path: Path) -> None:
    scenes = [(f"scene000{number}_00", [(f"scene000{number}_00/scene000{number}_00.txt", b"x")]) for number in range(3)]
    forgery = forge(tmp_path / "a.tar.zst", scenes)
    forgery.frames.pop()
    (tmp_path / "a.tar.zst").write_bytes(forgery.join())
    with pytest.raises(ArchiveError, match=r"the index names 4 frames of .* bytes, the archive has 3 of"):
        open_archive(tmp_path / "a.tar.zst")


def test_the_page_has_the_figure_of_the_code_and_reads_a_scene_without_this_program() -> None:
    page = (Path(__file__).parent.parent / "docs/archive.md").read_text()
    (figure,) = re.findall(r"```text\n(\+--.*?)```", page, re.DOTALL)
    lines = [line.strip() for line in (archive_package.__doc__ or "").splitlines() if line.startswith("    ")]
    assert figure.splitlines() == lines[:14]
    (block,) = (item for item in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import zstandard" in item)
    assert "scannet_prep" not in block  # it is run with all others of the pages
