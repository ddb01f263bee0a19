"""Identify a path as raw or processed scenes, frames, an export or archives, by names alone.

No scene and no archive is opened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from scannet_prep.archive.byte_source import Place
from scannet_prep.base.backports import StrEnum
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import open_file
from scannet_prep.errors import FileError, MissingFileError, UsageError
from scannet_prep.export import is_export
from scannet_prep.processed.folder import iter_processed_scenes
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.raw.lock import LOCK_NAME
from scannet_prep.raw.tree import find_raw_scenes, find_shared_files
from scannet_prep.release.scene import SceneId, Split

_HINT_DEMO = "to try the program without ScanNet data: scannet-prep demo"


class SourceKind(StrEnum):
    """The kind of scenes at a path."""

    RAW = "raw"
    PROCESSED = "processed"
    EXPORT = "export"
    FRAMES = "frames"
    ARCHIVE = "archive"


class Identity(NamedTuple):
    """The kind of a place, and its folder.

    Attributes:
        kind: Its kind.
        folder: The folder; None for archives.
    """

    kind: SourceKind
    folder: Path | None


def identify(
    places: Sequence[Place], *, may_be_export: bool = False, may_be_frames: bool = False
) -> Identity:
    """Identify a place by names alone.

    Args:
        places: A folder; or an archive, or several archives that are read together.
        may_be_export: Whether an export is accepted.
        may_be_frames: Whether a folder of extracted frames is accepted.

    Raises:
        UsageError: There are several folders.
        MissingFileError: It does not exist, or holds neither raw nor processed scenes.
        FileError: It cannot be read.
    """
    folder = find_folder(places)
    if folder is None:
        return Identity(SourceKind.ARCHIVE, folder=None)
    if may_be_export and is_export(folder):
        return Identity(SourceKind.EXPORT, folder)
    if may_be_frames and _is_frame_folder(folder):
        return Identity(SourceKind.FRAMES, folder)
    return Identity(identify_folder(folder), folder)


def find_folder(places: Sequence[Place]) -> Path | None:
    """Return the folder if a single one is given; None for archives.

    A list with an archive is a list of archives: its folders are refused when they are opened.

    Raises:
        UsageError: There are several folders.
    """
    if any(is_archive(place) for place in places):
        return None
    if len(places) != 1:
        raise UsageError("one folder can be read at a time", "name one folder, or several archives")
    return Path(str(places[0])).expanduser()


def is_archive(place: Place) -> bool:
    """Whether a place is read as an archive, like everything that is not a folder.

    A file of another kind is refused when it is opened. A path that does not exist is judged by
    its name.
    """
    if not isinstance(place, str | Path) or "://" in str(place):
        return True
    path = Path(place).expanduser()
    # If access fails, os.path.isdir and exists return False; the methods of Path would raise.
    if os.path.isdir(path):  # noqa: PTH112
        return False
    return path.suffix == ".zst" or os.path.exists(path)  # noqa: PTH110


def identify_folder(path: Path) -> SourceKind:
    """Determine whether a folder holds raw or processed scenes.

    Raises:
        MissingFileError: It holds neither, or is not a folder; the hint suggests what the user
            probably meant.
        FileError: It cannot be read.
    """
    try:
        if not path.is_dir():
            raise _not_a_folder(path)
        refuse_export(path)
        if _is_processed_folder(path):
            return SourceKind.PROCESSED
        if _is_frame_folder(path):
            raise _refuse_frames(path)
        if _is_raw_tree(path):
            return SourceKind.RAW
        raise _without_scenes(path)
    except PermissionError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error


def refuse_export(path: Path) -> None:
    """Refuse a folder that `scannet-prep export` wrote for another program.

    Raises:
        MissingFileError: It is such a folder.
    """
    if is_export(path):
        raise MissingFileError(
            path,
            "is an export, expected raw or processed scenes",
            "give the folder that it was made from; "
            f"to check the export: scannet-prep verify {quote(str(path))}",
        )


def _is_frame_folder(path: Path) -> bool:
    """Whether `scannet-prep frames` made a folder, which may look like a raw tree."""
    # Imported here: training from a processed folder does not need it.
    from scannet_prep.frames.record import is_frame_folder

    return is_frame_folder(path)


def _refuse_frames(path: Path) -> MissingFileError:
    """Return the error for a folder of extracted frames."""
    return MissingFileError(
        path,
        "holds extracted frames, expected raw or processed scenes",
        "give the folder that they were extracted from; "
        f"to check the frames: scannet-prep verify {quote(str(path))}",
    )


def describe_file(path: Path) -> str | None:
    """Describe a regular file by its beginning, such as `a zip file`; None if it is unknown."""
    with suppress(FileError), open_file(path, max_bytes=sys.maxsize) as file:
        return describe_beginning(file.read(BEGINNING_BYTES))
    return None


def _is_processed_folder(path: Path) -> bool:
    """Whether a folder holds processed scenes or a manifest."""
    if next(iter_processed_scenes(path), None) is not None:
        return True
    return (path / MANIFEST_NAME).is_file()


def _is_raw_tree(path: Path) -> bool:
    """Whether a folder holds raw scenes, other files of the release, or a record of a download."""
    if find_raw_scenes(path, may_be_empty=True) or find_shared_files(path):
        return True
    return (path / LOCK_NAME).is_file()


def _not_a_folder(path: Path) -> MissingFileError:
    """Return the error for a path that is not a folder, with a hint that depends on its kind."""
    if not path.exists():
        return MissingFileError(
            path,
            "no such folder",
            "raw scenes come from scannet-prep download, "
            f"processed ones from scannet-prep process; {_HINT_DEMO}",
        )
    kind = describe_file(path)
    if kind == "a zstd file":
        command = f"scannet-prep unpack {quote(str(path))}"
        return MissingFileError(path, "is an archive, expected a folder", f"unpack it: {command}")
    if kind is None:
        kind = "a file" if path.is_file() else "not a regular file"
    return MissingFileError(
        path,
        f"is {kind}, expected a folder",
        "give the folder of the raw scenes, or the one that scannet-prep process wrote",
    )


def _without_scenes(path: Path) -> MissingFileError:
    """Return the error for a folder without scenes.

    If it is the folder of a split or of a scene, the hint suggests the folder above it.
    """
    problem = "holds neither raw nor processed scenes"
    resolved = path.resolve()
    is_split = resolved.name in set(Split) and any(path.glob("*.npz"))
    if is_split or SceneId.is_of_release(resolved.name):
        part = "split" if is_split else "scene"
        parent = quote(str(resolved.parent))
        hint = f"for a single {part} give the folder above it, {parent}, and choose {resolved.name}"
        return MissingFileError(path, problem, hint)
    return MissingFileError(
        path,
        problem,
        f"expected {path}/scans/scene*/ as ScanNet has them, "
        f"or {path}/train/scene*.npz as scannet-prep process writes them; {_HINT_DEMO}",
    )
