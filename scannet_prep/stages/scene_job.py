"""A run that makes scenes in worker processes, for `process`, `export` and `frames`.

    plan --> lock the folder --> remove what killed runs left
         --> begin   : remove what is outdated, check that there is room
         --> tasks in workers --> result       --> finish: files get their final names
                              --> OutputError  --> the run ends: no other scene could be written
                              --> other errors --> Finding: the other scenes go on
         --> record  : manifest, failed.txt
         --> unmark

Before the first file changes, the folder is marked: `unfinished.txt` names the scenes of the run. A
kill at any moment leaves whole scenes and the mark, and the next run continues from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import OutputError
from scannet_prep.processed.folder import mark_finished, mark_unfinished, read_unfinished


class SceneTask(Protocol):
    """One scene to make."""

    @property
    def scene_id(self) -> str:
        """The scene."""

    @property
    def source(self) -> Path | str:
        """The file or folder that the scene is made from, for messages."""


Task = TypeVar("Task", bound=SceneTask)
Result = TypeVar("Result")


class SceneJob(ABC, Generic[Task, Result]):
    """One run. It is made and used while the process holds the lock of the folder.

    Args:
        out_dir: The folder to write into.
        tasks: The scenes to make.
        scene_count: The number of scenes of the run, with those that are up to date.

    Attributes:
        failures: The scenes that could not be made, by id.
    """

    title: ClassVar[str]
    """The name of the run, for the progress."""

    def __init__(self, out_dir: Path, tasks: Sequence[Task], scene_count: int) -> None:
        self.failures: dict[str, Finding] = {}
        self._out_dir = out_dir
        self._tasks = tasks
        self._scene_count = scene_count
        self._is_marked = False

    @abstractmethod
    def remove_leftovers(self) -> None:
        """Remove temporary files of this run, or of one that was killed."""

    @abstractmethod
    def begin(self) -> None:
        """Prepare the folder for the scenes.

        Raises:
            OutputError: It cannot be written to, or there is no room.
        """

    @abstractmethod
    def finish(self, task: Task, result: Result) -> None:
        """Give the files of a scene their final names, after `mark`.

        Raises:
            FileError: Something is in the way: the scene has failed.
            OutputError: They cannot be written: the run ends.
        """

    def fail(self, task: Task, failure: Finding) -> None:
        """Note that a scene could not be made."""
        self.failures[task.scene_id] = failure

    def status(self) -> str:
        """Describe the state of the run in a few words, for the progress; may be empty."""
        return f"{len(self.failures):,} failed" if self.failures else ""

    def save(self) -> None:
        """Record the finished scenes when the run ends early, if their files do not show it."""

    @abstractmethod
    def record(self) -> Collection[str]:
        """Write the manifest and `failed.txt`.

        Returns:
            The scenes that are no longer unfinished: they are made, or failed, or no longer exist.
        """

    def run(
        self,
        make: Callable[[Task, Any], Result],
        context: object,
        *,
        jobs: int,
        progress: Progress | None,
        executor: Executor | None,
    ) -> None:
        """Make the scenes.

        Args:
            make: A module-level function that makes one scene, in a worker. It never returns None.
            context: Its second argument.
            jobs: Number of worker processes, if there is no executor.
            progress: Advanced by each scene.
            executor: Does the work instead of worker processes.

        Raises:
            OutputError: The folder cannot be written to.
            WorkerDiedError: Worker processes cannot be started.
        """
        try:
            self.remove_leftovers()
            self.begin()
            progress = progress or Progress()
            with progress.work(self.title, self._scene_count, "scenes"):
                progress.advance(self._scene_count - len(self._tasks))
                for task, outcome in run_tasks(make, self._tasks, context, jobs, executor):
                    self._settle(task, outcome)
                    status = self.status()
                    if status:
                        progress.status(status)
                    progress.advance()
            done = self.record()
            mark_finished(self._out_dir, done)
        except BaseException:
            # If saving fails as well, the error that ended the run is raised.
            with suppress(OutputError):
                self.save()
            raise
        finally:
            self.remove_leftovers()

    def _settle(self, task: Task, outcome: Result | Finding) -> None:
        """Finish a scene, or note its failure."""
        if isinstance(outcome, Finding):
            self.fail(task, outcome)
        else:
            self.finish(task, outcome)

    def mark(self) -> None:
        """Mark the folder as unfinished, before a file changes.

        A run that changes nothing does not do so, because readers refuse a folder with this mark.
        """
        if not self._is_marked:
            scene_ids = {task.scene_id for task in self._tasks}
            mark_unfinished(self._out_dir, scene_ids | read_unfinished(self._out_dir))
            self._is_marked = True
