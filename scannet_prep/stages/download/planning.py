"""What a download is going to do: the server's files, and where they belong on disk."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep import release
from scannet_prep.errors import UsageError
from scannet_prep.files import check_is_folder
from scannet_prep.raw.lock import read_locks, shards_of
from scannet_prep.release import BASE_URL, FileKind
from scannet_prep.remote.transfer import partial_path
from scannet_prep.remote.trouble import is_server_address, public_url
from scannet_prep.scene import SceneId, Split
from scannet_prep.shards import Shard, Share
from scannet_prep.splits import official_scenes
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the release."""

    kind: FileKind  # what it is
    scene_id: SceneId | None  # the scene it belongs to; None for files of no scene
    split: Split | None  # the split of that scene; None for files of no scene
    url: str  # its address
    local_path: str  # place below the data folder, with `/`


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What `run` is going to do; making it needs no network and touches nothing."""

    data_dir: Path  # where the files go
    base_url: str  # where they come from; ends in `/`
    files: tuple[RemoteFile, ...]  # all files that were asked for, scene by scene
    present: frozenset[str]  # local paths of those that are there; `run` checks each of them
    partial_bytes: int  # what has arrived of the missing files, in an earlier run
    share: Share | None = None  # the shard that `files` fall to; None where they are all that was asked for
    is_merged: bool = False  # whether shards have been merged that had brought all of the job

    @property
    def missing(self) -> list[RemoteFile]:
        """The files that are not there."""
        return [file for file in self.files if file.local_path not in self.present]

    @property
    def needed_bytes(self) -> int:
        """Typical size of what is still to come; kinds of unknown size count as nothing."""
        return max(0, sum(file.kind.typical_bytes or 0 for file in self.missing) - self.partial_bytes)

    @property
    def shown_base_url(self) -> str:
        """Where the files come from, as messages may show it: without a password."""
        return public_url(self.base_url)


def plan(
    data_dir: Path,
    types: Sequence[str] = ("seg",),
    *,
    selection: Selection | None = None,
    base_url: str = BASE_URL,
    shard: Shard | None = None,
) -> DownloadPlan:
    """Decide what to fetch, from the official lists and a table of which kinds of files exist; needs no network.

    Args:
        data_dir: Where the files go.
        types: Presets (`seg`, `seg-min`) and official suffixes.
        selection: Which scenes; all by default.
        base_url: The server, or a mirror of it.
        shard: Which part of all that to do; other runs do the others, and a run without it merges.

    Raises:
        UsageError: A type is unknown, or the base URL is not one; or there are other shards.
        LockError: This is a shard, and `scannet.lock` is damaged.
        UnknownSceneError: A scene is in none of the official lists, or not in the splits that were asked for.
        OutputError: `data_dir` is not a folder.
    """
    check_is_folder(data_dir)
    if not is_server_address(base_url) or re.search(r"[\s?#]", base_url):  # paths are added to it
        raise UsageError(f"{public_url(base_url)!r} is not a base URL", f"it looks like {BASE_URL}")
    everything = [scene_id for split in Split for scene_id in official_scenes(split)]
    selection = selection or Selection()
    selected, _ = select_scenes(everything, selection, data_dir)
    base_url = base_url.rstrip("/") + "/"
    known_kinds = release.KINDS | release.SHARED_KINDS
    suffixes = dict.fromkeys(suffix for word in types for suffix in release.PRESETS.get(word, (word,)))
    if unknown := [suffix for suffix in suffixes if suffix not in known_kinds]:
        hint = f"presets: {', '.join(release.PRESETS)}; types: {', '.join(known_kinds)}"
        raise UsageError(f"{unknown[0]!r} is not a type of file", hint)
    kinds = tuple(known_kinds[suffix] for suffix in suffixes)
    files = tuple(list_files(selected, kinds, base_url))
    if not files:
        raise UsageError("no file of these types exists for these scenes", "test scenes have no annotation")
    sizes = Counter[str]()
    for file in files:
        sizes[file.scene_id or ""] += file.kind.typical_bytes or 0
    settings = {"types": " ".join(sorted(kind.suffix for kind in kinds))}
    is_merged = False
    if share := shards_of(data_dir).take(shard, sizes, settings, is_restricted=selection != Selection()):
        known = {} if share.folder.exists() else read_locks(data_dir)
        is_merged = all(file.local_path in known for file in files)
        files = tuple(file for file in files if (file.scene_id or "") in share.names)
    paths = {file.local_path: data_dir / file.local_path for file in files}
    present = frozenset(name for name, path in paths.items() if os.path.lexists(path))
    partials = [partial_path(path) for name, path in paths.items() if name not in present]
    return DownloadPlan(
        data_dir=data_dir,
        base_url=base_url,
        files=files,
        present=present,
        partial_bytes=sum(path.stat().st_size for path in partials if os.path.exists(path)),  # noqa: PTH110 - which never raises
        share=share,
        is_merged=is_merged,
    )


def list_files(
    scenes: Sequence[tuple[SceneId, Split]], kinds: Sequence[FileKind], base_url: str = BASE_URL
) -> list[RemoteFile]:
    """List the files of the given kinds that exist for the given scenes, those of no scene first.

    Addresses and places are those of the official download script (as of 2026).
    """
    files = []
    for kind in kinds:
        if not kind.splits:
            place = kind.suffix if kind is release.LABEL_MAP else f"tasks/{kind.suffix}"
            files.append(RemoteFile(kind, None, None, f"{base_url}v2/tasks/{kind.suffix}", place))
    for scene_id, split in scenes:
        for kind in kinds:
            if split in kind.splits:
                name = f"{scene_id}/{scene_id}{kind.suffix}"
                # The sensor streams of train and val never moved when version 2 came out.
                version = "v1" if kind.content == "sensor stream" and split is not Split.TEST else "v2"
                place = f"{release.SPLIT_DIRS[split]}/{name}"
                files.append(RemoteFile(kind, scene_id, split, f"{base_url}{version}/scans/{name}", place))
    return files
