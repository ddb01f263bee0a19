"""One request to a web server: an answer whose body is read in pieces, or a `RequestError`.

requests reads the environment itself: HTTPS_PROXY, HTTP_PROXY and NO_PROXY for proxies,
REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE for certificate authorities, and ~/.netrc for passwords.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import requests
import urllib3
from requests.exceptions import ProxyError, TooManyRedirects

from scannet_prep.base.version import CONTACT_URL, VERSION
from scannet_prep.errors import TransferError
from scannet_prep.remote.addresses import hide_secrets

_PIECE_BYTES = 1 << 20
_LONGEST_RETRY_AFTER_S = 3600.0
_MAX_DETAIL_LETTERS = 200
# Statuses below 500 that concern the server, not the file.
_REJECTIONS = (408, 425, 429)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18})", re.ASCII)

_HINT_CERTIFICATE = (
    "if your network or the mirror has a certificate authority of its own, name its file: "
    "export REQUESTS_CA_BUNDLE=FILE; if the certificate is out of date, check the clock: date"
)
_HINT_ADDRESSES = (
    "check the address, and HTTPS_PROXY and HTTP_PROXY, which look like "
    "http://USER:PASSWORD@HOST:PORT; for socks5:// install requests[socks]"
)
_HINT_REFUSED = (
    "open the address in a browser: it may be wrong, or need a login, which can be put into it "
    "(https://USER:PASSWORD@HOST/...) or into ~/.netrc; a web page for every file may be the login "
    "page of your network"
)


class RequestError(TransferError):
    """A request that brought nothing, or something other than the file; another may succeed.

    Attributes:
        cost: The share of the patience with the file that the failure uses up, in percent.
        retry_after_s: The pause that the server requests before any other request.
    """

    cost = 34
    retry_after_s = 0.0


class RefusalError(RequestError):
    """The server answers with something other than the file, or no request can be made at all."""


class BrokenConnectionError(RequestError):
    """The connection broke off before the file was complete."""

    cost = 13


class RejectionError(RequestError):
    """The server cannot be reached or is busy, which concerns the server and not the file.

    If 30 % of all requests are rejected, the release is downloaded completely; if 67 % are, one
    file in a million is given up.
    """

    cost = 3


class HttpAnswer:
    """The answer to a request, with a body that is still to be read.

    Attributes:
        headers: The headers; their names may be written in any case.
        start: Position of the body in the file, 0 if it is the whole file, the size if it is an
            empty range; None if the answer does not contain it.
        size_bytes: Size of the whole file; None if the answer does not contain it.
    """

    def __init__(self, response: requests.Response, client: HttpClient) -> None:
        self.headers = response.headers
        self.start: int | None = 0
        # None if the body is chunked.
        self.size_bytes: int | None = response.raw.length_remaining
        self._response = response
        self._client = client
        self._first = b""
        if response.status_code != 200:
            self.start = self.size_bytes = None
            content_range = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
            if content_range:
                start, size = content_range.groups()
                self.size_bytes = int(size)
                self.start = int(start or size)

    def check(self) -> None:
        """Wait for the beginning of the body: bytes of the file, or none of an empty range (416).

        No file of the release is empty, or begins with `<`.

        Raises:
            RequestError: The status is another one, the body is empty, a web page or compressed,
                or nothing arrives.
        """
        status = self._response.status_code
        if status in (200, 206):
            # Servers that keep files compressed may send gzip although it was not requested.
            if self.headers.get("Content-Encoding") == "gzip":
                raise RefusalError("gzip in place of the file: the server must not compress it")
            self._first = self._read_piece()
            if not self._first:
                raise RefusalError("nothing in place of the file")
            # Before a page, there may be a byte order mark and blanks.
            if self.start == 0 and self._first.lstrip(b"\xef\xbb\xbf\r\n\t ").startswith(b"<"):
                raise RefusalError("a web page in place of the file", _HINT_REFUSED)
        elif status != 416:
            # The connection can be used again after the body has been read, unless it is long.
            with suppress(urllib3.exceptions.HTTPError, OSError):
                self._response.raw.read(_PIECE_BYTES, decode_content=False)
            problem = f"status {status} {self._response.reason}"
            if status < 500 and status not in _REJECTIONS:
                raise RefusalError(problem, _HINT_ADDRESSES if status == 407 else _HINT_REFUSED)
            error = RejectionError(problem)
            with suppress(KeyError, ValueError, OverflowError, urllib3.exceptions.InvalidHeader):
                pause_s = urllib3.Retry().parse_retry_after(self.headers["Retry-After"])
                error.retry_after_s = min(pause_s, _LONGEST_RETRY_AFTER_S)
            raise error

    def pieces(self) -> Iterator[bytes]:
        """Iterate over the body as it arrives, once it has been checked.

        Raises:
            RequestError: The connection broke off, or nothing arrives.
        """
        piece = self._first
        while piece:
            yield piece
            piece = self._read_piece()

    def _read_piece(self) -> bytes:
        """Wait for a piece of the body; empty at the end."""
        try:
            piece: bytes = self._response.raw.read1(_PIECE_BYTES, decode_content=False)
        except urllib3.exceptions.TimeoutError:
            raise RequestError(f"nothing arrived within {self._client.timeout_s:.0f} s") from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise BrokenConnectionError(f"the connection broke off: {_describe(error)}") from None
        if self._client.is_stopped.is_set():
            raise BrokenConnectionError("stopped")
        return piece


class HttpClient:
    """Makes requests to a server; shared by all threads of a run.

    Args:
        timeout_s: Longest silence of the server.
        is_insecure: Whether any certificate is accepted.

    Attributes:
        timeout_s: As above.
        is_stopped: Set at the end of a run: no body is read any further.
        close_idle: Closes the connections that no request uses. No request may be running.
    """

    def __init__(self, timeout_s: float, *, is_insecure: bool = False) -> None:
        self.timeout_s = timeout_s
        self.is_stopped = threading.Event()
        self._is_insecure = is_insecure
        if is_insecure:
            # No warning by urllib3 at every request.
            urllib3.disable_warnings()
        self._session = requests.Session()
        self._session.headers["User-Agent"] = f"scannet-prep/{VERSION} (+{CONTACT_URL})"
        # Offsets and lengths of compressed content are not those of the file.
        self._session.headers["Accept-Encoding"] = "identity"
        for adapter in self._session.adapters.values():
            # Otherwise, connections stay open while an error refers to their pool.
            pools = adapter.poolmanager.pools  # type: ignore[attr-defined]  # HTTPAdapter
            pools.dispose_func = urllib3.HTTPConnectionPool.close
        self.close_idle = self._session.close

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[HttpAnswer]:
        """Request a file or a range of it, and yield an answer whose body is still to be read.

        Raises:
            RequestError: The server does not answer.
        """
        try:
            response = self._session.get(
                url,
                headers=headers,
                stream=True,
                timeout=self.timeout_s,
                # Set for each request: REQUESTS_CA_BUNDLE overrides the setting of the session.
                verify=not self._is_insecure,
            )
        except requests.ReadTimeout:
            raise RequestError("the server does not answer") from None
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise _explain(error) from None
        with response:
            yield HttpAnswer(response, self)


def _explain(error: Exception) -> RequestError:
    """Describe an error of requests or urllib3 that was raised before the answer."""
    detail = _describe(error)
    if "certificate" in detail:
        return RefusalError(f"the certificate cannot be verified: {detail}", _HINT_CERTIFICATE)
    # requests raises a ValueError for an address that cannot be used: the base URL, or that of a
    # proxy or a redirection; and for an answer that contradicts itself about its length.
    is_impossible = isinstance(error, (ValueError, TooManyRedirects))
    # A proxy of https may require a password (407), or forbid the server (403). The answer to https
    # may be http, which OpenSSL takes for a wrong version, or (3.2 to 3.5.4) for a broken record.
    if is_impossible or re.search("connection failed: 40|_VERSION|record layer", detail):
        return RefusalError(f"cannot be requested: {detail}", _HINT_ADDRESSES)
    place = "proxy" if isinstance(error, ProxyError) else "server"
    return RejectionError(f"the {place} cannot be reached: {detail}")


def _describe(error: BaseException) -> str:
    """Return the text of the innermost error, without passwords."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return hide_secrets(str(error).strip())[:_MAX_DETAIL_LETTERS]
