"""The work on files: adopt those of a scene that are there, fetch one, compare those of a scene.

Parsers of `raw` decide whether a file is what its name says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from scannet_prep.base.backports import StrEnum
from scannet_prep.base.errors import DiskFullError, FileError, OutputError, TransferError
from scannet_prep.base.files import open_file, output_error
from scannet_prep.raw.large_files import LARGE_FILE_CHECKS
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_locks
from scannet_prep.release.files import AGGREGATION, BASE_URL, LABEL_MAP, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.release.label_map import LABEL_MAP_HINT, describe_differences, read_label_map
from scannet_prep.release.scene import Split
from scannet_prep.remote.client import Client
from scannet_prep.remote.gate import PROGRESS_BYTES
from scannet_prep.remote.transfer import Partial, aria2_path
from scannet_prep.remote.trouble import FEW_TRIES, MANY_TRIES, AttemptError, public_url
from scannet_prep.stages.download.planning import DownloadPlan, RemoteFile
from scannet_prep.stages.process.make_scene import read_raw_file

# Kinds of files of a scene that have to fit together.
_FITTING = frozenset({MESH, LABELS_MESH, SEGMENTS, AGGREGATION})


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
    """One file on its way, and what became of it.

    Attributes:
        file: The file.
        path: Where it belongs.
        outcome: What became of it; None as long as that is open.
        size_bytes: How much of it is there under its final name.
        reason: Why it is not there; the same text for all files that fail alike.
        place: The address or path that the reason is about.
        hint: What to do about it; may be empty.
        checked_bytes: How much of a large file's content has been checked.
        facts: What other files of its scene have to agree with, if the file was parsed.
        most_bytes: The most that has arrived.
        failures: How often it has failed since anything of it arrived last, by the number of tries for such failures.
        is_late: Whether one of them was more than a rejection, so that all other files come first.
        next_s: When it may be tried again, on the monotonic clock.
        shown_bytes: How much of its typical size has been shown as progress.
        partial: What has arrived of it; set when it is requested.
    """

    file: RemoteFile
    path: Path
    outcome: FileOutcome | None = None
    size_bytes: int = 0
    reason: str = ""
    place: str = ""
    hint: str = ""
    facts: Facts | None = None
    checked_bytes: int = 0
    most_bytes: int = 0
    failures: Counter[int] = field(default_factory=Counter)
    is_late: bool = False
    next_s: float = 0.0
    shown_bytes: int = 0
    partial: Partial = field(init=False)

    def check(self, path: Path) -> None:
        """Check the content of the file, perhaps under a temporary name, and keep what others have to agree with.

        Raises:
            FileError: It is not what it should be.
        """

        def advance(size_bytes: int) -> None:
            self.checked_bytes += size_bytes

        try:
            self.facts = check_file(self.file, path, advance)
        finally:
            self.checked_bytes = 0

    @property
    def message(self) -> str:
        """Why it is not there, with its name."""
        return f"{self.place}: {self.reason}" if self.outcome is FileOutcome.FAILED else ""

    def fail(self, reason: str, hint: str = "", place: str | Path = "") -> None:
        """Settle it: the file is not there."""
        self.place = str(place or public_url(self.file.url))
        self.reason = reason
        self.hint = hint
        self.outcome = FileOutcome.FAILED

    def charge(self, error: AttemptError, tries: int) -> None:
        """Count a failure, and settle the file if it was one too many.

        Args:
            error: The failure.
            tries: So many failures give a file up, unless the error has a number of its own.
        """
        tries = error.tries or tries
        self.failures[tries] += 1
        self.is_late = self.is_late or tries != MANY_TRIES
        if self.failures[tries] >= tries:
            self.fail(error.describe(self.failures.total()), error.hint)


class Worker:
    """Adopts, fetches and compares files; shared by all threads of a run.

    Attributes:
        locked: What is recorded of whole files; threads change single entries, which needs no lock.
    """

    def __init__(
        self, plan: DownloadPlan, client: Client, notify: Callable[[str], None], *, is_strict: bool
    ) -> None:
        self.locked = read_locks(plan.data_dir)
        self._plan = plan
        self._client = client
        self._notify = notify
        self._is_strict = is_strict
        self._may_ask_sizes = True

    def adopt(self, tasks: Sequence[FileTask]) -> None:
        """Give those files of a scene their result that are there and whole, or that cannot be replaced."""
        faults: dict[FileTask, str] = {}
        present = [task for task in tasks if task.file.local_path in self._plan.present]
        for task in present:
            try:
                self._check_and_record(task)
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
                task.size_bytes = self.locked[task.file.local_path].size_bytes
                task.outcome = FileOutcome.PRESENT
            elif task.path.is_file():
                task.facts = None
                self._notify(f"{task.path}: {fault}; fetching it again")
            else:  # a pipe, a folder, or a link that leads nowhere
                hint = f"move it away: mv {quote(str(task.path))} {quote(f'{task.path}.old')}"
                task.fail(fault, hint, task.path)

    def _check_and_record(self, task: FileTask) -> None:
        """Check a file that is there, and record it; raises FileError if it is not whole."""
        name = task.file.local_path
        path = task.path
        entry = self.locked.get(name)
        if entry is None and aria2_path(path).exists():
            raise FileError(path, f"is unfinished: {aria2_path(path).name} is beside it")
        digest = digest_file(path)
        if entry is not None and digest != entry:
            raise FileError(
                path,
                f"is not the file recorded in {LOCK_NAME}: {_describe_difference(digest, entry)}",
            )
        if entry is None or self._is_strict:
            try:
                task.check(path)
            except FileError:  # only now: who is interrupted meanwhile keeps the record
                self.locked.pop(name, None)
                raise
            self._warn_about_label_map(task)
        server_bytes = self._ask_size(task) if entry is None else None
        if server_bytes not in (None, digest.size_bytes):
            raise FileError(
                path, f"has {digest.size_bytes:,} bytes, but the server's has {server_bytes:,}"
            )
        self.locked[name] = digest
        with suppress(OSError):  # left by a download over this file: it would count as incomplete
            aria2_path(path).unlink()

    def _warn_about_label_map(self, task: FileTask) -> None:
        """Report a label map whose ids are not those of the release; other files pass."""
        if task.file.kind is not LABEL_MAP:
            return
        difference = describe_differences(read_label_map(task.path))
        if difference:
            self._notify(f"warning: {task.path}: {difference}; {LABEL_MAP_HINT}")

    def _ask_size(self, task: FileTask) -> int | None:
        """How large the server's file is, if it tells; after a failure, it is never asked again."""
        if self._may_ask_sizes:
            with (
                suppress(AttemptError, TransferError),
                self._client.open(task.file.url, {}, "HEAD") as answer,
            ):
                return answer.size_bytes
            self._may_ask_sizes = False
        return None

    def fetch(self, task: FileTask) -> None:
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
                self._accept(task)
        except AttemptError:
            if task.partial.size_bytes < task.most_bytes + PROGRESS_BYTES:
                raise
            task.most_bytes = task.partial.size_bytes
            task.failures.clear()
        except OSError as error:
            failure = error if isinstance(error, OutputError) else output_error(task.path, error)
            if isinstance(failure, DiskFullError):
                raise failure from error
            task.fail(failure.message.removeprefix(f"{task.path}: "), failure.hint, task.path)

    def _accept(self, task: FileTask) -> None:
        """Check what has arrived, give it its final name, and record it."""
        name = task.file.local_path
        entry = self.locked.get(name)
        try:
            digest = digest_file(task.partial.path)
            task.check(task.partial.path)
        except FileError as error:
            task.partial.drop()
            reason = f"is not what it should be: {error.problem}"
            raise AttemptError(
                reason, self._retry_hint([task]), tries=FEW_TRIES, is_answer=True
            ) from None
        if entry is not None and digest != entry:
            task.partial.drop()
            task.facts = None
            lock_path = self._plan.data_dir / LOCK_NAME
            pattern = rf"\|  {name}$|d"
            command = f"sed -i.bak {quote(pattern)} {quote(str(lock_path))}"
            hint = f"to accept the server's new version, remove its line, and download again: {command}"
            task.fail(
                f"is not what {LOCK_NAME} records: {_describe_difference(digest, entry)}", hint
            )
            return
        task.partial.publish()
        self._warn_about_label_map(task)
        self.locked[name] = digest
        task.size_bytes = digest.size_bytes
        task.outcome = FileOutcome.FETCHED

    def compare(self, tasks: Sequence[FileTask]) -> None:
        """Compare the files of a scene, of which some were fetched. If they contradict each other, all of them fail.

        Nobody knows which of them is right, so none stays on record: the next run checks all of them again.
        """
        there = [
            task for task in tasks if task.outcome in (FileOutcome.FETCHED, FileOutcome.PRESENT)
        ]
        is_new = any(task.outcome is FileOutcome.FETCHED and task.facts for task in there)
        problem = _find_contradiction(there) if is_new else ""
        if problem:
            compared = [task for task in there if task.facts]
            for task in compared:
                self.locked.pop(task.file.local_path, None)
                names = ", ".join(other.file.kind.suffix for other in compared)
                reason = (
                    f"the files of {task.file.scene_id} contradict each other ({names}): {problem}"
                )
                task.fail(reason, self._retry_hint(compared))
        for task in tasks:
            task.facts = None

    def _retry_hint(self, tasks: Sequence[FileTask]) -> str:
        """A hint to fetch files again, of one scene or of none."""
        words = ["scannet-prep", "download", "-o", str(self._plan.data_dir)]
        if self._plan.base_url != BASE_URL:
            words += ["--base-url", self._plan.shown_base_url]
        words += ["--types", *(task.file.kind.suffix for task in tasks)]
        scene_id = tasks[0].file.scene_id
        if scene_id is not None:
            words += ["--scenes", scene_id]
        return (
            f"the server's file may be damaged; to try again later: {' '.join(map(quote, words))}"
        )


