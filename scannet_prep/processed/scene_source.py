"""What every source of processed scenes offers for training: a folder, an archive, several of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scannet_prep.scene import Split


class SceneSource(ABC):
    """The scenes of one split, sorted by id. Picklable, and safe under fork and in threads.

    Args:
        place: Where they are, as somebody would name it in code.
        split: Their split.
        vertex_counts: V by scene id.
        failures: Why scenes are missing that were asked for, by id.

    Attributes:
        place: As given.
        lengths: V of each scene, int64 (len,).
    """

    def __init__(
        self, place: str | list[str], split: Split, vertex_counts: Mapping[str, int], failures: Mapping[str, str]
    ) -> None:
        self.place = place
        self._split = split
        names = sorted(vertex_counts)
        # Arrays and not lists: reading a list changes its reference counts, and with them, after a fork, whole pages.
        self._scene_ids = np.array(names, dtype="S12")
        self.lengths: NDArray[np.int64] = np.array([vertex_counts[name] for name in names], np.int64)
        self._failures = dict(failures)

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
        """Keep only the scenes at these positions, which are ascending."""
        self._scene_ids, self.lengths = self._scene_ids[indices], self.lengths[indices]

    def why_missing(self, scene_id: str) -> str:
        """What processing said of a scene that failed; empty where it said nothing."""
        return self._failures.get(scene_id, "")

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
    def count_raw_ids(self, raw_ids_key: Literal["nyu40_ids", "scannet_ids"]) -> list[Mapping[int, int]] | None:
        """Vertices of each scene by raw id, from the manifest; None where there is none.

        Raises:
            ScanNetPrepError: The manifest is damaged, tells of other scenes, or cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what is held open between reads; reading opens it again."""
