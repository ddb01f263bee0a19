"""A server that is down for everybody: all wait for it, no file is given up for it, and files that always fail are."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import release_faults as faults
from commands import digests
from downloads import MESH, PATIENCE, fetch, fetched
from release_connections import Request
from release_faults import always, at, ending
from release_scenarios import Outage
from release_server import LABEL_MAP_URL_PATH, ReleaseServer, scene_url_path

from scannet_prep.labels import LABEL_MAP_NAME
from scannet_prep.synthetic import write_release

SCENES = ["scene0000_00", "scene0011_00", "scene0707_00"]
# Gives up soon, compared with how long the outages last, but not before anything has come.
HASTY = replace(PATIENCE, attempts=4, first_delay_s=0.05, longest_delay_s=0.05)
# What one request may end with, and not one file is to blame.
BUSY = {
    "503": faults.Status(503),
    "500": faults.Status(500),
    "too many requests": faults.Status(429),
    "asks to wait": faults.Status(503, retry_after_s=1),
    "resets": faults.Reset(),
    "stalls": faults.Stall(faults.BEFORE_STATUS),
    "page": faults.HtmlPage(),
    "page of plain text": faults.HtmlPage(b"Back soon.\n"),
    "empty page": faults.HtmlPage(b""),
}


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, SCENES, vertices=3_000)
    return release_dir


@pytest.mark.parametrize("jobs", [1, 4, 8])
@pytest.mark.parametrize("name", BUSY)
def test_no_file_is_given_up_while_everybody_gets_errors(
    release_dir: Path, tmp_path: Path, name: str, jobs: int
) -> None:
    seconds = 2 if name == "stalls" else 1  # several times what it takes to give a file up
    with ReleaseServer(release_dir, faults=[Outage(BUSY[name], after_requests=4, seconds=seconds)]) as server:
        report = fetch(server, tmp_path, SCENES, jobs=jobs, policy=HASTY)
        assert not report.failures, report.failures
        assert fetched(tmp_path) == digests(release_dir)
        if name == "503":  # nothing that breaks connections
            assert all(server.bytes_sent_again(request.path) == 0 for request in server.requests())


@pytest.mark.parametrize("name", ["503", "page"])
def test_nor_is_one_of_which_a_part_has_come(release_dir: Path, tmp_path: Path, name: str) -> None:
    cut_path = scene_url_path(SCENES[0], MESH)
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path, SCENES[1:])
        server.faults = [at(cut_path, faults.Cut(20_000)), Outage(BUSY[name], after_requests=1)]
        report = fetch(server, tmp_path, SCENES, jobs=1, policy=HASTY)
        assert not report.failures, report.failures
        assert server.bytes_sent_again(cut_path) == 0


@pytest.mark.parametrize("jobs", [1, 4])
def test_nor_is_the_last_one(release_dir: Path, tmp_path: Path, jobs: int) -> None:
    with ReleaseServer(release_dir) as server:
        count = len(fetch(server, tmp_path / "first", SCENES).results)
        server.faults = [Outage(faults.Status(503), after_requests=count - 1)]
        report = fetch(server, tmp_path / "second", SCENES, jobs=jobs, policy=HASTY)
    assert not report.failures, report.failures


@pytest.mark.parametrize("jobs", [1, 4])
def test_nor_one_in_a_later_run_that_begins_in_the_outage(release_dir: Path, tmp_path: Path, jobs: int) -> None:
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path, SCENES[:1])
        server.faults = [Outage(faults.Status(503), after_requests=0)]
        report = fetch(server, tmp_path, SCENES, jobs=jobs, policy=HASTY)
    assert not report.failures, report.failures
    assert fetched(tmp_path) == digests(release_dir)


def test_in_an_outage_one_at_a_time_knocks(release_dir: Path, tmp_path: Path) -> None:
    numbers = itertools.count()

    def fail_for_a_while(_request: Request) -> list[faults.Fault]:
        return [faults.Status(503)] if 4 <= next(numbers) < 80 else []

    policy = replace(HASTY, first_delay_s=0.2, longest_delay_s=0.2)
    with ReleaseServer(release_dir, faults=[fail_for_a_while]) as server:
        assert not fetch(server, tmp_path, SCENES, jobs=8, policy=policy).failures
        waiting = [request for request in server.requests() if request.faults][-24:]
    # After each knock with a file that somebody waits for come those with what has been served before.
    knocks = [request.range is None for request in waiting]
    assert any(knocks)
    assert not any(both == (True, True) for both in itertools.pairwise(knocks))


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize(
    "fault", [faults.Status(503), faults.Status(500), faults.Reset(), faults.Cut(0), faults.HtmlPage()]
)
def test_files_that_fail_for_ever_are_no_outage(
    release_dir: Path, tmp_path: Path, fault: faults.Fault, jobs: int
) -> None:
    with ReleaseServer(release_dir, faults=[at(ending(MESH), then=fault)]) as server:
        report = fetch(server, tmp_path, SCENES, jobs=jobs)
        assert {item.file.kind.suffix for item in report.failures} == {MESH}
        assert len(report.failures) == len(SCENES)
        for item in report.failures:
            assert len(server.requests(f"/scannet/{item.file.remote_path}")) <= PATIENCE.attempts + 1


@pytest.mark.parametrize("jobs", [1, 4])
def test_nor_is_the_first_one(release_dir: Path, tmp_path: Path, jobs: int) -> None:
    with ReleaseServer(release_dir, faults=[at(LABEL_MAP_URL_PATH, then=faults.Status(503))]) as server:
        report = fetch(server, tmp_path, SCENES, jobs=jobs)
    assert [item.file.local_path for item in report.failures] == [LABEL_MAP_NAME]


@pytest.mark.parametrize("jobs", [1, 4])
def test_nor_are_most_files_of_some_scenes(tmp_path: Path, jobs: int) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(10)]
    write_release(tmp_path / "release", scene_ids, vertices=500)
    broken = scene_ids[:4]
    with ReleaseServer(tmp_path / "release") as server:
        fetch(server, tmp_path / "data", scene_ids[:8])
        for scene_id in broken:
            (tmp_path / f"data/scans/{scene_id}/{scene_id}{MESH}").unlink()
        server.faults = [at(lambda path: any(scene_id in path for scene_id in broken), then=faults.Status(500))]
        report = fetch(server, tmp_path / "data", scene_ids, jobs=jobs)
    assert {item.file.local_path for item in report.failures} == {f"scans/{name}/{name}{MESH}" for name in broken}


@pytest.mark.parametrize("ability", [faults.RangesIgnored(), faults.NoLength(), faults.Header("Content-Range", None)])
def test_whatever_the_server_says_of_ranges_outages_are_told_from_files_that_fail(
    release_dir: Path, tmp_path: Path, ability: faults.Fault
) -> None:
    rules = [always(None, ability), at(ending(MESH), then=faults.Status(503))]
    with ReleaseServer(release_dir, faults=[*rules, Outage(faults.Status(503), after_requests=8)]) as server:
        report = fetch(server, tmp_path, SCENES, policy=HASTY)
    assert {item.file.kind.suffix for item in report.failures} == {MESH}
    assert len(report.failures) == len(SCENES)


def test_while_the_server_cannot_be_reached_all_wait_together(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir, faults=[at(ending(MESH), faults.ServerDown(1.0))]) as server:
        report = fetch(server, tmp_path, SCENES, policy=HASTY)
        assert not report.failures, report.failures
        assert fetched(tmp_path) == digests(release_dir)


@pytest.mark.parametrize("first", [faults.Status(429), faults.Cut(0), faults.Status(403), faults.Redirect()])
def test_whatever_the_first_answer_after_an_outage_is_the_run_goes_on(
    release_dir: Path, tmp_path: Path, first: faults.Fault
) -> None:
    answers = iter([faults.Status(503)] * 12 + [first])

    def rule(_request: Any) -> list[faults.Fault]:
        fault = next(answers, None)
        return [] if fault is None else [fault]

    policy = replace(PATIENCE, outage_patience_s=5, first_answer_patience_s=5)
    with ReleaseServer(release_dir, faults=[rule]) as server:
        report = fetch(server, tmp_path, SCENES, policy=policy)
    assert len(report.failures) <= 1  # the one that was told so


def test_two_files_that_fail_for_ever_stop_no_other(release_dir: Path, tmp_path: Path) -> None:
    broken = ("scene0000_00", "scene0011_00")
    rules = [at(ending(f"{scene_id}{MESH}"), then=faults.Status(500)) for scene_id in broken]
    with ReleaseServer(release_dir, faults=rules) as server:
        report = fetch(server, tmp_path, SCENES)
    assert {item.file.scene_id for item in report.failures} == set(broken)
    assert len(report.failures) == 2


@pytest.mark.parametrize("is_reachable", [False, True])
def test_a_server_that_stays_down_ends_the_run_with_its_files_listed(
    release_dir: Path, tmp_path: Path, is_reachable: bool
) -> None:
    with ReleaseServer(release_dir) as server:
        fetch(server, tmp_path, SCENES[:1])
        if is_reachable:
            server.faults = [at(None, then=faults.Status(503))]
        else:
            server.stop()
        report = fetch(server, tmp_path, SCENES, policy=replace(HASTY, first_answer_patience_s=0.3))
    assert len(report.failures) == sum(item.file.scene_id in SCENES[1:] for item in report.results)
    assert all("has not answered" in item.message for item in report.failures)


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if "_work" in thread.name]
