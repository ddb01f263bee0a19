"""Unpacking whole and partial archives, from files and pipes, and what it refuses."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import TREE, pack_tree, read_tree, unpack_file, unpack_pipe, write_tree
from commands import TEST, TRAIN, VAL, Outcome, Verify, digests, edit_json, run_main

from scannet_prep import ScanNet
from scannet_prep.base.lock import run_lock
from scannet_prep.stages import unpack

Unpack = Callable[..., Outcome]

LABEL_MAP = "scannetv2-labels.combined.tsv"
BOTH_WAYS = pytest.mark.parametrize("unpack_it", [unpack_file, unpack_pipe], ids=["file", "pipe"])


@pytest.mark.parametrize(
    ("kind", "unpack_it"),
    [("processed", unpack_file), ("raw", unpack_pipe)],
    ids=["processed from a file", "raw from a pipe"],
)
class TestDefaultFolder:
    @pytest.fixture
    def archive(self, kind: str, packed_dir: Path) -> Path:
        return packed_dir / f"{kind}.tar.zst"

    @pytest.fixture
    def folder(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder that `unpack` writes to without -o."""
        monkeypatch.chdir(tmp_path)
        return tmp_path / {"processed": "data/processed", "raw": "data/ScanNet"}[kind]

    def test_unpacked_folder_equals_the_packed_one(
        self, archive: Path, folder: Path, kind: str, unpack_it: Unpack, whole_dir: Path
    ) -> None:
        outcome = unpack_it(archive, "--json")

        assert outcome.status == 0, outcome.stderr
        assert outcome.json["scenes"] == [TRAIN, VAL, TEST]
        assert outcome.json["files"]["written"] > 0
        assert digests(folder) == digests(whole_dir / kind)

    def test_second_run_writes_nothing(
        self, archive: Path, folder: Path, kind: str, unpack_it: Unpack, whole_dir: Path
    ) -> None:
        assert unpack_it(archive).status == 0
        files = [path for path in folder.rglob("*") if path.is_file()]
        times = {path: path.stat().st_mtime_ns for path in files}

        outcome = unpack_it(archive, "--json")

        assert outcome.status == 0, outcome.stderr
        assert outcome.json["scenes"] == [TRAIN, VAL, TEST]
        assert outcome.json["files"]["written"] == 0
        assert {path: path.stat().st_mtime_ns for path in files} == times
        assert digests(folder) == digests(whole_dir / kind)

    def test_second_run_removes_temporary_files_of_killed_runs(
        self, archive: Path, folder: Path, kind: str, unpack_it: Unpack, whole_dir: Path
    ) -> None:
        assert unpack_it(archive).status == 0
        (folder / ".manifest.json.123-0123abcd.tmp").write_bytes(b"left by a run that was killed")

        assert unpack_it(archive).status == 0

        assert digests(folder) == digests(whole_dir / kind)

    def test_packing_the_unpacked_folder_gives_the_same_archive(
        self, archive: Path, folder: Path, unpack_it: Unpack, tmp_path: Path
    ) -> None:
        assert unpack_it(archive).status == 0

        pack_tree(folder, tmp_path / "again.tar.zst")

        assert (tmp_path / "again.tar.zst").read_bytes() == archive.read_bytes()


class TestParts:
    @BOTH_WAYS
    @pytest.mark.parametrize(("split", "scene_id"), [("val", VAL), ("train", TRAIN)])
    def test_unpacked_split_is_a_valid_folder(
        self,
        split: str,
        scene_id: str,
        unpack_it: Unpack,
        packed_dir: Path,
        tmp_path: Path,
        verify: Verify,
    ) -> None:
        archive = packed_dir / "processed.tar.zst"

        assert unpack_it(archive, "-o", tmp_path, "--splits", split).status == 0

        assert verify(tmp_path) == (0, [])
        assert ScanNet(tmp_path, split=split).scene_ids == [scene_id]

    def test_unpacking_split_by_split_gives_the_complete_folder(
        self, whole_dir: Path, packed_dir: Path, tmp_path: Path, verify: Verify
    ) -> None:
        archive = packed_dir / "processed.tar.zst"
        assert unpack_file(archive, "-o", tmp_path, "--splits", "val").status == 0
        assert unpack_pipe(archive, "-o", tmp_path, "--splits", "train").status == 0
        assert verify(tmp_path) == (0, [])

        assert unpack_file(archive, "-o", tmp_path).status == 0

        assert digests(tmp_path) == digests(whole_dir / "processed")


