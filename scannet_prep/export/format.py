"""The interface of export formats, and the conversions that several of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer, Fingerprint
from scannet_prep.errors import FileError, UsageError
from scannet_prep.export import Setting
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.npz import encode_npy_header
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.release.files import SEGMENTS
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split

# Largest table of lines that is made for all numbers, whether they occur or not.
_MAX_LINES = 1 << 14


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The choices of a user. A format refuses those that it does not support.

    Attributes:
        label_set: The classes of the labels, for formats that hold a single label set; None for the
            label set that the scenes were processed with.
        is_aligned: Whether points are in the axis-aligned frame; None for the frame that the other
            program uses.
        variant: A program that reads a dialect of the format, such as `oneformer3d`; empty for the
            format itself.
        test_segments: The folder with segments of test scenes, which the release lacks.
        points: Largest number of points per scene, which are drawn at random; `all` for every
            vertex, in the order of the mesh; None for the number that the other program uses.
        seed: The seed of the drawn points, at least 0; None for 0.
    """

    label_set: LabelSet | None = None
    is_aligned: bool | None = None
    variant: str = ""
    test_segments: Path | None = None
    points: int | Literal["all"] | None = None
    seed: int | None = None


class ProcessedFile:
    """Stands for the content of the processed scene's own file.

    The exporter links to that file if possible, and copies it otherwise.
    """


PROCESSED_FILE: Final = ProcessedFile()
FileContent: TypeAlias = Iterable[Buffer] | ProcessedFile


@dataclass(frozen=True, slots=True, eq=False)
class ExportedScene:
    """The files of one scene.

    Attributes:
        files: The content of each file, by name, relative to the folder of the export, with `/`.
        record: JSON values of this scene that `encode_shared` needs. The manifest of the export
            keeps them, so that a later run can list scenes that it did not make.
    """

    files: Mapping[str, FileContent]
    record: Mapping[str, Any] = field(default_factory=dict)


