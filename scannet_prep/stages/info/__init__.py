"""Tells what is in a raw or a processed tree, or in archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.source import ByteSource
from scannet_prep.progress import Progress
from scannet_prep.stages.info.archive import ArchiveInfo, read_archives
from scannet_prep.stages.info.trees import ProcessedInfo, RawInfo, read_processed_info, read_raw_info
from scannet_prep.tree import find_folder, identify_tree

Info: TypeAlias = RawInfo | ProcessedInfo | ArchiveInfo


def run(
    places: Sequence[str | Path | ByteSource],
    *,
    certificates: bool | Path = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Info:
    """Find out what is there.

    Args:
        places: A raw or a processed tree; or an archive, or several that count as the shards of one: paths, addresses,
            or objects that read the bytes.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.
        jobs: Number of worker processes.
        progress: Told of every scene that has to be read.

    Raises:
        MissingFileError: It is neither a raw nor a processed tree, nor an archive.
        ArchiveError: An archive is truncated, damaged at its end, or was written by something else.
        FileError: It cannot be looked into.
        UsageError: Several folders, the same archive twice, or not an address.
        TransferError: An archive is on a web server, which does not give it.
        WorkerDiedError: Worker processes cannot be started.
    """
    if (path := find_folder(places)) is None:
        return read_archives(places, certificates=certificates)
    if identify_tree(path) is ArchiveKind.PROCESSED:
        return read_processed_info(path)
    return read_raw_info(path, jobs=jobs, progress=progress)
