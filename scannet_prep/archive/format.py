"""The archive: a `.tar.zst` that any tar opens, with random access to each scene.

    frame 0       .scannet-prep/index.json     the index, which lists the scenes
    frame 1       the files of no scene        such as manifest.json
    frame 2..     the files of a scene         scenes sorted by id
    last frame    1,024 zeros                  the end of the tar stream
    skippable     the seek table               sizes and checksums of the frames above

The contents of all frames together are one tar file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from scannet_prep.archive.seekable import (
    END_OF_TAR,
    SeekRow,
    decompress,
    iter_members,
    read_seek_table,
)
from scannet_prep.archive.sources import SUFFIX, ByteSource
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.json import Count, make_decoder, parse_json
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ArchiveError, ContentError
from scannet_prep.processed.manifest import SceneIdText
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.scene import OWN_ID_PATTERN, SceneId

INDEX_NAME = ".scannet-prep/index.json"
_HINT_DAMAGED = (
    "copy the archive again, or pack it again; "
    "scannet-prep unpack - < ARCHIVE recovers what comes before the damage"
)

TreeKind: TypeAlias = Literal["processed", "raw"]
"""The kind of the tree that was packed."""

_PROCESSED_FILE = re.compile(rf"(train|val|test)/({OWN_ID_PATTERN})\.npz")
# Scenes of the release may also lie at the top of a raw tree.
_RAW_FILE = re.compile(
    rf"(scans/|scans_test/|(?=scene\d{{4}}_\d\d/))({OWN_ID_PATTERN})/\2[_.][\w.+-]{{0,80}}",
    re.ASCII,
)
# Files of no scene lie at the top, or in `tasks`.
_OTHER_FILE = re.compile(r"(?:tasks/)?\w[\w.+-]{0,80}", re.ASCII)
# Windows takes the first ones for devices, and drops a dot at the end of a name.
_WINDOWS_NAME = re.compile(
    r"(?:^|/)(?:con|prn|aux|nul|com\d|lpt\d)(?:[./]|$)|\.(?:/|$)", re.IGNORECASE
)


class Owner(NamedTuple):
    """The scene that a file belongs to. All texts are empty for a file of no scene.

    Attributes:
        kind: The kind of the tree; `index` for the index of an archive.
        scene_id: The scene.
        split: Its split; empty if it has none.
    """

    kind: Literal["", "processed", "raw", "index"] = ""
    scene_id: str = ""
    split: str = ""

    @classmethod
    def from_name(cls, name: str) -> Owner | None:
        """Find the owner of a file by its name; None if no file of a tree has such a name."""
        if name == INDEX_NAME:
            return cls("index")
        if _WINDOWS_NAME.search(name):
            return None
        match = _PROCESSED_FILE.fullmatch(name)
        if match is not None:
            return cls("processed", match[2], match[1])
        match = _RAW_FILE.fullmatch(name)
        if match is not None:
            scene = RawScene(SceneId(match[2]), Path(name).parent)
            return cls("raw", match[2], scene.split or "")
        return cls() if _OTHER_FILE.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class PackedScene:
    """A scene in an archive, whose files are one frame.

    Attributes:
        scene_id: The scene.
        split: Its split; empty if it has none.
        size_bytes: Size of its files as tar bytes.
    """

    scene_id: SceneIdText
    split: str
    size_bytes: Count


@dataclass(frozen=True)
class Index:
    """The content of an archive.

    Attributes:
        kind: The kind of the tree.
        scenes: The scenes, sorted by id, in the order of their frames.
        program: Name and version of the program that packed it.
    """

    kind: TreeKind
    scenes: tuple[PackedScene, ...] = ()
    program: str = f"scannet-prep {VERSION}"
    version: Literal[1] = 1

    def list_owners(self) -> list[Owner]:
        """List the owners of all frames but the last one."""
        owners = [Owner(self.kind, scene.scene_id, scene.split) for scene in self.scenes]
        return [Owner("index"), Owner(), *owners]


_DECODER = make_decoder(Index)


class Archive:
    """An archive whose index has been read. Picklable, and safe under fork and in threads.

    Args:
        source: Its bytes.

    Attributes:
        source: As given.
        name: Path or address, for messages.
        index: Its index.

    Raises:
        ArchiveError: It is truncated, damaged at its end, or something else.
        TransferError: The server does not send it.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.name = source.name
        # The owner of each frame, its first byte, and its row in the seek table, by scene.
        self._frames: dict[str, tuple[Owner, int, SeekRow]] = {}
        try:
            self.index = self._read_index(read_seek_table(source))
        except ContentError as error:
            kind = describe_beginning(source.read(0, BEGINNING_BYTES)) or "a file of another kind"
            if kind != "a zstd file":
                raise ArchiveError(self.name, f"is {kind}, expected a {SUFFIX} archive") from None
            raise damage_error(self.name, "", error) from None

    def read(self, scene_id: str = "") -> dict[str, memoryview]:
        """Read files, which are one range of the archive, into new, writable memory.

        Args:
            scene_id: The scene; empty for the files of no scene.

        Returns:
            The files by name.

        Raises:
            ArchiveError: They are damaged, or the archive was replaced since it was opened.
            TransferError: The server does not send them.
        """
        owner, offset, row = self._frames[scene_id]
        try:
            return parse_frame(self._read_frame(offset, row), owner)
        except ContentError as error:
            raise damage_error(self.name, scene_id, error) from None

    def _read_index(self, rows: Sequence[SeekRow]) -> Index:
        """Read the index, and the end of the tar stream."""
        offsets = accumulate((row.stored_bytes for row in rows), initial=0)
        *frames, end_frame = zip(offsets, rows, strict=False)
        index = parse_index(self._read_frame(*frames[0]))
        owners = index.list_owners()
        if len(frames) != len(owners) or self._read_frame(*end_frame) != END_OF_TAR:
            raise ContentError("its index lists other frames than its seek table")
        for owner, frame in zip(owners[1:], frames[1:], strict=True):
            self._frames[owner.scene_id] = (owner, *frame)
        return index

    def _read_frame(self, offset: int, row: SeekRow) -> memoryview:
        frame = self.source.read(offset, row.stored_bytes)
        content = decompress(frame)
        # An intact frame with another row is that of a file that has replaced the archive.
        if SeekRow.from_frame(frame) != row:
            raise ContentError("its frame is not the one that the seek table lists")
        return content


