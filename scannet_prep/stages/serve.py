"""Serve pages of scenes to a browser on this machine, or on another one by an SSH tunnel.

    /                     the list of scenes; its query describes filter and order
    /scenes               the scenes, JSON
    /scores               the scores of their predictions so far, JSON
    /scene/<scene>        the page of a scene; its query is that of the list it was opened from
    /thumbnail/<scene>    the picture of a scene, PNG

Queries are for the scripts of the pages, and the server ignores them.

The server listens on 127.0.0.1 only. The `Host` of a request must be a name of this machine:
otherwise a web site could point its own name at this server (DNS rebinding) and read the scenes.
Paths are looked up among the scenes and never become paths of files.
"""

from __future__ import annotations

import sys
import threading
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scannet_prep.base.findings import Finding
from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError
from scannet_prep.stages.scene_scores import SceneScores
from scannet_prep.stages.viewing import Viewing
from scannet_prep.view.list_page import THUMBNAIL_SIZE, encode_scenes, make_list_page
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene
from scannet_prep.view.trouble_page import make_trouble_page

ADDRESS = "127.0.0.1"
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_THUMBNAIL = PictureOptions(*THUMBNAIL_SIZE, has_legend=False)
# Pages and pictures.
_MAX_KEPT_FILES = 48
# The page of a scene is often requested soon after its picture.
_MAX_KEPT_SCENES = 16
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_CONTENT_TYPES = {"scene": _HTML, "thumbnail": "image/png"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class SceneServer(ThreadingHTTPServer):
    """A server of scenes, which are read on request; `serve_forever` runs it.

    Args:
        viewing: The scenes. If one cannot be shown, the browser shows the reason.
        port: The port to listen on; 0 for any free port.

    Attributes:
        url: The address of the list of scenes.

    Raises:
        UsageError: The port is in use, or only an administrator may use it.
    """

    daemon_threads = True
    # Connections beyond this number wait for a second.
    request_queue_size = 128

    def __init__(self, viewing: Viewing, port: int) -> None:
        self._scores: SceneScores | None = None
        if viewing.predictions is not None:
            self._scores = SceneScores(viewing, viewing.predictions)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}",
                "to use any free port: --serve 0",
            ) from error
        self.url = f"http://{ADDRESS}:{self.server_port}/"
        self.viewing = viewing
        self._locks = {kind: threading.Lock() for kind in _CONTENT_TYPES}
        self._load = lru_cache(_MAX_KEPT_SCENES)(viewing.load)
        self._make_once = lru_cache(_MAX_KEPT_FILES)(self._make)
        score_name = ""
        if self._scores is not None:
            score_name = self._scores.name
            self._scores.start()
        entries = {scene_id: viewing.place.entries[scene_id] for scene_id in viewing.scene_ids}
        self._list_page = make_list_page(viewing.place.name)
        self._scenes = encode_scenes(entries, viewing.label_set, score_name)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in its base class
        """Ignore connections that browsers close; errors of scenes are part of an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Close the server, and stop computing scores."""
        super().server_close()
        if self._scores is not None:
            self._scores.stop()

    def make_shared(self, path: str) -> tuple[bytes, str] | None:
        """Return content that belongs to no single scene, and its type; None for other paths."""
        if path == "/":
            return self._list_page, _HTML
        if path == "/scenes":
            return self._scenes, _JSON
        if path == "/scores" and self._scores is not None:
            return self._scores.encode(), _JSON
        return None

    def make(self, kind: str, scene_id: str) -> bytes:
        """Return the page or the picture of a scene.

        Files of a kind are made one at a time and then kept: browsers send many requests at once,
        some of them twice. A page does not wait for the pictures of the list.
        """
        with self._locks[kind]:
            return self._make_once(kind, scene_id)

    def _make(self, kind: str, scene_id: str) -> bytes:
        """Make the page or the picture of a scene."""
        scene = self._load(scene_id)
        color = self.viewing.choose_color(scene)
        if kind == "scene":
            beside = self.viewing.choose_beside(scene)
            return make_scene_page(scene, color=color, beside=beside, is_served=True)
        if color not in scene.colorings:
            color = "rgb"
        return encode_png(render_scene(scene, color, _THUMBNAIL))


class _Handler(BaseHTTPRequestHandler):
    """The handler of a request; it only answers GET."""

    server: SceneServer
    server_version = f"scannet-prep/{VERSION}"
    # Do not send the version of Python.
    sys_version = ""
    timeout = 60
    error_content_type = "text/plain;charset=utf-8"
    error_message_format = "%(code)d %(message)s\n%(explain)s\n"

    def parse_request(self) -> bool:
        """Refuse other methods and other hosts before the path is looked up."""
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
            return False
        if self._read_host() not in _HOSTS:
            hint = f"open {self.server.url} instead"
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=hint)
            return False
        return True

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        kind, _, scene_id = path[1:].partition("/")
        shared = self.server.make_shared(path)
        try:
            if shared is not None:
                self._answer(*shared)
            elif scene_id in self.server.viewing.scene_ids and kind in _CONTENT_TYPES:
                self._answer(self.server.make(kind, scene_id), _CONTENT_TYPES[kind])
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
        except Exception as error:  # noqa: BLE001 - the other scenes can still be shown
            finding = Finding.from_error(error)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            if kind == "scene":
                self._answer(make_trouble_page(scene_id, str(finding), finding.hint), _HTML, status)
            else:
                self.send_error(status, explain=f"{finding}\n{finding.hint}")

    def end_headers(self) -> None:
        """Add the headers that all answers have."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in its base class
        """Print nothing, because a library does not print."""

    def _read_host(self) -> str:
        """Return the host name of the `Host` header, in lower case and without the port."""
        host: str = self.headers.get("Host", "")
        name, _, port = host.rpartition(":")
        if not port.isdigit():
            name = host
        return name.lower()

    def _answer(
        self, content: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        """Send content."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
