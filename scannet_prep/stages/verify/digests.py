"""Compares raw files with recorded digests: those of this tree's own `scannet.lock`, and those of another copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_lock
from scannet_prep.stages.finding import Findings


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """What is on record of one file.

    Attributes:
        path: The file.
        entry: The digest and size that it should have.
        source: The lock file that says so.
        hint: What to do about it if it differs.
    """

    path: Path
    entry: LockEntry
    source: Path
    hint: str


def read_locks(raw_dir: Path, against: Path | None, findings: Findings) -> dict[Path, list[RecordedFile]]:
    """Read what is on record of the files of a tree; of other copies, only of files that are here too.

    Args:
        raw_dir: The tree.
        against: The `scannet.lock` of another copy; None for none.
        findings: Where it is told that the tree's own lock file is damaged.

    Returns:
        The records by folder.

    Raises:
        LockError: `against` is damaged.
        MissingFileError: There is no file `against`.
    """
    own_path = raw_dir / LOCK_NAME
    own = findings.attempt(own_path, read_lock, own_path) if own_path.exists() else None
    recorded = [
        RecordedFile(raw_dir / name, entry, own_path, "download it again") for name, entry in (own or {}).items()
    ]
    if against is not None:
        hint = "one of the two copies is damaged, or of another version"
        theirs = [RecordedFile(raw_dir / name, entry, against, hint) for name, entry in read_lock(against).items()]
        recorded += [item for item in theirs if item.path.exists()]
    by_folder = defaultdict[Path, list[RecordedFile]](list)
    for item in recorded:
        by_folder[item.path.parent].append(item)
    return by_folder


def check_digests(recorded: Iterable[RecordedFile], findings: Findings) -> None:
    """Compare files with what is on record of them.

    Args:
        recorded: What is on record.
        findings: Where differences go.
    """
    for item in recorded:
        name, expected = item.source.name, item.entry
        if not item.path.exists():
            findings.error(item.path, f"no such file, though {name} records it", item.hint)
            continue
        found = findings.attempt(item.path, digest_file, item.path)
        if found is not None and found != expected:
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            of_record = f"{expected.size_bytes:,}, {expected.sha256[:12]}"
            message = f"is not the file that {name} records: {sizes}, expected {of_record}"
            findings.error(item.path, message, item.hint)
