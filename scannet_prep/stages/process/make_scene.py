"""From the raw files of one scene to a processed scene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.annotate import Annotation, annotate, clean_ply_labels, count_unknown_segments
from scannet_prep.errors import AnnotationError, FileError, MissingFileError
from scannet_prep.files import Fingerprint, read_file
from scannet_prep.geometry import points_and_normals
from scannet_prep.labels import LabelMap
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import ProcessedScene, SceneMeta
from scannet_prep.raw.aggregation import Aggregation, parse_aggregation
from scannet_prep.raw.info import ScanInfo, parse_scan_info
from scannet_prep.raw.layout import RawScene
from scannet_prep.raw.mesh import Mesh, parse_mesh
from scannet_prep.raw.segments import Segmentation, parse_segments
from scannet_prep.scene import SceneId, Split
from scannet_prep.scene_warnings import SceneWarning, WarningKind
from scannet_prep.version import VERSION


@dataclass(frozen=True, slots=True)
class RawFile:
    """Content of one raw file, read once."""

    path: Path
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RawFiles:
    """Content of the raw files that one scene is made from; None where a file is neither needed nor there."""

    scene_id: SceneId
    split: Split
    mesh: RawFile
    info: RawFile | None
    segments: RawFile | None = None
    aggregation: RawFile | None = None
    labels_mesh: RawFile | None = None

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Fingerprints of the files, by name."""
        files = (self.mesh, self.info, self.segments, self.aggregation, self.labels_mesh)
        return {file.path.name: Fingerprint.from_bytes(file.data) for file in files if file is not None}


def read_raw_files(scene: RawScene, split: Split, options: ProcessOptions) -> RawFiles:
    """Read what a scene is made from.

    The axis alignment and, for train and val, the annotation must be there; a test scene has neither.

    Raises:
        MissingFileError: A file that is needed is not there.
        FileError: A file cannot be read, or the scene is there twice.
    """
    if scene.rival_directory is not None:
        problem = f"has the same scene as {scene.rival_directory}, and both have a mesh"
        raise FileError(scene.directory, problem, "remove one of the two")
    mesh = _read(scene.mesh_path)
    if split is Split.TEST:
        return RawFiles(scene.scene_id, split, mesh, _read_if_there(scene.info_path))
    info = _read(scene.info_path)
    if options.labels_from == "aggregation":
        return RawFiles(scene.scene_id, split, mesh, info, _read(scene.segments_path), _read_aggregation(scene))
    labels_mesh, aggregation = _read(scene.labels_mesh_path), _find_aggregation(scene)
    if aggregation is None and options.scannet200:
        raise MissingFileError(
            scene.aggregation_path, "no such file, and labels.ply holds no ScanNet ids", "leave out --scannet200"
        )
    segments = _read_if_there(scene.segments_path) if aggregation is None else _read(scene.segments_path)
    return RawFiles(scene.scene_id, split, mesh, info, segments, aggregation, labels_mesh)


def process_scene(files: RawFiles, options: ProcessOptions, label_map: LabelMap) -> ProcessedScene:
    """Make a processed scene.

    Args:
        files: Content of its raw files.
        options: What to make.
        label_map: Ids by raw category.

    Raises:
        FileError: A raw file is damaged.
        AnnotationError: The files do not fit together.
    """
    mesh = parse_mesh(files.mesh.data, files.mesh.path)
    info = _parse_info(files)
    segmentation = None if files.segments is None else parse_segments(files.segments.data, files.segments.path)
    if segmentation is not None and len(segmentation.indices) != mesh.vertex_count:
        raise AnnotationError(_count_mismatch(files.segments, len(segmentation.indices), mesh, files.mesh))
    aggregation = (
        None if files.aggregation is None else parse_aggregation(files.aggregation.data, files.aggregation.path)
    )

    alignment = np.eye(4) if info.axis_alignment is None else info.axis_alignment
    points, normals = make_geometry(mesh, alignment if options.align_axis else None)
    annotation = _make_annotation(files, mesh, segmentation, aggregation, label_map)
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
            groups=annotation.groups,
            segment_ids=() if segmentation is None else tuple(segmentation.raw_ids.tolist()),
            warnings=(*_find_warnings(files, mesh, info, segmentation, aggregation), *annotation.warnings),
            inputs=files.fingerprints(),
            label_map_digest=used_label_map(files, label_map),
            program_version=VERSION,
        ),
    )


