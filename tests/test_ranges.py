"""Ranges of a file on a web server that misbehaves: the right bytes, or an error."""

import multiprocessing
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import downloads
import pytest
from commands import count_descriptors
from release_server import (
    ROOT,
    Answer,
    Cut,
    Fault,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    Redirect,
    ReleaseServer,
    Request,
    Set,
    Status,
    at,
    other_version,
)

from scannet_prep import errors
from scannet_prep.remote.client import Client
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.ranges import RangeSource

PATH = f"{ROOT}scannet.tar.zst"
CONTENT = random.Random(1).randbytes(3_158_073)
# Offset and size of a range.
SPAN = (700_001, 900_000)
PATIENCE = TransferPolicy(
    connect_timeout_s=5,
    answer_timeout_s=0.4,
    slowest_bytes_per_s=200,
    slow_window_s=0.4,
    first_delay_s=0.005,
    tries=6,
    longest_delay_s=0.03,
    longest_interval_s=0.02,
    longest_retry_after_s=0.05,
    outage_patience_s=1,
    first_answer_patience_s=1,
)
MAX_SENT_BYTES = 40 << 20
"""More than four answers can put into the buffers of sockets."""


def open_source(server: ReleaseServer) -> RangeSource:
    return RangeSource(server.origin + PATH, policy=PATIENCE)


def expected_bytes(offset: int, size: int) -> bytes:
    return CONTENT[offset : offset + size]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(tmp_path) as server:
        server.files[PATH] = CONTENT
        yield server


@pytest.fixture
def source(server: ReleaseServer) -> RangeSource:
    """An open source. The request that opened it is forgotten."""
    source = open_source(server)
    server.forget()
    return source


def sent_bytes(server: ReleaseServer) -> int:
    return sum(request.sent[1] for request in server.requests(PATH) if request.sent is not None)


def test_opening_requests_the_first_byte(server: ReleaseServer) -> None:
    source = open_source(server)

    assert [request.range for request in server.requests(PATH)] == ["bytes=0-0"]
    assert source.size_bytes == len(CONTENT)
    assert source.name == server.origin + PATH


def test_each_range_is_read_by_one_request(server: ReleaseServer, source: RangeSource) -> None:
    assert source.read(*SPAN) == expected_bytes(*SPAN)

    assert [request.range for request in server.requests(PATH)] == ["bytes=700001-1600000"]


def test_range_beyond_the_end_is_cut_at_the_end(server: ReleaseServer, source: RangeSource) -> None:
    assert source.read(len(CONTENT) - 3, 100) == CONTENT[-3:]

    assert [request.range for request in server.requests(PATH)] == ["bytes=3158070-3158072"]


def test_empty_ranges_are_read_without_a_request(
    server: ReleaseServer, source: RangeSource
) -> None:
    assert source.read(7, 0) == b""
    assert source.read(len(CONTENT), 4) == b""

    assert server.requests(PATH) == []


@pytest.mark.parametrize("size_bytes", [0, 1])
def test_tiny_file_is_read(server: ReleaseServer, size_bytes: int) -> None:
    server.files[PATH] = CONTENT[:size_bytes]

    source = open_source(server)

    assert source.size_bytes == size_bytes
    assert source.read(0, size_bytes + 5) == CONTENT[:size_bytes]


@pytest.mark.parametrize(
    ("name", "etag"),
    [
        ("cut in the middle", None),
        ("silence within the body", "weak"),
        ("trickle of content", "strong"),
        ("busy", "weak"),
    ],
)
def test_passing_faults_cost_no_bytes(server: ReleaseServer, name: str, etag: str | None) -> None:
    server.etag = etag
    server.has_last_modified = False
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, *downloads.PASSING[name])]

    assert source.read(*SPAN) == expected_bytes(*SPAN)

    assert server.bytes_sent_again(PATH) == 0


@pytest.mark.parametrize("seed", range(6))
def test_bytes_are_right_after_random_faults(server: ReleaseServer, seed: int) -> None:
    dice = random.Random(seed)
    server.faults = [at(PATH, *downloads.random_faults(dice, 2))]
    source = open_source(server)
    server.forget()
    server.faults = [at(PATH, *downloads.random_faults(dice, 2))]

    for _ in range(3):
        offset = dice.randrange(len(CONTENT) + 9)
        size = dice.randrange(1_500_000)
        assert source.read(offset, size) == expected_bytes(offset, size)


def test_server_without_ranges_is_refused_before_it_sends_the_file(server: ReleaseServer) -> None:
    server.files[PATH] = bytes(64 << 20)
    server.faults = [at(PATH, then=RangesIgnored())]

    with pytest.raises(errors.TransferError, match="does not support ranges") as caught:
        open_source(server)

    assert "nginx" in caught.value.hint
    assert sent_bytes(server) < MAX_SENT_BYTES


