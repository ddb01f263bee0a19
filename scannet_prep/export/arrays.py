"""Conversions that several formats need: frames, text, and annotated objects with their boxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.processed.annotate import raw_ids_by_group, split_by_group, table_by_group
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.npz import encode_npy_header
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.label_sets import SCANNET20, LabelSet
from scannet_prep.release.scenes import RELEASE_ID, Split

SceneFiles: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""The files of a scene by name, relative to the folder of the export, with `/`: arrays, bytes, or
lists of pieces. And its record: the JSON values that `share_<format>` needs."""

Records: TypeAlias = Mapping[Split, Mapping[str, Any]]
"""The record of every exported scene, by split and scene id, sorted."""

# Names in the programs that are not those of ScanNet20.
_SPELLINGS_20 = {"shower curtain": "showercurtrain", "otherfurniture": "garbagebin"}
_MAX_NUMBER = 999
# The programs store the number plus one as uint32.
_OBJECT_IDS = range(2**32 - 1)


def in_frame(scene: ProcessedScene, *, is_aligned: bool) -> ProcessedScene:
    """Convert points and normals of a scene to a frame.

    Aligning is exact: processing uses the same formula in float64. Going back inverts the matrix in
    float64. The result is not always equal to the mesh, but differs by at most one unit of the last
    place that float32 has for the largest coordinates of the scene (4.8e-7 m within 8 m of the
    origin).

    Returns:
        The scene, with its options. If its frame has changed, its normals are float32; the boxes of
        its groups are still those of the stored frame.

    Raises:
        ScanNetPrepError: See `alignment_of`.
    """
    meta = scene.meta
    if is_aligned == meta.options.align_axis:
        return scene
    matrix: NDArray[Any] = alignment_of(scene)
    # Normals need the cofactor matrix, which for a rotation is the rotation itself.
    rotation = matrix[:3, :3]
    if not is_aligned:
        matrix = np.linalg.inv(matrix)
        rotation = rotation.T
    # Stored normals are float16. Each format rounds the moved ones as it needs.
    normals = _move(scene.normals, rotation)
    meta = replace(meta, options=replace(meta.options, align_axis=is_aligned))
    return replace(scene, meta=meta, points=_move(scene.points, matrix[:3]), normals=normals)


def alignment_of(scene: ProcessedScene) -> NDArray[np.float64]:
    """Return the axis alignment of a scene, (4, 4).

    Raises:
        ScanNetPrepError: The alignment of a scene of the release is unknown, because its metadata
            was missing.
    """
    meta = scene.meta
    kinds = {warning.kind for warning in meta.warnings}
    is_annotated = meta.split is not Split.TEST and RELEASE_ID.fullmatch(meta.scene_id)
    if is_annotated and WarningKind.NO_INFO in kinds:
        raise ScanNetPrepError(
            f"{meta.scene_id} has no axis alignment",
            "download its .txt, then process the scene again",
        )
    return scene.axis_alignment


def _move(rows: NDArray[Any], matrix: NDArray[Any]) -> NDArray[Any]:
    """Move points or normals with the formula of processing; float32 (V, 3)."""
    columns = np.ascontiguousarray(rows.T, np.float64)
    return move_columns(columns, matrix).T.astype(np.float32, order="C")


def encode_lines(values: NDArray[Any], table: NDArray[Any] | None = None) -> bytes:
    """Encode non-negative integers as text, one per line.

    Each number of the table is formatted once, which takes a hundredth of the time of `np.savetxt`.

    Args:
        values: Small numbers; with a table, indices into it, -1 for its last entry.
        table: The number for each index.
    """
    if table is None:
        table = np.arange(int(values.max()) + 1)
    lines = np.array([b"%d\n" % number for number in table.tolist()])
    # NumPy pads shorter lines with zero bytes, which are removed.
    return bytes(lines[values]).translate(None, b"\0")


def encode_instances(
    scene: ProcessedScene,
    label_set: LabelSet,
    numbers: NDArray[Any],
) -> bytes:
    """Encode the instances as the official evaluators read them: raw id * 1000 + number.

    The raw id is that of the group: with labels from `labels.ply`, the vertices of a group may have
    several raw ids, but evaluators expect one.

    Args:
        scene: The scene.
        label_set: The label set of the raw ids.
        numbers: A table of the number of each group, from 1; 0 for "no group", and for groups
            that become no instance, because they have no raw id.

    Raises:
        ScanNetPrepError: A number is so large that it would reach the next raw id.
    """
    largest = numbers.max()
    if largest > _MAX_NUMBER:
        raise ScanNetPrepError(
            f"{scene.meta.scene_id} has an instance {largest:,}, but ground truth has room for "
            f"1 to {_MAX_NUMBER}"
        )
    raw_ids = raw_ids_by_group(scene.meta.groups, label_set)
    return encode_lines(scene.instances, raw_ids * 1000 + numbers)


