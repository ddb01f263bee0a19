"""Checks one raw scene: each file by itself; together, by making the scene; and the labels of the two sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.labels import MAX_NYU40_ID, LabelMap
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.aggregation import read_aggregation
from scannet_prep.raw.info import read_scan_info
from scannet_prep.raw.mesh import Mesh, read_mesh
from scannet_prep.raw.segments import Segmentation, read_segments
from scannet_prep.release import (
    HIGH_RESOLUTION_AGGREGATION,
    INFO,
    KINDS,
    LABELS_MESH,
    MESH,
    SEGMENTATION_KINDS,
    SEGMENTS,
    Content,
    FileKind,
)
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningKind
from scannet_prep.stages.finding import Findings, note_strangers
from scannet_prep.stages.process.make_scene import RawFiles, process_scene, read_ply_labels
from scannet_prep.stages.verify.raw import RawTask, check_digests

_READERS: dict[Content, Callable[[Path], Any]] = {
    Content.MESH: read_mesh,
    Content.LABELS_MESH: read_mesh,
    Content.SEGMENTS: read_segments,
    Content.AGGREGATION: read_aggregation,
    Content.INFO: read_scan_info,
}
_ERRORS = {WarningKind.UNKNOWN_SEGMENTS, WarningKind.NOT_RIGID}
# Of missing and damaged files, and of the label map once for the whole tree.
_SAID_ELSEWHERE = {
    WarningKind.NO_INFO,
    WarningKind.HIGH_RESOLUTION_AGGREGATION,
    WarningKind.AMBIGUOUS_CATEGORY,
    WarningKind.LABEL_MAP_DIFFERS,
}


def check_raw_scene(task: RawTask, label_map: LabelMap, findings: Findings) -> tuple[int, int]:
    """Check one scene, in a worker; whatever is wrong is a finding. Gives its vertices and the size of its files."""
    if task.scene.problem:
        findings.error(task.path, task.scene.problem)
    if not task.path.is_dir():
        return 0, 0
    known = {f"{task.scene_id}{suffix}" for suffix in KINDS}
    note_strangers(task.path, known.__contains__, findings)
    paths = _find_files(task, findings)
    check_digests(task.recorded, findings)
    read = {kind: findings.attempt(path, _READERS[kind.content], path) for kind, path in paths.items()}
    contents: dict[FileKind, Any] = {kind: content for kind, content in read.items() if content is not None}
    if SEGMENTS in contents:
        _check_segment_names(paths[SEGMENTS], contents[SEGMENTS], findings)
    size_bytes = sum(paths[kind].stat().st_size for kind in contents)
    mesh: Mesh | None = contents.get(MESH)
    if mesh is None:
        return 0, size_bytes
    scene = _make_scene(task, {kind: paths[kind] for kind in contents}, label_map, findings)
    if LABELS_MESH in contents:
        _check_ply_labels(paths, mesh, contents[LABELS_MESH], scene, findings)
    return mesh.vertex_count, size_bytes


def _find_files(task: RawTask, findings: Findings) -> dict[FileKind, Path]:
    """Find the files that are there, and tell of those that are not."""
    kinds = (*SEGMENTATION_KINDS, HIGH_RESOLUTION_AGGREGATION)
    paths = {kind: task.scene.path(kind) for kind in kinds}
    required = [kind for kind in SEGMENTATION_KINDS if task.split in kind.splits]
    missing = [kind for kind in required if not os.path.lexists(paths[kind])]
    if missing == required:
        findings.error(task.path, "holds none of the scene's files", "download the scene")
        return {}
    scenes = "test scene" if task.split is Split.TEST else "train and val scene"
    for kind in missing:
        if kind is LABELS_MESH:
            findings.note(paths[kind], "no such file; it is needed only to take the labels from it")
        else:
            findings.error(paths[kind], "no such file", f"download it: every {scenes} has one")
    return {kind: path for kind, path in paths.items() if os.path.lexists(path)}


def _check_segment_names(path: Path, segmentation: Segmentation, findings: Findings) -> None:
    ids = segmentation.raw_ids
    is_own = ids < len(segmentation.indices)
    is_own[is_own] = ids[segmentation.indices[ids[is_own]]] == ids[is_own]
    if not is_own.all():
        others = ids[~is_own]
        message = f"{len(others):,} of {len(ids):,} segments are not named after one of their vertices"
        findings.note(path, f"{message}, for example {others[0]}")


def _make_scene(
    task: RawTask, whole: Mapping[FileKind, Path], label_map: LabelMap, findings: Findings
) -> ProcessedScene | None:
    """Make the scene of its whole files, and tell what is wrong with it, or odd.

    Returns:
        The scene; None where it cannot be made, or has no groups.
    """
    segments, counting = whole.get(SEGMENTS), task.scene.find_aggregation()
    aggregation = counting if segments is not None and counting in whole.values() else None
    files = RawFiles(task.scene_id, task.split, whole[MESH], whole.get(INFO))
    if task.split is not Split.TEST:
        files = replace(files, segments=segments, aggregation=aggregation)
    scene = findings.attempt(task.path, process_scene, files, ProcessOptions(), label_map)
    for warning in () if scene is None else scene.meta.warnings:
        if warning.kind in _ERRORS or (warning.kind.is_damage and task.split is not Split.TEST):
            findings.error(task.path, warning.text, "download the scene again")
        elif warning.kind not in _SAID_ELSEWHERE:
            findings.note(task.path, warning.text)
    return scene if scene is not None and scene.meta.groups else None


def _check_ply_labels(
    paths: Mapping[FileKind, Path], mesh: Mesh, labels_mesh: Mesh, scene: ProcessedScene | None, findings: Findings
) -> None:
    """Check that labels.ply is of the same mesh, and that it agrees with the groups."""
    path = paths[LABELS_MESH]
    nyu40_ids, warnings = findings.attempt(path, read_ply_labels, path, mesh, paths[MESH]) or (None, ())
    for warning in warnings:
        findings.note(path, warning.text)
    if scene is None or nyu40_ids is None or labels_mesh.labels is None:
        return
    # What is outside nyu40 is a known irregularity, and was noted.
    others = np.flatnonzero((nyu40_ids != scene.nyu40_ids) & (labels_mesh.labels <= MAX_NYU40_ID))
    if len(others):
        vertex = others[0]
        message = (
            f"differs from the groups at {len(others):,} of {len(nyu40_ids):,} vertices, for example vertex {vertex}: "
            f"nyu40 id {nyu40_ids[vertex]}, by the groups {scene.nyu40_ids[vertex]}"
        )
        findings.error(path, message, "download both again, and check the label map")
