"""Downloads from a server that misbehaves.

Either the folder ends up equal to the release, or the run reports what failed.
"""

import contextlib
import gc
import itertools
import os
import random
import threading
import time

import pytest
from commands import SCENES, digests
from release_server import (
    LABEL_MAP_URL_PATH,
    MESH,
    SOON,
    Bar,
    Cut,
    Gzip,
    Header,
    NoLength,
    Page,
    RangesIgnored,
    Redirect,
    ReleaseServer,
    Reset,
    Set,
    ShiftedRange,
    Stall,
    Status,
    UntilClosed,
    WrongLength,
    answer_part,
    at,
    ending,
    failed_names,
    fetch,
    fetched,
    finished,
    scene_url_path,
)

from scannet_prep.errors import TransferError
from scannet_prep.raw.lock import check_file, read_tree_lock
from scannet_prep.release.files import KINDS
from scannet_prep.remote import http
from scannet_prep.stages import download
from scannet_prep.synthetic import write_release


def announce_two_lengths(answer, request):
    """Send a chunked body that also has a length, which does not count."""
    NoLength()(answer, request)
    Header("Content-Length", "7")(answer, request)


SILENCE = Stall()
OTHER_DATE = "Thu, 01 Jan 1970 00:00:00 GMT"
# Faults of the first requests of a file, after which all requests are answered.
PASSING = {
    "cut in the middle": [Cut(20_000), Cut(10_000), Cut(1)],
    "reset": [Reset(), Reset(10_000)],
    "silence within the body": [Stall(5_000)],
    "busy": [Status(503, "1"), Status(429, OTHER_DATE), Status(500, "soon")],
    "early hints": [
        Set(before=b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
    ],
    "range refused": [Cut(20_000), Status(416)],
    "ranges ignored": [Cut(20_000), RangesIgnored()],
    "shifted range": [Cut(20_000), ShiftedRange(-100), ShiftedRange(100)],
    "length too large": [WrongLength(100)],
    "length too small": [WrongLength(-100)],
    "no length": [NoLength()],
    "body ends with the connection": [UntilClosed()],
    "gzip": [Cut(10_000), Gzip()],
    # Headers that make no sense.
    "encoding of a range": [Cut(20_000), Header("Content-Encoding", "gzip")],
    "range without etag": [Cut(20_000), Header("ETag")],
    "no content-range": [Cut(20_000), Header("Content-Range")],
    "content-length of 5,000 digits": [Header("Content-Length", "9" * 5_000)],
    "negative content-length": [Header("Content-Length", "-1")],
    "two content-lengths": [Header("Content-Length", "1, 2")],
    "content-length of chunks": [announce_two_lengths],
}


def random_faults(dice):
    """Choose up to five faults.

    WrongLength(-9) is not among them: a text file that is cut short, and announced as that short,
    looks complete.
    """
    faults = [
        Cut(dice.randrange(-1, 60_000)),
        Cut(dice.randrange(-1, 60_000)),
        Reset(dice.randrange(-1, 60_000)),
        Status(500),
        Status(503, "0"),
        Status(429),
        Status(416),
        RangesIgnored(),
        ShiftedRange(7),
        Page(),
        WrongLength(9),
        NoLength(),
        Gzip(),
    ]
    return dice.sample(faults, dice.randrange(6))


def fetch_whole(server, data_dir, **options):
    """Download, and check that the folder has what the server has."""
    report = fetch(server, data_dir, **options)
    assert not report.failures, report.failures
    assert fetched(data_dir) == digests(server.root)


def between(first, end, fault):
    """Let the requests from number `first` to before `end` meet a fault.

    Requests of all paths are counted, from 0.
    """
    numbers = itertools.count()
    return lambda _request: [fault] if first <= next(numbers) < end else []


SCENE = SCENES[0]
MESH_PATH = scene_url_path(SCENE, MESH)


@pytest.fixture(autouse=True)
def _no_threads_stay():
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("download"):
            thread.join(timeout=60)
            assert not thread.is_alive()


# Each scene meets one fault, so there are as many in a group.
NAMES = list(PASSING)
GROUPS = [NAMES[start : start + len(SCENES)] for start in range(0, len(NAMES), len(SCENES))]


@pytest.mark.parametrize("etag", ["strong", "weak", None])
@pytest.mark.parametrize("names", GROUPS)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_passing_faults_leave_no_trace(server, tmp_path, names, etag):
    pairs = zip(SCENES, names, strict=False)
    server.faults = [at(scene_url_path(scene_id, MESH), *PASSING[name]) for scene_id, name in pairs]
    server.etag = etag
    # Some headers that make no sense announce bytes that never come.
    fetch_whole(server, tmp_path, patience=SOON)
    # urllib3 does not close an answer with two lengths, `Content-Length: 1, 2`. No later test
    # should meet its socket.
    gc.collect()


def change_middle_at_first(request, content):
    """Send another version first: of the same size, beginning and end, so a mixture looks whole."""
    if request.number > 1:
        return content
    middle = bytes(byte ^ 1 for byte in content[30_000:60_000])
    return content[:30_000] + middle + content[60_000:]


@pytest.mark.parametrize(
    ("etag", "date", "second", "ranges"),
    [
        ("strong", None, None, [None, "bytes=40000-"]),
        ("strong", None, ShiftedRange(0), [None, "bytes=40000-", None]),
        ("weak", None, None, [None, None]),
        (None, None, None, [None, None]),
        (None, OTHER_DATE, ShiftedRange(0), [None, "bytes=40000-", None]),
    ],
)
def test_versions_are_never_mixed(server, tmp_path, etag, date, second, ranges):
    server.etag = etag
    first_date = at(MESH_PATH, Header("Last-Modified", date))
    server.faults = [first_date, at(MESH_PATH, Cut(40_000), second)]
    server.change = change_middle_at_first
    fetch_whole(server, tmp_path)
    assert [request.range for request in server.requests(MESH_PATH)] == ranges


@pytest.mark.parametrize("fault", [None, Header("ETag")])
def test_file_of_which_all_bytes_were_received_is_complete(server, tmp_path, fault):
    """As after a kill while it was checked. Not all servers send an ETag with status 416."""
    server.faults = [at(MESH_PATH, WrongLength(100), fault)]
    fetch_whole(server, tmp_path)
    assert len(server.requests(MESH_PATH)) == 2
    assert server.bytes_sent_again(MESH_PATH) == 0


def test_bytes_of_unknown_origin_are_replaced_and_links_are_not_followed(server, tmp_path):
    def answer_with_range(answer, request):
        """Answer a request without a range as if it had one, of the whole file."""
        answer_part(answer, request.content or b"", 0, len(answer.body))

    server.etag = None
    server.has_last_modified = False
    server.faults = [at(ending(".txt"), answer_with_range)]
    folder = tmp_path / "data/scans" / SCENE
    folder.mkdir(parents=True)
    (folder / f".{SCENE}.txt.part").write_text("old = 1\n")
    # As after a loss of power.
    (folder / f".{SCENE}.txt.part.version").write_bytes(bytes(8))
    os.mkfifo(folder / f".{SCENE}.aggregation.json.part.version")
    os.mkfifo(folder / f".{SCENE}_vh_clean_2.labels.ply.part")
    outside = tmp_path / "outside"
    outside.write_text("somebody's")
    (folder / f".{SCENE}{MESH}.part").symlink_to(outside)
    fetch_whole(server, tmp_path / "data")
    assert outside.read_text() == "somebody's"
    assert not [request.range for request in server.requests() if request.range]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Status(404), "status 404 Not Found"),
        (Page(), "a web page in place of the file"),
        (Page(b""), "nothing in place of the file"),
        (Gzip(), "gzip in place of the file: the server must not compress it"),
        (Page(b"\xef\xbb\xbf\n<?xml version='1.0'?><Error/>"), "a web page in place of the file"),
    ],
)
def test_received_bytes_are_kept_for_the_next_run(server, tmp_path, fault, reason):
    server.faults = [at(MESH_PATH, Cut(20_000), Cut(10_000), then=fault)]
    (failure,) = fetch(server, tmp_path).failures
    assert failure.message == reason
    server.faults = []
    fetch_whole(server, tmp_path)
    assert server.bytes_sent_again(MESH_PATH) == 0


