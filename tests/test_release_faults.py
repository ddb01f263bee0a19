"""Each fault of the release server does what it says."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
import requests
from certificates import make_private_authority
from raw_client import MESH, ask, get, is_refused
from release_faults import (
    Cut,
    Delay,
    Gzip,
    HtmlPage,
    NoLength,
    OtherVersion,
    RangeRefused,
    RangesIgnored,
    Redirect,
    Reset,
    ServerDown,
    ShiftedRange,
    Slow,
    Stall,
    Status,
    Trickle,
    WrongLength,
    always,
    another_version,
    at,
    at_random,
    ending,
)
from release_server import ReleaseServer, Request, scene_url_path

from scannet_prep.synthetic import write_release

PATIENCE_S = 0.15  # until a test believes that nothing more comes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("release") / "ScanNet"
    write_release(root, ["scene0000_00"], vertices=500)
    return root


@pytest.fixture(scope="module")
def mesh(root: Path) -> bytes:
    return (root / "scans/scene0000_00/scene0000_00_vh_clean_2.ply").read_bytes()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_private_authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("offset", [0, 1, 300, 10**9])
@pytest.mark.parametrize(("fault", "end"), [(Cut, "FIN"), (Reset, "RST"), (Stall, "silence")])
def test_an_answer_breaks_off_after_so_many_bytes(root: Path, mesh: bytes, offset: int, fault: type, end: str) -> None:
    with ReleaseServer(root, faults=[at(MESH, None, fault(offset))]) as server:
        assert ask(server).body == mesh
        reply = ask(server, patience_s=PATIENCE_S if fault is Stall else 20, Range="bytes=10-")
        assert (reply.status, reply.body, reply.ending) == (206, mesh[10 : 10 + offset], end)
        assert reply.headers["Content-Length"] == str(len(mesh) - 10)
        assert server.sent(MESH)[1:] == ([(10, len(reply.body))] if offset else [])
        assert ask(server).body == mesh


@pytest.mark.parametrize(("fault", "end"), [(Cut(-1), "FIN"), (Reset(), "RST"), (Stall(-1), "silence")])
def test_an_answer_breaks_off_before_its_status(root: Path, fault: Cut | Reset | Stall, end: str) -> None:
    with ReleaseServer(root, faults=[at(MESH, fault)]) as server:
        reply = ask(server, patience_s=PATIENCE_S if end == "silence" else 20)
        assert (reply.status, reply.body, reply.ending) == (None, b"", end)
        assert [r.status for r in server.requests()] == [None]


def test_a_stall_for_a_time_ends_and_so_does_a_quick_trickle(root: Path, mesh: bytes) -> None:
    with ReleaseServer(
        root, faults=[at(MESH, Stall(100, seconds=0.01), Trickle(0.001, after_bytes=len(mesh) - 20))]
    ) as server:
        assert [ask(server).body, ask(server).body] == [mesh, mesh]


def test_slow_answers_come_in_part_and_late_ones_not_at_all_to_those_who_do_not_wait(root: Path, mesh: bytes) -> None:
    with ReleaseServer(root, faults=[at(MESH, Trickle(60, after_bytes=20), Slow(1000), Delay(60))]) as server:
        assert ask(server, patience_s=PATIENCE_S).body == mesh[:21]
        body = ask(server, patience_s=PATIENCE_S).body
        assert 0 < len(body) < len(mesh)
        assert mesh.startswith(body)
        assert ask(server, patience_s=PATIENCE_S).status is None
        server.bytes_per_s = 1000
        assert 0 < len(ask(server, patience_s=PATIENCE_S).body) < len(mesh)
        server.request_latency_s = 60
        assert ask(server, patience_s=PATIENCE_S).status is None


def test_latency_of_connections_is_for_new_ones_only(root: Path, mesh: bytes) -> None:
    with (
        ReleaseServer(root) as server,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as client,
    ):
        client.connect()
        for _ in range(2):
            client.request("GET", MESH)
            assert client.getresponse().read() == mesh
            server.connection_latency_s = 60
        assert ask(server, patience_s=PATIENCE_S).ending == "silence"
        assert len(server.requests()) == 2


def test_errors_say_when_to_come_back(root: Path) -> None:
    faults = [Status(500), Status(429, retry_after_s=7), Status(503, retry_after_s=7, as_date=True), Status(403)]
    with ReleaseServer(root, faults=[at(MESH, *faults, then=Status(404))]) as server:
        now_s = time.time()
        replies = [ask(server) for _ in range(6)]
        assert [reply.status for reply in replies] == [500, 429, 503, 403, 404, 404]
        assert [reply.headers.get("Retry-After") for reply in replies[:2]] == [None, "7"]
        assert parsedate_to_datetime(replies[2].headers["Retry-After"]).timestamp() >= now_s + 7
        assert server.sent(MESH) == []


def test_ranges_are_refused_or_ignored_or_answered_with_others(root: Path, mesh: bytes) -> None:
    faults = [RangeRefused(), RangesIgnored(), ShiftedRange(-4), ShiftedRange(4)]
    with ReleaseServer(root, faults=[at(MESH, *faults)]) as server:
        refused, ignored, early, late = [ask(server, Range="bytes=10-") for _ in faults]
        assert (refused.status, refused.headers["Content-Range"]) == (416, f"bytes */{len(mesh)}")
        assert (ignored.status, ignored.body, "Accept-Ranges" in ignored.headers) == (200, mesh, False)
        for reply, start in ((early, 6), (late, 14)):
            assert (reply.status, reply.body) == (206, mesh[start:])
            assert reply.headers["Content-Range"] == f"bytes {start}-{len(mesh) - 1}/{len(mesh)}"
        server.faults = [always(None, RangeRefused())]
        assert ask(server).body == mesh


def test_lengths_lie_or_are_left_out(root: Path, mesh: bytes) -> None:
    faults = [WrongLength(5), WrongLength(-5), NoLength(), NoLength(is_chunked=False)]
    with ReleaseServer(root, faults=[at(MESH, *faults)]) as server:
        long, short, chunked, endless = [ask(server) for _ in faults]
        assert (long.body, long.headers["Content-Length"]) == (mesh, str(len(mesh) + 5))
        assert (short.body, short.headers["Content-Length"]) == (mesh, str(len(mesh) - 5))
        assert chunked.body == b"%x\r\n%b\r\n0\r\n\r\n" % (len(mesh), mesh)
        assert (endless.body, "Content-Length" in endless.headers | chunked.headers) == (mesh, False)
        server.faults = [always(None, NoLength(), Cut(9))]
        assert ask(server).body == b"9\r\n%b\r\n" % mesh[:9]
        assert server.sent(MESH)[-1] == (0, 9)


def test_other_content_comes_in_place_of_the_file(root: Path, mesh: bytes) -> None:
    with ReleaseServer(root, faults=[at(MESH, Gzip(), HtmlPage(), OtherVersion(), None)]) as server:
        compressed, page, other, true = [ask(server) for _ in range(4)]
        assert (compressed.headers["Content-Encoding"], gzip.decompress(compressed.body)) == ("gzip", mesh)
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert page.body.startswith(b"<!DOCTYPE html>")
        assert other.body == another_version(mesh)
        assert all(a != b for a, b in zip(other.body, mesh, strict=True))
        assert all(other.headers[name] != true.headers[name] for name in ("ETag", "Last-Modified"))
        assert server.sent(MESH) == [(0, len(mesh))]
        server.faults = [always(None, OtherVersion())]
        for validator, status in ((other.headers["ETag"], 206), (true.headers["ETag"], 200)):
            assert ask(server, Range="bytes=3-", If_Range=validator).status == status
        server.etag, server.faults = "weak", [always(None, OtherVersion(has_same_validators=True))]
        reply = ask(server)
        assert (reply.body, reply.headers["ETag"]) == (another_version(mesh), f"W/{true.headers['ETag']}")


def test_redirects_lead_elsewhere_also_to_https_and_back_or_in_circles(
    root: Path, mesh: bytes, authority: tuple[Path, Path]
) -> None:
    ca_path, certificate_path = authority
    with ReleaseServer(root) as plain, ReleaseServer(root, certificate=certificate_path) as secure:
        for here, there in ((plain, secure), (secure, plain)):
            here.faults, there.faults = [always(None, Redirect(origin=there.origin, status=301))], []
            response = get(here.origin + MESH, ca_path)
            assert (response.content, response.url) == (mesh, there.origin + MESH)
        plain.faults = [always("/old", Redirect(MESH))]
        assert get(f"{plain.origin}/old").content == mesh
        plain.faults = [always(None, Redirect())]
        with pytest.raises(requests.TooManyRedirects):
            get(plain.origin + MESH)


def test_a_server_goes_down_and_comes_back_on_its_port(root: Path, mesh: bytes) -> None:
    with ReleaseServer(root, faults=[at(MESH, None, ServerDown(), None, ServerDown(0.05))]) as server:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as idle:
            idle.connect()
            assert ask(server).body == mesh
            assert ask(server).status is None
            assert is_refused(server.port)
            assert idle.sock.recv(1) == b""
        server.start()
        assert ask(server).body == mesh
        assert ask(server).status is None
        while is_refused(server.port):
            time.sleep(0.005)
        assert ask(server).body == mesh
        server.stop()
        assert is_refused(server.port)


def request_number(path: str, number: int) -> Request:
    return Request("GET", path, number, {}, 1, "", 0)


def test_rules_choose_by_path_number_and_chance() -> None:
    paths = [scene_url_path(f"scene{i:04}_00", suffix) for i in range(500) for suffix in (".txt", "_vh_clean_2.ply")]
    hits = [path for path in paths if at(ending(".ply"), None, Cut(1))(request_number(path, 2))]
    assert hits == paths[1::2]
    rule, again = (at_random(3, 0.3, Cut(1), Status(500), last_number=2) for _ in range(2))
    found = [rule(request_number(path, 1)) for path in paths]
    assert found == [again(request_number(path, 1)) for path in paths]
    assert {fault for faults in found for fault in faults} == {Cut(1), Status(500)}
    assert 200 < sum(map(len, found)) < 400
    assert found != [rule(request_number(path, 2)) for path in paths]
    assert not any(rule(request_number(path, 3)) for path in paths)


def test_many_clients_at_once_get_whole_files_through_many_faults(root: Path, mesh: bytes) -> None:
    faults = [at_random(1, 0.5, Status(503), Cut(50), Reset(0), Reset(50), Gzip(), WrongLength(9), last_number=100)]

    def fetch(_: int) -> int:
        for count in itertools.count(1):
            reply = ask(server)
            if reply.body == mesh and reply.headers["Content-Length"] == str(len(mesh)):
                return count
        raise AssertionError

    with ReleaseServer(root, faults=faults) as server, ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(fetch, range(100)))
        assert sorted(r.number for r in server.requests(MESH)) == list(range(1, sum(counts) + 1))
        assert sum(counts) > 100
        assert 1 < server.max_connections <= 8
