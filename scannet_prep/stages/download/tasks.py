"""The files of a scene on their way: what a thread of a download does with them. One thread at a time is at a scene.

Is a file what its name says, and does it fit the other files of its scene? The parsers of `raw` decide.
"""

from __future__ import annotations

import os
import struct
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.backports import StrEnum
from scannet_prep.errors import DiskFullError, FileError, OutputError, TransferError
from scannet_prep.files import open_file, output_error
from scannet_prep.labels import read_label_map
from scannet_prep.raw.lock import LOCK_NAME, digest_file, read_locks
from scannet_prep.release import AGGREGATION, LABELS_MESH, MESH, SEGMENTS, Content
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import PROGRESS_BYTES
from scannet_prep.remote.transfer import Partial, aria2_path
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError, public_url
from scannet_prep.scene import Split
from scannet_prep.stages.download.planning import DownloadPlan, RemoteFile
from scannet_prep.stages.process.make_scene import read_raw_file

# Kinds of files of a scene that have to fit together.
_FITTING = frozenset({MESH, LABELS_MESH, SEGMENTS, AGGREGATION})

# Version 4 of the sensor stream (SensReader in ScanNet's repository): a header with a name of any length in it, and
# frames of 96 bytes with colour and depth after each; at times the number of IMU frames, all of one size, and those.
_SENS_START = struct.Struct("<IQ")
_SENS_HEADER = struct.Struct("<64f2i4IfQ")
_SENS_FRAME = struct.Struct("<80x2Q")


@dataclass(frozen=True, slots=True)
class Facts:
    """What other files of the scene have to agree with."""

    vertex_count: int | None  # how many vertices it tells of; None where it tells of none
    segment_ids: frozenset[int]  # the segments that it has, or names


class FileOutcome(StrEnum):
    """What became of one file."""

    FETCHED = "fetched"
    PRESENT = "already there"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class FileTask:
    """One file on its way, and what became of it."""

    file: RemoteFile  # the file
    path: Path  # where it belongs
    outcome: FileOutcome | None = None  # what became of it; None as long as that is open
    size_bytes: int = 0  # how much of it is there under its final name
    reason: str = ""  # why it is not there; the same text for all files that fail alike
    place: str = ""  # what the reason is about: an address or a path
    hint: str = ""  # what to do about it; may be empty
    facts: Facts | None = None  # what others of its scene have to agree with, where it was looked into
    most_bytes: int = 0  # the most that has arrived
    failures: int = 0  # how often it has failed while the server served others
    next_s: float = 0.0  # not to be tried before
    partial: Partial = field(init=False)  # what has arrived of it, from when on it is fetched

    @property
    def message(self) -> str:
        """Why it is not there, with its name."""
        return f"{self.place}: {self.reason}" if self.outcome is FileOutcome.FAILED else ""

    def fail(self, reason: str, hint: str = "", place: str | Path = "") -> None:
        """Settle it: the file is not there."""
        self.place, self.reason, self.hint = str(place or public_url(self.file.url)), reason, hint
        self.outcome = FileOutcome.FAILED

    def blame(self, error: AttemptError, tries: int, size_bytes: int) -> None:
        """Count a failure that was the file's own, and settle the file if it was one too many.

        Where more is there than the bytes that were there when it failed, it is the file that showed that the server
        is up, and may be coming now.
        """
        if self.outcome is None and self.partial.size_bytes <= size_bytes:
            self.failures += 1
            if self.failures >= (error.tries or tries):
                self.fail(error.describe(self.failures), error.hint)


