"""The dataset for training: the processed scenes of one split, as samples.

dataset[i] -> _find (index) -> _open (file, checked) -> _read (sample) -> _transform
"""

from __future__ import annotations

import copy
import operator
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.memory import find_worker
from scannet_prep.base.signatures import describe_call_fault
from scannet_prep.base.text import list_some
from scannet_prep.errors import (
    FileError,
    ScanNetPrepError,
    UnknownSceneError,
    UsageError,
)
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.manifest import count_ids
from scannet_prep.processed.npz import DAMAGE_HINT, NpzReader
from scannet_prep.processed.scene import parse_meta, widen_normals
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split, read_scene_list
from scannet_prep.source.place import open_processed
from scannet_prep.training.annotated_points import read_points
from scannet_prep.training.concat import ConcatDataset
from scannet_prep.training.sample import Dataset, SampleT_co, advise_default_collation
from scannet_prep.training.sample import Sample as Sample  # noqa: PLC0414 - exported for type hints
from scannet_prep.training.scene_cache import make_cache
from scannet_prep.training.supervision import (
    ClassCounts,
    check_points,
    count_classes,
    limit_annotation,
)
from scannet_prep.training.whole_numbers import check_number

if TYPE_CHECKING:
    from typing_extensions import Self

SplitName: TypeAlias = Literal["train", "val", "test"]

# Types of the arrays that have one row per vertex, and the shape of a row.
_ROWS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "points": (np.float32, (3,)),
    "normals": (np.float32, (3,)),
    "colors": (np.uint8, (3,)),
    "labels": (np.int64, ()),
    "instances": (np.int32, ()),
    "segments": (np.int32, ()),
}
_KEYS = (*_ROWS, "axis_alignment", "faces", "label_set", "scene_id")


