"""Run a download: check the conditions, settle all files, and record the results."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from scannet_prep.base.files import check_space, make_directory, write_if_changed
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.errors import OutputError, ServerDownError, UsageError
from scannet_prep.processed.folder import FAILED_NAME, write_failed_list
from scannet_prep.raw.lock import LOCK_NAME, encode_lock, read_tree_lock
from scannet_prep.release import files as release
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import read_scene_list
from scannet_prep.remote.client import Client
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.stages.download.planning import DownloadPlan
from scannet_prep.stages.download.report import DownloadReport
from scannet_prep.stages.download.scheduling import Scheduler
from scannet_prep.stages.download.tasks import FileOutcome
from scannet_prep.stages.download.terms import HOW_TO_SIGN, has_accepted_terms, record_acceptance
from scannet_prep.stages.download.worker import Worker

# The server belongs to a university chair, and many people share it.
_MAX_JOBS = 8


def run(
    plan: DownloadPlan,
    *,
    jobs: int = 4,
    policy: TransferPolicy | None = None,
    certificates: bool | Path = True,
    progress: Progress | None = None,
    needs_terms: bool = True,
    accepts_terms: bool = False,
    is_strict: bool = False,
) -> DownloadReport:
    """Fetch the files of a plan.

    Existing files are checked, and complete ones are kept. A file that fails never stops the
    others.

    Args:
        plan: From `scannet_prep.stages.download.plan`.
        jobs: Number of connections, at most 8.
        policy: How patient to be.
        certificates: A file or folder of authorities, True for those named in the environment or
            else those of certifi, False to accept any certificate.
        progress: Receives bytes, counted by the typical sizes of files, and messages.
        needs_terms: False for files that are not ScanNet's, such as synthetic scenes.
        accepts_terms: Whether the terms of use are accepted, if the folder has no record of it.
        is_strict: Also check the content of files whose digest is the recorded one, and fetch
            damaged ones again.

    Raises:
        UsageError: The terms of use have not been accepted, there are too many jobs, or the
            certificate authorities cannot be used.
        LockedError: Another run is working in the folder.
        RawFileError: `scannet.lock` is damaged.
        OutputError: The folder cannot be written to, or the disk is full or too small.
        CertificateError, ProxyError: The server's certificate or the proxy cannot be used.
        TransferError: The server refuses all of the first files.
    """
    if not 1 <= jobs <= _MAX_JOBS:
        problem = f"{jobs} connections at a time, expected 1 to {_MAX_JOBS}"
        raise UsageError(problem, f"the server is shared: --jobs {_MAX_JOBS}, or leave it out")
    # Check the lock file before anything is changed.
    read_tree_lock(plan.data_dir)
    # scans/ holds nearly all files, and may be a link to another disk.
    scans_dir = plan.data_dir / release.SPLIT_DIRS[Split.TRAIN]
    check_space(scans_dir.resolve(), plan.needed_bytes)
    client = Client(plan.base_url, policy or TransferPolicy(), certificates)
    if needs_terms and not (accepts_terms or has_accepted_terms(plan.data_dir)):
        problem = f"the ScanNet Terms of Use have not been accepted. {HOW_TO_SIGN}"
        raise UsageError(problem, "once you have signed them, pass --accept-terms")

    make_directory(plan.data_dir)
    if needs_terms:
        record_acceptance(plan.data_dir)
    progress = progress or Progress()
    with run_lock(plan.data_dir):
        worker = Worker(plan, client, progress.note, is_strict=is_strict)
        scheduler = Scheduler(plan, client, worker, jobs, progress)
        try:
            scheduler.run()
        except ServerDownError as error:
            for task in scheduler.tasks:
                if task.outcome is None:
                    task.fail(error.message, error.hint, subject=plan.shown_base_url)
        except BaseException:
            # The error that ended the run is the one to report.
            with suppress(OutputError):
                _save(plan.data_dir, scheduler, worker, progress)
            raise
        _save(plan.data_dir, scheduler, worker, progress)
    return DownloadReport(plan, tuple(scheduler.tasks), client.received_bytes)


def _save(data_dir: Path, scheduler: Scheduler, worker: Worker, progress: Progress) -> None:
    """Record the complete files, and list the scenes that failed.

    A folder that cannot be written to is noted only, unless a file was fetched.

    Raises:
        OutputError: The results cannot be written.
    """
    # If the run has ended early, some scenes have not been compared yet. The facts of all others
    # were dropped after their comparison, so nothing is done for them.
    for scene in scheduler.scenes.values():
        worker.compare(scene)
    lock_path = data_dir / LOCK_NAME
    # A copy: threads that still run may change the records.
    locked = dict(worker.locked)
    try:
        if locked or lock_path.exists():
            write_if_changed(lock_path, encode_lock(locked), is_durable=True)
        _list_failures(data_dir / FAILED_NAME, scheduler)
    except OutputError as error:
        if any(task.outcome is FileOutcome.FETCHED for task in scheduler.tasks):
            raise
        progress.note(f"not recorded: {error.message}")


def _list_failures(path: Path, scheduler: Scheduler) -> None:
    """List the scenes that failed.

    Scenes of an earlier list stay on it until a run completes them.
    """
    failed: set[str] = set()
    if path.exists():
        failed.update(read_scene_list(path))
    for scene_id, scene in scheduler.scenes.items():
        if scene_id is None:
            continue
        outcomes = {task.outcome for task in scene}
        if None not in outcomes:
            failed.discard(scene_id)
        if FileOutcome.FAILED in outcomes:
            failed.add(scene_id)
    write_failed_list(path, failed)
