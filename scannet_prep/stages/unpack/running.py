"""Unpacks archives that are files or addresses: each scene by one range, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scannet_prep.archive.pending import has_content
from scannet_prep.archive.reader import ArchivedGroup
from scannet_prep.archive.walk import Gap
from scannet_prep.errors import ArchiveError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import remove_stale_temporaries
from scannet_prep.processed.folder import processed_path
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.stages.threads import run_in_threads
from scannet_prep.stages.unpack.group import UnpackedGroup, Unpacker
from scannet_prep.stages.unpack.planning import UnpackPlan, check_space, is_wanted
from scannet_prep.stages.unpack.processed import ProcessedRecord, make_record
from scannet_prep.stages.unpack.record import FolderRecord
from scannet_prep.stages.unpack.report import UnpackReport, make_report
from scannet_prep.stages.unpack.salvage import FoundTask

_MAX_HELD_BYTES = 160 << 20
_DAMAGED_HINT = "fetch or copy the archive again, then run the same command: it takes just what is missing"


def run(plan: UnpackPlan, *, jobs: int = 1, progress: Progress | None = None) -> UnpackReport:
    """Unpack what a plan names; what is there already is kept. One damaged scene never stops the others.

    The files of a scene get their names when the scene has been checked, so that a run that ends early, however it
    ends, leaves whole files, and the next one goes on from there.

    Args:
        plan: From `plan`.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        DiskFullError: The disk does not hold it.
        OutputError: The folder cannot be written to.
        ManifestError: The folder holds scenes that were made in another way.
        TransferError: The server does not give it.
    """
    progress = progress or NoProgress()
    check_space(plan)
    record = make_record(plan.kind, plan.out_dir, lambda scene_id, split: is_wanted(plan.selection, scene_id, split))
    try:
        return _run(plan, record, jobs, progress)
    finally:
        record.release()


def _run(plan: UnpackPlan, record: FolderRecord, jobs: int, progress: Progress) -> UnpackReport:
    _remove_leftovers(plan)
    results = _Results(record, progress, [_describe_gap(name, gap) for name, gap in plan.gaps])
    progress.start("unpack", plan.size_bytes, "B")
    try:
        _unpack_groups(plan, Unpacker(record), results, jobs)
    finally:
        progress.finish()
    for failure in plan.failures:
        record.add_failure(failure)
    if plan.is_salvage and not plan.missing_shards:
        add_missing(record, results.scenes, lambda scene_id, split: is_wanted(plan.selection, scene_id, split))
    record.end(is_whole=plan.is_whole)
    return make_report(
        record,
        plan.kind,
        plan.archives,
        results.scenes,
        results.damages,
        left_out=plan.left_out,
        missing_shards=plan.missing_shards,
    )


def _unpack_groups(plan: UnpackPlan, unpacker: Unpacker, results: _Results, jobs: int) -> None:
    for task in plan.tasks:
        if not task.scene_id:  # first: what they say of the scenes is needed
            results.take(task, unpacker.unpack(task))
    tasks = [task for task in plan.tasks if task.scene_id]
    outcomes = run_in_threads(unpacker.unpack, tasks, jobs=jobs, weigh=_weigh, max_weight=_MAX_HELD_BYTES)
    try:
        for task, outcome in outcomes:
            results.take(task, outcome)
    except BaseException:
        unpacker.stop()
        raise
    finally:
        outcomes.close()


class _Results:
    """Collects what became of each group."""

    def __init__(self, record: FolderRecord, progress: Progress, damages: list[str]) -> None:
        self._record = record
        self._progress = progress
        self.damages = damages
        self.scenes: dict[str, bool] = {}

    def take(self, task: ArchivedGroup | FoundTask, outcome: UnpackedGroup | ArchiveError) -> None:
        """Take note of one group."""
        self._progress.advance(task.size_bytes)
        if isinstance(outcome, UnpackedGroup):
            self._record.add_files(outcome.files)
            if outcome.scene_id:
                self.scenes[outcome.scene_id] = outcome.is_new
            return
        self._progress.note(f"damaged: {outcome}")
        if task.scene_id:
            self._record.add_failure(make_failure(task.scene_id, outcome))
        else:
            self.damages.append(str(outcome))


def make_failure(scene_id: str, error: ArchiveError) -> SceneFailure:
    """Say of a scene why it could not be unpacked."""
    return SceneFailure(scene_id, type(error).__name__, str(error), _DAMAGED_HINT)


def add_missing(record: FolderRecord, scenes: Mapping[str, bool], wants: Callable[[str, str], bool]) -> None:
    """Of an archive without index: list the scenes that its manifest names and that are not there."""
    if not isinstance(record, ProcessedRecord):
        return
    for scene_id, entry in record.manifest.scenes.items():
        path = processed_path(record.out_dir, entry.split, scene_id)
        is_there = scene_id in scenes or has_content(path, entry.fingerprint.size_bytes, entry.fingerprint.crc32)
        if not is_there and scene_id not in record.failures and wants(scene_id, entry.split):
            error = ArchiveError(path, "is not in the part of the archive that is whole")
            record.add_failure(make_failure(scene_id, error))


def _remove_leftovers(plan: UnpackPlan) -> None:
    """Remove temporary files of killed runs, where this one is going to write."""
    folders = {plan.out_dir}
    for task in plan.tasks:
        if isinstance(task, ArchivedGroup):
            folders.update((plan.out_dir / member.name).parent for member in task.entry.members)
    for folder in folders:
        if folder.is_dir():
            remove_stale_temporaries(folder)


def _describe_gap(name: str, gap: Gap) -> str:
    reason = gap.problem or "the archive ends there"
    return f"{name}: bytes {gap.offset:,} to {gap.end:,} hold no whole scene: {reason}"


def _weigh(task: ArchivedGroup | FoundTask) -> int:
    """Memory that a group takes: a frame, stored and decompressed."""
    spans = task.archive.spans(task.entry) if isinstance(task, ArchivedGroup) else task.group.spans
    return max((span.stored_bytes + span.size_bytes for span in spans), default=0)
