"""The dataset for training: the processed scenes of some splits, as samples.

dataset[i] -> _find (index) -> _read (file, checked) -> _transform
"""

from __future__ import annotations

import operator
import os
import secrets
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.machine import keep_freed_memory
from scannet_prep.base.text import count_of, list_some
from scannet_prep.errors import ScanNetPrepError, UnknownSceneError, UsageError
from scannet_prep.processed.npz import widen_normals
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scenes import Split, read_scene_list, suggest_scene_id
from scannet_prep.source.place import open_processed
from scannet_prep.training.limited import check_points, limit_annotation, read_points
from scannet_prep.training.sample import Sample
from scannet_prep.training.weights import weigh_classes

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    # Type checkers see the class that a DataLoader expects. At run time, it accepts any class with
    # a length and items, so PyTorch is not imported.
    Base: TypeAlias = Dataset[Any]
else:
    Base = object


_KEYS = (
    "points", "normals", "colors", "labels", "instances", "segments", "axis_alignment", "faces",
)  # fmt: skip
# Freed memory that the process of a loop, or each worker of a DataLoader, keeps for its next scene.
_KEPT_BYTES = 1 << 28


class ScanNet(Base):  # type: ignore[misc]  # where PyTorch is not installed
    """Splits of ScanNet, for `torch.utils.data.DataLoader` or for a plain loop.

    A sample is a dict of contiguous, writable arrays, with V vertices in mesh order:

    - `points`: float32 (V, 3), metres; in the axis-aligned frame if `is_aligned`, otherwise in the
      scan frame.
    - `normals`: float32 (V, 3), unit vectors in the frame of `points`; (0, 0, 0) where undefined.
    - `colors`: uint8 (V, 3), red, green, blue, 0..255.
    - `labels`: int64 (V,), train id of the label set; `ignore_index` where unlabeled, which all
      vertices of test scenes are.
    - `instances`: int32 (V,), group id; -1 for vertices that belong to no group.
    - `segments`: int32 (V,), contiguous index of the segment (superpoint); -1 in scenes without
      segments (test).
    - `axis_alignment`: float64 (4, 4), aligned <- scan, in both cases. Apply it only if
      `is_aligned` is False: `points @ axis_alignment[:3, :3].T + axis_alignment[:3, 3]`. Aligned
      points would move again, by up to 14 m.
    - `faces`: int32 (F, 3), indices of vertices; only if they were kept (`process --faces`).
    - `label_set`: str, the name of the label set of `labels`, `ScanNet20` or `ScanNet200`.
    - `scene_id`: str.
    - `annotated`: bool (V,), whether each vertex is annotated; only with limited annotations
      (`points`).

    Every processed folder and archive contains the labels of both label sets. A dataset can be
    pickled, and used in threads and under fork, spawn and forkserver. Each process opens an archive
    by itself. Nothing is unpacked and nothing is shared.

    The random numbers of a transform depend on (seed, epoch, index) alone. So a sample is the same
    for any number of workers and any start method, and after training was resumed. The epoch is
    passed with the index, `dataset[index, epoch]`, as `PointBudgetBatchSampler` does. Other
    samplers pass plain indices. Without the train split, a plain index means epoch 0. With it, a
    plain index means a random epoch each time, so that `shuffle=True` augments each scene
    differently in each epoch. Such a run cannot be resumed or repeated exactly.

    Args:
        path: A folder that `scannet-prep process` wrote, or an archive that `scannet-prep pack`
            made of it, by its path or its address, such as `https://...`.
        split: `train`, `val` or `test`; or a list, such as `["train", "val"]`.
        labels: SCANNET20 or SCANNET200, or its name, such as `"scannet200"`. None for the label set
            with which the scenes were processed.
        ignore_index: The number that stands for unlabeled in `labels`: any whole number that is not
            a train id.
        transform: Function of a sample and a random generator. `ds[i]` is its result. A plain dict
            becomes a `Sample`, which is a dict, too.
        seed: Seed of the random generator. To vary a run, change it here and in the sampler.
        scenes: The scenes to use: ids or indices among those of the splits, in any order, such as
            the index of a table; or a file with one id per line.
        points: Limited annotations: a dict from the id of each scene to the indices, in mesh order,
            of the vertices that keep `labels` and `instances`; or an `.npz` or `.json` file of such
            a dict. The transforms of this package that drop or sample vertices keep these vertices;
            a crop keeps those inside.
        keys: The arrays of a sample to read. By default all that the scenes have.

    Attributes:
        splits: The splits.
        scene_ids: Ids of all scenes, sorted, in the order of their indices.
        lengths: Number of vertices of each scene, int64 (len,), read-only.
        label_set: The classes: ids, names, colours, and head, common and tail of ScanNet200.
        is_aligned: Whether `points` and `normals` are axis-aligned (`process --align-axis`);
            otherwise they are in the scan frame.
        ignore_index, transform, seed: As given.
        path: The folder, or the path or address of the archive.

    Raises:
        MissingFileError: `path` is not a processed folder, or there is no such archive.
        FileError: Processing has not finished, the manifest is damaged, or the file `points` is
            missing, damaged, or contains something else.
        ArchiveError: The archive is damaged.
        TransferError: The web server does not serve the archive.
        UnknownSceneError, IndexError: A scene of `scenes` does not exist, or belongs to another
            split.
        UsageError: There is no such split, a split has no scenes, no scene was chosen, there is no
            such key, `labels` is not a label set, `ignore_index` is a train id or not a whole
            number, or `points` does not fit the scenes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        split: str | Iterable[str],
        labels: LabelSet | str | None = None,
        ignore_index: int = -1,
        transform: Callable[[Any, np.random.Generator], Any] | None = None,
        seed: int = 0,
        scenes: str | Path | Iterable[int | str] | None = None,
        points: Any = None,  # noqa: ANN401 - a dict, or a path
        keys: Iterable[str] | None = None,
    ) -> None:
        names = [split] if isinstance(split, str) else split
        self.splits = tuple(map(Split, names))
        self.transform = transform
        self.seed = seed
        self._place = open_processed(path)
        self._options = self._place.options
        # Faces, the last one, are stored only with --faces.
        known = _KEYS if self._options.faces else _KEYS[:-1]
        self._keys = known if keys is None else tuple(keys)
        unknown = set(self._keys) - set(known)
        if unknown:
            raise UsageError(
                f"{min(unknown)!r} is not an array of a sample, expected some of "
                f"{', '.join(known)} (faces need process --faces)"
            )
        default = "scannet200" if self._options.scannet200 else "scannet20"
        self.label_set = parse_label_set(labels or default)
        if not isinstance(ignore_index, int) or ignore_index in self.label_set:
            raise UsageError(
                f"ignore_index is {ignore_index!r}, expected a whole number that is not a train id "
                f"of {self.label_set.name}",
                "ignore_index=-1, or ignore_index=255",
            )
        self.ignore_index = ignore_index
        self.is_aligned = self._options.align_axis
        self.path = self._place.name
        if self._place.failures:
            failed = list(self._place.failures)
            warnings.warn(
                f"{self.path}: scenes that failed in processing are missing: {list_some(failed)}; "
                "to list them: scannet-prep info PATH",
                stacklevel=2,
            )
        self.scene_ids = self._find_scenes()
        if isinstance(scenes, str | Path):
            scenes = read_scene_list(Path(os.path.expanduser(scenes)))
        if scenes is not None:
            indices = sorted(set(map(self._find, scenes)))
            self.scene_ids = [self.scene_ids[index] for index in indices]
        if not self.scene_ids:
            raise UsageError(f"{self.path}: no scene was chosen, expected at least one")
        counts = [self._place.scenes[scene_id].vertex_count for scene_id in self.scene_ids]
        self.lengths = np.array(counts, np.int64)
        self.lengths.flags.writeable = False

        # The annotated vertices by scene id; None if all are.
        self._points: dict[str, NDArray[np.int64]] | None = None
        if isinstance(points, str | Path):
            points = read_points(Path(os.path.expanduser(points)))
        if points is not None:
            self._points = check_points(points, self.scene_ids, self.lengths)

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self.scene_ids)

    def __repr__(self) -> str:
        """Show a call that makes the dataset, the number of scenes, and the frame of the points."""
        splits = list(map(str, self.splits))
        call = f"ScanNet({self.path!r}, split={splits}, labels={self.label_set.name!r})"
        return f"{call}: {count_of(len(self), 'scene')}, is_aligned={self.is_aligned}"

    @property
    def digest(self) -> str:
        """Digest of the data behind the samples, eight hexadecimal digits, equal on all machines.

        It covers the ids of the scenes, their bytes as the manifest records them, the options with
        which they were processed, the label set, and limited annotations.
        """
        digest = zlib.crc32(f"{self.label_set.name} {self._options}".encode())
        for scene_id in self.scene_ids:
            facts = f"{scene_id} {self._place.manifest.scenes[scene_id].crc32}"
            digest = zlib.crc32(facts.encode(), digest)
            if self._points is not None:
                digest = zlib.crc32(self._points[scene_id].tobytes(), digest)
        return f"{digest:08x}"

    def __contains__(self, scene_id: object) -> bool:
        """Whether the dataset has a scene of this id."""
        return scene_id in self.scene_ids

    def __getitem__(self, key: int | str | tuple[int | str, int]) -> Any:  # noqa: ANN401 - any result
        """Read one scene, by index or by scene id, and apply the transform.

        A key can contain the epoch for the transform: `ds[index, epoch]`.

        Returns:
            A `Sample`, or the result of the transform.

        Raises:
            IndexError: The index is out of range.
            UnknownSceneError: The dataset has no scene of this id.
            MissingFileError: The scene's file, or the archive, no longer exists.
            FileError: The scene's file is damaged.
            ArchiveError: The scene is damaged, or the archive has changed since it was opened.
            TransferError: The web server does not serve the scene.
            ScanNetPrepError: The transform failed.
        """
        keep_freed_memory(_KEPT_BYTES)
        epoch = secrets.randbits(32) if Split.TRAIN in self.splits else 0
        if isinstance(key, tuple):
            key, epoch = key
        index = self._find(key)
        sample = self._read(index)
        if self.transform is None:
            return sample
        seeds = np.random.SeedSequence((self.seed, epoch, index))
        try:
            transformed = self.transform(sample, np.random.default_rng(seeds))
        except Exception as error:
            scene_id = self.scene_ids[index]
            raise ScanNetPrepError(
                f"{scene_id} ({self._place.file_path(scene_id)}): the transform failed in "
                f"dataset[{index}, {epoch}]: {type(error).__name__}: {error}"
            ) from error
        # A plain dict becomes a sample again, whose repr is short.
        return Sample(transformed) if type(transformed) is dict else transformed

    def class_counts(self) -> NDArray[np.int64]:
        """Count the vertices of each class over all scenes.

        The counts come from the manifest, without opening scenes. With limited annotations, the
        scenes are read, and only the annotated vertices are counted.

        Returns:
            int64 (classes,), in the order of the train ids.

        Raises:
            ScanNetPrepError: The manifest or a scene is damaged.
        """
        return np.asarray(self._count_classes().sum(axis=0))

    def class_weights(self, formula: str = "inverse_sqrt") -> NDArray[np.float32]:
        """Compute the weights of the classes for a loss, such as `torch.nn.CrossEntropyLoss`.

        Class c has n_c vertices, and the share p_c = n_c / sum(n) of all labeled vertices:

        - `inverse`: 1 / p_c.
        - `inverse_sqrt`: 1 / sqrt(p_c).
        - `log`: 1 / ln(1.02 + p_c), as in ENet (Paszke et al. 2016).
        - `median_frequency`: median(f) / f_c (Eigen and Fergus 2015). f_c is n_c divided by the
          labeled vertices of the scenes that have class c. The median is over the classes that
          occur.

        The weights are then scaled so that the mean over the classes that occur is 1. A class
        without a vertex has weight 0. Vertices without a class, and scenes without annotation, are
        not counted.

        Returns:
            float32 (classes,), in the order of the train ids.

        Raises:
            UsageError: There is no such formula, or no vertex has a class (test scenes).
            ScanNetPrepError: The manifest or a scene is damaged.
        """
        return weigh_classes(self._count_classes(), formula)

    def _count_classes(self) -> NDArray[np.int64]:
        """Count the vertices of each class in each scene, int64 (scenes, classes)."""
        rows = []
        for scene_id in self.scene_ids:
            if self._points is None:
                counts = self._place.manifest.scenes[scene_id].counts(self.label_set)
            else:
                raw_ids = self._place.open_arrays(scene_id).read(self.label_set.raw_ids_key)
                counts = Counter(raw_ids[self._points[scene_id]].tolist())
            # In the order of the train ids.
            rows.append([counts.get(raw_id, 0) for raw_id in self.label_set.ids])
        return np.array(rows, np.int64)

    def _find_scenes(self) -> list[str]:
        """Find the scenes of all splits.

        Raises:
            UsageError: A split has none.
        """
        scenes = self._place.scenes
        missing = set(self.splits) - {scene.split for scene in scenes.values()}
        if missing:
            raise UsageError(
                f"{self.path}: holds no {min(missing)} scenes",
                "choose another split, or process the scenes of this one",
            )
        return [scene_id for scene_id, scene in scenes.items() if scene.split in self.splits]

    def _find(self, key: int | str) -> int:
        """Return the index of a scene, counted from 0, given an index from either end or an id.

        Raises:
            IndexError, UnknownSceneError: As for `dataset[key]`.
            UsageError: The key is an element of a mask.
        """
        if isinstance(key, str):
            if key in self:
                return self.scene_ids.index(key)
            splits = " or ".join(self.splits)
            raise UnknownSceneError(
                f"{self.path}: has no {splits} scene {key!r}",
                suggest_scene_id(key)
                or "choose the split of the scene, or process it; scannet-prep info lists those "
                "that failed, with the reasons",
            )
        if np.asarray(key).dtype == bool:
            raise UsageError(
                f"{self.path}: found {key}, expected the index or the id of a scene",
                "for a mask, pass the indices: numpy.flatnonzero(mask)",
            )
        # A slice would give a range.
        return range(len(self))[operator.index(key)]

    def _read(self, index: int) -> Sample:
        """Read a sample, without the transform."""
        scene_id = self.scene_ids[index]
        arrays = self._place.open_arrays(scene_id)
        sample = Sample()
        sample.is_aligned = self.is_aligned
        for key in self._keys:
            if key == "labels":
                # From the raw ids, which both label sets have. The stored `labels` are those of one
                # label set only.
                raw_ids = arrays.read(self.label_set.raw_ids_key)
                sample[key] = self.label_set.train_ids_from_raw_ids(raw_ids, self.ignore_index)
            elif key == "normals":
                sample[key] = widen_normals(arrays.read(key))
            elif key == "segments" and key not in arrays.keys:
                # As in test scenes.
                sample[key] = np.full(self.lengths[index], -1, np.int32)
            elif key in {"instances", "segments"}:
                sample[key] = arrays.read(key).astype(np.int32)
            else:
                sample[key] = arrays.read(key)
        sample["label_set"] = self.label_set.name
        sample["scene_id"] = scene_id
        if self._points is not None:
            is_annotated = np.zeros(self.lengths[index], np.bool_)
            is_annotated[self._points[scene_id]] = True
            limit_annotation(sample, is_annotated, self.ignore_index)
        return sample