@pytest.mark.parametrize(
    ("fault", "jobs", "suffix", "tries"),
    [
        (Status(404), 1, ".txt", 3),
        (Status(403), 4, ".aggregation.json", 3),
        # The first file of a run: this is not an outage.
        (Status(429), 1, ".combined.tsv", 34),
        (Status(408), 4, MESH, 34),
        (Cut(), 4, MESH, 34),
        (Cut(0), 1, MESH, 8),
        (Cut(1), 4, MESH, 8),
        (Page(), 4, MESH, 3),
        (SILENCE, 4, MESH, 3),
        (Redirect(), 4, MESH, 31 * 3),
        (Redirect(origin="file:///etc"), 4, MESH, 3),
        (Redirect(origin="http://[::1"), 4, MESH, 3),
    ],
)
def test_files_that_always_fail_cost_their_tries_and_stop_no_other(
    server, tmp_path, fault, jobs, suffix, tries
):
    server.faults = [at(ending(suffix), then=fault)]
    report = fetch(server, tmp_path, jobs=jobs, patience=SOON if fault is SILENCE else ())
    others = {name for name in digests(server.root) if not name.endswith(suffix)}
    assert finished(tmp_path).keys() == others
    assert len(report.failures) == len(server.files) - len(others)
    for failure in report.failures:
        assert len(server.requests(failure.subject.removeprefix(server.origin))) == tries
    # An answer with another status does not end the connection.
    assert server.connection_count == 1 or suffix not in (".txt", ".combined.tsv")


