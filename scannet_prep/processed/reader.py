"""Reads the scenes of a processed folder for training."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from scannet_prep.errors import ManifestError, MissingFileError, ProcessedFileError, UnknownSplitError
from scannet_prep.failures import SceneFailure
from scannet_prep.processed.folder import (
    FAILED_NAME,
    UNFINISHED_NAME,
    find_processed_scenes,
    is_unfinished,
    processed_path,
)
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, read_manifest
from scannet_prep.processed.npz import read_first_shape
from scannet_prep.processed.scene_source import SceneSource
from scannet_prep.scene import Split

_HEAD_BYTES = 512
_AGAIN = "run the same scannet-prep process command again: it goes on where it stopped"


class FolderReader(SceneSource):
    """The scenes of one split of a processed folder.

    Args:
        path: The folder that `scannet-prep process` wrote.
        split: Which of its splits.

    Raises:
        MissingFileError: It is no processed folder.
        ManifestError: Its manifest is damaged, or says that processing has not finished.
        UnknownSplitError: It holds no scenes of that split.
    """

    def __init__(self, path: Path, split: Split) -> None:
        self._path = path
        manifest = read_manifest(path) if _is_folder(path) else None
        if manifest is None:
            vertex_counts = _count_from_headers(path, split)
            failures: list[SceneFailure] = []
        else:
            vertex_counts = _count_from_manifest(path, manifest, split)
            failures = [item for item in manifest.failures.values() if item.scene_id not in vertex_counts]
        super().__init__(str(path), split, vertex_counts, {item.scene_id: item.message for item in failures})
        if failures:
            warn_of_failures(self.name, self._failures, f"see {path / FAILED_NAME}")

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
            ProcessedFileError: It cannot be read.
        """
        path = self.file_path(index)
        try:
            with path.open("rb", buffering=0) as file:
                data = bytearray(path.stat().st_size)
                size = file.readinto(data)
        except FileNotFoundError:
            raise MissingFileError(path, "no such file, though the folder's manifest names it", _again(path)) from None
        except OSError as error:
            raise ProcessedFileError(path, f"cannot be read: {error.strerror or error}") from error
        if size != len(data):
            raise ProcessedFileError(path, f"gave {size} of {len(data)} bytes", _again(path))
        return data


def warn_of_failures(name: str, failures: Collection[str], hint: str) -> None:
    """Say that scenes are missing, to whoever has made the dataset."""
    warnings.warn(
        f"{name}: scenes that failed in processing are missing: {len(failures)}, for example {min(failures)}; {hint}",
        stacklevel=5,
    )


def _again(path: Path) -> str:
    return f"make it again: scannet-prep process --scenes {path.stem}, with the same options and -o as before"


def _count_from_manifest(path: Path, manifest: Manifest, split: Split) -> dict[str, int]:
    if not manifest.is_complete or is_unfinished(path):
        raise ManifestError(
            path / MANIFEST_NAME,
            "says that processing has not finished",
            _AGAIN,
        )
    check_mixture(path, manifest)
    counts = {name: entry.vertex_count for name, entry in manifest.scenes.items() if entry.split == split}
    hint = f"make them: scannet-prep process -o {path} --splits {split}"
    check_split(str(path), split, {entry.split for entry in manifest.scenes.values()}, hint)
    return counts


def check_mixture(path: Path, manifest: Manifest) -> None:
    """Refuse a folder whose scenes were made in different ways that a sample shows.

    Raises:
        ManifestError: They were.
    """
    kinds: dict[tuple[bool, str], str] = {}
    for name, entry in manifest.scenes.items():
        kinds.setdefault((entry.options.align_axis, entry.options.labels_from), name)
    if len(kinds) > 1:
        found = "; ".join(
            f"{name} with align_axis={is_aligned}, labels_from={source}" for (is_aligned, source), name in kinds.items()
        )
        hint = "make all of them with the same options: scannet-prep process, without --scenes and --splits"
        raise ManifestError(path / MANIFEST_NAME, f"names scenes that were made with different options: {found}", hint)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # a name that is too long, or somewhere where nobody may look
        raise MissingFileError(path, f"cannot be looked at: {error.strerror}", "is the path right?") from error


def _count_from_headers(path: Path, split: Split) -> dict[str, int]:
    if not path.is_dir():
        raise MissingFileError(path, "no such folder", f"make it: scannet-prep process -o {path}")
    if is_unfinished(path):
        raise ManifestError(path / UNFINISHED_NAME, "says that processing has not finished", _AGAIN)
    found = find_processed_scenes(path)
    if not found:
        hint = f"make processed scenes from it: scannet-prep process {path}" if (path / "scans").is_dir() else ""
        raise MissingFileError(
            path,
            f"holds no processed scenes: expected {path / split}/scene*.npz",
            hint or f"make them: scannet-prep process -o {path}",
        )
    counts: dict[str, int] = {name: _read_vertex_count(file) for name, (where, file) in found.items() if where == split}
    hint = f"make them: scannet-prep process -o {path} --splits {split}"
    check_split(str(path), split, {where for where, _ in found.values()}, hint)
    return counts


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


def is_processed_file(path: Path) -> bool:
    """Whether a file begins as `scannet-prep process` writes it; other programs use the same names."""
    try:
        return _read_vertex_count(path) >= 0
    except ProcessedFileError:
        return False


def _read_vertex_count(path: Path) -> int:
    try:
        with path.open("rb") as file:
            start = file.read(_HEAD_BYTES)
    except OSError as error:
        raise ProcessedFileError(path, f"cannot be read: {error.strerror or error}") from error
    try:
        key, shape = read_first_shape(start)
    except ValueError:
        key, shape = "", ()
    if key != "points" or len(shape) != 2:
        raise ProcessedFileError(path, "is no processed scene, or truncated", _again(path))
    return shape[0]
