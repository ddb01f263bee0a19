"""Faults of folders, archives and scenes: `ScanNet` names the file, says what to do, and gives no wrong sample."""

import os
import re
import shutil
from pathlib import Path

import pytest
from archives import flip
from commands import edit_json
from training_sources import KINDS, TRAIN, process_into, store

from scannet_prep import ScanNet
from scannet_prep.errors import FileError, MissingFileError, ProcessedFileError, UnknownSceneError, UnknownSplitError
from scannet_prep.synthetic import write_release


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_scene_names_its_file_and_leaves_the_others_readable(folder: Path, tmp_path: Path, kind: str) -> None:
    with store(kind, folder, tmp_path / "stored") as stored:
        path = stored.paths[0]
        path = path / "train/scene0001_00.npz" if kind == "folder" else path
        flip(path, path.stat().st_size // 3)
        dataset = ScanNet(stored.place, split="train")
        errors = []
        for scene_id in TRAIN * 2:
            try:
                assert dataset[scene_id]["scene_id"] == scene_id
            except FileError as error:
                errors.append((scene_id, error))
    assert len(errors) == 2
    for scene_id, error in errors:
        assert isinstance(error, ValueError)
        assert re.search(rf"{scene_id}.*is damaged", str(error))
        assert kind == "folder" or re.search(r"scannet(-\d+-of-\d+)?\.tar\.zst", str(error))
        assert error.hint


def test_a_file_that_is_not_the_scene_is_named_and_never_given(folder: Path) -> None:
    path = folder / "train/scene0001_00.npz"
    data = path.read_bytes()
    renamed = bytearray(data)
    renamed[data.rindex(b"segments.npy")] ^= 1  # in the directory
    write_release(folder.parent / "other/ScanNet", [path.stem], vertices=950)
    process_into(folder.parent / "other/ScanNet", folder.parent / "other/processed")
    dataset = ScanNet(folder, split="train")
    for content, message in (
        (data[:-1], "is truncated"),
        (path.with_name("scene0000_00.npz").read_bytes(), "holds 'scene0000_00', expected scene0001_00"),
        ((folder.parent / f"other/processed/train/{path.name}").read_bytes(), r"points of shape \(950, 3\), expected"),
        (renamed, "regments|directory"),
    ):
        path.write_bytes(content)
        with pytest.raises(ProcessedFileError, match=rf"scene0001_00\.npz: .*{message}"):
            dataset["scene0001_00"]
        assert dataset["scene0002_00"]["scene_id"] == "scene0002_00"
    path.unlink()
    with pytest.raises(MissingFileError, match=r"scene0001_00\.npz: no such file"):
        dataset["scene0001_00"]
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"scene0001_00\.npz"):
        dataset["scene0001_00"]


def test_scenes_that_failed_are_warned_about_and_a_split_without_scenes_is_an_error_that_names_the_others(
    folder: Path, training_folder: Path, tmp_path: Path
) -> None:
    raw_dir = Path(shutil.copytree(training_folder.parent / "ScanNet", tmp_path / "ScanNet"))
    (raw_dir / "scans/scene0001_00/scene0001_00_vh_clean_2.ply").unlink()
    assert len(process_into(raw_dir, folder).failures) == 1
    shutil.rmtree(folder / "val")
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0011_00"))
    for kind in ("folder", "archive", "shards"):
        with store(kind, folder, tmp_path / kind) as stored:
            with pytest.warns(
                UserWarning, match="failed in processing are missing: 1, for example scene0001_00"
            ) as told:
                dataset = ScanNet(stored.place, split="train")
            assert [item.filename for item in told] == [__file__]
            assert len(dataset) == len(TRAIN) - 1
            reason = r"failed in processing: .*scene0001_00_vh_clean_2\.ply: no such file"
            with pytest.raises(UnknownSceneError, match=reason):
                dataset["scene0001_00"]
            with pytest.raises(UnknownSplitError, match="holds no val scenes, only test, train") as caught:
                ScanNet(stored.place, split="val")
            assert "--splits val" in caught.value.hint
            with pytest.raises(UnknownSplitError, match="'training' is not a split"):
                ScanNet(stored.place, split="training")


def test_scenes_that_the_manifest_no_longer_names_are_counted_by_their_files(folder: Path) -> None:
    dataset = ScanNet(folder, split="train")
    expected = dataset.class_counts().tolist()
    edit_json(folder / "manifest.json", lambda value: value["scenes"].pop("scene0001_00"))
    assert dataset.class_counts().tolist() == expected
    (folder / "train/scene0001_00.npz").unlink()
    with pytest.raises(MissingFileError, match="no such file, though the folder's manifest names it"):
        dataset.class_counts()


def test_every_error_of_a_place_names_it_and_says_what_to_type(training_folder: Path, tmp_path: Path) -> None:
    for name, message, hint in (
        ("processed/none", "no such folder", "scannet-prep process"),
        ("processed/train", "no processed scenes", "process"),
        ("ScanNet", "no processed scenes", "if these are raw scenes: scannet-prep process"),
    ):
        with pytest.raises(MissingFileError, match=rf"{name}: .*{message}") as caught:
            ScanNet(training_folder.parent / name, split="train")
        assert hint in caught.value.hint
    (tmp_path / "empty.tar.zst").touch()
    (tmp_path / "text").write_text("not an archive\n" * 1_000)
    os.mkfifo(tmp_path / "pipe.tar.zst")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="is a named pipe"):
        ScanNet(tmp_path / "pipe", split="train")
    long_name = 300 * "n"
    for name in ("nothing", "nothing.tar.zst", "empty.tar.zst", "text", "pipe.tar.zst", long_name, f"{long_name}.zst"):
        for place in (tmp_path / name, str(tmp_path / name), [tmp_path / name]):
            with pytest.raises(FileError, match=name):
                ScanNet(place, split="train")
