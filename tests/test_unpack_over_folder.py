"""Unpacking over a folder with scenes: whole scenes stay, whatever the archive lacks."""

import hashlib
import random
import shutil
from pathlib import Path

import pytest
from archives import (
    TREE,
    call,
    find_parts,
    flip,
    forge,
    pack_shards,
    pack_tree,
    read_tree,
    unpack_pipe,
    write_tree,
)
from commands import TRAIN, VAL, Outcome, Verify, digests, edit_json, run_main

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.processed.manifest import read_manifest
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
LAST = SCENES[-1]
MESH = f"scans/{VAL}/{VAL}_vh_clean_2.ply"


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


def write_lock(raw_dir: Path) -> None:
    """Record the digest of every file of a raw tree in its `scannet.lock`."""
    (raw_dir / "scannet.lock").unlink(missing_ok=True)
    files = read_tree(raw_dir)
    entries = {
        name: LockEntry(hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()
    }
    (raw_dir / "scannet.lock").write_bytes(encode_lock(entries))


def unpack_each_way(archive: Path, out_dir: Path, *words: object) -> list[Outcome]:
    """Unpack over a folder, from a file, then from a pipe."""
    options = ("-o", out_dir, "--json", *words)
    return [call("unpack", archive, *options), unpack_pipe(archive, *options)]


def test_truncated_archive_leaves_a_complete_folder_as_it_is(six: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    before = digests(folder)
    data = (six / "processed.tar.zst").read_bytes()
    ends = [group.end for group in open_archive(six / "processed.tar.zst").index.groups]
    dice = random.Random(0)
    cuts = [
        *ends,
        *(end + 1 for end in ends),
        *(dice.randrange(ends[0], len(data)) for _ in range(6)),
    ]
    short = tmp_path / "short.tar.zst"
    for cut in cuts:
        short.write_bytes(data[:cut])
        for outcome in unpack_each_way(short, folder):
            # Without the seek table alone, nothing of a scene is lost.
            is_cut = cut <= find_parts(six / "processed.tar.zst")["index"][1]
            assert (outcome.status, outcome.json["failures"]) == (3 if is_cut else 0, []), (
                cut,
                outcome.stderr,
            )
            assert outcome.json["scenes"] == [*SCENES]
            assert digests(folder) == before, cut
    assert len(ScanNet(folder, split="train")) == 3
    assert call("pack", folder, "-o", tmp_path / "again.tar.zst").status == 0
    assert (tmp_path / "again.tar.zst").read_bytes() == data


def test_single_bit_flips_leave_a_complete_folder_as_it_is(six: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    before = digests(folder)
    parts = find_parts(six / "processed.tar.zst")
    dice = random.Random(1)
    offsets = [dice.randrange(*span) for span in parts.values() for _ in range(3)]
    for offset in offsets:
        archive = flip(
            Path(shutil.copy(six / "processed.tar.zst", tmp_path / "a.tar.zst")),
            offset,
            dice.randrange(8),
        )
        for outcome in unpack_each_way(archive, folder):
            assert outcome.status in {0, 1, 3}, (offset, outcome.stderr)
            assert outcome.json.get("failures", []) == [], (offset, outcome.stderr)
            assert digests(folder) == before, offset


def test_damaged_scene_that_is_whole_in_the_folder_is_named_with_exit_status_3(
    six: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    archive = Path(shutil.copy(six / "processed.tar.zst", tmp_path / "a.tar.zst"))
    flip(archive, sum(find_parts(archive)[VAL]) // 2)
    outcome = call("unpack", archive, "-o", folder)
    assert outcome.status == 3
    assert f"damaged: {VAL}: whole in {folder}, and kept there" in outcome.stderr
    assert f"{len(SCENES)} scenes there, 0 failed" in outcome.stdout
    assert not (folder / "failed.txt").exists()


def test_scene_damaged_in_archive_and_folder_alone_leaves_the_manifest(
    six: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    archive = Path(shutil.copy(six / "processed.tar.zst", tmp_path / "a.tar.zst"))
    flip(archive, sum(find_parts(archive)[VAL]) // 2)
    flip(folder / "val" / f"{VAL}.npz", 500)
    for outcome in unpack_each_way(archive, folder):
        assert (outcome.status, [failure["scene_id"] for failure in outcome.json["failures"]]) == (
            3,
            [VAL],
        )
        manifest = read_manifest(folder)
        assert manifest is not None
        assert manifest.scenes.keys() == {*SCENES} - {VAL}
        assert (folder / "failed.txt").read_text().split()[-1] == VAL


def test_one_shard_of_several_leaves_a_complete_folder_as_it_is(six: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    before = digests(folder)
    shards = pack_shards(folder, tmp_path / "s.tar.zst", 40_000)
    assert len(shards) > 1
    for shard in shards:
        cut = shard.read_bytes()
        for data, status in ((cut, 0), (cut[: find_parts(shard)["index"][0] - 10], 3)):
            shard.write_bytes(data)
            for outcome in unpack_each_way(shard, folder):
                assert outcome.status == status, outcome.stderr
                assert digests(folder) == before


def test_scene_that_failed_for_the_archive_stays_where_it_is_whole(
    six: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    source = Path(shutil.copytree(six / "processed", tmp_path / "source"))
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

    edit_json(source / "manifest.json", fail)
    (source / "val" / f"{VAL}.npz").unlink()
    pack_tree(source, tmp_path / "a.tar.zst")
    before = digests(folder)
    for outcome in unpack_each_way(tmp_path / "a.tar.zst", folder):
        assert outcome.status == 0
        assert digests(folder) == before


def test_scene_unpacked_without_the_manifest_of_its_archive_is_recorded_as_it_is(
    six: Path, tmp_path: Path, verify: Verify
) -> None:
    archive = flip(
        Path(shutil.copy(six / "processed.tar.zst", tmp_path / "a.tar.zst")), 200
    )  # the manifest is lost
    folder = Path(shutil.copytree(six / "processed", tmp_path / "processed"))
    edit_json(
        folder / "manifest.json", lambda manifest: manifest["scenes"][VAL].update(crc32="0" * 8)
    )
    flip(folder / "val" / f"{VAL}.npz", 500)
    assert call("unpack", archive, "-o", folder).status == 3
    assert verify(folder) == (0, [])


def test_damaged_archive_does_not_list_whole_raw_scenes_as_failed(
    six: Path, tmp_path: Path
) -> None:
    """By the digests of the index, or of `scannet.lock` where the end of the archive is lost."""
    raw_dir = Path(shutil.copytree(six / "raw", tmp_path / "raw"))
    before = digests(raw_dir)
    data = (six / "raw.tar.zst").read_bytes()
    parts = find_parts(six / "raw.tar.zst")
    archive = tmp_path / "a.tar.zst"
    for scene_id in SCENES:
        archive.write_bytes(data)
        flip(archive, sum(parts[scene_id]) // 2)
        for outcome in unpack_each_way(archive, raw_dir):
            assert (outcome.status, outcome.json["failures"]) == (3, []), outcome.stderr
            assert digests(raw_dir) == before
        archive.write_bytes(data[: parts[scene_id][0]])
        for outcome in unpack_each_way(archive, raw_dir, "--scenes", *SCENES):
            assert (outcome.status, outcome.json["failures"]) == (3, []), outcome.stderr
            assert digests(raw_dir) == before


def test_raw_scene_damaged_in_archive_and_tree_is_a_failure(six: Path, tmp_path: Path) -> None:
    raw_dir = Path(shutil.copytree(six / "raw", tmp_path / "raw"))
    archive = Path(shutil.copy(six / "raw.tar.zst", tmp_path / "a.tar.zst"))
    flip(archive, sum(find_parts(archive)[VAL]) // 2)
    flip(raw_dir / MESH, 900)
    for outcome in unpack_each_way(archive, raw_dir):
        assert [failure["scene_id"] for failure in outcome.json["failures"]] == [VAL]
        assert (raw_dir / "failed.txt").read_text().split()[-1] == VAL


@pytest.mark.parametrize("has_lock", [True, False])
def test_replaced_raw_file_has_the_lock_entry_of_its_new_content_or_none(
    six: Path, tmp_path: Path, verify: Verify, has_lock: bool
) -> None:
    source = Path(shutil.copytree(six / "raw", tmp_path / "source"))
    new = (source / MESH.replace(VAL, "scene0015_00")).read_bytes()
    (source / f"scans/{VAL}/{VAL}.txt").write_bytes(
        (source / f"scans/{VAL}/{VAL}.txt").read_bytes() + b"\n"
    )
    if has_lock:
        write_lock(source)
    else:
        (source / "scannet.lock").unlink()
    pack_tree(source, tmp_path / "a.tar.zst")
    for unpack_it in (call, unpack_pipe):
        raw_dir = Path(shutil.copytree(six / "raw", tmp_path / f"raw-{unpack_it.__name__}"))
        (raw_dir / MESH).write_bytes(new)  # damaged: the archive brings back the recorded content
        words = (tmp_path / "a.tar.zst", "-o", raw_dir)
        assert (call("unpack", *words) if unpack_it is call else unpack_pipe(*words)).status == 0
        entries = read_lock(raw_dir / "scannet.lock")
        assert MESH in entries
        assert (f"scans/{VAL}/{VAL}.txt" in entries) == has_lock
        assert verify(raw_dir) == (0, [])


def test_file_replaced_in_a_scene_that_then_fails_has_no_old_lock_entry(tmp_path: Path) -> None:
    first, last = f"scans/{TRAIN}/{TRAIN}.txt", f"scans/{TRAIN}/{TRAIN}_vh_clean_2.ply"
    pack_tree(write_tree(tmp_path / "source", TREE | {first: b"new"}), tmp_path / "a.tar.zst")
    raw_dir = write_tree(tmp_path / "raw", {first: b"old"})
    write_lock(raw_dir)
    (raw_dir / last).mkdir()
    assert call("unpack", tmp_path / "a.tar.zst", "-o", raw_dir).status == 3
    assert (raw_dir / first).read_bytes() == b"new"
    assert first not in read_lock(raw_dir / "scannet.lock")


def test_file_that_is_not_what_the_lock_of_its_archive_records_is_a_warning(
    six: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(six / "raw", tmp_path / "source"))
    flip(source / MESH, 900)
    pack_tree(source, tmp_path / "a.tar.zst")
    outcome = call("unpack", tmp_path / "a.tar.zst", "-o", tmp_path / "raw")
    assert f"{MESH}: not what scannet.lock of the archive records" in outcome.stderr
    assert read_lock(tmp_path / "raw/scannet.lock") == read_lock(source / "scannet.lock")
    raw_dir = Path(shutil.copytree(six / "raw", tmp_path / "there"))
    assert call("unpack", tmp_path / "a.tar.zst", "-o", raw_dir).status == 0
    assert MESH not in read_lock(raw_dir / "scannet.lock")


def test_acceptance_of_the_terms_is_neither_packed_nor_unpacked(six: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(six / "raw", tmp_path / "source"))
    (source / "terms_accepted.txt").write_text("ScanNet Terms of Use accepted at 2026-01-01\n")
    outcome = call("pack", source, "-o", tmp_path / "a.tar.zst")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert (tmp_path / "a.tar.zst").read_bytes() == (six / "raw.tar.zst").read_bytes()


def test_acceptance_of_the_terms_in_an_older_archive_is_not_unpacked(tmp_path: Path) -> None:
    name = f"scans/{TRAIN}/{TRAIN}.txt"
    forge(
        tmp_path / "a.tar.zst",
        [(TRAIN, [(name, b"x")])],
        others=[("terms_accepted.txt", b"accepted")],
    )
    for outcome in unpack_each_way(tmp_path / "a.tar.zst", tmp_path / "out"):
        assert outcome.status == 0
        assert read_tree(tmp_path / "out") == {name: b"x"}


@pytest.mark.parametrize("words", [(), ("--scenes", TRAIN)])
def test_folder_of_other_options_is_refused_although_its_manifest_is_lost(
    six: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "aligned"
    assert run_main("process", six / "raw", "-o", folder, "--align-axis").status == 0
    (folder / "manifest.json").unlink()
    before = digests(folder)

    for outcome in unpack_each_way(six / "processed.tar.zst", folder, *words):
        assert outcome.status == 1
        assert "holds scenes that were made with" in outcome.stderr
    assert digests(folder) == before


@pytest.mark.parametrize("has_manifest", [True, False])
def test_scene_of_other_options_is_refused_if_its_archive_has_lost_its_manifest(
    six: Path, tmp_path: Path, has_manifest: bool
) -> None:
    folder = tmp_path / "aligned"
    assert run_main("process", six / "raw", "-o", folder, "--align-axis").status == 0
    if not has_manifest:
        (folder / "manifest.json").unlink()
    archive = flip(Path(shutil.copy(six / "processed.tar.zst", tmp_path / "a.tar.zst")), 0)
    before = digests(folder / "val")

    outcome = call("unpack", archive, "-o", folder, "--scenes", VAL)

    assert outcome.status == 3
    assert "holds scenes that were made with --no-scannet200 --align-axis" in outcome.stderr
    assert digests(folder / "val") == before
