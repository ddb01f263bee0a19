"""Downloads that are killed, interrupted, doubled, or run out of space; and a real nginx over TLS."""

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import digests, limited, run_main, start_command
from downloads import MESH, fetched, finished, words
from release_server import (
    BEFORE_STATUS,
    ROOT,
    ReleaseServer,
    Set,
    Stall,
    Status,
    at,
    ending,
    release_urls,
)

from scannet_prep.raw.lock import read_lock

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")


def partial_sizes(data_dir: Path) -> list[int]:
    """Of those that stay while this looks: each may get its final name at any moment."""
    sizes = []
    for path in data_dir.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def test_killed_three_times_and_then_finished_it_is_the_same_tree(
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


WAITING = {
    "for content": at(ending(MESH), then=Stall(30_000)),
    "for the end of the headers": at(ending(MESH), then=Set(trickle=(BEFORE_STATUS, 1))),
    "before another attempt": at(ending(MESH), then=Status(429, "7200")),
    "for a server that is down": at(None, then=Set(is_down=True)),
}


@pytest.mark.parametrize("name", WAITING)
def test_an_interruption_ends_it_whatever_it_waits_for(
    server: ReleaseServer, tmp_path: Path, name: str
) -> None:
    def is_waiting() -> bool:
        if name == "for content":
            return partial_sizes(tmp_path) == [30_000] * 3
        count = 1 if name.startswith(("for a", "before")) else 3
        return sum(bool(request.faults) for request in server.requests()) >= count

    server.faults = [WAITING[name]]
    process = start_command(*words(server.base_url, tmp_path, "--json"))
    while not is_waiting():
        assert process.poll() is None
        time.sleep(0.01)
    second = run_main(*words(server.base_url, tmp_path, "--json"))
    assert (second.status, second.json["error"]) == (1, "LockedError")
    assert f"process {process.pid} on" in second.json["message"]
    process.send_signal(signal.SIGTERM if name == "for content" else signal.SIGINT)
    stdout, stderr = process.communicate(
        timeout=20
    )  # all of them would go on for a minute at least
    assert process.returncode == 130, stderr
    assert "run the same command again" in stdout
    assert "Traceback" not in stderr
    lock_path, whole = tmp_path / "scannet.lock", finished(tmp_path).keys()
    assert (
        read_lock(lock_path).keys() if lock_path.exists() else set()
    ) == whole  # what has come is on record
    partials = list(tmp_path.rglob(".*.part*"))
    assert len(partials) == (6 if name == "for content" else len(partials))  # each with its version
    server.faults = []
    server.start()
    assert run_main(*words(server.base_url, tmp_path)).status == 0
    assert fetched(tmp_path) == digests(server.root)
    if name == "for content":  # else other files may have been under way
        assert all(server.bytes_sent_again(path) == 0 for path in server.files)


def test_a_full_disk_stops_it_and_leaves_no_half_file_under_a_final_name(
    server: ReleaseServer, tmp_path: Path
) -> None:
    with limited(resource.RLIMIT_FSIZE, 60_000):
        outcome = run_main(*words(server.base_url, tmp_path, "--json"))
    assert (outcome.status, outcome.json["error"]) == (1, "DiskFullError")
    expected = digests(server.root)
    assert finished(tmp_path).items() <= expected.items()
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
def nginx(folder: Path, **settings: object) -> Iterator[None]:
    """Run nginx from when it answers until its connections are cut."""
    (folder / "nginx.conf").write_text(NGINX_CONFIG.format(folder=folder, **settings))
    command = [str(NGINX), "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        while True:
            assert process.poll() is None, "nginx has ended"
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection(("127.0.0.1", settings["port"])),
            ):
                break
            time.sleep(0.01)
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_a_real_server_over_tls_with_an_outage(
    release_dir: Path, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    for path, file in release_urls(release_dir).items():
        (link := tmp_path / f"www{path}").parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    settings = {"folder": tmp_path, "certificate": authority[1], "port": port}
    data_dir = tmp_path / "data"
    command = words(f"https://127.0.0.1:{port}{ROOT}", data_dir)
    with nginx(**settings, bytes_per_s=60_000):
        assert "the certificate cannot be verified" in run_main(*command).stderr
        process = start_command(*command, "--ca-bundle", authority[0])
        while max(partial_sizes(data_dir), default=0) <= 30_000:
            assert process.poll() is None
            time.sleep(0.01)
    time.sleep(0.5)
    with nginx(**settings, bytes_per_s=0):
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert fetched(data_dir) == digests(release_dir)
    requests = [line.split(" ") for line in (tmp_path / "access.log").read_text().splitlines()]
    resumed = [request for request in requests if request[0] == "206" and int(request[1]) > 1]
    assert resumed
    assert all(len(request) == 4 and all(request) for request in resumed)  # with If-Range
