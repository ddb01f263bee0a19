"""What a worker process does with one scene of an export.

It makes the files in a hidden folder, and the run itself moves them in when all are whole: a worker that outlives its
run changes nothing. A folder that is the scene's own is moved as one, so that nobody ever sees half of it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from scannet_prep.errors import FileError, OutputError, ProcessedFileError, ScanNetPrepError
from scannet_prep.export.format import ExportFormat, FileContent, JoinedFormat, ProcessedFile
from scannet_prep.export.manifest import ExportEntry
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Buffer, Fingerprint, make_directory, output_error
from scannet_prep.place import ProcessedPlace
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import check_meta, parse_processed

WORK_NAME, PARTS_NAME = ".scannet-prep-work", ".scannet-prep-parts"


@dataclass(frozen=True, slots=True)
class ExportContext:
    """What all tasks of a run share.

    Attributes:
        place: Where the processed scenes are.
        format: How they are exported.
        out_dir: Where the export goes.
        shard: Name of the shard that the run is; empty for one that does all.
    """

    place: ProcessedPlace
    format: ExportFormat
    out_dir: Path
    shard: str = ""

    @property
    def work_dir(self) -> Path:
        """For what is not whole yet; the run removes it at its end."""
        return self.out_dir / WORK_NAME / self.shard


@dataclass(frozen=True, slots=True)
class MadeScene:
    """A scene whose files are whole, and not yet where they belong.

    Attributes:
        entry: What the manifest says of it.
        units: Where what is moved as one lies, by its name in the export.
    """

    entry: ExportEntry
    units: dict[str, Path]


def export_scene(task: tuple[str, SceneEntry], context: ExportContext) -> MadeScene | SceneFailure | OutputError:
    """Make one scene, in a worker. Errors are returned, not raised: the worker goes on with others.

    Args:
        task: The scene, and what the manifest says of it.
        context: What all tasks share; its place holds no entries.

    Returns:
        The scene, or why it could not be made; an `OutputError` where no further scene could be written either.
    """
    scene_id, entry = task
    place = replace(context.place, entries={scene_id: entry})
    try:
        return _export(scene_id, place, context)
    except OutputError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes; its traceback is kept and shown
        return SceneFailure.from_exception(scene_id, error, place.file_path(scene_id))


def _export(scene_id: str, place: ProcessedPlace, context: ExportContext) -> MadeScene:
    path, expected = place.file_path(scene_id), place.entries[scene_id]
    data = place.read(scene_id)
    if Fingerprint.from_bytes(data) != expected.fingerprint:
        hint = f"to learn more: scannet-prep verify {quote(place.name)}"
        raise ProcessedFileError(path, "is not the file that the manifest records", hint)
    scene = parse_processed(data, path)
    check_meta(scene.meta, path, scene_id, expected.split)
    inputs = context.format.other_inputs(scene_id, expected.split)
    exported = context.format.encode_scene(scene)
    start = f"{PARTS_NAME}/" if isinstance(context.format, JoinedFormat) else ""
    files, units = dict[str, Fingerprint](), dict[str, Path]()
    with _told(context.out_dir):
        make_directory(context.work_dir)
        for name, content in exported.files.items():
            unit = find_unit(scene_id, start + name)
            target = units.setdefault(unit, find_place(context.work_dir)) / (start + name)[len(unit) :].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            files[start + name] = _write(target, content, path, data)
    return MadeScene(ExportEntry(expected.split, expected.fingerprint, files, {**exported.record, **inputs}), units)


def put_in_place(made: MadeScene, context: ExportContext) -> None:
    """Move the files of a scene to where they belong.

    Raises:
        FileError: Something is in the way.
        OutputError: They cannot be moved.
    """
    with _told(context.out_dir):
        for unit, path in made.units.items():
            target = context.out_dir / unit
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                move(target, find_place(context.work_dir))
            path.replace(target)


@contextmanager
def _told(out_dir: Path) -> Iterator[None]:
    """Make errors of ours of those of the operating system."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise FileError(error.filename or out_dir, "is in the way", "remove or rename it") from None
    except OSError as error:
        if isinstance(error, ScanNetPrepError):
            raise
        raise output_error(out_dir, error) from error


def _write(target: Path, content: FileContent, path: Path | str, data: Buffer) -> Fingerprint:
    """Write a file; the processed one is linked where it can be, if it is still the one that was read."""
    chunks = [data] if isinstance(content, ProcessedFile) else [*content]
    fingerprint = Fingerprint.from_bytes(*chunks)
    if isinstance(content, ProcessedFile) and isinstance(path, Path):
        with suppress(OSError):  # on another file system, or on one that has no links
            os.link(path, target)
            if Fingerprint.from_file(target) == fingerprint:
                return fingerprint
        target.unlink(missing_ok=True)
    with target.open("xb") as file:
        file.writelines(chunks)
    return fingerprint


def find_unit(scene_id: str, name: str) -> str:
    """What is moved as one: the folder of the scene, where a file lies in one of that name; else the file."""
    head, is_inside, _ = name.partition(f"/{scene_id}/")
    return f"{head}/{scene_id}" if is_inside else name


def find_place(work_dir: Path) -> Path:
    """A name of its own among what is not whole yet, or no longer wanted."""
    return work_dir / secrets.token_hex(8)


def move(path: Path, target: Path) -> None:
    """Give a file or a folder another name; nothing happens where there is none."""
    with suppress(FileNotFoundError):
        path.replace(target)
