"""Checks a raw tree: label map, locks and what lies about; then each scene.

Of a scene, each file is checked by itself; then all together, by making the scene; and the labels of the two sources.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

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
from scannet_prep.stages.process.make_scene import RawFiles, is_there, make_scene, match_ply_labels, read_raw_file
from scannet_prep.stages.selection import Selection, select_scenes

_ERRORS = {WarningKind.UNKNOWN_SEGMENTS, WarningKind.NOT_RIGID}
# Of missing and damaged files, and of the label map once for the whole tree.
_SAID_ELSEWHERE = {
    WarningKind.NO_INFO,
    WarningKind.HIGH_RESOLUTION_AGGREGATION,
    WarningKind.AMBIGUOUS_CATEGORY,
    WarningKind.LABEL_MAP_DIFFERS,
}


class RecordedFile(NamedTuple):
    """What is on record of one file.

    Attributes:
        path: The file.
        entry: The digest and size that it should have.
        source: The lock file that says so.
        hint: What to do about it if it differs.
    """

    path: Path
    entry: LockEntry
    source: Path
    hint: str


def plan_raw(
    raw_dir: Path, selection: Selection, against: Path | None, findings: Findings
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split | None], LabelMap, int | None]:
    """Look at a raw tree without opening its scenes, and compare it with the lock file `against`, if there is one.

    Returns:
        Scenes to check, each with its files, its split and what is on record of it; the official split of every scene
        that is there; the label map beside the scenes, or the built-in one; and how many files are going to be compared
        with another copy.

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
    recorded = _read_locks(raw_dir, against, findings)
    beside_scenes = recorded.get(raw_dir, [])
    check_digests(beside_scenes, findings)
    tasks = tuple(
        CheckTask(name, folder := scenes[name].directory, (scenes[name], split, recorded.get(folder, [])))
        for name, split in selected
    )
    compared = [item for task in tasks for item in task.data[2] if item.source == against]
    if against is not None and not compared:
        hint = f"its paths must begin as here, for example {tasks[0].path.relative_to(raw_dir)}/..." if tasks else ""
        findings.error(against, "names no file of the scenes that are checked here: none was compared", hint)
    compared += [item for item in beside_scenes if item.source == against]
    present = {scene_id: find_official_split(scene_id) for scene_id in scenes}
    return (
        tasks,
        present,
        _check_label_map(raw_dir, findings),
        None if against is None else len({it.path for it in compared}),
    )


def _read_locks(raw_dir: Path, against: Path | None, findings: Findings) -> dict[Path, list[RecordedFile]]:
    """Read by folder what is on record of the files of a tree; of another copy, only of files that are here too."""
    own_path = raw_dir / LOCK_NAME
    own = findings.attempt(own_path, read_locks, raw_dir)
    findings.found += [Finding.from_exception(fault, raw_dir) for fault in shards_of(raw_dir).find_faults()]
    recorded = [
        RecordedFile(raw_dir / name, entry, own_path, "download it again") for name, entry in (own or {}).items()
    ]
    if against is not None:
        hint = "one of the two copies is damaged, or of another version"
        theirs = [RecordedFile(raw_dir / name, entry, against, hint) for name, entry in read_lock(against).items()]
        recorded += [item for item in theirs if os.path.lexists(item.path)]
    by_folder = defaultdict[Path, list[RecordedFile]](list)
    for item in recorded:
        by_folder[item.path.parent].append(item)
    return by_folder


def check_digests(recorded: Iterable[RecordedFile], findings: Findings) -> None:
    """Compare files with what is on record of them; but for those that are known to be missing."""
    told = {finding.path for finding in findings.found if finding.is_error}
    for item in recorded:
        name, expected = item.source.name, item.entry
        if not item.path.exists():
            if told.isdisjoint({item.path, item.path.parent}):
                findings.error(item.path, f"no such file, though {name} records it", item.hint)
            continue
        found = findings.attempt(item.path, digest_file, item.path)
        if found is not None and found != expected:
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            of_record = f"{expected.size_bytes:,}, {expected.sha256[:12]}"
            message = f"is not the file that {name} records: {sizes}, expected {of_record}"
            findings.error(item.path, message, item.hint)


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
    changed += [name for name in label_map.conflicts if name not in changed]
    if changed:
        hint = "put the label map of the v2 release there, or remove it to use the built-in one"
        findings.error(path, f"differs from the release in {len(changed):,} raw categories: {list_some(changed)}", hint)
    return label_map


def check_raw_scene(task: CheckTask, label_map: LabelMap, findings: Findings) -> tuple[int, int]:
    """Check one scene, in a worker; whatever is wrong is a finding. Gives its vertices and the size of its files."""
    files: RawScene
    files, split, recorded = task.data
    if files.problem:
        findings.error(task.path, files.problem)
    if not task.path.is_dir():
        return 0, 0
    paths = _find_files(files, split, findings)
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


def _find_files(scene: RawScene, split: Split, findings: Findings) -> dict[release.FileKind, Path]:
    """Find the files that are there, and tell of those that are not."""
    paths = {kind: path for kind in release.INPUT_KINDS if is_there(path := scene.path(kind))}
    scenes = "test scene" if split is Split.TEST else "train and val scene"
    for kind in release.SEGMENTATION_KINDS:
        path = scene.path(kind)
        if kind in paths or split not in kind.splits:
            continue
        if kind is release.LABELS_MESH:
            findings.note(path, "no such file; it is needed only to take the labels from it")
        else:
            findings.error(path, "no such file", f"download it: every {scenes} has one")
    return paths


def _make_scene(
    raw: RawScene, split: Split, contents: dict[release.FileKind, Any], label_map: LabelMap, findings: Findings
) -> ProcessedScene | None:
    """Make the scene of its whole files, and tell what is odd; None where it cannot be made, or has no groups."""
    kinds = {release.MESH, release.INFO}
    if release.SEGMENTS in contents:
        kinds |= {release.SEGMENTS, raw.find_groups_kind() or release.SEGMENTS}
    used = {kind: content for kind, content in contents.items() if kind in kinds}
    files = RawFiles(raw.scene_id, split, {kind: raw.path(kind) for kind in used})
    scene = findings.attempt(raw.directory, make_scene, files, used, ProcessOptions(), label_map)
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
