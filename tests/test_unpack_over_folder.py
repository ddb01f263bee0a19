"""Unpacking over a folder with scenes: intact scenes stay, whatever the archive lacks."""

import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import (
    TREE,
    find_parts,
    flip,
    flip_middle,
    forge,
    pack_shards,
    pack_tree,
    read_tree,
    unpack_file,
    unpack_pipe,
    write_tree,
)
from commands import TRAIN, VAL, Outcome, Verify, digests, edit_json, run_main

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.raw.lock import LockEntry, encode_lock, read_lock
from scannet_prep.synthetic import write_release

SCENES = (
    "scene0000_00",
    "scene0001_00",
    "scene0002_00",
    "scene0011_00",
    "scene0015_00",
    "scene0707_00",
)
MESH = f"scans/{VAL}/{VAL}_vh_clean_2.ply"
TEXT = f"scans/{VAL}/{VAL}.txt"


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six raw scenes with a `scannet.lock`, their processed folder, and the archives of both."""
    directory = tmp_path_factory.mktemp("six")
    write_release(directory / "raw", SCENES, vertices=600)
    assert run_main("process", directory / "raw", "-o", directory / "processed").status == 0
    write_lock(directory / "raw")
    for kind in ("raw", "processed"):
        pack_tree(directory / kind, directory / f"{kind}.tar.zst")
    return directory


@pytest.fixture
def folder(six: Path, tmp_path: Path) -> Path:
    """A complete processed folder."""
    return Path(shutil.copytree(six / "processed", tmp_path / "processed"))


@pytest.fixture
def raw_dir(six: Path, tmp_path: Path) -> Path:
    """A complete raw tree with a `scannet.lock`."""
    return Path(shutil.copytree(six / "raw", tmp_path / "raw"))


@pytest.fixture
def source(six: Path, tmp_path: Path) -> Path:
    """A raw tree that is changed and then packed."""
    return Path(shutil.copytree(six / "raw", tmp_path / "source"))


@pytest.fixture
def archive(six: Path, tmp_path: Path) -> Path:
    """The archive of the processed folder."""
    return Path(shutil.copy(six / "processed.tar.zst", tmp_path / "a.tar.zst"))


@pytest.fixture
def raw_archive(six: Path, tmp_path: Path) -> Path:
    """The archive of the raw tree."""
    return Path(shutil.copy(six / "raw.tar.zst", tmp_path / "raw.tar.zst"))


def write_lock(raw_dir: Path) -> None:
    """Record the digest of every file of a raw tree in its `scannet.lock`."""
    (raw_dir / "scannet.lock").unlink(missing_ok=True)
    entries = {}
    for name, data in read_tree(raw_dir).items():
        entries[name] = LockEntry(hashlib.sha256(data).hexdigest(), len(data))
    (raw_dir / "scannet.lock").write_bytes(encode_lock(entries))


def unpack_each_way(archive: Path, out_dir: Path, *words: str | Path) -> list[Outcome]:
    """Unpack over a folder, from a file, then from a pipe."""
    options = ("-o", out_dir, "--json", *words)
    return [unpack_file(archive, *options), unpack_pipe(archive, *options)]


def failed_scenes(outcome: Outcome) -> list[str]:
    return [failure["scene_id"] for failure in outcome.json["failures"]]


class TestDamagedArchiveOverCompleteFolder:
    def test_truncated_archive_leaves_a_complete_folder_unchanged(
        self, archive: Path, folder: Path, tmp_path: Path
    ) -> None:
        before = digests(folder)
        data = archive.read_bytes()
        ends = [group.end for group in open_archive(archive).index.groups]
        _, index_end = find_parts(archive)["index"]
        dice = random.Random(0)
        random_cuts = [dice.randrange(ends[0], len(data)) for _ in range(6)]
        short = tmp_path / "short.tar.zst"

        for cut in (*ends, *(end + 1 for end in ends), *random_cuts):
            short.write_bytes(data[:cut])
            for outcome in unpack_each_way(short, folder):
                # If only the seek table is lost, nothing of a scene is.
                assert outcome.status == (3 if cut <= index_end else 0), (cut, outcome.stderr)
                assert outcome.json["failures"] == [], (cut, outcome.stderr)
                assert outcome.json["scenes"] == [*SCENES]
                assert digests(folder) == before, cut

    def test_folder_is_complete_after_a_truncated_archive(
        self, archive: Path, folder: Path, tmp_path: Path
    ) -> None:
        data = archive.read_bytes()
        (tmp_path / "short.tar.zst").write_bytes(data[: len(data) // 2])
        unpack_each_way(tmp_path / "short.tar.zst", folder)

        assert run_main("pack", folder, "-o", tmp_path / "again.tar.zst").status == 0

        assert len(ScanNet(folder, split="train")) == 3
        assert (tmp_path / "again.tar.zst").read_bytes() == data

    def test_flipped_bits_leave_a_complete_folder_unchanged(
        self, archive: Path, folder: Path
    ) -> None:
        before = digests(folder)
        data = archive.read_bytes()
        dice = random.Random(1)
        offsets = []
        for start, end in find_parts(archive).values():
            offsets += [dice.randrange(start, end) for _ in range(3)]

        for offset in offsets:
            archive.write_bytes(data)
            flip(archive, offset, dice.randrange(8))
            for outcome in unpack_each_way(archive, folder):
                assert outcome.status in {0, 1, 3}, (offset, outcome.stderr)
                assert outcome.json.get("failures", []) == [], (offset, outcome.stderr)
                assert digests(folder) == before, offset

    def test_damaged_scene_that_is_whole_in_the_folder_is_named(
        self, archive: Path, folder: Path
    ) -> None:
        flip_middle(archive, VAL)

        outcome = run_main("unpack", archive, "-o", folder)

        assert outcome.status == 3
        assert f"damaged: {VAL}: intact in {folder}, and kept there" in outcome.stderr
        assert f"{len(SCENES)} scenes there, 0 failed" in outcome.stdout
        assert not (folder / "failed.txt").exists()

    def test_single_shard_leaves_a_complete_folder_unchanged(
        self, folder: Path, tmp_path: Path
    ) -> None:
        before = digests(folder)
        shards = pack_shards(folder, tmp_path / "s.tar.zst", 40_000)
        assert len(shards) > 1

        for shard in shards:
            for outcome in unpack_each_way(shard, folder):
                assert outcome.status == 0, outcome.stderr
                assert digests(folder) == before

    def test_truncated_shard_leaves_a_complete_folder_unchanged(
        self, folder: Path, tmp_path: Path
    ) -> None:
        before = digests(folder)
        for shard in pack_shards(folder, tmp_path / "s.tar.zst", 40_000):
            index_start, _ = find_parts(shard)["index"]
            shard.write_bytes(shard.read_bytes()[: index_start - 10])

            for outcome in unpack_each_way(shard, folder):
                assert outcome.status == 3, outcome.stderr
                assert digests(folder) == before

    def test_scene_that_failed_for_the_archive_stays_if_it_is_whole(
        self, six: Path, folder: Path, tmp_path: Path
    ) -> None:
        failure = {
            "scene_id": VAL,
            "error": "RawFileError",
            "message": f"{VAL}: is damaged",
            "hint": "",
            "trace": "",
        }

        def fail(manifest: dict[str, dict[str, object]]) -> None:
            del manifest["scenes"][VAL]
            manifest["failures"][VAL] = failure

        other = Path(shutil.copytree(six / "processed", tmp_path / "other"))
        edit_json(other / "manifest.json", fail)
        (other / "val" / f"{VAL}.npz").unlink()
        pack_tree(other, tmp_path / "other.tar.zst")
        before = digests(folder)

        for outcome in unpack_each_way(tmp_path / "other.tar.zst", folder):
            assert outcome.status == 0
            assert digests(folder) == before


class TestDamagedArchiveOverRawTree:
    @pytest.mark.parametrize("scene_id", SCENES)
    def test_damaged_scene_is_no_failure_if_the_index_shows_that_it_is_whole(
        self, scene_id: str, raw_archive: Path, raw_dir: Path
    ) -> None:
        before = digests(raw_dir)
        flip_middle(raw_archive, scene_id)

        for outcome in unpack_each_way(raw_archive, raw_dir):
            assert outcome.status == 3, outcome.stderr
            assert outcome.json["failures"] == [], outcome.stderr
            assert digests(raw_dir) == before

    @pytest.mark.parametrize("scene_id", SCENES)
    def test_lost_scene_is_no_failure_if_the_lock_shows_that_it_is_whole(
        self, scene_id: str, raw_archive: Path, raw_dir: Path
    ) -> None:
        before = digests(raw_dir)
        start, _ = find_parts(raw_archive)[scene_id]
        raw_archive.write_bytes(raw_archive.read_bytes()[:start])

        for outcome in unpack_each_way(raw_archive, raw_dir, "--scenes", *SCENES):
            assert outcome.status == 3, outcome.stderr
            assert outcome.json["failures"] == [], outcome.stderr
            assert digests(raw_dir) == before

    def test_raw_scene_damaged_in_archive_and_tree_is_a_failure(
        self, raw_archive: Path, raw_dir: Path
    ) -> None:
        flip_middle(raw_archive, VAL)
        flip(raw_dir / MESH, 900)

        for outcome in unpack_each_way(raw_archive, raw_dir):
            assert failed_scenes(outcome) == [VAL]
            assert (raw_dir / "failed.txt").read_text().split()[-1] == VAL


class TestLockOfRawTree:
    @pytest.mark.parametrize("unpack_it", [unpack_file, unpack_pipe], ids=["file", "pipe"])
    @pytest.mark.parametrize("has_lock", [True, False], ids=["lock", "no lock"])
    def test_replaced_file_has_the_entry_of_its_new_content_or_none(
        self,
        has_lock: bool,
        unpack_it: Callable[..., Outcome],
        source: Path,
        raw_dir: Path,
        tmp_path: Path,
        verify: Verify,
    ) -> None:
        (source / TEXT).write_bytes((source / TEXT).read_bytes() + b"\n")
        if has_lock:
            write_lock(source)
        else:
            (source / "scannet.lock").unlink()
        pack_tree(source, tmp_path / "changed.tar.zst")
        # The archive brings back the content of the mesh that the lock of the tree records.
        (raw_dir / MESH).write_bytes((source / MESH.replace(VAL, "scene0015_00")).read_bytes())

        assert unpack_it(tmp_path / "changed.tar.zst", "-o", raw_dir).status == 0

        entries = read_lock(raw_dir / "scannet.lock")
        assert MESH in entries
        assert (TEXT in entries) == has_lock
        assert verify(raw_dir) == (0, [])

    def test_file_replaced_in_a_scene_that_then_fails_loses_its_entry(self, tmp_path: Path) -> None:
        first = f"scans/{TRAIN}/{TRAIN}.txt"
        last = f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply"
        pack_tree(write_tree(tmp_path / "tree", TREE | {first: b"new"}), tmp_path / "a.tar.zst")
        raw_dir = write_tree(tmp_path / "out", {first: b"old"})
        write_lock(raw_dir)
        (raw_dir / last).mkdir()

        assert run_main("unpack", tmp_path / "a.tar.zst", "-o", raw_dir).status == 3

        assert (raw_dir / first).read_bytes() == b"new"
        assert first not in read_lock(raw_dir / "scannet.lock")

    def test_file_that_differs_from_the_lock_of_its_archive_is_a_warning(
        self, source: Path, tmp_path: Path
    ) -> None:
        flip(source / MESH, 900)
        pack_tree(source, tmp_path / "a.tar.zst")

        outcome = run_main("unpack", tmp_path / "a.tar.zst", "-o", tmp_path / "new")

        assert f"{MESH}: not what scannet.lock of the archive records" in outcome.stderr
        assert read_lock(tmp_path / "new/scannet.lock") == read_lock(source / "scannet.lock")

    def test_replaced_file_that_differs_from_all_locks_has_no_entry(
        self, source: Path, raw_dir: Path, tmp_path: Path
    ) -> None:
        flip(source / MESH, 900)
        pack_tree(source, tmp_path / "a.tar.zst")

        assert run_main("unpack", tmp_path / "a.tar.zst", "-o", raw_dir).status == 0

        assert MESH not in read_lock(raw_dir / "scannet.lock")


class TestAcceptanceOfTheTerms:
    def test_acceptance_is_not_packed(self, six: Path, source: Path, tmp_path: Path) -> None:
        acceptance = "ScanNet Terms of Use accepted at 2026-01-01\n"
        (source / "terms_accepted.txt").write_text(acceptance)

        outcome = run_main("pack", source, "-o", tmp_path / "a.tar.zst")

        assert outcome.status == 0
        assert outcome.stderr == ""
        assert (tmp_path / "a.tar.zst").read_bytes() == (six / "raw.tar.zst").read_bytes()

    def test_acceptance_in_an_archive_is_not_unpacked(self, tmp_path: Path) -> None:
        name = f"scans/{TRAIN}/{TRAIN}.txt"
        others = [("terms_accepted.txt", b"accepted")]
        forge(tmp_path / "a.tar.zst", [(TRAIN, [(name, b"x")])], others=others)

        for outcome in unpack_each_way(tmp_path / "a.tar.zst", tmp_path / "out"):
            assert outcome.status == 0
            assert read_tree(tmp_path / "out") == {name: b"x"}


class TestLostManifest:
    @pytest.fixture
    def aligned(self, six: Path, tmp_path: Path) -> Path:
        """A folder of the same scenes with other options."""
        aligned = tmp_path / "aligned"
        assert run_main("process", six / "raw", "-o", aligned, "--align-axis").status == 0
        return aligned
