"""Opens the archives that are to be unpacked, and refuses what is not safe."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from scannet_prep.archive.foreign import LOOK_BYTES, explain_foreign
from scannet_prep.archive.index import OWN_PREFIX
from scannet_prep.archive.reader import Archive, ArchivedGroup, open_archive
from scannet_prep.archive.safety import check_layout
from scannet_prep.archive.source import ByteSource, open_source
from scannet_prep.errors import ArchiveError, UsageError
from scannet_prep.remote.address import is_url
from scannet_prep.stages.unpack.salvage import LostArchive, walk_archive

_SALVAGE_HINT = "to get out all that is whole, add --salvage; scannet-prep verify says how much that is"


def open_place(item: str | Path | ByteSource, *, certificates: bool | Path = True) -> ByteSource:
    """Open what gives the bytes of an archive.

    Args:
        item: Its path, its address, or an object that reads its bytes.
        certificates: Of an address, whom to trust, as `RangeSource` takes it.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is a folder, or cannot be read.
    """
    path = Path(item) if isinstance(item, str | Path) and not is_url(item) else None
    if path is not None and path.is_dir():
        found = sorted(path.glob("*.tar.zst"))
        hint = (
            f"name the archive in it: {found[0]}" if found else "name an archive (.tar.zst) that scannet-prep pack made"
        )
        raise ArchiveError(path, "is a folder, expected an archive", hint)
    return open_source(item, certificates=certificates)


def open_archives(sources: Sequence[ByteSource], *, is_salvage: bool) -> tuple[list[Archive], list[LostArchive]]:
    """Open archives; with `is_salvage`, those without index are walked through.

    Raises:
        ArchiveError: One is not safe to unpack, of another program, or without `is_salvage` has no whole index.
    """
    opened: list[Archive] = []
    lost: list[LostArchive] = []
    for source in sources:
        try:
            opened.append(_open_archive(source))
        except _LostIndexError as error:
            _explain_source(source)
            if not is_salvage:
                raise ArchiveError(source.name, error.problem, _SALVAGE_HINT) from None
            lost.append(walk_archive(source))
    return opened, lost


class _LostIndexError(ArchiveError):
    """An archive has no whole index."""


def _open_archive(source: ByteSource) -> Archive:
    try:
        archive = open_archive(source)
        check_layout(archive.index)
    except ArchiveError as error:
        raise _LostIndexError(error.path, error.problem) from None
    except ValueError as error:
        raise ArchiveError(source.name, f"is not safe to unpack: {error}", "do not trust where it came from") from None
    return archive


def _explain_source(source: ByteSource) -> None:
    """Tell files of other kinds from archives.

    Raises:
        ArchiveError: It is something else; the hint says what to type.
    """
    explained = explain_foreign(source.read(0, LOOK_BYTES), source.name)
    if explained is not None:
        raise ArchiveError(source.name, *explained)


def join_scenes(archives: Sequence[Archive]) -> dict[str, ArchivedGroup]:
    """All scenes; one that is in two archives must be the same in both."""
    scenes: dict[str, ArchivedGroup] = {}
    for archive in archives:
        for entry in archive.index.scenes:
            other = scenes.setdefault(entry.scene_id, ArchivedGroup(archive, entry))
            if (other.entry.sha256, other.entry.members) != (entry.sha256, entry.members):
                raise UsageError(
                    f"{entry.scene_id} is another one in {archive.name} than in {other.archive.name}",
                    "unpack the two into different folders",
                )
    return dict(sorted(scenes.items()))


def join_files(archives: Sequence[Archive], captured: Collection[str]) -> list[ArchivedGroup]:
    """The groups of files that belong to no scene; a group that has nothing new is left out."""
    known: dict[str, tuple[int, int, str]] = {}
    tasks: list[ArchivedGroup] = []
    for archive in archives:
        has_new = not tasks
        for name, _, size_bytes, crc32 in archive.index.files.members:
            if name.startswith(OWN_PREFIX):
                continue
            *found, where = known.setdefault(name, (size_bytes, crc32, archive.name))
            is_same = found == [size_bytes, crc32]
            if not is_same and name not in captured:
                raise UsageError(
                    f"{name} is another one in {archive.name} than in {where}", "unpack the two into different folders"
                )
            has_new |= not is_same or where == archive.name
        if has_new:
            tasks.append(ArchivedGroup(archive, archive.index.files))
    return tasks
