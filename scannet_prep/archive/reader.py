"""Opens archives by their ends, the seek table, then the index, then any file; and reads scenes for training so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from scannet_prep.archive import frames, layout
from scannet_prep.archive.layout import ArchiveKind, Index, Member, StoredGroup
from scannet_prep.archive.source import SUFFIX, ByteSource, Place, find_missing_shards, open_source
from scannet_prep.base.errors import ArchiveError, ContentError, ForeignFileError, UsageError
from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.base.files import Buffer
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry, parse_manifest
from scannet_prep.processed.npz import FORCE_HINT
from scannet_prep.processed.reader import SceneSource
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessOptions, describe_other_format
from scannet_prep.release.scene import Split

LOOK_BYTES = 1 << 18

DAMAGED_HINT = (
    "copy the archive again, or pack it again: scannet-prep pack --force; "
    "to recover everything that is whole: scannet-prep unpack"
)
_HINTS = {
    "empty": "copy it again, or pack it again: scannet-prep pack",
    "a web page": "open it in a browser: it may ask for a login; then fetch the archive again",
    "a zip file": "unzip {}",
    "a 7z file": "7z x {}",
    "a zstd file": "zstd -d {}",
    **dict.fromkeys(("a tar file", "a gzip file"), "tar -xf {}"),
}


class Archive:
    """An archive whose index has been read; takes what `open_source` does.

    Attributes:
        source: Its bytes.
        name: Path or address.
        index: What is in it.
        index_row: What the seek table has to say of the frame that holds the index.
        end: The byte after that frame.

    Raises:
        ArchiveError: It is truncated, damaged at its end, or was written by something else.
        ScanNetPrepError: What `open_source` raises.
    """

    def __init__(self, place: Place, *, certificates: bool | Path = True) -> None:
        self.source = open_source(place, certificates=certificates)
        self.name = self.source.name
        try:
            offset, stored_bytes, count = frames.find_index(self.source)
            self.end = offset + stored_bytes
            stored = self.source.read(offset, stored_bytes)
            self.index, self.index_row = (
                decode_index(stored, count, offset),
                frames.seek_row(stored),
            )
        except ContentError as error:
            check_beginning(self.source.read(0, LOOK_BYTES), self.name)
            raise ArchiveError(
                self.name, f"is damaged or truncated: {error.message}", DAMAGED_HINT
            ) from None

    def read_member(self, group: StoredGroup, member: Member) -> memoryview:
        """Read a file: one range of the archive, into memory that is nobody else's and writable.

        Raises:
            ArchiveError: Neither the checksum of its frame holds nor its SHA-256, or the archive cannot be read.
            TransferError: The archive is on a web server, which does not give it.
        """
        try:
            content, has_checksum = frames.decompress(
                read_stored(self.source, group), group.size_bytes
            )
            data = member.of(content)
            if not has_checksum:
                member.check(data)
        except ContentError as error:
            raise ArchiveError(
                self.name, f"{group.name}: is damaged: {error.message}", DAMAGED_HINT
            ) from None
        return data


def open_archives(places: Sequence[Place], *, certificates: bool | Path = True) -> list[Archive]:
    """Open archives that are to be read together; a scene that is in two of them is a `UsageError`."""
    archives = [Archive(place, certificates=certificates) for place in places]
    layout.check_held_once(
        (item.name, [scene.scene_id for scene in item.index.scenes]) for item in archives
    )
    return archives


def decode_index(stored: Buffer, frame_count: int, offset: int) -> Index:
    """Read the index from its frame, before which others lie; a `ContentError` where it is damaged, or of others."""
    if (size_bytes := frames.read_size(stored)) > layout.MAX_INDEX_BYTES:
        raise ContentError(
            f"the index is said to have {size_bytes:,} bytes, at most {layout.MAX_INDEX_BYTES:,}"
        )
    content, has_checksum = frames.decompress(stored, size_bytes)
    member, *more = layout.read_members(content)
    if not has_checksum or more or member.name != layout.INDEX_NAME:
        raise ContentError("the index is damaged: its checksum does not hold")
    index = layout.parse_index(bytes(member.of(content)))
    if (len(index.groups), index.end) != (frame_count, offset):
        found = f"{len(index.groups):,} frames of {index.end:,} bytes"
        raise ContentError(
            f"the index names {found}, the archive has {frame_count:,} of {offset:,}"
        )
    return index


def read_stored(source: ByteSource, group: StoredGroup) -> bytes:
    """Read the frame of a group; a `ContentError` where the file ends first."""
    stored = source.read(group.offset, group.stored_bytes)
    if len(stored) < group.stored_bytes:
        raise ContentError(
            f"the archive ends after {len(stored):,} of its {group.stored_bytes:,} bytes"
        )
    return stored


def check_beginning(start: bytes, name: str) -> None:
    """Refuse a file that begins as no archive of this version does, by `LOOK_BYTES` of it, or all there is.

    Raises:
        ForeignFileError: It is of another kind; says which.
        ArchiveError: It is empty.
    """
    what = describe_beginning(start) or "a file of another kind"
    problem = f"is {what}, not an archive of this program ({SUFFIX})"
    hint = _HINTS.get(what, "name one that scannet-prep pack made")
    if what == "a zstd file":
        content = frames.decompress_start(start, 8 * layout.BLOCK_BYTES)
        # The first file has a name of this program's, and is JSON; a tar of a processed folder names it elsewhere.
        is_own_text = content[layout.BLOCK_BYTES :].startswith(b"{") and b"scannet-prep" in content
        if not content or content.startswith(layout.OWN_PREFIX.encode()) or is_own_text:
            return  # one of ours, or damaged: who reads it says where
        if describe_beginning(content) == "a tar file":
            problem, hint = "is a .tar.zst of another program", "tar --zstd -xf {}"
    kind = ArchiveError if what == "empty" else ForeignFileError
    raise kind(name, problem, hint.format(quote(name)))


def _read_shared_options(archives: Sequence[Archive]) -> ProcessOptions:
    """Read the options of the scenes of archives, which must all be the same.

    Raises:
        ArchiveError: They differ, or an archive does not record them.
    """
    first = archives[0]
    options = first.index.head.options
    if options is None:
        raise ArchiveError(
            first.name, "does not record the options of its scenes", "pack the folder again"
        )
    for archive in archives[1:]:
        others = archive.index.head.options
        if others != options:
            flags = others.flags if others is not None else "unknown options"
            problem = (
                f"holds scenes that were made with {flags}, but {first.name} with {options.flags}"
            )
            raise ArchiveError(
                archive.name, problem, "name archives whose scenes were made with the same options"
            )
    return options


class ArchiveReader(SceneSource):
    """The scenes of one split of an archive, or of several together.

    Of what the archives say about themselves, only where the files of the split lie is kept.

    Args:
        archives: Paths, addresses, or objects that read the bytes; in any order.
        split: Which split; None for all.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        ArchiveError: An archive is damaged, holds no processed scenes, or does not go together with the others; or a
            shard of a set is missing.
        UsageError: There are no scenes of that split.
        ScanNetPrepError: What `open_archives` raises.
    """

    def __init__(
        self, archives: Sequence[Place], split: Split | None, *, certificates: bool | Path = True
    ) -> None:
        if not archives:
            raise UsageError(
                "the list of archives is empty", "name a folder, an archive, or all of its shards"
            )
        opened = open_archives(archives, certificates=certificates)
        for archive in opened:
            if archive.index.head.kind is not ArchiveKind.PROCESSED:
                hint = f"scannet-prep unpack {quote(archive.name)}, then scannet-prep process, and pack again"
                raise ArchiveError(archive.name, "holds raw scenes, not processed ones", hint)
            if archive.index.head.scene_format != FORMAT_VERSION:
                problem = describe_other_format(archive.index.head.scene_format)
                raise ArchiveError(archive.name, problem, f"{FORCE_HINT}, and pack it again")
        options = _read_shared_options(opened)
        names = [archive.name for archive in opened]
        if missing := find_missing_shards(names):
            hint = "name all shards: sorted(glob.glob('...-of-...tar.zst')); a part to be used alone needs another name"
            raise ArchiveError(
                names[0], f"belongs to a set of shards, of which {missing[0]} is missing", hint
            )
        held = {
            scene.scene_id: (archive, scene) for archive in opened for scene in archive.index.scenes
        }
        failures = {
            name: text for archive in opened for name, text in archive.index.failures.items()
        }
        scenes = {name: (scene.split, scene.vertex_count) for name, (_, scene) in held.items()}
        place = names if len(names) > 1 else names[0]
        super().__init__(place, options, scenes, failures, split, ", then scannet-prep pack again")
        self._scenes, self._archives = {name: held[name] for name in self.lengths}, opened
        for archive in opened:  # of the groups, only those of the split stay
            archive.index = replace(archive.index, groups=archive.index.groups[:1])

    def file_path(self, scene_id: str) -> str:
        """The file of a scene, for messages."""
        archive, scene = self._scenes[scene_id]
        return f"{archive.name}: {scene.members[0].name}"

    def read(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable."""
        archive, scene = self._scenes[scene_id]
        return archive.read_member(scene, scene.members[0])

    def read_entries(self) -> Mapping[str, SceneEntry]:
        """What the manifests say of scenes, at least of these; less where there are none."""
        entries = dict[str, SceneEntry]()
        for archive in self._archives:
            files = archive.index.groups[0]
            for member in files.members:
                # The shards of a set have all the same manifest.
                if member.name == MANIFEST_NAME and not entries.keys() >= self.lengths.keys():
                    data = bytes(archive.read_member(files, member))
                    entries |= parse_manifest(data, f"{archive.name}: {MANIFEST_NAME}").scenes
        return entries

    def close(self) -> None:
        """Close the archives; reading opens them again."""
        for archive in self._archives:
            archive.source.close()
