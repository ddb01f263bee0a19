"""Places that hold processed scenes: a folder, or an archive of one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from scannet_prep.base.files import Buffer, Fingerprint, open_file
from scannet_prep.base.findings import Finding
from scannet_prep.errors import FileError, MissingFileError
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
    check_meta,
    parse_meta,
    parse_processed,
)
from scannet_prep.release.irregularities import summarize_warnings
from scannet_prep.release.scene import Split

if TYPE_CHECKING:
    from scannet_prep.archive.format import Archive

_HINT_REMOVE = "remove the file, or process the scene again"

PlaceKind: TypeAlias = Literal["raw", "processed", "archive", "frames"]


class PlaceScene(NamedTuple):
    """What is known of a scene without reading it.

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
        scenes: Its scenes by id.

    Attributes:
        kind: What it is.
        folder: The folder; None for an archive.
        scenes: As given, sorted.
        failures: Why scenes that should be there are missing, by id.
    """

    kind: PlaceKind
    folder: Path | None = None

    def __init__(self, name: str, scenes: Mapping[str, PlaceScene]) -> None:
        self.name = name
        self.scenes = dict(sorted(scenes.items()))
        self.failures: dict[str, str] = {}

    @property
    def splits(self) -> dict[str, str]:
        """The splits of the scenes."""
        return {scene_id: scene.split for scene_id, scene in self.scenes.items()}

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


class ProcessedScenes(Place):
    """The processed scenes of a folder or an archive, all made with the same options.

    Args:
        name: See `Place`.

    Attributes:
        options: The options.
        fault: Why the place must not be used: processing has not finished. None if it has.
    """

    def __init__(self, name: str) -> None:
        manifest = self.read_manifest()
        scenes = {}
        # Without the counts of an entry, which take a hundred times the memory.
        for scene_id, entry in manifest.scenes.items():
            scenes[scene_id] = PlaceScene(entry.split, entry.vertex_count, entry.size_bytes)
        super().__init__(name, scenes)
        for scene_id, failure in sorted(manifest.failures.items()):
            if scene_id not in scenes:
                self.failures[scene_id] = str(failure)
        self.options = manifest.options
        self.fault: FileError | None = None
        try:
            check_complete(manifest, Path(name))
        except FileError as error:
            self.fault = error

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

    def close(self) -> None:
        """Close files and connections; reading opens them again."""

    @cached_property
    def entries(self) -> Mapping[str, SceneEntry]:
        """The entries of the manifest for the scenes of the place, by id, sorted.

        Raises:
            FileError: The manifest is damaged, or the place was changed since it was opened.
        """
        manifest = self.read_manifest()
        if manifest.options != self.options or not self.scenes.keys() <= manifest.scenes.keys():
            problem = f"{MANIFEST_NAME} lists other scenes or options than when it was opened"
            raise FileError(self.name, problem, "open it again")
        return {scene_id: manifest.scenes[scene_id] for scene_id in self.scenes}

    def open_arrays(self, scene_id: str, data: Buffer) -> NpzReader:
        """Open the file of a scene, to read single arrays.

        Args:
            scene_id: The scene.
            data: The whole file, from `read_file`.

        Raises:
            FileError: It is damaged, or is that of another scene or another folder.
        """
        path = self.file_path(scene_id)
        arrays = NpzReader(data, path)
        meta = parse_meta(arrays, path)
        check_meta(meta, path, scene_id, self.scenes[scene_id].split, self.options)
        return arrays

    def parse(self, scene_id: str, data: Buffer) -> ProcessedScene:
        """Parse the file of a scene; arguments and errors are those of `open_arrays`."""
        path = self.file_path(scene_id)
        scene = parse_processed(data, path)
        check_meta(scene.meta, path, scene_id, self.scenes[scene_id].split, self.options)
        return scene

    def read(self, scene_id: str) -> ProcessedScene:
        """Read a scene; errors are those of `read_file` and `parse`."""
        return self.parse(scene_id, self.read_file(scene_id))

    def describe(self) -> dict[str, Any]:
        """Describe the options, the warnings, and the scenes that failed."""
        manifest = self.read_manifest()
        warnings = []
        computed_count = 0
        for scene_id, entry in manifest.scenes.items():
            computed_count += entry.segments_source == "computed"
            warnings += [(scene_id, warning) for warning in entry.warnings]
        return {
            "program": f"scannet-prep {manifest.program_version}",
            "options": self.options.flags,
            "label_set": self.options.label_set.name,
            "frame": "axis-aligned" if self.options.align_axis else "scan",
            "scenes_with_computed_segments": computed_count,
            "problem": "" if self.fault is None else self.fault.message,
            "failures": self.failures,
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

    def read_file(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene into new, writable memory."""
        path = self.file_path(scene_id)
        try:
            with open_file(path, MAX_FILE_BYTES) as file:
                size_bytes = os.fstat(file.fileno()).st_size
                # NumPy, unlike bytearray, does not fill new memory with zeros first.
                data = np.empty(size_bytes, np.uint8).data
                # One call reads a whole file, unless the file becomes shorter meanwhile.
                read_bytes = file.readinto(data)
        except MissingFileError:
            problem = "no such file, though the manifest names it"
            raise MissingFileError(path, problem, DAMAGE_HINT) from None
        if read_bytes != size_bytes:
            problem = f"only {read_bytes:,} of {size_bytes:,} bytes could be read"
            raise FileError(path, problem, DAMAGE_HINT)
        return data

    def verify(self, scene_id: str) -> list[Finding]:
        """Read a scene, and compare it with the manifest."""
        data = self.read_file(scene_id)
        scene = self.parse(scene_id, data)
        actual = SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))
        problems = list(_find_differences(actual, self.entries[scene_id]))[:1]
        path = str(self.file_path(scene_id))
        return [
            Finding(message=problem, subject=path, scene_id=scene_id, hint=DAMAGE_HINT)
            for problem in problems
        ]

    def verify_rest(self) -> list[Finding]:
        """Find files of scenes that the manifest does not record."""
        if self.fault is not None:
            return [Finding.from_error(self.fault)]
        listed = {self.file_path(scene_id) for scene_id in self.scenes}
        found = {path for split in Split for path in (self.folder / split).glob("*.npz")}
        message = "is not in the manifest"
        return [
            Finding(message=message, subject=str(path), scene_id=path.stem, hint=_HINT_REMOVE)
            for path in sorted(found - listed)
        ]


class ProcessedArchive(ProcessedScenes):
    """An archive of processed scenes, on a disk or at an address.

    Args:
        archive: The archive.
    """

    kind = "archive"

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        super().__init__(archive.name)

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

    def verify(self, scene_id: str) -> list[Finding]:
        """Read the file of a scene, whose checksum must match."""
        self._archive.read(scene_id)
        return []

    def close(self) -> None:
        """Close the file or the connections; reading opens them again."""
        self._archive.source.close()


def _find_differences(actual: SceneEntry, recorded: SceneEntry) -> Iterator[str]:
    """Describe the fields in which a scene differs from its record in the manifest."""
    for name in SceneEntry.__struct_fields__:
        here = getattr(actual, name)
        there = getattr(recorded, name)
        if here != there:
            words = name.replace("_", " ")
            yield f"has {words} {here!s:.80}, but the manifest records {there!s:.80}"
