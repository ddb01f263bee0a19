"""The one way through the groups of an archive, from a file, an address or a pipe: what is whole, and what is not.

By the index, where there is one: then each frame is found whatever happened to the others. Without it (a pipe, a
truncated file, a damaged end), frame after frame from the beginning, until the index comes or the archive ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from scannet_prep.archive import frames, layout, reader
from scannet_prep.archive.layout import ArchiveKind, Head, Index, StoredGroup
from scannet_prep.archive.source import (
    ByteSource,
    PipeSource,
    Place,
    Stream,
    find_missing_shards,
    open_source,
)
from scannet_prep.base.errors import ArchiveError, ContentError, UsageError
from scannet_prep.base.failures import list_some
from scannet_prep.base.progress import Progress
from scannet_prep.base.typed_json import make_decoder, parse_json
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest

Wants = Callable[[str, str], bool]
# Called with a group whose content has been checked, and with its tar bytes.
Work = Callable[[StoredGroup, memoryview], None]
# What is known of a group, without its files where no index names them; and the frame, where it has been read.
_Frame: TypeAlias = tuple[StoredGroup, bytes | None]

_HEAD = make_decoder(Head)
_REFUSED_HINT = f"scannet-prep pack did not make it so: do not trust it; or it {layout.NEWER}"


class GroupReader:
    """Goes through an archive once. Making it reads the index, and the files that belong to no scene.

    Args:
        source: Its bytes.
        wants: Whether a scene is wanted, by its id and split.
        limit: How many scenes at most; all where None.

    Attributes:
        source: As given.
        name: Path, address, or the name of a pipe.
        index: What is in it; None where it has not come, or is lost.
        head: What holds for all of it.
        chosen: The scenes that are wanted, as far as they are known: all, if the index could be read at once.
        files: The files that belong to no scene, by name; none where they are lost.
        held: The splits of the scenes that are known to be in it, by id: of all, where there is an index.
        problems: What is lost beside scenes that can be named, in words.
        warnings: What is damaged and harms no file, in words.

    Raises:
        ArchiveError: It is a file of another kind, refused, or nothing of it can be read.
        TransferError: It is on a web server, which does not give it.
    """

    def __init__(self, source: ByteSource, wants: Wants, limit: int | None) -> None:
        self.source, self.name = source, source.name
        self.index: Index | None = None
        self._head: Head | None = None
        self.chosen: list[StoredGroup] = []
        self.files: dict[str, bytes] = {}
        self.held: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._wants, self._limit = wants, limit
        self._rows: dict[
            int, bytes
        ] = {}  # what the seek table has to say of whole frames, by their offsets
        self._frames = self._walk()
        if not isinstance(source, PipeSource):
            with suppress(ArchiveError):  # to read all from the beginning finds what is wrong
                archive = reader.Archive(source)
                index, self._head = archive.index, archive.index.head
                self._take_index(index, archive.index_row, Stream(source, archive.end))
                self.chosen = [
                    scene for scene in index.scenes if wants(scene.scene_id, scene.split)
                ][:limit]
                self._frames = ((group, None) for group in (index.groups[0], *self.chosen))
        self._read_files()
        if self._head is None:
            raise ArchiveError(
                self.name,
                f"nothing of it can be read: {'; '.join(self.problems)}",
                reader.DAMAGED_HINT,
            )
        self.head: Head = self._head

    def read_manifest(self) -> Manifest | None:
        """Read its manifest, which may raise a `FileError`; None where it has none, or raw scenes."""
        data = self.files.get(MANIFEST_NAME) if self.head.kind is ArchiveKind.PROCESSED else None
        return parse_manifest(data, f"{self.name}: {MANIFEST_NAME}") if data is not None else None

    def read(self, work: Work, jobs: int, progress: Progress) -> Iterator[tuple[StoredGroup, str]]:
        """Read and check all scenes that are wanted, and what follows them.

        Args:
            work: Called in threads with each whole scene and its tar bytes; `Member.of` finds a file in them.
            jobs: How many threads.
            progress: Told of tar bytes.

        Yields:
            Each scene, and what is damaged of it, in order; damaged ones that only the index names come last. A whole
            one is given once more, as damaged, where an index that came later contradicts it.

        Raises:
            ArchiveError: The archive is refused.
            TransferError: It is on a web server, which does not give it.
        """
        seen: list[tuple[StoredGroup, str]] = []
        weighed = (
            (group.stored_bytes + group.size_bytes, (group, stored))
            for group, stored in self._frames
        )
        for group, problem in frames.map_in_threads(
            lambda frame: self._check(*frame, work), weighed, jobs=jobs, on_error=self.source.close
        ):
            progress.advance(group.size_bytes)
            if group.scene_id:
                yield group, problem
            seen.append((group, problem))
        entries = (
            {group.offset: group for group in self.index.groups} if self.index is not None else {}
        )
        for group, problem in seen:
            entry = entries.get(group.offset, group)
            if group.scene_id:
                if not problem and (group.members, group.scene_id) != (
                    entry.members,
                    entry.scene_id,
                ):
                    yield group, "is not what the index says"
            elif not entry.scene_id:
                self.problems.append(
                    f"a scene at byte {group.offset:,} that cannot be named: damaged: {problem}"
                )
            elif self._wants(entry.scene_id, entry.split):
                yield entry, problem
        if self.index is not None:
            self._check_end(self.index)

    def _take_index(self, index: Index, row: bytes, end: Stream) -> None:
        self.index, self._end = index, end
        self.held = {scene.scene_id: scene.split for scene in index.scenes}
        self._rows[index.end] = row

    def _read_files(self) -> None:
        """Read the files that belong to no scene: who works on scenes needs to know what they say."""
        for first in islice(self._frames, 1):
            group, problem = self._check(*first, self._keep_files)
            if problem:
                self.problems.append(f"{group.name}: damaged: {problem}")
        if (
            self._head is None
        ):  # lost: the name of the first scene tells what the archive is made from
            self._frames = chain(tuple(islice(self._frames, 1)), self._frames)

    def _keep_files(self, group: StoredGroup, content: memoryview) -> None:
        for member in group.members:
            self.files[member.name] = bytes(member.of(content))

    def _walk(self) -> Iterator[_Frame]:
        """Find the frames from the beginning on; ends with the index, or where no frame can be found any more."""
        stream, frame_count = Stream(self.source), 0
        reader.check_beginning(stream.peek(0, reader.LOOK_BYTES), self.name)
        while True:
            offset, name = stream.offset, ""
            try:
                stored = frames.read_frame(stream)
            except ContentError as error:
                problem = f"is truncated or damaged behind byte {offset:,}, where the last whole frame ends"
                self.problems.append(f"{problem}: {error.message}")
                return
            with suppress(ContentError):
                name = layout.parse_header(frames.decompress_start(stored, layout.BLOCK_BYTES))[0]
            found = layout.identify_scene(name) if offset else None
            # The name of the index may be damaged; then the frame after it shows what it is.
            if name == layout.INDEX_NAME or (offset and found is None and _is_end_next(stream)):
                break
            frame_count += 1
            group = StoredGroup("", "", 0, offset, len(stored), frames.read_size(stored), ())
            if found is not None:
                kind, scene_id, split = found
                self._head = self._head or Head(kind)  # of an archive whose first frame is lost
                if scene_id <= (last := next(reversed(self.held), "")):
                    raise ArchiveError(self.name, f"holds {scene_id} after {last}", _REFUSED_HINT)
                self.held[scene_id] = split
                group = replace(group, scene_id=scene_id, split=split)
                if not self._wants(scene_id, split):
                    continue
                self.chosen.append(group)
            yield group, stored
            if len(self.chosen) == self._limit:
                return
        try:
            self._take_index(
                reader.decode_index(stored, frame_count, offset), frames.seek_row(stored), stream
            )
        except ContentError as error:
            self.problems.append(f"index: {error.message}")

    def _check(
        self, group: StoredGroup, stored: bytes | None, work: Work
    ) -> tuple[StoredGroup, str]:
        """Read a frame, check it, and hand its files on; gives as much as is known of it, and what is damaged."""
        try:
            stored = stored or reader.read_stored(self.source, group)
            content, has_checksum = frames.decompress(stored, group.size_bytes)
            row = frames.seek_row(stored)
            del stored
            if group.members:
                self._check_by_index(group, content, is_sound=has_checksum)
            elif has_checksum:
                group = self._name(group, content)
            else:
                return group, "the checksum of its frame does not hold"
            work(group, content)
        except ContentError as error:
            return group, error.message
        except ArchiveError as error:
            if not group.members:
                raise  # refused
            return group, error.message
        self._rows[group.offset] = row
        return group, ""

    def _check_by_index(self, group: StoredGroup, content: memoryview, *, is_sound: bool) -> None:
        """Check the files of a group by their SHA-256, and take note of what is damaged beside them."""
        for member in group.members:
            member.check(member.of(content))
            header = content[member.offset - layout.BLOCK_BYTES : member.offset]
            is_sound = is_sound and header == layout.encode_header(member.name, member.size_bytes)
        if not is_sound:
            self.warnings.append(
                f"{group.name}: its frame's checksum or a tar header is damaged; its files are whole"
            )

    def _name(self, group: StoredGroup, content: memoryview) -> StoredGroup:
        """Find out what a frame holds that no index names, and whose checksum holds; refuse what is not ours."""
        try:
            members = layout.read_members(content)
            if not group.offset:
                self._head = parse_json(members[0].of(content), _HEAD)
            if self._head is None or (not group.scene_id and group.offset):
                raise ContentError(  # noqa: TRY301
                    f"{members[0].name[:100]!a} is not a name of a raw or a processed tree"
                )
            layout.check_names(self._head.kind, group.scene_id, [member.name for member in members])
        except ContentError as error:
            raise ArchiveError(self.name, f"is refused: {error}", _REFUSED_HINT) from None
        return replace(group, members=members)

    def _check_end(self, index: Index) -> None:
        """Check what follows the index, for other programs: the end of the tar stream, and the seek table."""
        self.warnings.sort()
        is_whole = False
        with suppress(ContentError):
            end = frames.read_frame(self._end)
            content, _ = frames.decompress(end, len(layout.END_OF_ARCHIVE))
            rows = [
                self._rows.get(offset)
                for offset in (*(group.offset for group in index.groups), index.end)
            ]
            rows.append(frames.seek_row(end))
            is_whole = content == layout.END_OF_ARCHIVE and frames.has_seek_table(self._end, rows)
        if not is_whole or self._end.peek(0, 1):
            what = "the end of the tar stream or the seek table is damaged, or something follows it"
            self.warnings.append(f"{what}; other programs need it, the files are whole")


def _is_end_next(stream: Stream) -> bool:
    """Whether the next frame is the end of the tar stream, which follows the index."""
    size_bytes = len(layout.END_OF_ARCHIVE)
    start = stream.peek(0, 2 * size_bytes)  # also of a frame that stores them
    return frames.decompress_start(start, size_bytes) == layout.END_OF_ARCHIVE


class ArchiveSet:
    """Several archives that are read together, such as the shards of one; each is read once.

    Args:
        places: Paths, addresses, or objects that read the bytes.
        wants: Whether a scene is wanted, by its id and split.
        limit: How many scenes at most; all where None.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Attributes:
        readers: The archives.
        names: Their paths or addresses.
        kind: What they were made from.
        missing_shards: Names of the shards that belong to a single one.
        chosen: The scenes that are wanted, as far as they are known before all is read.
        size_bytes: Tar bytes of those.

    Raises:
        UsageError: They are of two kinds, a scene is in two of them, or they lack shards of a set.
        ScanNetPrepError: What `open_source` and `GroupReader` raise.
    """

    def __init__(
        self,
        places: Sequence[Place],
        wants: Wants,
        limit: int | None,
        certificates: bool | Path = True,
    ) -> None:
        self.readers: list[GroupReader] = []
        self.chosen: list[StoredGroup] = []
        for place in places:
            source = open_source(place, certificates=certificates)
            self.readers.append(GroupReader(source, wants, limit and limit - len(self.chosen)))
            self.chosen += self.readers[-1].chosen
        self.names, self.kind = [reader.name for reader in self.readers], self.readers[0].head.kind
        if any(reader.head.kind is not self.kind for reader in self.readers):
            raise UsageError(
                "the archives hold raw and processed scenes", "name archives of one kind only"
            )
        layout.check_held_once((reader.name, reader.held) for reader in self.readers)
        self.missing_shards = find_missing_shards(self.names)
        if self.missing_shards:
            problem = (
                f"shards of the set are not among the archives: {list_some(self.missing_shards)}"
            )
            if len(self.names) > 1:
                raise UsageError(
                    problem, "name all shards of the set (NAME-*-of-*.tar.zst), or a single one"
                )
            self.readers[0].warnings.append(problem)
        self.size_bytes = sum(group.size_bytes for group in self.chosen)

    @property
    def has_indexes(self) -> bool:
        """Whether all indexes have been read; that of a pipe, or before a damaged end, comes last or never."""
        return all(reader.index is not None for reader in self.readers)

    @property
    def held(self) -> dict[str, str]:
        """The splits of the scenes that are known to be in them, by id: of all, where there are indexes."""
        return {name: split for reader in self.readers for name, split in reader.held.items()}
