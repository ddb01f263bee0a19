"""What a download is going to do: the server's files, and where they belong on disk."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.errors import UsageError
from scannet_prep.base.files import check_is_folder
from scannet_prep.raw.lock import LockEntry, read_locks
from scannet_prep.release import files as release
from scannet_prep.release.files import BASE_URL, FileKind
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.remote.transfer import aria2_path, partial_path
from scannet_prep.remote.trouble import is_server_address, public_url
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
    present: frozenset[str]  # local paths of the files that exist; `run` checks each of them
    incomplete: frozenset[
        str
    ]  # those of them that are known not to be complete, without reading them
    partial_bytes: int  # what has arrived of the missing files, in an earlier run

    @property
    def complete(self) -> frozenset[str]:
        """Local paths of the files that exist, and are complete as far as their size shows."""
        return self.present - self.incomplete

    @property
    def missing(self) -> list[RemoteFile]:
        """The files that do not exist, or are known not to be complete."""
        return [file for file in self.files if file.local_path not in self.complete]

    @property
    def needed_bytes(self) -> int:
        """Typical size of what is still to come; kinds of unknown size count as nothing."""
        return max(
            0, sum(file.kind.typical_bytes or 0 for file in self.missing) - self.partial_bytes
        )

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
) -> DownloadPlan:
    """Decide what to fetch, from the official lists and a table of which kinds of files exist; needs no network.

    Args:
        data_dir: Where the files go.
        types: Presets (`seg`, `seg-min`) and official suffixes.
        selection: Which scenes; all by default.
        base_url: The server, or a mirror of it.

    Raises:
        UsageError: A type is unknown, or the base URL is not one.
        RawFileError: `scannet.lock` is damaged.
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
    files = tuple(list_files(selected, _parse_types(types), base_url))
    if not files:
        raise UsageError(
            "no file of these types exists for these scenes", "test scenes have no annotation"
        )

    locked = read_locks(data_dir)
    present: set[str] = set()
    incomplete: set[str] = set()
    partial_bytes = 0
    for file in files:
        path = data_dir / file.local_path
        if os.path.lexists(path):
            present.add(file.local_path)
            if not _is_incomplete(path, file.kind, locked.get(file.local_path)):
                continue
            incomplete.add(file.local_path)
        with suppress(OSError):
            partial_bytes += partial_path(path).stat().st_size
    return DownloadPlan(
        data_dir=data_dir,
        base_url=base_url,
        files=files,
        present=frozenset(present),
        incomplete=frozenset(incomplete),
        partial_bytes=partial_bytes,
    )


def _parse_types(types: Sequence[str]) -> list[FileKind]:
    """Resolve presets and suffixes to kinds of files, each once.

    Raises:
        UsageError: A type is unknown.
    """
    known_kinds = release.KINDS | release.SHARED_KINDS
    kinds: dict[str, FileKind] = {}
    for word in types:
        for suffix in release.PRESETS.get(word, (word,)):
            if suffix not in known_kinds:
                hint = f"presets: {', '.join(release.PRESETS)}; types: {', '.join(known_kinds)}"
                raise UsageError(f"{suffix!r} is not a type of file", hint)
            kinds[suffix] = known_kinds[suffix]
    return list(kinds.values())


def _is_incomplete(path: Path, kind: FileKind, recorded: LockEntry | None) -> bool:
    """Whether an existing file cannot be complete, by its size or because aria2 has not finished it."""
    if aria2_path(path).exists():
        return True
    try:
        status = path.stat()
    except OSError:  # for example a link that leads nowhere
        return True
    if not stat.S_ISREG(status.st_mode):
        return True
    if recorded is not None:
        return status.st_size != recorded.size_bytes
    return not 0 < status.st_size <= kind.max_bytes


def list_files(
    scenes: Sequence[tuple[SceneId, Split]], kinds: Sequence[FileKind], base_url: str = BASE_URL
) -> list[RemoteFile]:
    """List the files of the given kinds that exist for the given scenes, those of no scene first.

    Addresses and places are those of the official download script (as of 2026).
    """
    files = []
    for kind in kinds:
        if not kind.splits:
            place = (
                kind.suffix if kind is release.LABEL_MAP else f"{release.TASKS_DIR}/{kind.suffix}"
            )
            files.append(RemoteFile(kind, None, None, f"{base_url}v2/tasks/{kind.suffix}", place))
    for scene_id, split in scenes:
        for kind in kinds:
            if split in kind.splits:
                name = f"{scene_id}/{scene_id}{kind.suffix}"
                # The sensor streams of train and val never moved when version 2 came out.
                version = (
                    "v1" if kind.content == "sensor stream" and split is not Split.TEST else "v2"
                )
                place = f"{release.SPLIT_DIRS[split]}/{name}"
                files.append(
                    RemoteFile(kind, scene_id, split, f"{base_url}{version}/scans/{name}", place)
                )
    return files
