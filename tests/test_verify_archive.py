"""`verify` on archives: what it finds, what it reads, and what it says of shards."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from archives import pack_shards, pack_tree, write_tree
from forged_archives import find_parts, flip, forge
from verifying import SCENES, TEST, TRAIN, VAL, Verify

from scannet_prep.archive import Contents, write_archive
from scannet_prep.archive.source import FileSource
from scannet_prep.cli.main import main
from scannet_prep.progress import NoProgress
from scannet_prep.stages.contents import find_contents
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify import archive as verify_archive


@pytest.fixture(scope="session")
def all_packed_dir(whole_dir: Path, packed_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of the processed and of the raw tree, and the shards of the processed one: a scene each."""
    directory = Path(shutil.copytree(packed_dir, tmp_path_factory.mktemp("verify") / "packed"))
    assert len(pack_shards(whole_dir / "processed", directory / "shards.tar.zst", 20_000)) == 3
    return directory


@pytest.fixture
def packed(all_packed_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(all_packed_dir, tmp_path / "packed"))


@pytest.fixture
def archive_path(packed: Path) -> Path:
    return packed / "processed.tar.zst"


def damage(path: Path, part: str, place: float = 0.5) -> None:
    """Flip a bit of a scene or part."""
    start, end = find_parts(path)[part]
    flip(path, start + int((end - start) * place))


@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_a_whole_archive_has_no_findings(verify: Verify, packed: Path, kind: str) -> None:
    path = packed / f"{kind}.tar.zst"
    assert verify(path) == (0, [])
    value = verify.value
    assert (value["kind"], value["archive_kind"], value["scenes"], value["vertices"]) == ("archive", kind, 3, 1800)
    assert (value["whole_scenes"], value["size_bytes"]) == (sorted(SCENES), path.stat().st_size)
    assert (value["truncated"], value["quick"]) == (False, False)


