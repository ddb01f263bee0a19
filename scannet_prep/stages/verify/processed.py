"""Checks a processed tree: manifest, lists and what lies about; then each scene."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.folder import FAILED_NAME, TERMS_NAME, encode_lists, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.processed.scene import ProcessedScene, find_problems, parse_processed
from scannet_prep.processed.state import find_state
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.finding import CheckedScene, CheckTask, Finding, Findings, note_strangers
from scannet_prep.stages.selection import Selection

_AGAIN = "process again with the same options: whole scenes are kept, and the others are made"


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
) -> tuple[tuple[ProcessedTask, ...], dict[SceneId, Split | None]]:
    """Look at a processed tree without opening its scenes.

    Args:
        out_dir: The tree.
        selection: Which scenes.
        findings: Where it goes what is wrong with the tree as a whole.

    Returns:
        The scenes to check, and the split of every scene that is there.

    Raises:
        UnknownSceneError: The selection contradicts itself.
    """
    state = find_state(out_dir)
    if state.manifest is None and not (out_dir / MANIFEST_NAME).exists():
        findings.error(out_dir / MANIFEST_NAME, "no such file", _AGAIN)
    elif state.fault is not None:
        findings.found.append(Finding.from_exception(state.fault, out_dir, ""))
    known = state.manifest or Manifest(is_complete=False)
    present = _find_scenes(out_dir, known, findings)
    if known.is_complete:
        _check_lists(out_dir, known, findings)
    if not (out_dir / TERMS_NAME).exists():
        findings.note(out_dir / TERMS_NAME, "no such file: the notice of ScanNet's terms of use", _AGAIN)
    # The split of a scene that failed is not on record: it counts whichever splits were asked for.
    recorded = ((name, entry.split) for name, entry in known.scenes.items())
    splits = dict[str, Split | None]([*((name, None) for name in known.failures), *recorded, *present.items()])
    selection.check_splits(splits)
    any_split = selection.splits[0] if selection.splits else None
    chosen = [name for name in sorted(splits) if selection.wants(name, splits[name] or any_split)]
    for scene_id in selection.scene_ids or ():
        if scene_id not in splits:
            findings.error(out_dir, "does not hold this scene", _AGAIN, scene_id=scene_id)
    for name in chosen:
        _check_record(out_dir, name, present.get(SceneId(name)), known, findings)
    tasks = [
        ProcessedTask(scene_id, processed_path(out_dir, split, scene_id), split, known.scenes.get(scene_id))
        for scene_id, split in sorted(present.items())
        if scene_id in chosen
    ]
    return tuple(tasks[: selection.limit]), dict(present)


def check_processed_scene(task: ProcessedTask, context: None, findings: Findings) -> CheckedScene:  # noqa: ARG001
    """Check one scene, in a worker. Whatever is wrong is a finding."""
    data = read_file(task.path)
    scene = parse_processed(data, task.path)
    problems = [*_find_naming_problems(scene, task), *find_problems(scene)]
    # The groups can be asked about only where they are known to be those of the scene.
    problems = problems or list(_find_annotation_problems(scene))
    # One cause, one finding: a file that is wrong by itself cannot be the one on record either.
    problems = problems or list(_find_differences(scene, Fingerprint.from_bytes(data), task.entry))
    for problem in problems:
        findings.error(task.path, problem, _AGAIN)
    return CheckedScene(len(scene.points), len(data))


def _find_scenes(out_dir: Path, manifest: Manifest, findings: Findings) -> dict[SceneId, Split]:
    """Find the scenes; of a scene in two splits, the one that the manifest records."""
    found: dict[SceneId, Split] = {}
    note_strangers(out_dir, lambda _: True, findings)
    for split in Split:
        directory = out_dir / split
        if not directory.is_dir():
            continue
        findings.attempt(directory, note_strangers, directory, _is_scene_name, findings)
        for path in sorted(directory.glob("*.npz")):
            if not _is_scene_name(path.name):
                continue
            scene_id = SceneId(path.stem)
            kept, extra = found.get(scene_id, split), split
            if kept is not split:
                entry = manifest.scenes.get(scene_id)
                if entry is not None and entry.split is split:
                    kept, extra = extra, kept
                problem = f"is there a second time, as {kept}/{path.name}"
                findings.error(
                    processed_path(out_dir, extra, scene_id), problem, "remove one of the two", scene_id=scene_id
                )
            found[scene_id] = kept
    return found


def _is_scene_name(name: str) -> bool:
    return name.endswith(".npz") and SceneId.is_valid(name.removesuffix(".npz"))


def _check_record(out_dir: Path, name: str, split: Split | None, manifest: Manifest, findings: Findings) -> None:
    """Check what the manifest says of a scene against whether it is there, and where."""
    entry, failure = manifest.scenes.get(name), manifest.failures.get(name)
    if failure is not None:
        findings.error(out_dir / MANIFEST_NAME, f"this scene failed: {failure.message}", failure.hint, scene_id=name)
    if entry is not None and split is None:
        path = processed_path(out_dir, entry.split, name)
        findings.error(path, "no such file, though the manifest names it", _AGAIN, scene_id=name)
    if entry is None and split is not None:
        path = processed_path(out_dir, split, name)
        if failure is not None:
            findings.note(path, "is of an earlier run: the last one failed on this scene", scene_id=name)
        elif manifest.is_complete:
            findings.error(path, "is not in the manifest", _AGAIN, scene_id=name)


def _check_lists(out_dir: Path, manifest: Manifest, findings: Findings) -> None:
    """Check the lists beside the scenes; OctFormer trains on exactly what they name."""
    lists = {FAILED_NAME: b""} if (out_dir / FAILED_NAME).exists() else {}
    for name, data in (lists | encode_lists(manifest)).items():
        found = findings.attempt(out_dir / name, read_file, out_dir / name)
        if found is not None and found != data:
            problem = (
                f"disagrees with the manifest: {len(found.splitlines()):,} lines, expected {len(data.splitlines()):,}"
            )
            findings.error(out_dir / name, problem, _AGAIN)


def _find_naming_problems(scene: ProcessedScene, task: ProcessedTask) -> Iterator[str]:
    if scene.meta.scene_id != task.scene_id:
        yield f"holds {scene.meta.scene_id}"
    if scene.meta.split is not task.split:
        yield f"was made as a {scene.meta.split} scene, but lies in {task.split}"


def _find_annotation_problems(scene: ProcessedScene) -> Iterator[str]:
    """Find ids that the vertex's group does not have."""
    arrays = {"scannet_ids": scene.scannet_ids, "nyu40_ids": scene.nyu40_ids}
    if scene.meta.options.labels_from == "ply":
        del arrays["nyu40_ids"]
    for key, array in arrays.items():
        # One entry more than there can be groups: the last one, reached by -1, stands for "no group".
        table = np.zeros(np.iinfo(np.int16).max + 2, np.int64)
        for item in scene.meta.groups:
            table[item.id] = item.scannet_id if key == "scannet_ids" else item.nyu40_id
        wrong = int(np.count_nonzero(table[scene.instances] != array))
        if wrong:
            yield f"{key} of {wrong:,} vertices are not those of their groups"


def _find_differences(scene: ProcessedScene, fingerprint: Fingerprint, entry: SceneEntry | None) -> Iterator[str]:
    if entry is None:
        return
    if fingerprint != entry.fingerprint:
        yield (
            f"is not the file that the manifest records: {fingerprint.size_bytes:,} bytes, "
            f"CRC-32 {fingerprint.crc32:08x}, expected {entry.fingerprint.size_bytes:,}, {entry.fingerprint.crc32:08x}"
        )
        return
    found = SceneEntry.from_scene(scene, fingerprint)
    if found.vertex_count != entry.vertex_count:
        yield f"has {found.vertex_count:,} vertices, but the manifest says {entry.vertex_count:,}"
    for name in ("split", "options", "nyu40_counts", "scannet_counts", "warnings"):
        if getattr(found, name) != getattr(entry, name):
            yield f"does not have the {name.replace('_', ' ')} that the manifest records"
