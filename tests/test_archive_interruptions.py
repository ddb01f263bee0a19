"""Interrupted, concurrent and failing runs of `pack` and `unpack` leave whole files only."""

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import find_parts, pack_tree, write_tree
from commands import COMMAND, limited, run_main, start_command
from release_server import ROOT, ReleaseServer, Stall

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.archive.contents import Contents
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.archive.writer import ArchiveBytes
from scannet_prep.base.files import write_atomically
from scannet_prep.base.lock import run_lock
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.stages import verify
from scannet_prep.stages.pack import find_contents
from scannet_prep.stages.selection import Selection

SCENE_IDS = [f"scene{number:04}_00" for number in range(30)]


def text_name(scene_id: str) -> str:
    return f"scans/{scene_id}/{scene_id}.txt"


def write_scenes(folder: Path, seed: int) -> Path:
    """Write a raw tree of 12 MB."""
    dice = random.Random(seed)
    files = {text_name(scene_id): dice.randbytes(400_000) for scene_id in SCENE_IDS}
    return write_tree(folder, files)


@pytest.fixture(scope="module")
def large_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("pack") / "tree", seed=0)


def count_whole_scenes(path: Path) -> int:
    """Check that an archive or a folder has no damage, and return the number of its scenes."""
    report = verify.run(path)
    assert not any(finding.is_error for finding in report.findings)
    return report.scenes


@pytest.fixture
def old_archive(tmp_path: Path) -> Path:
    """An existing archive of one scene."""
    small = write_tree(tmp_path / "small", {text_name(SCENE_IDS[0]): b"old"})
    pack_tree(small, tmp_path / "a.tar.zst")
    return tmp_path / "a.tar.zst"


def has_begun_to_write(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(".a.tar.zst.*.tmp"))


def test_interrupted_pack_leaves_the_old_archive(
    large_tree: Path, old_archive: Path, tmp_path: Path
) -> None:
    process = start_command("pack", large_tree, "-o", old_archive, "--level", "19")
    while not has_begun_to_write(tmp_path):
        assert process.poll() is None
        time.sleep(0.0005)

    # `timeout` and Slurm send the signal to the process, and again to its group.
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)

    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert count_whole_scenes(old_archive) == 1
    assert not list(tmp_path.glob(".*"))


def read_archives(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("a*.tar.zst")}


@pytest.mark.parametrize("words", [[], ["--shard-size", "4MB"]])
def test_killed_pack_leaves_old_or_new_archives_but_no_mixture(
    large_tree: Path, tmp_path: Path, words: list[str]
) -> None:
    target = tmp_path / "a.tar.zst"
    changed_tree = write_scenes(tmp_path / "changed", seed=2)
    assert run_main("pack", large_tree, "-o", target, *words).status == 0
    old = read_archives(tmp_path)
    dice = random.Random(2)

    for _ in range(2):
        process = start_command("pack", changed_tree, "-o", target, *words)
        while process.poll() is None and not list(tmp_path.glob(".a*.tmp")):
            time.sleep(0.0005)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        process.communicate()

        left = read_archives(tmp_path)
        unchanged = [name for name in left if left[name] == old[name]]
        is_refused_by_readers = bool(find_missing_shards(left))
        assert len(unchanged) in {0, len(left)} or is_refused_by_readers, unchanged
        are_all_shards_gone = bool(words) and not left
        assert len(left) == len(old) or is_refused_by_readers or are_all_shards_gone
        # This also compares each archive with its checksum file, if there is one.
        for name in left:
            assert count_whole_scenes(tmp_path / name) > 0

    # The next run completes the set, whatever the kills left.
    assert run_main("pack", changed_tree, "-o", target, "--force", *words).status == 0
    assert sum(count_whole_scenes(tmp_path / name) for name in read_archives(tmp_path)) == 30


@pytest.mark.parametrize("words", [[], ["--shard-size", "4MB"]])
def test_next_pack_removes_temporary_files_of_killed_runs_only(
    large_tree: Path, tmp_path: Path, words: list[str]
) -> None:
    target = tmp_path / "a.tar.zst"
    assert run_main("pack", large_tree, "-o", target, *words).status == 0
    own = {".a.tar.zst.1-0123abcd.tmp", ".a-00003-of-00009.tar.zst.1-0123abcd.tmp"}
    of_other_runs = {".report.html.1-0123abcd.tmp", ".b.tar.zst.1-0123abcd.tmp"}
    for name in own | of_other_runs:
        (tmp_path / name).touch()

    assert run_main("pack", large_tree, "-o", target, *words).status == 0

    archives = tmp_path.glob("a*.tar.zst")
    assert sum(count_whole_scenes(path) for path in archives) == len(SCENE_IDS)
    assert {path.name for path in tmp_path.glob(".*")} == of_other_runs


