"""Unpack an archive, which is a file, an address or a pipe, into the folder that it was made from.

    file, address    by the seek table, in threads: a damaged scene costs only itself
    pipe             in order: damage also hides the scenes after it

The folder is new, or has the kind and the head of the archive. Only what is missing there, or
differs, is written. Until the end, the manifest of a processed folder lists the scenes to unpack
only as unfinished. If the run is killed, readers refuse the folder, and `process` makes the scenes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from scannet_prep.archive.format import Archive, PackedScene, open_archive
from scannet_prep.archive.frames import PipedFrames
from scannet_prep.base.files import (
    Buffer,
    check_space,
    make_directory,
    read_file,
    remove_temporaries,
    run_lock,
    write_if_changed,
)
from scannet_prep.base.findings import FAILED_NAME, Finding, write_failed_list
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, MissingFileError, OutputError
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, read_manifest, write_manifest
from scannet_prep.raw.lock import LOCK_NAME
from scannet_prep.release.files import LABEL_MAP
from scannet_prep.source.place import find_kind, read_packed_manifest
from scannet_prep.source.trees import Frames
from scannet_prep.stages.selection import Selection

_FOLDERS = {
    "processed": "data/processed",
    "raw": "data/ScanNet",
    "frames": "data/frames",
}
# They mostly wait for the disk.
_THREADS = 4
_HINT_FOLDER = "unpack into another folder: -o DIR"
_HINT_SCENES = "scannet-prep info ARCHIVE --json lists its scenes"


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """The result of `run`.

    Attributes:
        archive: The archive.
        out_dir: The folder.
        scenes: The scenes that were unpacked, or were there already; sorted.
        failures: Why other scenes were not unpacked, sorted.
    """

    archive: str
    out_dir: Path
    scenes: list[str]
    failures: list[Finding]


def run(
    place: str | Path | io.BufferedReader,
    out_dir: Path | None = None,
    *,
    selection: Selection = Selection(),
    progress: Progress = Progress(),
) -> UnpackReport:
    """Unpack an archive. A damaged scene does not stop the others.

    Args:
        place: A path, an address, or an open pipe.
        out_dir: The folder; by default data/processed, data/ScanNet or data/frames, by the kind of
            the archive.
        selection: The scenes to unpack, by id and split; all by default. Files of no scene are
            always unpacked.
        progress: Receives the number of scenes.

    Raises:
        UnknownSceneError: The archive does not have a selected scene.
        ArchiveError: The archive, or its files of no scene, cannot be read.
        TransferError: A server does not send it.
        FileError: The folder has a damaged manifest, or holds other files and no scenes.
        DiskFullError: The disk has no space for the scenes.
        OutputError: The folder has other scenes, or cannot be written to.
        OutputError: Another run is writing into the folder.
    """
    pipe = None
    if isinstance(place, io.BufferedReader):
        pipe = place
        archive = Archive(PipedFrames(pipe))
    else:
        archive = open_archive(place)
    kind = archive.index.kind
    arrived = read_packed_manifest(archive) if kind == "processed" else None
    scenes = _select(archive, selection)
    out_dir = out_dir or Path(_FOLDERS[kind])
    make_directory(out_dir)
    unpacked = []
    failures = []
    with run_lock(out_dir), progress.work("unpack", len(scenes), "scenes"):
        before = _check_folder(out_dir, archive, arrived)
        present = {path.stem for path in out_dir.glob("**/*")}
        needed_bytes = sum(scene.size_bytes for scene in scenes if scene.scene_id not in present)
        remove_temporaries(*out_dir.glob("**/"))
        check_space(out_dir, needed_bytes)
        if before:
            unfinished = {scene.scene_id for scene in scenes}.union(before.unfinished)
            before = replace(before, unfinished=tuple(sorted(unfinished)))
            # Until the end, the file of each may be that of the folder or that of the archive.
            rest = {name: before.scenes[name] for name in before.scenes.keys() - unfinished}
            write_manifest(out_dir, replace(before, scenes=rest))
        write = partial(_write_scene, archive, out_dir)
        # A pipe is read in order.
        pool = ThreadPoolExecutor(1 if pipe else _THREADS)
        try:
            for scene, failure in zip(scenes, pool.map(write, scenes), strict=True):
                if failure is None:
                    unpacked.append(scene.scene_id)
                else:
                    failures.append(failure)
                progress.advance()
        except Exception:
            # The folder stays locked while threads write; an interrupt does not wait for them.
            pool.shutdown()
            raise
        # After the scenes: if this run is killed, the next one recognizes the folder by them.
        _write_others(out_dir, archive.others)
        if before and arrived:
            _record(out_dir, before, arrived, unpacked, failures)
        # This reads the rest of the pipe. Otherwise, the program that writes into it would fail.
        if pipe and archive.is_followed():
            problem = "is followed by another archive, which has to be unpacked separately"
            failures.append(Finding(message=problem, subject=archive.name))
    return UnpackReport(archive.name, out_dir, unpacked, failures)


def _select(archive: Archive, selection: Selection) -> list[PackedScene]:
    """Select scenes of an archive.

    Raises:
        UnknownSceneError: It does not have a selected scene.
    """
    held = {scene.scene_id: scene for scene in archive.index.scenes}
    selected = selection.find(archive.name, held, _HINT_SCENES)
    return [held[scene_id] for scene_id in selected[: selection.limit]]


def _check_folder(out_dir: Path, archive: Archive, arrived: Manifest | None) -> Manifest | None:
    """Refuse a folder that holds other scenes than the archive.

    Args:
        out_dir: The folder.
        archive: The archive.
        arrived: The manifest of the archive; None if its scenes are not processed.

    Returns:
        The manifest of a processed folder; for a new one, the manifest to begin with; None for
        other kinds.

    Raises:
        FileError: It has a damaged manifest, or holds other files and no scenes.
        OutputError: It has scenes of another kind, or of another head, or another label map.
    """
    index = archive.index
    for name, data in archive.others.items():
        path = out_dir / name
        # People add rows for their own categories, which must not be lost.
        if name.endswith(LABEL_MAP.suffix) and path.exists() and read_file(path) != data:
            raise OutputError(f"{path}: differs from that of the archive", _HINT_FOLDER)
    empty = arrived and replace(arrived, scenes={}, failures={}, unfinished=())
    # A killed run may have left hidden files and empty folders.
    visible = chain(out_dir.glob("[!.]*"), out_dir.glob("[!.]*/**/[!.]*"))
    if all(path.is_dir() for path in visible):
        return empty
    try:
        kind_here, _ = find_kind(out_dir)
    except MissingFileError:
        raise FileError(out_dir, "holds other files, and no scenes", _HINT_FOLDER) from None
    before = read_manifest(out_dir) if kind_here == "processed" else None
    options = Frames(out_dir).describe()["options"] if kind_here == "frames" else ""
    here = _describe_head(kind_here, before, options)
    there = _describe_head(index.kind, arrived, index.options)
    if here != there:
        raise OutputError(f"{out_dir}: holds {here}, and the archive {there}", _HINT_FOLDER)
    return before


def _describe_head(kind: str, manifest: Manifest | None, options: str) -> str:
    """Describe the scenes of a folder or an archive: their kind, and how they were made."""
    if manifest is None:
        return f"frames ({options})" if kind == "frames" else f"{kind} scenes"
    return f"scenes made with {manifest.options.flags} and label map {manifest.label_map[:16]}"


def _write_scene(archive: Archive, out_dir: Path, scene: PackedScene) -> Finding | None:
    """Write the files of a scene.

    Returns:
        The reason why the scene is damaged, or does not fit into the folder; None if it is whole.
    """
    try:
        # The record of frames comes first: the next run recognizes the folder by it.
        for name, data in archive.iter_files(scene.scene_id):
            _write_file(out_dir, name, data)
    except FileError as error:
        return Finding.from_error(error, scene_id=scene.scene_id)
    return None


def _write_others(out_dir: Path, others: Mapping[str, Buffer]) -> None:
    """Write the files that belong to no scene, except for the records of each folder itself."""
    own = {MANIFEST_NAME, FAILED_NAME}
    if (out_dir / LOCK_NAME).exists():
        own.add(LOCK_NAME)
    for name in others.keys() - own:
        _write_file(out_dir, name, others[name])


def _write_file(out_dir: Path, name: str, data: Buffer) -> None:
    """Write a file, unless it is there already.

    Raises:
        FileError: A folder in its path is a link, or a folder is in its place.
        OutputError: It cannot be written.
    """
    path = out_dir / name
    for folder in path.parents[: name.count("/")]:
        if folder.is_symlink():
            raise FileError(folder, "is a link, which could lead anywhere", _HINT_FOLDER)
    write_if_changed(path, data)


def _record(
    out_dir: Path,
    before: Manifest,
    arrived: Manifest,
    unpacked: Sequence[str],
    damaged: Sequence[Finding],
) -> None:
    """Write the manifest and `failed.txt`: what the folder had before, and what has arrived."""
    scenes = {**before.scenes, **{name: arrived.scenes[name] for name in unpacked}}
    # Others that failed have kept their earlier files, which the archive holds.
    absent = arrived.failures.keys() - arrived.scenes.keys()
    failures = {
        **before.failures,
        **{name: arrived.failures[name] for name in absent},
        **{failure.scene_id: failure for failure in damaged},
    }
    failures = {name: failures[name] for name in failures.keys() - scenes.keys()}
    unfinished = set(before.unfinished) - scenes.keys() - failures.keys()
    manifest = replace(
        before, scenes=scenes, failures=failures, unfinished=tuple(sorted(unfinished))
    )
    write_manifest(out_dir, manifest)
    write_failed_list(out_dir, failures)
