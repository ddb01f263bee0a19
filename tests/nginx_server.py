"""A real nginx on this machine, over TLS, that serves a synthetic release with ScanNet's URLs."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
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
    log_format requests escape=none
        "$request_method\t$uri\t$status\t$body_bytes_sent\t$http_range\t$http_if_range\t$connection";
    access_log {folder}/access.log requests;
    client_body_temp_path {folder}/temporary;
    proxy_temp_path {folder}/temporary;
    fastcgi_temp_path {folder}/temporary;
    uwsgi_temp_path {folder}/temporary;
    scgi_temp_path {folder}/temporary;
    default_type application/octet-stream;
    sendfile on;
    server {{
        listen 127.0.0.1:{port} ssl reuseport;
        ssl_certificate {certificate};
        ssl_certificate_key {certificate};
        limit_rate {bytes_per_s};
        location / {{ root {folder}/www; }}
        location = /is-up {{ access_log off; return 204; }}
    }}
}}
"""


def reserve_port() -> socket.socket:
    """Bind a socket to a free port; as long as it is open, the port is not given to anybody else."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


@dataclass(frozen=True)
class LoggedRequest:
    """A line of the access log, written once the request has ended."""

    method: str
    path: str
    status: int
    sent_bytes: int
    range: str | None
    if_range: str | None
    connection: int


class NginxServer:
    """Runs from `with` on; in between, `stop` and `start` make an outage, with the same port.

    Args:
        root: A raw tree as `write_release` makes it; its files are linked, so that later changes show.
        folder: An empty folder for certificates, configuration and logs.
        bytes_per_s: Bandwidth of each connection, 0 for no limit; a change shows after the next `start`.
    """

    def __init__(self, root: Path, folder: Path, *, bytes_per_s: int = 0) -> None:
        self.folder = folder
        self.bytes_per_s = bytes_per_s
        self.access_log_path = folder / "access.log"
        self.error_log_path = folder / "error.log"
        self.ca_path, self._certificate_path = make_private_authority(folder)
        self._process: subprocess.Popen[bytes] | None = None
        for path, file in release_urls(root).items():
            link = folder / "www" / path.removeprefix("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, Path):
                link.symlink_to(file.resolve())
            else:
                link.write_bytes(file)

    def __enter__(self) -> NginxServer:
        self._placeholder = reserve_port()
        self.port = self._placeholder.getsockname()[1]
        self.origin = f"https://127.0.0.1:{self.port}"
        self.base_url = f"{self.origin}{ROOT}"
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._placeholder.close()

    def start(self) -> None:
        """Returns when it answers."""
        assert NGINX is not None
        if self._process is not None:
            return
        config_path = self.folder / "nginx.conf"
        config_path.write_text(
            _CONFIG.format(
                folder=self.folder, port=self.port, certificate=self._certificate_path, bytes_per_s=self.bytes_per_s
            )
        )
        with (self.folder / "output.log").open("wb") as output:
            self._process = subprocess.Popen(
                [NGINX, "-p", self.folder, "-c", config_path, "-e", self.error_log_path],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self._wait_for_answer()

    def stop(self) -> None:
        """At once: connections are cut."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def requests(self, path: str | None = None) -> list[LoggedRequest]:
        """Requests that have ended; the line may come a moment after the client has its last byte."""
        lines = [line.split("\t") for line in self.access_log_path.read_text().splitlines()]
        found = [
            LoggedRequest(
                method, url_path, int(status), int(sent_bytes), span or None, if_range or None, int(connection)
            )
            for method, url_path, status, sent_bytes, span, if_range, connection in lines
        ]
        return [request for request in found if path in (None, request.path)]

    def _wait_for_answer(self) -> None:
        context = ssl.create_default_context(cafile=self.ca_path)
        deadline = time.monotonic() + 20
        while True:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
            with contextlib.closing(connection), contextlib.suppress(ConnectionRefusedError):
                connection.request("GET", "/is-up")
                assert connection.getresponse().status == 204
                return
            is_dead = self._process is None or self._process.poll() is not None
            assert not is_dead, f"nginx has ended: {(self.folder / 'output.log').read_text()}"
            assert time.monotonic() < deadline, "nginx does not answer"
            time.sleep(0.01)
