"""A real nginx on this machine, over TLS, that serves a synthetic release with ScanNet's URLs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

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
    log_format requests escape=none "$status\t$body_bytes_sent\t$http_range\t$http_if_range";
    access_log {folder}/access.log requests;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
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


class NginxServer:
    """Serves the files of `root`, a raw tree; in between, `stop` and `start` make an outage, with the same port.

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
        values = vars(self) | {"certificate": self._certificate_path}
        (self.folder / "nginx.conf").write_text(_CONFIG.format_map(values))
        command = [str(NGINX), "-p", self.folder, "-c", self.folder / "nginx.conf", "-e", self.folder / "error.log"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        for _ in range(1_000):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, "nginx has ended"
            time.sleep(0.01)
        raise TimeoutError("nginx does not answer")

    def stop(self) -> None:
        """At once: connections are cut."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def requests(self) -> list[list[str]]:
        """Requests that have ended: status, bytes sent, Range and If-Range, which may be empty."""
        return [line.split("\t") for line in (self.folder / "access.log").read_text().splitlines()]
