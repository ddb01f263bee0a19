"""Errors of a single request, and after how many of them a file is given up.

`check_status` raises them for the status of an answer, and `translate` makes them from the errors
of requests and urllib3.

    AttemptError       another attempt may succeed, or only this file is concerned
    CertificateError   nothing can be downloaded: the server's certificate cannot be verified
    ProxyError         nothing can be downloaded: the proxy cannot be used
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import requests
import urllib3
import urllib3.util.ssl_match_hostname
from requests import exceptions as request_exceptions

from scannet_prep.errors import (
    CertificateError,
    NotOnServerError,
    ProxyError,
    TransferError,
)
from scannet_prep.remote.addresses import public_url

FEW_TRIES = 3
"""Expensive failures after which a file is given up: silence, or wrong content."""
MANY_TRIES = 20
"""Rejections after which a file is given up. They concern the server, not the file.

If 30 % of all requests are rejected, the probability that a run of 7,766 files loses one of them
is 7,766 * 0.3**20 = 3e-7.
"""

HINT_LOGIN = (
    "if the server asks for a login, put it into the address (https://USER:PASSWORD@HOST/...) "
    "or into ~/.netrc; a signed address may have expired"
)
"""Hint for a refused file that does not belong to the release, such as an archive."""
HINT_RELEASE_ACCESS = (
    f"ScanNet's server requires signed terms, and a mirror may need another base URL; {HINT_LOGIN}"
)
"""Hint for a refused file of the release."""
HINT_CERTIFICATE = (
    "name a file or folder with the authority of the server, or of your network's proxy: "
    "--ca-bundle PATH, or REQUESTS_CA_BUNDLE=PATH"
)
"""Hint for a certificate that none of the trusted authorities signed."""
_HINT_PROXY = (
    "HTTPS_PROXY and HTTP_PROXY look like http://USER:PASSWORD@HOST:PORT; "
    "for socks5:// install requests[socks]"
)
_HINT_CLOCK = (
    "the server's certificate is out of date, or this machine's clock is wrong: check `date`"
)
_HINT_WRONG_HOST = (
    "the address leads to another server: check the base URL, and whether your network redirects it"
)
_HINT_REDIRECTION = "open the address in a browser: the base URL, or a link on the server, is wrong"
_HINT_MISSING_FILE = "open the address in a browser; names are case-sensitive"

_MAX_DETAIL_LETTERS = 200


@dataclass(eq=False)
class AttemptError(Exception):
    """A request that failed, or brought only a part of the file. Another attempt may succeed.

    Attributes:
        reason: What happened.
        hint: What to do about it; may be empty.
        tries: Failures of this kind after which the file is given up; 0 for the policy's `tries`.
        is_answer: Whether the server answered, but with a refusal or with other content.
        is_busy: Whether the server rejected the request because of its own state, so that it should
            receive fewer requests.
        retry_after_s: The pause that the server requests.
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
        """Describe why a file is given up after this many failures."""
        if failures == 1:
            return self.reason
        return f"{failures} attempts failed, the last one: {self.reason}"


def check_status(response: requests.Response) -> None:
    """Check that an answer brings content (200, 206), or that a range lies outside the file (416).

    Raises:
        AttemptError: The status is another one, or the content is compressed.
        ProxyError: The proxy requires a password.
    """
    status = response.status_code
    if status in {200, 206, 416}:
        _check_encoding(response)
        return

    shown_status = f"status {status} {response.reason}"
    if status == 407:
        raise ProxyError(f"the proxy requires a user and password ({shown_status})", _HINT_PROXY)
    if status in {404, 410}:
        raise AttemptError(
            f"the server has no such file ({status})",
            _HINT_MISSING_FILE,
            tries=1,
            is_answer=True,
            error_type=NotOnServerError,
        )
    is_rejection = status in {408, 425, 429}
    if 200 <= status < 500 and not is_rejection:
        raise AttemptError(shown_status, HINT_RELEASE_ACCESS, tries=1, is_answer=True)
    # Rejections, faults of the server, and interim answers: http.client skips the status 100, but
    # passes on 103 (early hints). Another attempt may succeed.
    raise AttemptError(
        shown_status, tries=MANY_TRIES, is_busy=True, retry_after_s=_parse_retry_after(response)
    )


