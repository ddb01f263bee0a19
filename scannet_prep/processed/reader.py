"""What every source of processed scenes offers for training, and the one that reads a processed folder."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote

import numpy as np

from scannet_prep.errors import MissingFileError, ProcessedFileError, UnknownSplitError
from scannet_prep.files import open_file
from scannet_prep.processed.folder import find_state, processed_path
from scannet_prep.processed.manifest import SceneEntry, read_manifest
from scannet_prep.processed.npz import AGAIN_HINT
from scannet_prep.processed.scene import MAX_FILE_BYTES
from scannet_prep.scene import Split


class SceneSource(ABC):
    """The scenes of one split. Picklable, and safe under fork and in threads.

    Args:
        place: Where they are, as somebody would name it in code.
        scenes: Split and V of each scene that is there, by id.
        failures: Why scenes are missing that were asked for, by id.
        split: Which split; None for all.
        then: How a command goes on that makes more scenes of the place.

    Attributes:
        place: As given.
        lengths: V of each scene, by id, sorted.
        failures: As given.

    Raises:
        UnknownSplitError: There are no scenes of that split.
    """

    def __init__(
        self,
        place: str | list[str],
        scenes: Mapping[str, tuple[str, int]],
        failures: Mapping[str, str],
        split: Split | None,
        then: str,
    ) -> None:
        self.place, self._then = place, then
        chosen = {name: count for name, (its_split, count) in scenes.items() if split in (None, its_split)}
        self.lengths = dict(sorted(chosen.items()))
        self.failures = {name: text for name, text in failures.items() if name not in scenes}
        if split is not None and not chosen:
            others = ", ".join(sorted({its_split for its_split, _ in scenes.values()})) or "no scenes at all"
            hint = f"make them: scannet-prep process --splits {split}{then}"
            raise UnknownSplitError(f"{self.name}: holds no {split} scenes, only {others}", hint)
        if split is not None and self.failures:
            count, one, first = len(self.failures), min(self.failures), place if isinstance(place, str) else place[0]
            told = f"{self.name}: scenes that failed in processing are missing: {count}, for example {one}"
            warnings.warn(f"{told}; to list them: scannet-prep info {quote(first)}", stacklevel=5)

    @property
    def name(self) -> str:
        """Where they are, for messages."""
        return self.place if isinstance(self.place, str) else f"{self.place[0]} and {len(self.place) - 1} more"

    @abstractmethod
    def file_path(self, scene_id: str) -> Path | str:
        """The file of a scene, for messages."""

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        return f"make it: scannet-prep process --scenes {scene_id}{self._then}"

    @abstractmethod
    def read(self, scene_id: str) -> bytearray | memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable.

        Raises:
            FileError: It is gone, or damaged.
            TransferError: It is on a web server, which does not give it.
        """

    @abstractmethod
    def _read_manifest(self) -> Mapping[str, SceneEntry]:
        """What the manifest says of scenes, at least of these; less where there is none."""

    def read_entries(self, scene_ids: Collection[str]) -> dict[str, SceneEntry] | None:
        """What the manifest says of some scenes, by id; None where it does not tell of all.

        Raises:
            ScanNetPrepError: The manifest is damaged, or cannot be read.
        """
        entries = self._read_manifest()
        return {name: entries[name] for name in scene_ids} if entries.keys() >= set(scene_ids) else None

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what is held open between reads; reading opens it again."""


class FolderReader(SceneSource):
    """The scenes of one split of a processed folder.

    Args:
        path: The folder that `scannet-prep process` wrote.
        split: Which of its splits.

    Raises:
        FileError: It is not a processed folder, or cannot be used: processing has not finished, scenes were made with
            different options, its manifest is damaged.
        UnknownSplitError: It holds no scenes of that split.
    """

    def __init__(self, path: Path, split: Split) -> None:
        self._path, self._split = path, split
        state = find_state(path)
        if state.faults:
            raise state.faults[0]
        scenes = {name: (str(entry.split), entry.vertex_count) for name, entry in state.manifest.scenes.items()}
        failures = {name: item.message for name, item in state.manifest.failures.items()}
        super().__init__(str(path), scenes, failures, split, f" -o {quote(str(path))}, with the options of the others")

    def file_path(self, scene_id: str) -> Path:
        """The file of a scene."""
        return processed_path(self._path, self._split, scene_id)

    def _read_manifest(self) -> Mapping[str, SceneEntry]:
        manifest = read_manifest(self._path)
        return manifest.scenes if manifest else {}

    def read(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene."""
        return read_scene_file(self.file_path(scene_id))


def read_scene_file(path: Path) -> memoryview:
    """Read the whole file of a scene in a processed folder, into memory that is writable.

    Raises:
        MissingFileError: It is gone.
        FileError: It cannot be read.
    """
    try:
        with open_file(path, MAX_FILE_BYTES) as file:
            data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data  # unlike a bytearray, not cleared first
            size = file.readinto(data)
    except MissingFileError:
        raise MissingFileError(path, "no such file, though the folder's manifest names it", AGAIN_HINT) from None
    if size != len(data):
        raise ProcessedFileError(path, f"gave {size} of {len(data)} bytes", AGAIN_HINT)
    return data
