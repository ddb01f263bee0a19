"""Unpacking that is killed, interrupted or out of space: what has a name is right, and the next run ends it."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from archives import call, unpack_pipe
from commands import COMMAND, digests, start_command

from scannet_prep import ScanNet, official_scenes
from scannet_prep.errors import ManifestError, MissingFileError
from scannet_prep.processed.folder import processed_path
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
    unpack.run(unpack.plan([directory / "a.tar.zst"], directory / "expected"))
    return directory


def start_unpack(archive: Path, way: str, out_dir: Path) -> subprocess.Popen[str]:
    words = ["unpack", str(archive) if way == "file" else "-", "-o", str(out_dir), "--jobs", "2", "--json"]
    if way == "file":
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


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_killed_at_random_moments_it_leaves_whole_files_and_the_next_run_completes_them(
    processed: Path, tmp_path: Path, way: str
) -> None:
    dice, expected, out_dir = random.Random(way), digests(processed / "expected"), tmp_path / "out"
    interrupted = 0
    for _ in range(3):
        process = start_unpack(processed / "a.tar.zst", way, out_dir)
        wait_for_scenes(out_dir, dice.randrange(1, SCENES), process)
        process.kill()
        end(process)
        found = digests(out_dir)
        for name, digest in found.items():
            if not Path(name).name.startswith(".") and name.endswith(".npz"):
                assert digest == expected[name], name
        if found.keys() >= expected.keys():
            shutil.rmtree(out_dir)
            continue
        interrupted += 1
        with pytest.raises((ManifestError, MissingFileError)):
            ScanNet(out_dir, split="train")
    assert interrupted
    archive = processed / "a.tar.zst"
    outcome = call("unpack", archive, "-o", out_dir) if way == "file" else unpack_pipe(archive, "-o", out_dir)
    assert outcome.status == 0, outcome.stderr
    assert digests(out_dir) == expected  # temporary files of the killed runs would show up here


@pytest.mark.parametrize("way", ["file", "pipe"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_no_rest(
    processed: Path, tmp_path: Path, way: str, number: signal.Signals
) -> None:
    process = start_unpack(processed / "a.tar.zst", way, tmp_path / "out")
    wait_for_scenes(tmp_path / "out", 2, process)
    process.send_signal(number)
    stdout, stderr = end(process)
    assert process.returncode in {0, 130}, stderr  # 0: it had ended just before
    assert json.loads(stdout)["exit_status"] == process.returncode
    assert "Traceback" not in stderr
    assert not list((tmp_path / "out").rglob(".*"))


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_a_full_disk_is_said_and_nothing_is_half_written(processed: Path, tmp_path: Path, way: str) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    archive = processed / "a.tar.zst"
    words = [*COMMAND, "unpack", str(archive) if way == "file" else "-", "-o", str(tmp_path / "out")]
    with archive.open("rb") as file:
        done = subprocess.run(
            words, stdin=file, capture_output=True, text=True, check=False, preexec_fn=limit, timeout=60
        )
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr
    assert "it continues" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in (tmp_path / "out").rglob("*") if ".npz" in path.name or path.suffix == ".tmp"]
    with pytest.raises((ManifestError, MissingFileError)):
        ScanNet(tmp_path / "out", split="train")
