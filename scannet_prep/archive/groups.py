"""The one way through the groups of an archive, from a file, an address or a pipe: what is whole, and what is not.

By the index, where there is one: then each frame is found whatever happened to the others. Without it (a pipe, a
truncated file, a damaged end), frame after frame from the beginning, until the index comes or the archive ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Generic, TypeVar

from scannet_prep.archive.frames import (
    TruncatedError,
    check_sizes,
    checksum_of,
    decompress,
    decompress_start,
    read_frame,
    read_size,
)
from scannet_prep.archive.index import Group, Head, Index, Member, check_index_size, parse_head
from scannet_prep.archive.layout import INDEX_NAME, ArchiveKind, check_names, find_scene, find_split
from scannet_prep.archive.reader import (
    LOOK_BYTES,
    check_beginning,
    check_digest,
    decode_index,
    has_header,
    read_index,
    read_stored,
)
from scannet_prep.archive.seek_table import FrameRow, parse_seek_table, table_bytes
from scannet_prep.archive.source import ByteSource, PipeSource, Stream
from scannet_prep.archive.tar import BLOCK_BYTES, END_OF_ARCHIVE, parse_header, split_members
from scannet_prep.archive.threads import map_in_threads
from scannet_prep.errors import ArchiveError, ContentError

Result = TypeVar("Result")
Chooses = Callable[[str, str], bool]

_REFUSED_HINT = "scannet-prep pack did not make it so: do not trust it"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What became of one group.

    Attributes:
        group: The group; of a damaged one as much as is known.
        result: What was made of it; None where it is damaged.
        problem: What is damaged; empty where it is whole.
        warnings: What is damaged but harms no file.
    """

    group: Group
    result: Result | None = None
    problem: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Task:
    """A frame that is to be read and checked.

    Attributes:
        group: Where it lies; its members are empty where there is no index.
        row: What the seek table says of it.
        stored: The frame; None where it is to be read from the source.
    """

    group: Group
    row: FrameRow
    stored: bytes | None = None


