"""Unpacking: what was packed comes out, byte for byte, by file and by pipe, whole or in parts; and what is refused."""

import os
import shutil
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from archives import TREE, call, pack_tree, read_tree, unpack_pipe, write_tree
from commands import TEST, TRAIN, VAL, Verify, digests, edit_json

from scannet_prep import ScanNet
from scannet_prep.base.run_lock import run_lock
from scannet_prep.stages import unpack


@pytest.mark.parametrize(("kind", "way"), [("processed", "file"), ("raw", "pipe")])
def test_the_defaults_bring_back_the_folder_byte_for_byte_and_again_nothing_is_written(
    whole_dir: Path,
    packed_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    way: str,
) -> None:
    archive = packed_dir / f"{kind}.tar.zst"
    folder = tmp_path / {"processed": "data/processed", "raw": "data/ScanNet"}[kind]
    monkeypatch.chdir(tmp_path)
    times: dict[Path, int] = {}
    for count in (3, 0):
        outcome = (
            unpack_pipe(archive, "--json") if way == "pipe" else call("unpack", archive, "--json")
        )
        assert (outcome.status, outcome.json["scenes"]) == (0, [TRAIN, VAL, TEST]), outcome.stderr
        assert (outcome.json["files"]["written"] > 0) == (count > 0)
        assert digests(folder) == digests(whole_dir / kind)
        assert count or {path: path.stat().st_mtime_ns for path in times} == times
        times = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
        (folder / ".manifest.json.123-0123abcd.tmp").write_bytes(b"left by a run that was killed")
    (folder / ".manifest.json.123-0123abcd.tmp").unlink()
    pack_tree(folder, tmp_path / "again.tar.zst")
    assert archive.read_bytes() == (tmp_path / "again.tar.zst").read_bytes()


def test_parts_add_up_and_each_is_whole(
    whole_dir: Path, packed_dir: Path, tmp_path: Path, verify: Verify
) -> None:
    archive = packed_dir / "processed.tar.zst"
    for split, scene_id, unpack_it in (
        ("val", VAL, partial(call, "unpack")),
        ("train", TRAIN, unpack_pipe),
    ):
        outcome = unpack_it(archive, "-o", tmp_path, "--splits", split)
        assert (outcome.status, verify(tmp_path)) == (0, (0, []))
        assert ScanNet(tmp_path, split=split).scene_ids == [scene_id]
    assert call("unpack", archive, "-o", tmp_path).status == 0
    assert digests(tmp_path) == digests(whole_dir / "processed")


def test_scenes_that_an_interrupted_run_had_still_to_make_stay_named(
    out_dir: Path, tmp_path: Path
) -> None:
    pack_tree(out_dir, tmp_path / "a.tar.zst")
    folder = write_tree(tmp_path / "other", {"unfinished.txt": f"{TRAIN}\n{VAL}\n".encode()})
    assert call("unpack", tmp_path / "a.tar.zst", "-o", folder, "--scenes", VAL).status == 0
    assert (folder / "unfinished.txt").read_text().split()[-2:] == ["made:", TRAIN]


def test_what_is_there_is_kept_and_what_differs_is_replaced(packed: Path, tmp_path: Path) -> None:
    out_dir, name = tmp_path / "out", f"scans/{VAL}/{VAL}_vh_clean_2.ply"
    unpack.run([packed], out_dir)
    kept = {
        path: path.stat().st_ino
        for path in out_dir.rglob("*")
        if path.is_file() and path != out_dir / name
    }
    (out_dir / name).write_bytes(bytes(1_999_999) + b"\1")
    for replaced in (1, 0):
        assert unpack.run([packed], out_dir).files["replaced"] == replaced
        assert read_tree(out_dir) == TREE
        assert {path: path.stat().st_ino for path in kept} == kept
    (out_dir / name).unlink()
    assert unpack.run([packed], out_dir).files["written"] == 1