def damage_error(name: str, scene_id: str, error: Exception) -> ArchiveError:
    """Make the error for a damaged scene of an archive, or without an id for the archive."""
    problem = f"{scene_id}: is damaged: {error}"
    if not scene_id:
        problem = f"is damaged or truncated, or scannet-prep did not make it: {error}"
    return ArchiveError(name, problem, _HINT_DAMAGED)


def parse_frame(content: memoryview, expected: Owner) -> dict[str, memoryview]:
    """Parse the content of a frame: its files by name, which become paths when they are unpacked.

    Raises:
        ContentError: It is damaged, or one of the files does not belong to the expected owner.
    """
    members = list(iter_members(content))
    check_names([name for name, _ in members], expected)
    return dict(members)


def check_names(names: Sequence[str], owner: Owner) -> None:
    """Check the names of the files of a frame.

    Raises:
        ContentError: One belongs to another owner or to no tree, or two are the same where case
            does not count.
    """
    for name in names:
        if Owner.from_name(name) != owner:
            text = " ".join(filter(None, owner)) or "no scene"
            raise ContentError(f"{name[:200]!a} is not the name of a file of {text}")
    if len({name.casefold() for name in names}) < len(names):
        raise ContentError("two of its files have the same name")


def parse_index(content: memoryview) -> Index:
    """Parse the index, which is the only file of its frame.

    Raises:
        ContentError: It is damaged or of another version, or its scenes are not sorted.
    """
    files = parse_frame(content, Owner("index"))
    try:
        index = parse_json(files[INDEX_NAME], _DECODER)
    except (ContentError, KeyError) as error:
        problem = f"its index is damaged, or that of another version: {error}"
        raise ContentError(problem) from None
    scene_ids = [scene.scene_id for scene in index.scenes]
    if scene_ids != sorted(set(scene_ids)):
        raise ContentError("its scenes are not sorted, or two of them have the same id")
    return index
