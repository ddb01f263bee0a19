"""Places that hold processed scenes: a folder, or an archive of one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from scannet_prep.base.files import Fingerprint, open_file
from scannet_prep.base.findings import Finding
from scannet_prep.errors import FileError
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    check_complete,
    parse_manifest,
    processed_path,
    read_manifest,
)
from scannet_prep.processed.npz import DAMAGE_HINT, NpzReader
from scannet_prep.processed.scene import (
    MAX_FILE_BYTES,
    ProcessedScene,
    parse_meta,
    parse_processed,
)
from scannet_prep.release.irregularities import summarize_warnings

if TYPE_CHECKING:
    from scannet_prep.archive.format import Archive

_HINT_REMOVE = "remove the file, or process the scene again"
_HINT_COMPARED = "name two places with processed scenes, or two raw trees"
_HINT_CHANGED = "open the place again if it was changed meanwhile; else process the scene again"

PlaceKind: TypeAlias = Literal["raw", "processed", "archive", "frames"]


class PlaceScene(NamedTuple):
    """The facts about a scene that are known without reading it.

    Attributes:
        split: Its split; empty if it has none.
        vertex_count: V; 0 if it is unknown.
        size_bytes: Size of its files.
    """

    split: str
    vertex_count: int
    size_bytes: int


class Place(ABC):
    """A place that holds scenes. Picklable, and safe under fork and in threads.

    Args:
        name: Its path or address, for messages.
        scenes: Its scenes by id, sorted.

    Attributes:
        kind: The kind of place.
        folder: The folder; None for an archive.
        scenes: As given.
        failures: Why scenes that should be there are missing, by id.
    """

    kind: PlaceKind
    folder: Path | None = None

    def __init__(self, name: str, scenes: Mapping[str, PlaceScene]) -> None:
        self.name = name
        self.scenes = scenes
        self.failures: Mapping[str, Finding] = {}

    @property
    def splits(self) -> dict[str, str]:
        """The splits of the scenes."""
        return {scene_id: scene.split for scene_id, scene in self.scenes.items()}

    def read(self, scene_id: str) -> ProcessedScene:
        """Read a processed scene, or make it.

        Raises:
            ScanNetPrepError: A file is missing or damaged, or the place holds other scenes.
        """
        raise FileError(self.name, f"{scene_id} cannot be compared", _HINT_COMPARED)

    def find_files(
        self,
        scene_id: str,  # noqa: ARG002 - an archive has no files
    ) -> Mapping[Path, Fingerprint | None]:
        """Find the files of a scene in a folder, with their fingerprints if these are recorded.

        Raises:
            FileError: The record of the scene is damaged.
        """
        return {}

    @abstractmethod
    def verify(self, scene_id: str) -> list[Finding]:
        """Read all of a scene, and find what is wrong with it.

        Raises:
            ScanNetPrepError: A file is missing or damaged, so that nothing more can be checked.
        """

    def verify_rest(self) -> list[Finding]:
        """Check the files that belong to no scene, and what concerns the place as a whole.

        Raises:
            ScanNetPrepError: As `verify`.
        """
        return []

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return facts about the place by name: texts, lists and mappings, for people and JSON."""


class PackedScenes(Place):
    """An archive. One of raw scenes has to be unpacked to process them.

    Args:
        archive: The archive.
    """

    kind = "archive"

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        scenes = {}
        for scene in archive.index.scenes:
            scenes[scene.scene_id] = PlaceScene(scene.split, 0, scene.size_bytes)
        Place.__init__(self, archive.name, scenes)

    def verify(self, scene_id: str) -> list[Finding]:
        """Read the files of a scene, whose checksum must match."""
        for _ in self._archive.iter_files(scene_id):
            pass
        return []

    def verify_rest(self) -> list[Finding]:
        """Read the files that belong to no scene, whose checksum must match."""
        self._archive.read()
        return []

    def describe(self) -> dict[str, Any]:
        """Name the content, and the options of extracted frames."""
        index = self._archive.index
        return {"content": index.kind, "options": index.options}


