"""The definition of a format, and the conversions that several formats need.

processed scene, settings --Format.encode--> files, record
records of all scenes     --Format.share --> lists
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.npz import encode_npy_header
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import SceneId, Split

FileContents: TypeAlias = dict[str, Sequence[Buffer]]
"""The content of files by name, relative to the folder of the export, with `/`."""

Record: TypeAlias = Mapping[str, Any]
"""JSON values of a scene that `Format.share` needs; the manifest of the export keeps them."""

Records: TypeAlias = Mapping[Split, Mapping[str, Record]]
"""The record of every exported scene, by split and scene id, sorted."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings of an export, for all scenes. A format uses some of them.

    Attributes:
        label_set: The classes of the labels, for formats that hold a single label set.
        is_aligned: Whether points are in the axis-aligned frame.
        points: Largest number of points per scene, which are drawn at random; None for every
            vertex.
    """

    label_set: LabelSet = SCANNET20
    is_aligned: bool = False
    points: int | None = 50_000


def share_nothing(records: Records, settings: ExportSettings) -> Mapping[str, bytes]:  # noqa: ARG001 - as `Format.share`
    """Make no files that concern all scenes."""
    return {}


@dataclass(frozen=True, slots=True)
class Format:
    """The layout that another program reads.

    Attributes:
        encode: Makes the files of one scene, and its record. Equal scenes give equal bytes. Raises
            ScanNetPrepError if the format cannot represent the scene.
        uses: The names of the settings that the files depend on.
        aligned_with: The label sets with which the other program aligns points; None if it takes
            any frame.
        needs: What test scenes have not, or only if it was computed: `annotation` or `segments`.
        share: Makes the files that concern all scenes, such as lists.
    """

    encode: Callable[[ProcessedScene, ExportSettings], tuple[FileContents, Record]]
    uses: tuple[str, ...]
    aligned_with: Collection[LabelSet] | None = ()
    needs: Literal["", "annotation", "segments"] = ""
    share: Callable[[Records, ExportSettings], Mapping[str, bytes]] = share_nothing


def convert_scene(scene: ProcessedScene, settings: ExportSettings) -> ProcessedScene:
    """Convert a scene to the frame and the label set of the settings.

    Aligning is exact: processing uses the same formula in float64. Going back inverts the matrix in
    float64. The result is not always equal to the mesh, but differs by at most one unit of the last
    place that float32 has for the largest coordinates of the scene (4.8e-7 m within 8 m of the
    origin).

    Returns:
        The scene. If its frame has changed, its normals are float32; the boxes of its groups are
        still those of the stored frame.

    Raises:
        ScanNetPrepError: The frame of a scene of the release is unknown, because its metadata was
            missing.
    """
    stored = scene.meta.options
    label_set = settings.label_set
    is_aligned = settings.is_aligned
    chosen = replace(stored, scannet200=label_set == SCANNET200, align_axis=is_aligned)
    labels = label_set.labels_from_raw_ids(getattr(scene, label_set.raw_ids_key))
    scene = replace(scene, stored_labels=labels, meta=replace(scene.meta, options=chosen))
    if is_aligned == stored.align_axis:
        return scene
    has_no_info = any(warning.kind is WarningKind.NO_INFO for warning in scene.meta.warnings)
    if (
        has_no_info
        and scene.meta.split is not Split.TEST
        and not SceneId.is_own(scene.meta.scene_id)
    ):
        raise ScanNetPrepError(
            f"{scene.meta.scene_id} has no axis alignment",
            "download its .txt, then process the scene again",
        )

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


def segments_of(scene: ProcessedScene) -> NDArray[np.unsignedinteger[Any]]:
    """Return the segment of each vertex, contiguous from 0, (V,).

    Raises:
        ScanNetPrepError: The scene has none.
    """
    if scene.segments is None:
        raise ScanNetPrepError(
            f"{scene.meta.scene_id} has no segments, which this format needs",
            "download its segments, then process the scene again",
        )
    return scene.segments


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
