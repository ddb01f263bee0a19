"""Check a raw tree: its label map, its lock files, its folders, and each scene.

plan                  find scenes and records --> a task for each scene
check_scene           check each file alone
                      --> process the scene, to check all files together
check_shared_files    check the files in tasks/, which belong to no scene
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, TypeAlias

from scannet_prep.base.findings import Finding, Findings
from scannet_prep.base.text import list_some
from scannet_prep.errors import MissingFileError
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.check import check_file, read_raw_file
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_tree_lock
from scannet_prep.raw.tree import (
    RawScene,
    find_kind,
    find_raw_scenes,
    find_shared_files,
    has_segmentation_files,
)
from scannet_prep.release import files as release
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.label_map import LabelMap, check_label_map
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split
from scannet_prep.stages.scene_checks import CheckTask, Inspection
from scannet_prep.stages.selection import select_scenes

LockRecords: TypeAlias = list[tuple[Path, LockEntry]]
"""Files, and their records in `scannet.lock`."""

# For `process`, every oddity is a warning. Here these are errors, and so is damage.
_ERRORS = {
    WarningKind.UNKNOWN_SEGMENTS,
    WarningKind.NOT_RIGID,
    WarningKind.LABELS_CONTRADICT_GROUPS,
}
# Missing and damaged files are reported as such, and the label map once for the whole tree.
_REPORTED_ELSEWHERE = {
    WarningKind.NO_INFO,
    WarningKind.NO_AGGREGATION,
    WarningKind.HIGH_RESOLUTION_AGGREGATION,
    WarningKind.LABEL_MAP_DIFFERS,
}


class SceneData(NamedTuple):
    """The data of a scene to check.

    Attributes:
        files: Its files.
        split: Its split.
        records: Its records in `scannet.lock`.
        is_for_segmentation: Whether it must have the files that segmentation needs.
    """

    files: RawScene
    split: Split
    records: LockRecords
    is_for_segmentation: bool


def plan(
    raw_dir: Path, inspection: Inspection
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split | None], LabelMap]:
    """Find the scenes of a raw tree, without opening them.

    Args:
        raw_dir: The tree.
        inspection: Selects the scenes, and receives the findings.

    Returns:
        The scenes to check, each with `SceneData`; the official split of each scene of the tree;
        and the label map beside the scenes, or the built-in one.

    Raises:
        MissingFileError: The tree holds no scene folders.
        UnknownSceneError: The selection contradicts itself.
    """
    findings = inspection.findings
    scenes = find_raw_scenes(raw_dir, may_be_empty=True)
    is_for_segmentation = _is_for_segmentation(raw_dir, scenes, findings)
    splits = {scene_id: scene.split for scene_id, scene in scenes.items()}
    selected, failures = select_scenes(splits, inspection.selection, raw_dir)
    for failure in failures:
        # A finding shows its path itself.
        findings.error(raw_dir, failure.message, failure.hint, scene_id=failure.scene_id)

    records = _read_records(raw_dir, findings)
    if inspection.selection.has_all:
        _note_removed_scenes(raw_dir, scenes, records, findings)
    # The files directly in the tree, such as the label map. `check_scene` checks those in scenes.
    check_digests(records[raw_dir], findings)

    tasks = []
    for scene_id, split in selected:
        files = scenes[scene_id]
        data = SceneData(files, split, records[files.directory], is_for_segmentation)
        tasks.append(CheckTask(scene_id, files.directory, data))
    present = {scene_id: find_official_split(scene_id) for scene_id in scenes}
    return tuple(tasks), present, check_label_map(raw_dir, findings, must_match=True)


def check_scene(task: CheckTask, label_map: LabelMap, findings: Findings) -> tuple[int, int]:
    """Check one scene, in a worker.

    Returns:
        The number of its vertices, and the size of its files in bytes.
    """
    data: SceneData = task.data
    files = data.files
    if files.problem:
        findings.error(task.path, files.problem)
    if not task.path.is_dir():
        return 0, 0

    # Check each file alone.
    paths = {}
    for kind in release.INPUT_KINDS:
        path = files.path(kind)
        if os.path.lexists(path):
            paths[kind] = path
    _report_missing_files(data, paths.keys(), findings)
    check_digests(data.records, findings)
    contents: dict[release.FileKind, Any] = {}
    size_bytes = 0
    for kind, path in paths.items():
        content = findings.attempt(path, read_raw_file, kind, path, files.scene_id)
        if content is not None:
            contents[kind] = content
            size_bytes += path.stat().st_size
    size_bytes += _check_other_files(files, findings)
    if not (paths or size_bytes or data.is_for_segmentation):
        hint = "remove the folder, or download the scene"
        findings.error(task.path, "holds no file of the release", hint)

    # Check all files together.
    if release.MESH not in contents:
        return 0, size_bytes
    if not files.problem and contents.keys() == paths.keys():
        has_labels = release.LABELS_MESH in contents
        _check_together(files, data.split, label_map, findings, has_labels=has_labels)
    return contents[release.MESH].vertex_count, size_bytes


def check_shared_files(raw_dir: Path, inspection: Inspection) -> tuple[int, int]:
    """Check the files in `tasks/`: their records, and every member of every zip file.

    Returns:
        Their number, and their size in bytes.
    """
    findings = inspection.findings
    progress = inspection.progress
    records = _read_records(raw_dir, findings)[raw_dir / release.TASKS_DIR]
    shared_files = find_shared_files(raw_dir)
    if not (shared_files or records):
        return 0, 0
    paths = [path for path in shared_files.values() if path.is_file()]
    size_bytes = sum(path.stat().st_size for path in paths)
    recorded_bytes = sum(path.stat().st_size for path, _ in records if path.is_file())
    with progress.work("verify tasks", recorded_bytes + size_bytes, "B"):
        check_digests(records, findings, progress.advance)
        for kind, path in shared_files.items():
            findings.attempt(path, check_file, kind, path, "", progress)
    return len(paths), size_bytes


def find_damaged_types(findings: Iterable[Finding]) -> tuple[list[str], set[str]]:
    """Find the file types to download again.

    Returns:
        The arguments of `download --types`; and the scenes of the damaged files, with an empty
        name for a file that belongs to no scene.
    """
    types: dict[str, None] = {}
    scenes: set[str] = set()
    for finding in findings:
        if not finding.is_error:
            continue
        kind = find_kind(Path(finding.subject).name)
        if kind is not None and kind.suffix in release.SHARED_KINDS:
            types[kind.suffix] = None
            continue
        scenes.add(finding.scene_id)
        if kind is None or kind in release.SEGMENTATION_KINDS:
            types["seg"] = None
        else:
            types[kind.suffix] = None
    # `seg` includes the label map.
    if "seg" in types:
        types.pop(release.LABEL_MAP.suffix, None)
    # In reverse order, `seg` precedes the suffixes.
    return sorted(types, reverse=True), scenes


def check_digests(
    records: LockRecords, findings: Findings, advance: Callable[[int], None] = lambda _: None
) -> None:
    """Compare files with their records, but skip missing files that have been reported.

    Args:
        records: The files and their records.
        findings: Collects the differences.
        advance: Called with the number of bytes that were read.
    """
    already_reported = {finding.subject for finding in findings.found if finding.is_error}
    hint = "download the file again"
    for path, expected in records:
        if not path.exists():
            if already_reported.isdisjoint({str(path), str(path.parent)}):
                message = f"no such file, though {LOCK_NAME} records it"
                findings.error(path, message, hint)
            continue
        actual = findings.attempt(path, digest_file, path, advance)
        if actual is not None and actual != expected:
            message = (
                f"is not the file that {LOCK_NAME} records: "
                f"{actual.size_bytes:,} bytes, sha256 {actual.sha256[:12]}, "
                f"expected {expected.size_bytes:,}, {expected.sha256[:12]}"
            )
            findings.error(path, message, hint)


def _is_for_segmentation(
    raw_dir: Path, scenes: Mapping[SceneId, RawScene], findings: Findings
) -> bool:
    """Whether every scene must have the files that segmentation needs.

    A tree without any of these is not damaged if it holds other files of the release, such as
    sensor streams.
    """
    if has_segmentation_files(scenes.values()):
        return True
    if not any(map(_has_other_files, scenes.values())):
        return True
    command = f"scannet-prep download --types seg -o {quote(str(raw_dir))}"
    findings.note(
        raw_dir,
        "no scene has a mesh or an annotation: only the existing files are checked",
        f"to download the files that segmentation needs: {command}",
    )
    return False


def _has_other_files(files: RawScene) -> bool:
    """Whether a scene has files of the release that other tasks than segmentation need, too."""
    for kind in release.KINDS.values():
        # The info file is of use with the sensor stream, too.
        is_other = kind is release.INFO or kind not in release.SEGMENTATION_KINDS
        if is_other and os.path.lexists(files.path(kind)):
            return True
    return False


def _read_records(raw_dir: Path, findings: Findings) -> dict[Path, LockRecords]:
    """Read the lock files of a tree; records by folder."""
    entries = findings.attempt(raw_dir / LOCK_NAME, read_tree_lock, raw_dir) or {}
    records = defaultdict[Path, LockRecords](list)
    for name, entry in entries.items():
        path = raw_dir / name
        records[path.parent].append((path, entry))
    return records


def _note_removed_scenes(
    raw_dir: Path,
    scenes: Mapping[SceneId, RawScene],
    records: Mapping[Path, LockRecords],
    findings: Findings,
) -> None:
    """Note the recorded scenes that have no folder."""
    names = [folder.name for folder in records]
    removed = [name for name in names if SceneId.is_of_release(name) and name not in scenes]
    if removed:
        message = f"records files of scenes that have no folder here: {list_some(removed)}"
        findings.note(raw_dir / LOCK_NAME, message)


def _report_missing_files(
    data: SceneData, present: Iterable[release.FileKind], findings: Findings
) -> None:
    """Report the files that segmentation needs and that the scene does not have."""
    if not data.is_for_segmentation:
        return
    present = set(present)
    for kind in release.SEGMENTATION_KINDS:
        if kind in present or data.split not in kind.splits:
            continue
        path = data.files.path(kind)
        if kind is release.LABELS_MESH:
            findings.note(path, "no such file; it is needed only to take the labels from it")
            continue
        scenes = "train and val scene"
        if data.split is Split.TEST:
            scenes = "test scene"
        findings.error(path, "no such file", f"download it: every {scenes} has one")


def _check_other_files(files: RawScene, findings: Findings) -> int:
    """Check the files that are not inputs of `process`, and return their size in bytes."""
    size_bytes = 0
    for kind in release.KINDS.values():
        path = files.path(kind)
        if kind in release.INPUT_KINDS or not os.path.lexists(path):
            continue
        findings.attempt(path, check_file, kind, path)
        if path.is_file():
            size_bytes += path.stat().st_size
    return size_bytes


def _check_together(
    files: RawScene, split: Split, label_map: LabelMap, findings: Findings, *, has_labels: bool
) -> None:
    """Process a scene of which each file is intact, and report its oddities."""
    options = ProcessOptions(labels_from="ply" if has_labels else "aggregation")
    scene = findings.attempt(files.directory, _process, files, split, options, label_map)
    if scene is None:
        return
    for warning in scene.meta.warnings:
        is_damage = warning.kind.is_damage and split is not Split.TEST
        if warning.kind in _ERRORS or is_damage:
            findings.error(files.directory, warning.fault, "download the scene again")
        elif warning.kind not in _REPORTED_ELSEWHERE:
            findings.note(files.directory, warning.text)


def _process(
    files: RawScene, split: Split, options: ProcessOptions, label_map: LabelMap
) -> ProcessedScene | None:
    """Process a scene; None if a file is missing, which is reported elsewhere."""
    try:
        return process_scene(files, split, options, label_map)
    except MissingFileError:
        return None
