"""Downloads from a server that misbehaves.

Either the folder ends up equal to the release, or the run reports what failed.
"""

import gc
import os
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import digests
from downloads import (
    MESH,
    PASSING,
    PATIENCE,
    SCENES,
    failed_suffixes,
    fetch,
    fetched,
    finished,
    random_faults,
    send_size_of_chunk_without_end,
    send_trailer_without_end,
)
from release_server import (
    Answer,
    Cut,
    Fault,
    Header,
    NoLength,
    Page,
    Redirect,
    ReleaseServer,
    Request,
    ShiftedRange,
    Stall,
    Status,
    answer_part,
    at,
    ending,
    other_version,
    scene_url_path,
)

from scannet_prep.errors import TransferError
from scannet_prep.raw.lock import read_lock
from scannet_prep.release.label_map import LABEL_MAP_NAME
from scannet_prep.release.splits import read_scene_list
from scannet_prep.remote.request_errors import FEW_TRIES, MANY_TRIES
from scannet_prep.stages.download import DownloadReport

SCENE = SCENES[0]
MESH_PATH = scene_url_path(SCENE, MESH)
SEGMENTS = "_vh_clean_2.0.010000.segs.json"
LABELS_MESH = "_vh_clean_2.labels.ply"


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name == "download"]


# Each scene meets one fault, so there are as many in a group.
NAMES = list(PASSING)
GROUPS = [NAMES[start : start + len(SCENES)] for start in range(0, len(NAMES), len(SCENES))]
RESUMING_GROUPS = [
    ["cut before the status", "cut in the middle", "ranges ignored"],
    ["cut at the first byte", "range refused", "shifted range"],
]


@pytest.mark.parametrize(
    ("names", "etag"),
    [(names, "strong") for names in GROUPS] + [(names, None) for names in RESUMING_GROUPS],
)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_passing_faults_leave_no_trace(
    release_dir: Path, tmp_path: Path, names: Sequence[str], etag: str | None
) -> None:
    rules = [
        at(scene_url_path(scene_id, MESH), *PASSING[name])
        for scene_id, name in zip(SCENES, names, strict=False)
    ]
    with ReleaseServer(release_dir, faults=rules, etag=etag) as server:
        assert not fetch(server, tmp_path).failures

    assert fetched(tmp_path) == digests(release_dir)
    # urllib3 does not close an answer with two lengths, `Content-Length: 1, 2`. No later test
    # should meet its socket.
    gc.collect()


def test_file_is_whole_though_its_trailer_never_ends(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(MESH_PATH, send_trailer_without_end)]

    assert not fetch(server, tmp_path).failures

    assert fetched(tmp_path) == digests(server.root)
    assert server.bytes_sent_again(MESH_PATH) == 0


