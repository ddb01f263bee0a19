"""What can go wrong with a request: one type for all that another attempt may mend, or another file not meet."""

from __future__ import annotations

import datetime as dt
import email.utils
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import requests
import urllib3
import urllib3.util.ssl_match_hostname

from scannet_prep.errors import CertificateError, NotOnServerError, ProxyError, RefusedError, TransferError
from scannet_prep.remote.address import public_url
from scannet_prep.remote.policy import TransferPolicy

_GONE = frozenset({404, 410})
_BUSY = frozenset({429, 503})
_PROXY_HINT = (
    "HTTPS_PROXY and HTTP_PROXY look like http://USER:PASSWORD@HOST:PORT; for socks5:// install requests[socks]"
)


@dataclass(frozen=True, slots=True)
class Hints:
    """What to do about refusals; it depends on what is asked for.

    Attributes:
        access: Where the server wants to know who asks, or refuses.
        address: Where the address cannot be used.
        certificate: Where nobody that is trusted has signed the certificate.
        missing: Where the server has no such file.
    """

    access: str
    address: str
    certificate: str
    missing: str = ""


RELEASE_HINTS = Hints(
    access="access rests on having signed the terms; a mirror may need another base URL",
    address="give the address of a mirror as https://...",
    certificate="name a file with the authority of the mirror, or of your network's proxy: --ca-bundle FILE",
)


class AttemptError(Exception):
    """A request has brought nothing, or not all. Another attempt may.

    Attributes:
        reason: What happened.
        hint: What to do about it; may be empty.
        tries: So many of them give a file up; 0 stands for the policy's `tries`.
        is_answer: Whether the server has answered, but with a refusal or something else than the file.
        is_busy: Whether it asks for fewer requests.
        retry_after_s: The pause that it asks for.
        error_type: What to raise when the file is given up.
    """

    def __init__(
        self,
        reason: str,
        hint: str = "",
        *,
        tries: int = 0,
        is_answer: bool = False,
        is_busy: bool = False,
        retry_after_s: float = 0.0,
        error_type: type[TransferError] = TransferError,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.tries = tries
        self.is_answer = is_answer
        self.is_busy = is_busy
        self.retry_after_s = retry_after_s
        self.error_type = error_type


def raise_for_status(response: requests.Response, hints: Hints) -> None:
    """Turn a status that brings no content into an error; 416 is left to those who asked for a range.

    Raises:
        AttemptError: The server does not serve it.
        ProxyError: A proxy wants to know who asks.
    """
    status = response.status_code
    if status in {200, 206, 416}:
        return
    what = f"status {status} {response.reason}"
    if status == 407:
        raise ProxyError(f"the proxy wants a user and password ({what})", _PROXY_HINT)
    if status in _GONE:
        reason = f"the server has no such file ({status})"
        raise AttemptError(reason, hints.missing, tries=1, is_answer=True, error_type=NotOnServerError)
    if status < 500 and status not in {408, 425, 429}:
        hint = hints.access if status in {401, 403} else ""
        raise AttemptError(what, hint, tries=1, is_answer=True, error_type=RefusedError)
    pause_s = parse_retry_after(response.headers.get("Retry-After", ""), time.time())
    raise AttemptError(what, is_busy=status in _BUSY or bool(pause_s), retry_after_s=pause_s)


@contextmanager
def translated(url: str, hints: Hints, policy: TransferPolicy) -> Iterator[None]:
    """Turn the errors of requests and urllib3 into ours, without what may be secret in the address.

    Raises:
        AttemptError: Another attempt may help, or only this file is concerned.
        CertificateError, ProxyError: Nothing can be fetched at all.
    """
    try:
        yield
    except requests.exceptions.SSLError as error:
        if not _is_about_certificate(error):  # broken off while the connection was being secured
            raise AttemptError(_innermost(error)) from None
        asked = public_url(str(error.request.url)) if error.request is not None else url
        reason = f"{asked}: the certificate cannot be verified: {_innermost(error)}"
        if urlsplit(asked).netloc == urlsplit(url).netloc:
            raise CertificateError(reason, _certificate_hint(_innermost(error), hints)) from None
        # A file that is redirected to another server says nothing about this one.
        raise AttemptError(reason, hints.certificate, tries=1) from None
    except requests.exceptions.InvalidProxyURL as error:
        raise ProxyError(f"the address of the proxy cannot be used: {_innermost(error)}", _PROXY_HINT) from None
    except requests.exceptions.ProxyError as error:
        if "407" in _innermost(error):
            raise ProxyError(f"the proxy wants a user and password: {_innermost(error)}", _PROXY_HINT) from None
        raise AttemptError(f"the proxy does not connect: {_innermost(error)}", _PROXY_HINT) from None
    except requests.exceptions.TooManyRedirects:
        raise AttemptError("is redirected in a circle", tries=1, is_answer=True) from None
    except (requests.exceptions.ReadTimeout, requests.exceptions.InvalidHeader) as error:
        raise AttemptError(_innermost(error), tries=policy.few_tries) from None
    except (urllib3.exceptions.LocationParseError, ValueError) as error:  # redirections to what is not an address
        if "SOCKS" in str(error):
            raise ProxyError(f"the proxy cannot be used: {error}", _PROXY_HINT) from None
        reason = f"the address cannot be used: {type(error).__name__}"
        raise AttemptError(reason, hints.address, tries=1, is_answer=True) from None
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise AttemptError(_innermost(error)) from None


def parse_retry_after(value: str, now_s: float) -> float:
    """Read a `Retry-After`, which is a number of seconds or a date; 0 where it is neither.

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
        return 0.0


def _certificate_hint(reason: str, hints: Hints) -> str:
    if "expired" in reason or "not yet valid" in reason:
        return "the server's certificate is out of date, or this machine's clock is wrong: check `date`"
    if "mismatch" in reason or "doesn't match" in reason or "not valid for" in reason:
        return "the address leads to another server: check the base URL, and whether your network redirects it"
    return hints.certificate


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
