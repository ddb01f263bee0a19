"""`info` on archives: from the index alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from archives import call, pack_shards
from forged_archives import find_parts
from verifying import TEST, TRAIN, VAL


def info(*paths: Path) -> tuple[int, dict[str, Any]]:
    outcome = call("info", *paths, "--json")
    return outcome.status, outcome.json


@pytest.fixture
def archive_path(packed_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(packed_dir / "processed.tar.zst", tmp_path / "scannet.tar.zst"))


def overwrite(path: Path, *names: str) -> None:
    data = bytearray(path.read_bytes())
    for name, (start, end) in find_parts(path).items():
        if name in names:
            data[start:end] = bytes(end - start)
    path.write_bytes(data)


def test_an_archive_is_described_though_no_scene_can_be_read(archive_path: Path, whole_dir: Path) -> None:
    bounds = {name: end - start for name, (start, end) in find_parts(archive_path).items()}
    overwrite(archive_path, TRAIN, VAL, TEST)
    status, value = info(archive_path)
    _, folder = info(whole_dir / "processed")
    assert status == 0
    assert (value["kind"], value["archive_kind"]) == ("archive", "processed")
    assert (value["scenes"], value["vertices"]) == (3, 1800)
    for split, scene_id in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        found = value["splits"][split]
        assert (found["scenes"], found["vertices"], found["stored_bytes"]) == (1, 600, bounds[scene_id])
        assert found["size_bytes"] >= folder["splits"][split]["size_bytes"]
    assert value["size_bytes"] == archive_path.stat().st_size
    assert value["options"] == folder["options"][0]["options"]
    assert (value["levels"], value["failures"], value["missing_shards"]) == ([1], {}, [])
    assert value["programs"][0].startswith("scannet-prep ")
    assert value["label_sets"] == folder["label_sets"]
    assert (value["scene_ids"], value["complete"]) == ([TRAIN, VAL, TEST], True)
    files = [path for path in (whole_dir / "processed").rglob("*") if path.is_file() and path.name[0] != "."]
    assert value["files"] == len(files)


def test_where_the_manifest_cannot_be_read_the_index_still_tells(archive_path: Path) -> None:
    overwrite(archive_path, "files")
    status, value = info(archive_path)
    assert status == 3
    assert (value["scenes"], value["label_sets"]) == (3, {})
    assert [item["path"] for item in value["unreadable"]] == [str(archive_path)]


def test_raw_archives_are_described(packed_dir: Path) -> None:
    status, value = info(packed_dir / "raw.tar.zst")
    assert (status, value["archive_kind"], value["scenes"], value["options"]) == (0, "raw", 3, {})


def test_shards_are_described_together_and_missing_ones_named(whole_dir: Path, tmp_path: Path) -> None:
    paths = pack_shards(whole_dir / "processed", tmp_path / "s.tar.zst", 20_000)
    _, whole = info(*paths)
    assert (whole["scenes"], whole["missing_shards"]) == (3, [])
    assert whole["size_bytes"] == sum(path.stat().st_size for path in paths)
    _, part = info(*paths[1:])
    assert (part["scenes"], part["missing_shards"]) == (2, [str(paths[0])])
    # Classes of the scenes that are here, though the manifest names all.
    annotated = {name: table["scenes"] for name, table in part["label_sets"].items()}
    assert annotated == {"ScanNet20": 1, "ScanNet200": 1}


def test_people_get_a_table(archive_path: Path) -> None:
    lines = call("info", archive_path).stdout.splitlines()
    assert lines[0].startswith(f"{archive_path}: archive of processed scenes, by scannet-prep ")
    assert any(line.startswith("all") and " 1,800 " in line for line in lines)
    assert any(line.startswith("ScanNet200: ") for line in lines)
    assert max(map(len, lines[1:])) <= 100


def test_what_cannot_be_told_of_stops_the_command(archive_path: Path) -> None:
    other_path = archive_path.with_name("other.tar.zst")
    assert info(other_path)[0] == 1
    assert info(archive_path, archive_path)[0] == 2
    assert info(archive_path.parent, archive_path.parent)[0] == 2
    shutil.copy(archive_path, other_path)
    overwrite(other_path, "index")
    status, value = info(other_path)
    assert (status, value["error"]) == (1, "ArchiveError")
    assert "scannet-prep unpack" in value["hint"]
