"""Connections behind a source of ranges: one set for each process, encrypted where asked for, closed in the end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import make_private_authority
from nginx_server import NginxServer, needs_nginx
from release_server import ReleaseServer, Stall, always
from test_ranges import CONTENT, HERE, PATH, PATIENCE, open_source, part
from urllib3.exceptions import InsecureRequestWarning

from scannet_prep.errors import (
    ArchiveError,
    NotOnServerError,
    ServerDownError,
    TransferError,
    UsageError,
)
from scannet_prep.remote.ranges import TAIL_BYTES, RangeSource


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(tmp_path) as server:
        server.files[PATH] = CONTENT
        yield server


def read_all(source: RangeSource, spans: list[tuple[int, int]]) -> list[bytes]:
    return [source.read(*span) for span in spans]


def read_in_process(source: RangeSource, spans: list[tuple[int, int]], connection: Any) -> None:
    connection.send((read_all(source, spans), threading.active_count()))
    connection.close()


def fetch_in_process(start_method: str, source: RangeSource, spans: list[tuple[int, int]]) -> list[bytes]:
    context = multiprocessing.get_context(start_method)
    here, there = context.Pipe()
    process = context.Process(target=read_in_process, args=(source, spans, there))
    process.start()
    there.close()
    try:
        return here.recv()[0]
    finally:
        process.join()
        here.close()


SPANS = [(i * 50_000, 40_000) for i in range(40)]


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_processes_share_no_connection(server: ReleaseServer, start_method: str) -> None:
    source = open_source(server)
    assert source.read(*SPANS[0]) == part(*SPANS[0])
    mine = {request.connection for request in server.requests(PATH)}
    server.forget()
    assert fetch_in_process(start_method, source, SPANS[1:5]) == [part(*span) for span in SPANS[1:5]]
    theirs = {request.connection for request in server.requests(PATH)}
    assert len(theirs) == 1
    assert not mine & theirs
    server.forget()
    assert source.read(*SPANS[7]) == part(*SPANS[7])  # the child's end has not closed it
    assert {request.connection for request in server.requests(PATH)} <= mine


def test_threads_share_a_source(server: ReleaseServer) -> None:
    source = open_source(server)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda span: source.read(*span), SPANS)) == [part(*span) for span in SPANS]
    assert server.connection_count <= 5


def count_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counts itself, each time


def test_closing_leaves_no_connection_and_reading_opens_again(server: ReleaseServer) -> None:
    sources: list[RangeSource] = []
    before = count_descriptors()
    for ending in ("closed", "forgotten"):
        sources[:] = [open_source(server)]
        for _ in range(2):
            assert sources[0].read(*HERE) == part(*HERE)
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda span: sources[0].read(*span), SPANS[:6]))
        if ending == "closed":
            sources[0].close()
        else:
            sources.clear()
        assert wait_for(lambda: count_descriptors() == before)
    assert sources == []


def wait_for(condition: Callable[[], bool]) -> bool:
    """The server closes its end a moment later."""
    stop = threading.Event()
    return any(condition() or stop.wait(0.01) for _ in range(1_000))


def test_a_thread_that_reads_while_the_source_is_closed_gets_an_error_soon(server: ReleaseServer) -> None:
    source = RangeSource(server.origin + PATH, policy=replace(PATIENCE, slow_window_s=60))
    server.faults = [always(PATH, Stall(1_000))]
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(source.read, *HERE)
        assert wait_for(lambda: bool(server.requests(PATH)[1:]))
        source.close()
        with pytest.raises(ServerDownError, match="stopped"):
            future.result(30)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_private_authority(tmp_path_factory.mktemp("authority"))


def test_certificates_are_verified_unless_told_otherwise(tmp_path: Path, authority: tuple[Path, Path]) -> None:
    ca_path, certificate_path = authority
    with ReleaseServer(tmp_path, certificate=certificate_path) as server:
        server.files[PATH] = CONTENT
        with pytest.raises(TransferError, match="certificate cannot be verified") as caught:
            open_source(server)
        assert "REQUESTS_CA_BUNDLE" in caught.value.hint
        assert open_source(server, certificates=ca_path).read(*HERE) == part(*HERE)
        with pytest.raises(UsageError, match="none: no such file"):
            open_source(server, certificates=tmp_path / "none")
        with pytest.warns(InsecureRequestWarning):
            assert open_source(server, certificates=False).read(*HERE) == part(*HERE)


@needs_nginx
def test_a_real_nginx_over_tls(tmp_path: Path) -> None:
    folder = tmp_path / "nginx"
    folder.mkdir()
    with NginxServer(tmp_path, folder) as nginx:
        path = folder / f"www{PATH}"
        path.write_bytes(CONTENT)
        source = RangeSource(nginx.origin + PATH, certificates=nginx.ca_path, policy=PATIENCE)
        assert (source.size_bytes, source.read(*HERE)) == (len(CONTENT), part(*HERE))
        assert fetch_in_process("fork", source, SPANS) == [part(*span) for span in SPANS]
        nginx.stop()
        timer = threading.Timer(0.2, nginx.start)
        timer.start()
        assert source.read(5, 5) == part(5, 5)
        timer.join()
        assert {request.status for request in nginx.requests(PATH)} == {206}
        path.write_bytes(CONTENT[:-1])
        with pytest.raises(ArchiveError, match="was replaced"):
            source.read(*HERE)
        for size in (TAIL_BYTES, 10, 1):
            path.write_bytes(CONTENT[:size])
            small = RangeSource(nginx.origin + PATH, certificates=nginx.ca_path, policy=PATIENCE)
            assert (small.size_bytes, small.read(0, size)) == (size, CONTENT[:size])
        path.write_bytes(b"")
        with pytest.raises(ArchiveError, match="the file is empty"):
            RangeSource(nginx.origin + PATH, certificates=nginx.ca_path, policy=PATIENCE)
        path.unlink()
        with pytest.raises(NotOnServerError):
            source.read(*HERE)
