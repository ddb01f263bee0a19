"""Objects in buckets: `s3://`, `gs://` and `az://` addresses, read by ranges and written in parts.

Where the store is and who asks, obstore finds in the environment of the process that reads or writes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from scannet_prep.errors import (
    ArchiveError,
    CertificateError,
    FileError,
    NotOnServerError,
    OutputError,
    RefusedError,
    ScanNetPrepError,
    ServerDownError,
    UsageError,
)
from scannet_prep.files import Buffer
from scannet_prep.remote.tail import TailedSource

_ADDRESS = re.compile(r"((?:s3|gs|az)://[a-z0-9][a-z0-9._-]*)/([^/?#]+(?:/[^/?#]+)*)", re.ASCII | re.IGNORECASE)
# About a minute, and 3 s: when nothing has been read yet, it is more often a wrong setting than an outage.
_RETRIES, _FIRST_RETRIES = 10, 3
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # of the 10,000 that S3 and Google take: frames may be larger than what they hold
_END_PATIENCE_S = 30.0
_CODE = "import sys; sys.path[:] = {path}; from scannet_prep.remote.bucket_process import serve; serve({descriptor})"

# Of each kind of store: how the environment's variables begin, what names another server, and what says who asks.
_STORES = {
    "s3": ("AWS", "ENDPOINT_URL", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true"),
    "gs": ("GOOGLE", "BASE_URL", "GOOGLE_APPLICATION_CREDENTIALS=FILE, or GOOGLE_SKIP_SIGNATURE=true"),
    "az": ("AZURE", "STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}
# Where obstore looks for credentials when the environment has none.
_NO_LOGIN = r"://169\.254\.|://metadata|/latest/(?:api|meta-data)/|TokenRequest|Account must be specified"
_LOGIN = "to say who asks, set {login}; more ways: docs/archive.md"
# What went wrong, by the first pattern that occurs in the status and the code of the store's answer, where there is
# one, else in obstore's text: as an error, in words, and what to do about it.
_FAULTS: tuple[tuple[str, type[ScanNetPrepError], str, str], ...] = (
    (_NO_LOGIN, RefusedError, "no credentials were found", _LOGIN),
    ("^404", NotOnServerError, "there is no such bucket or object{told}", "check the name and {prefix}_{server}"),
    ("^412", ArchiveError, "was replaced or changed since it was opened", "open it again"),
    ("^416", ArchiveError, "is empty, or shorter than it was{told}", "write it again with scannet-prep pack"),
    ("[cC]ertificate", CertificateError, "the certificate of {host} cannot be verified", "set SSL_CERT_FILE=FILE"),
    (
        r"^(5\d\d|408|429)|^$|^(?!.*BadScheme).*HTTP error",
        ServerDownError,
        "{host} does not answer, fails or breaks off, after several attempts{told}",
        "is this machine online? Check {prefix}_{server}, if it is set; else run the same command again later",
    ),
    (
        r"^\d|redirect without LOCATION",
        RefusedError,
        "{host} refuses it{told}",
        "check permissions, the region ({prefix}_REGION), `date` and {prefix}_{server}; " + _LOGIN,
    ),
    ("^No module", UsageError, "obstore is not installed, which it takes", "pip install 'scannet-prep[cloud]'"),
    (
        "",
        UsageError,
        "the settings in the environment cannot be used",
        "check {prefix}_*; a server with http:// needs {prefix}_ALLOW_HTTP=true; see docs/archive.md",
    ),
)


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
        self._settings, self._retries = _settings_of(certificates), retries
        self._version: tuple[int, str, str] | None = None
        super().__init__()

    def close(self) -> None:
        """Nothing is held open: the process that talks to the store waits for the next source."""

    def _fetch(self, start: int, end: int) -> bytes:
        """Fetch a range of the version that was opened."""
        e_tag = self._version[1] if self._version else ""
        retries = self._retries if self._version else min(self._retries, _FIRST_RETRIES)
        e_tag = "" if e_tag.startswith("W/") else e_tag
        found, data = _ask(self._settings, self._bucket, retries, self._key, (start, end), e_tag)
        if isinstance(found, str):
            raise _make_error(self.name, found)
        self._version = self._version or found
        self.size_bytes = self._version[0]
        if found != self._version:
            raise _make_error(self.name, "412")
        if len(data) != min(end, self.size_bytes) - start:
            raise _make_error(self.name, "HTTP error")
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
    connection, process = _start_process(os.environ)
    try:
        connection.send((bucket, _RETRIES, key, max(_PART_BYTES, most_bytes // _MOST_PARTS)))
        for piece in filter(len, pieces):
            connection.send_bytes(piece)
            size_bytes += len(piece)
            if connection.poll():  # it has failed
                break
        connection.send_bytes(b"")
        found = connection.recv()
    except (EOFError, ConnectionError):
        found = ""
    finally:
        connection.close()  # where this is interrupted, it removes what it has written
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_PATIENCE_S)
        process.kill()
        process.wait()
    if isinstance(found, str):
        raise _make_error(address, found, is_writing=True)
    return size_bytes


# The connections that no thread uses at the moment, by process, and by what the environment said when their processes
# were started: people mend it, and try again. Those processes end with the one that holds their connections.
_IDLE: dict[tuple[int, frozenset[tuple[str, str]]], list[Connection]] = {}


def _ask(settings: Mapping[str, str], *request: object) -> tuple[str | tuple[int, str, str], bytes]:
    """Make a request, as `bucket_process.serve` takes it, and give its answer; an empty one where nobody answers."""
    environment = {**os.environ, **settings}
    idle = _IDLE.setdefault((os.getpid(), frozenset(environment.items())), [])
    for _ in range(len(idle) + 2):  # somebody may have killed idle ones
        try:
            connection = idle.pop()
        except IndexError:
            connection, process = _start_process(environment)
            process.returncode = 0  # so that Python does not warn that it is not waited for
        with suppress(EOFError, ConnectionError):
            connection.send(request)
            answer = connection.recv(), connection.recv_bytes()
            idle.append(connection)
            return answer
    return "", b""


def _start_process(environment: Mapping[str, str]) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a process that talks to stores; it ends when the connection to it is closed."""
    (ours, theirs), null = Pipe(), subprocess.DEVNULL
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - ourselves; Ctrl-C, which a session gets, is for who started it
            [sys.executable, "-c", _CODE.format(path=sys.path, descriptor=theirs.fileno())],
            env=environment, pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=null, stdout=null, stderr=null,
        )  # fmt: skip
    return ours, process