def test_more_bytes_than_requested_are_not_received(
    server: ReleaseServer, source: RangeSource
) -> None:
    server.faults = [at(PATH, then=NoLength()), at(PATH, then=Set(body=bytes(64 << 20)))]

    with pytest.raises(errors.TransferError, match="sent more bytes than were requested"):
        source.read(*SPAN)

    assert sent_bytes(server) < MAX_SENT_BYTES


def cut_last_byte(content: bytes) -> bytes:
    return content[:-1]


@pytest.mark.parametrize(
    ("etag", "change"), [("weak", other_version), (None, cut_last_byte), ("strong", cut_last_byte)]
)
def test_file_changed_since_it_was_opened_is_an_error(
    server: ReleaseServer, etag: str | None, change: Callable[[bytes], bytes]
) -> None:
    server.etag = etag
    server.has_last_modified = False
    source = open_source(server)
    server.change = lambda _request, content: change(content)

    with pytest.raises(errors.ArchiveError, match="was replaced") as caught:
        source.read(*SPAN)

    assert caught.value.hint == "open it again"


def test_file_changed_between_two_pieces_is_an_error(
    server: ReleaseServer, source: RangeSource
) -> None:
    def change_later(request: Request, content: bytes) -> bytes:
        return content if request.number == 1 else cut_last_byte(content)

    server.faults = [at(PATH, Cut(1_000))]
    server.change = change_later

    with pytest.raises(errors.ArchiveError, match="was replaced"):
        source.read(*SPAN)


REFUSALS = [
    (404, errors.NotOnServerError, "case-sensitive"),
    (401, errors.TransferError, "USER:PASSWORD"),
    (403, errors.TransferError, ".netrc"),
]


def check_refusal(
    read: Callable[[], object], status: int, error: type[Exception], hint: str
) -> None:
    """Check that reading raises an error with a hint that does not mention ScanNet's terms."""
    with pytest.raises(error, match=str(status)) as caught:
        read()
    shown_hint = getattr(caught.value, "hint", "")
    assert hint in shown_hint
    assert "terms" not in shown_hint


@pytest.mark.parametrize(("status", "error", "hint"), REFUSALS)
def test_refusal_at_opening_is_an_error_after_one_request(
    server: ReleaseServer, status: int, error: type[Exception], hint: str
) -> None:
    server.faults = [at(PATH, then=Status(status))]

    check_refusal(lambda: open_source(server), status, error, hint)

    assert len(server.requests(PATH)) == 1


@pytest.mark.parametrize(("status", "error", "hint"), REFUSALS)
def test_refusal_at_reading_is_an_error_after_one_request(
    server: ReleaseServer, source: RangeSource, status: int, error: type[Exception], hint: str
) -> None:
    server.faults = [at(PATH, then=Status(status))]

    check_refusal(lambda: source.read(*SPAN), status, error, hint)

    assert len(server.requests(PATH)) == 1


def answer_login(answer: Answer, request: Request) -> None:
    """Answer with a page that is recognized only by its type."""
    Page(b"Please log in.")(answer, request)
    Header("Content-Type", "text/html")(answer, request)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("page", [Page(), answer_login])
def test_login_page_instead_of_the_archive_is_named_as_one(
    server: ReleaseServer, source: RangeSource, page: Fault, is_open: bool
) -> None:
    server.faults = [at(PATH, then=page)]

    expected = "sends a web page instead of the archive"
    with pytest.raises(errors.TransferError, match=expected) as caught:
        source.read(*SPAN) if is_open else open_source(server)

    assert "ranges" not in str(caught.value)
    assert "open the address in a browser" in caught.value.hint


