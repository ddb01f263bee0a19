"""What is in a raw or a processed tree, or in archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from scannet_prep.archive.source import ByteSource
from scannet_prep.errors import UsageError
from scannet_prep.progress import Progress
from scannet_prep.stages.info.archive import (
    ArchiveInfo,
    ArchiveInfoPlan,
    plan_archives,
    run_archives,
)
from scannet_prep.stages.info.processed import ProcessedPlan, ProcessedTreeInfo, plan_processed, run_processed
from scannet_prep.stages.info.raw import RawPlan, RawTreeInfo, plan_raw, run_raw
from scannet_prep.stages.tree import TreeKind, identify_tree, is_archive

InfoPlan: TypeAlias = RawPlan | ProcessedPlan | ArchiveInfoPlan
Info: TypeAlias = RawTreeInfo | ProcessedTreeInfo | ArchiveInfo


def plan(places: Sequence[str | Path | ByteSource], *, certificates: bool | Path = True) -> InfoPlan:
    """Decide what has to be read.

    Args:
        places: A raw or a processed tree; or an archive, or several that count as the shards of one: paths, addresses,
            or objects that read the bytes.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.

    Raises:
        MissingFileError: It is neither a raw nor a processed tree, nor an archive.
        ArchiveError: An archive is truncated, damaged at its end, or was written by something else.
        FileError: It cannot be looked into.
        UsageError: Several folders, the same archive twice, or no address.
        TransferError: An archive is on a web server, which does not give it.
    """
    if any(map(is_archive, places)):
        return plan_archives(places, certificates=certificates)
    paths = [Path(place) for place in places if isinstance(place, str | Path)]
    if len(paths) != 1:
        raise UsageError("one folder can be told of at a time", "name one folder, or several archives")
    (path,) = paths
    return plan_raw(path) if identify_tree(path) is TreeKind.RAW else plan_processed(path)


def run(plan: InfoPlan, *, jobs: int = 1, progress: Progress | None = None) -> Info:
    """Read it.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
        TransferError: A web server does not give an archive any more.
    """
    if isinstance(plan, ArchiveInfoPlan):
        return run_archives(plan)
    if isinstance(plan, RawPlan):
        return run_raw(plan, jobs=jobs, progress=progress)
    return run_processed(plan, jobs=jobs, progress=progress)
