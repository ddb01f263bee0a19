"""Serves pages of scenes to a browser on this machine, or at the other end of an SSH line.

    /                     the scenes, with pictures; ?split= and ?class= leave others out
    /scene/<scene>        the page of one
    /thumbnail/<scene>    its picture, PNG

It listens on 127.0.0.1 only. A request has to name this machine in its `Host`: else a web site could have its own name
lead here (DNS rebinding) and read what is served. Paths are looked up among the scenes and never become those of files.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from string import Template
from typing import Any
from urllib.parse import parse_qs

from scannet_prep.errors import UsageError
from scannet_prep.failures import explain
from scannet_prep.version import VERSION
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.page import hash_source, make_page, read_asset
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

ADDRESS = "127.0.0.1"
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_THUMBNAIL = PictureOptions(width=320, height=240, has_legend=False)
_KEPT_PAGES = 4
_POLICY = "default-src 'none'; img-src 'self' data:; style-src {style}; form-action 'self'; base-uri 'none'"
_KINDS = {"scene": "text/html; charset=utf-8", "thumbnail": "image/png"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class ListedScene:
    """What the list of scenes tells of one before it is read.

    Attributes:
        scene_id: Its name.
        split: Its split.
        vertices: V.
        classes: The classes that occur in it, such as `ScanNet20: wall`.
    """

    scene_id: str
    split: str
    vertices: int
    classes: frozenset[str]


class SceneServer(ThreadingHTTPServer):
    """Serves scenes until it is stopped; `serve_forever` is the way to run it.

    Args:
        scenes: What is there.
        load: Reads one of them, and chooses a colouring for it; it may raise, which is told in the browser.
        title: Of the list.
        port: To listen on; 0 for any that is free.

    Attributes:
        url: Where it is.

    Raises:
        UsageError: The port is taken, or only an administrator may use it.
    """

    daemon_threads = True
    request_queue_size = 128  # connections beyond it wait for a second

    def __init__(
        self,
        scenes: Sequence[ListedScene],
        load: Callable[[str], tuple[ViewedScene, str]],
        *,
        title: str,
        port: int,
    ) -> None:
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
            problem = "is used by another program" if error.errno == errno.EADDRINUSE else "is for administrators only"
            raise UsageError(f"port {port} {problem}", "--serve 0 takes any that is free") from error
        self.url = f"http://{ADDRESS}:{self.server_port}/"
        self.title, self.scenes = title, {scene.scene_id: scene for scene in scenes}
        self._load, self._turn = load, threading.Lock()
        self._make_page, self._make_thumbnail = lru_cache(_KEPT_PAGES)(self._page), lru_cache(None)(self._thumbnail)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - by its base class
        """Say nothing of browsers that have gone on; what is wrong with a scene has been answered."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def make_list(self, query: str) -> bytes:
        """Make the page with the scenes that a query leaves."""
        asked, scenes = {key: values[-1] for key, values in parse_qs(query).items()}, self.scenes.values()
        split, class_name = asked.get("split", ""), asked.get("class", "")
        shown = [
            item for item in scenes if split in ("", item.split) and (not class_name or class_name in item.classes)
        ]
        splits = Counter(item.split for item in scenes)
        classes = Counter(name for item in scenes for name in sorted(item.classes))
        page = Template(read_asset("scenes.html")).substitute(
            title=escape(self.title),
            style=read_asset("scenes.css"),
            splits=_make_options("all", splits, split),
            classes=_make_options("any", dict(classes.most_common()), class_name),
            summary=f"{len(shown):,} of {len(scenes):,} scenes",
            scenes="\n".join(map(_make_card, shown)) or "<p>No scene has all of that.</p>",
        )
        return page.encode()

    def make(self, kind: str, scene_id: str) -> bytes:
        """The page or the picture of a scene; one is made at a time: browsers ask for many, some twice."""
        with self._turn:
            return (self._make_page if kind == "scene" else self._make_thumbnail)(scene_id)

    def _page(self, scene_id: str) -> bytes:
        scene, color = self._load(scene_id)
        return make_page([scene], color=color, home="/")

    def _thumbnail(self, scene_id: str) -> bytes:
        scene, color = self._load(scene_id)
        return encode_png(render_scene(scene, color if color in scene.colorings else "rgb", _THUMBNAIL))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    server: SceneServer
    server_version, sys_version = f"scannet-prep/{VERSION}", ""
    timeout = 60
    error_content_type = "text/plain;charset=utf-8"
    error_message_format = "%(code)d %(message)s\n%(explain)s\n"

    def parse_request(self) -> bool:
        """Refuse what is not for this server, before anything is looked up."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "").rpartition(":")
        name = host[0] if host[2].isdigit() else self.headers.get("Host", "")
        if self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif name.lower() not in _HOSTS:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=f"open {self.server.url} instead")
        else:
            return True
        return False

    def do_GET(self) -> None:
        """Answer a request."""
        path, _, query = self.path.partition("?")
        kind, _, scene_id = path[1:].partition("/")
        try:
            if path == "/":
                policy = _POLICY.format(style=hash_source(read_asset("scenes.css")))
                self._answer(self.server.make_list(query), _KINDS["scene"], policy)
            elif scene_id not in self.server.scenes or kind not in _KINDS:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._answer(self.server.make(kind, scene_id), _KINDS[kind])
        except Exception as error:  # noqa: BLE001 - of the scene; the others can still be seen
            problem, hint, _ = explain(error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=f"{problem}\n{hint}")

    def end_headers(self) -> None:
        """Add what all answers have."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in its base class
        """Say nothing: a library does not print."""

    def _answer(self, content: bytes, kind: str, policy: str = "") -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if policy:  # pages of scenes have their own
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(content)


def _make_options(everything: str, counts: Mapping[str, int], chosen: str) -> str:
    """The choices of a filter, and of how many scenes each is."""
    return f'<option value="">{everything}</option>' + "".join(
        f'<option value="{escape(name)}"{" selected" if name == chosen else ""}>{escape(name)} ({count:,})</option>'
        for name, count in counts.items()
    )


def _make_card(scene: ListedScene) -> str:
    name = escape(scene.scene_id)
    size = f'width="{_THUMBNAIL.width}" height="{_THUMBNAIL.height}"'
    return (
        f'<li><a href="/scene/{name}"><img src="/thumbnail/{name}" alt="" loading="lazy" {size}>'
        f'<span class="name">{name}</span><span class="facts">{escape(scene.split)}, {scene.vertices:,} vertices</span>'
        "</a></li>"
    )
