"""Downloads that are killed, interrupted, started twice, or run out of space; and their networks:
certificates, proxies, and a real nginx."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from commands import digests, fail, find_program, run_main, start_command, succeed
from release_server import (
    MESH,
    ROOT,
    SOON,
    ReleaseServer,
    Reset,
    Set,
    Stall,
    Status,
    at,
    ending,
    fetch,
    fetched,
    finished,
    make_private_authority,
    release_urls,
    words,
)

from scannet_prep.base.progress import Progress
from scannet_prep.errors import DiskFullError, TransferError
from scannet_prep.raw.lock import check_file, read_tree_lock
from scannet_prep.stages import download


def partial_sizes(data_dir):
    """Return the sizes of the partial files, each of which may get its final name meanwhile."""
    sizes = []
    for path in data_dir.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def wait_until(condition, process):
    """Wait for a condition while a process goes on."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


# What a download waits for, a minute at least: the rule of the server, and the number of requests
# with faults after which it waits.
WAITING = {
    "content": (at(ending(MESH), then=Stall(3_000)), 3),
    "the headers": (at(ending(MESH), then=Stall()), 3),
    "another attempt": (at(ending(MESH), then=Status(429, "7200")), 1),
    "a server that is down": (at(None, then=Set(is_down=True)), 1),
}


def start_waiting(server, data_dir, name):
    """Start a download, and return when it waits."""
    rule, request_count = WAITING[name]
    server.faults = [rule]
    process = start_command(*words(server.base_url, data_dir, "--json"))

    def is_waiting():
        faulty = [request for request in server.requests() if request.faults]
        if len(faulty) < request_count:
            return False
        if name != "content":
            return True
        # All other files are complete.
        others_count = len(server.files) - 3
        return partial_sizes(data_dir) == [3_000] * 3 and len(finished(data_dir)) == others_count

    wait_until(is_waiting, process)
    return process


@pytest.mark.parametrize("name", WAITING)
def test_interrupted_download_records_its_files_and_the_next_run_continues(server, tmp_path, name):
    process = start_waiting(server, tmp_path, name)
    process.send_signal(signal.SIGTERM if name == "content" else signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "run the same command again" in stdout
    assert "Traceback" not in stderr
    recorded = read_tree_lock(tmp_path).keys()
    names = finished(tmp_path).keys()
    assert names <= recorded
    # One complete file may have been about to get its final name.
    assert len(recorded - names) <= 1

    server.faults = []
    server.start()
    succeed(*words(server.base_url, tmp_path))
    assert fetched(tmp_path) == digests(server.root)
    if name == "content":
        assert all(server.bytes_sent_again(path) == 0 for path in server.files)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DiskFullError])
def test_no_file_appears_after_a_stopped_run_and_only_an_interrupt_leaves_threads(
    server, tmp_path, monkeypatch, error
):
    is_checking = threading.Event()
    is_over = threading.Event()

    def check(*arguments):
        is_checking.set()
        assert is_over.wait(30)
        return check_file(*arguments)

    class End(Progress):
        def advance(self, *_):
            if is_checking.is_set():
                threading.Timer(0.3, is_over.set).start()
                raise error

    monkeypatch.setattr(download.fetch, "check_file", check)
    with pytest.raises(error):
        fetch(server, tmp_path, bar=End())
    assert is_over.is_set() or error is KeyboardInterrupt
    for thread in threading.enumerate():
        if thread.name.startswith("download"):
            thread.join()
    assert finished(tmp_path) == {}
    assert partial_sizes(tmp_path)
    succeed(*words(server.base_url, tmp_path))
    assert read_tree_lock(tmp_path).keys() == finished(tmp_path).keys() == fetched(tmp_path).keys()


def test_file_larger_than_the_free_space_ends_the_run_before_anything_is_written(server, tmp_path):
    tmp_path.joinpath("scans").mkdir()
    command = ["download", "--types", ".sens", "--accept-terms", "-o", tmp_path]
    command += ["--base-url", server.base_url]
    fail(1, f"{tmp_path}/scans: needs 1.21 TB and a reserve of 200.0 MB", *command)
    assert not server.requests()
    assert [path.name for path in tmp_path.iterdir()] == ["scans"]
    # Bytes that were received before need no space again.
    for file in run_main(*command, "--print-urls", "--json").json["files"]:
        path = tmp_path / file["path"]
        part = path.with_name(f".{path.name}.part")
        part.parent.mkdir(parents=True)
        part.with_name(f"{part.name}.version").write_text('"1"')
        part.touch()
        os.truncate(part, 1 << 40)
    assert run_main(*command, "--dry-run", "--json").json["missing_bytes"] == 0
    assert "no file was served" in run_main(*command).stderr
    # However large those of other files are, this one is missing.
    part.unlink()
    assert run_main(*command, "--dry-run").stdout.count(" 750.0 MB\n") == 2


def test_files_are_recorded_although_the_list_of_failed_scenes_cannot_be_written(server, tmp_path):
    server.faults = [at(ending(MESH), then=Status(404))]
    tmp_path.joinpath("failed.txt").mkdir()
    outcome = run_main(*words(server.base_url, tmp_path, "--json"))
    assert outcome.status == 1
    assert outcome.json["path"] == str(tmp_path / "failed.txt")
    assert set(read_tree_lock(tmp_path)) == set(finished(tmp_path))
    assert len(finished(tmp_path)) == len(server.files) - 3


