"""What a download is going to do, and what it did: the server's files, and where they belong on disk."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.backports import StrEnum
from scannet_prep.errors import DiskFullError, TermsError, UsageError
from scannet_prep.files import check_is_folder, make_directory, write_atomically
from scannet_prep.raw.lock import LockEntry, read_locks, shards_of
from scannet_prep.release import (
    BASE_URL,
    KINDS,
    LABEL_MAP,
    PRESETS,
    SHARED_KINDS,
    SPLIT_DIRS,
    TERMS_URL,
    Content,
    FileKind,
)
from scannet_prep.remote.client import find_certificates
from scannet_prep.remote.transfer import partial_path
from scannet_prep.remote.trouble import is_server_address, public_url
from scannet_prep.scene import SceneId, Split
from scannet_prep.shards import Shard, Share
from scannet_prep.space import check_space, format_bytes
from scannet_prep.splits import official_scenes
from scannet_prep.stages.selection import Selection, select_scenes

TERMS_RECORD_NAME = "terms_accepted.txt"
_MAX_JOBS = 8  # the server belongs to a university chair


class FileOutcome(StrEnum):
    """What became of one file."""

    FETCHED = "fetched"
    PRESENT = "already there"
    MISSING = "missing upstream"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the release."""

    kind: FileKind  # what it is
    scene_id: SceneId | None  # the scene it belongs to; None for files of no scene
    split: Split | None  # the split of that scene; None for files of no scene
    url: str  # its address
    local_path: str  # place below the data folder, with `/`


@dataclass(slots=True, eq=False)
class FileResult:
    """What became of one file."""

    file: RemoteFile  # the file
    outcome: FileOutcome | None = None  # what became of it; None as long as that is open
    size_bytes: int = 0  # how much of it is there
    reason: str = ""  # why it is not there; the same text for all files that fail alike
    place: str = ""  # what the reason is about: an address or a path
    hint: str = ""  # what to do about it; may be empty

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
    """What `run` is going to do; making it needs no network and touches nothing."""

    data_dir: Path  # where the files go
    base_url: str  # where they come from; ends in `/`
    files: tuple[RemoteFile, ...]  # all files that were asked for, scene by scene
    present: frozenset[str]  # local paths of those that are there; `run` checks each of them
    partial_bytes: int  # what has arrived of the missing files, in an earlier run
    share: Share | None = None  # the shard that `files` fall to; None where they are all that was asked for
    job_paths: frozenset[str] = frozenset()  # local paths of the files of all shards

    @property
    def shard(self) -> str:
        """Which part of the job it is, such as `3/16`; empty for all of it."""
        return str(self.share.shard) if self.share else ""

    @property
    def is_merged(self) -> bool:
        """Whether shards have been merged that had brought all of the job."""
        if self.share is None or self.share.folder.exists():
            return False
        return self.job_paths <= self.read_locked().keys()

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

    def read_locked(self) -> dict[str, LockEntry]:
        """Read what `scannet.lock` and its parts record; raises LockError where one is damaged."""
        return read_locks(self.data_dir)

    def require_terms(self) -> None:
        """Make sure that the folder records that the terms were accepted; raises TermsError where it does not."""
        if not (self.data_dir / TERMS_RECORD_NAME).is_file():
            raise TermsError(
                f"the ScanNet Terms of Use have not been accepted: {TERMS_URL}",
                "read them, sign them as they say, then add --accept-terms or set SCANNET_PREP_ACCEPT_TERMS=1",
            )

    def accept_terms(self) -> None:
        """Record in the folder that the terms were accepted, and when; OutputError where it cannot be written to."""
        if not (self.data_dir / TERMS_RECORD_NAME).is_file():
            make_directory(self.data_dir)
            now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
            text = f"ScanNet Terms of Use accepted at {now}\n{TERMS_URL}\n"
            write_atomically(self.data_dir / TERMS_RECORD_NAME, [text.encode()])

    def check_room(self) -> None:
        """Check that the disk holds what is missing: that of `scans`, nearly all of it, which may be a link.

        Raises:
            DiskFullError: It does not.
        """
        try:
            folder = (self.data_dir / SPLIT_DIRS[Split.TRAIN]).resolve()
            check_space(folder, self.needed_bytes, len(self.missing))
        except DiskFullError as error:
            hint = f"{error.hint}, or fetch less with --splits or --limit"
            if self.partial_bytes:
                hint += f"; {format_bytes(self.partial_bytes)} have arrived already, in hidden files (.*.part)"
            raise DiskFullError(error.message, hint) from None


