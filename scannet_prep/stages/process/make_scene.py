"""From the raw files of one scene to a processed scene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.annotate import Annotation, annotate, clean_ply_labels, count_unknown_segments, measure_groups
from scannet_prep.errors import AnnotationError, FileError, MissingFileError
from scannet_prep.files import Fingerprint
from scannet_prep.geometry import points_and_normals
from scannet_prep.labels import LabelMap
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import ProcessedScene, SceneMeta
from scannet_prep.raw.aggregation import Aggregation, read_aggregation
from scannet_prep.raw.info import ScanInfo, read_scan_info
from scannet_prep.raw.layout import RawScene
from scannet_prep.raw.mesh import Mesh, read_mesh
from scannet_prep.raw.segments import Segmentation, read_segments
from scannet_prep.release import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS
from scannet_prep.scene import SceneId, Split
from scannet_prep.scene_warnings import SceneWarning, WarningKind
from scannet_prep.version import VERSION


@dataclass(frozen=True, slots=True)
class RawFiles:
    """The raw files that one scene is made from; None where one is neither needed nor there."""

    scene_id: SceneId
    split: Split
    mesh: Path
    info: Path | None = None
    segments: Path | None = None
    aggregation: Path | None = None
    labels_mesh: Path | None = None

    @property
    def has_other_aggregation(self) -> bool:
        """Whether the groups are those of the high-resolution mesh."""
        return self.aggregation is not None and self.aggregation.name != f"{self.scene_id}.aggregation.json"

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Fingerprints of the files, by name.

        Raises:
            FileError: A file cannot be read.
        """
        paths = (self.mesh, self.info, self.segments, self.aggregation, self.labels_mesh)
        return {path.name: Fingerprint.from_file(path) for path in paths if path is not None}


def find_raw_files(scene: RawScene, split: Split, options: ProcessOptions) -> RawFiles:
    """Find what a scene is made from.

    For train and val, the annotation must be there, and the metadata where points are aligned; test scenes have no
    annotation.

    Raises:
        MissingFileError: A file that is needed is not there.
        FileError: The scene cannot be used, for example because it is there twice.
    """
    if scene.problem:
        raise FileError(scene.directory, scene.problem)
    mesh, info = _require(scene.path(MESH)), _find(scene.path(INFO))
    if split is Split.TEST:
        return RawFiles(scene.scene_id, split, mesh, info)
    if options.align_axis:
        info = _require(scene.path(INFO))
    aggregation = scene.find_aggregation()
    if options.labels_from == "aggregation":
        segments = _require(scene.path(SEGMENTS))
        return RawFiles(scene.scene_id, split, mesh, info, segments, aggregation or _require(scene.path(AGGREGATION)))
    labels_mesh = _require(scene.path(LABELS_MESH))
    if aggregation is None and options.scannet200:
        problem = "no such file, and labels.ply holds no ScanNet ids"
        raise MissingFileError(scene.path(AGGREGATION), problem, "download it, or make labels of ScanNet20")
    segments_path = scene.path(SEGMENTS)
    found = _find(segments_path) if aggregation is None else _require(segments_path)
    return RawFiles(scene.scene_id, split, mesh, info, found, aggregation, labels_mesh)


def process_scene(files: RawFiles, options: ProcessOptions, label_map: LabelMap) -> ProcessedScene:
    """Make a processed scene.

    Args:
        files: Its raw files.
        options: What to make.
        label_map: Ids by raw category.

    Raises:
        FileError: A raw file is damaged.
        AnnotationError: The files do not fit together.
    """
    mesh = read_mesh(files.mesh)
    info = ScanInfo(None, None) if files.info is None else read_scan_info(files.info)
    segmentation, aggregation, annotation = read_annotation(files, mesh.vertex_count, label_map)
    if files.labels_mesh is not None:
        nyu40_ids, warnings = read_ply_labels(files.labels_mesh, mesh, files.mesh)
        annotation = replace(annotation, nyu40_ids=nyu40_ids, warnings=(*annotation.warnings, *warnings))
    alignment = np.eye(4) if info.axis_alignment is None else info.axis_alignment
    aligned_from_scan = alignment if options.align_axis else None
    points, normals = points_and_normals(mesh.positions, mesh.faces, aligned_from_scan)
    source = annotation.nyu40_ids if options.label_set.raw_ids_key == "nyu40_ids" else annotation.scannet_ids
    return ProcessedScene(
        points=points,
        normals=normals,
        colors=mesh.colors,
        labels=options.label_set.labels_from_raw_ids(source),
        nyu40_ids=annotation.nyu40_ids,
        scannet_ids=annotation.scannet_ids,
        instances=annotation.instances,
        segments=None if segmentation is None else segmentation.compact_indices(),
        faces=mesh.faces if options.faces else None,
        axis_alignment=alignment,
        meta=SceneMeta(
            scene_id=files.scene_id,
            split=files.split,
            options=options,
            scene_type=info.scene_type,
            groups=measure_groups(annotation.groups, annotation.instances, points),
            segment_ids=() if segmentation is None else tuple(segmentation.raw_ids.tolist()),
            warnings=(*_find_warnings(files, mesh, info, segmentation, aggregation), *annotation.warnings),
            inputs=files.fingerprints(),
            label_map=used_label_map(files, label_map),
            program_version=VERSION,
        ),
    )


