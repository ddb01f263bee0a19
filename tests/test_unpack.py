"""Unpacking: what was packed comes out, byte for byte, by file and by pipe, whole or in parts."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from archives import TREE, pack_tree, read_tree, run_pipe, unpack_pipe, write_tree
from commands import COMMAND, digests, run_command
from forged_archives import HEAD
from hypothesis import example, given, settings
from hypothesis import strategies as st
from verifying import TEST, TRAIN, VAL, Verify, edit_json

from scannet_prep import ScanNet
from scannet_prep.archive import Contents, SourceFile, SourceGroup, write_archive
from scannet_prep.archive.index import find_scene_id
from scannet_prep.archive.shards import write_shards
from scannet_prep.archive.source import FileSource
from scannet_prep.cli.main import main
from scannet_prep.errors import (
    ArchiveError,
    ManifestError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.scene import SceneId
from scannet_prep.stages import unpack
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.selection import Selection

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=70).filter(
    lambda name: name not in {".", ".."} and len(name.encode()) < 250
)
PATHS = st.builds(
    lambda folders, name: "/".join([*folders, name]),
    st.lists(st.sampled_from(["train", "scene0000_00", "scene0011_01", "a", "ö" * 60]), max_size=3),
    NAMES,
)


@settings(max_examples=40)
@given(files=st.dictionaries(PATHS, st.binary(max_size=1500), max_size=8))
@example(files={})
@example(files={"scene0000_00/" + "n" * 250: b"the longest name there is"})
def test_any_tree_comes_out_as_it_went_in(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folders = {name.rpartition("/")[0] for name in files}
    files = {
        name: data
        for name, data in files.items()
        if not any(f"{folder}/".startswith(f"{name}/") for folder in folders) and not name.startswith(".scannet-prep/")
    }
    tmp_path = tmp_path_factory.mktemp("tree")
    write_tree(tmp_path / "source", files)
    groups: dict[str, list[SourceFile]] = {"": []}
    for name, data in sorted(files.items()):
        groups.setdefault(find_scene_id(name) or "", []).append(SourceFile.from_content(name, data))
    loose = tuple(groups.pop(""))
    scenes = tuple(SourceGroup(scene_id, "train", 0, tuple(items)) for scene_id, items in sorted(groups.items()))
    write_archive(Contents(HEAD, loose, scenes), tmp_path / "a.tar.zst")
    report = unpack.run(unpack.plan([tmp_path / "a.tar.zst"], tmp_path / "file"), jobs=2)
    assert report.is_whole
    assert read_tree(tmp_path / "file") == read_tree(tmp_path / "source")
    assert run_pipe(tmp_path / "a.tar.zst", tmp_path / "pipe", jobs=2).is_whole
    assert read_tree(tmp_path / "pipe") == read_tree(tmp_path / "source")


def test_a_scene_of_many_frames_comes_out_by_file_by_pipe_and_by_salvage(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"scene0011_00/small": b"x", "manifest": b"y"})
    big = source / "scene0000_00" / "big.bin"
    big.parent.mkdir()
    with big.open("wb") as file:
        for number in range(70):
            file.write(number.to_bytes(4, "big") * (1 << 18))
    archive = pack_tree(source, tmp_path / "a.tar.zst")
    assert [scene.frame_count for scene in archive.index.scenes] == [5, 1]
    unpack.run(unpack.plan([tmp_path / "a.tar.zst"], tmp_path / "file"), jobs=2)
    run_pipe(tmp_path / "a.tar.zst", tmp_path / "pipe", jobs=2)
    cut = tmp_path / "cut.tar.zst"
    cut.write_bytes((tmp_path / "a.tar.zst").read_bytes()[:-20])
    report = unpack.run(unpack.plan([cut], tmp_path / "salvage", is_salvage=True))
    assert report.scenes == ("scene0000_00", "scene0011_00")
    for name in ("file", "pipe", "salvage"):
        assert digests(tmp_path / name) == digests(source), name


@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_the_defaults_bring_back_the_folder_byte_for_byte(
    whole_dir: Path, packed_dir: Path, tmp_path: Path, kind: str
) -> None:
    archive, folder = packed_dir / f"{kind}.tar.zst", {"processed": "data/processed", "raw": "data/ScanNet"}[kind]
    (tmp_path / "file").mkdir()
    (tmp_path / "pipe").mkdir()
    outcome = run_command("unpack", archive, "--json", cwd=tmp_path / "file")
    assert outcome.status == 0, outcome.stderr
    assert outcome.json["scenes"] == [TRAIN, VAL, TEST]
    assert digests(tmp_path / "file" / folder) == digests(whole_dir / kind)
    outcome = unpack_pipe(archive, cwd=tmp_path / "pipe")
    assert outcome.status == 0, outcome.stderr
    assert digests(tmp_path / "pipe" / folder) == digests(whole_dir / kind)


def test_parts_add_up_to_the_whole_and_each_is_a_whole_folder(
    whole_dir: Path, packed_dir: Path, tmp_path: Path, verify: Verify
) -> None:
    archive = packed_dir / "processed.tar.zst"
    assert main(["unpack", str(archive), "-o", str(tmp_path), "--splits", "val", "-q"]) == 0
    assert verify(tmp_path) == (0, [])
    assert ScanNet(tmp_path, split="val").scene_ids == [VAL]
    assert (tmp_path / "scannetv2_train_npz.txt").read_text() == ""
    assert unpack_pipe(archive, "-o", tmp_path, "--scenes", TRAIN).status == 0
    assert verify(tmp_path) == (0, [])
    assert ScanNet(tmp_path, split="train").scene_ids == [TRAIN]
    assert main(["unpack", str(archive), "-o", str(tmp_path), "-q"]) == 0
    assert digests(tmp_path) == digests(whole_dir / "processed")


def test_a_part_of_a_raw_tree_has_the_digests_of_its_files(whole_dir: Path, tmp_path: Path, verify: Verify) -> None:
    source = Path(shutil.copytree(whole_dir / "raw", tmp_path / "raw"))
    lines = [f"{'0' * 64}  1  scans/{scene_id}/{scene_id}.txt\n" for scene_id in (TRAIN, VAL)]
    (source / "scannet.lock").write_text("".join(lines))
    pack_tree(source, tmp_path / "raw.tar.zst")
    for words in (["--scenes", TRAIN], ["--scenes", VAL]):
        assert main(["unpack", str(tmp_path / "raw.tar.zst"), "-o", str(tmp_path / "out"), "-q", *words]) == 0
        named = {line.split("/")[1] for line in (tmp_path / "out/scannet.lock").read_text().splitlines() if "/" in line}
        assert named == ({TRAIN} if TRAIN in words else {TRAIN, VAL})


def test_what_is_there_is_kept_and_what_differs_is_replaced(packed: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    unpack.run(unpack.plan([packed], out_dir))
    first, second = out_dir / "train/scene0000_00.npz", out_dir / "val/scene0011_00.npz"
    kept = {path: path.stat().st_ino for path in out_dir.rglob("*") if path.is_file() and path != second}
    second.write_bytes(bytes(69_999) + b"\1")
    for report in (unpack.run(unpack.plan([packed], out_dir)), run_pipe(packed, out_dir)):
        assert read_tree(out_dir) == TREE
        assert {path: path.stat().st_ino for path in kept} == kept
        expected = ("val/scene0011_00.npz",) if report.archives == (str(packed),) else ()
        assert report.replaced == expected
    first.unlink()
    report = run_pipe(packed, out_dir)
    assert report.new_scenes == ("scene0000_00",)
    assert read_tree(out_dir) == TREE


def test_a_scene_that_is_there_is_not_read_again(packed: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    unpack.run(unpack.plan([packed], out_dir))
    entry = unpack.plan([packed], out_dir).tasks[-1].entry  # type: ignore[union-attr]
    data = bytearray(packed.read_bytes())
    data[entry.offset + 20] ^= 1
    packed.write_bytes(data)
    assert unpack.run(unpack.plan([packed], out_dir)).is_whole


def test_permissions_are_those_of_the_umask_and_links_of_the_user_are_followed(packed: Path, tmp_path: Path) -> None:
    out_dir, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out_dir.mkdir()
    (out_dir / "train").symlink_to(elsewhere)
    (elsewhere / "own.txt").write_text("mine")
    (out_dir / "notes.txt").symlink_to(elsewhere / "own.txt")
    previous = os.umask(0o027)
    try:
        unpack.run(unpack.plan([packed], out_dir))
    finally:
        os.umask(previous)
    assert (elsewhere / "scene0000_00.npz").read_bytes() == TREE["train/scene0000_00.npz"]
    assert stat.S_IMODE((elsewhere / "scene0000_00.npz").stat().st_mode) == 0o640
    assert (elsewhere / "own.txt").read_text() == "mine"
    assert not (out_dir / "notes.txt").is_symlink()


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    source = write_tree(
        tmp_path / "source",
        {f"train/scene{number:04}_00.npz": os.urandom(9_000) for number in range(6)} | {"note": b"n"},
    )
    contents = find_contents(source, tmp_path / "s.tar.zst", Selection()).contents
    return [item.path for item in write_shards(contents, tmp_path / "s.tar.zst", 23_000) if item.path is not None]


def test_shards_are_unpacked_together_or_one_by_one(shards: list[Path], tmp_path: Path) -> None:
    assert len(shards) > 2
    outcome = run_command("unpack", *shards, "-o", tmp_path / "all", "--json")
    assert outcome.status == 0, outcome.stderr
    assert read_tree(tmp_path / "all") == read_tree(tmp_path / "source")
    for shard in shards:
        outcome = run_command("unpack", shard, "-o", tmp_path / "single")
        assert outcome.status == 0
        assert "of the set not given" in outcome.stderr
    assert read_tree(tmp_path / "single") == read_tree(tmp_path / "source")


def test_a_hole_in_a_set_of_shards_is_an_error_unless_scenes_are_named(shards: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"1 shards of the set are not among the archives: .*s-00001-of-"):
        unpack.plan([shards[0], *shards[2:]], tmp_path / "out")
    selection = Selection(scene_ids=unpack.plan([shards[0]], tmp_path / "out").scene_ids[:1])  # type: ignore[arg-type]
    report = unpack.run(unpack.plan([shards[0], *shards[2:]], tmp_path / "out", selection=selection))
    assert list(report.scenes) == list(selection.scene_ids or ())


def test_shards_of_a_processed_folder_each_give_a_folder_that_verifies(
    whole_dir: Path, tmp_path: Path, verify: Verify
) -> None:
    contents = find_contents(whole_dir / "processed", tmp_path / "s.tar.zst", Selection()).contents
    shards = [str(item.path) for item in write_shards(contents, tmp_path / "s.tar.zst", 30_000)]
    assert len(shards) > 1
    out_dir = tmp_path / "out"
    for shard in shards:
        assert main(["unpack", shard, "-o", str(out_dir), "-q"]) == 0
        assert verify(out_dir) == (0, [])
    assert digests(out_dir) == digests(whole_dir / "processed")
    assert main(["unpack", *shards, "-o", str(tmp_path / "at_once"), "-q"]) == 0
    assert digests(tmp_path / "at_once") == digests(whole_dir / "processed")


def test_failures_on_record_stay_on_record(out_dir: Path, tmp_path: Path) -> None:
    failure = {"error": "MeshError", "message": "broken"}
    edit_json(out_dir / "manifest.json", lambda value: value["failures"].update({"scene0191_00": failure}))
    (out_dir / "failed.txt").write_text("# scenes that failed\nscene0191_00\n")
    contents = find_contents(out_dir, tmp_path / "a.tar.zst", Selection(), allows_incomplete=True).contents
    write_archive(contents, tmp_path / "a.tar.zst")
    report = unpack.run(unpack.plan([tmp_path / "a.tar.zst"], tmp_path / "out"))
    assert report.is_whole
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert list(manifest.failures) == ["scene0191_00"]
    with pytest.raises(UnknownSceneError, match="failed before it was packed: broken"):
        unpack.plan([tmp_path / "a.tar.zst"], selection=Selection(scene_ids=(SceneId("scene0191_00"),)))


def test_an_unfinished_folder_is_no_dataset(packed_dir: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar.zst"
    cut.write_bytes((packed_dir / "processed.tar.zst").read_bytes()[:-2000])
    with pytest.raises(ArchiveError, match="whole scenes of it were unpacked"):
        run_pipe(cut, tmp_path / "out")
    with pytest.raises(ManifestError, match="has not finished"):
        ScanNet(tmp_path / "out", split="train")
    assert run_pipe(packed_dir / "processed.tar.zst", tmp_path / "out").is_whole
    assert len(ScanNet(tmp_path / "out", split="train")) == 1


class CountingSource(FileSource):
    """A source that remembers what was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ranges: list[tuple[int, int]] = []

    def read(self, offset: int, size: int, /) -> bytes:
        self.ranges.append((offset, size))
        return super().read(offset, size)


def test_of_any_source_only_what_is_asked_for_is_read(packed_dir: Path, tmp_path: Path) -> None:
    source = CountingSource(packed_dir / "processed.tar.zst")
    selection = Selection(scene_ids=(SceneId(VAL),))
    plan = unpack.plan([source], tmp_path / "out", selection=selection)
    source.ranges.clear()
    unpack.run(plan)
    files, scene = (task.entry for task in plan.tasks)  # type: ignore[union-attr]
    assert source.ranges == [(files.offset, files.stored_bytes), (scene.offset, scene.stored_bytes)]


def test_from_one_machine_to_another_by_a_pipe(whole_dir: Path, tmp_path: Path) -> None:
    command = " ".join(COMMAND)
    line = f"{command} pack {whole_dir / 'processed'} - | (cd {tmp_path} && {command} unpack -)"
    subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True, capture_output=True, timeout=60)
    assert digests(tmp_path / "data/processed") == digests(whole_dir / "processed")
