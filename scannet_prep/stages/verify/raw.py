"""Checks a raw tree: label map, locks and what lies about; then each scene.

Of a scene, each file is checked by itself; then all together, by making the scene; and the labels of the two sources.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

import numpy as np

from scannet_prep.base.failures import list_some
from scannet_prep.base.progress import Progress
from scannet_prep.processed.annotate import find_contradictions
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.large_files import LARGE_FILE_CHECKS
from scannet_prep.raw.layout import (
    RawScene,
    find_kind,
    find_raw_scenes,
    find_shared_files,
    has_segmentation_files,
)
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_lock, read_locks
from scannet_prep.raw.mesh import LabelsMesh
from scannet_prep.release import files as release
from scannet_prep.release.label_map import (
    LABEL_MAP_HINT,
    LABEL_MAP_NAME,
    LabelMap,
    builtin_label_map,
    describe_differences,
    find_label_map,
    read_label_map,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.scene_warnings import WarningKind
from scannet_prep.release.splits import find_official_split
from scannet_prep.stages.finding import CheckTask, Finding, Findings
from scannet_prep.stages.process.make_scene import (
    is_there,
    match_ply_labels,
    process_scene,
    read_raw_file,
)
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
        RawFileError: `against` is damaged.
        MissingFileError: It holds no scene folders, or there is no file `against`.
        UnknownSceneError: The selection contradicts itself.
    """
    scenes = find_raw_scenes(raw_dir, may_be_empty=True)
    is_for_segmentation = _is_for_segmentation(raw_dir, scenes, findings)
    selected, failures = select_scenes(scenes, selection, raw_dir)
    for failure in failures:
        message = failure.message.removeprefix(f"{raw_dir}: ")
        findings.error(raw_dir, message, failure.hint, scene_id=failure.scene_id)
    recorded = _read_records(raw_dir, against, findings)
    gone = [
        folder.name
        for folder in recorded
        if SceneId.is_valid(folder.name) and folder.name not in scenes
    ]
    if gone and selection == Selection():
        findings.note(
            raw_dir / LOCK_NAME,
            f"records files of scenes that have no folder here: {list_some(gone)}",
        )
    check_digests(recorded[raw_dir], findings)
    tasks = tuple(
        CheckTask(
            name,
            folder := scenes[name].directory,
            (scenes[name], split, recorded[folder], is_for_segmentation),
        )
        for name, split in selected
    )
    if against is not None:
        compared = [record for task in tasks for record in task.data[2]]
        if selection == Selection():
            compared += recorded[raw_dir / release.TASKS_DIR]
        count = sum(source == against for *_, source in compared)
        if count:
            findings.note(against, f"was compared with {count:,} files of the scenes here")
        else:
            hint = (
                f"its paths must begin as here, for example {tasks[0].path.relative_to(raw_dir)}/..."
                if tasks
                else ""
            )
            findings.error(
                against,
                "names no file of the scenes that are checked here: none was compared",
                hint,
            )
    present = {scene_id: find_official_split(scene_id) for scene_id in scenes}
    return tasks, present, _check_label_map(raw_dir, findings)


def _is_for_segmentation(
    raw_dir: Path, scenes: Mapping[SceneId, RawScene], findings: Findings
) -> bool:
    """Whether every scene must have the files that segmentation needs.

    A tree without any of them is not damaged, if it holds other files of the release, such as sensor streams.
    """
    if has_segmentation_files(scenes.values()):
        return True
    others = [
        kind
        for kind in release.KINDS.values()
        if kind not in release.SEGMENTATION_KINDS or kind is release.INFO
    ]
    has_others = any(
        os.path.lexists(scene.path(kind)) for scene in scenes.values() for kind in others
    )
    if has_others:
        message = "no scene has a mesh or an annotation: only the files that are here are checked"
        command = f"scannet-prep download --types seg -o {quote(str(raw_dir))}"
        findings.note(raw_dir, message, f"for the files that segmentation needs: {command}")
    return not has_others


