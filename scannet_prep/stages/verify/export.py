"""Checks an export: every file that its manifest names, by size and CRC-32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scannet_prep.base.errors import FileError
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import Fingerprint
from scannet_prep.export import EXPORT_NAME
from scannet_prep.export.manifest import read_export
from scannet_prep.processed.folder import UNFINISHED_NAME, read_unfinished
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.finding import CheckTask, Finding, Findings
from scannet_prep.stages.selection import Selection

_AGAIN = "run the same scannet-prep export command again"


def plan(
    out_dir: Path, selection: Selection, findings: Findings
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split], None]:
    """Look at an export without reading scenes.

    Returns:
        Scenes to check, each with what the manifest records of its files by name; and the split of all there are.
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
        problem = f"names scenes that have still to be made: {list_some(unfinished)}"
        findings.error(out_dir / UNFINISHED_NAME, problem, _AGAIN)
    for name, failure in manifest.failures.items():
        findings.error(
            path, f"says that the scene failed: {failure.message}", failure.hint, scene_id=name
        )
    _check_files(out_dir, manifest.shared, findings)
    present = {SceneId(name): entry.split for name, entry in manifest.scenes.items()}
    tasks = [
        CheckTask(name, out_dir, manifest.scenes[name].files)
        for name, split in present.items()
        if selection.wants(name, split)
    ]
    return tuple(tasks[: selection.limit]), present, None


def look(task: CheckTask, context: None, findings: Findings) -> tuple[int, int]:  # noqa: ARG001
    """Check the files of one scene, in a worker. Gives no number of vertices, and the size of the files."""
    _check_files(task.path, task.data, findings)
    return 0, sum(known.size_bytes for known in task.data.values())


def _check_files(out_dir: Path, files: Mapping[str, Fingerprint], findings: Findings) -> None:
    for name, known in files.items():
        found = findings.attempt(out_dir / name, Fingerprint.from_file, out_dir / name)
        if found is not None and found != known:
            numbers = [
                f"{item.size_bytes:,} bytes and CRC-32 {item.crc32}" for item in (found, known)
            ]
            findings.error(
                out_dir / name,
                f"has {numbers[0]}, expected {numbers[1]} as recorded",
                f"{_AGAIN} with --force",
            )