@dataclass(frozen=True, slots=True)
class DownloadReport:
    """What `run` did."""

    plan: DownloadPlan  # what was to be done
    results: tuple[FileResult, ...]  # one for each file that was asked for
    received_bytes: int  # bytes that came over the network

    @property
    def failures(self) -> tuple[FileResult, ...]:
        """Files that are not there in the end."""
        return tuple(item for item in self.results if item.is_failure)

    def describe_failures(self) -> list[tuple[str, str]]:
        """A line and a hint for all files that failed for the same reason."""
        groups: dict[tuple[FileOutcome | None, str], list[FileResult]] = {}
        for item in self.failures:
            groups.setdefault((item.outcome, item.reason), []).append(item)
        lines = []
        for first, *others in groups.values():
            text = f"{len(others) + 1:,} files: {first.reason}; for example {first.place}" if others else first.message
            lines.append((f"{first.outcome}: {text}", first.hint))
        return lines

    def counts(self) -> dict[str, dict[FileOutcome, int]]:
        """Number of files by kind and outcome."""
        found: dict[str, dict[FileOutcome, int]] = {}
        for item in self.results:
            found.setdefault(item.file.kind.suffix, dict.fromkeys(FileOutcome, 0))[
                item.outcome or FileOutcome.FAILED
            ] += 1
        return found

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "data_dir": str(self.plan.data_dir),
            "kinds": self.counts(),
            "failures": [
                {"path": item.file.local_path, "scene_id": item.file.scene_id}
                | {"outcome": item.outcome, "message": item.message, "hint": item.hint}
                for item in self.failures
            ],
            "received_bytes": self.received_bytes,
            "size_bytes": sum(item.size_bytes for item in self.results),
        }


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
    kinds = parse_types(types)
    files = tuple(list_files(selected, kinds, base_url))
    if not files:
        raise UsageError("no file of these types exists for these scenes", "test scenes have no annotation")
    sizes = Counter[str]()
    for file in files:
        sizes[file.scene_id or ""] += file.kind.typical_bytes or 0
    settings = {"types": " ".join(sorted(kind.suffix for kind in kinds))}
    is_part = selection != Selection()
    job_paths = frozenset(file.local_path for file in files)
    if share := shards_of(data_dir).take(shard, sizes, settings, is_restricted=is_part):
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
        job_paths=job_paths,
    )


def check(plan: DownloadPlan, *, jobs: int = 4, certificates: bool | Path = True) -> None:
    """Find out beforehand what would stop `run`, whose arguments these are; touches nothing.

    Raises:
        UsageError: Too many jobs, or the file of certificates cannot be used.
        LockError: `scannet.lock` is damaged.
        DiskFullError: The disk will not hold it.
    """
    count = plan.share.shard.count if plan.share and plan.base_url == BASE_URL else 1  # a mirror may be your own
    if not 1 <= jobs * count <= _MAX_JOBS:
        found = f"{jobs} connections at a time" + (f" in each of {count} shards" if count > 1 else "")
        raise UsageError(f"{found}, expected 1 to {_MAX_JOBS} in all", "the server is shared: be polite")
    find_certificates(plan.base_url, certificates)
    plan.read_locked()
    plan.check_room()


def parse_types(words: Sequence[str]) -> tuple[FileKind, ...]:
    """Turn presets and suffixes into kinds of files, each once; UsageError where a word is neither."""
    known = KINDS | SHARED_KINDS
    suffixes = dict.fromkeys(suffix for word in words for suffix in PRESETS.get(word, (word,)))
    for suffix in suffixes:
        if suffix not in known:
            hint = f"presets: {', '.join(PRESETS)}; types: {', '.join(known)}"
            raise UsageError(f"{suffix!r} is not a type of file", hint)
    return tuple(known[suffix] for suffix in suffixes)


def list_files(
    scenes: Sequence[tuple[SceneId, Split]], kinds: Sequence[FileKind], base_url: str = BASE_URL
) -> list[RemoteFile]:
    """List the files of the given kinds that exist for the given scenes, those of no scene first.

    Addresses and places are those of the official download script (as of 2026).
    """
    files = []
    for kind in kinds:
        if not kind.splits:
            place = kind.suffix if kind is LABEL_MAP else f"tasks/{kind.suffix}"
            files.append(RemoteFile(kind, None, None, f"{base_url}v2/tasks/{kind.suffix}", place))
    for scene_id, split in scenes:
        for kind in kinds:
            if split in kind.splits:
                name = f"{scene_id}/{scene_id}{kind.suffix}"
                # The sensor streams of train and val never moved when version 2 came out.
                version = "v1" if kind.content is Content.SENSOR_STREAM and split is not Split.TEST else "v2"
                place = f"{SPLIT_DIRS[split]}/{name}"
                files.append(RemoteFile(kind, scene_id, split, f"{base_url}{version}/scans/{name}", place))
    return files
