"""`verify` on archives: what it says, what it reads, what it costs."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_parts import Parts
from archives import pack_tree, write_tree
from verifying import SCENES, TEST, TRAIN, VAL, Verify

from scannet_prep.archive import ArchiveKind, Contents, Head, SourceFile, SourceGroup, write_archive
from scannet_prep.archive.shards import write_shards
from scannet_prep.archive.source import FileSource
from scannet_prep.cli.main import main
from scannet_prep.progress import NoProgress
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify import archive as verify_archive

MAX_PEAK_BYTES = 300_000_000


@pytest.fixture(scope="session")
def packed_dir(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of the processed and of the raw tree, and the shards of the processed one: a scene each."""
    directory = tmp_path_factory.mktemp("packed")
    for name in ("processed", "raw"):
        pack_tree(whole_dir / name, directory / f"{name}.tar.zst").close()
    contents = find_contents(whole_dir / "processed", directory / "shards.tar.zst", Selection()).contents
    assert len(write_shards(contents, directory / "shards.tar.zst", 20_000)) == 3
    return directory


@pytest.fixture
def packed(packed_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed_dir, tmp_path / "packed"))


@pytest.fixture
def archive_path(packed: Path) -> Path:
    return packed / "processed.tar.zst"


def damage(path: Path, name: str, place: float = 0.5) -> None:
    """Flip a bit of a scene or part."""
    data = bytearray(path.read_bytes())
    start, end = next((start, end) for part, start, end in Parts.of(path).bounds if part == name)
    data[start + int((end - start) * place)] ^= 4
    path.write_bytes(data)


def edit_index(path: Path, change: Callable[[bytes], bytes]) -> None:
    parts = Parts.of(path)
    changed = change(parts.index)
    assert changed != parts.index
    path.write_bytes(parts.with_index(changed))


def shards(packed: Path) -> list[Path]:
    return sorted(packed.glob("shards-*.tar.zst"))


@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_a_whole_archive_has_no_findings(verify: Verify, packed: Path, kind: str) -> None:
    path = packed / f"{kind}.tar.zst"
    assert verify(path) == (0, [])
    value = verify.value
    assert (value["kind"], value["archive_kind"], value["scenes"], value["vertices"]) == ("archive", kind, 3, 1800)
    assert (value["whole_scenes"], value["size_bytes"]) == (sorted(SCENES), path.stat().st_size)
    assert (value["truncated"], value["resume_offset"], value["quick"]) == (False, None, False)


def test_an_archive_without_scenes_is_checked(verify: Verify, tmp_path: Path) -> None:
    pack_tree(write_tree(tmp_path / "tree", {"a.txt": b"a", "b/c.txt": b""}), tmp_path / "files.tar.zst").close()
    assert verify(tmp_path / "files.tar.zst") == (0, [])
    assert verify.value["archive_kind"] == "files"
    damage(tmp_path / "files.tar.zst", "files")
    assert verify(tmp_path / "files.tar.zst")[0] == 3
    assert verify.value["damaged_parts"] == ["files"]


