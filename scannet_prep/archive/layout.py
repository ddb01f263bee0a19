"""How an archive is laid out: which names it may hold, the tar headers, and the index, a JSON text.

The headers are made and read by `tarfile`: one block of 512 bytes for each file, which is all that our names need.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Literal, NamedTuple

import msgspec

from scannet_prep.base.backports import StrEnum
from scannet_prep.base.errors import ContentError, UsageError
from scannet_prep.base.files import Buffer
from scannet_prep.base.typed_json import Count, encode_json, make_decoder, parse_json
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split

OWN_PREFIX = ".scannet-prep/"
FORMAT_NAME = f"{OWN_PREFIX}format.json"
INDEX_NAME = f"{OWN_PREFIX}index.json"
MAX_CONTENT_BYTES = 1 << 30
MAX_INDEX_BYTES = 1 << 24  # four times that of all scenes as raw ones with all their files
FREE_BYTES = 1 << 20
BLOCK_BYTES = 512
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)
DEFAULT_LEVEL = 1

NEWER = "was made by a newer scannet-prep, which pip install --upgrade scannet-prep gives"
_SplitName = Annotated[str, msgspec.Meta(pattern=r"^(train|val|test)?\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_ID = r"(?P<scene>scene\d{4}_\d{2})"
_OTHER_NAME = re.compile(
    r"(?:tasks/)?(?!(?:train|val|test|scans|scans_test|tasks)$|scene\d{4}_\d{2}$)\w[\w.+-]{0,80}",
    re.ASCII,
)


class ArchiveKind(StrEnum):
    """What an archive was made from."""

    PROCESSED = "processed"
    RAW = "raw"


_SCENE_NAMES = {
    ArchiveKind.PROCESSED: re.compile(rf"(?P<folder>train|val|test)/{_ID}\.npz", re.ASCII),
    # The scenes of a raw tree may also lie directly in it.
    ArchiveKind.RAW: re.compile(
        rf"(?:(?P<folder>scans|scans_test)/)?{_ID}/(?P=scene)[_.][\w.+-]{{0,80}}", re.ASCII
    ),
}


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
    sha256: _Sha256

    def of(self, content: memoryview) -> memoryview:
        """Its content, of the tar bytes of its group."""
        return content[self.offset : self.offset + self.size_bytes]

    def check(self, data: Buffer) -> None:
        """Check its content by its SHA-256; a `ContentError` where that is another one."""
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise ContentError(
                f"{self.name} has the SHA-256 {found[:16]}..., expected {self.sha256[:16]}..."
            )


@dataclass(frozen=True, slots=True)
class StoredGroup:
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
    split: _SplitName
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


@dataclass(frozen=True, slots=True)
class Head:
    """What holds for a whole archive.

    Attributes:
        kind: What it was made from.
        notice: Under which terms the content is.
        options: The options of processed scenes; None for raw ones.
        scene_format: Format version of processed scenes; 0 for raw ones.
        program: Name and version of the program that wrote it.
        level: Compression level of zstd, 1..22; 0 where it stores.
        is_complete: Whether processing had come to its end when it was packed.
    """

    kind: ArchiveKind
    notice: str = ""
    options: ProcessOptions | None = None
    scene_format: Count = 1  # archives of format 1 do not record it
    program: str = ""
    level: int = DEFAULT_LEVEL
    is_complete: bool = True
    format: Literal["scannet-prep archive"] = "scannet-prep archive"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Index:
    """What is in an archive.

    Attributes:
        head: What holds for all of it.
        groups: The files that belong to no scene, then the scenes sorted by id, as they lie in the archive.
        failures: Why scenes are missing that were asked for, by id.
    """

    head: Head
    groups: tuple[StoredGroup, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def scenes(self) -> tuple[StoredGroup, ...]:
        """The scenes, sorted by id."""
        return self.groups[1:]

    @property
    def end(self) -> int:
        """The byte after the last of them, where the frame of the index begins."""
        return self.groups[-1].end


def check_held_once(archives: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Check that no scene is in several archives, by their names and scenes; else a `UsageError`."""
    holders: dict[str, str] = {}
    for name, scene_id in [
        (name, scene_id) for name, scene_ids in archives for scene_id in scene_ids
    ]:
        if scene_id in holders:
            raise UsageError(
                f"{name}: holds {scene_id}, and so does {holders[scene_id]}",
                "name only one of them",
            )
        holders[scene_id] = name


def identify_scene(name: str) -> tuple[ArchiveKind, str, str] | None:
    """Tell of a scene's file, by its path: the kind of the tree, the scene's id and its split; None of other files.

    The split is that of its folder, or what the official lists say; empty where neither tells.
    """
    for kind, pattern in _SCENE_NAMES.items():
        if match := pattern.fullmatch(name):
            scene_id, folder = match["scene"], match["folder"] or ""
            if kind is ArchiveKind.RAW:
                folder = find_official_split(scene_id) or (
                    Split.TEST if folder == "scans_test" else ""
                )
            return kind, scene_id, folder
    return None


