"""The index of an archive: what is in it, and where. A JSON text, a file of the tar stream itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scannet_prep.archive.layout import FORMAT_NAME, ArchiveKind, check_names
from scannet_prep.archive.tar import BLOCK_BYTES, member_bytes
from scannet_prep.errors import ContentError
from scannet_prep.scene import SceneId, Split
from scannet_prep.typed_json import Count, encode_json, parse_json

_FORMAT = "scannet-prep archive"
_FORMAT_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_INDEX_BYTES = 1 << 24
_FREE_INDEX_BYTES, _INDEX_BYTES_PER_FRAME = 1 << 20, 1 << 13


class Member(NamedTuple):
    """One file.

    Attributes:
        name: Its path, with `/`.
        offset: Where its content begins in the tar bytes of its group.
        size_bytes: Its size.
        sha256: Of its content, in hexadecimal.
    """

    name: str
    offset: Count
    size_bytes: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class Group:
    """The files of one scene, or those that belong to none: one frame.

    Attributes:
        scene_id: The scene; empty for the files that belong to none, and where a frame is too damaged to tell.
        split: Its split; empty where nobody knows.
        vertex_count: V; 0 where it was not counted.
        offset: Where the frame begins in the file.
        stored_bytes: Size of the frame.
        size_bytes: Size of its content, the tar bytes.
        members: The files, in order.
    """

    scene_id: str
    split: str
    vertex_count: Count
    offset: Count
    stored_bytes: Count
    size_bytes: Count
    members: tuple[Member, ...]

    @property
    def end(self) -> int:
        """The byte after the last of the frame."""
        return self.offset + self.stored_bytes

    @property
    def name(self) -> str:
        """The group in words."""
        return self.scene_id or "the files that belong to no scene"

    def find(self, name: str) -> Member | None:
        """A file by its name; None where there is none of that name."""
        return next((member for member in self.members if member.name == name), None)


@dataclass(frozen=True, slots=True)
class Head:
    """What holds for a whole archive.

    Attributes:
        kind: What it was made from.
        notice: Under which terms the content is.
        options: How processed scenes were made; empty for raw ones.
        program: Name and version of the program that wrote it.
        level: Compression level of zstd.
        is_complete: Whether processing had come to its end when it was packed.
    """

    kind: ArchiveKind
    notice: str = ""
    options: Mapping[str, bool | str] = field(default_factory=dict, hash=False)
    program: str = ""
    level: int = 0
    is_complete: bool = True
    format: str = _FORMAT
    version: int = _FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Index:
    """What is in an archive.

    Attributes:
        head: What holds for all of it.
        groups: The files that belong to no scene, then the scenes sorted by id, as they lie in the archive.
        failures: Why scenes are missing that were asked for, by id.
    """

    head: Head
    groups: tuple[Group, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def files(self) -> Group:
        """The files that belong to no scene."""
        return self.groups[0]

    @property
    def scenes(self) -> tuple[Group, ...]:
        """The scenes, sorted by id."""
        return self.groups[1:]


def check_index_size(size_bytes: int, frame_count: int) -> None:
    """Check that an index may be so large, before it is read.

    Raises:
        ContentError: No archive of so many frames has such an index.
    """
    limit = min(_MAX_INDEX_BYTES, _FREE_INDEX_BYTES + _INDEX_BYTES_PER_FRAME * frame_count)
    if size_bytes > limit:
        raise ContentError(
            f"the index is said to have {size_bytes:,} bytes, at most {limit:,} for {frame_count:,} frames"
        )


def encode_head(head: Head) -> bytes:
    """Encode the text that stands first in an archive."""
    return encode_json(head) + b"\n"


def encode_index(index: Index) -> bytes:
    """Encode the index, one line for each group."""
    failures = encode_json(dict(sorted(index.failures.items())))
    groups = b",\n".join(map(encode_json, index.groups))
    return b'{"head":%b,\n"failures":%b,\n"groups":[\n%b\n]}\n' % (encode_json(index.head), failures, groups)


@dataclass(frozen=True, slots=True)
class _Version:
    format: str
    version: int


@dataclass(frozen=True, slots=True)
class _IndexVersion:
    head: _Version


def parse_head(data: bytes) -> Head:
    """Read the text that stands first in an archive.

    Raises:
        ContentError: It is damaged, or of another version.
    """
    try:
        _check_version(parse_json(data, _Version))
        return parse_json(data, Head)
    except ContentError as error:
        raise ContentError(f"{FORMAT_NAME} is damaged: {error}") from None


def parse_index(data: bytes) -> Index:
    """Read the index, and check that it does not contradict itself and that all names are those of such a tree.

    Raises:
        ContentError: It is damaged, of another version, or refused.
    """
    try:
        _check_version(parse_json(data, _IndexVersion).head)
        index = parse_json(data, Index)
        _check_groups(index)
    except ContentError as error:
        raise ContentError(f"the index is damaged: {error}") from None
    return index


def _check_version(found: _Version) -> None:
    if (found.format, found.version) != (_FORMAT, _FORMAT_VERSION):
        raise ContentError(
            f"the format is {found.format[:40]!a}, version {found.version}, expected {_FORMAT!r}, {_FORMAT_VERSION}: "
            "update scannet-prep"
        )


def _check_groups(index: Index) -> None:
    names = [group.scene_id for group in index.groups]
    if names[:1] != [""] or not all(map(SceneId.is_valid, names[1:])) or sorted(set(names)) != names:
        raise ContentError("its scenes are not sorted, one is there twice, or something is not a scene id")
    end, splits = 0, {"", *Split}
    for group in index.groups:
        if group.offset != end or group.split not in splits:
            raise ContentError(f"{group.name}: does not follow the one before it, or its split does not exist")
        end = group.end
        _check_members(index.head.kind, group)


def _check_members(kind: ArchiveKind, group: Group) -> None:
    position = 0
    for name, offset, size_bytes, sha256 in group.members:
        if offset != position + BLOCK_BYTES or not _SHA256.fullmatch(sha256):
            raise ContentError(f"{group.name}: {name[:100]!a} does not lie where tar would have it, or has no SHA-256")
        position += member_bytes(size_bytes)
    if position != group.size_bytes or not position:
        raise ContentError(f"{group.name}: is said to have {group.size_bytes:,} bytes, its files have {position:,}")
    names = [member.name for member in group.members]
    if kind is ArchiveKind.RAW or not group.scene_id:
        check_names(kind, group.scene_id, names)
    elif names != [f"{group.split}/{group.scene_id}.npz"]:
        raise ContentError(f"{group.name}: holds {names[0][:100]!a}, expected its .npz in {group.split or 'a split'}")
