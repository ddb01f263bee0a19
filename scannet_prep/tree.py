"""Tells what a path is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.source import SUFFIX, ByteSource
from scannet_prep.base.errors import FileError, MissingFileError, UsageError
from scannet_prep.base.file_kinds import LOOK_BYTES, describe_beginning
from scannet_prep.base.files import open_file
from scannet_prep.export import is_export
from scannet_prep.processed.folder import iter_processed_scenes
from scannet_prep.processed.manifest import MANIFEST_NAME
from scannet_prep.raw.layout import find_raw_scenes, find_shared_files
from scannet_prep.raw.lock import LOCK_NAME
from scannet_prep.release.scene import SceneId, Split

_DEMO = "to try the program without ScanNet data: scannet-prep demo"


def is_archive(place: str | Path | ByteSource) -> bool:
    """Whether a place is an archive: an address, or a file by its name or its beginning; a folder is not one."""
    if not isinstance(place, str | Path) or (isinstance(place, str) and "://" in place):
        return True  # of addresses that cannot be read, who opens them says so
    path = Path(place)
    if path.name.endswith(SUFFIX):
        return not path.is_dir()
    return describe_beginning(_read_start(path)) == "a zstd file"


def find_folder(places: Sequence[str | Path | ByteSource]) -> Path | None:
    """The folder that is meant; None for archives, of which several may be the shards of one.

    Raises:
        UsageError: There are several folders.
    """
    if any(map(is_archive, places)):
        return None
    if len(places) != 1:
        raise UsageError("one folder can be read at a time", "name one folder, or several archives")
    return Path(str(places[0])).expanduser()


def identify_tree(path: Path) -> ArchiveKind:
    """Tell a raw from a processed folder by what is in it.

    Raises:
        MissingFileError: There is nothing, or it is neither; the hint says what was probably meant.
        FileError: It cannot be looked into.
    """
    try:
        if not path.is_dir():
            raise _not_a_folder(path)
        check_is_no_export(path)
        if next(iter_processed_scenes(path), None) or (path / MANIFEST_NAME).is_file():
            return ArchiveKind.PROCESSED
        if not _is_raw_tree(path):
            raise _neither(path)
    except PermissionError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error
    return ArchiveKind.RAW


def _is_raw_tree(path: Path) -> bool:
    """Whether a folder holds raw scenes, other files of the release, or the record of a download."""
    if find_raw_scenes(path, may_be_empty=True):
        return True
    return bool(find_shared_files(path)) or (path / LOCK_NAME).is_file()


def check_is_no_export(place: object) -> None:
    """Refuse what `scannet-prep export` made for another program: scenes are not read from it.

    Raises:
        MissingFileError: It is a folder of that kind.
    """
    if isinstance(place, str | Path) and is_export(Path(place)):
        hint = f"give the folder that it was made from; to check the export: scannet-prep verify {quote(str(place))}"
        raise MissingFileError(Path(place), "is an export, expected raw or processed scenes", hint)


def _not_a_folder(path: Path) -> MissingFileError:
    if not path.exists():
        whence = (
            "raw scenes come from scannet-prep download, processed ones from scannet-prep process"
        )
        problem, hint = "no such folder", f"{whence}; {_DEMO}"
    elif is_archive(path):
        problem, hint = (
            "is an archive, expected a folder",
            f"unpack it: scannet-prep unpack {quote(str(path))}",
        )
    else:
        found = (
            (describe_beginning(_read_start(path)) or "a file")
            if path.is_file()
            else "not a regular file"
        )
        problem = f"is {found}, expected a folder or an archive ({SUFFIX})"
        hint = "give the folder of the raw scenes, or the one that scannet-prep process wrote"
    return MissingFileError(path, problem, hint)


def _neither(path: Path) -> MissingFileError:
    resolved = path.resolve()
    is_split = resolved.name in set(Split) and any(path.glob("scene*.npz"))
    if is_split or SceneId.is_valid(resolved.name):
        what, above = "split" if is_split else "scene", quote(str(resolved.parent))
        hint = f"for a single {what} give the folder above it, {above}, and choose {resolved.name}"
    else:
        processed = f"{path}/train/scene*.npz as scannet-prep process writes them"
        hint = f"expected {path}/scans/scene*/ as ScanNet has them, or {processed}; {_DEMO}"
    return MissingFileError(path, "holds neither raw nor processed scenes", hint)


def _read_start(path: Path) -> bytes:
    """The beginning of a regular file; nothing of anything else: who reads it says what is wrong with it."""
    with suppress(FileError), open_file(path, 1 << 60) as file:
        return file.read(LOOK_BYTES)
    return b""
