"""What checks find, as values and not as exceptions, so that one bad file keeps no other from being checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from scannet_prep.base.errors import FileError, WorkerDiedError
from scannet_prep.base.failures import explain
from scannet_prep.base.progress import Progress
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.pool import run_tasks

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        path: The file or folder; a text where it is on the web.
        scene_id: The scene that it belongs to; empty where it belongs to none.
        severity: An error, or a note: worth knowing, and right all the same.
        message: What was found and what was expected; does not repeat the path.
        hint: What to do about it; may be empty.
        trace: For a bug of this program, where it came from; else empty.
    """

    path: Path | str
    scene_id: str
    severity: Literal["error", "note"]
    message: str
    hint: str = ""
    trace: str = ""

    @property
    def is_error(self) -> bool:
        """Whether something is wrong."""
        return self.severity == "error"

    @property
    def place(self) -> str:
        """Where it was found, in words: the path, and the scene unless the path has its name."""
        return (
            str(self.path) if self.scene_id in str(self.path) else f"{self.path}: {self.scene_id}"
        )

    @classmethod
    def from_exception(cls, error: Exception, path: Path | str, scene_id: str = "") -> Finding:
        """Tell of an exception that was raised while a file was checked."""
        problem, hint, trace = explain(error)
        place = error.place if isinstance(error, FileError) else str(path)
        if isinstance(error, FileError) and not scene_id and SceneId.is_valid(error.path.stem):
            scene_id = error.path.stem
        problem = problem.removeprefix(f"{place}: ").removeprefix(f"{place}/")
        return cls(place, scene_id, "error", problem, hint, trace)


class Findings:
    """Collects what is found about one scene, or about a folder.

    Args:
        scene_id: The scene; empty for a folder.
    """

    def __init__(self, scene_id: str = "") -> None:
        self._scene_id = scene_id
        self.found: list[Finding] = []

    def error(self, path: Path | str, message: str, hint: str = "", *, scene_id: str = "") -> None:
        """Something is wrong."""
        self.found.append(Finding(path, scene_id or self._scene_id, "error", message, hint))

    def note(self, path: Path | str, message: str, hint: str = "", *, scene_id: str = "") -> None:
        """Something is worth knowing."""
        self.found.append(Finding(path, scene_id or self._scene_id, "note", message, hint))

    def attempt(
        self,
        path: Path,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result | None:
        """Call a function; what it raises becomes an error about the file."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a check goes on whatever happens; of a bug, the traceback is kept
            self.found.append(Finding.from_exception(error, path, self._scene_id))
            return None


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then by scene and file; each once, though several checks may come upon it."""
    return tuple(
        sorted(
            dict.fromkeys(findings), key=lambda item: (item.severity, item.scene_id, str(item.path))
        )
    )


@dataclass(frozen=True, slots=True)
class CheckTask:
    """One scene that is to be looked at.

    Attributes:
        scene_id: Its name.
        path: Its folder or file.
        data: What is known of it, for who looks.
    """

    scene_id: SceneId
    path: Path
    data: Any = None


def look_at_scenes(
    look: Callable[[CheckTask, Context, Findings], Result],
    tasks: Sequence[CheckTask],
    context: Context,
    findings: Findings,
    *,
    title: str,
    jobs: int = 1,
    progress: Progress | None = None,
) -> dict[SceneId, Result]:
    """Look at scenes in worker processes. What is wrong with one is a finding, and the others go on.

    Args:
        look: A module-level function of task, context and findings; what it raises becomes an error of the scene.
        tasks: The scenes.
        context: Handed to every call.
        findings: Gets what is found.
        title: Of the work, for the progress.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Returns:
        What `look` returned for each scene where it raised nothing, by scene id.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    results, progress = dict[SceneId, Result](), progress or Progress()
    with progress.work(title, len(tasks), "scenes"):
        for task, outcome in run_tasks(_look, tasks, (look, context), jobs=jobs):
            if isinstance(outcome, WorkerDiedError):
                findings.found.append(Finding.from_exception(outcome, task.path, task.scene_id))
            else:
                result, found = outcome
                findings.found += found
                if result is not None:
                    results[task.scene_id] = result
            progress.advance()
    return dict(sorted(results.items()))


def _look(
    task: CheckTask, context: tuple[Callable[[CheckTask, Context, Findings], Result], Context]
) -> tuple[Result | None, list[Finding]]:
    """Look at one scene, in a worker."""
    look, inner = context
    findings = Findings(task.scene_id)
    return findings.attempt(task.path, look, task, inner, findings), findings.found
