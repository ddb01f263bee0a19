"""A client for tests of servers: it takes what comes and says how it ended."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from release_server import ReleaseServer, scene_url_path

MESH = scene_url_path("scene0000_00", "_vh_clean_2.ply")


@dataclass
class Reply:
    """What came, byte for byte, and how it ended: "FIN", "RST" or "silence"."""

    status: int | None
    headers: dict[str, str]
    body: bytes
    ending: str


def ask(server: ReleaseServer, path: str = MESH, method: str = "GET", patience_s: float = 20, **headers: str) -> Reply:
    """Send a request with `Connection: close` over a socket of its own, and take what comes."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    received, end = b"", "FIN"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        text = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""])
        sock.sendall(text.encode())
        deadline = time.monotonic() + patience_s
        try:
            sock.settimeout(patience_s)
            while piece := sock.recv(1 << 16):
                received += piece
                sock.settimeout(max(0.001, deadline - time.monotonic()))
        except ConnectionResetError:
            end = "RST"
        except TimeoutError:
            end = "silence"
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *header_lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.split(": ", 1) for line in header_lines)
    return Reply(int(status_line.split()[1]) if status_line else None, fields, body, end)


def is_refused(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def get(url: str, ca_path: Path | None = None, **options: Any) -> requests.Response:
    """With requests, and without what the environment says about proxies and certificates."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, verify=True if ca_path is None else str(ca_path), timeout=20, **options)
