"""Errors of a single request, and how many of them give a file up."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import requests
import urllib3
import urllib3.util.ssl_match_hostname
from requests import exceptions as kinds

from scannet_prep.base.errors import (
    CertificateError,
    NotOnServerError,
    ProxyError,
    TransferError,
)

FEW_TRIES = 3
"""So many failures that cost much, silence or whole bodies that are not the file, give a file up."""
MANY_TRIES = 20
"""So many rejections give a file up. They concern the server, not the file: where 30 % of all requests are rejected,
not one in a million runs of 7,766 files loses a file (7,766 * 0.3**20 = 3e-7)."""

LOGIN_HINT = (
    "if the server asks for a login, put it into the address (https://USER:PASSWORD@HOST/...) or into ~/.netrc; "
    "a signed address may have expired"
)
"""What to do where a server refuses a file that is not one of the release, such as an archive."""

RELEASE_ACCESS_HINT = (
    f"ScanNet's server requires signed terms, and a mirror may need another base URL; {LOGIN_HINT}"
)
"""What to do where a server refuses a file of the release."""
_PROXY_HINT = "HTTPS_PROXY and HTTP_PROXY look like http://USER:PASSWORD@HOST:PORT; for socks5:// install requests[socks]"
CERTIFICATE_HINT = (
    "name a file or folder with the authority of the server, or of your network's proxy: --ca-bundle PATH, "
    "or REQUESTS_CA_BUNDLE=PATH"
)
_CLOCK_HINT = (
    "the server's certificate is out of date, or this machine's clock is wrong: check `date`"
)
_HOST_HINT = (
    "the address leads to another server: check the base URL, and whether your network redirects it"
)
_REDIRECT_HINT = "look at the address in a browser: the base URL, or a link on the server, is wrong"
_UNVERIFIED = "the certificate cannot be verified: {detail}"
_CERTIFICATE_ERRORS = (
    ssl.SSLCertVerificationError,
    urllib3.util.ssl_match_hostname.CertificateError,
)
# What went wrong, by the first row that fits an error or one inside it, and what the innermost says: in words, and what
# to do about it.
_WORDS: tuple[tuple[tuple[type, ...], str, str, str], ...] = (
    (_CERTIFICATE_ERRORS, "expired|not yet valid", _UNVERIFIED, _CLOCK_HINT),
    (_CERTIFICATE_ERRORS, "mismatch|doesn't match", _UNVERIFIED, _HOST_HINT),
    (_CERTIFICATE_ERRORS, "", _UNVERIFIED, CERTIFICATE_HINT),
    (
        (socket.gaierror, urllib3.exceptions.NameResolutionError),
        "",
        "cannot find {host}: is this machine online?",
        "",
    ),
    ((ConnectionRefusedError,), "", "{host} refuses the connection", ""),
    ((TimeoutError, urllib3.exceptions.TimeoutError), "", "{host} does not answer", ""),
    (
        (ConnectionError, ssl.SSLEOFError, http.client.IncompleteRead),
        "",
        "the connection broke off",
        "",
    ),
    (
        (ssl.SSLError, urllib3.exceptions.SSLError),
        "",
        "no encrypted connection to {host} can be made: {detail}",
        "",
    ),
    ((OSError,), "", "cannot reach {host}: {detail}", ""),
    ((object,), "", "{host} sends an answer that cannot be understood", ""),
)


@dataclass(eq=False)
class AttemptError(Exception):
    """A request has brought nothing, or not all. Another attempt may.

    Attributes:
        reason: What happened.
        hint: What to do about it; may be empty.
        tries: So many of them give a file up; 0 stands for the policy's `tries`.
        is_answer: Whether the server has answered, but with a refusal or something else than the file.
        is_busy: Whether the server rejected the request because of its own state, and is to be asked less often.
        retry_after_s: The pause that it asks for.
        error_type: The error to raise when the file is given up.
    """

    reason: str
    hint: str = ""
    tries: int = 0
    is_answer: bool = False
    is_busy: bool = False
    retry_after_s: float = 0.0
    error_type: type[TransferError] = TransferError

    def describe(self, failures: int) -> str:
        """Say why a file is given up after so many failures."""
        return (
            f"{failures} attempts failed, the last one: {self.reason}"
            if failures > 1
            else self.reason
        )


def public_url(url: str) -> str:
    """An address without what may be secret in it: user, password, and the query, which holds signatures and tokens."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except (
        ValueError
    ):  # brackets that do not close, or a password with a slash in it, which is not a port
        return f"{url.partition(':')[0]}://..."
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="..." if parts.query else "", fragment="").geturl()