class TestExistingFiles:
    NAME = f"scans/{VAL}/{VAL}_vh_clean_2.ply"

    @pytest.fixture
    def folder(self, packed: Path, tmp_path: Path) -> Path:
        unpack.run([packed], tmp_path / "out")
        return tmp_path / "out"

    def test_file_with_other_content_is_replaced(self, packed: Path, folder: Path) -> None:
        (folder / self.NAME).write_bytes(bytes(1_999_999) + b"\1")

        assert unpack.run([packed], folder).files["replaced"] == 1

        assert read_tree(folder) == TREE

    def test_files_with_the_same_content_are_kept(self, packed: Path, folder: Path) -> None:
        (folder / self.NAME).write_bytes(bytes(1_999_999) + b"\1")
        inodes = {}
        for path in folder.rglob("*"):
            if path.is_file() and path != folder / self.NAME:
                inodes[path] = path.stat().st_ino

        unpack.run([packed], folder)
        assert unpack.run([packed], folder).files["replaced"] == 0

        assert {path: path.stat().st_ino for path in inodes} == inodes
        assert read_tree(folder) == TREE

    def test_missing_file_is_written(self, packed: Path, folder: Path) -> None:
        (folder / self.NAME).unlink()

        assert unpack.run([packed], folder).files["written"] == 1


class TestObstacles:
    """Folders, links and pipes where files of the archive belong."""

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Path:
        return write_tree(tmp_path / "elsewhere", {"own.txt": b"mine"})

    @pytest.fixture
    def folder(self, elsewhere: Path, tmp_path: Path) -> Path:
        folder = tmp_path / "out"
        (folder / f"scans/{VAL}/{VAL}_vh_clean_2.ply").mkdir(parents=True)
        (folder / "scans" / TRAIN).symlink_to(elsewhere)
        (folder / "scans_test").mkdir()
        os.mkfifo(folder / "scans_test" / TEST)
        (folder / "empty").symlink_to(elsewhere / "own.txt")
        return folder

    def test_scenes_that_cannot_be_written_are_failures(self, packed: Path, folder: Path) -> None:
        outcome = run_main("unpack", packed, "-o", folder, "--json")

        messages = {failure["scene_id"]: failure["message"] for failure in outcome.json["failures"]}
        assert outcome.status == 3
        assert messages.keys() == {TRAIN, VAL, TEST}
        assert "is a link" in messages[TRAIN]
        assert "is not a folder" in messages[TEST]

    @pytest.mark.usefixtures("folder")
    def test_files_behind_links_are_not_touched(
        self, packed: Path, elsewhere: Path, tmp_path: Path
    ) -> None:
        assert unpack_file(packed, "-o", tmp_path / "out").status == 3

        assert read_tree(elsewhere) == {"own.txt": b"mine"}

    def test_link_in_the_place_of_a_file_is_replaced(self, packed: Path, folder: Path) -> None:
        assert unpack_file(packed, "-o", folder).status == 3

        assert not (folder / "empty").is_symlink()

    def test_link_to_a_file_of_the_same_content_is_replaced(
        self, packed: Path, folder: Path, elsewhere: Path
    ) -> None:
        """Otherwise, a change of the other file would change the folder."""
        (elsewhere / "same.tsv").write_bytes(b"of no scene")
        path = folder / LABEL_MAP
        path.symlink_to(elsewhere / "same.tsv")

        assert unpack_file(packed, "-o", folder).status == 3

        assert not path.is_symlink()
        assert path.read_bytes() == b"of no scene"