class ScanNet(ClassCounts, Dataset[SampleT_co]):  # type: ignore[misc]  # where PyTorch is not installed
    """One split of ScanNet, for `torch.utils.data.DataLoader` or for a plain loop.

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
    samplers pass plain indices. In val and test, a plain index means epoch 0. In train, it means
    another epoch each time, so that `shuffle=True` augments each scene differently in each epoch.
    This epoch is the number of times that the process has read the scene or, in a worker of a
    `DataLoader`, a number derived from the worker's seed. Such a run cannot be resumed or repeated
    exactly.

    Args:
        path: A folder that `scannet-prep process` wrote, or an archive that `scannet-prep pack`
            made of it, by its path or its address, such as `https://...`.
        split: `train`, `val` or `test`. Several splits are joined by `+`:
            `ScanNet(...) + ScanNet(...)`.
        labels: SCANNET20 or SCANNET200, or its name, such as `"scannet200"`. None for the label set
            with which the scenes were processed.
        ignore_index: The number that stands for unlabeled in `labels`: any whole number that is not
            a train id.
        transform: Function of a sample and a random generator. `ds[i]` is its result. A plain dict
            becomes a `Sample`, which is a dict, too.
        seed: Seed of the random generator. To vary a run, change it here and in the sampler.
        scenes: The scenes to use: scene ids in any order, such as the index of a table; a single
            id; or a file with one id per line.
        points: Limited annotations: a dict from the id of each scene to the indices, in mesh order,
            of the vertices that keep `labels` and `instances`. Or a file with such a dict, such as
            `points20` of the data-efficient benchmark: written by `torch.save`, or `.npz` or
            `.json`. Only numbers, lists, dicts and arrays of NumPy are read from it, never code.
            The transforms of this package that drop or sample vertices keep these vertices; a crop
            keeps those inside.
        keys: The keys of a sample to read, one or several; `scene_id` is always included. All by
            default. Other arrays are not read. `label_set` comes with `labels`.
        loop: How often each scene comes in an epoch, each time with other random numbers.
        cache: True to keep files in memory after the first read, for this process and the processes
            that it starts, such as the workers of a `DataLoader`: one copy for all of them, about
            25 bytes per vertex.

    Attributes:
        split: The split.
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
        UnknownSceneError: A scene of `scenes` does not exist, or belongs to another split.
        UsageError: There is no such split, the split has no scenes, there is no such key, `labels`
            is not a label set, `ignore_index` is a train id or not a whole number, `transform`
            cannot be called, `seed` is negative, `loop` is not a whole number from 1, `points` does
            not fit the scenes, or `scenes` is empty.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        split: SplitName | Split,
        labels: LabelSet | str | None = None,
        ignore_index: int = -1,
        transform: Callable[[Any, np.random.Generator], SampleT_co] | None = None,
        seed: int = 0,
        scenes: str | Path | Iterable[str] | None = None,
        points: Mapping[str, Any] | str | Path | None = None,
        keys: Iterable[str] | None = None,
        loop: int = 1,
        cache: bool = False,
    ) -> None:
        self.split = _parse_split(split)
        _check_transform(transform)
        self.transform = transform
        self.seed = check_number(seed, "seed", 0)
        self._keys = _parse_keys(keys)
        # Checked before the source is opened, which may take long.
        chosen_label_set = None if labels is None else parse_label_set(labels)

        self._place = open_processed(path)
        self._options = self._place.options
        self.label_set = self._options.label_set
        if chosen_label_set is not None:
            self.label_set = chosen_label_set
        self.ignore_index = _check_ignore_index(ignore_index, self.label_set)
        self.is_aligned = self._options.align_axis
        self.path = self._place.name
        lengths = self._find_lengths()
        if self._place.failures:
            failed = list(self._place.failures)
            warnings.warn(
                f"{self.path}: scenes that failed in processing are missing: {list_some(failed)}; "
                "to list them: scannet-prep info",
                stacklevel=2,
            )

        # Scene ids, as long as the longest one, and vertex counts, both sorted by id. They are
        # arrays because reading a list changes the reference counts of its elements. After a fork,
        # each change would copy a page of memory.
        self._encoded_ids = np.array(list(lengths), "S")
        self._lengths = np.array(list(lengths.values()), np.int64)
        if scenes is not None:
            self._restrict(scenes)

        # The annotated vertices by scene id; None if all are.
        self._points: dict[str, NDArray[np.int64]] | None = None
        if isinstance(points, str | Path):
            points = read_points(Path(points).expanduser())
        if points is not None:
            self._points = check_points(points, self.scene_ids, self._lengths)
        self._cache = make_cache(self.scene_ids, self._lengths) if cache else None

        # Only now, because the scenes are checked and cached once each.
        loop = check_number(loop, "loop", 1)
        self._encoded_ids = self._encoded_ids.repeat(loop)
        self._lengths = self._lengths.repeat(loop)
        # How often each scene was read without an epoch.
        self._plain_reads = np.zeros(len(self), np.int64)

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self._encoded_ids)

    def __repr__(self) -> str:
        """Show a call that makes the dataset, the number of scenes, and the frame of the points."""
        label_set = self.label_set.name.lower()
        call = f"ScanNet({self.path!r}, split={str(self.split)!r}, labels={label_set!r})"
        return f"{call}: {len(self)} scenes, is_aligned={self.is_aligned}"

    def __add__(self, other: Any) -> ConcatDataset:  # noqa: ANN401 - any dataset
        """Join two datasets, as `ConcatDataset([self, other])` does."""
        return ConcatDataset([self, other])

    @property
    def scene_ids(self) -> list[str]:
        """Ids of all scenes, sorted, in the order of their indices."""
        return [name.decode() for name in self._encoded_ids.tolist()]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of vertices of each scene, int64 (len,), a copy. Does not open any scene."""
        return self._lengths.copy()

    @property
    def digest(self) -> str:
        """Digest of the data behind the samples, eight hexadecimal digits, equal on all machines.

        It covers the ids of the scenes, their bytes as the manifest records them, the options with
        which they were processed, the label set, and limited annotations.
        """
        entries = self._place.entries
        facts = [self.label_set.name, repr(self._options)]
        for name in self.scene_ids:
            facts += [name, entries[name].crc32]
            if self._points is not None:
                indices = self._points[name].astype("<i8")
                facts.append(f"{zlib.crc32(indices.tobytes()):08x}")
        text = " ".join(facts)
        return f"{zlib.crc32(text.encode()):08x}"

    def __contains__(self, scene_id: object) -> bool:
        """Whether the dataset has a scene of this id."""
        return isinstance(scene_id, str) and self._find_index(scene_id) is not None

    def subset(self, scenes: str | Path | Iterable[int | str]) -> Self:
        """Return the same dataset with only some scenes.

        The scenes are sorted by id. With `loop`, each comes as often as before.

        Args:
            scenes: Scene ids or indices, in any order; a single id; or a file with one id per line.

        Raises:
            IndexError: An index is out of range.
            UnknownSceneError: This dataset has no scene of such an id.
            UsageError: There are no ids or indices, or they are a mask of booleans.
        """
        # The copy shares the open files and the cache.
        part = copy.copy(self)
        part._restrict(scenes)  # noqa: SLF001 - of the same class
        return part

    def groups(self, scene: int | str) -> tuple[AnnotatedGroup, ...]:
        """Return the annotated groups of a scene: raw category, ids, size and box.

        The ids of the groups are the values of `instances`.

        Raises:
            IndexError, UnknownSceneError, FileError, TransferError: As for `dataset[scene]`.
        """
        scene_id = self._encoded_ids[self._find(scene)].decode()
        npz = self._open(scene_id)
        return parse_meta(npz, self._place.file_path(scene_id)).groups

    def __getitem__(self, key: int | str | tuple[int | str, int]) -> SampleT_co:
        """Read one scene, by index or by scene id, and apply the transform.

        A key can contain the epoch for the transform: `ds[index, epoch]`.

        Raises:
            IndexError: The index is out of range.
            UnknownSceneError: This split has no scene of this id.
            MissingFileError: The scene's file, or the archive, no longer exists.
            FileError: The scene's file is damaged.
            ArchiveError: The scene is damaged, or the archive has changed since it was opened.
            TransferError: The web server does not serve the scene.
            ScanNetPrepError: The transform failed.
            UsageError: The key is not an index or a scene id, alone or in a pair with an epoch.
        """
        # Called for each sample, because PyTorch may have been imported since the last one. Workers
        # collate in the process that reads.
        advise_default_collation()
        scene = key
        epoch = None
        if isinstance(key, tuple) and len(key) == 2:
            scene, epoch = key
        index = self._find(scene)
        sample: Any = self._read(self._encoded_ids[index].decode())
        if self.transform is None:
            return sample  # type: ignore[no-any-return]
        if epoch is None:
            epoch = self._choose_epoch(index)
        epoch = check_number(epoch, "epoch", 0)
        return self._transform(sample, index, epoch)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[SampleT_co]:
        """Iterate over all samples, in order."""
        return (self[index] for index in range(len(self)))

    def __enter__(self) -> Self:
        """Return the dataset, which is closed at the end of the block."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the dataset."""
        self.close()

    def close(self) -> None:
        """Close open files and connections; the next read opens them again.

        If another thread is reading from a web server at this moment, it gets a TransferError.
        """
        self._place.close()

    def class_counts_by_scene(self) -> NDArray[np.int64]:
        """Count the vertices of each class in each scene, int64 (scenes, classes).

        With limited annotations, only the annotated vertices are counted.

        Raises:
            ScanNetPrepError: As for `class_counts`.
        """
        counts: list[Mapping[int, int]] = []
        if self._points is None:
            entries = self._place.entries
            counts += [entries[name].counts(self.label_set) for name in self.scene_ids]
        else:
            for name in self.scene_ids:
                raw_ids = self._open(name).read(self.label_set.raw_ids_key)
                counts.append(count_ids(raw_ids[self._points[name]]))
        return count_classes(counts, self.label_set)

    def _find_lengths(self) -> dict[str, int]:
        """Find the scenes of the split, and the number of their vertices.

        Raises:
            UsageError: There are none.
        """
        scenes = self._place.scenes
        lengths = {
            scene_id: scene.vertex_count
            for scene_id, scene in scenes.items()
            if scene.split == self.split
        }
        if not lengths:
            others = ", ".join(sorted({scene.split for scene in scenes.values()}))
            raise UsageError(
                f"{self.path}: holds no {self.split} scenes, but {others or 'none at all'}",
                "choose another split, or process the scenes of this one",
            )
        return lengths

    def _restrict(self, scenes: str | Path | Iterable[int | str]) -> None:
        """Keep only some scenes; arguments and errors are those of `subset`."""
        # The name of the argument, for messages.
        source = "the list of scenes"
        if isinstance(scenes, str | Path):
            source = str(scenes)
            is_scene_id = source in self or SceneId.is_of_release(source)
            scenes = [source] if is_scene_id else read_scene_list(Path(source).expanduser())
        scenes = list(scenes)
        if np.asarray(scenes).dtype == np.bool_:
            # As an index, True would be 1.
            raise UsageError(
                f"{source} is a mask of {len(scenes):,} booleans, expected scene ids or indices",
                "dataset.subset(numpy.flatnonzero(mask))",
            )
        chosen = sorted({self._find(scene) for scene in scenes})
        if not chosen:
            raise UsageError(
                f"{source} is empty, expected at least one scene",
                "for all scenes, leave out scenes=",
            )
        # With `loop`, a scene has several indices: keep all of them.
        is_kept = np.isin(self._encoded_ids, self._encoded_ids[chosen])
        self._encoded_ids = self._encoded_ids[is_kept]
        self._lengths = self._lengths[is_kept]
        self._plain_reads = np.zeros(len(self), np.int64)

    def _choose_epoch(self, index: int) -> int:
        """Choose the epoch of a plain index, as the docstring of `ScanNet` describes."""
        if self.split is not Split.TRAIN:
            return 0
        count = int(self._plain_reads[index])
        self._plain_reads[index] += 1
        worker = find_worker()
        if worker is None:
            return count
        # A new worker starts counting at 0 again, so mix in its seed, which differs in each epoch.
        return int(np.random.SeedSequence((worker.seed, count)).generate_state(1)[0])

    def _find(self, key: Any) -> int:  # noqa: ANN401 - anything can be passed as a key
        """Return the index of a scene, counted from 0, given an index from either end or an id.

        Raises:
            IndexError, UnknownSceneError, UsageError: As for `dataset[key]`.
        """
        if isinstance(key, str):
            return self._find_scene(key)
        try:
            index = operator.index(key)
        except TypeError:
            raise UsageError(
                f"{key!r:.80} is not a scene; "
                "expected an index or a scene id, alone or in a pair with the epoch",
                "for slices [dataset[i] for i in range(3)]; "
                "for batches DataLoader(dataset, batch_sampler=sampler)",
            ) from None
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"index {index} is out of range: {self.path} has {len(self)} {self.split} scenes"
            )
        return index % len(self)

    def _find_index(self, scene_id: str) -> int | None:
        """Find the first index of a scene (`loop` gives it several); None for an unknown id."""
        name = scene_id.encode()
        index = int(np.searchsorted(self._encoded_ids, np.bytes_(name)))
        if index < len(self) and self._encoded_ids[index] == name:
            return index
        return None

    def _find_scene(self, scene_id: str) -> int:
        """Return the first index of a scene.

        Raises:
            UnknownSceneError: This split has no scene of this id. The hint depends on the reason.
        """
        index = self._find_index(scene_id)
        if index is not None:
            return index

        reason = self._place.failures.get(scene_id)
        if reason is not None:
            raise UnknownSceneError(
                f"{scene_id} failed in processing: {reason}",
                "fix the raw files, then run scannet-prep process again",
            )
        official_split = find_official_split(scene_id)
        if official_split is None:
            hint = ""
        elif official_split == self.split:
            hint = "process it; if this is an archive, pack the folder again"
        else:
            hint = (
                f"it is a {official_split} scene: "
                f"ScanNet({self.path!r}, split={str(official_split)!r})"
            )
        raise UnknownSceneError(f"{self.path}: has no {self.split} scene {scene_id!r}", hint)

    def _open(self, scene_id: str) -> NpzReader:
        """Read the file of a scene, or its copy in the cache, and check that it is this scene.

        Raises:
            FileError: The file is missing or damaged, or holds another scene.
        """
        if self._cache is None:
            return self._place.open_arrays(scene_id, self._place.read_file(scene_id))
        data = self._cache.read(scene_id, partial(self._place.read_file, scene_id))
        return self._place.open_arrays(scene_id, data)

    def _read(self, scene_id: str) -> Sample:
        """Read a sample, without the transform."""
        npz = self._open(scene_id)
        vertex_count = self._place.scenes[scene_id].vertex_count
        # Type checkers accept an incomplete sample only as Any.
        sample: Any = Sample()  # type: ignore[typeddict-item]
        sample.is_aligned = self.is_aligned
        for key in self._keys:
            if key in {"label_set", "scene_id"}:
                continue
            # Faces are optional. For any other missing array, `_read_array` raises, or makes it.
            if key == "faces" and key not in npz.keys:
                continue
            sample[key] = self._read_array(npz, key, scene_id, vertex_count)
        if "labels" in sample or "label_set" in self._keys:
            sample["label_set"] = self.label_set.name
        sample["scene_id"] = scene_id
        if self._points is not None:
            limit_annotation(sample, self._points[scene_id], self.ignore_index)
        return sample  # type: ignore[no-any-return]

    def _read_array(
        self, npz: NpzReader, key: str, scene_id: str, vertex_count: int
    ) -> NDArray[Any]:
        """Read one array of a scene, with the type that it has in a sample.

        Raises:
            FileError: The file is damaged, or the array has an unexpected shape.
        """
        # Test scenes have no segments.
        if key == "segments" and key not in npz.keys:
            return np.full(vertex_count, -1, np.int32)
        # Labels come from the raw ids, which both label sets have. The stored `labels` are those
        # of one label set only.
        stored_key = self.label_set.raw_ids_key if key == "labels" else key
        stored = npz.read(stored_key)
        if key not in _ROWS:
            return stored
        dtype, row_shape = _ROWS[key]
        expected_shape = (vertex_count, *row_shape)
        if stored.shape != expected_shape:
            problem = f"array {key!r} has the shape {stored.shape}, expected {expected_shape}"
            raise FileError(self._place.file_path(scene_id), problem, DAMAGE_HINT)
        if key == "labels":
            return self.label_set.train_ids_from_raw_ids(stored, self.ignore_index)
        if key == "normals":
            return widen_normals(stored)
        return stored.astype(dtype, copy=False)

    def _transform(self, sample: Any, index: int, epoch: int) -> Any:  # noqa: ANN401 - any result
        """Apply the transform to a sample.

        Raises:
            ScanNetPrepError: The transform failed.
        """
        generator = np.random.default_rng(np.random.SeedSequence((self.seed, epoch, index)))
        scene_id = self._encoded_ids[index].decode()
        try:
            transformed = self.transform(sample, generator)  # type: ignore[misc]  # not None here
        except Exception as error:
            cause = str(error)
            hint = f"reproduce it with dataset[{index}, {epoch}]"
            if isinstance(error, ScanNetPrepError):
                # str(error) includes the hint, which belongs at the end of the new message.
                cause = error.message
                if error.hint:
                    hint = f"{error.hint}; {hint}"
            raise ScanNetPrepError(
                f"{scene_id} ({self._place.file_path(scene_id)}): the transform failed: "
                f"{type(error).__name__}: {cause}",
                hint,
            ) from error
        # A plain dict becomes a sample again, whose repr is short.
        if type(transformed) is dict:
            return Sample(transformed)  # type: ignore[misc]  # the keys are not checked
        return transformed


