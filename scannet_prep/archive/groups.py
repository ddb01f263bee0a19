"""Read archives in order, and find out which scenes are undamaged; for `unpack` and `verify`.

    with an index:     index ------------------> (group, None)    a thread reads the frame later
    without an index:  stream, frame by frame -> (group, frame)   up to the index or the end
                                           |
        in threads, _check: read, decompress, check names or SHA-256 -> work(group, tar bytes)
                                           |
        in order:                          +-> (group, problem), one for each scene
        at the end:                        index entries of damaged frames; end of tar; seek table

With an index, each frame is found, whatever happened to the others. A pipe, a truncated archive and
an archive with a damaged end have no index: their frames are read from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from scannet_prep.archive import frames, layout
from scannet_prep.archive.byte_source import ByteSource, PipeSource
from scannet_prep.archive.layout import ArchiveKind, Head, Index, StoredGroup
from scannet_prep.archive.opened import (
    HINT_DAMAGED,
    START_BYTES,
    Archive,
    check_beginning,
    decode_index,
    read_stored,
)
from scannet_prep.archive.stream import Stream
from scannet_prep.archive.tar import (
    BLOCK_BYTES,
    END_OF_ARCHIVE,
    check_members,
    parse_header,
    read_members,
)
from scannet_prep.archive.threads import Threads
from scannet_prep.base.errors import ArchiveError, ContentError
from scannet_prep.base.typed_json import make_decoder, parse_json
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest

Wants: TypeAlias = Callable[[str, str], bool]
"""Whether a scene is wanted, by its id and its split."""

Work: TypeAlias = Callable[[StoredGroup, memoryview], None]
"""A function that is called with each undamaged group and its tar bytes."""

_Frame: TypeAlias = tuple[StoredGroup, bytes | None]
"""A group, without members if no index describes them; and its frame, if it has been read."""

_CheckedGroup: TypeAlias = tuple[StoredGroup, str]
"""A group that has been read, and its damage in words, which is empty if it is whole."""

_HEAD = make_decoder(Head)
_HINT_REFUSED = (
    f"scannet-prep pack did not make it so: do not trust it; or it {layout.MADE_BY_NEWER}"
)


class GroupReader:
    """Reads an archive once. The constructor reads the index and the files that belong to no scene.

    Args:
        source: The bytes of the archive.
        wants: Whether a scene is wanted.
        limit: Maximum number of scenes; None for all.

    Attributes:
        source: As given.
        name: Path, address, or the name of the pipe.
        index: The index; None if it has not been reached yet, or is lost.
        head: The facts that apply to the whole archive.
        chosen: The wanted scenes that are known so far; all of them if there is an index.
        files: The files that belong to no scene, by name; empty if they are lost.
        held: The splits of the scenes that are known so far, by id; all if there is an index.
        problems: Damage in words, except that of scenes that can be named.
        warnings: Damage that affects no file, in words.

    Raises:
        ArchiveError: It is a file of another kind, is refused, or cannot be read at all.
        TransferError: The server does not send it.
    """

    def __init__(self, source: ByteSource, wants: Wants, limit: int | None) -> None:
        self.source = source
        self.name = source.name
        self.index: Index | None = None
        self.chosen: list[StoredGroup] = []
        self.files: dict[str, bytes] = {}
        self.held: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._head: Head | None = None
        self._wants = wants
        self._limit = limit
        # The row that each undamaged frame should have in the seek table, by the frame's offset.
        # `_take_index` also sets `_end`, the stream of the bytes after the index.
        self._rows: dict[int, bytes] = {}
        # Both are generators. `_find_frames` reads a frame when it is taken, and not earlier.
        self._frames = self._plan_by_index() or self._find_frames()
        self._read_files()
        if self._head is None:
            problem = f"cannot be read at all: {'; '.join(self.problems)}"
            raise ArchiveError(self.name, problem, HINT_DAMAGED)
        self.head: Head = self._head

    def read_manifest(self) -> Manifest | None:
        """Read the manifest; None if the archive has none, or holds raw scenes.

        Raises:
            FileError: The manifest is damaged.
        """
        data = self.files.get(MANIFEST_NAME)
        if data is None or self.head.kind is not ArchiveKind.PROCESSED:
            return None
        return parse_manifest(data, f"{self.name}: {MANIFEST_NAME}")

    def read(self, work: Work, threads: Threads) -> Iterator[_CheckedGroup]:
        """Read and check all wanted scenes, and the end of the archive.

        Args:
            work: Called in threads for each undamaged scene; `Member.of` finds a file in the bytes.
            threads: The threads; their progress receives the number of tar bytes.

        Yields:
            Each scene in order, and its damage in words, which is empty if it is whole. Damaged
            scenes that only the index names follow at the end. A whole scene is yielded again, as
            damaged, if an index that is read later contradicts it.

        Raises:
            ArchiveError: The archive is refused.
            TransferError: The server does not send it.
        """

        def check(frame: _Frame) -> _CheckedGroup:
            return self._check(*frame, work)

        # Each takes memory for its frame and for its tar bytes.
        tasks = (
            (group.stored_bytes + group.size_bytes, (group, frame)) for group, frame in self._frames
        )
        checked: list[_CheckedGroup] = []
        for group, problem in threads.map(check, tasks, on_error=self.source.close):
            threads.progress.advance(group.size_bytes)
            checked.append((group, problem))
            if group.scene_id:
                yield group, problem
        yield from self._compare_with_index(checked)
        if self.index is not None:
            self._check_end(self.index)

    def _compare_with_index(self, checked: list[_CheckedGroup]) -> Iterator[_CheckedGroup]:
        """Yield the scenes that only the index names, and those that it contradicts.

        Damage of scenes that nothing names is recorded. An index at the beginning agrees with the
        groups, which come from it.
        """
        entries: dict[int, StoredGroup] = {}
        if self.index is not None:
            entries = {group.offset: group for group in self.index.groups}
        for group, problem in checked:
            entry = entries.get(group.offset)
            if group.scene_id:
                is_same = (
                    entry is not None
                    and entry.scene_id == group.scene_id
                    and entry.members == group.members
                )
                if self.index is not None and not problem and not is_same:
                    yield group, "does not match the index"
            elif entry is None or not entry.scene_id:
                scene = f"a scene at byte {group.offset:,} that cannot be named"
                self.problems.append(f"{scene}: damaged: {problem}")
            elif self._wants(entry.scene_id, entry.split):
                yield entry, problem

    def _plan_by_index(self) -> Iterator[_Frame] | None:
        """Choose the frames to read by the index; None if it cannot be read at the beginning."""
        if isinstance(self.source, PipeSource):
            return None
        try:
            archive = Archive(self.source)
        except ArchiveError:  # reading from the beginning will show the damage
            return None
        index = archive.index
        self._head = index.head
        self._take_index(index, archive.index_row, Stream(self.source, archive.end))
        wanted = [scene for scene in index.scenes if self._wants(scene.scene_id, scene.split)]
        self.chosen = wanted[: self._limit]
        return ((group, None) for group in (index.groups[0], *self.chosen))

    def _take_index(self, index: Index, row: bytes, end: Stream) -> None:
        """Store the index, its row in the seek table, and the stream of the bytes after it."""
        self.index = index
        self.held = {scene.scene_id: scene.split for scene in index.scenes}
        self._rows[index.end] = row
        self._end = end

    def _find_frames(self) -> Iterator[_Frame]:
        """Find the frames from the beginning, up to the index or to damage that hides the next one.

        Yields:
            The frames of the files that belong to no scene, of wanted scenes, and of scenes whose
            name is damaged.

        Raises:
            ArchiveError: The file is of another kind, or its scenes are out of order.
        """
        stream = Stream(self.source)
        check_beginning(stream.peek(0, START_BYTES), self.name)
        frame_count = 0
        while True:
            offset = stream.offset
            try:
                frame = stream.take_frame()
            except ContentError as error:
                self.problems.append(
                    f"is truncated or damaged after byte {offset:,}, "
                    f"where the last whole frame ends: {error.message}"
                )
                return
            group = _describe_frame(frame, offset)
            name = _read_first_name(frame)
            # The first frame belongs to no scene, even if a damaged name looks like one.
            scene_file = layout.identify_scene(name) if offset > 0 else None
            is_unknown = offset > 0 and scene_file is None
            # If the name of the index is damaged, the frame after it reveals it.
            if name == layout.INDEX_NAME or (is_unknown and _is_end_next(stream)):
                break

            frame_count += 1
            if scene_file is not None:
                self._hold(scene_file)
                group = replace(group, scene_id=scene_file.scene_id, split=scene_file.split)
                if not self._wants(group.scene_id, group.split):
                    continue
                self.chosen.append(group)
            yield group, frame
            # The index, which follows the other scenes, is then never reached.
            if len(self.chosen) == self._limit:
                return
        try:
            index = decode_index(frame, frame_count=frame_count, offset=offset)
            self._take_index(index, frames.seek_row(frame), stream)
        except ContentError as error:
            self.problems.append(f"index: {error.message}")

    def _hold(self, scene_file: layout.SceneFile) -> None:
        """Record a scene that was found without an index; refuse a scene that is out of order."""
        # If the first frame is lost, the name of a scene reveals the kind of the archive.
        if self._head is None:
            self._head = Head(scene_file.kind)
        last = next(reversed(self.held), "")
        if scene_file.scene_id <= last:
            problem = f"holds {scene_file.scene_id} after {last}"
            raise ArchiveError(self.name, problem, _HINT_REFUSED)
        self.held[scene_file.scene_id] = scene_file.split

    def _read_files(self) -> None:
        """Read the first frame, which holds the files that belong to no scene."""
        first = next(self._frames, None)
        if first is None:
            return
        group, problem = self._check(*first, self._keep_files)
        if problem:
            self.problems.append(f"{group.name}: damaged: {problem}")
        if self._head is None:
            # They are lost. The name of the next scene reveals the kind of the archive, and taking
            # its frame from `_find_frames` records the kind in `_head`; see `_hold`.
            second = next(self._frames, None)
            if second is not None:
                self._frames = chain([second], self._frames)

    def _keep_files(self, group: StoredGroup, content: memoryview) -> None:
        """Store the files that belong to no scene."""
        for member in group.members:
            self.files[member.name] = bytes(member.of(content))

    def _check(self, group: StoredGroup, frame: bytes | None, work: Work) -> _CheckedGroup:
        """Read a frame, check its files, and pass them to `work`.

        Args:
            group: The group; without members if no index describes it.
            frame: Its frame; None if it has not been read yet.
            work: The function to call if the group is undamaged.

        Returns:
            The group, with its members if they could be found; and its damage in words, which is
            empty if it is whole.

        Raises:
            ArchiveError: No index describes it, and its content is refused.
        """
        is_indexed = bool(group.members)
        try:
            if frame is None:
                frame = read_stored(self.source, group)
            content, is_verified = frames.decompress(frame, group.size_bytes)
            row = frames.seek_row(frame)
            del frame  # it may be large, and is not needed any more
            if is_indexed:
                are_headers_whole = check_members(group.members, content)
                if not (is_verified and are_headers_whole):
                    problem = "its frame's checksum or a tar header is damaged"
                    self.warnings.append(f"{group.name}: {problem}; its files are whole")
            elif is_verified:
                group = self._find_members(group, content)
            else:
                return group, "the checksum of its frame is wrong"
            work(group, content)
        except ContentError as error:
            return group, error.message
        except ArchiveError as error:
            if not is_indexed:
                raise
            return group, error.message
        self._rows[group.offset] = row
        return group, ""

    def _find_members(self, group: StoredGroup, content: memoryview) -> StoredGroup:
        """Find the files of a group that no index describes, and whose checksum is right.

        Raises:
            ArchiveError: It is not an archive that this program makes.
        """
        try:
            members = read_members(content)
            if group.offset == 0:
                self._head = parse_json(members[0].of(content), _HEAD)
            self._check_names(group, [member.name for member in members])
        except ContentError as error:
            raise ArchiveError(self.name, f"is refused: {error}", _HINT_REFUSED) from None
        return replace(group, members=members)

    def _check_names(self, group: StoredGroup, names: list[str]) -> None:
        """Check the names of the files of a group that no index describes.

        Raises:
            ContentError: A name does not belong in the archive.
        """
        is_unknown = group.offset > 0 and not group.scene_id
        if self._head is None or is_unknown:
            raise ContentError(f"{names[0][:100]!a} is not a name of a raw or a processed tree")
        layout.check_names(self._head.kind, group.scene_id, names)

    def _check_end(self, index: Index) -> None:
        """Check the end of the tar stream and the seek table, which only other programs need."""
        self.warnings.sort()  # threads append them in any order
        with suppress(ContentError):
            frame = self._end.take_frame()
            content, _ = frames.decompress(frame, len(END_OF_ARCHIVE))
            rows = [self._rows.get(group.offset) for group in index.groups]
            rows += [self._rows.get(index.end), frames.seek_row(frame)]
            # One byte more than the table: nothing may follow it.
            table = self._end.take(frames.seek_table_bytes(len(rows)) + 1)
            if content == END_OF_ARCHIVE and frames.is_seek_table(table, rows):
                return
        self.warnings.append(
            "the end of the tar stream or the seek table is damaged, or something follows it; "
            "other programs need it, the files are whole"
        )


def _read_first_name(frame: bytes) -> str:
    """Read the name of the first file in a frame; empty if its header is damaged."""
    try:
        name, _ = parse_header(frames.decompress_start(frame, BLOCK_BYTES))
    except ContentError:
        return ""
    return name


def _describe_frame(frame: bytes, offset: int) -> StoredGroup:
    """Describe a frame that no index describes: its position and sizes, without scene and files."""
    return StoredGroup(
        scene_id="",
        split="",
        vertex_count=0,
        offset=offset,
        stored_bytes=len(frame),
        size_bytes=frames.read_size(frame),
        members=(),
    )


def _is_end_next(stream: Stream) -> bool:
    """Whether the next frame is the end of the tar stream, which follows the index."""
    size_bytes = len(END_OF_ARCHIVE)
    # Enough bytes even if the frame stores its content uncompressed.
    start = stream.peek(0, 2 * size_bytes)
    return frames.decompress_start(start, size_bytes) == END_OF_ARCHIVE
