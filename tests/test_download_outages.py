"""The server is down, or asks for fewer requests: all wait, no file is given up for it, and it is said why."""

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import digests
from downloads import MESH, PATIENCE, SCENES, Bar, fetch, fetched
from release_server import (
    LABEL_MAP_URL_PATH,
    Cut,
    Fault,
    Gzip,
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
    at,
    between,
    ending,
    scene_url_path,
)

from scannet_prep.base.errors import TransferError
from scannet_prep.remote.client import Client
from scannet_prep.remote.policy import PROOF_BYTES, TransferPolicy
from scannet_prep.stages.download import FileOutcome, running
from scannet_prep.synthetic import write_release

# What requests may end with in an outage, whatever the status. No file is to blame.
OUTAGES = {
    **{str(code): Status(code) for code in (400, 403, 404, 416, 429, 503)},
    "asks to wait": Status(503, "1"),
    "resets": Reset(),
    "closed connections": Cut(),
    "closed connections after the headers": Cut(0),
    "silence": Stall(),
    "circle": Redirect(),
    "page": Page(),
    "page of plain text": Page(b"Back soon.\n"),
    "empty page": Page(b""),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_no_file_is_given_up_while_all_are_refused(
    server: ReleaseServer, tmp_path: Path, name: str
) -> None:
    count = 7 if name == "silence" else 3 * PATIENCE.tries  # many more than the tries of a file
    server.faults = [between(4, 4 + count, OUTAGES[name])]
    report = fetch(server, tmp_path)
    assert not report.failures, report.failures
    # Five failures and what else is under way; then one request at a time asks for what was served before.
    refused = [request for request in server.requests() if request.faults]
    assert name == "circle" or sum(request.range is None for request in refused) <= 5 + 3
    assert len(server.requests()) <= 13 + 2 * count
    assert fetched(tmp_path) == digests(server.root)


@pytest.mark.parametrize(
    ("first", "name", "jobs"), [(0, "503", 4), (12, "503", 1), (2, "404", 1), (2, "page", 1)]
)
def test_no_outage_costs_a_file(
    server: ReleaseServer, tmp_path: Path, first: int, name: str, jobs: int
) -> None:
    path = scene_url_path(SCENES[1], MESH)
    fetch(server, tmp_path, SCENES[:1] if first < 12 else [])
    server.forget()
    server.faults = [at(path, Cut(20_000)), between(first, first + 20, OUTAGES[name])]
    assert not fetch(server, tmp_path, jobs=jobs).failures
    assert server.bytes_sent_again(path) == 0


def test_while_the_server_cannot_be_reached_all_wait_for_it(
    server: ReleaseServer, tmp_path: Path
) -> None:
    def start_again() -> None:
        while not bar.notes:
            time.sleep(0.01)
        server.start()

    bar = Bar()
    server.faults = [at(scene_url_path(SCENES[0], MESH), Set(is_down=True))]
    threading.Thread(target=start_again, daemon=True).start()
    patience = replace(PATIENCE, outage_patience_s=86_400, first_answer_patience_s=86_400)
    assert not fetch(server, tmp_path, bar=bar, policy=patience).failures
    assert fetched(tmp_path) == digests(server.root)
    assert bar.notes == ["server down (127.0.0.1 refuses the connection); waiting up to 1 d for it"]
    assert bar.left == 0
    assert bar.statuses[-1] == "13/13 files"


@pytest.mark.parametrize(("status", "jobs"), [(403, 1), (404, 4)])
def test_an_incomplete_mirror_gives_what_it_has(
    server: ReleaseServer, tmp_path: Path, status: int, jobs: int
) -> None:
    mesh_path = scene_url_path(SCENES[1], MESH)
    fetch(server, tmp_path, SCENES[:1])
    server.faults = [
        at(
            lambda path: SCENES[0] in path or path in (mesh_path, LABEL_MAP_URL_PATH),
            then=Status(status),
        )
    ]
    report = fetch(server, tmp_path, jobs=jobs)
    assert len(server.requests(mesh_path)) <= PATIENCE.tries
    assert [item.file.url for item in report.failures] == [server.origin + mesh_path]
    assert str(status) in report.failures[0].message
    assert len(fetched(tmp_path)) == len(digests(server.root)) - 1


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_later_run_on_an_incomplete_mirror_ends_with_what_it_lacks(
    server: ReleaseServer, tmp_path: Path, jobs: int
) -> None:
    """In this run nothing has been served yet: whole files of the earlier one show that the server is up."""
    server.faults = [at(lambda path: path.endswith((".txt", MESH)), then=Status(404))]
    failed = {item.file.local_path for item in fetch(server, tmp_path, jobs=jobs).failures}
    assert len(failed) == 6
    for _ in range(3):
        server.forget()
        assert {
            item.file.local_path for item in fetch(server, tmp_path, jobs=jobs).failures
        } == failed
        assert len(server.requests()) < 40


@pytest.mark.parametrize("ability", [RangesIgnored(), NoLength(), Header("Content-Range", None)])
def test_outages_are_told_from_failing_files_without_ranges(
    release_dir: Path, tmp_path: Path, ability: Fault
) -> None:
    rules = [
        at(None, then=ability),
        at(ending(MESH), then=Status(503)),
        between(8, 20, Status(503)),
    ]
    with ReleaseServer(release_dir, faults=rules) as server:
        report = fetch(server, tmp_path)
    assert [item.file.kind.suffix for item in report.failures] == [MESH] * len(SCENES)


def test_a_server_that_stays_down_ends_it_and_is_told_once(
    server: ReleaseServer, tmp_path: Path
) -> None:
    fetch(server, tmp_path, SCENES[:1])
    server.faults = [at(None, then=Status(503))]
    for make_worse in (server.forget, server.stop):  # it answers, and does not even that
        make_worse()
        report = fetch(server, tmp_path, policy=replace(PATIENCE, first_answer_patience_s=0.3))
        assert len(report.failures) == sum(
            item.file.scene_id in SCENES[1:] for item in report.results
        )
        assert all("has served nothing for" in item.message for item in report.failures)
        assert len(report.describe_failures()) == 1


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (Status(403), "signed terms"),
        (Status(404), "in a browser"),
        (Page(), "login page of your network"),
        (Gzip(), "a mirror of it"),
    ],
)
def test_refused_from_the_start_it_soon_stops(
    server: ReleaseServer, tmp_path: Path, fault: Fault, hint: str
) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(30)]
    server.faults = [at(None, then=fault)]
    with pytest.raises(TransferError, match="the server refuses all of the first files") as error:
        fetch(server, tmp_path, scene_ids)
    assert len(server.requests()) < 12
    assert hint in error.value.hint


