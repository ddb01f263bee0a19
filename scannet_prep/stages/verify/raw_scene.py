"""Checks the files of one raw scene: each by itself, and all against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scannet_prep.annotate import Annotation, annotate, count_unknown_segments
from scannet_prep.files import Buffer, is_hidden_or_temporary, read_file
from scannet_prep.labels import MAX_NYU40_ID, LabelMap
from scannet_prep.raw.aggregation import Aggregation, parse_aggregation
from scannet_prep.raw.info import parse_scan_info
from scannet_prep.raw.layout import (
    AGGREGATION_SUFFIX,
    HIGH_RESOLUTION_AGGREGATION_SUFFIX,
    INFO_SUFFIX,
    LABELS_MESH_SUFFIX,
    MESH_SUFFIX,
    SEGMENTS_SUFFIX,
)
from scannet_prep.raw.mesh import Mesh, read_mesh
from scannet_prep.raw.segments import Segmentation, parse_segments
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningKind
from scannet_prep.stages.finding import CheckedScene, Findings
from scannet_prep.stages.process.make_scene import find_alignment_fault, read_ply_labels
from scannet_prep.stages.verify.digests import check_digests
from scannet_prep.stages.verify.raw import RawSceneTask, note_strangers

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class RawFile:
    """Content of one raw file, read once."""

    path: Path
    data: bytes = field(repr=False)


_ANNOTATED = (MESH_SUFFIX, LABELS_MESH_SUFFIX, SEGMENTS_SUFFIX, AGGREGATION_SUFFIX, INFO_SUFFIX)
_REQUIRED = {Split.TRAIN: _ANNOTATED, Split.VAL: _ANNOTATED, Split.TEST: (MESH_SUFFIX, INFO_SUFFIX)}
_CHECKED = (*_ANNOTATED, HIGH_RESOLUTION_AGGREGATION_SUFFIX)
# The release has these too; nothing here needs them.
_OTHER = ("_vh_clean.segs.json", "_vh_clean.ply", ".sens")
_DOWNLOAD = "download it again"
# Said elsewhere: of the segments with an example, of the label map once for the whole tree.
_SAID_ELSEWHERE = {WarningKind.UNKNOWN_SEGMENTS, WarningKind.AMBIGUOUS_CATEGORY, WarningKind.LABEL_MAP_DIFFERS}


def check_raw_scene(task: RawSceneTask, label_map: LabelMap) -> CheckedScene:
    """Check one scene, in a worker. Whatever is wrong is a finding."""
    findings = Findings(task.scene_id)
    vertex_count, size_bytes = findings.attempt(task.path, _check_scene, task, label_map, findings) or (0, 0)
    return CheckedScene(tuple(findings.found), vertex_count, size_bytes)


def _check_scene(task: RawSceneTask, label_map: LabelMap, findings: Findings) -> tuple[int, int]:
    """Check one scene; gives the number of its vertices and the size of its files."""
    if task.scene.problem:
        findings.error(task.path, task.scene.problem)
    _check_entries(task, findings)
    files = _read_files(task, findings)
    for digests in task.digests:
        check_digests(digests, {file.path: file.data for file in files.values()}, findings)
    mesh_file, segments_file = files.get(MESH_SUFFIX), files.get(SEGMENTS_SUFFIX)
    mesh = None if mesh_file is None else findings.attempt(mesh_file.path, read_mesh, mesh_file.path)
    if mesh_file is not None and mesh is not None and not len(mesh.faces):
        findings.note(mesh_file.path, "has no faces, so that no vertex gets a normal")
    _check_info(files.get(INFO_SUFFIX), task, findings)
    segmentation = _parse(segments_file, parse_segments, findings)
    if segmentation is not None and segments_file is not None:
        _check_scene_id(segments_file, segmentation.scene_id, task, findings)
        segmentation = _check_segmentation(segments_file, segmentation, mesh, mesh_file, findings)
    annotation, source = _check_aggregations(files, segmentation, label_map, task, findings)
    _check_ply_labels(files.get(LABELS_MESH_SUFFIX), mesh, mesh_file, annotation, source, findings)
    return 0 if mesh is None else mesh.vertex_count, sum(len(file.data) for file in files.values())


def _check_entries(task: RawSceneTask, findings: Findings) -> None:
    names = sorted(path.name for path in task.path.iterdir() if not path.name.startswith("."))
    known = {f"{task.scene_id}{suffix}" for suffix in (*_CHECKED, *_OTHER)}
    strangers = [
        name
        for name in names
        if not is_hidden_or_temporary(name)
        and name not in known
        and not (name.startswith(f"{task.scene_id}_2d-") and name.endswith(".zip"))
    ]
    note_strangers(task.path, names, strangers, findings)


def _read_files(task: RawSceneTask, findings: Findings) -> dict[str, RawFile]:
    """Read the files that are there, and report those that are not."""
    required = _REQUIRED[task.split]
    missing = [suffix for suffix in required if not task.scene.path(suffix).exists()]
    if len(missing) == len(required):
        findings.error(task.path, "holds none of the scene's files", "download the scene")
    else:
        kind = "test scene" if task.split is Split.TEST else "train and val scene"
        for suffix in missing:
            path = task.scene.path(suffix)
            if suffix == LABELS_MESH_SUFFIX:
                findings.note(path, "no such file; process needs it only for --labels-from ply")
            else:
                findings.error(path, "no such file", f"download it: every {kind} has one")
    files = {}
    for suffix in _CHECKED:
        path = task.scene.path(suffix)
        if path.exists():
            data = findings.attempt(path, read_file, path)
            if data is not None:
                files[suffix] = RawFile(path, data)
    return files


def _parse(file: RawFile | None, parse: Callable[[Buffer, Path], Content], findings: Findings) -> Content | None:
    return None if file is None else findings.attempt(file.path, parse, file.data, file.path)


def _check_info(file: RawFile | None, task: RawSceneTask, findings: Findings) -> None:
    info = _parse(file, parse_scan_info, findings)
    if file is None or info is None:
        return
    if info.axis_alignment is None:
        if task.split is not Split.TEST:
            findings.note(file.path, "has no axisAlignment: the scene stays in the frame of the scan")
    elif fault := find_alignment_fault(info.axis_alignment):
        findings.error(file.path, f"axisAlignment is not a rotation with a shift: {fault}", _DOWNLOAD)


def _check_scene_id(file: RawFile, found: str, task: RawSceneTask, findings: Findings) -> None:
    if found not in ("", task.scene_id):
        findings.note(file.path, f"says that it belongs to {found!r:.40}")


def _check_segmentation(
    file: RawFile, segmentation: Segmentation, mesh: Mesh | None, mesh_file: RawFile | None, findings: Findings
) -> Segmentation | None:
    """Check segments against the mesh; None where they are not its own."""
    count = len(segmentation.indices)
    if mesh is not None and mesh_file is not None and count != mesh.vertex_count:
        message = f"is for {count:,} vertices, but {mesh_file.path.name} has {mesh.vertex_count:,}"
        findings.error(file.path, message, "download both again")
        return None
    ids = segmentation.raw_ids
    is_inside = ids < count
    is_own = is_inside.copy()
    is_own[is_inside] = ids[segmentation.indices[ids[is_inside]]] == ids[is_inside]
    strangers = ids[~is_own]
    if len(strangers):
        message = f"{len(strangers):,} of {len(ids):,} segments are not named after one of their vertices"
        findings.note(file.path, f"{message}, for example {strangers[0]}")
    return segmentation


def _check_aggregations(
    files: dict[str, RawFile],
    segmentation: Segmentation | None,
    label_map: LabelMap,
    task: RawSceneTask,
    findings: Findings,
) -> tuple[Annotation | None, str]:
    """Check the groups; gives what they say of each vertex, and the name of the file that counts."""
    annotation, source = None, ""
    # The high-resolution mesh's own segments are not at hand: its groups are held against ours only where they count.
    for suffix in (AGGREGATION_SUFFIX, HIGH_RESOLUTION_AGGREGATION_SUFFIX):
        file = files.get(suffix)
        aggregation = _parse(file, parse_aggregation, findings)
        if file is None or aggregation is None:
            continue
        _check_scene_id(file, aggregation.scene_id, task, findings)
        expected = f"{task.scene_id}{SEGMENTS_SUFFIX}"
        if suffix == AGGREGATION_SUFFIX and aggregation.segments_name not in ("", expected):
            findings.note(file.path, f"says that its segments are those of {aggregation.segments_name!r:.80}")
        counts = suffix == AGGREGATION_SUFFIX or AGGREGATION_SUFFIX not in files
        if counts and segmentation is not None:
            source = file.path.name
            annotation = _check_groups(file, aggregation, segmentation, label_map, findings)
    return annotation, source


def _check_groups(
    file: RawFile, aggregation: Aggregation, segmentation: Segmentation, label_map: LabelMap, findings: Findings
) -> Annotation | None:
    unknown_count = count_unknown_segments(segmentation, aggregation)
    if unknown_count:
        known = set(segmentation.raw_ids.tolist())
        example = next(number for group in aggregation.groups for number in group.segment_ids if number not in known)
        message = f"{unknown_count:,} segment ids of its groups occur at no vertex, for example {example}"
        findings.error(file.path, message, "download it and the .segs.json again")
    annotation = findings.attempt(file.path, annotate, segmentation, aggregation, label_map)
    for warning in () if annotation is None else annotation.warnings:
        if warning.kind not in _SAID_ELSEWHERE:
            findings.note(file.path, warning.text)
    return annotation


def _check_ply_labels(
    file: RawFile | None,
    mesh: Mesh | None,
    mesh_file: RawFile | None,
    annotation: Annotation | None,
    source: str,
    findings: Findings,
) -> None:
    if file is None:
        return
    if mesh is None or mesh_file is None:
        findings.attempt(file.path, read_mesh, file.path)
        return
    result = findings.attempt(file.path, read_ply_labels, file.path, mesh, mesh_file.path)
    if result is None:
        return
    nyu40_ids, warnings = result
    for warning in warnings:
        findings.note(file.path, warning.text)
    if annotation is None:
        return
    is_other = nyu40_ids != annotation.nyu40_ids
    if warnings:
        is_other &= ~_is_outside_nyu40(file)
    others = np.flatnonzero(is_other)
    if len(others):
        vertex = int(others[0])
        findings.error(
            file.path,
            f"differs from {source} at {len(others):,} of {len(is_other):,} vertices, for example vertex {vertex}: "
            f"nyu40 id {nyu40_ids[vertex]}, by the groups {annotation.nyu40_ids[vertex]}",
            "download both again, and check the label map",
        )


def _is_outside_nyu40(file: RawFile) -> NDArray[np.bool_]:
    """Where `labels.ply` holds what is no nyu40 id, bool (V,); a known irregularity, noted already."""
    labels = read_mesh(file.path).labels
    assert labels is not None  # noqa: S101 - `read_ply_labels` has accepted the file
    return labels > MAX_NYU40_ID
