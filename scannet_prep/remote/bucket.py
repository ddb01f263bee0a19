"""Archives in buckets: `s3://`, `gs://` and `az://` addresses, read by ranges and written in parts.

fsspec does the work, with the package for each kind of store: s3fs, gcsfs or adlfs. These packages find
credentials and endpoints themselves, in the environment and in configuration files.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from scannet_prep.base.errors import (
    ArchiveError,
    CertificateError,
    FileError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
    UsageError,
)
from scannet_prep.base.files import Buffer
from scannet_prep.remote.authorities import check_authorities
from scannet_prep.remote.source import RemoteSource

_Result = TypeVar("_Result")

_ADDRESS = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<path>[a-z0-9][a-z0-9._-]*(?:/[^/?#]+)+)", re.ASCII | re.IGNORECASE
)
_PART_BYTES = 8 << 20
_PART_STEP_BYTES = 1 << 20  # Google accepts multiples of 256 KiB only.
_MAX_PARTS = 9_000  # S3 accepts 10,000; an archive may become larger than expected.


class _Store(NamedTuple):
    """A kind of store: the package that reads it, and settings that its users can check."""

    package: str
    credentials: str
    endpoint: str
    authority: str


_STORES = {
    "s3": _Store(
        package="s3fs",
        credentials="AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        "for public buckets FSSPEC_S3_ANON=true",
        endpoint="AWS_ENDPOINT_URL and AWS_DEFAULT_REGION",
        authority="--ca-bundle FILE, or AWS_CA_BUNDLE=FILE",
    ),
    "gs": _Store(
        package="gcsfs",
        credentials="GOOGLE_APPLICATION_CREDENTIALS=FILE; for public buckets FSSPEC_GS_TOKEN=anon",
        endpoint="FSSPEC_GS_ENDPOINT_URL",
        authority="SSL_CERT_FILE=FILE",
    ),
    "az": _Store(
        package="adlfs",
        credentials="AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; "
        "for public containers AZURE_STORAGE_ANON=true",
        endpoint="AZURE_STORAGE_CONNECTION_STRING",
        authority="SSL_CERT_FILE=FILE",
    ),
}

# The first pattern that occurs in the names and codes of an error decides what it means and what to do about it.
_FAULTS: tuple[tuple[str, type[ScanNetPrepError], str, str], ...] = (
    (
        r"FileExpired|PreconditionFailed|\b412\b",
        ArchiveError,
        "was replaced or changed since it was opened",
        "open it again",
    ),
    (
        r"FileNotFoundError|ResourceNotFound|NoSuch|\b404\b",
        NotOnServerError,
        "no such bucket or object{codes}",
        "check the name and {store.endpoint}",
    ),
    (
        r"SSL|Certificate|CERTIFICATE",
        CertificateError,
        "the certificate of the store cannot be verified",
        "name a file with its authority: {store.authority}",
    ),
    (
        r"Credential",
        TransferError,
        "no usable credentials were found{codes}",
        "set {store.credentials}",
    ),
    (
        r"PermissionError|Forbidden|Authenti|Redirect|\b(30\d|40[013])\b",
        TransferError,
        "the store refuses access{codes}",
        "check {store.endpoint}, {store.credentials}",
    ),
    (
        r"ValueError|TypeError|NoRegion|ProfileNotFound|ConfigParse",
        UsageError,
        "the settings for the store cannot be used{codes}",
        "check {store.endpoint}, {store.credentials}",
    ),
    (
        r"Timeout|Connect|Payload|IncompleteRead|HTTPClientError|ServiceRe|SlowDown|Internal|Unavailable|\b(408|429|5\d\d)\b",
        ServerDownError,
        "the store does not answer or fails{codes}",
        "is this machine online? Check {store.endpoint}; otherwise run the same command again later",
    ),
    (
        r"",
        TransferError,
        "the store or {store.package} fails{codes}",
        "check {store.endpoint}, {store.credentials}",
    ),
)


def parse_address(address: str) -> tuple[str, str]:
    """Divide the address of an object into its scheme and its path: the bucket and the name of the object.

    Raises:
        UsageError: It is not such an address. The message does not show user, password and query.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or {".", ".."} & set(match["path"].split("/")):
        scheme, _, rest = address.partition("://")
        shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
        raise UsageError(
            f"{shown!r} is not an address of an object in a bucket",
            "name it as s3://BUCKET/NAME, gs://BUCKET/NAME or az://CONTAINER/NAME, without a query; "
            "credentials belong in the environment or in the files of the store's tools",
        )
    return match["scheme"].lower(), match["path"]


