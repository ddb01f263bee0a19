"""Archives in buckets: `s3://`, `gs://` and `az://` addresses, read by ranges and written in parts.

fsspec does the work, with a package for each kind of store: s3fs, gcsfs or adlfs. These packages
find credentials and endpoints themselves, in the environment and in configuration files.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from scannet_prep.base.files import Buffer
from scannet_prep.errors import (
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
from scannet_prep.remote.authorities import check_authorities
from scannet_prep.remote.source import RemoteSource

_Result = TypeVar("_Result")

_ADDRESS = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<path>[a-z0-9][a-z0-9._-]*(?:/[^/?#]+)+)", re.ASCII | re.IGNORECASE
)
_MIN_PART_BYTES = 8 << 20
# Google accepts multiples of 256 KiB only.
_PART_STEP_BYTES = 1 << 20
# S3 accepts 10,000 parts. Fewer are planned, because an archive may become larger than expected.
_MAX_PARTS = 9_000


class _Store(NamedTuple):
    """A kind of store.

    Attributes:
        package: The package that reads it.
        credentials: Settings of the credentials, for hints.
        endpoint: Settings of the server's address, for hints.
        authority: Settings of the certificate authorities, for hints.
    """

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


class _Fault(NamedTuple):
    """The meaning of some errors of a store.

    Attributes:
        pattern: A regular expression that is searched for in the names and codes of an error.
        error_type: The error to raise instead.
        problem: The message; {codes} and {store} are filled in.
        hint: What to do about it; {store} is filled in.
    """

    pattern: str
    error_type: type[ScanNetPrepError]
    problem: str
    hint: str


# The first pattern that occurs decides.
_FAULTS = (
    _Fault(
        r"FileExpired|PreconditionFailed|\b412\b",
        ArchiveError,
        "was replaced or changed since it was opened",
        "open it again",
    ),
    _Fault(
        r"FileNotFoundError|ResourceNotFound|NoSuch|\b404\b",
        NotOnServerError,
        "no such bucket or object{codes}",
        "check the name and {store.endpoint}",
    ),
    _Fault(
        r"SSL|Certificate|CERTIFICATE",
        CertificateError,
        "the certificate of the store cannot be verified",
        "name a file with its authority: {store.authority}",
    ),
    _Fault(
        r"Credential",
        TransferError,
        "no usable credentials were found{codes}",
        "set {store.credentials}",
    ),
    _Fault(
        r"PermissionError|Forbidden|Authenti|Redirect|\b(30\d|40[013])\b",
        TransferError,
        "the store refuses access{codes}",
        "check {store.endpoint}, {store.credentials}",
    ),
    _Fault(
        r"ValueError|TypeError|NoRegion|ProfileNotFound|ConfigParse",
        UsageError,
        "the settings for the store cannot be used{codes}",
        "check {store.endpoint}, {store.credentials}",
    ),
    _Fault(
        r"Timeout|Connect|Payload|IncompleteRead|HTTPClientError|ServiceRe|SlowDown|Internal"
        r"|Unavailable|\b(408|429|5\d\d)\b",
        ServerDownError,
        "the store does not answer or fails{codes}",
        "is this machine online? Check {store.endpoint}; "
        "otherwise run the same command again later",
    ),
)
_OTHER_FAULT = _Fault(
    "",
    TransferError,
    "the store or {store.package} fails{codes}",
    "check {store.endpoint}, {store.credentials}",
)


def parse_address(address: str) -> tuple[str, str]:
    """Return the scheme of an object's address, and its path (`BUCKET/NAME`).

    Raises:
        UsageError: The address is not one of an object. The message does not show user, password
            and query.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise _not_an_object(address)
    parts = match["path"].split("/")
    if "." in parts or ".." in parts:
        raise _not_an_object(address)
    return match["scheme"].lower(), match["path"]


def _not_an_object(address: str) -> UsageError:
    scheme, _, rest = address.partition("://")
    without_user = rest.rpartition("@")[2]
    without_query = without_user.partition("?")[0]
    shown = f"{scheme}://{without_query}"
    return UsageError(
        f"{shown!r} is not an address of an object in a bucket",
        "name it as s3://BUCKET/NAME, gs://BUCKET/NAME or az://CONTAINER/NAME, without a query; "
        "credentials belong in the environment or in the files of the store's tools",
    )


class _StoreFile(Protocol):
    """The methods that are used here of a file of fsspec."""

    closed: bool

    def info(self) -> dict[str, Any]: ...
    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: Buffer, /) -> int: ...
    def close(self) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class _FileSystem(Protocol):
    """The method that is used here of a file system of fsspec."""

    def open(self, path: str, mode: str, **options: object) -> _StoreFile: ...


