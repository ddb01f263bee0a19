"""Finds what of a folder goes into an archive."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from scannet_prep.archive.layout import (
    DEFAULT_LEVEL,
    MAX_CONTENT_BYTES,
    OWN_PREFIX,
    ArchiveKind,
    Head,
    find_scene,
    identify_scene,
)
from scannet_prep.archive.writer import Contents, SourceFile, SourceGroup
from scannet_prep.errors import FileError, ManifestError
from scannet_prep.files import is_hidden_or_temporary
from scannet_prep.processed import folder
from scannet_prep.processed.folder import find_mixture, find_state
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, encode_manifest
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release import MESH
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.selection import Selection, check_named
from scannet_prep.stages.tree import identify_tree
from scannet_prep.version import VERSION

_INCOMPLETE_HINT = (
    "make what is missing with the same scannet-prep process command, or pack what is there with --allow-incomplete"
)
_PROGRAM = f"scannet-prep {VERSION}"
_FOLDERS = {"train", "val", "test", "scans", "scans_test", "tasks"}


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
    scenes = {name: entry for name, entry in whole.scenes.items() if selection.wants(name, entry.split)}
    wanted = {name for name in whole.failures.keys() - scenes if selection.wants(name, find_official_split(name))}
    failures = {name: failure for name, failure in whole.failures.items() if name in wanted}
    hint = f"leave it out, or: scannet-prep process -o {source} makes it"
    check_named(source, selection, scenes.keys() | wanted, hint)
    missing = {name for name, entry in scenes.items() if not folder.processed_path(source, entry.split, name).exists()}
    if (lacking := sorted(failures.keys() | missing)) and not allows_incomplete:
        problem = f"names {len(lacking):,} scenes that failed or are not there, for example {lacking[0]}"
        raise ManifestError(source / MANIFEST_NAME, problem, _INCOMPLETE_HINT)
    kept = sorted(scenes.keys() - missing)[: selection.limit]
    manifest = Manifest(
        {name: scenes[name] for name in kept},
        failures,
        is_complete,
        whole.program_version if state.has_manifest else VERSION,
    )
    if (fault := find_mixture(source, manifest.scenes)) is not None:
        raise fault
    groups = []
    for name, entry in manifest.scenes.items():
        path = folder.processed_path(source, entry.split, name)
        file = SourceFile.from_path(f"{entry.split}/{name}.npz", path, entry.fingerprint)
        groups.append(SourceGroup(name, str(entry.split), entry.vertex_count, (file,)))
    # They name just the scenes that are packed. For a whole folder, these are the bytes that lie there.
    made = {MANIFEST_NAME: encode_manifest(manifest)}
    if failures:
        made[folder.FAILED_NAME] = folder.encode_failed_list(failures)
    others, left_out = _find_others(source, ArchiveKind.PROCESSED, {*made, folder.FAILED_NAME, folder.UNFINISHED_NAME})
    files = [*others, *(SourceFile.from_content(name, data) for name, data in made.items())]
    packed = {file.path for group in groups for file in group.files}
    for split in Split:
        left_out += [f"{split}/{path.name}" for path in _list(source / split) if path not in packed]
    options = [asdict(entry.options) for entry in manifest.scenes.values()]
    shared = {key: value for key, value in (options or [{}])[0].items() if all(item[key] == value for item in options)}
    messages = {name: failure.message for name, failure in failures.items()}
    head = Head(ArchiveKind.PROCESSED, folder.TERMS_TEXT, shared, _PROGRAM, level, is_complete)
    return Contents(head, tuple(files), tuple(groups), messages), left_out


def _find_raw(source: Path, selection: Selection, level: int) -> tuple[Contents, list[str]]:
    groups, left_out = [], list[str]()
    found = find_raw_scenes(source)
    for scene_id, scene in found.items():
        if scene.problem and selection.wants(scene_id, find_official_split(scene_id)):
            raise FileError(scene.directory, scene.problem, "mend or remove it, then pack again")
        files, split = [], ""
        for path in _list(scene.directory):
            name = path.relative_to(source).as_posix()
            if (of := identify_scene(name)) and of[1] == scene_id:
                files.append(SourceFile.from_path(name, path))
                split = of[2]
            else:
                left_out.append(name)
        if files and selection.wants(scene_id, split):
            groups.append(SourceGroup(scene_id, split, _count_vertices(scene.path(MESH)), tuple(files)))
    check_named(source, selection, {group.scene_id for group in groups}, "leave it out, or: download the scene")
    groups = groups[: selection.limit]
    others, more = _find_others(source, ArchiveKind.RAW, set())
    left_out += [name for name in more if name not in found]
    head = Head(ArchiveKind.RAW, folder.TERMS_TEXT, {}, _PROGRAM, level)
    return Contents(head, tuple(others), tuple(groups)), left_out


def _find_others(source: Path, kind: ArchiveKind, known: Collection[str]) -> tuple[list[SourceFile], list[str]]:
    """Find the files that belong to no scene, but for known names; and the names of what else lies beside them."""
    files, left_out = [], []
    for path in [*_list(source), *_list(source / "tasks")]:
        name = path.relative_to(source).as_posix()
        is_own = name.startswith(OWN_PREFIX.rstrip("/"))  # the lock of a run, and what tar unpacks beside the scenes
        if is_own or name in known or (path.is_dir() and path.name in _FOLDERS):
            continue
        if not path.is_dir() and not is_hidden_or_temporary(path.name) and find_scene(kind, name) == "":
            files.append(SourceFile.from_path(name, path))
        else:
            left_out.append(name)
    return files, left_out


def _list(directory: Path) -> Iterator[Path]:
    """What lies in a folder, sorted; nothing where there is none."""
    try:
        yield from sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise FileError(directory, f"cannot be read: {error.strerror or error}") from error


def _count_vertices(mesh_path: Path) -> int:
    """Number of vertices by the header of a mesh; 0 where it cannot be told, which `verify` is there to explain."""
    try:
        return count_elements(mesh_path)[0]
    except FileError:
        return 0
