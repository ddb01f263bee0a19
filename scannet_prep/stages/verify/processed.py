"""Checks a processed tree: manifest and what lies about; then each scene."""

from __future__ import annotations

from pathlib import Path

from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.folder import find_state, iter_processed_scenes, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.processed.scene import check_meta, find_problems, parse_processed
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.finding import CheckTask, Finding, Findings
from scannet_prep.stages.selection import Selection

_AGAIN = "scannet-prep process --checksum, with the same options, keeps whole scenes, and makes the others"


def plan(
    out_dir: Path, selection: Selection, findings: Findings
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split], None]:
    """Look at a processed tree without opening its scenes.

    Returns:
        Scenes to check, each with its split and what the manifest records of it; and the split of all there are.
    """
    state = find_state(out_dir)
    manifest = state.manifest if state.has_manifest else Manifest(is_complete=False)
    findings.found += [Finding.from_exception(fault, out_dir) for fault in state.faults]
    if not (state.has_manifest or state.faults):
        findings.error(out_dir / MANIFEST_NAME, "no such file", _AGAIN)
    present = {(name, split) for name, split, _ in iter_processed_scenes(out_dir)}  # one may lie in two splits
    splits = dict(sorted(present))
    recorded = {(SceneId(name), entry.split): entry for name, entry in manifest.scenes.items()}
    read = {fault.path for fault in state.faults}  # without a manifest, every scene
    known, tasks = set(manifest.failures), []
    for name, split in sorted(present | recorded.keys()):
        path, entry = processed_path(out_dir, split, name), recorded.get((name, split))
        if not selection.wants(name, split):
            continue
        known.add(name)
        if name not in splits:
            findings.error(path, "no such file, though the manifest names it", _AGAIN, scene_id=name)
        elif (name, split) in present and (entry or not manifest.is_complete) and path not in read:
            tasks.append(CheckTask(name, path, (split, entry)))
        elif entry is None and manifest.is_complete and name not in manifest.failures:
            hint = "remove it" if name in manifest.scenes else _AGAIN
            findings.error(path, f"is not in the manifest as a {split} scene", hint, scene_id=name)
    for scene_id, failure in manifest.failures.items():
        if selection.scene_ids is None or scene_id in selection.scene_ids:  # its split is not on record
            problem = f"this scene failed: {failure.message}"
            findings.error(out_dir / MANIFEST_NAME, problem, failure.hint, scene_id=scene_id)
    for scene_id in set(selection.scene_ids or ()) - known:
        findings.error(out_dir, "is not here, or not in the splits that were asked for", scene_id=scene_id)
    return tuple(tasks[: selection.limit]), splits, None


def look(task: CheckTask, context: None, findings: Findings) -> tuple[int, int]:  # noqa: ARG001
    """Check one scene, in a worker; whatever is wrong is a finding. Gives its vertices and the size of its file."""
    data = read_file(task.path)
    split, entry = task.data
    scene = parse_processed(data, task.path)
    check_meta(scene.meta, task.path, task.scene_id, split)
    problems = list(find_problems(scene))
    # One cause, one finding: a file that is wrong by itself cannot be the one on record either.
    if not problems and entry is not None:
        found = SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))
        pairs = {name: (getattr(found, name), getattr(entry, name)) for name in SceneEntry.__struct_fields__}
        problems = [
            f"has another {name.replace('_', ' ')} than the manifest records: {here!s:.80}, expected {there!s:.80}"
            for name, (here, there) in pairs.items()
            if here != there
        ][:1]
    for problem in problems:
        findings.error(task.path, problem, _AGAIN)
    return len(scene.points), len(data)
