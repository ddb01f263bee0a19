"""A real nginx on this machine, over TLS, that serves a synthetic release with ScanNet's URLs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import make_private_authority
from release_server import ROOT, release_urls

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

_CONFIG = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{}}
http {{
    log_format requests escape=none "$uri\t$status\t$body_bytes_sent\t$http_range\t$http_if_range";
    access_log {folder}/access.log requests;
    client_body_temp_path {folder}/temporary;
    proxy_temp_path {folder}/temporary;
    fastcgi_temp_path {folder}/temporary;
    uwsgi_temp_path {folder}/temporary;
    scgi_temp_path {folder}/temporary;
    default_type application/octet-stream;
    sendfile on;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {certificate};
        limit_rate {bytes_per_s};
        location / {{ root {folder}/www; }}
    }}
}}
"""


class LoggedRequest(NamedTuple):
    """A line of the access log, written once the request has ended; empty where a header is missing."""

    path: str
    status: int
    sent_bytes: int
    range: str
    if_range: str


class NginxServer:
    """Runs from `with` on; in between, `stop` and `start` make an outage, with the same port.

    `root` is a raw tree as `write_release` makes it, whose files are linked; `folder` is an empty one;
    `bytes_per_s` is the bandwidth of each connection, 0 for no limit, and counts from the next `start` on.
    """

    def __init__(self, root: Path, folder: Path, *, bytes_per_s: int = 0) -> None:
        self.folder = folder
        self.bytes_per_s = bytes_per_s
        self.ca_path, self._certificate_path = make_private_authority(folder)
        self._process: subprocess.Popen[bytes] | None = None
        for path, file in release_urls(root).items():
            link = folder / "www" / path.removeprefix("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(str(file)).resolve())

    def __enter__(self) -> NginxServer:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.origin = f"https://127.0.0.1:{self.port}"
        self.base_url = f"{self.origin}{ROOT}"
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it answers."""
        assert NGINX is not None
        config_path = self.folder / "nginx.conf"
        config_path.write_text(
            _CONFIG.format(
                folder=self.folder, port=self.port, certificate=self._certificate_path, bytes_per_s=self.bytes_per_s
            )
        )
        self._process = subprocess.Popen(
            [NGINX, "-p", self.folder, "-c", config_path, "-e", self.folder / "error.log"], stdin=subprocess.DEVNULL
        )
        for _ in range(1_000):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, "nginx has ended"
            time.sleep(0.01)
        raise TimeoutError("nginx does not answer")

    def stop(self) -> None:
        """At once: connections are cut."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(20)

    def requests(self, path: str | None = None) -> list[LoggedRequest]:
        """Requests that have ended; the line may come a moment after the client has its last byte."""
        lines = [line.split("\t") for line in (self.folder / "access.log").read_text().splitlines()]
        found = [LoggedRequest(line[0], int(line[1]), int(line[2]), *line[3:]) for line in lines]
        return [request for request in found if path in (None, request.path)]
