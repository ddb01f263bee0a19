"""Finds what of a folder goes into an archive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from operator import attrgetter
from pathlib import Path
from shlex import quote

from scannet_prep.archive.layout import (
    DEFAULT_LEVEL,
    FORMAT_NAME,
    MAX_CONTENT_BYTES,
    OWN_PREFIX,
    ArchiveKind,
    Head,
    find_scene,
    identify_scene,
)
from scannet_prep.archive.source import SUFFIX
from scannet_prep.archive.writer import Contents, SourceFile, SourceGroup
from scannet_prep.errors import FileError
from scannet_prep.files import Fingerprint, is_hidden_or_temporary
from scannet_prep.processed import folder
from scannet_prep.processed.folder import find_state
from scannet_prep.processed.manifest import MANIFEST_NAME, PARTS_NAME, Manifest, encode_manifest
from scannet_prep.raw import lock as raw_lock
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release import MESH, SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.selection import Selection
from scannet_prep.tree import identify_tree
from scannet_prep.typed_json import encode_json
from scannet_prep.version import VERSION

_PASSED_OVER = (OWN_PREFIX.rstrip("/"), PARTS_NAME, raw_lock.PARTS_NAME)
_PROGRAM = f"scannet-prep {VERSION}"


def find_contents(source: Path, selection: Selection, *, level: int = DEFAULT_LEVEL) -> Contents:
    """Find out what is to be packed. Names, sizes and headers are read, and no scene.

    Args:
        source: A processed folder or a raw tree.
        selection: Which scenes.
        level: Compression level, for the record.

    Raises:
        MissingFileError: There is no such folder, or it holds no scenes.
        FileError: Something in it cannot be packed.
        ManifestError: The processed folder is damaged, incomplete or mixed.
        UnknownSceneError: A scene that was asked for is not there.
    """
    find = _find_raw if identify_tree(source) is ArchiveKind.RAW else _find_processed
    contents = find(source, selection, level)
    for group in contents.groups:
        if group.size_bytes > MAX_CONTENT_BYTES:  # too large for a frame
            largest = max(group.files, key=lambda file: file.size_bytes)
            problem = f"has {largest.size_bytes:,} bytes; all files of a scene may have {MAX_CONTENT_BYTES:,} together"
            raise FileError(largest.path, problem, "move it elsewhere, then pack again")
    return contents


def _find_processed(source: Path, selection: Selection, level: int) -> Contents:
    state = find_state(source)
    state.check()
    whole = state.manifest
    held = {name: find_official_split(name) for name in whole.failures}
    held |= {name: entry.split for name, entry in whole.scenes.items()}
    selection.check_found(source, held, f"leave it out, or: scannet-prep process -o {quote(str(source))} makes it")
    wanted = [name for name, split in sorted(held.items()) if selection.wants(name, split)]
    paths = {name: folder.processed_path(source, entry.split, name) for name, entry in whole.scenes.items()}
    failures = {name: whole.failures[name] for name in wanted if name in whole.failures}
    scenes = {name: whole.scenes[name] for name in [name for name in wanted if name in paths][: selection.limit]}
    found, left_out = _look_through(source, ArchiveKind.PROCESSED, {source / split for split in Split})
    others, known = found.pop(""), set(paths.values())
    left_out += [_name(source, path) for path in chain.from_iterable(found.values()) if path not in known]
    groups = [
        SourceGroup(name, str(entry.split), entry.vertex_count, (_read(source, paths[name], entry.fingerprint),))
        for name, entry in scenes.items()
    ]
    manifest = Manifest(scenes, failures, True, whole.program_version if state.has_manifest else VERSION)
    # They name just the scenes that are packed. For a whole folder, these are the bytes that lie there.
    failed = folder.encode_failed_list(failures) if failures else None
    made = {MANIFEST_NAME: encode_manifest(manifest), folder.FAILED_NAME: failed}
    options = [asdict(entry.options) for entry in scenes.values()]
    shared = {key: value for key, value in (options or [{}])[0].items() if all(item[key] == value for item in options)}
    messages = {name: failure.message for name, failure in failures.items()}
    head = Head(ArchiveKind.PROCESSED, folder.TERMS_TEXT, shared, _PROGRAM, level)
    others_group = _group_others(source, head, others, made)
    return Contents(head, (others_group, *groups), messages, tuple(sorted(left_out)))


def _find_raw(source: Path, selection: Selection, level: int) -> Contents:
    groups, splits, scenes = [], dict[str, str](), find_raw_scenes(source)
    for scene_id, scene in scenes.items():
        if scene.problem and selection.wants(scene_id, find_official_split(scene_id)):
            raise FileError(scene.directory, scene.problem, "mend or remove it, then pack again")
    folders = {scene.directory for scene in scenes.values()} | {source / name for name in SPLIT_DIRS.values()}
    paths, left_out = _look_through(source, ArchiveKind.RAW, folders)
    for scene_id in [scene_id for scene_id in scenes if scene_id in paths]:
        identified = identify_scene(_name(source, paths[scene_id][0]))
        splits[scene_id] = split = identified[2] if identified else ""
        if selection.wants(scene_id, split):
            vertex_count = 0  # which `verify` is there to explain
            with suppress(FileError):
                vertex_count = count_elements(scenes[scene_id].path(MESH))[0]
            files = tuple(_read(source, path) for path in paths[scene_id])
            groups.append(SourceGroup(scene_id, split, vertex_count, files))
    selection.check_found(source, splits, "leave it out, or: download the scene")
    made: dict[str, bytes | None] = {}
    if (shards := raw_lock.shards_of(source)).exists():
        if faults := shards.find_faults():
            raise faults[0]
        made[raw_lock.LOCK_NAME] = raw_lock.encode_lock(raw_lock.read_locks(source))
    head = Head(ArchiveKind.RAW, folder.TERMS_TEXT, {}, _PROGRAM, level)
    others_group = _group_others(source, head, paths[""], made)
    return Contents(head, (others_group, *groups[: selection.limit]), left_out=tuple(sorted(left_out)))


def _group_others(source: Path, head: Head, paths: Iterable[Path], made: Mapping[str, bytes | None]) -> SourceGroup:
    """The files that belong to no scene: those that lie there, but for what is made anew, or left out where None."""
    files = [_read(source, path) for path in paths if path.name not in made]
    files += [SourceFile.from_content(name, data) for name, data in made.items() if data is not None]
    format_file = SourceFile.from_content(FORMAT_NAME, encode_json(head) + b"\n")
    return SourceGroup("", "", 0, (format_file, *sorted(files, key=attrgetter("name"))))


def _read(source: Path, path: Path, fingerprint: Fingerprint | None = None) -> SourceFile:
    return SourceFile.from_path(_name(source, path), path, fingerprint)


def _look_through(
    source: Path, kind: ArchiveKind, folders: Collection[Path]
) -> tuple[dict[str, list[Path]], list[str]]:
    """Sort what lies in a tree and in those of its folders: files by scene id (empty for none), and foreign names."""
    paths: dict[str, list[Path]] = {"": []}
    left_out: list[str] = []
    folders = {source, source / "tasks", *folders}
    try:
        found = [path for parent in sorted(folders) if parent.is_dir() for path in sorted(parent.iterdir())]
    except OSError as error:
        raise FileError(source, f"cannot be read: {error}") from error
    for path in found:
        name = _name(source, path)
        # The lock of a run, what tar unpacks, parts of what is packed as one.
        if name.startswith(_PASSED_OVER) or path in folders:
            continue
        scene_id = find_scene(kind, name)
        is_made_by_programs = is_hidden_or_temporary(path.name) or path.name.endswith((SUFFIX, ".aria2"))
        if scene_id is None or is_made_by_programs or (not scene_id and path.is_dir()):
            left_out.append(name)
        else:
            paths.setdefault(scene_id, []).append(path)
    return paths, left_out


def _name(source: Path, path: Path) -> str:
    return path.relative_to(source).as_posix()
