"""The server is down, or asks for fewer requests: all wait, no file is given up for it, and it is said why."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from commands import digests
from downloads import MESH, PATIENCE, SCENES, Bar, fetch, fetched, release_fixture
from release_server import (
    BEFORE_STATUS,
    LABEL_MAP_URL_PATH,
    Cut,
    Fault,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    Redirect,
    ReleaseServer,
    Request,
    Reset,
    Set,
    Stall,
    Status,
    always,
    at,
    between,
    ending,
    scene_url_path,
)

from scannet_prep.errors import TransferError
from scannet_prep.labels import LABEL_MAP_NAME
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import Gate, TransferPolicy
from scannet_prep.remote.trouble import AttemptError
from scannet_prep.synthetic import write_release

# What requests may end with in an outage, whatever the status. No file is to blame.
OUTAGES = {
    **{str(code): Status(code) for code in (400, 403, 404, 429, 503, 530)},
    "asks to wait": Status(503, "1"),
    "resets": Reset(),
    "closed connections": Cut(BEFORE_STATUS),
    "closed connections after the headers": Cut(0),
    "silence": Stall(BEFORE_STATUS),
    "circle": Redirect(),
    "page": Page(),
    "page of plain text": Page(b"Back soon.\n"),
    "empty page": Page(b""),
}


release_dir = release_fixture(SCENES, 3_000)


@pytest.mark.parametrize(("name", "jobs"), [*((name, 4) for name in OUTAGES), ("404", 1), ("page", 1)])
def test_no_file_is_given_up_while_everybody_is_refused(
    release_dir: Path, tmp_path: Path, name: str, jobs: int
) -> None:
    count = 7 if name == "silence" else 3 * PATIENCE.tries  # many more than the tries of a file
    bar = Bar()
    with ReleaseServer(release_dir, faults=[between(4, 4 + count, OUTAGES[name])]) as server:
        report = fetch(server, tmp_path, jobs=jobs, bar=bar)
        assert not report.failures, report.failures
        assert "serves nothing" not in "".join(bar.notes)  # it was short
        assert len(server.requests()) <= 13 + 2 * count
    assert fetched(tmp_path) == digests(release_dir)


@pytest.mark.parametrize("name", ["503", "404", "page"])
def test_a_file_of_which_a_part_has_come_is_not_given_up_in_an_outage(
    release_dir: Path, tmp_path: Path, name: str
) -> None:
    path = scene_url_path(SCENES[0], MESH)
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path, SCENES[1:])
        server.forget()
        server.faults = [at(path, Cut(20_000)), between(1, 20, OUTAGES[name])]
        assert not fetch(server, tmp_path, jobs=1).failures
        assert server.bytes_sent_again(path) == 0


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("first", [0, 12])
def test_no_file_is_given_up_in_an_outage_at_the_beginning_or_end_of_a_run(
    release_dir: Path, tmp_path: Path, first: int, jobs: int
) -> None:
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path, SCENES[:1] if first == 0 else [])
        server.faults = [between(first, first + 20, Status(503))]
        assert not fetch(server, tmp_path, jobs=jobs).failures


def test_in_an_outage_one_at_a_time_asks_for_what_was_served_before(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir, faults=[between(4, 40, Status(503))]) as server:
        assert not fetch(server, tmp_path, jobs=8).failures
        waiting = [request for request in server.requests() if request.faults]
    assert sum(request.range is None for request in waiting) <= 8  # those that were under way
    assert all(request.range is not None for request in waiting[8:])


def test_while_the_server_cannot_be_reached_all_wait_for_it(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir, faults=[at(scene_url_path(SCENES[0], MESH), Set(is_down=True))]) as server:
        bar = Bar()
        threading.Thread(target=start_again, args=(server, bar), daemon=True).start()
        assert not fetch(server, tmp_path, bar=bar, policy=replace(PATIENCE, untold_outage_s=0.1)).failures
    assert fetched(tmp_path) == digests(release_dir)
    assert [note.partition(" (")[0] for note in bar.notes] == ["the server serves nothing", "the server answers again"]
    assert "the download pauses and retries at intervals, for up to" in bar.notes[0]


def start_again(server: ReleaseServer, bar: Bar) -> None:
    while not bar.notes:
        time.sleep(0.01)
    server.start()


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_first_file_that_always_fails_is_no_outage(release_dir: Path, tmp_path: Path, jobs: int) -> None:
    with ReleaseServer(release_dir, faults=[at(LABEL_MAP_URL_PATH, then=Status(503))]) as server:
        report = fetch(server, tmp_path, jobs=jobs)
    assert [item.file.local_path for item in report.failures] == [LABEL_MAP_NAME]


@pytest.mark.parametrize("ability", [RangesIgnored(), NoLength(), Header("Content-Range", None)])
def test_outages_are_told_from_files_that_fail_whatever_the_server_says_of_ranges(
    release_dir: Path, tmp_path: Path, ability: Fault
) -> None:
    rules = [always(None, ability), at(ending(MESH), then=Status(503)), between(8, 20, Status(503))]
    with ReleaseServer(release_dir, faults=rules) as server:
        report = fetch(server, tmp_path)
    assert [item.file.kind.suffix for item in report.failures] == [MESH] * len(SCENES)


@pytest.mark.parametrize("is_reachable", [False, True])
def test_a_server_that_stays_down_ends_the_run_and_is_told_once(
    release_dir: Path, tmp_path: Path, is_reachable: bool
) -> None:
    bar = Bar()
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path, SCENES[:1])
        server.faults = [at(None, then=Status(503))]
        if not is_reachable:
            server.stop()
        report = fetch(server, tmp_path, bar=bar, policy=replace(PATIENCE, first_answer_patience_s=0.3))
    assert len(report.failures) == sum(item.file.scene_id in SCENES[1:] for item in report.results)
    assert all("has served nothing for" in item.message for item in report.failures)
    assert len([note for note in bar.notes if "has served nothing for" in note]) == 1
    assert len(report.describe_failures()) == 1


@pytest.mark.parametrize(
    ("fault", "hint"),
    [(Status(403), "the terms"), (Status(404), "in a browser"), (Page(), "login page of your network")],
)
def test_a_server_that_refuses_everything_from_the_start_is_asked_a_handful_of_times(
    release_dir: Path, tmp_path: Path, fault: Fault, hint: str
) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(30)]
    with ReleaseServer(release_dir, faults=[at(None, then=fault)]) as server:
        with pytest.raises(
            TransferError, match="does not look like the ScanNet server; the server gives none"
        ) as error:
            fetch(server, tmp_path, scene_ids)
        assert len(server.requests()) < 12
    assert hint in error.value.hint


def test_a_thousand_equal_failures_are_one_line(tmp_path: Path) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(12)]
    write_release(tmp_path / "release", scene_ids, vertices=500)
    bar = Bar()
    with ReleaseServer(tmp_path / "release", faults=[at(ending(".txt"), then=Status(404))]) as server:
        report = fetch(server, tmp_path / "data", scene_ids, bar=bar)
    assert len(report.failures) == 12
    assert len([note for note in bar.notes if "missing upstream" in note]) == 1
    ((text, _),) = report.describe_failures()
    assert text.startswith("missing upstream: 12 files: the server has no such file (404); for example http://")


@pytest.mark.parametrize("is_by_time", [False, True])
def test_a_busy_server_is_asked_more_slowly(tmp_path: Path, is_by_time: bool) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(8)]
    write_release(tmp_path / "release", scene_ids, vertices=500)
    busy = Busy(0.02 if is_by_time else None)
    with ReleaseServer(tmp_path / "release", faults=[busy], request_latency_s=0.002) as server:
        busy.server = server
        assert not fetch(
            server, tmp_path / "data", scene_ids, jobs=8, policy=replace(PATIENCE, longest_delay_s=0.2)
        ).failures
        refused = sum(bool(request.faults) for request in server.requests())
    assert refused < 30


class Busy:
    """Refuses a request that comes too soon after one that was served, or while another is under way."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.served_s, self.server = seconds, 0.0, None

    def __call__(self, _request: Request) -> list[Fault]:
        now_s = time.monotonic()
        if now_s - self.served_s < (self.seconds or 0.002):
            return [Status(429)]
        self.served_s = now_s
        return []


