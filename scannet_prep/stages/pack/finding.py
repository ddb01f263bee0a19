"""The files of a folder that are packed, and those that are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from shlex import quote

import msgspec

from scannet_prep.archive import layout
from scannet_prep.archive.checksum import CHECKSUM_SUFFIX
from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.layout import DEFAULT_LEVEL, MAX_CONTENT_BYTES, ArchiveKind, Head
from scannet_prep.archive.shards import SUFFIX
from scannet_prep.base.files import is_hidden_or_temporary
from scannet_prep.base.json import encode_json
from scannet_prep.base.version import VERSION
from scannet_prep.errors import FileError
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry, encode_manifest
from scannet_prep.processed.scene import FORMAT_VERSION
from scannet_prep.raw.check import read_raw_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.tree import RawScene, find_raw_scenes
from scannet_prep.release.files import ACCEPTANCE_NAME, MESH, SPLIT_DIRS
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_known_split, find_official_split
from scannet_prep.source.place import open_place
from scannet_prep.stages.selection import Selection

# Names that begin with these are left out without a remark: files that tar unpacks from an archive,
# the lock of a run, and the record that one person has accepted the terms.
_SILENTLY_OMITTED = (layout.OWN_PREFIX.rstrip("/"), ACCEPTANCE_NAME)
_MADE_BY_PROGRAMS = (SUFFIX, CHECKSUM_SUFFIX, ".aria2")
_PROGRAM = f"scannet-prep {VERSION}"


def find_contents(source: Path, selection: Selection, *, level: int = DEFAULT_LEVEL) -> Contents:
    """Find the files to pack. Names, sizes and headers are read, but no scene.

    Args:
        source: A processed folder or a raw tree.
        selection: The scenes to pack.
        level: Compression level, which the archive records.

    Raises:
        MissingFileError: The folder does not exist, or contains no scenes.
        FileError: A file cannot be packed; or a processed folder is damaged or incomplete.
        UnknownSceneError: A selected scene does not exist.
    """
    place = open_place(source)
    if place.kind == "raw":
        contents = _find_raw(source, selection, level)
    elif place.kind == "processed":
        contents = _find_processed(source, selection, level)
    else:
        problem = "is neither a raw tree nor a processed folder"
        raise FileError(source, problem, "give the folder that the scenes are in")
    for group in contents.groups:
        _check_fits_frame(group)
    return contents


def _check_fits_frame(group: SourceGroup) -> None:
    """Refuse files that are too large for one frame; the error names the largest one."""
    if group.size_bytes <= MAX_CONTENT_BYTES:
        return
    largest = max(group.files, key=attrgetter("size_bytes"))
    raise FileError(
        largest.path,
        f"has {largest.size_bytes:,} bytes; "
        f"all files of a scene may have {MAX_CONTENT_BYTES:,} together",
        "move it out of the folder, then run the same command again",
    )


def _find_processed(source: Path, selection: Selection, level: int) -> Contents:
    """Find the files to pack in a processed folder."""
    state = folder.find_state(source)
    if state.faults:
        raise state.faults[0]
    manifest = _select_entries(source, state.manifest, selection)
    # Without a manifest, the archive gets one that this version of the program makes.
    if not state.has_manifest:
        manifest = msgspec.structs.replace(manifest, program_version=VERSION)

    # Left out: foreign names, and files of scenes that the manifest does not list.
    split_folders = {source / split for split in Split}
    files, left_out = _sort_files(source, ArchiveKind.PROCESSED, split_folders)
    others = files.pop("")
    listed = {
        scene_id: folder.processed_path(source, entry.split, scene_id)
        for scene_id, entry in state.manifest.scenes.items()
    }
    for scene_id, paths in files.items():
        left_out += [_archive_name(source, path) for path in paths if path != listed.get(scene_id)]

    groups = []
    for scene_id, entry in manifest.scenes.items():
        file = SourceFile.from_path(listed[scene_id], source, entry.fingerprint)
        groups.append(SourceGroup(scene_id, str(entry.split), entry.vertex_count, (file,)))
    is_own = all(map(SceneId.is_own, manifest.scenes))
    head = Head(
        kind=ArchiveKind.PROCESSED,
        # Own scenes do not derive from ScanNet.
        notice="" if is_own else folder.TERMS_TEXT,
        options=manifest.options,
        scene_format=FORMAT_VERSION,
        program=_PROGRAM,
        level=level,
    )
    # The manifest and failed.txt name only the scenes that are packed. For a whole folder, they
    # equal those on the disk.
    failed_list = None
    if manifest.failures:
        failed_list = folder.encode_failed_list(manifest.failures)
    made = {MANIFEST_NAME: encode_manifest(manifest), folder.FAILED_NAME: failed_list}
    first = _group_others(source, head, others, made)
    failures = {scene_id: str(failure) for scene_id, failure in manifest.failures.items()}
    return Contents(head, (first, *groups), failures, tuple(sorted(left_out)))


def _select_entries(source: Path, manifest: Manifest, selection: Selection) -> Manifest:
    """Reduce a manifest to the selected scenes and failures, sorted by id.

    Raises:
        UnknownSceneError: A selected scene is not in the folder.
    """
    splits: dict[str, str | None] = {}
    for scene_id in manifest.failures:
        splits[scene_id] = find_known_split(scene_id)
    for scene_id, entry in manifest.scenes.items():
        splits[scene_id] = entry.split
    command = f"scannet-prep process -o {quote(str(source))}"
    selection.check_found(source, splits, f"leave it out of --scenes, or make it: {command}")

    scenes: dict[str, SceneEntry] = {}
    failures = {}
    for scene_id, split in sorted(splits.items()):
        if not selection.wants(scene_id, split):
            continue
        if scene_id in manifest.failures:
            failures[scene_id] = manifest.failures[scene_id]
        is_within_limit = selection.limit is None or len(scenes) < selection.limit
        if scene_id in manifest.scenes and is_within_limit:
            scenes[scene_id] = manifest.scenes[scene_id]
    return msgspec.structs.replace(manifest, scenes=scenes, failures=failures)


def _find_raw(source: Path, selection: Selection, level: int) -> Contents:
    """Find the files to pack in a raw tree."""
    scenes = find_raw_scenes(source)
    for scene_id, scene in scenes.items():
        if scene.problem and selection.wants(scene_id, find_official_split(scene_id)):
            hint = "fix or remove it, then run the same command again"
            raise FileError(scene.directory, scene.problem, hint)

    scene_folders = {scene.directory for scene in scenes.values()}
    split_folders = {source / name for name in SPLIT_DIRS.values()}
    files, left_out = _sort_files(source, ArchiveKind.RAW, scene_folders | split_folders)
    others = files.pop("")
    groups = []
    splits: dict[str, str | None] = {}
    for scene_id, scene in scenes.items():
        paths = files.get(scene_id)
        if not paths:
            continue
        # For scenes of no official list, the name of the folder may reveal the split.
        scene_file = layout.identify_scene(_archive_name(source, paths[0]))
        split = scene_file.split if scene_file is not None else ""
        splits[scene_id] = split
        if selection.wants(scene_id, split):
            packed = tuple(SourceFile.from_path(path, source) for path in paths)
            groups.append(SourceGroup(scene_id, split, _count_vertices(scene), packed))
    hint = "leave it out of --scenes, or download it: scannet-prep download --scenes ID"
    selection.check_found(source, splits, hint)

    head = Head(kind=ArchiveKind.RAW, notice=folder.TERMS_TEXT, program=_PROGRAM, level=level)
    first = _group_others(source, head, others, made={})
    scene_groups = groups[: selection.limit]
    return Contents(head, (first, *scene_groups), failures={}, left_out=tuple(sorted(left_out)))


def _count_vertices(scene: RawScene) -> int:
    """Count the vertices of the mesh; 0 if it is damaged, which `verify` reports."""
    with suppress(FileError):
        mesh: Mesh = read_raw_file(MESH, scene.path(MESH), scene.scene_id)
        return mesh.vertex_count
    return 0


def _group_others(
    source: Path, head: Head, paths: Iterable[Path], made: Mapping[str, bytes | None]
) -> SourceGroup:
    """Make the group of the files that belong to no scene.

    Args:
        source: The folder.
        head: The head of the archive, which becomes the first file.
        paths: The files in the folder.
        made: Content that replaces files of the folder, by name; None to leave a file out.
    """
    files = [
        SourceFile.from_path(path, source)
        for path in paths
        if _archive_name(source, path) not in made
    ]
    for name, data in made.items():
        if data is not None:
            files.append(SourceFile.from_content(name, data))
    files.sort(key=attrgetter("name"))
    format_file = SourceFile.from_content(layout.FORMAT_NAME, encode_json(head) + b"\n")
    return SourceGroup(scene_id="", split="", vertex_count=0, files=(format_file, *files))


def _sort_files(
    source: Path, kind: ArchiveKind, folders: Collection[Path]
) -> tuple[dict[str, list[Path]], list[str]]:
    """Sort the files of a tree by scene.

    Args:
        source: The tree.
        kind: Its kind.
        folders: Its folders to search, beside the top level and `tasks`.

    Returns:
        The files by scene id, which is empty for those that belong to no scene; and the names of
        files and folders that do not belong in a tree of that kind.

    Raises:
        FileError: A folder cannot be read.
    """
    searched = {source, source / "tasks", *folders}
    files: dict[str, list[Path]] = {"": []}
    left_out = []
    for path in _list_folders(source, searched):
        name = _archive_name(source, path)
        if path in searched or name.startswith(_SILENTLY_OMITTED):
            continue
        scene_id = layout.find_scene(kind, name)
        is_made_by_programs = path.name.endswith(_MADE_BY_PROGRAMS)
        is_omitted = is_made_by_programs or is_hidden_or_temporary(path.name)
        is_other_folder = scene_id == "" and path.is_dir()
        if scene_id is None or is_omitted or is_other_folder:
            left_out.append(name)
        else:
            files.setdefault(scene_id, []).append(path)
    return files, left_out


def _list_folders(source: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """List the content of folders of a tree, in order."""
    try:
        for parent in sorted(folders):
            if parent.is_dir():
                yield from sorted(parent.iterdir())
    except OSError as error:
        raise FileError(source, f"cannot be read: {error}") from error


def _archive_name(source: Path, path: Path) -> str:
    """Return the name of a file in the archive."""
    return path.relative_to(source).as_posix()
