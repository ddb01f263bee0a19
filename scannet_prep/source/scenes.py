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
from scannet_prep.base.errors import FileError, UsageError
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.findings import Finding
from scannet_prep.release.scene import Split
from scannet_prep.source.identify import find_folder, refuse_export

if TYPE_CHECKING:
    from typing_extensions import Self


def open_processed(
    place: Place | Sequence[Place],
    split: Split | None = None,
    *,
    certificates: bool | Path = True,
    must_be_usable: bool = True,
) -> SceneSource:
    """Find the processed scenes of a place. If there is a manifest, no scene is read.

    Args:
        place: A processed folder; or an archive, or several such as all shards of a set: paths,
            addresses, or objects that read the bytes.
        split: Only its scenes; None for all.
        certificates: Which certificates of a server to trust, as `RangeSource` takes it.
        must_be_usable: Whether a folder that must not be used is an error: its processing has not
            finished, or its manifest is damaged. Otherwise its `faults` say so.

    Raises:
        FileError: The place does not exist, or cannot be used.
        UsageError: There is no place, there are several folders, a scene is in two archives, or
            there are no scenes of the split.
        TransferError: A server does not send an archive.
    """
    places = _list_places(place)
    if not places:
        hint = "name a folder, an archive, or all of its shards"
        raise UsageError("the list of archives is empty", hint)
    folder = find_folder(places)
    # Imported here: training from a folder needs no zstandard.
    if folder is None:
        from scannet_prep.source.archive_scenes import ArchiveScenes

        return ArchiveScenes(places, split, certificates=certificates)
    refuse_export(folder)
    from scannet_prep.source.folder_scenes import FolderScenes

    return FolderScenes(folder, split, must_be_usable=must_be_usable)


def _list_places(place: Place | Sequence[Place]) -> list[Place]:
    if isinstance(place, str) or not isinstance(place, Sequence):
        return [place]
    return list(place)


class HeldScene(Protocol):
    """What is known of a processed scene without its file: an entry of a manifest or of an index."""

    @property
    def split(self) -> str:
        """Its split."""

    @property
    def vertex_count(self) -> int:
        """V."""


class SceneSource(ABC):
    """Processed scenes, wherever they are. Picklable, and safe under fork and in threads.

    Args:
        place: Where they are, as code would name it: a path, an address, or several.
        options: The options that all of them were made with.
        held: All scenes that are there, by id.
        failures: Why scenes that were to be made are missing, by id.
        split: Only its scenes; None for all.
        then: How the command continues that makes more scenes of the place.

    Attributes:
        place: As given.
        name: The same for messages.
        options: As given.
        lengths: V of each scene, by id, sorted.
        failures: As given, without scenes that are there all the same.
        folder: The processed folder; None for archives.
        faults: Why the folder must not be used; only if `open_processed` opened it all the same.

    Raises:
        UsageError: There are no scenes of that split.
    """

    folder: Path | None = None
    faults: tuple[FileError, ...] = ()

    def __init__(
        self,
        place: str | list[str],
        options: ProcessOptions,
        held: Mapping[str, HeldScene],
        failures: Mapping[str, Finding],
        split: Split | None,
        then: str,
    ) -> None:
        first = place if isinstance(place, str) else place[0]
        self.place = place
        self.name = first if isinstance(place, str) else f"{first} and {len(place) - 1} more"
        self.options = options
        self.failures = {name: it for name, it in failures.items() if name not in held}
        self._then = then
        self._entries: Mapping[str, SceneEntry] | None = None
        self.lengths: dict[str, int] = {}
        for name, scene in sorted(held.items()):
            if split in (None, scene.split):
                self.lengths[name] = scene.vertex_count
        if split is None:
            return

        if not self.lengths:
            splits = ", ".join(sorted({scene.split for scene in held.values()}))
            others = f", only {splits}" if splits else ""
            hint = f"make them: scannet-prep process --splits {split}{then}"
            raise UsageError(f"{self.name}: holds no {split} scenes{others}", hint)
        if self.failures:
            count = f"{len(self.failures)}, for example {min(self.failures)}"
            warnings.warn(
                f"{self.name}: scenes that failed in processing are missing: {count}; "
                f"to list them: scannet-prep info {quote(first)}",
                stacklevel=5,  # where the dataset is made
            )

    @property
    def entries(self) -> Mapping[str, SceneEntry]:
        """What the manifest records of each scene, by id, sorted; read once and kept.

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
            self._entries = {name: known[name] for name in self.lengths}
        return self._entries

    @abstractmethod
    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Read what the manifest records of scenes: of all of these, unless there is no manifest.

        Raises:
            ScanNetPrepError: The manifest is damaged, or cannot be read.
        """

    @abstractmethod
    def file_path(self, scene_id: str) -> Path | str:
        """Return the file of a scene; a text for messages if it is in an archive."""

    @abstractmethod
    def read(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene, into writable memory of its own.

        Raises:
            FileError: It is gone, or damaged.
            TransferError: A server does not send it.
        """

    def without_entries(self) -> Self:
        """Return a copy for worker processes that get the entry of each scene with their task."""
        part = copy.copy(self)
        part.failures = {}
        part._entries = {}  # noqa: SLF001 - one of us
        return part

    def how_to_add(self, scene_id: str) -> str:
        """Return the hint to get a scene that is missing."""
        return f"make it: scannet-prep process --scenes {scene_id}{self._then}"

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close what is open between reads; reading opens it again."""
