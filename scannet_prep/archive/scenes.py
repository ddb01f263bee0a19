"""Reads the scenes of one or several archives for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.frames import decompress_into
from scannet_prep.archive.index import ArchiveKind, GroupEntry, MemberEntry
from scannet_prep.archive.reader import Archive, open_archive
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.archive.source import ByteSource, FileSource
from scannet_prep.archive.tar import encode_header
from scannet_prep.errors import ArchiveError, ManifestError, UsageError
from scannet_prep.processed.folder import UNFINISHED_NAME
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry, parse_manifest
from scannet_prep.processed.reader import check_split, warn_of_failures
from scannet_prep.processed.scene_source import SceneSource
from scannet_prep.scene import Split

# What a sample shows of how it was made; scenes that differ in it do not belong into one dataset.
_VISIBLE_OPTIONS = ("align_axis", "labels_from")
_DAMAGED_HINT = "scannet-prep verify names all that is damaged; unpack gets out what is whole"
_UNPACK_HINTS = {
    ArchiveKind.RAW: "unpack it and make processed scenes: scannet-prep unpack {0} -o data/ScanNet, then scannet-prep "
    "process, then scannet-prep pack",
    ArchiveKind.FILES: "pack a folder that scannet-prep process made: scannet-prep pack data/processed",
}


class _Place(NamedTuple):
    """Where a file lies.

    Attributes:
        source: Number of the archive.
        offset: First byte of its group in the archive.
        stored_bytes: Size of the frames of the group.
        stored_crc32: CRC-32 of them.
        size_bytes: Size of the tar bytes of the group.
        first_frame: First of its frames, counted through all archives.
        frame_count: Number of its frames.
        start: First byte of the file in the tar bytes.
        end: The byte after the last.
    """

    source: int
    offset: int
    stored_bytes: int
    stored_crc32: int
    size_bytes: int
    first_frame: int
    frame_count: int
    start: int
    end: int


class ArchiveReader(SceneSource):
    """The scenes of one split of an archive, or of several together.

    Of what the archives say about themselves, only a few numbers for each scene of the split are kept, in arrays.

    Args:
        archives: Paths, addresses, or objects that read the bytes; in any order.
        split: Which split.
        is_list: Whether they were named as a list, for messages.

    Raises:
        MissingFileError: There is no such archive.
        ArchiveError: An archive is damaged, holds no processed scenes, or does not go together with the others; or a
            shard of a set is missing.
        ManifestError: Processing had not finished when it was packed.
        UnknownSplitError: There are no scenes of that split.
        UsageError: There is no archive, or it has no address.
        TransferError: It is on a web server, which does not give it.
    """

    def __init__(self, archives: Sequence[str | Path | ByteSource], split: Split, *, is_list: bool = True) -> None:
        if not archives:
            raise UsageError("the list of archives is empty", "name a folder, an archive, or all of its shards")
        opened = [open_archive(archive) for archive in archives]
        names = [archive.name for archive in opened]
        _check_archives(opened)
        found = sorted(
            (scene.scene_id, number, scene)
            for number, archive in enumerate(opened)
            for scene in archive.index.scenes
            if scene.split == split
        )
        vertex_counts = {name: scene.vertex_count for name, _, scene in found}
        failures = {
            scene_id: message
            for archive in opened
            for scene_id, message in archive.index.failures.items()
            if scene_id not in vertex_counts
        }
        super().__init__(names if is_list else names[0], split, vertex_counts, failures)
        present = {scene.split for archive in opened for scene in archive.index.scenes}
        check_split(self.name, split, present, f"pack them: scannet-prep process --splits {split}, then pack again")
        self._sources = [archive.source for archive in opened]
        self._frames = np.concatenate([_frame_sizes(archive) for archive in opened])
        self._scenes = _find_places(opened, [(number, scene, f"{split}/{name}.npz") for name, number, scene in found])
        self._manifests = _find_places(
            opened,
            [
                (number, archive.index.files, MANIFEST_NAME)
                for number, archive in enumerate(opened)
                if _find_member(archive.index.files, MANIFEST_NAME) is not None
            ],
        )
        if failures:
            warn_of_failures(self.name, failures, f"scannet-prep info {names[0]} lists them")

    def file_path(self, index: int) -> str:
        """The file of a scene, for messages."""
        return f"{self._sources[self._scenes[index, 0]].name}: {self._member_name(index)}"

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        return f"make it with scannet-prep process --scenes {scene_id}, then scannet-prep pack again"

    def read(self, index: int) -> memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable.

        Raises:
            MissingFileError: The archive is gone.
            ArchiveError: The scene is damaged, or the archive is no longer the one that was opened.
            TransferError: The archive is on a web server, which does not give it.
        """
        return self._read_file(_Place(*self._scenes[index].tolist()), self._member_name(index), self.scene_id(index))

    def count_raw_ids(self, raw_ids_key: Literal["nyu40_ids", "scannet_ids"]) -> list[Mapping[int, int]] | None:
        """Vertices of each scene by raw id, from the manifests; None where they do not tell.

        Raises:
            ManifestError: A manifest is damaged.
            ArchiveError: It cannot be read.
            TransferError: The archive is on a web server, which does not give it.
        """
        names = self.scene_ids
        entries: dict[str, SceneEntry] = {}
        for place in map(_Place._make, self._manifests.tolist()):
            if entries.keys() >= set(names):
                break  # the shards of a set have all the same manifest
            data = bytes(self._read_file(place, MANIFEST_NAME, MANIFEST_NAME))
            manifest = parse_manifest(data, f"{self._sources[place.source].name}: {MANIFEST_NAME}")
            entries.update(manifest.scenes)
        if not entries.keys() >= set(names):
            return None
        is_nyu40 = raw_ids_key == "nyu40_ids"
        return [entries[name].nyu40_counts if is_nyu40 else entries[name].scannet_counts for name in names]

    def close(self) -> None:
        """Close the archives; reading opens them again."""
        for source in self._sources:
            source.close()

    def _member_name(self, index: int) -> str:
        return f"{self._split}/{self.scene_id(index)}.npz"

    def _read_file(self, place: _Place, name: str, subject: str) -> memoryview:
        """Read a file: one range of the archive, checked by the CRC-32 of all its bytes in the index.

        That covers the checksums of the frames, too. Whoever reads the file compares the CRC-32 in it with the content.
        """
        source = self._sources[place.source]
        if isinstance(source, FileSource):
            stored = np.empty(place.stored_bytes, np.uint8).data  # unlike a bytearray, not cleared first
            stored = stored[: source.read_into(place.offset, stored)]
        else:
            stored = memoryview(bytearray(source.read(place.offset, place.stored_bytes)))
        try:
            return self._decompress(place, name, stored)
        except ValueError as error:
            raise ArchiveError(source.name, f"{subject}: is damaged: {error}", _DAMAGED_HINT) from None

    def _decompress(self, place: _Place, name: str, stored: memoryview) -> memoryview:
        if len(stored) != place.stored_bytes:
            raise ValueError(f"the archive ends after {len(stored):,} of its {place.stored_bytes:,} bytes")
        if deflate.crc32(stored) != place.stored_crc32:
            raise ValueError("its bytes have not the CRC-32 that the index names")
        content = np.empty(place.size_bytes, np.uint8).data
        offset = position = 0
        frames = self._frames[place.first_frame : place.first_frame + place.frame_count]
        for stored_bytes, size_bytes in frames.tolist():
            target = content[position : position + size_bytes]
            decompress_into(stored[offset : offset + stored_bytes], target, is_proven=True)
            offset, position = offset + stored_bytes, position + size_bytes
        header = encode_header(name, place.end - place.start)
        if content[place.start - len(header) : place.start] != header:
            raise ValueError(f"{name} does not lie where the index says")
        return content[place.start : place.end]


