"""The official division of the scenes into train, val and test.

The lists are those of the ScanNet benchmark (`scannetv2_train.txt` and so on, in the ScanNet
repository under `Tasks/Benchmark`): 1201, 312 and 100 scenes. No space is in two lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from scannet_prep.base.files import read_text
from scannet_prep.release.scene import SceneId, Split


@cache
def official_scenes(split: str) -> tuple[SceneId, ...]:
    """Return the scenes of a split in the order of the official list, which is not sorted.

    Args:
        split: `train`, `val` or `test`, also as a `Split`.

    Raises:
        UsageError: There is no such split.
    """
    name = f"assets/scannetv2_{Split.parse(split)}.txt"
    text = resources.files("scannet_prep").joinpath(name).read_text(encoding="ascii")
    return tuple(SceneId(line) for line in text.split())


@cache
def official_splits() -> dict[SceneId, Split]:
    """Return the split of each scene in the official lists, by its id."""
    splits: dict[SceneId, Split] = {}
    for split in Split:
        splits |= dict.fromkeys(official_scenes(split), split)
    return splits


def find_official_split(scene_id: str) -> Split | None:
    """Find the split of a scene in the official lists; None if no list contains it."""
    splits: Mapping[Any, Split] = official_splits()
    return splits.get(scene_id)


def read_scene_list(path: Path) -> list[str]:
    """Read a list of scene ids, one per line, without checking them; `#` begins a comment.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read, or is not text.
    """
    lines = read_text(path).splitlines()
    names = [line.partition("#")[0].strip() for line in lines]
    return [name for name in names if name]
