"""What every source of processed scenes offers for training, and the one that reads a processed folder."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ManifestError, MissingFileError, ProcessedFileError, UnknownSplitError
from scannet_prep.files import open_file
from scannet_prep.processed.folder import FAILED_NAME, find_state, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, SceneEntry, read_manifest
from scannet_prep.processed.scene import MAX_FILE_BYTES
from scannet_prep.scene import Split


class SceneSource(ABC):
    """The scenes of one split, sorted by id. Picklable, and safe under fork and in threads.

    Args:
        place: Where they are, as somebody would name it in code.
        vertex_counts: V by scene id.
        failures: Why scenes are missing that were asked for, by id.

    Attributes:
        place: As given.
        lengths: V of each scene, int64 (len,).
        failures: As given.
    """

    def __init__(self, place: str | list[str], vertex_counts: Mapping[str, int], failures: Mapping[str, str]) -> None:
        self.place = place
        names = sorted(vertex_counts)
        # Arrays and not lists: reading a list changes its reference counts, and with them, after a fork, whole pages.
        self._scene_ids = np.array(names, dtype="S12")
        self.lengths: NDArray[np.int64] = np.array([vertex_counts[name] for name in names], np.int64)
        self.failures = dict(failures)

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

    @abstractmethod
    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""

    @abstractmethod
    def read(self, index: int) -> bytearray | memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable.

        Raises:
            FileError: It is gone, or damaged.
            TransferError: It is on a web server, which does not give it.
        """

    @abstractmethod
    def read_entries(self) -> dict[str, SceneEntry] | None:
        """What the manifest says of the scenes, by id; None where it does not tell of all.

        Raises:
            ScanNetPrepError: The manifest is damaged, tells of other scenes, or cannot be read.
        """

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
        state.check()
        scenes = state.manifest.scenes
        vertex_counts = {name: entry.vertex_count for name, entry in scenes.items() if entry.split == split}
        hint = f"make them: scannet-prep process -o {quote(str(path))} --splits {split}"
        check_split(str(path), split, {entry.split for entry in scenes.values()}, hint)
        failures = {name: item.message for name, item in state.manifest.failures.items() if name not in vertex_counts}
        super().__init__(str(path), vertex_counts, failures)
        if failures:
            warn_of_failures(self.name, failures, f"see {path / FAILED_NAME}")

    def file_path(self, index: int) -> Path:
        """The file of a scene."""
        return processed_path(self._path, self._split, self.scene_id(index))

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        command = f"scannet-prep process --scenes {scene_id} -o {quote(str(self._path))}"
        return f"make it, with the same options as the others: {command}"

    def read_entries(self) -> dict[str, SceneEntry] | None:
        """What the manifest says of the scenes, by id; None where the folder has none.

        Raises:
            ManifestError: It is damaged, or tells of other scenes than when the folder was opened.
        """
        manifest = read_manifest(self._path)
        if manifest is None:
            return None
        try:
            return {scene_id: manifest.scenes[scene_id] for scene_id in self.scene_ids}
        except KeyError as error:
            raise ManifestError(
                self._path / MANIFEST_NAME,
                f"no longer names {error.args[0]}, which was there when the folder was opened",
                "make the dataset again",
            ) from None

    def read(self, index: int) -> memoryview:
        """Read the whole file of a scene.

        Raises:
            MissingFileError: It is gone.
            FileError: It cannot be read.
        """
        path = self.file_path(index)
        again = f"make it again: scannet-prep process --scenes {path.stem}, with the same options and -o as before"
        try:
            with open_file(path, MAX_FILE_BYTES) as file:
                data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data  # unlike a bytearray, not cleared first
                size = file.readinto(data)
        except MissingFileError:
            raise MissingFileError(path, "no such file, though the folder's manifest names it", again) from None
        if size != len(data):
            raise ProcessedFileError(path, f"gave {size} of {len(data)} bytes", again)
        return data


def warn_of_failures(name: str, failures: Collection[str], hint: str) -> None:
    """Say that scenes are missing, in the place where the dataset is made."""
    warnings.warn(
        f"{name}: scenes that failed in processing are missing: {len(failures)}, for example {min(failures)}; {hint}",
        stacklevel=5,
    )


def check_split(name: str, split: Split, present: Collection[str], hint: str) -> None:
    """Check that a split is among those that are present at a place; `hint` says what to do where it is not.

    Raises:
        UnknownSplitError: It is not among them.
    """
    if split not in present:
        others = ", ".join(sorted(present)) or "no scenes at all"
        raise UnknownSplitError(f"{name}: holds no {split} scenes, only {others}", hint)