def _frame_sizes(archive: Archive) -> NDArray[np.int64]:
    """Sizes of all frames of an archive, in the file and of their content, int64 (n, 2)."""
    return np.stack([np.diff(archive.table.offsets), archive.table.sizes], axis=1)


def _find_places(archives: Sequence[Archive], wanted: Sequence[tuple[int, GroupEntry, str]]) -> NDArray[np.int64]:
    """Find files: a `_Place` in each row, int64 (n, 9).

    Args:
        archives: All archives.
        wanted: Of each file the number of its archive, its group and its name.
    """
    members: list[MemberEntry] = []
    for number, group, name in wanted:
        member = _find_member(group, name)
        if member is None:
            raise ArchiveError(archives[number].name, f"{group.name}: has no file {name}", "pack it again")
        members.append(member)
    first_frames = np.cumsum([0, *(len(archive.table) for archive in archives)]).tolist()
    columns = {
        "source": [number for number, _, _ in wanted],
        "offset": [group.offset for _, group, _ in wanted],
        "stored_bytes": [group.stored_bytes for _, group, _ in wanted],
        "stored_crc32": [group.stored_crc32 for _, group, _ in wanted],
        "size_bytes": [group.size_bytes for _, group, _ in wanted],
        "first_frame": [first_frames[number] + group.first_frame for number, group, _ in wanted],
        "frame_count": [group.frame_count for _, group, _ in wanted],
        "start": [member.offset for member in members],
        "end": [member.offset + member.size_bytes for member in members],
    }
    return np.array([columns[name] for name in _Place._fields], np.int64).T.copy()


