"""The one way through the groups of an archive, from a file, an address or a pipe: what is whole, and what is not.

By the index, where there is one: then each frame is found whatever happened to the others. Without it (a pipe, a
truncated file, a damaged end), frame after frame from the beginning, until the index comes or the archive ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scannet_prep.archive import frames, layout, reader
from scannet_prep.archive.frames import FrameRow
from scannet_prep.archive.layout import ArchiveKind, Group, Head, Index, Member
from scannet_prep.archive.source import ByteSource, PipeSource, Place, Stream, find_missing_shards, open_sources
from scannet_prep.errors import ArchiveError, ContentError
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest
from scannet_prep.progress import Progress

Wants = Callable[[str, str], bool]
Work = Callable[[str, dict[str, memoryview]], None]
# What became of a frame: as much as is known of its group, what is damaged, and what is without harm to a file.
_Outcome: TypeAlias = tuple[Group, str, Sequence[str]]

_REFUSED_HINT = "scannet-prep pack did not make it so: do not trust it"


class _Frame(NamedTuple):
    """A frame that is to be checked, and its row of the seek table; without an index, its bytes and no members."""

    group: Group
    row: FrameRow
    stored: bytes | None = None


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
        chosen: The scenes that are wanted, if the index could be read at once.
        files: The files that belong to no scene, by name; none where they are lost.
        held: The splits of the scenes that are known to be in it, by id: of all, where there is an index.
        content_bytes: How many tar bytes have been read and checked.
        problems: What is lost beside scenes that can be named, in words.
        warnings: What is damaged and harms no file, in words.
        is_truncated: Whether it ends too early.

    Raises:
        ArchiveError: It is a file of another kind, refused, or nothing of it can be read.
        TransferError: It is on a web server, which does not give it.
    """

    def __init__(self, source: ByteSource, wants: Wants, limit: int | None) -> None:
        self.source = source
        self.name = source.name
        self.index: Index | None = None
        self._head: Head | None = None
        self.chosen: tuple[Group, ...] = ()
        self.files: dict[str, bytes] = {}
        self.held: dict[str, str] = {}
        self.content_bytes = 0
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.is_truncated = False
        self._wants, self._limit = wants, limit
        self._frames = self._walk()
        if not isinstance(source, PipeSource):
            with suppress(ArchiveError):  # to read all from the beginning finds what is wrong
                self._frames = self._find_frames(reader.Archive(source))
        self._read_files()
        if self._head is None:
            raise ArchiveError(self.name, f"nothing of it can be read: {'; '.join(self.problems)}", reader.DAMAGED_HINT)
        self.head: Head = self._head

    def read_manifest(self) -> Manifest | None:
        """Read its manifest, which may raise a `ManifestError`; None where it has none, or raw scenes."""
        data = self.files.get(MANIFEST_NAME) if self.head.kind is ArchiveKind.PROCESSED else None
        return parse_manifest(data, f"{self.name}: {MANIFEST_NAME}") if data is not None else None

    def read(self, work: Work, jobs: int, progress: Progress) -> Iterator[tuple[Group, str]]:
        """Read and check all scenes that are wanted.

        Args:
            work: Called with each whole scene's id and its files, by name and in order, in threads.
            jobs: How many threads.
            progress: Told of tar bytes.

        Yields:
            Each scene, and what is damaged of it, in order; damaged ones that only the index names come last. A whole
            one is given once more, as damaged, where an index that came later contradicts it.

        Raises:
            ArchiveError: The archive is refused.
            TransferError: It is on a web server, which does not give it.
        """
        seen, is_walk = list[tuple[Group, str]](), self.index is None
        outcomes = frames.map_in_threads(
            lambda frame: self._check(frame, work), self._frames, jobs=jobs, weigh=_weigh, on_error=self.source.close
        )
        for group, problem in map(self._take, outcomes):
            progress.advance(group.size_bytes)
            if group.scene_id:
                yield group, problem
            if is_walk:
                seen.append((group, problem))
        entries = {group.offset: group for group in self.index.groups} if self.index is not None else {}
        for group, problem in seen:
            entry = entries.get(group.offset, group)
            if not problem and (group.members, group.scene_id, group.end) != (entry.members, entry.scene_id, entry.end):
                yield group, "is not what the index says"
            elif problem and not group.scene_id and entry.scene_id:
                if self._wants(entry.scene_id, entry.split):
                    yield entry, problem
            elif problem and not group.scene_id:
                self.problems.append(f"a scene at byte {group.offset:,} that cannot be named: damaged: {problem}")

    def _take(self, outcome: _Outcome) -> tuple[Group, str]:
        """Take note of a frame."""
        group, problem, warnings = outcome
        self.warnings += [f"{group.name}: {warning}" for warning in warnings]
        self.content_bytes += group.size_bytes
        return group, problem

    def _find_frames(self, archive: reader.Archive) -> Iterator[_Frame]:
        """Choose scenes by the index, and check what follows them."""
        self.index, self._head = archive.index, archive.index.head
        self.held = {scene.scene_id: scene.split for scene in archive.index.scenes}
        stream, rows = Stream(self.source, archive.index.groups[-1].end), archive.rows[:-2]
        self._check_end(stream, [*rows, FrameRow.of(stream.take(archive.rows[-2].stored_bytes))])
        files, *scenes = (_Frame(*pair) for pair in zip(archive.index.groups, rows, strict=True))
        chosen = [frame for frame in scenes if self._wants(frame.group.scene_id, frame.group.split)][: self._limit]
        self.chosen = tuple(frame.group for frame in chosen)
        return chain([files], chosen)

    def _read_files(self) -> None:
        """Read the files that belong to no scene: who works on scenes needs to know what they say."""
        for first in islice(self._frames, 1):
            keep: Work = lambda _, found: self.files.update({name: bytes(data) for name, data in found.items()})  # noqa: E731
            group, problem = self._take(self._check(first, keep))
            if problem:
                self.problems.append(f"{group.name}: damaged: {problem}")
        passed: list[_Frame] = []  # where they are lost, the first name of a scene tells what the archive is made from
        while self._head is None and len(passed) < 8 and (frame := next(self._frames, None)):
            passed.append(frame)
        self._frames = chain(passed, self._frames)

    def _walk(self) -> Iterator[_Frame]:
        """Find the frames from the beginning on; ends with the index, or where no frame can be found any more."""
        stream, rows, last_scene, count = Stream(self.source), list[FrameRow](), "", 0
        reader.check_beginning(stream.peek(0, reader.LOOK_BYTES), self.name)
        while True:
            offset = stream.offset
            try:
                stored = frames.read_frame(stream)
                row = FrameRow.of(stored)
            except (ContentError, MemoryError) as error:
                self.is_truncated = isinstance(error, frames.TruncatedError)
                what = "is truncated" if self.is_truncated else "cannot be read any further"
                self.problems.append(f"{what}: the last whole frame ends at byte {offset:,}: {reader.tell(error)}")
                return
            name = ""
            with suppress(ContentError):
                name = layout.parse_header(frames.decompress_start(stored, layout.BLOCK_BYTES))[0]
            if name == layout.INDEX_NAME:
                break
            rows.append(row)
            group = Group("", "", 0, offset, row.stored_bytes, row.size_bytes, ())
            if offset and (found := layout.identify_scene(name)) is not None:
                kind, scene_id, split = found
                self._head = self._head or Head(kind)  # of an archive whose first frame is lost
                if scene_id <= last_scene:
                    raise ArchiveError(self.name, f"holds {scene_id} after {last_scene}", _REFUSED_HINT)
                last_scene = scene_id
                self.held[scene_id] = split
                group = replace(group, scene_id=scene_id, split=split)
                if not self._wants(scene_id, split):
                    continue
                count += 1
            yield _Frame(group, row, stored)
            if count == self._limit:
                return
        try:
            self.index = reader.decode_index(stored, len(rows))
            self.held = {scene.scene_id: scene.split for scene in self.index.scenes}
        except (ContentError, MemoryError) as error:
            self.problems.append(reader.tell(error))
            return
        self._check_end(stream, [*rows, row])
        if rest := stream.skip_rest():
            self.warnings.append(f"{rest:,} bytes follow the end of the archive; they were not read")

    def _check(self, frame: _Frame, work: Work) -> _Outcome:
        """Read a frame, check it, and hand its files on."""
        group, warnings = frame.group, list[str]()
        try:
            stored = frame.stored or reader.read_stored(self.source, group)
            content, has_checksum = frames.decompress(stored, group.size_bytes)
            if group.members:
                warnings = _check_by_index(frame, FrameRow.of(stored), content)
            elif has_checksum:
                group = self._name(group, content)
            else:
                return group, "the checksum of its frame does not hold", ()
            if not has_checksum:
                warnings.append("the checksum of its frame is damaged; its files are whole")
            del stored
            work(group.scene_id, {member.name: member.of(content) for member in group.members})
        except (ContentError, MemoryError) as error:
            return group, reader.tell(error), ()
        except ArchiveError as error:
            if frame.stored is not None:
                raise  # refused
            return group, str(error), ()
        return group, "", warnings

    def _name(self, group: Group, content: memoryview) -> Group:
        """Find out what a frame holds that no index names, and whose checksum holds; refuse what is not ours."""
        try:
            members = tuple(
                Member(name, start, size_bytes, hashlib.sha256(content[start : start + size_bytes]).hexdigest())
                for name, start, size_bytes in layout.split_members(content)
            )
            if not group.offset:
                self._head = layout.parse_head(bytes(members[0].of(content)))
            if self._head is None or (not group.scene_id and group.offset):
                raise ContentError(f"{members[0].name[:100]!a} is not a name of a raw or a processed tree")  # noqa: TRY301
            layout.check_names(self._head.kind, group.scene_id, [member.name for member in members])
        except ContentError as error:
            raise ArchiveError(self.name, f"is refused: {error}", _REFUSED_HINT) from None
        return replace(group, members=members)

    def _check_end(self, stream: Stream, rows: list[FrameRow]) -> None:
        """Check what follows the index, for other programs: the end of the tar stream, and the seek table."""
        is_whole = False
        with suppress(ContentError):
            end = frames.read_frame(stream)
            content, _ = frames.decompress(end, len(layout.END_OF_ARCHIVE))
            table = frames.encode_seek_table([*rows, FrameRow.of(end)])
            is_whole = content == layout.END_OF_ARCHIVE and stream.take(len(table)) == table
        if not is_whole:
            what = "the end of the tar stream or the seek table is damaged"
            self.warnings.append(f"{what}; other programs need it, the files are whole")


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
        missing_shards: Names of shards that belong to them and were not given.

    Raises:
        ScanNetPrepError: What `open_sources` and `GroupReader` raise.
    """

    def __init__(
        self, places: Sequence[Place], wants: Wants, limit: int | None, certificates: bool | Path = True
    ) -> None:
        self.readers: list[GroupReader] = []
        for source in open_sources(places, certificates=certificates):
            self.readers.append(GroupReader(source, wants, limit))
            limit = limit and limit - len(self.readers[-1].chosen)
        self.names = [reader.name for reader in self.readers]
        self.missing_shards = find_missing_shards(self.names)

    @property
    def has_indexes(self) -> bool:
        """Whether all indexes have been read; not that of a pipe, or of a damaged end."""
        return all(reader.index is not None for reader in self.readers)

    @property
    def held(self) -> dict[str, str]:
        """The splits of the scenes that are known to be in them, by id: of all, where there are indexes."""
        return {name: split for reader in self.readers for name, split in reader.held.items()}

    @property
    def chosen(self) -> list[Group]:
        """The scenes that are wanted, as far as the indexes could be read at once."""
        return [group for reader in self.readers for group in reader.chosen]

    @property
    def size_bytes(self) -> int:
        """Tar bytes of the scenes that are wanted; 0 where nobody knows."""
        return sum(group.size_bytes for group in self.chosen) if self.has_indexes else 0


def _check_by_index(frame: _Frame, found: FrameRow, content: memoryview) -> list[str]:
    """Check the files of a group by their SHA-256; gives what is damaged beside them."""
    warnings: list[str] = []
    for member in frame.group.members:
        member.check(member.of(content))
        header = content[member.offset - layout.BLOCK_BYTES : member.offset]
        if not warnings and header != layout.encode_header(member.name, member.size_bytes):
            warnings.append(f"the tar header of {member.name} is damaged, for other programs; the file is whole")
    if frame.row != found:
        warnings.append("the seek table is damaged, which other programs need; its files are whole")
    return warnings


def _weigh(frame: _Frame) -> int:
    return frame.group.stored_bytes + frame.group.size_bytes
