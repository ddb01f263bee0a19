"""The process that talks to object stores for the one that started it, and ends with it; alone imports obstore.

obstore works in threads of its own, which a fork does not copy: in a process that is forked from one that has used it,
every call waits for ever. So it never runs in the process of a user, nor in the workers of a `DataLoader`. Each of them
starts a process like this one when it first reads, and asks it over a connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

# How the environment's variables for each kind of store begin.
PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
# Unless the environment says something else: a large range may take long while something comes, and so may a part.
_READ_TIMES = {"TIMEOUT": "1h", "READ_TIMEOUT": "60s"}
_WRITE_TIMES = {"TIMEOUT": "10m"}
_PARTS_AT_ONCE = 2
_BACKOFF = {"init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=15), "base": 3}
_LONGEST_RETRIES = timedelta(seconds=180)
# What went wrong, by the first pattern that occurs in the status and the code of the answer, or else in obstore's text.
_CODES = (
    ("region", "301|307|PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"),
    ("bucket", "NoSuchBucket|ContainerNotFound"),
    (
        "rejected",
        "401|InvalidAccessKeyId|SignatureDoesNotMatch|Expired|InvalidToken|TimeTooSkewed|AuthenticationFailed",
    ),
    ("denied", "403"),
    ("object", "404"),
    ("changed", "412"),
    ("empty", "416"),
    ("failing", r"5\d\d|408|429"),
    ("refused", r"\d"),
)
_TEXTS = (
    ("region", "redirect without LOCATION"),
    ("http", "BadScheme"),
    ("certificate", "[cC]ertificate"),
    ("network", "HTTP error"),
    ("ranges", "non-partial response"),
)
# Where obstore looks for credentials when the environment has none.
_NO_LOGIN = r"://169\.254\.|://metadata|/latest/(?:api|meta-data)/|TokenRequest|Account must be specified"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: a range of an object, or to write it.

    Attributes:
        bucket: `s3://NAME`, `gs://NAME` or `az://NAME`.
        key: Name of the object.
        retries: How often to try again.
        span: First byte, and the one after the last; None to write the pieces that come next, up to an empty one.
        e_tag: Which version it must be; empty for any.
        part_bytes: Size of the parts that are written.
    """

    bucket: str
    key: str
    retries: int
    span: tuple[int, int] | None = None
    e_tag: str = ""
    part_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The object; what was asked for of it comes next."""

    size_bytes: int
    e_tag: str
    modified: str

    @property
    def identity(self) -> tuple[int, str]:
        """What tells one version of it from another."""
        return self.size_bytes, self.e_tag or self.modified


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is none, in words of our own: those of stores repeat keys, tokens and signatures.

    Attributes:
        cause: One of those above, or `login`, `settings`, `package`.
        told: Status and code of the store's answer; may be empty.
        host: Name and port of the store; may be empty.
    """

    cause: str
    told: str = ""
    host: str = ""


def serve(descriptor: int) -> None:
    """Answer the requests that come through an open socket, until it is closed."""
    connection, stores = Connection(descriptor), dict[tuple[str, int], Any]()
    with suppress(EOFError, OSError):
        while True:
            request: Request = connection.recv()
            found: Found | Trouble
            data: Any = b""
            pieces = iter(connection.recv_bytes, b"") if request.span is None else iter(())
            try:
                place = request.bucket, request.retries
                store = stores[place] = stores.get(place) or _open_store(request)
                found, data = _read(store, request) if request.span else _write(store, request, pieces, connection)
            except EOFError:  # who wanted to write is gone
                break
            except ModuleNotFoundError:
                found = Trouble("package")
            except BaseException as error:  # noqa: BLE001 - obstore's panics are no Exception
                found = _describe(str(error))
            for _ in pieces:  # those that nobody wants any more
                pass
            connection.send(found)
            connection.send_bytes(data)
    os._exit(0)  # waits for no thread of obstore


def _open_store(request: Request) -> Any:  # noqa: ANN401 - obstore's types differ by the kind of store
    from obstore.store import from_url

    for name, value in (_READ_TIMES if request.span else _WRITE_TIMES).items():
        os.environ.setdefault(f"{PREFIXES[request.bucket[:2]]}_{name}", value)
    retry: Any = {"max_retries": request.retries, "backoff": _BACKOFF, "retry_timeout": _LONGEST_RETRIES}
    return from_url(request.bucket, retry_config=retry)


def _read(store: Any, request: Request) -> tuple[Found, Any]:  # noqa: ANN401
    import obstore

    options: Any = {"range": request.span, **({"if_match": request.e_tag} if request.e_tag else {})}
    result = obstore.get(store, request.key, options=options)
    meta, data = result.meta, result.bytes()
    return Found(meta["size"], meta["e_tag"] or "", str(meta["last_modified"])), data


def _write(store: Any, request: Request, pieces: Iterator[bytes], connection: Connection) -> tuple[Found, bytes]:  # noqa: ANN401
    """Write what comes: at once, where it is small, or in parts that nobody sees until all are there.

    Where who asked for it is gone before all has come, obstore removes the parts; where that is later, the store may
    still put them together, and then an object that is new is removed.
    """
    import obstore

    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > request.part_bytes:
            break
    else:
        Thread(target=_exit_with, args=(connection,), daemon=True).start()  # a body that breaks off is no object
        obstore.put(store, request.key, content, use_multipart=False)
        return Found(0, "", ""), b""
    is_new = _is_new(store, request.key)
    options: Any = {"chunk_size": request.part_bytes, "max_concurrency": _PARTS_AT_ONCE, "use_multipart": True}
    obstore.put(store, request.key, chain([bytes(content)], pieces), **options)
    if is_new and connection.poll():
        obstore.delete(store, request.key)
    return Found(0, "", ""), b""


def _exit_with(connection: Connection) -> None:
    connection.poll(None)
    os._exit(1)


def _is_new(store: Any, key: str) -> bool:  # noqa: ANN401
    """Whether there is no object yet, for certain: who may write may not be allowed to look."""
    import obstore

    try:
        obstore.head(store, key)
    except Exception as error:  # noqa: BLE001 - for example of permission
        return isinstance(error, FileNotFoundError)
    return False


def _describe(text: str) -> Trouble:
    """Find out from obstore's text what went wrong; nothing of it is handed on but what cannot be secret."""
    status, code = re.search(r"status code: (\d{3})", text), re.search(r"<Code>(\w{1,50})</Code>", text)
    url = re.search(r"Error performing [A-Z]+ https?://(?:[^/\s]*@)?([\w.-]+(?::\d+)?)/", text)
    host, told = url[1] if url else "", " ".join(match[1] for match in (status, code) if match)
    if re.search(_NO_LOGIN, text):
        return Trouble("login")
    rows, place = (_CODES, told) if told else (_TEXTS, text)
    return Trouble(next((cause for cause, pattern in rows if re.search(pattern, place)), "settings"), told, host)
