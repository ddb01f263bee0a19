"""The raw files that are needed, from the server into the data folder: whole, or not at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scannet_prep.errors import UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import check_is_folder
from scannet_prep.raw.layout import find_orphans
from scannet_prep.release import BASE_URL, FileKind
from scannet_prep.remote.address import public_url
from scannet_prep.remote.catalog import RemoteFile, list_files, parse_types
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.download.space import Room, estimate_left, find_free_room
from scannet_prep.stages.selection import Selection, select_scenes

MAX_JOBS = 8  # the server belongs to a university chair


class FileOutcome(StrEnum):
    """What became of one file."""

    FETCHED = "fetched"
    PRESENT = "already there"
    MISSING = "missing upstream"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one file.

    Attributes:
        file: The file.
        outcome: What became of it.
        size_bytes: Its size, where it is there.
        message: Why it is not there.
        hint: What to do about it; may be empty.
        is_something_else: Whether the server answered, but with something else, or that it does not give or have it.
        is_outage: Whether the server did not answer at all, which is told once and not of every file.
    """

    file: RemoteFile
    outcome: FileOutcome
    size_bytes: int = 0
    message: str = ""
    hint: str = ""
    is_something_else: bool = False
    is_outage: bool = False


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What `run` is going to do; making it needs no network and touches nothing.

    Attributes:
        data_dir: Where the files go.
        base_url: Where they come from; ends in `/`.
        files: All files that were asked for, scene by scene.
        present: Local paths of those that are there; `run` checks each of them.
        orphans: Left by the official download script where it was interrupted; nobody needs them.
        needed: Typical room for what is not there, less what has arrived of it; kinds of unknown size count as nothing.
        free: Room on the disk.
    """

    data_dir: Path
    base_url: str
    files: tuple[RemoteFile, ...]
    present: frozenset[str]
    orphans: tuple[Path, ...]
    needed: Room
    free: Room

    @property
    def missing(self) -> list[RemoteFile]:
        """The files that are not there."""
        return [file for file in self.files if file.local_path not in self.present]

    @property
    def unknown_kinds(self) -> list[FileKind]:
        """Kinds of files whose size is not known beforehand."""
        return [kind for kind in dict.fromkeys(file.kind for file in self.missing) if kind.typical_bytes is None]

    @property
    def lack(self) -> Room:
        """How much more room is needed than there is, with a reserve; falsy where it suffices."""
        return self.free.find_lack(self.needed)

    @property
    def shown_base_url(self) -> str:
        """Where the files come from, as messages may show it: without a password."""
        return public_url(self.base_url)

    def url(self, file: RemoteFile) -> str:
        """The address of a file."""
        return self.base_url + file.remote_path


@dataclass(frozen=True, slots=True)
class DownloadReport:
    """What `run` did.

    Attributes:
        data_dir: Where the files are.
        results: One for each file that was asked for.
        mended: Files that were there, but damaged, and were fetched again.
        opened: Files whose permissions kept everybody else from reading them, as the official script leaves them.
        orphans: See `DownloadPlan`.
        received_bytes: Bytes that came over the network.
    """

    data_dir: Path
    results: tuple[FileResult, ...]
    mended: tuple[str, ...]
    opened: tuple[str, ...]
    orphans: tuple[Path, ...]
    received_bytes: int

    @property
    def failures(self) -> tuple[FileResult, ...]:
        """Files that are not there in the end."""
        return tuple(item for item in self.results if item.outcome in (FileOutcome.FAILED, FileOutcome.MISSING))

    @property
    def failed_scenes(self) -> tuple[SceneFailure, ...]:
        """Scenes that lack a file, each with the first reason."""
        found: dict[str, SceneFailure] = {}
        for item in self.failures:
            if item.file.scene_id is not None:
                failure = SceneFailure(item.file.scene_id, str(item.outcome), item.message, item.hint)
                found.setdefault(item.file.scene_id, failure)
        return tuple(found.values())

    def counts(self) -> dict[str, Counter[FileOutcome]]:
        """Number of files by kind and outcome."""
        found: dict[str, Counter[FileOutcome]] = {}
        for item in self.results:
            found.setdefault(item.file.kind.suffix, Counter())[item.outcome] += 1
        return found

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "data_dir": str(self.data_dir),
            "kinds": {
                suffix: {str(outcome): counts[outcome] for outcome in FileOutcome}
                for suffix, counts in self.counts().items()
            },
            "failures": [
                {
                    "path": item.file.local_path,
                    "scene_id": item.file.scene_id,
                    "outcome": str(item.outcome),
                    "message": item.message,
                    "hint": item.hint,
                }
                for item in self.failures
            ],
            "mended": list(self.mended),
            "permissions_repaired": list(self.opened),
            "orphans": [str(path) for path in self.orphans],
            "received_bytes": self.received_bytes,
            "size_bytes": sum(item.size_bytes for item in self.results),
        }


def plan(
    data_dir: Path, types: Sequence[str] = ("seg",), *, selection: Selection | None = None, base_url: str = BASE_URL
) -> DownloadPlan:
    """Decide what to fetch, from the official lists and a table of which kinds of files exist; needs no network.

    Args:
        data_dir: Where the files go.
        types: Presets (`seg`) and official suffixes.
        selection: Which scenes; all by default.
        base_url: The server, or a mirror of it.

    Raises:
        UsageError: A type is unknown, or the base URL is none.
        UnknownSceneError: A scene is in none of the official lists, or not in the splits that were asked for.
        OutputError: `data_dir` is no folder.
    """
    check_is_folder(data_dir)
    if not _is_address(base_url):
        raise UsageError(f"{public_url(base_url)!r} is no base URL", f"it looks like {BASE_URL}")
    everything = [scene_id for split in Split for scene_id in official_scenes(split)]
    selected = select_scenes(everything, selection or Selection(), data_dir)
    if selected.failures:
        names = ", ".join(failure.scene_id for failure in selected.failures[:3])
        raise UsageError(f"not in the official lists: {names}", "the server has only the scenes of the release")
    files = tuple(list_files(selected.scenes, parse_types(types)))
    if not files:
        raise UsageError("no file of these types exists for these scenes", "test scenes have no annotation")
    parents = {(data_dir / file.local_path).parent for file in files}
    present = frozenset(file.local_path for file in files if (data_dir / file.local_path).exists())
    return DownloadPlan(
        data_dir=data_dir,
        base_url=base_url.rstrip("/") + "/",
        files=files,
        present=present,
        orphans=tuple(orphan for parent in sorted(parents) for orphan in find_orphans(parent)),
        needed=estimate_left(data_dir, [file for file in files if file.local_path not in present]),
        free=find_free_room(data_dir),
    )


def _is_address(text: str) -> bool:
    try:
        address = urlsplit(text)
        is_prefix = not (address.query or address.fragment or re.search(r"\s", text))  # paths are added to it
        return is_prefix and address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # brackets without an address between them, a port that is no number
        return False
