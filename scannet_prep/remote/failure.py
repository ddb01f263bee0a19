"""What can go wrong with a request, sorted by what helps: to try again, to wait for the server, or nothing."""

from __future__ import annotations

import datetime as dt
import email.utils
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import requests
import urllib3
import urllib3.util.ssl_match_hostname

from scannet_prep.errors import CertificateError, NotOnServerError, RefusedError, TransferError
from scannet_prep.remote.address import public_url

_GONE = frozenset({404, 410})
_REFUSALS = frozenset({401, 403})
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})

Trouble = Literal["transfer", "server", "connection"]


@dataclass(frozen=True, slots=True)
class Hints:
    """What to do about refusals; it depends on what is asked for.

    Attributes:
        access: Where the server wants to know who asks, or refuses.
        address: Where the address is none.
        certificate: Where the certificate cannot be verified.
        missing: Where the server has no such file.
    """

    access: str
    address: str
    certificate: str
    missing: str = ""


RELEASE_HINTS = Hints(
    access="access rests on having signed the terms; a mirror may want another --base-url",
    address="--base-url https://...",
    certificate="--ca-bundle FILE names the authority of a mirror or of your network's proxy",
)


class TransientError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        retry_after_s: The pause that the server asked for; None where it did not.
        trouble: Whose fault it may be: "transfer" (this one's alone), "server", or "connection" (there was none).
    """

    def __init__(self, reason: str, retry_after_s: float | None = None, trouble: Trouble = "transfer") -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.trouble = trouble


def raise_for_status(url: str, response: requests.Response, hints: Hints) -> None:
    """Turn a status that brings no content into an error; 416 is for who asked for a range to understand.

    Args:
        url: What was asked for, as it may be shown.
        response: The answer.
        hints: What to say about refusals.

    Raises:
        TransientError: The server cannot serve it just now.
        NotOnServerError: It has no such file.
        RefusedError: It will not give it.
    """
    status = response.status_code
    if status in {200, 206, 416}:
        return
    if status in _GONE:
        raise NotOnServerError(f"{url}: the server has no such file ({status})", hints.missing)
    if status in _BUSY:
        retry_after_s = parse_retry_after(response.headers.get("Retry-After", ""), time.time())
        raise TransientError(f"status {status} {response.reason}", retry_after_s, trouble="server")
    raise RefusedError(f"{url}: status {status} {response.reason}", hints.access if status in _REFUSALS else "")


def raise_for_address(url: str, response: requests.Response) -> None:
    """A redirection may lead from http to https, but never back.

    Raises:
        TransferError: It does.
    """
    hops = [hop.url for hop in (*response.history, response)]
    if urlsplit(url).scheme == "https" and any(urlsplit(hop).scheme != "https" for hop in hops):
        raise TransferError(f"{url}: is redirected to an address without encryption: {public_url(hops[-1])}")


@contextmanager
def translated(url: str, hints: Hints) -> Iterator[None]:
    """Turn the errors of requests and urllib3 into ours, and tell those that may pass from those that will not.

    Ours come without theirs, which show the whole address with what may be secret in it.
    """
    try:
        yield
    except requests.exceptions.SSLError as error:
        if not _is_about_certificate(error):  # broken off while the connection was being secured
            raise TransientError(_innermost(error), trouble="connection") from None
        asked = public_url(str(error.request.url)) if error.request is not None else url
        # Where a file is redirected to another server, only that file is concerned.
        is_server = urlsplit(asked).netloc == urlsplit(url).netloc
        raise (CertificateError if is_server else TransferError)(
            f"{asked}: the certificate cannot be verified: {_innermost(error)}",
            hints.certificate,
        ) from None
    except (
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.MissingSchema,
    ) as error:
        raise TransferError(f"{url}: is no address that can be asked: {type(error).__name__}", hints.address) from None
    except requests.exceptions.TooManyRedirects:
        raise TransferError(f"{url}: is redirected in a circle") from None
    except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as error:
        raise TransientError(_innermost(error)) from None
    except requests.exceptions.ReadTimeout as error:
        raise TransientError(_innermost(error), trouble="server") from None
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise TransientError(_innermost(error), trouble="connection") from None
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise TransientError(_innermost(error)) from None


def parse_retry_after(value: str, now_s: float) -> float | None:
    """Read a `Retry-After`, which is a number of seconds or a date; None where it is neither.

    Args:
        value: The header.
        now_s: Seconds since the epoch.
    """
    if re.fullmatch(r"\s*[0-9]+\s*", value):
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
        # Without a zone, it is meant as all dates of HTTP are.
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError):
        return None


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
