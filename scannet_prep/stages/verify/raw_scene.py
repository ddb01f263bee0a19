"""Checks one raw scene: each file by itself; together, by making the scene; and the labels of the two sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.files import Buffer, read_file
from scannet_prep.labels import MAX_NYU40_ID, LabelMap
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.aggregation import Aggregation, parse_aggregation
from scannet_prep.raw.info import parse_scan_info
from scannet_prep.raw.mesh import Mesh, parse_mesh
from scannet_prep.raw.segments import Segmentation, parse_segments
from scannet_prep.release import (
    AGGREGATION,
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
from scannet_prep.stages.finding import CheckedScene, Findings, note_strangers
from scannet_prep.stages.process.make_scene import RawFile, RawFiles, process_scene, read_ply_labels
from scannet_prep.stages.verify.digests import check_digests
from scannet_prep.stages.verify.raw import RawTask

_PARSERS: dict[Content, Callable[[Buffer, Path], Any]] = {
    Content.MESH: parse_mesh,
    Content.LABELS_MESH: parse_mesh,
    Content.SEGMENTS: parse_segments,
    Content.AGGREGATION: parse_aggregation,
    Content.INFO: parse_scan_info,
}
_ERRORS = {WarningKind.UNKNOWN_SEGMENTS, WarningKind.NOT_RIGID}
# Of missing and damaged files, and of the label map once for the whole tree.
_SAID_ELSEWHERE = {
    WarningKind.NO_INFO,
    WarningKind.HIGH_RESOLUTION_AGGREGATION,
    WarningKind.AMBIGUOUS_CATEGORY,
    WarningKind.LABEL_MAP_DIFFERS,
}


def check_raw_scene(task: RawTask, label_map: LabelMap, findings: Findings) -> CheckedScene:
    """Check one scene, in a worker. Whatever is wrong is a finding."""
    if task.scene.rival_directory is not None:
        problem = f"has the same scene as {task.scene.rival_directory}, and both have a mesh"
        findings.error(task.path, problem, "remove one of the two")
    known = {f"{task.scene_id}{suffix}" for suffix in KINDS}
    note_strangers(task.path, known.__contains__, findings)
    files = _read_files(task, findings)
    check_digests(task.recorded, {file.path: file.data for file in files.values()}, findings)
    parsed: dict[FileKind, Any] = {
        kind: findings.attempt(file.path, _PARSERS[kind.content], file.data, file.path) for kind, file in files.items()
    }
    whole = {kind: files[kind] for kind, content in parsed.items() if content is not None}
    if SEGMENTS in whole:
        _check_segment_names(whole[SEGMENTS].path, parsed[SEGMENTS], findings)
    if AGGREGATION in whole:
        _check_segments_file(task, whole[AGGREGATION].path, parsed[AGGREGATION], findings)
    vertex_count = 0
    if MESH in whole:
        mesh: Mesh = parsed[MESH]
        vertex_count = mesh.vertex_count
        scene = _make_scene(task, whole, label_map, findings)
        if LABELS_MESH in whole:
            _check_ply_labels(mesh, parsed[LABELS_MESH], whole, scene, findings)
    return CheckedScene(vertex_count, sum(len(file.data) for file in files.values()))


def _read_files(task: RawTask, findings: Findings) -> dict[FileKind, RawFile]:
    """Read the files that are there, and tell of those that are not."""
    required = [kind for kind in SEGMENTATION_KINDS if task.split in kind.splits]
    missing = [kind for kind in required if not task.scene.path(kind.suffix).exists()]
    if missing == required:
        findings.error(task.path, "holds none of the scene's files", "download the scene")
        return {}
    scenes = "test scene" if task.split is Split.TEST else "train and val scene"
    for kind in missing:
        path = task.scene.path(kind.suffix)
        if kind is LABELS_MESH:
            findings.note(path, "no such file; it is needed only to take the labels from it")
        else:
            findings.error(path, "no such file", f"download it: every {scenes} has one")
    files = {}
    for kind in (*SEGMENTATION_KINDS, HIGH_RESOLUTION_AGGREGATION):
        path = task.scene.path(kind.suffix)
        data = findings.attempt(path, read_file, path) if path.exists() else None
        if data is not None:
            files[kind] = RawFile(path, data)
    return files


def _check_segment_names(path: Path, segmentation: Segmentation, findings: Findings) -> None:
    ids = segmentation.raw_ids
    is_own = ids < len(segmentation.indices)
    is_own[is_own] = ids[segmentation.indices[ids[is_own]]] == ids[is_own]
    if not is_own.all():
        others = ids[~is_own]
        message = f"{len(others):,} of {len(ids):,} segments are not named after one of their vertices"
        findings.note(path, f"{message}, for example {others[0]}")


def _check_segments_file(task: RawTask, path: Path, aggregation: Aggregation, findings: Findings) -> None:
    if aggregation.segments_name not in ("", f"{task.scene_id}{SEGMENTS.suffix}"):
        findings.note(path, f"says that its segments are those of {aggregation.segments_name!r:.80}")


def _make_scene(
    task: RawTask, whole: Mapping[FileKind, RawFile], label_map: LabelMap, findings: Findings
) -> ProcessedScene | None:
    """Make the scene of its whole files, and tell what is wrong with it, or odd; None where it cannot be made."""
    files = RawFiles(task.scene_id, task.split, whole[MESH], whole.get(INFO))
    counting = task.scene.find_aggregation()
    aggregation = next((file for file in whole.values() if file.path == counting), None)
    if task.split is not Split.TEST and SEGMENTS in whole:
        files = replace(files, segments=whole[SEGMENTS], aggregation=aggregation)
    scene = findings.attempt(task.path, process_scene, files, ProcessOptions(), label_map)
    for warning in () if scene is None else scene.meta.warnings:
        if warning.kind in _ERRORS:
            findings.error(task.path, warning.text, "download the scene again")
        elif warning.kind not in _SAID_ELSEWHERE:
            findings.note(task.path, warning.text)
    return scene if files.aggregation is not None else None


def _check_ply_labels(
    mesh: Mesh, labels_mesh: Mesh, whole: Mapping[FileKind, RawFile], scene: ProcessedScene | None, findings: Findings
) -> None:
    """Check that labels.ply is of the same mesh, and that it agrees with the groups."""
    file = whole[LABELS_MESH]
    nyu40_ids, warnings = findings.attempt(file.path, read_ply_labels, file, mesh, whole[MESH]) or (None, ())
    for warning in warnings:
        findings.note(file.path, warning.text)
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
        findings.error(file.path, message, "download both again, and check the label map")
