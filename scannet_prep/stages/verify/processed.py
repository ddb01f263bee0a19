"""Checks a processed tree: the manifest, the lists, and what lies about. `check_processed` checks the scenes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.processed.folder import FAILED_NAME, TERMS_NAME
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry, read_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.finding import Finding, Findings, SceneTask, Severity, list_some
from scannet_prep.stages.selection import Selection

_AGAIN = "run scannet-prep process again with the same options: it keeps whole scenes and makes the others"


@dataclass(frozen=True, slots=True)
class ProcessedSceneTask(SceneTask):
    """One processed scene that is to be checked.

    Attributes:
        entry: What the manifest records of it; None where it records nothing.
    """

    entry: SceneEntry | None = None


@dataclass(frozen=True, slots=True)
class ProcessedTree:
    """What there is to check in a processed tree, and what is known of it before a scene is opened.

    Attributes:
        tasks: Scenes to check.
        present: All scenes of the tree, by split.
        findings: About the tree as a whole.
    """

    tasks: tuple[ProcessedSceneTask, ...]
    present: dict[Split, set[SceneId]] = field(hash=False)
    findings: tuple[Finding, ...]


def plan_processed(out_dir: Path, selection: Selection) -> ProcessedTree:
    """Look at a processed tree without opening its scenes."""
    findings = Findings()
    manifest = _check_manifest(out_dir, findings)
    paths = _find_files(out_dir, manifest, findings)
    chosen = _choose(out_dir, paths, manifest, selection, findings)
    if manifest is not None:
        _check_against_manifest(out_dir, paths, manifest, chosen, findings)
        if manifest.is_complete:
            findings.attempt(out_dir, _check_lists, out_dir, manifest, findings)
    if not (out_dir / TERMS_NAME).exists():
        findings.note(out_dir / TERMS_NAME, "no such file: the notice of ScanNet's terms of use", _AGAIN)
    entries = {} if manifest is None else manifest.scenes
    tasks = [
        ProcessedSceneTask(scene_id, split, path, entries.get(scene_id))
        for scene_id, (split, path) in sorted(paths.items())
        if scene_id in chosen
    ]
    return ProcessedTree(
        tasks=tuple(tasks[: selection.limit]),
        present={split: {scene_id for scene_id, (other, _) in paths.items() if other is split} for split in Split},
        findings=tuple(findings.found),
    )


def find_mixture(out_dir: Path, options: Iterable[ProcessOptions]) -> Finding | None:
    """Find scenes that were made with other options than the rest.

    Args:
        out_dir: The processed folder, for the finding.
        options: How each scene was made.
    """
    (usual, _), *others = Counter(options).most_common() or [(ProcessOptions(), 0)]
    if not others:
        return None
    parts = [f"{count:,} scenes with {', '.join(usual.differences(other))}" for other, count in others]
    message = f"scenes were made with different options: {'; '.join(parts)}"
    return Finding(
        out_dir, "", Severity.ERROR, message, "run scannet-prep process on all scenes with one set of options"
    )


def _check_manifest(out_dir: Path, findings: Findings) -> Manifest | None:
    path = out_dir / MANIFEST_NAME
    known = len(findings.found)
    manifest = findings.attempt(path, read_manifest, out_dir)
    if manifest is None:
        if len(findings.found) == known:
            findings.error(path, "no such file", _AGAIN)
        return None
    if not manifest.is_complete:
        findings.error(path, "says that processing has not finished", _AGAIN)
    return manifest


def _find_files(out_dir: Path, manifest: Manifest | None, findings: Findings) -> dict[SceneId, tuple[Split, Path]]:
    """Find the scenes; of a scene in two splits, the one that the manifest records."""
    found: dict[SceneId, tuple[Split, Path]] = {}
    _note_leftovers(out_dir, findings)
    for split in Split:
        directory = out_dir / split
        if not directory.is_dir():
            continue
        _note_leftovers(directory, findings)
        strangers = []
        for path in findings.attempt(directory, lambda folder: sorted(folder.iterdir()), directory) or ():
            if path.suffix == ".npz" and SceneId.is_valid(path.stem):
                scene_id = SceneId(path.stem)
                entry = None if manifest is None else manifest.scenes.get(scene_id)
                kept = found.setdefault(scene_id, (split, path))
                if kept[1] == path:
                    continue
                extra = path
                if entry is not None and entry.split is split:
                    found[scene_id], extra, kept = (split, path), kept[1], (split, path)
                problem = f"is there a second time, as {kept[0]}/{path.name}"
                findings.error(extra, problem, "remove one of the two", scene_id=scene_id)
            elif not path.name.startswith("."):
                strangers.append(path.name)
        if strangers:
            message = f"{len(strangers):,} entries that are no processed scenes: {list_some(strangers)}"
            findings.note(directory, message)
    return found


def _note_leftovers(directory: Path, findings: Findings) -> None:
    names = sorted(path.name for path in directory.glob(".*.tmp"))
    if names:
        message = f"{len(names):,} temporary files of a run that was killed: {list_some(names)}"
        findings.note(directory, message, "remove them, unless a run is under way")


def _choose(
    out_dir: Path,
    paths: dict[SceneId, tuple[Split, Path]],
    manifest: Manifest | None,
    selection: Selection,
    findings: Findings,
) -> set[str]:
    """The scenes that were asked for, among those that are there or should be."""
    splits: dict[str, str] = {scene_id: split for scene_id, (split, _) in paths.items()}
    recorded = {} if manifest is None else manifest.scenes
    splits = {scene_id: str(entry.split) for scene_id, entry in recorded.items()} | splits
    failed = set() if manifest is None else set(manifest.failures)
    for scene_id in selection.scene_ids or ():
        where = splits.get(scene_id)
        if where is None and scene_id not in failed:
            findings.error(out_dir, "does not hold this scene", _AGAIN, scene_id=scene_id)
        elif where is not None and selection.splits and where not in selection.splits:
            problem = f"is not in {', '.join(selection.splits)}"
            findings.error(paths[scene_id][1] if scene_id in paths else out_dir, problem, scene_id=scene_id)
    wanted = {*splits, *failed} if selection.scene_ids is None else set(selection.scene_ids)
    # The split of a scene that failed is not on record: it counts whichever splits were asked for.
    return {
        name for name in wanted if not selection.splits or splits.get(name, selection.splits[0]) in selection.splits
    }


def _check_against_manifest(
    out_dir: Path,
    paths: dict[SceneId, tuple[Split, Path]],
    manifest: Manifest,
    chosen: set[str],
    findings: Findings,
) -> None:
    for name, entry in manifest.scenes.items():
        if name in chosen and name not in paths:
            path = out_dir / entry.split / f"{name}.npz"
            findings.error(path, "no such file, though the manifest names it", _AGAIN, scene_id=name)
    for name, failure in manifest.failures.items():
        if name in chosen:
            path = out_dir / MANIFEST_NAME
            findings.error(path, f"this scene failed: {failure.message}", failure.hint, scene_id=name)
    for scene_id, (_, path) in paths.items():
        if scene_id not in chosen or scene_id in manifest.scenes:
            continue
        if scene_id in manifest.failures:
            findings.note(path, "is of an earlier run: the last one failed on this scene", scene_id=scene_id)
        elif manifest.is_complete:
            findings.error(path, "is not in the manifest", _AGAIN, scene_id=scene_id)


def _check_lists(out_dir: Path, manifest: Manifest, findings: Findings) -> None:
    """Check the lists that `write_lists` leaves; OctFormer trains on exactly what they name."""
    for split in Split:
        expected = {f"{split}/{name}.npz" for name, entry in manifest.scenes.items() if entry.split is split}
        names = [f"scannetv2_{split}_npz.txt", *(["scannetv2_test.txt"] if split is Split.TEST else [])]
        for name in names:
            _check_list(out_dir / name, expected, findings)
    failed_path = out_dir / FAILED_NAME
    if manifest.failures or failed_path.exists():
        _check_list(failed_path, set(manifest.failures), findings)


def _check_list(path: Path, expected: set[str], findings: Findings) -> None:
    if not path.exists():
        findings.error(path, "no such file", _AGAIN)
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = {line for line in lines if not line.startswith("#")}
    if found != expected:
        example = min(found ^ expected)
        verb = "names" if example in found else "lacks"
        problem = f"disagrees with the manifest on {len(found ^ expected):,} scenes, for example {verb} {example!r:.40}"
        findings.error(path, problem, _AGAIN)
