"""Download raw files from the server into the data folder: `plan`, then `run`.

plan     the files, and their paths on disk
run      check the conditions, fetch the files, record the results
fetch      decide which file is requested when, and which one is given up
             remote.partial  receive the missing bytes into .<name>.part
             remote.http     one request
             raw.lock        check the content, or compare it with its record
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scannet_prep.base.files import (
    check_space,
    remove_temporaries,
    run_lock,
    write_atomically,
    write_if_changed,
)
from scannet_prep.base.findings import write_failed_list
from scannet_prep.base.progress import Progress
from scannet_prep.errors import UsageError
from scannet_prep.raw.lock import LOCK_NAME, encode_lock, read_tree_lock
from scannet_prep.release.files import ACCEPTANCE_NAME, SPLIT_DIRS, TERMS_URL
from scannet_prep.release.scenes import Split
from scannet_prep.stages.download.fetch import DownloadReport, Fetcher
from scannet_prep.stages.download.plan import DownloadPlan, RemoteFile, plan

__all__ = [
    "DownloadPlan",
    "DownloadReport",
    "check_terms",
    "has_accepted_terms",
    "plan",
    "run",
]

# The address, the procedure and the week are from the README of ScanNet's own repository.
_HOW_TO_SIGN = (
    f"To sign the terms, fill in the form {TERMS_URL} and send it from the e-mail address of your "
    "institution to scannet@googlegroups.com. The answer comes by e-mail; if you hear nothing "
    "within a week, your message has probably bounced. There is no account and no password: once "
    "your form is accepted, you may accept the terms here. docs/access.md describes all of it, and "
    "what works without the data."
)


def run(
    plan: DownloadPlan,
    *,
    jobs: int = 4,
    is_insecure: bool = False,
    progress: Progress = Progress(),
    accepts_terms: bool = False,
    known: Sequence[RemoteFile] = (),
) -> DownloadReport:
    """Fetch the files of a plan.

    Existing files are checked, and complete ones are kept. A file that fails never stops the
    others.

    Args:
        plan: From `plan`.
        jobs: Number of connections.
        is_insecure: Whether any certificate of the server is accepted.
        progress: Receives bytes, counted by the typical sizes of files, and messages.
        accepts_terms: Whether the terms of use are accepted, if the folder has no record of it.
        known: Files that the server has served before. While it sends none of them, it counts as
            down, also at the start.

    Raises:
        UsageError: The terms of use have not been accepted.
        OutputError: Another run is working in the folder.
        FileError: `scannet.lock` is damaged.
        OutputError: The folder cannot be written to, or the disk is full or too small.
        OutageError: The server has served nothing for too long.
        TransferError: It refuses all of the first files.
    """
    data_dir = plan.data_dir
    total_bytes = sum(file.kind.typical_bytes for file in plan.files)
    has_record = has_accepted_terms(data_dir)
    check_terms(is_accepted=accepts_terms or has_record)
    # scans/ holds nearly all files, and may be a link to another disk.
    check_space(data_dir / SPLIT_DIRS[Split.TRAIN], plan.missing_bytes.total())
    if not has_record:
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        text = f"ScanNet Terms of Use accepted at {now}\n{TERMS_URL}\n"
        write_atomically(data_dir / ACCEPTANCE_NAME, [text.encode()])
    with run_lock(data_dir), progress.work("download", total_bytes, "B"):
        remove_temporaries(data_dir)
        report = DownloadReport(plan, read_tree_lock(data_dir))
        try:
            Fetcher(report, progress, is_insecure=is_insecure, known=known).run(jobs)
        finally:
            _record(report)
    return report


def check_terms(*, is_accepted: bool) -> None:
    """Check that the terms of use are accepted.

    Raises:
        UsageError: They are not.
    """
    if not is_accepted:
        problem = f"the ScanNet Terms of Use have not been accepted. {_HOW_TO_SIGN}"
        raise UsageError(problem, "once you have signed them, pass --accept-terms to download")


def has_accepted_terms(data_dir: Path) -> bool:
    """Whether a data folder contains the record that the terms were accepted.

    Each person accepts the terms individually, so only commands that download read the record, and
    none copies it.
    """
    return (data_dir / ACCEPTANCE_NAME).is_file()


def _record(report: DownloadReport) -> None:
    """Record the complete files, and list the scenes that lack a file.

    Raises:
        OutputError: The results cannot be written.
    """
    plan = report.plan
    incomplete = {*plan.files}.difference(report.fetched, report.kept)
    scene_ids = {file.scene_id for file in incomplete}
    if report.locked:
        write_if_changed(plan.data_dir / LOCK_NAME, encode_lock(report.locked))
    write_failed_list(plan.data_dir, scene_ids - {""})
