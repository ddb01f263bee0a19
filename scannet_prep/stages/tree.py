"""Tells what a path is."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from scannet_prep.archive.shards import SUFFIX
from scannet_prep.archive.source import ByteSource
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.folder import find_processed_scenes
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.scene import SceneId

_FRAME_MAGIC = (0xFD2FB528).to_bytes(4, "little")


class TreeKind(StrEnum):
    """The kinds of folders that hold scenes."""

    RAW = "raw"
    PROCESSED = "processed"


def is_archive(place: str | Path | ByteSource) -> bool:
    """Whether a place is an archive: an address, or a file by its name or its beginning; no folder is one."""
    if not isinstance(place, str | Path) or (isinstance(place, str) and "://" in place):
        return True  # of addresses that cannot be read, who opens them says so
    path = Path(place)
    if path.name.endswith(SUFFIX):
        return not path.is_dir()
    try:
        with path.open("rb") as file:
            return file.read(len(_FRAME_MAGIC)) == _FRAME_MAGIC
    except OSError:  # who reads it says what is wrong with it
        return False


def identify_tree(path: Path) -> TreeKind:
    """Tell a raw from a processed folder by what is in it.

    Raises:
        MissingFileError: There is nothing, or it is neither.
        FileError: It cannot be looked into.
    """
    if not path.is_dir():
        problem = "is a file, expected a folder or an archive (.tar.zst)" if path.exists() else "no such folder"
        raise MissingFileError(
            path, problem, "give the folder of the raw scenes, or the one that scannet-prep process wrote"
        )
    try:
        if find_processed_scenes(path):
            return TreeKind.PROCESSED
        try:
            find_raw_scenes(path)
        except MissingFileError:
            if (path / MANIFEST_NAME).is_file():
                return TreeKind.PROCESSED
            raise _neither(path) from None
    except PermissionError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error
    return TreeKind.RAW


def _neither(path: Path) -> MissingFileError:
    resolved = path.resolve()
    if SceneId.is_valid(resolved.name):
        hint = f"for a single scene give the folder above it: {path.parent} --scenes {resolved.name}"
    elif resolved.name in {"train", "val", "test"} and any(path.glob("scene*.npz")):
        hint = f"for a single split give the folder above it: {path.parent} --splits {resolved.name}"
    else:
        hint = (
            f"expected {path}/scans/scene*/ as ScanNet has them, or {path}/train/scene*.npz as "
            "scannet-prep process writes them; to see the program at work without ScanNet data: scannet-prep demo"
        )
    return MissingFileError(path, "holds neither raw nor processed scenes", hint)
