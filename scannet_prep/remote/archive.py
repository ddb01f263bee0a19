"""Archives at an address, read by ranges: `https://` with requests, all others with fsspec.

fsspec needs a package for each kind of address: s3fs for `s3://`, gcsfs for `gs://`, and
huggingface_hub for `hf://`. These find credentials and endpoints, and repeat failed requests,
themselves.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import requests
from urllib3.exceptions import HTTPError

from scannet_prep.errors import TransferError
from scannet_prep.remote.addresses import public_url

Result = TypeVar("Result")

_SERVERS = ("https://", "http://")
_PAUSES_S = (0.2, 1.0, 5.0, 20.0, 60.0)
_TIMEOUT_S = 60.0
# Errors of web servers and of connections that may pass.
_PASSING = (requests.ConnectionError, requests.Timeout, HTTPError)
# Parts of addresses in messages: user and password, and the query, which may hold a signature.
_SECRETS = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s')]+")
_HINT_SERVER = "check the address; the server must support ranges, and may ask for a login"
_HINT_PACKAGE = "install this package with the extra [remote], and s3fs, gcsfs or huggingface_hub"


class RemoteArchive:
    """An archive at an address; any range of it can be read.

    Picklable, and safe under fork and in threads: each process has its own connections. Whether the
    archive was replaced since it was opened is not noticed here, but by its checksums.

    Args:
        address: The address.

    Attributes:
        name: The address without user, password and query, for messages.
        size_bytes: The size of the archive.

    Raises:
        TransferError: It cannot be read, or the package for this kind of address is missing.
    """

    def __init__(self, address: str) -> None:
        self.name = public_url(address)
        self._address = address
        self.size_bytes = self._try(_find_size)

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the archive ends within the range.

        Raises:
            TransferError: It cannot be read.
        """
        end = min(offset + size, self.size_bytes)
        if offset >= end:
            return b""
        return self._try(_read_range, offset, end)

    def _try(self, function: Callable[..., Result], *span: int) -> Result:
        """Call a function with the address, several times if an error may pass."""
        pauses_s = [*_PAUSES_S]
        while True:
            try:
                return function(self._address, *span)
            except Exception as error:  # noqa: BLE001 - each package has errors of its own
                may_pass = isinstance(error, _PASSING)
                if not may_pass or not pauses_s:
                    raise self._describe(error) from None
            pause_s = pauses_s.pop(0)
            time.sleep(pause_s)

    def _describe(self, error: Exception) -> TransferError:
        name = type(error).__name__
        problem = _SECRETS.sub("...", f"{name}: {error}")
        hint = _HINT_PACKAGE if isinstance(error, ImportError) else _HINT_SERVER
        return TransferError(f"{self.name}: cannot be read: {problem}", hint)


def _find_size(address: str) -> int:
    if address.startswith(_SERVERS):
        _, size_bytes = _request(address, 0, 1)
        return size_bytes
    file_system, path = _open_store(address)
    size: int = file_system.size(path)
    return size


def _read_range(address: str, start: int, end: int) -> bytes:
    if address.startswith(_SERVERS):
        data, _ = _request(address, start, end)
        return data
    file_system, path = _open_store(address)
    data = file_system.cat_file(path, start=start, end=end)
    return bytes(data)


def _request(address: str, start: int, end: int) -> tuple[bytes, int]:
    """Request a range from a web server, and the size of the file."""
    count = end - start
    last = end - 1
    headers = {"Range": f"bytes={start}-{last}", "Accept-Encoding": "identity"}
    process_id = os.getpid()
    session = _get_session(process_id)
    with session.get(address, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
        code = answer.status_code
        status = f"status {code} {answer.reason}"
        if code == 429 or code >= 500:
            raise HTTPError(status)
        content_range = answer.headers.get("Content-Range", "")
        span, _, size = content_range.partition("/")
        is_requested = span == f"bytes {start}-{last}"
        if not is_requested or not size.isdigit():
            raise ValueError(f"{status}, without the bytes {start}-{last} that were requested")
        # Faster than `answer.content`, which joins pieces of 10 KiB.
        data = answer.raw.read(count)
    if len(data) < count:
        raise HTTPError(f"{len(data):,} of {count:,} bytes arrived")
    return data, int(size)


@functools.cache
def _get_session(_process_id: int) -> requests.Session:
    """Return the session of a process, which cannot use the connections of another."""
    return requests.Session()


def _open_store(address: str) -> tuple[Any, str]:
    """Open the file system of an address, which fsspec makes once in each process."""
    import fsspec

    file_system, path = fsspec.url_to_fs(address)
    return file_system, path
