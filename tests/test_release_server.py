"""The servers that the download is tested against do what they say."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from pathlib import Path

import pytest
import requests
from certificates import make_private_authority
from nginx_server import NginxServer, needs_nginx
from raw_client import MESH, ask, get
from release_faults import Cut, at
from release_server import LABEL_MAP_URL_PATH, TERMS_URL_PATH, ReleaseServer, scene_url_path

from scannet_prep.synthetic import write_release

TEST_MESH = scene_url_path("scene0707_00", "_vh_clean_2.ply")
SENSOR = "/scannet/v1/scans/scene0000_00/scene0000_00.sens"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("release") / "ScanNet"
    write_release(root, ["scene0000_00", "scene0707_00"], vertices=500)
    (root / "scans/scene0000_00/scene0000_00.sens").write_bytes(b"frames")
    return root


@pytest.fixture(scope="module")
def mesh(root: Path) -> bytes:
    return (root / "scans/scene0000_00/scene0000_00_vh_clean_2.ply").read_bytes()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_private_authority(tmp_path_factory.mktemp("authority"))


def test_everything_lies_where_scannet_has_it(root: Path) -> None:
    with ReleaseServer(root) as server:
        for path in (path for path in root.rglob("*") if path.is_file()):
            if path.parent == root:
                url_path = LABEL_MAP_URL_PATH
            elif path.suffix == ".sens":
                url_path = SENSOR
            else:
                url_path = f"/scannet/v2/scans/{path.parent.name}/{path.name}"
            reply = ask(server, url_path)
            assert (reply.status, reply.body, reply.ending) == (200, path.read_bytes(), "FIN")
        assert ask(server, TERMS_URL_PATH).body.startswith(b"%PDF")
        assert ask(server, "/scannet/v2/scans.txt").body == b"scene0000_00\n"
        for absent in (SENSOR.replace("v1", "v2"), MESH.replace("v2", "v1"), "/", "/scannet/../scans.txt"):
            assert ask(server, absent).status == 404


def test_a_connection_serves_many_requests_and_each_is_recorded(root: Path, mesh: bytes) -> None:
    with (
        ReleaseServer(root) as server,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as client,
    ):
        for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"Range": "bytes=3-", "If-Range": '"x"'})):
            client.request(method, MESH, headers=headers)
            response = client.getresponse()
            assert response.headers["Content-Length"] == str(len(mesh))
            assert response.read() == (b"" if method == "HEAD" else mesh)
        log = server.requests(MESH)
        assert [(r.method, r.number, r.connection, r.status) for r in log] == [
            ("GET", 1, 1, 200), ("HEAD", 2, 1, 200), ("GET", 3, 1, 200),
        ]  # fmt: skip
        assert (log[2].range, log[2].if_range, log[0].range) == ("bytes=3-", '"x"', None)
        assert len({r.thread for r in log}) == 1
        assert sorted(log, key=lambda r: r.time_s) == log
        assert server.sent(MESH) == [(0, len(mesh))] * 2
        assert server.bytes_sent_again(MESH) == len(mesh)
        server.forget()
        assert (server.requests(), server.sent(MESH), server.connection_count) == ([], [], 0)


@pytest.mark.parametrize(
    ("text", "span"),
    [("bytes=0-", (0, None)), ("bytes=7-", (7, None)), ("bytes=7-7", (7, 8)), ("bytes=7-999999999", (7, None)),
     ("bytes=-5", (-5, None)), ("bytes=-999999999", (0, None))],
)  # fmt: skip
def test_a_range_is_answered_with_these_bytes(root: Path, mesh: bytes, text: str, span: tuple[int, int]) -> None:
    with ReleaseServer(root) as server:
        reply = ask(server, Range=text)
        start, end, _ = slice(*span).indices(len(mesh))
        assert (reply.status, reply.body) == (206, mesh[start:end])
        assert reply.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(mesh)}"
        assert server.sent(MESH) == [(start, end - start)]


def test_a_range_that_makes_no_sense_is_ignored_and_one_behind_the_end_refused(root: Path, mesh: bytes) -> None:
    with ReleaseServer(root) as server:
        for text in ("bytes=9-3", "bytes=-", "lines=0-", "bytes=0-1,5-6"):
            assert (ask(server, Range=text).status, ask(server, Range=text).body) == (200, mesh)
        reply = ask(server, Range=f"bytes={len(mesh)}-")
        assert (reply.status, reply.body) == (416, b"")
        assert reply.headers["Content-Range"] == f"bytes */{len(mesh)}"


def test_if_range_takes_strong_validators_only(root: Path) -> None:
    with ReleaseServer(root) as server:
        headers = ask(server).headers
        for validator, status in (
            (headers["ETag"], 206), (headers["Last-Modified"], 206), (f"W/{headers['ETag']}", 200), ('"other"', 200),
        ):  # fmt: skip
            assert ask(server, Range="bytes=3-", If_Range=validator).status == status
        server.etag = "weak"
        tag = ask(server).headers["ETag"]
        assert tag == f"W/{headers['ETag']}"
        assert ask(server, Range="bytes=3-", If_Range=tag).status == 200
        server.etag, server.has_last_modified = None, False
        reply = ask(server, Range="bytes=3-")
        assert (reply.status, reply.headers.keys() & {"ETag", "Last-Modified"}) == (206, set())


def test_open_connections_are_counted_as_long_as_they_are_open(root: Path) -> None:
    with ReleaseServer(root) as server:
        for _ in range(20):
            ask(server)
        assert (server.connection_count, server.max_connections) == (20, 1)
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                client = http.client.HTTPConnection("127.0.0.1", server.port)
                stack.enter_context(contextlib.closing(client))
                client.request("GET", MESH)
                client.getresponse().read()
            assert server.max_connections == 3
        ask(server)
        assert server.max_connections == 3


def connect_strictly(port: int, ca_path: Path) -> None:
    context = ssl.create_default_context(cafile=ca_path)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        context.wrap_socket(sock, server_hostname="127.0.0.1").close()


def test_only_those_who_know_the_authority_trust_the_certificate(
    root: Path, mesh: bytes, authority: tuple[Path, Path], tmp_path: Path
) -> None:
    ca_path, certificate_path = authority
    with ReleaseServer(root, certificate=certificate_path, faults=[at(MESH, None, Cut(99))]) as server:
        connect_strictly(server.port, ca_path)
        assert get(server.origin + MESH, ca_path).content == mesh
        with pytest.raises(requests.exceptions.ChunkedEncodingError, match="99 bytes read"):
            get(server.origin + MESH, ca_path)
        with pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(server.origin + MESH)
    ca_path, certificate_path = make_private_authority(tmp_path, "DNS:elsewhere")
    with ReleaseServer(root, certificate=certificate_path) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            connect_strictly(server.port, ca_path)
        assert ask(server).status is None


@needs_nginx
def test_nginx_serves_the_release_resumes_goes_down_and_slows_down(root: Path, mesh: bytes, tmp_path: Path) -> None:
    with NginxServer(root, tmp_path) as server:
        ca_path = server.ca_path
        for path, file in ((MESH, mesh), (SENSOR, b"frames"), (LABEL_MAP_URL_PATH, None), (TEST_MESH, None)):
            response = get(server.origin + path, ca_path)
            assert response.status_code == 200
            assert file in (None, response.content)
        tag = get(server.origin + MESH, ca_path).headers["ETag"]
        part = get(server.origin + MESH, ca_path, headers={"Range": "bytes=9-", "If-Range": tag})
        assert (part.status_code, part.content) == (206, mesh[9:])
        with pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(server.origin + MESH)
        server.stop()
        last = server.requests(MESH)[-1]
        assert (last.status, last.sent_bytes, last.range, last.if_range) == (206, len(mesh) - 9, "bytes=9-", tag)
        with pytest.raises(requests.exceptions.ConnectionError, match="refused"):
            get(server.origin + MESH, ca_path)
        server.bytes_per_s = 1000
        server.start()
        with get(server.origin + MESH, ca_path, stream=True) as response:
            received = response.raw.read(500)
            server.stop()
            with contextlib.suppress(Exception):
                received += response.raw.read()
        assert 500 <= len(received) < len(mesh)
        assert mesh.startswith(received)
