"""What every export format offers, and what formats share: the frame of the scan, and rows of text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.annotate import measure_groups
from scannet_prep.errors import FileError, UsageError
from scannet_prep.files import Buffer, Fingerprint
from scannet_prep.geometry import move_columns
from scannet_prep.labels import SCANNET20, SCANNET200, LabelSet
from scannet_prep.processed.npz import encode_npy_header
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release import SEGMENTS
from scannet_prep.scene import Split

_MAX_LINES = 1 << 14


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What a user chooses; each format says what it can do with it.

    Attributes:
        label_set: Classes of the labels, where a format holds those of one set only.
        is_aligned: Whether points are in the axis-aligned frame; None for what the program itself does.
        variant: A program that reads a dialect of the format, such as `oneformer3d`; empty for the format itself.
        test_segments: Folder with segments of test scenes, which the release lacks.
    """

    label_set: LabelSet = SCANNET20
    is_aligned: bool | None = None
    variant: str = ""
    test_segments: Path | None = None


class ProcessedFile:
    """Stands for the bytes of the processed scene's own file: they are linked where that is possible, else copied."""


PROCESSED_FILE: Final = ProcessedFile()
FileContent: TypeAlias = Iterable[Buffer] | ProcessedFile


@dataclass(frozen=True, slots=True, eq=False)
class ExportedScene:
    """What a format makes of one scene.

    Attributes:
        files: Their content by name, relative to the folder of the export, with `/`.
        record: Plain values (what JSON holds) that `encode_shared` needs of this scene; kept in the export's manifest,
            so that a later run can write the lists of scenes that it did not make.
    """

    files: Mapping[str, FileContent]
    record: Mapping[str, Any] = field(default_factory=dict)


