"""Unpacks an archive, which is a file, an address or a pipe, into the folder that it was made from.

    file, address    by the seek table, in threads: a damaged scene costs only itself
    pipe             in order: damage can also hide where the scenes after it begin

The folder is new, or has the kind and the head of the archive. Only what is missing there, or
differs, is written. Until the end, the manifest of a processed folder lists the scenes to unpack as
unfinished, so that readers refuse the folder if the run is killed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from scannet_prep.archive.format import Archive, PackedScene
from scannet_prep.archive.sources import open_source
from scannet_prep.archive.streaming import PipedArchive, map_in_order
from scannet_prep.base.files import (
    Buffer,
    check_space,
    has_content,
    make_directory,
    remove_temporaries,
    write_atomically,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, MissingFileError, OutputError
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from scannet_prep.raw.lock import LOCK_NAME
from scannet_prep.release.files import ACCEPTANCE_NAME
from scannet_prep.release.splits import find_official_split
from scannet_prep.source.place import find_kind
from scannet_prep.stages.selection import FAILED_NAME, Selection, write_failed_list

Files: TypeAlias = Mapping[str, Buffer]

# They mostly wait for the disk.
_THREADS = 4
_HINT_FOLDER = "unpack into another folder: -o DIR"
_HINT_SCENES = "scannet-prep info lists the scenes of an archive"


@dataclass(slots=True)
class UnpackReport:
    """The result of `run`.

    Attributes:
        archive: The archive.
        out_dir: The folder.
        written: Number of files that were written.
        kept: Number of files that were there already.
        scenes: The scenes that were unpacked, or were there already; sorted.
        failures: Why other scenes were not unpacked, sorted.
    """

    archive: str
    out_dir: Path
    written: int = 0
    kept: int = 0
    scenes: list[str] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)

    def count(self, written: Sequence[bool]) -> None:
        """Count files that were written, and others that were kept."""
        self.written += sum(written)
        self.kept += written.count(False)


def run(
    place: str | Path | io.BufferedReader,
    out_dir: Path | None = None,
    *,
    selection: Selection | None = None,
    progress: Progress | None = None,
) -> UnpackReport:
    """Unpack an archive. A damaged scene does not stop the others.

    Args:
        place: A path, an address, or an open pipe.
        out_dir: The folder; by default data/processed or data/ScanNet, by the kind of the archive.
        selection: The scenes to unpack, by id and split; all by default. Files of no scene are
            always unpacked.
        progress: Receives the number of scenes.

    Raises:
        UnknownSceneError: The archive does not have a selected scene.
        ArchiveError: The archive, or its files of no scene, cannot be read.
        TransferError: A server does not send it.
        FileError: The folder has a damaged manifest, or none.
        DiskFullError: The disk has no space for the scenes.
        OutputError: The folder has other scenes, or cannot be written to.
        OutputError: Another run is writing into the folder.
    """
    selection = selection or Selection()
    progress = progress or Progress()
    archive: Archive | PipedArchive
    if isinstance(place, io.BufferedReader):
        archive = PipedArchive(place, "standard input")
    else:
        archive = Archive(open_source(place))
    scenes = _select(archive, selection)
    others = archive.read()
    manifest = None
    if MANIFEST_NAME in others:
        data = bytes(others[MANIFEST_NAME])
        manifest = parse_manifest(data, f"{archive.name}: {MANIFEST_NAME}")
    if out_dir is None:
        out_dir = Path("data/ScanNet" if manifest is None else "data/processed")
    report = UnpackReport(archive.name, out_dir)
    make_directory(out_dir)
    with run_lock(out_dir), progress.work("unpack", len(scenes), "scenes"):
        before = _check_folder(out_dir, manifest)
        remove_temporaries(out_dir, *out_dir.glob("*"), *out_dir.glob("scans*/*"))
        _check_space(out_dir, scenes)
        if before is not None:
            unfinished = {scene.scene_id for scene in scenes}.union(before.unfinished)
            before = msgspec.structs.replace(before, unfinished=tuple(sorted(unfinished)))
            write_manifest(out_dir, before)
        for scene, outcome in _write_scenes(archive, out_dir, scenes):
            if isinstance(outcome, Finding):
                report.failures.append(outcome)
            else:
                report.scenes.append(scene.scene_id)
                report.count(outcome)
            progress.advance()
        # After the scenes, by which the next run knows the folder if this one is killed.
        _write_others(report, others, selection)
        if before is not None and manifest is not None:
            _record(report, before, manifest, selection)
        # Otherwise the program that writes into the pipe would fail.
        while isinstance(place, io.BufferedReader) and place.read(1 << 20):
            pass
    return report


def _select(archive: Archive | PipedArchive, selection: Selection) -> list[PackedScene]:
    """Select scenes of an archive.

    Raises:
        UnknownSceneError: It does not have a selected scene.
    """
    splits = {scene.scene_id: scene.split for scene in archive.index.scenes}
    selection.check_found(archive.name, splits, _HINT_SCENES)
    selected = selection.select(splits)
    scenes = [scene for scene in archive.index.scenes if scene.scene_id in selected]
    return scenes[: selection.limit]


def _check_folder(out_dir: Path, manifest: Manifest | None) -> Manifest | None:
    """Refuse a folder that holds something else than the archive.

    Args:
        out_dir: The folder.
        manifest: The manifest of the archive; None if its scenes are raw.

    Returns:
        The manifest that a processed folder has, or begins with; None for a raw tree.
    """
    try:
        kind: str = find_kind(out_dir)
    except MissingFileError as error:
        # A killed run may have left hidden files, and empty folders.
        visible = [*out_dir.glob("[!.]*"), *out_dir.glob("*/[!.]*")]
        if any(path.is_file() for path in visible):
            raise OutputError(error.message, _HINT_FOLDER) from None
        return manifest and msgspec.structs.replace(manifest, scenes={}, failures={}, unfinished=())
    before = read_manifest(out_dir) if kind == "processed" else None
    here = _describe_head(kind, before)
    there = _describe_head("raw", manifest)
    if here != there:
        raise OutputError(f"{out_dir}: holds {here}, and the archive {there}", _HINT_FOLDER)
    return before


def _describe_head(kind: str, manifest: Manifest | None) -> str:
    """Describe the scenes of a folder or an archive: their kind or, if processed, their head."""
    if manifest is None:
        return f"{kind} scenes"
    return f"scenes made with {manifest.options.flags} and label map {manifest.label_map[:16]}"


def _check_space(out_dir: Path, scenes: Iterable[PackedScene]) -> None:
    """Check that the disk has space for the scenes that are not in the folder yet."""
    paths = [*out_dir.glob("*"), *out_dir.glob("*/*")]
    present = {path.stem for path in paths}
    absent = [scene for scene in scenes if scene.scene_id not in present]
    check_space(out_dir, sum(scene.size_bytes for scene in absent))


def _write_scenes(
    archive: Archive | PipedArchive, out_dir: Path, scenes: Iterable[PackedScene]
) -> Iterator[tuple[PackedScene, list[bool] | Finding]]:
    """Write scenes in order: in threads, unless their reading has to be in order, too."""
    write = partial(_write_scene, archive, out_dir)
    if isinstance(archive, Archive):
        yield from map_in_order(write, scenes, _THREADS)
    else:
        for scene in scenes:
            yield scene, write(scene)


def _write_scene(
    archive: Archive | PipedArchive, out_dir: Path, scene: PackedScene
) -> list[bool] | Finding:
    """Write the files of a scene.

    Returns:
        Whether each file was written; or the reason why the scene is damaged, or does not fit into
        the folder.
    """
    try:
        files = archive.read(scene.scene_id)
        return [_write_file(out_dir, name, data) for name, data in files.items()]
    except FileError as error:
        return Finding.from_error(error, scene_id=scene.scene_id)


def _write_others(report: UnpackReport, others: Files, selection: Selection) -> None:
    """Write the files of no scene, except for the records that each folder has of its own."""
    left_out = {MANIFEST_NAME, FAILED_NAME, ACCEPTANCE_NAME}
    if not selection.has_all or (report.out_dir / LOCK_NAME).exists():
        left_out.add(LOCK_NAME)
    for name in others.keys() - left_out:
        report.count([_write_file(report.out_dir, name, others[name])])


def _write_file(out_dir: Path, name: str, data: Buffer) -> bool:
    """Write a file, unless it is there already.

    Returns:
        Whether it was written.

    Raises:
        FileError: A folder on its way is a link, or a folder is in its place.
        OutputError: It cannot be written.
    """
    path = out_dir / name
    for folder in path.parents[: name.count("/")]:
        if folder.is_symlink():
            raise FileError(folder, "is a link, which could lead anywhere", _HINT_FOLDER)
    if has_content(path, data):
        return False
    write_atomically(path, [data])
    return True


def _record(
    report: UnpackReport, before: Manifest, arrived: Manifest, selection: Selection
) -> None:
    """Write the manifest and `failed.txt`: what the folder had before, and what has arrived."""
    scenes = dict(before.scenes)
    for scene_id in arrived.scenes.keys() & set(report.scenes):
        scenes[scene_id] = arrived.scenes[scene_id]
    failures = dict(before.failures)
    failures |= {
        scene_id: failure
        for scene_id, failure in arrived.failures.items()
        if selection.wants(scene_id, find_official_split(scene_id))
    }
    failures |= {failure.scene_id: failure for failure in report.failures}
    failures = {name: failures[name] for name in failures.keys() - scenes.keys()}
    unfinished = set(before.unfinished) - scenes.keys() - failures.keys()
    manifest = msgspec.structs.replace(
        before, scenes=scenes, failures=failures, unfinished=tuple(sorted(unfinished))
    )
    write_manifest(report.out_dir, manifest)
    write_failed_list(report.out_dir, failures)
