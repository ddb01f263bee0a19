"""Check an export: every file that its manifest names, by size and CRC-32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scannet_prep.base.files import Fingerprint
from scannet_prep.base.findings import Finding, Findings
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError
from scannet_prep.export import EXPORT_NAME
from scannet_prep.export.manifest import read_export
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.scene_checks import CheckTask, Inspection, check_recorded_files

_HINT_EXPORT_AGAIN = "run the same scannet-prep export command again"
_HINT_DAMAGED = f"{_HINT_EXPORT_AGAIN} with --force"


def plan(
    out_dir: Path, inspection: Inspection
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split], None]:
    """Find the scenes of an export, without reading them.

    Returns:
        The scenes to check, each with the folder of the export and the fingerprints of its files
        by name; the split of each scene of the export; and None, because `check_scene` needs no
        context.
    """
    selection = inspection.selection
    findings = inspection.findings
    manifest_path = out_dir / EXPORT_NAME
    try:
        manifest = read_export(out_dir)
    except FileError as error:
        findings.found.append(Finding.from_exception(error, manifest_path))
        return (), {}, None
    if manifest is None:
        # The folder had a manifest when it was identified as an export, and has none now. Without
        # scenes and findings, `verify` ends with an error.
        return (), {}, None

    if manifest.unfinished:
        message = f"lists scenes that are still to be made: {list_some(manifest.unfinished)}"
        findings.error(manifest_path, message, _HINT_EXPORT_AGAIN)
    for scene_id, failure in manifest.failures.items():
        message = f"records that the scene failed: {failure}"
        findings.error(manifest_path, message, failure.hint, scene_id=scene_id)
    check_recorded_files(out_dir, manifest.shared, findings, _HINT_DAMAGED)

    splits = {}
    tasks = []
    for scene_name, entry in manifest.scenes.items():
        scene_id = SceneId(scene_name)
        splits[scene_id] = entry.split
        if selection.wants(scene_id, entry.split):
            # The names of the files are relative to the folder of the export.
            tasks.append(CheckTask(scene_id, path=out_dir, data=entry.files))
    return tuple(tasks[: selection.limit]), splits, None


def check_scene(task: CheckTask, _context: None, findings: Findings) -> tuple[int, int]:
    """Check the files of one scene, in a worker.

    Returns:
        0, because vertices are not counted; and the size of the files in bytes, as recorded in the
        manifest.
    """
    out_dir = task.path
    fingerprints: Mapping[str, Fingerprint] = task.data
    check_recorded_files(out_dir, fingerprints, findings, _HINT_DAMAGED)
    recorded_bytes = sum(fingerprint.size_bytes for fingerprint in fingerprints.values())
    return 0, recorded_bytes
