"""The plan of a download: the files on the server, and their paths on disk.

Most files belong to a scene. Shared files belong to none: the label map and the files in `tasks/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import UsageError
from scannet_prep.raw.lock import LockEntry, read_tree_lock
from scannet_prep.release import files as release
from scannet_prep.release.files import BASE_URL, FileKind
from scannet_prep.release.scenes import Split, official_splits
from scannet_prep.remote.partial import PartialFile
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the release.

    Attributes:
        kind: Its kind.
        scene_id: Its scene; empty for a shared file.
        url: Its address.
        local_path: Its path below the data folder, with `/`.
    """

    kind: FileKind
    scene_id: str
    url: str
    local_path: str


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """The plan of a download. Making it needs no network and changes nothing.

    Attributes:
        data_dir: The data folder.
        base_url: The address of the server.
        present: The files that exist and are complete as far as their size shows. `run` checks
            each of them.
        missing: All other files.
        missing_bytes: Typical size of the missing files of each kind, without what has been
            received of them.
    """

    data_dir: Path
    base_url: str
    present: list[RemoteFile]
    missing: list[RemoteFile]
    missing_bytes: Counter[FileKind]

    @property
    def files(self) -> list[RemoteFile]:
        """All selected files."""
        return [*self.present, *self.missing]


def plan(
    data_dir: Path,
    types: Sequence[str],
    *,
    selection: Selection = Selection(),
    base_url: str = BASE_URL,
) -> DownloadPlan:
    """Plan a download from the official lists of scenes and the table of files; uses no network.

    Args:
        data_dir: The data folder.
        types: Presets, suffixes, and names of shared files: keys of the tables of `release.files`.
        selection: The selected scenes; all by default.
        base_url: The server, or a mirror of it.

    Raises:
        UsageError: No selected scene has a file of these types.
        FileError: `scannet.lock` is damaged.
        UnknownSceneError: A scene is in none of the official lists, or not in the selected splits.
    """
    # The second value, the scenes that are missing or have no split, is always empty: an official
    # scene is neither, and any other scene raises an error.
    scenes, _ = select_scenes(official_splits(), selection, data_dir, {})
    locked = read_tree_lock(data_dir)
    present: list[RemoteFile] = []
    missing: list[RemoteFile] = []
    for file in _list_files(scenes, _find_kinds(types), base_url.rstrip("/")):
        is_present = _is_present(file, data_dir, locked.get(file.local_path))
        (present if is_present else missing).append(file)
    if not present and not missing:
        raise UsageError(
            "no file of these types exists for these scenes",
            "test scenes have no annotation: choose other --types, or scenes of train or val",
        )
    missing_bytes = Counter[FileKind]()
    for file in missing:
        received_bytes = PartialFile(data_dir / file.local_path).size_bytes
        # A partial file that is larger than the average says nothing about other files.
        missing_bytes[file.kind] += max(0, file.kind.typical_bytes - received_bytes)
    return DownloadPlan(data_dir, base_url, present, missing, missing_bytes)


def _find_kinds(types: Sequence[str]) -> list[FileKind]:
    """Resolve presets and suffixes to kinds of files, without duplicates."""
    known_kinds = release.KINDS | release.SHARED_KINDS
    suffixes = [suffix for word in types for suffix in release.PRESETS.get(word, (word,))]
    return list(dict.fromkeys(known_kinds[suffix] for suffix in suffixes))


def _list_files(
    scenes: Sequence[tuple[str, Split]], kinds: Sequence[FileKind], base_url: str
) -> Iterator[RemoteFile]:
    """List the files of some kinds that the server has for some scenes.

    Addresses and local paths are those of the official download script (as of 2026).
    """
    for kind in kinds:
        # The kind of a shared file has no splits, and its suffix is the whole name.
        if not kind.splits:
            name = kind.suffix
            local_path = name if kind is release.LABEL_MAP else f"{release.TASKS_DIR}/{name}"
            yield RemoteFile(kind, "", f"{base_url}/v2/tasks/{name}", local_path)
    for scene_id, split in scenes:
        for kind in kinds:
            if split not in kind.splits:
                continue
            name = f"{scene_id}/{scene_id}{kind.suffix}"
            # The sensor streams of train and val were not moved when version 2 was published.
            is_old = kind.content == "sensor stream" and split is not Split.TEST
            url = f"{base_url}/{'v1' if is_old else 'v2'}/scans/{name}"
            local_path = f"{release.SPLIT_DIRS[split]}/{name}"
            yield RemoteFile(kind, scene_id, url, local_path)


def _is_present(file: RemoteFile, data_dir: Path, recorded: LockEntry | None) -> bool:
    """Whether a file is complete, as far as its size shows: the recorded one, or a possible one."""
    path = data_dir / file.local_path
    size_bytes = path.stat().st_size if path.is_file() else -1
    if recorded:
        return size_bytes == recorded.size_bytes
    # aria2c keeps this file beside one with gaps, which the check may take for vertices.
    has_gaps = Path(f"{path}.aria2").exists()
    return 0 < size_bytes <= file.kind.max_bytes and not has_gaps
