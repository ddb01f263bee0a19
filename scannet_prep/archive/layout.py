"""The names that an archive may hold, and its index, which is a JSON text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import msgspec

from scannet_prep.archive.tar import Member, place_files
from scannet_prep.base.backports import StrEnum
from scannet_prep.base.json import Count, encode_json, make_decoder, parse_json
from scannet_prep.errors import ContentError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split

OWN_PREFIX = ".scannet-prep/"
FORMAT_NAME = f"{OWN_PREFIX}format.json"
INDEX_NAME = f"{OWN_PREFIX}index.json"
MAX_CONTENT_BYTES = 1 << 30
# Four times the index of the whole raw release with all of its files.
MAX_INDEX_BYTES = 1 << 24
# Limits of sizes are a factor of another size plus this, so that no small frame exceeds them.
LIMIT_MARGIN_BYTES = 1 << 20
DEFAULT_LEVEL = 1

MADE_BY_NEWER = "was made by a newer scannet-prep: update yours (git pull; pip install .)"
_SplitName = Annotated[str, msgspec.Meta(pattern=r"^(train|val|test)?\Z")]
_ID = r"(?P<scene>scene\d{4}_\d{2})"
# A file that belongs to no scene, at the top level or in `tasks/`. It may not have the name of a
# folder of a tree: unpacked, it would stand where the folder belongs.
_OTHER_NAME = re.compile(
    r"(?:tasks/)?(?!(?:train|val|test|scans|scans_test|tasks)$|scene\d{4}_\d{2}$)\w[\w.+-]{0,80}",
    re.ASCII,
)


def max_frame_bytes(content_bytes: int) -> int:
    """Return the maximum size of a frame: its content stored, with room for headers."""
    # Content that does not compress grows by less than a 256th.
    return LIMIT_MARGIN_BYTES + content_bytes * 257 // 256


class ArchiveKind(StrEnum):
    """The kind of the scenes in an archive."""

    PROCESSED = "processed"
    RAW = "raw"


_SCENE_NAMES = {
    ArchiveKind.PROCESSED: re.compile(
        r"(?P<folder>train|val|test)/(?P<scene>[\w-]+)\.npz", re.ASCII
    ),
    # The scenes of a raw tree may also lie directly in it.
    ArchiveKind.RAW: re.compile(
        rf"(?:(?P<folder>scans|scans_test)/)?{_ID}/(?P=scene)[_.][\w.+-]{{0,80}}", re.ASCII
    ),
}


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The files of one scene, or those that belong to no scene: one frame of an archive.

    Attributes:
        scene_id: The scene; empty for the files that belong to no scene, and for a frame that is
            too damaged to reveal its scene.
        split: Its split; empty if unknown.
        vertex_count: V; 0 if it was not counted.
        offset: The first byte of the frame in the archive.
        stored_bytes: Size of the frame.
        size_bytes: Size of its content, the tar bytes.
        members: The files, in order; empty until an index or a tar header has named them.
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
        """The byte after the frame."""
        return self.offset + self.stored_bytes

    @property
    def name(self) -> str:
        """The group in words, for messages."""
        return self.scene_id or "the files that belong to no scene"


@dataclass(frozen=True, slots=True)
class Head:
    """The facts that apply to a whole archive.

    Attributes:
        kind: The kind of its scenes.
        notice: The terms of its content.
        options: The options of processed scenes; None for raw ones.
        scene_format: Format version of processed scenes; 0 for raw ones.
        program: Name and version of the program that wrote it.
        level: Compression level of zstd, 1..22; 0 if it is stored.
        is_complete: Whether processing had finished when it was packed.
    """

    kind: ArchiveKind
    notice: str = ""
    options: ProcessOptions | None = None
    # Archives of scenes of format 1 do not record it.
    scene_format: Count = 1
    program: str = ""
    level: int = DEFAULT_LEVEL
    is_complete: bool = True
    format: Literal["scannet-prep archive"] = "scannet-prep archive"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Index:
    """The content of an archive.

    Attributes:
        head: The facts that apply to the whole archive.
        groups: The files that belong to no scene, then the scenes sorted by id; in the order of
            their frames.
        failures: Why requested scenes are missing, by id.
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
        """The byte after the last group, where the frame of the index begins."""
        return self.groups[-1].end


class SceneFile(NamedTuple):
    """The kind of tree, the scene and the split that the name of a file belongs to.

    Attributes:
        kind: The kind of the tree.
        scene_id: The scene.
        split: Its split; empty if unknown.
    """

    kind: ArchiveKind
    scene_id: str
    split: str


