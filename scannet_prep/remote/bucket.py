"""Objects in buckets: `s3://`, `gs://` and `az://` addresses, read by ranges and written in parts.

Where the store is and who asks, obstore finds in the environment of the process that reads or writes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from scannet_prep.remote.source import RemoteSource

_ADDRESS = re.compile(r"((?:s3|gs|az)://[a-z0-9][a-z0-9._-]*)/([^/?#]+(?:/[^/?#]+)*)", re.ASCII | re.IGNORECASE)
# About a minute, and a second: when nothing has been read yet, it is more often a wrong setting than an outage.
_RETRIES, _FIRST_RETRIES = 10, 3
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # of the 10,000 that S3 and Google take: frames may be larger than what they hold
_CODE = "import sys; sys.path[:] = {path}; from scannet_prep.remote.bucket_process import serve; serve({descriptor})"

# Of each kind of store: how the environment's variables begin, what names another server, and what says who asks.
_STORES = {
    "s3": ("AWS", "ENDPOINT_URL", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true"),
    "gs": ("GOOGLE", "BASE_URL", "GOOGLE_APPLICATION_CREDENTIALS=FILE, or GOOGLE_SKIP_SIGNATURE=true"),
    "az": ("AZURE", "STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}
# Unless the environment says something else: a large range may take long while something comes, and so may a part.
_TIMES = {"TIMEOUT": "1h", "READ_TIMEOUT": "60s"}
_PATIENCE = {f"{row[0]}_{name}": time for row in _STORES.values() for name, time in _TIMES.items()}
# Where obstore looks for credentials when the environment has none.
_NO_LOGIN = r"://169\.254\.|://metadata|/latest/(?:api|meta-data)/|TokenRequest|Account must be specified"
_NO_ANSWER = r"^(5\d\d|408|429)|^$|^(?!.*BadScheme).*HTTP error"
_LOGIN = "to say who asks, set {login}; more ways: docs/archive.md"
_TRY_AGAIN = "is this machine online? Check {prefix}_{server}, if it is set; else run the same command again later"
_PERMISSION = "check permissions, the region ({prefix}_REGION), `date` and {prefix}_{server}; " + _LOGIN
_SETTINGS = "check {prefix}_*; a server with http:// needs {prefix}_ALLOW_HTTP=true; see docs/archive.md"
# What went wrong, by the first pattern that occurs in the status and the code of the store's answer, where there is
# one, else in obstore's text: as an error, in words, and what to do about it.
_FAULTS: tuple[tuple[str, type[ScanNetPrepError], str, str], ...] = (
    (_NO_LOGIN, RefusedError, "no credentials were found", _LOGIN),
    ("^404", NotOnServerError, "there is no such bucket or object{told}", "check the name and {prefix}_{server}"),
    ("^41[26]", ArchiveError, "was replaced or changed since it was opened, or is empty", "open it again"),
    ("[cC]ertificate", CertificateError, "the certificate of {host} cannot be verified", "set SSL_CERT_FILE=FILE"),
    (_NO_ANSWER, ServerDownError, "{host} does not answer, fails or breaks off{told}", _TRY_AGAIN),
    (r"^\d|redirect without LOCATION", RefusedError, "{host} refuses it{told}", _PERMISSION),
    ("^No module", UsageError, "obstore is not installed, which it takes", "pip install 'scannet-prep[cloud]'"),
    ("", UsageError, "the settings in the environment cannot be used", _SETTINGS),
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


class BucketSource(RemoteSource):
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
        self._bucket, self._key = split_address(address)
        self._retries, self._settings = retries, dict[str, str]()
        if isinstance(certificates, Path):
            self._settings = {"SSL_CERT_FILE": str(certificates)}
        elif not certificates:
            self._settings = {f"{prefix}_ALLOW_INVALID_CERTIFICATES": "true" for prefix, _, _ in _STORES.values()}
        super().__init__(address)

    def close(self) -> None:
        """Nothing is held open: the process that talks to the store waits for the next source."""

    def _fetch(self, start: int, end: int) -> bytes:
        """Fetch a range of the version that was opened."""
        retries = self._retries if self._version else min(self._retries, _FIRST_RETRIES)
        options: dict[str, object] = {"range": (start, end)}
        if self._version and self._version[1].startswith('"'):  # a strong ETag
            options["if_match"] = self._version[1]
        found, data = _ask({**os.environ, **self._settings}, (self._bucket, retries), self._key, options, 0)
        if isinstance(found, str):
            raise _make_error(self.name, found)
        self._check_version(found)
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
    size_bytes, (bucket, key), found = 0, split_address(address), ""
    with suppress(EOFError, ConnectionError), _connected(os.environ) as connection:
        connection.send(((bucket, _RETRIES), key, None, max(_PART_BYTES, most_bytes // _MOST_PARTS)))
        for piece in filter(len, pieces):
            connection.send_bytes(piece)
            size_bytes += len(piece)
            if connection.poll():  # it has failed
                break
        connection.send_bytes(b"")
        found, _ = connection.recv(), connection.recv_bytes()
    if isinstance(found, str):
        raise _make_error(address, found, is_writing=True)
    return size_bytes


# The connections that no thread uses at the moment, by process, and by what the environment said when their processes
# were started: people mend it, and try again. Those processes end with the one that holds their connections.
_IDLE: dict[tuple[int, frozenset[tuple[str, str]]], list[Connection]] = {}


def _ask(environment: Mapping[str, str], *request: object) -> tuple[str | tuple[int, str, str], bytes]:
    """Make a request, as `bucket_process.serve` takes it, and give its answer; an empty one where nobody answers."""
    for _ in range(9):  # somebody may have killed idle processes
        with suppress(EOFError, ConnectionError), _connected(environment) as connection:
            connection.send(request)
            return connection.recv(), connection.recv_bytes()
    return "", b""


@contextmanager
def _connected(environment: Mapping[str, str]) -> Iterator[Connection]:
    """A connection to a process that talks to stores; where this is left by an exception, that process ends."""
    idle = _IDLE.setdefault((os.getpid(), frozenset(environment.items())), [])
    try:
        connection = idle.pop()
    except IndexError:
        (connection, theirs), null = Pipe(), subprocess.DEVNULL
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - ourselves; Ctrl-C, which a session gets, is for who started it
                [sys.executable, "-c", _CODE.format(path=sys.path, descriptor=theirs.fileno())],
                env={**_PATIENCE, **environment}, pass_fds=[theirs.fileno()], start_new_session=True,
                stdin=null, stdout=null, stderr=null,
            )  # fmt: skip
        process.returncode = 0  # so that Python does not warn that it is not waited for
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    idle.append(connection)


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
