"""Brings one file of a download: adopts it where it is there and whole, else fetches, checks and records it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from scannet_prep.errors import (
    CertificateError,
    DiskFullError,
    FileError,
    MissingFileError,
    NotOnServerError,
    RefusedError,
    ScanNetPrepError,
    ServerDownError,
    TransferError,
)
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_lock
from scannet_prep.remote.address import public_url
from scannet_prep.remote.catalog import RemoteFile
from scannet_prep.remote.partial import Partial, PartialLostError
from scannet_prep.remote.transfer import Fetcher
from scannet_prep.stages.download.checks import check_file
from scannet_prep.stages.download.planning import DownloadPlan, FileOutcome, FileResult


class _WrongContentError(TransferError):
    """What the server sent, several times, is not the file."""


@dataclass(frozen=True, slots=True)
class Moved:
    """So many more bytes of the files are there; fewer if negative."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Received:
    """So many bytes have come over the network."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """Another process is at a file, or is not any more."""

    local_path: str
    is_held: bool


Event: TypeAlias = FileResult | Moved | Received | Held | str | BaseException


class FileDownload:
    """Brings files; shared by all threads of a run.

    Args:
        plan: From `plan`.
        fetcher: Fetches what is missing.
        tell: Told what happens.

    Raises:
        LockError: `scannet.lock` is damaged.
    """

    def __init__(self, plan: DownloadPlan, fetcher: Fetcher, tell: Callable[[Event], None]) -> None:
        self._plan = plan
        self._fetcher = fetcher
        self._tell = tell
        self._locked = read_locked(plan.data_dir)
        self._umask = _read_umask()
        self._guard = threading.Lock()
        self._new_entries: dict[str, LockEntry] = {}
        self._partials: set[Partial] = set()
        self._held: set[str] = set()
        self.mended: list[str] = []
        self.opened: list[str] = []

    def take_new_entries(self) -> dict[str, LockEntry]:
        """What is to be recorded of files that were found whole since the last call."""
        with self._guard:
            entries, self._new_entries = self._new_entries, {}
        return entries

    def keep_partials(self) -> None:
        """Show other machines that this process lives, whatever its threads wait for."""
        with self._guard:
            partials = list(self._partials)
        for partial in partials:
            partial.keep()

    def bring(self, file: RemoteFile) -> FileResult | None:
        """Bring one file; gives None where another process is at it.

        Raises:
            DiskFullError: There is no room for it, nor for others.
            CertificateError: The server cannot prove who it is; it will not for others either.
        """
        try:
            result = self._bring(file)
        except (DiskFullError, CertificateError):
            raise
        except NotOnServerError as error:
            return FileResult(file, FileOutcome.MISSING, 0, str(error), error.hint, is_something_else=True)
        except ScanNetPrepError as error:
            return FileResult(
                file,
                FileOutcome.FAILED,
                message=str(error),
                hint=error.hint,
                is_something_else=isinstance(error, _WrongContentError | RefusedError),
                is_outage=isinstance(error, ServerDownError),
            )
        except OSError as error:
            message = f"{self._plan.data_dir / file.local_path}: {error.strerror or error}"
            return FileResult(file, FileOutcome.FAILED, message=message)
        self._note_held(file, is_held=result is None)
        return result

    def _bring(self, file: RemoteFile) -> FileResult | None:
        path = self._plan.data_dir / file.local_path
        entry = self._locked.get(file.local_path)
        is_damaged = False
        if path.exists():
            if not path.is_file():  # a pipe would never end
                raise FileError(path, "is no file", "move it away")
            fault = self._find_fault(file, path, entry)
            if not fault:
                size_bytes = path.stat().st_size
                self._fetcher.note_served(file.remote_path, size_bytes)
                return FileResult(file, FileOutcome.PRESENT, size_bytes)
            self._tell(f"{path}: {fault}; fetching it again")
            is_damaged = True
        partial = Partial.claim(path)
        if partial is None:
            return None
        try:
            if path.exists() and not is_damaged:  # another process has just finished it
                return None
            self._note_held(file, is_held=False)
            size_bytes = self._fetch(file, partial, entry)
        except PartialLostError:
            return None
        finally:
            partial.close()
            self._remove_empty_folders(path)
        if is_damaged:
            self.mended.append(file.local_path)
        return FileResult(file, FileOutcome.FETCHED, size_bytes)

    def _fetch(self, file: RemoteFile, partial: Partial, entry: LockEntry | None) -> int:
        """Complete a partial file and give it its final name; gives its size."""
        self._tell(Moved(partial.size_bytes))
        with self._guard:
            self._partials.add(partial)
        try:
            self._receive(file, partial)
            self._accept(file, partial, entry)
        except BaseException:
            self._tell(Moved(-partial.size_bytes))  # what is not finished does not count, though it stays
            raise
        finally:
            with self._guard:
                self._partials.discard(partial)
        return partial.size_bytes

    def _receive(self, file: RemoteFile, partial: Partial) -> None:
        try:
            self._fetcher.fetch(file.remote_path, partial, lambda: check_file(file, partial.path, self._plan.data_dir))
        except FileError as error:
            raise _WrongContentError(
                f"{public_url(self._plan.url(file))}: is not what it should be: {error}",
                "run the same command again later; if it stays so, the server's file is damaged",
            ) from error

    def _find_fault(self, file: RemoteFile, path: Path, entry: LockEntry | None) -> str:
        """What is wrong with a file that is there; empty where it is whole. New ones are recorded."""
        self._repair_mode(file, path)
        try:
            found = digest_file(path)
            if entry is None:
                check_file(file, path, self._plan.data_dir)
        except FileError as error:
            return error.problem
        if entry is not None and found != entry:
            return f"is not the file recorded in {LOCK_NAME}: {found.size_bytes:,} bytes, expected {entry.size_bytes:,}"
        if entry is None:
            self._record(file, found)
        return ""

    def _accept(self, file: RemoteFile, partial: Partial, entry: LockEntry | None) -> None:
        """Compare what has arrived with what is recorded of it, and give it its final name."""
        found = digest_file(partial.path)
        if entry is not None and found != entry:
            self._tell(Moved(-partial.size_bytes))
            partial.discard()
            lock_path = self._plan.data_dir / LOCK_NAME
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            expected = f"{entry.size_bytes:,}, {entry.sha256[:12]}"
            raise TransferError(
                f"{public_url(self._plan.url(file))}: is not what {lock_path} records: {sizes}, expected {expected}",
                f"to accept the server's new version, remove its line from {lock_path}",
            )
        partial.publish()
        self._record(file, found)

    def _record(self, file: RemoteFile, entry: LockEntry) -> None:
        with self._guard:
            self._new_entries[file.local_path] = entry

    def _note_held(self, file: RemoteFile, *, is_held: bool) -> None:
        with self._guard:
            if is_held == (file.local_path in self._held):
                return
            self._held ^= {file.local_path}
        self._tell(Held(file.local_path, is_held))

    def _remove_empty_folders(self, path: Path) -> None:
        """Remove the folders that were made for a file of which nothing has come."""
        with suppress(OSError):  # not empty
            for folder in path.parents:
                if folder == self._plan.data_dir:
                    break
                folder.rmdir()

    def _repair_mode(self, file: RemoteFile, path: Path) -> None:
        """Give a file the permissions that the umask allows, where the official script left it for its owner only."""
        with suppress(OSError):  # somebody else's file: nothing to be done, and readable or not
            if stat.S_IMODE(path.stat().st_mode) == 0o600 and self._umask != 0o077:
                path.chmod(0o666 & ~self._umask)
                self.opened.append(file.local_path)


def read_locked(data_dir: Path) -> dict[str, LockEntry]:
    """What is recorded of the files of a raw tree; nothing where there is no record yet.

    Raises:
        LockError: It is damaged.
    """
    try:
        return read_lock(data_dir / LOCK_NAME)
    except MissingFileError:
        return {}


def _read_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