@pytest.mark.parametrize(
    "faults",
    [
        [Cut(20_000)] * 24,
        [*[Status(503)] * 30, Cut(20_000), *[Status(503)] * 30],
        # Less of the file than was requested.
        [Cut(20_000), lambda answer, request: answer_part(answer, request.content, 20_000, 40_000)],
    ],
)
def test_connections_that_each_bring_20_kb_complete_a_file(server, tmp_path, faults):
    server.faults = [at(MESH_PATH, *faults)]
    report = fetch(server, tmp_path)
    assert not report.failures
    assert report.received_bytes == sum(map(os.path.getsize, server.root.rglob("*.*")))
    assert server.bytes_sent_again(MESH_PATH) == 0


@pytest.mark.parametrize("etag", ["strong", None])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_large_file_that_never_becomes_whole_fails_though_bytes_arrive(
    server, tmp_path, etag, is_damaged
):
    """Nothing else is served. Without ETag and date, each request starts at the first byte."""
    server.etag = etag
    server.has_last_modified = False
    ends = [80_000, 50_000, 79_000, 60_000, 70_000, 78_500, 55_000, 65_000] * 24
    if is_damaged:
        server.files[MESH_PATH] = server.files[MESH_PATH].read_bytes()[:-300] + bytes(300)
        ends = ends[:24] if etag else []
    elif etag:
        server.change = lambda request, content: content[: -request.number]
    server.faults = [at(MESH_PATH, *[Cut(end) for end in ends])]
    assert failed_names(fetch(server, tmp_path, [SCENE], types=[MESH])) == [f"{SCENE}{MESH}"]
    assert len(server.requests(MESH_PATH)) <= 12


def test_redirection_to_a_mirror_is_followed_but_not_to_a_dead_one(release_dir, server, tmp_path):
    with ReleaseServer(release_dir) as mirror, ReleaseServer(release_dir) as dead:
        dead.stop()
        server.faults = [
            at(ending(MESH), then=Redirect(origin=mirror.origin)),
            at(ending(".txt"), then=Redirect(origin=dead.origin)),
        ]
        report = fetch(server, tmp_path)
    assert failed_names(report) == [f"{scene_id}.txt" for scene_id in SCENES]
    assert "cannot be reached: [Errno 111] Connection refused" in report.failures[0].message


def test_body_larger_than_any_file_of_its_kind_is_broken_off(server, tmp_path):
    paths = [scene_url_path(scene_id, ".txt") for scene_id in SCENES[:3]]
    server.files |= dict.fromkeys(paths, b"key = value\n" * 5_000_000)
    server.faults = [at(paths[1], then=NoLength()), at(paths[2], Set(status=503))]
    report = fetch(server, tmp_path)
    assert failed_names(report) == [path.rpartition("/")[2] for path in paths]
    assert all("expected at most 1.0 MB" in finding.message for finding in report.failures)
    assert report.received_bytes < 10_000_000
    # Nor is that of a rejection read to its end.
    assert server.requests(paths[2])[0].sent[1] < 30_000_000


@pytest.mark.parametrize("seed", range(4))
def test_download_survives_random_faults(server, tmp_path, seed):
    expected = digests(server.root)
    dice = random.Random(seed)
    server.faults = [at(None, *random_faults(dice))]
    server.etag = dice.choice(["strong", "weak", None])
    for _ in range(7):
        failures = ["all"]
        # All of the first requests may be refused.
        with contextlib.suppress(TransferError):
            failures = fetch(server, tmp_path).failures
        assert finished(tmp_path).items() <= expected.items()
        if not failures:
            break
    assert fetched(tmp_path) == expected


