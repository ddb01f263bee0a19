"""Open a place: determine what a path or an address is, and list its scenes.

    address, or a file                                          archive
    folder with manifest.json                                   processed
    folder with <scene>/frames.json                             frames
    folder with scans/, scans_test/, <scene>/ or scannet.lock   raw

The kind is found by names alone. What a place is made of is imported when it is opened, since
training from a folder needs neither an archive nor raw files.
"""

from __future__ import annotations

import os
from pathlib import Path

from scannet_prep.errors import MissingFileError
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.source.scenes import (
    PackedScenes,
    Place,
    PlaceKind,
    ProcessedArchive,
    ProcessedFolder,
    ProcessedScenes,
)

_HINT_PLACE = (
    "give an archive, or the folder above those of the splits and scenes; "
    "to try the program without ScanNet data: scannet-prep demo"
)
_HINT_PROCESSED = (
    "give a folder that scannet-prep process wrote, or an archive of it; "
    "raw scenes have to be unpacked and processed first"
)


def find_kind(place: str | Path) -> PlaceKind:
    """Determine what a path or an address is, by names alone.

    Raises:
        MissingFileError: It does not exist, or is a folder without scenes.
        FileError: It cannot be read.
    """
    path = Path(place).expanduser()
    if "://" in str(place):
        return "archive"
    # If access fails, the functions of os.path return False; the methods of Path would raise.
    if not os.path.isdir(path):  # noqa: PTH112
        if os.path.lexists(path):
            return "archive"
        raise MissingFileError(path, "no such file or folder", _HINT_PLACE)
    if os.path.isfile(path / MANIFEST_NAME):  # noqa: PTH113
        return "processed"

    from scannet_prep.frames.record import find_records
    from scannet_prep.raw.lock import LOCK_NAME
    from scannet_prep.raw.tree import list_raw

    if find_records(path):
        return "frames"
    listing = list_raw(path, may_be_empty=True)
    if listing.scenes or listing.shared or (path / LOCK_NAME).is_file():
        return "raw"
    raise MissingFileError(path, "holds neither raw nor processed scenes", _HINT_PLACE)


def open_place(place: str | Path) -> Place:
    """Open a raw tree, a processed folder, an archive, or extracted frames.

    Args:
        place: Its path, or the address of an archive.

    Raises:
        MissingFileError: It does not exist, or is a folder without scenes.
        FileError: It cannot be read, is of another program, or its processing has not finished.
        TransferError: A server does not send the archive.
    """
    kind = find_kind(place)
    path = Path(place).expanduser()
    if kind == "processed":
        return ProcessedFolder(path)
    if kind == "archive":
        from scannet_prep.archive.format import open_archive

        archive = open_archive(place)
        is_processed = archive.index.kind == "processed"
        return ProcessedArchive(archive) if is_processed else PackedScenes(archive)
    from scannet_prep.source.trees import Frames, RawTree

    return RawTree(path) if kind == "raw" else Frames(path)


def open_processed(place: str | Path) -> ProcessedScenes:
    """Open a processed folder or an archive of one, to use its scenes.

    Args:
        place: Its path, or the address of an archive.

    Raises:
        MissingFileError: It is something else.
        FileError, TransferError: As `open_place`.
    """
    opened = open_place(place)
    if not isinstance(opened, ProcessedScenes):
        problem = "holds raw scenes or extracted frames, expected processed scenes"
        raise MissingFileError(opened.name, problem, _HINT_PROCESSED)
    return opened
