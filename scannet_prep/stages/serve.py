"""Serves pages of scenes to a browser on this machine, or at the other end of an SSH line.

    /                     the scenes, with pictures; ?split= and ?class= leave others out
    /scene/<scene>        the page of one
    /thumbnail/<scene>    its picture, PNG

It listens on 127.0.0.1 only. A request has to name this machine in its `Host`: else a web site could have its own name
lead here (DNS rebinding) and read what is served. Paths are looked up among the scenes and never become those of files.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from string import Template
from typing import Any
from urllib.parse import parse_qs

from scannet_prep.base.errors import UsageError
from scannet_prep.base.failures import explain
from scannet_prep.base.version import VERSION
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.stages.view import Viewing
from scannet_prep.view.page import hash_source, make_page, read_asset
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

ADDRESS = "127.0.0.1"
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_THUMBNAIL = PictureOptions(width=320, height=240, has_legend=False)
_KEPT = 48  # pages and pictures
_POLICY = "default-src 'none'; img-src 'self' data:; style-src {style}; form-action 'self'; base-uri 'none'"
_KINDS = {"scene": "text/html; charset=utf-8", "thumbnail": "image/png"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class SceneServer(ThreadingHTTPServer):
    """Serves scenes until it is stopped; `serve_forever` is the way to run it. Scenes are read when asked for.

    Args:
        viewing: The scenes; what is wrong with one is told in the browser.
        port: To listen on; 0 for any that is free.

    Attributes:
        url: Where it is.

    Raises:
        UsageError: The port cannot be used: it is taken, or only an administrator may use it.
    """

    daemon_threads = True
    request_queue_size = 128  # connections beyond it wait for a second

    def __init__(self, viewing: Viewing, port: int) -> None:
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            problem = f"port {port} cannot be used: {error.strerror}"
            raise UsageError(problem, "port 0 takes any that is free: --serve 0") from error
        self.url = f"http://{ADDRESS}:{self.server_port}/"
        self.viewing, self._turn = viewing, threading.Lock()
        entries = viewing.place.entries
        self._classes = {name: set(_name_classes(entries[name])) for name in viewing.scene_ids}
        self._made = lru_cache(_KEPT)(self._make)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - by its base class
        """Say nothing of browsers that have gone on; what is wrong with a scene has been answered."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def make_list(self, query: str) -> bytes:
        """Make the page with the scenes that a query leaves."""
        asked, entries = (
            {key: values[-1] for key, values in parse_qs(query).items()},
            self.viewing.place.entries,
        )
        split, class_name = asked.get("split", ""), asked.get("class", "")
        shown = [
            name
            for name, classes in self._classes.items()
            if split in ("", entries[name].split) and (not class_name or class_name in classes)
        ]
        splits = Counter(str(entries[name].split) for name in self._classes)
        classes = Counter(
            class_name for found in self._classes.values() for class_name in sorted(found)
        )
        page = Template(read_asset("scenes.html")).substitute(
            title=escape(self.viewing.place.name),
            style=read_asset("scenes.css"),
            splits=_make_options("all", splits, split),
            classes=_make_options("any", dict(classes.most_common()), class_name),
            summary=f"{len(shown):,} of {len(self._classes):,} scenes",
            scenes="\n".join(_make_card(name, entries[name]) for name in shown)
            or "<p>No scene has all of that.</p>",
        )
        return page.encode()

    def make(self, kind: str, scene_id: str) -> bytes:
        """The page or the picture of a scene; one is made at a time: browsers ask for many, some twice."""
        with self._turn:
            return self._made(kind, scene_id)

    def _make(self, kind: str, scene_id: str) -> bytes:
        scene = self.viewing.load(scene_id)
        color = self.viewing.color_of(scene)
        if kind == "scene":
            return make_page([scene], color=color, home="/")
        return encode_png(
            render_scene(scene, color if color in scene.colorings else "rgb", _THUMBNAIL)
        )


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
            self.send_error(
                HTTPStatus.MISDIRECTED_REQUEST, explain=f"open {self.server.url} instead"
            )
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
            elif scene_id not in self.server.viewing.scene_ids or kind not in _KINDS:
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


def _name_classes(entry: SceneEntry) -> Iterator[str]:
    """The classes that occur in a scene, such as `ScanNet20: wall`."""
    for label_set in (SCANNET20, SCANNET200):
        counts = entry.counts(label_set)
        yield from (
            f"{label_set.name}: {item.name}"
            for item in label_set.classes
            if counts.get(item.raw_id)
        )


def _make_card(scene_id: str, entry: SceneEntry) -> str:
    name, facts = escape(scene_id), f"{entry.split}, {entry.vertex_count:,} vertices"
    size = f'width="{_THUMBNAIL.width}" height="{_THUMBNAIL.height}"'
    return (
        f'<li><a href="/scene/{name}"><img src="/thumbnail/{name}" alt="" loading="lazy" {size}>'
        f'<span class="name">{name}</span><span class="facts">{facts}</span></a></li>'
    )