def test_chunk_size_without_end_is_an_expensive_failure(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.faults = [at(MESH_PATH, then=send_size_of_chunk_without_end)]

    report = fetch(server, tmp_path)

    assert len(server.requests(MESH_PATH)) == FEW_TRIES
    assert "no byte of the file arrived within" in report.failures[0].message


def change_middle_at_first(request: Request, content: bytes) -> bytes:
    """Send another version first: of the same size, beginning and end, so a mixture looks whole."""
    if request.number > 1:
        return content
    return content[:30_000] + other_version(content[30_000:60_000]) + content[60_000:]


@pytest.mark.parametrize(
    ("etag", "second", "ranges"),
    [
        ("strong", None, [None, "bytes=40000-"]),
        ("strong", ShiftedRange(0), [None, "bytes=40000-", None]),
        ("weak", None, [None, None]),
        (None, None, [None, None]),
    ],
)
def test_versions_are_never_mixed(
    server: ReleaseServer,
    tmp_path: Path,
    etag: str | None,
    second: Fault | None,
    ranges: list[str | None],
) -> None:
    server.etag = etag
    server.has_last_modified = False
    server.faults = [at(MESH_PATH, Cut(40_000), second)]
    server.change = change_middle_at_first

    assert not fetch(server, tmp_path).failures

    assert [request.range for request in server.requests(MESH_PATH)] == ranges
    assert fetched(tmp_path) == digests(server.root)


def answer_with_range(answer: Answer, request: Request) -> None:
    """Answer a request without a range as if it had one, of the whole file."""
    answer_part(answer, request.content or b"", 0, len(answer.body))


def test_unrequested_range_is_not_appended_to_bytes_of_a_killed_run(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.etag = None
    server.has_last_modified = False
    server.faults = [at(ending(".txt"), answer_with_range)]
    partial_path = tmp_path / f"scans/{SCENE}/.{SCENE}.txt.part"
    partial_path.parent.mkdir(parents=True)
    partial_path.write_text("old = 1\n")

    assert not fetch(server, tmp_path).failures

    assert fetched(tmp_path) == digests(server.root)


# Answers after which a file is not tried again, and what is said of them.
LAST_FAULTS = [
    (Status(404), "no such file"),
    (Page(), "a web page in place of the file"),
    (Page(b""), "nothing in place of the file"),
    (Page(b" \n<?xml version='1.0'?><Error/>"), "a web page in place of the file"),
]


@pytest.mark.parametrize(("fault", "reason"), LAST_FAULTS)
def test_fault_after_received_bytes_is_named_as_reason(
    server: ReleaseServer, tmp_path: Path, fault: Fault, reason: str
) -> None:
    server.faults = [at(MESH_PATH, Cut(20_000), Cut(10_000), then=fault)]

    (failure,) = fetch(server, tmp_path).failures

    assert reason in failure.message
    assert not list(tmp_path.rglob(f"{SCENE}{MESH}"))


@pytest.mark.parametrize("fault", [fault for fault, _ in LAST_FAULTS])
def test_received_bytes_are_kept_for_the_next_run(
    server: ReleaseServer, tmp_path: Path, fault: Fault
) -> None:
    server.faults = [at(MESH_PATH, Cut(20_000), Cut(10_000), then=fault)]
    fetch(server, tmp_path)
    server.faults = []

    assert not fetch(server, tmp_path).failures
    assert server.bytes_sent_again(MESH_PATH) == 0
    assert fetched(tmp_path) == digests(server.root)


@pytest.mark.parametrize(
    ("fault", "jobs", "suffix", "tries"),
    [
        (Status(404), 1, ".txt", 1),
        (Status(403), 4, ".aggregation.json", 1),
        # The first file of a run: this is not an outage.
        (Status(503), 1, LABEL_MAP_NAME, MANY_TRIES),
        (Status(503), 4, MESH, MANY_TRIES),
        (Cut(), 4, MESH, MANY_TRIES),
        (Cut(0), 1, MESH, PATIENCE.tries),
        (Page(), 4, MESH, FEW_TRIES),
        (Stall(), 4, MESH, FEW_TRIES),
    ],
)
def test_files_that_always_fail_cost_their_tries_and_stop_no_other(
    server: ReleaseServer, tmp_path: Path, fault: Fault, jobs: int, suffix: str, tries: int
) -> None:
    server.faults = [at(ending(suffix), then=fault)]

    report = fetch(server, tmp_path, jobs=jobs)

    assert set(failed_suffixes(report)) == {suffix}
    for task in report.failures:
        url_path = task.file.url.removeprefix(server.origin)
        assert len(server.requests(url_path)) <= tries
    others = {name for name in digests(server.root) if not name.endswith(suffix)}
    assert fetched(tmp_path).keys() == others


def test_scenes_of_failed_files_are_listed(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(MESH), then=Status(404))]

    fetch(server, tmp_path)

    assert set(read_scene_list(tmp_path / "failed.txt")) == set(SCENES)


def test_scene_stays_listed_until_a_run_completes_it(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(".txt"), then=Status(404))]
    fetch(server, tmp_path)
    server.faults = []

    for scene_id in SCENES:
        assert scene_id in read_scene_list(tmp_path / "failed.txt")
        fetch(server, tmp_path, [scene_id])
    assert not (tmp_path / "failed.txt").exists()


