"""Runs of `process` and `unpack` that are ended leave whole scenes, and the next one continues."""

import os
import random
import shutil
import signal
import time

import pytest
from commands import run_main, start_command, wait_until_gone

from scannet_prep import ScanNet, official_scenes, read_processed
from scannet_prep.base.files import Fingerprint
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.release.scenes import Split
from scannet_prep.synthetic import write_release

SCENES = [
    *official_scenes(Split.TRAIN)[:20],
    *official_scenes(Split.VAL)[:3],
    *official_scenes(Split.TEST)[:1],
]


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory):
    raw_dir = tmp_path_factory.mktemp("release") / "ScanNet"
    write_release(raw_dir, SCENES, vertices=3_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected_dir(raw_dir):
    expected_dir = raw_dir.parent / "expected"
    assert run_main("process", raw_dir, "-o", expected_dir).status == 0
    return expected_dir


def count_scenes(folder):
    return len(list(folder.rglob("*.npz")))


def interrupt(words, out_dir, number, new_scenes):
    """Start a command, and send it a signal after some more scenes.

    Args:
        words: The command.
        out_dir: Its output folder.
        number: The signal. SIGINT is sent to the whole group, as a terminal does.
        new_scenes: Number of scenes to wait for; 0 for a random time of at most one second.

    Returns:
        Exit status, standard output and standard error.
    """
    count = count_scenes(out_dir) + new_scenes
    run = start_command(*words, "-o", out_dir, "--json", "--jobs", "2")
    while count_scenes(out_dir) < count and run.poll() is None:
        time.sleep(0.001)
    if new_scenes == 0:
        time.sleep(random.uniform(0, 1))
    if number == signal.SIGINT:
        os.killpg(run.pid, number)
    else:
        run.send_signal(number)
    stdout, stderr = run.communicate(timeout=30)
    wait_until_gone(run.pid)  # no worker outlives the program
    return run.returncode, stdout, stderr


def test_interrupted_run_for_some_scenes_is_complete_when_it_is_repeated(raw_dir, tmp_path):
    out_dir = tmp_path / "out"
    out_dir.mkdir()
    words = ("process", raw_dir, "--scenes", *SCENES[:20], "--align-axis")
    status, _, _ = interrupt(words, out_dir, signal.SIGINT, 1)
    finished = read_manifest(out_dir).scenes
    unfinished = read_manifest(out_dir).unfinished
    # A run for other scenes leaves it unfinished.
    run_main("process", raw_dir, "-o", out_dir, "--scenes", SCENES[20])
    with pytest.raises(FileError, match=f"{len(unfinished)} scenes are missing"):
        ScanNet(out_dir, split="train")
    # The options are those of the first run.
    repeated = run_main("process", raw_dir, "-o", out_dir, "--scenes", *SCENES[:20], "--json")

    assert status == 130
    assert finished
    assert {*finished, *unfinished} == {*SCENES[:20]}
    assert repeated.json["kept"] == sorted(finished)
    manifest = read_manifest(out_dir)
    assert not manifest.unfinished
    assert manifest.options.align_axis
    assert {*manifest.scenes} == {*SCENES[:21]}


def test_killed_change_of_options_never_mixes_them(raw_dir, expected_dir, tmp_path):
    out_dir = shutil.copytree(expected_dir, tmp_path / "out")
    before = read_manifest(out_dir)
    command = ("process", raw_dir, "-o", out_dir, "--faces", "--force", "--jobs", "2")
    run = start_command(*command)
    while read_manifest(out_dir) == before:
        assert run.poll() is None
        time.sleep(0.001)
    run.send_signal(signal.SIGKILL)
    run.communicate()

    manifest = read_manifest(out_dir)
    assert manifest.options.faces
    assert {*manifest.scenes, *manifest.unfinished} == {*SCENES}
    with pytest.raises(FileError, match="processing has not finished"):
        ScanNet(out_dir, split="train")
    # The same command without --force continues with the new options.
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    manifest = read_manifest(out_dir)
    assert manifest.options.faces
    for scene_id, entry in manifest.scenes.items():
        path = out_dir / entry.split / f"{scene_id}.npz"
        assert Fingerprint.from_file(path) == entry.fingerprint
    assert read_processed(path).faces is not None