def make_geometry(
    mesh: Mesh, aligned_from_scan: NDArray[np.float64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Compute what is saved of a mesh's geometry.

    Args:
        mesh: In the frame of the scan.
        aligned_from_scan: float64 (4, 4); None to stay in the frame of the scan.

    Returns:
        Points, float32 (V, 3), metres, and normals, float16 (V, 3), both in the same frame.
    """
    return points_and_normals(mesh.positions, mesh.faces, aligned_from_scan)


def used_label_map(files: RawFiles, label_map: LabelMap) -> str:
    """Digest of the label map if the scene depends on it, else empty."""
    return "" if files.aggregation is None else label_map.digest


def _read(path: Path) -> RawFile:
    try:
        return RawFile(path, read_file(path))
    except MissingFileError:
        raise MissingFileError(
            path, "no such file", "download it: this kind of file belongs to every such scene"
        ) from None


def _read_if_there(path: Path) -> RawFile | None:
    return _read(path) if path.exists() else None


def _find_aggregation(scene: RawScene) -> RawFile | None:
    path = scene.find_aggregation()
    return None if path is None else _read(path)


def _read_aggregation(scene: RawScene) -> RawFile:
    return _find_aggregation(scene) or _read(scene.aggregation_path)


def _parse_info(files: RawFiles) -> ScanInfo:
    return ScanInfo(None, None) if files.info is None else parse_scan_info(files.info.data, files.info.path)


def _make_annotation(
    files: RawFiles,
    mesh: Mesh,
    segmentation: Segmentation | None,
    aggregation: Aggregation | None,
    label_map: LabelMap,
) -> Annotation:
    if segmentation is None or aggregation is None:
        found = Annotation.empty(mesh.vertex_count)
    else:
        _check_high_resolution(files, segmentation, aggregation)
        found = annotate(segmentation, aggregation, label_map)
    if files.labels_mesh is None:
        return found
    nyu40_ids, warnings = read_ply_labels(files.labels_mesh, mesh, files.mesh)
    return Annotation(nyu40_ids, found.scannet_ids, found.instances, found.groups, (*found.warnings, *warnings))


def read_ply_labels(
    file: RawFile, mesh: Mesh, mesh_file: RawFile
) -> tuple[NDArray[np.uint8], tuple[SceneWarning, ...]]:
    """Take the nyu40 ids from a `labels.ply`.

    Returns:
        uint8 (V,), 0 unannotated; and a warning where the file holds other ids.

    Raises:
        MeshError: The file is damaged or has no labels.
        AnnotationError: It is not of the same mesh.
    """
    labelled = parse_mesh(file.data, file.path)
    if labelled.labels is None:
        raise AnnotationError(f"{file.path}: its vertices have no property label", "download it again")
    if labelled.vertex_count != mesh.vertex_count:
        raise AnnotationError(_count_mismatch(file, labelled.vertex_count, mesh, mesh_file))
    if not np.array_equal(labelled.positions, mesh.positions):
        raise AnnotationError(f"{file.path}: its vertices lie elsewhere than those of {mesh_file.path.name}")
    return clean_ply_labels(labelled.labels)


def _count_mismatch(file: RawFile | None, found: int, mesh: Mesh, mesh_file: RawFile) -> str:
    name = "" if file is None else f"{file.path}: "
    return f"{name}is for {found:,} vertices, but {mesh_file.path.name} has {mesh.vertex_count:,}"


def _is_high_resolution(files: RawFiles) -> bool:
    return files.aggregation is not None and files.aggregation.path.name != f"{files.scene_id}.aggregation.json"


def _check_high_resolution(files: RawFiles, segmentation: Segmentation, aggregation: Aggregation) -> None:
    """The annotation of the high-resolution mesh may stand in only where it refers to the same segments."""
    if files.aggregation is None or not _is_high_resolution(files):
        return
    unknown = count_unknown_segments(segmentation, aggregation)
    if unknown:
        raise AnnotationError(
            f"{files.aggregation.path}: is for the high-resolution mesh: {unknown:,} of its ids occur at no vertex",
            f"download {files.scene_id}.aggregation.json",
        )


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
    if files.aggregation is not None and _is_high_resolution(files):
        yield SceneWarning(
            WarningKind.HIGH_RESOLUTION_AGGREGATION, files.aggregation.path.name.removeprefix(files.scene_id)
        )
    for file, content in ((files.segments, segmentation), (files.aggregation, aggregation)):
        if file is not None and content is not None and content.scene_id not in ("", files.scene_id):
            yield SceneWarning(
                WarningKind.OTHER_SCENE, f"{file.path.name} says that it belongs to {content.scene_id!r:.40}"
            )


def find_alignment_fault(matrix: NDArray[np.float64]) -> str:
    """What keeps a matrix (4, 4) from being a rotation with a shift; empty where nothing does."""
    if not np.array_equal(matrix[3], [0, 0, 0, 1]):
        return f"its last row is {matrix[3].tolist()}"
    rotation = matrix[:3, :3]
    # The release writes six decimals, so that a rotation is one up to a few millionths.
    deviation: Any = np.abs(rotation @ rotation.T - np.eye(3)).max()
    if deviation > 1e-4 or np.linalg.det(rotation) < 0:
        return f"it deviates by {deviation:.2g} from one"
    return ""
