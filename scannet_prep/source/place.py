"""Open a place: determine what a path or an address is, and list its scenes.

    address, or a file                                          archive
    folder with manifest.json                                   processed
    folder with <scene>/frames.json                             frames
    folder with scans/, scans_test/, <scene>/ or scannet.lock   raw

The kind is found by names alone. The modules that read a kind are imported when such a place is
opened, since training from a folder needs neither archives nor raw files.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scannet_prep.base.files import Fingerprint, open_file
from scannet_prep.base.findings import Finding
from scannet_prep.base.json import parse_record
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.manifest import (
    MANIFEST_DECODER,
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    processed_path,
    read_manifest,
)
from scannet_prep.processed.npz import HINT_DAMAGED, NpzReader
from scannet_prep.processed.scene import MAX_FILE_BYTES, ProcessedScene, parse_head, parse_processed
from scannet_prep.release.scenes import Split
from scannet_prep.source.scenes import Place, PlaceKind, PlaceScene, ReadablePlace

if TYPE_CHECKING:
    from scannet_prep.archive.format import Archive
    from scannet_prep.archive.writing import FileGroup
    from scannet_prep.raw.tree import RawListing

_HINT_PLACE = (
    "name an archive, or a whole folder, not one of its splits or scenes; "
    "to try the program without ScanNet data: scannet-prep demo"
)
_HINT_PROCESSED = (
    "name a folder that scannet-prep process wrote, or an archive of it; "
    "raw scenes have to be unpacked and processed first"
)
_HINT_CONTINUE = "run the same process or unpack command again: it continues where it stopped"
_HINT_REMOVE = "remove the file, or process the scene again"
_HINT_PACK = "pack the folder again"
_HINT_CHANGED = "open the place again if it was changed meanwhile; else process the scene again"


def find_kind(path: Path) -> tuple[PlaceKind, RawListing | None]:
    """Determine what a path is, by names alone.

    Returns:
        The kind; and what a raw tree holds, which has been listed to find out.

    Raises:
        MissingFileError: It does not exist, or is a folder without scenes.
        FileError: It cannot be read.
    """
    # If access fails, the functions of os.path return False; the methods of Path would raise.
    if not os.path.isdir(path):  # noqa: PTH112
        try:
            path.lstat()
        except FileNotFoundError:
            raise MissingFileError(path, "no such file or folder", _HINT_PLACE) from None
        except OSError:  # opening the file shows the reason, such as a closed folder above it
            pass
        return "archive", None
    if os.path.isfile(path / MANIFEST_NAME):  # noqa: PTH113
        return "processed", None

    from scannet_prep.frames.folder import find_scenes
    from scannet_prep.raw.lock import LOCK_NAME
    from scannet_prep.raw.tree import list_raw

    if find_scenes(path):
        return "frames", None
    listing = list_raw(path, may_be_empty=True)
    if listing.scenes or listing.shared or (path / LOCK_NAME).is_file():
        return "raw", listing
    raise MissingFileError(path, "holds neither raw nor processed scenes", _HINT_PLACE)


def open_place(place: str | Path) -> Place:
    """Open a raw tree, a processed folder, an archive, or extracted frames.

    Args:
        place: Its path, or the address of an archive.

    Raises:
        MissingFileError: It does not exist, or is a folder without scenes.
        FileError: It cannot be read, is of another program, or its processing has not finished.
        TransferError: A server does not send the archive.
    """
    place = os.path.expanduser(place)
    path = Path(place)
    kind, listing = ("archive", None) if "://" in place else find_kind(path)
    if kind == "processed":
        return ProcessedFolder(path)
    if kind == "archive":
        from scannet_prep.archive.format import open_archive

        archive = open_archive(place)
        place_type = ProcessedArchive if archive.index.kind == "processed" else PackedScenes
        opened = place_type(archive)
        # No longer needed, and they may be large: each worker would receive a copy.
        archive.others.clear()
        return opened
    from scannet_prep.source.trees import Frames, RawTree

    return RawTree(path, listing) if listing else Frames(path)


def open_processed(place: str | Path) -> ProcessedScenes:
    """Open a processed folder or an archive of one, to use its scenes.

    Args:
        place: Its path, or the address of an archive.

    Raises:
        MissingFileError: It is something else.
        FileError, TransferError: As `open_place`.
    """
    opened = open_place(place)
    if not isinstance(opened, ProcessedScenes):
        problem = "holds raw scenes or extracted frames, expected processed scenes"
        raise MissingFileError(opened.name, problem, _HINT_PROCESSED)
    return opened


class PackedScenes(Place):
    """An archive. To process the raw scenes of an archive, unpack it.

    Args:
        archive: The archive.
    """

    kind = "archive"

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.name = archive.name
        self.scenes = {
            scene.scene_id: PlaceScene(scene.split, 0, scene.size_bytes)
            for scene in archive.index.scenes
        }

    def verify(self, scene_id: str) -> list[Finding]:
        """Read the files of a scene, whose checksum must match."""
        for _ in self._archive.iter_files(scene_id):
            pass
        return []

    def verify_rest(self) -> list[Finding]:
        """Read the end. The files that belong to no scene were read when the archive was opened."""
        self._archive.check_end()
        return []

    def describe(self) -> dict[str, Any]:
        """Name the content, and the options of extracted frames."""
        return {"content": self._archive.index.kind, "options": self._archive.index.options}


class ProcessedScenes(ReadablePlace):
    """The processed scenes of a folder or an archive, all made with the same options.

    Args:
        name: See `Place`.
        manifest: The manifest, as it is when the place is opened.

    Attributes:
        manifest: The same.
        options: The options.

    Raises:
        FileError: Processing has not finished.
    """

    def __init__(self, name: str, manifest: Manifest) -> None:
        count = len(manifest.unfinished)
        if count:
            problem = f"a run in this folder has not finished; missing scenes: {count:,}"
            raise FileError(Path(name) / MANIFEST_NAME, problem, _HINT_CONTINUE)
        self.name = name
        self.scenes = {
            scene_id: PlaceScene(entry.split, entry.vertex_count, entry.size_bytes)
            for scene_id, entry in manifest.scenes.items()
        }
        self.failures = {
            scene_id: failure
            for scene_id, failure in manifest.failures.items()
            if scene_id not in manifest.scenes
        }
        self.manifest = manifest
        self.options = manifest.options

    @abstractmethod
    def file_path(self, scene_id: str) -> Path | str:
        """Return the path of a scene's file; for an archive, a text for messages."""

    @abstractmethod
    def open_arrays(self, scene_id: str) -> NpzReader:
        """Read the file of a scene into new, writable memory, to parse single arrays.

        Raises:
            FileError: It does not exist any more, is damaged, or belongs to another scene or
                another folder.
            TransferError: A server does not send it.
        """

    def read(self, scene_id: str) -> ProcessedScene:
        """Read a scene; errors are those of `open_arrays`."""
        return parse_processed(self.open_arrays(scene_id))

    def describe(self) -> dict[str, Any]:
        """Describe the options and the warnings."""
        return {
            "program": f"scannet-prep {self.manifest.program_version}",
            "options": self.options.flags,
            "warnings": [
                f"{text} (scenes: {len(scenes):,})"
                for text, scenes in self.manifest.summarize_warnings()
            ],
        }


