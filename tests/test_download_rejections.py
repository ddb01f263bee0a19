"""Downloads from a server that rejects some requests, the pace of requests, and the gate."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from commands import digests
from downloads import MESH, SCENES, Bar, fetch, fetched
from release_server import Cut, Fault, ReleaseServer, Reset, Stall, Status, at, scene_url_path

from scannet_prep.remote.gate import Gate, Pace
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.request_errors import AttemptError

MESH_PATH = scene_url_path(SCENES[0], MESH)
REJECTION = AttemptError("status 503 Service Unavailable", tries=20, is_busy=True)


@pytest.mark.parametrize(
    "fault", [Status(503), Status(502), Status(500), Status(429, "0"), Cut(), Reset()]
)
def test_file_rejected_twelve_times_while_others_are_served_is_fetched(
    server: ReleaseServer, tmp_path: Path, fault: Fault
) -> None:
    server.faults = [at(MESH_PATH, *[fault] * 12)]

    assert not fetch(server, tmp_path).failures

    assert fetched(tmp_path) == digests(server.root)


# The pace.


def interval_s(pace: Pace) -> float:
    """Return the interval after a request that is made an hour later."""
    now_s = pace.next_s + 3600
    pace.requested(now_s)
    return pace.next_s - now_s


@pytest.fixture
def slowest_pace() -> Pace:
    """A pace after a thousand rejections."""
    pace = Pace(longest_interval_s=2.0)
    for now_s in range(1000):
        pace.rejected(now_s, now_s, pause_s=0.0)
    return pace


def test_each_rejection_reduces_the_rate_by_a_third() -> None:
    pace = Pace(longest_interval_s=2.0)
    rates = []
    for _ in range(10):
        now_s = pace.next_s
        pace.rejected(now_s, now_s, pause_s=0.0)
        rates.append(1 / interval_s(pace))

    ratios = [later / earlier for earlier, later in itertools.pairwise(rates)]
    assert ratios == pytest.approx([2 / 3] * 9)


def test_rate_never_falls_below_one_request_in_two_seconds(slowest_pace: Pace) -> None:
    assert interval_s(slowest_pace) == pytest.approx(2.0)


def test_successes_restore_the_rate_within_seconds(slowest_pace: Pace) -> None:
    seconds = 0.0
    while interval_s(slowest_pace) > 0.001:
        seconds += interval_s(slowest_pace)
        slowest_pace.served()

    assert seconds < 10


def test_rejections_of_simultaneous_requests_reduce_the_rate_once() -> None:
    pace = Pace(longest_interval_s=2.0)
    for now_s in (10.0, 10.1, 10.2):
        pace.rejected(9.9, now_s, pause_s=0.0)

    rejected_once = Pace(longest_interval_s=2.0)
    rejected_once.rejected(9.9, 10.0, pause_s=0.0)
    assert interval_s(pace) == interval_s(rejected_once)


# The gate.


def make_gate(notes: list[str] | None = None, **options: Any) -> Gate:
    policy = TransferPolicy(first_delay_s=0.0, **options)
    if notes is None:
        notes = []
    return Gate(policy, "http://host/", notes.append)


def reject(gate: Gate, *, is_probe: bool) -> bool:
    """Record a rejection; return whether the server counts as down."""
    return gate.failed(REJECTION, time.monotonic(), is_probe=is_probe)


@pytest.fixture
def paused_gate() -> Gate:
    """A gate after a rejection with a requested pause of 10 minutes."""
    gate = make_gate()
    error = AttemptError("status 429 Too Many Requests", is_busy=True, retry_after_s=600)
    gate.failed(error, time.monotonic(), is_probe=False)
    return gate


def test_retry_after_pauses_all_requests(paused_gate: Gate) -> None:
    assert not paused_gate.may_request()
    assert paused_gate.pace.next_s > time.monotonic() + 590


def test_rejection_without_a_pause_keeps_the_requested_pause(paused_gate: Gate) -> None:
    reject(paused_gate, is_probe=False)

    assert paused_gate.pace.next_s > time.monotonic() + 590


def test_requested_pause_is_shown_as_state(paused_gate: Gate) -> None:
    assert paused_gate.state == "server requests a pause, 10 min"


def test_failures_count_against_files_if_the_first_probe_is_served() -> None:
    gate = make_gate()
    for _ in range(5):
        assert not reject(gate, is_probe=False)

    assert gate.served(is_probe=True)

    assert not reject(gate, is_probe=False)


def test_failures_after_a_failed_probe_count_against_no_file() -> None:
    gate = make_gate()

    assert reject(gate, is_probe=True)

    assert reject(gate, is_probe=False)


def test_served_probe_ends_an_outage() -> None:
    gate = make_gate()
    reject(gate, is_probe=True)

    assert gate.served(is_probe=True)

    assert not reject(gate, is_probe=False)


def test_transfer_from_before_an_outage_does_not_end_it() -> None:
    gate = make_gate()
    reject(gate, is_probe=True)

    assert not gate.served(is_probe=False)

    assert gate.failed_probes == 1


@pytest.mark.parametrize(
    "reason",
    [
        "status 503 Service Unavailable",
        "cannot find kaldir.vc.cit.tum.de: is this machine online?",
        "x" * 99,
    ],
)
def test_outage_message_fits_80_columns_and_names_the_patience(reason: str) -> None:
    notes: list[str] = []
    gate = make_gate(notes, first_answer_patience_s=1.0)

    for _ in range(20):
        gate.failed(AttemptError(reason), time.monotonic(), is_probe=True)

    (note,) = notes
    assert len(note) <= 80
    assert note.startswith(f"server down ({reason[:30]}")
    assert note.endswith("); waiting up to 1 s for it")


class Steps(Bar):
    """Keeps each advance of the bar.

    Attributes:
        steps: The bytes of each advance.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        self.steps.append(count)


def test_progress_advances_while_a_file_arrives(server: ReleaseServer, tmp_path: Path) -> None:
    bar = Steps()
    server.faults = [at(MESH_PATH, Stall(30_000))]

    assert not fetch(server, tmp_path, SCENES[:1], types=[MESH], bar=bar).failures

    assert bar.steps[0] == 30_000
    assert bar.left == 0
