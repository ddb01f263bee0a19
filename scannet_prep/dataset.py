"""The training source: processed scenes as a map-style dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UnknownSceneError, UsageError
from scannet_prep.labels import SCANNET20, LabelSet
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.reader import FolderReader
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split

Sample: TypeAlias = dict[str, Any]


class ScanNet:
    """One split of ScanNet, for `torch.utils.data.DataLoader` or for a plain loop.

    A sample is a dict of contiguous, writable arrays; V vertices, in mesh order:

    - `points`: float32 (V, 3), metres, in the frame that was chosen when processing (`--align-axis`);
    - `normals`: float32 (V, 3), unit vectors in the same frame, (0, 0, 0) where undefined;
    - `colors`: uint8 (V, 3), red, green, blue, 0..255;
    - `labels`: int64 (V,), train id of the label set, `ignore_id` where unlabeled; all of them in test scenes;
    - `instances`: int64 (V,), group id, -1 where there is none;
    - `segments`: int64 (V,), contiguous index of the segment (superpoint); -1 in scenes that have none (test);
    - `scene_id`: str.

    Both label sets can be read from any processed folder. Picklable, and safe under fork and spawn: no file stays open.

    Args:
        path: A folder that `scannet-prep process` wrote.
        split: `train`, `val` or `test`.
        labels: SCANNET20 or SCANNET200.
        ignore_id: Stands for unlabeled in `labels`.
        transform: Called with each sample; what it returns is what `ds[i]` gives.

    Attributes:
        split: The split.
        label_set: The classes: ids, names, colours, and head, common and tail of ScanNet200.
        ignore_id: As given.
        transform: As given.

    Raises:
        MissingFileError: `path` is no processed folder.
        ManifestError: Processing has not finished, or the manifest is damaged.
        UnknownSplitError: There is no such split, or the folder holds none of its scenes.
        UsageError: `labels` is no label set.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        split: str,
        labels: LabelSet = SCANNET20,
        ignore_id: int = -1,
        transform: Callable[[Sample], Any] | None = None,
    ) -> None:
        if not isinstance(labels, LabelSet):
            raise UsageError(
                f"labels is {labels!r}, expected a label set", "from scannet_prep import SCANNET20, SCANNET200"
            )
        self.split = Split.parse(split)
        self.label_set = labels
        self.ignore_id = ignore_id
        self.transform = transform
        self._path = Path(path)
        self._reader = FolderReader(self._path, self.split)

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._reader)

    def __repr__(self) -> str:
        """Path, split, number of scenes and label set."""
        return (
            f"ScanNet({str(self._path)!r}, split={str(self.split)!r}, labels={self.label_set.name}): {len(self)} scenes"
        )

    @property
    def scene_ids(self) -> list[str]:
        """All scenes, in the order of their indices (sorted)."""
        return self._reader.scene_ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of vertices of each scene, int64 (len,); known without opening the scenes."""
        return self._reader.lengths

    def __getitem__(self, key: int | str) -> Any:  # noqa: ANN401 - a transform may return anything
        """Read one scene, by index or by scene id.

        Raises:
            IndexError: The index is out of range.
            UnknownSceneError: This split has no scene of that id.
            MissingFileError: The scene's file is gone.
            ProcessedFileError: The scene's file is damaged.
        """
        sample = self._read(self._find(key) if isinstance(key, str) else self._check_index(key))
        return sample if self.transform is None else self.transform(sample)

    def __iter__(self) -> Iterator[Any]:
        """All samples, in order."""
        return (self[index] for index in range(len(self)))

    def _check_index(self, key: int) -> int:
        index = operator.index(key)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: {self._path} has {len(self)} {self.split} scenes")
        return index % len(self)

    def _find(self, scene_id: str) -> int:
        index = self._reader.find(scene_id)
        if index is not None:
            return index
        if reason := self._reader.why_missing(scene_id):
            raise UnknownSceneError(
                f"{scene_id} failed in processing: {reason}", "mend it, then scannet-prep process again"
            )
        official = find_official_split(scene_id)
        hint = ""
        if official is not None and official != self.split:
            hint = f"it is a {official} scene: ScanNet({str(self._path)!r}, split={str(official)!r})"
        elif official is not None:
            hint = f"make it: scannet-prep process --scenes {scene_id} -o {self._path}"
        raise UnknownSceneError(f"{self._path}: has no {self.split} scene {scene_id!r}", hint)

    def _read(self, index: int) -> Sample:
        path = self._reader.file_path(index)
        npz = NpzReader(self._reader.read(index), path)
        raw_ids = npz.read(self.label_set.raw_ids_key)
        segments = npz.read("segments").astype(np.int64) if "segments" in npz.keys else np.full(len(raw_ids), -1)
        return {
            "points": npz.read("points"),
            "normals": npz.read("normals").astype(np.float32),
            "colors": npz.read("colors"),
            "labels": self.label_set.train_ids_from_raw_ids(raw_ids, self.ignore_id),
            "instances": npz.read("instances").astype(np.int64),
            "segments": segments,
            "scene_id": self._reader.scene_id(index),
        }
