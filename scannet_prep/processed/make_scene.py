"""Make a processed scene from the raw files of one scene.

paths --> bytes, read once --> fingerprints
                           --> mesh --------------------> points, normals, colours
                           --> info: axis alignment ----^
                           --> segments, groups --------> ids per vertex
                           --> no segments, if chosen --> computed from the mesh
                           --> labels.ply, if chosen ---^
                           --> ProcessedScene
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.version import VERSION
from scannet_prep.errors import AnnotationError, FileError, MissingFileError
from scannet_prep.processed.annotate import (
    Annotation,
    annotate,
    find_contradictions,
    measure_groups,
)
from scannet_prep.processed.geometry import points_and_normals
from scannet_prep.processed.scene import (
    FORMAT_VERSION,
    ProcessedScene,
    ProcessOptions,
    SceneMeta,
    SegmentsSource,
)
from scannet_prep.raw.check import read_raw_file
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.scan_info import ScanInfo, find_alignment_fault
from scannet_prep.raw.segments import Aggregation, Segmentation, compact_unsigned
from scannet_prep.raw.tree import RawScene, repair_hint
from scannet_prep.release import files as release
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import MAX_NYU40_ID, LabelMap
from scannet_prep.release.scene import Split
from scannet_prep.superpoints import segment_mesh

_GROUPS_KINDS = (release.AGGREGATION, release.HIGH_RESOLUTION_AGGREGATION)

RawFiles: TypeAlias = dict[release.FileKind, bytes]
"""The bytes of the raw files of a scene, by kind."""
RawContents: TypeAlias = Mapping[release.FileKind, Any]
"""The parsed raw files by kind: `Mesh`, `LabelsMesh`, `ScanInfo`, `Segmentation`, `Aggregation`."""

# Labels of the release that are not nyu40 ids: 50 in scene0270_00 and scene0270_02, and 149 in
# scene0384_00.
_KNOWN_OUTSIDE_NYU40 = (50, 149)
# Beyond this distance in metres, float32 has steps of more than 0.05 mm.
_FAR_M = 1_000
# In ScanNet v2, labels.ply and the groups are equal except for overlaps. A segment, the smallest
# unit of both, has at least 20 vertices, so a single wrong label of a segment exceeds this number.
_MAX_CONTRADICTIONS = 10
_V1_CAUSE = "a labels.ply of ScanNet v1 holds ScanNet ids, not nyu40 ids"


def find_raw_files(
    scene: RawScene, split: Split, options: ProcessOptions
) -> dict[release.FileKind, Path]:
    """Find the files that a scene is made from, by kind; at most one of the two kinds of groups.

    Train and val scenes need their annotation, and their metadata if points are aligned. Test
    scenes have no annotation.

    Raises:
        MissingFileError: A required file is missing.
        FileError: The scene cannot be used, for example because it exists twice.
    """
    if scene.problem:
        raise FileError(scene.directory, scene.problem)
    groups_kind = scene.find_groups_kind()
    needed, optional = _choose_kinds(split, options, groups_kind)
    if scene.is_own:
        needed.discard(release.INFO)
    paths = {}
    wanted = needed | optional
    for kind in release.INPUT_KINDS:
        path = scene.path(kind)
        if kind in wanted and is_there(path):
            paths[kind] = path
        elif kind in needed:
            raise MissingFileError(path, "no such file", repair_hint(path))
    # Without groups, nothing but labels.ply has labels, and it has nyu40 ids only.
    if options.scannet200 and release.LABELS_MESH in paths and groups_kind is None:
        path = scene.path(release.AGGREGATION)
        raise MissingFileError(
            path,
            "no such file, and labels.ply holds no ScanNet ids",
            f"{repair_hint(path)}; or leave out --scannet200",
        )
    return paths


def _choose_kinds(
    split: Split, options: ProcessOptions, groups_kind: release.FileKind | None
) -> tuple[set[release.FileKind], set[release.FileKind]]:
    """Choose the kinds of files that a scene needs, and those that it uses if they exist.

    Args:
        split: The split of the scene.
        options: The options to process with.
        groups_kind: The kind of its groups; None if it has none.
    """
    needed = {release.MESH}
    optional = {release.INFO}
    if split is Split.TEST:
        return needed, optional
    optional.add(release.SEGMENTS)
    if options.align_axis:
        needed.add(release.INFO)
    is_from_ply = options.labels_from == "ply"
    if is_from_ply:
        needed.add(release.LABELS_MESH)
    # With labels from labels.ply, a scene may lack groups: it then has no instances. If it has
    # groups, they need segments.
    if not is_from_ply or groups_kind is not None:
        needed |= {release.SEGMENTS, groups_kind or release.AGGREGATION}
    return needed, optional


def read_raw_files(paths: Mapping[release.FileKind, Path]) -> RawFiles:
    """Read the raw files of a scene.

    Raises:
        FileError: A file cannot be read.
    """
    return {kind: read_file(path, kind.max_bytes) for kind, path in paths.items()}


def fingerprint_files(scene: RawScene, files: RawFiles) -> dict[str, Fingerprint]:
    """Compute the fingerprints of raw files, by file name."""
    return {scene.path(kind).name: Fingerprint.from_bytes(data) for kind, data in files.items()}


def process_scene(
    scene: RawScene,
    split: Split,
    options: ProcessOptions,
    label_map: LabelMap,
    files: RawFiles | None = None,
) -> ProcessedScene:
    """Make a processed scene from raw files.

    Args:
        scene: The raw scene.
        split: Its split.
        options: The options to process with.
        label_map: Ids by raw category.
        files: The raw files; by default, they are found and read.

    Raises:
        FileError: A raw file is missing, cannot be read, or is damaged.
        AnnotationError: The files do not fit together.
    """
    if files is None:
        files = read_raw_files(find_raw_files(scene, split, options))
    inputs = fingerprint_files(scene, files)
    contents: dict[release.FileKind, Any] = {}
    for kind in files:
        contents[kind] = read_raw_file(kind, scene.path(kind), scene.scene_id)
    processed = combine_contents(scene, split, options, label_map, contents)
    # `combine_contents` never sees the bytes, so it leaves the fingerprints out.
    return replace(processed, meta=replace(processed.meta, inputs=inputs))


def combine_contents(
    scene: RawScene,
    split: Split,
    options: ProcessOptions,
    label_map: LabelMap,
    contents: RawContents,
) -> ProcessedScene:
    """Make a processed scene, without fingerprints of its inputs, from parsed files.

    Raises:
        AnnotationError: The files do not fit together.
    """
    mesh: Mesh = contents[release.MESH]
    info: ScanInfo = contents.get(release.INFO, ScanInfo(None, None))
    segmentation: Segmentation | None = contents.get(release.SEGMENTS)

    # Labels and instances.
    annotation = _make_annotation(scene, contents, label_map)
    if release.LABELS_MESH in contents:
        annotation = _take_ply_labels(scene, contents, annotation)
    raw_ids: NDArray[Any] = annotation.scannet_ids
    if options.label_set.raw_ids_key == "nyu40_ids":
        raw_ids = annotation.nyu40_ids

    # Points and normals.
    axis_alignment = np.eye(4)
    if info.axis_alignment is not None:
        axis_alignment = info.axis_alignment
    points, normals = points_and_normals(
        mesh.positions,
        mesh.faces,
        axis_alignment if options.align_axis else None,
    )

    # Segments.
    segments = None
    segment_ids: tuple[int, ...] = ()
    segments_source: SegmentsSource = "release"
    if segmentation is not None:
        segments = segmentation.compact_indices()
        segment_ids = tuple(segmentation.raw_ids.tolist())
    elif options.compute_segments:
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
            warnings=(*_find_warnings(scene, split, contents), *annotation.warnings),
            inputs={},
            label_map=used_label_map(contents, label_map),
            program_version=VERSION,
            segments_source=segments_source,
        ),
    )


def compute_segments(mesh: Mesh) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Compute the segments of a mesh, with the parameters of the release.

    Returns:
        uint16 or uint32 (V,), numbered by first vertex.
    """
    positions = mesh.positions
    # So far from the origin, float32 would round away the directions of small triangles. A shift
    # keeps them. Only own scenes with coordinates in float64 can lie there.
    if positions.dtype == np.float64 and np.abs(positions).max() > _FAR_M:
        positions = positions - (positions.min(axis=0) + positions.max(axis=0)) / 2
    numbers = segment_mesh(positions, mesh.faces)
    return compact_unsigned(numbers, int(numbers.max()) + 1)


