"""The archive: a `.tar.zst` that any tar opens, with random access to each scene.

    frame 0       the files of no scene        such as manifest.json
    frame 1..n    the files of a scene         scenes sorted by id
    frame n + 1   .scannet-prep/index.json     the index
    frame n + 2   1,024 zeros                  the end of the tar stream
    skippable     the seek table               sizes and checksums of the frames above

The contents of all frames together are one tar file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from scannet_prep.archive.seekable import (
    SeekRow,
    decompress,
    iter_members,
    read_seek_table,
)
from scannet_prep.archive.sources import SUFFIX, ByteSource
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import Buffer
from scannet_prep.base.json import Count, make_decoder, parse_json
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ArchiveError, ContentError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scene import OWN_ID_PATTERN, SceneId, Split
from scannet_prep.release.splits import find_official_split

INDEX_NAME = ".scannet-prep/index.json"
MAX_FRAME_BYTES = 1 << 30
HINT_DAMAGED = (
    "copy the archive again, or pack it again; scannet-prep unpack recovers what is intact"
)
MAX_INDEX_BYTES = 1 << 24

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
            return cls("raw", match[2], _find_raw_split(match[2], match[1]))
        return cls() if _OTHER_FILE.fullmatch(name) else None

    @classmethod
    def of_group(cls, kind: TreeKind, group: StoredGroup) -> Owner:
        """Return the owner of the files of a group of an archive."""
        if not group.scene_id:
            return cls()
        return cls(kind, group.scene_id, group.split)

    def check(self, names: Sequence[str]) -> None:
        """Check that files belong to this owner; their names become paths when they are unpacked.

        Raises:
            ContentError: One belongs to another owner or to no tree, or a name occurs twice where
                case does not count.
        """
        for name in names:
            if Owner.from_name(name) != self:
                owner = " ".join(filter(None, self)) or "no scene"
                raise ContentError(f"{name[:200]!a} is not the name of a file of {owner}")
        if len({name.casefold() for name in names}) < len(names):
            raise ContentError("two of its files have the same name")


def _find_raw_split(scene_id: str, folder: str) -> str:
    """Find the split of a raw scene by the official lists, or else by its folder."""
    official = find_official_split(scene_id)
    if official is not None:
        return official
    if folder == "scans_test/":
        return Split.TEST
    # A scene of the release that is in no list could be in train or in val.
    return Split.TRAIN if SceneId.is_own(scene_id) else ""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The files of a scene, or those of no scene: one frame of the archive.

    Attributes:
        scene_id: The scene; empty for the files of no scene.
        split: Its split; empty if it has none.
        vertex_count: V; 0 if it was not counted.
        offset: The first byte of the frame in the archive.
        stored_bytes: Size of the frame.
        size_bytes: Size of its content.
    """

    scene_id: str
    split: Literal["train", "val", "test", ""]
    vertex_count: Count
    offset: Count
    stored_bytes: Count
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_FRAME_BYTES)]


@dataclass(frozen=True)
class Index:
    """The content of an archive.

    Attributes:
        kind: The kind of the tree.
        options: The options of processed scenes; None for raw ones.
        label_map: Digest of the label map of processed scenes; empty for raw ones.
        scene_format: Format version of processed scenes; 0 for raw ones.
        failures: Why scenes that should have been processed are missing, by id.
        groups: The files of no scene, then the scenes sorted by id; in the order of the frames.
        program: Name and version of the program that packed it.
    """

    kind: TreeKind
    options: ProcessOptions | None = None
    label_map: str = ""
    scene_format: Count = 0
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)
    groups: tuple[StoredGroup, ...] = ()
    program: str = f"scannet-prep {VERSION}"
    version: Literal[1] = 1


_DECODER = make_decoder(Index)


class Archive:
    """An archive whose index has been read. Picklable, and safe under fork and in threads.

    Args:
        source: Its bytes.

    Attributes:
        source: As given.
        name: Path or address, for messages.
        index: Its index.
        scenes: The scenes by id, sorted.

    Raises:
        ArchiveError: It is truncated, damaged at its end, or something else.
        TransferError: The server does not send it.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.name = source.name
        try:
            rows = read_seek_table(source)
            self.index = _read_index(source, rows)
        except ContentError as error:
            kind = describe_beginning(source.read(0, BEGINNING_BYTES)) or "a file of another kind"
            if kind != "a zstd file":
                raise ArchiveError(self.name, f"is {kind}, expected a {SUFFIX} archive") from None
            problem = f"is damaged or truncated, or scannet-prep did not make it: {error}"
            raise ArchiveError(self.name, problem, HINT_DAMAGED) from None
        self.scenes = {group.scene_id: group for group in self.index.groups[1:]}
        self._rows = dict(zip(self.index.groups, rows, strict=False))

    def read(self, group: StoredGroup) -> list[tuple[str, memoryview]]:
        """Read the files of a group, which is one range of the archive, into new, writable memory.

        Returns:
            Name and content of each file.

        Raises:
            ArchiveError: The group is damaged, or was replaced since the archive was opened.
            TransferError: The server does not send it.
        """
        frame = self.source.read(group.offset, group.stored_bytes)
        try:
            files = list(iter_members(decompress(frame, self._rows[group])))
            Owner.of_group(self.index.kind, group).check([name for name, _ in files])
        except ContentError as error:
            subject = group.scene_id or "the files of no scene"
            problem = f"{subject}: is damaged: {error}"
            raise ArchiveError(self.name, problem, HINT_DAMAGED) from None
        return files


def _read_index(source: ByteSource, rows: Sequence[SeekRow]) -> Index:
    """Read the index, which is the last frame but one, and the end of the tar stream.

    Raises:
        ContentError: They are damaged, or the index lists other frames than the seek table.
    """
    offset = 0
    expected = []
    for row in rows[:-2]:
        expected.append((offset, row.stored_bytes, row.size_bytes))
        offset += row.stored_bytes
    contents = []
    for row in rows[-2:]:
        if row.size_bytes > MAX_INDEX_BYTES:
            raise ContentError(f"its index has {row.size_bytes:,} bytes")
        contents.append(decompress(source.read(offset, row.stored_bytes), row))
        offset += row.stored_bytes
    index = parse_index(dict(iter_members(contents[0])))
    found = [(group.offset, group.stored_bytes, group.size_bytes) for group in index.groups]
    if found != expected:
        raise ContentError("its index lists other frames than its seek table")
    return index


def parse_index(files: Mapping[str, Buffer]) -> Index:
    """Parse the index, which is the only file of its frame.

    Raises:
        ContentError: It is damaged, has another version, or contradicts itself.
    """
    if list(files) != [INDEX_NAME]:
        raise ContentError(f"it has no {INDEX_NAME} at its end")
    try:
        index = parse_json(files[INDEX_NAME], _DECODER)
    except ContentError as error:
        problem = f"its index is damaged, or that of another version: {error}"
        raise ContentError(problem) from None
    check_scene_ids([group.scene_id for group in index.groups])
    return index


def check_scene_ids(scene_ids: list[str]) -> None:
    """Check the scene ids of all groups: after an empty one, they are valid, sorted and distinct.

    Raises:
        ContentError: They are not, or two of them are the same where case does not count.
    """
    if scene_ids[:1] != [""] or not all(map(SceneId.is_valid, scene_ids[1:])):
        raise ContentError("the id of one of its scenes is not valid")
    names_by_folded = {name.casefold(): name for name in scene_ids}
    if len(names_by_folded) < len(scene_ids) or scene_ids != sorted(scene_ids):
        raise ContentError("its scenes are not sorted, or two of them have the same id")
