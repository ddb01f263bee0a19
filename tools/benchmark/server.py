"""A server of a raw tree with delays and rejections: `server.py DIR SECONDS SHARE STATUS`.

It is a process of its own, so that its work is not measured as that of the client. It prints its
port, and ends when its input ends.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_, FOLDER, DELAY_S, SHARE, STATUS = sys.argv
DICE = random.Random(0)  # noqa: S311 - not a secret


class Handler(SimpleHTTPRequestHandler):
    """Serves the tree under the paths of the release."""

    protocol_version = "HTTP/1.1"
    # Otherwise, each body may wait 40 ms until the client has acknowledged the head.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer, or reject; a status such as `429:1` has a `Retry-After` of one second."""
        time.sleep(float(DELAY_S))
        if DICE.random() >= float(SHARE):
            super().do_GET()
            return
        status, _, pause = STATUS.partition(":")
        self.send_response(int(status))
        if pause:
            self.send_header("Retry-After", pause)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def translate_path(self, path: str) -> str:
        """Find the file of a path of the release: `v2/tasks/NAME`, `v2/scans/SCENE/NAME`."""
        _, _, inside = path.rpartition("v2/")
        return str(Path(FOLDER, inside.removeprefix("tasks/")))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
