"""`verify` and `info` on archives: what they find, what they read, and what they say of shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from archives import call, find_parts, flip, pack_shards
from commands import SCENES, TEST, TRAIN, VAL, Verify

from scannet_prep.scene import Split


@pytest.fixture
def shards(whole_dir: Path, tmp_path: Path) -> list[Path]:
    """The shards of the processed tree: a scene each."""
    return pack_shards(whole_dir / "processed", tmp_path / "shards.tar.zst", 20_000)


def damage(path: Path, part: str) -> None:
    flip(path, sum(find_parts(path)[part]) // 2)


@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_a_whole_archive_has_no_findings_and_is_known_by_its_beginning(
    verify: Verify, packed_dir: Path, tmp_path: Path, kind: str
) -> None:
    path = Path(shutil.copy(packed_dir / f"{kind}.tar.zst", tmp_path / "download"))
    assert verify(path) == (0, [])
    value = verify.value
    assert (value["kind"], value["scenes"], value["vertices"]) == ("archive", 3, 1800)
    assert (value["whole_scenes"], value["size_bytes"]) == (sorted(SCENES), path.stat().st_size)


def test_a_damaged_scene_is_named_and_the_exit_status_tells(verify: Verify, archive_path: Path) -> None:
    damage(archive_path, VAL)
    status, [(severity, scene_id, _, message)] = verify(archive_path)
    assert (status, severity, scene_id) == (3, "error", VAL)
    assert "is damaged (bytes " in message
    assert (verify.value["damaged_scenes"], verify.value["whole_scenes"]) == ([VAL], [TRAIN, TEST])
    outcome = call("verify", archive_path, "-q")
    assert (outcome.status, outcome.stdout) == (3, "")
    assert f"error: {archive_path}: {VAL}: is damaged" in outcome.stderr
    lines = call("verify", archive_path, "--jobs", "2").stdout.splitlines()
    assert lines[-2].startswith(f"{archive_path}: archive scenes checked: 3 (whole: 2), 1,200 vertices, ")
    assert (f"error: {archive_path}: {VAL}: is damaged" in lines[0], lines[-1]) == (True, "1 error, no notes")


@pytest.mark.parametrize(
    ("part", "severity", "words"),
    [
        ("files", "error", "the files that belong to no scene"),
        ("index", "error", "the index is damaged"),
        ("end", "note", "other programs need it"),
        ("table", "note", "the seek table"),
    ],
)
def test_a_flip_anywhere_is_found_and_told_by_its_part(
    verify: Verify, archive_path: Path, part: str, severity: str, words: str
) -> None:
    damage(archive_path, part)
    status, findings = verify(archive_path)
    assert status == (3 if severity == "error" else 0)
    assert [(item[0], words in item[3]) for item in findings] == [(severity, True)]
    assert verify.value["whole_scenes"] == sorted(SCENES)


def test_a_truncated_archive_says_what_is_whole_and_names_the_rest(verify: Verify, archive_path: Path) -> None:
    start, end = find_parts(archive_path)[VAL]
    archive_path.write_bytes(archive_path.read_bytes()[: (start + end) // 2])
    status, [(_, _, _, message), *lost] = verify(archive_path, "--splits", *Split)
    assert status == 3
    assert [item[1] for item in lost] == [VAL, TEST]
    assert [item[1] for item in verify(archive_path, "--splits", "test")[1][1:]] == [TEST]
    assert [item[1] for item in verify(archive_path, "--scenes", VAL)[1][1:]] == [VAL]
    assert f"is truncated or damaged behind byte {start:,}" in message
    assert verify(archive_path)[0] == 3
    assert verify.value["whole_scenes"] == [TRAIN]
    outcome = call("info", archive_path)
    assert (outcome.status, "does not end in a seek table: it is truncated" in outcome.stderr) == (1, True)
    assert "scannet-prep unpack gets out all that is whole" in outcome.stderr


def test_what_does_not_go_together_stops_the_command(verify: Verify, shards: list[Path], archive_path: Path) -> None:
    folder = archive_path.parent
    for places, words, status in (
        ([archive_path.with_name("missing.tar.zst")], (), 1),
        ([archive_path, folder], (), 1),
        ([archive_path, archive_path], (), 2),
        ([folder, folder], (), 2),
        ([archive_path], ("--complete", "--limit", "1"), 2),
        ([archive_path], ("--complete", "--scenes", VAL), 2),
        ([shards[0]], ("--splits", "val"), 2),  # to check nothing is not a check
    ):
        assert verify(places, *words)[0] == status, (places, words)
        assert verify.value["message"]
        if not words:
            assert info(*places)[0] == status


def test_the_scenes_that_were_asked_for_are_checked_and_no_others(verify: Verify, archive_path: Path) -> None:
    damage(archive_path, VAL)
    assert verify(archive_path, "--scenes", TRAIN) == (0, [])
    assert verify.value["whole_scenes"] == [TRAIN]
    assert verify(archive_path, "--splits", "train", "test")[0] == 0
    assert verify.value["whole_scenes"] == [TRAIN, TEST]
    assert verify(archive_path, "--splits", "val")[0] == 3
    assert verify(archive_path, "--limit", "1")[0] == 0
    assert verify.value["scenes"] == 1
    status, [(_, scene_id, _, message)] = verify(archive_path, "--scenes", TRAIN, "scene0500_00")
    assert (status, scene_id, "no such scene" in message) == (3, "scene0500_00", True)
    status, [(_, scene_id, _, message)] = verify(archive_path, "--scenes", TRAIN, "--splits", "test")
    assert (status, scene_id, "no such scene" in message) == (3, TRAIN, True)
    status, findings = verify(archive_path, "--complete", "--splits", "test")
    assert (status, len(findings)) == (3, 99)
    assert TEST not in {scene_id for _, scene_id, _, _ in findings}
    archive_path.write_bytes(archive_path.read_bytes() + b"x")  # so that the index is found on the way
    for words in (("--complete", "--splits", "train"), ("--scenes", TRAIN, "scene0001_00")):
        status, findings = verify(archive_path, *words)
        assert (status, {item[0] for item in findings}) == (3, {"error", "note"}), findings


def test_shards_are_checked_together_and_missing_and_doubled_ones_are_told(
    verify: Verify, shards: list[Path], archive_path: Path
) -> None:
    paths = shards
    assert verify([*paths, archive_path])[0] == 2
    assert f"holds {TRAIN}, and so does" in verify.value["message"]
    assert verify(paths) == (0, [])
    assert verify.value["whole_scenes"] == sorted(SCENES)
    assert verify.value["paths"] == list(map(str, paths))
    status, [(severity, _, _, message)] = verify(paths[1])
    assert (status, severity, "shards of the set are not among the archives: " in message) == (0, "note", True)
    assert verify([paths[0], paths[2]])[0] == 2
    assert f"shards of the set are not among the archives: {paths[1].name}" in verify.value["message"]
    damage(paths[1], VAL)
    status, [(_, scene_id, name, _)] = verify(paths)
    assert (status, scene_id, name) == (3, VAL, f"../{paths[1].name}")
    assert verify.value["damaged_scenes"] == [VAL]


def info(*paths: Path) -> tuple[int, dict[str, Any]]:
    outcome = call("info", *paths, "--json")
    return outcome.status, outcome.json


def test_an_archive_is_described_by_its_index_alone(archive_path: Path, whole_dir: Path, packed_dir: Path) -> None:
    bounds, data = find_parts(archive_path), bytearray(archive_path.read_bytes())
    data[: bounds["index"][0]] = bytes(bounds["index"][0])
    archive_path.write_bytes(data)
    (status, value), (_, folder) = info(archive_path), info(whole_dir / "processed")
    assert (status, value["kind"], value["head"]["kind"], value["head"]["level"]) == (0, "archive", "processed", 1)
    for split, scene_id in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        found, (start, end) = value["splits"][split], bounds[scene_id]
        assert (found["scenes"], found["vertices"], found["stored_bytes"]) == (1, 600, end - start)
        assert found["size_bytes"] >= folder["splits"][split]["size_bytes"]
    assert {key: value[key] for key in ("options", "scene_ids", "program")} == {
        key: folder[key] for key in ("options", "scene_ids", "program")
    }
    assert (value["size_bytes"], value["failures"], value["missing_shards"]) == (len(data), {}, [])
    status, value = info(packed_dir / "raw.tar.zst")
    assert (status, value["head"]["kind"], value["scene_ids"], value["options"]) == (0, "raw", [*SCENES], [])
