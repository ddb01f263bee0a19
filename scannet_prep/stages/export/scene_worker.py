"""The files of one scene of an export: made in a worker process, moved in by the run itself.

    processed scene --> format --> hidden work folder   (worker)
    hidden work folder --> final names                  (run)

A worker that outlives its run changes nothing, because it never writes under a final name. A folder
that belongs to one scene is moved as a whole, so that no other program sees half of it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import Buffer, Fingerprint, make_directory, output_error
from scannet_prep.errors import FileError, ScanNetPrepError
from scannet_prep.export.format import ExportFormat, ProcessedFile
from scannet_prep.export.manifest import ExportEntry
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.source.scenes import ProcessedScenes

_WORK_NAME = ".scannet-prep-work"


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One scene of a run.

    Attributes:
        scene_id: The scene.
        processed: Its entry in the manifest of the processed scenes.
        source: Its processed file, for messages; a text if it is in an archive.
    """

    scene_id: str
    processed: SceneEntry
    source: Path | str


@dataclass(frozen=True, slots=True)
class ExportContext:
    """The settings that all tasks of a run share.

    Attributes:
        place: The folder or archive of the processed scenes.
        format: The format, with its options.
        out_dir: The folder of the export.
    """

    place: ProcessedScenes
    format: ExportFormat
    out_dir: Path

    @property
    def work_dir(self) -> Path:
        """The hidden folder for unfinished files. The run removes it at its end."""
        return self.out_dir / _WORK_NAME

    def new_work_path(self) -> Path:
        """Return an unused path in the work folder."""
        return self.work_dir / secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class MadeScene:
    """A scene whose files are complete, but still in the work folder.

    Attributes:
        entry: Its entry for the manifest of the export.
        work_paths: The path in the work folder of each file or folder that is moved as a whole, by
            its name in the export.
    """

    entry: ExportEntry
    work_paths: dict[str, Path]


def export_scene(task: ExportTask, context: ExportContext) -> MadeScene:
    """Make the files of one scene, in a worker.

    Raises:
        FileError: The processed scene is damaged, or something is in the way of its files.
        ScanNetPrepError: The format cannot represent the scene.
        OutputError: The files cannot be written.
    """
    data, scene = _read_processed(task, context)
    split = task.processed.split
    extra_inputs = context.format.extra_input_fingerprints(task.scene_id, split)
    exported = context.format.encode_scene(scene)

    fingerprints: dict[str, Fingerprint] = {}
    work_paths: dict[str, Path] = {}
    with _translated_os_errors(context.out_dir):
        make_directory(context.work_dir)
        for name, content in exported.files.items():
            unit = _unit_of(task.scene_id, name)
            if unit not in work_paths:
                work_paths[unit] = context.new_work_path()
            path = work_paths[unit]
            # A file within a folder that is moved as a whole.
            if unit != name:
                path /= name.removeprefix(f"{unit}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, ProcessedFile):
                fingerprints[name] = _copy_processed(task.source, data, path)
            else:
                fingerprints[name] = _write(content, path)

    record = {**exported.record, **extra_inputs}
    entry = ExportEntry(split, task.processed.fingerprint, fingerprints, record)
    return MadeScene(entry, work_paths)


def _read_processed(task: ExportTask, context: ExportContext) -> tuple[Buffer, ProcessedScene]:
    """Read the processed scene, and check that it is the one that the manifest records."""
    place = context.place
    data = place.read_file(task.scene_id)
    if Fingerprint.from_bytes(data) != task.processed.fingerprint:
        raise FileError(
            task.source,
            "is not the file that the manifest records",
            "verify shows what else is wrong with the folder",
        )
    return data, place.parse(task.scene_id, data)


def move_in(scene: MadeScene, context: ExportContext) -> None:
    """Move the files of a scene to their final names.

    Raises:
        FileError: Something is in the way.
        OutputError: They cannot be moved.
    """
    with _translated_os_errors(context.out_dir):
        for unit, work_path in scene.work_paths.items():
            target = context.out_dir / unit
            target.parent.mkdir(parents=True, exist_ok=True)
            # A rename replaces a file, but not a folder that holds files.
            if work_path.is_dir():
                _move_if_there(target, context.new_work_path())
            work_path.replace(target)


def remove_scene(scene_id: str, entry: ExportEntry, context: ExportContext) -> None:
    """Move the files of a scene into the work folder, so that no other program sees half of it."""
    for unit in {_unit_of(scene_id, name) for name in entry.files}:
        _move_if_there(context.out_dir / unit, context.new_work_path())


def _unit_of(scene_id: str, name: str) -> str:
    """Return the unit that a file is moved with: the folder of its scene, or the file itself.

    For example, `train/scene0000_00` for `train/scene0000_00/coord.npy`, and `train/0000_00.npy`
    for that file.
    """
    parent, separator, _ = name.partition(f"/{scene_id}/")
    return f"{parent}/{scene_id}" if separator else name


def _move_if_there(path: Path, target: Path) -> None:
    """Rename a file or folder, if it exists."""
    with suppress(FileNotFoundError):
        path.replace(target)


@contextmanager
def _translated_os_errors(out_dir: Path) -> Iterator[None]:
    """Translate OSError into the package's own errors."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        # An error of a rename has two names; the second one is the target.
        path = error.filename2 or error.filename or out_dir
        raise FileError(path, "is in the way", "remove or rename it") from None
    except OSError as error:
        # OutputError is an OSError, too, and needs no translation.
        if isinstance(error, ScanNetPrepError):
            raise
        raise output_error(out_dir, error) from error


def _copy_processed(source: Path | str, data: Buffer, path: Path) -> Fingerprint:
    """Link to the processed file if possible; else write the bytes that were read from it."""
    fingerprint = Fingerprint.from_bytes(data)
    if isinstance(source, Path):
        # Links fail across file systems, and some file systems have none.
        with suppress(OSError):
            os.link(source, path)
            # The file may have been replaced after it was read.
            if Fingerprint.from_file(path) == fingerprint:
                return fingerprint
        path.unlink(missing_ok=True)
    return _write([data], path)


def _write(content: Iterable[Buffer], path: Path) -> Fingerprint:
    """Write a new file, and return its fingerprint."""
    chunks = list(content)
    with path.open("xb") as file:
        file.writelines(chunks)
    return Fingerprint.from_bytes(*chunks)
