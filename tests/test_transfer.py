"""Downloads from a server that misbehaves: the folder ends up equal to the release, or the run says what failed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
import release_faults as faults
from commands import digests
from downloads import MESH, PATIENCE, fetched
from downloads import fetch as fetch_scenes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from release_faults import at, at_random, ending
from release_scenarios import passing_faults
from release_server import ReleaseServer

from scannet_prep.errors import TransferError
from scannet_prep.files import owner_token
from scannet_prep.raw.mesh import check_mesh_file
from scannet_prep.release import SPLIT_DIRS
from scannet_prep.remote.failure import parse_retry_after
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.scene import SceneId
from scannet_prep.splits import find_official_split
from scannet_prep.stages import download
from scannet_prep.stages.download import DownloadReport, FileOutcome
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

SCENES = ["scene0000_00", "scene0011_00", "scene0707_00"]
CHUNK_BYTES = 256 * 1024


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, SCENES, vertices=3_000)
    return release_dir


@pytest.fixture(scope="module")
def expected(release_dir: Path) -> dict[str, str]:
    return digests(release_dir)


def fetch(server: ReleaseServer, data_dir: Path, *, jobs: int = 4, policy: TransferPolicy = PATIENCE) -> DownloadReport:
    return fetch_scenes(server, data_dir, SCENES, jobs=jobs, policy=policy)


PASSING = passing_faults(40_000)


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("etag", ["strong", "weak", None])
def test_faults_that_pass_leave_no_trace(
    release_dir: Path, expected: dict[str, str], tmp_path: Path, name: str, etag: Any
) -> None:
    with ReleaseServer(release_dir, faults=[at(ending(MESH), *PASSING[name])], etag=etag) as server:
        report = fetch(server, tmp_path)
        assert not report.failures, report.failures
        assert fetched(tmp_path) == expected


@pytest.mark.parametrize("etag", ["strong", "weak", None])
def test_a_file_that_changes_between_two_pieces_is_fetched_anew(
    release_dir: Path, expected: dict[str, str], tmp_path: Path, etag: Any
) -> None:
    rules = [at(ending(MESH), faults.OtherVersion()), at(ending(MESH), faults.Cut(20_000))]
    with ReleaseServer(release_dir, faults=rules, etag=etag, has_last_modified=False) as server:
        report = fetch(server, tmp_path)
        assert not report.failures, report.failures
        assert fetched(tmp_path) == expected


def test_a_broken_off_file_goes_on_where_it_stopped(
    release_dir: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    rule = at(ending(MESH), faults.Cut(20_000), faults.Cut(10_000), faults.Reset(8_000))
    with ReleaseServer(release_dir, faults=[rule]) as server:
        fetch(server, tmp_path)
        assert fetched(tmp_path) == expected
        paths = {request.path for request in server.requests()}
        assert sum(server.bytes_sent_again(path) for path in paths) <= 3 * 8_000  # what a reset threw away in flight


@pytest.mark.parametrize("fault", [faults.TrickledHead(0.02), faults.EndlessChunkSize(0.02)])
def test_a_trickle_outside_of_the_content_is_broken_off_too(
    release_dir: Path, expected: dict[str, str], tmp_path: Path, fault: faults.Fault
) -> None:
    with ReleaseServer(release_dir, faults=[at(ending(MESH), fault)]) as server:
        assert not fetch(server, tmp_path).failures
        assert fetched(tmp_path) == expected
        for scene_id in SCENES:
            assert len(server.requests(f"/scannet/v2/scans/{scene_id}/{scene_id}{MESH}")) == 2


def test_a_next_run_goes_on_too(release_dir: Path, expected: dict[str, str], tmp_path: Path) -> None:
    hasty = replace(PATIENCE, attempts=1)
    with ReleaseServer(release_dir, faults=[at(ending(MESH), faults.Cut(30_000))]) as server:
        report = fetch(server, tmp_path, policy=hasty)
        assert {item.outcome for item in report.failures} == {FileOutcome.FAILED}
        assert not any(path.name.endswith(MESH) for path in tmp_path.rglob("scene*"))
        assert not fetch(server, tmp_path, policy=hasty).failures
        assert fetched(tmp_path) == expected
        assert all(server.bytes_sent_again(request.path) == 0 for request in server.requests())


def test_a_page_in_place_of_a_file_never_gets_its_name(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir, faults=[at(ending(MESH), then=faults.HtmlPage())]) as server:
        report = fetch(server, tmp_path)
    assert {item.file.kind.suffix for item in report.failures} == {MESH}
    assert "is an HTML page" in report.failures[0].message
    assert not any(path.name.endswith(MESH) for path in tmp_path.rglob("*"))
    assert sorted((tmp_path / "failed.txt").read_text().split("\n")[1:-1]) == SCENES


def test_missing_and_forbidden_files_are_not_asked_for_again(release_dir: Path, tmp_path: Path) -> None:
    rules = [at(ending(".txt"), then=faults.Status(404)), at(ending(".aggregation.json"), then=faults.Status(403))]
    with ReleaseServer(release_dir, faults=rules) as server:
        report = fetch(server, tmp_path)
        assert {(item.file.kind.suffix, item.outcome) for item in report.failures} == {
            (".txt", FileOutcome.MISSING), (".aggregation.json", FileOutcome.FAILED),
        }  # fmt: skip
        for item in report.failures:
            assert len(server.requests(f"/scannet/{item.file.remote_path}")) == 1


def test_a_file_that_fails_for_ever_stops_no_other(release_dir: Path, expected: dict[str, str], tmp_path: Path) -> None:
    path = f"/scannet/v2/scans/scene0011_00/scene0011_00{MESH}"
    with ReleaseServer(release_dir, faults=[at(path, then=faults.Status(500))]) as server:
        report = fetch(server, tmp_path)
        assert [item.file.local_path for item in report.failures] == [f"scans/scene0011_00/scene0011_00{MESH}"]
        assert len(server.requests(path)) == PATIENCE.attempts
    expected = {name: digest for name, digest in expected.items() if name != report.failures[0].file.local_path}
    assert fetched(tmp_path) == expected


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_name_that_something_else_has_costs_only_its_file(release_dir: Path, tmp_path: Path, make: Any) -> None:
    path = tmp_path / "scans/scene0000_00/scene0000_00.txt"
    path.parent.mkdir(parents=True)
    make(path)
    with ReleaseServer(release_dir) as server:
        report = fetch(server, tmp_path)
    assert [item.file.local_path for item in report.failures] == ["scans/scene0000_00/scene0000_00.txt"]
    assert "is no file" in report.failures[0].message


def test_files_that_are_all_missing_are_told_so(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir, faults=[at(None, then=faults.Status(404))]) as server:
        selection = Selection(scene_ids=tuple(map(SceneId, SCENES)))
        plan = download.plan(tmp_path, [".txt"], selection=selection, base_url=server.base_url)
        report = download.run(plan, policy=PATIENCE, needs_terms=False)
    assert [item.outcome for item in report.results] == [FileOutcome.MISSING] * len(SCENES)


def test_without_a_validator_attempts_are_bounded_too(release_dir: Path, tmp_path: Path) -> None:
    path = f"/scannet/v2/scans/scene0000_00/scene0000_00{MESH}"
    cuts = [faults.Cut(size) for size in (9_000, 5_000, 8_000, 6_000, 7_000, 8_500, 5_500, 6_500, 7_500, 8_800) * 3]
    with ReleaseServer(release_dir, faults=[at(path, *cuts)], etag=None, has_last_modified=False) as server:
        report = fetch(server, tmp_path)
        assert len(server.requests(path)) == PATIENCE.attempts
    assert len(report.failures) == 1


def test_what_an_earlier_process_of_the_same_number_left_is_taken_over(
    release_dir: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    scene_dir = tmp_path / "scans/scene0000_00"
    scene_dir.mkdir(parents=True)
    owner = owner_token().rpartition("-")[0] + "-1"
    (scene_dir / f".scene0000_00{MESH}.part.{owner}.-").write_bytes(b"old")
    with ReleaseServer(release_dir) as server:
        assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == expected


@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirections_are_followed_but_not_in_circles(release_dir: Path, tmp_path: Path, status: int) -> None:
    with ReleaseServer(release_dir) as mirror:
        rules = [
            at(ending(".txt"), then=faults.Redirect(origin=mirror.origin, status=status)),
            at(ending(".aggregation.json"), then=faults.Redirect(status=status)),
        ]
        with ReleaseServer(release_dir, faults=rules) as server:
            report = fetch(server, tmp_path)
    assert {item.file.kind.suffix for item in report.failures} == {".aggregation.json"}
    assert "in a circle" in report.failures[0].message


def test_a_third_of_all_requests_may_fail(tmp_path: Path) -> None:
    upstream = tmp_path / "upstream"
    scene_ids = [f"scene{number:04d}_00" for number in range(60)]
    write_release(upstream, scene_ids, vertices=500)
    kinds = (faults.Status(500), faults.Cut(1_000), faults.Reset(), faults.Status(503, retry_after_s=1), faults.Cut(0))
    with ReleaseServer(upstream, faults=[at_random(1, 0.3, *kinds)]) as server:
        report = fetch_scenes(server, tmp_path / "x", scene_ids)
    assert len(report.results) == 301
    assert not report.failures
    assert fetched(tmp_path / "x") == digests(upstream)


# Not WrongLength(-9): a text file that is cut short, and announced as that short, looks whole.
ANY_FAULT = st.one_of(
    st.builds(faults.Cut, st.integers(-1, 60_000)),
    st.builds(faults.Reset, st.integers(-1, 60_000)),
    st.sampled_from(
        [
            faults.Status(500), faults.Status(503, retry_after_s=0), faults.Status(429), faults.RangesIgnored(),
            faults.RangeRefused(), faults.ShiftedRange(7), faults.WrongLength(9),
            faults.NoLength(), faults.Gzip(), faults.OtherVersion(),
        ]
    ),
)  # fmt: skip


class Watcher:
    """Looks at a folder all the time: whatever has a final name has to be whole."""

    def __init__(self, folder: Path, expected: dict[str, str]) -> None:
        self.folder, self.expected, self.faults = folder, expected, []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self) -> None:
        while not self.stop.is_set():
            for scene_id in SCENES:
                path = self.folder / SPLIT_DIRS[find_official_split(scene_id)] / scene_id / f"{scene_id}{MESH}"
                try:
                    if path.exists():
                        check_mesh_file(path)
                except Exception as error:  # noqa: BLE001 - told by the test
                    self.faults.append(error)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.thread.join()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(ANY_FAULT, max_size=5), etag=st.sampled_from(["strong", "weak", None]))
def test_whatever_goes_wrong_for_a_while_the_folder_equals_the_release(
    release_dir: Path,
    expected: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    sequence: list[faults.Fault],
    etag: Any,
) -> None:
    data_dir = tmp_path_factory.mktemp("data")
    other_version = any(isinstance(fault, faults.OtherVersion) for fault in sequence)
    with (
        ReleaseServer(release_dir, faults=[at(None, *sequence)], etag=etag) as server,
        Watcher(data_dir, expected) as watcher,
    ):
        for _ in range(5):
            try:
                report = fetch(server, data_dir)
            except TransferError as error:  # ten files in a row were something else
                assert "does not look like" in str(error)  # noqa: PT017 - the run may also succeed
                continue
            if not report.failures:
                break
            (data_dir / "scannet.lock").unlink(missing_ok=True)
    assert not report.failures
    assert not watcher.faults
    if not other_version:  # a whole file of another version is as good as any, when it is the first one seen
        assert fetched(data_dir) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_read_in_both_forms(text: str, expected: float | None) -> None:
    assert parse_retry_after(text, now_s=40.0) == expected


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    yield
    names = [thread.name for thread in threading.enumerate() if "_work" in thread.name]
    assert not names