def test_link_to_a_disk_that_is_not_mounted_is_named(server, tmp_path):
    tmp_path.joinpath("scans").symlink_to("/nowhere")
    report = fetch(server, tmp_path)
    assert len(finished(tmp_path)) + len(report.failures) == len(server.files)
    assert "a link that leads nowhere, expected a folder" in report.failures[0].message


# Certificates, proxies and other failures of the network.


def test_certificate_of_an_unknown_authority_ends_the_run_unless_insecure_or_trusted(
    release_dir, authority, tmp_path, monkeypatch
):
    with ReleaseServer(release_dir, certificate=authority[1]) as server:
        command = words(server.base_url, tmp_path)
        outcome = fail(1, "the certificate cannot be verified", *command)
        assert "REQUESTS_CA_BUNDLE" in outcome.stderr
        assert server.connection_count <= 12
        assert not finished(tmp_path)
        assert succeed(*command, "--insecure").stderr.count("anybody can pose as the server") == 1
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority[0]))
        assert not fetch(server, tmp_path / "trusted").failures


@pytest.mark.parametrize(
    ("names", "days", "reason"),
    [("IP:127.0.0.2", 2, "IP address mismatch"), ("IP:127.0.0.1", 0, "certificate has expired")],
)
def test_fault_of_a_certificate_is_named(release_dir, tmp_path, monkeypatch, names, days, reason):
    ca_path, certificate_path = make_private_authority(tmp_path / "authority", names, days)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca_path))
    with (
        ReleaseServer(release_dir, certificate=certificate_path) as server,
        pytest.raises(TransferError, match=f"cannot be verified.*{reason}"),
    ):
        fetch(server, tmp_path / "data")


@pytest.mark.parametrize(("scheme", "status"), [("http", 407), ("https", 407), ("https", 403)])
@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("", ""),
        ("socks5://127.0.0.1:9", "SOCKS support"),
        ("http://", "check proxy URL"),
        ("http://user:secret@127.0.0.1:port", "'127.0.0.1:port' is not a valid host or port"),
    ],
)
def test_proxy_that_cannot_be_used_ends_the_run(
    server, tmp_path, monkeypatch, scheme, status, proxy, reason
):
    server.faults = [at(None, then=Status(status))]
    monkeypatch.setenv(f"{scheme}_proxy", proxy or server.origin)
    server.base_url = f"{scheme}://mirror.invalid/scannet/"
    with pytest.raises(TransferError, match=reason or str(status)) as caught:
        fetch(server, tmp_path)
    assert "http://USER:PASSWORD@HOST:PORT" in caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "base_url", "reason"),
    [
        (None, "http://mirror.invalid/", "Name or service not known"),
        (None, "https://127.0.0.1:PORT/", "cannot be requested: [SSL"),
        (Reset(), "", "Connection reset by peer"),
        (Stall(), "", "the server does not answer"),
        (Set(before=b"SSH-2.0-x407\r\n"), "", "the server cannot be reached: SSH-2.0-x407"),
    ],
)
def test_failure_of_the_network_is_named(server, tmp_path, fault, base_url, reason):
    server.faults = [at(None, then=fault)]
    if base_url:
        server.base_url = base_url.replace("PORT", str(server.port))
    with pytest.raises(TransferError) as caught:
        fetch(server, tmp_path, patience=SOON | {"_FIRST_ANSWER_S": 0.1})
    assert reason in caught.value.message


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
def nginx(folder, **settings):
    """Run nginx; in the `with` block, it accepts connections."""
    config_path = folder / "nginx.conf"
    config_path.write_text(NGINX_CONFIG.format(folder=folder, **settings))
    command = [find_program("nginx"), "-p", folder, "-c", config_path, "-e", folder / "error.log"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        wait_until(lambda: is_listening(settings["port"]), process)
        try:
            yield
        finally:
            process.terminate()


def is_listening(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.extra("nginx")
def test_download_from_nginx_over_tls_survives_an_outage(
    release_dir, tmp_path, authority, monkeypatch
):
    ca_path, certificate_path = authority
    for path, file in release_urls(release_dir).items():
        link = tmp_path / f"www{path}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    settings = {"folder": tmp_path, "certificate": certificate_path, "port": port}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca_path))
    data_dir = tmp_path / "data"

    with nginx(**settings, bytes_per_s=60_000):
        process = start_command(*words(f"https://127.0.0.1:{port}{ROOT}", data_dir))
        wait_until(lambda: max(partial_sizes(data_dir), default=0) > 30_000, process)
    time.sleep(0.5)  # the length of the outage
    with nginx(**settings, bytes_per_s=0):
        _, stderr = process.communicate(timeout=120)

    assert process.returncode == 0, stderr
    assert fetched(data_dir) == digests(release_dir)
    # Ranges of more than a byte were requested with Range and If-Range.
    resumed = re.findall(r"(?m)^206 (?!1 ).*$", (tmp_path / "access.log").read_text())
    assert resumed
    assert all(re.fullmatch(r"206 \d+ \S+ \S+", line) for line in resumed)
