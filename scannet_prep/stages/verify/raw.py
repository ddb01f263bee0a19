"""Checks a raw tree before its scenes are opened: label map, locks, and what lies about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.labels import LABEL_MAP_NAME, LabelMap, builtin_label_map, find_label_map, read_label_map
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_lock
from scannet_prep.release import SPLIT_DIRS
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.finding import CheckTask, Findings, list_some, note_strangers
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """What is on record of one file.

    Attributes:
        path: The file.
        entry: The digest and size that it should have.
        source: The lock file that says so.
        hint: What to do about it if it differs.
    """

    path: Path
    entry: LockEntry
    source: Path
    hint: str


@dataclass(frozen=True, slots=True)
class RawTask(CheckTask):
    """One raw scene that is to be checked.

    Attributes:
        split: The split it is in.
        scene: Its files.
        recorded: What is on record of them, here and in other copies.
    """

    split: Split
    scene: RawScene
    recorded: tuple[RecordedFile, ...]


def plan_raw(
    raw_dir: Path, selection: Selection, against: Path | None, findings: Findings
) -> tuple[tuple[RawTask, ...], dict[SceneId, Split | None], LabelMap, int | None]:
    """Look at a raw tree without opening its scenes.

    Args:
        raw_dir: The tree.
        selection: Which scenes.
        against: The `scannet.lock` of another copy, to compare with; None for none.
        findings: Where it goes what is wrong with the tree as a whole.

    Returns:
        Scenes to check; the official split of every scene that is there; the label map beside the scenes, or the
        built-in one; and how many files are going to be compared with another copy.

    Raises:
        LockError: `against` is damaged.
        MissingFileError: It holds no scene folders, or there is no file `against`.
        UnknownSceneError: The selection contradicts itself.
    """
    scenes = find_raw_scenes(raw_dir)
    selected = select_scenes(scenes, selection, raw_dir)
    for failure in selected.failures:
        scene = scenes.get(SceneId(failure.scene_id))
        message = failure.message.removeprefix(f"{raw_dir}: ")
        findings.error(scene.directory if scene else raw_dir, message, failure.hint, scene_id=failure.scene_id)
    recorded = _read_locks(raw_dir, against, findings)
    beside_scenes = recorded.get(raw_dir, [])
    check_digests(beside_scenes, findings)
    found = ((scenes[scene_id], split) for scene_id, split in selected.scenes)
    tasks = tuple(
        RawTask(scene.scene_id, scene.directory, split, scene, tuple(recorded.get(scene.directory, ())))
        for scene, split in found
    )
    to_compare = [*beside_scenes, *(item for task in tasks for item in task.recorded)]
    compared_files = None if against is None else sum(item.source == against for item in to_compare)
    if against is not None and not compared_files:
        hint = f"its paths must begin as here, for example {tasks[0].path.relative_to(raw_dir)}/..." if tasks else ""
        findings.error(against, "names no file that is checked here: nothing was compared", hint)
    for parent in {raw_dir, *(raw_dir / name for name in SPLIT_DIRS.values())}:
        # Anything may lie beside `scans`, but not beside scenes.
        if any(scene.directory.parent == parent for scene in scenes.values()):
            findings.attempt(parent, note_strangers, parent, _belongs_beside_scenes, findings)
    present = {scene_id: find_official_split(scene_id) for scene_id in scenes}
    return tasks, present, _check_label_map(raw_dir, findings), compared_files


def _read_locks(raw_dir: Path, against: Path | None, findings: Findings) -> dict[Path, list[RecordedFile]]:
    """Read by folder what is on record of the files of a tree; of another copy, only of files that are here too."""
    own_path = raw_dir / LOCK_NAME
    own = findings.attempt(own_path, read_lock, own_path) if own_path.exists() else None
    recorded = [
        RecordedFile(raw_dir / name, entry, own_path, "download it again") for name, entry in (own or {}).items()
    ]
    if against is not None:
        hint = "one of the two copies is damaged, or of another version"
        theirs = [RecordedFile(raw_dir / name, entry, against, hint) for name, entry in read_lock(against).items()]
        recorded += [item for item in theirs if item.path.exists()]
    by_folder = defaultdict[Path, list[RecordedFile]](list)
    for item in recorded:
        by_folder[item.path.parent].append(item)
    return by_folder


def check_digests(recorded: Iterable[RecordedFile], findings: Findings) -> None:
    """Compare files with what is on record of them."""
    for item in recorded:
        name, expected = item.source.name, item.entry
        if not item.path.exists():
            findings.error(item.path, f"no such file, though {name} records it", item.hint)
            continue
        found = findings.attempt(item.path, digest_file, item.path)
        if found is not None and found != expected:
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            of_record = f"{expected.size_bytes:,}, {expected.sha256[:12]}"
            message = f"is not the file that {name} records: {sizes}, expected {of_record}"
            findings.error(item.path, message, item.hint)


def _belongs_beside_scenes(name: str) -> bool:
    return SceneId.is_valid(name) or name in {LABEL_MAP_NAME, LOCK_NAME, *SPLIT_DIRS.values()}


def _check_label_map(raw_dir: Path, findings: Findings) -> LabelMap:
    builtin = builtin_label_map()
    path = find_label_map(raw_dir)
    if path is None:
        findings.note(raw_dir / LABEL_MAP_NAME, "no such file: the built-in label map is used")
        return builtin
    label_map = findings.attempt(path, read_label_map, path)
    if label_map is None:
        return builtin
    changed = [name for name, ids in builtin.rows.items() if label_map.rows.get(name) != ids]
    changed += [name for name in label_map.conflicts if name not in changed]
    if changed:
        hint = "put the label map of the v2 release there, or remove it to use the built-in one"
        findings.error(path, f"differs from the release in {len(changed):,} raw categories: {list_some(changed)}", hint)
    return label_map