def _make_annotation(scene: RawScene, contents: RawContents, label_map: LabelMap) -> Annotation:
    """Make the ids per vertex from segments and groups, as far as there are any.

    Raises:
        AnnotationError: They do not fit together, or belong to another mesh.
    """
    segmentation: Segmentation | None = contents.get(release.SEGMENTS)
    groups_kind = _find_groups_kind(contents)
    count = contents[release.MESH].vertex_count
    if segmentation is not None:
        _check_count(scene.path(release.SEGMENTS), len(segmentation.indices), count)
    if segmentation is None or groups_kind is None:
        return Annotation(
            nyu40_ids=np.zeros(count, np.uint8),
            scannet_ids=np.zeros(count, np.uint16),
            instances=np.full(count, -1, np.int16),
        )

    path = scene.path(groups_kind)
    try:
        annotation = annotate(segmentation, contents[groups_kind], label_map)
    except AnnotationError as error:
        raise AnnotationError(f"{path}: {error.message}", error.hint) from None
    if groups_kind is release.HIGH_RESOLUTION_AGGREGATION:
        _check_segments_known(scene, path, annotation)
    return annotation


def _check_segments_known(scene: RawScene, path: Path, annotation: Annotation) -> None:
    """Check that groups of the high-resolution mesh refer to the segments of the scene's mesh."""
    unknown = 0
    for warning in annotation.warnings:
        if warning.kind is WarningKind.UNKNOWN_SEGMENTS:
            unknown += warning.count
    if unknown:
        raise AnnotationError(
            f"{path}: is for the high-resolution mesh: "
            f"{unknown:,} of its segment ids occur at no vertex",
            repair_hint(scene.path(release.AGGREGATION)),
        )


