"""The index of an archive: what is in it, and where.

It is a JSON text, the member `.scannet-prep/index.json` of the tar stream, so that any tar extracts it beside the
files. A second, short text stands first in the stream, `.scannet-prep/format.json`, so that a reader of a pipe knows
what is coming.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.frames import MIN_FRAME_BYTES
from scannet_prep.scene import SceneId

OWN_PREFIX = ".scannet-prep/"
FORMAT_NAME = f"{OWN_PREFIX}format.json"
INDEX_NAME = f"{OWN_PREFIX}index.json"

_FORMAT = "scannet-prep archive"
_FORMAT_VERSION = 1

Value = TypeVar("Value")


class ArchiveKind(StrEnum):
    """What an archive was made from."""

    PROCESSED = "processed"
    RAW = "raw"
    FILES = "files"


class MemberEntry(NamedTuple):
    """One file.

    Attributes:
        name: Its path, with `/`.
        offset: Where its data begin in the tar bytes of its group.
        size_bytes: Its size.
        crc32: CRC-32 of its data.
    """

    name: str
    offset: int
    size_bytes: int
    crc32: int


class GroupEntry(NamedTuple):
    """Tar members that were compressed together: those of one scene, or the files that belong to none.

    Attributes:
        scene_id: The scene; empty for the files that belong to none.
        split: Its split; empty where nobody knows.
        vertex_count: V; 0 where it was not counted.
        first_frame: Number of its first frame.
        frame_count: Number of its frames.
        offset: Where the first frame begins in the file.
        stored_bytes: Size of its frames in the file.
        stored_crc32: CRC-32 of its frames.
        size_bytes: Size of its tar bytes.
        sha256: Of its tar bytes, in hexadecimal.
        members: Its files, in order.
    """

    scene_id: str
    split: str
    vertex_count: int
    first_frame: int
    frame_count: int
    offset: int
    stored_bytes: int
    stored_crc32: int
    size_bytes: int
    sha256: str
    members: tuple[MemberEntry, ...]

    @property
    def name(self) -> str:
        """The group in words."""
        return self.scene_id or "files that belong to no scene"


@dataclass(frozen=True, slots=True)
class Head:
    """What holds for a whole archive.

    Attributes:
        kind: What it was made from.
        notice: Under which terms the content is.
        options: How processed scenes were made; empty for other kinds.
        program: Name and version of the program that wrote it.
        level: Compression level of zstd.
    """

    kind: ArchiveKind
    notice: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    program: str = ""
    level: int = 0

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "format": _FORMAT,
            "version": _FORMAT_VERSION,
            "kind": str(self.kind),
            "program": self.program,
            "level": self.level,
            "notice": self.notice,
            "options": dict(self.options),
        }


@dataclass(frozen=True, slots=True)
class Index:
    """What is in an archive.

    Attributes:
        head: What holds for all of it.
        files: The files that belong to no scene.
        scenes: The scenes, sorted by id.
        failures: Why scenes are missing that were asked for, by id.
    """

    head: Head
    files: GroupEntry
    scenes: tuple[GroupEntry, ...]
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def groups(self) -> tuple[GroupEntry, ...]:
        """The files that belong to no scene, then the scenes, as they lie in the archive."""
        return (self.files, *self.scenes)

    def find(self, scene_id: str) -> GroupEntry | None:
        """The entry of a scene; None where there is none of that id."""
        return next((scene for scene in self.scenes if scene.scene_id == scene_id), None)


def check_member_name(name: str) -> None:
    """Check that a name stays in the folder that an archive is unpacked to.

    Raises:
        ValueError: It does not, or the archive's own entries have it.
    """
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\0" in name:
        raise ValueError(f"the name {name[:80]!r} leaves the folder, or is no plain path")
    if name.startswith(OWN_PREFIX):
        raise ValueError(f"the name {name[:80]!r} is reserved")


def find_scene_id(name: str) -> SceneId | None:
    """The scene that a file belongs to: the first part of its path that begins with a scene id; None if none does.

    `scans/scene0011_00/scene0011_00.txt`, `train/scene0011_00.npz` and `train/scene0011_00_inst.pth` belong to
    `scene0011_00`.
    """
    for part in PurePosixPath(name).parts:
        if SceneId.is_valid(part[:12]) and not part[12:13].isdecimal():
            return SceneId(part[:12])
    return None


def encode_head(head: Head) -> bytes:
    """Encode the text that stands first in an archive."""
    return (json.dumps(head.to_json(), indent=1) + "\n").encode()


def encode_group(group: GroupEntry) -> str:
    """Encode the line of one group in the index."""
    value = {
        "id": group.scene_id,
        "split": group.split,
        "vertices": group.vertex_count,
        "frames": [group.first_frame, group.frame_count],
        "offset": group.offset,
        "stored": group.stored_bytes,
        "stored_crc32": group.stored_crc32,
        "size": group.size_bytes,
        "sha256": group.sha256,
        "members": group.members,
    }
    return json.dumps(value, separators=(",", ":"))


def encode_index(head: Head, files: str, scenes: Sequence[str], failures: Mapping[str, str]) -> bytes:
    """Encode the index, one line a scene.

    Args:
        head: What holds for all of it.
        files: What `encode_group` makes of the files that belong to no scene.
        scenes: What it makes of the scenes.
        failures: Why scenes are missing that were asked for, by id.
    """
    top = json.dumps(head.to_json() | {"failures": dict(sorted(failures.items()))}, indent=1)
    body = ",\n".join(scenes)
    return f'{top[:-2]},\n "files": {files},\n "scenes": [\n{body}\n]\n}}\n'.encode()


def parse_head(data: bytes) -> Head:
    """Read the text that stands first in an archive.

    Raises:
        ValueError: It is damaged, or of another version.
    """
    try:
        return _head_from_json(json.loads(data, parse_constant=_refuse_constant))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the description of the format is damaged: {type(error).__name__}: {error}") from None


def parse_index(data: bytes) -> Index:
    """Read the index.

    What is checked is that it does not contradict itself; whether the frames hold what it says, reading them tells.

    Raises:
        ValueError: It is damaged, or of another version.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
        head = _head_from_json(value)
        files, *scenes = _groups_from_json([value["files"], *value["scenes"]])
        failures = {_typed(key, str): _typed(text, str) for key, text in value["failures"].items()}
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"the index is damaged: {type(error).__name__}: {error}") from None
    names = [scene.scene_id for scene in scenes]
    for group in (files, *scenes):
        if not 0 < group.frame_count <= group.stored_bytes // MIN_FRAME_BYTES:
            raise ValueError("the index is damaged: a group has no frame, or more than it has room for")
    if not _is_unicode("".join([member.name for group in (files, *scenes) for member in group.members])):
        raise ValueError("the index is damaged: a name is no text")
    if files.scene_id or not all(map(SceneId.is_valid, names)):
        raise ValueError("the index is damaged: something is no scene id")
    if len(set(names)) != len(names) or names != sorted(names):
        raise ValueError("the index is damaged: its scenes are not sorted, or one is there twice")
    return Index(head, files, tuple(scenes), failures)


