"""Serve pages of scenes to a browser on this machine, or on another one by an SSH tunnel.

    /                         the list of scenes
    /scene/<scene>            the page of a scene
    /thumbnail/<scene>.png    the picture of a scene

The server listens on 127.0.0.1 only. The `Host` of a request must be a name of this machine:
otherwise a web site could point its own name at this server (DNS rebinding) and read the scenes.
Names are looked up among the scenes and never become paths of files.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scannet_prep.base.findings import Finding
from scannet_prep.base.text import count_of
from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError

ADDRESS = "127.0.0.1"
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
# How long a client may take to send a request: browsers open connections that they do not use.
_MAX_REQUEST_S = 120
_MAX_KEPT_PICTURES = 2048
_HTML = "text/html; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LIST = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }}
body {{ margin: 1rem }}
ul {{ display: grid; gap: 1rem; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)) }}
a {{ display: block }}
img {{ width: 100%; aspect-ratio: 4 / 3; background: white }}
</style>
</head>
<body>
<h1>{title}: {count}</h1>
<ul>
{items}
</ul>
</body>
</html>
"""
_ITEM = """\
<li><a href="/scene/{name}"><img loading="lazy" src="/thumbnail/{name}.png" alt="">
 {name}</a></li>"""


class SceneServer(ThreadingHTTPServer):
    """A server of scenes, which are read on request; `serve_forever` runs it.

    Args:
        title: Title of the list of scenes.
        scene_ids: The scenes, in the order of the list.
        make_page: Makes the page of a scene, HTML.
        make_picture: Makes the picture of a scene, PNG.
        port: The port to listen on; 0 for any free port.

    Attributes:
        url: The address of the list of scenes.

    Raises:
        UsageError: There is no such port, it is in use, or only an administrator may use it.
    """

    # Connections beyond this number wait for a second.
    request_queue_size = 128

    def __init__(
        self,
        title: str,
        scene_ids: Sequence[str],
        make_page: Callable[[str], bytes],
        make_picture: Callable[[str], bytes],
        port: int,
    ) -> None:
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            problem = f"port {port} cannot be used: {error}"
            raise UsageError(problem, "to use any free port: --serve 0") from error
        self.url = f"http://{ADDRESS}:{self.server_port}/"
        self._list = _make_list(title, scene_ids)
        self._scene_ids = frozenset(scene_ids)
        self._make_page = make_page
        self._make_picture = lru_cache(_MAX_KEPT_PICTURES)(make_picture)
        # Browsers send many requests at once; one scene at a time is in memory.
        self._lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in its base class
        """Ignore connections that browsers close; errors of scenes are part of an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def make(self, path: str) -> tuple[bytes, str] | None:
        """Return the content at a path, and its type; None for an unknown path."""
        if path == "/":
            return self._list, _HTML
        kind, _, name = path[1:].partition("/")
        with self._lock:
            if kind == "scene" and name in self._scene_ids:
                return self._make_page(name), _HTML
            scene_id = name.removesuffix(".png")
            if kind == "thumbnail" and scene_id in self._scene_ids:
                return self._make_picture(scene_id), "image/png"
        return None


class _Handler(BaseHTTPRequestHandler):
    """The handler of a request; it only answers GET and HEAD."""

    server: SceneServer
    # Seconds for sending the content: a large page may be read over a slow tunnel.
    timeout = 1200
    server_version = f"scannet-prep/{VERSION}"
    # Do not send the version of Python.
    sys_version = ""
    error_content_type = "text/plain;charset=utf-8"
    error_message_format = "%(code)d %(message)s\n%(explain)s\n"

    def handle(self) -> None:
        """Handle a request, and end it if it is not sent in time."""
        self._timer = threading.Timer(_MAX_REQUEST_S, self._end)
        self._timer.daemon = True
        self._timer.start()
        try:
            super().handle()
        finally:
            self._timer.cancel()

    def do_GET(self) -> None:
        """Answer a request."""
        # The request has arrived.
        self._timer.cancel()
        if self._read_host() not in _HOSTS:
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST, explain=f"open {self.server.url} instead"
            )
            return
        try:
            path, _, _ = self.path.partition("?")
            made = self.server.make(path)
        except Exception as error:  # noqa: BLE001 - the other scenes can still be shown
            finding = Finding.from_error(error)
            explanation = f"{finding}\n{finding.hint}"
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=explanation)
            return
        if made is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content, content_type = made
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815 - a name of the base class

    def end_headers(self) -> None:
        """Add the headers that all answers have."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in its base class
        """Print nothing, because a library does not print."""

    def _end(self) -> None:
        """End the connection, unless its client has ended it."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _read_host(self) -> str:
        """Return the host name of the `Host` header, in lower case and without the port."""
        host: str = self.headers.get("Host", "")
        name, _, port = host.rpartition(":")
        if not port.isdigit():
            name = host
        return name.lower()


def _make_list(title: str, scene_ids: Sequence[str]) -> bytes:
    """Make the page that lists the scenes; browsers load the pictures that come into view."""
    items = [_ITEM.format(name=escape(scene_id)) for scene_id in scene_ids]
    page = _LIST.format(
        title=escape(title),
        count=count_of(len(items), "scene"),
        items="\n".join(items),
    )
    # Paths may contain lone surrogates, which UTF-8 cannot encode.
    return page.encode("utf-8", "backslashreplace")
