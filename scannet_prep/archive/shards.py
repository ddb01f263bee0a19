"""The names of shards, and the archives that are read together.

A service may limit the size of a file. Then a set of shards replaces one archive:
`name-00000-of-00004.tar.zst` and so on, each a complete archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from scannet_prep.errors import UsageError

SUFFIX = ".tar.zst"

# The name of a shard at the end of a path, or before the query of an address.
_SHARD_NAME = re.compile(rf"([^/]+)-(\d{{5}})-of-(\d{{5}}){re.escape(SUFFIX)}(?=\?|\Z)", re.ASCII)


def shard_path(path: Path, number: int, count: int) -> Path:
    """Return the path of one of `count` shards of `name.tar.zst`, numbered from 0."""
    return path.with_name(_shard_name(path.name.removesuffix(SUFFIX), number, count))


def find_shards(path: Path) -> tuple[Path, ...]:
    """Find the shards of `name.tar.zst` in its folder, of all sets, sorted by name."""
    stem = path.name.removesuffix(SUFFIX)
    shards = []
    for candidate in path.parent.glob(f"*{SUFFIX}"):
        match = _SHARD_NAME.search(str(candidate))
        if match is not None and match[1] == stem:
            shards.append(candidate)
    return tuple(sorted(shards))


def find_missing_shards(names: Iterable[str | Path]) -> tuple[str, ...]:
    """Find the shards that are missing from the sets of the given ones.

    Args:
        names: Paths, or addresses as messages show them. A set may lie in several folders: only
            the last part of a name counts.

    Returns:
        The names of the missing shards without folders, sorted.
    """
    # The numbers of the given shards, by the stem and the size of their set.
    numbers: dict[tuple[str, int], set[int]] = {}
    for name in names:
        match = _SHARD_NAME.search(str(name))
        if match is not None:
            stem, number, count = match.groups()
            numbers.setdefault((stem, int(count)), set()).add(int(number))
    missing: list[str] = []
    for (stem, count), given_numbers in numbers.items():
        missing_numbers = set(range(count)) - given_numbers
        missing += [_shard_name(stem, number, count) for number in missing_numbers]
    return tuple(sorted(missing))


def check_held_once(archives: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Check that no scene is in two archives.

    Args:
        archives: The name of each archive and its scene ids.

    Raises:
        UsageError: A scene is in two of them.
    """
    holders: dict[str, str] = {}
    for name, scene_ids in archives:
        for scene_id in scene_ids:
            if scene_id in holders:
                problem = f"{name}: holds {scene_id}, and so does {holders[scene_id]}"
                raise UsageError(problem, "name only one of them")
            holders[scene_id] = name


def _shard_name(stem: str, number: int, count: int) -> str:
    """Return the file name of a shard."""
    return f"{stem}-{number:05d}-of-{count:05d}{SUFFIX}"
