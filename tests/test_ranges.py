"""Ranges of a file on a web server that misbehaves: the right bytes, or an error that says what is wrong."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import release_faults as faults
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from range_server import CONTENT, HERE, PATH, PATIENCE, open_source, part
from release_faults import always, at
from release_scenarios import passing_faults
from release_server import ReleaseServer

from scannet_prep.errors import (
    ArchiveError,
    NotOnServerError,
    ScanNetPrepError,
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


PASSING = passing_faults(400_000) | {
    "shifted ranges": [faults.ShiftedRange(-100), faults.ShiftedRange(100), faults.Cut(10), faults.ShiftedRange(-1)],
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
