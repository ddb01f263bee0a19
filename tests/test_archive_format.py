"""The parts of an archive: what is damaged, too large, or not as this program writes it is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from archives import TREE, has_tool, pack_tree, unpack_by
from forged_archives import find_parts, forge
from hypothesis import given
from hypothesis import strategies as st
from scannet_prep.archive.index import check_index_size, encode_index, parse_index
from scannet_prep.archive.seek_table import FrameRow, encode_seek_table, parse_footer, parse_seek_table
from verifying import TEST, TRAIN, VAL

from scannet_prep import archive as archive_package
from scannet_prep.archive import ArchiveKind, open_archive
from scannet_prep.archive.frames import compress, decompress, read_frame
from scannet_prep.archive.layout import check_names, encode_header, find_scene, find_split, split_members
from scannet_prep.archive.source import FileSource, Stream
from scannet_prep.errors import ArchiveError

TOOLS = ("tar", "zstd", "bsdtar")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("level", [0, 1, 19])
def test_other_programs_unpack_the_same_tree(tool: str, level: int, tree: Path, tmp_path: Path) -> None:
    if not has_tool(tool):
        pytest.skip(f"{tool} is not installed")
    pack_tree(tree, tmp_path / "a.tar.zst", level=level).close()
    assert unpack_by(tool, tmp_path / "a.tar.zst", tmp_path / "out") == TREE


def test_python_reads_it_as_one_tar_stream_without_this_program(packed: Path) -> None:
    with packed.open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        with tarfile.open(fileobj=io.BytesIO(stream.read())) as archive:
            found = {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]
    assert {name: data for name, data in found.items() if not name.startswith(".scannet-prep/")} == TREE


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
    with open_archive(packed) as archive:
        assert [member.name for member in archive.index.files.members] == [
            ".scannet-prep/format.json", "empty", "scannetv2-labels.combined.tsv",
        ]  # fmt: skip
        found = [(scene.scene_id, scene.split) for scene in archive.index.scenes]
        assert found == [(TRAIN, "train"), (VAL, "val"), ("scene0022_00", "train"), (TEST, "test")]
        stream = Stream(FileSource(packed))
        assert [stream.take(group.stored_bytes)[:4] for group in archive.index.groups] == [zstandard.FRAME_HEADER] * 5


@given(st.binary(max_size=300_000), st.sampled_from([0, 1, 3]))
def test_frames_give_back_their_content_at_any_level(content: bytes, level: int) -> None:
    frame = compress(content, level)
    found, has_checksum = decompress(frame, len(content))
    assert (found == content, has_checksum) == (True, True)
    assert zstandard.ZstdDecompressor().decompress(frame, max_output_size=len(content)) == content
    found[:] = bytes(len(content))  # writable


def test_what_compresses_too_well_to_be_read_again_is_stored() -> None:
    content = bytes(5_000_000)
    frame = compress(content, 1)
    assert len(frame) > len(content)
    assert decompress(frame, len(content))[0] == content


@pytest.mark.parametrize("place", range(1, 5))
def test_a_frame_whose_checksum_alone_is_damaged_gives_its_content_and_says_so(place: int) -> None:
    frame = bytearray(compress(b"content" * 1000, 1))
    frame[-place] ^= 1
    content, has_checksum = decompress(frame, 7000)
    assert (bytes(content), has_checksum) == (b"content" * 1000, False)


def frame_of(size_bytes: int, blocks: bytes) -> bytes:
    """A frame that says it holds so much."""
    return zstandard.FRAME_HEADER + b"\x84\x38" + size_bytes.to_bytes(4, "little") + blocks


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (frame_of(1 << 31, bytes(20)), "at most 1,073,741,824"),
        (frame_of(1 << 29, bytes(20)), r"a frame of 30 bytes is said to hold 536,870,912, at most 1,051,576"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 999), "does not say how much"),
        (b"x" + bytes(30), "no frame begins here"),
    ],
)
def test_a_frame_that_asks_for_more_than_it_can_hold_is_refused_before_memory_is_taken(
    frame: bytes, message: str
) -> None:
    size_bytes = int.from_bytes(frame[6:10], "little") if frame[4:6] == b"\x84\x38" else 999
    with pytest.raises(ValueError, match=message):
        decompress(frame, size_bytes)


@pytest.mark.parametrize("damage", [lambda frame: frame[:-1], lambda frame: frame[:-40], lambda frame: frame[:9]])
def test_a_frame_that_ends_early_is_an_error(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(damage(compress(bytes(range(256)) * 2000, 1)))
    with pytest.raises(ValueError, match="the archive ends in"):
        read_frame(Stream(FileSource(tmp_path / "short")))


def test_an_index_may_be_as_large_as_the_number_of_frames_allows() -> None:
    check_index_size(1_000_000, 3)
    check_index_size(10_000_000, 1616)
    for size_bytes, frame_count in ((2_000_000, 3), (1 << 25, 1_000_000)):
        with pytest.raises(ValueError, match="the index is said to have"):
            check_index_size(size_bytes, frame_count)


PROCESSED, RAW = ArchiveKind.PROCESSED, ArchiveKind.RAW


@pytest.mark.parametrize(
    ("kind", "name", "scene"),
    [
        (PROCESSED, "train/scene0000_00.npz", "scene0000_00"),
        (PROCESSED, "scannetv2_val_npz.txt", ""),
        (PROCESSED, "manifest.json", ""),
        (PROCESSED, "train/scene0000_00.txt", None),
        (PROCESSED, "scans/scene0000_00/scene0000_00.txt", None),
        (RAW, "scans/scene0000_00/scene0000_00_vh_clean_2.0.010000.segs.json", "scene0000_00"),
        (RAW, "scans_test/scene0707_00/scene0707_00.txt", "scene0707_00"),
        (RAW, "scene0000_00/scene0000_00.txt", "scene0000_00"),
        (RAW, "tasks/scannetv2-labels.combined.tsv", ""),
        (RAW, "scans/scene0000_00/scene0000_01.txt", None),
        (RAW, "scans/scene0000_00/scene0000_00.d/x", None),
        (RAW, "train/scene0000_00.npz", None),
    ]
    + [
        (kind, name, None)
        for kind in ArchiveKind
        for name in (
            "", ".", "..", "../x", "/etc/passwd", "x/../y", "a//b", "a/b", "a\\b", "a\nb", "\x1b[2J", "ä", ".hidden",
            "train", "scans", "scene0000_00", "tasks/", ".scannet-prep/x", "x" * 300,
            "scans/scene0000_00/scene0000_00.\u0663",
        )
    ],
)  # fmt: skip
def test_names_are_those_of_a_tree_or_refused(kind: ArchiveKind, name: str, scene: str | None) -> None:
    assert find_scene(kind, name) == scene


def test_the_split_is_that_of_the_folder_or_of_the_official_lists() -> None:
    assert find_split(PROCESSED, "val/scene0000_00.npz") == "val"
    assert find_split(RAW, "scene0011_00/scene0011_00.txt") == "val"
    assert find_split(RAW, "scans_test/scene9999_00/scene9999_00.txt") == "test"
    assert find_split(RAW, "scans/scene9999_00/scene9999_00.txt") == ""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["scans/scene0000_00/scene0000_00.txt", "scene0000_00/scene0000_00.ply"], "do not lie in one folder"),
        (["scene0000_00/scene0000_00.txt"] * 2, "is there twice"),
        (["scene0000_00/scene0000_00.txt", "scene0000_01/scene0000_01.txt"], "not the name of a file of scene0000_00"),
    ],
)
def test_the_files_of_a_scene_are_distinct_and_lie_in_one_folder(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_names(RAW, "scene0000_00", names)


@given(st.lists(st.binary(max_size=1500), min_size=1, max_size=4), st.data())
def test_a_damaged_tar_stream_is_an_error_or_names_other_files(files: list[bytes], data: st.DataObject) -> None:
    content, expected = bytearray(), []
    for number, item in enumerate(files):
        content += encode_header(f"file{number}", len(item))
        expected.append((f"file{number}", len(content), len(item)))
        content += item + bytes(-len(item) % 512)
    assert split_members(memoryview(content)) == expected
    place = data.draw(st.integers(0, 511))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="tar header"):
        split_members(memoryview(content))


EDITS: dict[str, Callable[[Any], object]] = {
    "no groups": lambda value: value["groups"].clear(),
    "files lost": lambda value: value["groups"].pop(0),
    "a scene twice": lambda value: value["groups"].append(value["groups"][-1]),
    "not sorted": lambda value: value["groups"][1:].reverse() or value["groups"].insert(1, value["groups"].pop()),
    "an offset": lambda value: value["groups"][1].update(offset=5),
    "a negative size": lambda value: value["groups"][1].update(stored_bytes=-1),
    "a huge size": lambda value: value["groups"][1].update(size_bytes=10**30),
    "a size as text": lambda value: value["groups"][1].update(size_bytes="12"),
    "true for one": lambda value: value["groups"][1].update(vertex_count=True),
    "a fraction": lambda value: value["groups"][1].update(vertex_count=1.5),
    "another split": lambda value: value["groups"][1].update(split="all"),
    "no members": lambda value: value["groups"][1]["members"].clear(),
    "a member too short": lambda value: value["groups"][1]["members"][0].pop(),
    "a member as text": lambda value: value["groups"][1]["members"].__setitem__(0, "abcd"),
    "a member elsewhere": lambda value: value["groups"][1]["members"][0].__setitem__(1, 600),
    "a member that leaves": lambda value: value["groups"][1]["members"][0].__setitem__(0, "../x"),
    "a member larger than all": lambda value: value["groups"][1]["members"][0].__setitem__(2, 1 << 50),
    "a digest too short": lambda value: value["groups"][1]["members"][0].__setitem__(3, "ab"),
    "half a character": lambda value: value["groups"][1]["members"][0].__setitem__(0, "\ud800"),
    "another version": lambda value: value["head"].update(version=2),
    "another format": lambda value: value["head"].update(format="zip"),
    "another kind": lambda value: value["head"].update(kind="cooked"),
    "no kind": lambda value: value["head"].pop("kind"),
    "complete as text": lambda value: value["head"].update(is_complete="false"),
    "a failure that is a number": lambda value: value.update(failures={"scene0000_00": 1}),
    "options as list": lambda value: value["head"].update(options=[]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_index_that_contradicts_itself_is_refused(edit: Callable[[Any], object], packed: Path) -> None:
    with open_archive(packed) as archive:
        value = json.loads(encode_index(archive.index))
    edit(value)
    with pytest.raises(ValueError, match="the index is damaged"):
        parse_index(json.dumps(value).encode())


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff", b'{"version":' + b"9" * 5000 + b"}"]
)
def test_an_index_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="the index is damaged"):
        parse_index(text)


def test_a_seek_table_comes_back_and_any_wrong_size_is_refused() -> None:
    rows = [FrameRow(20, 5, b"abcd"), FrameRow(30, 1 << 31, b"\0\0\0\0")]
    data = encode_seek_table(rows)
    assert parse_footer(data[-9:], 1000) == len(data)
    assert parse_seek_table(data, 50 + len(data)) == rows
    for wrong, size_bytes in ((data, len(data)), (data[4:], 46 + len(data)), (data[:-1], 49 + len(data)), (b"", 0)):
        with pytest.raises(ValueError, match="seek table"):
            parse_seek_table(wrong, size_bytes)
    with pytest.raises(ValueError, match="more than the file can hold"):
        parse_footer(encode_seek_table([])[-9:-9] + b"\xff\xff\xff\x7f" + data[-5:], 1000)


@pytest.mark.parametrize("part", ["files", VAL, "index", "end", "table"])
def test_an_archive_opens_as_long_as_index_and_seek_table_are_whole(part: str, packed: Path) -> None:
    data = bytearray(packed.read_bytes())
    start, end = find_parts(packed)[part]
    data[start:end] = bytes(end - start)
    packed.write_bytes(data)
    if part in {"index", "table"}:
        with pytest.raises(ArchiveError, match="is damaged or truncated") as caught:
            open_archive(packed)
        assert "scannet-prep unpack" in caught.value.hint
    else:
        open_archive(packed).close()


def test_an_archive_whose_index_is_for_other_frames_is_refused(tmp_path: Path) -> None:
    scenes = [(f"scene000{number}_00", [(f"scene000{number}_00/scene000{number}_00.txt", b"x")]) for number in range(3)]
    forgery = forge(tmp_path / "a.tar.zst", scenes)
    forgery.frames.pop()
    (tmp_path / "a.tar.zst").write_bytes(forgery.join())
    with pytest.raises(ArchiveError, match="the index names 4 frames, the archive has 3"):
        open_archive(tmp_path / "a.tar.zst")


def test_the_reader_without_this_program_reads_a_scene(
    packed_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parent.parent / "docs/archive.md").read_text()
    (block,) = (item for item in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import zstandard" in item)
    (tmp_path / "data").mkdir()
    shutil.copy(packed_dir / "processed.tar.zst", tmp_path / "data/scannet.tar.zst")
    monkeypatch.chdir(tmp_path)
    exec(block.replace("scene0191_00", TRAIN), {})
    assert capsys.readouterr().out == f"train/{TRAIN}.npz (600, 3)\n"
    assert "scannet_prep" not in block


def test_the_figure_of_the_bytes_is_the_same_in_code_and_page() -> None:
    page = (Path(__file__).parent.parent / "docs/archive.md").read_text()
    figure = [line.strip() for line in page.splitlines() if line.startswith(("+--", "| "))][:14]
    assert archive_package.__doc__ is not None
    assert figure == [line.strip() for line in archive_package.__doc__.splitlines() if line.startswith("    ")][:14]