def _find_member(group: GroupEntry, name: str) -> MemberEntry | None:
    for member in group.members:
        if member.name == name:
            return member
    return None


def _check_archives(archives: Sequence[Archive]) -> None:
    """Check that archives hold processed scenes, all that belong to them, and go together."""
    first = archives[0]
    for archive in archives:
        index = archive.index
        if index.head.kind is not ArchiveKind.PROCESSED:
            raise ArchiveError(
                archive.name,
                f"holds {'raw scenes' if index.head.kind is ArchiveKind.RAW else 'files'}, not processed scenes",
                _UNPACK_HINTS[index.head.kind].format(archive.name),
            )
        if _find_member(index.files, UNFINISHED_NAME) is not None:
            raise ManifestError(
                f"{archive.name}: {UNFINISHED_NAME}",
                "says that processing had not finished when it was packed",
                "run the same scannet-prep process command again, then scannet-prep pack",
            )
        for key in _VISIBLE_OPTIONS:
            mine, theirs = first.index.head.options.get(key), index.head.options.get(key)
            if mine != theirs:
                raise ArchiveError(
                    archive.name,
                    f"holds scenes that were made with {key}={theirs}, those of {first.name} with {key}={mine}",
                    "name archives whose scenes were made with the same options",
                )
        if any(not scene.vertex_count for scene in index.scenes):
            raise ArchiveError(archive.name, "does not say how many vertices its scenes have", "pack it again")
    _check_sets(archives)
    _check_overlap(archives)


def _check_sets(archives: Sequence[Archive]) -> None:
    missing = find_missing_shards(archive.name for archive in archives)
    if missing:
        raise ArchiveError(
            archives[0].name,
            f"belongs to a set of shards, of which {PurePosixPath(missing[0]).name} is missing",
            "name all shards: ScanNet(sorted(glob.glob('...-of-...tar.zst')), ...); a part that is to be used alone "
            "needs a name of its own",
        )


def _check_overlap(archives: Sequence[Archive]) -> None:
    holders: dict[str, int] = {}
    for number, archive in enumerate(archives):
        for scene in archive.index.scenes:
            holder = holders.setdefault(scene.scene_id, number)
            if holder != number:
                problem = f"holds {scene.scene_id}, and so does {archives[holder].name}"
                raise ArchiveError(archive.name, problem, "name only one of them")
