"""Fetches one file: one loop that owns every kind of failure, resumption included."""

from __future__ import annotations

import email.utils
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import requests
import urllib3
import urllib3.util.ssl_match_hostname

from scannet_prep.errors import FileError, NotOnServerError, ServerDownError, TransferError
from scannet_prep.remote.health import ServerHealth
from scannet_prep.remote.partial import Partial
from scannet_prep.version import VERSION

_CHUNK_BYTES = 256 * 1024
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
_GONE = frozenset({404, 410})
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """How patient a transfer is.

    Attributes:
        connect_timeout_s: Longest time to connect.
        read_timeout_s: Longest time without a byte.
        slowest_bytes_per_s: A transfer that is slower over `slow_window_s` is broken off and resumed.
        slow_window_s: See above; a trickle of single bytes never runs into the read timeout.
        attempts: So many failures in a row, without a byte gained, give a file up.
        wrong_contents: So many whole bodies that are not the file (an error page, a broken copy) give a file up.
        first_delay_s: Mean pause after the first failure; doubled after each further one.
        longest_delay_s: Longest pause.
        longest_retry_after_s: A server that asks for a longer pause than this gets this one.
        outage_patience_s: How long the server may be down for everybody.
        first_answer_patience_s: How long to wait for its first answer of all.
    """

    connect_timeout_s: float = 20.0
    read_timeout_s: float = 60.0
    slowest_bytes_per_s: float = 1_000.0
    slow_window_s: float = 60.0
    attempts: int = 8
    wrong_contents: int = 3
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    longest_retry_after_s: float = 600.0
    outage_patience_s: float = 4 * 3600.0
    first_answer_patience_s: float = 180.0


