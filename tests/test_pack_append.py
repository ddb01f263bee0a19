"""Scenes that are added to an archive, and shards: the same bytes as packing all at once, or an error."""

from __future__ import annotations

import os
from pathlib import Path

from archives import pack, pack_tree, write_tree
from verifying import TEST, TRAIN, VAL

from scannet_prep.archive import open_archive
from scannet_prep.raw.lock import LOCK_NAME, digest_file, encode_lock


def test_appended_scenes_give_the_bytes_of_packing_all_at_once(out_dir: Path, tmp_path: Path) -> None:
    whole, grown = tmp_path / "whole.tar.zst", tmp_path / "grown.tar.zst"
    assert pack(out_dir, "-o", whole)[0] == 0
    assert pack(out_dir, "-o", grown, "--scenes", VAL)[0] == 0
    status, value = pack(out_dir, "-o", grown, "--append", "--splits", "train", "test")
    assert (status, value["added"], value["scenes"]) == (0, 2, 3)
    assert grown.read_bytes() == whole.read_bytes()
    assert pack(out_dir, "-o", grown, "--append")[1]["up_to_date"] is True


def test_large_files_that_an_archive_has_are_known_again(tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    tree = write_tree(tmp_path / "tree", {f"{TRAIN}.bin": os.urandom(2_500_000), "notes.txt": os.urandom(2_500_000)})
    pack_tree(tree, target).close()
    status, value = pack(tree, "-o", target, "--append")
    assert (status, value.get("up_to_date")) == (0, True), value
    write_tree(tree, {f"{VAL}.bin": b"val"})
    assert pack(tree, "-o", target, "--append")[1]["added"] == 1


def test_a_large_lock_is_merged_whole(raw_dir: Path, tmp_path: Path) -> None:
    entry = digest_file(next(raw_dir.rglob("*.ply")))
    names = [f"scans/{TRAIN}/{TRAIN}_{number}.ply" for number in range(14_000)]
    (raw_dir / LOCK_NAME).write_bytes(encode_lock(dict.fromkeys(names, entry)))
    assert (raw_dir / LOCK_NAME).stat().st_size > 1 << 20
    target = tmp_path / "a.tar.zst"
    assert pack(raw_dir, "-o", target, "--scenes", VAL)[0] == 0
    assert pack(raw_dir, "-o", target, "--append")[0] == 0
    archive = open_archive(target)
    (member,) = (item for item in archive.index.files.members if item.name == LOCK_NAME)
    assert bytes(archive.read_member(archive.index.files, member)) == (raw_dir / LOCK_NAME).read_bytes()


def test_appending_takes_files_of_no_scene_too(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    pack_tree(tree, target).close()
    write_tree(tree, {"notes.txt": b"changed", "new.txt": b"new"})
    status, value = pack(tree, "-o", target, "--append")
    assert (status, value["added"], value["up_to_date"]) == (0, 0, False)
    pack_tree(tree, tmp_path / "whole.tar.zst").close()
    assert target.read_bytes() == (tmp_path / "whole.tar.zst").read_bytes()
    assert pack(tree, "-o", target, "--append")[1]["up_to_date"] is True


def test_appending_another_version_of_a_scene_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    tree = write_tree(tmp_path / "tree", {f"{TRAIN}.bin": b"one", f"{VAL}.bin": b"val"})
    pack_tree(tree, target).close()
    before = target.read_bytes()
    write_tree(tree, {f"{TRAIN}.bin": b"two"})
    status, value = pack(tree, "-o", target, "--append")
    assert status == 1
    assert f"holds another {TRAIN} than the folder" in value["message"]
    assert target.read_bytes() == before
    (tree / f"{TRAIN}.bin").unlink()
    write_tree(tree, {f"{TEST}.bin": b"test"})
    assert pack(tree, "-o", target, "--append")[0] == 0
    assert [scene.scene_id for scene in open_archive(target).index.scenes] == [TRAIN, VAL, TEST]


def test_a_damaged_scene_is_not_taken_over(tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    pack_tree(write_tree(tmp_path / "one", {f"{TRAIN}.bin": os.urandom(4000)}), target).close()
    offset = open_archive(target).index.scenes[0].offset + 1000
    data = bytearray(target.read_bytes())
    data[offset] ^= 1
    target.write_bytes(data)
    status, value = pack(write_tree(tmp_path / "two", {f"{VAL}.bin": b"val"}), "-o", target, "--append")
    assert status == 1
    assert TRAIN in value["message"]
    assert target.read_bytes() == bytes(data)