def test_files_that_hang_are_put_off_to_the_end_and_named(tmp_path: Path) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(6)]
    write_release(tmp_path / "release", scene_ids, vertices=500)
    bar, hangs = Bar(), at(lambda path: MESH in path and "scene0000" in path, Stall(BEFORE_STATUS))
    with ReleaseServer(tmp_path / "release", faults=[hangs]) as server:
        assert not fetch(server, tmp_path / "data", scene_ids, jobs=1, bar=bar).failures
        paths = [request.path for request in server.requests() if request.range is None]
    assert paths[-1] == scene_url_path("scene0000_00", MESH)
    assert "no answer within 0 s; it is tried again after the others" in bar.notes[0]


def test_why_nothing_moves_is_said(release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannet_prep.stages.download.running._STILL_S", 0.1)
    bar = Bar()
    with ReleaseServer(release_dir, faults=[at(ending(MESH), Stall(BEFORE_STATUS))]) as server:
        assert not fetch(server, tmp_path, bar=bar, policy=replace(PATIENCE, answer_timeout_s=1.0)).failures
    assert any(f"waiting for scans/scene0000_00/scene0000_00{MESH}" in text for text in bar.statuses)


def test_a_rate_limit_holds_for_all_threads_together() -> None:
    class Stop(threading.Event):
        waits: list[float] = []  # noqa: RUF012 - of this test only

        def wait(self, timeout: float | None = None) -> bool:
            self.waits.append(timeout or 0)
            return False

    client = Client("http://127.0.0.1:9/", TransferPolicy(bytes_per_s=1_000.0), certificates=True)
    client.stop = Stop()
    for size in (500, 1_000, 250):
        client.count(size)
    assert Stop.waits == pytest.approx([0.5, 1.5, 1.75], abs=0.05)


def test_a_first_file_that_takes_long_keeps_nobody_from_finding_out_whether_the_server_is_back() -> None:
    gate = Gate(PATIENCE, threading.Event(), print)
    with contextlib.suppress(AttemptError), gate.request():
        raise AttemptError("refused")
    with gate.request() as first:
        assert first.is_trial
        gate.served(first)  # a large file, of which enough has come
        with contextlib.suppress(AttemptError), gate.request():
            raise AttemptError("refused")
        with gate.request() as second:
            assert second.is_trial
    assert gate.state == ""