class _StoreFile(Protocol):
    """The methods of a file of fsspec that are used here."""

    closed: bool

    def info(self) -> dict[str, Any]: ...
    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: Buffer, /) -> int: ...
    def close(self) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class _FileSystem(Protocol):
    """The method of a file system of fsspec that is used here."""

    def open(self, path: str, mode: str, **options: object) -> _StoreFile: ...


class _Opened(NamedTuple):
    """The file system that one process has open, and a file for each of its threads, by the thread's number."""

    file_system: _FileSystem
    files: dict[int, _StoreFile]


class BucketSource(RemoteSource):
    """An object in a bucket, of which any range can be read.

    Picklable, and safe under fork and in threads: each process has a file system of its own, each thread an open file.
    Opening a file compares the object's size and ETag with those of the version that was opened first. s3fs also
    sends the ETag with each range (If-Match). With gcsfs and adlfs, an object that is replaced while a file is open
    is noticed by the checksums in the archive.

    Args:
        address: `s3://BUCKET/NAME`, `gs://BUCKET/NAME` or `az://CONTAINER/NAME`.
        certificates: For `s3://`, a file of authorities, True for those that s3fs trusts, False to accept any
            certificate. gcsfs and adlfs have settings of their own.

    Raises:
        UsageError: It is not such an address, a package is missing, or the settings cannot be used.
        NotOnServerError: There is no such bucket or object.
        TransferError: There is no permission, or there are no credentials.
        ArchiveError: It is empty, or a folder.
        TransferError: The store does not answer, or fails.
    """

    def __init__(self, address: str, *, certificates: bool | Path = True) -> None:
        self._scheme, self._path = parse_address(address)
        self._options = _make_trust_options(self._scheme, certificates)
        self._opened: dict[int, _Opened] = {}  # by the number of the process
        super().__init__(address)

    def close(self) -> None:
        """Close the files of this process, once the threads that read have finished; reading opens new ones."""
        self._opened.pop(os.getpid(), None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open files, which belong to this process."""
        return self.__dict__ | {"_opened": {}}

    def _fetch(self, start: int, end: int) -> bytes:
        """Read a range of the version that was opened."""
        data = _call_store(self.name, self._read_range, start, end)
        expected_bytes = min(end, self.size_bytes) - start
        if len(data) != expected_bytes:
            raise ServerDownError(
                f"{self.name}: the store sent {len(data):,} of {expected_bytes:,} bytes",
                "try again",
            )
        return data

    def _read_range(self, start: int, end: int) -> bytes:
        file = self._open_file()
        file.seek(start)
        return file.read(end - start)

    def _open_file(self) -> _StoreFile:
        """Return the file of this thread. Open it first if necessary, and check that it is the same version."""
        # No lock, because a fork could copy a held one. If two threads come first, both use what was stored first.
        opened = self._opened.get(os.getpid())
        if opened is None:
            file_system = _make_file_system(self._scheme, self._options)
            opened = self._opened.setdefault(os.getpid(), _Opened(file_system, files={}))
        file = opened.files.get(threading.get_ident())
        if file is None:
            file = opened.file_system.open(self._path, "rb", cache_type="none")
            details = file.info()
            if not details["size"]:
                raise ArchiveError(self.name, "is empty or a folder, expected an archive")
            e_tag = details.get("ETag") or details.get("etag") or ""
            self._check_version((details["size"], e_tag, ""))
            opened.files[threading.get_ident()] = file
        return file


def upload(address: str, pieces: Iterable[Buffer], expected_bytes: int) -> int:
    """Write an object in parts. It appears under its name, or replaces an older one, when all parts are written.

    If that fails or is interrupted, the parts are removed. A process that is killed leaves them in the bucket, where
    they are not visible as an object.

    Args:
        address: As for `BucketSource`.
        pieces: The content, in order.
        expected_bytes: About how large it may become.

    Returns:
        Its size.

    Raises:
        UsageError: As for `BucketSource`.
        OutputError: It cannot be written; an older object is unchanged.
    """
    scheme, path = parse_address(address)
    part_bytes = max(_PART_BYTES, expected_bytes // _MAX_PARTS)
    part_bytes = -(-part_bytes // _PART_STEP_BYTES) * _PART_STEP_BYTES
    call = partial(_call_store, address, is_writing=True)
    file: _StoreFile = call(_open_for_writing, scheme, path, part_bytes)
    size_bytes = 0
    try:
        for piece in pieces:
            call(file.write, piece)
            size_bytes += len(piece)
        call(file.close)
        call(file.commit)
    except BaseException:
        # Closing a file, which its destructor would do, uploads what it holds; adlfs even completes the object.
        file.closed = True
        with suppress(Exception):
            file.discard()
        raise
    return size_bytes


def _make_trust_options(scheme: str, certificates: bool | Path) -> dict[str, Any]:
    """Make the options of a file system that trusts these authorities; none if its own settings decide."""
    if scheme != "s3" or certificates is True:
        return {}
    if isinstance(certificates, Path):
        check_authorities(certificates)
        if certificates.is_dir():
            raise UsageError(
                f"{certificates}: is a folder; s3:// addresses need one file of certificates",
                f"cat {certificates}/*.0 > authorities.pem, then --ca-bundle authorities.pem",
            )
    return {"client_kwargs": {"verify": str(certificates) if certificates else False}}


def _open_for_writing(scheme: str, path: str, part_bytes: int) -> _StoreFile:
    """Open an object that gets its name when it is committed."""
    return _make_file_system(scheme, {}).open(path, "wb", block_size=part_bytes, autocommit=False)


def _make_file_system(scheme: str, options: Mapping[str, object]) -> _FileSystem:
    """Make a new file system for this process.

    fsspec would return an older one if it was made with the same options, although the environment, from which it
    takes credentials, may have changed.

    Raises:
        UsageError: fsspec, or the package for this kind of store, is missing.
    """
    package = _STORES[scheme].package
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        problem = f"{scheme}:// addresses need the package {package}: {error}"
        raise UsageError(problem, f"pip install 'scannet-prep[cloud]' {package}") from None
    # Python prints the messages of loggers without a handler. gcsfs logs each error with its traceback, and an error
    # that is raised here is reported anyway.
    logger = logging.getLogger(package)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    file_system: _FileSystem = fsspec.filesystem(
        scheme, skip_instance_cache=True, use_listings_cache=False, **options
    )
    return file_system


def _call_store(
    address: str, function: Callable[..., _Result], *arguments: object, is_writing: bool = False
) -> _Result:
    """Call a function that talks to a store, and translate its errors."""
    try:
        return function(*arguments)
    except ScanNetPrepError:
        raise
    except Exception as error:  # noqa: BLE001 - each package, and what it is built on, has errors of its own
        fault = _translate(address, error, is_writing=is_writing)
    # Outside the except block, so that the store's error, which may hold keys, is not attached as the context.
    raise fault


def _translate(address: str, error: Exception, *, is_writing: bool) -> ScanNetPrepError:
    """Explain an error by the names and codes in it.

    Its text is left out, because stores repeat keys, tokens and signatures in it.
    """
    names, codes = _find_names_and_codes(error)
    summary = " ".join(names + codes)
    kind, words, hint = next(row[1:] for row in _FAULTS if re.search(row[0], summary))
    store = _STORES[parse_address(address)[0]]
    problem = words.format(store=store, codes=f" ({' '.join(codes or names[:1])})")
    hint = hint.format(store=store)
    if is_writing and kind is not UsageError:
        return OutputError(f"{address}: cannot be written: {problem}", hint)
    if issubclass(kind, FileError):
        return kind(address, problem, hint)
    return kind(f"{address}: {problem}", hint)


def _find_names_and_codes(error: BaseException) -> tuple[list[str], list[str]]:
    """Find the class names of an error and its causes, and the codes and statuses of the store's answers."""
    names: list[str] = []
    codes: list[object] = []
    cause: BaseException | None = error
    while cause is not None:
        names.append(type(cause).__name__)
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # botocore
            codes.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
            codes.append(response.get("Error", {}).get("Code", ""))
        # aiohttp, Azure and gcsfs have the status in an attribute.
        codes += [getattr(cause, attribute, "") for attribute in ("status", "status_code", "code")]
        # gcsfs and the ssl module have these only in the text.
        names += re.findall(r"^Forbidden|CERTIFICATE_VERIFY_FAILED", str(cause))
        cause = cause.__cause__ or cause.__context__
    words = [str(code) for code in codes if re.fullmatch(r"[A-Za-z0-9]{1,50}", str(code))]
    return names, [word for word in dict.fromkeys(words) if word != "None"]