class ProcessedScenes(Place):
    """The processed scenes of a folder or an archive, all made with the same options.

    Args:
        name: See `Place`.

    Attributes:
        options: The options.

    Raises:
        FileError: Processing has not finished, or the manifest is damaged.
    """

    def __init__(self, name: str) -> None:
        manifest = self.read_manifest()
        check_complete(manifest, Path(name))
        scenes = {}
        # Without the counts of an entry, which take a hundred times the memory.
        for scene_id, entry in manifest.scenes.items():
            scenes[scene_id] = PlaceScene(entry.split, entry.vertex_count, entry.size_bytes)
        Place.__init__(self, name, scenes)
        failures = manifest.failures.items()
        self.failures = {name: failure for name, failure in failures if name not in scenes}
        self.options = manifest.options

    @abstractmethod
    def file_path(self, scene_id: str) -> Path | str:
        """Return the path of a scene's file; for an archive, a text for messages."""

    @abstractmethod
    def read_file(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene into new, writable memory.

        Raises:
            FileError: It does not exist any more, or is damaged.
            TransferError: A server does not send it.
        """

    @abstractmethod
    def read_manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            ScanNetPrepError: It is damaged, or cannot be read.
        """

    @cached_property
    def entries(self) -> Mapping[str, SceneEntry]:
        """The entries of the manifest, by id. The manifest is read again.

        Raises:
            FileError: It is damaged.
        """
        return self.read_manifest().scenes

    def open_arrays(self, scene_id: str) -> NpzReader:
        """Read the file of a scene, to parse single arrays.

        Raises:
            FileError: It does not exist any more, is damaged, or is that of another scene or
                another folder.
            TransferError: A server does not send it.
        """
        arrays = NpzReader(self.read_file(scene_id), self.file_path(scene_id))
        meta = parse_meta(arrays)
        split = self.scenes[scene_id].split
        problem = ""
        if meta.scene_id != scene_id or meta.split != split:
            problem = f"holds {meta.scene_id!r} of {meta.split}, expected {scene_id} of {split}"
        elif meta.options != self.options:
            problem = f"was made with {meta.options.flags}, expected {self.options.flags}"
        if problem:
            raise FileError(arrays.path, problem, _HINT_CHANGED)
        return arrays

    def read(self, scene_id: str) -> ProcessedScene:
        """Read a scene; errors are those of `open_arrays`."""
        return parse_processed(self.open_arrays(scene_id))

    def describe(self) -> dict[str, Any]:
        """Describe the options, the warnings, and the scenes that failed."""
        manifest = self.read_manifest()
        warnings = []
        for scene_id, entry in manifest.scenes.items():
            warnings += [(scene_id, warning) for warning in entry.warnings]
        return {
            "program": f"scannet-prep {manifest.program_version}",
            "options": self.options.flags,
            "failures": {name: str(failure) for name, failure in self.failures.items()},
            "warnings": [
                f"{text} (scenes: {len(scenes):,})" for text, scenes in summarize_warnings(warnings)
            ],
        }


class ProcessedFolder(ProcessedScenes):
    """A folder that `scannet-prep process` wrote.

    Args:
        folder: The folder.
    """

    kind = "processed"
    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(str(folder))

    def read_manifest(self) -> Manifest:
        """Read `manifest.json`."""
        return read_manifest(self.folder)

    def file_path(self, scene_id: str) -> Path:
        """Return the path of a scene's file."""
        return processed_path(self.folder, self.scenes[scene_id].split, scene_id)

    def find_files(self, scene_id: str) -> Mapping[Path, Fingerprint | None]:
        """Find the file of a scene, with its fingerprint."""
        return {self.file_path(scene_id): self.entries[scene_id].fingerprint}

    def read_file(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene into new, writable memory."""
        with open_file(self.file_path(scene_id), MAX_FILE_BYTES) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            # NumPy, unlike bytearray, does not fill new memory with zeros first.
            data = np.empty(size_bytes, np.uint8).data
            # One call reads a whole file, unless the file becomes shorter meanwhile.
            read_bytes = file.readinto(data)
        return data[:read_bytes]

    def verify(self, scene_id: str) -> list[Finding]:
        """Read a scene, and compare it with the manifest."""
        arrays = self.open_arrays(scene_id)
        fingerprint = Fingerprint.from_bytes(arrays.data)
        actual = SceneEntry.from_scene(parse_processed(arrays), fingerprint)
        recorded = self.entries[scene_id]
        for name in SceneEntry.__struct_fields__:
            here = getattr(actual, name)
            there = getattr(recorded, name)
            if here != there:
                words = name.replace("_", " ")
                problem = f"has {words} {here!s:.80}, but the manifest records {there!s:.80}"
                raise FileError(arrays.path, problem, DAMAGE_HINT)
        return []

    def verify_rest(self) -> list[Finding]:
        """Find files of scenes that the manifest does not record."""
        listed = {self.file_path(scene_id) for scene_id in self.scenes}
        message = "is not in the manifest"
        return [
            Finding(message=message, subject=str(path), scene_id=path.stem, hint=_HINT_REMOVE)
            for path in self.folder.glob("*/*.npz")
            if path not in listed
        ]


class ProcessedArchive(ProcessedScenes, PackedScenes):
    """An archive of processed scenes, on a disk or at an address.

    Args:
        archive: The archive.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        ProcessedScenes.__init__(self, archive.name)

    def read_manifest(self) -> Manifest:
        """Read the manifest from the files that belong to no scene."""
        data = self._archive.read().get(MANIFEST_NAME, b"")
        return parse_manifest(bytes(data), f"{self._archive.name}: {MANIFEST_NAME}")

    def file_path(self, scene_id: str) -> str:
        """Return the archive and the name of a scene's file in it, for messages."""
        return f"{self.name}: {self.scenes[scene_id].split}/{scene_id}.npz"

    def read_file(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene into new, writable memory."""
        [data] = self._archive.read(scene_id).values()
        return data