# Outages.

OUTAGES = {
    "403": Status(403),
    "404": Status(404),
    "416": Status(416),
    "429": Status(429),
    "503": Status(503),
    "pause requested": Status(503, "1"),
    "resets": Reset(),
    "closed connections": Cut(),
    "closed connections after the headers": Cut(0),
    "silence": SILENCE,
    "circle": Redirect(),
    "page": Page(),
    "page of plain text": Page(b"Back soon.\n"),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_no_file_is_given_up_while_all_requests_fail(server, tmp_path, name):
    # More than the tries of a file, unless each of them takes time.
    count = {"silence": 9, "pause requested": 6}.get(name, 40)
    server.faults = [between(4, 4 + count, OUTAGES[name])]
    fetch_whole(server, tmp_path, patience=SOON if name == "silence" else ())
    assert len(server.requests()) <= 13 + 2 * count


@pytest.mark.parametrize(
    ("first", "name", "jobs"), [(0, "503", 4), (2, "404", 1), (2, "page", 1), (12, "503", 1)]
)
def test_outage_costs_no_received_bytes(server, tmp_path, first, name, jobs):
    path = scene_url_path(SCENES[1], MESH)
    fetch(server, tmp_path, SCENES[:1] if first < 12 else [])
    server.forget()
    server.faults = [at(path, Cut(20_000)), between(first, first + 20, OUTAGES[name])]
    assert not fetch(server, tmp_path, jobs=jobs).failures
    assert server.bytes_sent_again(path) == 0


def test_unreachable_server_is_waited_for_with_a_reason(server, tmp_path):
    bar = Bar()
    reason = "waiting for the server: the server cannot be reached: [Errno 111] Connection refused"

    def start_again():
        while reason not in bar.statuses:
            time.sleep(0.01)
        server.start()

    server.faults = [at(MESH_PATH, Set(is_down=True))]
    threading.Thread(target=start_again, daemon=True).start()
    fetch_whole(server, tmp_path, bar=bar)
    assert bar.left == 0
    assert bar.statuses[-1] == "13/13 files"


def test_progress_advances_while_a_file_arrives(server, tmp_path):
    bar = Bar()
    # Bytes of a file show, too, that the address is right.
    server.faults = [at(MESH_PATH, Stall(30_000), *[Status(404)] * 9)]
    report = fetch(server, tmp_path, [SCENE], types=[MESH], bar=bar, patience=SOON)
    assert not report.failures
    assert KINDS[MESH].typical_bytes - 30_000 in bar.lefts
    # Nor does it go back while the file waits.
    assert bar.lefts == sorted(bar.lefts, reverse=True)
    assert bar.left == 0


@pytest.mark.parametrize(("status", "jobs"), [(403, 1), (404, 4)])
def test_incomplete_mirror_fails_only_for_the_files_that_it_lacks(server, tmp_path, status, jobs):
    """Nothing but files of an earlier run shows later that the server is up."""
    lacking = [scene_url_path(SCENES[1], MESH), scene_url_path(SCENES[2], ".txt")]

    def is_missing(path):
        return SCENE in path or path in (*lacking, LABEL_MAP_URL_PATH)

    fetch(server, tmp_path, [SCENE])
    server.faults = [at(is_missing, then=Status(status))]
    server.forget()
    for _ in range(3):
        report = fetch(server, tmp_path, jobs=jobs)
        assert failed_names(report) == [path.rpartition("/")[2] for path in lacking]
        assert all(str(status) in finding.message for finding in report.failures)
    # Which files are requested is random: one run in 600 makes more than 60 requests.
    assert len(server.requests()) < 3 * 50
    assert len(fetched(tmp_path)) == len(server.files) - 2


@pytest.mark.parametrize("ability", [RangesIgnored(), NoLength(), Header("Content-Range", None)])
def test_server_without_ranges_fails_only_for_failing_files(server, tmp_path, ability):
    outage = between(8, 20, Status(503))
    server.faults = [at(None, then=ability), at(ending(MESH), then=Status(503)), outage]
    assert failed_names(fetch(server, tmp_path)) == [f"{name}{MESH}" for name in SCENES]


def test_time_of_checks_and_of_an_earlier_outage_does_not_count(server, tmp_path, monkeypatch):
    def check_slowly(*arguments):
        time.sleep(0.1)
        return check_file(*arguments)

    fetch(server, tmp_path, [SCENE])
    monkeypatch.setattr(download.fetch, "check_file", check_slowly)
    # The second outage takes longer than the server may be silent at first.
    server.faults = [between(0, 8, Status(503)), between(12, 20, SILENCE)]
    fetch_whole(server, tmp_path, jobs=1, patience=SOON | {"_FIRST_ANSWER_S": 0.5})


def test_server_that_stays_down_ends_the_run_with_what_it_has(server, tmp_path):
    patience = {"_OUTAGE_S": 0.3, "_FIRST_ANSWER_S": 0.3}
    server.faults = [between(6, 10_000, Set(is_down=True))]
    for _ in range(2):
        with pytest.raises(TransferError, match="no file was served") as caught:
            fetch(server, tmp_path, patience=patience)
        assert "it continues where it stopped" in caught.value.hint
        assert finished(tmp_path)
        assert read_tree_lock(tmp_path).keys() == finished(tmp_path).keys()


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (Status(404), "may be wrong, or need a login"),
        (Page(), "login page of your network"),
    ],
)
def test_server_that_refuses_everything_ends_the_run_soon(server, tmp_path, fault, hint):
    scene_ids = [f"scene{number:04d}_00" for number in range(30)]
    server.faults = [at(None, then=fault)]
    problem = f"{server.base_url}: no file was served; scans.*scene00"
    with pytest.raises(TransferError, match=problem) as caught:
        fetch(server, tmp_path, scene_ids)
    assert len(server.requests()) < 14
    assert hint in caught.value.hint
    assert not finished(tmp_path)