def test_files_that_fail_alike_share_a_line(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(".txt"), then=Status(404))]

    ((text, _),) = fetch(server, tmp_path).describe_failures()

    beginning = "failed: 3 files: the server has no such file (404); for example http://"
    assert text.startswith(beginning)


def test_a_failing_file_of_each_scene_stops_no_scene(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [at(ending(".txt"), then=Status(503))]
    assert failed_suffixes(fetch(server, tmp_path, jobs=1)) == [".txt"] * len(SCENES)


def test_connections_that_each_bring_20_kb_complete_a_file(
    server: ReleaseServer, tmp_path: Path
) -> None:
    server.faults = [at(MESH_PATH, *[Cut(20_000)] * 24)]

    assert not fetch(server, tmp_path).failures

    assert len(server.requests(MESH_PATH)) <= PATIENCE.tries + 3
    assert server.bytes_sent_again(MESH_PATH) == 0


@pytest.mark.parametrize("size_bytes", [1, 15_000])
def test_connections_that_bring_less_than_16_kb_are_failures(
    server: ReleaseServer, tmp_path: Path, size_bytes: int
) -> None:
    server.faults = [at(MESH_PATH, *[Cut(size_bytes)] * 24)]

    report = fetch(server, tmp_path)

    assert failed_suffixes(report) == [MESH]
    assert f"{PATIENCE.tries} attempts failed, the last one: " in report.failures[0].message
    assert len(server.requests(MESH_PATH)) <= PATIENCE.tries + 3
    assert server.bytes_sent_again(MESH_PATH) == 0


def test_connections_that_never_get_further_are_failures(
    server: ReleaseServer, tmp_path: Path
) -> None:
    """Without ETag and date, each request starts at the first byte."""
    server.etag = None
    server.has_last_modified = False
    ends = (80_000, 50_000, 79_000, 60_000, 70_000, 78_500, 55_000, 65_000)
    server.faults = [at(MESH_PATH, *[Cut(end) for end in ends * 24])]

    report = fetch(server, tmp_path)

    assert failed_suffixes(report) == [MESH]
    assert f"{PATIENCE.tries} attempts failed, the last one: " in report.failures[0].message
    assert len(server.requests(MESH_PATH)) <= PATIENCE.tries + 2


def test_pipes_folders_and_links_in_the_way_fail_by_themselves(
    server: ReleaseServer, tmp_path: Path
) -> None:
    folder = tmp_path / "scans" / SCENE
    folder.mkdir(parents=True)
    os.mkfifo(folder / f"{SCENE}.txt")
    (folder / f"{SCENE}.aggregation.json").mkdir()
    (folder / f"{SCENE}{SEGMENTS}").symlink_to("/nowhere")

    report = fetch(server, tmp_path)

    assert {task.file.kind.suffix: task.reason for task in report.failures} == {
        ".txt": "is a named pipe, expected a file",
        ".aggregation.json": "cannot be read: Is a directory",
        SEGMENTS: "is a link that leads nowhere",
    }


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file outside the data folder, to which a partial file is a link."""
    path = tmp_path / "outside"
    path.write_text("somebody's")
    return path


@pytest.fixture
def blocked_dir(tmp_path: Path, outside: Path) -> Path:
    """A data folder with pipes and a link under the names of partial files."""
    folder = tmp_path / "data/scans" / SCENE
    folder.mkdir(parents=True)
    os.mkfifo(folder / f".{SCENE}.txt.part")
    os.mkfifo(folder / f".{SCENE}.aggregation.json.part.version")
    (folder / f".{SCENE}{MESH}.part").symlink_to(outside)
    return tmp_path / "data"


def test_pipes_and_links_as_partial_files_are_replaced(
    server: ReleaseServer, blocked_dir: Path
) -> None:
    assert not fetch(server, blocked_dir).failures
    assert fetched(blocked_dir) == digests(server.root)


def test_nothing_is_written_through_a_link_as_partial_file(
    server: ReleaseServer, blocked_dir: Path, outside: Path
) -> None:
    fetch(server, blocked_dir)
    assert outside.read_text() == "somebody's"


@pytest.fixture(scope="module")
def redirected(release_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> DownloadReport:
    """A download whose files are redirected to a mirror and to several wrong addresses."""
    with ReleaseServer(release_dir) as mirror, ReleaseServer(release_dir) as dead:
        dead.stop()
        origins = {
            ".txt": mirror.origin,
            ".aggregation.json": "",
            LABELS_MESH: dead.origin,
            MESH: "file:///etc",
            SEGMENTS: "http://[::1",
        }
        rules = [at(ending(suffix), then=Redirect(origin=to)) for suffix, to in origins.items()]
        with ReleaseServer(release_dir, faults=rules) as server:
            report = fetch(server, tmp_path_factory.mktemp("redirected"))
            assert len(server.requests(MESH_PATH)) <= 3
    return report


def test_redirection_to_a_mirror_is_followed(redirected: DownloadReport) -> None:
    assert ".txt" not in failed_suffixes(redirected)


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        (".aggregation.json", "is redirected in a circle"),
        (MESH, "is redirected to an address that cannot be used"),
        (SEGMENTS, "is redirected to an address that cannot be used"),
        (LABELS_MESH, "127.0.0.1 refuses the connection"),
    ],
)
def test_wrong_redirection_is_named_as_reason(
    redirected: DownloadReport, suffix: str, reason: str
) -> None:
    reasons = {task.reason for task in redirected.failures if task.file.kind.suffix == suffix}

    assert len(reasons) == 1
    assert reasons.pop().endswith(reason)


def test_body_larger_than_any_file_of_its_kind_is_broken_off(
    server: ReleaseServer, tmp_path: Path
) -> None:
    with_length = scene_url_path(SCENES[0], ".txt")
    without_length = scene_url_path(SCENES[1], ".txt")
    for path in (with_length, without_length):
        server.files[path] = b"key = value\n" * 1_000_000
    server.faults = [at(without_length, then=NoLength())]

    report = fetch(server, tmp_path)

    failed_paths = [task.file.url.removeprefix(server.origin) for task in report.failures]
    assert failed_paths == [with_length, without_length]
    limit = "no file of this kind has more than 1.0 MB"
    assert all(limit in task.message for task in report.failures)
    assert report.received_bytes < 10_000_000


def test_file_with_a_length_beyond_the_disk_fails(
    server: ReleaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=1 << 40, free=300_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    server.faults = [at(MESH_PATH, then=Header("Content-Length", "350000000"))]

    report = fetch(server, tmp_path)

    assert failed_suffixes(report) == [MESH]
    assert "has 350.0 MB, but only 300.0 MB is free on the disk" in report.failures[0].message


@pytest.mark.parametrize("seed", range(6))
def test_download_survives_random_faults(server: ReleaseServer, tmp_path: Path, seed: int) -> None:
    expected = digests(server.root)
    dice = random.Random(seed)
    server.faults = [at(None, *random_faults(dice, 5))]
    server.etag = dice.choice(["strong", "weak", None])

    for _ in range(7):
        report: Any = None
        try:
            report = fetch(server, tmp_path)
        except TransferError as error:
            # The first requests were all refused.
            assert "refuses all of the first files" in str(error)  # noqa: PT017 - may also succeed
        assert finished(tmp_path).items() <= expected.items()
        if report is not None and not report.failures:
            break

    assert fetched(tmp_path) == expected
    entries = read_lock(tmp_path / "scannet.lock")
    assert {name: entry.sha256 for name, entry in entries.items()} == expected
