"""The scenes that a stage works on, selected by id, split and number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from scannet_prep.base.findings import Finding
from scannet_prep.errors import UnknownSceneError
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import (
    find_official_split,
    read_scene_list,
    report_without_split,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The scenes that the user has selected; all of them by default.

    Attributes:
        splits: Only these splits; empty for all. If there is just one, selected scenes that no
            official list contains belong to it, too.
        scene_ids: Only these scenes; None for all.
        limit: Maximum number of scenes; None for all.
    """

    splits: tuple[Split, ...] = ()
    scene_ids: tuple[SceneId, ...] | None = None
    limit: int | None = None

    @property
    def has_all(self) -> bool:
        """Whether all scenes are selected."""
        return self == Selection()

    @property
    def has_whole_splits(self) -> bool:
        """Whether all scenes of the selected splits are selected."""
        return self.scene_ids is None and self.limit is None

    def selects_id(self, scene_id: str) -> bool:
        """Whether `scene_ids` selects a scene; its split and the limit are not considered."""
        return self.scene_ids is None or scene_id in self.scene_ids

    def wants(self, scene_id: str, split: str | None) -> bool:
        """Whether a scene is selected, the limit aside.

        Args:
            scene_id: The scene.
            split: Its split; empty or None if unknown.
        """
        return self.selects_id(scene_id) and (not self.splits or split in self.splits)

    def check_found(self, place: str | Path, held: Mapping[str, str | None], hint: str) -> None:
        """Check that a place has all scenes that were named, and any scene of the splits.

        Args:
            place: The place, for messages.
            held: The splits of all its scenes, by id.
            hint: The hint of the error.

        Raises:
            UnknownSceneError: A named scene is missing, or there is none of the splits.
        """
        selected = {scene_id for scene_id, split in held.items() if self.wants(scene_id, split)}
        of_splits = f" in {', '.join(self.splits)}" if self.splits else ""
        missing = sorted(set(self.scene_ids or ()) - selected)
        if missing:
            others = ""
            if len(missing) > 1:
                others = f", nor {len(missing) - 1:,} more of those that were named"
            problem = f"has no scene {missing[0]}{of_splits}{others}"
            raise UnknownSceneError(f"{place}: {problem}", hint)
        if self.splits and not selected:
            held_splits = {split or "scenes of no list" for split in held.values()}
            names = ", ".join(sorted(held_splits)) or "none"
            problem = f"has no scenes{of_splits}; it has: {names}"
            raise UnknownSceneError(f"{place}: {problem}", hint)


def select_scenes(
    available: Iterable[SceneId],
    selection: Selection,
    source: Path,
    previous_splits: Mapping[SceneId, Split] | None = None,
    own_splits: Mapping[SceneId, Split | None] | None = None,
) -> tuple[tuple[tuple[SceneId, Split], ...], tuple[Finding, ...]]:
    """Select raw scenes, and determine the split of each.

    The split is that of the official lists. A scene that they do not contain has the split that it
    had before, or the only split of the selection: `_find_split` describes which one.

    Args:
        available: The scenes of the tree.
        selection: The selection.
        source: The tree, for messages.
        previous_splits: The splits that scenes of no official list had before.
        own_splits: The splits of own scenes by their folders.

    Returns:
        The scenes with their splits, sorted by id; and the selected scenes that are missing or have
        no split.

    Raises:
        UnknownSceneError: A named scene is in none of the selected splits, or is neither in the
            tree nor in an official list.
    """
    # A dict, unlike a set, keeps the order of the scenes. They usually come sorted, and sorting
    # them again takes hardly any time.
    present = dict.fromkeys(available)
    candidates = present if selection.scene_ids is None else set(selection.scene_ids)
    selected: list[tuple[SceneId, Split]] = []
    failures: list[Finding] = []
    for scene_id in sorted(candidates):
        previous = previous_splits.get(scene_id) if previous_splits else None
        own = own_splits.get(scene_id) if own_splits else None
        split = _find_split(scene_id, selection, previous, own)
        is_excluded = split is not None and not selection.wants(scene_id, split)
        if is_excluded and selection.scene_ids is None:
            continue
        # The scene is named, but its split is not selected.
        if is_excluded:
            splits = ", ".join(selection.splits)
            raise UnknownSceneError(
                f"{scene_id} is in the split {split}, but only {splits} was asked for",
                "leave out --splits, or take the scene out of --scenes",
            )
        if scene_id not in present:
            failures.append(_report_missing(scene_id, source))
        elif split is None:
            failures.append(report_without_split(scene_id, source))
        else:
            selected.append((scene_id, split))
    return tuple(selected[: selection.limit]), tuple(failures)