def test_server_that_comes_back_is_waited_for_with_one_message(
    server: ReleaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    def start_again() -> None:
        while not caplog.records:
            time.sleep(0.01)
        server.start()

    source = RangeSource(f"{server.origin}{PATH}?s3cret", policy=PATIENCE)
    server.faults = [at(PATH, None, None, Set(is_down=True))]
    threading.Thread(target=start_again, daemon=True).start()

    assert source.read(1, 9) == expected_bytes(1, 9)
    assert source.read(*SPAN) == expected_bytes(*SPAN)

    (message,) = [
        record.getMessage() for record in caplog.records if record.name.startswith("scannet_prep")
    ]
    assert ": server down (" in message
    assert "s3cret" not in message


def test_server_that_stays_down_is_an_error(server: ReleaseServer, source: RangeSource) -> None:
    server.stop()

    with pytest.raises(errors.ServerDownError, match="has served nothing for"):
        source.read(*SPAN)


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
def test_invalid_address_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(errors.UsageError, match="is not an address") as caught:
        RangeSource(url)

    assert "https://HOST" in caught.value.hint
    assert "s3cret" not in str(caught.value)


@pytest.fixture
def secret_source(server: ReleaseServer) -> RangeSource:
    """A source whose address holds a password and a signature."""
    origin = server.origin.replace("://", "://anna:s3cret@")
    return RangeSource(f"{origin}{PATH}?X-Signature=s3cret#s3cret", policy=PATIENCE)


def test_password_in_an_address_is_sent(server: ReleaseServer, secret_source: RangeSource) -> None:
    assert secret_source.read(*SPAN) == expected_bytes(*SPAN)

    sent = {request.headers["authorization"] for request in server.requests(PATH)}
    assert sent == {"Basic YW5uYTpzM2NyZXQ="}


def test_name_of_a_source_holds_no_secrets(
    server: ReleaseServer, secret_source: RangeSource
) -> None:
    assert secret_source.name == f"{server.origin}{PATH}?..."


@pytest.mark.parametrize(
    "fault",
    [
        Status(404),
        RangesIgnored(),
        Cut(),
        Redirect(f"{PATH}?token=s3cret"),
        Redirect(PATH, origin="ftp://anna:s3cret@host"),
        None,
    ],
)
def test_errors_show_no_secrets_of_an_address(
    server: ReleaseServer, secret_source: RangeSource, fault: Fault | None
) -> None:
    server.faults = [at(PATH, then=fault)]
    server.change = lambda _request, content: other_version(content)

    with pytest.raises(errors.ScanNetPrepError) as caught:
        secret_source.read(*SPAN)

    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


SPANS = [(number * 50_000, 40_000) for number in range(40)]


def read_in_process(source: RangeSource, spans: list[tuple[int, int]], queue: Any) -> None:
    queue.put([source.read(*span) for span in spans])


def take_connections(server: ReleaseServer) -> set[tuple[str, int]]:
    """Return the connections of the requests so far, and forget the requests."""
    connections = {request.connection for request in server.requests(PATH)}
    server.forget()
    return connections


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_processes_share_no_connection(server: ReleaseServer, start_method: str) -> None:
    source = open_source(server)
    assert source.read(*SPANS[0]) == expected_bytes(*SPANS[0])
    parent_connections = take_connections(server)

    context = multiprocessing.get_context(start_method)
    queue = context.SimpleQueue()
    process = context.Process(target=read_in_process, args=(source, SPANS[1:5], queue))
    process.start()
    assert queue.get() == [expected_bytes(*span) for span in SPANS[1:5]]
    process.join()

    child_connections = take_connections(server)
    assert len(child_connections) == 1
    assert parent_connections.isdisjoint(child_connections)

    # The end of the child has not closed the connection of the parent.
    assert source.read(*SPANS[7]) == expected_bytes(*SPANS[7])
    assert take_connections(server) <= parent_connections


def find_watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watch"]


def test_range_of_known_length_is_read_without_a_thread(source: RangeSource) -> None:
    watches = []

    for span in SPANS:
        source.read(*span)
        watches += find_watches()

    assert watches == []


def test_watch_of_a_body_ends_with_its_request(server: ReleaseServer) -> None:
    server.faults = [at(PATH, then=NoLength())]
    client = Client(server.origin, PATIENCE, certificates=True)

    with client.open(server.origin + PATH, {}) as answer:
        pieces = answer.read_pieces()
        next(pieces)
        (watch,) = find_watches()

    # The rest of the pieces is not read, but a traceback, for example, may keep them.
    watch.join(10)
    assert not watch.is_alive()
    pieces.close()


def read_in_threads(source: RangeSource) -> list[bytes]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda span: source.read(*span), SPANS))


def wait_for_descriptors(expected_count: int) -> bool:
    """Wait until as many files are open. The server closes its end a moment later."""
    stop = threading.Event()
    return any(count_descriptors() == expected_count or stop.wait(0.01) for _ in range(1_000))


def test_closed_source_leaves_no_connection_and_reads_again(server: ReleaseServer) -> None:
    before = count_descriptors()
    source = open_source(server)
    for _ in range(2):
        assert read_in_threads(source) == [expected_bytes(*span) for span in SPANS]
        source.close()

    assert wait_for_descriptors(before)


def test_forgotten_source_leaves_no_connection(server: ReleaseServer) -> None:
    before = count_descriptors()
    source = open_source(server)
    assert read_in_threads(source) == [expected_bytes(*span) for span in SPANS]

    del source

    assert wait_for_descriptors(before)
