"""What a check finds: values, not exceptions, so that one bad file keeps no other from being checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ParamSpec, TypeVar

from scannet_prep.errors import FileError, ScanNetPrepError, WorkerDiedError
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.remote.address import is_url
from scannet_prep.scene import SceneId, Split

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        path: The file or folder; a text where it is on the web.
        scene_id: The scene that it belongs to; empty where it belongs to none.
        severity: An error, or a note: worth knowing, and right all the same.
        message: What was found and what was expected; does not repeat the path.
        hint: What to do about it; may be empty.
        trace: For errors that nobody foresaw, where in the program they came from.
    """

    path: Path | str
    scene_id: str
    severity: Severity
    message: str
    hint: str = ""
    trace: str = ""

    @property
    def is_error(self) -> bool:
        """Whether something is wrong."""
        return self.severity is Severity.ERROR

    @property
    def place(self) -> str:
        """Where it was found, in words."""
        return str(self.path)

    @classmethod
    def from_exception(cls, error: Exception, path: Path | str, scene_id: str) -> Finding:
        """Tell of an exception that was raised while a file was checked."""
        if isinstance(error, FileError):
            found = error.place if is_url(error.place) else error.path
            return cls(found, scene_id, Severity.ERROR, error.problem, error.hint)
        if isinstance(error, WorkerDiedError):
            hint = error.hint or "memory may have run out: try again with --jobs 1"
            return cls(path, scene_id, Severity.ERROR, error.message, hint)
        if isinstance(error, ScanNetPrepError):
            return cls(path, scene_id, Severity.ERROR, error.message.removeprefix(f"{path}: "), error.hint)
        if isinstance(error, MemoryError):
            return cls(path, scene_id, Severity.ERROR, "memory ran out", "try again with fewer --jobs")
        if isinstance(error, OSError):
            return cls(path, scene_id, Severity.ERROR, f"cannot be read: {error.strerror or error}")
        message = f"unforeseen {type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        return cls(path, scene_id, Severity.ERROR, message, "please report this", trace)

    def to_json(self) -> dict[str, str]:
        """A dict of plain values."""
        return {
            "severity": str(self.severity),
            "scene_id": self.scene_id,
            "path": str(self.path),
            "message": self.message,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class CheckedScene:
    """What the check of one scene found, in a worker.

    Attributes:
        findings: May be empty.
        vertex_count: V; 0 where it could not be told.
        size_bytes: Of the files that were read.
        options: How a processed scene was made; None for raw scenes and for files that do not load.
    """

    findings: tuple[Finding, ...]
    vertex_count: int = 0
    size_bytes: int = 0
    options: ProcessOptions | None = None


class Findings:
    """Collects what is found about one scene, or about a folder.

    Args:
        scene_id: The scene; empty for a folder.
    """

    def __init__(self, scene_id: str = "") -> None:
        self._scene_id = scene_id
        self.found: list[Finding] = []

    def error(self, path: Path, message: str, hint: str = "", *, scene_id: str = "") -> None:
        """Something is wrong."""
        self.found.append(Finding(path, scene_id or self._scene_id, Severity.ERROR, message, hint))

    def note(self, path: Path, message: str, hint: str = "", *, scene_id: str = "") -> None:
        """Something is worth knowing."""
        self.found.append(Finding(path, scene_id or self._scene_id, Severity.NOTE, message, hint))

    def attempt(
        self, path: Path, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result | None:
        """Call a function; what it raises becomes an error about the file."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a check goes on whatever happens; of a bug, the traceback is kept
            self.found.append(Finding.from_exception(error, path, self._scene_id))
            return None


@dataclass(frozen=True, slots=True)
class SceneTask:
    """One scene that is to be checked.

    Attributes:
        scene_id: Its name.
        split: The split it is in.
        path: Its folder or file.
    """

    scene_id: SceneId
    split: Split
    path: Path


def list_some(names: list[str]) -> str:
    """Name up to three things."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more:,} more" if more > 0 else "")