class _TransientError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        retry_after_s: The pause that the server asked for; None where it did not.
        trouble: Whose fault it may be: "transfer" (this one's alone), "server", or "connection" (there was none).
    """

    def __init__(
        self,
        reason: str,
        retry_after_s: float | None = None,
        trouble: Literal["transfer", "server", "connection"] = "transfer",
    ) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.trouble = trouble


class Fetcher:
    """Fetches files from one server; shared by all threads of a run.

    Args:
        base_url: Where the addresses begin; ends in `/`.
        policy: How patient to be.
        health: What all threads know of the server.
        certificates: True for the system's authorities, a file with others, False to accept any certificate.
        on_bytes: Told of every chunk that arrives; negative when bytes have to be dropped.
    """

    def __init__(
        self,
        base_url: str,
        policy: TransferPolicy,
        health: ServerHealth,
        certificates: bool | Path,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._base_url = base_url
        self._policy = policy
        self._health = health
        self._verify = str(certificates) if isinstance(certificates, Path) else certificates
        self._on_bytes = on_bytes
        self._local = threading.local()
        self._stop = threading.Event()

    def stop(self) -> None:
        """End all transfers at the next chunk; what has arrived stays."""
        self._stop.set()
        self._health.stop()

    def fetch(self, remote_path: str, partial: Partial, check: Callable[[], None]) -> None:
        """Fetch a file to its end.

        Args:
            remote_path: Address below the base URL.
            partial: What has arrived before; complete afterwards.
            check: Raises a `FileError` where the complete file is not what it should be.

        Raises:
            FileError: The server keeps sending something else.
            NotOnServerError: The server says that it has no such file.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server does not answer anybody any more, or the transfers were stopped.
            OutputError: The disk is full.
        """
        url = self._base_url + remote_path
        failures = wrong_contents = 0
        most_bytes = partial.size_bytes
        while True:
            self._health.enter()
            retry_after_s: float | None = None
            is_outage = False
            try:
                self._attempt(url, partial)
                check()
            except FileError as error:
                self._drop(partial, "")
                reason = str(error)
                wrong_contents += 1
                if wrong_contents >= self._policy.wrong_contents:
                    raise
            except _TransientError as error:
                reason, retry_after_s = str(error), error.retry_after_s
                is_unreachable = error.trouble == "connection"
                is_outage = error.trouble != "transfer" and self._health.failed(
                    url,
                    reason,
                    min(retry_after_s or 0.0, self._policy.longest_retry_after_s),
                    is_unreachable=is_unreachable,
                )
                # A server that answers with errors may mean this file alone: only without any connection is it certain
                # that the file is not to blame.
                is_outage = is_outage and is_unreachable
            else:
                return
            finally:
                self._health.leave()
            if self._stop.is_set():
                raise ServerDownError("stopped")
            if partial.size_bytes > most_bytes:  # more than ever before: without a validator each attempt begins anew
                most_bytes, failures = partial.size_bytes, 0
            if is_outage:
                continue  # `enter` waits, together with everybody else
            failures += 1
            if failures >= self._policy.attempts:
                raise TransferError(f"{url}: {failures} attempts in a row failed, the last one: {reason}")
            self._stop.wait(self._pause_s(failures, retry_after_s))

    def _pause_s(self, failures: int, retry_after_s: float | None) -> float:
        if retry_after_s is not None:
            return min(retry_after_s, self._policy.longest_retry_after_s)
        longest_s = min(self._policy.first_delay_s * 2 ** (failures - 1), self._policy.longest_delay_s)
        return float(longest_s * random.uniform(0.5, 1.5))  # noqa: S311 - so that workers do not knock in step

    def _attempt(self, url: str, partial: Partial) -> None:
        """Make one request, and append what it gives."""
        # Without identity, servers compress, and then neither lengths nor offsets mean anything.
        headers = {"Accept-Encoding": "identity"}
        if partial.size_bytes and not partial.validator:
            self._drop(partial, "")  # nothing tells whether the rest would belong to the same version
        if partial.size_bytes:
            headers |= {"Range": f"bytes={partial.size_bytes}-", "If-Range": partial.validator}
        policy = self._policy
        with (
            _translated(url),
            self._session().get(
                url,
                headers=headers,
                stream=True,
                timeout=(policy.connect_timeout_s, policy.read_timeout_s),
                verify=self._verify,
            ) as response,
        ):
            if response.status_code not in _BUSY:
                self._health.succeeded()
            self._check_address(url, response)
            self._receive(url, response, partial)

    def _receive(self, url: str, response: requests.Response, partial: Partial) -> None:
        """Take what a response says and gives.

        Raises:
            _TransientError: Trying again may help.
            NotOnServerError, TransferError: It will not.
        """
        expected_bytes = self._begin(url, response, partial)
        if expected_bytes is not None and partial.size_bytes == expected_bytes:
            return
        watch = _SpeedWatch(self._policy)
        raw = response.raw
        is_encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        while True:
            chunk = raw.read1(_CHUNK_BYTES, decode_content=is_encoded)
            if not chunk:
                break
            if partial.size_bytes == 0 or watch.received_bytes == 0:
                self._health.succeeded()
            partial.append(chunk)
            self._on_bytes(len(chunk))
            watch.received(len(chunk))
            if self._stop.is_set():
                raise _TransientError("stopped")
        if expected_bytes is not None and partial.size_bytes < expected_bytes:
            raise _TransientError(f"broken off after {partial.size_bytes:,} of {expected_bytes:,} bytes")
        if expected_bytes is not None and partial.size_bytes > expected_bytes:
            found = partial.size_bytes
            self._drop(partial, "")
            raise _TransientError(f"{found:,} bytes, where {expected_bytes:,} were announced")

    def _begin(self, url: str, response: requests.Response, partial: Partial) -> int | None:
        """Prepare the partial file for the body to come; gives the size that the whole file has to have, if known."""
        status, headers = response.status_code, response.headers
        if status == 200:
            self._drop(
                partial, _validator(headers)
            )  # a first request, or the server ignores ranges, or has a new version
            return _content_length(headers)
        if status == 206 and partial.size_bytes:
            match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is None or match[1] is None or int(match[1]) != partial.size_bytes:
                self._drop(partial, "")
                raise _TransientError(f"asked to go on, the server sent {headers.get('Content-Range', 'no range')!r}")
            return None if match[3] == "*" else int(match[3])
        if status == 416 and partial.size_bytes:
            match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is not None and match[3] == str(partial.size_bytes):
                return partial.size_bytes  # it was whole already
            self._drop(partial, "")
            raise _TransientError("the server has a shorter file than what had arrived")
        if status in _GONE:
            self._health.succeeded()
            raise NotOnServerError(f"{url}: the server has no such file ({status})")
        if status in _BUSY:
            retry_after_s = parse_retry_after(headers.get("Retry-After", ""), time.time())
            raise _TransientError(
                f"status {status} {response.reason}", retry_after_s, "transfer" if status == 429 else "server"
            )
        raise TransferError(f"{url}: status {status} {response.reason}", _hint_for(status))

    def _check_address(self, url: str, response: requests.Response) -> None:
        """A redirection may lead from http to https, but never back."""
        hops = [hop.url for hop in (*response.history, response)]
        if urlsplit(url).scheme == "https" and any(urlsplit(hop).scheme != "https" for hop in hops):
            raise TransferError(f"{url}: is redirected to an address without encryption: {hops[-1]}")

    def _drop(self, partial: Partial, validator: str) -> None:
        if partial.size_bytes:
            self._on_bytes(-partial.size_bytes)
        partial.restart(validator)

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
            _TransientError: There were too few of them over the last window.
        """
        self.received_bytes += count
        self._window_bytes += count
        elapsed_s = time.monotonic() - self._window_began_s
        if elapsed_s < self._policy.slow_window_s:
            return
        rate = self._window_bytes / elapsed_s
        if rate < self._policy.slowest_bytes_per_s:
            raise _TransientError(f"only {rate:.0f} bytes a second")
        self._window_began_s, self._window_bytes = time.monotonic(), 0


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn the errors of requests and urllib3 into ours, and tell those that may pass from those that will not."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        if not _is_about_certificate(error):  # broken off while the connection was being secured
            raise _TransientError(_innermost(error), trouble="connection") from error
        raise TransferError(
            f"{url}: the certificate cannot be verified: {_innermost(error)}",
            "--ca-bundle FILE names the authority of a mirror or of your network's proxy",
        ) from error
    except (
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.MissingSchema,
    ) as error:
        raise TransferError(f"{url}: is no address: {error}", "--base-url https://...") from error
    except requests.exceptions.TooManyRedirects as error:
        raise TransferError(f"{url}: is redirected in a circle") from error
    except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as error:
        raise _TransientError(_innermost(error)) from error
    except requests.exceptions.ReadTimeout as error:
        raise _TransientError(_innermost(error), trouble="server") from error
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise _TransientError(_innermost(error), trouble="connection") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _TransientError(_innermost(error)) from error


def parse_retry_after(value: str, now_s: float) -> float | None:
    """Read a `Retry-After`, which is a number of seconds or a date; None where it is neither.

    Args:
        value: The header.
        now_s: Seconds since the epoch.
    """
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError):
        return None


