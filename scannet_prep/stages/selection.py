"""The scenes that a command works on: selected by id, split and number, or listed in a file."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scannet_prep.base.findings import Finding
from scannet_prep.base.text import list_some
from scannet_prep.errors import UnknownSceneError
from scannet_prep.release.scenes import (
    SCENE_ID,
    Split,
    official_splits,
    read_scene_list,
    suggest_scene_id,
)

_HINT_IDS = (
    "scene ids of the release run from scene0000_00 to scene0806_00; separate several by blanks, "
    "or write @FILE for a file of them; a folder comes before --scenes or, in view, after --source"
)
_HINT_SPLITS = "leave out --splits, or take the scene out of --scenes"
_HINT_NO_SPLIT = "to put it into a split, name the scene and the split: --scenes, --splits"
_HINT_DOWNLOAD = "download it: scannet-prep download"


class HasSplit(Protocol):
    """A scene of any place."""

    @property
    def split(self) -> str | None:
        """Its split; empty or None if unknown."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The scenes that the user has selected; all of them by default.

    Attributes:
        splits: Only these splits; empty for all.
        scene_ids: Only these scenes; None for all.
        limit: Maximum number of scenes; None for all.
    """

    splits: tuple[Split, ...] = ()
    scene_ids: tuple[str, ...] | None = None
    limit: int | None = None

    @property
    def has_all(self) -> bool:
        """Whether all scenes are selected."""
        return self == Selection()

    def wants(self, scene_id: str, split: str | None) -> bool:
        """Whether a scene is selected, the limit aside.

        Args:
            scene_id: The scene.
            split: Its split; empty or None if unknown.
        """
        is_in_splits = not self.splits or split in self.splits
        return is_in_splits and (self.scene_ids is None or scene_id in self.scene_ids)

    def select(self, held: Mapping[str, HasSplit]) -> set[str]:
        """Select scenes of those that a place holds, the limit aside."""
        return {scene_id for scene_id, scene in held.items() if self.wants(scene_id, scene.split)}

    def find(self, place: str | Path, held: Mapping[str, HasSplit], hint: str) -> list[str]:
        """Select scenes of a place, which must have every named scene, and a scene of the splits.

        Args:
            place: The place, for messages.
            held: All its scenes, by id.
            hint: The hint of the error.

        Returns:
            The selected scenes, sorted; the limit aside.

        Raises:
            UnknownSceneError: A named scene is missing, or the splits have no scene.
        """
        selected = self.select(held)
        missing = sorted(set(self.scene_ids or ()) - selected)
        if missing or (self.splits and not selected):
            wanted = f"scene {list_some(missing, 1)}" if missing else "scenes"
            splits = ", ".join(self.splits) or "any split"
            raise UnknownSceneError(f"{place}: has no {wanted} in {splits}", hint)
        return sorted(selected)


def select_scenes(
    available: Mapping[str, Split | None],
    selection: Selection,
    raw_dir: Path,
    previous_splits: Mapping[str, Split],
) -> tuple[list[tuple[str, Split]], list[Finding]]:
    """Select raw scenes, and determine the split of each.

    If neither an official list nor its folder determines the split of a scene, it has the split
    that it had before, or else the only split of the selection.

    Args:
        available: The scenes of the tree, with their splits as far as the tree shows them.
        selection: The selection.
        raw_dir: The tree, for messages.
        previous_splits: The splits that scenes had before.

    Returns:
        The scenes with their splits, sorted by id; and the selected scenes that are missing or have
        no split.

    Raises:
        UnknownSceneError: A named scene is in none of the selected splits, or is neither in the
            tree nor in an official list.
    """
    selected = []
    failures = []
    names: Collection[str] = available
    only_split = selection.splits[0] if len(selection.splits) == 1 else None
    if selection.scene_ids is not None:
        names = selection.scene_ids
        # If the user has named scenes and their split, the selection comes first.
        if only_split:
            previous_splits = {}
    for scene_id in sorted(names):
        split = official_splits().get(scene_id) or available.get(scene_id)
        split = split or previous_splits.get(scene_id, only_split)
        if split is not None and not selection.wants(scene_id, split):
            if selection.scene_ids is None:
                continue
            problem = f"{scene_id} is in the split {split}, which --splits does not name"
            raise UnknownSceneError(problem, _HINT_SPLITS)
        if scene_id not in available:
            if scene_id not in official_splits():
                raise UnknownSceneError(f"{raw_dir}: has no scene {scene_id}", _HINT_IDS)
            error = UnknownSceneError("has no folder", _HINT_DOWNLOAD)
        elif split is None:
            problem = "is in none of the official split lists, nor in a folder of its split"
            error = UnknownSceneError(problem, _HINT_NO_SPLIT)
        else:
            selected.append((scene_id, split))
            continue
        failures.append(Finding.from_error(error, raw_dir, scene_id))
    return selected[: selection.limit], failures


def parse_scene_ids(words: Sequence[str]) -> tuple[str, ...]:
    """Parse the arguments of `--scenes`.

    Args:
        words: Scene ids, or `@FILE` with one id per line; `#` begins a comment.

    Raises:
        MissingFileError: A file does not exist.
        FileError: A file names nothing.
        UnknownSceneError: Something is not a scene id.
    """
    scene_ids: dict[str, None] = {}
    for word in words:
        names = [word]
        if word.startswith("@"):
            names = read_scene_list(Path(os.path.expanduser(word[1:])))
        for name in names:
            if not SCENE_ID.fullmatch(name):
                problem = f"{word:.80}: {name[:80]!r} is not a scene id"
                raise UnknownSceneError(problem, suggest_scene_id(name) or _HINT_IDS)
            scene_ids[name] = None
    return tuple(scene_ids)
