"""Finds what of a folder goes into an archive."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote

from scannet_prep.archive.layout import (
    DEFAULT_LEVEL,
    MAX_CONTENT_BYTES,
    OWN_PREFIX,
    ArchiveKind,
    Head,
    find_scene,
    identify_scene,
)
from scannet_prep.archive.source import SUFFIX
from scannet_prep.archive.writer import Contents, SourceFile, SourceGroup
from scannet_prep.errors import FileError, ManifestError
from scannet_prep.files import is_hidden_or_temporary
from scannet_prep.processed import folder
from scannet_prep.processed.folder import find_mixture, find_state
from scannet_prep.processed.manifest import MANIFEST_NAME, PARTS_NAME, Manifest, encode_manifest
from scannet_prep.raw import lock as raw_lock
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release import MESH, SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.selection import Selection
from scannet_prep.tree import identify_tree
from scannet_prep.version import VERSION

_INCOMPLETE_HINT = (
    "make what is missing with the same scannet-prep process command, or pack what is there with --allow-incomplete"
)
_PROGRAM = f"scannet-prep {VERSION}"


def find_contents(
    source: Path, selection: Selection, *, level: int = DEFAULT_LEVEL, allows_incomplete: bool = False
) -> tuple[Contents, list[str]]:
    """Find out what is to be packed. Names, sizes and headers are read, and no scene.

    Args:
        source: A processed folder or a raw tree.
        selection: Which scenes.
        level: Compression level, for the record.
        allows_incomplete: Whether a processed folder may lack scenes that its manifest names, or that failed.

    Returns:
        What goes in; and what does not, because such a tree has no such names, as sorted paths below the folder.

    Raises:
        MissingFileError: There is no such folder, or it holds no scenes.
        FileError: Something in it cannot be packed.
        ManifestError: The processed folder is damaged, incomplete or mixed.
        UnknownSceneError: A scene that was asked for is not there.
    """
    if identify_tree(source) is ArchiveKind.RAW:
        contents, left_out = _find_raw(source, selection, level)
    else:
        contents, left_out = _find_processed(source, selection, level, allows_incomplete=allows_incomplete)
    for group in contents.groups:
        if group.size_bytes > MAX_CONTENT_BYTES:  # too large for a frame
            largest = max(group.files, key=lambda file: file.size_bytes)
            most = f"all files of a scene, or of none, may have {MAX_CONTENT_BYTES:,} together"
            problem = f"has {largest.size_bytes:,} bytes; {most}"
            raise FileError(largest.path, problem, "move it elsewhere, then pack again")
    files = tuple(sorted(contents.files, key=lambda file: file.name))
    return replace(contents, files=files), sorted(left_out)


def _find_processed(
    source: Path, selection: Selection, level: int, *, allows_incomplete: bool
) -> tuple[Contents, list[str]]:
    state = find_state(source)
    if not (allows_incomplete and state.has_manifest):
        state.check()
    whole = state.manifest
    is_complete = whole.is_complete and not folder.is_unfinished(source)
    held: dict[str, str | None] = {name: find_official_split(name) for name in whole.failures}
    held |= {name: entry.split for name, entry in whole.scenes.items()}
    selection.check_found(source, held, f"leave it out, or: scannet-prep process -o {quote(str(source))} makes it")
    scenes = {name: entry for name, entry in whole.scenes.items() if selection.wants(name, entry.split)}
    failures = {name: item for name, item in whole.failures.items() if selection.wants(name, held[name])}
    missing = {name for name, entry in scenes.items() if not folder.processed_path(source, entry.split, name).exists()}
    if (lacking := sorted(failures.keys() | missing)) and not allows_incomplete:
        problem = f"scenes that it names failed or are not there: {len(lacking):,}, for example {lacking[0]}"
        raise ManifestError(source / MANIFEST_NAME, problem, _INCOMPLETE_HINT)
    kept = {name: scenes[name] for name in sorted(scenes.keys() - missing)[: selection.limit]}
    manifest = Manifest(kept, failures, is_complete, whole.program_version if state.has_manifest else VERSION)
    if (fault := find_mixture(source, manifest.scenes)) is not None:
        raise fault
    paths, left_out = _look_through(source, ArchiveKind.PROCESSED, {source / split for split in Split})
    named = {folder.processed_path(source, entry.split, name): entry for name, entry in whole.scenes.items()}
    left_out += [_name(source, path) for name in paths.keys() - {""} for path in paths[name] if path not in named]
    groups = []
    for name, entry in manifest.scenes.items():
        path = folder.processed_path(source, entry.split, name)
        file = SourceFile.from_path(_name(source, path), path, entry.fingerprint)
        groups.append(SourceGroup(name, str(entry.split), entry.vertex_count, (file,)))
    # They name just the scenes that are packed. For a whole folder, these are the bytes that lie there.
    made = {MANIFEST_NAME: encode_manifest(manifest)}
    if failures:
        made[folder.FAILED_NAME] = folder.encode_failed_list(failures)
    known = {*made, folder.FAILED_NAME, folder.UNFINISHED_NAME}
    files = [SourceFile.from_path(_name(source, path), path) for path in paths[""] if path.name not in known]
    files += [SourceFile.from_content(name, data) for name, data in made.items()]
    options = [asdict(entry.options) for entry in manifest.scenes.values()]
    shared = {key: value for key, value in (options or [{}])[0].items() if all(item[key] == value for item in options)}
    messages = {name: failure.message for name, failure in failures.items()}
    head = Head(ArchiveKind.PROCESSED, folder.TERMS_TEXT, shared, _PROGRAM, level, is_complete)
    return Contents(head, tuple(files), tuple(groups), messages), left_out


def _find_raw(source: Path, selection: Selection, level: int) -> tuple[Contents, list[str]]:
    groups, splits, found = [], dict[str, str](), find_raw_scenes(source)
    for scene_id, scene in found.items():
        if scene.problem and selection.wants(scene_id, find_official_split(scene_id)):
            raise FileError(scene.directory, scene.problem, "mend or remove it, then pack again")
    folders = {scene.directory for scene in found.values()}
    paths, left_out = _look_through(source, ArchiveKind.RAW, folders | {source / name for name in SPLIT_DIRS.values()})
    for scene_id in [scene_id for scene_id in found if scene_id in paths]:
        names = {_name(source, path): path for path in paths[scene_id]}
        split = next(identified[2] for name in names if (identified := identify_scene(name)))
        splits[scene_id] = split
        if selection.wants(scene_id, split):
            vertex_count = 0  # which `verify` is there to explain
            with suppress(FileError):
                vertex_count = count_elements(found[scene_id].path(MESH))[0]
            files = tuple(SourceFile.from_path(name, path) for name, path in names.items())
            groups.append(SourceGroup(scene_id, split, vertex_count, files))
    selection.check_found(source, splits, "leave it out, or: download the scene")
    others = [SourceFile.from_path(_name(source, path), path) for path in paths[""]]
    if (shards := raw_lock.shards_of(source)).exists():
        if faults := shards.find_faults():
            raise faults[0]
        merged = SourceFile.from_content(raw_lock.LOCK_NAME, raw_lock.encode_lock(raw_lock.read_locks(source)))
        others = [*(file for file in others if file.name != raw_lock.LOCK_NAME), merged]
    head = Head(ArchiveKind.RAW, folder.TERMS_TEXT, {}, _PROGRAM, level)
    return Contents(head, tuple(others), tuple(groups[: selection.limit])), left_out


def _look_through(
    source: Path, kind: ArchiveKind, folders: Collection[Path]
) -> tuple[dict[str, list[Path]], list[str]]:
    """Sort what lies in a tree and in those of its folders: files by scene id (empty for none), and foreign names."""
    paths: dict[str, list[Path]] = {"": []}
    left_out: list[str] = []
    folders = {source, source / "tasks", *folders}
    for path in [path for parent in sorted(folders) for path in _list(parent)]:
        name = _name(source, path)
        # The lock of a run, what tar unpacks, parts of what is packed as one.
        is_part = name in {PARTS_NAME, raw_lock.PARTS_NAME}
        if name.startswith(OWN_PREFIX.rstrip("/")) or path in folders or is_part:
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


def _list(directory: Path) -> list[Path]:
    """What lies in a folder, sorted; nothing where there is none."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FileError(directory, f"cannot be read: {error.strerror or error}") from error
