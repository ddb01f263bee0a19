"""Serve pages of scenes to a browser on this machine, or on another one by an SSH tunnel.

    /                     the scenes, with pictures; ?split= and ?class= filter them
    /scene/<scene>        the page of a scene
    /thumbnail/<scene>    the picture of a scene, PNG

The server listens on 127.0.0.1 only. The `Host` of a request must be a name of this machine:
otherwise a web site could point its own name at this server (DNS rebinding) and read the scenes.
Paths are looked up among the scenes and never become paths of files.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs
from xml.etree.ElementTree import Element

from scannet_prep.base.errors import UsageError
from scannet_prep.base.failures import explain
from scannet_prep.base.version import VERSION
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.stages.view import Viewing
from scannet_prep.view.markup import element, make_page, read_asset
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

ADDRESS = "127.0.0.1"
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_THUMBNAIL = PictureOptions(width=320, height=240, has_legend=False)
# Pages and pictures.
_MAX_KEPT_FILES = 48
# The page of a scene is often requested soon after its picture.
_MAX_KEPT_SCENES = 16
_HTML = "text/html; charset=utf-8"
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
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}",
                "to use any free port: --serve 0",
            ) from error
        self.url = f"http://{ADDRESS}:{self.server_port}/"
        self.viewing = viewing
        self._lock = threading.Lock()
        self._load = lru_cache(_MAX_KEPT_SCENES)(viewing.load)
        self._make_once = lru_cache(_MAX_KEPT_FILES)(self._make)
        self._classes: dict[str, set[str]] = {}
        for scene_id in viewing.scene_ids:
            self._classes[scene_id] = set(_name_classes(viewing.place.entries[scene_id]))

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in its base class
        """Ignore connections that browsers close; errors of scenes are part of an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def make_list(self, query: str) -> bytes:
        """Make the page that lists the scenes that match a query."""
        filters = {key: values[-1] for key, values in parse_qs(query).items()}
        split = filters.get("split", "")
        class_name = filters.get("class", "")
        entries = self.viewing.place.entries
        cards = []
        for scene_id, classes in self._classes.items():
            entry = entries[scene_id]
            has_split = split in ("", entry.split)
            has_class = class_name == "" or class_name in classes
            if has_split and has_class:
                cards.append(_make_card(scene_id, entry))

        # Number of scenes for each choice of the two filters.
        split_counts = Counter(str(entries[scene_id].split) for scene_id in self._classes)
        class_counts: Counter[str] = Counter()
        for classes in self._classes.values():
            # Sorted, because `most_common` keeps the order of equally frequent classes.
            class_counts.update(sorted(classes))
        form = element(
            "form",
            _make_choice("Split", "split", "all", split_counts, split),
            _make_choice("Has class", "class", "any", dict(class_counts.most_common()), class_name),
            element("button", "Show"),
            element("a", "all", href="/"),
            method="get",
            action="/",
            role="search",
        )
        title = self.viewing.place.name
        summary = f"{len(cards):,} of {len(self._classes):,} scenes"
        return make_page(
            title,
            element("header", element("h1", title), form, element("p", summary, role="status")),
            element("main", element("ul", cards or element("p", "No scene matches both filters."))),
            style=read_asset("page/scenes.css"),
            images="'self' data:",
            forms="'self'",
        )

    def make(self, kind: str, scene_id: str) -> bytes:
        """Return the page or the picture of a scene.

        Files are made one at a time and then kept: browsers send many requests at once, some of
        them twice.
        """
        with self._lock:
            return self._make_once(kind, scene_id)

    def _make(self, kind: str, scene_id: str) -> bytes:
        """Make the page or the picture of a scene."""
        scene = self._load(scene_id)
        color = self.viewing.choose_color(scene)
        if kind == "scene":
            beside = self.viewing.choose_beside(scene)
            return make_scene_page([scene], color=color, beside=beside, home="/")
        # The script of a page makes the same choice.
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
        path, _, query = self.path.partition("?")
        kind, _, scene_id = path[1:].partition("/")
        try:
            if path == "/":
                self._answer(self.server.make_list(query), _HTML)
            elif scene_id in self.server.viewing.scene_ids and kind in _CONTENT_TYPES:
                self._answer(self.server.make(kind, scene_id), _CONTENT_TYPES[kind])
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
        except Exception as error:  # noqa: BLE001 - the other scenes can still be shown
            problem, hint, _ = explain(error)
            text = f"{problem}\n{hint}"
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=text)

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

    def _answer(self, content: bytes, content_type: str) -> None:
        """Send content with status 200."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _make_choice(
    label: str, name: str, all_label: str, counts: Mapping[str, int], chosen: str
) -> Element:
    """Make a filter: its values, and the number of scenes that have each value."""
    options = [element("option", all_label, value="")]
    for value, count in counts.items():
        selected = "selected" if value == chosen else None
        text = f"{value} ({count:,})"
        options.append(element("option", text, value=value, selected=selected))
    return element("label", f"{label} ", element("select", options, name=name))


def _name_classes(entry: SceneEntry) -> Iterator[str]:
    """Return the names of the classes in a scene, such as `ScanNet20: wall`."""
    for label_set in (SCANNET20, SCANNET200):
        counts = entry.counts(label_set)
        for label_class in label_set.classes:
            if counts.get(label_class.raw_id):
                yield f"{label_set.name}: {label_class.name}"


def _make_card(scene_id: str, entry: SceneEntry) -> Element:
    """Make the entry of a scene in the list."""
    image = element(
        "img",
        src=f"/thumbnail/{scene_id}",
        alt="",
        loading="lazy",
        width=_THUMBNAIL.width,
        height=_THUMBNAIL.height,
    )
    facts = f"{entry.split}, {entry.vertex_count:,} vertices"
    link = element(
        "a",
        image,
        element("span", scene_id, class_="name"),
        element("span", facts, class_="facts"),
        href=f"/scene/{scene_id}",
    )
    return element("li", link)
