"""Reads files of scenes: what every source of them offers, the one that is a processed folder, and a cache."""

from __future__ import annotations

import os
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import FileError, MissingFileError, ProcessedFileError, UsageError
from scannet_prep.base.files import Buffer, open_file
from scannet_prep.processed.folder import FolderState, find_state, processed_path
from scannet_prep.processed.manifest import SceneEntry, read_manifest
from scannet_prep.processed.npz import again_hint
from scannet_prep.processed.scene import MAX_FILE_BYTES, ProcessOptions
from scannet_prep.release.scene import Split

# Room for each scene. Only what is written takes memory; a file that is larger, as with faces, is not kept.
_BYTES_PER_VERTEX, _MORE_BYTES = 64, 1 << 20
_SIZE_BYTES = 8


class SceneSource(ABC):
    """The scenes of one split. Picklable, and safe under fork and in threads.

    Args:
        place: Where they are, as somebody would name it in code.
        options: The options that all of them were made with.
        scenes: Split and V of each scene that is there, by id.
        failures: Why scenes are missing that were asked for, by id.
        split: Which split; None for all.
        then: How a command goes on that makes more scenes of the place.

    Attributes:
        place: As given.
        name: The same for messages.
        options: As given.
        lengths: V of each scene, by id, sorted.
        failures: As given.

    Raises:
        UsageError: There are no scenes of that split.
    """

    def __init__(
        self,
        place: str | list[str],
        options: ProcessOptions,
        scenes: Mapping[str, tuple[str, int]],
        failures: Mapping[str, str],
        split: Split | None,
        then: str,
    ) -> None:
        self.place = place
        self.options = options
        self._then = then
        self.name = place if isinstance(place, str) else f"{place[0]} and {len(place) - 1} more"
        chosen = {
            name: count for name, (its_split, count) in scenes.items() if split in (None, its_split)
        }
        self.lengths = dict(sorted(chosen.items()))
        self.failures = {name: text for name, text in failures.items() if name not in scenes}
        if split is not None and not chosen:
            others = (
                ", only " + ", ".join(sorted({its_split for its_split, _ in scenes.values()}))
                if scenes
                else ""
            )
            hint = f"make them: scannet-prep process --splits {split}{then}"
            raise UsageError(f"{self.name}: holds no {split} scenes{others}", hint)
        if split is not None and self.failures:
            count, one, first = (
                len(self.failures),
                min(self.failures),
                place if isinstance(place, str) else place[0],
            )
            told = f"{self.name}: scenes that failed in processing are missing: {count}, for example {one}"
            warnings.warn(f"{told}; to list them: scannet-prep info {quote(first)}", stacklevel=5)

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
    def read_entries(self) -> Mapping[str, SceneEntry]:
        """What the manifest says of scenes, at least of these; less where there is none.

        Raises:
            ScanNetPrepError: The manifest is damaged, or cannot be read.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what is held open between reads; reading opens it again."""


class FolderReader(SceneSource):
    """The scenes of one split of a processed folder, or of all.

    Args:
        path: The folder that `scannet-prep process` wrote.
        split: Which of its splits; None for all.
        state: What is known of the folder, where that has been looked at.

    Raises:
        FileError: It is not a processed folder, or cannot be used: processing has not finished, it has an older
            format, its manifest is damaged.
        UsageError: It holds no scenes of that split.
    """

    def __init__(self, path: Path, split: Split | None, state: FolderState | None = None) -> None:
        if state is None and (state := find_state(path)).faults:
            raise state.faults[0]
        self._path, self._splits = (
            path,
            {name: entry.split for name, entry in state.manifest.scenes.items()},
        )
        scenes = {
            name: (str(entry.split), entry.vertex_count)
            for name, entry in state.manifest.scenes.items()
        }
        failures = {name: item.message for name, item in state.manifest.failures.items()}
        super().__init__(
            str(path), state.manifest.options, scenes, failures, split, f" -o {quote(str(path))}"
        )

    def file_path(self, scene_id: str) -> Path:
        """The file of a scene."""
        return processed_path(self._path, self._splits[scene_id], scene_id)

    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Return the entries of all scenes of the folder.

        Raises:
            FileError: The manifest is damaged, or the folder has other options by now.
        """
        manifest = read_manifest(self._path)
        if manifest is None:
            return {}
        if manifest.options != self.options:
            problem = f"has the options {manifest.options.flags}, expected {self.options.flags} as it was opened"
            raise FileError(self._path, problem, "open the folder again")
        return manifest.scenes

    def read(self, scene_id: str) -> memoryview:
        """Read the whole file of a scene, into memory that is nobody else's and writable."""
        path = self.file_path(scene_id)
        try:
            with open_file(path, MAX_FILE_BYTES) as file:
                data = np.empty(
                    os.fstat(file.fileno()).st_size, np.uint8
                ).data  # unlike a bytearray, not cleared first
                size = file.readinto(data)
        except MissingFileError:
            raise MissingFileError(
                path, "no such file, though the folder's manifest names it", again_hint(path)
            ) from None
        if size != len(data):
            raise ProcessedFileError(path, f"gave {size} of {len(data)} bytes", again_hint(path))
        return data


class SceneCache:
    """Keeps each file from the first time that it is read, for this process and those that it starts.

    The memory is anonymous, belongs to no folder, and is gone with the last process. Processes may write the same file
    at once: they write the same bytes, and its size last. Pickled for anything but a new process, it is empty.
    """

    def __init__(self, scene_ids: Iterable[str], lengths: NDArray[Any]) -> None:
        ends = np.cumsum(lengths * _BYTES_PER_VERTEX + _MORE_BYTES).tolist()
        self._places = dict(zip(scene_ids, zip([0, *ends], ends, strict=False), strict=True))
        self._size = sum(ends[-1:])
        self._descriptor = _make_memory(self._size)

    def read(self, scene_id: str, read: Callable[[], Buffer]) -> Buffer:
        """The file of a scene, from memory or, the first time, from where `read` gets it."""
        start, end = self._places[scene_id]
        if size := int.from_bytes(os.pread(self._descriptor, _SIZE_BYTES, start), "little"):
            kept = np.empty(size, np.uint8).data  # unlike a bytearray, not cleared first
            os.preadv(self._descriptor, [kept], start + _SIZE_BYTES)
            return kept
        data = read()
        has_room = len(data) <= end - start - _SIZE_BYTES
        if has_room and os.pwrite(self._descriptor, data, start + _SIZE_BYTES) == len(data):
            os.pwrite(self._descriptor, len(data).to_bytes(_SIZE_BYTES, "little"), start)
        return data

    def __getstate__(self) -> dict[str, Any]:
        """With the memory, where it goes to a process that is being started."""
        shared = reduction.DupFd(self._descriptor) if get_spawning_popen() else None
        return {"_places": self._places, "_size": self._size, "shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Use the same memory again."""
        shared = state.pop("shared")
        self.__dict__.update(state)
        self._descriptor = shared.detach() if shared else _make_memory(self._size)

    def __del__(self) -> None:
        """Give the memory back."""
        os.close(self._descriptor)


def _make_memory(size: int) -> int:
    """A file without a name, of nothing but holes, in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("scenes", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
