"""Ranges of a file on a web server that misbehaves: the right bytes, or an error that says what is wrong."""

import multiprocessing
import random
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import downloads
import pytest
from commands import count_descriptors
from release_server import (
    ROOT,
    Cut,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    Redirect,
    ReleaseServer,
    Set,
    Status,
    at,
    other_version,
)

from scannet_prep.base import errors
from scannet_prep.remote.ranges import RangeSource

PATH = f"{ROOT}scannet.tar.zst"
CONTENT = random.Random(1).randbytes(3_158_073)
HERE = (700_001, 900_000)
OUTAGE = {"outage_patience_s": 1, "first_answer_patience_s": 1}
PATIENCE = replace(downloads.PATIENCE, tries=6, longest_delay_s=0.03, **OUTAGE)


def open_source(server: ReleaseServer, **options: Any) -> RangeSource:
    return RangeSource(server.origin + PATH, policy=PATIENCE, **options)


def part(offset: int, size: int) -> bytes:
    return CONTENT[offset : offset + size]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(tmp_path) as server:
        server.files[PATH] = CONTENT
        yield server


def test_it_opens_by_one_request_and_reads_each_range_by_one(server: ReleaseServer) -> None:
    source = open_source(server)
    assert (source.size_bytes, source.name) == (len(CONTENT), server.origin + PATH)
    assert source.read(*HERE) == part(*HERE)
    assert source.read(len(CONTENT) - 3, 100) == CONTENT[-3:]
    assert source.read(7, 0) == source.read(len(CONTENT), 4) == b""
    ranges = [
        f"bytes={first}-{last}"
        for first, last in ((0, 0), (700_001, 1_600_000), (3_158_070, 3_158_072))
    ]
    assert [request.range for request in server.requests(PATH)] == ranges

    for size in (0, 1):
        server.files[PATH] = CONTENT[:size]
        source = open_source(server)
        assert (source.size_bytes, source.read(0, size + 5)) == (size, CONTENT[:size])


PASSING = ["cut in the middle", "silence within the body", "trickle of content", "busy"]


@pytest.mark.parametrize(
    ("name", "etag"), [*zip(PASSING, [None, "weak", "strong", "weak"], strict=True)]
)
def test_faults_that_pass_leave_no_trace(server: ReleaseServer, name: str, etag: Any) -> None:
    server.etag, server.has_last_modified = etag, False
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, *downloads.PASSING[name])]
    assert source.read(*HERE) == part(*HERE)
    assert server.bytes_sent_again(PATH) == 0


@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_twice_the_bytes_are_right(server: ReleaseServer, seed: int) -> None:
    dice = random.Random(seed)
    server.faults = [at(PATH, *downloads.random_faults(dice, 2))]
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, *downloads.random_faults(dice, 2))]
    for _ in range(3):
        span = dice.randrange(len(CONTENT) + 9), dice.randrange(1_500_000)
        assert source.read(*span) == part(*span)


def test_what_is_more_than_was_asked_for_is_neither_waited_for_nor_taken_into_memory(
    server: ReleaseServer,
) -> None:
    server.files[PATH] = bytes(64 << 20)
    server.faults = [at(PATH, then=RangesIgnored())]
    with pytest.raises(errors.TransferError, match="does not support ranges") as caught:
        open_source(server)
    assert "nginx" in caught.value.hint
    # Four answers, each up to what sockets hold.
    assert sum(request.sent[1] for request in server.requests(PATH) if request.sent) < 40 << 20
    server.files[PATH], server.faults = CONTENT, []
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, then=NoLength()), at(PATH, then=Set(body=bytes(64 << 20)))]
    with pytest.raises(
        errors.TransferError, match="the server sent more bytes than were requested"
    ):
        source.read(*HERE)
    assert sum(request.sent[1] for request in server.requests(PATH) if request.sent) < 40 << 20


@pytest.mark.parametrize(
    ("etag", "has_last_modified", "change"),
    [
        ("weak", False, other_version),
        (None, False, lambda content: content[:-1]),
        ("strong", True, lambda content: content[:-1]),
    ],
)
def test_a_changed_file_is_an_error(
    server: ReleaseServer, etag: Any, has_last_modified: bool, change: Any
) -> None:
    server.etag, server.has_last_modified = etag, has_last_modified
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, Cut(1_000))] if has_last_modified else []  # between two pieces
    server.change = lambda request, content: (
        change(content) if request.number > len(server.faults) else content
    )
    with pytest.raises(errors.ArchiveError, match="was replaced") as caught:
        source.read(*HERE)
    assert caught.value.hint == "open it again"


@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [
        (404, errors.NotOnServerError, "case-sensitive"),
        (401, errors.TransferError, "USER:PASSWORD"),
        (403, errors.TransferError, ".netrc"),
    ],
)
def test_refusals_say_what_to_do_at_once(
    server: ReleaseServer, status: int, error: type, hint: str
) -> None:
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, then=Status(status))]
    for ask in (lambda: open_source(server), lambda: source.read(*HERE)):
        with pytest.raises(error, match=str(status)) as caught:
            ask()
        assert hint in caught.value.hint
        assert "terms" not in caught.value.hint  # of ScanNet: this is the user's own server
    assert len(server.requests(PATH)) == 2


