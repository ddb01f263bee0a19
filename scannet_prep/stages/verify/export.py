"""Check an export: every file that its manifest names, by size and CRC-32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scannet_prep.base.errors import FileError
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import Fingerprint
from scannet_prep.export import EXPORT_NAME
from scannet_prep.export.manifest import read_export
from scannet_prep.processed.folder import UNFINISHED_NAME, read_unfinished
from scannet_prep.release.findings import Finding, Findings
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.scene_checks import CheckTask
from scannet_prep.stages.selection import Selection

_HINT_EXPORT_AGAIN = "run the same scannet-prep export command again"


def plan(
    out_dir: Path, selection: Selection, findings: Findings
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split], None]:
    """Find the scenes of an export, without reading them.

    Returns:
        The scenes to check, each with the fingerprints of its files by name; and the split of
        each scene of the export.
    """
    path = out_dir / EXPORT_NAME
    try:
        manifest = read_export(out_dir)
    except FileError as error:
        findings.found.append(Finding.from_exception(error, path))
        return (), {}, None
    if manifest is None:
        return (), {}, None

    unfinished = sorted(read_unfinished(out_dir))
    if unfinished:
        message = f"lists scenes that have still to be made: {list_some(unfinished)}"
        findings.error(out_dir / UNFINISHED_NAME, message, _HINT_EXPORT_AGAIN)
    for name, failure in manifest.failures.items():
        message = f"records that the scene failed: {failure.message}"
        findings.error(path, message, failure.hint, scene_id=name)
    _check_files(out_dir, manifest.shared, findings)

    present = {}
    tasks = []
    for name, entry in manifest.scenes.items():
        scene_id = SceneId(name)
        present[scene_id] = entry.split
        if selection.wants(scene_id, entry.split):
            tasks.append(CheckTask(scene_id, out_dir, entry.files))
    return tuple(tasks[: selection.limit]), present, None


def check_scene(task: CheckTask, _context: None, findings: Findings) -> tuple[int, int]:
    """Check the files of one scene, in a worker.

    Returns:
        0, because vertices are not counted; and the size of the files in bytes.
    """
    _check_files(task.path, task.data, findings)
    return 0, sum(fingerprint.size_bytes for fingerprint in task.data.values())


def _check_files(
    out_dir: Path, fingerprints: Mapping[str, Fingerprint], findings: Findings
) -> None:
    """Compare files with their recorded fingerprints."""
    for name, expected in fingerprints.items():
        path = out_dir / name
        actual = findings.attempt(path, Fingerprint.from_file, path)
        if actual is not None and actual != expected:
            message = f"has {_describe(actual)}, expected {_describe(expected)} as recorded"
            findings.error(path, message, f"{_HINT_EXPORT_AGAIN} with --force")


def _describe(fingerprint: Fingerprint) -> str:
    """Describe a fingerprint in words."""
    return f"{fingerprint.size_bytes:,} bytes and CRC-32 {fingerprint.crc32}"
