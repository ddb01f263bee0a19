"""A small web server for the demo: a raw tree under the addresses of the ScanNet server, on this machine only."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scannet_prep.remote.catalog import RemoteFile


@contextmanager
def serve_release(raw_dir: Path, files: list[RemoteFile]) -> Iterator[str]:
    """Serve files of a raw tree on a free port of 127.0.0.1; gives the base URL."""
    paths = {f"/scannet/{file.remote_path}": raw_dir / file.local_path for file in files}
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, paths))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/scannet/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, paths: Mapping[str, Path], *arguments: object) -> None:
        self._paths = paths
        super().__init__(*arguments)  # type: ignore[arg-type]  # handed through

    def do_GET(self) -> None:
        """Send a whole file."""
        path = self._paths.get(self.path)
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with path.open("rb") as file:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)

    def log_message(self, *_arguments: object) -> None:
        """Keep quiet."""
