"""Identifying paths, and opening the processed scenes they hold."""

from pathlib import Path

import pytest
from commands import TEST, TRAIN, VAL, run_main

from scannet_prep import ScanNet
from scannet_prep.errors import MissingFileError, ProcessedFileError, UsageError
from scannet_prep.processed.scene import encode_processed
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.source import SourceKind, identify, open_processed
from scannet_prep.source.raw_scenes import RawScenes
from scannet_prep.synthetic import make_scene, write_scene

# A scene of no official list.
UNLISTED = "scene0900_00"


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


# Scenes of a raw tree.


@pytest.fixture
def raw_scenes(whole_dir: Path) -> RawScenes:
    return RawScenes(whole_dir / "raw", builtin_label_map())


def test_raw_tree_has_the_scenes_of_its_processed_folder(
    whole_dir: Path, raw_scenes: RawScenes
) -> None:
    assert raw_scenes.scene_ids == open_processed(whole_dir / "processed").scene_ids


def test_raw_scene_is_loaded_as_process_writes_it(whole_dir: Path, raw_scenes: RawScenes) -> None:
    for scene_id in raw_scenes.scene_ids:
        scene, _ = raw_scenes.load(scene_id)

        (path,) = whole_dir.glob(f"processed/*/{scene_id}.npz")
        assert b"".join(encode_processed(scene)) == path.read_bytes()


def test_entry_of_raw_scene_has_the_size_of_its_raw_files(
    whole_dir: Path, raw_scenes: RawScenes
) -> None:
    _, entry = raw_scenes.load(TEST)

    files = (whole_dir / "raw/scans_test" / TEST).iterdir()
    assert entry.size_bytes == sum(path.stat().st_size for path in files)


def test_raw_scene_of_no_official_list_is_a_failure(tmp_path: Path) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), tmp_path)

    raw_scenes = RawScenes(tmp_path, builtin_label_map())

    assert raw_scenes.scene_ids == ()
    assert "is in none of the official split lists" in raw_scenes.failures[UNLISTED].message


def test_file_of_another_scene_is_refused(whole_dir: Path) -> None:
    scenes = open_processed(whole_dir / "processed")
    data = scenes.read(TRAIN)

    with pytest.raises(ProcessedFileError, match=f"holds '{TRAIN}' of train, expected {VAL}"):
        scenes.parse(VAL, data)
