"""Which scenes a stage works on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from scannet_prep.base.errors import UnknownSceneError
from scannet_prep.base.failures import SceneFailure
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split, read_scene_list


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user asked for.

    Attributes:
        splits: Only these splits; all where empty. A single one is also where scenes go that no official list names.
        scene_ids: Only these scenes; all where None.
        limit: At most so many scenes; all where None.
    """

    splits: tuple[Split, ...] = ()
    scene_ids: tuple[SceneId, ...] | None = None
    limit: int | None = None

    @property
    def has_whole_splits(self) -> bool:
        """Whether all scenes of some splits are asked for."""
        return self.scene_ids is None and self.limit is None

    def wants(self, scene_id: str, split: str | None) -> bool:
        """Whether a scene of a split (empty or None: nobody knows) was asked for, the limit aside."""
        is_named = self.scene_ids is None or scene_id in self.scene_ids
        return is_named and (not self.splits or split in self.splits)

    def check_found(self, place: str | Path, held: Mapping[str, str | None], hint: str) -> None:
        """Check that a place, by the splits of all its scenes, has those that were named, and any of the splits.

        Raises:
            UnknownSceneError: It has not; `hint` says what to do about it.
        """
        wanted = {scene_id for scene_id, split in held.items() if self.wants(scene_id, split)}
        where = f" in {', '.join(self.splits)}" if self.splits else ""
        if unknown := sorted(set(self.scene_ids or ()) - wanted):
            others = (
                f", nor {len(unknown) - 1:,} more of those that were named"
                if len(unknown) > 1
                else ""
            )
            problem = f"has no scene {unknown[0]}{where}{others}"
            raise UnknownSceneError(f"{place}: {problem}", hint)
        if self.splits and not wanted:
            names = (
                ", ".join(sorted({split or "scenes of no list" for split in held.values()}))
                or "none"
            )
            raise UnknownSceneError(f"{place}: has no scenes{where}; it has: {names}", hint)


def select_scenes(
    available: Iterable[SceneId],
    selection: Selection,
    source: Path,
    filed: Mapping[SceneId, Split] | None = None,
) -> tuple[tuple[tuple[SceneId, Split], ...], tuple[SceneFailure, ...]]:
    """Choose among raw scenes. Their split is the official one, else the only one asked for, else that of before.

    Args:
        available: Scenes that are there.
        selection: What was asked for.
        source: Where they were looked for, for messages.
        filed: Splits that scenes in no official list were put into before.

    Returns:
        Scenes and their splits, sorted by scene id; and the scenes that were asked for and cannot be had, or whose
        split nobody knows.

    Raises:
        UnknownSceneError: A scene that was asked for is in none of the splits that were asked for, or is neither there
            nor in an official list.
    """
    present = dict.fromkeys(
        available
    )  # which keeps their order, so that they are sorted in no time
    only = selection.splits[0] if len(selection.splits) == 1 else None
    chosen: list[tuple[SceneId, Split]] = []
    failures: list[SceneFailure] = []
    for scene_id in sorted(present if selection.scene_ids is None else {*selection.scene_ids}):
        before = (filed or {}).get(scene_id)  # which only naming the scene changes
        split = find_official_split(scene_id) or (
            only or before if selection.scene_ids is not None else before or only
        )
        if split is not None and not selection.wants(scene_id, split):
            if selection.scene_ids is not None:
                problem = f"{scene_id} is in the split {split}, but only {', '.join(selection.splits)} was asked for"
                raise UnknownSceneError(
                    problem, "leave out --splits, or take the scene out of --scenes"
                )
        elif scene_id not in present:
            if find_official_split(scene_id) is None:
                problem = (
                    f"{scene_id} is in none of the official lists, and {source} has no such folder"
                )
                hint = "check --scenes: ids of the release run from scene0000_00 to scene0806_00"
                raise UnknownSceneError(problem, hint)
            problem = f"{source}: has no folder {scene_id}"
            hint = f"scannet-prep download --types seg -o {quote(str(source))} --scenes {scene_id}"
            failures.append(SceneFailure(scene_id, "UnknownSceneError", problem, hint))
        elif split is None:
            problem = f"{source}: {scene_id} is in none of the official split lists"
            hint = f"to put it into a split, for example train: --scenes {scene_id} --splits train"
            failures.append(SceneFailure(scene_id, "UnknownSceneError", problem, hint))
        else:
            chosen.append((scene_id, split))
    return tuple(chosen[: selection.limit]), tuple(failures)


def parse_scene_ids(words: Sequence[str]) -> tuple[SceneId, ...]:
    """Read scene ids from arguments: ids, or `@FILE` with one id a line; `#` begins a comment.

    Raises:
        MissingFileError: There is no such file.
        UnknownSceneError: Something is not a scene id, or there is none at all.
    """
    found: dict[SceneId, None] = {}
    for word in words:
        names, where = [word], ""
        if word.startswith("@"):
            path = Path(word[1:]).expanduser()
            names, where = read_scene_list(path), f"{path}: "
        for name in names:
            if not SceneId.is_valid(name):
                raise UnknownSceneError(f"{where}{name[:80]!r} is not a scene id", _suggest(name))
            found[SceneId(name)] = None
    if not found:
        raise UnknownSceneError(f"{' '.join(words)}: names no scene")
    return tuple(found)


def _suggest(word: str) -> str:
    """What somebody may have meant who wrote this where a scene id was expected."""
    if Path(word).is_file():
        return f"did you mean the list in that file? Write @{word}"
    parts = [part for part in re.split(r"[,;\s]+", word) if part]
    guesses = [part.lower() if "_" in part else f"{part.lower()}_00" for part in parts]
    if guesses and all(map(SceneId.is_valid, guesses)):
        return f"did you mean {' '.join(guesses)}?"
    return "scene ids look like scene0011_00; separate several by blanks, or write @FILE, with one id a line"