def _take_ply_labels(scene: RawScene, contents: RawContents, annotation: Annotation) -> Annotation:
    """Replace the nyu40 ids of an annotation by those of `labels.ply`.

    Raises:
        AnnotationError: The file belongs to another mesh, or contradicts the groups.
    """
    path = scene.path(release.LABELS_MESH)
    labels_mesh: Mesh = contents[release.LABELS_MESH]
    nyu40_ids, warnings = match_ply_labels(path, labels_mesh, contents[release.MESH])
    warnings += _compare_with_groups(path, contents, annotation)
    return replace(annotation, nyu40_ids=nyu40_ids, warnings=(*annotation.warnings, *warnings))


def used_label_map(kinds: Collection[release.FileKind], label_map: LabelMap) -> str:
    """Return the digest of the label map; empty if a scene made of these files has no groups."""
    return "" if _find_groups_kind(kinds) is None else label_map.digest


def _find_groups_kind(kinds: Collection[release.FileKind]) -> release.FileKind | None:
    """Return the kind of the groups among the files of a scene; None if there are no groups."""
    for kind in _GROUPS_KINDS:
        if kind in kinds:
            return kind
    return None


def match_ply_labels(
    path: Path, labels_mesh: Mesh, mesh: Mesh
) -> tuple[NDArray[np.uint8], tuple[SceneWarning, ...]]:
    """Take the nyu40 ids from a `labels.ply` that belongs to the scene's mesh.

    Args:
        path: The name of the file, for messages.
        labels_mesh: Its content.
        mesh: The mesh of the scene.

    Returns:
        uint8 (V,), 0 unannotated; and a warning if the file contains the ids 50 or 149, as in three
        scenes of the release.

    Raises:
        AnnotationError: The file belongs to another mesh, or contains other ids that are not nyu40
            ids.
    """
    _check_count(path, labels_mesh.vertex_count, mesh.vertex_count)
    if not np.array_equal(labels_mesh.positions, mesh.positions):
        raise AnnotationError(
            f"{path}: its vertices lie elsewhere than those of "
            f"{path.parent.name}{release.MESH.suffix}",
            repair_hint(path),
        )
    labels = labels_mesh.labels
    is_outside = labels > MAX_NYU40_ID
    nyu40_ids = np.where(is_outside, 0, labels).astype(np.uint8)
    if not is_outside.any():
        return nyu40_ids, ()
    outside_ids = np.unique(labels[is_outside]).tolist()
    count = int(np.count_nonzero(is_outside))
    listed = ", ".join(map(str, outside_ids[:5]))
    if not set(outside_ids).issubset(_KNOWN_OUTSIDE_NYU40):
        raise AnnotationError(
            f"{path}: {count:,} of {len(labels):,} labels are not nyu40 ids (0 to {MAX_NYU40_ID}), "
            f"for example {listed}: {_V1_CAUSE}",
            _describe_v1_remedy(path),
        )
    return nyu40_ids, (SceneWarning(WarningKind.LABELS_OUTSIDE_NYU40, listed, count),)


