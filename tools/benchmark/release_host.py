"""Servers in a process of their own, so that their work is not counted as the client's."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TESTS_DIR = Path(__file__).absolute().parents[2] / "tests"


@dataclass(frozen=True, slots=True)
class Network:
    """Time that a network adds.

    Attributes:
        request_s: To each request.
        connection_s: To each new connection.
    """

    request_s: float
    connection_s: float


@contextmanager
def serve(root: Path, *networks: Network) -> Iterator[list[str]]:
    """Serve a raw tree, once for each of the given networks; gives the base URLs."""
    command = [sys.executable, "-m", "benchmark.release_host", str(root)]
    command.append(json.dumps([asdict(network) for network in networks]))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError("the release server does not start")
            yield json.loads(line)
        finally:
            if process.stdin:
                process.stdin.close()  # ends it


def _main(root: Path, networks: list[Network]) -> None:
    # The server of the tests, where it is tested too; it needs nothing but the standard library and this package.
    sys.path.insert(0, str(_TESTS_DIR))
    server_class = importlib.import_module("release_server").ReleaseServer
    with ExitStack() as stack:
        servers = [
            server_class(root, request_latency_s=network.request_s, connection_latency_s=network.connection_s)
            for network in networks
        ]
        print(json.dumps([stack.enter_context(server).base_url for server in servers]), flush=True)
        sys.stdin.read()  # until the client closes it, or has died


if __name__ == "__main__":
    _main(Path(sys.argv[1]), [Network(**item) for item in json.loads(sys.argv[2])])
