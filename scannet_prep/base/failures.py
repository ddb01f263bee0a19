"""What went wrong with one scene, as a value: collected, listed and written as JSON. It never stops the others."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.errors import ScanNetPrepError, WorkerDiedError


@dataclass(frozen=True, slots=True)
class SceneFailure:
    """One scene that could not be made, checked or fetched.

    Attributes:
        scene_id: Its name.
        error: The kind of error, for example `RawFileError`.
        message: What was found and expected, with the file's name.
        hint: What to do about it; may be empty.
        trace: For a bug of this program, where it came from; else empty.
    """

    scene_id: str
    error: str
    message: str
    hint: str = ""
    trace: str = ""

    @classmethod
    def from_exception(cls, scene_id: str, error: Exception, place: Path | str) -> SceneFailure:
        """Tell of an exception that a scene has raised.

        Args:
            scene_id: The scene.
            error: The exception.
            place: Folder or file of the scene; put before messages that do not name it.
        """
        problem, hint, trace = explain(error)
        if str(place) not in problem:
            problem = f"{place}: {problem}"
        problem, hint, trace = (
            text.encode("utf-8", "backslashreplace").decode() for text in (problem, hint, trace)
        )
        return cls(scene_id, type(error).__name__, problem, hint, trace)


def explain(error: Exception) -> tuple[str, str, str]:
    """Tell an exception to people: ours in its own words, and a bug with its traceback.

    Returns:
        What is wrong; what to do about it, or an empty text; and for a bug, where it came from.
    """
    if isinstance(error, ScanNetPrepError):
        hint = (
            "memory may have run out: try again with --jobs 1"
            if isinstance(error, WorkerDiedError)
            else ""
        )
        return error.message, error.hint or hint, ""
    if isinstance(error, MemoryError):
        return "memory ran out", "try again with fewer workers: --jobs 1", ""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}", "", ""
    trace = "".join(traceback.format_exception(error))
    return f"unforeseen {type(error).__name__}: {error}", "please report this", trace


def list_some(names: Sequence[str], shown: int = 3) -> str:
    """The first names, and how many there are beside them: `a, b, c and 4 more`."""
    return ", ".join(names[:shown]) + (
        f" and {len(names) - shown:,} more" if len(names) > shown else ""
    )