def _validator(headers: Mapping[str, str]) -> str:
    """What identifies this version of the file for `If-Range`: a strong ETag, else the date; empty where neither is."""
    if headers.get("Content-Encoding", "identity") != "identity":
        return ""  # offsets into compressed bytes mean nothing
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return etag
    return headers.get("Last-Modified", "")


def _content_length(headers: Mapping[str, str]) -> int | None:
    length = headers.get("Content-Length", "")
    is_plain = headers.get("Content-Encoding", "identity") == "identity"
    return int(length) if is_plain and length.isdigit() else None


def _hint_for(status: int) -> str:
    if status in {401, 403}:
        return "access rests on having signed the terms; a mirror may want another --base-url"
    return ""


def _unwrap(error: BaseException) -> Iterator[BaseException]:
    """An error, and those inside the wrappings of requests and urllib3."""
    inner: object = error
    while isinstance(inner, BaseException):
        yield inner
        wrapped = next((item for item in inner.args if isinstance(item, BaseException)), None)
        inner = getattr(inner, "reason", None) if wrapped is None else wrapped


def _innermost(error: BaseException) -> str:
    """The reason inside the wrappings."""
    *_, inner = _unwrap(error)
    return f"{type(inner).__name__}: {inner}"[:200]


def _is_about_certificate(error: BaseException) -> bool:
    kinds = (ssl.SSLCertVerificationError, urllib3.util.ssl_match_hostname.CertificateError)
    return any(isinstance(item, kinds) for item in _unwrap(error))