# Rejections.


@pytest.fixture(scope="module")
def small_release(tmp_path_factory):
    """Eight scenes of 500 vertices, and their ids."""
    folder = tmp_path_factory.mktemp("small")
    scene_ids = [f"scene{number:04d}_00" for number in range(8)]
    write_release(folder, scene_ids, vertices=500)
    return folder, scene_ids


@pytest.mark.parametrize("fault", [Status(503), Status(429, "0"), Cut()])
@pytest.mark.parametrize("share", [0.3, 0.67])
def test_random_rejections_cost_no_file(small_release, tmp_path, fault, share):
    folder, scene_ids = small_release
    dice = random.Random(1)
    with ReleaseServer(folder) as server:
        server.faults = [lambda _request: [fault] if dice.random() < share else []]
        fetch_whole(server, tmp_path, scene_ids=scene_ids)


def test_server_that_admits_few_requests_receives_few(small_release, tmp_path):
    folder, scene_ids = small_release
    last_served_s = 0.0

    def reject_early(_request):
        """Reject a request within 50 ms of one that was served."""
        nonlocal last_served_s
        now_s = time.monotonic()
        if now_s - last_served_s < 0.05:
            return [Status(429)]
        last_served_s = now_s
        return []

    for number in range(3):
        with ReleaseServer(folder, faults=[reject_early], request_latency_s=0.002) as server:
            report = fetch(
                server, tmp_path / f"{number}", scene_ids, jobs=8, patience={"_FIRST_PAUSE_S": 0.01}
            )
            count = sum(1 for request in server.requests() if request.faults)
        assert not report.failures
        if count < 5 * 41:
            break
    # Of 41 files. Pauses are random: one run in twelve is above. Without them, there would be a
    # thousand.
    assert count < 5 * 41


def test_idle_connections_do_not_keep_out_new_ones(server, tmp_path):
    """The server admits one connection at a time, and closes none that is idle."""
    server.faults = [lambda _request: [Status(503)] if len(server.sockets) > 1 else []]
    fetch_whole(server, tmp_path, jobs=2)


def test_no_request_is_made_during_a_pause_that_the_server_requests(server, tmp_path, monkeypatch):
    times_s = []
    monkeypatch.setattr(http, "_LONGEST_RETRY_AFTER_S", 1.0)

    def note_time(_request):
        times_s.append(time.monotonic())
        return []

    fetch(server, tmp_path, [SCENE], types=[MESH])
    server.faults = [between(0, 2, Status(429, "7200")), note_time]
    bar = Bar()
    assert not fetch(server, tmp_path, SCENES[:2], types=[MESH], jobs=1, bar=bar).failures
    reason = "the server requests a pause of 1.0 s: status 429 Too Many Requests"
    # It stays visible although other files end meanwhile.
    assert bar.statuses.count(reason) > 9
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    assert min(pauses_s) >= 1
