"""Checks one processed scene: its file, its values, and what the manifest records of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene, find_problems, parse_processed
from scannet_prep.stages.finding import CheckedScene, Findings
from scannet_prep.stages.verify.processed import ProcessedSceneTask

_HINT = "process the scene again: scannet-prep process --scenes {}, with the same options"


def check_processed_scene(task: ProcessedSceneTask, context: None = None) -> CheckedScene:  # noqa: ARG001 - no task needs one
    """Check one scene, in a worker. Whatever is wrong is a finding."""
    findings = Findings(task.scene_id)
    checked = findings.attempt(task.path, _check_scene, task, findings)
    if checked is None:
        return CheckedScene(tuple(findings.found))
    scene, size_bytes = checked
    return CheckedScene(tuple(findings.found), len(scene.points), size_bytes, scene.meta.options)


def _check_scene(task: ProcessedSceneTask, findings: Findings) -> tuple[ProcessedScene, int]:
    data = read_file(task.path)
    scene = parse_processed(data, task.path)
    hint = _HINT.format(task.scene_id)
    problems = [*_find_naming_problems(scene, task), *find_problems(scene)]
    # The groups can be asked about only where they are known to be those of the scene.
    problems = problems or list(_find_annotation_problems(scene))
    # One cause, one finding: a file that is wrong by itself cannot be the one on record either.
    problems = problems or list(_find_differences(scene, Fingerprint.from_bytes(data), task.entry))
    for problem in problems:
        findings.error(task.path, problem, hint)
    return scene, len(data)


def _find_naming_problems(scene: ProcessedScene, task: ProcessedSceneTask) -> Iterator[str]:
    if scene.meta.scene_id != task.scene_id:
        yield f"holds {scene.meta.scene_id}"
    if scene.meta.split is not task.split:
        yield f"was made as a {scene.meta.split} scene, but lies in {task.split}"


def _find_annotation_problems(scene: ProcessedScene) -> Iterator[str]:
    """Find ids that the vertex's group does not have."""
    arrays = {"scannet_ids": scene.scannet_ids, "nyu40_ids": scene.nyu40_ids}
    if scene.meta.options.labels_from == "ply":
        del arrays["nyu40_ids"]
    for key, array in arrays.items():
        # One entry more than there can be groups: the last one, reached by -1, stands for "no group".
        table = np.zeros(np.iinfo(np.int16).max + 2, np.int64)
        for item in scene.meta.groups:
            table[item.id] = item.scannet_id if key == "scannet_ids" else item.nyu40_id
        wrong = int(np.count_nonzero(table[scene.instances] != array))
        if wrong:
            yield f"{key} of {wrong:,} vertices are not those of their groups"


def _find_differences(scene: ProcessedScene, fingerprint: Fingerprint, entry: SceneEntry | None) -> Iterator[str]:
    if entry is None:
        return
    if fingerprint != entry.fingerprint:
        yield (
            f"is not the file that the manifest records: {fingerprint.size_bytes:,} bytes, "
            f"CRC-32 {fingerprint.crc32:08x}, expected {entry.fingerprint.size_bytes:,}, {entry.fingerprint.crc32:08x}"
        )
        return
    found = SceneEntry.from_scene(scene, fingerprint)
    if found.vertex_count != entry.vertex_count:
        yield f"has {found.vertex_count:,} vertices, but the manifest says {entry.vertex_count:,}"
    for name in ("split", "options", "nyu40_counts", "scannet_counts", "warnings"):
        if getattr(found, name) != getattr(entry, name):
            yield f"does not have the {name.replace('_', ' ')} that the manifest records"
