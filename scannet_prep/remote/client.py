"""One request at a time, on connections that are kept: TLS, proxies, timeouts, and a watch on the rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import requests

from scannet_prep.remote.failure import TransientError, is_busy, raise_for_address, raise_for_status, translated
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.version import VERSION

_CHUNK_BYTES = 256 * 1024
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})


class Client:
    """Makes requests to one server; shared by all threads of a run.

    Args:
        base_url: Where the addresses begin; ends in `/`.
        policy: How patient to be.
        health: Told when the server answers.
        certificates: True for the system's authorities, a file with others, False to accept any certificate.
        stop: Ends all transfers at the next chunk once it is set.
    """

    def __init__(
        self,
        base_url: str,
        policy: TransferPolicy,
        health: ServerHealth,
        certificates: bool | Path,
        stop: threading.Event,
    ) -> None:
        self._base_url = base_url
        self._policy = policy
        self._health = health
        self._verify = str(certificates) if isinstance(certificates, Path) else certificates
        self._stop = stop
        self._local = threading.local()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        """Ask for a file, or a range of it; gives an answer with status 200, 206 or 416, whose body is yet to come.

        Errors of the network are translated inside the `with` block too, so that the body may be read in it.

        Raises:
            TransientError: Trying again may help.
            NotOnServerError, TransferError: It will not.
        """
        policy = self._policy
        with (
            translated(url),
            self._session().get(
                url,
                # Without identity, servers compress, and then neither lengths nor offsets mean anything.
                headers={"Accept-Encoding": "identity", **headers},
                stream=True,
                timeout=(policy.connect_timeout_s, policy.read_timeout_s),
                verify=self._verify,
            ) as response,
        ):
            if not is_busy(response):
                self._health.succeeded()
            raise_for_address(url, response)
            raise_for_status(url, response)
            yield response

    def read_chunks(self, response: requests.Response) -> Iterator[bytes]:
        """Give the body piece by piece, as it comes, without any compression.

        Raises:
            TransientError: It comes too slowly, or the transfers were stopped.
        """
        watch = _SpeedWatch(self._policy)
        is_encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=is_encoded):
            if watch.received_bytes == 0:
                self._health.succeeded()
            yield chunk
            watch.received(len(chunk))
            if self._stop.is_set():
                raise TransientError("stopped")

    def _session(self) -> requests.Session:
        """The session of this thread: connections are kept, but sessions are not made for several threads."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            # Proxies are for other machines, also where the environment forgets to say so.
            session.trust_env = urlsplit(self._base_url).hostname not in _THIS_MACHINE
            session.headers["User-Agent"] = f"scannet-prep/{VERSION}"
            self._local.session = session
        return session


class _SpeedWatch:
    """Notices a trickle: bytes that come just often enough for no timeout to strike."""

    def __init__(self, policy: TransferPolicy) -> None:
        self._policy = policy
        self._window_began_s = time.monotonic()
        self._window_bytes = 0
        self.received_bytes = 0

    def received(self, count: int) -> None:
        """Count bytes.

        Raises:
            TransientError: There were too few of them over the last window.
        """
        self.received_bytes += count
        self._window_bytes += count
        elapsed_s = time.monotonic() - self._window_began_s
        if elapsed_s < self._policy.slow_window_s:
            return
        rate = self._window_bytes / elapsed_s
        if rate < self._policy.slowest_bytes_per_s:
            raise TransientError(f"only {rate:.0f} bytes a second")
        self._window_began_s, self._window_bytes = time.monotonic(), 0
