"""Unpacks an archive, which is a file, an address or a pipe, into the folder that it was made from.

    by the index    from files and addresses: a damaged scene costs only itself
    in order        from pipes, and from files whose index is lost: up to the first damage

The folder is new, or has the kind and the head of the archive. Only what is missing there, or
differs, is written. Until the end, the manifest of a processed folder lists the scenes to unpack as
unfinished, so that readers refuse the folder if the run is killed.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from scannet_prep.archive.format import Archive, Owner, StoredGroup
from scannet_prep.archive.sources import FileSource, open_source
from scannet_prep.archive.streaming import map_in_order, read_in_order
from scannet_prep.base.files import (
    Buffer,
    Fingerprint,
    has_content,
    make_directory,
    remove_temporaries,
    write_atomically,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.base.version import VERSION
from scannet_prep.errors import ArchiveError, FileError, MissingFileError, OutputError
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    parse_manifest,
    processed_path,
    read_manifest,
    write_manifest,
)
from scannet_prep.processed.scene import read_processed
from scannet_prep.raw.lock import LOCK_NAME
from scannet_prep.release.files import ACCEPTANCE_NAME
from scannet_prep.release.splits import find_official_split
from scannet_prep.source.place import find_kind
from scannet_prep.stages.selection import FAILED_NAME, Selection, write_failed_list

# They mostly wait for the disk.
_THREADS = 4
_HINT_FOLDER = "unpack into another folder: -o DIR"
_HINT_SCENES = "scannet-prep info lists the scenes of an archive"
_HINT_COPY = "copy the archive again, then run the same command: it takes only what is missing"


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """The result of `run`.

    Attributes:
        archive: The archive.
        out_dir: The folder.
        files: Number of files that were `written`, `replaced` and `kept`.
        scenes: The scenes that were unpacked, or were there already; sorted.
        failures: The damage of the archive, and the scenes that were not unpacked because of it.
    """

    archive: str
    out_dir: Path
    files: Mapping[str, int] = field(hash=False)
    scenes: list[str] = field(hash=False)
    failures: list[Finding] = field(hash=False)


@dataclass(frozen=True)
class _Unpacking:
    """The files of one owner.

    Attributes:
        owner: Their owner.
        size_bytes: Their size in all.
        read: Reads name and content of each.
    """

    owner: Owner
    size_bytes: int
    read: Callable[[], Iterable[tuple[str, Buffer]]]


class _Reader:
    """An archive that is read once. The constructor reads the files of no scene.

    Attributes:
        name: Path, address, or `standard input`.
        archive: The archive by its index; None if the index is lost, or comes last.
        errors: The damage of the archive as a whole; complete when all scenes have been read.
        others: The files of no scene.
        manifest: The manifest of processed scenes, without scenes if it is lost; None for raw ones.
        splits: The splits of the scenes that the archive should have, as far as it lists them.
        tasks: The scenes.

    Raises:
        ArchiveError: Nothing of it can be read.
    """

    def __init__(self, place: str | Path | io.BufferedReader) -> None:
        self.name = "standard input"
        self.archive: Archive | None = None
        self.errors: list[ArchiveError] = []
        self.others: dict[str, Buffer] = {}
        self.manifest: Manifest | None = None
        self.tasks = self._open(place)
        first = next(self.tasks, None)
        if first is None:
            raise self.errors[0]
        try:
            self.others.update(first.read())
        except ArchiveError as error:
            self.errors.append(error)

        scenes: Mapping[str, SceneEntry | StoredGroup] = {}
        if MANIFEST_NAME in self.others:
            data = bytes(self.others[MANIFEST_NAME])
            self.manifest = parse_manifest(data, f"{self.name}: {MANIFEST_NAME}")
            scenes = self.manifest.scenes
        if self.archive is not None:
            index = self.archive.index
            scenes = self.archive.scenes
            if self.manifest is None and index.options is not None:
                self.manifest = Manifest(index.options, index.label_map, program_version=VERSION)
        self.splits = {scene_id: str(scene.split) for scene_id, scene in scenes.items()}

    def _open(self, place: str | Path | io.BufferedReader) -> Iterator[_Unpacking]:
        """Open the archive by its index or, if that is not there, in order."""
        if isinstance(place, io.BufferedReader):
            return self._read_in_order(place)
        source = open_source(place)
        self.name = source.name
        try:
            self.archive = Archive(source)
        except ArchiveError as error:
            if not isinstance(source, FileSource):
                raise
            self.errors.append(error)
            return self._read_in_order(Path(self.name).open("rb"))
        return _read_by_index(self.archive)

    def _read_in_order(self, file: io.BufferedReader) -> Iterator[_Unpacking]:
        try:
            with file:
                for owner, files in read_in_order(file, self.name):
                    yield _Unpacking(owner, sum(map(len, files.values())), files.items)
        except ArchiveError as error:
            self.errors.append(error)


def _read_by_index(archive: Archive) -> Iterator[_Unpacking]:
    for group in archive.index.groups:
        owner = Owner.of_group(archive.index.kind, group)
        yield _Unpacking(owner, group.size_bytes, partial(archive.read, group))


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
        ArchiveError: Nothing of it can be read.
        TransferError: A server does not send it.
        FileError: The folder has a damaged manifest, or none.
        OutputError: The folder has other scenes, or cannot be written to.
        OutputError: Another run is writing into the folder.
    """
    selection = selection or Selection()
    progress = progress or Progress()
    reader = _Reader(place)
    # A raw tree in a pipe is not listed before its end.
    wanted = set[str](selection.scene_ids or ())
    if reader.splits:
        selection.check_found(reader.name, reader.splits, _HINT_SCENES)
        selected = [name for name, split in reader.splits.items() if selection.wants(name, split)]
        wanted = set(selected[: selection.limit])
    if out_dir is None:
        out_dir = Path("data/ScanNet" if reader.manifest is None else "data/processed")
    make_directory(out_dir)
    with run_lock(out_dir), progress.work("unpack", len(wanted), "scenes"):
        before = _check_folder(out_dir, reader.manifest)
        # Each folder has its own records.
        left_out = {MANIFEST_NAME, FAILED_NAME, ACCEPTANCE_NAME}
        if not selection.has_all or (out_dir / LOCK_NAME).exists():
            left_out.add(LOCK_NAME)
        remove_temporaries(out_dir, *out_dir.glob("*"), *out_dir.glob("scans*/*"))
        if before is not None:
            unfinished = tuple(sorted(wanted.union(before.unfinished)))
            before = msgspec.structs.replace(before, unfinished=unfinished)
            write_manifest(out_dir, before)
        tasks = (task for task in reader.tasks if selection.wants(*task.owner[1:]))
        written = _write_scenes(out_dir, islice(tasks, selection.limit), progress)
        # After a scene, by which the next run knows the folder if this one is killed.
        for name in reader.others.keys() - left_out:
            written.files[_write_file(out_dir, name, reader.others[name])] += 1
        for scene_id in wanted - written.scenes - written.failures.keys():
            error = ArchiveError(reader.name, "is not among its intact scenes", _HINT_COPY)
            written.failures[scene_id] = Finding.from_error(error, scene_id=scene_id)
        if before is not None:
            _record(out_dir, before, reader, selection, written)
    findings = [Finding.from_error(error) for error in reader.errors]
    findings += [failure for _, failure in sorted(written.failures.items())]
    return UnpackReport(reader.name, out_dir, written.files, sorted(written.scenes), findings)