def encode_file(name: str, content: Any) -> list[Any]:  # noqa: ANN401 - see `SceneFiles`
    """Encode a file as pieces; an array as `np.save` does, or for other names as its bytes."""
    if name.endswith(".npy"):
        header = encode_npy_header(content.dtype.str, content.shape)
        return [header, np.ascontiguousarray(content)]
    return content if isinstance(content, list) else [content]


def box_classes(label_set: LabelSet) -> dict[int, str]:
    """Return the classes that have boxes, all but wall and floor, by raw id.

    Those of ScanNet20 are the 18 classes of VoteNet, in the spelling of the programs.
    """
    spellings = _SPELLINGS_20 if label_set == SCANNET20 else {}
    return {
        label_class.raw_id: spellings.get(label_class.name, label_class.name)
        for label_class in label_set
        if label_class.train_id in label_set.things
    }


def vertex_raw_ids(scene: ProcessedScene, label_set: LabelSet) -> NDArray[np.int64]:
    """Return the raw id of each vertex: that of its group, or its own if it belongs to no group.

    With labels from `labels.ply`, the vertices of a group may have other raw ids than the group.

    Returns:
        int64 (V,), 0 unannotated.
    """
    raw_ids = raw_ids_by_group(scene.meta.groups, label_set)
    own_raw_ids = getattr(scene, label_set.raw_ids_key)
    return np.where(scene.instances < 0, own_raw_ids, raw_ids.take(scene.instances))


def segments_of(scene: ProcessedScene) -> NDArray[np.int64]:
    """Return the segments of a scene.

    Raises:
        ScanNetPrepError: It has none.
    """
    if scene.segments is None:
        raise ScanNetPrepError(
            f"{scene.meta.scene_id} has no segments, which this format needs",
            "process the scene again, with its segments or with --compute-segments",
        )
    return scene.segments.astype(np.int64)


def number_objects(scene: ProcessedScene, *, copy: int) -> NDArray[np.int64]:
    """Make a table of the `objectId` of each group, -1 for "no group".

    A group without an `objectId` gets its own id. If the numbers are not distinct and usable, all
    groups get their own ids.

    Args:
        scene: The scene.
        copy: Which `objectId` to take for a group that the release repeats: 0 for that of the first
            copy, -1 for that of the last, as in programs in which later groups replace earlier
            ones.
    """
    numbers = {}
    for group in scene.meta.groups:
        own_id = group.id if group.object_id is None else group.object_id
        numbers[group.id] = [own_id, *group.aliases][copy]
    usable = {number for number in numbers.values() if number in _OBJECT_IDS}
    if len(usable) < len(numbers):
        numbers = {group_id: group_id for group_id in numbers}
    return table_by_group(numbers, none=-1)


def find_boxes(
    scene: ProcessedScene,
    label_set: LabelSet,
    classes: Collection[int],
    objects: NDArray[np.int64],
    matrix: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Find the boxes of the objects that have vertices and one of these classes.

    The class of an object is that of its group, also if its vertices have other labels.

    Args:
        scene: The scene.
        label_set: The label set of the raw ids.
        classes: The raw ids of the classes that have boxes.
        objects: From `number_objects`.
        matrix: (3, 4), moves the points to the frame of the boxes, in float64; None for boxes in
            the frame of the points and in float32.

    Returns:
        float64 (K, 8), by ascending object id: centre x, y, z and size x, y, z, in metres; raw id;
        object id.
    """
    rows = []
    raw_ids = raw_ids_by_group(scene.meta.groups, label_set).tolist()
    for group_id, members in split_by_group(scene.points.T, scene.instances).items():
        if raw_ids[group_id] in classes:
            if matrix is not None:
                members = move_columns(members.astype(np.float64), matrix)
            first = members.min(axis=1)
            last = members.max(axis=1)
            center = (first + last) / 2
            size = last - first
            rows.append([*center, *size, raw_ids[group_id], objects[group_id]])
    boxes = np.array(rows, np.float64).reshape(-1, 8)
    return boxes[boxes[:, -1].argsort()]