class TestUsage:
    @pytest.fixture(autouse=True)
    def _archives(self, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(packed.parent)

    @pytest.fixture
    def without_val(self, whole_dir: Path) -> None:
        words = ("-o", "c.tar.zst", "--splits", "train", "test")
        assert run_main("pack", whole_dir / "raw", *words).status == 0

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("a.tar.zst --scenes scene0500_00", "has no scene scene0500_00"),
            (f"a.tar.zst --splits test --scenes {TRAIN}", f"has no scene {TRAIN} in test"),
            ("a.tar.zst a.tar.zst", f"a.tar.zst: holds {TRAIN}, and so does a.tar.zst"),
        ],
    )
    def test_wrong_selection_of_archives_or_scenes_is_refused(
        self, line: str, message: str
    ) -> None:
        outcome = run_main("unpack", *line.split(), "-o", "out")

        assert outcome.status == 2
        assert message in outcome.stderr
        assert not Path("out").exists()

    def test_archives_of_two_kinds_are_refused(self, packed_dir: Path) -> None:
        shutil.copy(packed_dir / "processed.tar.zst", "b.tar.zst")

        outcome = run_main("unpack", "a.tar.zst", "b.tar.zst", "-o", "out")

        assert outcome.status == 2
        assert "hold raw and processed scenes" in outcome.stderr
        assert not Path("out").exists()

    @pytest.mark.usefixtures("without_val")
    def test_missing_split_of_a_file_is_refused_before_writing(self) -> None:
        outcome = run_main("unpack", "c.tar.zst", "-o", "out", "--splits", "val")

        assert outcome.status == 2
        assert "has no scenes in val" in outcome.stderr
        assert not Path("out").exists()

    @pytest.mark.usefixtures("without_val")
    def test_missing_split_of_a_pipe_is_refused(self) -> None:
        outcome = unpack_pipe(Path("c.tar.zst"), "-o", "out", "--splits", "val")

        assert outcome.status == 2
        assert "has no scenes in val" in outcome.stderr


@BOTH_WAYS
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("processed", "those of the archive with --no-scannet200 --no-align-axis"),
        ("raw", "holds processed scenes, and the archive raw ones"),
    ],
)
def test_scenes_of_other_options_or_kind_are_not_mixed_into_a_folder(
    unpack_it: Unpack, kind: str, message: str, packed_dir: Path, out_dir: Path
) -> None:
    edit_json(out_dir / "manifest.json", lambda value: value["options"].update(align_axis=True))
    before = digests(out_dir)

    outcome = unpack_it(packed_dir / f"{kind}.tar.zst", "-o", out_dir, "--scenes", VAL)

    assert outcome.status == 1
    assert message in outcome.stderr
    assert digests(out_dir) == before


def test_archives_of_different_options_are_refused_before_writing(
    out_dir: Path, tmp_path: Path
) -> None:
    def align(manifest: dict[str, Any]) -> None:
        manifest["options"]["align_axis"] = True

    paths = [tmp_path / f"{scene_id}.tar.zst" for scene_id in (TRAIN, VAL)]
    assert run_main("pack", out_dir, "-o", paths[0], "--scenes", TRAIN).status == 0
    edit_json(out_dir / "manifest.json", align)
    assert run_main("pack", out_dir, "-o", paths[1], "--scenes", VAL).status == 0

    outcome = run_main("unpack", *paths, "-o", tmp_path / "new")

    assert outcome.status == 1
    problem = "another archive: holds scenes that were made with --no-scannet200 --no-align-axis"
    assert problem in outcome.stderr
    assert not list((tmp_path / "new").iterdir())