def test_a_damaged_scene_is_named_and_the_exit_status_tells(
    verify: Verify, archive_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(archive_path, VAL)
    status, [(severity, scene_id, _, message)] = verify(archive_path)
    assert (status, severity, scene_id) == (3, "error", VAL)
    assert "is damaged (bytes " in message
    assert (verify.value["damaged_scenes"], verify.value["whole_scenes"]) == ([VAL], [TRAIN, TEST])
    assert main(["verify", str(archive_path), "-q"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {archive_path}: {VAL}: is damaged" in captured.err
    assert main(["verify", str(archive_path), "--jobs", "2"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert f"{archive_path}: scenes: 3, whole: 2, 1,200 vertices" in lines
    assert f"  {VAL}" in lines
    assert lines[-1] == "1 error, no notes"


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


class CountingSource(FileSource):
    """Counts what is read."""

    read_bytes = 0

    def read(self, offset: int, size: int, /) -> bytes:
        data = super().read(offset, size)
        CountingSource.read_bytes += len(data)
        return data


def test_quick_reads_no_scene_and_says_so(
    verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.tar.zst"
    files = {f"scans/{name}/{name}.txt": random.Random(name).randbytes(1 << 20) for name in (TRAIN, VAL)}
    pack_tree(write_tree(tmp_path / "tree", files), path).close()
    damage(path, VAL, 0.9)
    assert verify(path)[0] == 3
    monkeypatch.setattr("scannet_prep.archive.source.FileSource", CountingSource)
    assert verify(path, "--quick") == (0, [])
    assert verify.value["quick"] is True
    assert CountingSource.read_bytes < path.stat().st_size / 4
    main(["verify", str(path), "--quick"])
    assert "no scene was read" in capsys.readouterr().out


def test_a_truncated_archive_says_what_is_whole(
    verify: Verify, archive_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, end = find_parts(archive_path)[VAL]
    archive_path.write_bytes(archive_path.read_bytes()[: (start + end) // 2])
    status, [(_, _, _, message)] = verify(archive_path)
    assert status == 3
    assert f"is truncated: the last whole frame ends at byte {start:,}" in message
    assert "whole scenes: 1 of 3" in message
    assert (verify.value["truncated"], verify.value["whole_scenes"]) == (True, [TRAIN])
    assert main(["info", str(archive_path)]) == 1
    assert "does not end in a seek table: it is truncated" in capsys.readouterr().err


def test_an_archive_of_another_name_is_known_by_its_beginning(verify: Verify, archive_path: Path) -> None:
    assert verify(archive_path.rename(archive_path.with_name("download"))) == (0, [])


def test_no_file_and_a_folder_among_archives_stop_the_command(verify: Verify, archive_path: Path) -> None:
    assert verify(archive_path.with_name("missing.tar.zst"))[0] == 1
    assert verify.value["error"] == "MissingFileError"
    assert verify([archive_path, archive_path.parent])[0] == 1
    assert verify([archive_path, archive_path])[0] == 2


@pytest.mark.parametrize("words", [["--quick"], []])
def test_what_is_for_archives_is_refused_for_folders(verify: Verify, out_dir: Path, words: list[str]) -> None:
    assert verify([out_dir] if words else [out_dir, out_dir], *words)[0] == 2
    assert verify.value["hint"]


def test_digests_of_raw_trees_are_refused_for_archives(verify: Verify, archive_path: Path) -> None:
    assert verify(archive_path, "--against", "scannet.lock")[0] == 2


def test_a_manifest_that_says_other_things_than_the_archive_is_found(
    verify: Verify, whole_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.tar.zst"
    names = ("manifest.json", "TERMS.txt")
    files = [(name, (whole_dir / "processed" / name).read_bytes()) for name in names]
    data = (whole_dir / f"processed/train/{TRAIN}.npz").read_bytes()
    contents = find_contents(whole_dir / "processed", Selection())[0]

    def check(scene_id: str, content: bytes, **changes: Any) -> list[str]:
        scenes = [(scene_id, [(f"train/{scene_id}.npz", content)])]
        edit = {"vertex_count": 600} | changes
        forge(path, scenes, files, head=contents.head, edit=lambda value: value["groups"][1].update(edit))
        return [finding[3] for finding in verify(path)[1]]

    rest = f"manifest.json names 2 scenes that are not here, for example {VAL}"
    assert check(TRAIN, data) == [rest]
    assert check(TRAIN, data + b"x") == [rest, "its file is not what manifest.json says"]
    assert check(TRAIN, data, vertex_count=601) == [rest, "has 601 vertices in the index, 600 in manifest.json"]
    assert "is not in manifest.json" in check("scene0001_00", data)


def test_scenes_that_only_the_manifest_names_are_missing(verify: Verify, whole_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.tar.zst"
    contents = find_contents(whole_dir / "processed", Selection())[0]
    write_archive(Contents(contents.head, contents.files, contents.scenes[1:]), path)
    status, [(_, _, _, message)] = verify(path)
    assert status == 3
    assert message == f"manifest.json names 1 scenes that are not here, for example {TRAIN}"


def test_only_the_scenes_that_were_asked_for_are_checked(verify: Verify, archive_path: Path) -> None:
    damage(archive_path, VAL)
    assert verify(archive_path, "--scenes", TRAIN) == (0, [])
    assert verify.value["whole_scenes"] == [TRAIN]
    assert verify(archive_path, "--splits", "train", "test")[0] == 0
    assert verify.value["whole_scenes"] == [TRAIN, TEST]
    assert verify(archive_path, "--splits", "val")[0] == 3
    assert verify(archive_path, "--limit", "1")[0] == 0
    assert verify.value["scenes"] == 1
    status, [(_, scene_id, _, message)] = verify(archive_path, "--scenes", TRAIN, "scene0500_00")
    assert (status, scene_id, message) == (3, "scene0500_00", "is not in the archive")
    status, [(_, scene_id, _, message)] = verify(archive_path, "--scenes", TRAIN, "--splits", "test")
    assert (status, scene_id, message) == (3, TRAIN, "is not in test")


def test_a_split_without_scenes_is_no_check(verify: Verify, packed: Path) -> None:
    assert verify(next(packed.glob("shards-00000-*")), "--splits", "val")[0] == 2
    assert verify.value["error"] == "UnknownSplitError"


def test_scenes_of_the_official_lists_can_be_asked_for(verify: Verify, archive_path: Path) -> None:
    status, findings = verify(archive_path, "--complete", "--splits", "test")
    assert (status, len(findings)) == (3, 99)
    assert TEST not in {scene_id for _, scene_id, _, _ in findings}
    assert verify(archive_path, "--complete", "--limit", "1")[0] == 2


def shards(packed: Path) -> list[Path]:
    return sorted(packed.glob("shards-*.tar.zst"))


def test_shards_are_checked_together(verify: Verify, packed: Path) -> None:
    paths = shards(packed)
    assert verify(paths) == (0, [])
    assert verify.value["whole_scenes"] == sorted(SCENES)
    assert verify.value["paths"] == list(map(str, paths))
    damage(paths[1], VAL)
    status, [(_, scene_id, name, _)] = verify(paths)
    assert (status, scene_id, name) == (3, VAL, f"../{paths[1].name}")
    assert verify.value["damaged_scenes"] == [VAL]


def test_a_shard_alone_is_whole_and_a_set_without_one_is_not(verify: Verify, packed: Path) -> None:
    first, second, third = shards(packed)
    status, [(severity, _, _, message)] = verify(second)
    assert (status, severity) == (0, "note")
    assert "names 2 scenes that are not here" in message
    status, findings = verify([first, third])
    assert status == 3
    assert {message for _, _, _, message in findings} == {
        "is missing in the set of shards",
        f"manifest.json names 1 scenes that are not here, for example {VAL}",
    }


def test_a_scene_in_two_archives_is_found(verify: Verify, packed: Path) -> None:
    _, findings = verify([*shards(packed), packed / "processed.tar.zst"])
    assert {(scene_id, message.split(" in ")[0]) for _, scene_id, _, message in findings} == {
        (scene_id, "is also") for scene_id in SCENES
    }


class CountingProgress(NoProgress):
    def __init__(self) -> None:
        self.total = self.count = 0

    def start(self, title: str, total: int, unit: str) -> None:  # noqa: ARG002 - as the protocol has it
        self.total = total

    def advance(self, count: int = 1) -> None:
        assert count >= 0
        self.count += count


@pytest.mark.parametrize("jobs", [1, 3])
def test_progress_is_told_in_bytes_and_comes_to_its_end(archive_path: Path, jobs: int) -> None:
    damage(archive_path, VAL)
    progress = CountingProgress()
    report = verify_archive.run([archive_path], jobs=jobs, progress=progress)
    assert report.damaged_scenes == (VAL,)
    assert progress.total == progress.count == report.content_bytes
