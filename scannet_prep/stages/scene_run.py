"""A run that makes scenes, one by one: what `process`, `export` and `frames` have in common.

    task --> a worker: Stage.make --> files under temporary names, entry
         --> the run itself: final names, manifest, failed.txt

The manifest of the folder is written before a scene changes, every few seconds, and at the end. A
run that is killed leaves it without the scenes that are not finished; the next one makes them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from scannet_prep.base.files import (
    check_space,
    make_directory,
    put_in_place,
    remove_temporaries,
    run_lock,
    write_if_changed,
    writing,
)
from scannet_prep.base.findings import Finding, note, write_failed_list
from scannet_prep.base.json import encode_json
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import list_some
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import OutputError
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.files import NOTICE_NAME, NOTICE_TEXT
from scannet_prep.release.scenes import RELEASE_ID, Split

WORK_NAME = ".scannet-prep-work"
"""A folder in the output folder for the folders of unfinished scenes; removed at the end."""

_SAVE_INTERVAL_S = 5.0
_HINT_CHANGED = "run the same command again"


@dataclass(frozen=True, slots=True)
class SceneTask:
    """One scene to make from raw files.

    Attributes:
        scene: Its raw files.
        split: The split it goes into.
        path: The file or folder to write.
        reason: The reason why it has to be made.
    """

    scene: RawScene
    split: Split
    path: Path
    reason: str = ""

    @property
    def scene_id(self) -> str:
        """The scene."""
        return self.scene.scene_id

    @property
    def source(self) -> Path:
        """The folder of its raw files, for messages."""
        return self.scene.directory


@dataclass(frozen=True, slots=True)
class Stage:
    """The functions with which a command makes scenes.

    A manifest is a msgspec struct with `scenes`, the entries of the finished scenes by id;
    `failures`, the Findings by scene id; and `unfinished`, the ids of scenes still to be made.

    Attributes:
        name: The name of the command.
        make: Makes a scene from task and context, in a worker; a module-level function. Returns the
            temporary names of its files or folders, by final name, and its entry.
        read: Reads the manifest of a folder; an empty one if it has none.
        write: Writes the manifest of a folder, if it has changed.
        finish: Called with plan and manifest when all tasks are done; returns remarks.
        find_outdated: Lists files and folders that are removed once a scene is settled, such as
            earlier versions of it, by its task and its outcome.
        subfolders: The folders in which a killed run may have left temporary files, beside the
            output folder itself; None for all. Others may belong to other programs, and be large.
    """

    name: str
    make: Callable[[Any, Any], tuple[Mapping[Path, Path], Any]]
    read: Callable[[Path], Any]
    write: Callable[[Path, Any], None]
    finish: Callable[[Any, Any], Sequence[Finding]]
    find_outdated: Callable[[Any, Any], Iterable[Path]] = lambda *_: ()
    subfolders: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        stage: How scenes are made.
        source: The place that they are made from, for messages.
        out_dir: The output folder.
        about: The options in words.
        context: What all tasks share.
        before: The manifest of the folder.
        head: The manifest of the run, without scenes.
        tasks: The scenes to make, each with `scene_id`, `source` and `reason`.
        kept: Scenes that stay as they are.
        findings: Errors, such as selected scenes that cannot be made; and remarks.
        has_all: Whether all scenes were selected.
        needed_bytes: Space on the disk that the scenes need, as far as it is known.
    """

    stage: Stage
    source: str | Path
    out_dir: Path
    about: str
    context: Any
    before: Any
    head: Any
    tasks: Sequence[Any]
    kept: Sequence[str]
    findings: Sequence[Finding]
    has_all: bool
    needed_bytes: int = 0

    @property
    def failures(self) -> list[Finding]:
        """What cannot be made."""
        return [finding for finding in self.findings if finding.is_error]

    @property
    def notes(self) -> list[Finding]:
        """The remarks."""
        return [finding for finding in self.findings if not finding.is_error]


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run.

    Attributes:
        made: Scenes that were made.
        kept: Scenes that stayed as they were.
        failures: Scenes that could not be made.
        notes: Remarks.
    """

    made: tuple[str, ...]
    kept: Sequence[str]
    failures: tuple[Finding, ...]
    notes: tuple[Finding, ...]


def run(
    plan: RunPlan,
    *,
    jobs: int = 1,
    progress: Progress = Progress(),
    executor: Executor | None = None,
) -> RunReport:
    """Make the scenes of a plan. A bad scene does not stop the others.

    Args:
        plan: The plan.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes. Its workers must see the same folders
            under the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk has not enough space.
        OutputError: Another run is writing into the folder, or has changed it since the plan was
            made.
        WorkerDiedError: Worker processes cannot be started.
    """
    out_dir = plan.out_dir
    make_directory(out_dir)
    with run_lock(out_dir):
        # As text, because arrays in them cannot be compared.
        if encode_json(plan.stage.read(out_dir)) != encode_json(plan.before):
            raise OutputError(f"{out_dir}: another run has changed it", _HINT_CHANGED)
        record = _RunState(plan)
        if plan.tasks:
            check_space(out_dir, plan.needed_bytes)
            record.save()
        # After the manifest, which shows whose folder this is. Own scenes do not derive from
        # ScanNet.
        if any(RELEASE_ID.fullmatch(task.scene_id) for task in plan.tasks):
            write_if_changed(out_dir / NOTICE_NAME, NOTICE_TEXT.encode())
        try:
            with progress.work(plan.stage.name, len(plan.kept) + len(plan.tasks), "scenes"):
                progress.advance(len(plan.kept))
                for task, outcome in run_tasks(
                    plan.stage.make, plan.tasks, plan.context, jobs, executor
                ):
                    record.settle(task, outcome)
                    progress.advance()
            notes = [*plan.stage.finish(plan, record.manifest), *record.note_others()]
        finally:
            _remove_leftovers(plan)
            record.save()
    return RunReport(
        made=tuple(sorted(record.made)),
        kept=plan.kept,
        failures=tuple(sorted([*plan.failures, *record.new_failures])),
        notes=(*plan.notes, *notes),
    )


def _remove_leftovers(plan: RunPlan) -> None:
    """Remove what lost workers have left, in this run or in an earlier one."""
    shutil.rmtree(plan.out_dir / WORK_NAME, ignore_errors=True)
    for folder, names, _ in os.walk(plan.out_dir):
        remove_temporaries(Path(folder))
        if plan.stage.subfolders is not None:
            names[:] = plan.stage.subfolders.intersection(names)


class _RunState:
    """The content of the manifest while a run makes scenes.

    Args:
        plan: The plan of the run.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.made: list[str] = []
        self.new_failures: list[Finding] = []
        self._plan = plan
        self._unfinished = {task.scene_id for task in plan.tasks}
        self._scenes = {
            name: entry
            for name, entry in plan.before.scenes.items()
            if name not in self._unfinished
        }
        # A failure may concern a folder that is not a scene.
        self._failures = {
            failure.scene_id: failure for failure in plan.failures if failure.scene_id
        }
        # A run for all scenes finds out anew which of them exist, and which fail.
        if not plan.has_all:
            self._unfinished |= {*plan.before.unfinished} - self._failures.keys()
            self._failures = plan.before.failures | self._failures
        for name in plan.kept:
            self._failures.pop(name, None)
        self._saved_s = 0.0

    @property
    def manifest(self) -> Any:  # noqa: ANN401 - of any stage
        """The manifest as it is now."""
        return msgspec.structs.replace(
            self._plan.head,
            scenes=self._scenes,
            failures=self._failures,
            unfinished=tuple(sorted(self._unfinished)),
        )

    def settle(self, task: Any, outcome: Any) -> None:  # noqa: ANN401 - of any stage
        """Give the files of a scene their final names, or note its failure."""
        name = task.scene_id
        if isinstance(outcome, Finding):
            self._failures[name] = outcome
            self.new_failures.append(outcome)
        else:
            temporary_paths, entry = outcome
            for path, temporary_path in temporary_paths.items():
                _put_in_place(temporary_path, path)
            self._scenes[name] = entry
            self._failures.pop(name, None)
            self.made.append(name)
        self._unfinished.discard(name)
        for path in self._plan.stage.find_outdated(task, outcome):
            # What the manifest does not list does not count. A named pipe must not be opened.
            with suppress(OSError):
                path.unlink()
            shutil.rmtree(path, ignore_errors=True)
        if time.monotonic() > self._saved_s + _SAVE_INTERVAL_S:
            self.save()

    def note_others(self) -> Iterator[Finding]:
        """Name the scenes of earlier runs that stay, although the source lacks them."""
        others = self._scenes.keys() - {*self.made, *self._plan.kept, *self._failures}
        if others and self._plan.has_all:
            yield note(f"kept, although not in {self._plan.source}: {list_some(sorted(others))}")

    def save(self) -> None:
        """Write the manifest and `failed.txt`, if they have changed."""
        self._plan.stage.write(self._plan.out_dir, self.manifest)
        write_failed_list(self._plan.out_dir, self._failures)
        self._saved_s = time.monotonic()


def _put_in_place(temporary_path: Path, path: Path) -> None:
    """Give a file or a folder its final name.

    Raises:
        OutputError: It cannot be renamed.
    """
    if not temporary_path.is_dir():
        put_in_place(temporary_path, path)
        return
    make_directory(path.parent)
    # A folder cannot replace another one.
    outdated_path = temporary_path.with_name(f"{temporary_path.name}-outdated")
    with writing(path):
        if path.exists():
            path.replace(outdated_path)
        temporary_path.replace(path)
    shutil.rmtree(outdated_path, ignore_errors=True)