def test_what_is_in_the_way_costs_its_scene_and_what_else_is_there_is_replaced(
    packed: Path, tmp_path: Path
) -> None:
    elsewhere = write_tree(tmp_path / "elsewhere", {"own.txt": b"mine"})
    out_dir = tmp_path / "out"
    (out_dir / f"scans/{VAL}/{VAL}_vh_clean_2.ply").mkdir(parents=True)
    (out_dir / "scans" / TRAIN).symlink_to(elsewhere)
    (out_dir / "scans_test").mkdir()
    os.mkfifo(out_dir / "scans_test" / TEST)
    (out_dir / "empty").symlink_to(elsewhere / "own.txt")
    os.mkfifo(out_dir / "scannetv2-labels.combined.tsv")
    previous = os.umask(0o027)
    try:
        outcome = call("unpack", packed, "-o", out_dir, "--json")
    finally:
        os.umask(previous)
    failures = {item["scene_id"]: item["message"] for item in outcome.json["failures"]}
    assert (outcome.status, failures.keys(), "is a link" in failures[TRAIN]) == (
        3,
        {TRAIN, VAL, TEST},
        True,
    )
    assert "is not a folder" in failures[TEST]
    assert read_tree(elsewhere) == {"own.txt": b"mine"}
    assert not (out_dir / "empty").is_symlink()
    path = out_dir / "scannetv2-labels.combined.tsv"
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"of no scene", 0o640)
    path.unlink()
    path.symlink_to(write_tree(elsewhere, {"same.tsv": b"of no scene"}) / "same.tsv")
    assert call("unpack", packed, "-o", out_dir).status == 3
    assert (path.is_symlink(), path.read_bytes()) == (
        False,
        b"of no scene",
    )  # who changes that changes what is there


