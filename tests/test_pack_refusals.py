"""What `pack` refuses, and what it leaves out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from archives import TREE, pack, write_tree
from commands import run_command
from verifying import TRAIN, VAL

from scannet_prep.archive import open_archive, write_archive
from scannet_prep.errors import OutputError
from scannet_prep.processed.folder import mark_unfinished
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.selection import Selection


@pytest.mark.parametrize("words", [(), ("--shard-size", "1MB")])
def test_a_device_or_a_pipe_is_not_replaced_by_an_archive(words: tuple[str, ...], tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar.zst")
    status, value = pack(tree, "-o", tmp_path / "a.tar.zst", *words)
    assert (status, value["error"]) == (1, "OutputError")
    assert "pack - >" in value["hint"]
    assert (tmp_path / "a.tar.zst").is_fifo()
    with pytest.raises(OutputError, match="is a device or a pipe"):
        write_archive(find_contents(tree, None, Selection()).contents, tmp_path / "a.tar.zst")


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (("nowhere",), 1, "no such folder"),
        (("tree", "-o", "tree"), 1, "is a folder"),
        (("tree", "-o", "new.tar.zst", "--append"), 1, "no such archive to add to"),
        (("tree", "-", "--append"), 2, "a pipe takes one archive"),
        (("tree", "-", "--json"), 2, "cannot both go to standard output"),
        (("tree", "-", "-o", "a.tar.zst"), 2, "say where the archive goes"),
        (("tree", "other"), 2, "one folder"),
        (("tree", "--level", "23"), 2, "expected 1..22"),
        (("tree", "--shard-size", "12 parsecs"), 2, "is not a size"),
        (("tree", "--shard-size", "10"), 2, "expected at least"),
        (("tree", "--scenes", "scene0706_00"), 2, "has no scene scene0706_00"),
        (("tree", "--scenes", TRAIN, "--splits", "val"), 2, f"has no scene {TRAIN} in val"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    words: tuple[str, ...], status: int, expected: str, tree: Path
) -> None:
    before = sorted(tree.parent.rglob("*"))
    outcome = run_command("pack", *words, cwd=tree.parent)
    assert outcome.status == status
    assert expected in outcome.stderr
    assert outcome.stdout == "" or "--json" in words
    assert sorted(tree.parent.rglob("*")) == before


def test_a_folder_whose_processing_has_not_finished_is_refused(out_dir: Path, tmp_path: Path) -> None:
    mark_unfinished(out_dir)
    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")
    assert (status, value["error"]) == (1, "ManifestError")
    assert not (tmp_path / "a.tar.zst").exists()


def test_a_folder_with_failed_or_missing_scenes_is_refused_unless_allowed(raw_dir: Path, tmp_path: Path) -> None:
    out_dir, target = tmp_path / "out", tmp_path / "a.tar.zst"
    (raw_dir / "scans" / TRAIN / f"{TRAIN}_vh_clean_2.ply").write_bytes(b"ply\n")
    assert run_command("process", raw_dir, "-o", out_dir).status == 3
    status, value = pack(out_dir, "-o", target)
    assert (status, "--allow-incomplete" in value["hint"], TRAIN in value["message"]) == (1, True, True)
    assert pack(out_dir, "-o", target, "--splits", "val")[0] == 0  # what failed is in train
    status, value = pack(out_dir, "-o", target, "--allow-incomplete")
    assert (status, value["scenes"], list(value["missing"])) == (0, 2, [TRAIN])
    assert TRAIN in open_archive(target).index.failures
    (out_dir / "val" / f"{VAL}.npz").unlink()
    assert "no such file, though the manifest names it" in pack(out_dir, "-o", target, "--splits", "val")[1]["message"]


def test_scenes_made_in_different_ways_are_refused(raw_dir: Path, out_dir: Path, tmp_path: Path) -> None:
    assert run_command("process", raw_dir, "-o", out_dir, "--align-axis", "--scenes", TRAIN).status == 0
    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")
    assert (status, "different options" in value["message"]) == (1, True)


def test_a_scene_that_is_not_what_the_manifest_says_is_refused(out_dir: Path, tmp_path: Path) -> None:
    path = out_dir / "train" / f"{TRAIN}.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")
    assert (status, value["error"]) == (1, "SourceError")
    assert "is not what the manifest says" in value["message"]
    assert list(tmp_path.glob("*.tar.zst*")) == list(tmp_path.glob(".*.tmp")) == []


@pytest.mark.parametrize("kind", ["fifo", "dangling", "loop", "not UTF-8"])
def test_what_is_no_file_is_refused_by_name(kind: str, tree: Path, tmp_path: Path) -> None:
    path = tree / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(tree)
    else:
        (tree / os.fsdecode(b"odd\xff")).write_bytes(b"")
    outcome = run_command("pack", tree, "-o", tmp_path / "a.tar.zst")
    assert outcome.status == 1
    assert "odd" in outcome.stderr
    assert "codec" not in outcome.stderr
    assert not (tmp_path / "a.tar.zst").exists()


def test_links_are_followed_and_our_own_leftovers_and_output_are_not_packed(tree: Path, tmp_path: Path) -> None:
    (tree / "link").symlink_to(write_tree(tmp_path / "elsewhere", {"linked.txt": b"linked"}))
    (tree / ".a.tar.zst.0123456789ab-77-5.01234567.tmp").write_bytes(b"left by a killed run")
    (tree / ".hidden").write_bytes(b"hidden")
    assert pack(tree, "-o", tree / "a.tar.zst")[0] == 0
    assert pack(tree, "-o", tree / "a.tar.zst")[0] == 0
    names = [member.name for group in open_archive(tree / "a.tar.zst").index.groups for member in group.members[:9]]
    assert sorted(names) == sorted([".scannet-prep/format.json", *TREE, "link/linked.txt", ".hidden"])
