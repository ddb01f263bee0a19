"""The processed scenes of a folder, an archive, or all shards of a set."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Protocol

from scannet_prep.archive.byte_source import Place
from scannet_prep.base.files import Buffer, Fingerprint
from scannet_prep.base.findings import Finding
from scannet_prep.errors import FileError, TransferError, UsageError
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.scene import (
    ProcessedScene,
    ProcessOptions,
    SceneMeta,
    check_meta,
    parse_meta,
    parse_processed,
)
from scannet_prep.release.scene import Split
from scannet_prep.source.identify import SourceKind, find_folder, refuse_export

if TYPE_CHECKING:
    from typing_extensions import Self


def open_processed(
    place: Place | Sequence[Place],
    split: Split | None = None,
    *,
    certificates: bool | Path = True,
    must_be_usable: bool = True,
) -> SceneSource:
    """Open the processed scenes of a place. If there is a manifest, no scene is read.

    Args:
        place: A processed folder, an archive, or several archives, such as all shards of a set.
            Each is a path, an address, or a `ByteSource`.
        split: The split whose scenes to open; None for all scenes.
        certificates: Certificate authorities to trust for servers; see `RangeSource`.
        must_be_usable: Whether to refuse a folder whose processing has not finished or whose
            manifest is damaged. Otherwise, `faults` of the result contains the reason.

    Raises:
        FileError: The place does not exist, or cannot be used.
        UsageError: The list is empty or names several folders, a scene is in two archives, or there
            are no scenes of the split.
        TransferError: A server does not send an archive.
    """
    places = _list_places(place)
    if not places:
        hint = "name a folder, an archive, or all of its shards"
        raise UsageError("the list of archives is empty", hint)
    folder = find_folder(places)
    # Imported here: training from a folder needs no zstandard.
    if folder is None:
        from scannet_prep.archive.opened import open_archives
        from scannet_prep.source.archive_scenes import ArchiveScenes

        return ArchiveScenes(open_archives(places, certificates=certificates), split)
    refuse_export(folder)
    from scannet_prep.source.folder_scenes import FolderScenes

    return FolderScenes(folder, split, must_be_usable=must_be_usable)


def _list_places(place: Place | Sequence[Place]) -> list[Place]:
    """Return a list of places, whether one or several were given."""
    if isinstance(place, str) or not isinstance(place, Sequence):
        return [place]
    return list(place)


class HeldScene(Protocol):
    """A scene as a manifest or an index describes it, without its file."""

    @property
    def split(self) -> str:
        """Its split."""

    @property
    def vertex_count(self) -> int:
        """V."""


class SceneSource(ABC):
    """The processed scenes of a folder or of archives.

    Picklable, and safe under fork and in threads.

    Args:
        place: The path or the address, or several, as the user would type them.
        options: The options that all scenes were made with.
        held: All scenes of the place, by id.
        failures: Why scenes that should have been made are missing, by id.
        split: The split whose scenes to open; None for all scenes.
        command_end: The end of the command that makes more scenes of the place.

    Attributes:
        kind: `processed` or `archive`.
        place: As given.
        name: The place for messages.
        options: As given.
        lengths: V of each scene, by id, sorted.
        failures: As given, without the scenes that exist nevertheless.
        folder: The processed folder; None for archives.
        faults: Why the folder must not be used; empty unless `must_be_usable` was False.

    Raises:
        UsageError: There are no scenes of that split.
    """

    kind: SourceKind
    folder: Path | None = None
    faults: tuple[FileError, ...] = ()

    def __init__(
        self,
        place: str | list[str],
        options: ProcessOptions,
        held: Mapping[str, HeldScene],
        failures: Mapping[str, Finding],
        split: Split | None,
        command_end: str,
    ) -> None:
        if isinstance(place, str):
            first = place
            self.name = place
        else:
            first = place[0]
            self.name = f"{first} and {len(place) - 1} more"
        self.place = place
        self.options = options
        self.failures: dict[str, Finding] = {}
        for scene_id, failure in failures.items():
            if scene_id not in held:
                self.failures[scene_id] = failure
        self._command_end = command_end
        self._entries: Mapping[str, SceneEntry] | None = None
        self.lengths: dict[str, int] = {}
        self._splits: dict[str, str] = {}
        for scene_id, scene in sorted(held.items()):
            if split is None or scene.split == split:
                self.lengths[scene_id] = scene.vertex_count
                self._splits[scene_id] = scene.split
        # Commands open all scenes. The rest is for a dataset, which opens one split.
        if split is None:
            return

        if not self.lengths:
            splits = ", ".join(sorted({scene.split for scene in held.values()}))
            others = f", only {splits}" if splits else ""
            hint = f"make them: scannet-prep process --splits {split}{command_end}"
            raise UsageError(f"{self.name}: holds no {split} scenes{others}", hint)
        if self.failures:
            count = f"{len(self.failures)}, for example {min(self.failures)}"
            # The level is that of the line that makes the dataset.
            warnings.warn(
                f"{self.name}: scenes that failed in processing are missing: {count}; "
                f"to list them: scannet-prep info {quote(first)}",
                stacklevel=5,
            )

    @property
    def scene_ids(self) -> tuple[str, ...]:
        """The ids of the scenes, sorted."""
        return tuple(self.lengths)

    @property
    def entries(self) -> Mapping[str, SceneEntry]:
        """The entry of the manifest for each scene, by id, sorted; read once and kept.

        Raises:
            FileError: The manifest does not list all scenes, or is damaged.
        """
        if self._entries is None:
            known = self.read_entries()
            if not known.keys() >= self.lengths.keys():
                raise FileError(
                    self.name,
                    "has no manifest that lists all of its scenes",
                    "pack the processed folder again: scannet-prep pack DIR",
                )
            self._entries = {scene_id: known[scene_id] for scene_id in self.lengths}
        return self._entries

    @abstractmethod
    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Read the entries of the manifest. Without a manifest, there may be none.

        Raises:
            ScanNetPrepError: The manifest is damaged, or cannot be read.
        """

    @abstractmethod
    def file_path(self, scene_id: str) -> Path | str:
        """Return the path of a scene's file; for a scene in an archive, a text for messages."""

    @abstractmethod
    def read(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene into new, writable memory.

        Raises:
            FileError: It does not exist any more, or is damaged.
            TransferError: A server does not send it.
        """

    def load(self, scene_id: str) -> tuple[ProcessedScene, SceneEntry]:
        """Read a scene, and make its entry in a manifest from its content.

        Raises:
            FileError: The file does not exist any more, is damaged, is that of another scene, or
                is not sent by the server.
        """
        try:
            data = self.read(scene_id)
        except TransferError as error:
            raise FileError(self.name, error.message, error.hint) from error
        scene = self.parse(scene_id, data)
        return scene, SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))

    def parse(self, scene_id: str, data: Buffer) -> ProcessedScene:
        """Parse the file of a scene.

        Args:
            scene_id: The scene.
            data: The whole file, from `read`.

        Raises:
            ProcessedFileError: It is damaged, is that of another scene or split, or was made with
                other options.
        """
        scene = parse_processed(data, self.file_path(scene_id))
        self._check_meta(scene_id, scene.meta)
        return scene

    def open_arrays(self, scene_id: str, data: Buffer) -> NpzReader:
        """Open the file of a scene without parsing all of it; for single arrays.

        Args:
            scene_id: The scene.
            data: The whole file, from `read`.

        Raises:
            ProcessedFileError: It is damaged, or belongs to another scene, split or folder.
        """
        path = self.file_path(scene_id)
        arrays = NpzReader(data, path)
        self._check_meta(scene_id, parse_meta(arrays, path))
        return arrays

    def read_meta(self, scene_id: str) -> SceneMeta:
        """Read the description of a scene.

        Raises:
            FileError: As `load`.
            TransferError: A server does not send it.
        """
        meta = self._read_meta(scene_id)
        self._check_meta(scene_id, meta)
        return meta

    def _read_meta(self, scene_id: str) -> SceneMeta:
        """Read the description of a scene without checking that it belongs to the scene."""
        path = self.file_path(scene_id)
        return parse_meta(NpzReader(self.read(scene_id), path), path)

    def _check_meta(self, scene_id: str, meta: SceneMeta) -> None:
        """Check that a file is that of a scene of this place."""
        path = self.file_path(scene_id)
        check_meta(meta, path, scene_id, self._splits[scene_id], self.options)

    def without_entries(self) -> Self:
        """Return a copy for worker processes that get the entry of each scene with their task."""
        part = copy.copy(self)
        part.failures = {}
        # Not None, so that no worker reads the manifest.
        part._entries = {}  # noqa: SLF001 - of the same class
        return part

    def how_to_add(self, scene_id: str) -> str:
        """Return the hint to get a scene of the release that is missing."""
        return f"make it: scannet-prep process --scenes {scene_id}{self._command_end}"

    def close(self) -> None:  # noqa: B027 - a folder keeps no file open
        """Close files and connections; reading opens them again."""
