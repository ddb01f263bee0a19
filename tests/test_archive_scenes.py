"""Scenes in archives: what only an archive can have wrong with it."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import pack_shards, pack_tree
from forged_archives import find_parts, flip
from release_server import ROOT, ReleaseServer

from scannet_prep import ScanNet
from scannet_prep.archive import ArchiveKind, Contents, Head, SourceFile, SourceGroup, open_archive, write_archive
from scannet_prep.archive.scenes import ArchiveReader
from scannet_prep.archive.source import find_missing_shards
from scannet_prep.errors import ArchiveError, MissingFileError, NotOnServerError, UnknownSceneError, UsageError
from scannet_prep.remote.ranges import RangeSource
from scannet_prep.scene import Split

SCENES = ("scene0000_00", "scene0001_00", "scene0002_00", "scene0003_00", "scene0005_00")


@pytest.fixture
def folder(whole_dir: Path) -> Path:
    return whole_dir / "processed"


@pytest.fixture
def archive_path(packed_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(packed_dir / "processed.tar.zst", tmp_path / "scannet.tar.zst"))


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> tuple[Path, ...]:
    return tuple(pack_shards(folder, tmp_path / "shards.tar.zst", 30_000))


def test_an_archive_that_is_replaced_stays_readable_where_it_is_open_and_is_refused_elsewhere(
    archive_path: Path,
) -> None:
    dataset = ScanNet(archive_path, split="train")
    expected = dataset[0]["points"]
    data = archive_path.read_bytes()
    new_path = archive_path.with_name("new")
    new_path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    os.utime(new_path, ns=(1, 1))
    new_path.replace(archive_path)
    assert np.array_equal(dataset[0]["points"], expected)
    copy = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    for reader in (copy, dataset):
        with pytest.raises(ArchiveError, match=r"scannet\.tar\.zst: was replaced or changed") as caught:
            reader[0]
        assert "open it again" in caught.value.hint


def test_an_archive_that_is_deleted_stays_readable_where_it_is_open_and_one_that_is_cut_off_is_an_error(
    archive_path: Path,
) -> None:
    data = archive_path.read_bytes()
    dataset = ScanNet(archive_path, split="train")
    archive_path.unlink()
    assert dataset[0]["scene_id"] == SCENES[0]
    dataset.close()
    with pytest.raises(MissingFileError, match="no such archive"):
        dataset[0]
    archive_path.write_bytes(data)
    dataset = ScanNet(archive_path, split="train")
    os.truncate(archive_path, 3_000)
    with pytest.raises(ArchiveError, match="scene0000_00: is damaged: the archive ends after"):
        dataset[0]


def test_shards_may_come_in_any_order(shards: tuple[Path, ...], folder: Path) -> None:
    expected = ScanNet(folder, split="train")
    for order in (shards, shards[::-1]):
        dataset = ScanNet(order, split="train")
        assert dataset.scene_ids == expected.scene_ids
        assert np.array_equal(dataset[0]["points"], expected[0]["points"])
        with pytest.raises(UnknownSceneError, match=f"{order[0]} and {len(order) - 1} more: has no train"):
            dataset["scene0191_00"]


def test_a_missing_shard_is_named(shards: tuple[Path, ...]) -> None:
    for missing, left in ((0, shards[1:]), (1, shards[0])):
        with pytest.raises(ArchiveError, match=f"of which {shards[missing].name} is missing") as caught:
            ScanNet(left, split="train")
        assert "name all shards" in caught.value.hint
    alone = shards[0].with_name("alone.tar.zst")
    shards[0].rename(alone)
    with open_archive(alone) as archive:
        ids = [scene.scene_id for scene in archive.index.scenes if scene.split == "train"]
    assert ScanNet(alone, split="train").scene_ids == ids


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([], None),
        (["a.tar.zst", "a-1-of-2.tar.zst", "a-00000-of-00002.tar"], None),
        (["a-00000-of-00001.tar.zst"], None),
        (["a-00001-of-00002.tar.zst"], "a-00000-of-00002.tar.zst"),
        (["a-00001-of-00002.tar.zst", "a-00000-of-00002.tar.zst"], None),
        (["a-00000-of-00002.tar.zst", "b-00001-of-00002.tar.zst"], "a-00001-of-00002.tar.zst"),
        (["a-00000-of-00002.tar.zst", "a-00001-of-00003.tar.zst"], "a-00000-of-00003.tar.zst"),
    ],
)
def test_sets_of_shards_are_told_by_their_names(names: list[str], missing: str | None) -> None:
    assert next(iter(find_missing_shards(names)), None) == missing


def test_archives_that_do_not_go_together_are_refused(
    archive_path: Path, shards: tuple[Path, ...], packed_dir: Path, folder: Path
) -> None:
    for places, message in (
        ([*shards, archive_path], r"holds scene0000_00, and so does .*\.tar\.zst"),
        ([packed_dir / "raw.tar.zst"], "holds raw scenes, not processed ones"),
        ([archive_path, folder], "processed: is a folder"),
    ):
        with pytest.raises(ArchiveError, match=message):
            ScanNet(places, split="val")
    for places, message in (
        ([archive_path] * 2, "the same archive is named twice"),
        ([], "the list of archives is empty"),
    ):
        with pytest.raises(UsageError, match=message):
            ScanNet(places, split="train")


@pytest.mark.parametrize(("key", "value"), [("align_axis", True), ("labels_from", "ply")])
def test_archives_with_scenes_that_were_made_otherwise_are_refused(tmp_path: Path, key: str, value: object) -> None:
    def write(name: str, scene_id: str, **options: Any) -> Path:
        group = SourceGroup(scene_id, "train", 9, (SourceFile.from_content(f"train/{scene_id}.npz", b"x"),))
        head = Head(ArchiveKind.PROCESSED, options=options)
        write_archive(Contents(head, (), (group,)), tmp_path / name)
        return tmp_path / name

    first, second = write("a.tar.zst", "scene0000_00"), write("b.tar.zst", "scene0000_01", **{key: value})
    with pytest.raises(ArchiveError, match=rf"b\.tar\.zst: holds .*{key}={value}, those of .*a\.tar\.zst with {key}="):
        ScanNet([first, second], split="train")
    assert len(ScanNet([first, write("c.tar.zst", "scene0000_01", faces=True)], split="train")) == 2


def test_a_scene_is_the_file_of_the_folder_stored_or_compressed_and_writable(folder: Path, tmp_path: Path) -> None:
    for level in (0, 1):
        pack_tree(folder, tmp_path / "a.tar.zst", level=level).close()
        reader = ArchiveReader([tmp_path / "a.tar.zst"], Split.TRAIN)
        found = reader.read(0)
        assert found == (folder / "train" / f"{reader.scene_id(0)}.npz").read_bytes()
        assert not found.readonly
        reader.close()


def test_a_scene_whose_frame_has_a_damaged_checksum_is_read_by_its_digest(archive_path: Path) -> None:
    expected = ScanNet(archive_path, split="train")[0]["points"]
    start, end = find_parts(archive_path)["scene0000_00"]
    flip(archive_path, end - 1)
    assert np.array_equal(ScanNet(archive_path, split="train")[0]["points"], expected)
    flip(archive_path, (start + end) // 2)
    with pytest.raises(ArchiveError, match="has the SHA-256"):
        ScanNet(archive_path, split="train")[0]


def test_training_from_a_file_imports_nothing_of_the_network(archive_path: Path) -> None:
    script = (
        "import sys; from scannet_prep import ScanNet\n"
        f"ScanNet({str(archive_path)!r}, split='train')[0]\n"
        "print([name for name in ('torch', 'requests', 'pandas', 'plyfile', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_each_scene_on_the_web_is_one_range(tmp_path: Path) -> None:
    dice, groups = random.Random(1), []
    for name in SCENES:
        file = SourceFile.from_content(f"train/{name}.npz", dice.randbytes(1_000_000))
        groups.append(SourceGroup(name, "train", 5, (file,)))
    files = (SourceFile.from_content("manifest.json", b"{}"),)
    write_archive(Contents(Head(ArchiveKind.PROCESSED), files, tuple(groups)), tmp_path / "a.tar.zst")
    with ReleaseServer(tmp_path) as server, open_archive(tmp_path / "a.tar.zst") as archive:
        server.files[f"{ROOT}a.tar.zst"] = tmp_path / "a.tar.zst"
        reader = ArchiveReader([f"{server.origin}{ROOT}a.tar.zst"], Split.TRAIN)
        assert server.requests()[0].range == "bytes=0-0"
        server.forget()
        for index, scene in enumerate(archive.index.scenes[:3]):
            assert reader.read(index) == archive.read_member(scene, scene.members[0])
        assert [request.range for request in server.requests()] == [
            f"bytes={scene.offset}-{scene.offset + scene.stored_bytes - 1}" for scene in archive.index.scenes[:3]
        ]
        with pytest.raises(NotOnServerError):
            ScanNet(f"{server.origin}{ROOT}other.tar.zst", split="train")
        source = RangeSource(f"{server.origin}{ROOT}a.tar.zst")
        assert ArchiveReader([source], Split.TRAIN).read(2) == reader.read(2)
        reader.close()


def test_shards_may_be_on_the_web(tmp_path: Path, folder: Path, shards: tuple[Path, ...]) -> None:
    with ReleaseServer(tmp_path) as server:
        server.files |= {f"{ROOT}{path.name}": path for path in shards}
        urls = [f"{server.origin}{ROOT}{path.name}?token=x" for path in shards]
        dataset = ScanNet([urls[0], *shards[1:]], split="train")
        assert np.array_equal(dataset[0]["points"], ScanNet(folder, split="train")[0]["points"])
        with pytest.raises(ArchiveError, match=f"of which {shards[2].name} is missing"):
            ScanNet([*urls[:2], *urls[3:]], split="train")
        script = f"from scannet_prep import ScanNet\ndataset = ScanNet({urls!r}, split='train')\ndataset[0]"
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""  # nothing is complained of where nobody closes anything
