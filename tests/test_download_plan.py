"""Complete and incomplete files in the output of `--dry-run` and `--print-urls`.

Files count as complete as far as sizes and aria2 show.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import digests, run_main
from downloads import MESH, SCENES, fetch, words
from release_server import Fault, ReleaseServer, Request, Set

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


DAMAGES: list[Damage] = [truncate, make_empty, leave_to_aria2, replace_by_a_broken_link]


@pytest.fixture
def data_dir(server: ReleaseServer, tmp_path: Path) -> Path:
    """A complete tree."""
    fetch(server, tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGES)
def test_urls_of_incomplete_files_are_printed(
    server: ReleaseServer, data_dir: Path, damage: Damage
) -> None:
    damage(data_dir / NAME)

    outcome = run_main(*words(server.base_url, data_dir, "--print-urls", "plain", "--json"))

    assert [file["path"] for file in outcome.json["files"]] == [NAME]


@pytest.mark.parametrize("damage", DAMAGES)
def test_dry_run_counts_incomplete_files(
    server: ReleaseServer, data_dir: Path, damage: Damage
) -> None:
    damage(data_dir / NAME)

    value = run_main(*words(server.base_url, data_dir, "--dry-run", "--json")).json

    assert value["incomplete"] == 1
    assert value["present"] == value["files"] - 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_dry_run_lists_incomplete_files_as_files_to_fetch(
    server: ReleaseServer, data_dir: Path, damage: Damage
) -> None:
    damage(data_dir / NAME)

    lines = run_main(*words(server.base_url, data_dir, "--dry-run")).stdout.splitlines()

    assert "1 file to fetch, about 6.1 MB" in lines
    assert "existing but incomplete files among these: 1" in lines


def test_control_file_of_aria2_beside_a_complete_file_is_removed(
    server: ReleaseServer, data_dir: Path
) -> None:
    control_path = data_dir / f"{NAME}.aria2"
    control_path.touch()

    assert not fetch(server, data_dir).failures

    assert not control_path.exists()


def test_urls_of_complete_files_are_not_printed(server: ReleaseServer, data_dir: Path) -> None:
    assert run_main(*words(server.base_url, data_dir, "--print-urls", "aria2")).stdout == ""


def test_aria2_may_overwrite_only_incomplete_files(server: ReleaseServer, data_dir: Path) -> None:
    truncate(data_dir / NAME)
    (data_dir / NAME).with_suffix(".labels.ply").unlink()

    output = run_main(*words(server.base_url, data_dir, "--print-urls", "aria2")).stdout

    incomplete, missing = output.strip().split("\nhttp")
    assert incomplete.endswith("  allow-overwrite=true")
    assert "allow-overwrite" not in missing


def trickle_meshes(request: Request) -> list[Fault]:
    return [Set(trickle=(1_000, 0.0005))] if request.path.endswith(".ply") else []


@pytest.mark.extra("aria2c")
def test_killed_aria2_continues_with_the_list_that_is_printed_next(
    server: ReleaseServer, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"

    def start_aria2() -> subprocess.Popen[bytes]:
        urls = run_main(*words(server.base_url, data_dir, "--print-urls", "aria2")).stdout
        (tmp_path / "urls.txt").write_text(urls)
        return subprocess.Popen(["aria2c", "-q", "-i", tmp_path / "urls.txt", "-j", "2"])

    server.faults = [trickle_meshes]
    process = start_aria2()
    deadline_s = time.monotonic() + 20
    while not list(tmp_path.rglob("*.ply.aria2")):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.kill()
    process.wait()

    server.faults = []
    server.forget()
    assert start_aria2().wait(60) == 0
    assert not list(tmp_path.rglob("*.aria2"))

    # aria2 has downloaded all files, and all of them are intact.
    server.forget()
    assert run_main(*words(server.base_url, data_dir)).status == 0
    assert server.requests() == []
    assert read_lock(data_dir / "scannet.lock").keys() == digests(server.root).keys()