def _describe_difference(found: LockEntry, expected: LockEntry) -> str:
    """Compare sizes and digests."""
    return (
        f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}, "
        f"expected {expected.size_bytes:,}, {expected.sha256[:12]}"
    )


def check_file(
    remote: RemoteFile, path: Path, advance: Callable[[int], None] = lambda _: None
) -> Facts | None:
    """Check that a file, perhaps under a temporary name, is whole, of its kind, and of its scene.

    Args:
        remote: The file of the release.
        path: The file here.
        advance: Called with the number of bytes that were checked of a large file.

    Returns:
        What other files have to agree with, if it is one of the kinds that are `_FITTING`.

    Raises:
        FileError: It is not.
    """
    with open_file(path, remote.kind.max_bytes):
        pass  # a regular file, and not too large
    content = remote.kind.content
    if content in LARGE_FILE_CHECKS:
        LARGE_FILE_CHECKS[content](path, advance)
        return None
    found: Any = (
        read_label_map(path) if content == "label map" else read_raw_file(remote.kind, path)
    )
    scene_id = getattr(found, "scene_id", "")
    if scene_id and scene_id != remote.scene_id:  # files that say nothing pass
        raise FileError(path, f"sceneId is {scene_id!r:.60}, expected {remote.scene_id}")
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
    counts = {
        kind.suffix: item.vertex_count
        for kind, item in facts.items()
        if item.vertex_count is not None
    }
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{suffix} has {count:,}" for suffix, count in counts.items())
        return f"the numbers of vertices differ: {told}"
    known, named = (
        facts[kind].segment_ids if kind in facts else frozenset()
        for kind in (SEGMENTS, AGGREGATION)
    )
    # Single strangers are for `verify` to report; a file in which none is known belongs to something else.
    if known and named and known.isdisjoint(named):
        return f"{AGGREGATION.suffix} names {len(named):,} segments, none of which is in {SEGMENTS.suffix}"
    return ""