class ExportFormat(ABC):
    """The layout that another program reads. Picklable: each worker process gets one.

    Args:
        options: The choices of the user.

    Raises:
        UsageError: The format does not support them.
    """

    name: ClassVar[str]
    """The name for `--format`."""
    variants: ClassVar[tuple[str, ...]] = ()
    """The dialects of the format: the programs that read them, or the colours of a mesh."""
    uses_label_set: ClassVar[bool] = True
    """Whether the files depend on the chosen label set. If not, they hold both, or raw ids."""
    uses_frame: ClassVar[bool] = True
    """Whether the files depend on the chosen frame. If not, they hold both, or no points."""
    is_aligned: ClassVar[bool | None] = False
    """Whether the other program aligns points; None if it takes any frame."""
    uses_test_segments: ClassVar[bool] = False
    """Whether the format reads segments of test scenes."""
    draws_points: ClassVar[bool] = False
    """Whether the other program reads a part of the points of a scene, drawn at random."""
    inherited_options: ClassVar[tuple[str, ...]] = ("align_axis", "labels_from")
    """The options of the processed scenes that change the files, in any frame and label set.

    `align_axis` is one of them because a change of frame rounds points and normals.
    """

    def __init__(self, options: ExportOptions) -> None:
        self._check_options(options)
        self.label_set = SCANNET20
        if self.uses_label_set and options.label_set is not None:
            self.label_set = options.label_set
        is_aligned = self.is_aligned
        if self.uses_frame and options.is_aligned is not None:
            is_aligned = options.is_aligned
        self.options = replace(options, label_set=self.label_set, is_aligned=is_aligned)

    def _check_options(self, options: ExportOptions) -> None:
        if options.variant and options.variant not in self.variants:
            hint = "leave out --for and --color"
            if self.variants:
                hint = f"there are: {', '.join(self.variants)}"
            problem = f"the format {self.name} has no dialect for {options.variant!r}"
            raise UsageError(problem, hint)
        if options.test_segments is not None and not self.uses_test_segments:
            problem = f"the format {self.name} takes no segments of test scenes"
            raise UsageError(problem, "leave out --test-segments")
        chooses_points = options.points is not None or options.seed is not None
        if chooses_points and not self.draws_points:
            problem = f"the format {self.name} always has all points of a scene"
            raise UsageError(problem, "leave out --points and --seed")

    @property
    def settings(self) -> dict[str, Setting]:
        """The settings that all scenes of an export share, for its manifest."""
        return {
            "format": self.name,
            "label_set": self.label_set.name if self.uses_label_set else "",
            "aligned": bool(self.options.is_aligned),
            "variant": self.options.variant,
        }

    def inherited_settings(self, stored: ProcessOptions) -> dict[str, Setting]:
        """Return the settings of an export that come from its processed scenes."""
        return {f"processed_{name}": getattr(stored, name) for name in self.inherited_options}

    def default_label_set(self, stored: LabelSet) -> LabelSet:
        """Return the label set that is used if the user chooses none.

        Args:
            stored: The label set that the scenes were processed with.
        """
        return stored

    def exclusion_reason(self, split: Split, stored: ProcessOptions) -> str:  # noqa: ARG002 - for formats that cannot hold a split
        """Return the reason why the scenes of a split are left out; empty if they are exported.

        Args:
            split: The split.
            stored: The options that the scenes were processed with.
        """
        return ""

    def extra_input_fingerprints(self, scene_id: str, split: Split) -> dict[str, str]:
        """Return the fingerprints of files that a scene is made from beside the processed one.

        Only test scenes have such a file: their segments, if a folder of them is given.

        Returns:
            Size and CRC-32 of the file, for the record of the scene; nothing if it does not exist.
        """
        if split is not Split.TEST or self.options.test_segments is None:
            return {}
        path = self.options.test_segments / f"{scene_id}{SEGMENTS.suffix}"
        try:
            fingerprint = Fingerprint.from_file(path)
        except FileError:
            return {}
        return {"test_segments": f"{fingerprint.size_bytes} {fingerprint.crc32}"}

    @abstractmethod
    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the files of one scene. Equal scenes give equal bytes.

        Raises:
            ScanNetPrepError: The format cannot represent the scene.
        """

    def encode_shared(
        self,
        records: Mapping[str, tuple[Split, Mapping[str, Any]]],  # noqa: ARG002
    ) -> Mapping[str, bytes]:
        """Make the files that concern all scenes, such as lists.

        Args:
            records: Split and record of every exported scene, by scene id, sorted.

        Returns:
            The content of each file, by name.
        """
        return {}


def convert_scene(scene: ProcessedScene, options: ExportOptions) -> ProcessedScene:
    """Convert a scene to the frame and the label set of the options.

    Aligning is exact: processing uses the same formula in float64. Going back inverts the matrix in
    float64. The result is not always equal to the mesh, but differs by at most one unit of the last
    place that float32 has for the largest coordinates of the scene (4.8e-7 m within 8 m of the
    origin).

    Returns:
        The scene. If its frame has changed, its normals are float32; the boxes of its groups are
        still those of the stored frame.
    """
    stored = scene.meta.options
    is_aligned = stored.align_axis if options.is_aligned is None else options.is_aligned
    label_set = options.label_set or stored.label_set
    chosen = replace(stored, scannet200=label_set == SCANNET200, align_axis=is_aligned)
    labels = label_set.labels_from_raw_ids(getattr(scene, label_set.raw_ids_key))
    scene = replace(scene, stored_labels=labels, meta=replace(scene.meta, options=chosen))
    if is_aligned == stored.align_axis:
        return scene

    # Normals need the cofactor matrix, which for a rotation is the rotation itself.
    aligned_from_scan = scene.axis_alignment
    if is_aligned:
        matrix = aligned_from_scan
        rotation = aligned_from_scan[:3, :3]
    else:
        matrix = np.asarray(np.linalg.inv(aligned_from_scan), np.float64)
        rotation = aligned_from_scan[:3, :3].T
    # Stored normals are float16. Each format rounds these as it needs.
    normals: Any = _move(scene.normals, rotation)
    return replace(scene, points=_move(scene.points, matrix), normals=normals)


def _move(points: NDArray[np.floating[Any]], matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    """Move points or normals, (V, 3), with the formula of processing."""
    moved = np.empty(points.shape, np.float32)
    columns = np.ascontiguousarray(points.T, np.float64)
    for axis, column in enumerate(move_columns(columns, matrix[:3])):
        moved[:, axis] = column
    return moved


def encode_lines(
    values: NDArray[np.integer[Any]], table: NDArray[np.integer[Any]] | None = None
) -> bytes:
    """Encode non-negative integers as text, one per line.

    Each distinct number is formatted once, which takes a hundredth of the time of `np.savetxt`.

    Args:
        values: The numbers; with a table, indices into it, -1 for its last entry.
        table: The number for each index.
    """
    if table is None:
        # All numbers up to the largest, if they are few; else only those that occur.
        largest = int(values.max(initial=0))
        if largest < _MAX_LINES:
            table = np.arange(largest + 1)
        else:
            table, inverse = np.unique(values, return_inverse=True)
            values = inverse.reshape(-1)
    lines = np.array([b"%d\n" % number for number in table.tolist()])
    # NumPy pads shorter lines with zero bytes, which are removed.
    padded: bytes = lines[values].tobytes()
    return padded.translate(None, b"\0")


def encode_npy(array: NDArray[Any]) -> list[Buffer]:
    """Encode an array as an `.npy` file, as `np.save` does, without a copy of a large array."""
    array = np.ascontiguousarray(array)
    return [encode_npy_header(array.dtype.str, array.shape), encode_bytes(array)]


def encode_bytes(array: NDArray[Any]) -> Buffer:
    """Return the bytes of an array in C order, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