def is_server_address(text: str) -> bool:
    """Whether an address names a server on the web by a possible host and port."""
    # ValueError: brackets without an address between them, a port that is not a number, or a label of the host that is
    # empty or longer than 63 characters.
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host != "" and port != 0


def raise_for_status(response: requests.Response) -> None:
    """Turn a status that brings no content into an error; 416 is left to those who asked for a range."""
    status = response.status_code
    if status in {200, 206, 416}:
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):  # offsets and sizes would mean nothing
            reason = f"is compressed ({encoding:.20}), although that was not asked for"
            raise AttemptError(reason, tries=FEW_TRIES, is_answer=True)
        return
    what = f"status {status} {response.reason}"
    if status == 407:
        raise ProxyError(f"the proxy wants a user and password ({what})", _PROXY_HINT)
    if status in {404, 410}:
        hint = "look at the address in a browser; names are case-sensitive"
        raise AttemptError(
            f"the server has no such file ({status})",
            hint,
            tries=1,
            is_answer=True,
            error_type=NotOnServerError,
        )
    # Of what comes before an answer, such as 103 (early hints), http.client skips only 100: another attempt may help.
    if 200 <= status < 500 and status not in {408, 425, 429}:
        raise AttemptError(
            what, RELEASE_ACCESS_HINT, tries=1, is_answer=True, error_type=TransferError
        )
    pause_s = 0.0
    with suppress(
        urllib3.exceptions.InvalidHeader, ValueError, OverflowError
    ):  # neither seconds nor a date
        pause_s = float(urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "")))
    raise AttemptError(what, tries=MANY_TRIES, is_busy=True, retry_after_s=pause_s)


def translate(error: Exception, url: str) -> Exception:
    """Turn an error of requests or urllib3 into one of those of `Client.open`; the address is a public one."""
    *outer, last = _unwrap(error)
    detail = str(getattr(last, "verify_message", "") or getattr(last, "strerror", "") or last)[:200]
    request = getattr(error, "request", None)
    asked = public_url(str(request.url)) if request is not None else url
    # Where the address of the file is in order, that of the proxy is not.
    is_malformed = isinstance(error, kinds.InvalidURL) and request is not None and asked == url
    if (
        is_malformed
        or isinstance(error, kinds.InvalidProxyURL)
        or re.search("SOCKS support|failed: 407", detail)
    ):
        return ProxyError(
            f"the proxy cannot be used: {'malformed address' if is_malformed else detail}",
            _PROXY_HINT,
        )
    if isinstance(error, kinds.TooManyRedirects):
        return AttemptError("is redirected in a circle", _REDIRECT_HINT, tries=1, is_answer=True)
    if isinstance(error, ValueError) and not isinstance(error, kinds.InvalidHeader):
        reason = "is redirected to an address that cannot be used"
        return AttemptError(reason, _REDIRECT_HINT, tries=1, is_answer=True)
    inner = [item for item in (*outer, last) if not isinstance(item, kinds.RequestException)]
    words, hint = next(
        (words, hint)
        for types, pattern, words, hint in _WORDS
        if any(isinstance(item, types) for item in (*inner, None)) and re.search(pattern, detail)
    )
    is_proxy, parts = isinstance(error, kinds.ProxyError), urlsplit(asked)
    text = words.format(host="the proxy" if is_proxy else parts.hostname, detail=detail)
    # A file that is redirected to another server says nothing about this one.
    if words is _UNVERIFIED and parts.netloc == urlsplit(url).netloc:
        return CertificateError(f"{asked}: {text}", hint)
    tries = 0
    if words is _UNVERIFIED:
        tries = 1
    elif isinstance(error, (kinds.ReadTimeout, urllib3.exceptions.ReadTimeoutError)):
        tries = FEW_TRIES
    return AttemptError(text, _PROXY_HINT if is_proxy else hint, tries=tries)


def _unwrap(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those inside the wrappings of requests and urllib3."""
    while error is not None:
        yield error
        wrapped = (*error.args, getattr(error, "reason", None), error.__cause__)
        error = next((item for item in wrapped if isinstance(item, BaseException)), None)