def _find_split(
    scene_id: SceneId, selection: Selection, previous: Split | None, own: Split | None
) -> Split | None:
    """Find the split of a raw scene; None if it has none.

    A scene of no official list keeps its previous split. If it had none, it gets the split of the
    selection, if that has only one. If the user has named the scene, the split of the selection has
    priority over the previous one. An own scene is in the split of its folder, `own`; one in the
    folder of train and val scenes is in train unless it was, or is selected to be, in val.
    """
    official = find_official_split(scene_id)
    if official is not None:
        return official
    only_split = selection.splits[0] if len(selection.splits) == 1 else None
    if own is not None:
        is_val = Split.VAL in (previous, only_split) and own is Split.TRAIN
        return Split.VAL if is_val else own
    if selection.scene_ids is not None:
        return only_split or previous
    return previous or only_split


def _report_missing(scene_id: SceneId, source: Path) -> Finding:
    """Describe a named scene that has no folder.

    Raises:
        UnknownSceneError: It is not in the official lists either.
    """
    if find_official_split(scene_id) is None:
        raise UnknownSceneError(
            f"{scene_id} is in none of the official lists, and {source} has no such folder",
            "check --scenes: ids of the release run from scene0000_00 to scene0806_00",
        )
    return Finding(
        scene_id=scene_id,
        error="UnknownSceneError",
        subject=str(source),
        message=f"has no folder {scene_id}",
        hint=f"scannet-prep download --types seg -o {quote(str(source))} --scenes {scene_id}",
    )


def parse_scene_ids(words: Sequence[str], *, of_release: bool = False) -> tuple[SceneId, ...]:
    """Parse the arguments of `--scenes`.

    Args:
        words: Scene ids, or `@FILE` with one id per line; `#` begins a comment.
        of_release: Whether names of own scenes are refused.

    Raises:
        MissingFileError: A file does not exist.
        UnknownSceneError: Something is not a scene id, or there is none at all.
    """
    scene_ids: dict[SceneId, None] = {}
    for word in words:
        if word.startswith("@"):
            path = Path(word[1:]).expanduser()
            names = read_scene_list(path)
            prefix = f"{path}: "
        else:
            names = [word]
            prefix = ""
        for name in names:
            is_known_form = SceneId.is_of_release(name)
            if not of_release and SceneId.is_own(name):
                # If there is a file of this name, it is probably a list, and the @ was forgotten.
                is_known_form = not Path(name).is_file()
            if not is_known_form:
                problem = f"{prefix}{name[:80]!r} is not a scene id"
                raise UnknownSceneError(problem, _suggest_scene_ids(name))
            scene_ids[SceneId(name)] = None
    if not scene_ids:
        problem = f"{' '.join(words)}: names no scene"
        raise UnknownSceneError(problem, "write one scene id per line, such as scene0011_00")
    return tuple(scene_ids)


def _suggest_scene_ids(word: str) -> str:
    """Return the hint for a word that is not a scene id, with a guess if there is one."""
    if Path(word).is_file():
        return f"did you mean the list in that file? Write @{word}"
    parts = [part for part in re.split(r"[,;\s]+", word) if part]
    guesses = [part.lower() if "_" in part else f"{part.lower()}_00" for part in parts]
    if guesses and all(map(SceneId.is_of_release, guesses)):
        return f"did you mean {' '.join(guesses)}?"
    return (
        "scene ids look like scene0011_00; separate several by blanks, "
        "or write @FILE, with one id per line"
    )
