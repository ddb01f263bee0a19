"""The process that talks to object stores for the one that started it, and ends with it; alone imports obstore.

obstore works in threads of its own, which a fork does not copy: in a process that is forked from one that has used it,
every call waits for ever. So it never runs in the process of a user, nor in the workers of a `DataLoader`. Each of them
starts a process like this one when it first reads, and asks it over a connection.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

# How the environment's variables for each kind of store begin.
PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
# Unless the environment says something else: a large range may take long while something comes, and so may a part.
_TIMES = {"TIMEOUT": "1h", "READ_TIMEOUT": "60s"}
_PARTS_AT_ONCE = 2
_BACKOFF = {"init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=15), "base": 3}
_LONGEST_RETRIES = timedelta(seconds=180)


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


def serve(descriptor: int) -> None:
    """Answer the requests that come through an open socket, until it is closed.

    An answer is what obstore says went wrong, or the object's size, ETag and date; then come the bytes.
    """
    connection, stores = Connection(descriptor), dict[tuple[str, int], Any]()
    with suppress(EOFError, OSError):
        while True:
            request: Request = connection.recv()
            pieces = iter(connection.recv_bytes, b"") if request.span is None else iter(())
            answer: str | tuple[int, str, str] = (0, "", "")
            data: Any = b""
            try:
                place = request.bucket, request.retries
                store = stores[place] = stores.get(place) or _open_store(request)
                if request.span:
                    answer, data = _read(store, request)
                else:
                    _write(store, request, pieces)
            except EOFError:  # who wanted to write is gone
                break
            except BaseException as error:  # noqa: BLE001 - obstore's panics are no Exception
                answer = str(error)
            for _ in pieces:  # those that nobody wants any more
                pass
            connection.send(answer)
            connection.send_bytes(data)
    os._exit(0)  # waits for no thread of obstore


def _open_store(request: Request) -> Any:  # noqa: ANN401 - obstore's types differ by the kind of store
    from obstore.store import from_url

    for name, value in _TIMES.items():
        os.environ.setdefault(f"{PREFIXES[request.bucket[:2]]}_{name}", value)
    retry: Any = {"max_retries": request.retries, "backoff": _BACKOFF, "retry_timeout": _LONGEST_RETRIES}
    return from_url(request.bucket, retry_config=retry)


def _read(store: Any, request: Request) -> tuple[tuple[int, str, str], Any]:  # noqa: ANN401
    import obstore

    options: Any = {"range": request.span, **({"if_match": request.e_tag} if request.e_tag else {})}
    result = obstore.get(store, request.key, options=options)
    meta, data = result.meta, result.bytes()
    return (meta["size"], meta["e_tag"] or "", str(meta["last_modified"])), data


def _write(store: Any, request: Request, pieces: Iterator[bytes]) -> None:  # noqa: ANN401
    """Write what comes in parts, which nobody sees until all are there; they are removed where it breaks off."""
    import obstore

    options: Any = {"chunk_size": request.part_bytes, "max_concurrency": _PARTS_AT_ONCE, "use_multipart": True}
    obstore.put(store, request.key, pieces, **options)
