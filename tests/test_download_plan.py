"""What `--dry-run` and `--print-urls` count as there: complete files, as far as sizes and aria2 show."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import digests, run_main
from downloads import MESH, SCENES, fetch, words
from release_server import ReleaseServer, Set

from scannet_prep.raw.lock import read_lock

Damage = Callable[[Path], object]

SCENE = SCENES[0]
NAME = f"scans/{SCENE}/{SCENE}{MESH}"


def remove_lock(path: Path) -> None:
    (path.parents[2] / "scannet.lock").unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def make_empty(path: Path) -> None:
    remove_lock(path)
    os.truncate(path, 0)


def leave_to_aria2(path: Path) -> None:
    remove_lock(path)
    path.with_name(f"{path.name}.aria2").touch()


def replace_by_a_broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


INCOMPLETE: list[Damage] = [truncate, make_empty, leave_to_aria2, replace_by_a_broken_link]


@pytest.fixture
def data_dir(server: ReleaseServer, tmp_path: Path) -> Path:
    """A complete tree."""
    fetch(server, tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", INCOMPLETE)
def test_incomplete_files_are_printed_for_other_programs(
    server: ReleaseServer, data_dir: Path, damage: Damage
) -> None:
    damage(data_dir / NAME)
    outcome = run_main(*words(server.base_url, data_dir, "--print-urls", "plain", "--json"))
    assert [file["path"] for file in outcome.json["files"]] == [NAME]


@pytest.mark.parametrize("damage", INCOMPLETE)
def test_incomplete_files_are_counted_by_a_dry_run(
    server: ReleaseServer, data_dir: Path, damage: Damage
) -> None:
    damage(data_dir / NAME)
    value = run_main(*words(server.base_url, data_dir, "--dry-run", "--json")).json
    assert (value["files"] - value["present"], value["incomplete"]) == (1, 1)
    told = run_main(*words(server.base_url, data_dir, "--dry-run")).stdout
    assert "\n1 file to fetch, about 6.1 MB\nexisting but incomplete files among these: 1\n" in told


def test_run_removes_what_aria2_left_beside_a_complete_file(
    server: ReleaseServer, data_dir: Path
) -> None:
    path = data_dir / f"{NAME}.aria2"
    path.touch()
    assert not fetch(server, data_dir).failures
    assert not path.exists()


def test_complete_files_are_not_printed(server: ReleaseServer, data_dir: Path) -> None:
    assert run_main(*words(server.base_url, data_dir, "--print-urls", "aria2")).stdout == ""


def test_aria2_may_overwrite_only_incomplete_files(server: ReleaseServer, data_dir: Path) -> None:
    truncate(data_dir / NAME)
    (data_dir / NAME).with_suffix(".labels.ply").unlink()
    lines = run_main(*words(server.base_url, data_dir, "--print-urls", "aria2")).stdout.splitlines()
    entries = "\n".join(lines).split("\nhttp")
    assert [entry.endswith("  allow-overwrite=true") for entry in entries] == [True, False]


@pytest.mark.skipif(shutil.which("aria2c") is None, reason="aria2 is not installed")
def test_aria2_that_was_killed_finishes_what_is_printed_next(
    server: ReleaseServer, tmp_path: Path
) -> None:
    def start() -> subprocess.Popen[bytes]:
        urls = run_main(*words(server.base_url, tmp_path / "data", "--print-urls", "aria2")).stdout
        (tmp_path / "urls.txt").write_text(urls)
        return subprocess.Popen(["aria2c", "-q", "-i", tmp_path / "urls.txt", "-j", "2"])

    server.faults = [
        lambda request: [Set(trickle=(1_000, 0.0005))] if request.path.endswith(".ply") else []
    ]
    process = start()
    deadline_s = time.monotonic() + 20
    while not list(tmp_path.rglob("*.ply.aria2")):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.kill()
    process.wait()
    server.faults = []
    server.forget()
    assert start().wait(60) == 0
    assert not list(tmp_path.rglob("*.aria2"))
    server.forget()
    assert run_main(*words(server.base_url, tmp_path / "data")).status == 0
    assert server.requests() == []  # aria2 has fetched everything, and all of it is right
    assert read_lock(tmp_path / "data/scannet.lock").keys() == digests(server.root).keys()