def _read_records(
    raw_dir: Path, against: Path | None, findings: Findings
) -> dict[Path, list[Recorded]]:
    """Read the lock file of a tree and that of another copy; records by folder.

    Raises:
        RawFileError: `against` is damaged.
        MissingFileError: There is no file `against`.
    """
    locks = {raw_dir / LOCK_NAME: findings.attempt(raw_dir / LOCK_NAME, read_locks, raw_dir) or {}}
    if against is not None:
        locks[against] = {
            name: entry for name, entry in read_lock(against).items() if (raw_dir / name).exists()
        }
    recorded = defaultdict[Path, list[Recorded]](list)
    for lock_path, entries in locks.items():
        for name, entry in entries.items():
            path = raw_dir / name
            recorded[path.parent].append((path, entry, lock_path))
    return recorded


def check_shared_files(
    raw_dir: Path, findings: Findings, against: Path | None, progress: Progress
) -> tuple[int, int]:
    """Check the files in `tasks/`: against the lock files, and every member of every zip file.

    Returns:
        Their number, and their size in bytes.
    """
    recorded = _read_records(raw_dir, against, findings)[raw_dir / release.TASKS_DIR]
    shared_files = find_shared_files(raw_dir)
    paths = [path for path in shared_files.values() if path.is_file()]
    size_bytes = sum(path.stat().st_size for path in paths)
    if not (shared_files or recorded):
        return 0, 0
    recorded_bytes = sum(path.stat().st_size for path, *_ in recorded if path.is_file())
    with progress.work("verify tasks", recorded_bytes + size_bytes, "B"):
        check_digests(recorded, findings, progress.advance)
        for kind, path in shared_files.items():
            findings.attempt(path, LARGE_FILE_CHECKS[kind.content], path, progress.advance)
    return len(paths), size_bytes


def find_damaged_types(findings: Iterable[Finding]) -> tuple[list[str], set[str]]:
    """Find what to download again.

    Returns:
        Words for `download --types`; and the scenes that these files belong to, empty for what belongs to none.
    """
    types: dict[str, None] = {}
    scenes: set[str] = set()
    for finding in findings:
        if not finding.is_error:
            continue
        kind = find_kind(Path(finding.path).name)
        if kind is not None and kind.suffix in release.SHARED_KINDS:
            types[kind.suffix] = None
            continue
        scenes.add(finding.scene_id)
        if kind is None or kind in release.SEGMENTATION_KINDS:
            types["seg"] = None
        else:
            types[kind.suffix] = None
    if "seg" in types:
        types.pop(release.LABEL_MAP.suffix, None)
    return sorted(types, reverse=True), scenes


