"""Objects in buckets: `s3://`, `gs://` and `az://` addresses, read by ranges and written in parts.

Where the store is and who asks, obstore finds in the environment of the process that reads or writes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

from scannet_prep.errors import TransferError, UsageError
from scannet_prep.files import Buffer
from scannet_prep.remote.bucket_process import PREFIXES, Found, Request, Trouble
from scannet_prep.remote.bucket_trouble import TRY_LATER, make_error
from scannet_prep.remote.tail import TailedSource

_ADDRESS = re.compile(r"((?:s3|gs|az)://[a-z0-9][a-z0-9._-]*)/([^/?#]+(?:/[^/?#]+)*)", re.ASCII | re.IGNORECASE)
# About a minute, and 3 s: when nothing has been read yet, it is more often a wrong setting than an outage.
_RETRIES, _FIRST_RETRIES = 10, 3
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # of the 10,000 that S3 and Google take: frames may be larger than what they hold
_END_PATIENCE_S = 30.0
_CODE = "import sys; sys.path[:] = {path}; from scannet_prep.remote.bucket_process import serve; serve({descriptor})"


def split_address(address: str) -> tuple[str, str]:
    """Divide an address into its bucket (`s3://NAME`) and the name of the object.

    Raises:
        UsageError: It is none; user, password and query are not shown.
    """
    match, (scheme, _, rest) = _ADDRESS.fullmatch(address), address.partition("://")
    if match is None or {".", ".."} & set(match[2].split("/")):
        shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
        hint = (
            "name it as s3://BUCKET/NAME, gs:// or az://, without a query; who asks is read from the environment only"
        )
        raise UsageError(f"{shown!r} is not an address of an object in a bucket", hint)
    return f"{scheme.lower()}://{match[1].partition('://')[2]}", match[2]


class BucketSource(TailedSource):
    """An object in a bucket, of which any range can be read.

    Picklable, and safe under fork and in threads: each process reads through a process of its own, each thread through
    one that no other thread uses meanwhile.

    Args:
        address: `s3://BUCKET/NAME`, `gs://BUCKET/NAME` or `az://CONTAINER/NAME`.
        certificates: True for the system's authorities (or those that SSL_CERT_FILE names), a file with others, False
            to accept any certificate.
        retries: How often a request that fails is made again, at growing intervals, for at most 3 minutes.

    Raises:
        UsageError: It is no such address, obstore is not installed, or the environment's settings cannot be used.
        NotOnServerError: There is no such bucket or object.
        RefusedError: There is no permission, or there are no credentials.
        ArchiveError: It is empty.
        TransferError: The store does not answer, or fails.
    """

    def __init__(self, address: str, *, certificates: bool | Path = True, retries: int = _RETRIES) -> None:
        self.name = address
        self._bucket, self._key = split_address(address)
        self._settings, self._retries = _settings_of(certificates), min(retries, _FIRST_RETRIES)
        self._version: Found | None = None
        self._helpers: _Helpers | None = None
        super().__init__()
        self._retries = retries

    def close(self) -> None:
        """Let go of the processes that talk to the store; reading starts new ones."""
        self._helpers = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return self.__dict__ | {"_helpers": None, "_tail": None}

    def _fetch(self, start: int, end: int) -> bytes:
        """Fetch a range of the version that was opened."""
        helpers = self._helpers = _Helpers.of_this_process(self._settings)
        e_tag = self._version.e_tag if self._version else ""
        asked = Request(self._bucket, self._key, self._retries, (start, end), "" if e_tag.startswith("W/") else e_tag)
        found, data = helpers.ask(asked)
        if isinstance(found, Trouble):
            raise make_error(self.name, found)
        if self._version is None:
            self._version, self.size_bytes = found, found.size_bytes
        if found.identity != self._version.identity:
            raise make_error(self.name, Trouble("changed"))
        if len(data) != min(end, self.size_bytes) - start:
            raise TransferError(
                f"{self.name}: {len(data):,} bytes came where {end - start:,} were asked for", TRY_LATER
            )
        return data


def upload(address: str, pieces: Iterable[Buffer], most_bytes: int) -> int:
    """Write an object in parts; it gets its name when it is whole. Where that fails, the parts are removed.

    Args:
        address: As for `BucketSource`.
        pieces: The content, in order.
        most_bytes: About how large it may become.

    Returns:
        Its size.

    Raises:
        UsageError: As for `BucketSource`.
        OutputError: It cannot be written; an object that was there before stays.
    """
    size_bytes, (bucket, key) = 0, split_address(address)
    helper = _Helper(os.environ, _END_PATIENCE_S)
    try:
        part_bytes = max(_PART_BYTES, most_bytes // _MOST_PARTS)
        helper.connection.send(Request(bucket, key, _RETRIES, part_bytes=part_bytes))
        for piece in filter(len, pieces):
            helper.connection.send_bytes(piece)
            size_bytes += len(piece)
            if helper.connection.poll():  # it has failed
                break
        helper.connection.send_bytes(b"")
        found, _ = helper.receive()
    except (EOFError, ConnectionError):
        found = Trouble("ended")
    finally:
        helper.end()  # where this is interrupted, it removes what it has written
    if isinstance(found, Trouble):
        raise make_error(address, found, is_writing=True)
    return size_bytes


class _Helper:
    """A process that talks to stores, seen from the one that started it; `end` ends it, at the latest when it is lost.

    Args:
        environment: Variables of the environment.
        patience_s: How long it may go on at its end, to remove what it has written.
    """

    def __init__(self, environment: Mapping[str, str], patience_s: float = 0.0) -> None:
        (self.connection, theirs), null = Pipe(), subprocess.DEVNULL
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - ourselves; Ctrl-C, which a session gets, is for who started it
                [sys.executable, "-c", _CODE.format(path=sys.path, descriptor=theirs.fileno())],
                env=environment, pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=null, stdout=null, stderr=null,
            )  # fmt: skip
        # Not `__del__`, which may come after that of the connection.
        self.end = finalize(self, _end, self.connection, process, os.getpid(), patience_s)

    def receive(self) -> tuple[Found | Trouble, bytes]:
        return self.connection.recv(), self.connection.recv_bytes()


def _end(connection: Connection, process: subprocess.Popen[bytes], owner: int, patience_s: float) -> None:
    """Let a helper end, and kill it where that takes too long; in a process that was forked since, let go of it."""
    connection.close()
    if owner != os.getpid():
        process.returncode = 0  # else Python warns of a process that it does not wait for
        return
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Helpers:
    """The helpers that no thread of this process uses at the moment; they end with the last source that knows them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._idle: list[_Helper] = []

    @staticmethod
    def of_this_process(settings: Mapping[str, str]) -> _Helpers:
        """Those that were started with what the environment says now: people mend it, and try again."""
        environment = {**os.environ, **settings}
        return _ALL_HELPERS.setdefault((os.getpid(), frozenset(environment.items())), _Helpers(environment))

    def ask(self, request: Request) -> tuple[Found | Trouble, bytes]:
        for _ in range(2):  # somebody may have killed an idle one
            try:
                helper = self._idle.pop()
            except IndexError:
                helper = _Helper(self._environment)
            try:
                helper.connection.send(request)
                answer = helper.receive()
            except (EOFError, ConnectionError):
                continue
            self._idle.append(helper)
            return answer
        return Trouble("ended"), b""


_ALL_HELPERS: WeakValueDictionary[tuple[int, frozenset[tuple[str, str]]], _Helpers] = WeakValueDictionary()


def _settings_of(certificates: bool | Path) -> dict[str, str]:
    """Variables of the environment that say which certificates are accepted."""
    if isinstance(certificates, Path):
        return {"SSL_CERT_FILE": str(certificates)}
    return {} if certificates else {f"{prefix}_ALLOW_INVALID_CERTIFICATES": "true" for prefix in PREFIXES.values()}
