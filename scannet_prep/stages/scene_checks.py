"""Check many scenes in worker processes, for `verify`.

worker returns a result       --> the result, and the findings that it collected
worker raises an exception    --> a finding, and the other scenes are checked
worker process dies twice     --> a finding, and the other scenes are checked
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from scannet_prep.base.files import Fingerprint
from scannet_prep.base.findings import Finding, Findings
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.selection import Selection

Result = TypeVar("Result")
Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class CheckTask:
    """One scene to check.

    Attributes:
        scene_id: The scene.
        path: Its folder or file.
        data: Any other data that the check needs.
    """

    scene_id: SceneId
    path: Path
    data: Any = None

    @property
    def source(self) -> Path:
        """The same as `path`, for messages."""
        return self.path


Check: TypeAlias = Callable[[CheckTask, Context, Findings], Result]


@dataclass(frozen=True, slots=True)
class Inspection:
    """One run of `verify`: which scenes to check, how, and what was found.

    Attributes:
        title: Title of the work, for the progress.
        selection: The scenes to check; all by default.
        jobs: Number of worker processes, or of threads for archives.
        progress: Advanced by each scene, or by the tar bytes of archives.
        findings: Receives all findings.
    """

    title: str
    selection: Selection = field(default_factory=Selection)
    jobs: int = 1
    progress: Progress = field(default_factory=Progress)
    findings: Findings = field(default_factory=Findings)

    def check_scenes(
        self, check: Check[Context, Result], tasks: Sequence[CheckTask], context: Context
    ) -> dict[SceneId, Result]:
        """Check scenes in worker processes. A bad scene does not stop the others.

        Args:
            check: A module-level function of task, context and findings. If it raises an exception,
                that becomes an error of the scene.
            tasks: The scenes.
            context: The second argument of all calls.

        Returns:
            The result of each scene whose check raised nothing, by scene id.

        Raises:
            WorkerDiedError: Worker processes cannot be started.
        """
        results: dict[SceneId, Result] = {}
        with self.progress.work(self.title, len(tasks), "scenes"):
            for task, outcome in run_tasks(_check_scene, tasks, (check, context), self.jobs):
                if isinstance(outcome, Finding):  # its worker was killed
                    self.findings.found.append(outcome)
                else:
                    result, scene_findings = outcome
                    self.findings.found += scene_findings
                    # None: the check raised an exception, which is now a finding.
                    if result is not None:
                        results[task.scene_id] = result
                self.progress.advance()
        return dict(sorted(results.items()))


def _check_scene(
    task: CheckTask, call: tuple[Check[Context, Result], Context]
) -> tuple[Result | None, list[Finding]]:
    """Check one scene, in a worker."""
    check, context = call
    findings = Findings(task.scene_id)
    result = findings.attempt(task.path, check, task, context, findings)
    return result, findings.found


def check_recorded_files(
    folder: Path, fingerprints: Mapping[str, Fingerprint], findings: Findings, hint: str
) -> None:
    """Compare files of a folder with their recorded fingerprints by name.

    Args:
        folder: The folder.
        fingerprints: The fingerprints, by path in the folder.
        findings: Gets an error for each file that is missing or differs.
        hint: The hint for files that differ.
    """
    for name, expected in fingerprints.items():
        path = folder / name
        # The first path is the subject of a finding, the second the argument of the function.
        actual = findings.attempt(path, Fingerprint.from_file, path)
        if actual is not None and actual != expected:
            message = f"has {_describe(actual)}, expected {_describe(expected)} as recorded"
            findings.error(path, message, hint)


def _describe(fingerprint: Fingerprint) -> str:
    """Describe a fingerprint in words."""
    return f"{fingerprint.size_bytes:,} bytes and CRC-32 {fingerprint.crc32}"
