"""Downloads from a server that is down, or that requests a pause.

All requests wait, no file is given up, and the reason is shown.
"""

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import digests
from downloads import MESH, PATIENCE, SCENES, Bar, failed_suffixes, fetch, fetched
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

from scannet_prep.errors import ServerDownError, TransferError
from scannet_prep.remote.client import Client
from scannet_prep.remote.policy import PROOF_BYTES, TransferPolicy
from scannet_prep.stages.download import DownloadReport, FileOutcome, scheduling
from scannet_prep.synthetic import write_release

# Faults of all requests during an outage. No file is to blame for them.
OUTAGES = {
    "400": Status(400),
    "403": Status(403),
    "404": Status(404),
    "416": Status(416),
    "429": Status(429),
    "503": Status(503),
    "pause requested": Status(503, "1"),
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
def test_no_file_is_given_up_while_all_requests_fail(
    server: ReleaseServer, tmp_path: Path, name: str
) -> None:
    # Many more than the tries of a file.
    count = 7 if name == "silence" else 3 * PATIENCE.tries
    server.faults = [between(4, 4 + count, OUTAGES[name])]

    report = fetch(server, tmp_path)

    assert not report.failures, report.failures
    assert fetched(tmp_path) == digests(server.root)
    # Five failures, and other requests under way at that time. Then one probe at a time requests a
    # byte of a file that was served before. A circle makes many requests of one.
    if name != "circle":
        failed = [request for request in server.requests() if request.faults]
        assert sum(request.range is None for request in failed) <= 5 + 3
    assert len(server.requests()) <= 13 + 2 * count


@pytest.mark.parametrize(
    ("first", "name", "jobs"),
    [(0, "503", 4), (2, "404", 1), (2, "page", 1)],
)
def test_outage_of_20_requests_costs_no_file_and_no_bytes(
    server: ReleaseServer, tmp_path: Path, first: int, name: str, jobs: int
) -> None:
    path = scene_url_path(SCENES[1], MESH)
    fetch(server, tmp_path, SCENES[:1])
    server.forget()
    server.faults = [at(path, Cut(20_000)), between(first, first + 20, OUTAGES[name])]

    assert not fetch(server, tmp_path, jobs=jobs).failures

    assert server.bytes_sent_again(path) == 0


def test_outage_at_the_last_file_of_a_run_costs_no_bytes(
    server: ReleaseServer, tmp_path: Path
) -> None:
    path = scene_url_path(SCENES[1], MESH)
    # The label map, so that 12 files are left.
    fetch(server, tmp_path, [])
    server.forget()
    server.faults = [at(path, Cut(20_000)), between(12, 12 + 20, OUTAGES["503"])]

    assert not fetch(server, tmp_path, jobs=1).failures

    assert server.bytes_sent_again(path) == 0


@pytest.fixture
def bar_of_outage(server: ReleaseServer, tmp_path: Path) -> Bar:
    """The progress of a download during which nothing listens at the server for a while."""
    bar = Bar()

    def start_again() -> None:
        while not bar.notes:
            time.sleep(0.01)
        server.start()

    server.faults = [at(scene_url_path(SCENES[0], MESH), Set(is_down=True))]
    threading.Thread(target=start_again, daemon=True).start()
    patience = replace(PATIENCE, outage_patience_s=86_400, first_answer_patience_s=86_400)
    assert not fetch(server, tmp_path, bar=bar, policy=patience).failures
    return bar


@pytest.mark.usefixtures("bar_of_outage")
def test_unreachable_server_is_waited_for(server: ReleaseServer, tmp_path: Path) -> None:
    assert fetched(tmp_path) == digests(server.root)


def test_unreachable_server_is_one_note(bar_of_outage: Bar) -> None:
    assert bar_of_outage.notes == [
        "server down (127.0.0.1 refuses the connection); waiting up to 1 d for it"
    ]


def test_progress_after_an_outage_ends_with_all_files(bar_of_outage: Bar) -> None:
    assert bar_of_outage.left == 0
    assert bar_of_outage.statuses[-1] == "13/13 files"


@pytest.mark.parametrize(("status", "jobs"), [(403, 1), (404, 4)])
def test_incomplete_mirror_fails_only_for_the_file_that_it_lacks(
    server: ReleaseServer, tmp_path: Path, status: int, jobs: int
) -> None:
    mesh_path = scene_url_path(SCENES[1], MESH)

    def is_missing(path: str) -> bool:
        """The mirror lacks files of an earlier run, and a mesh."""
        return SCENES[0] in path or path in (mesh_path, LABEL_MAP_URL_PATH)

    fetch(server, tmp_path, SCENES[:1])
    server.faults = [at(is_missing, then=Status(status))]

    report = fetch(server, tmp_path, jobs=jobs)

    assert len(server.requests(mesh_path)) <= PATIENCE.tries
    assert [task.file.url for task in report.failures] == [server.origin + mesh_path]
    assert str(status) in report.failures[0].message
    assert len(fetched(tmp_path)) == len(digests(server.root)) - 1


def failed_paths(report: DownloadReport) -> set[str]:
    return {task.file.local_path for task in report.failures}


@pytest.mark.parametrize("jobs", [1, 4])
def test_later_runs_on_an_incomplete_mirror_end_with_few_requests(
    server: ReleaseServer, tmp_path: Path, jobs: int
) -> None:
    """Nothing is served in these runs: files of the first run show that the server is up."""
    server.faults = [at(lambda path: path.endswith((".txt", MESH)), then=Status(404))]
    missing = failed_paths(fetch(server, tmp_path, jobs=jobs))
    assert len(missing) == 6

    for _ in range(3):
        server.forget()
        assert failed_paths(fetch(server, tmp_path, jobs=jobs)) == missing
        assert len(server.requests()) < 40


@pytest.mark.parametrize("ability", [RangesIgnored(), NoLength(), Header("Content-Range", None)])
def test_server_without_ranges_fails_only_for_failing_files(
    release_dir: Path, tmp_path: Path, ability: Fault
) -> None:
    rules = [
        at(None, then=ability),
        at(ending(MESH), then=Status(503)),
        # An outage.
        between(8, 20, Status(503)),
    ]
    with ReleaseServer(release_dir, faults=rules) as server:
        report = fetch(server, tmp_path)

    assert failed_suffixes(report) == [MESH] * len(SCENES)


@pytest.mark.parametrize("answers", [True, False])
def test_server_that_stays_down_ends_the_run_with_one_line(
    server: ReleaseServer, tmp_path: Path, answers: bool
) -> None:
    fetch(server, tmp_path, SCENES[:1])
    server.forget()
    server.faults = [at(None, then=Status(503))]
    if not answers:
        server.stop()

    report = fetch(server, tmp_path, policy=replace(PATIENCE, first_answer_patience_s=0.3))

    missing = [task for task in report.results if task.file.scene_id in SCENES[1:]]
    assert len(report.failures) == len(missing)
    assert all("has served nothing for" in task.message for task in report.failures)
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
def test_server_that_refuses_everything_ends_the_run_soon(
    server: ReleaseServer, tmp_path: Path, fault: Fault, hint: str
) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(30)]
    server.faults = [at(None, then=fault)]

    with pytest.raises(TransferError, match="the server refuses all of the first files") as caught:
        fetch(server, tmp_path, scene_ids)

    assert len(server.requests()) < 12
    assert hint in caught.value.hint


