"""Unpacking that is killed, doubled, interrupted or out of space: what has a name is right, the next run ends it."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from archives import pack_tree, write_tree
from commands import COMMAND, digests, run_command, start_command
from scannet_prep.stages.unpack.processed import ProcessedRecord
from test_unpack import unpack_pipe
from verifying import Verify

from scannet_prep import ScanNet, official_scenes
from scannet_prep.errors import DiskFullError, ManifestError, MissingFileError
from scannet_prep.processed.folder import processed_path
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.scene import Split
from scannet_prep.stages import pack, unpack

SCENES = 40


@pytest.fixture(scope="module")
def processed(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A processed folder of many scenes, all with the content of one, and its archive."""
    directory = tmp_path_factory.mktemp("unpack")
    source = Path(shutil.copytree(whole_dir / "processed", directory / "source"))
    value = json.loads((source / "manifest.json").read_text())
    (first, entry), *_ = sorted(value["scenes"].items())
    data = (source / "train" / f"{first}.npz").read_bytes()
    value["scenes"] = {}
    for path in source.glob("*/*.npz"):
        path.unlink()
    for scene_id in official_scenes(Split.TRAIN)[:SCENES]:
        value["scenes"][scene_id] = entry
        processed_path(source, Split.TRAIN, scene_id).write_bytes(data)
    (source / "manifest.json").write_text(json.dumps(value))
    pack.run(pack.plan(source, directory / "a.tar.zst"))
    expected = directory / "expected"
    unpack.run(unpack.plan([directory / "a.tar.zst"], expected))
    return directory