def read_annotation(
    files: RawFiles, vertex_count: int, label_map: LabelMap
) -> tuple[Segmentation | None, Aggregation | None, Annotation]:
    """Read segments and groups, as far as there are any, and what they come to.

    Args:
        files: The scene's files.
        vertex_count: V of its mesh.
        label_map: Ids by raw category.

    Raises:
        FileError: A file is damaged.
        AnnotationError: They do not fit together, or are those of another mesh.
    """
    segmentation = aggregation = None
    if files.segments is not None:
        segmentation = read_segments(files.segments)
        _check_count(files.segments, len(segmentation.indices), files.mesh, vertex_count)
    if files.aggregation is not None:
        aggregation = read_aggregation(files.aggregation)
    if segmentation is None or aggregation is None:
        return segmentation, aggregation, Annotation.empty(vertex_count)
    # The groups of the high-resolution mesh may stand in only where they refer to the same segments.
    unknown = count_unknown_segments(segmentation, aggregation) if files.has_other_aggregation else 0
    if unknown:
        raise AnnotationError(
            f"{files.aggregation}: is for the high-resolution mesh: {unknown:,} of its segment ids occur at no vertex",
            f"download {files.scene_id}.aggregation.json",
        )
    try:
        return segmentation, aggregation, annotate(segmentation, aggregation, label_map)
    except AnnotationError as error:
        raise AnnotationError(f"{files.aggregation}: {error}", error.hint) from None


def used_label_map(files: RawFiles, label_map: LabelMap) -> str:
    """Digest of the label map if the scene depends on it, else empty."""
    return "" if files.aggregation is None else label_map.digest


def read_ply_labels(path: Path, mesh: Mesh, mesh_path: Path) -> tuple[NDArray[np.uint8], tuple[SceneWarning, ...]]:
    """Take the nyu40 ids from a `labels.ply`.

    Args:
        path: The `labels.ply`.
        mesh: The scene's mesh, which it has to be of.
        mesh_path: Its name, for messages.

    Returns:
        uint8 (V,), 0 unannotated; and a warning where the file holds other ids.

    Raises:
        MeshError: The file is damaged or has no labels.
        AnnotationError: It is not of the same mesh.
    """
    labelled = read_mesh(path)
    if labelled.labels is None:
        raise AnnotationError(f"{path}: its vertices have no property label", "download it again")
    _check_count(path, labelled.vertex_count, mesh_path, mesh.vertex_count)
    if not np.array_equal(labelled.positions, mesh.positions):
        raise AnnotationError(f"{path}: its vertices lie elsewhere than those of {mesh_path.name}")
    return clean_ply_labels(labelled.labels)


def find_alignment_fault(matrix: NDArray[np.float64]) -> str:
    """What keeps a matrix, float64 (4, 4), from being a rotation with a shift; empty where nothing does."""
    if not np.array_equal(matrix[3], [0, 0, 0, 1]):
        return f"its last row is {matrix[3].tolist()}"
    rotation = matrix[:3, :3]
    # The release writes six decimals, so that a rotation is one up to a few millionths.
    deviation: Any = np.abs(rotation @ rotation.T - np.eye(3)).max()
    if deviation > 1e-4 or np.linalg.det(rotation) < 0:
        return f"it deviates by {deviation:.2g} from one"
    return ""


def _find(path: Path) -> Path | None:
    """A file, if there is one; also what has its name and cannot be read, so that reading it tells."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileError(path, f"cannot be looked at: {error.strerror or error}") from error
    return path


def _require(path: Path) -> Path:
    if _find(path) is None:
        raise MissingFileError(path, "no such file", "the scene needs this file: download it")
    return path


def _check_count(path: Path, found: int, mesh_path: Path, expected: int) -> None:
    if found != expected:
        raise AnnotationError(f"{path}: is for {found:,} vertices, but {mesh_path.name} has {expected:,}")


def _find_warnings(
    files: RawFiles,
    mesh: Mesh,
    info: ScanInfo,
    segmentation: Segmentation | None,
    aggregation: Aggregation | None,
) -> Iterator[SceneWarning]:
    if not len(mesh.faces):
        yield SceneWarning(WarningKind.NO_FACES)
    if files.info is None:
        yield SceneWarning(WarningKind.NO_INFO)
    elif info.axis_alignment is None and files.split is not Split.TEST:
        yield SceneWarning(WarningKind.NO_ALIGNMENT)
    elif info.axis_alignment is not None and (fault := find_alignment_fault(info.axis_alignment)):
        yield SceneWarning(WarningKind.NOT_RIGID, fault)
    if files.labels_mesh is not None and aggregation is None:
        yield SceneWarning(WarningKind.NO_AGGREGATION)
    if aggregation is not None and not aggregation.groups:
        yield SceneWarning(WarningKind.NO_GROUPS)
    if files.aggregation is not None and files.has_other_aggregation:
        name = files.aggregation.name.removeprefix(files.scene_id)
        yield SceneWarning(WarningKind.HIGH_RESOLUTION_AGGREGATION, name)
    for path, content in ((files.segments, segmentation), (files.aggregation, aggregation)):
        if path is not None and content is not None and content.scene_id not in ("", files.scene_id):
            yield SceneWarning(WarningKind.OTHER_SCENE, f"{path.name} says that it belongs to {content.scene_id!r:.40}")