def _check_folder(out_dir: Path, manifest: Manifest | None) -> Manifest | None:
    """Refuse a folder that holds something else than the archive.

    Args:
        out_dir: The folder.
        manifest: The manifest of the archive; None if its scenes are raw.

    Returns:
        The manifest that a processed folder has, or begins with; None for a raw tree.
    """
    expected = "raw" if manifest is None else "processed"
    try:
        kind: str = find_kind(out_dir)
    except MissingFileError as error:
        # A killed run may have left hidden files, and empty folders.
        visible = [*out_dir.glob("[!.]*"), *out_dir.glob("*/[!.]*")]
        if any(path.is_file() for path in visible):
            raise OutputError(error.message, _HINT_FOLDER) from None
        return manifest and msgspec.structs.replace(manifest, scenes={}, failures={}, unfinished=())
    if kind != expected:
        problem = f"{out_dir}: has {kind} scenes, and the archive {expected} ones"
        raise OutputError(problem, _HINT_FOLDER)
    if manifest is None:
        return None
    before = read_manifest(out_dir)
    if (before.options, before.label_map) != (manifest.options, manifest.label_map):
        here = f"{before.options.flags} and the label map {before.label_map[:8]}"
        there = f"{manifest.options.flags} and {manifest.label_map[:8]}"
        problem = f"{out_dir}: has scenes made with {here}, and the archive with {there}"
        raise OutputError(problem, _HINT_FOLDER)
    return before