def test_an_only_file_that_is_refused_once_is_not_given_up_while_it_comes(tmp_path: Path) -> None:
    write_release(tmp_path / "release", SCENES[:1], vertices=10_000)
    path = scene_url_path(SCENES[0], MESH)
    with ReleaseServer(
        tmp_path / "release", faults=[at(path, Status(404), Stall(PROOF_BYTES + 50_000))]
    ) as server:
        report = fetch(server, tmp_path / "data", SCENES[:1], types=[MESH])
    assert [item.outcome for item in report.results] == [FileOutcome.FETCHED]


def test_a_busy_server_is_asked_more_slowly(tmp_path: Path) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(8)]
    write_release(tmp_path / "release", scene_ids, vertices=500)
    served_s = [0.0]

    def refuse_soon(_request: Request) -> list[Fault]:
        """Refuse a request that comes too soon after one that was served."""
        is_soon = time.monotonic() - served_s[-1] < 0.05
        served_s.extend([] if is_soon else [time.monotonic()])
        return [Status(429)] if is_soon else []

    with ReleaseServer(
        tmp_path / "release", faults=[refuse_soon], request_latency_s=0.002
    ) as server:
        patience = replace(PATIENCE, longest_delay_s=0.2, longest_interval_s=2.0)
        assert not fetch(server, tmp_path / "data", scene_ids, jobs=8, policy=patience).failures
        refused = sum(bool(request.faults) for request in server.requests())
    assert refused < 82  # two for each file; without a pace, a thousand


def test_files_that_hang_come_last(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bar = scene_url_path(SCENES[0], MESH), Bar()
    monkeypatch.setattr(running, "_STALL_AFTER_S", 0.1)
    server.faults = [at(path, Stall())]
    assert not fetch(server, tmp_path, jobs=1, bar=bar).failures
    assert [request.path for request in server.requests() if request.range is None][-1] == path
    assert "127.0.0.1 does not answer; it is tried again after the others" in bar.notes[0]
    assert any(
        re.fullmatch(rf"no data for 0\.\d s: {SCENES[0]}{MESH}", status) for status in bar.statuses
    )


def test_a_rate_limit_holds_for_all_threads_together() -> None:
    waits: list[float] = []
    client = Client("http://127.0.0.1:9/", TransferPolicy(bytes_per_s=1_000.0), certificates=True)
    client.stop = SimpleNamespace(wait=waits.append)
    for size in (500, 1_000, 250):
        client.count(size)
    assert waits == pytest.approx([0.5, 1.5, 1.75], abs=0.05)
