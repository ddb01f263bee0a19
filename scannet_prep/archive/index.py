"""The index of an archive: what is in it, and where. A JSON text, a file of the tar stream itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from scannet_prep.archive.layout import FORMAT_NAME, ArchiveKind, check_names
from scannet_prep.archive.tar import BLOCK_BYTES, member_bytes
from scannet_prep.scene import SceneId, Split

_FORMAT = "scannet-prep archive"
_FORMAT_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_INDEX_BYTES = 1 << 24
_FREE_INDEX_BYTES, _INDEX_BYTES_PER_FRAME = 1 << 20, 1 << 13

Value = TypeVar("Value")


class Member(NamedTuple):
    """One file.

    Attributes:
        name: Its path, with `/`.
        offset: Where its content begins in the tar bytes of its group.
        size_bytes: Its size.
        sha256: Of its content, in hexadecimal.
    """

    name: str
    offset: int
    size_bytes: int
    sha256: str


class Group(NamedTuple):
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
    vertex_count: int
    offset: int
    stored_bytes: int
    size_bytes: int
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
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    program: str = ""
    level: int = 0
    is_complete: bool = True

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "format": _FORMAT,
            "version": _FORMAT_VERSION,
            "kind": str(self.kind),
            "program": self.program,
            "level": self.level,
            "complete": self.is_complete,
            "notice": self.notice,
            "options": dict(self.options),
        }


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

    def find(self, scene_id: str) -> Group | None:
        """A scene by its id; None where there is none of that id."""
        return next((scene for scene in self.scenes if scene.scene_id == scene_id), None)


def check_index_size(size_bytes: int, frame_count: int) -> None:
    """Check that an index may be so large, before it is read.

    Raises:
        ValueError: No archive of so many frames has such an index.
    """
    limit = min(_MAX_INDEX_BYTES, _FREE_INDEX_BYTES + _INDEX_BYTES_PER_FRAME * frame_count)
    if size_bytes > limit:
        raise ValueError(
            f"the index is said to have {size_bytes:,} bytes, at most {limit:,} for {frame_count:,} frames"
        )


def encode_head(head: Head) -> bytes:
    """Encode the text that stands first in an archive."""
    return (json.dumps(head.to_json(), indent=1) + "\n").encode()


def encode_index(index: Index) -> bytes:
    """Encode the index, one line for each group."""
    top = json.dumps(index.head.to_json() | {"failures": dict(sorted(index.failures.items()))}, indent=1)
    lines = ",\n".join(_encode_group(number, group) for number, group in enumerate(index.groups))
    return f'{top[:-2]},\n "groups": [\n{lines}\n]\n}}\n'.encode()


def _encode_group(number: int, group: Group) -> str:
    value = {
        "scene": group.scene_id,
        "split": group.split,
        "vertices": group.vertex_count,
        "frame": number,
        "offset": group.offset,
        "stored": group.stored_bytes,
        "size": group.size_bytes,
        "members": group.members,
    }
    return json.dumps(value, separators=(",", ":"))


def parse_head(data: bytes) -> Head:
    """Read the text that stands first in an archive.

    Raises:
        ValueError: It is damaged, or of another version.
    """
    try:
        return _head_from_json(json.loads(data))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{FORMAT_NAME} is damaged: {_tell(error)}") from None


def parse_index(data: bytes) -> Index:
    """Read the index, and check that it does not contradict itself and that all names are those of such a tree.

    Raises:
        ValueError: It is damaged, of another version, or refused.
    """
    try:
        value = json.loads(data)
        head = _head_from_json(value)
        groups = tuple(_group_from_json(item) for item in value["groups"])
        failures = {_typed(key, str): printable(_typed(text, str)) for key, text in value["failures"].items()}
        _check_groups(head.kind, groups, failures)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
        raise ValueError(f"the index is damaged: {_tell(error)}") from None
    return Index(head, groups, failures)


def _tell(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def printable(text: str) -> str:
    """A text from an archive as a terminal may show it: without escape sequences."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _head_from_json(value: Mapping[str, Any]) -> Head:
    if value["format"] != _FORMAT:
        raise ValueError(f"the format is {value['format']!a:.60}, expected {_FORMAT!r}")
    if value["version"] != _FORMAT_VERSION:
        raise ValueError(
            f"the format has version {value['version']!a:.20}, expected {_FORMAT_VERSION}: update scannet-prep"
        )
    options = {printable(key): item for key, item in _typed(value["options"], dict).items()}
    if not all(isinstance(item, str | bool | int) for item in options.values()):
        raise ValueError("an option is not a plain value")
    return Head(
        ArchiveKind(value["kind"]),
        printable(_typed(value["notice"], str)),
        {key: printable(item) if isinstance(item, str) else item for key, item in options.items()},
        printable(_typed(value["program"], str)),
        _typed(value["level"], int),
        _typed(value["complete"], bool),
    )


def _group_from_json(value: Mapping[str, Any]) -> Group:
    numbers = value["vertices"], value["offset"], value["stored"], value["size"]
    if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) >> 62:
        raise ValueError("something is not a number, negative, or too large")
    members = tuple([Member(*item) for item in value["members"]])
    return Group(_typed(value["scene"], str), _typed(value["split"], str), *numbers, members)


def _check_groups(kind: ArchiveKind, groups: Sequence[Group], failures: Iterable[str]) -> None:
    names = [group.scene_id for group in groups]
    if not all(map(SceneId.is_valid, failures)):
        raise ValueError("a failure is not that of a scene")
    if names[:1] != [""] or not all(map(SceneId.is_valid, names[1:])) or sorted(set(names)) != names:
        raise ValueError("its scenes are not sorted, one is there twice, or something is not a scene id")
    end, splits = 0, {"", *Split}
    for group in groups:
        if group.offset != end or group.split not in splits:
            raise ValueError(f"{group.name}: does not follow the one before it, or its split does not exist")
        end = group.end
        _check_members(kind, group)


def _check_members(kind: ArchiveKind, group: Group) -> None:
    position = 0
    for name, offset, size_bytes, sha256 in group.members:
        if type(name) is not str or type(size_bytes) is not int or not _SHA256.fullmatch(sha256):
            raise ValueError(f"{group.name}: a file has no name, no size, or no SHA-256")
        if offset != position + BLOCK_BYTES or size_bytes < 0:
            raise ValueError(f"{group.name}: {name[:100]!a} does not lie where tar would have it")
        position += member_bytes(size_bytes)
    if position != group.size_bytes or not position:
        raise ValueError(f"{group.name}: is said to have {group.size_bytes:,} bytes, its files have {position:,}")
    names = [member.name for member in group.members]
    if kind is ArchiveKind.RAW or not group.scene_id:
        check_names(kind, group.scene_id, names)
    elif names != [f"{group.split}/{group.scene_id}.npz"]:
        raise ValueError(f"{group.name}: holds {names[0][:100]!a}, expected its .npz in {group.split or 'a split'}")


def _typed(value: object, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise ValueError(f"{value!a:.60} is not of type {kind.__name__}")
    return value
