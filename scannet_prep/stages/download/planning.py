"""What a download is going to do, and what it did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.backports import StrEnum
from scannet_prep.errors import DiskFullError, UsageError
from scannet_prep.files import check_is_folder
from scannet_prep.raw.layout import find_orphans
from scannet_prep.release import BASE_URL, FileKind
from scannet_prep.remote.address import is_server_address, public_url
from scannet_prep.remote.catalog import RemoteFile, list_files, parse_types
from scannet_prep.remote.partial import partial_path
from scannet_prep.scene import Split
from scannet_prep.space import check_space, format_bytes
from scannet_prep.splits import official_scenes
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
        reason: Why it is not there; the same text for all files that fail alike.
        place: What the reason is about: an address or a path.
        hint: What to do about it; may be empty.
    """

    file: RemoteFile
    outcome: FileOutcome
    size_bytes: int = 0
    reason: str = ""
    place: str = ""
    hint: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether the file is not there in the end."""
        return self.outcome in (FileOutcome.FAILED, FileOutcome.MISSING)

    @property
    def message(self) -> str:
        """Why it is not there, with its name."""
        return f"{self.place}: {self.reason}" if self.is_failure else ""


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What `run` is going to do; making it needs no network and touches nothing.

    Attributes:
        data_dir: Where the files go.
        base_url: Where they come from; ends in `/`.
        files: All files that were asked for, scene by scene.
        present: Local paths of those that are there; `run` checks each of them.
        orphans: Left by the official download script where it was interrupted; nobody needs them.
        partial_bytes: What has arrived of the missing files, in an earlier run.
    """

    data_dir: Path
    base_url: str
    files: tuple[RemoteFile, ...]
    present: frozenset[str]
    orphans: tuple[Path, ...]
    partial_bytes: int

    @property
    def missing(self) -> list[RemoteFile]:
        """The files that are not there."""
        return [file for file in self.files if file.local_path not in self.present]

    @property
    def unknown_kinds(self) -> list[FileKind]:
        """Kinds of missing files whose size is not known beforehand."""
        return [kind for kind in dict.fromkeys(file.kind for file in self.missing) if kind.typical_bytes is None]

    @property
    def needed_bytes(self) -> int:
        """Typical size of what is still to come; kinds of unknown size count as nothing."""
        return max(0, sum(file.kind.typical_bytes or 0 for file in self.missing) - self.partial_bytes)

    @property
    def shown_base_url(self) -> str:
        """Where the files come from, as messages may show it: without a password."""
        return public_url(self.base_url)

    def url(self, file: RemoteFile) -> str:
        """The address of a file."""
        return self.base_url + file.remote_path

    def check_room(self) -> None:
        """Check that the disks hold what is missing: `scans` may be a link to another one.

        Raises:
            DiskFullError: They do not.
        """
        missing: dict[Path, list[RemoteFile]] = {}
        for file in self.missing:
            missing.setdefault((self.data_dir / file.local_path.partition("/")[0]).resolve(), []).append(file)
        disks: dict[int, tuple[Path, int, int]] = {}
        for folder, files in missing.items():
            existing = next(path for path in (folder, *folder.parents) if path.exists())
            _, size_bytes, count = disks.get(existing.stat().st_dev, (folder, -self.partial_bytes, 0))
            size_bytes += sum(file.kind.typical_bytes or 0 for file in files)
            disks[existing.stat().st_dev] = folder, size_bytes, count + len(files)
        try:
            for folder, size_bytes, count in disks.values():
                check_space(folder, max(0, size_bytes), count)
        except DiskFullError as error:
            hint = f"{error.hint}, or fetch less with --splits or --limit"
            if self.partial_bytes:
                hint += f"; {format_bytes(self.partial_bytes)} have arrived already, in hidden files (.*.part)"
            raise DiskFullError(error.message, hint) from None


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
        return tuple(item for item in self.results if item.is_failure)

    def describe_failures(self) -> list[tuple[str, str]]:
        """A line and a hint for all files that failed for the same reason."""
        groups: dict[tuple[str, str], list[FileResult]] = {}
        for item in self.failures:
            groups.setdefault((item.outcome, item.reason), []).append(item)
        lines = []
        for first, *others in groups.values():
            text = f"{len(others) + 1:,} files: {first.reason}; for example {first.place}" if others else first.message
            lines.append((f"{first.outcome}: {text}", first.hint))
        return lines

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
        UsageError: A type is unknown, or the base URL is not one.
        UnknownSceneError: A scene is in none of the official lists, or not in the splits that were asked for.
        OutputError: `data_dir` is not a folder.
    """
    check_is_folder(data_dir)
    if not is_server_address(base_url) or re.search(r"[\s?#]", base_url):  # paths are added to it
        raise UsageError(f"{public_url(base_url)!r} is not a base URL", f"it looks like {BASE_URL}")
    everything = [scene_id for split in Split for scene_id in official_scenes(split)]
    selected = select_scenes(everything, selection or Selection(), data_dir)
    if selected.failures:
        names = ", ".join(failure.scene_id for failure in selected.failures[:3])
        raise UsageError(f"not in the official lists: {names}", "the server has only the scenes of the release")
    files = tuple(list_files(selected.scenes, parse_types(types)))
    if not files:
        raise UsageError("no file of these types exists for these scenes", "test scenes have no annotation")
    paths = {file.local_path: data_dir / file.local_path for file in files}
    present = frozenset(name for name, path in paths.items() if path.exists() or path.is_symlink())
    partials = [partial_path(path) for name, path in paths.items() if name not in present]
    folders = sorted({path.parent for path in paths.values()})
    return DownloadPlan(
        data_dir=data_dir,
        base_url=base_url.rstrip("/") + "/",
        files=files,
        present=present,
        orphans=tuple(orphan for folder in folders for orphan in find_orphans(folder)),
        partial_bytes=sum(path.stat().st_size for path in partials if path.exists()),
    )
