"""Packs a processed folder or a raw tree into one archive.

    find_groups      the files of each scene, by their names
    run              files --> frames, in threads --> the archive

The archive gets its name when it is complete and on the disk.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.format import Owner, TreeKind
from scannet_prep.archive.sources import SUFFIX
from scannet_prep.archive.streaming import FileGroup, encode_archive
from scannet_prep.base.files import (
    check_space,
    make_directory,
    remove_temporaries,
    write_atomically,
    writing,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, UsageError
from scannet_prep.processed.manifest import (
    Manifest,
    SceneEntry,
    check_complete,
    processed_path,
    read_manifest,
)
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
        splits: Number of scenes in each split.
        size_bytes: Size of the contents before compression.
        stored_bytes: Size of the archive.
        failures: Why scenes that failed in processing are missing.
        left_out: Files and folders that are not packed; sorted.
    """

    archive: str
    kind: TreeKind
    splits: Mapping[str, int] = field(hash=False)
    size_bytes: int
    stored_bytes: int
    failures: list[Finding] = field(hash=False)
    left_out: list[str] = field(hash=False)


def _find_groups(source: Path, manifest: Manifest | None) -> tuple[list[FileGroup], list[str]]:
    """Find the files to pack, without opening them.

    Args:
        source: The folder.
        manifest: The manifest of a processed folder; None for a raw tree.

    Returns:
        The files of no scene, then those of each scene, sorted by id; and the names of files and
        folders that are not packed.

    Raises:
        FileError: A scene cannot be used, or two files have the same name where case does not
            count.
    """
    files: dict[Owner, dict[str, Path]] = {Owner(): {}}
    entries: Mapping[str, SceneEntry] = {}
    if manifest is None:
        folders = _find_raw_folders(source)
    else:
        folders = {source / split for split in Split}
        entries = manifest.scenes
    for scene_id, entry in entries.items():
        path = processed_path(source, entry.split, scene_id)
        name = path.relative_to(source).as_posix()
        files[Owner("processed", scene_id, entry.split)] = {name: path}

    folders |= {source, source / TASKS_DIR}
    left_out = []
    folded = set[str]()
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    for path in sorted(set(paths).difference(folders)):
        name = path.relative_to(source).as_posix()
        owner = Owner.from_name(name)
        # The manifest lists all files of processed scenes.
        is_listed = owner in files or (owner is not None and owner.kind == "raw")
        if owner is None or not is_listed or path.is_dir() or name.endswith(_OMITTED_ENDINGS):
            left_out.append(name)
            continue
        if name.casefold() in folded:
            problem = "has the name of another file but for upper and lower case"
            raise FileError(path, problem, _HINT_AGAIN)
        folded.add(name.casefold())
        files.setdefault(owner, {})[name] = path
    groups = [
        FileGroup(owner, paths, entries.get(owner.scene_id))
        for owner, paths in sorted(files.items())
    ]
    return groups, left_out


def _find_raw_folders(source: Path) -> set[Path]:
    """Find the folders of a raw tree that hold scenes, or files of a scene.

    Raises:
        FileError: A scene cannot be used.
    """
    folders = {source / name for name in SPLIT_DIRS.values()}
    for scene in find_raw_scenes(source).values():
        folders.add(scene.directory)
        if scene.problem:
            raise FileError(scene.directory, scene.problem, _HINT_AGAIN)
    return folders


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
    manifest = None
    if find_kind(source) != "raw":
        manifest = read_manifest(source)
        check_complete(manifest, source)
    groups, left_out = _find_groups(source, manifest)
    size_bytes = sum(group.size_bytes for group in groups)
    kind: TreeKind = "raw" if manifest is None else "processed"
    with progress.work("pack", size_bytes, "B"), writing(Path(name)):
        pieces = encode_archive(kind, groups, level=level, jobs=jobs, advance=progress.advance)
        if isinstance(target, Path):
            _write_file(target, pieces, size_bytes)
            stored_bytes = target.stat().st_size
        else:
            with os.fdopen(target, "wb", closefd=False) as file:
                stored_bytes = sum(map(file.write, pieces))
    return PackReport(
        archive=name,
        kind=kind,
        splits=Counter(group.owner.split for group in groups[1:]),
        size_bytes=size_bytes,
        stored_bytes=stored_bytes,
        failures=[] if manifest is None else list(manifest.failures.values()),
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
