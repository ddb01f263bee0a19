"""Check extracted frames: every file that the record of a scene names, by size and CRC-32."""

from __future__ import annotations

from pathlib import Path

from scannet_prep.base.findings import Findings
from scannet_prep.frames.record import (
    RECORD_NAME,
    FramesRecord,
    iter_records,
    iter_scene_folders,
    read_record,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.scene_checks import CheckTask, Inspection, check_recorded_files

_HINT_AGAIN = "remove the folder of this scene, then run the same scannet-prep frames command again"


def plan(
    out_dir: Path, inspection: Inspection
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split], None]:
    """Find the scenes of a folder, from their records.

    Returns:
        The scenes to check, each with its folder and its record; the split of each scene; and None,
        because `check_scene` needs no context.
    """
    selection = inspection.selection
    findings = inspection.findings
    splits = {}
    tasks = []
    options = {}
    for scene_id, path in iter_records(out_dir):
        record = findings.attempt(path, read_record, path)
        if record is None:
            continue
        splits[scene_id] = record.split
        options[record.options] = path
        if selection.wants(scene_id, record.split):
            tasks.append(CheckTask(scene_id, path.parent, record))
    recorded_ids = {scene_id for scene_id, _ in iter_records(out_dir)}
    for scene_id, path in iter_scene_folders(out_dir):
        if scene_id not in recorded_ids and selection.selects_id(scene_id):
            findings.error(path, f"has no {RECORD_NAME}", _HINT_AGAIN, scene_id=scene_id)
    if len(options) > 1:
        findings.error(out_dir, f"holds frames with {len(options)} different sets of options")
    return tuple(tasks[: selection.limit]), splits, None


def check_scene(task: CheckTask, _context: None, findings: Findings) -> tuple[int, int]:
    """Check the files of one scene, in a worker.

    Returns:
        0, because frames have no vertices; and the recorded size of the files in bytes.
    """
    record: FramesRecord = task.data
    check_recorded_files(task.path, record.files, findings, _HINT_AGAIN)
    return 0, record.size_bytes
