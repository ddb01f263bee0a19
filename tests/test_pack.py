"""What `pack` puts into an archive, what it leaves out, and what it refuses."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from archives import call, find_parts, flip, write_tree
from commands import COMMAND, SCENES, TEST, TRAIN, VAL

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.base.errors import FileError
from scannet_prep.processed.folder import mark_unfinished
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.stages import pack as pack_stage


def pack(*words: object) -> tuple[int, dict[str, Any]]:
    outcome = call("pack", *words, "--json")
    return outcome.status, outcome.json


def scenes_in(path: Path) -> list[str]:
    return [scene.scene_id for scene in open_archive(path).index.scenes]


def test_the_bytes_depend_on_the_files_alone(tree: Path, tmp_path: Path) -> None:
    paths = [
        tmp_path / name for name in ("one.tar.zst", "two.tar.zst", "later.tar.zst", "pipe.tar.zst")
    ]
    assert (
        pack(tree, "-o", paths[0], "--jobs", "1")[0]
        == pack(tree, "-o", paths[1], "--jobs", "2")[0]
        == 0
    )
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    (tree / "empty").chmod(0o600)
    assert pack(tree, "-o", paths[2])[0] == 0
    with paths[3].open("wb") as file:
        pack_stage.run(tree, None, pipe=file.fileno())
    assert len({path.read_bytes() for path in paths}) == 1


def test_an_archive_of_a_part_knows_it_and_the_line_for_python_opens_it(
    whole_dir: Path, tmp_path: Path
) -> None:
    path, manifest = tmp_path / "a b.tar.zst", read_manifest(whole_dir / "processed")
    assert manifest is not None
    outcome = call("pack", whole_dir / "processed", "-o", path, "--splits", "val", "test")
    line = outcome.stdout.partition("in Python: ")[2].replace("\n", "")
    assert eval(line, {"ScanNet": ScanNet}).scene_ids == [VAL]
    archive = open_archive(path)
    index, files = archive.index, archive.index.groups[0]
    found = {member.name: bytes(archive.read_member(files, member)) for member in files.members}
    assert [(item.scene_id, item.split, item.vertex_count) for item in index.scenes] == [
        (name, str(manifest.scenes[name].split), manifest.scenes[name].vertex_count)
        for name in (VAL, TEST)
    ]
    assert index.head.options == manifest.options
    assert "Terms of Use" in index.head.notice
    assert list(json.loads(found["manifest.json"])["scenes"]) == [VAL, TEST]


def test_up_to_date_is_only_what_has_been_read_and_compared(out_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    assert pack(out_dir, "-o", target)[1]["up_to_date"] is False
    whole, before = target.read_bytes(), target.stat().st_ino
    assert pack(out_dir, "-o", target)[1]["up_to_date"] is True
    assert target.stat().st_ino == before
    assert pack(out_dir, "-o", target, "--force")[1]["up_to_date"] is False
    for start, end in find_parts(target).values():  # also where verify takes every file for whole
        flip(target, (start + end) // 2)
        assert pack(out_dir, "-o", target)[1]["up_to_date"] is False
        assert target.read_bytes() == whole
    (out_dir / "TERMS.txt").write_text("other terms")
    assert pack(out_dir, "-o", target)[1]["up_to_date"] is False


def test_an_archive_that_holds_more_or_else_is_not_replaced_unless_forced(
    whole_dir: Path, tmp_path: Path
) -> None:
    target, out_dir = tmp_path / "a.tar.zst", whole_dir / "processed"
    assert pack(out_dir, "-o", target)[0] == 0
    foreign = tmp_path / "b.tar.zst"
    foreign.write_bytes(b"PK\x03\x04 something of value")
    before = target.read_bytes()
    for path, words, message in (
        (
            target,
            (out_dir, "--splits", "val"),
            "holds 2 scenes that the new archive would not, for example scene0000",
        ),
        (target, (whole_dir / "raw",), "would be replaced by another kind"),
        (foreign, (out_dir,), "is a zip file"),
    ):
        status, value = pack(*words, "-o", path)
        assert (status, value["error"], message in value["message"]) == (2, "UsageError", True)
    assert target.read_bytes() == before
    assert pack(out_dir, "-o", target, "--limit", "1", "--force")[0] == 0
    assert scenes_in(target) == [TRAIN]


def test_names_that_no_tree_has_are_left_out_and_named(
    raw_dir: Path, out_dir: Path, tmp_path: Path
) -> None:
    (raw_dir / "scans" / TRAIN / "tmpabc").write_bytes(b"left by the official script")
    outcome = call("pack", raw_dir, "-o", tmp_path / "a.tar.zst", "--scenes", TRAIN)
    assert (
        f"left out, because raw trees have no such names: 1 (scans/{TRAIN}/tmpabc)"
        in outcome.stderr
    )
    (scene,) = open_archive(tmp_path / "a.tar.zst").index.scenes
    assert (scene.split, scene.vertex_count) == ("train", 600)
    odd = os.fsdecode(b"odd\xff")
    write_tree(
        out_dir,
        dict.fromkeys(("train/notes.txt", "own/data.bin", "val/extra.npz", ".DS_Store", odd), b"x"),
    )
    report = pack_stage.run(out_dir, tmp_path / "b.tar.zst")
    assert scenes_in(tmp_path / "b.tar.zst") == [*SCENES]
    assert set(report.left_out) == {"train/notes.txt", "own", "val/extra.npz", ".DS_Store", odd}


def test_shards_hold_every_scene_once_and_replace_an_earlier_set(tmp_path: Path) -> None:
    names = [f"scene{number:04}_00" for number in range(14)]
    files = {f"scans/{name}/{name}.txt": os.urandom(200_000) for name in names}
    tree = write_tree(tmp_path / "tree", files | {"notes.txt": b"notes"})
    for size, count in (("1MB", 4), ("2MB", 2)):
        status, value = pack(tree, "-o", tmp_path / "a.tar.zst", "--shard-size", size)
        assert (status, len(value["archives"])) == (0, count)
        paths = sorted(tmp_path.glob(f"a-*-of-0000{count}.tar.zst"))
        assert max(path.stat().st_size for path in paths) <= int(size[0]) * 1_000_000
        assert [scene for path in paths for scene in scenes_in(path)] == names
        assert all(
            open_archive(path).index.groups[0].members[1].name == "notes.txt" for path in paths
        )
    checksums = [path.with_name(f"{path.name}.sha256") for path in paths]
    assert sorted(tmp_path.iterdir()) == sorted([*paths, *checksums, tree])


def test_scene_larger_than_a_shard_is_reported_with_its_size(tmp_path: Path) -> None:
    names = [f"scene{number:04}_00" for number in range(3)]
    sizes = (100_000, 1_200_000, 1_500_000)
    files = {
        f"scans/{name}/{name}.txt": os.urandom(size)
        for name, size in zip(names, sizes, strict=True)
    }
    tree = write_tree(tmp_path / "tree", files)
    words = ("pack", tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "1MB")
    outcome = call(*words)
    assert outcome.status == 0
    assert "2 archives larger than --shard-size" in outcome.stderr
    assert f"{names[1]} (1.2 MB), {names[2]} (1.5 MB)" in outcome.stderr
    paths = sorted(tmp_path.glob("a-*.tar.zst"))
    assert call(*words, "--json").json["oversized"] == {
        names[1]: paths[1].stat().st_size,
        names[2]: paths[2].stat().st_size,
    }


def test_archive_within_the_shard_size_is_not_reported(tree: Path, tmp_path: Path) -> None:
    outcome = call("pack", tree, "-o", tmp_path / "a.tar.zst", "--shard-size", "3MB")
    assert (outcome.status, outcome.stderr) == (0, "")


def check_copies(folder: Path, files: str) -> int:
    """Run sha256sum in a folder."""
    words = ["sh", "-c", f"sha256sum --strict --status -c {files}"]
    return subprocess.run(words, cwd=folder, check=False).returncode


@pytest.mark.parametrize("name", ["a.tar.zst", "two words.tar.zst", "back\\slash.tar.zst"])
def test_sha256sum_accepts_the_checksum_file_and_the_command_that_pack_prints(
    name: str, tree: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out" / name
    outcome = call("pack", tree, "-o", target)
    assert f"sha256: {hashlib.sha256(target.read_bytes()).hexdigest()}" in outcome.stdout
    files = outcome.stdout.partition("sha256sum -c ")[2].rstrip("\n")
    assert check_copies(target.parent, files) == 0
    flip(target, 100)
    assert check_copies(target.parent, files) == 1


def test_each_shard_has_a_checksum_file_and_one_command_checks_all(
    tree: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out/a b.tar.zst"
    outcome = call("pack", tree, "-o", target, "--shard-size", "3kB")
    files = outcome.stdout.partition("sha256sum -c ")[2].rstrip("\n")
    paths = sorted(target.parent.glob("a b-*.tar.zst"))
    assert len(paths) > 1
    assert check_copies(target.parent, files) == 0
    for path in paths:
        data = path.read_bytes()
        flip(path, 100)
        assert check_copies(target.parent, files) == 1
        path.write_bytes(data)


@pytest.mark.parametrize("content", [None, b"", b"0" * 64 + b"  a.tar.zst\n"])
def test_archive_that_is_up_to_date_regains_its_checksum_file(
    content: bytes | None, tree: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.tar.zst.sha256"
    first = pack(tree, "-o", tmp_path / "a.tar.zst")[1]
    expected = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    again = pack(tree, "-o", tmp_path / "a.tar.zst")[1]
    assert (again["up_to_date"], again["sha256"], path.read_bytes()) == (
        True,
        first["sha256"],
        expected,
    )


def test_pack_to_a_pipe_reports_the_sha256_on_stderr(tree: Path) -> None:
    done = subprocess.run([*COMMAND, "pack", tree, "-"], capture_output=True, check=True)
    assert f"sha256: {hashlib.sha256(done.stdout).hexdigest()}" in done.stderr.decode()
    assert "sha256sum" not in done.stderr.decode()


def test_verify_compares_an_archive_with_its_checksum_file(out_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    assert pack(out_dir, "-o", target)[0] == 0
    assert call("verify", target).status == 0
    flip(
        target, find_parts(target)["end"][0] + 5
    )  # of no scene, so that it is a note without the checksum file
    outcome = call("verify", target)
    assert (outcome.status, "a.tar.zst.sha256 records" in outcome.stdout + outcome.stderr) == (
        3,
        True,
    )
    (tmp_path / "a.tar.zst.sha256").write_text("nothing")
    outcome = call("verify", target)
    assert (outcome.status, "is not a line of sha256sum" in outcome.stdout + outcome.stderr) == (
        3,
        True,
    )
    (tmp_path / "a.tar.zst.sha256").unlink()
    assert call("verify", target).status == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], 'split="train")  # 1 scene, ScanNet20, not axis-aligned'),
        (["--scannet200", "--align-axis"], 'split="train")  # 1 scene, ScanNet200, axis-aligned'),
    ],
)
def test_line_for_python_names_scenes_label_set_and_frame(
    words: list[str], expected: str, raw_dir: Path, tmp_path: Path
) -> None:
    assert call("process", raw_dir, "-o", tmp_path / "out", *words).status == 0
    assert expected in call("pack", tmp_path / "out", "-o", tmp_path / "a.tar.zst").stdout


def test_of_a_link_the_target_is_replaced_and_scenes_behind_links_are_packed(
    tree: Path, tmp_path: Path
) -> None:
    shutil.move(tree / "scans" / TRAIN, tmp_path / "elsewhere")
    (tree / "scans" / TRAIN).symlink_to(tmp_path / "elsewhere")
    link, target = tmp_path / "link.tar.zst", write_tree(tmp_path / "nas", {}) / "b.tar.zst"
    assert pack(tree, "-o", target)[0] == 0
    link.symlink_to(target)
    (tree / "empty").write_bytes(b"not any more")
    assert pack(tree, "-o", link)[1]["up_to_date"] is False
    assert link.is_symlink()
    assert pack(tree, "-o", target)[1]["up_to_date"] is True
    assert TRAIN in scenes_in(target)


@pytest.mark.parametrize(
    ("line", "status", "expected"),
    [
        ("nowhere", 1, "no such folder"),
        ("tree -o folder.tar.zst", 1, "is not a regular file"),
        ("tree -o pipe.tar.zst", 1, "pack - >"),
        ("tree -o x.zip", 2, "x.zip: an archive is a .tar.zst file"),
        ("tree - --json", 2, "taken by --json"),
        ("tree - -o a.tar.zst", 2, "are two places for one archive"),
        ("tree - --shard-size 4GB", 2, "a pipe takes one archive"),
        ("tree other", 2, "one folder"),
        ("tree --level 23", 2, "argument --level: invalid choice"),
        ("tree --scenes scene0706_00", 2, "has no scene scene0706_00"),
        ("tree/scans --splits test", 2, "has no scenes in test; it has: train, val"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    line: str, status: int, expected: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree.parent)
    Path("folder.tar.zst").mkdir()
    os.mkfifo("pipe.tar.zst")
    before = sorted(tree.parent.rglob("*"))
    outcome = call("pack", *line.split())
    assert (outcome.status, expected in outcome.stderr + outcome.stdout) == (status, True), outcome
    assert sorted(tree.parent.rglob("*")) == before
    assert Path("pipe.tar.zst").is_fifo()


def test_an_unfinished_folder_is_refused_and_failed_scenes_are_told_and_recorded(
    raw_dir: Path, tmp_path: Path
) -> None:
    out_dir, target = tmp_path / "out", tmp_path / "a.tar.zst"
    (raw_dir / "scans" / TRAIN / f"{TRAIN}_vh_clean_2.ply").write_bytes(b"ply\n")
    assert call("process", raw_dir, "-o", out_dir).status == 3
    assert pack(out_dir, "-o", target, "--splits", "val")[0] == 0  # what failed is in train
    outcome = call("pack", out_dir, "-o", target)
    assert (outcome.status, f"missing, because processing failed: {TRAIN}" in outcome.stderr) == (
        3,
        True,
    )
    assert (scenes_in(target), list(open_archive(target).index.failures)) == ([VAL, TEST], [TRAIN])
    assert call("unpack", target, "-o", tmp_path / "unpacked").status == 0
    assert all(
        TRAIN in (tmp_path / "unpacked" / name).read_text()
        for name in ("manifest.json", "failed.txt")
    )
    (out_dir / "val" / f"{VAL}.npz").unlink()
    value = pack(out_dir, "-o", target, "--splits", "val", "--force")[1]
    assert f"{VAL}.npz: cannot be read: No such file" in value["message"]
    mark_unfinished(out_dir)
    status, value = pack(out_dir, "-o", tmp_path / "b.tar.zst")
    assert (status, value["error"], (tmp_path / "b.tar.zst").exists()) == (1, "FileError", False)


def test_pack_refuses_a_file_that_the_manifest_does_not_record(
    out_dir: Path, tmp_path: Path
) -> None:
    flip(out_dir / "train" / f"{TRAIN}.npz", 1000)
    status, value = pack(out_dir, "-o", tmp_path / "a.tar.zst")
    assert (status, value["error"], "is not the file that the manifest records" in value["message"]) == (
        1,
        "FileError",
        True,
    )
    assert list(tmp_path.glob("*.tar.zst*")) == list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name", [f"scans/{TRAIN}/{TRAIN}.aggregation.json", "scannet.lock"])
def test_what_is_not_a_file_is_refused_by_name_or_left_out(
    name: str, tree: Path, tmp_path: Path
) -> None:
    for make in (os.mkfifo, lambda path: path.symlink_to("nowhere"), Path.mkdir):
        make(tree / name)
        outcome = call("pack", tree, "-o", tmp_path / "a.tar.zst")
        assert name in outcome.stderr
        assert outcome.status == (0 if make is Path.mkdir and name == "scannet.lock" else 1)
        (tree / name).rename(tmp_path / "gone") if make is Path.mkdir else (tree / name).unlink()


def test_a_scene_of_more_than_1_gib_is_refused_by_the_name_of_its_largest_file(
    tree: Path, tmp_path: Path
) -> None:
    with (tree / "scans" / VAL / f"{VAL}.sens").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(FileError, match=rf"{VAL}\.sens: has 1,073,741,824 bytes"):
        pack_stage.run(tree, tmp_path / "a.tar.zst")


@pytest.mark.parametrize(
    ("kind", "name"), [("raw", f"scans/{TRAIN}/{TRAIN}"), ("processed", TRAIN)]
)
def test_archives_locks_and_temporaries_are_never_packed(
    kind: str, name: str, whole_dir: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(whole_dir / kind, tmp_path / kind))
    (source / f"{name}_vh_clean_2.ply.aria2").write_bytes(b"of a download that is under way")
    (source / ".scannet-prep.lock").write_bytes(b"process 1")
    target, beside = source / "x.tar.zst", source / f"{name}.tar.zst"
    for number in range(2):
        status, value = pack(source, "-o", target)
        assert (status, value["up_to_date"]) == (0, number == 1)
        assert pack(source, "-o", beside)[0] == 0
        assert pack(source, "-o", target, "--shard-size", "1MB")[0] == 0
    archive = open_archive(target)
    names = [member.name for group in archive.index.groups for member in group.members]
    assert not [name for name in names if ".tar.zst" in name or name.endswith((".aria2", ".lock"))]