class ProcessedFolder(ProcessedScenes):
    """A folder that `scannet-prep process` wrote.

    Args:
        folder: The folder.
    """

    kind = "processed"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(str(folder), read_manifest(folder))

    def file_path(self, scene_id: str) -> Path:
        """Return the path of a scene's file."""
        return processed_path(self.folder, self.scenes[scene_id].split, scene_id)

    def iter_groups(self) -> Iterator[FileGroup]:
        """Iterate over the files of all scenes: a group for each.

        Raises:
            FileError: Another run has changed the manifest since the folder was opened.
        """
        from scannet_prep.archive.writing import FileGroup

        # The archive gets the manifest as it is now, but the scenes of the one that was read.
        if read_manifest(self.folder) != self.manifest:
            raise FileError(self.folder / MANIFEST_NAME, "was changed meanwhile", _HINT_PACK)
        for scene_id, entry in self.manifest.scenes.items():
            path = self.file_path(scene_id)
            names = {f"{entry.split}/{path.name}": path}
            yield FileGroup(scene_id, names, entry.fingerprint)

    def open_arrays(self, scene_id: str) -> NpzReader:
        """Read the file of a scene, and compare the beginning of its description."""
        arrays = _read_whole(self.file_path(scene_id))
        head = parse_head(arrays)
        split = self.scenes[scene_id].split
        problem = ""
        if head.scene_id != scene_id or head.split != split:
            problem = f"holds {head.scene_id!r} of {head.split}, expected {scene_id} of {split}"
        elif head.options != self.options:
            problem = f"was made with {head.options.flags}, expected {self.options.flags}"
        if problem:
            raise FileError(arrays.path, problem, _HINT_CHANGED)
        return arrays

    def verify(self, scene_id: str) -> list[Finding]:
        """Read a scene, and compare it with the manifest."""
        recorded = self.manifest.scenes[scene_id]
        arrays = self.open_arrays(scene_id)
        fingerprint = Fingerprint.from_bytes(arrays.data)
        actual = SceneEntry.from_scene(parse_processed(arrays), fingerprint)
        for name in SceneEntry.__struct_fields__:
            here = getattr(actual, name)
            there = getattr(recorded, name)
            if here != there:
                words = name.replace("_", " ")
                problem = f"has {words} {here!s:.80}, but the manifest records {there!s:.80}"
                raise FileError(arrays.path, problem, HINT_DAMAGED)
        return []

    def verify_rest(self) -> list[Finding]:
        """Find files of scenes that the manifest does not record."""
        recorded = {self.file_path(scene_id) for scene_id in self.scenes}
        return [
            Finding(
                message="is not in the manifest",
                subject=str(path),
                scene_id=path.stem,
                hint=_HINT_REMOVE,
            )
            for split in Split
            # macOS writes hidden files beside others.
            for path in (self.folder / split).glob("[!.]*.npz")
            if path not in recorded
        ]