def _parse_split(split: object) -> Split:
    """Return the split of a name.

    Raises:
        UsageError: There is no split of this name, or the argument is not a name, such as a list.
    """
    if not isinstance(split, str):
        raise UsageError(
            f"split is {split!r:.80}, expected the name of one split",
            "join several: "
            'ConcatDataset([ScanNet(path, split="train"), ScanNet(path, split="val", seed=1)])',
        )
    return Split.parse(split)


def _check_transform(transform: object) -> None:
    """Check that a transform can be called, before a worker calls it.

    Raises:
        UsageError: The transform is not callable, takes other arguments, or is a class instead of
            an object.
    """
    if transform is None:
        return
    if not callable(transform) or isinstance(transform, type):
        raise UsageError(
            f"transform is {transform!r:.80}, expected a callable transform(sample, rng)",
            "transform=Compose(Rotate(), GridSample(0.02))",
        )
    fault = describe_call_fault(transform, "sample", "rng")
    if fault:
        raise UsageError(
            f"transform: {fault}, expected a callable transform(sample, rng)",
            "add a second parameter for the numpy.random.Generator: def transform(sample, rng)",
        )


def _check_ignore_index(ignore_index: int, label_set: LabelSet) -> int:
    """Check the number that stands for unlabeled.

    Raises:
        UsageError: The number is not a whole number of 64 bits, or it is a train id, so that a
            class would be ignored, too.
    """
    hint = "ignore_index=-1, or ignore_index=255"
    try:
        number = operator.index(ignore_index)
    except TypeError:
        number = None
    if number is None or not -(2**63) <= number < 2**63:
        raise UsageError(f"ignore_index is {ignore_index!r:.80}, expected a whole number", hint)
    if number in label_set:
        name = label_set.name_of(number)
        raise UsageError(
            f"ignore_index is {number}, which is the train id of {name!r} in {label_set.name}", hint
        )
    return number


def _parse_keys(keys: Iterable[str] | None) -> tuple[str, ...]:
    """Return the keys of a sample to read; all for None.

    Raises:
        UsageError: A sample has no such key.
    """
    if keys is None:
        return _KEYS
    chosen = (keys,) if isinstance(keys, str) else tuple(keys)
    unknown = set(chosen) - set(_KEYS)
    if unknown:
        known = ", ".join(_KEYS)
        raise UsageError(f"{min(unknown)!r} is not a key of a sample", f"there are: {known}")
    return chosen
