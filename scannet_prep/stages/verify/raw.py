"""Checks a raw tree: label map, locks and what lies about; then each scene.

Of a scene, each file is checked by itself; then all together, by making the scene; and the labels of the two sources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from scannet_prep import release
from scannet_prep.failures import list_some
from scannet_prep.labels import (
    LABEL_MAP_NAME,
    MAX_NYU40_ID,
    LabelMap,
    builtin_label_map,
    find_label_map,
    read_label_map,
)
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_lock, read_locks, shards_of
from scannet_prep.scene import SceneId, Split
from scannet_prep.scene_warnings import WarningKind
from scannet_prep.splits import find_official_split
from scannet_prep.stages.finding import CheckTask, Finding, Findings
from scannet_prep.stages.process.make_scene import is_there, match_ply_labels, process_scene, read_raw_file
from scannet_prep.stages.selection import Selection, select_scenes

Recorded: TypeAlias = tuple[Path, LockEntry, Path]
"""A file, what it should be, and the lock file that says so."""

_ERRORS = {WarningKind.UNKNOWN_SEGMENTS, WarningKind.NOT_RIGID}
# Of missing and damaged files, and of the label map once for the whole tree.
_SAID_ELSEWHERE = {
    WarningKind.NO_INFO,
    WarningKind.HIGH_RESOLUTION_AGGREGATION,
    WarningKind.LABEL_MAP_DIFFERS,
}


def plan(
    raw_dir: Path, selection: Selection, findings: Findings, against: Path | None = None
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split | None], LabelMap]:
    """Look at a raw tree without opening its scenes.

    Args:
        raw_dir: The tree.
        selection: Which scenes.
        findings: Gets what is found.
        against: The `scannet.lock` of another copy, to compare with those of its files that are here, too.

    Returns:
        Scenes to check, each with its files, its split and what is on record of it; the official split of every scene
        that is there; and the label map beside the scenes, or the built-in one.

    Raises:
        LockError: `against` is damaged.
        MissingFileError: It holds no scene folders, or there is no file `against`.
        UnknownSceneError: The selection contradicts itself.
    """
    scenes = find_raw_scenes(raw_dir)
    selected, failures = select_scenes(scenes, selection, raw_dir)
    for failure in failures:
        message = failure.message.removeprefix(f"{raw_dir}: ")
        findings.error(raw_dir, message, failure.hint, scene_id=failure.scene_id)
    locks = {raw_dir / LOCK_NAME: findings.attempt(raw_dir / LOCK_NAME, read_locks, raw_dir) or {}}
    findings.found += [Finding.from_exception(fault, raw_dir) for fault in shards_of(raw_dir).find_faults()]
    if against is not None:
        locks[against] = {name: item for name, item in read_lock(against).items() if (raw_dir / name).exists()}
    recorded = defaultdict[Path, list[Recorded]](list)  # by folder
    for lock_path, entries in locks.items():
        for name, entry in entries.items():
            recorded[(raw_dir / name).parent].append((raw_dir / name, entry, lock_path))
    check_digests(recorded[raw_dir], findings)
    tasks = tuple(
        CheckTask(name, folder := scenes[name].directory, (scenes[name], split, recorded[folder]))
        for name, split in selected
    )
    if against is not None:
        if count := sum(source == against for task in tasks for *_, source in task.data[2]):
            findings.note(against, f"was compared with {count:,} files of the scenes here")
        else:
            hint = (
                f"its paths must begin as here, for example {tasks[0].path.relative_to(raw_dir)}/..." if tasks else ""
            )
            findings.error(against, "names no file of the scenes that are checked here: none was compared", hint)
    present = {scene_id: find_official_split(scene_id) for scene_id in scenes}
    return tasks, present, _check_label_map(raw_dir, findings)


def check_digests(recorded: Iterable[Recorded], findings: Findings) -> None:
    """Compare files with what lock files record of them; but for those that are known to be missing."""
    told = {finding.path for finding in findings.found if finding.is_error}
    for path, expected, lock_path in recorded:
        is_own = lock_path.name == LOCK_NAME and lock_path.parent in path.parents
        hint = "download it again" if is_own else "one of the two copies is damaged, or of another version"
        if not path.exists():
            if told.isdisjoint({path, path.parent}):
                findings.error(path, f"no such file, though {lock_path.name} records it", hint)
            continue
        found = findings.attempt(path, digest_file, path)
        if found is not None and found != expected:
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            of_record = f"{expected.size_bytes:,}, {expected.sha256[:12]}"
            message = f"is not the file that {lock_path.name} records: {sizes}, expected {of_record}"
            findings.error(path, message, hint)


def _check_label_map(raw_dir: Path, findings: Findings) -> LabelMap:
    builtin = builtin_label_map()
    path = find_label_map(raw_dir)
    if path is None:
        findings.note(raw_dir / LABEL_MAP_NAME, "no such file: the built-in label map is used")
        return builtin
    label_map = findings.attempt(path, read_label_map, path)
    if label_map is None:
        return builtin
    changed = [name for name, ids in builtin.rows.items() if label_map.rows.get(name) != ids]
    if changed:
        hint = "put the label map of the v2 release there, or remove it to use the built-in one"
        findings.error(path, f"differs from the release in {len(changed):,} raw categories: {list_some(changed)}", hint)
    return label_map


def look(task: CheckTask, label_map: LabelMap, findings: Findings) -> tuple[int, int]:
    """Check one scene, in a worker; whatever is wrong is a finding. Gives its vertices and the size of its files."""
    files: RawScene
    files, split, recorded = task.data
    if files.problem:
        findings.error(task.path, files.problem)
    if not task.path.is_dir():
        return 0, 0
    paths = {kind: path for kind in release.INPUT_KINDS if is_there(path := files.path(kind))}
    for kind in release.SEGMENTATION_KINDS:
        if kind in paths or split not in kind.splits:
            continue
        if kind is release.LABELS_MESH:
            findings.note(files.path(kind), "no such file; it is needed only to take the labels from it")
        else:
            scenes = "test scene" if split is Split.TEST else "train and val scene"
            findings.error(files.path(kind), "no such file", f"download it: every {scenes} has one")
    check_digests(recorded, findings)
    read = {kind: findings.attempt(path, read_raw_file, kind, path) for kind, path in paths.items()}
    contents: dict[release.FileKind, Any] = {kind: content for kind, content in read.items() if content is not None}
    size_bytes = sum(paths[kind].stat().st_size for kind in contents)
    if release.MESH not in contents:
        return 0, size_bytes
    scene = _make_scene(files, split, contents, label_map, findings)
    if release.LABELS_MESH in contents:
        _check_ply_labels(paths[release.LABELS_MESH], contents, scene, findings)
    return contents[release.MESH].vertex_count, size_bytes


def _make_scene(
    raw: RawScene, split: Split, contents: dict[release.FileKind, Any], label_map: LabelMap, findings: Findings
) -> ProcessedScene | None:
    """Make the scene of its whole files, and tell what is odd; None where it cannot be made, or has no groups."""
    kinds = {release.MESH, release.INFO}
    if release.SEGMENTS in contents:
        kinds |= {release.SEGMENTS, raw.find_groups_kind() or release.SEGMENTS}
    used = {kind: content for kind, content in contents.items() if kind in kinds}
    scene = findings.attempt(raw.directory, process_scene, raw, split, ProcessOptions(), label_map, used)
    for warning in () if scene is None else scene.meta.warnings:
        if warning.kind in _ERRORS or (warning.kind.is_damage and split is not Split.TEST):
            findings.error(raw.directory, warning.text, "download the scene again")
        elif warning.kind not in _SAID_ELSEWHERE:
            findings.note(raw.directory, warning.text)
    return scene if scene is not None and scene.meta.groups else None


def _check_ply_labels(
    path: Path, contents: dict[release.FileKind, Any], scene: ProcessedScene | None, findings: Findings
) -> None:
    """Check that labels.ply is of the same mesh, and that it agrees with the groups."""
    labels_mesh = contents[release.LABELS_MESH]
    matched = findings.attempt(path, match_ply_labels, path, labels_mesh, contents[release.MESH])
    if matched is None:
        return
    nyu40_ids, warnings = matched
    for warning in warnings:
        findings.note(path, warning.text)
    if scene is None:
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
