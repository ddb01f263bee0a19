"""Ranges of a file on a web server that misbehaves: the right bytes, or an error that says what is wrong."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import release_faults as faults
from certificates import make_private_authority
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nginx_server import NginxServer, needs_nginx
from release_faults import always, at
from release_server import ROOT, ReleaseServer
from urllib3.exceptions import InsecureRequestWarning

from scannet_prep.errors import (
    ArchiveError,
    NotOnServerError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
    UsageError,
)
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.ranges import TAIL_BYTES, RangeSource

PATH = f"{ROOT}scannet.tar.zst"
CONTENT = random.Random(1).randbytes(3 * TAIL_BYTES + 12_345)
HERE = (700_001, 900_000)
PATIENCE = TransferPolicy(
    connect_timeout_s=5,
    read_timeout_s=0.3,
    slowest_bytes_per_s=200,
    slow_window_s=0.3,
    attempts=6,
    first_delay_s=0.01,
    longest_delay_s=0.05,
    longest_retry_after_s=0.1,
    outage_patience_s=1,
    first_answer_patience_s=1,
    untold_outage_s=0,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(tmp_path) as server:
        server.files[PATH] = CONTENT
        yield server


def open_source(server: ReleaseServer, **options: Any) -> RangeSource:
    return RangeSource(server.origin + PATH, policy=PATIENCE, **options)


def part(offset: int, size: int) -> bytes:
    return CONTENT[offset : offset + size]


def test_it_opens_by_one_request_and_reads_each_range_by_one(server: ReleaseServer) -> None:
    source = open_source(server)
    assert (source.size_bytes, source.name) == (len(CONTENT), server.origin + PATH)
    assert source.read(len(CONTENT) - 9, 9) == CONTENT[-9:]
    assert source.read(len(CONTENT) - TAIL_BYTES, 5) == part(len(CONTENT) - TAIL_BYTES, 5)
    assert source.read(len(CONTENT) - 3, 100) == CONTENT[-3:]
    assert [request.range for request in server.requests(PATH)] == [f"bytes=-{TAIL_BYTES}"]
    assert source.read(*HERE) == part(*HERE)
    assert [request.range for request in server.requests(PATH)[1:]] == [f"bytes=700001-{700_001 + 900_000 - 1}"]
    assert source.read(7, 0) == source.read(len(CONTENT), 4) == b""
    assert len(server.requests(PATH)) == 2
    assert source.read(len(CONTENT) - 10, 100) == CONTENT[-10:]


@pytest.mark.parametrize("size", [0, 1, TAIL_BYTES - 1, TAIL_BYTES, TAIL_BYTES + 1])
def test_files_may_be_smaller_than_the_end_that_is_asked_for(server: ReleaseServer, size: int) -> None:
    server.files[PATH] = CONTENT[:size]
    source = open_source(server)
    assert source.size_bytes == size
    assert source.read(0, size + 5) == CONTENT[:size]
    assert pickle.loads(pickle.dumps(source)).read(0, size + 5) == CONTENT[:size]


PASSING = {
    "cut before the status": [faults.Cut(faults.BEFORE_STATUS)],
    "cut at the first byte": [faults.Cut(0)],
    "cut in the middle": [faults.Cut(200_000), faults.Cut(100_000), faults.Cut(1)],
    "reset": [faults.Reset(faults.BEFORE_STATUS), faults.Reset(90_000)],
    "stall": [faults.Stall(5_000), faults.Stall(faults.BEFORE_STATUS)],
    "trickle": [faults.Trickle(0.05, after_bytes=4_000)],
    "busy": [
        faults.Status(503, retry_after_s=1),
        faults.Status(429, retry_after_s=1, as_date=True),
        faults.Status(500),
    ],
    "range refused": [faults.Cut(15_000), faults.RangeRefused()],
    "ranges ignored": [faults.Cut(15_000), faults.RangesIgnored()],
    "shifted ranges": [faults.ShiftedRange(-100), faults.ShiftedRange(100), faults.Cut(10), faults.ShiftedRange(-1)],
    "length too large": [faults.WrongLength(100)],
    "length too small": [faults.WrongLength(-100)],
    "no length": [faults.NoLength()],
    "ends with the connection": [faults.NoLength(is_chunked=False)],
    "gzip": [faults.Cut(9_000), faults.Gzip()],
    "page": [faults.HtmlPage()],
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("etag", ["strong", "weak", None])
def test_faults_that_pass_leave_no_trace(server: ReleaseServer, name: str, etag: Any) -> None:
    server.etag, server.has_last_modified = etag, False
    server.faults = [at(PATH, *PASSING[name])]
    source = open_source(server)
    assert source.size_bytes == len(CONTENT)
    server.forget()
    assert source.read(*HERE) == part(*HERE)


ANY_FAULT = st.one_of(
    st.builds(faults.Cut, st.integers(-1, 1_000_000)),
    st.builds(faults.Reset, st.integers(-1, 1_000_000)),
    st.sampled_from(
        [
            faults.Status(500), faults.Status(503, retry_after_s=0), faults.Status(429), faults.RangesIgnored(),
            faults.RangeRefused(), faults.ShiftedRange(7), faults.WrongLength(9), faults.WrongLength(-9),
            faults.NoLength(), faults.Gzip(), faults.OtherVersion(), faults.HtmlPage(),
        ]
    ),
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    opening=st.lists(ANY_FAULT, max_size=2),
    reading=st.lists(ANY_FAULT, max_size=2),
    spans=st.lists(st.tuples(st.integers(0, len(CONTENT) + 9), st.integers(0, 1_500_000)), min_size=1, max_size=4),
)
def test_whatever_goes_wrong_twice_the_bytes_are_right(
    server: ReleaseServer, opening: list[faults.Fault], reading: list[faults.Fault], spans: list[tuple[int, int]]
) -> None:
    server.forget()
    server.faults = [at(PATH, *(fault for fault in opening if not isinstance(fault, faults.OtherVersion)))]
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, *reading)]
    assert [source.read(*span) for span in spans] == [part(*span) for span in spans]


def test_a_range_that_breaks_off_goes_on_where_it_stopped(server: ReleaseServer) -> None:
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, faults.Cut(300_000), faults.Cut(100_000))]
    assert source.read(*HERE) == part(*HERE)
    assert [request.range for request in server.requests(PATH)] == [
        f"bytes={start}-1600000" for start in (700_001, 1_000_001, 1_100_001)
    ]
    assert server.bytes_sent_again(PATH) == 0


@pytest.mark.parametrize("answer", [faults.RangesIgnored(), faults.RangeRefused()])
def test_servers_that_know_no_ranges_from_the_end_are_asked_otherwise(
    server: ReleaseServer, answer: faults.Fault
) -> None:
    server.faults = [lambda request: [answer] if str(request.range).startswith("bytes=-") else []]
    source = open_source(server)
    assert [request.range for request in server.requests(PATH)[1:]] == [
        "bytes=0-0", f"bytes={len(CONTENT) - TAIL_BYTES}-{len(CONTENT) - 1}",
    ]  # fmt: skip
    assert source.read(*HERE) == part(*HERE)
    server.files[PATH] = b""
    assert open_source(server).size_bytes == 0


def test_a_server_without_ranges_is_refused_before_it_sends_the_file(server: ReleaseServer) -> None:
    server.files[PATH] = bytes(64 << 20)
    server.faults = [always(PATH, faults.RangesIgnored())]
    with pytest.raises(ArchiveError, match="sends the whole file where a range of it was asked for") as caught:
        open_source(server)
    assert "nginx" in caught.value.hint
    assert sum(size for _, size in server.sent(PATH)) < 40 << 20  # four answers, each up to what sockets hold
    server.faults = []
    source = open_source(server)
    server.faults = [always(PATH, faults.RangesIgnored())]
    with pytest.raises(ArchiveError, match="sends the whole file"):
        source.read(5, 5)


def test_a_range_that_is_the_whole_file_may_come_as_such(server: ReleaseServer) -> None:
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, faults.Cut(1_000_000), faults.RangesIgnored())]
    assert source.read(0, len(CONTENT)) == CONTENT


def shorter(content: bytes) -> bytes:
    return content[:-1]


@pytest.mark.parametrize(
    ("etag", "has_last_modified", "fault"),
    [
        ("strong", False, faults.OtherVersion()),
        ("weak", False, faults.OtherVersion()),
        (None, True, faults.OtherVersion()),
        (None, False, faults.OtherVersion(shorter)),
        ("strong", True, faults.OtherVersion(shorter, has_same_validators=True)),
    ],
)
def test_a_file_that_was_replaced_is_an_error(
    server: ReleaseServer, tmp_path: Path, etag: Any, has_last_modified: bool, fault: faults.Fault
) -> None:
    (tmp_path / "archive").write_bytes(CONTENT)
    server.files[PATH] = tmp_path / "archive"  # a file, which has a time
    server.etag, server.has_last_modified = etag, has_last_modified
    source = open_source(server)
    copy = pickle.loads(pickle.dumps(source))
    server.faults = [always(PATH, fault)]
    for reader in (source, copy):
        with pytest.raises(ArchiveError, match=r"scannet\.tar\.zst: was replaced or changed") as caught:
            reader.read(*HERE)
        assert caught.value.hint == "open it again"
    server.faults = [always(PATH, fault), always(PATH, faults.RangesIgnored())]
    with pytest.raises(ArchiveError):
        source.read(*HERE)


def test_a_file_that_changes_in_the_middle_of_a_range_is_an_error(server: ReleaseServer) -> None:
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, faults.Cut(1_000), then=faults.OtherVersion())]
    with pytest.raises(ArchiveError, match="was replaced"):
        source.read(*HERE)


@pytest.mark.parametrize(
    ("status", "error", "message", "hint"),
    [
        (404, NotOnServerError, "no such file", "case-sensitive"),
        (410, NotOnServerError, "no such file", "case-sensitive"),
        (401, TransferError, "status 401", "USER:PASSWORD"),
        (403, TransferError, "status 403", ".netrc"),
        (400, TransferError, "status 400", ""),
    ],
)
def test_refusals_are_told_at_once_with_what_to_do(
    server: ReleaseServer, status: int, error: type, message: str, hint: str
) -> None:
    source = open_source(server)
    server.forget()
    server.faults = [always(PATH, faults.Status(status))]
    for ask in (lambda: open_source(server), lambda: source.read(*HERE)):
        with pytest.raises(error, match=message) as caught:
            ask()
        assert hint in caught.value.hint
        assert "--base-url" not in caught.value.hint
    assert len(server.requests(PATH)) == 2


@pytest.mark.parametrize("fault", [faults.Status(500), faults.Cut(0), faults.ShiftedRange(1), faults.Gzip()])
def test_what_never_passes_ends_after_so_many_attempts(server: ReleaseServer, fault: faults.Fault) -> None:
    source = open_source(server)
    server.forget()
    server.faults = [always(PATH, fault)]
    with pytest.raises(ScanNetPrepError, match=r"attempts in a row failed|sends the whole file"):
        source.read(*HERE)
    assert PATIENCE.wrong_contents <= len(server.requests(PATH)) <= PATIENCE.attempts
    server.faults = []
    assert source.read(*HERE) == part(*HERE)


def test_a_server_that_is_gone_is_waited_for_and_given_up(server: ReleaseServer) -> None:
    source = open_source(server)
    server.faults = [at(PATH, None, faults.ServerDown(0.3))]
    server.forget()
    assert source.read(1, 9) == part(1, 9)
    assert source.read(*HERE) == part(*HERE)
    server.stop()
    with pytest.raises(ServerDownError, match="has not answered"):
        source.read(*HERE)


@pytest.mark.parametrize(
    "url", ["ftp://server/a.tar.zst", "https://", "https:///a.tar.zst", "a.tar.zst", "https://[::1", "https://h:port/a"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address") as caught:
        RangeSource(url)
    assert "https://HOST" in caught.value.hint


def test_what_is_secret_in_an_address_is_sent_but_never_shown(server: ReleaseServer) -> None:
    url = f"{server.origin.replace('://', '://anna:s3cret@')}{PATH}?X-Signature=s3cret#s3cret"
    source = RangeSource(url, policy=PATIENCE)
    assert source.read(*HERE) == part(*HERE)
    assert {request.headers["authorization"] for request in server.requests(PATH)} == {"Basic YW5uYTpzM2NyZXQ="}
    assert source.name == f"{server.origin}{PATH}?..."
    texts = []
    for rule in (
        faults.Status(404), faults.Status(403), faults.Status(500), faults.Redirect(), faults.RangesIgnored(),
        faults.Cut(faults.BEFORE_STATUS), faults.OtherVersion(), faults.Redirect(f"{PATH}?token=s3cret"),
        faults.Redirect(PATH, origin="ftp://anna:s3cret@host"),
    ):  # fmt: skip
        server.faults = [always(PATH, rule)]
        with pytest.raises(ScanNetPrepError) as caught:
            source.read(*HERE)
        texts.append("".join(traceback.format_exception(caught.value)))
    server.stop()
    with pytest.raises(ServerDownError) as caught:
        source.read(*HERE)
    texts.append("".join(traceback.format_exception(caught.value)))
    with pytest.raises(UsageError) as refused:
        RangeSource("https://anna:s3cret@[/?s3cret")
    texts.append(str(refused.value))
    assert "s3cret" not in "".join(texts)


def test_the_library_logs_an_outage_without_what_is_secret(
    server: ReleaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    source = RangeSource(f"{server.origin}{PATH}?s3cret", policy=PATIENCE)
    server.faults = [at(PATH, faults.ServerDown(0.3))]
    server.forget()
    assert source.read(*HERE) == part(*HERE)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("scannet_prep")]
    assert [message.partition(": ")[2].partition(" (")[0] for message in messages] == [
        "the server does not answer", "the server answers again",
    ]  # fmt: skip
    assert "s3cret" not in "".join(messages)


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


def test_closing_leaves_no_connection_and_no_thread_and_reading_opens_again(server: ReleaseServer) -> None:
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
        assert wait_for(lambda: not any(thread.name == "watchdog" for thread in threading.enumerate()))
        with server._lock:
            threads = list(server._connections.values())
        for thread in threads:
            thread.join(20)
        assert count_descriptors() == before
    assert sources == []


def wait_for(condition: Callable[[], bool]) -> bool:
    """The watchdog ends a moment after it was told to."""
    stop = threading.Event()
    return any(condition() or stop.wait(0.01) for _ in range(1_000))


def test_opening_leaves_nothing_that_a_fork_would_copy(server: ReleaseServer) -> None:
    source = open_source(server)
    assert wait_for(lambda: not any(thread.name == "watchdog" for thread in threading.enumerate()))
    assert "_link" not in vars(source)


def test_whoever_is_reading_while_it_is_closed_gets_an_error_soon(server: ReleaseServer) -> None:
    source = RangeSource(server.origin + PATH, policy=replace(PATIENCE, read_timeout_s=60, slow_window_s=60))
    server.faults = [always(PATH, faults.Stall(1_000))]
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


def test_a_redirection_never_leads_from_https_to_http(tmp_path: Path, authority: tuple[Path, Path]) -> None:
    ca_path, certificate_path = authority
    with (
        ReleaseServer(tmp_path, certificate=certificate_path) as secure,
        ReleaseServer(tmp_path) as plain,
    ):
        plain.files[PATH] = secure.files[PATH] = CONTENT
        secure.faults = [always(PATH, faults.Redirect(origin=plain.origin))]
        with pytest.raises(TransferError, match="without encryption"):
            open_source(secure, certificates=ca_path)
        plain.faults, secure.faults = [always(PATH, faults.Redirect(origin=secure.origin))], []
        assert open_source(plain, certificates=ca_path).read(*HERE) == part(*HERE)


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
        for size in (TAIL_BYTES, 10, 1, 0):
            path.write_bytes(CONTENT[:size])
            small = RangeSource(nginx.origin + PATH, certificates=nginx.ca_path, policy=PATIENCE)
            assert (small.size_bytes, small.read(0, size)) == (size, CONTENT[:size])
        path.unlink()
        with pytest.raises(NotOnServerError):
            source.read(*HERE)
