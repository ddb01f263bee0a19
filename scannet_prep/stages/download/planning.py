"""The plan of a download: the files on the server, and their paths on disk.

Most files belong to a scene. Shared files belong to none: the label map and the files in `tasks/`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import check_is_folder
from scannet_prep.errors import UsageError
from scannet_prep.raw.lock import LockEntry, read_tree_lock
from scannet_prep.release import files as release
from scannet_prep.release.files import BASE_URL, FileKind
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.remote.addresses import is_server_address, public_url
from scannet_prep.remote.transfer import aria2_path, partial_path
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the release.

    Attributes:
        kind: Its kind.
        scene_id: Its scene; None for a shared file.
        split: The split of that scene; None for a shared file.
        url: Its address.
        local_path: Its path below the data folder, with `/`.
    """

    kind: FileKind
    scene_id: SceneId | None
    split: Split | None
    url: str
    local_path: str


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """The plan of a download. Making it needs no network and changes nothing.

    Attributes:
        data_dir: The data folder.
        base_url: The address of the server, with a final `/`.
        files: All selected files: the shared ones, then scene by scene.
        present: Local paths of the files that exist; `run` checks each of them.
        incomplete: Local paths of the existing files that have a wrong size, are not regular files,
            or have not been finished by aria2.
        partial_bytes: Bytes of the missing files that earlier runs have received.
    """

    data_dir: Path
    base_url: str
    files: tuple[RemoteFile, ...]
    present: frozenset[str]
    incomplete: frozenset[str]
    partial_bytes: int

    @property
    def complete(self) -> frozenset[str]:
        """Local paths of the files that exist, and are complete as far as their size shows."""
        return self.present - self.incomplete

    @property
    def missing(self) -> list[RemoteFile]:
        """The files that do not exist, or are incomplete."""
        complete = self.complete
        return [file for file in self.files if file.local_path not in complete]

    @property
    def needed_bytes(self) -> int:
        """Typical size of the missing files; kinds of unknown size count as 0."""
        missing_bytes = sum(file.kind.typical_bytes or 0 for file in self.missing)
        return max(0, missing_bytes - self.partial_bytes)

    @property
    def shown_base_url(self) -> str:
        """The address of the server for messages, without a password."""
        return public_url(self.base_url)


def plan(
    data_dir: Path,
    types: Sequence[str] = ("seg",),
    *,
    selection: Selection | None = None,
    base_url: str = BASE_URL,
) -> DownloadPlan:
    """Plan a download from the official lists of scenes and the table of files; uses no network.

    Args:
        data_dir: The data folder.
        types: Presets (`seg`, `seg-min`), official suffixes, and names of shared files.
        selection: The selected scenes; all by default.
        base_url: The server, or a mirror of it.

    Raises:
        UsageError: A type is unknown, or the base URL is not valid.
        RawFileError: `scannet.lock` is damaged.
        UnknownSceneError: A scene is in none of the official lists, or not in the selected splits.
        OutputError: `data_dir` is not a folder.
    """
    check_is_folder(data_dir)
    # Paths are appended to a base URL, so it must not contain a query, a fragment or blanks.
    if not is_server_address(base_url) or re.search(r"[\s?#]", base_url):
        raise UsageError(
            f"{public_url(base_url)!r} is not a base URL", f"a base URL looks like {BASE_URL}"
        )
    base_url = base_url.rstrip("/") + "/"

    all_scenes: dict[SceneId, Split | None] = {}
    for split in Split:
        all_scenes |= dict.fromkeys(official_scenes(split), split)
    # The second value, the scenes that are missing or have no split, is always empty: an official
    # scene is neither, and any other scene raises an error.
    scenes, _ = select_scenes(all_scenes, selection or Selection(), data_dir)
    files = list_files(scenes, _parse_types(types), base_url)
    if not files:
        raise UsageError(
            "no file of these types exists for these scenes",
            "test scenes have no annotation: choose other --types, or scenes of train or val",
        )
    return _compare_with_disk(data_dir, base_url, files, read_tree_lock(data_dir))