@dataclass
class _Written:
    """What was written into the folder.

    Attributes:
        files: Number of files that were `written`, `replaced` and `kept`.
        scenes: The scenes that are there.
        failures: The scenes that are not, by id.
    """

    files: Counter[str]
    scenes: set[str]
    failures: dict[str, Finding]


def _write_scenes(out_dir: Path, tasks: Iterable[_Unpacking], progress: Progress) -> _Written:
    """Write scenes in threads.

    Raises:
        OutputError: A file cannot be written.
        TransferError: A server does not send it.
    """
    written = _Written(Counter(written=0, replaced=0, kept=0), scenes=set(), failures={})
    for task, outcomes in map_in_order(partial(_write_scene, out_dir), tasks, _THREADS):
        if isinstance(outcomes, Finding):
            written.failures[task.owner.scene_id] = outcomes
        else:
            written.scenes.add(task.owner.scene_id)
            written.files.update(outcomes)
        progress.advance()
    return written


def _write_scene(out_dir: Path, task: _Unpacking) -> list[str] | Finding:
    """Write the files of a scene.

    Returns:
        What was done with each file; or the reason why the scene is damaged, or does not fit into
        the folder.
    """
    try:
        return [_write_file(out_dir, name, data) for name, data in task.read()]
    except FileError as error:
        return Finding.from_error(error, scene_id=task.owner.scene_id)


def _write_file(out_dir: Path, name: str, data: Buffer) -> str:
    """Write a file, unless it is there already.

    Returns:
        `written`, `replaced` or `kept`.

    Raises:
        FileError: A folder on its way is a link, or a folder is in its place.
        OutputError: It cannot be written.
    """
    path = out_dir / name
    for folder in path.parents[: name.count("/")]:
        if folder.is_symlink():
            raise FileError(folder, "is a link, which could lead anywhere", _HINT_FOLDER)
    if has_content(path, data):
        return "kept"
    outcome = "replaced" if path.exists() else "written"
    make_directory(path.parent)
    write_atomically(path, [data])
    return outcome


def _record(
    out_dir: Path, before: Manifest, reader: _Reader, selection: Selection, written: _Written
) -> None:
    """Write the manifest and `failed.txt`: what the folder had before, and what has arrived."""
    arrived = reader.manifest or before
    scenes = dict(before.scenes)
    for scene_id in written.scenes:
        entry = arrived.scenes.get(scene_id)
        if entry is None:  # the manifest of the archive is lost
            path = processed_path(out_dir, reader.splits[scene_id], scene_id)
            entry = SceneEntry.from_scene(read_processed(path), Fingerprint.from_file(path))
        scenes[scene_id] = entry
    absent = {
        scene_id: failure
        for scene_id, failure in arrived.failures.items()
        if selection.wants(scene_id, find_official_split(scene_id))
    }
    failures = {**before.failures, **absent, **written.failures}
    failures = {name: failures[name] for name in failures.keys() - scenes.keys()}
    unfinished = set(before.unfinished) - scenes.keys() - failures.keys()
    manifest = msgspec.structs.replace(
        before, scenes=scenes, failures=failures, unfinished=tuple(sorted(unfinished))
    )
    write_manifest(out_dir, manifest)
    write_failed_list(out_dir, failures)
