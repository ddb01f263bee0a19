"""Pack a processed folder, a raw tree or extracted frames into one archive.

    Place.scenes --> Index
    _list_files, Place.iter_groups    the files of no scene, and those of each
    run                               files --> frames, in threads --> the archive

The archive gets its name when it is complete.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.format import Index, PackedScene, TreeKind, find_owner
from scannet_prep.archive.frames import SUFFIX
from scannet_prep.archive.writing import FileGroup, encode_archive
from scannet_prep.base.files import (
    check_space,
    make_directory,
    remove_temporaries,
    run_lock,
    write_atomically,
    writing,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.errors import UsageError
from scannet_prep.release.files import ACCEPTANCE_NAME
from scannet_prep.source.place import open_place

# Not packed: other archives, and the record that one person has accepted the terms.
_OMITTED_ENDINGS = (SUFFIX, ACCEPTANCE_NAME)
_DEEP = 2
_HINT_SOURCE = "name a folder; scannet-prep unpack makes one of an archive"
_HINT_NAME = f"choose another name with -o, such as scannet{SUFFIX}"
_HINT_FORCE = "name another file with -o, or replace this one with --force"


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of `run`.

    Attributes:
        archive: The archive; `standard output` for a pipe.
        kind: The kind of the scenes.
        splits: Number of scenes in each split.
        size_bytes: Size of the contents before compression.
        stored_bytes: Size of the archive.
        failures: Why scenes are missing.
        left_out: Files and folders that are not packed; sorted.
    """

    archive: str
    kind: TreeKind
    splits: Mapping[str, int]
    size_bytes: int
    stored_bytes: int
    failures: list[Finding]
    left_out: list[str]


def _list_files(source: Path, kind: TreeKind) -> tuple[FileGroup, set[str]]:
    """List a folder, but not the folders inside those of scenes, which other programs made.

    Returns:
        The files of no scene; and the names of all other files, and of folders that are not listed.
    """
    files = {}
    rest = set()
    for folder, folders, names in os.walk(source, followlinks=kind != "frames"):
        start = f"{folder}/".removeprefix(f"{source}/")
        if kind != "frames" and start.count("/") == _DEEP:
            names += folders
            folders.clear()
        for name in names:
            path = start + name
            if find_owner(kind, path) == "" and not path.endswith(_OMITTED_ENDINGS):
                files[path] = source / path
            else:
                rest.add(path)
    return FileGroup("", dict(sorted(files.items()))), rest


def run(
    source: Path,
    target: Path | int,
    *,
    level: int = 1,
    is_forced: bool = False,
    jobs: int = 1,
    progress: Progress = Progress(),
) -> PackReport:
    """Pack a folder.

    Args:
        source: A processed folder, a raw tree or extracted frames.
        target: The archive, `*.tar.zst`; or the open file descriptor of a pipe.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
        is_forced: Whether to replace an existing archive.
        jobs: Number of threads that compress.
        progress: Receives the number of bytes of scenes.

    Raises:
        UsageError: The archive exists, or its name is not that of an archive.
        FileError: The folder is not complete, or a file cannot be packed, for example because it is
            not the one that was recorded.
        OutputError: The archive cannot be written. An earlier one stays in place.
        OutputError: Another run is writing into the same folder.
    """
    name = "standard output"
    if isinstance(target, Path):
        name = str(target)
        if not name.endswith(SUFFIX):
            raise UsageError(f"{name}: an archive is a {SUFFIX} file", _HINT_NAME)
        if os.path.lexists(target) and not is_forced:
            raise UsageError(f"{name}: exists already", _HINT_FORCE)
    place = open_place(source)
    kind = place.kind
    if kind == "archive":
        raise UsageError(f"{source}: is an archive already", _HINT_SOURCE)
    scenes = tuple(
        PackedScene(scene_id, scene.split, scene.size_bytes, scene.parts)
        for scene_id, scene in place.scenes.items()
        if scene_id not in place.failures
    )
    scene_bytes = sum(scene.size_bytes for scene in scenes)
    # The options of processed scenes are in their manifest.
    options = place.describe()["options"] if kind == "frames" else ""
    index = Index(kind, scenes, options)
    others, left_out = _list_files(source, kind)

    def advance(group: FileGroup) -> None:
        left_out.difference_update(group.paths)
        progress.advance(group.size_bytes)

    size_bytes = scene_bytes + others.size_bytes
    groups = place.iter_groups()
    with progress.work("pack", scene_bytes, "B"), writing(Path(name)):
        pieces = encode_archive(index, others, groups, level=level, jobs=jobs, advance=advance)
        if isinstance(target, Path):
            # A link to an archive stays, and the archive is replaced.
            target = Path(os.path.realpath(target))
            _write_file(target, pieces, size_bytes)
            stored_bytes = target.stat().st_size
        else:
            with os.fdopen(target, "wb", closefd=False) as file:
                stored_bytes = sum(map(file.write, pieces))
    return PackReport(
        archive=name,
        kind=kind,
        splits=Counter(scene.split for scene in scenes),
        size_bytes=size_bytes,
        stored_bytes=stored_bytes,
        failures=list(place.failures.values()),
        left_out=sorted(left_out),
    )


def _write_file(target: Path, pieces: Iterable[bytes], size_bytes: int) -> None:
    folder = target.parent
    make_directory(folder)
    with run_lock(folder):
        remove_temporaries(folder, names=re.escape(target.name))
        # Meshes shrink to about half of their size, processed scenes hardly.
        check_space(folder, size_bytes // 2)
        write_atomically(target, pieces)
