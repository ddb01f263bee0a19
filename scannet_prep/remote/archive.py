"""Archives at an address, read by ranges: `https://` with requests, all others with fsspec.

fsspec needs a package for each kind of address: s3fs for `s3://`, gcsfs for `gs://`, and
huggingface_hub for `hf://`. These packages find credentials and endpoints, and repeat failed
requests. Each process has a file system object of its own, which fsspec keeps.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from scannet_prep.errors import OutageError, TransferError
from scannet_prep.remote.addresses import hide_secrets
from scannet_prep.remote.http import BrokenConnectionError, HttpClient, RefusalError, RequestError

Result = TypeVar("Result")

_SERVERS = ("https://", "http://")
_PAUSES_S = [0.2, 1.0, 5.0, 20.0, 60.0]
_TIMEOUT_S = 20.0
_HINT_RANGES = (
    "serve it with nginx or Apache, which support ranges; python -m http.server does not; if the "
    "archive was replaced meanwhile, open it again"
)
_HINT_STORE = (
    "check the address and your credentials; s3://, gs:// and hf:// need the extra [remote], and "
    "s3fs, gcsfs or huggingface_hub"
)


class RemoteArchive:
    """An archive at an address; any range of it can be read.

    Picklable, and safe under fork and in threads: each process has its own connections. If the
    archive is replaced after it was opened, this is not noticed here, but by its checksums.

    Args:
        address: The address.
        end_bytes: The length of `end`.

    Attributes:
        name: The address without user, password and query, for messages.
        size_bytes: The size of the archive.
        end: Its last bytes.

    Raises:
        TransferError: It cannot be read, or the package for this kind of address is missing.
    """

    def __init__(self, address: str, end_bytes: int) -> None:
        self.name = hide_secrets(address)
        self._address = address
        # The address may be wrong, so the first request is not repeated for minutes.
        self.size_bytes = self._try(_PAUSES_S[:2], _find_size)
        self.end = self.read(max(0, self.size_bytes - end_bytes), end_bytes)

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the archive ends within the range.

        Raises:
            TransferError: It cannot be read.
            OutageError: The server has served nothing for too long.
        """
        end = min(offset + size, self.size_bytes)
        return self._try([*_PAUSES_S], _read_range, offset, end)

    def _try(self, pauses_s: list[float], function: Callable[..., Result], *span: int) -> Result:
        """Call a function with the address; retry after each pause if an error may be temporary."""
        while True:
            try:
                return function(self._address, *span)
            except RefusalError as error:
                raise TransferError(f"{self.name}: {error.message}", error.hint) from None
            except RequestError as error:
                if not pauses_s:
                    raise OutageError(f"{self.name}: {error.message}", error.hint) from None
            except Exception as error:  # noqa: BLE001 - each package has errors of its own
                problem = hide_secrets(f"{type(error).__name__}: {error}")
                raise TransferError(f"{self.name}: {problem}", _HINT_STORE) from None
            # Workers that were rejected together do not retry together. The random numbers of an
            # epoch, which Python draws elsewhere, do not depend on the network.
            time.sleep(pauses_s.pop(0) * random.SystemRandom().uniform(0.5, 1.5))


def _find_size(address: str) -> int:
    if address.startswith(_SERVERS):
        _, size_bytes = _request(address, 0, 1)
        return size_bytes
    import fsspec

    file_system, path = fsspec.core.url_to_fs(address)
    return int(file_system.size(path))


def _read_range(address: str, start: int, end: int) -> bytes:
    if address.startswith(_SERVERS):
        data, _ = _request(address, start, end)
        return data
    import fsspec

    file_system, path = fsspec.core.url_to_fs(address)
    # By default, this file system fetches 5 MiB more.
    options = {"cache_type": "none"} if address.startswith("hf://") else {}
    return bytes(file_system.cat_file(path, start=start, end=end, **options))


def _request(address: str, start: int, end: int) -> tuple[bytes, int]:
    """Request a range from a web server, and the size of the file."""
    client = _get_client(os.getpid())
    with client.open(address, {"Range": f"bytes={start}-{end - 1}"}) as answer:
        answer.check()
        # Without Content-Range, this is the whole archive; a shorter one may have replaced it.
        has_range = "Content-Range" in answer.headers and answer.start == start
        size_bytes = answer.size_bytes or 0
        if not has_range or size_bytes < end:
            raise RefusalError(
                "the server answers without the range that was requested", _HINT_RANGES
            )
        data = b"".join(answer.pieces())
    if len(data) < end - start:
        raise BrokenConnectionError(f"{len(data):,} of {end - start:,} bytes arrived")
    return data, size_bytes


@functools.cache
def _get_client(_process_id: int) -> HttpClient:
    """Return the client of a process, which cannot use the connections of another."""
    return HttpClient(_TIMEOUT_S)