class Worker:
    """Adopts and fetches; shared by all threads of a run.

    Attributes:
        locked: What is recorded of whole files; threads change single entries, which needs no lock.
    """

    def __init__(self, plan: DownloadPlan, client: Client, tell: Callable[[str], None], *, is_strict: bool) -> None:
        self.locked = read_locks(plan.data_dir)
        self._plan, self._client, self._tell, self._is_strict = plan, client, tell, is_strict
        self._may_ask_sizes = True

    def adopt(self, tasks: Sequence[FileTask]) -> None:
        """Give those files of a scene their result that are there and whole, or that cannot be replaced."""
        faults: dict[FileTask, str] = {}
        present = [task for task in tasks if task.file.local_path in self._plan.present]
        for task in present:
            try:
                self._look(task)
            except FileError as error:
                faults[task] = error.problem
        whole = [task for task in present if task not in faults]
        is_new = any(task.facts for task in whole)
        if is_new and (problem := _find_contradiction(whole)):
            for task in whole:
                if task.facts:  # nobody knows which of them is right
                    faults[task] = problem
                    del self.locked[task.file.local_path]
        for task in present:
            if (fault := faults.get(task)) is None:
                task.size_bytes, task.outcome = self.locked[task.file.local_path].size_bytes, FileOutcome.PRESENT
            elif task.path.is_file():
                task.facts = None
                self._tell(f"{task.path}: {fault}; fetching it again")
            else:  # a pipe, a folder, or a link that leads nowhere
                task.fail(fault, "mend the link, or move it away", task.path)

    def _look(self, task: FileTask) -> None:
        """Check a file that is there, and record it; raises FileError where it is not whole."""
        name, path, entry = task.file.local_path, task.path, self.locked.get(task.file.local_path)
        if entry is None and aria2_path(path).exists():
            raise FileError(path, f"is unfinished: {aria2_path(path).name} is beside it")
        found = digest_file(path)
        if entry is not None and found != entry:
            sizes = f"{found.size_bytes:,} bytes, expected {entry.size_bytes:,}"
            raise FileError(path, f"is not the file recorded in {LOCK_NAME}: {sizes}")
        if entry is None or self._is_strict:
            try:
                task.facts = check_file(task.file, path)
            except FileError:  # only now: who is interrupted meanwhile keeps the record
                self.locked.pop(name, None)
                raise
        server_bytes = self._ask_size(task) if entry is None else None
        if server_bytes not in (None, found.size_bytes):
            raise FileError(path, f"has {found.size_bytes:,} bytes, but the server's has {server_bytes:,}")
        self.locked[name] = found

    def _ask_size(self, task: FileTask) -> int | None:
        """How large the server's file is, if it tells; after a failure, it is never asked again."""
        if self._may_ask_sizes:
            with suppress(AttemptError, TransferError), self._client.open(task.file.url, {}, "HEAD") as answer:
                return answer.size_bytes
            self._may_ask_sizes = False
        return None

    def fetch(self, task: FileTask, siblings: Sequence[FileTask]) -> None:
        """Make one request for a file. If it is complete then, it gets its final name and a result.

        Raises:
            AttemptError: The request has brought nothing, or not enough.
            DiskFullError: There is no room for it, nor for others.
            CertificateError, ProxyError, ServerDownError: Nothing can be fetched at all.
        """
        try:
            with task.partial.opened():
                task.most_bytes = max(task.most_bytes, task.partial.size_bytes)
                task.partial.receive(self._client, task.file.url, task.file.kind.max_bytes)
                self._accept(task, siblings)
        except AttemptError as error:
            if task.partial.size_bytes < task.most_bytes + PROGRESS_BYTES:
                task.next_s = time.monotonic() + self._client.policy.pause_s(task.failures + 1, error.retry_after_s)
                raise
            task.most_bytes, task.failures = task.partial.size_bytes, 0
        except OSError as error:
            found = error if isinstance(error, OutputError) else output_error(task.path, error)
            if isinstance(found, DiskFullError):
                raise found from error
            task.fail(found.message.removeprefix(f"{task.path}: "), found.hint, task.path)

    def _accept(self, task: FileTask, siblings: Sequence[FileTask]) -> None:
        """Check what has arrived, and give it its final name."""
        name, entry = task.file.local_path, self.locked.get(task.file.local_path)
        try:
            found, task.facts = digest_file(task.partial.path), check_file(task.file, task.partial.path)
            there = [item for item in siblings if item is task or item.size_bytes]
            problem = _find_contradiction(there) if task.facts else ""
        except FileError as error:
            problem = error.problem
        if problem:
            task.facts = None
            task.partial.drop()
            hint = (
                "if it stays so, the server's file is damaged, or another one of the scene: remove that, and try again"
            )
            raise AttemptError(f"is not what it should be: {problem}", hint, tries=FEW_TRIES, is_answer=True)
        if entry is not None and found != entry:
            task.partial.drop()
            what = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            reason = f"{what}, expected {entry.size_bytes:,}, {entry.sha256[:12]}"
            hint = f"to accept the server's new version, remove its line from {self._plan.data_dir / LOCK_NAME}"
            task.fail(f"is not what {LOCK_NAME} records: {reason}", hint)
            return
        task.partial.publish()
        self.locked[name] = found
        task.size_bytes, task.outcome = found.size_bytes, FileOutcome.FETCHED


