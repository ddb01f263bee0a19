"""Make a processed scene from the raw files of one scene.

paths --> fingerprints
      --> mesh --------------------> points, normals, colours
      --> info: axis alignment ----^
      --> segments, groups --------> ids per vertex
      --> no segments, if chosen --> computed from the mesh
      --> labels.ply, if chosen ---> nyu40 ids
all of it --> ProcessedScene
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.version import VERSION
from scannet_prep.errors import ContentError, FileError
from scannet_prep.processed.annotate import Annotation, annotate, measure_groups
from scannet_prep.processed.geometry import points_and_normals
from scannet_prep.processed.ply_labels import take_ply_labels
from scannet_prep.processed.scene import (
    FORMAT_VERSION,
    ProcessedScene,
    ProcessOptions,
    SceneMeta,
    SegmentsSource,
)
from scannet_prep.raw.files import ScanInfo, Segmentation, naming_file, read_raw_files
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.tree import RawScene, repair_hint
from scannet_prep.release import files as release
from scannet_prep.release.files import FileKind
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scenes import Split, official_splits
from scannet_prep.superpoints import segment_mesh

_Contents: TypeAlias = Mapping[FileKind, Any]
"""The raw files of a scene by kind: `Mesh`, `ScanInfo`, `Segmentation`, `Aggregation`."""

# Segments with fewer vertices are joined to others, if edges lead to any.
_MIN_VERTICES = 20
_HINT_FRAGMENTS = "compute no segments for it, or take a mesh whose faces join its vertices"


def process_scene(
    scene: RawScene,
    split: Split,
    options: ProcessOptions,
    label_map: LabelMap,
) -> ProcessedScene:
    """Make a processed scene from raw files.

    Args:
        scene: The raw scene.
        split: Its split.
        options: The options to process with.
        label_map: Ids by raw category.

    Raises:
        FileError: A raw file is missing, cannot be read, is damaged, or does not fit the others.
    """
    paths = options.find_raw_files(scene, split)
    official_split = official_splits().get(scene.scene_id)
    contents, inputs = read_raw_files(paths)
    mesh: Mesh = contents[release.MESH]
    info: ScanInfo = contents.get(release.INFO, ScanInfo(None, None))
    segmentation: Segmentation | None = contents.get(release.SEGMENTS)

    # Labels and instances.
    groups_kind = next((kind for kind in release.GROUPS_KINDS if kind in contents), None)
    annotation = _annotate(paths, contents, groups_kind, label_map)
    raw_ids = getattr(annotation, options.label_set.raw_ids_key)

    # Points and normals.
    axis_alignment = np.eye(4) if info.axis_alignment is None else info.axis_alignment
    points, normals = points_and_normals(
        mesh.positions,
        mesh.faces,
        axis_alignment if options.align_axis else None,
        mesh.normals,
    )

    # Segments.
    segments = None
    segment_ids: tuple[int, ...] = ()
    segments_source: SegmentsSource = "release"
    if segmentation is not None:
        segments = compact_indices(segmentation.indices, len(segmentation.raw_ids))
        segment_ids = tuple(segmentation.raw_ids.tolist())
        if split is Split.TEST or official_split is None:
            segments_source = "beside the mesh"
    elif options.compute_segments:
        with naming_file(paths[release.MESH]):
            segments = compute_segments(mesh)
        segments_source = "computed"

    return ProcessedScene(
        points=points,
        normals=normals,
        colors=mesh.colors,
        stored_labels=options.label_set.labels_from_raw_ids(raw_ids),
        nyu40_ids=annotation.nyu40_ids,
        scannet_ids=annotation.scannet_ids,
        instances=annotation.instances,
        segments=segments,
        faces=mesh.faces if options.faces else None,
        axis_alignment=axis_alignment,
        meta=SceneMeta(
            format_version=FORMAT_VERSION,
            scene_id=scene.scene_id,
            options=options,
            split=split,
            scene_type=info.scene_type,
            groups=measure_groups(annotation.groups, annotation.instances, points),
            segment_ids=segment_ids,
            warnings=(
                *mesh.notes,
                *_find_info_warnings(contents.get(release.INFO), official_split),
                *_find_groups_warnings(scene, contents, groups_kind),
                *annotation.warnings,
            ),
            inputs=inputs,
            label_map=label_map.digest if groups_kind else "",
            program_version=VERSION,
            segments_source=segments_source,
        ),
    )


def _annotate(
    paths: Mapping[FileKind, Path],
    contents: _Contents,
    groups_kind: FileKind | None,
    label_map: LabelMap,
) -> Annotation:
    """Make the ids per vertex from segments, groups and labels, as far as there are any.

    Raises:
        FileError: They do not fit together, or belong to another mesh.
    """
    mesh: Mesh = contents[release.MESH]
    vertex_count = len(mesh.positions)
    annotation = Annotation(
        nyu40_ids=np.zeros(vertex_count, np.uint8),
        scannet_ids=np.zeros(vertex_count, np.uint16),
        instances=np.full(vertex_count, -1, np.int16),
    )
    groups = None
    if release.SEGMENTS in contents:
        segmentation: Segmentation = contents[release.SEGMENTS]
        _check_count(paths[release.SEGMENTS], len(segmentation.indices), vertex_count)
        if groups_kind is not None:
            groups = (segmentation, contents[groups_kind])
            annotation = annotate(*groups, label_map, paths[groups_kind])
    if groups_kind is release.HIGH_RESOLUTION_AGGREGATION:
        for warning in annotation.warnings:
            if warning.kind is WarningKind.UNKNOWN_SEGMENTS:
                problem = f"is for the high-resolution mesh: {warning.fault}"
                raise FileError(paths[groups_kind], problem, repair_hint(paths[release.MESH]))

    if release.LABELS_MESH in contents:
        path = paths[release.LABELS_MESH]
        labels_mesh: Mesh = contents[release.LABELS_MESH]
        _check_count(path, len(labels_mesh.positions), vertex_count)
        if not np.array_equal(labels_mesh.positions, mesh.positions):
            problem = f"its vertices lie elsewhere than those of {release.MESH.suffix}"
            raise FileError(path, problem, repair_hint(path))
        annotation = take_ply_labels(annotation, labels_mesh.labels, path, groups)
    return annotation


def _check_count(
    path: Path,
    count: int,
    expected: int,
) -> None:
    """Check that a file is for as many vertices as the mesh has."""
    if count != expected:
        problem = f"is for {count:,} vertices, but the mesh has {expected:,}"
        raise FileError(path, problem, repair_hint(path))


def compact_indices(
    indices: NDArray[np.integer[Any]],
    count: int,
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Return indices below `count` in the smallest of uint16 and uint32 that holds them."""
    if count <= 1 << 16:
        return indices.astype(np.uint16)
    return indices.astype(np.uint32)


