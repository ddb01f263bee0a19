"""Servers in a separate process, so that their work is not measured as that of the client."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TESTS_DIR = Path(__file__).absolute().parents[2] / "tests"


@dataclass(frozen=True, slots=True)
class Network:
    """Latency of a network, and rejections by the server.

    Attributes:
        request_s: Time added to each request.
        connection_s: Time added to each new connection.
        rejected: Share of the requests that are rejected, at random.
        status: Status of a rejection.
        retry_after: Its `Retry-After`, in seconds; empty for none.
        log: File that receives the time of each rejection, on the monotonic clock.
    """

    request_s: float
    connection_s: float
    rejected: float = 0.0
    status: int = 503
    retry_after: str = ""
    log: str = ""


@contextmanager
def serve(root: Path, *networks: Network) -> Iterator[list[str]]:
    """Serve a raw tree once for each network, and yield the base URLs."""
    command = [sys.executable, "-m", "benchmark.release_host", str(root)]
    command.append(json.dumps([asdict(network) for network in networks]))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError("the release server does not start")
            yield json.loads(line)
        finally:
            if process.stdin:
                process.stdin.close()  # the server ends when its input ends


def _main(root: Path, networks: list[Network]) -> None:
    # The server of the tests needs only the standard library and this package.
    sys.path.insert(0, str(_TESTS_DIR))
    module = importlib.import_module("release_server")
    with ExitStack() as stack:
        servers = [
            module.ReleaseServer(
                root,
                faults=[_make_rejections(network, module.Status)],
                request_latency_s=network.request_s,
                connection_latency_s=network.connection_s,
            )
            for network in networks
        ]
        print(json.dumps([stack.enter_context(server).base_url for server in servers]), flush=True)
        sys.stdin.read()  # until the client closes it or dies


def _make_rejections(
    network: Network, make_status: Callable[..., object]
) -> Callable[[object], list[object]]:
    """Make a rule of the release server that rejects requests at random."""
    dice = random.Random(0)  # noqa: S311

    def reject(_request: object) -> list[object]:
        if dice.random() >= network.rejected:
            return []
        with Path(network.log).open("a", encoding="ascii") as file:
            file.write(f"{time.monotonic()}\n")
        return [make_status(network.status, network.retry_after or None)]

    return reject


if __name__ == "__main__":
    _main(Path(sys.argv[1]), [Network(**fields) for fields in json.loads(sys.argv[2])])