def test_a_damaged_scene_is_named_and_the_exit_status_tells(
    verify: Verify, archive_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(archive_path, VAL)
    status, [(severity, scene_id, _, message)] = verify(archive_path)
    assert (status, severity, scene_id) == (3, "error", VAL)
    assert "is damaged (bytes " in message
    assert verify.value["damaged_scenes"] == [VAL]
    assert verify.value["whole_scenes"] == [TRAIN, TEST]
    assert main(["verify", str(archive_path), "-q"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {archive_path}: {VAL}: is damaged" in captured.err
    assert main(["verify", str(archive_path), "--jobs", "2"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert f"{archive_path}: scenes: 3, whole: 2, 1,200 vertices" in lines
    assert f"damaged scenes: {VAL}" in lines
    assert lines[-1] == "1 error, no notes"


class CountingSource(FileSource):
    """Counts what is read."""

    read_bytes = 0

    def read(self, offset: int, size: int, /) -> bytes:
        data = super().read(offset, size)
        CountingSource.read_bytes += len(data)
        return data


def test_quick_reads_little_and_says_so(
    verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.tar.zst"
    files = {f"{name}/a.bin": random.Random(name).randbytes(1 << 20) for name in (TRAIN, VAL)}
    pack_tree(write_tree(tmp_path / "tree", files), path).close()
    damage(path, VAL, 0.9)
    assert verify(path)[0] == 3
    monkeypatch.setattr("scannet_prep.archive.source.FileSource", CountingSource)
    assert verify(path, "--quick") == (0, [])
    assert verify.value["quick"] is True
    assert CountingSource.read_bytes < path.stat().st_size / 4
    main(["verify", str(path), "--quick"])
    assert "the structure only; the contents were not read" in capsys.readouterr().out
    damage(path, TRAIN, 0)  # the magic number of its frame
    _, [(_, scene_id, _, message)] = verify(path, "--quick")
    assert (scene_id, "no frame begins here" in message) == (TRAIN, True)


def test_a_truncated_archive_says_what_is_whole_and_how_to_go_on(
    verify: Verify, archive_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = archive_path.read_bytes()
    (_, start, end) = Parts.of(archive_path).bounds[2]
    archive_path.write_bytes(whole[: (start + end) // 2])
    status, [(_, _, _, message)] = verify(archive_path)
    assert status == 3
    assert f"whole scenes: 1 of 3; go on from byte {start:,}" in message
    assert (verify.value["truncated"], verify.value["resume_offset"]) == (True, start)
    assert verify.value["whole_scenes"] == [TRAIN]
    (finding,) = verify.value["findings"]
    command = re.search(rf"truncate -s {start} \S+", finding["hint"])
    assert command is not None
    assert f"scannet-prep unpack --salvage {archive_path}" in finding["hint"]
    subprocess.run(command[0].rstrip(";").split(), check=True)
    with archive_path.open("ab") as file:
        file.write(whole[start:])
    assert verify(archive_path) == (0, [])
    assert main(["info", str(archive_path)]) == 0
    archive_path.write_bytes(whole[:start])
    assert main(["info", str(archive_path)]) == 1
    assert "does not end in a seek table: it is truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated at byte 0"),
        (b"PK\3\4 not an archive", "is no archive that scannet-prep pack made"),
        (b"\0" * 5000, "is no archive that scannet-prep pack made"),
    ],
)
def test_other_files_are_no_archives(verify: Verify, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "other.tar.zst"
    path.write_bytes(content)
    status, findings = verify(path)
    message = findings[0][3] if findings else verify.value["message"]
    assert status == (3 if findings else 1)
    assert words in message


def test_an_archive_of_tar_and_zstd_alone_is_told_apart(verify: Verify, tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", {"a.txt": b"a" * 3000})
    if not shutil.which("zstd"):
        pytest.skip("needs zstd")
    subprocess.run("tar -cf other.tar tree; zstd -q other.tar; tar -c tree | zstd -q > piped.tar.zst",
                   shell=True, cwd=tmp_path, check=True)  # fmt: skip
    for name in ("other.tar.zst", "piped.tar.zst"):
        assert verify(tmp_path / name)[0] == 1
        assert "is no archive that scannet-prep pack made" in verify.value["message"]
        assert "tar --zstd" in verify.value["hint"]


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


def test_a_manifest_that_says_other_things_than_the_index_is_found(verify: Verify, archive_path: Path) -> None:
    edit_index(archive_path, lambda text: text.replace(b'"vertices":600', b'"vertices":601', 1))
    _, [(_, scene_id, _, message)] = verify(archive_path)
    assert scene_id == TRAIN
    assert "has 601 vertices and the split train in the index, but 600 and train in manifest.json" in message


def test_scenes_that_only_the_manifest_names_are_missing(verify: Verify, whole_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.tar.zst"
    contents = find_contents(whole_dir / "processed", path, Selection()).contents
    write_archive(Contents(contents.head, contents.files, contents.scenes[1:]), path)
    status, [(_, _, _, message)] = verify(path)
    assert status == 3
    assert message == f"manifest.json names 1 scenes that are not here, for example {TRAIN}"


def test_names_that_leave_the_folder_and_files_of_other_scenes_are_found(verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "hostile.tar.zst"
    for name, words in {
        "../scene0000_00.txt": "leaves the folder",
        "/etc/scene0000_00.txt": "leaves the folder",
        ".scannet-prep/scene0000_00.txt": "is reserved",
        "scene0001_00.txt": "holds files of scene0001_00",
        "notes.txt": "holds files of no scene",
    }.items():
        group = SourceGroup("scene0000_00", "", 0, (SourceFile.from_content(name, b"x"),))
        write_archive(Contents(Head(ArchiveKind.FILES), (), (group,)), path)
        _, [(_, scene_id, _, message)] = verify(path)
        assert (scene_id, words in message) == ("scene0000_00", True), message


def test_a_file_that_is_there_twice_is_found(verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "twice.tar.zst"
    files = (SourceFile.from_content("a.txt", b"x"), SourceFile.from_content("a.txt", b"y"))
    write_archive(Contents(Head(ArchiveKind.FILES), files, ()), path)
    assert [finding[3] for finding in verify(path)[1]] == ["holds 'a.txt' twice"]


# Which scenes


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
    assert (status, scene_id, message) == (3, "scene0500_00", "does not hold this scene")
    status, [(_, scene_id, _, message)] = verify(archive_path, "--scenes", TRAIN, "--splits", "test")
    assert (status, scene_id, message) == (3, TRAIN, "is not in test")


def test_a_split_without_scenes_is_no_check(verify: Verify, archive_path: Path, whole_dir: Path) -> None:
    pack_contents = find_contents(whole_dir / "processed", archive_path, Selection(scene_ids=None)).contents
    write_archive(Contents(pack_contents.head, (), pack_contents.scenes[:1]), archive_path)
    assert verify(archive_path, "--splits", "val")[0] == 2
    assert verify.value["error"] == "UnknownSplitError"


def test_scenes_of_the_official_lists_can_be_asked_for(verify: Verify, archive_path: Path) -> None:
    status, findings = verify(archive_path, "--complete", "--splits", "test")
    assert (status, len(findings)) == (3, 99)
    assert TEST not in {scene_id for _, scene_id, _, _ in findings}
    assert verify(archive_path, "--complete", "--limit", "1")[0] == 2


# Shards


def test_shards_are_checked_together(verify: Verify, packed: Path) -> None:
    paths = shards(packed)
    assert verify(paths) == (0, [])
    assert verify.value["whole_scenes"] == sorted(SCENES)
    assert [item["scenes"] for item in verify.value["archives"]] == [1, 1, 1]
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


# What it costs


class CountingProgress(NoProgress):
    def __init__(self) -> None:
        self.total = self.count = 0
        self.unit = ""

    def start(self, title: str, total: int, unit: str) -> None:  # noqa: ARG002 - as the protocol has it
        self.total, self.unit = total, unit

    def advance(self, count: int = 1) -> None:
        assert count >= 0
        self.count += count


@pytest.mark.parametrize("jobs", [1, 3])
def test_progress_is_told_in_bytes_and_comes_to_its_end(archive_path: Path, jobs: int) -> None:
    damage(archive_path, VAL)
    progress = CountingProgress()
    report = verify_archive.run(verify_archive.plan([archive_path]), jobs=jobs, progress=progress)
    assert report.archives[0].damaged_scenes == (VAL,)
    parts = Parts.of(archive_path)
    assert (progress.unit, progress.total, progress.count) == ("B", len(parts.groups), len(parts.groups))


def test_large_scenes_take_a_bounded_memory(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(1 << 20)
    files: dict[str, Any] = {f"scene{number:04d}_00/a.bin": noise * 60 for number in range(3)}
    files["scene0003_00/b.bin"] = noise * 150
    # Without compression: what repeats would be small, and then the frames would take no memory.
    contents = Contents(
        Head(ArchiveKind.FILES),
        (),
        tuple(SourceGroup(name[:12], "", 0, (SourceFile.from_content(name, data),)) for name, data in files.items()),
    )
    path = tmp_path / "large.tar.zst"
    write_archive(contents, path, level=1)
    code = (
        "import pathlib, re, sys\n"
        "from scannet_prep.cli.main import main\n"
        "status = main(['verify', sys.argv[1], '--jobs', '4'])\n"
        "peak = re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())\n"
        "print(status, int(peak[1]) * 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    status, peak_bytes = map(int, done.stdout.splitlines()[-1].split())
    assert status == 0, done.stdout
    assert peak_bytes < MAX_PEAK_BYTES
