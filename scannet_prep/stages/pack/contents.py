"""What goes into an archive, by the kind of the folder that is packed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.frames import DEFAULT_LEVEL
from scannet_prep.archive.index import ArchiveKind, Head, find_scene_id
from scannet_prep.errors import FileError, MissingFileError, UnknownSceneError
from scannet_prep.files import read_file
from scannet_prep.processed.folder import TERMS_TEXT, find_processed_scenes
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest
from scannet_prep.processed.state import is_processed_file
from scannet_prep.raw.layout import MESH_SUFFIX, find_raw_scenes
from scannet_prep.raw.lock import LOCK_NAME, encode_lock, parse_lock
from scannet_prep.raw.mesh import check_mesh_file
from scannet_prep.release import SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pack.files import FoundFiles, find_files
from scannet_prep.stages.pack.processed import choose_processed
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.tree import identify_tree
from scannet_prep.version import VERSION


@dataclass(frozen=True, slots=True)
class FoundContents:
    """What of a folder goes into an archive.

    Attributes:
        contents: Files by scene.
        manifest: Of a processed folder: names just the scenes that are packed.
        left_out: Files that are not packed: hidden ones, and what interrupted programs left.
    """

    contents: Contents
    manifest: Manifest | None
    left_out: tuple[Path, ...]


def find_contents(
    source: Path,
    target: Path | None,
    selection: Selection,
    *,
    level: int = DEFAULT_LEVEL,
    allows_incomplete: bool = False,
) -> FoundContents:
    """Find out what is to be packed. File names, sizes and headers are read, and no scene.

    Args:
        source: A processed folder, a raw tree, or any folder whose files have scene ids in their paths.
        target: The archive that is going to be written, which is left out where it lies in the folder; None for a pipe.
        selection: Which scenes.
        level: Compression level, for the record.
        allows_incomplete: Whether a processed folder may lack scenes that its manifest names, or that failed.

    Raises:
        MissingFileError: There is no such folder, or a scene is not there that the manifest names.
        SourceError: Something in it cannot be packed.
        ManifestError: The processed folder is damaged, incomplete or mixed.
        UnknownSceneError: A scene that was asked for is not there.
    """
    kind = _identify(source)
    found = find_files(source, target, takes_hidden=kind is ArchiveKind.FILES)
    manifest, options = None, {}
    if kind is ArchiveKind.PROCESSED:
        processed = choose_processed(source, found, selection, allows_incomplete=allows_incomplete)
        files, scenes, manifest, options = processed.files, processed.scenes, processed.manifest, processed.options
    else:
        scenes = _choose_scenes(source, found, selection, kind)
        files = found.files if len(scenes) == len(found.scenes) else _restrict_lock(found.files, scenes)
    head = Head(kind, TERMS_TEXT, options, f"scannet-prep {VERSION}", level)
    failures = {name: item.message for name, item in manifest.failures.items()} if manifest else {}
    return FoundContents(Contents(head, files, scenes, failures), manifest, found.left_out)


def _identify(source: Path) -> ArchiveKind:
    if not source.is_dir():
        problem = "is a file, expected a folder" if source.exists() else "no such folder"
        raise MissingFileError(source, problem, "name the folder that scannet-prep process or download wrote")
    try:
        kind = ArchiveKind(identify_tree(source))
    except MissingFileError:
        return ArchiveKind.FILES
    # Other programs' trees use the same names: OctFormer's files those of ours, folders of scenes those of the release.
    if kind is ArchiveKind.PROCESSED:
        paths = (path for _, path in find_processed_scenes(source).values())
        is_so = (source / MANIFEST_NAME).is_file() or any(map(is_processed_file, paths))
    else:
        is_so = any(scene.mesh_path.exists() for scene in find_raw_scenes(source).values())
    return kind if is_so else ArchiveKind.FILES


def _choose_scenes(source: Path, found: FoundFiles, selection: Selection, kind: ArchiveKind) -> tuple[SourceGroup, ...]:
    chosen = []
    for scene_id, files in found.scenes.items():
        split = _find_split(scene_id, files)
        is_chosen = selection.scene_ids is None or scene_id in selection.scene_ids
        if is_chosen and (not selection.splits or split in selection.splits):
            chosen.append((scene_id, str(split or ""), files))
    unknown = sorted(set(selection.scene_ids or ()) - {scene_id for scene_id, _, _ in chosen})
    if unknown:
        where = f" in {', '.join(selection.splits)}" if selection.splits else ""
        raise UnknownSceneError(
            f"{source}: has no scene {unknown[0]}{where}, which was asked for ({len(unknown):,} are not there)",
            "leave it out, or download it",
        )
    return tuple(
        SourceGroup(scene_id, split, _count_vertices(scene_id, files) if kind is ArchiveKind.RAW else 0, files)
        for scene_id, split, files in chosen[: selection.limit]
    )


def _find_split(scene_id: str, files: Collection[SourceFile]) -> Split | None:
    official = find_official_split(scene_id)
    if official is not None:
        return official
    folders = {part for file in files for part in file.name.split("/")[:-1]}
    named = [split for split in Split if split in folders]
    if len(named) == 1:
        return named[0]
    return Split.TEST if SPLIT_DIRS[Split.TEST] in folders else None


def _count_vertices(scene_id: str, files: Collection[SourceFile]) -> int:
    """Number of vertices by the header of the mesh; 0 where it cannot be told, which `verify` is there to explain."""
    for file in files:
        if file.name.endswith(f"{scene_id}{MESH_SUFFIX}"):
            try:
                return check_mesh_file(file.path)
            except FileError:
                return 0
    return 0


def _restrict_lock(files: Collection[SourceFile], scenes: Collection[SourceGroup]) -> tuple[SourceFile, ...]:
    """Let `scannet.lock` name only files that are packed."""
    packed = {scene.scene_id for scene in scenes}
    restricted = []
    for file in files:
        if file.name == LOCK_NAME:
            entries = parse_lock(read_file(file.path), file.path)
            kept = {name: entry for name, entry in entries.items() if (find_scene_id(name) or "") in {"", *packed}}
            file = SourceFile.from_content(LOCK_NAME, encode_lock(kept))
        restricted.append(file)
    return tuple(restricted)
