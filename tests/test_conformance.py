"""Guarantees of every command that writes files, whatever happens to it.

A run that is killed or interrupted leaves whole files, and the same command continues. A full disk
and a second run in the same folder end with a clear error. A bad scene fails alone, and is in the
list for the next run. One worker and several make the same files.
"""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import (
    PLAIN_COMMAND,
    flip_scene,
    limited,
    make_processed,
    run_main,
    start_command,
    succeed,
)
from release_server import ReleaseServer, Status, at, ending

from scannet_prep import official_scenes
from scannet_prep.base import files

TRAIN_IDS = official_scenes("train")[:5]
BAD = str(official_scenes("val")[0])
SCENES = [*map(str, TRAIN_IDS), BAD, str(official_scenes("test")[0])]
COMMANDS = ("download", "process", "pack", "unpack", "export", "frames")
WITH_JOBS = ("process", "pack", "export", "frames")
# What a run leaves for the next one, or records about itself.
OWN_NAMES = {"terms_accepted.txt", "failed.txt", ".scannet-prep.lock"}
# The records of a folder: a run changes them before its scenes.
RECORDS = {"manifest.json", "scannet.lock", "export.json", "frames.json"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A raw tree with streams, a processed folder, an archive, and a server; not to be changed."""
    folder = tmp_path_factory.mktemp("sources")
    processed = make_processed(folder, SCENES, vertices=2_000, frames=3)
    succeed("pack", processed, "-o", folder / "scannet.tar.zst")
    with ReleaseServer(folder / "raw", request_latency_s=0.01) as server:
        yield folder, server


def words_of(command, sources, output):
    """Return the words of a command that makes everything from the sources."""
    folder, server = sources
    if command == "download":
        server.faults = []
        options = ("--types", "seg", "--accept-terms", "--base-url", server.base_url)
        return (command, *options, "--scenes", *SCENES, "-o", output)
    source = {
        "process": folder / "raw",
        "pack": folder / "processed",
        "unpack": folder / "scannet.tar.zst",
        "export": folder / "processed",
        "frames": folder / "raw",
    }[command]
    options = {"export": ("--format", "pointcept"), "frames": ("--every", "1")}
    return (command, source, *options.get(command, ()), "-o", output)


def output_of(command, folder):
    """Return the output of a command: a file of `pack`, a folder of all others."""
    return folder / ("out/a.tar.zst" if command == "pack" else "out")


def files_in(output):
    """Return the digests of what a run has made, by path; files may vanish while it goes on."""
    folder = output.parent if output.suffix == ".zst" else output
    made = {}
    for directory, _, names in os.walk(folder):
        for name in {*names} - OWN_NAMES:
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                made[str(path.relative_to(folder))] = digest
    return made


def whole_files(output):
    """Return the digests of the files with final names, without records."""
    return {
        path: digest
        for path, digest in files_in(output).items()
        if Path(path).name not in RECORDS and not any(part[0] == "." for part in Path(path).parts)
    }


@pytest.fixture(scope="module")
def runs(sources, tmp_path_factory):
    """The digests of what each command makes when nothing happens, and its folder."""
    made = {}
    for command in COMMANDS:
        output = output_of(command, tmp_path_factory.mktemp(command))
        output.parent.mkdir(exist_ok=True)
        succeed(*words_of(command, sources, output))
        made[command] = files_in(output), output.parent
    return made


@pytest.fixture
def expected(command, runs):
    return runs[command][0]


@pytest.fixture
def output(command, tmp_path):
    output = output_of(command, tmp_path)
    output.parent.mkdir(exist_ok=True)
    return output


every_command = pytest.mark.parametrize("command", COMMANDS)


@every_command
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_run_leaves_whole_files_and_the_same_command_continues(
    command, number, sources, expected, output
):
    dice = random.Random(command)
    words = words_of(command, sources, output)
    # A run that was faster than its signal leaves an archive, which the next one replaces.
    words = (*words, *(("--force",) if command == "pack" else ()))
    jobs = ("--jobs", "2") if command in WITH_JOBS else ()
    # An interrupt while Python starts is Python's own.
    for enough in (0, 1, 2) if number == signal.SIGKILL else (1, 2):
        run = start_command(*words, "--json", *jobs, command=PLAIN_COMMAND)
        count = len(whole_files(output)) + enough
        while len(whole_files(output)) < count and run.poll() is None:
            time.sleep(0.002)
        time.sleep(dice.random() * 0.5 if enough == 0 else 0)
        with suppress(ProcessLookupError):
            os.killpg(run.pid, number)
        # Its workers have the same outputs, which are read until they have ended, too.
        stdout, stderr = run.communicate(timeout=120)
        assert "Traceback" not in stderr
        assert whole_files(output).items() <= expected.items()
        if run.returncode == 0:  # the run was faster than the signal
            break
        if number == signal.SIGINT and stdout:
            assert json.loads(stdout)["exit_status"] == run.returncode == 130
            assert "run the same command again" in stderr

    succeed(*words)
    # Temporary files would show up here, too.
    assert files_in(output) == expected


@every_command
def test_full_disk_and_second_run_are_clear_errors_that_lose_nothing(
    command, sources, runs, expected, output, monkeypatch
):
    words = words_of(command, sources, output)

    def check_fails(error):
        outcome = run_main(*words, "--json")
        assert (outcome.status, outcome.json["error"]) == (1, error), outcome
        return outcome.json["message"]

    if command not in ("export", "frames"):  # the size of their output is not known before
        with monkeypatch.context() as patch:
            patch.setattr(files, "RESERVE_BYTES", 1 << 60)
            assert check_fails("DiskFullError").endswith(" is free")
        assert files_in(output) == {}

    largest_bytes = max(path.stat().st_size for path in runs[command][1].rglob("*"))
    with limited(resource.RLIMIT_FSIZE, largest_bytes // 2):
        check_fails("DiskFullError")
    assert not [*output.parent.rglob(".*.tmp")]
    assert whole_files(output).items() <= expected.items()

    locked_dir = output.parent if command == "pack" else output
    with files.run_lock(locked_dir):
        assert "is working in this folder" in check_fails("OutputError")

    succeed(*words)
    assert files_in(output) == expected


@every_command
def test_dry_run_writes_nothing_and_second_run_changes_nothing(
    command, sources, expected, output, monkeypatch
):
    words = words_of(command, sources, output)
    if command not in ("pack", "unpack"):
        outcome = run_main(*words, "--dry-run", "--json")
        assert outcome.status == outcome.json["exit_status"] == 0
        assert not output.exists()
    succeed(*words)
    times = {path: path.stat().st_mtime_ns for path in output.parent.rglob("*") if path.is_file()}

    # What makes nothing needs no space.
    monkeypatch.setattr(files, "RESERVE_BYTES", 1 << 60)
    # Only --force replaces an archive.
    assert run_main(*words, "--json").status == (2 if command == "pack" else 0)
    changed = {path.name for path in times if path.stat().st_mtime_ns != times[path]}
    assert changed <= RECORDS | OWN_NAMES
    assert files_in(output) == expected


def damage(command, sources, folder):
    """Damage the input of one scene. Return the sources, and a function that repairs them."""
    whole, server = sources
    if command == "download":
        return (whole, server), [at(ending(f"{BAD}.aggregation.json"), then=Status(404))]
    copied = Path(shutil.copytree(whole, folder / "sources"))
    if command == "unpack":
        flip_scene(copied / "scannet.tar.zst", BAD)
    else:
        suffix = {"process": "_vh_clean_2.ply", "frames": ".sens"}.get(command)
        path = copied / f"raw/scans/{BAD}/{BAD}{suffix}"
        if suffix is None:
            path = copied / f"processed/val/{BAD}.npz"
        path.write_bytes(path.read_bytes()[:-1_000])
    return (copied, server), []


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "pack"])
def test_bad_scene_fails_alone_and_is_made_when_it_is_repaired(
    command, sources, expected, output, tmp_path
):
    damaged, faults = damage(command, sources, tmp_path)
    words = words_of(command, damaged, output)
    damaged[1].faults = faults

    outcome = run_main(*words, "--json")

    assert outcome.status == outcome.json["exit_status"] == 3
    whole = {path for path in expected if BAD not in path and Path(path).name not in RECORDS}
    assert whole <= {*whole_files(output)}
    assert whole_files(output).items() <= expected.items()

    damaged[1].faults = []
    if faults == []:
        shutil.copytree(sources[0], damaged[0], dirs_exist_ok=True)
    failed = output / "failed.txt"
    if command != "unpack":  # the archive is whole again, so unpack it again
        assert BAD in failed.read_text()
        names = [word for word in words if word not in SCENES and word != "--scenes"]
        words = (*names, "--scenes", f"@{failed}")
    succeed(*words)
    assert not failed.exists()
    assert files_in(output) == expected


@pytest.mark.parametrize("command", WITH_JOBS)
def test_two_workers_make_the_files_of_one(command, sources, expected, output):
    succeed(*words_of(command, sources, output), "--jobs", "2")
    assert files_in(output) == expected
