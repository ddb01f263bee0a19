"""A place that holds processed scenes: a folder, an archive, or all shards of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.layout import Group
from scannet_prep.archive.reader import Archive, read_entries, read_member
from scannet_prep.archive.scenes import check_archives
from scannet_prep.archive.source import ByteSource, open_sources
from scannet_prep.archive.source import Place as OnePlace
from scannet_prep.errors import ManifestError, UsageError
from scannet_prep.files import Buffer, read_file
from scannet_prep.processed.folder import find_state, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry
from scannet_prep.processed.scene import MAX_FILE_BYTES
from scannet_prep.stages.tree import is_archive


@dataclass(frozen=True, slots=True)
class ProcessedPlace:
    """Processed scenes, wherever they are. Picklable.

    Attributes:
        name: Path or address, for messages.
        folder: The processed folder; None for archives.
        entries: What the manifest says of each scene, by id, sorted.
        failures: Why scenes are missing that were to be made, by id.
    """

    name: str
    folder: Path | None
    entries: Mapping[str, SceneEntry]
    failures: Mapping[str, str]
    _homes: Mapping[str, tuple[ByteSource, Group]]

    def file_path(self, scene_id: str) -> Path | str:
        """The file of a scene; a text where it is in an archive."""
        split = self.entries[scene_id].split
        if self.folder is not None:
            return processed_path(self.folder, split, scene_id)
        return f"{self._homes[scene_id][0].name}: {split}/{scene_id}.npz"

    def read(self, scene_id: str) -> Buffer:
        """Read the whole file of a scene.

        Raises:
            FileError: It is gone, or damaged.
            TransferError: It is on a web server, which does not give it.
        """
        if self.folder is None:
            source, group = self._homes[scene_id]
            return read_member(source, group, group.members[0])
        return read_file(processed_path(self.folder, self.entries[scene_id].split, scene_id), MAX_FILE_BYTES)


def open_place(places: Sequence[OnePlace], *, certificates: bool | Path = True) -> ProcessedPlace:
    """Find out which processed scenes a place holds; none is read where there is a manifest.

    Args:
        places: A processed folder; or an archive, or all shards of one: paths, addresses, or objects that read the
            bytes.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        FileError: There is no such place, or it cannot be used: not finished, of two kinds, damaged.
        UsageError: Several folders, or the same archive twice.
        TransferError: An archive is on a web server, which does not give it.
    """
    if any(map(is_archive, places)):
        return _open_archives(places, certificates)
    paths = [Path(place).expanduser() for place in places if isinstance(place, str | Path)]
    if len(paths) != 1:
        raise UsageError("one folder can be read at a time", "name one folder, or several archives")
    manifest = find_state(paths[0], must_be_usable=True).manifest
    failures = {name: item.message for name, item in manifest.failures.items() if name not in manifest.scenes}
    return ProcessedPlace(str(paths[0]), paths[0], dict(sorted(manifest.scenes.items())), failures, {})


def _open_archives(places: Sequence[OnePlace], certificates: bool | Path) -> ProcessedPlace:
    archives = [Archive(source) for source in open_sources(places, certificates=certificates)]
    check_archives(archives)
    entries: dict[str, SceneEntry] = {}
    failures: dict[str, str] = {}
    homes: dict[str, tuple[ByteSource, Group]] = {}
    for archive in archives:
        found = read_entries(archive.source, archive.index.files)
        if found is None:
            raise ManifestError(f"{archive.name}: {MANIFEST_NAME}", "no such file", "pack a processed folder again")
        scenes = archive.index.scenes
        entries |= found
        failures |= archive.index.failures
        homes |= {scene.scene_id: (archive.source, scene) for scene in scenes}
    for scene_id, (source, _) in homes.items():
        if scene_id not in entries:
            raise ManifestError(f"{source.name}: {MANIFEST_NAME}", f"does not name {scene_id}", "pack it again")
    return ProcessedPlace(archives[0].name, None, {name: entries[name] for name in sorted(homes)}, failures, homes)