class ExportFormat(ABC):
    """The layout that another program reads. Picklable: each worker process gets one.

    Args:
        options: What the user chose.

    Raises:
        UsageError: The format cannot do that.
    """

    name: ClassVar[str]
    """As in `--format`."""
    variants: ClassVar[tuple[str, ...]] = ()
    """Programs that read a dialect of the format."""
    uses_label_set: ClassVar[bool] = True
    """Whether the files hold labels of the chosen label set; else of both, or raw ids."""
    uses_frame: ClassVar[bool] = True
    """Whether the files hold anything that has a frame: points or normals."""
    is_aligned: ClassVar[bool | None] = False
    """Whether the program's own points are aligned; None for a format that takes them as they are stored."""
    uses_test_segments: ClassVar[bool] = False
    """Whether segments of test scenes are read, where a folder of them is given."""

    def __init__(self, options: ExportOptions) -> None:
        if options.variant and options.variant not in self.variants:
            known = f"there are: {', '.join(self.variants)}" if self.variants else "leave it out"
            raise UsageError(f"the format {self.name} has no dialect for {options.variant!r}", known)
        if options.test_segments is not None and not self.uses_test_segments:
            raise UsageError(f"the format {self.name} takes no segments of test scenes", "leave them out")
        label_set = options.label_set if self.uses_label_set else SCANNET20
        is_chosen = self.uses_frame and options.is_aligned is not None
        is_aligned = options.is_aligned if is_chosen else self.is_aligned
        self.options = replace(options, label_set=label_set, is_aligned=is_aligned)

    @property
    def settings(self) -> dict[str, bool | str]:
        """What is the same for all scenes of an export, for its manifest."""
        return {
            "format": self.name,
            "label_set": self.options.label_set.name if self.uses_label_set else "",
            "aligned": bool(self.options.is_aligned),
            "variant": self.options.variant,
        }

    def why_left_out(self, split: Split) -> str:  # noqa: ARG002 - for formats that cannot hold a split
        """Why scenes of a split are left out, for a message; empty where they are exported."""
        return ""

    def other_inputs(self, scene_id: str, split: Split) -> dict[str, str]:
        """What a scene is made from, beside the processed one: its segments, if they are read from elsewhere.

        Returns:
            Size and CRC-32 of the file, for the record of the scene; nothing where there is no such file.
        """
        if split is not Split.TEST or self.options.test_segments is None:
            return {}
        with suppress(FileError):
            found = Fingerprint.from_file(self.options.test_segments / f"{scene_id}{SEGMENTS.suffix}")
            return {"test_segments": f"{found.size_bytes} {found.crc32}"}
        return {}

    @abstractmethod
    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the files of one scene. Equal scenes give equal bytes.

        Raises:
            ExportError: The scene cannot be told in this format.
        """

    def encode_shared(self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]) -> Mapping[str, bytes]:  # noqa: ARG002
        """Make the files that tell of all scenes, such as lists, by name.

        Args:
            records: Split and record of every exported scene, by scene id, sorted.
        """
        return {}


class JoinedFormat(ExportFormat):
    """A format of one large file, or of some: `encode_scene` gives one file, the part of a scene, and parts are joined.

    So scenes are made in parallel, and an interrupted run goes on, as for other formats. Parts are removed when they
    are joined; their names count for nothing. Points are taken as they are stored.
    """

    is_aligned = None

    def make_arrays(self, scene: ProcessedScene) -> dict[str, NDArray[Any]]:
        """The arrays of a scene as processing makes them with these options."""
        turned = as_asked_for(scene, self.options)
        groups = measure_groups(scene.meta.groups, scene.instances, turned.points)
        normals = turned.normals.astype(np.float16)
        return replace(turned, normals=normals, meta=replace(turned.meta, groups=groups)).arrays()

    @abstractmethod
    def plan_files(self, parts: Mapping[str, tuple[Split, int]]) -> Mapping[str, Sequence[str]]:
        """Deal the scenes to files.

        Args:
            parts: Split of each scene and size of its part in bytes, by scene id, sorted.

        Returns:
            Ids of scenes in the order in which they go in, by the name of the file.
        """

    @abstractmethod
    def join(self, path: Path, parts: Mapping[str, Path]) -> None:
        """Write one file. Equal parts give equal bytes.

        Args:
            path: Where; a temporary name, and the caller renames it.
            parts: The part of each scene, by scene id, in the order of `plan_files`.

        Raises:
            OSError: It cannot be written.
        """


def as_asked_for(scene: ProcessedScene, options: ExportOptions) -> ProcessedScene:
    """Turn a scene into the frame, and its labels into the label set, that are asked for.

    To align is exact: the same formula in float64 as processing has. To go back inverts the matrix in float64; the
    result is within one unit of the last place that float32 has for the largest coordinates of the scene (4.8e-7 m
    within 8 m of the origin) of what the mesh holds, not always equal.

    Returns:
        The scene; where it has been turned, normals are float32, and boxes of groups those of before.
    """
    stored = scene.meta.options
    is_aligned = stored.align_axis if options.is_aligned is None else options.is_aligned
    chosen = replace(stored, scannet200=options.label_set == SCANNET200, align_axis=is_aligned)
    labels = options.label_set.labels_from_raw_ids(getattr(scene, options.label_set.raw_ids_key))
    scene = replace(scene, labels=labels, meta=replace(scene.meta, options=chosen))
    if is_aligned == stored.align_axis:
        return scene
    matrix = scene.axis_alignment if is_aligned else np.asarray(np.linalg.inv(scene.axis_alignment), np.float64)
    rotation = scene.axis_alignment[:3, :3] if is_aligned else scene.axis_alignment[:3, :3].T
    normals: Any = _move(scene.normals, rotation)  # of another type than stored ones: formats round them as they need
    return replace(scene, points=_move(scene.points, matrix), normals=normals)


def _move(points: NDArray[np.floating[Any]], matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    """Move points (V, 3), as processing does."""
    moved = np.empty(points.shape, np.float32)
    for axis, column in enumerate(move_columns(np.ascontiguousarray(points.T, np.float64), matrix[:3])):
        moved[:, axis] = column
    return moved


def encode_lines(values: NDArray[np.integer[Any]], table: NDArray[np.integer[Any]] | None = None) -> bytes:
    """Write whole numbers from 0 as text, one a line; each distinct one is written once, which is faster.

    Args:
        values: The numbers; with a table, indices into it, -1 for its last entry.
        table: The number for each value.
    """
    if table is None and values.size and int(values.max()) >= _MAX_LINES:
        table, inverse = np.unique(values, return_inverse=True)
        values = inverse.reshape(-1)
    elif table is None:
        table = np.arange(int(values.max(initial=0)) + 1)
    lines = np.array([b"%d\n" % number for number in table.tolist()])
    padded: bytes = lines[values].tobytes()
    return padded.translate(None, b"\0")


def encode_npy(array: NDArray[Any]) -> list[Buffer]:
    """Encode an array as the bytes of an `.npy` file, those of `np.save`, in pieces; large arrays are not copied."""
    array = np.ascontiguousarray(array)
    return [encode_npy_header(array.dtype.str, array.shape), encode_bytes(array)]


def encode_bytes(array: NDArray[Any]) -> Buffer:
    """The bytes of an array, row by row; not copied where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
