"""A place that holds processed scenes: a folder, an archive, or all shards of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.reader import ArchiveReader
from scannet_prep.archive.source import Place as OnePlace
from scannet_prep.base.errors import FileError
from scannet_prep.base.failures import SceneFailure
from scannet_prep.base.files import Buffer
from scannet_prep.processed.folder import find_state
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.reader import FolderReader, SceneSource
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.tree import check_is_no_export, find_folder


@dataclass(frozen=True, slots=True)
class ProcessedPlace:
    """Processed scenes, wherever they are. Picklable.

    Attributes:
        name: Path or address, for messages.
        options: The options that all scenes were made with.
        folder: The processed folder; None for archives.
        entries: What the manifest says of each scene, by id, sorted.
        failures: Why scenes are missing that were to be made, by id.
        faults: Why the folder must not be used; only where `open_place` was told to open it all the same.
    """

    name: str
    options: ProcessOptions
    folder: Path | None
    entries: Mapping[str, SceneEntry]
    failures: Mapping[str, SceneFailure]
    faults: tuple[FileError, ...] = ()
    _reader: SceneSource = None  # type: ignore[assignment]  # of the same scenes; of a raw tree, where none is read

    def file_path(self, scene_id: str) -> Path | str:
        """The file of a scene; a text where it is in an archive."""
        return self._reader.file_path(scene_id)

    def read(self, scene_id: str) -> Buffer:
        """Read the whole file of a scene.

        Raises:
            FileError: It is gone, or damaged.
            TransferError: It is on a web server, which does not give it.
        """
        return self._reader.read(scene_id)


def open_place(
    places: Sequence[OnePlace], *, certificates: bool | Path = True, must_be_usable: bool = True
) -> ProcessedPlace:
    """Find out which processed scenes a place holds; none is read where there is a manifest.

    Args:
        places: A processed folder; or an archive, or all shards of one: paths, addresses, or objects that read the
            bytes.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        must_be_usable: Whether a folder that is not finished, or whose manifest is damaged, is an error.

    Raises:
        FileError: There is no such place, or it cannot be used: not finished, or damaged.
        UsageError: Several folders, or the same archive twice.
        TransferError: An archive is on a web server, which does not give it.
    """
    for place in places:
        check_is_no_export(place)
    if (path := find_folder(places)) is None:
        reader = ArchiveReader(places, None, certificates=certificates)
        if not (entries := reader.read_entries()).keys() >= reader.lengths.keys():
            raise FileError(
                reader.name,
                "has no manifest that lists all of its scenes",
                "pack the processed folder again: scannet-prep pack DIR",
            )
        failures = {
            name: SceneFailure(name, "", message, reader.how_to_add(name))
            for name, message in reader.failures.items()
        }
        chosen = {name: entries[name] for name in reader.lengths}
        return ProcessedPlace(reader.name, reader.options, None, chosen, failures, _reader=reader)
    state = find_state(path)
    if must_be_usable and state.faults:
        raise state.faults[0]
    manifest = state.manifest
    failures = {
        name: item for name, item in manifest.failures.items() if name not in manifest.scenes
    }
    entries = dict(sorted(manifest.scenes.items()))
    return ProcessedPlace(
        name=str(path),
        options=manifest.options,
        folder=path,
        entries=entries,
        failures=failures,
        faults=state.faults,
        _reader=FolderReader(path, None, state),
    )
