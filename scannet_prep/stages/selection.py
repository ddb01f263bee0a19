"""Which scenes a stage works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import UnknownSceneError, UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import read_file
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user asked for.

    Attributes:
        splits: Only these splits; all where empty. A single one is also where scenes go that no official list names.
        scene_ids: Only these scenes; all where None.
        limit: At most so many scenes; all where None.

    Raises:
        UsageError: The limit is not positive.
    """

    splits: tuple[Split, ...] = ()
    scene_ids: tuple[SceneId, ...] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        """Check the limit."""
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"the limit is {self.limit}, expected a positive number of scenes")

    def wants(self, scene_id: str, split: str | None) -> bool:
        """Whether a scene is among those that were asked for, the limit aside.

        Args:
            scene_id: The scene.
            split: Its split; empty or None where nobody knows.
        """
        if self.scene_ids is not None and scene_id not in self.scene_ids:
            return False
        return not self.splits or split in self.splits


@dataclass(frozen=True, slots=True)
class SelectedScenes:
    """What a selection comes to.

    Attributes:
        scenes: Scene and split, sorted by scene id.
        failures: Scenes that were asked for and cannot be had, or whose split nobody knows.
    """

    scenes: tuple[tuple[SceneId, Split], ...]
    failures: tuple[SceneFailure, ...]


def select_scenes(
    available: Iterable[SceneId], selection: Selection, source: Path, filed: Mapping[str, Split] | None = None
) -> SelectedScenes:
    """Choose among the scenes that are there.

    Args:
        available: Scenes that are there.
        selection: What was asked for.
        source: Where they were looked for, for messages.
        filed: Splits that scenes in no official list were put into before.

    Raises:
        UnknownSceneError: A scene that was asked for is in none of the splits that were asked for.
    """
    present = set(available)
    wanted = present if selection.scene_ids is None else set(selection.scene_ids)
    chosen: list[tuple[SceneId, Split]] = []
    failures: list[SceneFailure] = []
    for scene_id in sorted(wanted):
        split = find_official_split(scene_id)
        if split is None and len(selection.splits) == 1:
            split = selection.splits[0]
        if split is None and filed is not None:
            split = filed.get(scene_id)
        if split is not None and selection.splits and split not in selection.splits:
            if selection.scene_ids is not None:
                raise UnknownSceneError(
                    f"{scene_id} is in the split {split}, but only {', '.join(selection.splits)} was asked for",
                    "leave out --splits or the scene",
                )
            continue
        if scene_id not in present:
            failures.append(_failure(scene_id, f"{source}: has no folder {scene_id}", "download the scene"))
        elif split is None:
            problem = f"{source}: {scene_id} is in none of the official split lists"
            hint = f"to put it into a split of your choice: --scenes {scene_id} --splits train (or val, or test)"
            failures.append(_failure(scene_id, problem, hint))
        else:
            chosen.append((scene_id, split))
    return SelectedScenes(tuple(chosen[: selection.limit]), tuple(failures))


def parse_scene_ids(words: Sequence[str]) -> tuple[SceneId, ...]:
    """Read scene ids from arguments: ids, or `@FILE` with one id a line; `#` begins a comment.

    Raises:
        MissingFileError: There is no such file.
        UnknownSceneError: Something is no scene id, or there is none at all.
    """
    found: dict[SceneId, None] = {}
    for word in words:
        if not word.startswith("@"):
            found[SceneId(word)] = None
            continue
        path = Path(word[1:])
        text = read_file(path).decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), start=1):
            name = line.partition("#")[0].strip()
            if name and not SceneId.is_valid(name):
                raise UnknownSceneError(
                    f"{path}: line {number}: {name[:40]!r} is not a scene id", "one scene id a line"
                )
            if name:
                found[SceneId(name)] = None
    if not found:
        raise UnknownSceneError(f"{' '.join(words)}: names no scene")
    return tuple(found)


def _failure(scene_id: SceneId, message: str, hint: str) -> SceneFailure:
    return SceneFailure(scene_id, UnknownSceneError.__name__, message, hint)