class TestFileThatChanges:
    """Files that change after `find_contents` has listed them."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        first, second = map(text_name, SCENE_IDS[:2])
        write_tree(tmp_path / "tree", {first: b"first", second: b"second"})
        return tmp_path / "tree" / second

    @pytest.fixture
    def contents(self, path: Path) -> Contents:
        return find_contents(path.parents[2], Selection())

    @pytest.mark.parametrize("data", [b"another", b"second"], ids=["size", "time"])
    def test_changed_file_stops_the_run(
        self, data: bytes, path: Path, contents: Contents, tmp_path: Path
    ) -> None:
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))

        with pytest.raises(FileError, match="changed while it was packed"):
            write_atomically(tmp_path / "a.tar.zst", ArchiveBytes(contents))

    def test_file_that_became_a_named_pipe_stops_the_run(
        self, path: Path, contents: Contents, tmp_path: Path
    ) -> None:
        path.unlink()
        os.mkfifo(path)

        with pytest.raises(FileError, match="is a named pipe, expected a file"):
            write_atomically(tmp_path / "a.tar.zst", ArchiveBytes(contents))


def test_full_disk_leaves_the_old_archive(
    large_tree: Path, old_archive: Path, tmp_path: Path
) -> None:
    with limited(resource.RLIMIT_FSIZE, 3_000_000):
        outcome = run_main("pack", large_tree, "-o", old_archive)

    assert outcome.status == 1
    assert "cannot be written" in outcome.stderr
    assert "hint: free some space" in outcome.stderr
    assert count_whole_scenes(old_archive) == 1
    assert not list(tmp_path.glob(".*"))


def test_second_run_in_the_same_folder_is_refused(
    large_tree: Path, old_archive: Path, tmp_path: Path
) -> None:
    with run_lock(tmp_path):
        outcome = run_main("pack", large_tree, "-o", old_archive)

    assert outcome.status == 1
    assert "is working in this folder" in outcome.stderr
    assert count_whole_scenes(old_archive) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        (">&-", 2, "standard output is a terminal, closed"),
        ("> /dev/full", 1, "standard output: cannot be written"),
        ("| head -c 9 > /dev/null", 1, "the program reading the pipe has stopped"),
    ],
    ids=["closed", "full", "stopped reader"],
)
def test_standard_output_that_cannot_be_written_is_an_error(
    redirection: str, status: int, message: str, large_tree: Path
) -> None:
    command = " ".join(COMMAND)
    line = f"set -o pipefail; {command} pack {large_tree} - -q {redirection}"

    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == status, done.stderr
    assert message in done.stderr


class TestUnpackOntoFullDisk:
    @pytest.fixture
    def archive(self, packed_dir: Path) -> Path:
        return packed_dir / "processed.tar.zst"

    @pytest.fixture
    def folder(self, archive: Path, tmp_path: Path) -> Path:
        """The folder after a run that the full disk stopped."""
        with limited(resource.RLIMIT_FSIZE, 1_000):
            outcome = run_main("unpack", archive, "-o", tmp_path / "out")
        assert outcome.status == 1
        assert "cannot be written: File too large" in outcome.stderr
        assert "free some space" in outcome.stderr
        return tmp_path / "out"

    def test_no_scene_is_written_in_part(self, folder: Path) -> None:
        names = [path.name for path in folder.rglob("*")]

        assert not [name for name in names if ".npz" in name or name.endswith(".tmp")]

    def test_dataset_refuses_the_folder(self, folder: Path) -> None:
        with pytest.raises((FileError, MissingFileError)):
            ScanNet(folder, split="train")

    def test_dataset_refuses_the_folder_after_a_run_for_one_scene(
        self, archive: Path, folder: Path
    ) -> None:
        first = open_archive(archive).index.scenes[0].scene_id
        assert run_main("unpack", archive, "-o", folder, "--scenes", first).status == 0

        with pytest.raises(FileError, match="processing has not finished"):
            ScanNet(folder, split="train")

    def test_same_command_completes_the_folder(self, archive: Path, folder: Path) -> None:
        assert run_main("unpack", archive, "-o", folder).status == 0

        assert count_whole_scenes(folder) > 1


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process runs."""
    deadline = time.monotonic() + 20
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_interrupted_unpack_ends_although_the_server_hangs(
    large_tree: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "a.tar.zst"
    pack_tree(large_tree, archive)
    scene_ranges = set()
    for name, (start, end) in find_parts(archive).items():
        if name.startswith("scene"):
            scene_ranges.add(f"bytes={start}-{end - 1}")

    with ReleaseServer(tmp_path) as server:
        server.files[f"{ROOT}{archive.name}"] = archive
        server.faults = [
            lambda request: [Stall(100)] if request.range in scene_ranges else [],
        ]

        def has_two_requests() -> bool:
            ranges = [request.range for request in server.requests()]
            return len([name for name in ranges if name in scene_ranges]) >= 2

        url = f"{server.origin}{ROOT}{archive.name}"
        process = start_command("unpack", url, "-o", tmp_path / "out", "--jobs", "2")
        wait_until(has_two_requests, process)
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=30)  # cleanup may take 10 s
        finally:
            process.kill()

    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert not list(tmp_path.rglob("scene*.*"))