@dataclass
class GroupReader(Generic[Result]):
    """Goes through an archive once.

    Args:
        source: Its bytes.
        work: Called with each whole group and the contents of its files in order, in threads (but for the files that
            belong to no scene); what it gives becomes the result. Its `ArchiveError`s become problems of the group.
        chooses: Whether a scene is wanted, by its id and split.
        jobs: How many threads.

    Attributes:
        index: What is in it; None where it has not come, or is lost.
        head: What holds for all of it; None before the first group has come, or where it is lost.
        problems: What is lost beside scenes, in words.
        warnings: What is damaged beside scenes and harms no file.
        is_truncated: Whether it ends too early.
    """

    source: ByteSource
    work: Callable[[Group, list[memoryview]], Result]
    chooses: Chooses = lambda _scene_id, _split: True
    jobs: int = 1
    index: Index | None = None
    head: Head | None = None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    is_truncated: bool = False
    _rows: list[FrameRow] = field(default_factory=list)

    def open(self) -> Index | None:
        """Read the index of a file or an address; None where it is a pipe, or the end is damaged.

        Raises:
            ArchiveError: It is a file of another kind, or cannot be read.
        """
        if isinstance(self.source, PipeSource):
            return None
        try:
            self.index, self._rows = read_index(self.source)
        except (ContentError, MemoryError):
            check_beginning(self.source.read(0, LOOK_BYTES), self.source.name)
            return None  # all is read from the beginning, and what is wrong is found on the way
        self.head = self.index.head
        stream = Stream(self.source, self.index.groups[-1].end)
        self._check_end(stream, [*self._rows[:-2], _row_of(read_frame(stream))])
        return self.index

    def read(self) -> Generator[Outcome[Result]]:
        """Read, check and work on all groups that are chosen, the files that belong to no scene first.

        Yields:
            Each group, in the order of the archive; damaged ones whose scene only the index names come last. A scene
            that was whole is given once more, as damaged, where the index that came later contradicts it.

        Raises:
            ArchiveError: It is a file of another kind, or refused.
            TransferError: It is on a web server, which does not give it.
        """
        has_index = self.index is not None
        tasks = self._iter_indexed() if has_index else self._iter_frames()
        first = next(tasks, None)
        if first is None:
            return
        outcome = self._check(first)  # alone: who works on scenes needs to know what these files say
        if self.head is None:  # they are lost; the first scene tells what the archive is made from
            tasks = chain(list(islice(tasks, 1)), tasks)
        yield outcome
        seen = [outcome]
        for outcome in map_in_threads(self._check, tasks, jobs=self.jobs, weigh=_weigh):
            seen.append(Outcome(outcome.group, problem=outcome.problem))
            if outcome.group.scene_id:
                yield outcome
        if not has_index:
            yield from self._compare(seen)

    def _iter_indexed(self) -> Iterator[_Task]:
        for group, row in zip(self.index.groups if self.index else (), self._rows, strict=False):
            if not group.scene_id or self.chooses(group.scene_id, group.split):
                yield _Task(group, row)

    def _iter_frames(self) -> Iterator[_Task]:
        """Find the frames from the beginning on; ends with the index, or where no frame can be found any more."""
        stream = Stream(self.source)
        check_beginning(stream.peek(0, LOOK_BYTES), self.source.name)
        last_scene = ""
        while True:
            offset = stream.offset
            try:
                stored = read_frame(stream)
                check_sizes(len(stored), read_size(stored))
            except (ContentError, MemoryError) as error:
                self.is_truncated = isinstance(error, TruncatedError)
                what = "is truncated" if self.is_truncated else "cannot be read any further"
                reason = str(error) or "memory ran out"
                self.problems.append(f"{what}: the last whole frame ends at byte {offset:,}: {reason}")
                return
            name = _first_name(stored)
            if name == INDEX_NAME:
                self._read_end(stream, stored)
                return
            row = _row_of(stored)
            self._rows.append(row)
            group = Group("", "", 0, offset, row.stored_bytes, row.size_bytes, ())
            if offset and (kind := self._find_kind(name)) is not None and (scene_id := find_scene(kind, name)):
                if scene_id <= last_scene:
                    raise ArchiveError(self.source.name, f"holds {scene_id} after {last_scene}", _REFUSED_HINT)
                last_scene = scene_id
                group = replace(group, scene_id=scene_id, split=find_split(kind, name))
                if not self.chooses(scene_id, group.split):
                    continue
            yield _Task(group, row, stored)

    def _find_kind(self, name: str) -> ArchiveKind | None:
        """What the archive is made from; if the first frame is lost, the name of a file tells."""
        if self.head is None and (kinds := [kind for kind in ArchiveKind if find_scene(kind, name)]):
            self.head = Head(kinds[0])
        return self.head.kind if self.head is not None else None

    def _check(self, task: _Task) -> Outcome[Result]:
        group = task.group
        try:
            stored = task.stored or read_stored(self.source, group.offset, group.stored_bytes)
            content, has_checksum = decompress(stored, group.size_bytes)
            warnings: list[str] = []
            if group.members:
                warnings += _check_by_index(group, content, has_checksum=has_checksum)
                if checksum_of(stored) != task.row.checksum or task.row[:2] != (group.stored_bytes, group.size_bytes):
                    warnings.append("the seek table is damaged, which other programs need; its files are whole")
            elif has_checksum:
                group = self._name(group, content)
            else:
                return Outcome(group, problem="the checksum of its frame does not hold")
            del stored
            contents = [content[item.offset : item.offset + item.size_bytes] for item in group.members]
            return Outcome(group, self.work(group, contents), warnings=tuple(warnings))
        except MemoryError:
            return Outcome(group, problem="memory ran out")
        except (ContentError, ArchiveError) as error:
            if isinstance(error, ArchiveError) and task.stored is not None:
                raise
            return Outcome(group, problem=str(error))

    def _name(self, group: Group, content: memoryview) -> Group:
        """Find out what a frame holds that no index names, and whose checksum holds.

        Raises:
            ArchiveError: It holds what no archive of this program does.
        """
        try:
            members = [
                Member(name, start, size_bytes, hashlib.sha256(content[start : start + size_bytes]).hexdigest())
                for name, start, size_bytes in split_members(content)
            ]
            if not group.offset:
                first = members[0]
                self.head = parse_head(bytes(content[first.offset : first.offset + first.size_bytes]))
            if self.head is None or (not group.scene_id and group.offset):
                raise ContentError(f"{members[0].name[:100]!a} is not a name of a raw or a processed tree")  # noqa: TRY301
            check_names(self.head.kind, group.scene_id, [member.name for member in members])
        except ContentError as error:
            raise ArchiveError(self.source.name, f"is refused: {error}", _REFUSED_HINT) from None
        return replace(group, members=tuple(members))

    def _read_end(self, stream: Stream, stored: bytes) -> None:
        """Read the index and what follows it."""
        try:
            check_index_size(len(stored), len(self._rows))
            self.index = decode_index(stored, len(self._rows))
        except (ContentError, MemoryError) as error:
            self.problems.append(str(error) or "the index: memory ran out")
            return
        self._check_end(stream, [*self._rows, _row_of(stored)])
        if count := stream.skip_rest():
            self.warnings.append(f"{count:,} bytes follow the end of the archive; they were not read")

    def _check_end(self, stream: Stream, rows: list[FrameRow]) -> None:
        """Check what follows the index, for other programs: the end of the tar stream, and the seek table."""
        try:
            end = read_frame(stream)
            if bytes(decompress(end, len(END_OF_ARCHIVE))[0]) != END_OF_ARCHIVE:
                raise ContentError("the frame that ends the tar stream holds something else")  # noqa: TRY301
            table = stream.take(table_bytes(len(rows) + 1))
            if parse_seek_table(table, stream.offset) != [*rows, _row_of(end)]:
                raise ContentError("the seek table is damaged")  # noqa: TRY301
        except ContentError as error:
            self.warnings.append(f"{error}; other programs need it, the files are whole")

    def _compare(self, seen: list[Outcome[Result]]) -> Iterator[Outcome[Result]]:
        """Compare what came from the beginning with the index that came after it."""
        entries = {group.offset: group for group in self.index.groups} if self.index is not None else {}
        for outcome in seen:
            group = outcome.group
            entry = entries.get(group.offset, group)
            if outcome.problem:
                if not group.scene_id and group.offset:
                    yield Outcome(entry, problem=outcome.problem)
            elif group.members != entry.members or group.scene_id != entry.scene_id or group.end != entry.end:
                yield Outcome(group, problem="is not what the index says")


def _check_by_index(group: Group, content: memoryview, *, has_checksum: bool) -> list[str]:
    """Check the files of a group by their SHA-256; gives what is damaged beside them."""
    for member in group.members:
        check_digest(member, content[member.offset : member.offset + member.size_bytes])
    warnings = [] if has_checksum else ["the checksum of its frame is damaged; its files are whole"]
    wrong = [member.name for member in group.members if not has_header(content, member)]
    if wrong:
        warnings.append(f"the tar header of {wrong[0]} is damaged, for other programs; the file is whole")
    return warnings


def _row_of(stored: bytes) -> FrameRow:
    return FrameRow(len(stored), read_size(stored), checksum_of(stored))


def _first_name(stored: bytes) -> str:
    """Name of the first file in a frame; empty where it cannot be read."""
    try:
        return parse_header(decompress_start(stored, BLOCK_BYTES))[0]
    except ContentError:
        return ""


def _weigh(task: _Task) -> int:
    return task.group.stored_bytes + task.group.size_bytes
