"""Packs a processed folder or a raw tree into one archive.

    find_contents    the files of each scene, by their names
    run              files --> frames, in threads --> the archive

The archive gets its name when it is complete and on the disk.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.format import Index, Owner, TreeKind, check_names
from scannet_prep.archive.sources import SUFFIX
from scannet_prep.archive.streaming import FileGroup, encode_archive
from scannet_prep.base.files import (
    check_space,
    make_directory,
    remove_temporaries,
    write_atomically,
    writing,
)
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.errors import ContentError, FileError, UsageError
from scannet_prep.processed.manifest import (
    SceneEntry,
    check_complete,
    processed_path,
    read_manifest,
)
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessOptions
from scannet_prep.raw.tree import find_raw_scenes
from scannet_prep.release.files import ACCEPTANCE_NAME, SPLIT_DIRS, TASKS_DIR
from scannet_prep.release.scene import Split
from scannet_prep.source.place import find_kind

# Not packed: other archives, and the record that one person has accepted the terms.
_OMITTED_ENDINGS = (SUFFIX, ACCEPTANCE_NAME)
_HINT_NAME = f"choose another name with -o, such as scannet{SUFFIX}"
_HINT_FORCE = "name another file with -o, or replace this one with --force"
_HINT_AGAIN = "fix or remove it, then pack again"


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of `run`.

    Attributes:
        archive: The archive; `standard output` for a pipe.
        kind: The kind of the scenes.
        options: The options of processed scenes; None for raw ones.
        splits: Number of scenes in each split.
        size_bytes: Size of the contents before compression.
        stored_bytes: Size of the archive.
        missing: Why scenes that failed in processing are missing, by id.
        left_out: Files and folders that are not packed; sorted.
    """

    archive: str
    kind: TreeKind
    options: ProcessOptions | None
    splits: Mapping[str, int] = field(hash=False)
    size_bytes: int
    stored_bytes: int
    missing: Mapping[str, str] = field(hash=False)
    left_out: list[str] = field(hash=False)


def _find_contents(source: Path) -> tuple[Index, list[FileGroup], list[str]]:
    """Find the files to pack. None is read but the manifest of a processed folder.

    Returns:
        The index, still without scenes; the files of no scene, then those of each scene, sorted by
        id; and the names of files and folders that are not packed.

    Raises:
        MissingFileError: The folder does not exist, or has no scenes.
        FileError: It is not complete, or a scene cannot be packed.
    """
    folders = {source, source / TASKS_DIR}
    files: dict[Owner, dict[str, Path]] = {Owner(): {}}
    entries: Mapping[str, SceneEntry] = {}
    if find_kind(source) == "raw":
        index = Index("raw")
        folders.update(source / name for name in SPLIT_DIRS.values())
        for scene in find_raw_scenes(source).values():
            folders.add(scene.directory)
            if scene.problem:
                raise FileError(scene.directory, scene.problem, _HINT_AGAIN)
    else:
        folders.update(source / split for split in Split)
        manifest = read_manifest(source)
        check_complete(manifest, source)
        failures = {scene_id: str(failure) for scene_id, failure in manifest.failures.items()}
        index = Index("processed", manifest.options, manifest.label_map, FORMAT_VERSION, failures)
        entries = manifest.scenes
        for scene_id, entry in entries.items():
            path = processed_path(source, entry.split, scene_id)
            name = path.relative_to(source).as_posix()
            files[Owner("processed", scene_id, entry.split)] = {name: path}
    left_out = _add_files(files, source, folders)
    groups = []
    for owner, paths in sorted(files.items()):
        try:
            check_names(list(paths), owner)
        except ContentError as error:
            raise FileError(source, f"cannot be packed: {error.message}", _HINT_AGAIN) from None
        groups.append(FileGroup(owner, paths, entries.get(owner.scene_id)))
    return index, groups, left_out


def _add_files(
    files: dict[Owner, dict[str, Path]], source: Path, folders: Collection[Path]
) -> list[str]:
    """Add the files of a tree to those of their owners.

    Args:
        files: The files by owner and name. Processed scenes are complete; others are added.
        source: The tree.
        folders: Its folders to search.

    Returns:
        The names of files and folders that have no owner, sorted.
    """
    left_out = []
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    for path in sorted(set(paths).difference(folders)):
        name = path.relative_to(source).as_posix()
        owner = Owner.from_name(name)
        is_listed = owner in files or (owner is not None and owner.kind == "raw")
        if owner is None or not is_listed or path.is_dir() or name.endswith(_OMITTED_ENDINGS):
            left_out.append(name)
        else:
            files.setdefault(owner, {})[name] = path
    return left_out


def run(
    source: Path,
    target: Path | int,
    *,
    level: int = 1,
    is_forced: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> PackReport:
    """Pack a folder.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`; or the open file descriptor of a pipe.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
        is_forced: Whether to replace an existing archive.
        jobs: Number of threads that compress.
        progress: Receives the number of tar bytes.

    Raises:
        UsageError: The archive exists, or its name is not that of an archive.
        FileError: The folder is not complete, or a file cannot be packed, for example because it is
            not the one that the manifest records.
        OutputError: The archive cannot be written. An earlier one stays in place.
        OutputError: Another run is writing into the same folder.
    """
    progress = progress or Progress()
    name = "standard output"
    if isinstance(target, Path):
        target = _check_target(target, is_forced=is_forced)
        name = str(target)
    index, groups, left_out = _find_contents(source)
    size_bytes = sum(group.size_bytes for group in groups)
    with progress.work("pack", size_bytes, "B"), writing(Path(name)):
        pieces = encode_archive(index, groups, level=level, jobs=jobs, advance=progress.advance)
        if isinstance(target, Path):
            _write_file(target, pieces, size_bytes)
            stored_bytes = target.stat().st_size
        else:
            with os.fdopen(target, "wb", closefd=False) as file:
                stored_bytes = sum(map(file.write, pieces))
    return PackReport(
        archive=name,
        kind=index.kind,
        options=index.options,
        splits=Counter(group.owner.split for group in groups[1:]),
        size_bytes=size_bytes,
        stored_bytes=stored_bytes,
        missing=index.failures,
        left_out=left_out,
    )


def _check_target(target: Path, *, is_forced: bool) -> Path:
    """Refuse a path that cannot become an archive, or that would be replaced.

    Returns:
        The path. For a link, the file that it leads to, which is replaced while the link stays.
    """
    if not target.name.endswith(SUFFIX):
        raise UsageError(f"{target}: an archive is a {SUFFIX} file", _HINT_NAME)
    if os.path.lexists(target) and not is_forced:
        raise UsageError(f"{target}: exists already", _HINT_FORCE)
    return target.resolve() if target.is_symlink() else target


def _write_file(target: Path, pieces: Iterable[bytes], size_bytes: int) -> None:
    folder = target.parent
    make_directory(folder)
    with run_lock(folder):
        remove_temporaries(folder, names=re.escape(target.name))
        # Meshes shrink to about half of their size, processed scenes hardly.
        check_space(folder, size_bytes // 2)
        write_atomically(target, pieces)
