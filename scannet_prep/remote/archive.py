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
from typing import Any, NamedTuple

import requests
from urllib3.exceptions import HTTPError

from scannet_prep.errors import ArchiveError, TransferError
from scannet_prep.remote.addresses import public_url

_PAUSES_S = (0.2, 1.0, 5.0, 20.0, 60.0)
_TIMEOUT_S = 60
# Errors of web servers and of connections that may pass.
_PASSING = (requests.ConnectionError, requests.Timeout, HTTPError)
# Parts of addresses in messages: user and password, and the query, which may hold a signature.
_SECRETS = re.compile(r"(?<=//)[^/\s]*@|(?<=\?)[^\s')]+")


class _Version(NamedTuple):
    """The version of a file that an answer comes from; empty texts if the server tells none."""

    size_bytes: int
    tag: str
    date: str


class RemoteArchive:
    """An archive at an address, of which any range can be read.

    Picklable, and safe under fork and in threads: each process connects and opens it anew.

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
        self._opened_s = time.time()
        self._version: _Version | None = None
        # The answer to the first request contains the real size.
        self.size_bytes = 1
        self.read(0, 1)

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the archive ends within the range.

        Raises:
            TransferError: It cannot be read.
            ArchiveError: The archive was replaced since it was opened.
        """
        request = self._request_from_store
        if self._address.startswith(("https://", "http://")):
            request = self._request_from_server
        end = min(offset + size, self.size_bytes)
        for pause_s in (*_PAUSES_S, None):
            try:
                data, version = request(offset, end)
                break
            except Exception as error:  # noqa: BLE001 - each package has errors of its own
                if pause_s is None or not isinstance(error, _PASSING):
                    raise self._explain(error) from None
                time.sleep(pause_s)

        if self._version is None:
            self._version = version
            self.size_bytes = version.size_bytes
        if version != self._version:
            raise ArchiveError(self.name, "was replaced since it was opened", "open it again")
        return data

    def _explain(self, error: Exception) -> TransferError:
        """Translate an error of requests, of fsspec, or of a package of a store."""
        if isinstance(error, ImportError):
            hint = 'pip install "scannet-prep[remote]", and s3fs, gcsfs or huggingface_hub'
        else:
            hint = "check the address; the server must support ranges, and may need a login"
        text = _SECRETS.sub("...", f"{type(error).__name__}: {error}")
        return TransferError(f"{self.name}: cannot be read: {text}", hint)

    def _request_from_server(self, start: int, end: int) -> tuple[bytes, _Version]:
        """Request the bytes from `start` to before `end` from a web server."""
        span = f"{start}-{end - 1}"
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        session = _get_session(os.getpid())
        with session.get(self._address, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
            status = f"status {answer.status_code} {answer.reason}"
            if answer.status_code == 429 or answer.status_code >= 500:
                raise HTTPError(status)
            sent, _, size = answer.headers.get("Content-Range", "").partition("/")
            if sent != f"bytes {span}" or not size.isdigit():
                raise ValueError(f"{status}, without the bytes {span} that were requested")
            tag = answer.headers.get("ETag", "")
            date = answer.headers.get("Last-Modified", "")
            # Faster than `answer.content`, which joins pieces of 10 KiB.
            return answer.raw.read(), _Version(int(size), tag, date)

    def _request_from_store(self, start: int, end: int) -> tuple[bytes, _Version]:
        """Request the bytes from `start` to before `end` from the file that this process opened."""
        file, version = _open_file(self._address, self._opened_s, os.getpid())
        # Unlike `seek` and `read`, this has no position that threads would share.
        return file.cache.fetcher(start, end), version


@functools.cache
def _get_session(_process_id: int) -> requests.Session:
    """Return the session of a process, which cannot use the connections of another."""
    return requests.Session()


@functools.cache
def _open_file(address: str, _opened_s: float, _process_id: int) -> tuple[Any, _Version]:
    """Open an archive in a process, once; return its file, which stays open, and its version."""
    import fsspec

    file_system, path = fsspec.url_to_fs(address)
    facts = file_system.info(path)
    # The names of s3fs, of gcsfs, and of huggingface_hub.
    tags = [str(facts[name]) for name in ("ETag", "etag", "blob_id") if name in facts]
    return file_system.open(path), _Version(facts["size"], "".join(tags), "")
