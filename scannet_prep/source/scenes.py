"""The interface of all places: the scenes they hold, and how these are read and checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from scannet_prep.base.findings import Finding
from scannet_prep.processed.scene import ProcessedScene

if TYPE_CHECKING:
    from scannet_prep.archive.writing import FileGroup

PlaceKind: TypeAlias = Literal["raw", "processed", "archive", "frames"]


class PlaceScene(NamedTuple):
    """The facts about a scene that are known without reading it.

    Attributes:
        split: Its split; empty if it has none.
        vertex_count: V; 0 if it is unknown.
        size_bytes: Size of its files.
        parts: Number of groups of its files; each becomes a frame of an archive.
    """

    split: str
    vertex_count: int
    size_bytes: int
    parts: int = 1


class Place(ABC):
    """A place that holds scenes. Picklable, and safe under fork and in threads.

    Attributes:
        kind: The kind of place.
        name: Its path or address, for messages.
        scenes: Its scenes by id, sorted.
        failures: Why scenes are missing or cannot be used, by id.
    """

    kind: PlaceKind
    name: str
    scenes: Mapping[str, PlaceScene]
    failures: Mapping[str, Finding] = {}

    def iter_groups(self) -> Iterator[FileGroup]:
        """Iterate over the files of all scenes without failures, in the groups of an archive.

        Raises:
            FileError: The record of a scene is damaged.
        """
        return iter(())  # an archive has no files

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
        """Return facts about the place by name: texts and lists, for people and JSON."""


class ReadablePlace(Place):
    """A place that holds processed scenes, or what they are made from."""

    @abstractmethod
    def read(self, scene_id: str) -> ProcessedScene:
        """Read a processed scene, or make it.

        Raises:
            ScanNetPrepError: A file is missing or damaged.
        """
