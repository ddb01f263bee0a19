"""Make scenes in worker processes, for the stages `process` and `export`.

worker returns a result            --> result: the stage moves its files to their final names
worker raises OutputError          --> the run ends: no other scene could be written either
worker raises any other exception  --> Finding: the other scenes go on
worker process dies twice          --> Finding: the other scenes go on
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar

from scannet_prep.base.errors import OutputError, WorkerDiedError
from scannet_prep.release.findings import Finding
from scannet_prep.stages.pool import run_tasks


class SceneTask(Protocol):
    """One scene to make."""

    @property
    def scene_id(self) -> str:
        """The scene."""

    @property
    def source(self) -> Path | str:
        """The file or folder that the scene is made from, for messages."""


Task = TypeVar("Task", bound=SceneTask)
Context = TypeVar("Context")
Result = TypeVar("Result")


def make_scenes(
    make: Callable[[Task, Context], Result],
    tasks: Iterable[Task],
    context: Context,
    *,
    jobs: int,
    executor: Executor | None,
) -> Generator[tuple[Task, Result | Finding], None, None]:
    """Call a function for each scene, in worker processes or in an executor.

    The caller closes the generator if it stops early: until then, workers continue.

    Args:
        make: A module-level function that makes one scene. It must not return None.
        tasks: The scenes.
        context: The argument that all calls share.
        jobs: Number of worker processes, if there is no executor.
        executor: Does the work instead of worker processes.

    Yields:
        Each task with its result, or with the reason why it failed, in order of completion.

    Raises:
        OutputError: A worker cannot write, so that no other scene could be written either.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    outcomes = run_tasks(_try_to_make, tasks, (make, context), jobs=jobs, executor=executor)
    with closing(outcomes):
        for task, outcome in outcomes:
            if isinstance(outcome, OutputError):
                raise outcome
            if isinstance(outcome, WorkerDiedError):
                yield task, Finding.from_failure(outcome, task.source, task.scene_id)
            else:
                yield task, outcome


def _try_to_make(
    task: Task, call: tuple[Callable[[Task, Context], Result], Context]
) -> Result | Finding | OutputError:
    """Make one scene, in a worker. Errors are returned, so that the worker makes other scenes."""
    make, context = call
    try:
        return make(task, context)
    except OutputError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes; its traceback is kept and shown
        return Finding.from_failure(error, task.source, task.scene_id)
