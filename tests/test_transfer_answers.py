"""Answers that contradict themselves, or what came before: nothing wrong is kept, nothing right is given up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import downloads
import pytest
import release_faults as faults
from commands import digests
from downloads import MESH, fetched
from release_faults import at, ending
from release_server import ReleaseServer, scene_url_path

from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.stages.download import DownloadReport
from scannet_prep.synthetic import write_release

SCENE = "scene0000_00"
MESH_PATH = scene_url_path(SCENE, MESH)
PATIENCE = replace(downloads.PATIENCE, read_timeout_s=0.5)


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    release_dir = tmp_path_factory.mktemp("release")
    write_release(release_dir, [SCENE], vertices=3_000)
    return release_dir


def fetch(server: ReleaseServer, data_dir: Path, policy: TransferPolicy = PATIENCE) -> DownloadReport:
    return downloads.fetch(server, data_dir, [SCENE], policy=policy)


def change_end(content: bytes) -> bytes:
    """Another version that begins alike and has the same size, so that a mixture looks whole."""
    return content[:30_000] + bytes(byte ^ 1 for byte in content[30_000:60_000]) + content[60_000:]


@pytest.mark.parametrize("etag", ["strong", None])
def test_the_rest_of_another_version_is_not_added_where_the_server_ignores_if_range(
    release_dir: Path, tmp_path: Path, etag: str | None
) -> None:
    rules = [
        at(MESH_PATH, faults.OtherVersion(change_end), faults.IfRangeIgnored()),
        at(MESH_PATH, faults.Cut(40_000)),
    ]
    with ReleaseServer(release_dir, faults=rules, etag=etag) as server:  # type: ignore[arg-type]  # a parameter
        assert not fetch(server, tmp_path).failures
        assert len(server.requests(MESH_PATH)) == 3
    assert fetched(tmp_path) == digests(release_dir)


@pytest.mark.parametrize(
    "header",
    [
        ("Content-Encoding", "gzip"), ("Content-Range", None), ("Content-Range", f"bytes 20000-{'9' * 5_000}/*"),
        ("Content-Range", "bytes 20000-20099/*"), ("ETag", None), ("Content-Type", "multipart/byteranges"),
    ],
)  # fmt: skip
def test_a_rest_that_may_not_be_one_is_fetched_anew(
    release_dir: Path, tmp_path: Path, header: tuple[str, str | None]
) -> None:
    cut, wrong = faults.Cut(20_000), faults.Header(*header)
    with ReleaseServer(release_dir, faults=[at(MESH_PATH, cut, wrong)]) as server:
        assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == digests(release_dir)


@pytest.mark.parametrize(
    "page", [faults.HtmlPage(), faults.HtmlPage(b""), faults.HtmlPage(b" \n<?xml version='1.0'?><Error/>")]
)
def test_what_has_arrived_is_not_given_up_for_a_page(release_dir: Path, tmp_path: Path, page: faults.HtmlPage) -> None:
    with ReleaseServer(release_dir, faults=[at(MESH_PATH, faults.Cut(60_000), page, page)]) as server:
        assert not fetch(server, tmp_path).failures
        assert server.bytes_sent_again(MESH_PATH) == 0
    assert fetched(tmp_path) == digests(release_dir)


def test_what_has_arrived_outlives_runs_that_meet_pages_only(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir, faults=[at(MESH_PATH, faults.Cut(60_000), then=faults.HtmlPage())]) as server:
        assert "a page in place of the file" in fetch(server, tmp_path).failures[0].message
        server.faults = []
        assert not fetch(server, tmp_path).failures
        assert server.bytes_sent_again(MESH_PATH) == 0
    assert fetched(tmp_path) == digests(release_dir)


@pytest.mark.parametrize("value", ["\u00b2", "9" * 5_000, "9" * 30, "-1", "", "1, 2"])
def test_a_length_that_is_none_harms_nobody(release_dir: Path, tmp_path: Path, value: str) -> None:
    with ReleaseServer(release_dir, faults=[at(MESH_PATH, faults.Header("Content-Length", value))]) as server:
        assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == digests(release_dir)


def test_chunks_count_where_a_length_contradicts_them(release_dir: Path, tmp_path: Path) -> None:
    both = at(MESH_PATH, then=faults.NoLength()), at(MESH_PATH, then=faults.Header("Content-Length", "7"))
    with ReleaseServer(release_dir, faults=both) as server:
        assert not fetch(server, tmp_path).failures
    assert fetched(tmp_path) == digests(release_dir)


@pytest.mark.parametrize(
    "place", ["/\u00ff", "http://[::1/", f"http://{'a' * 80}.example/", "http://127.0.0.1:99999/", "file:///etc/passwd"]
)
def test_a_redirection_to_what_is_no_address_costs_only_its_file(release_dir: Path, tmp_path: Path, place: str) -> None:
    rules = [at(MESH_PATH, then=faults.Status(302)), at(MESH_PATH, then=faults.Header("Location", place))]
    with ReleaseServer(release_dir, faults=rules) as server:
        report = fetch(server, tmp_path)
        assert len(server.requests(MESH_PATH)) == 1
    assert [item.file.kind.suffix for item in report.failures] == [MESH]
    assert "is no address that can be asked" in report.failures[0].message


@pytest.mark.parametrize("value", ["\u00b2", "Wed, 99999999999999999999 Oct 2015 07:28:00 GMT", "9" * 400])
def test_a_retry_after_that_is_none_harms_nobody(release_dir: Path, tmp_path: Path, value: str) -> None:
    rules = [at(MESH_PATH, faults.Status(503)), at(MESH_PATH, faults.Header("Retry-After", value))]
    with ReleaseServer(release_dir, faults=rules) as server:
        assert not fetch(server, tmp_path).failures


@pytest.mark.parametrize("fault", [faults.Reset(), faults.Cut(faults.BEFORE_STATUS)])
def test_a_file_whose_connections_always_end_is_no_outage(
    release_dir: Path, tmp_path: Path, fault: faults.Fault
) -> None:
    with ReleaseServer(release_dir, faults=[at(MESH_PATH, then=fault)]) as server:
        report = fetch(server, tmp_path)
        assert len(server.requests(MESH_PATH)) == PATIENCE.attempts
    assert [item.file.kind.suffix for item in report.failures] == [MESH]


def test_a_file_that_is_redirected_to_a_dead_server_is_no_outage(release_dir: Path, tmp_path: Path) -> None:
    with ReleaseServer(release_dir) as dead:
        dead.stop()
        rule = at(ending(MESH), then=faults.Redirect(origin=dead.origin))
        with ReleaseServer(release_dir, faults=[rule]) as server:
            report = fetch(server, tmp_path, replace(PATIENCE, attempts=4))
            assert len(server.requests(MESH_PATH)) == 4
    assert [item.file.kind.suffix for item in report.failures] == [MESH]