def _parse_types(types: Sequence[str]) -> list[FileKind]:
    """Resolve presets and suffixes to kinds of files, without duplicates.

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


def list_files(
    scenes: Sequence[tuple[SceneId, Split]], kinds: Sequence[FileKind], base_url: str = BASE_URL
) -> list[RemoteFile]:
    """List the files of some kinds that the server has for some scenes.

    Addresses and local paths are those of the official download script (as of 2026).

    Args:
        scenes: The scenes and their splits.
        kinds: The kinds of files, of scenes or shared.
        base_url: The address of the server, with a final `/`.

    Returns:
        The shared files first, then the files of each scene.
    """
    # The kind of a shared file has no splits.
    shared_kinds = [kind for kind in kinds if not kind.splits]
    files = [_locate_shared_file(kind, base_url) for kind in shared_kinds]
    for scene_id, split in scenes:
        scene_kinds = [kind for kind in kinds if split in kind.splits]
        files += [_locate_scene_file(kind, scene_id, split, base_url) for kind in scene_kinds]
    return files


def _locate_shared_file(kind: FileKind, base_url: str) -> RemoteFile:
    """Return the address and the local path of a shared file."""
    # The suffix of a shared file is its whole name.
    name = kind.suffix
    local_path = f"{release.TASKS_DIR}/{name}"
    if kind is release.LABEL_MAP:
        local_path = name
    url = f"{base_url}v2/tasks/{name}"
    return RemoteFile(kind=kind, scene_id=None, split=None, url=url, local_path=local_path)


def _locate_scene_file(
    kind: FileKind, scene_id: SceneId, split: Split, base_url: str
) -> RemoteFile:
    """Return the address and the local path of a file of a scene."""
    name = f"{scene_id}/{scene_id}{kind.suffix}"
    version = "v2"
    # The sensor streams of train and val never moved when version 2 was published.
    if kind.content == "sensor stream" and split is not Split.TEST:
        version = "v1"
    url = f"{base_url}{version}/scans/{name}"
    local_path = f"{release.SPLIT_DIRS[split]}/{name}"
    return RemoteFile(kind=kind, scene_id=scene_id, split=split, url=url, local_path=local_path)


def _compare_with_disk(
    data_dir: Path, base_url: str, files: Sequence[RemoteFile], locked: Mapping[str, LockEntry]
) -> DownloadPlan:
    """Find the files that exist, those of them that are incomplete, and the partial files."""
    present: set[str] = set()
    incomplete: set[str] = set()
    partial_bytes = 0
    for file in files:
        path = data_dir / file.local_path
        # A link that leads nowhere also counts as present, and is then incomplete.
        is_present = os.path.lexists(path)
        is_incomplete = is_present and _is_incomplete(path, file.kind, locked.get(file.local_path))
        if is_present:
            present.add(file.local_path)
        if is_incomplete:
            incomplete.add(file.local_path)
        must_be_fetched = is_incomplete or not is_present
        if must_be_fetched:
            partial_bytes += _measure_partial_file(path)
    return DownloadPlan(
        data_dir=data_dir,
        base_url=base_url,
        files=tuple(files),
        present=frozenset(present),
        incomplete=frozenset(incomplete),
        partial_bytes=partial_bytes,
    )


def _measure_partial_file(path: Path) -> int:
    """Return how many bytes of a file earlier runs have received; 0 if they left none."""
    try:
        return partial_path(path).stat().st_size
    except OSError:
        return 0


def _is_incomplete(path: Path, kind: FileKind, recorded: LockEntry | None) -> bool:
    """Whether an existing file must be downloaded again, as far as can be seen without reading it.

    Args:
        path: The file.
        kind: Its kind, which limits its size.
        recorded: Its record in `scannet.lock`, whose size it must have; None if there is none.
    """
    if aria2_path(path).exists():
        return True
    try:
        status = path.stat()
    except OSError:
        # For example, the path is a link that leads nowhere.
        return True
    if not stat.S_ISREG(status.st_mode):
        return True
    if recorded is not None:
        return status.st_size != recorded.size_bytes
    # Without a record, only an empty file and one too large for its kind are known to be wrong.
    is_empty = status.st_size == 0
    is_too_large = status.st_size > kind.max_bytes
    return is_empty or is_too_large
