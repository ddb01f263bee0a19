"""Findings: faults and remarks as values that are listed and written.

An exception ends a run. A finding does not: the other files are still checked. `failed.txt` lists
the scenes with findings that are errors, for another run.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection
from operator import attrgetter
from pathlib import Path
from typing import Literal

import msgspec

from scannet_prep.base.files import write_if_changed, writing
from scannet_prep.errors import FileError, ScanNetPrepError

FAILED_NAME = "failed.txt"
_FAILED_HEADER = "# Scenes that failed. To try them again: --scenes @failed.txt\n"


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename={"subject": "path"}):
    """A fault or remark that a check found. In JSON, its subject is `path`.

    Attributes:
        message: What was found and what was expected. It does not repeat the subject.
        subject: The file, folder or address, or the topic of a check of `doctor`.
        scene_id: The scene; empty if the finding concerns none.
        severity: `error`: something is wrong. `note`: a remark. Only in `doctor`: `ok`: nothing to
            do; `problem`: something will go wrong.
        hint: What to do about it; may be empty.
        trace: The traceback, if the cause is a bug of this program; otherwise empty.
        error: The class of the exception, such as `FileError`; empty if there was none.
    """

    message: str
    subject: str = ""
    scene_id: str = ""
    severity: Literal["ok", "note", "error", "problem"] = "error"
    hint: str = ""
    trace: str = ""
    error: str = ""

    @property
    def is_error(self) -> bool:
        """Whether something is wrong."""
        return self.severity in ("error", "problem")

    def __lt__(self, other: Finding) -> bool:
        """Sort by severity, scene and subject."""
        return _sort_key(self) < _sort_key(other)

    def __str__(self) -> str:
        """Format as `SUBJECT: SCENE: MESSAGE`, without the scene if the subject has its name."""
        scene_id = "" if self.scene_id in self.subject else self.scene_id
        return ": ".join(part for part in (self.subject, scene_id, self.message) if part)

    @classmethod
    def from_error(cls, error: Exception, subject: Path | str = "", scene_id: str = "") -> Finding:
        """Describe the exception that made a file or a scene fail.

        Args:
            error: The exception. If it names a file, that file becomes the subject.
            subject: The subject otherwise: a file, a folder or an address.
            scene_id: The scene; empty if the fault concerns none.
        """
        hint = ""
        trace = ""
        if isinstance(error, ScanNetPrepError):
            problem = error.message
            hint = error.hint
        elif isinstance(error, MemoryError) or str(error) == "can't start new thread":
            problem = "memory or threads ran out"
            hint = "try again with fewer workers"
        elif isinstance(error, OSError):
            problem = f"cannot be read: {error.strerror or error}"
        else:
            # All errors that users can cause have been handled above, so this one is a bug.
            problem = f"unforeseen {type(error).__name__}: {error}"
            hint = "please report this"
            trace = "".join(traceback.format_exception(error))
        place = str(subject)
        if isinstance(error, FileError):
            place = error.place
        elif isinstance(error, OSError) and error.filename:
            place = str(error.filename)
        message = problem.removeprefix(f"{place}: ").removeprefix(f"{scene_id}: ")
        return cls(
            message=_printable(message),
            subject=_printable(place),
            scene_id=scene_id,
            hint=_printable(hint),
            trace=_printable(trace),
            error=type(error).__name__,
        )


def note(message: str, subject: str = "", scene_id: str = "") -> Finding:
    """Make a finding that is only a remark."""
    return Finding(message=message, subject=subject, scene_id=scene_id, severity="note")


_sort_key = attrgetter("severity", "scene_id", "subject")


def _printable(text: str) -> str:
    """Escape the bytes of file names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_failed_list(folder: Path, scene_ids: Collection[str]) -> None:
    """Write `failed.txt`, for `--scenes @failed.txt`, or remove it if nothing has failed.

    Raises:
        OutputError: It cannot be written.
    """
    path = folder / FAILED_NAME
    if scene_ids:
        lines = "".join(f"{scene_id}\n" for scene_id in sorted(scene_ids))
        write_if_changed(path, f"{_FAILED_HEADER}{lines}".encode())
    elif path.exists():
        with writing(path):
            path.unlink()