class TestSelectionFromAPipe:
    def test_named_scene_that_does_not_arrive_is_a_failure(
        self, packed: Path, tmp_path: Path
    ) -> None:
        words = ("-o", tmp_path / "out", "--scenes", "scene0500_00", TRAIN, "--json")

        outcome = unpack_pipe(packed, *words)

        assert outcome.status == 3
        assert outcome.json["scenes"] == [TRAIN]
        failed = [failure["scene_id"] for failure in outcome.json["failures"]]
        assert failed == ["scene0500_00"]
        assert "scene0500_00" in (tmp_path / "out/failed.txt").read_text()

    @BOTH_WAYS
    def test_limit_ends_the_run(self, unpack_it: Unpack, packed: Path, tmp_path: Path) -> None:
        outcome = unpack_it(packed, "-o", tmp_path / "out", "--limit", "2", "--json")

        assert outcome.json["scenes"] == [TRAIN, VAL]


def test_second_run_in_the_same_folder_is_refused(packed: Path, tmp_path: Path) -> None:
    with run_lock(write_tree(tmp_path / "out", {})):
        outcome = run_main("unpack", packed, "-o", tmp_path / "out")

    assert outcome.status == 1
    assert "is working in this folder" in outcome.stderr


class TestIntoRawTree:
    """A scene that is unpacked into a raw tree with lists of its own."""

    MESH = f"scans/{VAL}/{VAL}_vh_clean_2.ply"
    LOCK = f"{'1' * 64}  1  {MESH}\n".encode()

    @pytest.fixture
    def archive(self, tmp_path: Path) -> Path:
        """An archive with a `scannet.lock`."""
        names = [name for name in TREE if "/" in name]
        lock = "".join(f"{'0' * 64}  1  {name}\n" for name in names).encode()
        source = write_tree(tmp_path / "source", TREE | {"scannet.lock": lock})
        pack_tree(source, tmp_path / "locked.tar.zst")
        return tmp_path / "locked.tar.zst"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        failed = f"# from the download\n{TRAIN}\n{VAL}\nscene0001_00\n".encode()
        files = {
            "failed.txt": failed,
            LABEL_MAP: b"my own",
            "scannet.lock": self.LOCK,
            self.MESH: TREE[self.MESH],
        }
        return write_tree(tmp_path / "out", files)

    def test_label_map_stays_with_a_warning(self, archive: Path, folder: Path) -> None:
        outcome = unpack_file(archive, "-o", folder, "--scenes", VAL)

        assert outcome.status == 0
        assert "combined.tsv: differs from that of the archive, and stays" in outcome.stderr
        assert (folder / LABEL_MAP).read_bytes() == b"my own"

    def test_unpacked_scene_is_removed_from_the_failed_list(
        self, archive: Path, folder: Path
    ) -> None:
        assert unpack_file(archive, "-o", folder, "--scenes", VAL).status == 0

        assert (folder / "failed.txt").read_text().split("\n")[1:] == [TRAIN, "scene0001_00", ""]

    def test_lock_entry_of_a_kept_file_stays(self, archive: Path, folder: Path) -> None:
        assert unpack_file(archive, "-o", folder, "--scenes", VAL).status == 0

        assert (folder / "scannet.lock").read_bytes() == self.LOCK

    def test_lock_of_a_new_folder_grows_with_each_scene(
        self, archive: Path, tmp_path: Path
    ) -> None:
        locked_scenes = []
        for scene_id in (TRAIN, VAL):
            assert unpack_file(archive, "-o", tmp_path / "new", "--scenes", scene_id).status == 0
            lines = (tmp_path / "new/scannet.lock").read_text().splitlines()
            locked_scenes.append({line.split("/")[1] for line in lines if "/" in line})

        assert locked_scenes == [{TRAIN}, {TRAIN, VAL}]

    def test_damaged_lock_stops_the_run_and_stays(self, packed: Path, folder: Path) -> None:
        (folder / "scannet.lock").write_text("damaged")

        outcome = unpack_file(packed, "-o", folder, "--scenes", TRAIN)

        assert outcome.status == 1
        assert "scannet.lock: line 1 reads 'damaged'" in outcome.stderr
        assert (folder / "scannet.lock").read_text() == "damaged"
