"""The process that talks to object stores for the one that started it, and ends with it; alone imports obstore.

obstore works in threads of its own, which a fork does not copy: in a process that is forked from one that has used it,
every call waits for ever. So it never runs in the process of a user, nor in the workers of a `DataLoader`. Each of them
starts a process like this one when it first reads, and asks it over a connection.
"""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any


def serve(descriptor: int) -> None:
    """Answer the requests that come through an open socket, until it is closed.

    A request is the bucket (`s3://NAME`, `gs://NAME` or `az://NAME`) and how often to try again, the name of the
    object, and what obstore takes to read a range; or None, and the size of the parts in which to write what comes
    next, piece by piece, up to an empty one. An answer is what obstore says went wrong, or what tells the version of
    the object: its size, ETag and date; then come the bytes. What is written is seen when it is whole.
    """
    connection, stores = Connection(descriptor), dict[tuple[str, int], Any]()
    with suppress(EOFError, OSError):
        while True:
            (bucket, retries), key, options, part_bytes = connection.recv()
            pieces = iter(()) if options else iter(connection.recv_bytes, b"")
            answer: str | tuple[int, str, str] = (0, "", "")
            data: Any = b""
            try:
                import obstore
                from obstore.store import from_url

                retry: Any = {"max_retries": retries}
                store = stores[bucket, retries] = stores.get((bucket, retries)) or from_url(bucket, retry_config=retry)
                if options:
                    result = obstore.get(store, key, options=options)
                    meta, data = result.meta, result.bytes()
                    answer = meta["size"], meta["e_tag"] or "", str(meta["last_modified"])
                else:
                    obstore.put(store, key, pieces, chunk_size=part_bytes, max_concurrency=2, use_multipart=True)
            except EOFError:  # who wanted to write is gone
                break
            except BaseException as error:  # noqa: BLE001 - obstore's panics are no Exception
                answer = str(error) or repr(error)
            for _ in pieces:  # those that nobody wants any more
                pass
            connection.send(answer)
            connection.send_bytes(data)
    os._exit(0)  # waits for no thread of obstore
