"""Compares raw files with recorded digests: those of this tree's own `scannet.lock`, and those of another copy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.raw.lock import LockEntry, digest_file
from scannet_prep.stages.finding import Findings


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests that the files of a tree should have.

    Attributes:
        raw_dir: The tree.
        source: The lock file, for messages.
        entries: By path below the tree, with `/`.
        hint: What to do about a file that differs.
    """

    raw_dir: Path
    source: Path
    entries: Mapping[str, LockEntry] = field(repr=False, hash=False)
    hint: str

    def below(self, directory: Path) -> dict[Path, LockEntry]:
        """What is recorded of the files of one folder."""
        prefix = f"{directory.relative_to(self.raw_dir).as_posix()}/"
        return {self.raw_dir / name: entry for name, entry in self.entries.items() if name.startswith(prefix)}

    def for_folder(self, directory: Path) -> Digests:
        """The part of the record that is about one folder, which is all that a worker needs."""
        names = {path.relative_to(self.raw_dir).as_posix(): entry for path, entry in self.below(directory).items()}
        return Digests(self.raw_dir, self.source, names, self.hint)


def check_digests(digests: Digests, contents: Mapping[Path, bytes], findings: Findings) -> None:
    """Compare files with what is recorded of them.

    Args:
        digests: What is recorded.
        contents: Files whose bytes are at hand; others are read.
        findings: Where differences go.
    """
    for name, expected in digests.entries.items():
        path = digests.raw_dir / name
        if path in contents:
            data = contents[path]
            found: LockEntry | None = LockEntry(hashlib.sha256(data).hexdigest(), len(data))
        elif path.exists():
            found = findings.attempt(path, digest_file, path)
        else:
            findings.error(path, f"no such file, though {digests.source.name} records it", "download it again")
            continue
        if found is not None and found != expected:
            sizes = f"{found.size_bytes:,} bytes, sha256 {found.sha256[:12]}"
            recorded = f"{expected.size_bytes:,}, {expected.sha256[:12]}"
            findings.error(
                path, f"is not the file that {digests.source.name} records: {sizes}, expected {recorded}", digests.hint
            )
