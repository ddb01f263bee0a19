"""The result of a download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scannet_prep.stages.download.planning import DownloadPlan
from scannet_prep.stages.download.tasks import FileOutcome, FileTask


@dataclass(frozen=True, slots=True)
class DownloadReport:
    """The result of a download.

    Attributes:
        plan: The plan of the run.
        results: The files of the plan, with their outcomes.
        received_bytes: Bytes received over the network.
    """

    plan: DownloadPlan
    results: tuple[FileTask, ...]
    received_bytes: int

    @property
    def failures(self) -> tuple[FileTask, ...]:
        """The files that failed."""
        return tuple(task for task in self.results if task.outcome is FileOutcome.FAILED)

    def describe_failures(self) -> list[tuple[str, str]]:
        """Return a line and a hint for each reason, with all files that failed for it."""
        groups: dict[str, list[FileTask]] = {}
        for task in self.failures:
            groups.setdefault(task.reason, []).append(task)
        lines = []
        for tasks in groups.values():
            first = tasks[0]
            text = first.message
            if len(tasks) > 1:
                text = f"{len(tasks):,} files: {first.reason}; for example {first.subject}"
            lines.append((f"failed: {text}", first.hint))
        return lines

    def counts(self) -> dict[FileOutcome, int]:
        """Return the number of files by outcome."""
        outcomes = [task.outcome for task in self.results]
        return {outcome: outcomes.count(outcome) for outcome in FileOutcome}

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dict of plain values."""
        return {
            "data_dir": str(self.plan.data_dir),
            "files": self.counts(),
            "failures": [_failure_to_json(task) for task in self.failures],
            "received_bytes": self.received_bytes,
            "size_bytes": sum(task.size_bytes for task in self.results),
        }


def _failure_to_json(task: FileTask) -> dict[str, str | None]:
    value: dict[str, str | None] = {
        "path": task.file.local_path,
        "scene_id": task.file.scene_id,
        "message": task.message,
    }
    if task.hint:
        value["hint"] = task.hint
    return value