class _Opened(NamedTuple):
    """The open files of one process.

    Attributes:
        file_system: The file system of this process.
        files: The open file of each thread, by the thread's identifier.
    """

    file_system: _FileSystem
    files: dict[int, _StoreFile]


class BucketSource(RemoteSource):
    """An object in a bucket, of which any range can be read.

    Picklable, and safe under fork and in threads: each process has its own file system, and each
    thread its own open file.

    Opening a file compares the object's size and ETag with those of the version that was opened
    first. s3fs also sends the ETag with each range (If-Match). With gcsfs and adlfs, the checksums
    in the archive reveal an object that is replaced while a file is open.

    Args:
        address: `s3://BUCKET/NAME`, `gs://BUCKET/NAME` or `az://CONTAINER/NAME`.
        certificates: For `s3://`, a file of authorities, True for those that s3fs trusts, False to
            accept any certificate. gcsfs and adlfs have settings of their own.

    Raises:
        UsageError: The address is not one of an object, a package is missing, or the settings
            cannot be used.
        NotOnServerError: There is no such bucket or object.
        ArchiveError: The object is empty, or a folder.
        TransferError: Access is refused, there are no credentials, or the store fails.
        ServerDownError: The store does not answer.
    """

    def __init__(self, address: str, *, certificates: bool | Path = True) -> None:
        self._scheme, self._path = parse_address(address)
        self._options = _make_trust_options(self._scheme, certificates)
        # Open files by process id.
        self._opened: dict[int, _Opened] = {}
        # This makes the first request.
        super().__init__(address)

    def close(self) -> None:
        """Close the files of this process, when its threads have finished reading.

        Later reads open the object again.
        """
        # Only forget the files: each one is closed when no thread reads it any more.
        self._opened.pop(os.getpid(), None)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open files, which belong to this process."""
        return self.__dict__ | {"_opened": {}}

    def _fetch(self, start: int, end: int) -> bytes:
        data = _call_store(self.name, self._read_range, start, end)
        expected_bytes = end - start
        if len(data) != expected_bytes:
            raise ServerDownError(
                f"{self.name}: the store sent {len(data):,} of {expected_bytes:,} bytes",
                "try again",
            )
        return data

    def _read_range(self, start: int, end: int) -> bytes:
        """Read a range with the file of this thread; errors of the store are not translated."""
        file = self._open_file()
        file.seek(start)
        return file.read(end - start)

    def _open_file(self) -> _StoreFile:
        """Return the open file of this thread; open it first if necessary.

        Raises:
            ArchiveError: The object is empty, a folder, or another version.
        """
        opened = self._get_opened()
        # An identifier is reused after its thread has ended, and the open file with it.
        thread = threading.get_ident()
        file = opened.files.get(thread)
        if file is not None:
            return file
        # No read-ahead: the archive requests exactly the ranges that it needs.
        file = opened.file_system.open(self._path, "rb", cache_type="none")
        details = file.info()
        size_bytes = details["size"]
        if not size_bytes:
            raise ArchiveError(self.name, "is empty or a folder, expected an archive")
        # s3fs has "ETag", gcsfs and adlfs have "etag".
        etag = details.get("ETag") or details.get("etag") or ""
        self._check_version((size_bytes, etag, ""))
        opened.files[thread] = file
        return file

    def _get_opened(self) -> _Opened:
        """Return the open files of this process."""
        # No lock, because a fork could copy a held one. If two threads come here at once, both use
        # the file system that was stored first.
        opened = self._opened.get(os.getpid())
        if opened is None:
            file_system = _make_file_system(self._scheme, self._options)
            opened = self._opened.setdefault(os.getpid(), _Opened(file_system, files={}))
        return opened


def upload(address: str, pieces: Iterable[Buffer], expected_bytes: int) -> int:
    """Write an object in parts.

    The object appears under its name, or replaces an older one, when all parts are written. After a
    failure or an interruption, the parts are removed. A killed process leaves them in the bucket,
    where they are not visible as an object.

    Args:
        address: As for `BucketSource`.
        pieces: The content, in order.
        expected_bytes: The approximate size of the object.

    Returns:
        Its size in bytes.

    Raises:
        UsageError: As for `BucketSource`.
        OutputError: The object cannot be written; an older one is unchanged.
    """
    scheme, path = parse_address(address)
    part_bytes = _choose_part_bytes(expected_bytes)
    # Calls a function, and raises OutputError if it fails.
    call = partial(_call_store, address, is_writing=True)
    file: _StoreFile = call(_open_for_writing, scheme, path, part_bytes)
    size_bytes = 0
    try:
        for piece in pieces:
            call(file.write, piece)
            size_bytes += len(piece)
        # Upload the last part, then give the object its name.
        call(file.close)
        call(file.commit)
    except BaseException:
        # Do not let the destructor close the file: it would upload the rest, and adlfs would even
        # complete the object.
        file.closed = True
        with suppress(Exception):
            file.discard()
        raise
    return size_bytes


def _choose_part_bytes(expected_bytes: int) -> int:
    """Choose the size of an upload's parts, so that their number stays within the store's limit."""
    part_bytes = max(_MIN_PART_BYTES, expected_bytes // _MAX_PARTS)
    step_count = math.ceil(part_bytes / _PART_STEP_BYTES)
    return step_count * _PART_STEP_BYTES


def _make_trust_options(scheme: str, certificates: bool | Path) -> dict[str, Any]:
    """Make the options of a file system that trusts the given authorities.

    There are none if the file system's own settings decide.

    Raises:
        UsageError: The authorities cannot be used.
    """
    if scheme != "s3" or certificates is True:
        return {}
    if isinstance(certificates, Path):
        check_authorities(certificates)
        if certificates.is_dir():
            raise UsageError(
                f"{certificates}: is a folder; s3:// addresses need one file of certificates",
                f"cat {certificates}/*.0 > authorities.pem, then --ca-bundle authorities.pem",
            )
        return {"client_kwargs": {"verify": str(certificates)}}
    # `certificates` is False: accept any certificate.
    return {"client_kwargs": {"verify": False}}


def _open_for_writing(scheme: str, path: str, part_bytes: int) -> _StoreFile:
    """Open a new object, which gets its name when it is committed."""
    file_system = _make_file_system(scheme, options={})
    return file_system.open(path, "wb", block_size=part_bytes, autocommit=False)


def _make_file_system(scheme: str, options: Mapping[str, object]) -> _FileSystem:
    """Make a new file system for this process.

    fsspec would return an older one that was made with the same options, although the credentials
    in the environment may have changed since.

    Raises:
        UsageError: fsspec, or the package for this kind of store, is missing.
    """
    package = _STORES[scheme].package
    try:
        import fsspec

        # This imports the package for the kind of store.
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        problem = f"{scheme}:// addresses need the package {package}: {error}"
        raise UsageError(problem, f"in a clone: pip install '.[cloud]' {package}") from None
    # Python prints the messages of loggers without a handler. gcsfs logs each error with its
    # traceback, although the error is also raised.
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
    """Call a function that uses a store, and translate its errors."""
    try:
        return function(*arguments)
    except ScanNetPrepError:
        raise
    except Exception as error:  # noqa: BLE001 - each package has errors of its own
        translated = _translate(address, error, is_writing=is_writing)
    # Outside the except block: Python would attach the store's error, which may contain keys, as
    # the context.
    raise translated


def _translate(address: str, error: Exception, *, is_writing: bool) -> ScanNetPrepError:
    """Translate an error of a store, by the names and codes in it.

    Its text is not shown, because stores repeat keys, tokens and signatures in it.
    """
    names, codes = _find_names_and_codes(error)
    fault = _find_fault(" ".join(names + codes))
    store = _STORES[parse_address(address)[0]]
    # Without a code, show the class of the error.
    shown_codes = " ".join(codes or names[:1])
    problem = fault.problem.format(store=store, codes=f" ({shown_codes})")
    hint = fault.hint.format(store=store)
    if is_writing and fault.error_type is not UsageError:
        return OutputError(f"{address}: cannot be written: {problem}", hint)
    if issubclass(fault.error_type, FileError):
        return fault.error_type(address, problem, hint)
    return fault.error_type(f"{address}: {problem}", hint)


def _find_fault(names_and_codes: str) -> _Fault:
    for fault in _FAULTS:
        if re.search(fault.pattern, names_and_codes):
            return fault
    return _OTHER_FAULT


def _find_names_and_codes(error: BaseException) -> tuple[list[str], list[str]]:
    """Find the class names of an error and its causes, and the codes in the store's answers."""
    names: list[str] = []
    values: list[object] = []
    cause: BaseException | None = error
    while cause is not None:
        names.append(type(cause).__name__)
        # botocore
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            values.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
            values.append(response.get("Error", {}).get("Code"))
        # aiohttp, Azure and gcsfs
        values += [getattr(cause, name, None) for name in ("status", "status_code", "code")]
        # gcsfs and the ssl module have these words only in the text.
        names += re.findall(r"^Forbidden|CERTIFICATE_VERIFY_FAILED", str(cause))
        cause = cause.__cause__ or cause.__context__

    codes = []
    for value in values:
        code = str(value)
        is_code = value is not None and re.fullmatch(r"[A-Za-z0-9]{1,50}", code) is not None
        if is_code and code not in codes:
            codes.append(code)
    return names, codes
