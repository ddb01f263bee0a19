"""The official division of the scenes into train, val and test.

The lists are those of the ScanNet benchmark (`scannetv2_train.txt` and so on, in the ScanNet
repository under `Tasks/Benchmark`): 1201, 312 and 100 scenes. No space is in two lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from scannet_prep.base.files import read_file
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


def find_official_split(scene_id: str) -> Split | None:
    """Find the split of a scene in the official lists; None if no list contains it."""
    return _splits_by_scene().get(scene_id)


def count_by_split(
    scenes: Iterable[tuple[str | None, Mapping[str, int]]],
) -> dict[str, dict[str, int]]:
    """Add up the numbers of scenes by split.

    Args:
        scenes: The split of each scene (None if it is in no split), and its numbers by name.

    Returns:
        The number of `scenes` and the sum of each number; for each split, for `none` (no split) and
        for `all`. Splits without scenes are omitted.
    """
    totals: dict[str, Counter[str]] = {}
    for name in (*map(str, Split), "none", "all"):
        totals[name] = Counter()
    for split, numbers in scenes:
        for name in (str(split or "none"), "all"):
            totals[name].update({"scenes": 1, **numbers})
    # A row without scenes is empty.
    return {name: dict(row) for name, row in totals.items() if row}


def read_scene_list(path: Path) -> list[str]:
    """Read a list of scene ids, one per line, without checking them; `#` begins a comment.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
    """
    lines = read_file(path).decode("utf-8", "replace").splitlines()
    names = [line.partition("#")[0].strip() for line in lines]
    return [name for name in names if name]


@cache
def _splits_by_scene() -> dict[str, Split]:
    """Return the split of each scene by its id."""
    splits: dict[str, Split] = {}
    for split in Split:
        splits |= dict.fromkeys(official_scenes(split), split)
    return splits