def test_what_makes_no_sense_is_wrong_usage_that_names_what_there_is(
    packed: Path, packed_dir: Path, whole_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(packed.parent)
    shutil.copy(packed_dir / "processed.tar.zst", "b.tar.zst")
    assert (
        call("pack", whole_dir / "raw", "-o", "c.tar.zst", "--splits", "train", "test").status == 0
    )
    for line, message in (
        ("a.tar.zst --scenes scene0500_00", "has no scene scene0500_00"),
        (f"a.tar.zst --splits test --scenes {TRAIN}", f"has no scene {TRAIN} in test"),
        ("a.tar.zst a.tar.zst", f"a.tar.zst: holds {TRAIN}, and so does a.tar.zst"),
        ("a.tar.zst b.tar.zst", "hold raw and processed scenes"),
        ("c.tar.zst --splits val", "has no scenes in val; it has: test, train"),
    ):
        outcome = call("unpack", *line.split(), "-o", "out")
        assert (outcome.status, message in outcome.stderr) == (2, True), outcome.stderr
        assert not Path("out").exists()
    outcome = unpack_pipe(Path("c.tar.zst"), "-o", "out", "--splits", "val")
    assert (outcome.status, message in outcome.stderr) == (2, True), outcome.stderr


def test_scenes_made_in_another_way_or_of_another_kind_are_not_mixed_in(
    packed_dir: Path, out_dir: Path
) -> None:
    edit_json(out_dir / "manifest.json", lambda value: value["options"].update(align_axis=True))
    before = digests(out_dir)
    for kind, message in (
        ("processed", "the archive --no-scannet200 --no-align-axis"),
        ("raw", "holds processed scenes, and the archive raw ones"),
    ):
        for unpack_it in (partial(call, "unpack"), unpack_pipe):
            outcome = unpack_it(packed_dir / f"{kind}.tar.zst", "-o", out_dir, "--scenes", VAL)
            assert (outcome.status, message in outcome.stderr) == (1, True), outcome.stderr
            assert digests(out_dir) == before


def test_archives_made_in_two_ways_are_refused_before_anything_is_written(
    out_dir: Path, tmp_path: Path
) -> None:
    def align(manifest: dict[str, Any]) -> None:
        manifest["options"]["align_axis"] = True

    for scene_id in (TRAIN, VAL):
        assert (
            call(
                "pack", out_dir, "-o", tmp_path / f"{scene_id}.tar.zst", "--scenes", scene_id
            ).status
            == 0
        )
        edit_json(out_dir / "manifest.json", align)
    paths = [tmp_path / f"{scene_id}.tar.zst" for scene_id in (TRAIN, VAL)]
    outcome = call("unpack", *paths, "-o", tmp_path / "new")
    assert outcome.status == 1
    assert (
        "another archive: holds scenes that were made with --no-scannet200 --no-align-axis"
        in outcome.stderr
    )
    assert not list((tmp_path / "new").iterdir())


def test_scenes_of_a_pipe_that_do_not_come_are_failures_and_a_limit_ends_it(
    packed: Path, tmp_path: Path
) -> None:
    outcome = unpack_pipe(
        packed, "-o", tmp_path / "pipe", "--scenes", "scene0500_00", TRAIN, "--json"
    )
    assert (outcome.status, outcome.json["scenes"]) == (3, [TRAIN])
    assert [item["scene_id"] for item in outcome.json["failures"]] == ["scene0500_00"]
    assert "scene0500_00" in (tmp_path / "pipe/failed.txt").read_text()
    limited = call("unpack", packed, "-o", tmp_path / "file", "--limit", "2", "--json")
    assert limited.json["scenes"] == [TRAIN, VAL]
    assert (
        len(unpack_pipe(packed, "-o", tmp_path / "few", "--limit", "1", "--json").json["scenes"])
        == 1
    )


def test_nothing_is_written_beside_another_run(packed: Path, tmp_path: Path) -> None:
    with run_lock(write_tree(tmp_path / "out", {})):
        outcome = call("unpack", packed, "-o", tmp_path / "out")
    assert (outcome.status, "is working in this folder" in outcome.stderr) == (1, True)


def test_a_scene_unpacked_into_a_raw_tree_leaves_what_the_tree_says_of_itself(
    packed: Path, tmp_path: Path
) -> None:
    entry = f"scans/{VAL}/{VAL}_vh_clean_2.ply"
    mine = {
        "failed.txt": f"# from the download\n{TRAIN}\n{VAL}\nscene0001_00\n".encode(),
        "scannetv2-labels.combined.tsv": b"my own",
        "scannet.lock": f"{'1' * 64}  1  {entry}\n".encode(),
    }
    out_dir = write_tree(tmp_path / "out", mine | {entry: TREE[entry]})
    lock = "".join(f"{'0' * 64}  1  {name}\n" for name in TREE if "/" in name).encode()
    source = write_tree(tmp_path / "locked", TREE | {"scannet.lock": lock})
    pack_tree(source, tmp_path / "locked.tar.zst")
    outcome = call("unpack", tmp_path / "locked.tar.zst", "-o", out_dir, "--scenes", VAL)
    assert (
        outcome.status,
        "combined.tsv: differs from that of the archive, and stays" in outcome.stderr,
    ) == (0, True)
    assert (out_dir / "failed.txt").read_text().split("\n")[1:] == [TRAIN, "scene0001_00", ""]
    assert (out_dir / "scannetv2-labels.combined.tsv").read_bytes() == b"my own"
    assert (out_dir / "scannet.lock").read_bytes() == mine["scannet.lock"]
    for scene_id, expected in (
        (TRAIN, {TRAIN}),
        (VAL, {TRAIN, VAL}),
    ):  # of parts in a new folder, the digests come too
        assert (
            call(
                "unpack", tmp_path / "locked.tar.zst", "-o", tmp_path / "new", "--scenes", scene_id
            ).status
            == 0
        )
        lines = (tmp_path / "new/scannet.lock").read_text().splitlines()
        assert {line.split("/")[1] for line in lines if "/" in line} == expected
    (out_dir / "scannet.lock").write_text("damaged")
    outcome = call("unpack", packed, "-o", out_dir, "--scenes", TRAIN)
    assert (outcome.status, "scannet.lock: line 1 reads 'damaged'" in outcome.stderr) == (1, True)
    assert (out_dir / "scannet.lock").read_text() == "damaged"
