"""Checks a raw tree: the label map, what lies about, and which scenes there are. `check_raw` checks the scenes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.files import is_hidden_or_temporary
from scannet_prep.labels import LABEL_MAP_NAME, LabelMap, RawIds, builtin_label_map, find_label_map, read_label_map
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.lock import LOCK_NAME, read_lock
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.finding import Finding, Findings, SceneTask, list_some
from scannet_prep.stages.selection import Selection, select_scenes
from scannet_prep.stages.verify.digests import Digests, check_digests


@dataclass(frozen=True, slots=True)
class RawSceneTask(SceneTask):
    """One raw scene that is to be checked.

    Attributes:
        scene: Its files.
        digests: What is recorded of them, here and of other copies.
    """

    scene: RawScene
    digests: tuple[Digests, ...]


@dataclass(frozen=True, slots=True)
class RawTree:
    """What there is to check in a raw tree, and what is known of it before a scene is opened.

    Attributes:
        tasks: Scenes to check.
        present: All scenes of the tree that are in an official split, by split.
        label_map: The one beside the scenes; the built-in one where that is missing or damaged.
        findings: About the tree as a whole.
    """

    tasks: tuple[RawSceneTask, ...]
    present: dict[Split, set[SceneId]] = field(hash=False)
    label_map: LabelMap
    findings: tuple[Finding, ...]


def plan_raw(raw_dir: Path, selection: Selection, against: Path | None) -> RawTree:
    """Look at a raw tree without opening its scenes.

    Args:
        raw_dir: The tree.
        selection: Which scenes.
        against: The `scannet.lock` of another copy, to compare with; None for none.

    Raises:
        LockError: `against` is damaged.
        MissingFileError: It holds no scene folders.
        UnknownSceneError: The selection contradicts itself.
    """
    scenes = find_raw_scenes(raw_dir)
    selected = select_scenes(scenes, selection, raw_dir)
    everything = select_scenes(scenes, Selection(), raw_dir)
    findings = Findings()
    for failure in selected.failures:
        scene = scenes.get(SceneId(failure.scene_id))
        message = failure.message.removeprefix(f"{raw_dir}: ")
        findings.error(scene.directory if scene else raw_dir, message, failure.hint, scene_id=failure.scene_id)
    label_map = _check_label_map(raw_dir, findings)
    digests = _read_digests(raw_dir, against, findings)
    for item in digests:
        entry = item.entries.get(LABEL_MAP_NAME)
        if entry is not None:
            check_digests(replace(item, entries={LABEL_MAP_NAME: entry}), {}, findings)
    findings.attempt(raw_dir, _check_entries, raw_dir, findings)
    return RawTree(
        tasks=tuple(
            RawSceneTask(
                scene_id,
                split,
                scenes[scene_id].directory,
                scenes[scene_id],
                tuple(item.for_folder(scenes[scene_id].directory) for item in digests),
            )
            for scene_id, split in selected.scenes
        ),
        present={split: {scene_id for scene_id, other in everything.scenes if other is split} for split in Split},
        label_map=label_map,
        findings=tuple(findings.found),
    )


def _read_digests(raw_dir: Path, against: Path | None, findings: Findings) -> list[Digests]:
    found = []
    own_path = raw_dir / LOCK_NAME
    if own_path.exists():
        entries = findings.attempt(own_path, read_lock, own_path)
        found.append(Digests(raw_dir, own_path, entries or {}, "mend it: scannet-prep download, with the same --types"))
    if against is not None:
        ours, theirs = digest_names(found), read_lock(against)
        both = {name: entry for name, entry in theirs.items() if name in ours or (raw_dir / name).exists()}
        found.append(Digests(raw_dir, against, both, "one of the two copies is damaged, or of another version"))
    return found


def digest_names(digests: list[Digests]) -> set[str]:
    """Names of all files that are on record."""
    return {name for item in digests for name in item.entries}


def _check_label_map(raw_dir: Path, findings: Findings) -> LabelMap:
    builtin = builtin_label_map()
    path = find_label_map(raw_dir)
    if path is None:
        findings.note(raw_dir / LABEL_MAP_NAME, "no such file: the built-in label map is used")
        return builtin
    label_map = findings.attempt(path, read_label_map, path)
    if label_map is None:
        return builtin
    hint = "put the label map of the v2 release there, or remove it to use the built-in one"
    changed = [
        f"{name!r} is {_describe(label_map.rows.get(name))}, expected {_describe(ids)}"
        for name, ids in builtin.rows.items()
        if label_map.rows.get(name) != ids
    ]
    if changed:
        findings.error(path, f"differs from the release in {len(changed):,} raw categories: {list_some(changed)}", hint)
    repeated = [
        f"{name!r} is both {_describe(label_map.rows[name])} and {_describe(ids)}"
        for name, ids in label_map.conflicts.items()
    ]
    if repeated:
        findings.error(path, f"has {len(repeated):,} raw categories in several rows: {list_some(repeated)}", hint)
    return label_map


def _describe(ids: RawIds | None) -> str:
    return "missing" if ids is None else str(ids)


def _check_entries(raw_dir: Path, findings: Findings) -> None:
    """Look for what does not belong between the scene folders; at the top of the tree anything may lie."""
    for parent in (raw_dir, raw_dir / "scans", raw_dir / "scans_test"):
        if not parent.is_dir():
            continue
        names = sorted(path.name for path in parent.iterdir() if not path.name.startswith("."))
        is_top = parent == raw_dir and parent.name not in {"scans", "scans_test"}
        strangers = [
            name
            for name in names
            if not is_hidden_or_temporary(name) and not SceneId.is_valid(name) and not is_top and name != LABEL_MAP_NAME
        ]
        note_strangers(parent, names, strangers, findings)


def note_strangers(directory: Path, names: list[str], strangers: list[str], findings: Findings) -> None:
    """Note temporary files and entries that are not of the release.

    Args:
        directory: A folder.
        names: All its entries.
        strangers: Those that are not of the release, nor temporary.
        findings: Where the notes go.
    """
    temporary = [name for name in names if name.startswith("tmp")]
    if temporary:
        message = f"{len(temporary):,} temporary files of a download that was interrupted: {list_some(temporary)}"
        findings.note(directory, message, "remove them, unless a download is under way")
    if strangers:
        findings.note(directory, f"{len(strangers):,} entries that are not of the release: {list_some(strangers)}")
