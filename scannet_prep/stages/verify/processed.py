"""Checks a processed tree: manifest and what lies about; then each scene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.folder import (
    find_state,
    iter_processed_scenes,
    processed_path,
)
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.processed.scene import ProcessedScene, find_problems, parse_processed
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.finding import CheckTask, Finding, Findings
from scannet_prep.stages.selection import Selection

_AGAIN = "process again with the same options and --checksum: whole scenes are kept, and the others are made"


@dataclass(frozen=True, slots=True)
class ProcessedTask(CheckTask):
    """One processed scene that is to be checked.

    Attributes:
        split: The split that it lies in.
        entry: What the manifest records of it; None where it records nothing.
    """

    split: Split
    entry: SceneEntry | None


def plan_processed(
    out_dir: Path, selection: Selection, findings: Findings
) -> tuple[tuple[ProcessedTask, ...], dict[SceneId, Split]]:
    """Look at a processed tree without opening its scenes; gives those to check, and the split of all there are."""
    state = find_state(out_dir)
    manifest = state.manifest if state.has_manifest else Manifest(is_complete=False)
    findings.found += [Finding.from_exception(fault, out_dir) for fault in state.faults]
    if not (state.has_manifest or state.faults):
        findings.error(out_dir / MANIFEST_NAME, "no such file", _AGAIN)
    present = [(name, split) for name, split, _ in iter_processed_scenes(out_dir)]  # one may lie in two splits
    recorded = {(name, entry.split): entry for name, entry in manifest.scenes.items()}
    _check_records(out_dir, present, manifest, selection, findings)
    tasks = [
        ProcessedTask(scene_id, processed_path(out_dir, split, scene_id), split, recorded.get((scene_id, split)))
        for scene_id, split in sorted(present)
        if selection.wants(scene_id, split) and ((scene_id, split) in recorded or not manifest.is_complete)
    ]
    told = {fault.path for fault in state.faults}  # without a manifest, every scene was read
    return tuple(task for task in tasks[: selection.limit] if task.path not in told), dict(present)


def check_processed_scene(task: ProcessedTask, context: None, findings: Findings) -> tuple[int, int]:  # noqa: ARG001
    """Check one scene, in a worker; whatever is wrong is a finding. Gives its vertices and the size of its file."""
    data = read_file(task.path)
    scene = parse_processed(data, task.path)
    problems = [*_find_naming_problems(scene, task), *find_problems(scene)]
    # One cause, one finding: a file that is wrong by itself cannot be the one on record either.
    problems = problems or list(_find_differences(scene, Fingerprint.from_bytes(data), task.entry))
    for problem in problems:
        findings.error(task.path, problem, _AGAIN)
    return len(scene.points), len(data)


def _check_records(
    out_dir: Path, present: list[tuple[SceneId, Split]], manifest: Manifest, selection: Selection, findings: Findings
) -> None:
    """Check what the manifest says of the chosen scenes against what is there."""
    recorded = {(name, entry.split) for name, entry in manifest.scenes.items()}
    there, known = {name for name, _ in present}, set(manifest.failures)
    for name, split in recorded.union(present):
        path, entry = processed_path(out_dir, split, name), manifest.scenes.get(name)
        if not selection.wants(name, split):
            continue
        known.add(name)
        if name not in there:
            findings.error(path, "no such file, though the manifest names it", _AGAIN, scene_id=name)
        elif (name, split) in recorded:
            continue
        elif name in manifest.failures:
            findings.note(path, "is of an earlier run: the last one failed on this scene", scene_id=name)
        elif manifest.is_complete:
            problem = "is not in the manifest" + (f", which has it in {entry.split}" if entry else "")
            findings.error(path, problem, "remove it" if entry else _AGAIN, scene_id=name)
    for name, failure in manifest.failures.items():
        if selection.scene_ids is None or name in selection.scene_ids:  # its split is not on record
            problem = f"this scene failed: {failure.message}"
            findings.error(out_dir / MANIFEST_NAME, problem, failure.hint, scene_id=name)
    for name in set(selection.scene_ids or ()) - known:
        findings.error(out_dir, "is not here, or not in the splits that were asked for", scene_id=name)


def _find_naming_problems(scene: ProcessedScene, task: ProcessedTask) -> Iterator[str]:
    if scene.meta.scene_id != task.scene_id:
        yield f"holds {scene.meta.scene_id}"
    if scene.meta.split is not task.split:
        yield f"was made as a {scene.meta.split} scene, but lies in {task.split}"


def _find_differences(scene: ProcessedScene, fingerprint: Fingerprint, entry: SceneEntry | None) -> Iterator[str]:
    if entry is None:
        return
    found = SceneEntry.from_scene(scene, fingerprint)
    names = [name for name in SceneEntry.__struct_fields__ if getattr(found, name) != getattr(entry, name)]
    for name in names[:1]:
        numbers = f"{getattr(found, name)!s:.80}, expected {getattr(entry, name)!s:.80}"
        yield f"has another {name.replace('_', ' ')} than the manifest records: {numbers}"
