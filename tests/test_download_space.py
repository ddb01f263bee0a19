"""Room on the disk: refused before anything is touched, watched while files come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import release_faults as faults
from release_faults import at, ending
from release_server import ReleaseServer

from scannet_prep.cli.main import main
from scannet_prep.errors import DiskFullError
from scannet_prep.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.download import planning as download_plan
from scannet_prep.stages.download import running as download_run
from scannet_prep.stages.download.space import RESERVE_BYTES, RESERVE_INODES, Room, estimate_left
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

SCENES = ["scene0000_00", "scene0011_00"]
MESH = "_vh_clean_2.ply"
PLENTY = 10**12


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, SCENES, vertices=2_000)
    return release_dir


def plan(data_dir: Path, base_url: str, types: str = "seg") -> download.DownloadPlan:
    return download.plan(
        data_dir, [types], selection=Selection(scene_ids=tuple(map(SceneId, SCENES))), base_url=base_url
    )


@pytest.mark.parametrize(
    ("free", "needed", "lack"),
    [
        (Room(RESERVE_BYTES + 5, RESERVE_INODES + 2), Room(5, 2), Room(0, 0)),
        (Room(RESERVE_BYTES + 4, RESERVE_INODES), Room(5, 2), Room(1, 2)),
        (Room(RESERVE_BYTES + 5, None), Room(5, 10**9), Room(0, 0)),
        (Room(None, None), Room(5, 10**9), Room(0, 0)),
        (Room(0, 0), Room(0, 0), Room(0, 0)),
    ],
)
def test_room_is_needed_for_what_is_left_and_a_reserve(free: Room, needed: Room, lack: Room) -> None:
    assert free.find_lack(needed) == lack
    assert bool(free.find_lack(needed)) == (lack != Room(0, 0))


def test_what_is_there_in_part_needs_room_only_for_the_rest(tmp_path: Path) -> None:
    files = plan(tmp_path, "http://127.0.0.1/", MESH).files
    each = files[0].kind.typical_bytes
    assert each is not None
    assert estimate_left(tmp_path, files) == Room(2 * each, 2)
    scene_dirs = [tmp_path / f"scans/{scene_id}" for scene_id in SCENES]
    for scene_dir in scene_dirs:
        scene_dir.mkdir(parents=True)
    (scene_dirs[0] / f"{SCENES[0]}{MESH}").write_bytes(b"by another process")
    (scene_dirs[1] / f".{SCENES[1]}{MESH}.part.free.-").write_bytes(b"half")
    assert estimate_left(tmp_path, files) == Room(each - 4, 1)
    assert plan(tmp_path, "http://127.0.0.1/", MESH).needed == Room(each - 4, 1)


@pytest.mark.parametrize(
    ("free", "lack"), [(Room(RESERVE_BYTES, None), "26,881,806 bytes"), (Room(PLENTY, 100), "room for 11 files")]
)
def test_what_the_disk_will_not_hold_is_refused_before_anything_is_touched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    free: Room,
    lack: str,
) -> None:
    monkeypatch.setattr(download_plan, "find_free_room", lambda _: free)
    words = ["download", "--types", "seg", "--accept-terms", "-o", str(tmp_path / "x"), "--scenes", *SCENES, "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["error"] == "OutputError"
    assert f"lacks {lack}" in found["message"]
    assert not (tmp_path / "x").exists()
    assert main([*words, "--dry-run"]) == 0


@pytest.mark.parametrize(("free", "lack"), [(Room(7, None), "bytes for what is left"), (Room(PLENTY, 99), "room for")])
def test_a_disk_that_others_fill_stops_the_run_with_the_amount(
    release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Room, lack: str
) -> None:
    monkeypatch.setattr(download_run, "_CHORES_INTERVAL_S", 0.0)
    monkeypatch.setattr(download_run, "find_free_room", lambda _: free)
    with ReleaseServer(release_dir, faults=[at(ending(MESH), then=faults.Stall(9_000))]) as server:
        with pytest.raises(DiskFullError, match=r"the disk lacks .* files are still to come") as error:
            download.run(plan(tmp_path, server.base_url), needs_terms=False)
        assert lack in str(error.value)
        monkeypatch.undo()
        server.faults = []
        assert not download.run(plan(tmp_path, server.base_url), needs_terms=False).failures


def test_a_file_that_is_larger_than_the_disk_is_not_begun(release_dir: Path, tmp_path: Path) -> None:
    rule = at(ending(MESH), then=faults.WrongLength(10**15))
    reason = r"more than the disk has room for; about .* are still to come"
    with ReleaseServer(release_dir, faults=[rule]) as server, pytest.raises(DiskFullError, match=reason):
        download.run(plan(tmp_path, server.base_url), needs_terms=False)
    assert not list(tmp_path.rglob(f"*{MESH}"))
