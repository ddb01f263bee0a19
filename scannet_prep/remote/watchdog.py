"""Ends exchanges with a server that overstay their time, from outside, whatever they wait for.

A timeout of a socket strikes only where nothing comes at all. Headers, chunk sizes and redirections that arrive byte by
byte never run into it, and the thread that reads them sees nothing until a line is whole. So a thread of its own shuts
their sockets. It does the same to all of them when the transfers are stopped, so that nobody waits for a timeout.

Connecting, with the handshake of TLS, has a timeout that counts from its beginning, and is left alone: a socket that is
shut in the middle of that is taken for one that was never connected.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import urllib3
from requests.adapters import HTTPAdapter

from scannet_prep.remote.failure import TransientError, Trouble

_IDLE_S = 5.0

_local = threading.local()  # the exchange that this thread is in: connections are made deep inside of urllib3


class Exchange:
    """One request and its answer. `Watchdog.watch` makes it.

    Args:
        seconds: How long until it is ended, unless `extend` is called.
        what: What has to happen until then, for the message.
    """

    def __init__(self, seconds: float, what: str) -> None:
        self._lock = threading.Lock()
        self._socket: object = None
        self._reason = ""
        self._trouble: Trouble = "server"
        self._what, self._seconds = what, seconds
        self.deadline_s = time.monotonic() + seconds

    @property
    def is_connected(self) -> bool:
        """Whether the request has reached a server."""
        return self._socket is not None

    def extend(self, seconds: float, what: str, trouble: Trouble) -> None:
        """Begin to wait for something else, for so many seconds from now on."""
        self._what, self._seconds, self._trouble = what, seconds, trouble
        self.deadline_s = time.monotonic() + seconds

    def use(self, sock: object) -> None:
        """Name the socket that the answer comes from.

        Raises:
            OSError: The exchange has been ended.
        """
        with self._lock:
            self._socket = sock
        if self._reason:
            raise ConnectionAbortedError(self._reason)

    def end(self, reason: str = "") -> None:
        """Shut the socket: whoever reads from it sees the end."""
        with self._lock:
            self._reason = reason or f"{self._what} after {self._seconds:.0f} s"
            _shut(self._socket)

    def raise_if_ended(self) -> None:
        """An end that was made from outside may look like the end of the content.

        Raises:
            TransientError: The exchange has been ended.
        """
        if self._reason:
            raise TransientError(self._reason, trouble=self._trouble)


class Watchdog:
    """Watches all exchanges of a run; safe for threads. Its own thread lives only while there is one."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._exchanges: set[Exchange] = set()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @contextmanager
    def watch(self, seconds: float, what: str) -> Iterator[Exchange]:
        """Watch what this thread exchanges with a server; see `Exchange`."""
        exchange = Exchange(seconds, what)
        with self._condition:
            if self._is_stopped:
                exchange.end("stopped")
            self._exchanges.add(exchange)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            self._condition.notify_all()
        _local.exchange = exchange
        try:
            yield exchange
        finally:
            _local.exchange = None
            with self._condition:
                self._exchanges.discard(exchange)
                if self._is_stopped:  # nothing is left to wait for
                    self._condition.notify_all()

    def stop(self) -> None:
        """End all exchanges, and those to come."""
        with self._condition:
            self._is_stopped = True
            for exchange in self._exchanges:
                exchange.end("stopped")
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                now_s = time.monotonic()
                for exchange in [item for item in self._exchanges if item.deadline_s <= now_s]:
                    exchange.end()
                    self._exchanges.discard(exchange)
                if not self._exchanges and (self._is_stopped or not self._condition.wait(_IDLE_S)):
                    self._thread = None
                    return
                if self._exchanges:
                    self._condition.wait(max(0.01, min(item.deadline_s for item in self._exchanges) - now_s))


class WatchedAdapter(HTTPAdapter):
    """Connects requests to servers by connections that tell the watchdog of their sockets."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - handed through
        """Make connections to servers."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:  # noqa: ANN401 - handed through
        """Make connections through a proxy."""
        manager = super().proxy_manager_for(proxy, **options)
        if isinstance(manager, urllib3.ProxyManager):  # SOCKS proxies have connections of their own kind
            manager.pool_classes_by_scheme = _POOLS
        return manager


class _PlainConnection(urllib3.connection.HTTPConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        _use(self.sock)
        return super().getresponse()


class _SecureConnection(urllib3.connection.HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        _use(self.sock)
        return super().getresponse()


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _PlainPool, "https": _SecurePool}


def _use(sock: object) -> None:
    exchange: Exchange | None = getattr(_local, "exchange", None)
    if exchange is not None:
        exchange.use(sock)


def _shut(sock: object) -> None:
    inner = getattr(sock, "socket", sock)  # TLS inside of TLS, to a proxy
    if isinstance(inner, socket.socket):
        with suppress(OSError):
            socket.socket.shutdown(inner, socket.SHUT_RDWR)  # that of an SSLSocket would take the TLS away first
