"""Downloads that are killed, interrupted, doubled, or run out of space; certificates; and a real nginx over TLS."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import time
from pathlib import Path

import pytest
from commands import NO_BYTECODE, digests, run_command, run_main, start_command
from downloads import MESH, fetched, finished, release_fixtures, words
from nginx_server import NginxServer, needs_nginx
from release_server import BEFORE_STATUS, ReleaseServer, Set, Stall, Status, always, ending

SCENES = ["scene0000_00", "scene0001_00", "scene0707_00", "scene0708_00"]


release_dir, server = release_fixtures(SCENES, 6_000)


def partial_sizes(data_dir: Path) -> list[int]:
    """Of those that stay while this looks: each may get its final name at any moment."""
    sizes = []
    for path in data_dir.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def test_killed_five_times_and_then_finished_it_is_the_same_tree(release_dir: Path, tmp_path: Path) -> None:
    dice = random.Random(0)
    expected = digests(release_dir)
    with ReleaseServer(release_dir, request_latency_s=0.03) as server:
        for number in range(5):
            process = start_command(*words(SCENES, server.base_url, tmp_path))
            while len(server.requests()) < 2 * number:
                assert process.poll() in (None, 0)
                time.sleep(0.005)
            time.sleep(dice.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert finished(tmp_path).items() <= expected.items()
        outcome = run_main(*words(SCENES, server.base_url, tmp_path))
        assert outcome.status == 0, outcome.stderr
    assert fetched(tmp_path) == expected


def test_a_second_run_in_the_same_folder_says_who_is_working_there(server: ReleaseServer, tmp_path: Path) -> None:
    server.faults = [always(ending(MESH), Stall(30_000))]
    first = start_command(*words(SCENES, server.base_url, tmp_path))
    while partial_sizes(tmp_path) != [30_000] * 4:
        assert first.poll() is None
        time.sleep(0.01)
    second = run_main(*words(SCENES, server.base_url, tmp_path, "--json"))
    assert (second.status, second.json["error"]) == (1, "LockedError")
    assert f"process {first.pid} on" in second.json["message"]
    server.faults = []
    first.kill()
    first.communicate()
    assert run_main(*words(SCENES, server.base_url, tmp_path)).status == 0
    assert fetched(tmp_path) == digests(server.root)


WAITING = {
    "for content": always(ending(MESH), Stall(30_000)),
    "for the end of the headers": always(ending(MESH), Set(trickle=(BEFORE_STATUS, 1))),
    "before another attempt": always(ending(MESH), Status(429, "7200")),
    "for a server that is down": always(None, Set(is_down=True)),
}


@pytest.mark.parametrize(
    ("name", "number"), [*((name, signal.SIGINT) for name in WAITING), ("for content", signal.SIGTERM)]
)
def test_an_interruption_ends_it_whatever_it_waits_for(
    server: ReleaseServer, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    server.faults = [WAITING[name]]
    process = start_command(*words(SCENES, server.base_url, tmp_path, "--json"))
    while not _is_waiting(name, server, tmp_path):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)  # all of them would go on for a minute at least
    assert process.returncode == 130, stderr
    assert "run the same command again" in stdout
    assert "Traceback" not in stderr
    partials = list(tmp_path.rglob(".*.part*"))
    assert len(partials) == (8 if name == "for content" else len(partials))  # each with its version
    server.faults = []
    server.start()
    assert run_main(*words(SCENES, server.base_url, tmp_path)).status == 0
    assert fetched(tmp_path) == digests(server.root)
    if name == "for content":  # else other files may have been under way
        assert all(server.bytes_sent_again(path) == 0 for path in server.files)


def _is_waiting(name: str, server: ReleaseServer, data_dir: Path) -> bool:
    if name == "for content":
        return partial_sizes(data_dir) == [30_000] * 4
    count = 1 if name.startswith(("for a", "before")) else 4
    return sum(bool(request.faults) for request in server.requests()) >= count


def test_a_full_disk_stops_it_and_leaves_no_half_file_under_a_final_name(server: ReleaseServer, tmp_path: Path) -> None:
    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    command = words(SCENES, server.base_url, tmp_path, "--json")
    outcome = run_command(*command, environment=NO_BYTECODE, preexec_fn=limit_file_size)
    assert (outcome.status, outcome.json["error"]) == (1, "DiskFullError")
    expected = digests(server.root)
    assert finished(tmp_path).items() <= expected.items()
    assert run_main(*words(SCENES, server.base_url, tmp_path)).status == 0
    assert fetched(tmp_path) == expected


@needs_nginx
def test_a_real_server_over_tls_with_an_outage_in_the_middle(release_dir: Path, tmp_path: Path) -> None:
    with NginxServer(release_dir, tmp_path / "nginx", bytes_per_s=60_000) as server:
        data_dir = tmp_path / "data"
        untrusted = run_main(*words(SCENES, server.base_url, data_dir))
        assert "the certificate cannot be verified" in untrusted.stderr
        process = start_command(*words(SCENES, server.base_url, data_dir, "--ca-bundle", server.ca_path))
        while max(partial_sizes(data_dir), default=0) <= 30_000:
            assert process.poll() is None
            time.sleep(0.01)
        server.stop()
        time.sleep(0.5)
        server.bytes_per_s = 0
        server.start()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        assert fetched(data_dir) == digests(release_dir)
        resumed = [request for request in server.requests() if request[0] == "206" and int(request[1]) > 1]
        assert resumed
        assert all(range_ and if_range for *_, range_, if_range in resumed)
