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
from scannet_prep.export import is_export
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source.scenes import (
    Place,
    PlaceKind,
    ProcessedArchive,
    ProcessedFolder,
    ProcessedScenes,
)

_HINT_PLACE = (
    "give a folder with raw or processed scenes, or an archive; "
    "to try the program without ScanNet data: scannet-prep demo"
)
_HINT_ABOVE = "give the folder above, and choose the split or the scene by --splits or --scenes"
# What a place holds instead of processed scenes, and how to get these.
_OTHERS = {
    "raw": ("raw scenes", "process them: scannet-prep process"),
    "archive": ("raw scenes", "unpack and process them: scannet-prep unpack"),
    "frames": ("extracted frames", "give the folder of the processed scenes"),
}


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
    if is_export(path):
        problem = "is an export for another program, expected raw or processed scenes"
        raise MissingFileError(path, problem, "give the folder that it was made from")
    if os.path.isfile(path / MANIFEST_NAME):  # noqa: PTH113
        return "processed"
    return _find_kind_of_tree(path)


def _find_kind_of_tree(path: Path) -> PlaceKind:
    """Determine what a folder of scene folders is."""
    from scannet_prep.frames.record import find_records
    from scannet_prep.raw.lock import LOCK_NAME
    from scannet_prep.raw.tree import find_raw_scenes, find_shared_files

    if find_records(path):
        return "frames"
    if find_raw_scenes(path, may_be_empty=True) or find_shared_files(path):
        return "raw"
    if (path / LOCK_NAME).is_file():
        return "raw"
    hint = _HINT_PLACE
    name = path.resolve().name
    if SceneId.is_of_release(name) or (name in set(Split) and any(path.glob("*.npz"))):
        hint = _HINT_ABOVE
    raise MissingFileError(path, "holds neither raw nor processed scenes", hint)


def open_place(place: str | Path) -> Place:
    """Open a raw tree, a processed folder, an archive, or extracted frames.

    Args:
        place: Its path, or the address of an archive.

    Raises:
        MissingFileError: It does not exist, or is a folder without scenes.
        FileError: It cannot be read, or is of another program.
        TransferError: A server does not send the archive.
    """
    kind = find_kind(place)
    path = Path(place).expanduser()
    if kind == "processed":
        return ProcessedFolder(path)
    if kind == "archive":
        from scannet_prep.archive.format import Archive
        from scannet_prep.archive.sources import open_source

        archive = Archive(open_source(place))
        if archive.index.kind == "processed":
            return ProcessedArchive(archive)
    from scannet_prep.source.trees import Frames, RawArchive, RawTree

    if kind == "archive":
        return RawArchive(archive)
    return RawTree(path) if kind == "raw" else Frames(path)


def open_processed(place: str | Path) -> ProcessedScenes:
    """Open a processed folder or an archive of one, to use its scenes.

    Args:
        place: Its path, or the address of an archive.

    Raises:
        MissingFileError: It is something else.
        FileError: Processing has not finished, or see `open_place`.
        TransferError: See `open_place`.
    """
    opened = open_place(place)
    if not isinstance(opened, ProcessedScenes):
        content, hint = _OTHERS[opened.kind]
        raise MissingFileError(opened.name, f"holds {content}, expected processed scenes", hint)
    if opened.fault is not None:
        raise opened.fault
    return opened
