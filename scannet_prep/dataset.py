"""The training source: processed scenes as a map-style dataset."""

from __future__ import annotations

import copy
import operator
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.annotate import AnnotatedGroup
from scannet_prep.errors import ProcessedFileError, TransformError, UnknownSceneError, UsageError
from scannet_prep.labels import SCANNET20, LabelSet, check_label_set
from scannet_prep.number_lists import check_number
from scannet_prep.processed.manifest import count_ids
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.reader import FolderReader, SceneCache, SceneSource
from scannet_prep.processed.scene import check_identity, parse_meta, widen_normals
from scannet_prep.sample import Dataset, Scenes
from scannet_prep.sample import Sample as Sample  # noqa: PLC0414 - for the types of transforms
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split, read_scene_list
from scannet_prep.supervision import Formula, check_points, count_classes, limit_annotation, weigh_classes
from scannet_prep.workers import allocate, find_asked, find_worker

SplitName: TypeAlias = Literal["train", "val", "test"]
# What a sample has of each vertex: type, and shape of a row.
_ROWS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "points": (np.float32, (3,)), "normals": (np.float32, (3,)), "colors": (np.uint8, (3,)), "labels": (np.int64, ()),
    "instances": (np.int32, ()), "segments": (np.int32, ()),
}  # fmt: skip
_KEYS = (*_ROWS, "axis_alignment", "faces", "scene_id")

if TYPE_CHECKING:
    from scannet_prep.archive.source import Place