def _check_encoding(response: requests.Response) -> None:
    """Refuse compressed content: its offsets and sizes are not those of the file."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise AttemptError(
            f"is compressed ({encoding:.20}), although that was not requested",
            tries=FEW_TRIES,
            is_answer=True,
        )


def _parse_retry_after(response: requests.Response) -> float:
    """Return the pause in seconds that an answer requests; 0 if there is no valid one."""
    text = response.headers.get("Retry-After", "")
    with suppress(urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return float(urllib3.Retry().parse_retry_after(text))
    return 0.0


class _Explanation(NamedTuple):
    """The words for errors of some types.

    Attributes:
        types: The explanation holds for an error that is or wraps an instance of one of these.
        pattern: A regular expression that is searched for in the innermost error's text; empty if
            any text will do.
        problem: The message; {host} and {detail} are filled in.
        hint: What to do about it; may be empty.
    """

    types: tuple[type, ...]
    pattern: str
    problem: str
    hint: str = ""


_CERTIFICATE_ERRORS = (
    ssl.SSLCertVerificationError,
    urllib3.util.ssl_match_hostname.CertificateError,
)
_UNVERIFIED = "the certificate cannot be verified: {detail}"
_NOT_UNDERSTOOD = _Explanation(
    types=(), pattern="", problem="{host} sends an answer that cannot be understood"
)

# The first row that fits explains an error.
_EXPLANATIONS = (
    _Explanation(_CERTIFICATE_ERRORS, "expired|not yet valid", _UNVERIFIED, _HINT_CLOCK),
    _Explanation(_CERTIFICATE_ERRORS, "mismatch|doesn't match", _UNVERIFIED, _HINT_WRONG_HOST),
    _Explanation(_CERTIFICATE_ERRORS, "", _UNVERIFIED, HINT_CERTIFICATE),
    _Explanation(
        (socket.gaierror, urllib3.exceptions.NameResolutionError),
        "",
        "cannot find {host}: is this machine online?",
    ),
    _Explanation((ConnectionRefusedError,), "", "{host} refuses the connection"),
    _Explanation((TimeoutError, urllib3.exceptions.TimeoutError), "", "{host} does not answer"),
    _Explanation(
        (ConnectionError, ssl.SSLEOFError, http.client.IncompleteRead),
        "",
        "the connection broke off",
    ),
    _Explanation(
        (ssl.SSLError, urllib3.exceptions.SSLError),
        "",
        "no encrypted connection to {host} can be made: {detail}",
    ),
    _Explanation((OSError,), "", "cannot reach {host}: {detail}"),
)


def translate(error: Exception, url: str) -> Exception:
    """Translate an error of requests or urllib3.

    Args:
        error: The error.
        url: The address of the file, as `public_url` returns it.

    Returns:
        An AttemptError, CertificateError or ProxyError.
    """
    chain = list(_unwrap(error))
    innermost = chain[-1]
    detail = getattr(innermost, "verify_message", "") or getattr(innermost, "strerror", "")
    detail = str(detail or innermost)[:_MAX_DETAIL_LETTERS]

    # After a redirection, this is not the address of the file.
    request = getattr(error, "request", None)
    requested_url = url if request is None else public_url(str(request.url))

    # The address of the file was checked before. If there was no redirection, the malformed
    # address is that of the proxy.
    is_malformed_proxy = (
        isinstance(error, request_exceptions.InvalidURL)
        and request is not None
        and requested_url == url
    )
    if is_malformed_proxy:
        return ProxyError("the proxy cannot be used: malformed address", _HINT_PROXY)
    # Texts of requests (the package PySocks is missing) and of http.client (a login is required).
    is_proxy_unusable = re.search("SOCKS support|failed: 407", detail) is not None
    if is_proxy_unusable or isinstance(error, request_exceptions.InvalidProxyURL):
        return ProxyError(f"the proxy cannot be used: {detail}", _HINT_PROXY)

    if isinstance(error, request_exceptions.TooManyRedirects):
        reason = "is redirected in a circle"
        return AttemptError(reason, _HINT_REDIRECTION, tries=1, is_answer=True)
    # requests raises ValueErrors for invalid addresses, but also for invalid headers.
    is_invalid_header = isinstance(error, request_exceptions.InvalidHeader)
    if isinstance(error, ValueError) and not is_invalid_header:
        reason = "is redirected to an address that cannot be used"
        return AttemptError(reason, _HINT_REDIRECTION, tries=1, is_answer=True)

    return _explain(error, chain, detail, url=url, requested_url=requested_url)


def _explain(
    error: Exception, chain: Sequence[BaseException], detail: str, *, url: str, requested_url: str
) -> Exception:
    """Explain an error of the connection by the first row of `_EXPLANATIONS` that fits.

    Args:
        error: The error of requests or urllib3.
        chain: The error and those inside it.
        detail: The text of the innermost error.
        url: The address of the file.
        requested_url: The address of the request that failed.
    """
    explanation = _find_explanation(chain, detail)
    requested = urlsplit(requested_url)
    is_proxy = isinstance(error, request_exceptions.ProxyError)
    host = "the proxy" if is_proxy else requested.hostname
    problem = explanation.problem.format(host=host, detail=detail)

    if explanation.problem == _UNVERIFIED:
        # A redirection to another server with a bad certificate concerns this file only.
        if requested.netloc != urlsplit(url).netloc:
            return AttemptError(problem, explanation.hint, tries=1)
        return CertificateError(f"{requested_url}: {problem}", explanation.hint)
    is_timeout = isinstance(
        error, (request_exceptions.ReadTimeout, urllib3.exceptions.ReadTimeoutError)
    )
    hint = _HINT_PROXY if is_proxy else explanation.hint
    return AttemptError(problem, hint, tries=FEW_TRIES if is_timeout else 0)


def _find_explanation(chain: Sequence[BaseException], detail: str) -> _Explanation:
    # Errors of requests are also OSErrors, and would fit the last row.
    inner = [error for error in chain if not isinstance(error, request_exceptions.RequestException)]
    for explanation in _EXPLANATIONS:
        is_of_type = any(isinstance(error, explanation.types) for error in inner)
        if is_of_type and re.search(explanation.pattern, detail):
            return explanation
    return _NOT_UNDERSTOOD


def _unwrap(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error and the errors inside it, from the outermost to the innermost.

    requests and urllib3 keep an inner error as an argument, as `reason` or as the cause.
    """
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        candidates = (*inner.args, getattr(inner, "reason", None), inner.__cause__)
        wrapped = [value for value in candidates if isinstance(value, BaseException)]
        inner = wrapped[0] if wrapped else None