def compute_segments(mesh: Mesh) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Compute the segments of a mesh with the parameters of the release, numbered by first vertex.

    Returns:
        uint16 or uint32 (V,).

    Raises:
        ContentError: Most vertices are in segments that no edges join to others, for example
            because there are no faces.
    """
    positions = mesh.positions
    # Coordinates in float64 may lie far from the origin, where float32 would round away the
    # directions of small triangles.
    if positions.dtype == np.float64:
        positions = positions - positions[0]
    numbers = segment_mesh(positions, mesh.faces)
    if _are_fragments(numbers):
        # Some programs repeat a vertex for each of its faces, so that edges join nothing. The first
        # vertex of each position stands for all.
        _, firsts, places = np.unique(positions, axis=0, return_index=True, return_inverse=True)
        first_vertices = firsts[places.ravel()]
        joined_faces = first_vertices[mesh.faces]
        numbers = segment_mesh(positions, joined_faces)
        numbers = numbers[first_vertices]
        numbers = np.unique(numbers, return_inverse=True)[1].astype(np.int32)
    if _are_fragments(numbers):
        raise ContentError(
            f"its {len(mesh.faces):,} faces join few of its {len(positions):,} vertices: "
            f"there would be {numbers.max() + 1:,} segments",
            _HINT_FRAGMENTS,
        )
    return compact_indices(numbers, int(numbers.max()) + 1)


def _are_fragments(numbers: NDArray[np.integer[Any]]) -> bool:
    """Whether most vertices are in segments that stay small because no edges join them."""
    sizes = np.bincount(numbers)
    small_count = int(sizes[sizes < _MIN_VERTICES].sum())
    return len(sizes) > 1 and 2 * small_count > len(numbers)


def _find_info_warnings(
    info: ScanInfo | None,
    official_split: Split | None,
) -> Iterator[SceneWarning]:
    """Find oddities of the metadata."""
    if info is None:
        yield SceneWarning(WarningKind.NO_INFO)
        return
    if info.axis_alignment is not None:
        fault = _find_alignment_fault(info.axis_alignment)
        if fault:
            yield SceneWarning(WarningKind.NOT_RIGID, fault)
    elif official_split is not Split.TEST:
        yield SceneWarning(WarningKind.NO_ALIGNMENT)


def _find_alignment_fault(matrix: NDArray[np.float64]) -> str:
    """Describe why a matrix, float64 (4, 4), is not a rotation with a shift; empty if it is one."""
    last_row = matrix[3].tolist()
    if last_row != [0, 0, 0, 1]:
        return f"its last row is {last_row}"
    rotation = matrix[:3, :3]
    # The release writes six decimals, so that its rotations are exact up to a few millionths.
    product = rotation @ rotation.T
    deviations = np.abs(product - np.eye(3))
    deviation = float(deviations.max())
    if deviation > 1e-4:
        return f"it deviates by {deviation:.2g} from one"
    if np.linalg.det(rotation) < 0:
        return "it mirrors the points"
    return ""


def _find_groups_warnings(
    scene: RawScene,
    contents: _Contents,
    groups_kind: FileKind | None,
) -> Iterator[SceneWarning]:
    """Find oddities of a scene's place and of its segments and groups, apart from their content."""
    if groups_kind is None:
        if release.LABELS_MESH in contents:
            yield SceneWarning(WarningKind.NO_AGGREGATION)
    elif not contents[groups_kind].groups:
        yield SceneWarning(WarningKind.NO_GROUPS)
    if scene.split is Split.TEST and "scans" in scene.directory.parts[-2:]:
        yield SceneWarning(WarningKind.TEST_IN_SCANS)
    if groups_kind is release.HIGH_RESOLUTION_AGGREGATION:
        yield SceneWarning(WarningKind.HIGH_RESOLUTION_AGGREGATION, groups_kind.suffix)
    for kind, content in contents.items():
        if kind in (release.SEGMENTS, groups_kind) and content.scene_id not in ("", scene.scene_id):
            subject = f"{scene.path(kind).name} says that it belongs to {content.scene_id!r:.40}"
            yield SceneWarning(WarningKind.OTHER_SCENE, subject)