def _is_unicode(text: str) -> bool:
    """Whether it can be written; JSON can name halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _head_from_json(value: Mapping[str, Any]) -> Head:
    if value["format"] != _FORMAT:
        raise ValueError(f"the format is {value['format']!r:.60}, expected {_FORMAT!r}")
    if value["version"] != _FORMAT_VERSION:
        raise ValueError(
            f"the format has version {value['version']!r:.20}, expected {_FORMAT_VERSION}: update scannet-prep"
        )
    return Head(
        ArchiveKind(value["kind"]),
        _typed(value["notice"], str),
        _typed(value["options"], dict),
        _typed(value["program"], str),
        _typed(value["level"], int),
    )


def _groups_from_json(values: list[dict[str, Any]]) -> list[GroupEntry]:
    """Check whole columns at once: an archive of 1,613 scenes is to open within milliseconds."""
    frames = _column(values, "frames", list)
    members = _column(values, "members", list)
    if set(map(len, frames)) - {2}:
        raise ValueError("the index is damaged: a group has no first frame and number of frames")
    texts = {key: _column(values, key, str) for key in ("id", "split", "sha256")}
    numbers = {key: _column(values, key, int) for key in ("vertices", "offset", "stored", "stored_crc32", "size")}
    numbers["first_frame"], numbers["frame_count"] = map(list, zip(*frames, strict=True))
    arrays = {key: _to_array(column) for key, column in numbers.items()}
    _check_sequence(arrays["first_frame"], arrays["frame_count"])
    _check_sequence(arrays["offset"], arrays["stored"])
    _check_members(members, arrays["size"], texts["id"])
    columns = {
        "scene_id": texts["id"],
        "split": texts["split"],
        "vertex_count": numbers["vertices"],
        "first_frame": numbers["first_frame"],
        "frame_count": numbers["frame_count"],
        "offset": numbers["offset"],
        "stored_bytes": numbers["stored"],
        "stored_crc32": numbers["stored_crc32"],
        "size_bytes": numbers["size"],
        "sha256": texts["sha256"],
        "members": [tuple([_make_member(item) for item in items]) for items in members],
    }
    return list(map(_make_group, zip(*map(columns.__getitem__, GroupEntry._fields), strict=True)))


# What `_make` of a named tuple does, without counting again what has been counted.
_make_group = partial(tuple.__new__, GroupEntry)
_make_member = partial(tuple.__new__, MemberEntry)


def _check_sequence(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """Check that groups follow each other without gap."""
    if (starts[1:] - lengths[:-1] != starts[:-1]).any() or starts[0]:
        raise ValueError("the index is damaged: its groups do not follow each other")


def _check_members(members: list[list[Any]], sizes: NDArray[np.int64], names: list[str]) -> None:
    """Check that members follow each other within their groups."""
    flat = list(chain.from_iterable(members))
    if not flat:
        return
    if set(map(type, flat)) - {list} or set(map(len, flat)) - {len(MemberEntry._fields)}:
        raise ValueError("the index is damaged: something among its members is no member")
    texts, *columns = zip(*flat, strict=True)
    if set(map(type, texts)) - {str}:
        raise ValueError("the index is damaged: a member has no name")
    starts, lengths, _ = map(_to_array, columns)
    groups = np.repeat(np.arange(len(members)), [len(items) for items in members])
    limits = sizes[groups]
    limits[:-1][groups[1:] == groups[:-1]] = starts[1:][groups[1:] == groups[:-1]]  # the next member of the same group
    wrong = (starts > limits) | (lengths > limits - starts)
    if wrong.any():
        name = names[groups[wrong.argmax()]]
        raise ValueError(f"the index is damaged: members of {name or 'no scene'} overlap, or exceed its size")


def _column(values: list[dict[str, Any]], key: str, kind: type[Value]) -> list[Value]:
    column = [value[key] for value in values]
    if set(map(type, column)) - {kind}:
        raise ValueError(f"the index is damaged: something under {key!r} is not of type {kind.__name__}")
    return column


def _to_array(column: Sequence[int]) -> NDArray[np.int64]:
    # NumPy would take truth values, fractions and texts for numbers, too.
    if set(map(type, column)) - {int}:
        raise ValueError("the index is damaged: something is no number")
    array = np.array(column, np.int64)
    if len(array) and array.min() < 0:
        raise ValueError("the index is damaged: a number is negative")
    return array


def _typed(value: object, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise ValueError(f"{value!r:.60} is not of type {kind.__name__}")
    return value
