"""What every source of processed scenes offers for training, and the one that reads a processed folder."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import MissingFileError, ProcessedFileError, UnknownSplitError
from scannet_prep.files import open_file
from scannet_prep.processed.folder import find_state, processed_path
from scannet_prep.processed.manifest import SceneEntry, read_manifest
from scannet_prep.processed.npz import AGAIN_HINT
from scannet_prep.processed.scene import MAX_FILE_BYTES
from scannet_prep.scene import Split


class SceneSource(ABC):
    """The scenes of one split, sorted by id. Picklable, and safe under fork and in threads.

    Args:
        place: Where they are, as somebody would name it in code.
        scenes: Split and V of each scene that is there, by id.
        failures: Why scenes are missing that were asked for, by id.
        split: Which split; None for all.
        then: How a command goes on that makes more scenes of the place.

    Attributes:
        place: As given.
        lengths: V of each scene, int64 (len,).
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
        names = sorted(name for name, (its_split, _) in scenes.items() if split in (None, its_split))
        # Arrays and not lists: reading a list changes its reference counts, and with them, after a fork, whole pages.
        self._scene_ids = np.array(names, dtype="S12")
        self.lengths: NDArray[np.int64] = np.array([scenes[name][1] for name in names], np.int64)
        self.failures = {name: text for name, text in failures.items() if name not in scenes}
        if split is not None and not names:
            others = ", ".join(sorted({its_split for its_split, _ in scenes.values()})) or "no scenes at all"
            hint = f"make them: scannet-prep process --splits {split}{then}"
            raise UnknownSplitError(f"{self.name}: holds no {split} scenes, only {others}", hint)
        if split is not None and self.failures:
            count, one, first = len(self.failures), min(self.failures), place if isinstance(place, str) else place[0]
            told = f"{self.name}: scenes that failed in processing are missing: {count}, for example {one}"
            warnings.warn(f"{told}; to list them: scannet-prep info {quote(first)}", stacklevel=5)

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._scene_ids)

    @property
    def name(self) -> str:
        """Where they are, for messages."""
        return self.place if isinstance(self.place, str) else f"{self.place[0]} and {len(self.place) - 1} more"

    @property
    def scene_ids(self) -> list[str]:
        """All scenes, sorted."""
        return [name.decode() for name in self._scene_ids.tolist()]

    def scene_id(self, index: int) -> str:
        """The scene at a position."""
        return bytes(self._scene_ids[index]).decode()

    def find(self, scene_id: str) -> int | None:
        """Position of a scene; None where this split has none of that name."""
        name = scene_id.encode()
        index = int(np.searchsorted(self._scene_ids, np.bytes_(name)))
        return index if index < len(self) and self._scene_ids[index] == name else None

    def restrict(self, indices: NDArray[np.int64]) -> None:
        """Keep only the scenes at these positions, which are ascending; one may come several times."""
        self._scene_ids, self.lengths = self._scene_ids[indices], self.lengths[indices]

    @abstractmethod
    def file_path(self, index: int) -> Path | str:
        """The file of a scene, for messages."""

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        return f"make it: scannet-prep process --scenes {scene_id}{self._then}"

    @abstractmethod
    def read(self, index: int) -> bytearray | memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable.

        Raises:
            FileError: It is gone, or damaged.
            TransferError: It is on a web server, which does not give it.
        """

    @abstractmethod
    def _read_manifest(self) -> Mapping[str, SceneEntry]:
        """What the manifest says of scenes, at least of these; less where there is none."""

    def read_entries(self) -> dict[str, SceneEntry] | None:
        """What the manifest says of the scenes, by id; None where it does not tell of all.

        Raises:
            ScanNetPrepError: The manifest is damaged, or cannot be read.
        """
        names, entries = self.scene_ids, self._read_manifest()
        return {name: entries[name] for name in names} if entries.keys() >= set(names) else None

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

    def file_path(self, index: int) -> Path:
        """The file of a scene."""
        return processed_path(self._path, self._split, self.scene_id(index))

    def _read_manifest(self) -> Mapping[str, SceneEntry]:
        manifest = read_manifest(self._path)
        return manifest.scenes if manifest else {}

    def read(self, index: int) -> memoryview:
        """Read the whole file of a scene."""
        return read_scene_file(self.file_path(index))


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
