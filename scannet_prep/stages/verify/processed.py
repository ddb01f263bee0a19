"""Check a processed folder: its manifest, its files, and each scene."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.findings import Finding, Findings
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.processed.scene import check_meta, parse_processed
from scannet_prep.processed.scene_problems import find_problems
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.scene_checks import CheckTask, Inspection


def plan(
    out_dir: Path, inspection: Inspection
) -> tuple[tuple[CheckTask, ...], dict[SceneId, Split], None]:
    """Find the scenes of a processed folder, without opening them.

    Returns:
        The scenes to check, each with its split, its entry in the manifest and the options of the
        folder; the split of each scene that has a file; and None, because `check_scene` needs no
        context.
    """
    selection = inspection.selection
    findings = inspection.findings
    state = _find_usable_state(out_dir, findings)
    manifest = state.manifest
    if not state.has_manifest:
        return (), {}, None
    # A scene may have a file in two splits.
    present = {(scene_id, split) for scene_id, split, _ in folder.iter_processed_scenes(out_dir)}
    recorded = {
        (SceneId(scene_id), entry.split): entry for scene_id, entry in manifest.scenes.items()
    }
    # Without a manifest or after an interruption, files that no manifest records are valid.
    is_manifest_final = state.has_manifest and state.manifest.is_complete
    already_reported = {fault.path for fault in state.faults}

    # One split per scene is enough for the comparison with the official lists. Of two, the last
    # one is kept.
    splits = dict(sorted(present))
    tasks = []
    for scene_id, split in sorted(present | recorded.keys()):
        if not selection.wants(scene_id, split):
            continue
        path = folder.processed_path(out_dir, split, scene_id)
        entry = recorded.get((scene_id, split))
        if (scene_id, split) not in present:
            # A file in the folder of another split is reported when the loop reaches that split.
            if scene_id not in splits:
                message = "no such file, though the manifest names it"
                hint = _process_again(out_dir, scene_id)
                findings.error(path, message, hint, scene_id=scene_id)
            continue
        if entry is None and is_manifest_final:
            message = f"is not in the manifest as a {split} scene"
            hint = f"remove it: rm {quote(str(path))}"
            findings.error(path, message, hint, scene_id=scene_id)
        elif path not in already_reported:
            tasks.append(CheckTask(scene_id, path, (split, entry, manifest.options)))

    _report_failures(out_dir, manifest, inspection)
    known = {name for name, split in present | recorded.keys() if selection.wants(name, split)}
    for scene_id in set(selection.scene_ids or ()) - known - manifest.failures.keys():
        findings.error(out_dir, "is not here, or not in the selected splits", scene_id=scene_id)
    return tuple(tasks[: selection.limit]), splits, None


def _find_usable_state(out_dir: Path, findings: Findings) -> folder.FolderState:
    """Inspect the folder as a whole; its faults are findings."""
    state = folder.find_state(out_dir)
    for fault in state.faults:
        findings.found.append(Finding.from_exception(fault, out_dir))
    return state


def _report_failures(out_dir: Path, manifest: Manifest, inspection: Inspection) -> None:
    """Report the scenes that failed in processing, whose splits are not recorded."""
    for scene_id, failure in manifest.failures.items():
        if inspection.selection.selects_id(scene_id):
            problem = f"this scene failed: {failure}"
            path = out_dir / MANIFEST_NAME
            inspection.findings.error(path, problem, failure.hint, scene_id=scene_id)


def _process_again(out_dir: Path, scene_id: str) -> str:
    """Return the hint for a scene that is missing or damaged."""
    return (
        f"make it again: scannet-prep process -o {quote(str(out_dir))} --scenes {scene_id} --force"
    )


def check_scene(task: CheckTask, _context: None, findings: Findings) -> tuple[int, int]:
    """Check one scene, in a worker.

    Args:
        task: The scene.
        findings: Receives what is wrong.

    Returns:
        The number of its vertices, and the size of its file in bytes.
    """
    data = read_file(task.path)
    split, entry, options = task.data
    scene = parse_processed(data, task.path)
    check_meta(scene.meta, task.path, task.scene_id, split, options)
    problems = list(find_problems(scene))
    # A file that is wrong by itself cannot match its record either: report one cause once.
    if not problems and entry is not None:
        actual = SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))
        problems = _find_difference(actual, entry)
    for problem in problems:
        findings.error(task.path, problem, _process_again(task.path.parents[1], task.scene_id))
    return len(scene.points), len(data)


def count_computed(tasks: Sequence[CheckTask]) -> int:
    """Count the scenes whose segments are computed, by the manifest."""
    entries = [entry for _, entry, _ in (task.data for task in tasks) if entry is not None]
    return sum(entry.segments_source == "computed" for entry in entries)


def _find_difference(actual: SceneEntry, recorded: SceneEntry) -> list[str]:
    """Describe the first field in which a scene differs from its record in the manifest."""
    for name in SceneEntry.__struct_fields__:
        here = getattr(actual, name)
        there = getattr(recorded, name)
        if here != there:
            words = name.replace("_", " ")
            values = f"{here!s:.80}, expected {there!s:.80}"
            return [f"has another {words} than the manifest records: {values}"]
    return []