def find_scene(kind: ArchiveKind, name: str) -> str | None:
    """The scene that a file of such an archive belongs to, by its path; empty for none; None where it may not be."""
    found = identify_scene(name)
    if found is not None and found[0] is kind:
        return found[1]
    return "" if _OTHER_NAME.fullmatch(name) else None


def check_names(kind: ArchiveKind, scene_id: str, names: list[str]) -> None:
    """Check the names of the files of one group, in order; the scene is empty for those that belong to none.

    One that is not that of a file of the scene, is there twice, or lies in another folder is a `ContentError`.
    """
    for name in names:
        if find_scene(kind, name) != scene_id and not (
            not scene_id and name == FORMAT_NAME == names[0]
        ):
            raise ContentError(
                f"{name[:100]!a} is not the name of a file of {scene_id or 'no scene'} in a {kind} tree"
            )
    folders = {name.rpartition("/")[0] for name in names}
    if len(set(names)) != len(names) or (scene_id and len(folders) != 1):
        raise ContentError(
            f"a file of {scene_id or 'no scene'} is there twice, or they do not lie in one folder"
        )


def encode_header(name: str, size_bytes: int) -> bytes:
    """The tar header of a file: rights 0644, time and owner 0, so that the same file always gives the same bytes."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf(tarfile.USTAR_FORMAT)


def member_bytes(size_bytes: int) -> int:
    """How much a file takes: header, content, and zeros up to a whole block."""
    return BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES


def parse_header(header: Buffer) -> tuple[str, int]:
    """Read name and size; a header that `encode_header` does not make (damaged, of a link): a `ContentError`."""
    try:
        info = tarfile.TarInfo.frombuf(bytes(header), "utf-8", "strict")
        expected = encode_header(info.name, info.size) if info.size >= 0 else b""
    except (tarfile.HeaderError, ValueError) as error:
        raise ContentError(f"a tar header is damaged: {error}") from None
    if expected != header:
        raise ContentError(f"a tar header is not as this program writes it: {info.name[:80]!a}")
    return info.name, info.size


def read_members(content: memoryview) -> tuple[Member, ...]:
    """Find the files in the tar bytes of a frame; a `ContentError` where one is cut, or a header is not ours."""
    members, position = list[Member](), 0
    while position < len(content):
        name, size_bytes = parse_header(content[position : position + BLOCK_BYTES])
        start, position = position + BLOCK_BYTES, position + member_bytes(size_bytes)
        members.append(
            Member(
                name,
                start,
                size_bytes,
                hashlib.sha256(content[start : start + size_bytes]).hexdigest(),
            )
        )
    if position != len(content) or not members:
        raise ContentError("a frame ends in the middle of a file")
    return tuple(members)


_INDEX = make_decoder(Index)


def encode_index(index: Index) -> bytes:
    """Encode the index, one line for each group."""
    failures = encode_json(dict(sorted(index.failures.items())))
    groups = b",\n".join(map(encode_json, index.groups))
    return b'{"head":%b,\n"failures":%b,\n"groups":[\n%b\n]}\n' % (
        encode_json(index.head),
        failures,
        groups,
    )


def parse_index(data: bytes) -> Index:
    """Read the index; one that is damaged, of another version, or contradicts itself is a `ContentError`."""
    try:
        index = parse_json(data, _INDEX)
        _check_groups(index)
    except ContentError as error:
        raise ContentError(f"the index is damaged, or {NEWER}: {error}") from None
    return index


def _check_groups(index: Index) -> None:
    names = [group.scene_id for group in index.groups]
    if (
        names[:1] != [""]
        or not all(map(SceneId.is_valid, names[1:]))
        or sorted(set(names)) != names
    ):
        raise ContentError(
            "its scenes are not sorted, one is there twice, or something is not a scene id"
        )
    end = 0
    for group in index.groups:
        *starts, size_bytes = accumulate(
            (member_bytes(member.size_bytes) for member in group.members), initial=0
        )
        found = [
            group.offset,
            group.size_bytes,
            *(member.offset - BLOCK_BYTES for member in group.members),
        ]
        if found != [end, size_bytes, *starts] or not starts:
            raise ContentError(
                f"{group.name}: it or its files do not lie where this program would put them"
            )
        if (
            size_bytes > MAX_CONTENT_BYTES
            or group.stored_bytes > FREE_BYTES + size_bytes * 257 // 256
        ):
            raise ContentError(
                f"{group.name}: is said to take {group.stored_bytes:,} for {size_bytes:,} bytes"
            )
        names, kind, end = [member.name for member in group.members], index.head.kind, group.end
        check_names(kind, group.scene_id, names)
        if (
            group.scene_id
            and kind is ArchiveKind.PROCESSED
            and names != [f"{group.split}/{group.scene_id}.npz"]
        ):
            raise ContentError(
                f"{group.name}: holds {names[0][:100]!a}, which is not in the split {group.split!a}"
            )
