"""What `pack` puts into an archive, and what it refuses."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from archives import TREE, has_tool, pack, pack_tree, read_tree, unpack_by, write_tree
from commands import COMMAND, run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from scannet_prep.archive.compression import MAX_FRAME_BYTES
from verifying import SCENES, TEST, TRAIN, VAL

from scannet_prep.archive import ArchiveKind, open_archive
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.raw.lock import LOCK_NAME, digest_file, encode_lock, read_lock

TOOLS = ("tar", "zstd", "bsdtar")


@pytest.mark.parametrize("tool", TOOLS)
def test_other_programs_unpack_the_same_tree(tool: str, tree: Path, tmp_path: Path) -> None:
    if not has_tool(tool):
        pytest.skip(f"{tool} is not installed")
    pack_tree(tree, tmp_path / "a.tar.zst").close()
    assert unpack_by(tool, tmp_path / "a.tar.zst", tmp_path / "out") == TREE


def test_zstd_finds_all_checksums_right(tree: Path, tmp_path: Path) -> None:
    if not has_tool("zstd"):
        pytest.skip("zstd is not installed")
    pack_tree(tree, tmp_path / "a.tar.zst").close()
    subprocess.run(["zstd", "-tq", tmp_path / "a.tar.zst"], check=True)


def test_a_reader_of_the_seekable_format_that_is_not_ours_finds_every_member(tree: Path, tmp_path: Path) -> None:
    indexed_zstd = pytest.importorskip("indexed_zstd")
    archive = pack_tree(tree, tmp_path / "a.tar.zst")
    file = indexed_zstd.IndexedZstdFile(str(tmp_path / "a.tar.zst"))
    start = 0
    for group in archive.index.groups:
        for member in reversed(group.members):
            file.seek(start + member.offset)
            assert file.read(member.size_bytes) == bytes(archive.read_member(group, member))
        start += group.size_bytes
    file.close()


def test_a_scene_is_one_frame_and_files_of_no_scene_come_first(tree: Path, tmp_path: Path) -> None:
    archive = pack_tree(tree, tmp_path / "a.tar.zst")
    assert [member.name for member in archive.index.files.members] == [
        ".scannet-prep/format.json", "empty", "notes.txt",
    ]  # fmt: skip
    assert [(scene.scene_id, scene.split, scene.frame_count) for scene in archive.index.scenes] == [
        (TRAIN, "train", 1), (VAL, "val", 1), ("scene0022_00", "train", 1),
    ]  # fmt: skip
    assert archive.index.scenes[0].offset == archive.index.files.stored_bytes


NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda name: name not in {".", "..", ".scannet-prep"} and len(name.encode()) <= 255
)
PATHS = st.lists(NAMES | st.sampled_from([TRAIN, f"{VAL}_x.npy"]), min_size=1, max_size=4).map("/".join)


@settings(max_examples=60)
@given(files=st.dictionaries(PATHS, st.binary(max_size=1500), min_size=1, max_size=6))
def test_any_tree_comes_back(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    names = sorted(files)
    parents = {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}
    files = {name: data for name, data in files.items() if name not in parents and len(name.encode()) < 900}
    folder = tmp_path_factory.mktemp("any")
    archive = pack_tree(write_tree(folder / "tree", files), folder / "a.tar.zst")
    found = {
        member.name: bytes(archive.read_member(group, member))
        for group in archive.index.groups
        for member in group.members[0 if group.scene_id else 1 :]
    }
    assert found == files
    for group in archive.index.groups:
        assert sum(map(len, archive.iter_content(group))) == group.size_bytes
    archive.close()
    if has_tool("tar"):
        assert unpack_by("tar", folder / "a.tar.zst", folder / "out") == files
    shutil.rmtree(folder)


def test_a_scene_of_more_than_64_mib_is_cut_inside_blocks(tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    tree = write_tree(tmp_path / "tree", {f"{TRAIN}/a": block * 40, f"{TRAIN}/b": block * 33, f"{VAL}/c": b"c"})
    archive = pack_tree(tree, tmp_path / "a.tar.zst", jobs=2)
    large, small = archive.index.scenes
    assert large.size_bytes > MAX_FRAME_BYTES
    spans = archive.spans(large)
    ends = [sum(span.size_bytes for span in spans[: number + 1]) for number in range(len(spans))]
    assert [end % 512 for end in ends] == [256] * (len(spans) - 1) + [0]
    assert max(span.size_bytes for span in spans) <= (16 << 20) + 256
    assert bytes(archive.read_member(large, large.members[1])) == block * 33
    assert b"".join(archive.iter_content(small))[512:513] == b"c"
    if has_tool("tar"):
        assert unpack_by("tar", tmp_path / "a.tar.zst", tmp_path / "out") == read_tree(tree)


def test_the_bytes_depend_on_the_files_alone(tree: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.tar.zst", "two.tar.zst", "later.tar.zst", "pipe.tar.zst")]
    assert pack(tree, "-o", paths[0], "--jobs", "1")[0] == 0
    assert pack(tree, "-o", paths[1], "--jobs", "2")[0] == 0
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    (tree / "notes.txt").chmod(0o600)
    assert pack(tree, "-o", paths[2])[0] == 0
    with paths[3].open("wb") as file:
        subprocess.run([*COMMAND, "pack", tree, "-", "-q"], stdout=file, check=True)
    assert len({path.read_bytes() for path in paths}) == 1


def test_a_processed_folder_knows_its_vertices_splits_and_options(out_dir: Path, tmp_path: Path) -> None:
    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")
    assert (status, value["kind"], value["scenes"]) == (0, "processed", 3)
    index = open_archive(tmp_path / "a.tar.zst").index
    manifest = read_manifest(out_dir)
    assert manifest is not None
    assert [(item.scene_id, item.split, item.vertex_count) for item in index.scenes] == [
        (name, str(entry.split), entry.vertex_count) for name, entry in sorted(manifest.scenes.items())
    ]
    assert index.head.kind is ArchiveKind.PROCESSED
    assert index.head.options == {
        "scannet200": False,
        "align_axis": False,
        "faces": False,
        "labels_from": "aggregation",
    }
    assert "Terms of Use" in index.head.notice


def test_a_part_of_a_processed_folder_has_a_manifest_of_that_part(out_dir: Path, tmp_path: Path) -> None:
    assert pack(out_dir, "-o", tmp_path / "a.tar.zst", "--splits", "val", "test")[0] == 0
    archive = open_archive(tmp_path / "a.tar.zst")
    files = {
        member.name: bytes(archive.read_member(archive.index.files, member)) for member in archive.index.files.members
    }
    assert list(json.loads(files["manifest.json"])["scenes"]) == [VAL, TEST]
    assert files["scannetv2_train_npz.txt"] == b""
    assert files["scannetv2_val_npz.txt"] == f"val/{VAL}.npz\n".encode()


def test_packed_again_it_is_up_to_date_until_a_scene_changes(out_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    assert pack(out_dir, "-o", target)[1]["up_to_date"] is False
    before = target.stat().st_ino
    assert pack(out_dir, "-o", target)[1]["up_to_date"] is True
    assert target.stat().st_ino == before
    assert pack(out_dir, "-o", target, "--scenes", TRAIN)[1]["up_to_date"] is False
    assert [scene.scene_id for scene in open_archive(target).index.scenes] == [TRAIN]


def test_a_raw_tree_counts_vertices_and_restricts_its_lock(raw_dir: Path, tmp_path: Path) -> None:
    names = [path.relative_to(raw_dir).as_posix() for path in raw_dir.rglob("scene*.*") if path.is_file()]
    (raw_dir / LOCK_NAME).write_bytes(encode_lock({name: digest_file(raw_dir / name) for name in names}))
    (raw_dir / "scans" / TRAIN / "tmpabc").write_bytes(b"left by the official script")
    outcome = run_command("pack", raw_dir, "-o", tmp_path / "a.tar.zst", "--scenes", TRAIN)
    assert outcome.status == 0
    assert f"left out, because hidden or temporary: 1 file (scans/{TRAIN}/tmpabc)" in outcome.stderr
    archive = open_archive(tmp_path / "a.tar.zst")
    (scene,) = archive.index.scenes
    assert (archive.index.head.kind, scene.split) == ("raw", "train")
    assert scene.vertex_count > 500
    (member,) = (item for item in archive.index.files.members if item.name == LOCK_NAME)
    (tmp_path / "lock").write_bytes(archive.read_member(archive.index.files, member))
    assert set(read_lock(tmp_path / "lock")) == {item.name for item in scene.members}


def test_shards_hold_every_scene_once_and_sha256sum_agrees(tmp_path: Path) -> None:
    files = {f"train/scene{number:04}_00.npz": os.urandom(200_000) for number in range(14)}
    tree = write_tree(tmp_path / "tree", files | {"notes.txt": b"notes"})
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  other.bin\n")
    assert pack(tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")[0] == 0
    paths = sorted(tmp_path.glob("a-*.tar.zst"))
    assert [path.name for path in paths] == [f"a-0000{number}-of-00004.tar.zst" for number in range(4)]
    assert max(path.stat().st_size for path in paths) <= 1_000_000
    scenes = [scene.scene_id for path in paths for scene in open_archive(path).index.scenes]
    assert scenes == sorted(name[6:18] for name in files)
    for path in paths:
        assert [item.name for item in open_archive(path).index.files.members[1:]] == ["notes.txt"]
    sums = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert sums.pop(-1) == f"{'0' * 64}  other.bin"
    (tmp_path / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "a-00000-of-00009.tar.zst").write_bytes(b"")
    outcome = run_command("pack", tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")
    assert "a-00000-of-00009.tar.zst" in outcome.stderr


def test_earlier_shards_leave_no_line_in_the_sums(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {f"scene{number:04}_00": os.urandom(400_000) for number in range(6)})
    for size in ("1MB", "2MB"):
        assert pack(tree, "-o", tmp_path / "a.tar.zst", "--shard-size", size)[0] == 0
    for path in tmp_path.glob("a-*-of-00003.tar.zst"):
        path.unlink()  # as the warning says
    subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert len(list(tmp_path.glob("a-*"))) == 2


def test_there_may_be_more_shards_than_open_files(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {f"scene{number:04}_00": os.urandom(1_000_000) for number in range(30)})
    limit = (25, 25)
    outcome = run_command(
        "pack", tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB", "--jobs", "1",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
    )  # fmt: skip
    assert (outcome.status, len(list(tmp_path.glob("a-*-of-00030.tar.zst")))) == (0, 30), outcome.stderr


def test_of_a_link_the_archive_is_replaced_that_it_leads_to(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {f"{TRAIN}.bin": b"one"})
    (tmp_path / "nas").mkdir()
    link, target = tree / "a.tar.zst", tmp_path / "nas" / "b.tar.zst"
    assert pack(tree, "-o", target)[0] == 0
    link.symlink_to(target)
    assert pack(tree, "-o", link)[0] == 0
    write_tree(tree, {f"{VAL}.bin": b"two"})
    assert pack(tree, "-o", link, "--append")[1]["added"] == 1
    assert link.is_symlink()
    assert [scene.scene_id for scene in open_archive(target).index.scenes] == [TRAIN, VAL]
    assert [item.name for item in open_archive(target).index.files.members] == [".scannet-prep/format.json"]


def test_all_three_scenes_of_the_fixture_are_packed(out_dir: Path, tmp_path: Path) -> None:
    assert run_command("pack", out_dir, "-o", tmp_path / "a.tar.zst", "--dry-run", "--json").json["scenes"] == [*SCENES]
    assert not (tmp_path / "a.tar.zst").exists()