def start_unpack(archive: Path, mode: str, out_dir: Path) -> subprocess.Popen[str]:
    words = ["unpack", str(archive) if mode == "file" else "-", "-o", str(out_dir), "--jobs", "2", "--json"]
    if mode == "file":
        return start_command(*words)
    slow = (  # a pipe that takes its time, so that something happens in the middle
        f"import sys, time; data = open({str(archive)!r}, 'rb').read()\n"
        "for i in range(0, len(data), 20000): sys.stdout.buffer.write(data[i:i + 20000]); time.sleep(0.002)"
    )
    feeder = subprocess.Popen([COMMAND[0], "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=feeder.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert feeder.stdout is not None
    feeder.stdout.close()
    process.feeder = feeder  # type: ignore[attr-defined]
    return process


def wait_for_scenes(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    while len(list(folder.glob("train/scene*.npz"))) < count and process.poll() is None:
        time.sleep(0.0005)


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    stdout, stderr = process.communicate(timeout=30)
    if hasattr(process, "feeder"):
        process.feeder.wait()
    return stdout, stderr


@pytest.mark.parametrize("mode", ["file", "pipe"])
def test_killed_at_random_moments_it_leaves_whole_files_and_the_next_run_completes_them(
    processed: Path, tmp_path: Path, mode: str
) -> None:
    dice, expected = random.Random(mode), digests(processed / "expected")
    interrupted = 0
    for _ in range(6):
        out_dir = tmp_path / "out"
        process = start_unpack(processed / "a.tar.zst", mode, out_dir)
        wait_for_scenes(out_dir, dice.randrange(SCENES), process)
        time.sleep(dice.random() * 0.01)
        process.kill()
        end(process)
        found = digests(out_dir)
        for name, digest in found.items():
            if not Path(name).name.startswith(".") and name.endswith(".npz"):
                assert digest == expected[name], name
        if found != expected:
            interrupted += 1
            with pytest.raises((ManifestError, MissingFileError)):
                ScanNet(out_dir, split="train")
        else:
            shutil.rmtree(out_dir)
    assert interrupted >= 3
    outcome = (
        run_command("unpack", processed / "a.tar.zst", "-o", out_dir)
        if mode == "file"
        else unpack_pipe(processed / "a.tar.zst", "-o", out_dir)
    )
    assert outcome.status == 0, outcome.stderr
    assert digests(out_dir) == expected  # temporary files of the killed runs would show up here


@pytest.mark.parametrize("mode", ["file", "pipe"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_no_rest(
    processed: Path, tmp_path: Path, mode: str, number: signal.Signals
) -> None:
    big = tmp_path / "big.tar.zst"
    source = write_tree(tmp_path / "source", {})
    for index in range(6):
        folder = source / f"scene000{index}_00"
        folder.mkdir()
        (folder / "x").write_bytes(bytes(60 << 20))
    pack_tree(source, big)
    process = start_unpack(big, mode, tmp_path / "out")
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("out/*/.*.tmp")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.send_signal(number)
    stdout, stderr = end(process)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["exit_status"] == 130
    assert "Traceback" not in stderr
    assert not list((tmp_path / "out").rglob(".*.tmp"))


def test_two_runs_into_one_folder_at_once_end_with_a_correct_folder(processed: Path, tmp_path: Path) -> None:
    for _ in range(3):
        out_dir = tmp_path / "out"
        runs = [start_unpack(processed / "a.tar.zst", mode, out_dir) for mode in ("file", "file", "pipe")]
        for process in runs:
            _, stderr = end(process)
            assert process.returncode == 0, stderr
        assert digests(out_dir) == digests(processed / "expected")
        shutil.rmtree(out_dir)


def test_the_folder_is_unfinished_until_the_last_of_several_runs_has_ended(processed: Path, tmp_path: Path) -> None:
    other = ProcessedRecord(tmp_path, lambda *_: True)
    other.begin()
    unpack.run(unpack.plan([processed / "a.tar.zst"], tmp_path))
    with pytest.raises(ManifestError, match="has not finished"):
        ScanNet(tmp_path, split="train")
    other.end(is_whole=False)
    assert len(ScanNet(tmp_path, split="train")) == SCENES


def test_a_killed_run_does_not_keep_the_folder_unfinished(processed: Path, tmp_path: Path) -> None:
    (tmp_path / "unfinished.txt").write_text("of a run that was killed")
    unpack.run(unpack.plan([processed / "a.tar.zst"], tmp_path))
    assert digests(tmp_path) == digests(processed / "expected")


@pytest.mark.parametrize("mode", ["file", "pipe"])
def test_a_full_disk_is_said_and_nothing_is_half_written(processed: Path, tmp_path: Path, mode: str) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    archive = processed / "a.tar.zst"
    words = [*COMMAND, "unpack", str(archive) if mode == "file" else "-", "-o", str(tmp_path / "out")]
    with archive.open("rb") as file:
        done = subprocess.run(
            words, stdin=file, capture_output=True, text=True, check=False, preexec_fn=limit, timeout=60
        )
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr
    assert "it continues" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in (tmp_path / "out").rglob("*") if ".npz" in path.name or path.suffix == ".tmp"]


def test_too_little_space_is_known_before_anything_is_written(processed: Path, tmp_path: Path) -> None:
    plan = unpack.plan([processed / "a.tar.zst"], tmp_path / "out")
    assert plan.needed_bytes > 0
    for lacking in (replace(plan, free_bytes=plan.needed_bytes), replace(plan, free_inodes=SCENES)):
        with pytest.raises(DiskFullError, match="the disk lacks"):
            unpack.run(lacking)
    assert not (tmp_path / "out").exists()
    unpack.run(plan)
    again = unpack.plan([processed / "a.tar.zst"], tmp_path / "out")
    unpack.run(replace(again, free_bytes=0, free_inodes=0))  # nothing needs to be written


def test_damage_is_listed_and_the_list_brings_the_scenes_back(processed: Path, tmp_path: Path, verify: Verify) -> None:
    archive = tmp_path / "a.tar.zst"
    data = bytearray((processed / "a.tar.zst").read_bytes())
    entry = unpack.plan([processed / "a.tar.zst"], tmp_path).tasks[3].entry  # type: ignore[union-attr]
    data[entry.offset + entry.stored_bytes // 2] ^= 4
    archive.write_bytes(data)
    outcome = run_command("unpack", archive, "-o", tmp_path / "out", "--json")
    assert outcome.status == 3
    assert [item["scene_id"] for item in outcome.json["failures"]] == [entry.scene_id]
    with pytest.warns(UserWarning, match="failed"):
        assert len(ScanNet(tmp_path / "out", split="train")) == SCENES - 1
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert list(manifest.failures) == [entry.scene_id]
    outcome = run_command(
        "unpack", processed / "a.tar.zst", "-o", tmp_path / "out", "--scenes", f"@{tmp_path / 'out/failed.txt'}"
    )
    assert outcome.status == 0, outcome.stderr
    assert digests(tmp_path / "out") == digests(processed / "expected")
