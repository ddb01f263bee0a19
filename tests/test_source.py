"""Identifying paths, and opening the processed scenes they hold."""

from pathlib import Path

import pytest
from commands import run_main

from scannet_prep import ScanNet
from scannet_prep.base.errors import MissingFileError, UsageError
from scannet_prep.source import SourceKind, identify, open_processed


@pytest.fixture(scope="module")
def export_dir(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("export") / "ply"
    outcome = run_main("export", whole_dir / "processed", "--format", "ply", "-o", directory)
    assert outcome.status == 0, outcome.stderr
    return directory


@pytest.mark.parametrize("name", ["raw", "processed"])
def test_folder_is_identified_by_its_scenes(whole_dir: Path, name: str) -> None:
    assert identify([whole_dir / name]) == (SourceKind(name), whole_dir / name)


@pytest.mark.parametrize(
    "place", ["https://host/a", "s3://bucket/a", "nowhere/a.tar.zst", __file__]
)
def test_address_or_file_is_identified_as_archive(place: str) -> None:
    assert identify([place]) == (SourceKind.ARCHIVE, None)


def test_export_is_identified_if_it_is_accepted(export_dir: Path) -> None:
    assert identify([export_dir], may_be_export=True).kind is SourceKind.EXPORT


def test_export_is_refused_by_default(export_dir: Path) -> None:
    with pytest.raises(MissingFileError, match="is an export, expected raw or processed scenes"):
        identify([export_dir])


def test_dataset_refuses_an_export(export_dir: Path) -> None:
    with pytest.raises(MissingFileError, match="is an export, expected raw or processed scenes"):
        ScanNet(export_dir, split="train")


def test_dataset_reads_a_list_of_one_folder(whole_dir: Path) -> None:
    folder = whole_dir / "processed"
    assert len(ScanNet([folder], split="train")) == len(ScanNet(folder, split="train"))


def test_several_folders_are_refused(whole_dir: Path) -> None:
    with pytest.raises(UsageError, match="one folder can be read at a time"):
        open_processed([whole_dir / "processed", whole_dir / "processed"])


def test_entries_of_an_archive_equal_those_of_its_folder(whole_dir: Path, packed_dir: Path) -> None:
    in_archive = open_processed(packed_dir / "processed.tar.zst").entries
    assert in_archive == open_processed(whole_dir / "processed").entries


def test_scenes_without_entries_read_the_same_bytes(archive_path: Path) -> None:
    scenes = open_processed(archive_path)
    scene_id = min(scenes.entries)
    part = scenes.without_entries()

    assert part.entries == {}
    assert part.read(scene_id) == scenes.read(scene_id)
