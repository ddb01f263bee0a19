"""The training source: processed scenes as a map-style dataset."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import TransformError, UnknownSceneError, UsageError
from scannet_prep.labels import SCANNET20, LabelSet
from scannet_prep.processed.manifest import count_ids
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.reader import FolderReader
from scannet_prep.processed.scene import check_identity
from scannet_prep.processed.scene_source import SceneSource
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split

if TYPE_CHECKING:
    from typing import Self

    from scannet_prep.archive.source import ByteSource

Place: TypeAlias = "str | Path | ByteSource"
Sample: TypeAlias = dict[str, Any]
Transform: TypeAlias = Callable[[Sample, np.random.Generator], Any]
Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


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

    Both label sets can be read from any processed folder or archive. Picklable, safe under fork, spawn and forkserver,
    and in threads. An archive is opened by each process for itself; nothing is unpacked, and nothing shared.

    A transform gets its random numbers from (seed, epoch, index) alone, so a sample is the same whatever the number of
    workers and however they are started, and wherever training was resumed. The epoch comes with the index:
    `dataset[index, epoch]`, which is what `PointBudgetBatchSampler` gives. Other samplers give plain indices. In val
    and test, a plain index means epoch 0. In train, each time that it is read it means another epoch, so that
    `shuffle=True` augments anew: the number of times that this process has read it, and in a worker of a `DataLoader` a
    number from the worker's seed. Such a run cannot be resumed or repeated exactly.

    Args:
        path: A folder that `scannet-prep process` wrote, or an archive that `scannet-prep pack` made of it: its path,
            its address (`https://...`), or an object that reads its bytes, such as
            `scannet_prep.remote.ranges.RangeSource` with options; or a list of archives, such as all shards of a set,
            in any order.
        split: `train`, `val` or `test`.
        labels: SCANNET20 or SCANNET200.
        ignore_id: Stands for unlabeled in `labels`.
        transform: Called with each sample and a random generator; what it returns is what `ds[i]` gives.
        seed: Of the random generator. Runs that are to differ need another one here as well as in the sampler.

    Attributes:
        split: The split.
        label_set: The classes: ids, names, colours, and head, common and tail of ScanNet200.
        ignore_id: As given.
        transform: As given.
        seed: As given.

    Raises:
        MissingFileError: `path` is not a processed folder, or there is no such archive.
        ManifestError: Processing has not finished, or the manifest is damaged.
        ArchiveError: An archive is damaged, is not made of processed scenes, or does not go together with the others of
            a list; or a shard of a set is missing.
        TransferError: The web server does not give the archive.
        UnknownSplitError: There is no such split, or there are no scenes of it.
        UsageError: `labels` is not a label set, `seed` is negative, or the list is empty.
    """

    def __init__(
        self,
        path: Place | Sequence[Place],
        *,
        split: str,
        labels: LabelSet = SCANNET20,
        ignore_id: int = -1,
        transform: Transform | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(labels, LabelSet):
            raise UsageError(f"labels is {labels!r}, expected a label set", "labels=SCANNET20, or labels=SCANNET200")
        if operator.index(seed) < 0:
            raise UsageError(f"seed is {seed}, expected a whole number from 0", "seed=0")
        self.split = Split.parse(split)
        self.label_set = labels
        self.ignore_id = ignore_id
        self.transform = transform
        self.seed = seed
        self._reader = _open_scenes(path, self.split)
        self._plain_reads = np.zeros(len(self), np.int64)  # of each scene, without an epoch

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._reader)

    def __repr__(self) -> str:
        """Place, split, number of scenes and label set."""
        made = f"{self._reader.place!r}, split={str(self.split)!r}, labels={self.label_set.name}"
        return f"ScanNet({made}): {len(self)} scenes"

    @property
    def scene_ids(self) -> list[str]:
        """All scenes, in the order of their indices (sorted)."""
        return self._reader.scene_ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of vertices of each scene, int64 (len,), a copy; known without opening the scenes."""
        return self._reader.lengths.copy()

    def __getitem__(self, key: int | str | tuple[int | str, int]) -> Any:  # noqa: ANN401 - a transform's result
        """Read one scene, by index or by scene id; with an epoch, `ds[index, epoch]`, for the transform.

        Raises:
            IndexError: The index is out of range.
            UnknownSceneError: This split has no scene of that id.
            MissingFileError: The scene's file, or the archive, is gone.
            ProcessedFileError: The scene's file is damaged.
            ArchiveError: The scene is damaged, or the archive is no longer the one that was opened.
            TransferError: The web server does not give the scene.
            TransformError: The transform failed.
            UsageError: It is none of these.
        """
        scene, epoch = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
        index = self._find(scene) if isinstance(scene, str) else self._check_index(scene)
        sample = self._read(index)
        if self.transform is None:
            return sample
        epoch = self._choose_epoch(index) if epoch is None else operator.index(epoch)
        if epoch < 0:
            raise UsageError(f"epoch is {epoch}, expected a whole number from 0", f"dataset[{index}, 0]")
        try:
            return self.transform(sample, np.random.default_rng(np.random.SeedSequence((self.seed, epoch, index))))
        except Exception as error:
            where = f"{self._reader.scene_id(index)} ({self._reader.file_path(index)})"
            message = f"{where}: the transform failed: {type(error).__name__}: {error}"
            raise TransformError(message, f"see it again with dataset[{index}, {epoch}]") from error

    def __iter__(self) -> Iterator[Any]:
        """All samples, in order."""
        return (self[index] for index in range(len(self)))

    def __enter__(self) -> Self:
        """The dataset itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close what is open; reading again opens it again."""
        self._reader.close()

    def class_counts(self) -> NDArray[np.int64]:
        """Vertices of each class over all scenes of the split, int64 (classes,), in the order of the train ids.

        From the manifest, without opening scenes; where a folder has none, every scene is read once.

        Raises:
            ScanNetPrepError: The manifest, or without one a scene, is damaged.
        """
        counts: NDArray[np.int64] = self._count_classes().sum(axis=0)
        return counts

    def class_weights(self, formula: Formula = "inverse_sqrt") -> NDArray[np.float32]:
        """Weights of the classes for a loss, for example `torch.nn.CrossEntropyLoss(weight=...)`.

        With n_c vertices of class c, and p_c = n_c / sum(n), its share of the labeled vertices of the split:

        - `inverse`: 1 / p_c.
        - `inverse_sqrt`: 1 / sqrt(p_c).
        - `log`: 1 / ln(1.02 + p_c), as in ENet (Paszke et al. 2016).
        - `median_frequency`: median(f) / f_c, where f_c is n_c divided by the labeled vertices of the scenes that have
          class c (Eigen and Fergus 2015); the median is over the classes that occur.

        Then all are scaled so that the mean over the classes that occur is 1. A class without a vertex has weight 0.
        Vertices without a class, and scenes without annotation, do not count.

        Args:
            formula: One of the above.

        Returns:
            float32 (classes,), in the order of the train ids.

        Raises:
            UsageError: There is no such formula, or no vertex has a class (test scenes).
            ScanNetPrepError: The manifest, or without one a scene, is damaged.
        """
        return _weigh_classes(self._count_classes(), formula)

    def _count_classes(self) -> NDArray[np.int64]:
        """Vertices by scene and class, (scenes, classes)."""
        key = self.label_set.raw_ids_key
        scenes = self._reader.count_raw_ids(key)
        if scenes is None:
            scenes = [count_ids(self._open(index).read(key)) for index in range(len(self))]
        return np.array([[scene.get(raw_id, 0) for raw_id in self.label_set.ids] for scene in scenes], np.int64)

    def _choose_epoch(self, index: int) -> int:
        """The epoch of an index that comes without one."""
        if self.split is not Split.TRAIN:
            return 0
        count = int(self._plain_reads[index])
        self._plain_reads[index] += 1
        torch_data: Any = sys.modules.get("torch.utils.data")  # never imported here
        worker = torch_data.get_worker_info() if torch_data else None
        if worker is None:
            return count
        # The worker may be new and have read nothing; its seed is another one in each epoch.
        return int(np.random.SeedSequence((worker.seed, count)).generate_state(1)[0])

    def _check_index(self, key: Any) -> int:  # noqa: ANN401 - that is the question
        try:
            index = operator.index(key)
        except TypeError:
            message = f"{key!r:.80} is not a scene; expected an index, a scene id, or a pair of one and the epoch"
            hint = "for slices [dataset[i] for i in range(3)]; for batches DataLoader(dataset, batch_sampler=sampler)"
            raise UsageError(message, hint) from None
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: {self._reader.name} has {len(self)} {self.split} scenes")
        return index % len(self)

    def _find(self, scene_id: str) -> int:
        index = self._reader.find(scene_id)
        if index is not None:
            return index
        if reason := self._reader.why_missing(scene_id):
            raise UnknownSceneError(f"{scene_id} failed in processing: {reason}", "mend it, then process again")
        official = find_official_split(scene_id)
        hint = self._reader.how_to_add(scene_id) if official is not None else ""
        if official not in {None, self.split}:
            hint = f"it is a {official} scene: ScanNet({self._reader.place!r}, split={str(official)!r})"
        raise UnknownSceneError(f"{self._reader.name}: has no {self.split} scene {scene_id!r}", hint)

    def _open(self, index: int) -> NpzReader:
        path = self._reader.file_path(index)
        npz = NpzReader(self._reader.read(index), path)
        check_identity(npz, path, self._reader.scene_id(index), int(self._reader.lengths[index]))
        return npz

    def _read(self, index: int) -> Sample:
        npz = self._open(index)
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


def _open_scenes(path: Place | Sequence[Place], split: Split) -> SceneSource:
    if isinstance(path, str | Path) and "://" not in str(path) and not _is_archive(Path(path)):
        return FolderReader(Path(path), split)
    from scannet_prep.archive.scenes import ArchiveReader  # training from a folder needs no zstandard

    if isinstance(path, Sequence) and not isinstance(path, str):
        return ArchiveReader(path, split)
    return ArchiveReader([path], split, is_list=False)


def _is_archive(path: Path) -> bool:
    """Whether it is to be read as an archive; by its name, where there is nothing."""
    try:
        return not path.is_dir() and (path.exists() or path.suffix == ".zst")
    except OSError:  # a name that is too long, or a folder that may not be looked into: opening it says so
        return path.suffix == ".zst"


def _weigh_classes(counts: NDArray[np.int64], formula: Formula) -> NDArray[np.float32]:
    """Weights, float32 (classes,), from vertices by scene and class, (scenes, classes)."""
    if formula not in get_args(Formula):
        raise UsageError(f"{formula!r} is not a formula", f"there are: {', '.join(get_args(Formula))}")
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError("no vertex has a class, so there is nothing to weigh", 'take the weights of split="train"')
    shares = totals[occurs] / totals.sum()
    labeled = counts.sum(axis=1, keepdims=True)  # of each scene
    frequencies = totals[occurs] / ((counts[:, occurs] > 0) * labeled).sum(axis=0)
    weights = {
        "inverse": 1 / shares,
        "inverse_sqrt": 1 / np.sqrt(shares),
        "log": 1 / np.log(1.02 + shares),
        "median_frequency": np.median(frequencies) / frequencies,
    }[formula]
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result
