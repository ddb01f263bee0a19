"""One request at a time, on connections that are kept: TLS, proxies, timeouts, and a watch on the rate."""

from __future__ import annotations

import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import requests

from scannet_prep.errors import UsageError
from scannet_prep.remote.address import public_url
from scannet_prep.remote.failure import (
    RELEASE_HINTS,
    Hints,
    TransientError,
    raise_for_address,
    raise_for_status,
    translated,
)
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.watchdog import Exchange, Watchdog, WatchedAdapter
from scannet_prep.version import VERSION

_CHUNK_BYTES = 256 * 1024
_PROOF_BYTES = 128 * 1024  # no page that says that the server is down is as long
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})


class Answer:
    """What a server says to a request. `Client.open` makes it.

    Attributes:
        status: 200, 206 or 416.
        headers: Their names in any case.
        received_bytes: How much of the body has come.
    """

    def __init__(
        self, response: requests.Response, exchange: Exchange, policy: TransferPolicy, health: ServerHealth
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._policy = policy
        self._health = health
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.received_bytes = 0

    def read_chunks(self) -> Iterator[bytes]:
        """Give the body piece by piece, as it comes, without any compression.

        Raises:
            TransientError: It comes too slowly, or the transfers were stopped.
        """
        policy = self._policy
        watch = _SpeedWatch(policy)
        is_encoded = self.headers.get("Content-Encoding", "identity") != "identity"
        longest_s = policy.read_timeout_s + policy.slow_window_s
        while True:
            self._exchange.extend(longest_s, "no more content", "transfer")
            chunk = self._response.raw.read1(_CHUNK_BYTES, decode_content=is_encoded)
            self._exchange.raise_if_ended()
            if not chunk:
                return
            is_proof = self.received_bytes < _PROOF_BYTES <= self.received_bytes + len(chunk)
            self.received_bytes += len(chunk)
            if is_proof:
                self._health.succeeded()
            yield chunk
            watch.received(len(chunk))


class Client:
    """Makes requests to one server; shared by all threads of a run.

    Args:
        base_url: Where the addresses begin; ends in `/`.
        policy: How patient to be.
        health: Told when so much has come that the server cannot be down, though it may go on for long.
        certificates: True for the system's authorities, a file with others, False to accept any certificate.
        hints: What to say about refusals.
    """

    def __init__(
        self,
        base_url: str,
        policy: TransferPolicy,
        health: ServerHealth,
        certificates: bool | Path,
        hints: Hints = RELEASE_HINTS,
    ) -> None:
        self._base_url = base_url
        self._policy = policy
        self._health = health
        self._verify = str(certificates) if isinstance(certificates, Path) else certificates
        self._hints = hints
        self._watchdog = Watchdog()
        self._local = threading.local()
        self._sessions: weakref.WeakSet[requests.Session] = weakref.WeakSet()  # those of threads that live

    def stop(self) -> None:
        """End all requests, whatever they wait for, and those to come."""
        self._watchdog.stop()

    def close(self) -> None:
        """Do what `stop` does, and close the connections of all threads."""
        self.stop()
        for session in list(self._sessions):
            session.close()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """Ask for a file, or a range of it; gives an answer whose body is yet to come.

        Errors of the network are translated inside the `with` block too, so that the body may be read in it.

        Raises:
            TransientError: Trying again may help.
            NotOnServerError, TransferError: It will not.
        """
        shown_url = public_url(url)
        answer: Answer | None = None
        with self._watchdog.watch(self._policy.answer_timeout_s, "no whole answer") as exchange:
            try:
                with translated(shown_url, self._hints), self._ask(url, headers) as response:
                    exchange.raise_if_ended()
                    raise_for_address(shown_url, response)
                    raise_for_status(shown_url, response, self._hints)
                    answer = Answer(response, exchange, self._policy, self._health)
                    yield answer
            except TransientError as error:
                exchange.raise_if_ended()  # then the error is only what the end looked like
                is_ended = exchange.is_connected and error.trouble == "connection"
                is_empty = answer is not None and not answer.received_bytes and error.trouble == "transfer"
                if is_ended or is_empty:
                    error.trouble = "server"  # it is there, but nothing comes, perhaps of this file alone
                raise

    def _ask(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        try:
            return self._session().get(
                url,
                # Without identity, servers compress, and then neither lengths nor offsets mean anything.
                headers={"Accept-Encoding": "identity", **headers},
                stream=True,
                timeout=(self._policy.connect_timeout_s, self._policy.read_timeout_s),
                verify=self._verify,
            )
        except requests.exceptions.RequestException:
            raise
        except ValueError as error:  # redirections to what is no address, some of which requests does not foresee
            raise requests.exceptions.InvalidURL(error) from None

    def _session(self) -> requests.Session:
        """The session of this thread: connections are kept, but sessions are not made for several threads."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = _make_session(self._base_url)
            self._local.session = session
            self._sessions.add(session)
        return session


def check_certificates(base_url: str, certificates: bool | Path) -> None:
    """Check that the file of certificate authorities that requests are going to use can be used.

    Args:
        base_url: Where the addresses begin.
        certificates: As for `Client`. For True, what the environment names counts, as requests has it.

    Raises:
        UsageError: It is not there, or holds no certificate.
    """
    path: str | Path | bool | None = certificates
    hint = "--ca-bundle names a file of certificates (PEM)"
    if certificates is True:
        with _make_session(base_url) as session:
            path = session.merge_environment_settings(base_url, {}, None, True, None)["verify"]
        hint = "the environment names it: mend or unset REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE, or use --ca-bundle"
    if path is None or isinstance(path, bool) or (certificates is True and Path(path).is_dir()):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise UsageError(f"{path}: holds no certificate (PEM)", hint) from None
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UsageError(f"{path}: {reason}", hint) from None


def _make_session(base_url: str) -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, WatchedAdapter())
    # Proxies are for other machines, also where the environment forgets to say so.
    session.trust_env = urlsplit(base_url).hostname not in _THIS_MACHINE
    session.headers["User-Agent"] = f"scannet-prep/{VERSION}"
    return session


class _SpeedWatch:
    """Notices a trickle: bytes that come just often enough for no timeout to strike."""

    def __init__(self, policy: TransferPolicy) -> None:
        self._policy = policy
        self._window_began_s = time.monotonic()
        self._window_bytes = 0

    def received(self, count: int) -> None:
        """Count bytes.

        Raises:
            TransientError: There were too few of them over the last window.
        """
        self._window_bytes += count
        elapsed_s = time.monotonic() - self._window_began_s
        if elapsed_s < self._policy.slow_window_s:
            return
        rate = self._window_bytes / elapsed_s
        if rate < self._policy.slowest_bytes_per_s:
            raise TransientError(f"only {rate:.0f} bytes a second")
        self._window_began_s, self._window_bytes = time.monotonic(), 0