class ScanNet(AbstractContextManager["ScanNet"], Dataset):  # type: ignore[misc]  # where PyTorch is not installed
    """One split of ScanNet, for `torch.utils.data.DataLoader` or for a plain loop.

    A sample is a dict of contiguous, writable arrays; V vertices, in mesh order:

    - `points`: float32 (V, 3), metres, in the frame that was chosen when processing (`--align-axis`);
    - `normals`: float32 (V, 3), unit vectors in the same frame, (0, 0, 0) where undefined;
    - `colors`: uint8 (V, 3), red, green, blue, 0..255;
    - `labels`: int64 (V,), train id of the label set, `ignore_id` where unlabeled; all of them in test scenes;
    - `instances`: int32 (V,), group id, -1 where there is none;
    - `segments`: int32 (V,), contiguous index of the segment (superpoint); -1 in scenes that have none (test);
    - `axis_alignment`: float64 (4, 4), aligned <- scan, whichever of the two frames `points` is in;
    - `faces`: int32 (F, 3), indices of vertices, where they were kept (`process --faces`);
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
        scenes: Only these: scene ids, in any order, such as the index of a table; a single one; or a file of
            them, one a line.
        points: By scene id, the vertices, in mesh order, whose `labels` and `instances` are not ignored, such as
            `torch.load("points20")` of the data-efficient benchmark.
        keys: Only these of a sample, or this one, and `scene_id`; what is left out is not read. All by default.
        loop: How often each scene comes in an epoch, each time with other random numbers.
        cache: True to keep in memory what has been read of the files, for this process and those that it starts, such
            as the workers of a `DataLoader`: one copy for all of them, about 25 bytes a vertex.

    Attributes:
        split: The split.
        label_set: The classes: ids, names, colours, and head, common and tail of ScanNet200.
        ignore_id, transform, seed: As given.
        path: Where the scenes are read from: a path or an address; of several archives, each.

    Raises:
        MissingFileError: `path` is not a processed folder, or there is no such archive.
        ManifestError: Processing has not finished, or the manifest is damaged.
        ArchiveError: An archive is damaged, is not made of processed scenes, or does not go together with the others of
            a list; or a shard of a set is missing.
        TransferError: The web server does not give the archive.
        UnknownSplitError: There is no such split, or there are no scenes of it.
        UnknownSceneError: A scene of `scenes` is not there, or of another split.
        UsageError: There is no such key, `labels` is not a label set, `seed` is negative, `loop` is not a number from
            1, `points` does not fit the scenes, or the list is empty.
    """

    def __init__(
        self,
        path: Place | Sequence[Place],
        *,
        split: SplitName | Split,
        labels: LabelSet = SCANNET20,
        ignore_id: int = -1,
        transform: Callable[[Any, np.random.Generator], Any] | None = None,
        seed: int = 0,
        scenes: str | Path | Iterable[str] | None = None,
        points: Mapping[str, Any] | None = None,
        keys: Iterable[str] | None = None,
        loop: int = 1,
        cache: bool = False,
    ) -> None:
        check_label_set(labels)
        self.split = Split.parse(split)
        self.label_set = labels
        self.ignore_id = ignore_id
        self.transform = transform
        self.seed, loop = check_number(seed, "seed", 0), check_number(loop, "loop", 1)
        self._keys = _KEYS if keys is None else (keys,) if isinstance(keys, str) else tuple(keys)
        if unknown := set(self._keys).difference(_KEYS):
            raise UsageError(f"{min(unknown)!r} is not a key of a sample", f"there are: {', '.join(_KEYS)}")
        self._reader = _open_scenes(path, self.split)
        # Arrays and not lists: reading a list changes its reference counts, and with them, after a fork, whole pages.
        self._names = np.array(list(self._reader.lengths), "S12")
        self._lengths = np.array(list(self._reader.lengths.values()), np.int64)
        self.path: str | list[str] = self._reader.place
        if scenes is not None:
            self._restrict(scenes)
        self._points = None if points is None else check_points(points, self.scene_ids, self._lengths)
        if loop > 1:
            self._names, self._lengths = self._names.repeat(loop), self._lengths.repeat(loop)
        self._cache = SceneCache(self.scene_ids, self._lengths) if cache else None
        self._plain_reads = np.zeros(len(self), np.int64)  # of each scene, without an epoch

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._names)

    def __repr__(self) -> str:
        """Place, split, number of scenes and label set."""
        place = f"{self.path!r}, split={str(self.split)!r}"
        return f"ScanNet({place}, labels={self.label_set.name}): {len(self)} scenes"

    @property
    def scene_ids(self) -> list[str]:
        """All scenes, in the order of their indices (sorted)."""
        return [name.decode() for name in self._names.tolist()]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of vertices of each scene, int64 (len,), a copy; known without opening the scenes."""
        return self._lengths.copy()

    @property
    def digest(self) -> str:
        """Of the scenes and, where there is a manifest, of their bytes: the same on every machine that has the same."""
        entries = self._reader.read_entries()
        text = " ".join(name + entries[name].crc32 if name in entries else name for name in self.scene_ids)
        return f"{zlib.crc32(text.encode()):08x}"

    def __contains__(self, scene_id: object) -> bool:
        """Whether there is a scene of that id."""
        return isinstance(scene_id, str) and self._place(scene_id) is not None

    def subset(self, scenes: str | Path | Iterable[int | str]) -> ScanNet:
        """The same dataset with only some scenes: ids or indices, in any order, or a file of ids; sorted by id.

        Raises:
            IndexError: An index is out of range.
            UnknownSceneError: This dataset has no scene of such an id.
        """
        part = copy.copy(self)
        part._restrict(scenes)  # noqa: SLF001 - one of us
        return part

    def groups(self, scene: int | str) -> tuple[AnnotatedGroup, ...]:
        """The annotated groups of a scene: what `instances` counts, with raw category, ids, size and box.

        Raises:
            IndexError, UnknownSceneError, FileError, TransferError: As for `dataset[scene]`.
        """
        scene_id = self._names[self._find(scene)].decode()
        return parse_meta(self._open(scene_id), self._reader.file_path(scene_id)).groups

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
        index = self._find(scene)
        scene_id = self._names[index].decode()
        sample = self._read(scene_id, {})
        if self.transform is None:
            return sample
        epoch = self._choose_epoch(index) if epoch is None else check_number(epoch, "epoch", 0)
        try:
            return self.transform(sample, np.random.default_rng(np.random.SeedSequence((self.seed, epoch, index))))
        except Exception as error:
            where = f"{scene_id} ({self._reader.file_path(scene_id)})"
            message = f"{where}: the transform failed: {type(error).__name__}: {error}"
            raise TransformError(message, f"see it again with dataset[{index}, {epoch}]") from error

    def __iter__(self) -> Iterator[Any]:
        """All samples, in order."""
        return (self[index] for index in range(len(self)))

    def __getitems__(self, keys: Iterable[Any]) -> list[Any]:
        """Read the scenes of a batch, each as `dataset[key]` does; a `DataLoader` calls it.

        Without a transform they are read into the memory of the batch, so that `collate` need not copy them.
        """
        source = find_asked(self)
        if source is not self or self.transform is not None or type(self).__getitem__ is not ScanNet.__getitem__:
            return [source[key] for key in keys]
        indices = [self._find(key[0] if isinstance(key, tuple) and len(key) == 2 else key) for key in keys]
        ends = np.cumsum(self._lengths[indices]).tolist()
        total, ids = sum(ends[-1:]), np.dtype(np.int64)
        shapes = {key: (np.dtype(dtype), (total, *row)) for key, (dtype, row) in _ROWS.items() if key in self._keys}
        others: dict[str, Any] = {"offset": (ids, (len(indices),)), "batch": (ids, (total,))}  # what collate adds
        if "axis_alignment" in self._keys:
            others["axis_alignment"] = np.dtype(np.float64), (len(indices), 4, 4)
        joined = allocate(shapes | others)
        parts = zip(self._names[indices].tolist(), [0, *ends], ends, strict=False)
        samples = [self._read(name.decode(), {key: joined[key][a:b] for key in shapes}) for name, a, b in parts]
        return Scenes(samples, joined)

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
        return np.asarray(self._count_classes().sum(axis=0))

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

        Returns:
            float32 (classes,), in the order of the train ids.

        Raises:
            UsageError: There is no such formula, or no vertex has a class (test scenes).
            ScanNetPrepError: The manifest, or without one a scene, is damaged.
        """
        return weigh_classes(self._count_classes(), formula)

    def _count_classes(self) -> NDArray[np.int64]:
        """Vertices by scene and class, (scenes, classes); of limited annotations, only those that may be used."""
        if self._points is None and (entries := self._reader.read_entries()).keys() >= set(self.scene_ids):
            return count_classes([entries[name].counts(self.label_set) for name in self.scene_ids], self.label_set)
        key = self.label_set.raw_ids_key
        chosen: Mapping[str, Any] = self._points or dict.fromkeys(self.scene_ids, slice(None))
        found = ((name, self._open(name).read(key)) for name in self.scene_ids)
        return count_classes([count_ids(raw_ids[chosen[name]]) for name, raw_ids in found], self.label_set)

    def _restrict(self, scenes: str | Path | Iterable[int | str]) -> None:
        if isinstance(scenes, str | Path):
            scenes = [name] if SceneId.is_valid(name := str(scenes)) else read_scene_list(Path(name).expanduser())
        found = np.array(sorted({self._find(scene) for scene in scenes}), np.int64)
        self._names, self._lengths = self._names[found], self._lengths[found]
        self._plain_reads = np.zeros(len(self), np.int64)

    def _choose_epoch(self, index: int) -> int:
        """The epoch of an index that comes without one."""
        if self.split is not Split.TRAIN:
            return 0
        self._plain_reads[index] += 1
        count = int(self._plain_reads[index]) - 1
        if (worker := find_worker()) is None:
            return count
        # The worker may be new and have read nothing; its seed is another one in each epoch.
        return int(np.random.SeedSequence((worker.seed, count)).generate_state(1)[0])

    def _find(self, key: Any) -> int:  # noqa: ANN401 - whatever was asked for
        """The index of a scene, from 0, by its index from either end, or by its id."""
        if isinstance(key, str):
            return self._find_scene(key)
        try:
            index = operator.index(key)
        except TypeError:
            message = f"{key!r:.80} is not a scene; expected an index, a scene id, or a pair of one and the epoch"
            hint = "for slices [dataset[i] for i in range(3)]; for batches DataLoader(dataset, batch_sampler=sampler)"
            raise UsageError(message, hint) from None
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: {self._reader.name} has {len(self)} {self.split} scenes")
        return index % len(self)

    def _place(self, scene_id: str) -> int | None:
        """Index of a scene; None where there is none of that name."""
        name = scene_id.encode()
        index = int(np.searchsorted(self._names, np.bytes_(name)))
        return index if index < len(self) and self._names[index] == name else None

    def _find_scene(self, scene_id: str) -> int:
        if (index := self._place(scene_id)) is not None:
            return index
        if reason := self._reader.failures.get(scene_id):
            raise UnknownSceneError(f"{scene_id} failed in processing: {reason}", "mend it, then process again")
        official = find_official_split(scene_id)
        hint = self._reader.how_to_add(scene_id) if official is not None else ""
        if official not in {None, self.split}:
            hint = f"it is a {official} scene: ScanNet({self.path!r}, split={str(official)!r})"
        raise UnknownSceneError(f"{self._reader.name}: has no {self.split} scene {scene_id!r}", hint)

    def _open(self, scene_id: str) -> NpzReader:
        path, read = self._reader.file_path(scene_id), partial(self._reader.read, scene_id)
        npz = NpzReader(self._cache.read(scene_id, read) if self._cache else read(), path)
        check_identity(npz, path, scene_id, self._reader.lengths[scene_id])
        return npz

    def _read(self, scene_id: str, places: Mapping[str, NDArray[Any]]) -> Sample:
        """Read a scene; arrays that have a place are written there."""
        npz, count = self._open(scene_id), self._reader.lengths[scene_id]
        sample: Any = Sample()  # type: ignore[typeddict-item]  # a dict, while it is being filled
        sample.label_set_name = self.label_set.name
        for key in self._keys:
            if key == "scene_id" or (key == "faces" and key not in npz.keys):
                continue
            if key == "segments" and key not in npz.keys:
                array: Any = np.full(count, -1, np.int32)
            else:
                array = npz.read(self.label_set.raw_ids_key if key == "labels" else key)
            dtype, row = _ROWS.get(key, (array.dtype, ()))
            if key in _ROWS and array.shape != (count, *row):
                problem = f"array {key!r} has the shape {array.shape}, expected {(count, *row)}"
                raise ProcessedFileError(self._reader.file_path(scene_id), problem, "process the scene again")
            place = places.get(key, array if array.dtype == dtype else None)
            sample[key] = place = np.empty(array.shape, dtype) if place is None else place
            if key == "labels":
                self.label_set.train_ids_from_raw_ids(array, self.ignore_id, place)
            elif key == "normals":
                widen_normals(array, place)
            elif place is not array:
                place[...] = array
        sample["scene_id"] = scene_id
        limit_annotation(sample, (self._points or {}).get(scene_id), self.ignore_id)
        return sample  # type: ignore[no-any-return]


def _open_scenes(path: Place | Sequence[Place], split: Split) -> SceneSource:
    if isinstance(path, str | Path) and "://" not in str(path):
        path = Path(path).expanduser()
        if os.path.isdir(path) or (path.suffix != ".zst" and not os.path.exists(path)):  # noqa: PTH110, PTH112 - no errors
            return FolderReader(path, split)
    from scannet_prep.archive.reader import ArchiveReader  # training from a folder needs no zstandard

    return ArchiveReader(path if isinstance(path, Sequence) and not isinstance(path, str) else [path], split)
