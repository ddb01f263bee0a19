"""Downloads that are killed, interrupted, started twice, or run out of space; and a real nginx."""

import contextlib
import random
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import Outcome, digests, limited, run_main, start_command
from downloads import MESH, fetched, finished, words
from extras import find_program
from release_server import (
    BEFORE_STATUS,
    ROOT,
    ReleaseServer,
    Rule,
    Set,
    Stall,
    Status,
    at,
    ending,
    release_urls,
)

from scannet_prep.raw.lock import read_lock


def partial_sizes(data_dir: Path) -> list[int]:
    """Return the sizes of the partial files, each of which may get its final name meanwhile."""
    sizes = []
    for path in data_dir.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition while a process goes on."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


def test_download_killed_three_times_ends_with_the_same_tree(
    release_dir: Path, tmp_path: Path
) -> None:
    dice = random.Random(0)
    expected = digests(release_dir)
    with ReleaseServer(release_dir, request_latency_s=0.03) as server:
        for number in range(3):
            process = start_command(*words(server.base_url, tmp_path))
            while len(server.requests()) < 4 * number:
                assert process.poll() in (None, 0)
                time.sleep(0.005)
            time.sleep(dice.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert finished(tmp_path).items() <= expected.items()

        outcome = run_main(*words(server.base_url, tmp_path))
        assert outcome.status == 0, outcome.stderr
    assert fetched(tmp_path) == expected


@dataclass(frozen=True)
class Waiting:
    """A download that waits, for a minute at least if it is not interrupted.

    Attributes:
        rule: The faults that make it wait.
        request_count: Requests with faults after which it waits.
        interrupt: The signal that interrupts it.
    """

    rule: Rule
    request_count: int
    interrupt: signal.Signals = signal.SIGINT


WAITING = {
    "for content": Waiting(at(ending(MESH), then=Stall(30_000)), 3, signal.SIGTERM),
    "for the end of the headers": Waiting(
        at(ending(MESH), then=Set(trickle=(BEFORE_STATUS, 1))), request_count=3
    ),
    "before another attempt": Waiting(at(ending(MESH), then=Status(429, "7200")), request_count=1),
    "for a server that is down": Waiting(at(None, then=Set(is_down=True)), request_count=1),
}


def start_waiting(server: ReleaseServer, data_dir: Path, name: str) -> subprocess.Popen[str]:
    """Start a download, and return when it waits."""
    waiting = WAITING[name]
    server.faults = [waiting.rule]
    process: subprocess.Popen[str] = start_command(*words(server.base_url, data_dir, "--json"))
    earlier = None

    def is_waiting() -> bool:
        nonlocal earlier
        faulty = [request for request in server.requests() if request.faults]
        if len(faulty) < waiting.request_count:
            return False
        # Files that were requested before the fault are published within this time.
        time.sleep(0.2)
        now = [finished(data_dir), len(server.requests())]
        is_quiet = now == earlier
        earlier = now
        if not is_quiet and name == "before another attempt":
            return False
        if name != "for content":
            return True
        # All other files are complete.
        others_count = len(server.files) - 3
        return partial_sizes(data_dir) == [30_000] * 3 and len(finished(data_dir)) == others_count

    wait_until(is_waiting, process)
    return process


def end_waiting(server: ReleaseServer) -> None:
    server.faults = []
    server.start()


@dataclass(frozen=True)
class InterruptedDownload:
    """A waiting download that was interrupted, and the run after it.

    Attributes:
        first: The outcome of the interrupted download.
        recorded: The files in its lock file.
        finished: The files that had their final names after it.
        next_status: The exit status of the next run.
        fetched: The digests of the files after it, by path.
    """

    first: Outcome
    recorded: set[str]
    finished: set[str]
    next_status: int
    fetched: dict[str, str]


@pytest.fixture(scope="module", params=WAITING)
def interrupted(
    request: pytest.FixtureRequest, release_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> InterruptedDownload:
    data_dir = tmp_path_factory.mktemp("interrupted")
    with ReleaseServer(release_dir) as server:
        process = start_waiting(server, data_dir, request.param)
        process.send_signal(WAITING[request.param].interrupt)
        stdout, stderr = process.communicate(timeout=20)
        lock_path = data_dir / "scannet.lock"
        recorded = set(read_lock(lock_path)) if lock_path.exists() else set()
        names = set(finished(data_dir))

        end_waiting(server)
        next_status = run_main(*words(server.base_url, data_dir)).status
    return InterruptedDownload(
        first=Outcome(process.returncode, stdout, stderr),
        recorded=recorded,
        finished=names,
        next_status=next_status,
        fetched=fetched(data_dir),
    )


def test_interruption_ends_a_waiting_download(interrupted: InterruptedDownload) -> None:
    assert interrupted.first.status == 130, interrupted.first.stderr
    assert "run the same command again" in interrupted.first.stdout
    assert "Traceback" not in interrupted.first.stderr


def test_files_of_an_interrupted_download_are_recorded(interrupted: InterruptedDownload) -> None:
    assert interrupted.recorded == interrupted.finished


def test_next_run_completes_an_interrupted_download(
    interrupted: InterruptedDownload, release_dir: Path
) -> None:
    assert interrupted.next_status == 0
    assert interrupted.fetched == digests(release_dir)


def test_interrupted_transfers_continue_where_they_stopped(
    server: ReleaseServer, tmp_path: Path
) -> None:
    process = start_waiting(server, tmp_path, "for content")

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)

    # Three partial files, each with its version.
    assert len(list(tmp_path.rglob(".*.part*"))) == 6
    end_waiting(server)
    assert run_main(*words(server.base_url, tmp_path)).status == 0
    assert all(server.bytes_sent_again(path) == 0 for path in server.files)


def test_second_download_in_a_folder_names_the_running_process(
    server: ReleaseServer, tmp_path: Path
) -> None:
    process = start_waiting(server, tmp_path, "for content")

    second = run_main(*words(server.base_url, tmp_path, "--json"))
    process.kill()
    process.communicate()

    assert second.status == 1
    assert second.json["error"] == "LockedError"
    assert f"process {process.pid} on" in second.json["message"]


def test_full_disk_ends_the_download_without_half_a_file(
    server: ReleaseServer, tmp_path: Path
) -> None:
    expected = digests(server.root)
    with limited(resource.RLIMIT_FSIZE, 60_000):
        outcome = run_main(*words(server.base_url, tmp_path, "--json"))

    assert outcome.status == 1
    assert outcome.json["error"] == "DiskFullError"
    assert finished(tmp_path).items() <= expected.items()

    # With space, the next run continues.
    assert run_main(*words(server.base_url, tmp_path)).status == 0
    assert fetched(tmp_path) == expected


NGINX_CONFIG = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{}}
http {{
    log_format requests escape=none "$status $body_bytes_sent $http_range $http_if_range";
    access_log {folder}/access.log requests;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {certificate};
        limit_rate {bytes_per_s};
        location / {{ root {folder}/www; }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, **settings: Any) -> Iterator[None]:
    """Run nginx; in the `with` block, it accepts connections."""
    config_path = folder / "nginx.conf"
    config_path.write_text(NGINX_CONFIG.format(folder=folder, **settings))
    command = [
        str(find_program("nginx")),
        "-p",
        folder,
        "-c",
        config_path,
        "-e",
        folder / "error.log",
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        while not is_listening(settings["port"]):
            assert process.poll() is None, "nginx has ended"
            time.sleep(0.01)
        try:
            yield
        finally:
            process.terminate()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def find_free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True)
class NginxRelease:
    """A release in the folder of an nginx that has a certificate of its own authority."""

    base_url: str
    ca_path: Path
    settings: dict[str, Any]


@pytest.fixture
def nginx_release(release_dir: Path, tmp_path: Path, authority: tuple[Path, Path]) -> NginxRelease:
    ca_path, certificate_path = authority
    for path, file in release_urls(release_dir).items():
        link = tmp_path / f"www{path}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    port = find_free_port()
    settings = {"folder": tmp_path, "certificate": certificate_path, "port": port}
    return NginxRelease(f"https://127.0.0.1:{port}{ROOT}", ca_path, settings)


@pytest.mark.extra("nginx")
def test_certificate_of_nginx_is_verified(nginx_release: NginxRelease, tmp_path: Path) -> None:
    with nginx(**nginx_release.settings, bytes_per_s=0):
        outcome = run_main(*words(nginx_release.base_url, tmp_path / "data"))

    assert "the certificate cannot be verified" in outcome.stderr


@pytest.mark.extra("nginx")
def test_download_from_nginx_over_tls_survives_an_outage(
    nginx_release: NginxRelease, release_dir: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    command = words(nginx_release.base_url, data_dir, "--ca-bundle", nginx_release.ca_path)

    with nginx(**nginx_release.settings, bytes_per_s=60_000):
        process: subprocess.Popen[str] = start_command(*command)
        wait_until(lambda: max(partial_sizes(data_dir), default=0) > 30_000, process)
    time.sleep(0.5)  # the length of the outage
    with nginx(**nginx_release.settings, bytes_per_s=0):
        _, stderr = process.communicate(timeout=60)

    assert process.returncode == 0, stderr
    assert fetched(data_dir) == digests(release_dir)
    # Ranges of more than a byte were requested with Range and If-Range.
    lines = (tmp_path / "access.log").read_text().splitlines()
    requests = [line.split(" ") for line in lines]
    resumed = [request for request in requests if request[0] == "206" and int(request[1]) > 1]
    assert resumed
    assert all(len(request) == 4 and all(request) for request in resumed)
