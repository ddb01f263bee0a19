"""Several archives instead of one, for file systems and services with a largest size: `name-00000-of-00004.tar.zst`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from scannet_prep.archive.source import is_url
from scannet_prep.archive.writer import Contents, SourceGroup

SUFFIX = ".tar.zst"

_SHARD_NAME = re.compile(rf"(.+)-(\d{{5}})-of-(\d{{5}}){re.escape(SUFFIX)}", re.ASCII | re.DOTALL)
# Of a scene in the index and the seek table, of the frame's own framing; more than there is.
_EXTRA_BYTES_PER_FILE = 400


def split_contents(contents: Contents, shard_bytes: int) -> list[Contents]:
    """Divide scenes into archives of at most a size, whatever they compress to.

    Each gets a run of the scenes, and all files that belong to no scene, so that it is whole by itself. A scene that is
    larger by itself gets an archive of its own, which is larger then.

    Args:
        contents: What goes in.
        shard_bytes: Largest size of an archive.
    """
    first, *scenes = contents.groups
    start_bytes = 2 * first.size_bytes + _EXTRA_BYTES_PER_FILE * len(contents.failures)
    shards: list[list[SourceGroup]] = [[]]
    size_bytes = start_bytes
    for scene in scenes:
        scene_bytes = scene.size_bytes + _EXTRA_BYTES_PER_FILE * (1 + len(scene.files))
        if shards[-1] and size_bytes + scene_bytes > shard_bytes:
            shards.append([])
            size_bytes = start_bytes
        shards[-1].append(scene)
        size_bytes += scene_bytes
    return [replace(contents, scenes=tuple(shard)) for shard in shards]


def shard_path(path: Path, number: int, count: int) -> Path:
    """Name of a shard of `name.tar.zst`."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-{number:05d}-of-{count:05d}{SUFFIX}")


def sums_path(path: Path) -> Path:
    """The file with the SHA-256 of all shards of `name.tar.zst`, for `sha256sum -c`."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-SHA256SUMS")


def find_shards(path: Path) -> tuple[Path, ...]:
    """All shards of `name.tar.zst` that lie in its folder, also those of several sets; sorted."""
    stem = path.name.removesuffix(SUFFIX)
    items = path.parent.iterdir() if path.parent.is_dir() else ()
    return tuple(sorted(item for item in items if (match := _SHARD_NAME.fullmatch(item.name)) and match[1] == stem))


def is_of_set(name: str) -> bool:
    """Whether an archive has the name of a shard, of whatever set."""
    return _split_name(name)[1] is not None


def find_missing_shards(names: Iterable[str | Path]) -> tuple[str, ...]:
    """The shards that are needed to make whole sets of those that are there; sorted.

    A set may lie on several disks, or partly on the web: what belongs together is told by the last part of the names.

    Args:
        names: Paths, or addresses as messages show them.

    Returns:
        Each beside the first that there is of its set.
    """
    sets: dict[tuple[str, int], dict[int, str]] = {}  # of each set the folders of its shards, by number
    for name in map(str, names):
        folder, match = _split_name(name)
        if match is not None:
            sets.setdefault((match[1], int(match[3])), {})[int(match[2])] = folder
    missing = []
    for (stem, count), folders in sets.items():
        path = Path(f"{stem}{SUFFIX}")
        first = next(iter(folders.values()))
        missing += [f"{first}{shard_path(path, number, count)}" for number in range(count) if number not in folders]
    return tuple(sorted(missing))


def _split_name(name: str) -> tuple[str, re.Match[str] | None]:
    """Folder, with the slash, and the parts of a shard's name; of an address, the query is none of it."""
    path = name.partition("?")[0] if is_url(name) else name
    folder, slash, last = path.rpartition("/")
    return folder + slash, _SHARD_NAME.fullmatch(last)