def _settings_of(certificates: bool | Path) -> dict[str, str]:
    """Variables of the environment that say which certificates are accepted."""
    if isinstance(certificates, Path):
        return {"SSL_CERT_FILE": str(certificates)}
    return {} if certificates else {f"{prefix}_ALLOW_INVALID_CERTIFICATES": "true" for prefix, _, _ in _STORES.values()}


def _make_error(address: str, text: str, *, is_writing: bool = False) -> ScanNetPrepError:
    """Say what went wrong, by obstore's text; nothing of that is repeated but what cannot be secret.

    Stores repeat keys, tokens and signatures.
    """
    status, code = re.search(r"status code: (\d{3})", text), re.search(r"<Code>(\w{1,50})</Code>", text)
    url = re.search(r"Error performing [A-Z]+ https?://(?:[^/\s]*@)?([\w.-]+(?::\d+)?)/", text)
    told = " ".join(match[1] for match in (status, code) if match)
    where = text if re.search(_NO_LOGIN, text) else told or text
    kind, words, hint = next(row[1:] for row in _FAULTS if re.search(row[0], where, re.DOTALL))
    prefix, server, login = _STORES[address[:2].lower()]
    values = {"prefix": prefix, "server": server, "login": login, "told": f" ({told})" if told else ""}
    values["host"] = url[1] if url else "the store"
    words, hint = words.format_map(values), hint.format_map(values)
    if is_writing and kind is not UsageError:
        return OutputError(f"{address}: cannot be written: {words}", hint)
    return kind(address, words, hint) if issubclass(kind, FileError) else kind(f"{address}: {words}", hint)