def check_digests(
    recorded: Iterable[Recorded],
    findings: Findings,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Compare files with their records in lock files; files that are known to be missing are passed over.

    Args:
        recorded: The files and their records.
        findings: Gets the differences.
        advance: Called with the number of bytes that were read.
    """
    told = {finding.path for finding in findings.found if finding.is_error}
    for path, expected, lock_path in recorded:
        is_own = lock_path.name == LOCK_NAME and lock_path.parent in path.parents
        hint = (
            "download it again"
            if is_own
            else "one of the two copies is damaged, or of another version"
        )
        if not path.exists():
            if told.isdisjoint({path, path.parent}):
                findings.error(path, f"no such file, though {lock_path.name} records it", hint)
            continue
        found = findings.attempt(path, digest_file, path, advance)
        if found is not None and found != expected:
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            of_record = f"{expected.size_bytes:,}, {expected.sha256[:12]}"
            message = (
                f"is not the file that {lock_path.name} records: {sizes}, expected {of_record}"
            )
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
    difference = describe_differences(label_map)
    if difference:
        findings.error(path, difference, LABEL_MAP_HINT)
    return label_map


def look(task: CheckTask, label_map: LabelMap, findings: Findings) -> tuple[int, int]:
    """Check one scene, in a worker; whatever is wrong is a finding. Gives its vertices and the size of its files."""
    files: RawScene
    files, split, recorded, is_for_segmentation = task.data
    if files.problem:
        findings.error(task.path, files.problem)
    if not task.path.is_dir():
        return 0, 0
    paths = {kind: path for kind in release.INPUT_KINDS if is_there(path := files.path(kind))}
    for kind in release.SEGMENTATION_KINDS:
        if kind in paths or split not in kind.splits or not is_for_segmentation:
            continue
        if kind is release.LABELS_MESH:
            findings.note(
                files.path(kind), "no such file; it is needed only to take the labels from it"
            )
        else:
            scenes = "test scene" if split is Split.TEST else "train and val scene"
            findings.error(files.path(kind), "no such file", f"download it: every {scenes} has one")
    check_digests(recorded, findings)
    read = {kind: findings.attempt(path, read_raw_file, kind, path) for kind, path in paths.items()}
    contents: dict[release.FileKind, Any] = {
        kind: content for kind, content in read.items() if content is not None
    }
    size_bytes = sum(paths[kind].stat().st_size for kind in contents)
    size_bytes += _check_other_files(files, findings)
    if not (paths or size_bytes or is_for_segmentation):
        findings.error(
            task.path, "holds no file of the release", "remove the folder, or download the scene"
        )
    if release.MESH not in contents:
        return 0, size_bytes
    scene = _make_scene(files, split, contents, label_map, findings)
    if release.LABELS_MESH in contents:
        _check_ply_labels(files, contents, scene, findings)
    return contents[release.MESH].vertex_count, size_bytes


def _check_other_files(files: RawScene, findings: Findings) -> int:
    """Check the files of a scene from which no processed scene is made; returns their size in bytes."""
    size_bytes = 0
    for kind in release.KINDS.values():
        path = files.path(kind)
        if kind in release.INPUT_KINDS or not is_there(path):
            continue
        if kind.content in LARGE_FILE_CHECKS:
            findings.attempt(path, LARGE_FILE_CHECKS[kind.content], path, lambda _: None)
        else:
            findings.attempt(path, read_raw_file, kind, path)
        if path.is_file():
            size_bytes += path.stat().st_size
    return size_bytes


def _make_scene(
    raw: RawScene,
    split: Split,
    contents: dict[release.FileKind, Any],
    label_map: LabelMap,
    findings: Findings,
) -> ProcessedScene | None:
    """Make the scene of its whole files, and tell what is odd; None where it cannot be made, or has no groups."""
    kinds = {release.MESH, release.INFO}
    if release.SEGMENTS in contents:
        kinds |= {release.SEGMENTS, raw.find_groups_kind() or release.SEGMENTS}
    used = {kind: content for kind, content in contents.items() if kind in kinds}
    scene = findings.attempt(
        raw.directory, process_scene, raw, split, ProcessOptions(), label_map, used
    )
    for warning in () if scene is None else scene.meta.warnings:
        if warning.kind in _ERRORS or (warning.kind.is_damage and split is not Split.TEST):
            findings.error(raw.directory, warning.fault, "download the scene again")
        elif warning.kind not in _SAID_ELSEWHERE:
            findings.note(raw.directory, warning.text)
    return scene if scene is not None and scene.meta.groups else None


def _check_ply_labels(
    raw: RawScene,
    contents: dict[release.FileKind, Any],
    scene: ProcessedScene | None,
    findings: Findings,
) -> None:
    """Check that labels.ply is of the same mesh, and that it agrees with the groups of the scene, if it has any."""
    path = raw.path(release.LABELS_MESH)
    labels_mesh: LabelsMesh = contents[release.LABELS_MESH]
    matched = findings.attempt(path, match_ply_labels, path, labels_mesh, contents[release.MESH])
    if matched is None:
        return
    _, warnings = matched
    for warning in warnings:
        findings.note(path, warning.text)
    groups_kind = raw.find_groups_kind()
    if scene is None or groups_kind is None:
        return
    labels = labels_mesh.labels
    contradicts = find_contradictions(labels, contents[release.SEGMENTS], contents[groups_kind])
    if contradicts.any():
        vertex = int(np.argmax(contradicts))
        message = (
            f"differs from the groups at {np.count_nonzero(contradicts):,} of {len(labels):,} vertices, "
            f"for example vertex {vertex}: nyu40 id {labels[vertex]}, by the groups {scene.nyu40_ids[vertex]}"
        )
        findings.error(
            path,
            message,
            "download both again; a labels.ply of ScanNet v1 holds ScanNet ids, not nyu40 ids",
        )