@pytest.mark.parametrize(
    "page",
    [
        Page(),
        lambda answer, request: [
            Page(b"Please log in.")(answer, request),
            Header("Content-Type", "text/html")(answer, request),
        ],
    ],
)
def test_login_page_instead_of_the_archive_is_named_as_one(
    server: ReleaseServer, page: Any
) -> None:
    source = open_source(server)
    server.faults = [at(PATH, then=page)]
    for ask in (lambda: open_source(server), lambda: source.read(*HERE)):
        with pytest.raises(
            errors.TransferError, match="sends a web page instead of the archive"
        ) as caught:
            ask()
        assert "ranges" not in str(caught.value)
        assert "open the address in a browser" in caught.value.hint


def test_a_server_that_is_gone_is_waited_for_a_while(
    server: ReleaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    source = RangeSource(f"{server.origin}{PATH}?s3cret", policy=PATIENCE)
    server.faults = [at(PATH, None, None, Set(is_down=True))]

    def start_again() -> None:
        while not caplog.records:
            time.sleep(0.01)
        server.start()

    threading.Thread(target=start_again, daemon=True).start()
    assert source.read(1, 9) == part(1, 9)
    assert source.read(*HERE) == part(*HERE)
    messages = [
        record.getMessage() for record in caplog.records if record.name.startswith("scannet_prep")
    ]
    assert [message.partition(": ")[2].partition(" (")[0] for message in messages] == [
        "server down"
    ]
    assert "s3cret" not in "".join(messages)
    server.stop()
    with pytest.raises(errors.ServerDownError, match="has served nothing for"):
        source.read(*HERE)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/a",
        "https:///a",
        "https://[::1",
        "https://h:port/a",
        "https://a:s3cret@[/?s3cret",
        "https://a..b/c",
    ],
)
def test_what_is_not_an_address_is_refused(url: str) -> None:
    with pytest.raises(errors.UsageError, match="is not an address") as caught:
        RangeSource(url)
    assert ("https://HOST" in caught.value.hint, "s3cret" in str(caught.value)) == (True, False)


def test_what_is_secret_in_an_address_is_sent_but_never_shown(server: ReleaseServer) -> None:
    url = f"{server.origin.replace('://', '://anna:s3cret@')}{PATH}?X-Signature=s3cret#s3cret"
    source = RangeSource(url, policy=PATIENCE)
    assert source.read(*HERE) == part(*HERE)
    assert {request.headers["authorization"] for request in server.requests(PATH)} == {
        "Basic YW5uYTpzM2NyZXQ="
    }
    assert source.name == f"{server.origin}{PATH}?..."
    places = Redirect(f"{PATH}?token=s3cret"), Redirect(PATH, origin="ftp://anna:s3cret@host")
    for fault in (Status(404), RangesIgnored(), Cut(), *places, None):
        server.faults = [at(PATH, then=fault)]
        server.change = lambda _request, content: other_version(content)
        with pytest.raises(errors.ScanNetPrepError) as caught:
            source.read(*HERE)
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))


SPANS = [(i * 50_000, 40_000) for i in range(40)]


def read_in_process(source: RangeSource, spans: list[tuple[int, int]], queue: Any) -> None:
    queue.put([source.read(*span) for span in spans])


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_processes_share_no_connection(server: ReleaseServer, start_method: str) -> None:
    source = open_source(server)
    assert source.read(*SPANS[0]) == part(*SPANS[0])
    mine = {request.connection for request in server.requests(PATH)}
    server.forget()
    context = multiprocessing.get_context(start_method)
    queue = context.SimpleQueue()
    process = context.Process(
        target=read_in_process, args=(source, SPANS[1:5], queue)
    )  # not pickled by fork
    process.start()
    assert queue.get() == [part(*span) for span in SPANS[1:5]]
    process.join()
    theirs = {request.connection for request in server.requests(PATH)}
    assert (len(theirs), mine & theirs) == (1, set())
    server.forget()
    assert source.read(*SPANS[7]) == part(*SPANS[7])  # the child's end has not closed it
    assert {request.connection for request in server.requests(PATH)} <= mine


def test_closing_leaves_no_connection_and_reading_opens_again(server: ReleaseServer) -> None:
    before, stop = count_descriptors(), threading.Event()
    for ending in ("closed", "forgotten"):
        source = open_source(server)
        for _ in range(2):
            with ThreadPoolExecutor(3) as pool:
                parts = list(pool.map(lambda span, source=source: source.read(*span), SPANS))
            assert parts == [part(*span) for span in SPANS]
            if ending == "closed":
                source.close()
        del source
        # The server closes its end a moment later.
        assert any(count_descriptors() == before or stop.wait(0.01) for _ in range(1_000))
