"""The process that talks to object stores for the one that started it, and ends with it; alone imports obstore.

obstore works in threads of its own, which a fork does not copy: in a process that is forked from one that has used it,
every call waits for ever. So it never runs in the process of a user, nor in the workers of a `DataLoader`. Each of them
starts a process like this one when it first reads, and asks it over a connection.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

_PARTS_AT_ONCE = 2


def serve(descriptor: int) -> None:
    """Answer the requests that come through an open socket, until it is closed.

    A request is the bucket (`s3://NAME`, `gs://NAME` or `az://NAME`), how often to try again, and the arguments of
    `_read`, or those of `_write`, with the pieces coming next, up to an empty one. An answer is what obstore says went
    wrong, or what tells the version of the object: its size, ETag and date; then come the bytes.
    """
    connection, stores = Connection(descriptor), dict[tuple[str, int], Any]()
    with suppress(EOFError, OSError):
        while True:
            bucket, retries, key, *what = connection.recv()
            pieces = iter(connection.recv_bytes, b"") if len(what) == 1 else iter(())
            answer: str | tuple[int, str, str] = (0, "", "")
            data: Any = b""
            try:
                store = stores[bucket, retries] = stores.get((bucket, retries)) or _open_store(bucket, retries)
                if len(what) == 1:
                    _write(store, key, pieces, *what)
                else:
                    answer, data = _read(store, key, *what)
            except EOFError:  # who wanted to write is gone
                break
            except BaseException as error:  # noqa: BLE001 - obstore's panics are no Exception
                answer = str(error) or repr(error)
            for _ in pieces:  # those that nobody wants any more
                pass
            connection.send(answer)
            connection.send_bytes(data)
    os._exit(0)  # waits for no thread of obstore


def _open_store(bucket: str, retries: int) -> Any:  # noqa: ANN401 - obstore's types differ by the kind of store
    from obstore.store import from_url

    # Unless the environment says something else: a large range may take long while something comes, and so may a part.
    for prefix in ("AWS", "GOOGLE", "AZURE"):
        os.environ.setdefault(f"{prefix}_TIMEOUT", "1h")
        os.environ.setdefault(f"{prefix}_READ_TIMEOUT", "60s")
    return from_url(bucket, retry_config={"max_retries": retries})


def _read(store: Any, key: str, span: tuple[int, int], e_tag: str) -> tuple[tuple[int, str, str], Any]:  # noqa: ANN401
    """Read a range: first byte, and the one after the last; of the version with an ETag, or of any."""
    import obstore

    options: Any = {"range": span, **({"if_match": e_tag} if e_tag else {})}
    result = obstore.get(store, key, options=options)
    meta, data = result.meta, result.bytes()
    return (meta["size"], meta["e_tag"] or "", str(meta["last_modified"])), data


def _write(store: Any, key: str, pieces: Iterator[bytes], part_bytes: int) -> None:  # noqa: ANN401
    """Write what comes in parts, which nobody sees until all are there; they are removed where it breaks off."""
    import obstore

    obstore.put(store, key, pieces, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE, use_multipart=True)
