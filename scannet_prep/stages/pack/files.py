"""Finds the files of a folder that is to be packed, and says which scene each belongs to."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.contents import SourceFile
from scannet_prep.archive.index import OWN_PREFIX, check_member_name, find_scene_id
from scannet_prep.archive.shards import SUMS_NAME, is_shard
from scannet_prep.errors import MissingFileError, SourceError
from scannet_prep.files import is_hidden_or_temporary

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}-\d+-\d*\.[0-9a-f]{8}\.tmp", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """What lies in a folder.

    Attributes:
        files: The files that belong to no scene, sorted by name.
        scenes: The files of each scene, sorted; the scenes sorted by id.
        left_out: Files that are not packed: hidden ones, and what interrupted programs left.
    """

    files: tuple[SourceFile, ...]
    scenes: dict[str, tuple[SourceFile, ...]]
    left_out: tuple[Path, ...]


def find_files(source: Path, target: Path | None, *, takes_hidden: bool) -> FoundFiles:
    """Find all files of a folder, through links.

    Args:
        source: The folder.
        target: The archive that is going to be written; it is left out, with its shards, where it lies in the folder.
        takes_hidden: Whether files are packed that begin with a dot or with `tmp`, which in a raw or a processed folder
            are leftovers of other programs.

    Raises:
        SourceError: Something is neither file nor folder, cannot be read, or has a name that no archive can hold.
        MissingFileError: A link leads nowhere.
    """
    by_group: dict[str, list[SourceFile]] = {}
    left_out: list[Path] = []
    for name, path in _walk(source):
        if _TEMPORARY.fullmatch(path.name) or (not takes_hidden and _is_leftover(name)):
            left_out.append(path)
        elif not name.startswith(OWN_PREFIX) and not (target is not None and _is_own(path, target)):
            _check_name(name, path)
            by_group.setdefault(find_scene_id(name) or "", []).append(SourceFile.from_path(name, path))
    groups = {
        scene_id: tuple(sorted(files, key=lambda file: file.name)) for scene_id, files in sorted(by_group.items())
    }
    return FoundFiles(groups.pop("", ()), groups, tuple(sorted(left_out)))


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files below a folder, with their names relative to it."""
    pending: list[tuple[str, Path, frozenset[tuple[int, int]]]] = [("", folder, frozenset())]
    while pending:
        prefix, directory, above = pending.pop()
        try:
            status = directory.stat()
            entries = list(os.scandir(directory))
        except OSError as error:
            raise SourceError(directory, f"cannot be read: {error.strerror or error}") from error
        identity = status.st_dev, status.st_ino
        if identity in above:
            raise SourceError(directory, "is a link to a folder that contains it", "remove the link")
        for entry in entries:
            path, name = Path(entry.path), prefix + entry.name
            try:
                mode = entry.stat().st_mode
            except FileNotFoundError:
                raise MissingFileError(path, "is a link that leads nowhere, or was just removed") from None
            except OSError as error:
                raise SourceError(path, f"cannot be read: {error.strerror or error}") from error
            if stat.S_ISDIR(mode):
                pending.append((f"{name}/", path, above | {identity}))
            elif stat.S_ISREG(mode):
                yield name, path
            else:
                raise SourceError(path, "is neither file nor folder", "move it elsewhere, then pack again")


def _is_leftover(name: str) -> bool:
    return any(is_hidden_or_temporary(part) for part in name.split("/"))


def _is_own(path: Path, target: Path) -> bool:
    """Whether a file is the archive that is written, one of its shards, or their sums."""
    if path.is_symlink() and path.resolve() == target.resolve():
        return True
    is_named_so = path.name in {target.name, SUMS_NAME} or is_shard(path, target)
    return is_named_so and path.parent.resolve() == target.parent.resolve()


def _check_name(name: str, path: Path) -> None:
    try:
        name.encode()
        check_member_name(name)
    except ValueError as error:
        reason = "its name is not UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
        raise SourceError(path, f"cannot be packed: {reason}", "rename it") from None