def identify_scene(name: str) -> SceneFile | None:
    """Identify the scene that a file belongs to by its name; None for any other file.

    The split is that of the folder or, for raw scenes, that of the official lists. A raw scene of
    no list has an unknown split, unless its folder is that of the test scenes.
    """
    for kind, pattern in _SCENE_NAMES.items():
        match = pattern.fullmatch(name)
        if match is None:
            continue
        scene_id = match["scene"]
        folder = match["folder"] or ""
        if kind is ArchiveKind.RAW:
            return SceneFile(kind, scene_id, _find_raw_split(scene_id, folder))
        if SceneId.is_valid(scene_id):
            return SceneFile(kind, scene_id, folder)
    return None


def _find_raw_split(scene_id: str, folder: str) -> str:
    """Find the split of a raw scene by its id, or else by its folder; empty if unknown."""
    official = find_official_split(scene_id)
    if official is not None:
        return official
    # A scene of no official list in `scans` may belong to train or to val.
    return Split.TEST if folder == "scans_test" else ""


def find_scene(kind: ArchiveKind, name: str) -> str | None:
    """Find the scene of a file in an archive of a kind, by its name.

    Returns:
        The scene id; empty for a file that belongs to no scene; None for a name that an archive
        of this kind may not hold.
    """
    scene_file = identify_scene(name)
    if scene_file is not None and scene_file.kind is kind:
        return scene_file.scene_id
    return "" if _OTHER_NAME.fullmatch(name) else None


def check_names(kind: ArchiveKind, scene_id: str, names: list[str]) -> None:
    """Check the names of the files of one group.

    Args:
        kind: The kind of the archive.
        scene_id: The scene; empty for the files that belong to no scene.
        names: The names, in order.

    Raises:
        ContentError: A name does not belong there or occurs twice, or the files of a scene are in
            several folders.
    """
    owner = scene_id or "no scene"
    for number, name in enumerate(names):
        is_format_file = number == 0 and name == FORMAT_NAME and not scene_id
        if not is_format_file and find_scene(kind, name) != scene_id:
            problem = f"{name[:100]!a} is not the name of a file of {owner} in a {kind} tree"
            raise ContentError(problem)
    has_duplicates = len(set(names)) != len(names)
    folders = {name.rpartition("/")[0] for name in names}
    if has_duplicates or (scene_id and len(folders) != 1):
        raise ContentError(f"a file of {owner} occurs twice, or its files are in several folders")


_INDEX_DECODER = make_decoder(Index)


def encode_index(index: Index) -> bytes:
    """Encode the index, one line for each group."""
    failures = encode_json(dict(sorted(index.failures.items())))
    groups = b",\n".join(map(encode_json, index.groups))
    head = encode_json(index.head)
    return b'{"head":%b,\n"failures":%b,\n"groups":[\n%b\n]}\n' % (head, failures, groups)


def parse_index(data: bytes) -> Index:
    """Read the index.

    Raises:
        ContentError: It is damaged, has another version, or contradicts itself.
    """
    try:
        index = parse_json(data, _INDEX_DECODER)
        _check_order(index)
        end = 0
        for group in index.groups:
            _check_group(group, index.head.kind, end)
            end = group.end
    except ContentError as error:
        raise ContentError(f"the index is damaged, or {MADE_BY_NEWER}: {error}") from None
    return index


def _check_order(index: Index) -> None:
    """Check that the first group belongs to no scene, and that the others are sorted, each once."""
    if not index.groups or index.groups[0].scene_id:
        raise ContentError("its first frame does not hold the files that belong to no scene")
    scene_ids = [scene.scene_id for scene in index.scenes]
    if not all(map(SceneId.is_valid, scene_ids)):
        raise ContentError("one of its scenes has no valid id")
    if sorted(set(scene_ids)) != scene_ids:
        raise ContentError("its scenes are not sorted, or a scene occurs twice")


def _check_group(group: StoredGroup, kind: ArchiveKind, expected_offset: int) -> None:
    """Check the offsets, sizes and names of a group.

    The offsets must be those that the writer gives, the sizes possible, and the names valid.
    """
    offsets = [member.offset for member in group.members]
    expected_offsets, expected_bytes = place_files([member.size_bytes for member in group.members])
    if not group.members or offsets != expected_offsets:
        raise ContentError(f"{group.name}: its files are not at their places")
    if group.offset != expected_offset or group.size_bytes != expected_bytes:
        raise ContentError(f"{group.name}: its frame has another offset or size than expected")
    is_too_large = group.stored_bytes > max_frame_bytes(group.size_bytes)
    if group.size_bytes > MAX_CONTENT_BYTES or is_too_large:
        sizes = f"{group.stored_bytes:,} bytes for {group.size_bytes:,} bytes of content"
        raise ContentError(f"{group.name}: its frame has {sizes}")

    names = [member.name for member in group.members]
    check_names(kind, group.scene_id, names)
    is_processed_scene = kind is ArchiveKind.PROCESSED and group.scene_id != ""
    if is_processed_scene and names != [f"{group.split}/{group.scene_id}.npz"]:
        problem = f"holds {names[0][:100]!a}, which is not in the split {group.split!a}"
        raise ContentError(f"{group.name}: {problem}")
