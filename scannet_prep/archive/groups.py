"""Read archives in order, and find out which scenes are intact; for `unpack` and `verify`.

    1. find frames, in order
         _plan_by_index      with an index: groups, whose frames are read in step 2
         _find_frames        without one: groups and their frames, up to the index or to damage
    2. check frames, in threads
         _check              read, decompress, check names or SHA-256 -> work(group, tar bytes)
    3. yield (group, problem), in order
    4. check what follows
         _compare_with_index if the index came last: what it lists, and what was found
         _check_end          end of the tar stream, and seek table

With an index, each frame is found, whatever happened to the others. A pipe, a truncated archive and
an archive with a damaged end have no index: their frames are read from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from scannet_prep.base.json import make_decoder, parse_json
from scannet_prep.errors import ArchiveError, ContentError
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest

Wants: TypeAlias = Callable[[str, str], bool]
"""Whether a scene is wanted, by its id and its split."""

Work: TypeAlias = Callable[[StoredGroup, memoryview], None]
"""A function that is called with each intact group and its tar bytes."""

_Frame: TypeAlias = tuple[StoredGroup, bytes | None]
"""A group and its frame. Without an index, the group has no members yet. With one, the frame is
None, because it has not been read yet."""

_CheckedGroup: TypeAlias = tuple[StoredGroup, str]
"""A group that has been read, and its damage in words, which is empty if it is intact."""

_HEAD_DECODER = make_decoder(Head)
_HINT_REFUSED = (
    f"scannet-prep pack makes no such archive, so do not trust it; or it {layout.MADE_BY_NEWER}"
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
        # The row that each intact frame should have in the seek table, by the frame's offset.
        self._rows: dict[int, bytes] = {}
        # The bytes after the index; None as long as there is no index.
        self._end: Stream | None = None
        # Without an index, taking a frame from this iterator reads it from the archive.
        frames_by_index = self._plan_by_index()
        if frames_by_index is not None:
            self._frames = frames_by_index
        else:
            self._frames = self._find_frames()
        # Sets `_head` if it is not known from the index.
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
            work: Called in threads for each intact scene; `Member.of` finds a file in the bytes.
            threads: The threads; their progress receives the number of tar bytes.

        Yields:
            Each scene in order, and its damage in words, which is empty if it is intact. Damaged
            scenes that only the index names follow at the end. An intact scene is yielded again, as
            damaged, if an index that is read later contradicts it.

        Raises:
            ArchiveError: The archive is refused.
            TransferError: The server does not send it.
        """

        def check(task: _Frame) -> _CheckedGroup:
            group, frame = task
            return self._check(group, frame, work)

        checked: list[_CheckedGroup] = []
        results = threads.map(check, self._list_tasks(), on_error=self.source.close)
        for group, problem in results:
            threads.progress.advance(group.size_bytes)
            checked.append((group, problem))
            # A scene whose name is damaged follows at the end, if an index names it.
            if group.scene_id:
                yield group, problem
        yield from self._compare_with_index(checked)
        self._check_end()

    def _list_tasks(self) -> Iterator[tuple[int, _Frame]]:
        """Iterate over the frames, each with the bytes of memory that its check takes."""
        for group, frame in self._frames:
            # The frame and its tar bytes.
            memory_bytes = group.stored_bytes + group.size_bytes
            yield memory_bytes, (group, frame)

    def _compare_with_index(self, checked: list[_CheckedGroup]) -> Iterator[_CheckedGroup]:
        """Compare the groups that were found with the index that was read after them, if any.

        If the index was read first, the groups come from it and agree with it.

        Args:
            checked: All groups that were checked.

        Yields:
            Whole scenes that the index contradicts; and damaged, wanted scenes that only the index
            names. A damaged scene that nothing names becomes one of the problems.
        """
        entries: dict[int, StoredGroup] = {}
        if self.index is not None:
            entries = {group.offset: group for group in self.index.groups}
        for group, problem in checked:
            entry = entries.get(group.offset)
            if group.scene_id:
                is_intact = not problem
                if self.index is not None and is_intact and not _is_same(group, entry):
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
        files_group = index.groups[0]
        return ((group, None) for group in (files_group, *self.chosen))

    def _take_index(self, index: Index, row: bytes, end: Stream) -> None:
        """Store the index, its row in the seek table, and the stream of the bytes after it."""
        self.index = index
        self.held = {scene.scene_id: scene.split for scene in index.scenes}
        index_offset = index.end
        self._rows[index_offset] = row
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
                    f"where the last intact frame ends: {error.message}"
                )
                return
            group = _describe_frame(frame, offset)
            name = _read_first_name(frame)
            # The first frame belongs to no scene, even if a damaged name looks like one.
            scene_file = layout.identify_scene(name) if offset > 0 else None
            # A name that is neither that of a scene nor of the index is damaged. If the end of the
            # tar stream follows, it is the index.
            is_unknown = offset > 0 and scene_file is None
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
            # The limit is reached. The index, which follows all scenes, stays unread.
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
        if self.held:
            previous_id = next(reversed(self.held))
            if scene_file.scene_id <= previous_id:
                problem = f"holds {scene_file.scene_id} after {previous_id}"
                raise ArchiveError(self.name, problem, _HINT_REFUSED)
        self.held[scene_file.scene_id] = scene_file.split

    def _read_files(self) -> None:
        """Read the first frame, which holds the files that belong to no scene.

        This sets `_head`: from the first file or, if that is lost, from the name of a scene.
        """
        first = next(self._frames, None)
        if first is None:
            return
        group, frame = first
        group, problem = self._check(group, frame, self._keep_files)
        if problem:
            self.problems.append(f"{group.name}: damaged: {problem}")
        if self._head is None:
            # Taking the next frame from `_find_frames` calls `_hold`, which sets `_head`. The frame
            # is put back, to be read again as a scene.
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
            work: The function to call if the group is intact.

        Returns:
            The group, with its members if they could be found; and its damage in words, which is
            empty if it is intact.

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
                # The SHA-256 in the index decide; the checksum and the headers are not needed.
                are_headers_intact = check_members(group.members, content)
                if not (is_verified and are_headers_intact):
                    problem = "its frame's checksum or a tar header is damaged"
                    self.warnings.append(f"{group.name}: {problem}; its files are intact")
            else:
                # Without an index, the checksum is the only proof.
                if not is_verified:
                    return group, "the checksum of its frame is wrong"
                group = self._find_members(group, content)
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
                self._head = parse_json(members[0].of(content), _HEAD_DECODER)
            self._check_names(group, [member.name for member in members])
        except ContentError as error:
            raise ArchiveError(self.name, f"is refused: {error}", _HINT_REFUSED) from None
        return replace(group, members=members)

    def _check_names(self, group: StoredGroup, names: list[str]) -> None:
        """Check the names of the files of a group that no index describes.

        Raises:
            ContentError: A name does not belong in the archive.
        """
        # The name of an unknown group is not damaged, because its checksum is right. There is no
        # head if the first group is lost, and no scene has been found yet.
        is_unknown = group.offset > 0 and not group.scene_id
        if self._head is None or is_unknown:
            raise ContentError(f"{names[0][:100]!a} is not a name of a raw or a processed tree")
        layout.check_names(self._head.kind, group.scene_id, names)

    def _check_end(self) -> None:
        """Check the end of the tar stream and the seek table, which only other programs need.

        Nothing is checked without an index: the end was not reached, or is known to be damaged.
        """
        if self.index is None or self._end is None:
            return
        self.warnings.sort()  # threads append them in any order
        try:
            is_intact = self._is_end_intact(self.index, self._end)
        except ContentError:
            is_intact = False
        if not is_intact:
            self.warnings.append(
                "the end of the tar stream or the seek table is damaged, or something follows it; "
                "other programs need it, the files are intact"
            )

    def _is_end_intact(self, index: Index, end: Stream) -> bool:
        """Whether the bytes after the index are those that `pack` writes.

        Raises:
            ContentError: The archive ends too early, or the last frame is damaged.
        """
        frame = end.take_frame()
        content, _ = frames.decompress(frame, len(END_OF_ARCHIVE))

        # The rows of all frames in order; None for a frame that was damaged or not read.
        index_offset = index.end
        rows = [self._rows.get(group.offset) for group in index.groups]
        rows += [self._rows.get(index_offset), frames.seek_row(frame)]
        # One byte more than the table has, to find out whether something follows it.
        table = end.take(frames.seek_table_bytes(len(rows)) + 1)
        return content == END_OF_ARCHIVE and frames.is_seek_table(table, rows)


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


def _is_same(group: StoredGroup, entry: StoredGroup | None) -> bool:
    """Whether a group that was found has the scene and the files of its entry in the index."""
    if entry is None:
        return False
    return entry.scene_id == group.scene_id and entry.members == group.members


def _is_end_next(stream: Stream) -> bool:
    """Whether the next frame is the end of the tar stream, which follows the index."""
    size_bytes = len(END_OF_ARCHIVE)
    # Enough bytes even if the frame stores its content uncompressed.
    start = stream.peek(0, 2 * size_bytes)
    return frames.decompress_start(start, size_bytes) == END_OF_ARCHIVE