def check_file(remote: RemoteFile, path: Path) -> Facts | None:
    """Check that a file, perhaps under a temporary name, is whole, of its kind, and of its scene.

    Returns:
        What other files have to agree with, if it is one of the kinds that are `_FITTING`.

    Raises:
        FileError: It is not.
    """
    with open_file(path, remote.kind.max_bytes):
        pass  # a regular file, and not too large
    content = remote.kind.content
    found: Any = _READERS[content](path) if content in _READERS else read_raw_file(remote.kind, path)
    scene_id = getattr(found, "scene_id", "")
    if scene_id and scene_id != remote.scene_id:  # files that say nothing pass
        raise FileError(path, f"sceneId is {scene_id!r:.60}, expected {remote.scene_id}")
    if content == "labels mesh" and found.labels is None:
        raise FileError(path, "its vertices have no property label")
    if content == "info" and found.axis_alignment is None and remote.split is not Split.TEST:
        raise FileError(path, "has no axisAlignment, which every train and val scene has")
    if remote.kind not in _FITTING:
        return None
    if remote.kind is SEGMENTS:
        return Facts(len(found.indices), frozenset(found.raw_ids.tolist()))
    if remote.kind is AGGREGATION:
        named = {number for group in found.groups for number in group.segment_ids}
        return Facts(None, frozenset(named - {None}))
    return Facts(found.vertex_count, frozenset())


def _find_contradiction(tasks: Sequence[FileTask]) -> str:
    """Say what keeps files of a scene that are there from fitting together; empty where they do."""
    for task in tasks:
        if task.facts is None and task.file.kind in _FITTING:
            with suppress(FileError):  # its digest is the recorded one: a matter for `verify`
                task.facts = check_file(task.file, task.path)
    facts = {task.file.kind: task.facts for task in tasks if task.facts}
    counts = {kind.suffix: item.vertex_count for kind, item in facts.items() if item.vertex_count is not None}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{suffix} has {count:,}" for suffix, count in counts.items())
        return f"the numbers of vertices differ: {told}"
    known, named = (facts[kind].segment_ids if kind in facts else frozenset() for kind in (SEGMENTS, AGGREGATION))
    # Single strangers are for `verify` to report; a file in which none is known belongs to something else.
    if known and named and known.isdisjoint(named):
        return f"{AGGREGATION.suffix} names {len(named):,} segments, none of which is in {SEGMENTS.suffix}"
    return ""


def _check_zip(path: Path) -> None:
    try:
        zipfile.ZipFile(path).close()  # its directory is at the end
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise FileError(path, f"is not a zip file, or is truncated: {error}") from None


def _check_sensor_stream(path: Path) -> None:
    size_bytes, count = path.stat().st_size, 0
    try:
        with path.open("rb") as file:
            version, name_bytes = _SENS_START.unpack(file.read(_SENS_START.size))
            file.seek(name_bytes, os.SEEK_CUR)
            count = _SENS_HEADER.unpack(file.read(_SENS_HEADER.size))[-1]
            for _ in range(count):
                file.seek(sum(_SENS_FRAME.unpack(file.read(_SENS_FRAME.size))), os.SEEK_CUR)
            rest = size_bytes - file.tell()
            imu_count = int.from_bytes(file.read(8), "little")
    except (struct.error, OSError, OverflowError):
        version, rest, imu_count = 0, 0, 0
    is_end = rest == 0 or (rest >= 8 and (rest - 8) % max(1, imu_count) == 0 and (rest > 8) == (imu_count > 0))
    if version != 4 or not count or not is_end:
        raise FileError(path, f"is truncated, or not a sensor stream: {size_bytes:,} bytes, {count:,} frames")


# Of files that no scene is made from.
_READERS: dict[Content, Callable[[Path], object]] = {
    "label map": read_label_map,
    "zip": _check_zip,
    "sensor stream": _check_sensor_stream,
}
