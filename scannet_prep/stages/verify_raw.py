"""Checks a raw tree: the label map, what lies about, and which scenes there are. `check_raw` checks the scenes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.files import is_hidden_or_temporary
from scannet_prep.labels import LABEL_MAP_NAME, LabelMap, RawIds, builtin_label_map, find_label_map, read_label_map
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.finding import Finding, Findings, SceneTask, list_some
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class RawSceneTask(SceneTask):
    """One raw scene that is to be checked."""

    scene: RawScene


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


def plan_raw(raw_dir: Path, selection: Selection) -> RawTree:
    """Look at a raw tree without opening its scenes.

    Raises:
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
    findings.attempt(raw_dir, _check_entries, raw_dir, findings)
    return RawTree(
        tasks=tuple(
            RawSceneTask(scene_id, split, scenes[scene_id].directory, scenes[scene_id])
            for scene_id, split in selected.scenes
        ),
        present={split: {scene_id for scene_id, other in everything.scenes if other is split} for split in Split},
        label_map=label_map,
        findings=tuple(findings.found),
    )


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
    return "missing" if ids is None else f"ScanNet id {ids.scannet_id}, nyu40 id {ids.nyu40_id}"


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