class ProcessedArchive(ProcessedScenes, PackedScenes):
    """An archive of processed scenes, on a disk or at an address.

    Args:
        archive: The archive.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        ProcessedScenes.__init__(self, archive.name, read_packed_manifest(archive))

    def file_path(self, scene_id: str) -> str:
        """Return the archive and the name of a scene's file in it, for messages."""
        return f"{self.name}: {self.scenes[scene_id].split}/{scene_id}.npz"

    def open_arrays(self, scene_id: str) -> NpzReader:
        """Read the file of a scene, which was the recorded one when it was packed."""
        # In a forged archive, the scene may have no file.
        name, data = next(self._archive.iter_files(scene_id), ("", b""))
        return NpzReader(bytearray(data), f"{self.name}: {name}")


def read_packed_manifest(archive: Archive) -> Manifest:
    """Read the manifest of an archive of processed scenes.

    Raises:
        FileError: It is damaged, or lists other scenes than the archive has.
    """
    name = f"{archive.name}: {MANIFEST_NAME}"
    manifest = parse_record(
        archive.others.get(MANIFEST_NAME, b""), name, MANIFEST_DECODER, _HINT_PACK
    )
    if manifest.scenes.keys() != {scene.scene_id for scene in archive.index.scenes}:
        raise FileError(name, "lists other scenes than the archive has", _HINT_PACK)
    return manifest


def _read_whole(path: Path) -> NpzReader:
    """Read a file into new, writable memory."""
    with open_file(path, MAX_FILE_BYTES) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        # NumPy, unlike bytearray, does not fill new memory with zeros first. Its own reader takes
        # an error of the disk for the end of the file.
        data = np.empty(size_bytes, np.uint8).data
        # One call reads a whole file, unless the file becomes shorter meanwhile.
        read_bytes = file.readinto(data)
    return NpzReader(data[:read_bytes], path)
