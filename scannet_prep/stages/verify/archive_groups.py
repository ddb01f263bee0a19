"""Checks the groups of an archive in threads: decompression and digests leave the interpreter to others."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event, Lock

from scannet_prep.archive.frames import MAX_FRAME_BYTES
from scannet_prep.archive.group_check import GroupCheck, check_group
from scannet_prep.archive.index import Head
from scannet_prep.archive.layout import Place
from scannet_prep.archive.source import ByteSource
from scannet_prep.progress import Progress

_MAX_HELD_BYTES = 160 << 20  # frames and their contents, in all threads together
_SECONDS_BETWEEN_REPORTS = 0.1


class _StoppedError(Exception):
    """Nobody waits for the result any more."""


class _ReadBytes:
    """Adds up what the threads have read, for the thread that shows it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self.stopped = Event()

    def add(self, count: int) -> None:
        if self.stopped.is_set():
            raise _StoppedError
        with self._lock:
            self._count += count

    def take(self) -> int:
        with self._lock:
            count, self._count = self._count, 0
        return count


def check_groups(
    source: ByteSource, places: Sequence[Place], head: Head | None, *, is_quick: bool, jobs: int, progress: Progress
) -> list[GroupCheck]:
    """Check groups, and tell of the bytes that have been read.

    Args:
        source: The archive.
        places: The groups.
        head: What the index says about the whole archive; None where there is no index.
        is_quick: Look at the structure only.
        jobs: Number of threads.
        progress: Has been started; told of the stored bytes of every group.

    Returns:
        What was found about each, in the order of `places`.
    """
    told = _Told(progress)
    if jobs == 1:
        checks = [check_group(source, place, head, is_quick=is_quick, advance=told.tell) for place in places]
    else:
        checks = _check_in_threads(source, places, head, is_quick=is_quick, jobs=jobs, told=told)
    # Of a damaged group not all is read, and in quick mode nearly nothing.
    told.tell(sum(place.stored_bytes for place in places) - told.count)
    return checks


def _check_in_threads(
    source: ByteSource, places: Sequence[Place], head: Head | None, *, is_quick: bool, jobs: int, told: _Told
) -> list[GroupCheck]:
    read_bytes = _ReadBytes()
    futures: list[Future[GroupCheck]] = []
    pending: dict[Future[GroupCheck], int] = {}

    def wait_for_room(size_bytes: int) -> None:
        while pending and (len(pending) >= 2 * jobs or sum(pending.values()) + size_bytes > _MAX_HELD_BYTES):
            done, _ = wait(pending, _SECONDS_BETWEEN_REPORTS, FIRST_COMPLETED)
            for future in done:
                del pending[future]
            told.tell(read_bytes.take())

    with ThreadPoolExecutor(jobs, "verify") as executor:
        try:
            for place in places:
                held_bytes = 0 if is_quick else _held_bytes(place)
                wait_for_room(held_bytes)
                future = executor.submit(check_group, source, place, head, is_quick=is_quick, advance=read_bytes.add)
                futures.append(future)
                pending[future] = held_bytes
            wait_for_room(_MAX_HELD_BYTES + 1)
            return [future.result() for future in futures]
        finally:
            read_bytes.stopped.set()
            for future in pending:
                future.cancel()


class _Told:
    """Counts what progress has been told of."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.count = 0

    def tell(self, count: int) -> None:
        self.count += count
        self._progress.advance(count)


def _held_bytes(place: Place) -> int:
    """How much of a group is in memory at a time: one frame, and what it holds."""
    content_bytes = MAX_FRAME_BYTES if place.entry is None else place.entry.size_bytes
    if place.entry is None and place.stored_bytes < MAX_FRAME_BYTES // 16:
        content_bytes = 16 * place.stored_bytes
    return min(place.stored_bytes, MAX_FRAME_BYTES) + min(content_bytes, MAX_FRAME_BYTES)