def test_only_file_refused_once_is_not_given_up_while_it_arrives(tmp_path: Path) -> None:
    write_release(tmp_path / "release", SCENES[:1], vertices=10_000)
    path = scene_url_path(SCENES[0], MESH)
    rules = [at(path, Status(404), Stall(PROOF_BYTES + 50_000))]
    with ReleaseServer(tmp_path / "release", faults=rules) as server:
        report = fetch(server, tmp_path / "data", SCENES[:1], types=[MESH])

    assert [task.outcome for task in report.results] == [FileOutcome.FETCHED]


def test_busy_server_receives_fewer_requests(tmp_path: Path) -> None:
    scene_ids = [f"scene{number:04d}_00" for number in range(8)]
    write_release(tmp_path / "release", scene_ids, vertices=500)
    last_served_s = 0.0

    def reject_early(_request: Request) -> list[Fault]:
        """Reject a request within 50 ms of one that was served."""
        nonlocal last_served_s
        now_s = time.monotonic()
        if now_s - last_served_s < 0.05:
            return [Status(429)]
        last_served_s = now_s
        return []

    patience = replace(PATIENCE, longest_delay_s=0.2, longest_interval_s=2.0)
    with ReleaseServer(
        tmp_path / "release", faults=[reject_early], request_latency_s=0.002
    ) as server:
        report = fetch(server, tmp_path / "data", scene_ids, jobs=8, policy=patience)
        rejected = [request for request in server.requests() if request.faults]

    assert not report.failures
    # Two for each file. Without a pace, there would be a thousand.
    assert len(rejected) < 82


@pytest.fixture
def hanging_mesh(server: ReleaseServer) -> str:
    """The path of a mesh that hangs once."""
    path = scene_url_path(SCENES[0], MESH)
    server.faults = [at(path, Stall())]
    return path


def test_hanging_file_is_tried_again_after_the_others(
    server: ReleaseServer, tmp_path: Path, hanging_mesh: str
) -> None:
    bar = Bar()

    assert not fetch(server, tmp_path, jobs=1, bar=bar).failures

    complete = [request for request in server.requests() if request.range is None]
    assert complete[-1].path == hanging_mesh
    assert "127.0.0.1 does not answer; it is tried again after the others" in bar.notes[0]


@pytest.mark.usefixtures("hanging_mesh")
def test_hanging_file_is_named_in_the_status(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_STALL_AFTER_S", 0.1)
    bar = Bar()

    fetch(server, tmp_path, jobs=1, bar=bar)

    pattern = rf"no data for 0\.\d s: {SCENES[0]}{MESH}"
    assert any(re.fullmatch(pattern, status) for status in bar.statuses)


def test_answer_that_arrives_after_close_is_not_read(server: ReleaseServer) -> None:
    client = Client(server.base_url, TransferPolicy(), certificates=True)

    def close_during_request(_request: Request) -> list[Fault]:
        client.close()
        return []

    server.faults = [close_during_request]
    url = f"{server.origin}{LABEL_MAP_URL_PATH}"

    with pytest.raises(ServerDownError), client.open(url, headers={}):
        pytest.fail("the answer was passed on")


def test_rate_limit_holds_for_all_threads_together() -> None:
    pauses: list[float] = []
    client = Client("http://127.0.0.1:9/", TransferPolicy(bytes_per_s=1_000.0), certificates=True)
    client.stop = SimpleNamespace(wait=pauses.append)

    for size_bytes in (500, 1_000, 250):
        client.count(size_bytes)

    assert pauses == pytest.approx([0.5, 1.5, 1.75], abs=0.05)
