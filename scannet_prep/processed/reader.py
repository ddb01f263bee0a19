"""Reads the scenes of a processed folder for training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from scannet_prep.errors import ManifestError, MissingFileError, ProcessedFileError, UnknownSplitError
from scannet_prep.files import open_file
from scannet_prep.processed.folder import FAILED_NAME, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, read_manifest
from scannet_prep.processed.scene import MAX_FILE_BYTES
from scannet_prep.processed.scene_source import SceneSource
from scannet_prep.processed.state import find_state
from scannet_prep.scene import Split


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
        self._path = path
        state = find_state(path)
        state.check()
        scenes = state.manifest.scenes
        vertex_counts = {name: entry.vertex_count for name, entry in scenes.items() if entry.split == split}
        hint = f"make them: scannet-prep process -o {path} --splits {split}"
        check_split(str(path), split, {entry.split for entry in scenes.values()}, hint)
        failures = {name: item.message for name, item in state.manifest.failures.items() if name not in vertex_counts}
        super().__init__(str(path), split, vertex_counts, failures)
        if failures:
            warn_of_failures(self.name, failures, f"see {path / FAILED_NAME}")

    def file_path(self, index: int) -> Path:
        """The file of a scene."""
        return processed_path(self._path, self._split, self.scene_id(index))

    def how_to_add(self, scene_id: str) -> str:
        """What to type to get a scene that is missing."""
        return f"make it: scannet-prep process --scenes {scene_id} -o {self._path}"

    def count_raw_ids(self, raw_ids_key: Literal["nyu40_ids", "scannet_ids"]) -> list[Mapping[int, int]] | None:
        """Vertices of each scene by raw id, from the manifest; None where the folder has none.

        Raises:
            ManifestError: It is damaged, or tells of other scenes than when the folder was opened.
        """
        manifest = read_manifest(self._path)
        if manifest is None:
            return None
        try:
            entries = [manifest.scenes[scene_id] for scene_id in self.scene_ids]
        except KeyError as error:
            raise ManifestError(
                self._path / MANIFEST_NAME,
                f"no longer names {error.args[0]}, which was there when the folder was opened",
                "make the dataset again",
            ) from None
        is_nyu40 = raw_ids_key == "nyu40_ids"
        return [entry.nyu40_counts if is_nyu40 else entry.scannet_counts for entry in entries]

    def close(self) -> None:
        """Nothing is open between reads."""

    def read(self, index: int) -> bytearray:
        """Read the whole file of a scene.

        Raises:
            MissingFileError: It is gone.
            FileError: It cannot be read.
        """
        path = self.file_path(index)
        again = f"make it again: scannet-prep process --scenes {path.stem}, with the same options and -o as before"
        try:
            with open_file(path, MAX_FILE_BYTES) as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                size = file.readinto(data)  # type: ignore[attr-defined]  # of a file without a buffer
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
    """Check that there are scenes of a split.

    Args:
        name: Where, for messages.
        split: The split.
        present: Those that there are.
        hint: What to do where it is not among them.

    Raises:
        UnknownSplitError: It is not among them.
    """
    if split not in present:
        others = ", ".join(sorted(present)) or "no scenes at all"
        raise UnknownSplitError(f"{name}: holds no {split} scenes, only {others}", hint)
