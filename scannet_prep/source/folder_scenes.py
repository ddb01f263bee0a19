"""The scenes of a processed folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

import numpy as np

from scannet_prep.base.files import open_file
from scannet_prep.errors import FileError, MissingFileError, ProcessedFileError
from scannet_prep.processed.folder import find_manifest, find_state, processed_path
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.npz import DAMAGE_HINT
from scannet_prep.processed.scene import MAX_FILE_BYTES, SceneMeta, read_meta
from scannet_prep.release.scene import Split
from scannet_prep.source.identify import SourceKind
from scannet_prep.source.scenes import SceneSource


class FolderScenes(SceneSource):
    """The scenes of a processed folder: all of them, or one split.

    Args:
        path: The folder.
        split: The split whose scenes to open; None for all scenes.
        must_be_usable: See `open_processed`.

    Raises:
        FileError: It is not a processed folder, or must not be used: processing has not finished,
            its scenes have an older format, or its manifest is damaged.
        UsageError: It holds no scenes of that split.
    """

    kind = SourceKind.PROCESSED
    folder: Path

    def __init__(self, path: Path, split: Split | None, *, must_be_usable: bool = True) -> None:
        state = find_state(path)
        if must_be_usable and state.faults:
            raise state.faults[0]
        manifest = state.manifest
        # `command_end` completes the commands in hints: `scannet-prep process ... -o FOLDER`.
        super().__init__(
            place=str(path),
            options=manifest.options,
            held=manifest.scenes,
            failures=manifest.failures,
            split=split,
            command_end=f" -o {quote(str(path))}",
        )
        self.folder = path
        self.faults = state.faults
        # Keep the entries for commands, which open all splits and use them. A dataset opens one
        # split and seldom needs entries. If it does, the property `entries` reads the manifest
        # again.
        if split is None:
            self._entries = dict(sorted(manifest.scenes.items()))

    def file_path(self, scene_id: str) -> Path:
        """Return the file of a scene."""
        return processed_path(self.folder, self._splits[scene_id], scene_id)

    def read_entries(self) -> Mapping[str, SceneEntry]:
        """Read the entries of the manifest: those of all scenes, whatever their split.

        Raises:
            FileError: The manifest is damaged, or the options of the folder have changed.
        """
        manifest = find_manifest(self.folder)
        if manifest is None:
            # Not an error here: a dataset counts classes from the files of the scenes instead,
            # and `entries` reports that there is no manifest.
            return {}
        if manifest.options != self.options:
            problem = (
                f"has the options {manifest.options.flags}, "
                f"expected {self.options.flags} as when it was opened"
            )
            raise FileError(self.folder, problem, "open the folder again")
        return manifest.scenes

    def _read_meta(self, scene_id: str) -> SceneMeta:
        """Read the description of a scene from a few memory pages of its file, not all of it."""
        return read_meta(self.file_path(scene_id))

    def read(self, scene_id: str) -> memoryview:
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
            problem = "no such file, though the folder's manifest names it"
            raise MissingFileError(path, problem, DAMAGE_HINT) from None
        if read_bytes != size_bytes:
            problem = f"only {read_bytes:,} of {size_bytes:,} bytes could be read"
            raise ProcessedFileError(path, problem, DAMAGE_HINT)
        return data
