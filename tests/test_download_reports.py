"""What a download says of itself: bytes on the bar, failures, the list of what failed, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import release_faults as faults
from commands import run_command
from release_faults import at, ending
from release_server import ReleaseServer
from test_transfer import PATIENCE

from scannet_prep.errors import DiskFullError, OutputError, TransferError
from scannet_prep.processed.folder import write_failed_list
from scannet_prep.progress import NoProgress
from scannet_prep.remote.partial import Partial
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.download import DownloadReport
from scannet_prep.stages.download import running as download_run
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

SCENES = ["scene0000_00", "scene0011_00", "scene0707_00"]
MESH = "_vh_clean_2.ply"


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, SCENES, vertices=3_000)
    return release_dir


class Bar(NoProgress):
    """Adds up what a bar would show."""

    def __init__(self, on_note: Callable[[str], None] = lambda _: None) -> None:
        self.done = self.total = 0
        self.notes: list[str] = []
        self.statuses: list[str] = []
        self.on_note = on_note

    def start(self, title: str, total: int, unit: str) -> None:  # noqa: ARG002 - as the protocol has it
        self.total = total

    def advance(self, count: int = 1) -> None:
        self.done += count

    def resize(self, change: int) -> None:
        self.total += change

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def note(self, message: str) -> None:
        self.notes.append(message)
        self.on_note(message)


def fetch(
    server: ReleaseServer,
    data_dir: Path,
    bar: Bar | None = None,
    policy: TransferPolicy = PATIENCE,
    scenes: list[str] = SCENES,
) -> DownloadReport:
    selection = Selection(scene_ids=tuple(map(SceneId, scenes)))
    plan = download.plan(data_dir, ["seg"], selection=selection, base_url=server.base_url)
    return download.run(plan, policy=policy, progress=bar, needs_terms=False)


def failed_scenes(data_dir: Path) -> list[str] | None:
    path = data_dir / "failed.txt"
    return [line for line in path.read_text().splitlines() if line[0] != "#"] if path.exists() else None


@pytest.mark.parametrize("etag", ["strong", None])
def test_the_bar_ends_where_the_total_is_and_counts_what_was_there(
    release_dir: Path, tmp_path: Path, etag: Any
) -> None:
    whole = sum(path.stat().st_size for path in release_dir.rglob("*") if path.is_file())
    cut = at(ending(MESH), faults.Cut(30_000))
    with ReleaseServer(release_dir, faults=[cut], etag=etag, has_last_modified=False) as server:
        bars = [Bar(), Bar(), Bar()]
        reports = [fetch(server, tmp_path, bar, replace(PATIENCE, attempts=1)) for bar in bars]
        sent = sum(length for path in server.files for _, length in server.sent(path))
    assert len(reports[0].failures) == 3
    assert [bar.done for bar in bars] == [bar.total for bar in bars]
    assert [bar.total for bar in bars[1:]] == [whole, whole]
    assert sum(report.received_bytes for report in reports) == sent
    assert reports[2].received_bytes == 0


@pytest.mark.parametrize("flags", [[], ["-q"], ["--no-progress"], ["--json"], ["-q", "--json"]])
def test_each_failure_is_told_once_with_each_hint_once(release_dir: Path, tmp_path: Path, flags: list[str]) -> None:
    rules = [at(ending(".txt"), then=faults.Status(404)), at(ending(MESH), then=faults.Status(403))]
    with ReleaseServer(release_dir, faults=rules) as server:
        outcome = run_command(
            "download", "--types", "seg", "--accept-terms", "-o", tmp_path, "--base-url", server.base_url,
            "--scenes", *SCENES, *flags,
        )  # fmt: skip
    assert outcome.status == 3
    for scene_id in SCENES:
        assert outcome.stderr.count(f"{scene_id}.txt: the server has no such file") == 1
        assert outcome.stderr.count(f"{scene_id}{MESH}: status 403") == 1
    if "-q" not in flags:
        assert outcome.stderr.count("having signed the terms") == 1


def test_a_server_that_stays_away_is_told_once_and_not_of_each_file(release_dir: Path, tmp_path: Path) -> None:
    bar = Bar()
    with ReleaseServer(release_dir) as server:
        server.stop()
        report = fetch(server, tmp_path, bar, replace(PATIENCE, first_answer_patience_s=0.3))
    assert len(report.failures) == len(report.results)
    assert [note.partition(":")[0] for note in bar.notes if "has not answered" in note] == ["giving up"]


def test_only_outages_that_last_are_told(release_dir: Path, tmp_path: Path) -> None:
    for untold_s, expected in ((600.0, []), (0.3, ["the server does not answer", "the server answers again"])):
        bar = Bar()
        with ReleaseServer(release_dir, faults=[at(ending(f"scene0000_00{MESH}"), faults.ServerDown(0.6))]) as server:
            policy = replace(PATIENCE, untold_outage_s=untold_s)
            assert not fetch(server, tmp_path / str(untold_s), bar, policy).failures
        assert [note.partition(" (")[0] for note in bar.notes] == expected


def test_an_outage_that_is_announced_as_long_is_told_at_once(release_dir: Path, tmp_path: Path) -> None:
    bar = Bar()
    policy = replace(PATIENCE, untold_outage_s=0.15, longest_retry_after_s=0.2)
    down = at(None, *[faults.Status(503, retry_after_s=7_200)] * 3)
    with ReleaseServer(release_dir, faults=[down]) as server:
        fetch(server, tmp_path, bar, policy)
    assert bar.notes[0].startswith("the server does not answer (status 503")


def test_a_long_pause_that_the_server_asks_for_is_told(release_dir: Path, tmp_path: Path) -> None:
    bar = Bar()
    policy = replace(PATIENCE, longest_retry_after_s=0.9, told_pause_s=0.5)
    with ReleaseServer(release_dir, faults=[at(ending(MESH), faults.Status(429, retry_after_s=7_200))]) as server:
        assert not fetch(server, tmp_path, bar, policy).failures
    assert len(bar.notes) == len(SCENES)
    assert all("status 429" in note and "asks to wait" in note for note in bar.notes)


def test_a_server_that_gives_nothing_is_not_asked_for_everything(release_dir: Path, tmp_path: Path) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(100)]
    with ReleaseServer(release_dir, faults=[at(None, then=faults.Status(403))]) as server:
        with pytest.raises(TransferError, match=r"does not look like .* status 403") as error:
            fetch(server, tmp_path, scenes=scene_ids)
        assert "signed the terms" in error.value.hint
        assert len(server.requests()) < 30


def test_the_list_of_failed_scenes_holds_what_is_still_to_be_mended(release_dir: Path, tmp_path: Path) -> None:
    broken = at(ending(MESH), then=faults.Status(404))
    with ReleaseServer(release_dir, faults=[broken]) as server:
        fetch(server, tmp_path)
        assert failed_scenes(tmp_path) == SCENES
        server.faults = []
        fetch(server, tmp_path, scenes=SCENES[:1])
        assert failed_scenes(tmp_path) == SCENES[1:]
        fetch(server, tmp_path, scenes=SCENES[1:])
        assert failed_scenes(tmp_path) is None


def test_a_run_that_is_broken_off_keeps_in_the_list_what_it_has_not_come_to(release_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "failed.txt").write_text("# failed earlier\nscene0000_00\nscene0011_00\nscene0005_00\n")
    huge = at(f"/scannet/v2/scans/scene0011_00/scene0011_00{MESH}", then=faults.WrongLength(10**15))
    with ReleaseServer(release_dir, faults=[huge]) as server:
        with pytest.raises(DiskFullError):
            fetch(server, tmp_path, Bar(), scenes=["scene0011_00"])
        assert failed_scenes(tmp_path) == ["scene0000_00", "scene0005_00", "scene0011_00"]
        fetch(server, tmp_path, scenes=["scene0000_00"])
        assert failed_scenes(tmp_path) == ["scene0005_00", "scene0011_00"]
        (tmp_path / "failed.txt").write_text("is no list\n")
        fetch(server, tmp_path, scenes=["scene0000_00"])
        assert failed_scenes(tmp_path) is None


def test_waiting_for_another_process_is_told(release_dir: Path, tmp_path: Path) -> None:
    partial = Partial.claim(tmp_path / f"scans/scene0000_00/scene0000_00{MESH}")
    assert partial is not None

    def let_go(note: str) -> None:
        if "another process is at the last file" in note:
            partial.close()

    bar = Bar(let_go)
    with ReleaseServer(release_dir) as server:
        assert not fetch(server, tmp_path, bar).failures
    assert len(bar.notes) == 1
    assert any("waiting for another process" in status for status in bar.statuses)
    assert bar.statuses[-1] == "13/13 files"


def test_partial_files_are_kept_from_other_machines_whatever_their_owner_waits_for(
    release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_run, "_CHORES_INTERVAL_S", 0.0)
    monkeypatch.setattr(download_run, "_KEEP_INTERVAL_S", 0.0)
    kept: list[str] = []
    keep = Partial.keep

    def note_and_keep(partial: Partial) -> None:
        kept.append(partial.path.name)
        keep(partial)

    monkeypatch.setattr(Partial, "keep", note_and_keep)
    path = f"/scannet/v2/scans/scene0000_00/scene0000_00{MESH}"
    with ReleaseServer(release_dir, faults=[at(path, faults.Status(429, retry_after_s=1))]) as server:
        assert not fetch(server, tmp_path, Bar(), replace(PATIENCE, longest_retry_after_s=1.0)).failures
    assert any(MESH in name for name in kept)


def test_a_list_of_failed_scenes_that_cannot_be_removed_is_told(tmp_path: Path) -> None:
    (tmp_path / "failed.txt").mkdir()
    with pytest.raises(OutputError, match=r"failed\.txt: cannot be written"):
        write_failed_list(tmp_path, [])