def _describe_v1_remedy(path: Path) -> str:
    """Return the hint for a `labels.ply` of ScanNet v1."""
    return (
        f"remove it, then {repair_hint(path)}; "
        "or leave out --labels-from ply, to take the labels from the groups"
    )


def _compare_with_groups(
    path: Path, contents: RawContents, annotation: Annotation
) -> tuple[SceneWarning, ...]:
    """Compare a `labels.ply` with the groups, if the scene has any.

    Returns:
        A warning if the groups contradict the labels of a few vertices.

    Raises:
        AnnotationError: The groups contradict the labels of more than `_MAX_CONTRADICTIONS`
            vertices.
    """
    groups_kind = _find_groups_kind(contents)
    if groups_kind is None:
        return ()
    labels = contents[release.LABELS_MESH].labels
    contradicts = find_contradictions(labels, contents[release.SEGMENTS], contents[groups_kind])
    # Only vertices of groups count. At the others, a label shows at most that a group is missing,
    # which `verify` reports.
    contradicts &= annotation.instances >= 0
    count = int(np.count_nonzero(contradicts))
    if count > _MAX_CONTRADICTIONS:
        vertex = int(np.argmax(contradicts))
        raise AnnotationError(
            f"{path}: the groups contradict {count:,} of {len(labels):,} labels, "
            f"for example that of vertex {vertex}: "
            f"{labels[vertex]}, by the groups {annotation.nyu40_ids[vertex]}: {_V1_CAUSE}",
            _describe_v1_remedy(path),
        )
    if not count:
        return ()
    return (SceneWarning(WarningKind.LABELS_CONTRADICT_GROUPS, count=count),)


def is_there(path: Path) -> bool:
    """Whether something has this name, even a broken link: reading it then raises an error.

    Raises:
        FileError: Its folder cannot be opened.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError(path, f"cannot be accessed: {error.strerror or error}") from error
    return True


def _check_count(path: Path, count: int, mesh_count: int) -> None:
    """Check that a file is for as many vertices as the mesh has."""
    if count != mesh_count:
        mesh_name = f"{path.parent.name}{release.MESH.suffix}"
        raise AnnotationError(
            f"{path}: is for {count:,} vertices, but {mesh_name} has {mesh_count:,}",
            repair_hint(path),
        )


def _find_warnings(scene: RawScene, split: Split, contents: RawContents) -> Iterator[SceneWarning]:
    """Find oddities of the raw files, apart from those of the annotation."""
    mesh = contents[release.MESH]
    yield from mesh.notes
    yield from _find_info_warnings(split, contents.get(release.INFO))

    groups_kind = _find_groups_kind(contents)
    if groups_kind is None:
        if release.LABELS_MESH in contents:
            yield SceneWarning(WarningKind.NO_AGGREGATION)
    else:
        aggregation: Aggregation = contents[groups_kind]
        if not aggregation.groups:
            yield SceneWarning(WarningKind.NO_GROUPS)
    if groups_kind is release.HIGH_RESOLUTION_AGGREGATION:
        yield SceneWarning(WarningKind.HIGH_RESOLUTION_AGGREGATION, groups_kind.suffix)

    for kind in (release.SEGMENTS, *_GROUPS_KINDS):
        if kind not in contents:
            continue
        named_id = contents[kind].scene_id
        if named_id not in ("", scene.scene_id):
            name = scene.path(kind).name
            subject = f"{name} says that it belongs to {named_id!r:.40}"
            yield SceneWarning(WarningKind.OTHER_SCENE, subject)


def _find_info_warnings(split: Split, info: ScanInfo | None) -> Iterator[SceneWarning]:
    """Find oddities of the metadata."""
    if info is None:
        yield SceneWarning(WarningKind.NO_INFO)
    elif info.axis_alignment is None:
        if split is not Split.TEST:
            yield SceneWarning(WarningKind.NO_ALIGNMENT)
    else:
        fault = find_alignment_fault(info.axis_alignment)
        if fault:
            yield SceneWarning(WarningKind.NOT_RIGID, fault)
