"""The work on files: adopt those that exist, fetch one, and compare those of a scene."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from scannet_prep.base.files import output_error
from scannet_prep.errors import DiskFullError, FileError, OutputError, TransferError
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, read_tree_lock
from scannet_prep.release.files import BASE_URL, LABEL_MAP
from scannet_prep.release.label_map import LABEL_MAP_HINT, describe_differences, read_label_map
from scannet_prep.remote.client import Client
from scannet_prep.remote.policy import PROGRESS_BYTES
from scannet_prep.remote.request_errors import FEW_TRIES, AttemptError
from scannet_prep.remote.transfer import aria2_path
from scannet_prep.stages.download.content import (
    COMPARED_KINDS,
    check_file,
    find_contradiction,
    read_and_digest,
)
from scannet_prep.stages.download.planning import DownloadPlan
from scannet_prep.stages.download.tasks import FileOutcome, FileTask


class Worker:
    """Adopts, fetches and compares files; shared by all threads of a run.

    Args:
        plan: The plan of the run.
        client: The connections to the server.
        notify: Receives a line for the user.
        is_strict: Whether to check the content of files whose digest is the recorded one, too.

    Attributes:
        locked: The records of complete files, by local path. Threads change single entries, which
            needs no lock.
    """

    def __init__(
        self, plan: DownloadPlan, client: Client, notify: Callable[[str], None], *, is_strict: bool
    ) -> None:
        self.locked = read_tree_lock(plan.data_dir)
        self._plan = plan
        self._client = client
        self._notify = notify
        self._is_strict = is_strict
        self._may_request_sizes = True

    def adopt(self, tasks: Sequence[FileTask]) -> None:
        """Check the existing files of a scene, and settle those that need not be fetched.

        These are the complete files, and those that cannot be replaced, such as folders.
        """
        present = [task for task in tasks if task.file.local_path in self._plan.present]
        problems: dict[FileTask, str] = {}
        for task in present:
            try:
                self._check_and_record(task)
            except FileError as error:
                problems[task] = error.problem

        complete = [task for task in present if task not in problems]
        contradiction = ""
        # Only files whose content was checked have facts. Recorded files were compared in an
        # earlier run.
        has_new_files = any(task.facts is not None for task in complete)
        if has_new_files:
            contradiction = _compare(complete)
        if contradiction:
            # It is not known which of them is wrong.
            for task in complete:
                if task.facts is not None:
                    problems[task] = contradiction
                    del self.locked[task.file.local_path]

        for task in present:
            if task in problems:
                self._handle_problem(task, problems[task])
            else:
                task.size_bytes = self.locked[task.file.local_path].size_bytes
                task.outcome = FileOutcome.PRESENT

    def fetch(self, task: FileTask) -> None:
        """Request the missing bytes of a file once. If it is complete then, settle it.

        Raises:
            AttemptError: The request has brought nothing, or not enough.
            DiskFullError: The disk is full, so that no other file can be fetched either.
            CertificateError, ProxyError, ServerDownError: Nothing can be fetched at all.
        """
        try:
            with task.partial.opened():
                task.most_bytes = max(task.most_bytes, task.partial.size_bytes)
                task.partial.receive(self._client, task.file.url, task.file.kind.max_bytes)
                digest = self._check_received(task)
                recorded = self.locked.get(task.file.local_path)
                if recorded is None or digest == recorded:
                    self._publish(task, digest)
                else:
                    self._refuse_version(task, digest, recorded)
        except AttemptError:
            if task.partial.size_bytes < task.most_bytes + PROGRESS_BYTES:
                raise
            # The request has brought enough not to count as a failure.
            task.most_bytes = task.partial.size_bytes
            task.failures.clear()
        except OSError as error:
            # An OutputError is an OSError, too.
            failure = error if isinstance(error, OutputError) else output_error(task.path, error)
            if isinstance(failure, DiskFullError):
                raise failure from error
            reason = failure.message.removeprefix(f"{task.path}: ")
            task.fail(reason, failure.hint, subject=task.path)

    def compare(self, tasks: Sequence[FileTask]) -> None:
        """Compare the files of a scene after some were fetched.

        If they contradict each other, all of them fail, because it is not known which is wrong.
        None stays on record, so the next run checks all of them again.
        """
        existing = [
            task for task in tasks if task.outcome in (FileOutcome.FETCHED, FileOutcome.PRESENT)
        ]
        has_new_files = any(
            task.outcome is FileOutcome.FETCHED and task.facts is not None for task in existing
        )
        contradiction = ""
        if has_new_files:
            contradiction = _compare(existing)
        if contradiction:
            compared = [task for task in existing if task.facts is not None]
            suffixes = ", ".join(task.file.kind.suffix for task in compared)
            for task in compared:
                self.locked.pop(task.file.local_path, None)
                task.fail(
                    f"the files of {task.file.scene_id} contradict each other ({suffixes}): "
                    f"{contradiction}",
                    self._retry_hint(compared),
                )
        # No later comparison needs them.
        for task in tasks:
            task.facts = None

    def _check_and_record(self, task: FileTask) -> None:
        """Check an existing file, and record it.

        Raises:
            FileError: It is incomplete, damaged, or not the recorded file.
        """
        name = task.file.local_path
        path = task.path
        control_path = aria2_path(path)
        recorded = self.locked.get(name)
        if recorded is None and control_path.exists():
            raise FileError(path, f"is unfinished: {control_path.name} is beside it")

        data, digest = read_and_digest(task.file, path)
        if recorded is not None and digest != recorded:
            difference = _describe_difference(digest, recorded)
            raise FileError(path, f"is not the file recorded in {LOCK_NAME}: {difference}")

        if recorded is None or self._is_strict:
            try:
                self._check_content(task, path, data)
            except FileError:
                # Only after the check: if the check is interrupted, the record stays.
                self.locked.pop(name, None)
                raise
            self._warn_about_label_map(task)

        if recorded is None:
            server_bytes = self._request_size(task)
            if server_bytes not in (None, digest.size_bytes):
                raise FileError(
                    path,
                    f"has {digest.size_bytes:,} bytes, but the server's has {server_bytes:,}",
                )

        self.locked[name] = digest
        # A control file of aria2 that remained from an earlier download. With it, the file would
        # count as incomplete.
        with suppress(OSError):
            control_path.unlink()

    def _handle_problem(self, task: FileTask, problem: str) -> None:
        """Let a file with a problem be fetched again; it fails if it cannot be replaced."""
        if task.path.is_file():
            task.facts = None
            self._notify(f"{task.path}: {problem}; fetching it again")
            return
        # A pipe, a folder, or a link to a file that does not exist.
        command = f"mv {quote(str(task.path))} {quote(f'{task.path}.old')}"
        task.fail(problem, f"move it away: {command}", subject=task.path)

    def _request_size(self, task: FileTask) -> int | None:
        """Request the size of the server's file; None if the server does not send it.

        After a failure, no more sizes are requested in this run.
        """
        if not self._may_request_sizes:
            return None
        try:
            with self._client.open(task.file.url, headers={}, method="HEAD") as answer:
                return answer.size_bytes
        except (AttemptError, TransferError):
            self._may_request_sizes = False
        return None

    def _check_received(self, task: FileTask) -> LockEntry:
        """Check a completely received file, and return its digest.

        Raises:
            AttemptError: The content is damaged, or that of another file. The bytes are dropped.
        """
        path = task.partial.path
        try:
            data, digest = read_and_digest(task.file, path)
            self._check_content(task, path, data)
        except FileError as error:
            task.partial.drop()
            raise AttemptError(
                f"is not what it should be: {error.problem}",
                self._retry_hint([task]),
                tries=FEW_TRIES,
                is_answer=True,
            ) from None
        return digest

    def _check_content(self, task: FileTask, path: Path, data: bytes | None) -> None:
        """Check the content of a file, perhaps under a temporary name, and keep its facts.

        Args:
            task: The file.
            path: Its present name.
            data: Its bytes, from `read_and_digest`.

        Raises:
            FileError: The file is damaged, or is another file.
        """

        def advance(size_bytes: int) -> None:
            task.checked_bytes += size_bytes

        try:
            task.facts = check_file(task.file, path, data, advance)
        finally:
            task.checked_bytes = 0

    def _publish(self, task: FileTask, digest: LockEntry) -> None:
        """Give a received file its final name, record it, and settle it as fetched."""
        task.partial.publish()
        self._warn_about_label_map(task)
        self.locked[task.file.local_path] = digest
        task.size_bytes = digest.size_bytes
        task.outcome = FileOutcome.FETCHED

    def _refuse_version(self, task: FileTask, digest: LockEntry, recorded: LockEntry) -> None:
        """Drop a received file that is not the recorded one, and settle it as failed."""
        task.partial.drop()
        task.facts = None
        # A command of sed: delete the line that ends with the path. The delimiter is |, because the
        # path contains slashes.
        pattern = rf"\|  {task.file.local_path}$|d"
        lock_path = self._plan.data_dir / LOCK_NAME
        command = f"sed -i.bak {quote(pattern)} {quote(str(lock_path))}"
        task.fail(
            f"is not what {LOCK_NAME} records: {_describe_difference(digest, recorded)}",
            f"to accept the server's new version, remove its line, and download again: {command}",
        )

    def _warn_about_label_map(self, task: FileTask) -> None:
        """Warn if a file is a label map with other ids than that of the release."""
        if task.file.kind is not LABEL_MAP:
            return
        difference = describe_differences(read_label_map(task.path))
        if difference:
            self._notify(f"warning: {task.path}: {difference}; {LABEL_MAP_HINT}")

    def _retry_hint(self, tasks: Sequence[FileTask]) -> str:
        """Return a hint with the command that fetches some files of one scene, or of none."""
        words = ["scannet-prep", "download", "-o", str(self._plan.data_dir)]
        if self._plan.base_url != BASE_URL:
            words += ["--base-url", self._plan.shown_base_url]
        words += ["--types", *(task.file.kind.suffix for task in tasks)]
        scene_id = tasks[0].file.scene_id
        if scene_id is not None:
            words += ["--scenes", scene_id]
        command = " ".join(map(quote, words))
        return f"the server's file may be damaged; to try again later: {command}"


def _compare(tasks: Sequence[FileTask]) -> str:
    """Describe how existing files of a scene contradict each other; empty if they agree.

    Facts of files that were not checked in this run are collected first.
    """
    for task in tasks:
        if task.facts is None and task.file.kind in COMPARED_KINDS:
            # A damaged file whose digest is the recorded one is left to `verify`.
            with suppress(FileError):
                task.facts = check_file(task.file, task.path)
    return find_contradiction(
        {task.file.kind: task.facts for task in tasks if task.facts is not None}
    )


def _describe_difference(digest: LockEntry, expected: LockEntry) -> str:
    return (
        f"{digest.size_bytes:,} bytes, sha256 {digest.sha256[:12]}, "
        f"expected {expected.size_bytes:,}, {expected.sha256[:12]}"
    )
